"""Problems in the library's own terms on tensors: batches, C, a bias, relu, scales; checked, then launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.ops.defaults import chosen_planner
from gemmdesc.ops.inputs import check_no_grad, check_on_gpu, check_plain, overlap, overlaps_itself, type_name
from gemmdesc.ops.launching import launch_on, note_launched, ready_program
from gemmdesc.ops.products import note_write
from gemmdesc.ops.sides import meta_of
from gemmdesc.plan import Plan, Planner, mm_meta
from gemmdesc.plan.problems import batch_strides, takes_bias, takes_c, takes_output_scale, takes_scales
from gemmdesc.problem import GemmProblem, ScalarClass
from gemmdesc.routes import address_alignment

if TYPE_CHECKING:
    import torch

    from gemmdesc.kernels.launch_kmajor import Scales
    from gemmdesc.kernels.prepared import PreparedProgram
    from gemmdesc.kernels.preparing import Unprepared


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemTensors:
    """What :func:`run_problem` is given; ``named``: what a plan reads that does more than its problem."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    alpha: float = 1.0
    beta: float = 0.0
    a_scale: torch.Tensor | None = None
    b_scale: torch.Tensor | None = None
    d_scale: torch.Tensor | None = None
    named: Mapping[str, torch.Tensor | float] = field(default_factory=dict)

    @property
    def given(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The matrices, and the bias, that there are, by name."""
        yield from self._there("a", "b", "out", "c", "bias")

    @property
    def scales(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The scales that there are, by name."""
        yield from self._there("a_scale", "b_scale", "d_scale")

    def _there(self, *names: str) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor


def run_problem(
    plan: Plan,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    d_scale: torch.Tensor | None = None,
    planner: Planner | None = None,
) -> torch.Tensor:
    """Write the D of ``plan.problem`` to ``out``, with the library's bytes, and return it.

    ``plan`` comes from :meth:`gemmdesc.plan.Planner.plan_problem`, and the tensors are stored as its ``meta`` says.
    Everything is in the terms of ``meta``, the transposed product's where ``plan.transposed``, as torch's row-major
    tensors are.  Each rounding of the epilogue is where the library puts it.  Runs on the current stream of the
    tensors' device and does not wait.

    Args:
        a: (m, k), or (batch, m, k) for a batch; the batch's stride is the problem's, 0 (``expand``) included.
        b: (k, n), or (batch, k, n), likewise.
        out: (m, n), or (batch, m, n), likewise; of D's type.
        c: of D's type and stored as ``out`` is, its address aligned as the problem says; may be ``out`` itself.
        bias: (problem.m,), dense, of D's type: one value for each row of the library's D, which is a column of
            ``out`` where ``plan.transposed``.
        alpha: a float32 value, 1 unless the problem's alpha is another.
        beta: likewise, with what the problem says of beta.
        a_scale, b_scale: one float32 each, on a's device, where the operands have 8 bits: D is their product, formed
            in float32, times the sum.  They are read when the kernels run, whatever they hold.
        d_scale: likewise, where D has 8 bits.
        planner: the one that made the plan; without it, the process's default one.

    Raises:
        InvalidInputError: tensors or scalars that are not those of the plan's problem, missing or superfluous ones,
            tensors on a CPU or on several devices, memory of ``out`` shared with itself, or with another tensor but
            for a ``c`` that is ``out``; before anything is written.
        CaptureError: as :func:`gemmdesc.matmul`.
    """
    import torch

    tensors = ProblemTensors(
        a=a, b=b, out=out, c=c, bias=bias, alpha=alpha, beta=beta, a_scale=a_scale, b_scale=b_scale, d_scale=d_scale
    )
    require_problem_tensors(plan, tensors)
    check_on_gpu("a", a)
    chosen = chosen_planner(a.device.index, None, planner)
    if (plan.device, plan.library) != (chosen.device, chosen.library):
        raise InvalidInputError(
            f"plan must be of {chosen.device.folder}, cuBLASLt {chosen.library.version} "
            f"(got {plan.device.folder}, {plan.library.version})"
        )
    with torch.cuda.device(a.device):
        captured = torch.cuda.is_current_stream_capturing()
        program = ready_program(chosen, plan, out.get_device(), captured=captured)
        launch_problem(plan, tensors, program)
        note_launched(chosen, plan, program, captured=captured)
    note_write(out)
    return out


def launch_problem(
    plan: Plan, tensors: ProblemTensors, program: PreparedProgram | Unprepared | None = None
) -> None:
    """Enqueue the plan's kernels on checked tensors, matrix by matrix of a batch; nothing is checked again.

    ``program``: the plan's on their device; without one, launches go through Triton.
    """
    from gemmdesc.kernels.beside import Beside

    t, batched = tensors, plan.problem.batch_count > 1
    bias = None
    if t.bias is not None:
        shape = (plan.meta.m, plan.meta.n)
        bias = (t.bias[None, :] if plan.transposed else t.bias[:, None]).expand(shape)
    scales = _scales(tensors)
    for i in range(plan.problem.batch_count):
        a, b, out, c = ((x[i] if batched and x is not None else x) for x in (t.a, t.b, t.out, t.c))
        assert a is not None
        assert b is not None
        assert out is not None
        named = {name: x if isinstance(x, float) or not batched else x[i] for name, x in t.named.items()}
        beside = Beside(c=c, bias=bias, alpha=float(t.alpha), beta=float(t.beta), named=named)
        launch_on(program, plan, (a, b, out), beside, scales)


def _scales(t: ProblemTensors) -> Scales | None:
    """The operands' scales as one float32 product, times alpha; enqueued like everything else."""
    from gemmdesc.kernels.launch_kmajor import Scales

    if t.a_scale is None or t.b_scale is None:
        return None
    both = t.a_scale.reshape(1) * t.b_scale.reshape(1)
    scale = both if t.alpha == 1.0 else both * t.alpha
    return Scales(scale=scale, output=None if t.d_scale is None else t.d_scale.reshape(1))


def require_problem_tensors(plan: Plan, tensors: ProblemTensors) -> None:
    """Raise InvalidInputError unless ``tensors`` are what :func:`run_problem` takes, on whatever device."""
    problem, wanted = plan.problem, plan.meta
    _require_presence(problem, tensors)
    _require_scalars(problem, tensors)
    shapes = {"a": (wanted.m, wanted.k), "b": (wanted.k, wanted.n), "out": (wanted.m, wanted.n)}
    shapes["c"] = shapes["out"]
    batch = (problem.batch_count,) if problem.batch_count > 1 else ()
    for name, tensor in tensors.given:
        check_plain(name, tensor, axes=1 if name == "bias" else 2 + len(batch))
        check_no_grad(name, tensor)
        shape = (problem.m,) if name == "bias" else (*batch, *shapes[name])
        if tuple(tensor.shape) != shape:
            raise InvalidInputError(f"{name} must have the plan's shape {shape} (got {tuple(tensor.shape)})")
        if tensor.device != tensors.a.device:
            raise InvalidInputError(f"{name} must be on a's device {tensors.a.device} (got {tensor.device})")
    _require_scales(tensors)
    _require_stored(plan, tensors)
    _require_apart(tensors)


def _require_presence(problem: GemmProblem, tensors: ProblemTensors) -> None:
    for name, taken in (
        ("c", takes_c(problem)), ("bias", takes_bias(problem)), ("a_scale", takes_scales(problem)),
        ("b_scale", takes_scales(problem)), ("d_scale", takes_output_scale(problem)),
    ):  # fmt: skip
        given = getattr(tensors, name)
        if (given is not None) is not taken:
            got = None if given is None else type(given).__name__
            raise InvalidInputError(f"{name} must be given where the problem takes one, and only there (got {got})")


def _require_scalars(problem: GemmProblem, tensors: ProblemTensors) -> None:
    for name, kind in (("alpha", problem.alpha), ("beta", problem.beta)):
        value = getattr(tensors, name)
        if not isinstance(value, (int, float)):
            raise InvalidInputError(f"{name} must be a number (got {value!r})")
        fixed = {ScalarClass.ZERO: 0.0, ScalarClass.ONE: 1.0}.get(kind)
        if fixed is not None and value != fixed:
            raise InvalidInputError(f"{name} must be {kind.value} for this problem (got {value})")
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value))
        if rounded != value and value == value:
            raise InvalidInputError(f"{name} must be a float32 value (got {value!r})")


