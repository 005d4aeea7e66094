"""What the tests of public reports multiply, and what a simulated library itself gives for torch's products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmdesc.dropin import LibrarySource
from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.dropin.memory import host_bits
from gemmdesc.dropin.products import Family, Product, route_of
from gemmdesc.library.interface import Inputs
from gemmdesc.operands import DenseOperand
from gemmdesc.problem import BIASED, AlgoConfig, GemmProblem, ScalarClass
from gemmdesc.routes import Route


def cancelling(m: int, n: int, k: int, dtype: Any, seed: int = 0) -> tuple[Any, Any]:
    """(m, k) and (k, n) of mixed magnitudes whose products almost cancel, so that the order of each sum shows."""
    import torch

    made = torch.Generator().manual_seed(seed)

    def half(rows: int) -> Any:
        scale = torch.exp2(torch.randint(-5, 6, (rows, -(-k // 2)), generator=made).float())
        return torch.randn(rows, -(-k // 2), generator=made) * scale

    x, y = half(m), half(n)
    a, b = torch.cat([x, -x], dim=1)[:, :k], torch.cat([y, y], dim=1)[:, :k]
    b = b + torch.randn(n, k, generator=made) / 64
    return a.to(dtype), b.to(dtype).T.contiguous()


def by_library(held: LibrarySource, call: Callable[[], Any]) -> Any:
    """``call`` with every product of torch's run by the simulated library itself, which knows nothing of a profile."""

    def handle(inner: TorchCall) -> Any:
        assert isinstance(inner.found, Product)
        return _run(held, inner.found)

    with intercepted(handle):
        return call()


def _run(held: LibrarySource, product: Product) -> Any:
    import torch

    p = product
    route = route_of(p, held.settings, held.release)
    assert isinstance(route, Route)
    problem: GemmProblem = route.problem
    answer = held.library.answer(problem)
    assert isinstance(answer, AlgoConfig)
    right = p.b[:, None] if p.family is Family.VECTOR else p.b
    first, second = (right.mT, p.a) if route.swapped else (p.a, right.mT)
    first, second = (
        t[:1] if t.dim() == 3 and not stride else t
        for t, stride in ((first, problem.a_batch_stride), (second, problem.b_batch_stride))
    )

    def drawn(tensor: Any, dtype: Any, columns: int) -> DenseOperand:
        return DenseOperand(dtype=dtype, array=host_bits(tensor.reshape(-1, columns), dtype))

    c = bias = None
    if problem.beta is not ScalarClass.ZERO:
        full = p.addend.expand(p.shape)
        c = drawn(full.mT if route.swapped else full, problem.c_dtype, problem.n)
    elif problem.epilogue in BIASED:
        bias = drawn(p.addend, problem.bias_dtype, p.addend.numel())
    inputs = Inputs(alpha=p.alpha, beta=p.beta if c is not None else 0.0, c=c, bias=bias)
    bits = held.library.run(
        problem, answer, drawn(first, problem.a_dtype, problem.k), drawn(second, problem.b_dtype, problem.k),
        inputs=inputs,
    )  # fmt: skip
    assert isinstance(bits, np.ndarray)
    signed = torch.from_numpy(bits.view(np.dtype(f"i{bits.itemsize}"))).view(p.dtype)
    matrices = signed.reshape(-1, problem.m, problem.n)
    result = (matrices.mT if route.swapped else matrices).reshape(p.shape)
    return result.clone() if p.out is None else p.out.copy_(result)


def choices() -> list[str]:
    """The kernels that a fresh process chooses for products on the border between tiles; without torch."""
    from gemmdesc.dtypes import DType
    from gemmdesc.library.simulated import SimulatedLibrary
    from gemmdesc.library.torch_settings import TorchSettings
    from gemmdesc.plan import Plan, Planner
    from gemmdesc.routes import TensorMeta
    from tests.kind_profiles import on_hopper, profile_of, small_scopes
    from tests.kind_samples import answer_of, rule_of
    from tests.probe_samples import DEVICE, IDENTITY

    profile = profile_of(small_scopes(("plain",)), on_hopper)

    def library() -> SimulatedLibrary:
        return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)

    planner, found = Planner(library, lambda device, identity: profile), []
    for m, n, k in ((64, 128, 512), (128, 64, 512), (128, 128, 1000), (256, 256, 77), (1, 4096, 1024), (2048, 16, 96)):
        sides = (((m, k), (k, 1)), ((k, n), (n, 1)), ((m, n), (n, 1)))
        metas = [TensorMeta(shape=shape, strides=strides, dtype=DType.FLOAT16) for shape, strides in sides]
        plan = planner.plan_mm(metas[0], metas[1], metas[2], TorchSettings())
        assert isinstance(plan, Plan), plan
        found.append(f"{plan.kernel!r} {sorted(map(repr, plan.variants))}")
    return found
