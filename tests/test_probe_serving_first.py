"""What a campaign compares first: what its rows need to be served; and what is made for answers met too seldom."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmdesc.descriptor import ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe import verification
from gemmdesc.probe.answers import AnswerKey, answer_key
from gemmdesc.probe.compare import Draw, Verdict, choose_window
from gemmdesc.probe.comparisons import FEWEST_COMPARED, Comparisons
from gemmdesc.probe.examples import Draws, Variant, ends_of, nearby, reshaped
from gemmdesc.probe.facets import Kind
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, Row, RowIndex, Solved
from gemmdesc.probe.records import retyped, verified_from_plain, verified_to_plain
from gemmdesc.probe.sampling import Regime, Scope, draw_problem, scope_of_kind
from gemmdesc.probe.scan import Block as ScanBlock
from gemmdesc.probe.scan import Example, Found, Tally
from gemmdesc.probe.trials import MadeTask, Verified, VerifyTask, run_made
from gemmdesc.probe.verification import Verification
from gemmdesc.probe.workers import Task
from gemmdesc.problem import AlgoConfig, GemmProblem, Transpose
from tests.probe_samples import DEVICE, FP16, IDENTITY, Order, sample_answer

SCOPE = Scope(dtypes=(FP16,), output_float32=False, regimes=(Regime.SMALL,), misaligned_share=0.5)
SOURCE = Draws(scope=SCOPE, seed=5)
RULE, OTHER = Order(instruction_k=8).rule(), Order(instruction_k=16).rule()
SCALAR = Order(instruction_k=1, step=ScalarStep(fused=True)).rule()
OFTEN, SELDOM = 7, 8


def key_of(algo_id: int, tile: int) -> AnswerKey:
    problem = draw_problem(SCOPE, 5, 0)
    return answer_key(problem, sample_answer(algo_id=algo_id, tile_id=tile))


def tally_of(counts: dict[AnswerKey, int], numbers: int) -> Tally:
    """Each answer met so often, on that many problems of its own."""
    tally, first = Tally(), 0
    for place, (key, count) in enumerate(counts.items()):
        for part in range(0, numbers, 3):
            own = tuple(range(first, first + min(3, numbers - part)))
            found = (Found(key=key, count=count if part == 0 else 0, numbers=own),)
            first += len(own)
            tally.add(ScanBlock(number=100 * place + part, queries=count if part == 0 else 0, found=found, refused=()))
    return tally


class Recording:
    """Workers that compare nothing: every task comes out as told, and is kept; a kill comes after so many."""

    def __init__(self, verdict: Verdict = Verdict.EQUAL, last: int | None = None) -> None:
        self.items: list[Any] = []
        self._verdict, self._last = verdict, last
        self.library: Any = None

    def run(self, task: Task, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        for item in items:
            if self._last is not None and len(self.items) >= self._last:
                raise InterruptedError
            self.items.append(item)
            yield item, self._outcome(item)

    def _outcome(self, item: VerifyTask | MadeTask) -> Any:
        if isinstance(item, MadeTask):
            return tuple(self._one(item, Variant(number=item.numbers[0], m=16 * i)) for i in range(1, item.least + 1))
        return self._one(item, Variant(number=item.numbers[0]))

    def _one(self, item: VerifyTask | MadeTask, variant: Variant) -> Verified:
        full = isinstance(item, VerifyTask) and item.full
        return Verified(
            key=item.key, rule=item.rule.text, variant=variant, verdict=self._verdict, draws=2, m=1, n=1, k=1,
            kernels=(), full=full,
        )


def rows(*keys: AnswerKey) -> RowIndex:
    """One row for each ``algo_id``."""
    rules = {OFTEN: RULE, SELDOM: OTHER}
    made: dict[AnswerKey, list[AnswerKey]] = {}
    for key in keys:
        made.setdefault(key.only(("algo_id",)), []).append(key.only(CLASS_ATTRIBUTES))
    return RowIndex(
        [
            Row(key=k, classes=tuple(c), named=("algo_id",), solved=Solved(rule=rules[k.attribute("algo_id") or 0]))
            for k, c in made.items()
        ]
    )


def verification_of(workers: Recording, folder: Path) -> Verification:
    journal = Journal(folder, {})
    known = Comparisons(SOURCE, map(verified_from_plain, journal.read("verified")))
    return Verification(workers, SOURCE, known, 2, lambda *_: None, journal)


MANY = {key_of(SELDOM, tile): 1 for tile in range(40)}
FEW = {key_of(OFTEN, tile): 500 for tile in range(2)}


def test_rows_come_before_depth_and_by_what_a_comparison_gains(tmp_path: Path) -> None:
    """Two answers met often need eight comparisons; forty met seldom need one each."""
    tally, workers = tally_of({**MANY, **FEW}, numbers=24), Recording()
    index, own = rows(*MANY, *FEW), verification_of(workers, tmp_path)
    assert own.unserved(tally, index) == 1.0
    assert own.serve(tally, index) == []
    assert own.unserved(tally, index) == 0.0
    by_row = [item.key.attribute("algo_id") for item in workers.items]
    assert by_row == [OFTEN] * FEWEST_COMPARED + [SELDOM] * len(MANY)
    served = len(workers.items)
    assert own.serve(tally, index) == []
    assert len(workers.items) == served
    own.deepen(tally, index)
    deeper = [x for x in workers.items[served:] if isinstance(x, VerifyTask)]
    assert Counter(x.key.attribute("algo_id") for x in deeper) == {OFTEN: verification.ROW_PROBLEMS - FEWEST_COMPARED}


def test_the_ends_of_a_range_are_compared_where_one_answer_may_be_several_kernels(tmp_path: Path) -> None:
    """The longest side, and the longest k, of CUDA-core rules; tensor-core rules go by what is cheap alone."""
    key = key_of(OFTEN, 0)
    tally, workers = tally_of({key: 500}, numbers=24), Recording()
    plain = rows(key).find(key)
    assert plain is not None
    for folder, rule, all_ends in (("a", RULE, False), ("b", SCALAR, True)):
        workers = Recording()
        index = RowIndex([replace(plain, solved=Solved(rule=rule))])
        verification_of(workers, tmp_path / folder).serve(tally, index)
        problems = {n: SOURCE.problem(n) for n in tally.numbers[key]}
        first = {item.numbers[0] for item in workers.items}
        ends = ends_of(SOURCE, tally.numbers[key])
        assert max(max(p.m, p.n) for p in problems.values()) == max(problems[ends[0]].m, problems[ends[0]].n)
        assert max(p.k for p in problems.values()) == problems[ends[-1]].k
        assert set(ends).issubset(first) is all_ends
        assert len(workers.items) == FEWEST_COMPARED
    # What an earlier session has compared of a row stays, and the ends come beside it.
    known = verification_of(Recording(), tmp_path / "c")
    narrow = Tally()
    inner = tuple(sorted(set(tally.numbers[key]) - set(ends))[:16])
    narrow.add(ScanBlock(number=0, queries=9, found=(Found(key=key, count=9, numbers=inner),), refused=()))
    index = RowIndex([replace(plain, solved=Solved(rule=SCALAR))])
    known.deepen(narrow, index)
    later = Recording()
    verification_of(later, tmp_path / "c").deepen(tally, index)
    assert {x.numbers[0] for x in later.items if isinstance(x, VerifyTask)} >= set(ends)


def test_rules_of_the_same_answer_about_other_types_are_rivals(tmp_path: Path) -> None:
    own = key_of(OFTEN, 0)
    twin = replace(own, types=(DType.BFLOAT16, DType.BFLOAT16, DType.BFLOAT16))
    plain = rows(own).find(own)
    assert plain is not None
    other = replace(plain, key=twin.only(("algo_id",)), classes=(twin.only(CLASS_ATTRIBUTES),))
    index = RowIndex(
        [replace(plain, solved=Solved(rule=SCALAR)), replace(other, solved=Solved(rule=retyped(RULE, twin.types)))]
    )
    workers = Recording()
    verification_of(workers, tmp_path).serve(tally_of({own: 5, twin: 5}, numbers=24), index)
    others = {item.key: [r.text for r in item.others] for item in workers.items}
    assert others == {own: [RULE.text], twin: [retyped(SCALAR, twin.types).text]}


def test_a_killed_verification_goes_on_where_it_was(tmp_path: Path) -> None:
    tally, index = tally_of({**MANY, **FEW}, numbers=24), rows(*MANY, *FEW)
    first = Recording(last=FEWEST_COMPARED + 5)
    with pytest.raises(InterruptedError):
        verification_of(first, tmp_path).serve(tally, index)
    # The row that gains most is served by then, the other one is not.
    cut = verification_of(Recording(), tmp_path)
    assert cut.unserved(tally, index) == pytest.approx(len(MANY) / tally.counts.total())
    second = Recording()
    verification_of(second, tmp_path).serve(tally, index)
    assert len(first.items) + len(second.items) == FEWEST_COMPARED + len(MANY)
    assert not {(x.key, x.numbers) for x in first.items} & {(x.key, x.numbers) for x in second.items}


def test_what_was_compared_in_another_order_counts(tmp_path: Path) -> None:
    """Comparisons on disk are of whatever problems an earlier session chose, not of the cheapest ones."""
    tally, index = tally_of(FEW, numbers=24), rows(*FEW)
    dear = {k: sorted(n, key=lambda i: -SOURCE.problem(i).k)[:4] for k, n in tally.numbers.items()}
    journal = Journal(tmp_path, {})
    for key, numbers in dear.items():
        for number in numbers:
            item = VerifyTask(
                key=key, source=SOURCE, numbers=(number,), rule=RULE, others=(), draws=4, rivals=2, full=True
            )
            found = Recording()._outcome(item)
            journal.append("verified", verified_to_plain(found))
    workers = Recording()
    assert verification_of(workers, tmp_path).serve(tally, index) == []
    assert workers.items == []


def test_a_row_met_seldom_gets_made_problems_once_a_session(tmp_path: Path) -> None:
    tally, workers = tally_of({key_of(OFTEN, 0): 3}, numbers=3), Recording()
    index, own = rows(key_of(OFTEN, 0)), verification_of(workers, tmp_path)
    own.serve(tally, index)
    (made,) = [x for x in workers.items if isinstance(x, MadeTask)]
    assert made.least == FEWEST_COMPARED - 3
    assert own.unserved(tally, index) == 0.0
    # What fell short, because fewer ways to make problems were known, is tried again by a later session.
    lines = (tmp_path / "verified.jsonl").read_text().splitlines()
    (tmp_path / "verified.jsonl").write_text("".join(f"{x}\n" for x in lines if "m" not in json.loads(x)))
    later = Recording()
    again = verification_of(later, tmp_path)
    again.serve(tally, index)
    assert [type(x) for x in later.items] == [MadeTask]
    assert again.unserved(tally, index) == 0.0


def test_rows_that_fail_are_not_served(tmp_path: Path) -> None:
    tally, index = tally_of(FEW, numbers=24), rows(*FEW)
    own = verification_of(Recording(Verdict.DIFFERENT), tmp_path)
    ((row, classes),) = own.serve(tally, index)
    assert row.key.attribute("algo_id") == OFTEN
    assert set(classes) == {k.only(CLASS_ATTRIBUTES) for k in FEW}
    assert own.unserved(tally, index) == 1.0


def narrow_library(natural: GemmProblem) -> SimulatedLibrary:
    """Its answer runs at one k in one layout only, at any outer sizes of at least 8."""

    def failing(p: GemmProblem, answer: AlgoConfig) -> str | None:
        alike = (p.k, p.transa, p.transb) == (natural.k, natural.transa, natural.transb)
        return None if alike and min(p.m, p.n) >= 8 else "CUBLAS_STATUS_NOT_SUPPORTED"

    return SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=lambda p: sample_answer(), rules=lambda p, x: RULE, failures=failing
    )


def number_of(wanted: Any) -> int:
    return next(i for i in range(1000) if wanted(SOURCE.problem(i)))


def test_an_answer_met_once_is_compared_at_other_outer_sizes() -> None:
    number = number_of(lambda p: min(p.m, p.n) >= 24 and p.k > 100)
    library = narrow_library(SOURCE.problem(number))
    task = MadeTask(
        key=key_of(OFTEN, 0), source=SOURCE, numbers=(number,), rule=RULE, others=(OTHER,), count=6, by_layout=True,
        least=7,
    )
    found = run_made(library, task)
    assert len({v.variant for v in found}) == len(found) == 7
    assert {v.verdict for v in found} == {Verdict.EQUAL}
    natural = SOURCE.problem(number)
    for v in found:
        assert not v.variant.natural
        assert v.k == natural.k
        assert (v.m, v.n) != (natural.m, natural.n)
        assert verified_from_plain(json.loads(json.dumps(verified_to_plain(v)))) == v
        again = SOURCE.variant(library, v.variant)
        assert again is not None
        assert (again.problem.m, again.problem.n, again.problem.k) == (v.m, v.n, v.k)
    wrong = run_made(library, replace(task, rule=OTHER, others=(RULE,)))
    assert Verdict.DIFFERENT in {v.verdict for v in wrong}
    assert len(run_made(library, replace(task, least=0))) == 0


def padding(p: GemmProblem) -> tuple[int, int, int]:
    a_rows, b_rows = (p.m if p.transa is Transpose.N else p.k), (p.k if p.transb is Transpose.N else p.n)
    return p.lda - a_rows, p.ldb - b_rows, p.ldd - p.m


@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.BATCH, Kind.FLOAT8])
def test_problems_nearby_are_stored_as_theirs_is(kind: Kind) -> None:
    scope = replace(scope_of_kind(kind), regimes=(Regime.SMALL,))
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=lambda p: sample_answer(), rules=lambda p, x: RULE
    )
    for p in (draw_problem(scope, 3, i) for i in range(40)):
        made = [e.problem for e in nearby(library, Example(problem=p, answer=sample_answer()))]
        assert made
        assert len(set(made)) == len(made)
        for q in made:
            assert (q.k, q.transa, q.transb, q.batch_count) == (p.k, p.transa, p.transb, p.batch_count)
            assert padding(q) == padding(p)
            assert q.m % min(64, p.m & -p.m) == q.n % min(64, p.n & -p.n) == 0
            if p.batch_count > 1:
                assert q.d_batch_stride - q.ldd * q.n == p.d_batch_stride - p.ldd * p.n
                assert q.a_batch_stride - q.lda * q.a_columns == p.a_batch_stride - p.lda * p.a_columns
        assert reshaped(reshaped(p, p.m + 16, p.n + 32), p.m, p.n) == p


def test_a_batch_s_window_lies_in_few_matrices() -> None:
    scope = replace(scope_of_kind(Kind.BATCH), regimes=(Regime.SMALL,))
    seen = Counter[bool]()
    for i in range(60):
        p = draw_problem(scope, 3, i)
        for rival in (False, True):
            window = choose_window(p, Draw(seed=1, number=i, rival=rival))
            matrices = np.unique(window.rows // p.m)
            wanted = 16 if not rival else 96 if p.m >= p.n else 2
            assert len(set(window.rows.tolist())) == len(window.rows)
            assert window.rows.max() < p.d_outer
            assert {0, p.batch_count - 1} <= set(matrices.tolist())
            assert len(matrices) <= max(4, -(-wanted // p.m))
            # Rows of small matrices are all there are of them.
            inner = window.rows[window.rows // p.m == 0]
            assert {0, p.m - 1} <= set(inner.tolist()) or len(inner) == 1
            seen[len(matrices) < p.batch_count] += 1
    assert len(seen) == 2