def _require_scales(tensors: ProblemTensors) -> None:
    for name, scale in tensors.scales:
        check_no_grad(name, scale)
        if type_name(scale.dtype) != DType.FLOAT32.value or scale.numel() != 1:
            got = f"{type_name(scale.dtype)}, {tuple(scale.shape)}"
            raise InvalidInputError(f"{name} must be one float32 (got {got})")
        if scale.device != tensors.a.device:
            raise InvalidInputError(f"{name} must be on a's device {tensors.a.device} (got {scale.device})")


def _require_stored(plan: Plan, tensors: ProblemTensors) -> None:
    """Types, strides and alignments are the plan's; C's are the output's but for its alignment."""
    problem, wanted = plan.problem, plan.meta
    batched = problem.batch_count > 1
    given = _meta(plan, tensors, batched)
    for name in ("a", "b", "out"):
        if getattr(given, name) != getattr(wanted, name):
            raise InvalidInputError(
                f"{name} must be stored as planned, {getattr(wanted, name)} (got {getattr(given, name)})"
            )
    strides = zip(("a", "b", "out"), batch_strides(problem, transposed=plan.transposed), strict=True)
    for name, stride in strides if batched else ():
        got = getattr(tensors, name).stride(0)
        if got != stride:
            raise InvalidInputError(f"{name} must have the problem's batch stride {stride} (got {got})")
    for name, dtype in (("c", problem.c_dtype), ("bias", problem.bias_dtype)):
        tensor = getattr(tensors, name)
        if tensor is not None and type_name(tensor.dtype) != dtype.value:
            raise InvalidInputError(f"{name} must be of {dtype.value} (got {type_name(tensor.dtype)})")
    if tensors.bias is not None and tensors.bias.stride(0) != 1:
        raise InvalidInputError(f"bias must be dense (got stride {tensors.bias.stride(0)})")
    if tensors.c is None:
        return
    if tensors.c.stride() != tensors.out.stride():
        raise InvalidInputError(f"c must be stored as out, {tensors.out.stride()} (got strides {tensors.c.stride()})")
    alignment = address_alignment(tensors.c.data_ptr())
    if alignment != problem.c_alignment_bytes:
        raise InvalidInputError(f"c must be aligned to {problem.c_alignment_bytes} bytes as planned (got {alignment})")


def _meta(plan: Plan, tensors: ProblemTensors, batched: bool) -> KernelMeta:
    a, b, out = (meta_of(t[0] if batched else t) for t in (tensors.a, tensors.b, tensors.out))
    return mm_meta(a, b, out, sm_count=plan.meta.sm_count, shared_bytes=plan.meta.shared_bytes)


def _require_apart(tensors: ProblemTensors) -> None:
    out = tensors.out
    if overlaps_itself(out):
        raise InvalidInputError(
            f"out must have a place of its own for every element (got {tuple(out.shape)}, strides {out.stride()})"
        )
    for name, tensor in (*tensors.given, *tensors.scales):
        # C is read where D is written, by the same thread: one tensor may be both.
        if name == "out" or (name == "c" and tensor.data_ptr() == out.data_ptr()):
            continue
        if overlap(out, tensor):
            raise InvalidInputError(f"out must not share memory with {name} (got overlapping address ranges)")
