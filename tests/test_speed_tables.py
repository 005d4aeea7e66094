"""The benchmark with tuned tables and without: what a row says of its pick, and sessions of either kind."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.kernels.competing import CLASS, EXACT
from gemmdesc.kernels.tuned import UNTUNED
from gemmdesc.speed.bars import bars
from gemmdesc.speed.journal import read_sessions, row_data, row_from_data
from gemmdesc.speed.rehearsal import RehearsalDevice
from gemmdesc.speed.session import Plan, run_session
from gemmdesc.speed.sets import speed_shapes
from gemmdesc.speed.summary import Collected, claims, group_result, write_rows

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
DECODE = speed_shapes(["decode"])


def test_a_row_says_what_its_pick_was_found_by(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    own, shared = (s.name for s in DECODE[:2])
    device = RehearsalDevice(tuned={own: EXACT, shared: CLASS})
    plan = Plan(shapes=DECODE, seconds=5000.0, compiled=0, rounds=3)
    run_session(device, plan, tmp_path, "one", {"command": "x", "date": "2026-01-01", "tuned_exact": 1})
    (session,) = read_sessions([tmp_path])
    told = {r.shape.name: r.sides.tuned for r in session.measured}
    assert {name: word for name, word in told.items() if word} == {own: "exact", shared: "class"}
    collected = Collected(DECODE, (session,))
    whole = next(b for b in bars() if b.name == "decode, M 1 to 64")
    assert group_result(collected, whole)["tuned"] == 2
    listed = claims(collected, "x")[0]["sessions"][0]
    assert (listed["tuned_exact"], listed["untuned"]) == (1, False)
    write_rows(collected, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert {r["name"]: r["tuned"] for r in table if not r["control"]} == told
    assert {r["untuned"] for r in table} == {False}
    # A journal from before says nothing of it.
    row = session.measured[0]
    older = row_data(row)
    del older["sides"]["tuned"]
    assert row_from_data(older) == replace(row, sides=replace(row.sides, tuned=""))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("bench_gemm")


def test_sessions_with_and_without_tables_do_not_mix(
    tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours is slower without a table on this card, and each summary is of its own sessions."""
    given: list[float] = []

    class Card(RehearsalDevice):
        def __init__(self, **named: Any) -> None:
            super().__init__(**named, tuned={} if given else {s.name: EXACT for s in DECODE})
            given.append(1.0)

    monkeypatch.setattr(script, "RehearsalDevice", Card)
    run = ["measure", str(tmp_path), "--rehearse", "--parts", "decode", "--seconds", "5000", "--rounds", "3"]
    assert script.main(run) == 0
    capsys.readouterr()
    # With tables all are timed; without, none is yet.
    assert script.main(run) == 0
    assert "0/28" not in capsys.readouterr().out
    assert script.main([*run, "--untuned"]) == 0
    sessions = read_sessions([tmp_path])
    assert [s.untuned for s in sorted(sessions, key=lambda s: s.about["untuned"])] == [False, True]
    assert {len(s.measured) for s in sessions} == {28}
    for options, tuned in (([], 28), (["--untuned"], 0)):
        script.main(["summary", str(tmp_path), "--parts", "decode", *options])
        found = json.loads((tmp_path / "speed.json").read_text())["claims"][0]
        assert [s["untuned"] for s in found["sessions"]] == [bool(options)]
        assert found["counts"]["draws"] == 28
        assert found["by_group"]["decode, M 1 to 64"]["tuned"] == tuned
        assert (", 28 tuned" in capsys.readouterr().out) is (tuned == 28)


def test_default_planners_take_tables_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmdesc.ops import default_planner, defaults, reset_default_planners, use_tuned_tables
    from tests.test_plan import Counted, planner_of

    asked: list[bool] = []

    def planner_for(index: int, profiles: Any, *, tables: bool, **named: Any) -> Any:
        asked.append(tables)
        return planner_of(Counted())

    monkeypatch.setattr(defaults, "planner_for", planner_for)
    reset_default_planners()
    try:
        default_planner(0)
        use_tuned_tables(False)
        default_planner(0)
        default_planner(0)
        use_tuned_tables(True)
        default_planner(0)
    finally:
        use_tuned_tables(True)
    assert asked == [True, False, True]


@pytest.mark.gpu
def test_a_planner_without_tables_has_none_wherever_they_lie(tmp_path: Path, write_class: Callable[..., Any]) -> None:
    from gemmdesc.plan import planner_for

    write_class(tmp_path)
    assert planner_for(0, tmp_path).tuned.picks
    assert planner_for(0, tmp_path, tables=False).tuned == UNTUNED


@pytest.mark.gpu
def test_rows_of_a_card_say_what_its_table_did(
    tmp_path: Path, write_class: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmdesc.ops import reset_default_planners, use_tuned_tables
    from gemmdesc.speed.card import CudaDevice

    exact, near, other = (s for s in speed_shapes(["model"])[:3])
    write_class(tmp_path, exact.product)
    monkeypatch.setenv("GEMMDESC_PROFILES", str(tmp_path))
    reset_default_planners()
    try:
        with CudaDevice().open(exact, compiled=False) as opened:
            assert (opened.sides.failure, opened.sides.different, opened.sides.tuned) == ("", (), EXACT)
        for shape in (near, other):
            with CudaDevice().open(shape, compiled=False) as opened:
                assert opened.sides.tuned in ("", CLASS)
        with CudaDevice(untuned=True).open(exact, compiled=False) as opened:
            assert opened.sides.tuned == ""
    finally:
        use_tuned_tables(True)


@pytest.fixture
def write_class() -> Callable[..., Any]:
    """Writes a table of this card into a folder: what is chosen anyway, for a product and for its class."""

    def write(folder: Path, product: Any = None) -> None:
        from gemmdesc.kernels.competing import key_of, pick_of, sizes_of
        from gemmdesc.library.torch_settings import read_settings
        from gemmdesc.plan import Plan as KernelPlan
        from gemmdesc.plan import planner_for
        from gemmdesc.tuning.search import TunedRow
        from gemmdesc.tuning.store import Tuned, tuned_path, write_tuned
        from tests.test_tuning import PROVENANCE

        planner = planner_for(0)
        shape = product or DECODE[0].product
        plan = planner.plan_mm(*shape.metas(), read_settings(planner.device.sm))
        assert isinstance(plan, KernelPlan)
        kernel: Any = plan.kernel
        row = TunedRow(
            key=key_of(kernel, plan.meta), pick=pick_of(kernel), gain=1.5, products=1,
            example=sizes_of(kernel, plan.meta),
        )  # fmt: skip
        rows = (row, replace(row, exact=True))
        write_tuned(
            Tuned(device=planner.device, provenance=PROVENANCE, rows=rows), tuned_path(folder, planner.device)
        )

    return write
