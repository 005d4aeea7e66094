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
        desc = _described(row, row.evidence.example.problem)
        if desc is not None:
            found.append((row, desc))
    return found


def _described(row: ProfileRow, problem: GemmProblem) -> GEMMDesc | None:
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
            a_n, b_n = known.transa is Transpose.N, known.transb is Transpose.N
            problem = replace(
                known, m=m, n=n, k=k, lda=m if a_n else k, ldb=k if b_n else n, ldd=m, batch_count=1, a_batch_stride=0,
                b_batch_stride=0, d_batch_stride=0,
            )  # fmt: skip
            desc = _described(row, problem)
            if desc is not None:
                layouts = ("r" if b_n else "c") + ("r" if a_n else "c") + "r"
                found.append(LaneCase(name=kind_of(desc), desc=desc, m=n, n=m, k=k, layouts=layouts))
    return found


def kind_of(desc: GEMMDesc) -> str:
    """What its cuts are, in a word each."""
    words = [type(cut.layout).__name__.lower() + (" folded" if cut.fold else "") for cut in desc.cuts]
    return f"{len(words)} {', '.join(dict.fromkeys(words))} {DType(desc.a_dtype).value}"
