"""Verifying kinds of problems by our kernels: every element of D against ``cublasLtMatmul``'s, on the card."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.interface import Inputs, Library
from gemmdesc.library.storage import Stored
from gemmdesc.ops.launching import ready_program
from gemmdesc.ops.problems import run_problem
from gemmdesc.plan import Plan
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem
from gemmdesc.verification.comparing import OurSideError, device_errors, first_line
from gemmdesc.verification.device_compare import flag_difference
from gemmdesc.verification.draws import Draw, draws_of
from gemmdesc.verification.gpu import GpuBench
from gemmdesc.verification.kind_draws import KindItem, operand_seed, problem_of
from gemmdesc.verification.kind_records import KindRecord
from gemmdesc.verification.kind_stage import Stage, footprint, locate, op_a, op_b, result
from gemmdesc.verification.kinds import Asked, Compared, Examined, replayed, verify_by
from gemmdesc.verification.large_turns import LargeTurns
from gemmdesc.verification.records import Outcome

#: Runs beyond the first that tell a library whose bytes vary from one that differs.
_AGAIN = 4
#: Why a plan declines where the profile has a rule that no kernel of ours computes.
_NO_KERNEL = "kernel"
#: Tries of a shape for which memory is lacking, and seconds before each further one: others work beside this process.
_MEMORY_TRIES, _MEMORY_SECONDS = 6, 1.0


def verify_kernels(library: Library, item: KindItem) -> KindRecord | None:
    """Ask, plan and compare one shape, every second one as the transposed product; None where its time is over.

    Raises:
        InvalidInputError: ``library`` is no :class:`~gemmdesc.verification.gpu.GpuBench`.
    """
    bench = _bench(library)

    def compare(problem: GemmProblem, answer: AlgoConfig) -> Examined | Declined:
        return _by_kernels(bench, item, Asked(problem=problem, answer=answer))

    return verify_by(bench, item, compare)


def verify_widely(library: Library, item: KindItem, *, turns: LargeTurns) -> KindRecord | None:
    """:func:`verify_kernels`, and the CPU replay on windows where no kernel computes the rule.

    ``turns``: shapes that take much memory wait for one.

    Raises:
        InvalidInputError: as :func:`verify_kernels`.
    """
    bench = _bench(library)

    def compare(problem: GemmProblem, answer: AlgoConfig) -> Examined | Declined:
        asked = Asked(problem=problem, answer=answer)
        with turns.turn(footprint(problem)):
            examined = _by_kernels(bench, item, asked)
            if isinstance(examined, Declined) and examined.code == _NO_KERNEL and bench.index is not None:
                examined = replayed(bench, bench.index, bench.accept, item, asked)
        return examined

    return verify_by(bench, item, compare)


def _by_kernels(bench: GpuBench, item: KindItem, asked: Asked) -> Examined | Declined:
    plan = _plan(bench, item, asked.problem)
    if isinstance(plan, Declined):
        return plan
    shape = Shape(bench=bench, plan=plan, answer=asked.answer, seed=operand_seed(item))
    return Examined(compared=_patiently(bench, shape, item.draws), kernel=plan.kernel.structure.value)


def compile_kernels(library: Library, item: KindItem) -> None:
    """Compile what our side of one shape needs, and launch nothing; does nothing where it declines or time is over.

    Raises:
        InvalidInputError: as :func:`verify_kernels`.
    """
    import torch

    bench = _bench(library)
    if item.until is not None and time.time() > item.until:
        return
    plan = _plan(bench, item, problem_of(item))
    if isinstance(plan, Declined):
        return
    try:
        with torch.cuda.device(bench.place):
            ready_program(bench.planner, plan, bench.place.index or 0, captured=False)
    except Exception:  # noqa: BLE001 - whatever is raised here, the shape's own comparison meets and records
        return


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
class Shape:
    """One problem, its answer and our plan; ``seed``: of its operands."""

    bench: GpuBench
    plan: Plan
    answer: AlgoConfig
    seed: int

    def compare(self, draws: Sequence[Draw]) -> list[Compared]:
        """Nothing waits for the card until all draws are queued; draws that differ are then looked at one by one."""
        import torch

        stage = Stage.of(self.plan.problem, self.bench.place)
        flags = torch.zeros(len(draws), dtype=torch.int32, device=self.bench.place)
        outputs, failures = stage.outputs, dict[int, Compared]()
        for at, draw in enumerate(draws):
            inputs = stage.write(self.plan.problem, draw, self.seed)
            failed = self._reference(stage, stage.expected, inputs)
            if failed is not None:
                failures[at] = Compared(outcome=Outcome.REFERENCE_FAILED, failure=failed.status)
                continue
            try:
                self._ours(stage, inputs)
            except OurSideError as error:
                failures[at] = Compared(outcome=Outcome.DIFFERENT, failure=f"our side raised {error}")
            # Ours is cleared for the next draw, so that what it leaves unwritten then is no draw's product.
            flag_difference(*outputs, flags[at])
        raised = flags.tolist()
        equal = Compared(outcome=Outcome.EQUAL)
        return [
            failures.get(at) or (self._look_closer(stage, draw) if raised[at] else equal)
            for at, draw in enumerate(draws)
        ]

    def _reference(self, stage: Stage, d: Stored, inputs: Inputs) -> Failed | None:
        """The library's D, written to ``d``."""
        p, lt = self.plan.problem, self.bench.cublaslt
        return enqueue_reference(lt, p, self.answer, stage.a, stage.b, stage.c, d, inputs)

    def _ours(self, stage: Stage, inputs: Inputs) -> None:
        """Our D, written to ``stage.got``."""
        import torch

        p, plan = self.plan.problem, self.plan
        first, second, out = op_a(p, stage.a), op_b(p, stage.b), result(p, stage.got)
        c = None if stage.c is None else result(p, stage.c)
        if plan.transposed:
            first, second, out = second.mT, first.mT, out.mT
            c = None if c is None else c.mT
        try:
            run_problem(
                plan, first, second, out, c=c, bias=stage.bias, alpha=inputs.alpha, beta=inputs.beta,
                planner=self.bench.planner, **stage.scales,
            )  # fmt: skip
        except (torch.OutOfMemoryError, *device_errors()):
            raise
        except Exception as error:  # whatever a compiler may raise is our side's failure
            if "out of memory" in str(error).lower():
                # A launch may lack memory that torch did not ask for.
                raise torch.OutOfMemoryError(str(error)) from error
            raise OurSideError(f"{type(error).__name__}: {first_line(error)}") from error

    def _look_closer(self, stage: Stage, draw: Draw) -> Compared:
        """Tell a library whose bytes vary from one that differs, and locate the first element that does.

        Both D are cleared first: an element that one side leaves unwritten is none of another draw's.
        """
        p, inputs = self.plan.problem, stage.write(self.plan.problem, draw, self.seed)
        stage.clear()
        failed = self._reference(stage, stage.expected, inputs)
        if failed is not None:
            return Compared(outcome=Outcome.REFERENCE_FAILED, failure=failed.status)
        for _ in range(_AGAIN):
            stage.got.buffer.fill_(-1)
            if self._reference(stage, stage.got, inputs) is not None or stage.differs():
                return Compared(outcome=Outcome.NONDETERMINISTIC)
        stage.got.buffer.fill_(-1)
        try:
            self._ours(stage, inputs)
        except OurSideError as error:
            return Compared(outcome=Outcome.DIFFERENT, failure=f"our side raised {error}")
        located = locate(p, stage.expected, stage.got, draw)
        beside = "differed outside of its elements" if stage.differs() else "differed once, and not when run again"
        return Compared(outcome=Outcome.DIFFERENT, located=located, failure="" if located else beside)


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
