"""What computes a product in the place of torch's own library: our kernels on a GPU, the exact replay on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gemmdesc.dropin.memory import host_bits
from gemmdesc.dropin.products import Family, Product, new_result, operands_of, route_of
from gemmdesc.dropin.sources import Source
from gemmdesc.errors import Declined
from gemmdesc.library.interface import Inputs
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.torch_settings import TorchSettings, read_settings
from gemmdesc.operands import DenseOperand
from gemmdesc.ops.problems import ProblemTensors, launch_problem, require_problem_tensors
from gemmdesc.ops.products import note_write, require_warm
from gemmdesc.ops.sides import meta_of
from gemmdesc.plan import Plan, Planner, mm_meta
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
    """Products of tensors on a CPU, with the bytes that the source's library gives on its card."""

    source: Source

    @property
    def device_type(self) -> str:
        return "cpu"

    def run(self, product: Product) -> torch.Tensor | Declined:
        """See :class:`Executor`."""
        route = route_of(product, self.source.settings, self.source.release)
        if isinstance(route, Declined):
            return route
        if route.activation is Activation.GELU:
            return Declined(code="out_of_scope", reason="gelu by torch's own kernel, which is not replayed")
        found = self.source.look_up(route.problem)
        if isinstance(found, Declined):
            return found
        declined = split_decline(route, found.answer.splitk_num)
        if declined is not None:
            return declined
        a, b, inputs = _replayed_operands(product, route)
        bits = replay_problem(found.description.regions, route.problem, a, b, inputs=inputs)
        return _written(product, route, bits)


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
    a_scale, b_scale = _scales(p, route)
    beta = 0.0 if problem.beta is ScalarClass.ZERO else as_float32(p.beta)
    return Inputs(alpha=as_float32(p.alpha), beta=beta, a_scale=a_scale, b_scale=b_scale, c=c, bias=bias)


def _scales(product: Product, route: Route) -> tuple[float, float]:
    if product.scales is None:
        return 1.0, 1.0
    of_a, of_b = (float(s.item()) for s in product.scales)
    return (of_b, of_a) if route.swapped else (of_a, of_b)


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


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedExecutor:
    """Products of tensors on CUDA devices by our kernels.

    ``planner``: gives the planner of a device by torch's index.  ``settings``, ``release``: a book's, instead of
    torch's own at the moment of a call.
    """

    planner: Callable[[int], Planner]
    settings: TorchSettings | None = None
    release: Release | None = None

    @property
    def device_type(self) -> str:
        return "cuda"

    def run(self, product: Product) -> torch.Tensor | Declined:
        """See :class:`Executor`.

        Raises:
            CaptureError: a CUDA graph is being captured, and something has still to be made.
        """
        import torch

        with torch.cuda.device(product.a.device), torch.no_grad():
            planner = self.planner(product.a.device.index)
            settings = self.settings or read_settings(planner.device.sm)
            route = route_of(product, settings, self.release or Release.parse(torch.__version__))
            if isinstance(route, Declined):
                return route
            a, b = operands_of(product, route)
            out = new_result(product)
            captured = bool(torch.cuda.is_current_stream_capturing())
            planned = _plan(planner, product, route, (a, b, out), settings, captured)
            if isinstance(planned, Declined):
                return planned
            declined = split_decline(route, planned.answer.splitk_num)
            if declined is not None:
                return declined
            _launch(planner, planned, product, route, (a, b, out), captured)
        return out


def _plan(
    planner: Planner,
    product: Product,
    route: Route,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    settings: TorchSettings,
    captured: bool,
) -> Plan | Declined:
    metas = [meta_of(t) for t in _one_of_each(product, tensors)]
    if product.family is Family.MATRIX and product.addend is None and not route.copies:
        return planner.plan_mm(metas[0], metas[1], metas[2], settings, captured=captured)
    bare = planner.problem_meta(route.problem, transposed=route.swapped)
    meta = mm_meta(*metas, sm_count=bare.sm_count, shared_bytes=bare.shared_bytes)
    return planner.plan_problem(route.problem, meta, transposed=route.swapped, captured=captured)


def _one_of_each(
    product: Product, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b, out = _matrices(product, tensors)
    return (a[0], b[0], out[0]) if a.dim() == 3 else (a, b, out)


def _matrices(
    product: Product, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tensors as the kernels see them: vectors as single columns, a batch of one as one matrix."""
    a, b, out = tensors
    if product.family is Family.VECTOR:
        return a, b[:, None], out[:, None]
    if product.family is Family.BATCH and a.shape[0] == 1:
        return a[0], b[0], out[0]
    return a, b, out


def _launch(
    planner: Planner,
    plan: Plan,
    product: Product,
    route: Route,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    captured: bool,
) -> None:
    import torch

    a, b, out = _matrices(product, tensors)
    problem: GemmProblem = plan.problem
    given = ProblemTensors(
        a=a.detach(), b=b.detach(), out=out.detach(),
        c=out.detach() if problem.beta is not ScalarClass.ZERO else None,
        bias=product.addend.detach() if problem.epilogue in BIASED and product.addend is not None else None,
        alpha=as_float32(product.alpha),
        beta=0.0 if problem.beta is ScalarClass.ZERO else as_float32(product.beta),
    )  # fmt: skip
    require_problem_tensors(plan, given)
    require_warm(planner, plan, captured=captured)
    if problem.beta is not ScalarClass.ZERO and product.addend is not None and product.addend is not product.out:
        tensors[2].copy_(product.addend.expand(product.shape))
    launch_problem(plan, given)
    if not captured:
        planner.mark_warm(plan.variants)
    if route.activation is Activation.RELU:
        torch.relu_(tensors[2])
    if route.activation is Activation.GELU:
        tensors[2].copy_(torch.nn.functional.gelu(tensors[2], approximate="tanh"))
    if product.out is not None:
        note_write(product.out)
