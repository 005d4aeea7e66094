"""``scripts/bench_host.py`` without a GPU: the described structures, turns, claims, and a rehearsal of the whole."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

from gemmdesc.kernels.preparing import Taken, record
from gemmdesc.kernels.program import Box
from gemmdesc.kernels.structure import Structure
from gemmdesc.plan import needed_variants

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("bench_host"), importlib.import_module("host_structures")


def test_every_structure_is_described_and_computed_by_it(scripts: tuple[Any, Any]) -> None:
    cases = scripts[1].described()
    # Regions consist of others, and what follows a product may take operands by name, which no program does.
    others = {Structure.REGIONS.value, Structure.FUSED.value}
    assert {c.structure for c in cases} == {s.value for s in Structure} - others
    assert len({c.name for c in cases}) == len(cases)
    for case in cases:
        choice = case.choice
        assert choice.structure.value == case.structure
        taken = Taken(scales=int(case.desc.a_dtype.value.startswith("float8")))
        program = record(choice, case.meta, taken, torch.device("cpu"))
        assert program.variants == needed_variants(choice, case.meta)
    counts = [len(record(c.choice, c.meta, Taken(scales=1), torch.device("cpu")).steps) for c in cases]
    assert min(counts) == 1
    assert max(counts) >= 3
    boxes = [sum(isinstance(a, Box) for s in record(c.choice, c.meta, Taken(scales=1), torch.device("cpu")).steps
                 for a in s.arguments) for c in cases]  # fmt: skip
    assert {0, 2, 3} <= set(boxes)


def test_slices_in_two_launches_and_in_one_are_told_apart(scripts: tuple[Any, Any]) -> None:
    bench = scripts[0]
    names, quartiles = ("run(out), two_launches", "run(out), one_launch"), ("low", "median", "high")

    def row(case: str, two: float | None, one: float) -> dict[str, Any]:
        times = {bench.BASE: 10.0, **({names[0]: two} if two else {}), names[1]: one}
        us = {name: dict.fromkeys(quartiles, value) for name, value in times.items()}
        return {"case": case, "us": us, "ratio": {n: 10.0 / v for n, v in times.items() if n != bench.BASE}}

    rows = [row("a", 20.0, 8.0), row("b", 5.0, 12.5), row("c", None, 1.0)]
    (claim,) = bench.fold_claims(rows, bench.counts_of([]))
    assert claim["ratio"] == {"a": 1.25, "b": 0.8}
    assert claim["geomean"] == {"two_launches": 1.0, "one_launch": 1.0}
    assert claim["at_most_torch"] == {"two_launches": 1, "one_launch": 1}
    assert claim["products"] == 2
    assert claim["microseconds"]["b"]["run(out), one_launch median"] == 12.5
    assert bench.fold_claims(rows[2:], bench.counts_of([])) == []
    assert "within_the_bar" not in claim


def test_a_product_of_slices_is_described_in_each_of_its_launches(scripts: tuple[Any, Any]) -> None:
    launches: dict[Any, set[tuple[str, int, int]]] = {}
    for case in scripts[1].described():
        structure = Structure(case.structure)
        if structure is Structure.CHAIN_TMA or structure.merged:
            program = record(case.choice, case.meta, Taken(), torch.device("cpu"))
            key = case.desc, case.m, case.n, case.layouts
            launches.setdefault(key, set()).add((case.structure, len(program.steps), program.counters > 0))
    both = [found for found in launches.values() if len(found) == 2]
    assert sorted(map(sorted, both)) == [
        [("chain_tma", 2, False), ("merged_tma", 1, True)], [("chain_tma", 3, False), ("merged_tma", 2, True)],
    ]  # fmt: skip


def test_calls_take_turns_and_wait_between_them(scripts: tuple[Any, Any]) -> None:
    bench, log = scripts[0], []
    calls = {name: (lambda n=name: log.append(n)) for name in ("torch.mm(out)", "one", "two")}
    times = bench.take_turns(calls, 0.0, Random(1), lambda: log.append("settle"), 4)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys(calls, 5)
    assert log.pop() == "settle"
    turns = [log[i : i + 5] for i in range(0, len(log), 5)]
    assert all(turn[0] == "settle" and len(set(turn[1:])) == 1 for turn in turns)
    orders = [tuple(turn[1] for turn in turns[i : i + 3]) for i in range(0, 15, 3)]
    assert all(sorted(order) == sorted(calls) for order in orders)
    assert len(set(orders)) > 1


def test_a_call_with_other_bytes_is_named_and_not_timed(scripts: tuple[Any, Any]) -> None:
    bench, made = scripts[0], []
    good, bad = torch.tensor([[1.0, -0.0]]), torch.tensor([[1.0, 0.0]])

    def sometimes() -> torch.Tensor:
        made.append(1)
        return good if len(made) < 3 else bad

    calls = {"torch.mm(out)": lambda: good, "same": good.clone, "zero": lambda: bad, "third time": sometimes}
    row = bench.measured("case", {}, calls, "torch.mm(out)", 0.0, Random(0), "cpu")
    assert (row["state"], row["differing"], "us" in row) == ("different", ["zero", "third time"], False)


def test_bars_are_counted_at_every_case(scripts: tuple[Any, Any]) -> None:
    bench = scripts[0]

    def row(case: str, base: float, **us: float) -> dict[str, Any]:
        named = {"torch.mm(out)": base, **{k.replace("_", "(") + (")" if "_" in k else ""): v for k, v in us.items()}}
        return {
            "case": case, "structure": "chain_tma", "launches": 1, "state": "equal",
            "us": {n: {"low": v, "median": v, "high": v} for n, v in named.items()},
            "ratio": {n: base / v for n, v in named.items() if n != "torch.mm(out)"},
        }  # fmt: skip

    rows = [
        row("a", 10.0, run_out=10.0, matmul_out=15.0, matmul=15.1, Triton=30.0),
        row("b", 10.0, run_out=11.0, matmul_out=8.0, matmul=14.0, Triton=20.0),
        {"case": "c", "state": "declined", "declined": "no_rule: none"},
    ]
    run, matmul_out, matmul, triton = bench.cost_claims(rows)
    assert [(c["within_the_bar"], c["of"]) for c in (run, matmul_out, matmul)] == [(1, 2), (2, 2), (1, 2)]
    assert "within_the_bar" not in triton
    assert triton["geomean"]["all"] == pytest.approx((1 / 3 * 1 / 2) ** 0.5, abs=1e-4)
    assert {n: run["counts"][n] for n in ("shapes", "equal", "different", "declined")} == {
        "shapes": 3, "equal": 2, "different": 0, "declined": 1,
    }  # fmt: skip
    assert run["declined_cases"] == {"c": "no_rule: none"}


def test_what_is_known_is_written_whatever_ends_the_run(scripts: tuple[Any, Any], tmp_path: Path) -> None:
    bench, path = scripts[0], tmp_path / "host.json"
    good = torch.tensor([[1.0]])
    results = bench.Results(path, {"card": "none"})

    def broken() -> Any:
        raise KeyboardInterrupt

    calls = {"torch.mm(out)": lambda: good, **dict.fromkeys((*bench.BARS, "Triton"), good.clone)}
    told = {"structure": "rehearsed", "launches": 1}
    named = [("first", lambda: (told, calls)), ("second", lambda: (told, calls)), ("third", broken)]
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        bench.measure_all(
            named, "torch.mm(out)", begin + 0.6, Random(0), "cpu",
            lambda rows: results.put("calls", bench.cost_claims(rows)),
        )  # fmt: skip
    assert 0.2 < time.perf_counter() - begin < 3
    claims = json.loads(path.read_text())["claims"]
    assert [list(c["ratio"]) for c in claims] == [["first", "second"]] * 4
    assert {c["card"] for c in claims} == {"none"}
    results.put("starts", [{"claim": "one"}])
    results.put("starts", [{"claim": "two"}])
    assert [c["claim"] for c in json.loads(path.read_text())["claims"]][4:] == ["two"]
    results.put("calls", [])
    assert [c["claim"] for c in json.loads(path.read_text())["claims"]] == ["two"]


def test_fresh_processes_stop_in_time(scripts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    starts = importlib.import_module("host_starts")
    made: list[str] = []

    def started(folder: str, place: str, rehearse: bool) -> dict[str, Any]:
        made.append(folder)
        clock[0] += 10.0
        return {"imports_and_torch": clock[0], "first_call": 1.0, "second_shape": 2.0, "saved": [2, 0]}

    clock = [0.0]
    monkeypatch.setattr(starts, "started", started)
    monkeypatch.setattr(starts.time, "perf_counter", lambda: clock[0])
    counts = [c["counts"]["processes"] for c in starts.start_claims(5, "cpu", True, 55.0)]
    assert counts == [2, 4]
    assert [f == "off" for f in made] == [False, True, False, True, False]
    clock[0] = 100.0
    assert len(list(starts.start_claims(5, "cpu", True, 55.0))) == 1


def test_the_rehearsal_writes_claims_of_the_results_format(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    command = [sys.executable, str(SCRIPTS / "bench_host.py"), str(path), "--seconds", "0.2", "--starts", "1"]
    done = subprocess.run(
        [*command, "--rehearse"], capture_output=True, text=True, check=False, cwd=SCRIPTS.parent,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS.parent)},
    )  # fmt: skip
    claims = json.loads(path.read_text())["claims"]
    assert done.returncode in (0, 1), done.stderr
    assert len(claims) == 5
    for claim in claims:
        assert all(claim[name] for name in ("claim", "command", "card", "versions", "date", "counts"))
    assert claims[0]["counts"]["equal"] == 2
    assert set(claims[-1]["seconds"]) == {"without", "with saved plans"}
    assert not list(tmp_path.glob("*.tmp"))
