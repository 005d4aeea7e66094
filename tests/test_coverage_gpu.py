"""Coverage campaigns on a GPU: short ones of every family, several processes, and what a wrong bit comes to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.descriptor import FusedDot, GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.probe.workers import InProcess, ProcessPool
from gemmdesc.profiles import (
    Deciding,
    Level,
    Profile,
    ProfileRow,
    RuleOutcome,
    index_profile,
    lookup,
    refuted,
    write_profile,
)
from gemmdesc.verification import kind_kernels
from gemmdesc.verification.coverage import (
    FAMILIES,
    REGIMES,
    CoverageOptions,
    CoverageTasks,
    coverage_item,
    family_scope,
    run_coverage,
)
from gemmdesc.verification.coverage_refuted import Found, find_refuted
from gemmdesc.verification.coverage_rows import Rows, Taken
from gemmdesc.verification.coverage_summary import Coverage, coverage_summary, read_coverage
from gemmdesc.verification.gpu import GpuBench, GpuBenchFactory
from gemmdesc.verification.kind_kernels import compile_kernels, kernels_needed, verify_kernels, verify_widely
from gemmdesc.verification.large_turns import LargeTurns

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

#: Shapes of each regime.
_EACH = 8


@pytest.fixture(scope="module")
def bench() -> Iterator[GpuBench]:
    made = GpuBenchFactory()()
    if made.index is None:
        pytest.skip(f"not covered here: {made.planner.profile}")
    yield made
    made.cublaslt.close()


def tasks(folder: Path) -> CoverageTasks:
    turns = LargeTurns(folder=folder / "turns", turns=1, beyond_bytes=4 << 30)
    return CoverageTasks(
        verify=partial(verify_widely, turns=turns), needs=kernels_needed, compile=compile_kernels
    )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_short_campaign_of_every_family_has_no_difference(
    bench: GpuBench, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = CoverageOptions(shapes={family: _EACH * len(REGIMES)}, seed=3, draws=10, seconds=120.0)
    scopes = {family: family_scope(family)}
    run_coverage(InProcess(bench), scopes, options, tmp_path, {}, lambda *_: None, tasks(tmp_path))
    data = coverage_summary(read_coverage([tmp_path]))
    with capsys.disabled():
        print(f"\n{family}: {data['total']}, {data['sessions'][0]}")  # noqa: T201
    assert data["mismatches"] == []
    assert data["total"]["reference_failed"] == 0, data["reasons"]
    assert data["total"]["shapes"] + data["total"]["refused"] == _EACH * len(REGIMES)
    if not data["total"]["equal"]:
        pytest.skip(f"the profile has no rows for {family}: {data['reasons'][:3]}")
    assert data["total"]["draws"] == 10 * data["total"]["equal"]


def test_several_processes_share_a_card_and_a_second_session_goes_on(bench: GpuBench, tmp_path: Path) -> None:
    scopes = {"float16": family_scope("float16")}
    options = CoverageOptions(shapes={"float16": 120}, seed=5)
    with ProcessPool(GpuBenchFactory(), 4) as pool:
        for shapes in (60, 120):
            part = CoverageOptions(shapes={"float16": shapes}, seed=5)
            run_coverage(pool, scopes, part, tmp_path, {}, lambda *_: None, tasks(tmp_path))
        done = run_coverage(pool, scopes, options, tmp_path, {}, lambda *_: None, tasks(tmp_path))
    found = read_coverage([tmp_path])
    assert done == 0
    assert [len(found.of("float16", r.value)) for r in REGIMES] == [20] * len(REGIMES)
    assert coverage_summary(found)["mismatches"] == []


def test_a_wrong_row_is_refuted_and_its_shapes_alone_come_again(bench: GpuBench, tmp_path: Path) -> None:
    assert bench.index is not None
    right, options = bench.index.profile, CoverageOptions(shapes={"float16": 120}, seed=6, draws=4)
    scopes = {"float16": family_scope("float16")}

    def covered(served: GpuBench, profile: Profile) -> tuple[int, Coverage, Found]:
        rows = Rows(now=Taken.on(profile, Level.VERIFIED, scopes))
        workers = InProcess(served)
        done = run_coverage(workers, scopes, options, tmp_path, {}, lambda *_: None, tasks(tmp_path), rows=rows)
        coverage = read_coverage([tmp_path])
        return done, coverage, find_refuted(workers, coverage, tmp_path, rows.now.deciding, scopes, options)

    done, whole, found = covered(bench, right)
    assert (done, found.refuted, found.refutations) == (120, (), ())
    deciding = Deciding(right)
    counts = Counter(c.row for c in whole.of() if c.outcome == "equal" and fuses(deciding.rows[c.row]))
    word, shapes = counts.most_common(1)[0]
    wrong = replace(right, rows=tuple(
        replace(r, outcome=RuleOutcome(rule=r.outcome.rule.restructured(coarse)))
        if isinstance(r.outcome, RuleOutcome) and r.key == deciding.rows[word].key else r for r in right.rows
    ))  # fmt: skip
    path = tmp_path / "wrong.parquet"
    write_profile(wrong, path)
    served = GpuBenchFactory(profile=path)()
    try:
        done, _, found = covered(served, wrong)
    finally:
        served.cublaslt.close()
    (row,) = found.refuted
    assert done == shapes == row.equal + row.different
    assert row.row.key == deciding.rows[word].key
    assert row.different > 0
    for one in found.refutations:
        assert one.launch is not None
        assert one.launch.kernels
        assert one.draw is not None
    made = refuted(wrong, found.tested, command="c", date="2026-12-01")
    index = index_profile(made)
    assert {type(lookup(index, r.problem, r.answer)) for r in found.refutations} == {Declined}
    done, again, _ = covered(bench, right)
    assert done == shapes
    assert coverage_summary(again)["total"] == coverage_summary(whole)["total"]


def fuses(row: ProfileRow) -> bool:
    return isinstance(row.outcome, RuleOutcome) and isinstance(row.outcome.rule.structure.accumulator.step, FusedDot)


def coarse(desc: GEMMDesc) -> GEMMDesc:
    step = desc.accumulator.step
    if not isinstance(step, FusedDot):
        return desc
    return replace(desc, accumulator=replace(desc.accumulator, step=replace(step, fraction_bits=8)))


@pytest.mark.parametrize("count", [1, 2])
def test_a_wrong_bit_in_the_last_element_is_located(
    bench: GpuBench, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``count``: calls of ours in a row that are wrong, from the fourth draw on; one alone shows once."""
    honest: Callable[..., Any] = kind_kernels.run_problem  # type: ignore[attr-defined]
    calls = {"made": 0}

    def wrong(plan: Any, a: Any, b: Any, out: Any, **beside: Any) -> Any:
        honest(plan, a, b, out, **beside)
        calls["made"] += 1
        if calls["made"] == 4 or (count == 2 and calls["made"] > 4):
            out[-1, -1:].view(torch.int16 if out.element_size() == 2 else torch.int32).bitwise_xor_(1)

    scope, compared = family_scope("float16"), 0
    for index in range(30):
        item = coverage_item("float16", scope, REGIMES[4], index, seed=9, draws=5)
        record = verify_kernels(bench, item)
        assert record is not None
        if record.outcome != "equal":
            continue
        with monkeypatch.context() as patch:
            patch.setattr(kind_kernels, "run_problem", wrong)
            calls["made"] = 0
            spoilt = verify_kernels(bench, item)
        assert spoilt is not None
        assert spoilt.counts == {"equal": 5 - count, "different": count}
        if count == 1:
            assert spoilt.failure == "differed once, and not when run again"
        else:
            assert spoilt.located is not None
            assert spoilt.located["count"] == 1
        compared += 1
    assert compared >= 5


def test_what_a_shape_costs_when_nothing_has_to_be_compiled(
    bench: GpuBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints shapes a second of one process by regime; every shape is done twice, the second time measured."""
    turns = LargeTurns(folder=tmp_path, turns=1, beyond_bytes=4 << 30)
    for regime in REGIMES:
        items = [coverage_item("float16", family_scope("float16"), regime, i, seed=4, draws=10) for i in range(40)]
        for item in items:
            verify_widely(bench, item, turns=turns)
        begin = time.perf_counter()
        records = [verify_widely(bench, item, turns=turns) for item in items]
        rate = len(items) / (time.perf_counter() - begin)
        assert all(r is not None and r.outcome != "different" for r in records)
        with capsys.disabled():
            print(f"\nfloat16 {regime.value}: {rate:.1f} shapes a second in one process")  # noqa: T201
