"""What computes a product in the place of torch's own library: our kernels on a GPU, the exact replay on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gemmdesc.arithmetic.epilogue import EpilogueInputs, NamedOperand, finished_by
from gemmdesc.arithmetic.pointwise import function_decline
from gemmdesc.bits import to_float32
from gemmdesc.descriptor import Gelu, Sigmoid, Silu, Tanh
from gemmdesc.dropin.memory import host_bits
from gemmdesc.dropin.pinning import Reference
from gemmdesc.dropin.products import Family, Fused, Product, new_result, route_of, scales_of
from gemmdesc.dropin.sources import Source
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.interface import Inputs
from gemmdesc.library.replayed import replay_decline, replay_problem
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import DenseOperand
from gemmdesc.plan import Description, pinned
from gemmdesc.problem import BIASED, GemmProblem, ScalarClass
from gemmdesc.regions import Region
from gemmdesc.routes import Activation, Addend, Release, Route

if TYPE_CHECKING:
    import torch


class Executor(Protocol):
    """Computes products of tensors on one type of device."""

    @property
    def device_type(self) -> str: ...

    def run(self, product: Product) -> torch.Tensor | Declined:
        """The result, in ``product.out`` where there is one; a decline leaves everything unwritten."""
        ...

    def circumstances(self, product: Product) -> tuple[TorchSettings, Release]:
        """Torch's flags and release under which ``product`` is posed."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayExecutor:
    """Products of tensors on a CPU, with the bytes that the source's library gives on its card.

    ``pin``: the products whose orders are followed at any batch.
    """

    source: Source
    pin: Reference | None = None

    @property
    def device_type(self) -> str:
        return "cpu"

    def run(self, product: Product) -> torch.Tensor | Declined:
        """See :class:`Executor`."""
        route = route_of(product, self.source.settings, self.source.release)
        if isinstance(route, Declined):
            return route
        asked = route.problem
        if self.pin is not None:
            followed = self.pin.pinned(product, route, self._described)
            if isinstance(followed, Declined):
                return followed
            route, asked = followed.route, followed.reference
        if route.activation is Activation.GELU:
            return Declined(code="out_of_scope", reason="gelu by torch's own kernel, which is not replayed")
        unfit = fused_decline(product, route)
        if unfit is not None:
            return unfit
        found = self.source.look_up(asked)
        if isinstance(found, Declined):
            return found
        declined = split_decline(route, found.answer.splitk_num)
        if declined is not None:
            return declined
        order = found.description if self.pin is None else pinned(found.description, asked, route.problem)
        if isinstance(order, Declined):
            return order
        unfit = replay_decline(order.regions)
        if unfit is not None:
            return unfit
        a, b, inputs = _replayed_operands(product, route)
        if product.fused is not None:
            return _replayed_fused(product, product.fused, route, order.regions, (a, b, inputs))
        return _written(product, route, replay_problem(order.regions, route.problem, a, b, inputs=inputs))

    def circumstances(self, product: Product) -> tuple[TorchSettings, Release]:
        """Torch's flags and release, under which the source's answers were given."""
        return self.source.settings, self.source.release

    def _described(self, problem: GemmProblem) -> Description | Declined:
        found = self.source.look_up(problem)
        return found if isinstance(found, Declined) else found.description


def fused_decline(product: Product, route: Route) -> Declined | None:
    """A decline where something follows the product that no kernel does with it, or no replay."""
    if product.fused is None:
        return None
    if route.addend is Addend.IN_PLACE or route.activation is not Activation.NONE:
        return Declined(code="out_of_scope", reason="an epilogue of a product that takes C, or has an activation")
    if product.a.device.type == "cuda":
        return None
    functions = [s for s in product.fused.following.steps if isinstance(s, Gelu | Silu | Sigmoid | Tanh)]
    return function_decline(functions[0]) if functions else None


