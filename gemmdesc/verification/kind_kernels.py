"""Verifying kinds of problems by our kernels: every element of D against ``cublasLtMatmul``'s, on the card."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.interface import Inputs, Library
from gemmdesc.library.storage import Stored, d_shape, empty_d, store_a, store_b, store_c
from gemmdesc.ops.problems import run_problem
from gemmdesc.plan import Plan
from gemmdesc.plan.problems import takes_output_scale, takes_scales
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem, Transpose
from gemmdesc.verification.comparing import OurSideError, device_errors, first_line
from gemmdesc.verification.draws import Draw, draws_of
from gemmdesc.verification.gpu import GpuBench
from gemmdesc.verification.kind_records import KindRecord
from gemmdesc.verification.kinds import (
    Compared,
    KindItem,
    kind_inputs,
    kind_operands,
    operand_seed,
    problem_of,
    verify_by,
)
from gemmdesc.verification.records import Outcome
from gemmdesc.verification.tensors import torch_float

if TYPE_CHECKING:
    import torch

#: Runs beyond the first that tell a library whose bytes vary from one that differs.
_AGAIN = 4
#: Tries of a shape for which memory is lacking, and seconds before each further one: others work beside this process.
_MEMORY_TRIES, _MEMORY_SECONDS = 6, 1.0


def verify_kernels(library: Library, item: KindItem) -> KindRecord | None:
    """Ask, plan and compare one shape, every second one as the transposed product; None where its time is over.

    Raises:
        InvalidInputError: ``library`` is no :class:`~gemmdesc.verification.gpu.GpuBench`.
    """
    bench = _bench(library)

    def compare(problem: GemmProblem, answer: AlgoConfig) -> Sequence[Compared] | Declined:
        plan = _plan(bench, item, problem)
        if isinstance(plan, Declined):
            return plan
        return _patiently(bench, Shape(bench=bench, plan=plan, answer=answer, seed=operand_seed(item)), item.draws)

    return verify_by(bench, item, compare)


def kernels_needed(library: Library, item: KindItem) -> tuple[str, ...]:
    """Names of the compiled kernels that our side of one shape needs; none where it declines or its time is over.

    Raises:
        InvalidInputError: as :func:`verify_kernels`.
    """
    bench = _bench(library)
    if item.until is not None and time.time() > item.until:
        return ()
    plan = _plan(bench, item, problem_of(item))
    return () if isinstance(plan, Declined) else tuple(sorted(str(v) for v in plan.variants))


def _bench(library: Library) -> GpuBench:
    if not isinstance(library, GpuBench):
        raise InvalidInputError(f"library must be a GpuBench (got {type(library).__name__})")
    return library


def _plan(bench: GpuBench, item: KindItem, problem: GemmProblem) -> Plan | Declined:
    planner, transposed = bench.planner, item.index % 2 == 1
    meta = planner.problem_meta(problem, transposed=transposed)
    return planner.plan_problem(problem, meta, transposed=transposed)


def _patiently(bench: GpuBench, shape: Shape, count: int) -> list[Compared]:
    """All draws; tried again where memory is lacking.  A lost device is recorded as such."""
    import torch

    draws = draws_of(count)
    try:
        for attempt in range(_MEMORY_TRIES):
            time.sleep(attempt * _MEMORY_SECONDS)
            try:
                return shape.compare(draws)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        return [Compared(outcome=Outcome.REFERENCE_FAILED, failure="out of memory") for _ in draws]
    except device_errors() as error:
        why = first_line(error)
        failure = why if "CUDA error" in why else f"CUDA error: {why}"
        return [Compared(outcome=Outcome.REFERENCE_FAILED, failure=failure) for _ in draws]
    finally:
        bench.give_back()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Made:
    """One draw's matrices on the card."""

    a: Stored
    b: Stored
    c: Stored | None
    bias: torch.Tensor | None
    inputs: Inputs


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """One problem, its answer and our plan; ``seed``: of its operands."""

    bench: GpuBench
    plan: Plan
    answer: AlgoConfig
    seed: int

    def compare(self, draws: Sequence[Draw]) -> list[Compared]:
        """Nothing waits for the card until all draws are queued; draws that differ are then looked at one by one."""
        import torch

        flags = torch.zeros(len(draws), dtype=torch.bool, device=self.bench.place)
        failures: dict[int, Compared] = {}
        for at, draw in enumerate(draws):
            made = self._make(draw)
            reference = self._reference(made)
            if isinstance(reference, Failed):
                failures[at] = Compared(outcome=Outcome.REFERENCE_FAILED, failure=reference.status)
                continue
            try:
                ours = self._ours(made)
            except OurSideError as error:
                failures[at] = Compared(outcome=Outcome.DIFFERENT, failure=f"our side raised {error}")
                continue
            flags[at] = (_held(self.plan.problem, reference) != _held(self.plan.problem, ours)).any()
        raised = flags.tolist()
        equal = Compared(outcome=Outcome.EQUAL)
        return [
            failures.get(at) or (self._look_closer(draw) if raised[at] else equal) for at, draw in enumerate(draws)
        ]

    def _make(self, draw: Draw) -> _Made:
        p, place = self.plan.problem, self.bench.place
        a, b = kind_operands(p, draw, self.seed)
        inputs = kind_inputs(p, draw, self.seed)
        bias = None if inputs.bias is None else inputs.bias.torch_bits(1, p.m, place).reshape(-1).contiguous()
        return _Made(
            a=store_a(p, a.torch_bits(p.a_outer, p.k, place)), b=store_b(p, b.torch_bits(p.b_outer, p.k, place)),
            c=None if inputs.c is None else store_c(p, inputs.c.torch_bits(p.d_outer, p.n, place)),
            bias=None if bias is None else bias.view(torch_float(p.bias_dtype)), inputs=inputs,
        )  # fmt: skip

    def _reference(self, made: _Made) -> Stored | Failed:
        """The library's D."""
        p, lt = self.plan.problem, self.bench.cublaslt
        d = empty_d(p, self.bench.place)
        failed = enqueue_reference(lt, p, self.answer, made.a, made.b, made.c, d, made.inputs)
        return d if failed is None else failed

    def _ours(self, made: _Made) -> Stored:
        """Our D."""
        import torch

        p, plan = self.plan.problem, self.plan
        d = empty_d(p, self.bench.place)
        first, second = op_a(p, made.a), op_b(p, made.b)
        out, c = result(p, d), None if made.c is None else result(p, made.c)
        if plan.transposed:
            first, second, out = second.mT, first.mT, out.mT
            c = None if c is None else c.mT
        try:
            run_problem(
                plan, first, second, out, c=c, bias=made.bias, alpha=made.inputs.alpha, beta=made.inputs.beta,
                planner=self.bench.planner, **self._scales(made.inputs),
            )  # fmt: skip
        except (torch.OutOfMemoryError, *device_errors()):
            raise
        except Exception as error:  # whatever a compiler may raise is our side's failure
            if "out of memory" in str(error).lower():
                # A launch may lack memory that torch did not ask for.
                raise torch.OutOfMemoryError(str(error)) from error
            raise OurSideError(f"{type(error).__name__}: {first_line(error)}") from error
        return d

    def _scales(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        import torch

        p, given = self.plan.problem, {"a_scale": inputs.a_scale, "b_scale": inputs.b_scale, "d_scale": inputs.d_scale}
        taken = {"a_scale": takes_scales(p), "b_scale": takes_scales(p), "d_scale": takes_output_scale(p)}
        return {n: torch.full((1,), value, device=self.bench.place) for n, value in given.items() if taken[n]}

    def _look_closer(self, draw: Draw) -> Compared:
        """Tell a library whose bytes vary from one that differs, and locate the first element that does."""
        p, made = self.plan.problem, self._make(draw)
        expected = self._reference(made)
        if isinstance(expected, Failed):
            return Compared(outcome=Outcome.REFERENCE_FAILED, failure=expected.status)
        for _ in range(_AGAIN):
            again = self._reference(made)
            if isinstance(again, Failed) or (_held(p, expected) != _held(p, again)).any():
                return Compared(outcome=Outcome.NONDETERMINISTIC)
        located = locate(p, expected, self._ours(made), draw)
        why = "" if located else "differed once or between the columns only"
        return Compared(outcome=Outcome.DIFFERENT, located=located, failure=why)


def enqueue_reference(
    lt: CublasLt, problem: GemmProblem, answer: AlgoConfig, a: Stored, b: Stored, c: Stored | None, d: Stored,
    inputs: Inputs,
) -> Failed | None:  # fmt: skip
    """One ``cublasLtMatmul`` on stored matrices, with everything that it takes beside them; None on success."""
    lt.set_inputs(problem, inputs)
    return lt.matmul(
        problem, answer, a.pointer, b.pointer, d.pointer, c_pointer=None if c is None else c.pointer,
        alpha=inputs.alpha, beta=inputs.beta,
    )  # fmt: skip


def op_a(problem: GemmProblem, stored: Stored) -> torch.Tensor:
    """op(A), (m, k) or (batch, m, k), as a view of its storage."""
    view = stored.columns.view(torch_float(problem.a_dtype))
    return _in_batch(problem, view.mT if problem.transa is Transpose.N else view)


def op_b(problem: GemmProblem, stored: Stored) -> torch.Tensor:
    """op(B), (k, n) or (batch, k, n), likewise."""
    view = stored.columns.view(torch_float(problem.b_dtype))
    return _in_batch(problem, view.mT if problem.transb is Transpose.N else view)


def result(problem: GemmProblem, stored: Stored) -> torch.Tensor:
    """D, or C, (m, n) or (batch, m, n), likewise."""
    return _in_batch(problem, stored.columns.view(torch_float(problem.d_dtype)).mT)


def _held(problem: GemmProblem, d: Stored) -> torch.Tensor:
    """D with all that lies between its columns and matrices, which must stay as it was."""
    begin = d.columns.storage_offset()
    return d.buffer[begin : begin + d_shape(problem).extent]


def _in_batch(problem: GemmProblem, view: torch.Tensor) -> torch.Tensor:
    """A batch that shares one matrix has it with stride 0."""
    if problem.batch_count == 1 or view.dim() == 3:
        return view
    return view.expand(problem.batch_count, *view.shape)


def locate(problem: GemmProblem, expected: Stored, got: Stored, draw: Draw) -> dict[str, Any] | None:
    """The first element of D, by columns of all D, that differs; None where none does.  ``row`` is one of all D."""
    want, have = (s.columns.reshape(-1, problem.m) for s in (expected, got))
    differs = want != have
    count = int(differs.sum())
    if not count:
        return None
    line = int(differs.any(dim=1).byte().argmax())
    row = int(differs[line].byte().argmax())
    mask = (1 << 8 * want.element_size()) - 1
    return {
        "draw": draw.number, "family": draw.family.value, "row": line // problem.n * problem.m + row,
        "column": line % problem.n, "expected_bits": int(want[line, row]) & mask,
        "got_bits": int(have[line, row]) & mask, "count": count, "size": want.numel(),
    }  # fmt: skip
