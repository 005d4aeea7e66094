"""Our side as the kernels that ``gemmdesc.matmul`` launches, against ``torch.mm`` and ``cublasLtMatmul`` on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdesc.errors import Declined
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.profiler import cross_check
from gemmdesc.library.storage import a_shape, allocate, b_shape, d_shape
from gemmdesc.library.torch_settings import read_settings
from gemmdesc.plan import Planner, planner_for
from gemmdesc.problem import Launch, Refused
from gemmdesc.profiles import Level, ProfileIndex, index_profile
from gemmdesc.routes import swaps_operands
from gemmdesc.verification.bench import Bench, Comparison, Prepared, Unprepared
from gemmdesc.verification.cases import Case, case_metas, case_problem, out_meta
from gemmdesc.verification.comparing import Reference, TensorComparer, device_errors, first_line
from gemmdesc.verification.draws import Draw
from gemmdesc.verification.tensors import empty_out, integers, torch_float

if TYPE_CHECKING:
    import torch

#: Plans that a worker keeps: shapes do not come again.
_PLANS = 256


class GpuBench(Bench):
    """Compares every element of every output on the device; memory beyond ``keep_bytes`` is given back after a case."""

    def __init__(
        self, library: CublasLt, planner: Planner, *, keep_bytes: int, accept: Level = Level.VERIFIED
    ) -> None:
        import torch

        super().__init__(library)
        self._lt, self._planner, self._keep_bytes, self.accept = library, planner, keep_bytes, accept
        self._settings = read_settings(library.device.sm)
        self._place = torch.device("cuda", planner.device_index)
        references: dict[str, Reference] = {"cublaslt": self.run_cublaslt, "torch": run_torch}
        self._comparer = TensorComparer(place=self._place, ours=self._ours, references=references)

    @property
    def cublaslt(self) -> CublasLt:
        """The library's handle."""
        return self._lt

    @property
    def planner(self) -> Planner:
        """What resolves our side."""
        return self._planner

    @property
    def place(self) -> torch.device:
        """The device of both sides."""
        return self._place

    @cached_property
    def index(self) -> ProfileIndex | None:
        """The profile that rules come from; None where there is none."""
        profile = self._planner.profile
        return None if isinstance(profile, Declined) else index_profile(profile)

    def give_back(self) -> None:
        """Hand memory beyond ``keep_bytes`` that torch holds back to the card."""
        import torch

        if torch.cuda.memory_reserved(self._place) > self._keep_bytes:
            torch.cuda.empty_cache()

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
        if isinstance(plan, Declined):
            return Prepared(**common, regions=(), declined=plan, kernel="")
        variants = tuple(sorted(str(v) for v in plan.variants))
        return Prepared(
            **common, regions=plan.regions, declined=None, kernel=plan.kernel.structure.value, variants=variants,
            ours=plan,
        )  # fmt: skip

    def compare(self, prepared: Prepared, draws: tuple[Draw, ...]) -> Comparison:
        """See :class:`~gemmdesc.verification.bench.Bench`."""
        try:
            return self._comparer.compare(prepared, draws)
        finally:
            self.give_back()

    def cross_check(self, prepared: Prepared, launch: Launch | None) -> str:
        """See :class:`~gemmdesc.verification.bench.Bench`: torch.profiler's names against the captured ones."""
        problem = prepared.problem
        stored = [allocate(shape(problem), str(self._place)) for shape in (a_shape, b_shape, d_shape)]
        checked = cross_check(launch, lambda: self._lt.run_on_device(problem, prepared.answer, *stored))
        return checked.agreement.value

    def _ours(self, prepared: Prepared, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        from gemmdesc.ops import run

        out = empty_out(prepared.case, self._place)
        run(prepared.ours, a, b, out=out, planner=self._planner)
        return integers(out)

    def run_cublaslt(self, prepared: Prepared, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | str:
        """The heuristic's answer through ``cublasLtMatmul``, on the same storage."""
        out = empty_out(prepared.case, self._place)
        first, second = (b, a) if swaps_operands(out_meta(prepared.case)) else (a, b)
        pointers = first.data_ptr(), second.data_ptr(), out.data_ptr()
        failed = self._lt.matmul(prepared.problem, prepared.answer, *pointers)
        return integers(out) if failed is None else failed.status


def run_torch(prepared: Prepared, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | str:
    """``torch.mm``, into an output stored as the case says."""
    import torch

    case = prepared.case
    try:
        if case.out_dtype is not case.dtype:
            return integers(torch.mm(a, b, out_dtype=torch_float(case.out_dtype)))
        out = empty_out(case, a.device)
        torch.mm(a, b, out=out)
        return integers(out)
    except (torch.OutOfMemoryError, *device_errors()):
        raise
    except RuntimeError as error:
        return first_line(error)


@dataclass(frozen=True, kw_only=True)
class GpuBenchFactory:
    """Makes a :class:`GpuBench` in a worker process, with torch's library and the profile that applies to it."""

    profile: Path | None = None
    keep_bytes: int = 4 << 30
    accept: Level = Level.VERIFIED

    def __call__(self) -> GpuBench:
        planner = planner_for(0, self.profile, capacity=_PLANS, accept=self.accept)
        return GpuBench(CublasLt(), planner, keep_bytes=self.keep_bytes, accept=self.accept)
