"""Running what a plan launches: by its program where one can be prepared, else through Triton."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from gemmdesc.errors import LaunchWarning
from gemmdesc.plan import CaptureError, Plan, Planner
from gemmdesc.plan.problems import every_matrix, takes_bias, takes_c, takes_output_scale, takes_scales

if TYPE_CHECKING:
    import torch

    from gemmdesc.kernels.beside import Beside
    from gemmdesc.kernels.launch_kmajor import Scales
    from gemmdesc.kernels.prepared import PreparedProgram
    from gemmdesc.kernels.preparing import NamedMetas, Taken, Unprepared


def require_warm(planner: Planner, plan: Plan, *, captured: bool) -> None:
    """Raise CaptureError where ``captured`` and a kernel of the plan was never compiled through ``planner``."""
    cold = sorted(v.kernel for v in planner.cold(plan.variants)) if captured else []
    if cold:
        raise CaptureError(
            "matmul must be warm before a graph captures it, as compiling then would break the capture; make the "
            f"call once outside, or use gemmdesc.warmup (got kernels that are not compiled: {', '.join(cold)})"
        )


def ready_program(
    planner: Planner, plan: Plan, device_index: int, *, captured: bool, named: NamedMetas = ()
) -> PreparedProgram | Unprepared:
    """The plan's program on a device, the current one, made if there is none yet; -1 stands for the host.

    ``named``: how the operands by name lie, which are compiled into what follows a product.

    Raises:
        CaptureError: ``captured``, and something has still to be made.
        LaunchError: the CUDA driver refuses.
    """
    from gemmdesc.kernels.prepared import PreparedProgram

    found = plan.programs.find(device_index, named)
    if isinstance(found, PreparedProgram):
        return found
    require_warm(planner, plan, captured=captured)
    if found is None:
        if captured and named:
            raise CaptureError(
                "matmul must be warm before a graph captures it: make the call once outside, with operands that lie "
                f"alike (got a first call of {plan.problem} with {', '.join(name for name, _ in named)})"
            )
        found = _prepared(plan, device_index, captured=captured, named=named)
        plan.programs.keep(device_index, named, found)
        if isinstance(found, PreparedProgram) and not captured:
            planner.mark_warm(plan.variants)
    return found


def _prepared(
    plan: Plan, device_index: int, *, captured: bool, named: NamedMetas = ()
) -> PreparedProgram | Unprepared:
    import torch

    from gemmdesc.kernels.preparing import Unprepared, prepare
    from gemmdesc.kernels.recording import TablesMissingError

    if device_index < 0:
        return Unprepared(reason="tensors on a host", expected=True)
    device = torch.device("cuda", device_index)
    try:
        meta = every_matrix(plan.meta, plan.problem, transposed=plan.transposed)
        found = prepare(plan.kernel, meta, taken_by(plan, named), device, copies=not captured)
    except TablesMissingError:
        raise CaptureError(
            "matmul must be warm before a graph captures it, as copying its tables to the device then would break the "
            f"capture; make the call once outside, or use gemmdesc.warmup (got a first call of {plan.problem})"
        ) from None
    if isinstance(found, Unprepared) and not found.expected:
        warnings.warn(f"launches go through Triton, which costs more: {found.reason}", LaunchWarning, stacklevel=2)
    return found


def taken_by(plan: Plan, named: NamedMetas = ()) -> Taken:
    """What the plan's kernels take beside A and B."""
    from gemmdesc.kernels.preparing import Taken

    p = plan.problem
    axis = None if not takes_bias(p) else int(plan.transposed)
    scales = int(takes_scales(p)) + int(takes_output_scale(p))
    kind = None if axis is None else p.bias_dtype
    return Taken(c=takes_c(p), bias_axis=axis, scales=scales, bias_dtype=kind, named=named)


def launch_on(
    program: PreparedProgram | Unprepared | None,
    plan: Plan,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    beside: Beside | None = None,
    scales: Scales | None = None,
) -> None:
    """Enqueue the plan's kernels for one matrix of its problem, on the current stream of the current device.

    Raises:
        LaunchError: the CUDA driver refuses.
    """
    from gemmdesc.kernels.beside import NOTHING
    from gemmdesc.kernels.launch_tiled import launch_choice
    from gemmdesc.kernels.prepared import PreparedProgram
    from gemmdesc.kernels.preparing import run_prepared

    a, b, out = tensors
    if isinstance(program, PreparedProgram):
        run_prepared(program, a, b, out, beside or NOTHING, scales)
    elif beside is None:
        launch_choice(plan.kernel, a, b, out)
    else:
        launch_choice(plan.kernel, a, b, out, beside, scales=scales)


def launch_plan(
    planner: Planner, plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, captured: bool
) -> None:
    """Enqueue the kernels of a plan that takes nothing beside its operands.

    Raises:
        CaptureError: ``captured``, and something has still to be made.
        LaunchError: the CUDA driver refuses.
    """
    program = ready_program(planner, plan, out.get_device(), captured=captured)
    launch_on(program, plan, (a, b, out))
    note_launched(planner, plan, program, captured=captured)


def note_launched(
    planner: Planner, plan: Plan, program: PreparedProgram | Unprepared | None, *, captured: bool
) -> None:
    """Triton compiled what it launched; a program's kernels were compiled when it was made."""
    from gemmdesc.kernels.prepared import PreparedProgram

    if not captured and not isinstance(program, PreparedProgram):
        planner.mark_warm(plan.variants)
