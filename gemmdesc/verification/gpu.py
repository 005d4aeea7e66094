"""Our side as the kernels that ``gemmdesc.matmul`` launches, against ``torch.mm`` and ``cublasLtMatmul`` on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdesc.errors import Declined
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.torch_settings import read_settings
from gemmdesc.plan import Planner, planner_for
from gemmdesc.problem import Refused
from gemmdesc.routes import swaps_operands
from gemmdesc.verification.bench import Bench, Compared, Comparison, Prepared, Unprepared
from gemmdesc.verification.cases import Case, case_metas, case_problem, out_meta
from gemmdesc.verification.draws import Draw, operands
from gemmdesc.verification.records import REFERENCES, Located, Outcome
from gemmdesc.verification.tensors import empty_out, integers, make_a, make_b, torch_float

if TYPE_CHECKING:
    import torch

#: Runs of a reference beyond the first that tell one whose bytes vary from one that differs.
_AGAIN = 8


class OurKernelError(Exception):
    """Our side raised; the message says what."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Outputs:
    """What each side made of one draw: bit patterns as integers, or why a reference did not run."""

    ours: torch.Tensor
    references: Mapping[str, torch.Tensor | str]


class GpuBench(Bench):
    """Compares every element of every output on the device; memory beyond ``keep_bytes`` is given back after a case."""

    def __init__(self, library: CublasLt, planner: Planner, *, keep_bytes: int) -> None:
        import torch

        super().__init__(library)
        self._lt, self._planner, self._keep_bytes = library, planner, keep_bytes
        self._settings = read_settings(library.device.sm)
        self._place = torch.device("cuda", planner.device_index)

    def prepare(self, case: Case) -> Prepared | Unprepared:
        """See :class:`~gemmdesc.verification.bench.Bench`."""
        problem = case_problem(case, self._settings)
        if isinstance(problem, Declined):
            return Unprepared(declined=problem, failure="")
        answer = self._lt.answer(problem)
        if isinstance(answer, Refused):
            return Unprepared(declined=None, failure=f"the heuristic: {answer.status}", problem=problem)
        plan = self._planner.plan_mm(*case_metas(case), self._settings)
        common: dict[str, Any] = {"case": case, "problem": problem, "answer": answer}
        common["launch"] = self._lt.launch(problem, answer)
        if isinstance(plan, Declined):
            return Prepared(**common, desc=None, declined=plan, kernel="")
        variants = tuple(sorted(str(v) for v in plan.variants))
        return Prepared(
            **common, desc=plan.descriptor, declined=None, kernel=plan.kernel.structure.value, variants=variants,
            ours=plan,
        )  # fmt: skip

    def compare(self, prepared: Prepared, draws: tuple[Draw, ...]) -> Comparison:
        """See :class:`~gemmdesc.verification.bench.Bench`; an exhausted memory is tried once more, then recorded."""
        import torch

        try:
            try:
                return self._compare(prepared, draws)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                return self._compare(prepared, draws)
        except torch.OutOfMemoryError as error:
            return _all(draws, Outcome.REFERENCE_FAILED, f"out of memory: {_first_line(error)}")
        except OurKernelError as error:
            return _all(draws, Outcome.DIFFERENT, f"our kernel raised {error}")
        except RuntimeError as error:
            return _all(draws, Outcome.REFERENCE_FAILED, _first_line(error), fatal=True)
        finally:
            if torch.cuda.memory_reserved(self._place) > self._keep_bytes:
                torch.cuda.empty_cache()

    def _compare(self, prepared: Prepared, draws: Sequence[Draw]) -> Comparison:
        """Nothing waits for the device until all draws are queued; draws that differ are then looked at one by one."""
        import torch

        flags = torch.zeros((len(draws), 3), dtype=torch.bool, device=self._place)
        failures: dict[tuple[int, str], str] = {}
        for row, draw in enumerate(draws):
            out = self._run(prepared, draw)
            for column, name in enumerate(REFERENCES):
                other = out.references[name]
                if isinstance(other, str):
                    failures[row, name] = other
                else:
                    flags[row, column] = (out.ours != other).any()
            one, two = (out.references[name] for name in REFERENCES)
            apart = True if isinstance(one, str) or isinstance(two, str) else (one != two).any()
            flags[row, 2] = apart
            del out, other, one, two
        found: list[Compared] = []
        raised = flags.tolist()
        for row, draw in enumerate(draws):
            for column, name in enumerate(REFERENCES):
                if (row, name) in failures:
                    why = failures[row, name]
                    found.append(Compared(draw=draw, reference=name, outcome=Outcome.REFERENCE_FAILED, failure=why))
                elif raised[row][column]:
                    found.append(self._look_closer(prepared, draw, name))
                else:
                    found.append(Compared(draw=draw, reference=name, outcome=Outcome.EQUAL))
        return Comparison(compared=tuple(found), torch_is_cublaslt=sum(not flagged[2] for flagged in raised))

    def _run(self, prepared: Prepared, draw: Draw) -> _Outputs:
        a, b = self._operands(prepared.case, draw)
        ours = self._ours(prepared, a, b)
        return _Outputs(ours=ours, references={name: self._reference(name, prepared, a, b) for name in REFERENCES})

    def _operands(self, case: Case, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = operands(case, draw)
        return make_a(case, a, self._place), make_b(case, b, self._place)

    def _ours(self, prepared: Prepared, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        import torch

        from gemmdesc.ops import run

        out = empty_out(prepared.case, self._place)
        try:
            run(prepared.ours, a, b, out=out, planner=self._planner)
        except (torch.OutOfMemoryError, *_device_errors()):
            raise
        except Exception as error:  # whatever a compiler may raise is our side's failure
            raise OurKernelError(f"{type(error).__name__}: {_first_line(error)}") from error
        return integers(out)

    def _reference(self, name: str, prepared: Prepared, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | str:
        return self._cublaslt(prepared, a, b) if name == "cublaslt" else self._torch(prepared.case, a, b)

    def _cublaslt(self, prepared: Prepared, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | str:
        out = empty_out(prepared.case, self._place)
        first, second = (b, a) if swaps_operands(out_meta(prepared.case)) else (a, b)
        pointers = first.data_ptr(), second.data_ptr(), out.data_ptr()
        failed = self._lt.matmul(prepared.problem, prepared.answer, *pointers)
        return integers(out) if failed is None else failed.status

    def _torch(self, case: Case, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | str:
        import torch

        try:
            if case.out_dtype is not case.dtype:
                return integers(torch.mm(a, b, out_dtype=torch_float(case.out_dtype)))
            out = empty_out(case, self._place)
            torch.mm(a, b, out=out)
            return integers(out)
        except (torch.OutOfMemoryError, *_device_errors()):
            raise
        except RuntimeError as error:
            return _first_line(error)

    def _look_closer(self, prepared: Prepared, draw: Draw, name: str) -> Compared:
        """Tell a reference whose bytes vary from one that differs, and locate the first element that does."""
        import torch

        a, b = self._operands(prepared.case, draw)
        expected = self._reference(name, prepared, a, b)
        if isinstance(expected, str):
            return Compared(draw=draw, reference=name, outcome=Outcome.REFERENCE_FAILED, failure=expected)
        for _ in range(_AGAIN):
            again = self._reference(name, prepared, a, b)
            if isinstance(again, str) or not torch.equal(expected, again):
                return Compared(draw=draw, reference=name, outcome=Outcome.NONDETERMINISTIC)
        located = _locate(expected, self._ours(prepared, a, b), draw, name)
        why = "" if located is not None else "differed once, and not when run again"
        return Compared(draw=draw, reference=name, outcome=Outcome.DIFFERENT, located=located, failure=why)


def _locate(expected: torch.Tensor, got: torch.Tensor, draw: Draw, reference: str) -> Located | None:
    differs = expected != got
    count = int(differs.sum())
    if not count:
        return None
    # any() of rows first: an index over more than 2^31 elements is slow to find.
    row = int(differs.any(dim=1).byte().argmax())
    column = int(differs[row].byte().argmax())
    mask = (1 << 8 * expected.element_size()) - 1
    return Located(
        reference=reference, draw=draw.number, family=draw.family.value, row=row, column=column,
        expected_bits=int(expected[row, column]) & mask, got_bits=int(got[row, column]) & mask, count=count,
        size=expected.numel(),
    )  # fmt: skip


def _all(draws: Sequence[Draw], outcome: Outcome, why: str, fatal: bool = False) -> Comparison:
    found = [Compared(draw=d, reference=r, outcome=outcome, failure=why) for d in draws for r in REFERENCES]
    return Comparison(compared=tuple(found), fatal=fatal)


def _device_errors() -> tuple[type[Exception], ...]:
    """What torch raises once a CUDA context is lost."""
    import torch

    found = getattr(torch, "AcceleratorError", None)
    return () if found is None else (found,)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


@dataclass(frozen=True, kw_only=True)
class GpuBenchFactory:
    """Makes a :class:`GpuBench` in a worker process, with torch's library and the profile that applies to it."""

    profile: Path | None = None
    keep_bytes: int = 4 << 30

    def __call__(self) -> GpuBench:
        return GpuBench(CublasLt(), planner_for(0, self.profile), keep_bytes=self.keep_bytes)
