"""What computes a product in the place of torch's own library: our kernels on a GPU, the exact replay on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gemmdesc.dropin.memory import host_bits
from gemmdesc.dropin.pinning import Reference
from gemmdesc.dropin.products import Family, Product, new_result, route_of, scales_of
from gemmdesc.dropin.sources import Source
from gemmdesc.errors import Declined
from gemmdesc.library.interface import Inputs
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import DenseOperand
from gemmdesc.plan import Description, pinned
from gemmdesc.problem import BIASED, GemmProblem, ScalarClass
from gemmdesc.routes import Activation, Addend, Release, Route, as_float32

if TYPE_CHECKING:
    import torch


class Executor(Protocol):
    """Computes products of tensors on one type of device."""

    @property
    def device_type(self) -> str: ...

    def run(self, product: Product) -> torch.Tensor | Declined:
        """The result, in ``product.out`` where there is one; a decline leaves everything unwritten."""
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
        found = self.source.look_up(asked)
        if isinstance(found, Declined):
            return found
        declined = split_decline(route, found.answer.splitk_num)
        if declined is not None:
            return declined
        order = found.description if self.pin is None else pinned(found.description, asked, route.problem)
        if isinstance(order, Declined):
            return order
        a, b, inputs = _replayed_operands(product, route)
        return _written(product, route, replay_problem(order.regions, route.problem, a, b, inputs=inputs))

    def circumstances(self, product: Product) -> tuple[TorchSettings, Release]:
        """Torch's flags and release, under which the source's answers were given."""
        return self.source.settings, self.source.release

    def _described(self, problem: GemmProblem) -> Description | Declined:
        found = self.source.look_up(problem)
        return found if isinstance(found, Declined) else found.description


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
    beta = 0.0 if problem.beta is ScalarClass.ZERO else as_float32(p.beta)
    return Inputs(alpha=as_float32(p.alpha), beta=beta, a_scale=a_scale, b_scale=b_scale, c=c, bias=bias)


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
