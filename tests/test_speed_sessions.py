"""The benchmark without a GPU: sessions on a rehearsed card and its clock, what is dropped, and what they come to."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gemmdesc.errors import InvalidInputError
from gemmdesc.speed.bars import Bar, asked, bars
from gemmdesc.speed.journal import Session, read_sessions, row_data, row_from_data
from gemmdesc.speed.measuring import INDUCTOR_MAX, LIBRARY, OURS, PRODUCT, State, TimingError, measure, timing
from gemmdesc.speed.rehearsal import RehearsalDevice, RehearsedShape
from gemmdesc.speed.schedules import TWO_LAUNCHES
from gemmdesc.speed.session import Plan, remaining, run_session, with_compiled
from gemmdesc.speed.sets import control_shapes, speed_shapes
from gemmdesc.speed.summary import Collected, claims, declines, group_result, schedule_results, write_rows

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
DECODE = speed_shapes(["decode"])
ABOUT = {"command": "python x", "date": "2026-01-01"}


def session(folder: Path, name: str, device: RehearsalDevice | None = None, **given: Any) -> Session:
    settings = {"shapes": DECODE, "seconds": 5000.0, "compiled": 0, "rounds": 3} | given
    run_session(device or RehearsalDevice(), Plan(**settings), folder, name, ABOUT, read_sessions([folder]))
    return next(s for s in read_sessions([folder]) if s.name == name)


def test_a_session_times_the_control_around_every_shape(tmp_path: Path) -> None:
    device = RehearsalDevice()
    done = session(tmp_path, "one", device)
    control = [s.name for s in control_shapes()]
    assert device.log[:10] == device.log[-10:] == control
    assert sorted(device.log[10:-10]) == sorted(s.name for s in DECODE)
    assert [r.control for r in done.rows] == ["first"] * 10 + [""] * 28 + ["last"] * 10
    assert done.dropped == ""
    assert done.move is not None
    assert abs(done.move) < 0.01


def test_time_is_kept_and_the_next_session_goes_on(tmp_path: Path) -> None:
    device = RehearsalDevice()
    first = session(tmp_path, "one", device, seconds=10.0)
    assert 0 < len(first.measured) < 28
    assert device.now <= 10.5
    assert first.dropped == ""
    second = session(tmp_path, "two")
    names = [r.shape.name for s in (first, second) for r in s.measured]
    assert sorted(names) == sorted(s.name for s in DECODE)
    plan = Plan(shapes=DECODE, seconds=100.0)
    assert remaining(plan, (first, second)) == ()
    assert run_session(RehearsalDevice(), plan, tmp_path, "three", ABOUT, (first, second)) == 0
    assert not list(tmp_path.glob("three*"))
    with pytest.raises(InvalidInputError, match="name must be a new"):
        session(tmp_path, "one", runs=2)


def test_a_session_whose_control_moved_is_dropped_and_its_shapes_are_timed_again(tmp_path: Path) -> None:
    # Ours becomes slower by 0.01% and 0.6% with every second of the clock.
    steady, drifting = RehearsalDevice(drift=0.1), RehearsalDevice(drift=6.0)
    kept = session(tmp_path / "kept", "kept", steady)
    dropped = session(tmp_path, "dropped", drifting)
    assert kept.dropped == ""
    assert dropped.move is not None
    assert dropped.move < -0.02
    assert dropped.dropped.startswith("its control moved by -")
    assert len(remaining(Plan(shapes=DECODE, seconds=100.0), (dropped,))) == 28
    collected = Collected(DECODE, (dropped,))
    assert collected.rows == {}
    with pytest.raises(InvalidInputError, match="dropped: its control moved"):
        claims(collected, "x")


def test_a_session_that_was_killed_is_dropped(tmp_path: Path) -> None:
    session(tmp_path, "one")
    path = next(tmp_path.iterdir())
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:30]) + '\n{"row": {"sha')
    (cut,) = read_sessions([tmp_path])
    assert len(cut.measured) == 19
    assert cut.dropped == "no control at its end"
    path.write_text("")
    with pytest.raises(InvalidInputError, match="must be a journal"):
        read_sessions([tmp_path])


def test_shapes_of_other_bytes_are_never_timed(tmp_path: Path) -> None:
    wrong, without, failing = (s.name for s in DECODE[:3])
    device = RehearsalDevice(
        different=frozenset({wrong}), declined=frozenset({without}), failing=frozenset({failing})
    )
    done = session(tmp_path, "one", device)
    states = {r.shape.name: r for r in done.measured}
    assert states[wrong].state is State.DIFFERENT
    assert states[without].state is State.DECLINED
    assert states[failing].state is State.FAILED
    assert all(states[name].ratio() is None and not states[name].device for name in (wrong, without, failing))
    # What failed is tried again, and nothing else.
    assert [s.name for s in remaining(Plan(shapes=DECODE, seconds=100.0), (done,))] == [failing]
    collected = Collected(DECODE, (done,))
    whole = next(b for b in bars() if b.name == "decode, M 1 to 64")
    result = group_result(collected, replace(whole, least=0.1))
    assert (result["shapes"], result["timed"], result["met"]) == (28, 25, False)
    found = claims(collected, "x")[0]["counts"]
    assert (found["equal"], found["different"], found["declined"], found["failed"]) == (25, 1, 1, 1)
    assert claims(collected, "x")[0]["declined"] == {"kernel: none": {"decode": 1}}


def test_declines_are_counted_by_reason_and_set(tmp_path: Path) -> None:
    shapes = DECODE[:4] + speed_shapes(["vector"])[:2]
    done = session(tmp_path, "one", RehearsalDevice(declined=frozenset(s.name for s in shapes)), shapes=shapes)
    sizes = [f"kernel: sizes must be positive (got {r.shape.product.m}, (1, 2))" for r in done.measured]
    rows = [replace(r, reason=words) for r, words in zip(done.measured, sizes, strict=True)]
    rows[0] = replace(rows[0], reason="no_rule: none")
    found = declines(Collected(shapes, (replace(done, rows=(*rows, *(r for r in done.rows if r.control))),)))
    of = Counter(r.shape.part for r in rows[1:])
    assert list(found) == ["kernel: sizes must be positive", "no_rule: none"]
    assert found["kernel: sizes must be positive"] == dict(of)
    assert found["no_rule: none"] == {rows[0].shape.part: 1}


def test_a_group_that_declines_is_shown_as_not_met(tmp_path: Path) -> None:
    shapes = speed_shapes(["fused"])
    gates = frozenset(s.name for s in shapes if s.following == "sigmoid_gate")
    done = session(tmp_path, "one", RehearsalDevice(declined=gates), shapes=shapes, compiled=8)
    by_group = claims(Collected(shapes, (done,)), "x")[0]["by_group"]
    gate = by_group["fused, sigmoid_gate, beside max-autotune"]
    assert (gate["timed"], gate["geomean"], gate["met"]) == (0, None, False)
    assert not by_group["fused, device"]["met"]
    assert by_group["fused, silu, beside max-autotune"]["met"]
    # Sets that no session came to are no groups.
    assert not any(name.startswith("decode") for name in by_group)


def test_what_torch_compile_makes_may_be_timed_by_itself(tmp_path: Path) -> None:
    plain = session(tmp_path, "one", compiled=0)
    plan = Plan(shapes=DECODE, seconds=5000.0, compiled=3, only_compiled=True)
    todo = remaining(plan, (plain,))
    assert {s.name for s in todo} == with_compiled(DECODE, 3)
    assert len(todo) == 12
    compiled = session(tmp_path, "two", compiled=3, only_compiled=True)
    assert all(INDUCTOR_MAX in r.sides.calls for r in compiled.measured)
    assert remaining(plan, (plain, compiled)) == ()


class Uncaptured(RehearsedShape):
    def device_us(self, call: str) -> float:
        raise TimingError("no graph")


def test_what_cannot_be_timed_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmdesc.speed.rehearsal.RehearsedShape", Uncaptured)
    device = RehearsalDevice()
    row = measure(device, DECODE[0], device.limits(), Random(0), rounds=3, compiled=False)
    assert (row.state, row.reason) == (State.FAILED, "no graph")


def test_calls_take_turns_in_every_round() -> None:
    device, fused = RehearsalDevice(), speed_shapes(["fused"])[0]
    turns: list[str] = []

    class Noting(RehearsedShape):
        def device_us(self, call: str) -> float:
            turns.append(call)
            return super().device_us(call)

    opened = Noting(device=device, shape=fused, compiled=True)
    device.open = lambda shape, compiled: _within(opened)  # type: ignore[method-assign, assignment]
    row = measure(device, fused, device.limits(), Random(3), rounds=5, compiled=True)
    rounds = [turns[i : i + 5] for i in range(0, len(turns), 5)]
    assert len(rounds) == 6
    assert all(set(r) == set(row.sides.calls) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1
    assert set(row.host) == set(row.sides.calls) - {PRODUCT}
    assert row.ratio(PRODUCT) is not None
    with_launch, without = row.ratio(host=True), row.ratio()
    assert with_launch is not None
    assert without is not None
    assert with_launch > without


class _within:
    def __init__(self, opened: Any) -> None:
        self.opened = opened

    def __enter__(self) -> Any:
        return self.opened

    def __exit__(self, *error: object) -> None:
        pass


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    shapes = speed_shapes(["fused", "float8"])
    done = session(tmp_path, "one", shapes=shapes, compiled=2)
    for row in done.rows:
        assert row_from_data(json.loads(json.dumps(row_data(row)))) == row
    assert {r.shape for r in done.measured} == set(shapes)


def test_shards_share_all_shapes_and_torch_compile_meets_every_group() -> None:
    shapes = speed_shapes()
    parts = [remaining(Plan(shapes=shapes, seconds=1.0, shard=(i, 3)), ()) for i in range(3)]
    assert sorted(s.name for part in parts for s in part) == sorted(s.name for s in shapes)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    compiled = with_compiled(shapes, 8)
    for group in {(s.part, s.group) for s in shapes}:
        names = {s.name for s in shapes if (s.part, s.group) == group}
        assert len(compiled & names) == min(8, len(names))
    with pytest.raises(InvalidInputError, match="shard must be"):
        Plan(shapes=shapes, seconds=1.0, shard=(3, 3))
    with pytest.raises(InvalidInputError, match="rounds must be"):
        Plan(shapes=shapes, seconds=1.0, rounds=0)


def test_every_shape_has_a_bar_and_every_bar_shapes() -> None:
    shapes = speed_shapes()
    every = bars()
    assert len({b.name for b in every}) == len(every)
    under = {b.name: set(asked(b, shapes)) for b in every}
    small = {s.name for s in shapes if s.part == "unrounded" and not s.large}
    assert set().union(*under.values()) == {s.name for s in shapes} - small
    empty = {name for name, names in under.items() if not names}
    assert all(name.startswith("models, ") for name in empty), empty
    assert not Bar(name="x", least=1.0, holds=lambda s: True, strict=True).met(1.0)
    assert Bar(name="x", least=1.0, holds=lambda s: True).met(1.0)


def test_two_runs_are_compared(tmp_path: Path) -> None:
    session(tmp_path, "one", runs=2)
    session(tmp_path, "two", RehearsalDevice(drift=0.05), runs=2)
    collected = Collected(DECODE, read_sessions([tmp_path]))
    whole = next(b for b in bars() if b.name == "decode, M 1 to 64")
    result = group_result(collected, whole)
    assert result["agree"]
    assert result["first_run"] != result["second_run"]
    ratios = [r.ratio() for r in collected.rows[result["worst_shape"]]]
    assert len(ratios) == 2
    assert result["worst"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)  # type: ignore[operator]


def test_quartiles() -> None:
    found = timing([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.low, found.median, found.high) == (2.0, 3.0, 4.0)
    assert timing([7.0]).median == 7.0


def test_the_script_rehearses_measures_and_sums_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    script, page = importlib.import_module("bench_gemm"), importlib.import_module("make_results_md")
    parts = ["--parts", "decode,fused", "--rehearse", "--compiled", "8"]
    assert script.main(["measure", str(tmp_path / "a"), *parts, "--seconds", "200", "--shard", "0/2"]) == script.LEFT
    for _ in range(20):
        more = ["--earlier", str(tmp_path / "a"), "--seconds", "2000"]
        if script.main(["measure", str(tmp_path / "b"), *parts, *more]) == 0:
            break
    out = tmp_path / "b"
    assert script.main(["summary", str(out), "--parts", "decode,fused", "--earlier", str(tmp_path / "a")]) == 0
    speed, least, compiled = json.loads((out / "speed.json").read_text())["claims"]
    assert speed["counts"]["equal"] == 28 + 96
    assert speed["by_group"]["decode, M 1 to 64"]["timed"] == 28
    assert speed["by_group"]["fused, silu, beside max-autotune"]["timed"] == 8
    assert compiled["by_mode"][INDUCTOR_MAX] == {"compared": 28 + 48, "equal": 76, "different": 0}
    assert least["by_group"]["decode, 14336x4096"]["by_bytes"] == 7
    assert 0 < least["by_group"]["decode, 14336x4096"]["ours_of_limit"] < 1
    text = page.render(out)
    assert "decode, 4096x4096, M to 32" in text
    assert (out / "speed.png").read_bytes().startswith(b"\x89PNG")
    import pyarrow.parquet as pq

    table = pq.read_table(out / "speed.parquet")
    used = [r for r in table.to_pylist() if not r["control"]]
    assert len(used) == 124
    assert all(r["ratio"] == pytest.approx(r[f"{LIBRARY}_device_us"] / r[f"{OURS}_device_us"]) for r in used)
    assert "left in this shard: 0" in capsys.readouterr().out
    assert script.main(["measure", str(tmp_path), "--rehearse", "--parts", "nothing"]) == 2


def test_sets_come_in_turn_and_those_that_bars_ask_most_of_twice_as_often() -> None:
    shapes = speed_shapes()
    todo = remaining(Plan(shapes=shapes, seconds=1.0), ())
    assert sorted(s.name for s in todo) == sorted(s.name for s in shapes)

    def met(count: int) -> Counter[tuple[str, bool]]:
        return Counter((s.part, s.large and s.part == "model") for s in todo[:count])

    first = met(8 * 6)
    assert first["decode", False] == first["model", False] == first["model", True] == first["unrounded", False] == 8
    assert {first[part, False] for part in ("float8", "cuda_core", "vector", "fused")} == {4}
    assert met(200)["decode", False] == 28
    assert met(200)["unrounded", False] == 24
    # The order is the same in the next session, without what is done.
    assert remaining(Plan(shapes=shapes[10:], seconds=1.0), ()) != todo
    assert [s.name for s in todo] == [s.name for s in remaining(Plan(shapes=shapes, seconds=9.0), ())]


def test_other_schedules_are_timed_beside_ours_bytes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    device = RehearsalDevice(schedules=(TWO_LAUNCHES, "one_launch", "narrow"), wrong=frozenset({"narrow"}))
    done = session(tmp_path, "0of1-one", device, shapes=speed_shapes(["decode", "fused"]))
    for row in done.rows:
        assert row_from_data(json.loads(json.dumps(row_data(row)))) == row
        assert set(row.device) == set(row.sides.calls)
        if row.shape.following:
            assert row.sides.schedules == {}
            continue
        assert "narrow" in row.sides.different
        assert "narrow" not in row.device
        assert row.ratio(under="narrow") is None
        assert row.ratio(OURS, TWO_LAUNCHES) == 1.0
        assert row.ratio(OURS, "one_launch") == row.device[OURS].median / row.device["one_launch"].median
    found = schedule_results(Collected(DECODE, (done,)))
    assert {name: (r["applies"], r["as_ours"], r["timed"], r["different"]) for name, r in found.items()} == {
        TWO_LAUNCHES: (28, 28, 28, 0), "one_launch": (28, 0, 28, 0), "narrow": (28, 0, 0, 28),
    }  # fmt: skip
    one = found["one_launch"]
    assert one["over_ours"] == pytest.approx(one["library_over_it"] / one["library_over_ours"])
    assert one["worst"] <= one["over_ours"] <= one["best"]
    assert one["by_group"]["decode, 14336x4096"]["timed"] == 7
    assert (found["narrow"]["over_ours"], found["narrow"]["best_shape"]) == (None, "")
    # Bytes that differ are told, and fail whoever asked for them.
    monkeypatch.syspath_prepend(str(SCRIPTS))
    script = importlib.import_module("bench_gemm")
    assert script.main(["summary", str(tmp_path), "--parts", "decode"]) == 1
    assert "narrow: nothing timed; 0 of 28 timed, 0 as ours; 0 faster, 0 slower, 28 diff" in capsys.readouterr().out
    assert script.main(["measure", str(tmp_path), "--rehearse", "--parts", "decode", "--configs", "usual"]) == 1
    assert f"bytes differ: {DECODE[0].name}, narrow" in capsys.readouterr().out
    # A row that was measured before there were schedules is read, too.
    data = row_data(done.measured[0])
    del data["sides"]["schedules"]
    assert row_from_data(data).sides.schedules == {}


def test_what_was_measured_is_seen_though_the_session_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    script = importlib.import_module("bench_gemm")
    session(tmp_path, "one", RehearsalDevice(drift=6.0))
    given = ["summary", str(tmp_path), "--parts", "decode"]
    assert script.main(given) == 2
    assert (tmp_path / "speed.parquet").exists()
    assert not (tmp_path / "speed.json").exists()
    assert script.main([*given, "--dropped"]) == 0
    told = capsys.readouterr().out
    assert "used all the same" in told
    assert "decode, M 1 to 64: " in told


def test_sessions_of_two_cards_are_not_mixed(tmp_path: Path) -> None:
    one = session(tmp_path, "one")
    other = replace(one, name="other", about={**one.about, "card": "another"})
    with pytest.raises(InvalidInputError, match="one card"):
        claims(Collected(DECODE, (one, other)), "x")
    assert claims(Collected(DECODE, (one,)), "x")


def test_dropped_rows_are_kept_in_the_table_with_the_reason(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    done = session(tmp_path, "one", RehearsalDevice(drift=6.0))
    write_rows(Collected(DECODE, (done,)), tmp_path / "rows.parquet")
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert len(rows) == 48
    assert {r["dropped"] for r in rows} == {done.dropped}


def test_the_published_list_is_the_one_that_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    assert importlib.import_module("bench_gemm").main(["list"]) == 0
    assert capsys.readouterr().out == (SCRIPTS.parent / "docs" / "speed_shapes.csv").read_text()
