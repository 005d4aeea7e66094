"""Products on CUDA devices by our kernels: planned through their problem, checked, launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmdesc.dropin.executors import fused_decline, split_decline
from gemmdesc.dropin.pinning import Reference
from gemmdesc.dropin.products import Family, Product, operands_of, route_of, space_of
from gemmdesc.errors import Declined
from gemmdesc.library.torch_settings import TorchSettings, read_settings
from gemmdesc.ops.launching import note_launched, ready_program
from gemmdesc.ops.problems import ProblemTensors, launch_problem, require_problem_tensors
from gemmdesc.ops.products import note_write
from gemmdesc.ops.sides import meta_of
from gemmdesc.plan import Plan, Planner, mm_meta
from gemmdesc.problem import BIASED, GemmProblem, ScalarClass
from gemmdesc.routes import Activation, Release, Route

if TYPE_CHECKING:
    import torch

    from gemmdesc.kernels.prepared import PreparedProgram

Tensors = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedExecutor:
    """Products of tensors on CUDA devices by our kernels.

    ``planner``: gives the planner of a device by torch's index.  ``settings``, ``release``: a book's, instead of
    torch's own at the moment of a call.  ``pin``: the products whose orders are followed at any batch.
    """

    planner: Callable[[int], Planner]
    settings: TorchSettings | None = None
    release: Release | None = None
    pin: Reference | None = None

    @property
    def device_type(self) -> str:
        return "cuda"

    def run(self, product: Product) -> torch.Tensor | Declined:
        """See :class:`gemmdesc.dropin.executors.Executor`.

        Raises:
            CaptureError: a CUDA graph is being captured, and something has still to be made.
        """
        import torch

        from gemmdesc.kernels.prepared import PreparedProgram
        from gemmdesc.kernels.preparing import named_metas

        with torch.cuda.device(product.a.device), torch.no_grad():
            planner = self.planner(product.a.device.index)
            captured = bool(torch.cuda.is_current_stream_capturing())
            settings, release = self.circumstances(product)
            found = ready(planner, product, settings, release, captured=captured, pin=self.pin)
            if isinstance(found, Declined):
                return found
            named = named_metas(found.tensors.named) if found.tensors.named else ()
            program = ready_program(planner, found.plan, product.a.get_device(), captured=captured, named=named)
            found.fill()
            launch_problem(found.plan, found.tensors, program)
            note_launched(planner, found.plan, program, captured=captured)
            found.finish()
            if product.witness is not None and isinstance(program, PreparedProgram):
                product.witness(Launched(planner=planner, program=program, ready=found))
        return found.out

    def circumstances(self, product: Product) -> tuple[TorchSettings, Release]:
        """Torch's flags and release, under which ``product`` is posed."""
        import torch

        settings = self.settings or read_settings(self.planner(product.a.device.index).device.sm)
        return settings, self.release or Release.parse(torch.__version__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ready:
    """A product planned: ``tensors`` are those of the plan's problem, ``space`` the result or a copy of it."""

    product: Product
    route: Route
    plan: Plan
    tensors: ProblemTensors
    space: torch.Tensor

    @property
    def out(self) -> torch.Tensor:
        """The result, once all is done."""
        return self.space if self.product.out is None else self.product.out

    def fill(self) -> None:
        """Copy the addend into the result, where the library takes it from."""
        addend = self.product.addend
        if self.tensors.c is not None and addend is not None and addend is not self.space:
            self.space.copy_(addend.expand(self.product.shape))

    def finish(self) -> None:
        """What torch does after the library."""
        import torch

        if self.route.activation is Activation.RELU:
            torch.relu_(self.space)
        if self.route.activation is Activation.GELU:
            self.space.copy_(torch.nn.functional.gelu(self.space, approximate="tanh"))
        if self.out is not self.space:
            self.out.copy_(self.space)
        if self.product.out is not None:
            note_write(self.product.out)


@dataclass(frozen=True, kw_only=True, eq=False)
class Launched:
    """A product that ran by a program of its plan's."""

    planner: Planner
    program: PreparedProgram
    ready: Ready


def ready(
    planner: Planner,
    product: Product,
    settings: TorchSettings,
    release: Release,
    *,
    captured: bool = False,
    pin: Reference | None = None,
) -> Ready | Declined:
    """``product`` planned under torch's ``settings`` and ``release``; new memory is allocated, none of torch's written.

    Declines where there is no route, and as :meth:`gemmdesc.plan.Planner.plan_problem` and, with a ``pin``, as
    :meth:`gemmdesc.dropin.pinning.Reference.pinned` do.

    Raises:
        CaptureError: ``captured``, and something has still to be made.
    """
    route = route_of(product, settings, release)
    if isinstance(route, Declined):
        return route
    unfit = fused_decline(product, route)
    if unfit is not None:
        return unfit
    reference = None
    if pin is not None:
        followed = pin.pinned(product, route, lambda problem: _described(planner, problem, captured))
        if isinstance(followed, Declined):
            return followed
        route, reference = followed.route, followed.reference
    a, b = operands_of(product, route)
    space = space_of(product, route)
    tensors = _matrices(product, (a, b, space))
    plan = _plan(planner, product, route, tensors, settings, captured, reference)
    if isinstance(plan, Declined):
        return plan
    declined = split_decline(route, plan.answer.splitk_num)
    if declined is not None:
        return declined
    given = _given(product, route, plan, tensors)
    require_problem_tensors(plan, given)
    return Ready(product=product, route=route, plan=plan, tensors=given, space=space)


def _described(planner: Planner, problem: GemmProblem, captured: bool) -> Plan | Declined:
    meta = planner.problem_meta(problem, transposed=True)
    return planner.plan_problem(problem, meta, transposed=True, captured=captured)


def _plan(
    planner: Planner,
    product: Product,
    route: Route,
    tensors: Tensors,
    settings: TorchSettings,
    captured: bool,
    reference: GemmProblem | None,
) -> Plan | Declined:
    metas = [meta_of(t[0] if t.dim() == 3 else t) for t in tensors]
    plain = product.family is Family.MATRIX and product.addend is None and not route.copies
    if plain and reference is None and product.fused is None:
        return planner.plan_mm(metas[0], metas[1], metas[2], settings, captured=captured)
    bare = planner.problem_meta(route.problem, transposed=route.swapped)
    meta = mm_meta(metas[0], metas[1], metas[2], sm_count=bare.sm_count, shared_bytes=bare.shared_bytes)
    return planner.plan_problem(
        route.problem, meta, transposed=route.swapped, captured=captured, reference=reference,
        following=None if product.fused is None else product.fused.following,
    )  # fmt: skip


def _matrices(product: Product, tensors: Tensors) -> Tensors:
    """The tensors as the kernels see them: vectors as single columns, a batch of one as one matrix."""
    a, b, out = tensors
    if product.family is Family.VECTOR:
        return a, b[:, None], out[:, None]
    if product.family is Family.BATCH and a.shape[0] == 1:
        return a[0], b[0], out[0]
    return a, b, out


def _given(product: Product, route: Route, plan: Plan, tensors: Tensors) -> ProblemTensors:
    a, b, out = (t.detach() for t in tensors)
    problem, addend = plan.problem, product.addend
    updated, biased = problem.beta is not ScalarClass.ZERO, problem.epilogue in BIASED
    alpha, beta = route.scalars(product.alpha, product.beta)
    a_scale, b_scale = (None, None) if product.scales is None else (s.detach() for s in product.scales)
    return ProblemTensors(
        a=a, b=b, out=out, c=out if updated else None,
        bias=addend.detach() if biased and addend is not None else None,
        alpha=alpha, beta=beta, a_scale=a_scale, b_scale=b_scale,
        named={} if product.fused is None else _named(product),
    )  # fmt: skip


def _named(product: Product) -> dict[str, torch.Tensor | float]:
    """The operands of what follows, a batch of one as one matrix."""
    import torch

    assert product.fused is not None
    alone = product.family is Family.BATCH and product.shape[0] == 1
    named = product.fused.named.items()
    return {name: x[0] if alone and isinstance(x, torch.Tensor) else x for name, x in named}