def _replayed_fused(
    product: Product, fused: Fused, route: Route, regions: Sequence[Region],
    given: tuple[DenseOperand, DenseOperand, Inputs],
) -> torch.Tensor:  # fmt: skip
    """The product of the replay, then what follows it; the steps are those of any element, whatever its order."""
    import torch

    following, problem = fused.following, route.problem
    if not following.rounded:
        regions, problem = _as_float32(regions, problem)
    bits = replay_problem(regions, problem, given[0], given[1], inputs=given[2])
    matrices = bits.reshape(-1, problem.m, problem.n)
    rows = (np.swapaxes(matrices, 1, 2) if route.swapped else matrices).reshape(-1, product.shape[-1])
    named: dict[str, NamedOperand] = {}
    for name, operand in fused.named.items():
        tensor = operand if isinstance(operand, torch.Tensor) else torch.tensor([[operand]], dtype=torch.float32)
        dtype = DType(str(tensor.dtype).removeprefix("torch."))
        named[name] = NamedOperand(bits=host_bits(tensor.reshape(-1, tensor.shape[-1]), dtype), dtype=dtype)
    desc = following.after(regions[0].descriptor)
    found = finished_by(to_float32(rows, problem.d_dtype), following.steps, desc, EpilogueInputs(named=named))
    signed = torch.from_numpy(found.view(np.dtype(f"i{found.itemsize}"))).view(fused.dtype)
    return signed.reshape(product.shape)


def _as_float32(regions: Sequence[Region], problem: GemmProblem) -> tuple[Sequence[Region], GemmProblem]:
    """The same product, as float32."""
    single = [replace(r, descriptor=replace(r.descriptor, output_dtype=DType.FLOAT32)) for r in regions]
    return single, replace(problem, d_dtype=DType.FLOAT32)


def split_decline(route: Route, splitk_num: int) -> Declined | None:
    """A decline where the answer splits k and the route holds for others only."""
    if not route.unsplit_only or splitk_num <= 1:
        return None
    return Declined(code="out_of_scope", reason="a bias beside several slices, which this torch adds as C")


def _replayed_operands(product: Product, route: Route) -> tuple[DenseOperand, DenseOperand, Inputs]:
    """op(A) and op(B), transposed, as rows of k, and what the problem takes beside them."""
    p, problem = product, route.problem
    right = p.b[:, None] if p.family is Family.VECTOR else p.b
    first, second = (right.mT, p.a) if route.swapped else (p.a, right.mT)
    if not problem.a_batch_stride and first.dim() == 3:
        first = first[:1]
    if not problem.b_batch_stride and second.dim() == 3:
        second = second[:1]
    a, b = (
        DenseOperand(dtype=dtype, array=host_bits(t.reshape(-1, problem.k), dtype))
        for t, dtype in ((first, problem.a_dtype), (second, problem.b_dtype))
    )
    return a, b, _inputs(product, route)


def _inputs(product: Product, route: Route) -> Inputs:
    p, problem = product, route.problem
    c = bias = None
    if route.addend is Addend.IN_PLACE and problem.beta is not ScalarClass.ZERO:
        assert p.addend is not None
        full = p.addend.expand(p.shape)
        full = full[:, None] if p.family is Family.VECTOR else full
        rows = (full.mT if route.swapped else full).reshape(-1, problem.n)
        c = DenseOperand(dtype=problem.c_dtype, array=host_bits(rows, problem.c_dtype))
    if problem.epilogue in BIASED:
        assert p.addend is not None
        bias = DenseOperand(dtype=problem.bias_dtype, array=host_bits(p.addend.reshape(1, -1), problem.bias_dtype))
    a_scale, b_scale = scales_of(p, route)
    alpha, beta = route.scalars(p.alpha, p.beta)
    return Inputs(alpha=alpha, beta=beta, a_scale=a_scale, b_scale=b_scale, c=c, bias=bias)


def _written(product: Product, route: Route, bits: np.ndarray) -> torch.Tensor:
    import torch

    p, problem = product, route.problem
    result = new_result(p)
    signed = torch.from_numpy(bits.view(np.dtype(f"i{bits.itemsize}"))).view(result.dtype)
    matrices = signed.reshape(-1, problem.m, problem.n)
    matrices = matrices.mT if route.swapped else matrices
    result.copy_(matrices.reshape(p.shape))
    if route.activation is Activation.RELU:
        result.relu_()
    return result
