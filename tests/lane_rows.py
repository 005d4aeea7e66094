"""Products of every row of a profile whose leaf is a chain on CUDA cores, at sizes that the interpreter can compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gemmdesc.descriptor import GEMMDesc, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.problem import GemmProblem, Transpose, environment
from gemmdesc.profiles.schema import ProfileRow, RuleOutcome
from gemmdesc.profiles.store import read_profile
from gemmdesc.rule import evaluate_rule
from tests.lane_samples import LaneCase

#: Inner sizes, as far as the row's own example reaches.
_SIZES = (7, 61, 530)


def scalar_rows(path: Path) -> list[tuple[ProfileRow, GEMMDesc]]:
    """Rows of plain products over CUDA-core chains, with the descriptor of their example."""
    found = []
    for row in read_profile(path).rows:
        if not isinstance(row.outcome, RuleOutcome):
            continue
        desc = described(row, row.evidence.example.problem)
        if desc is not None:
            found.append((row, desc))
    return found


def described(row: ProfileRow, problem: GemmProblem) -> GEMMDesc | None:
    assert isinstance(row.outcome, RuleOutcome)
    example = row.evidence.example
    desc = evaluate_rule(row.outcome.rule, environment(problem, example.answer, example.launch))
    if isinstance(desc, Declined) or not isinstance(desc.accumulator.step, ScalarStep) or desc.epilogue:
        return None
    return desc if not any(cut.opening for cut in desc.cuts) else None


def row_cases(path: Path) -> list[LaneCase]:
    """Each row's products in torch's terms: op(B)^T (n, k) times op(A)^T (k, m)."""
    found = []
    for row, _ in scalar_rows(path):
        known = row.evidence.example.problem
        m, n = (min(x, 23 if other == 1 else 6) for x, other in ((known.m, known.n), (known.n, known.m)))
        for k in sorted({min(known.k, size) for size in _SIZES}):
            case = case_of(row, packed(known, m, n, k))
            if case is not None:
                found.append(case)
    return found


def packed(problem: GemmProblem, m: int, n: int, k: int) -> GemmProblem:
    """One product of those sizes, its matrices without gaps."""
    lda, ldb = m if problem.transa is Transpose.N else k, k if problem.transb is Transpose.N else n
    return replace(
        problem, m=m, n=n, k=k, lda=lda, ldb=ldb, ldd=m, batch_count=1, a_batch_stride=0, b_batch_stride=0,
        d_batch_stride=0, a_alignment_bytes=256, b_alignment_bytes=256, d_alignment_bytes=256,
    )  # fmt: skip


def case_of(row: ProfileRow, problem: GemmProblem) -> LaneCase | None:
    """A packed problem in torch's terms, where the row has a descriptor for it."""
    desc = described(row, problem)
    if desc is None:
        return None
    layouts = "".join("r" if t is Transpose.N else "c" for t in (problem.transb, problem.transa)) + "r"
    return LaneCase(name=kind_of(desc), desc=desc, m=problem.n, n=problem.m, k=problem.k, layouts=layouts)


def kind_of(desc: GEMMDesc) -> str:
    """What its cuts are, in a word each."""
    words = [type(cut.layout).__name__.lower() + (" folded" if cut.fold else "") for cut in desc.cuts]
    return f"{len(words)} {', '.join(dict.fromkeys(words))} {DType(desc.a_dtype).value}"
