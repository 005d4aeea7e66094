"""Routes beside one that was found wrong: what another torch, or cuBLAS itself, might do instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gemmdesc.dropin.products import Family, Product
from gemmdesc.dtypes import DType
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import (
    ALL_REDUCTION_SCHEMES,
    MAX_ALIGNMENT_BYTES,
    ComputeType,
    Epilogue,
    GemmProblem,
    ScalarClass,
)
from gemmdesc.routes import Activation, Addend, Api, Route, address_alignment

#: By activation: the epilogue with a bias, and without one.
_ACTED = MappingProxyType(
    {Activation.RELU: (Epilogue.RELU_BIAS, Epilogue.RELU), Activation.GELU: (Epilogue.GELU_BIAS, Epilogue.GELU)}
)


def variants(product: Product, route: Route, settings: TorchSettings) -> Iterator[tuple[str, Route]]:
    """Routes that differ from ``route`` in one thing that another torch, or cuBLAS itself, might do."""
    p = route.problem
    for name, size in (("workspace of cuBLAS", settings.workspace_bytes), ("of cuBLASLt", settings.lt_workspace_bytes)):
        yield name, replace(route, problem=replace(p, workspace_limit_bytes=size))
    yield "no workspace", replace(route, problem=replace(p, workspace_limit_bytes=0))
    if p.a_dtype is DType.FLOAT32:
        for kind in (ComputeType.COMPUTE_32F, ComputeType.COMPUTE_32F_FAST_TF32):
            yield f"compute type {kind.value}", replace(route, problem=replace(p, compute_type=kind))
    for mask in (ALL_REDUCTION_SCHEMES, 2, 0):
        yield f"reduction schemes {mask}", replace(route, problem=replace(p, reduction_scheme_mask=mask))
    if product.addend is not None and product.family is Family.MATRIX:
        yield from _other_epilogues(product, route, settings)
    if p.batch_count > 1:
        yield "alignments of every matrix", replace(route, problem=_every_matrix(p))
    if (product.alpha, product.beta) != (1.0, 0.0):
        for dtype in dict.fromkeys((DType.FLOAT32, p.a_dtype)):
            yield f"scalars rounded to {dtype.value}", replace(route, scalar_dtype=dtype)
    # An address may be less aligned than the library is told here; it refuses to run then.
    yield "D's alignment 256", replace(route, problem=_aligned(p, MAX_ALIGNMENT_BYTES, "d"))
    yield "C's and D's alignment 256", replace(route, problem=_aligned(p, MAX_ALIGNMENT_BYTES, "cd"))
    yield "all alignments 256", replace(route, problem=_aligned(p, MAX_ALIGNMENT_BYTES, "abcd"))
    yield "all alignments 16", replace(route, problem=_aligned(p, 16, "abcd"))


def _aligned(problem: GemmProblem, alignment: int, names: str) -> GemmProblem:
    changes: dict[str, Any] = {f"{name}_alignment_bytes": alignment for name in names}
    return replace(problem, **changes)


def _every_matrix(problem: GemmProblem) -> GemmProblem:
    """With alignments that every matrix of the batch has."""
    changes: dict[str, Any] = {}
    for name in "abd":
        told = getattr(problem, f"{name}_alignment_bytes")
        step = getattr(problem, f"{name}_batch_stride") * getattr(problem, f"{name}_dtype").itemsize
        changes[f"{name}_alignment_bytes"] = min(told, address_alignment(step)) if step else told
    return replace(problem, c_alignment_bytes=changes["d_alignment_bytes"], **changes)


def _other_epilogues(product: Product, route: Route, settings: TorchSettings) -> Iterator[tuple[str, Route]]:
    p = route.problem
    if route.api is Api.CUBLASLT:
        # The fused call may have told the bias's alignment in the place of D's.
        plain = replace(p, epilogue=Epilogue.DEFAULT, beta=ScalarClass.ONE, d_alignment_bytes=p.c_alignment_bytes)
        yield "not fused, as where torch's fused call fails", replace(
            route, problem=replace(plain, workspace_limit_bytes=settings.workspace_bytes), api=Api.CUBLAS,
            addend=Addend.IN_PLACE, activation=product.activation,
        )  # fmt: skip
    later = replace(p, epilogue=Epilogue.DEFAULT, beta=ScalarClass.ONE)
    for name, size in (("cuBLAS's", settings.workspace_bytes), ("cuBLASLt's", settings.lt_workspace_bytes)):
        in_place = replace(later, workspace_limit_bytes=size)
        if product.beta == 1.0:
            yield f"C in place, {name} workspace", replace(
                route, problem=in_place, addend=Addend.IN_PLACE, activation=product.activation
            )
        if product.beta == 1.0 and product.activation is not Activation.NONE:
            acted = replace(in_place, epilogue=_ACTED[product.activation][1])
            yield f"C in place, activation in the epilogue, {name} workspace", replace(
                route, problem=acted, addend=Addend.IN_PLACE, activation=Activation.NONE
            )
        vector = product.addend is not None and product.addend.numel() == p.m and route.swapped
        if vector and product.beta == 1.0:
            biased = replace(p, epilogue=Epilogue.BIAS, beta=ScalarClass.ZERO, workspace_limit_bytes=size)
            yield f"bias in the epilogue, {name} workspace", replace(
                route, problem=biased, addend=Addend.BIAS, activation=product.activation
            )
            if product.activation is not Activation.NONE:
                acted = replace(biased, epilogue=_ACTED[product.activation][0])
                yield f"bias and activation in the epilogue, {name} workspace", replace(
                    route, problem=acted, addend=Addend.BIAS, activation=Activation.NONE
                )
            aligned = _aligned(biased, MAX_ALIGNMENT_BYTES, "abcd")
            yield f"bias in the epilogue, {name} workspace, alignments 256", replace(
                route, problem=aligned, addend=Addend.BIAS, activation=product.activation
            )
