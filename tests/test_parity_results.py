"""Runs on a card become one results file, whose bars are judged by what was counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import parity_results
from scripts.make_results_md import render

STAMP = {
    "command": "python scripts/x.py OUT.json", "card": "NVIDIA H200 (sm_90, 132 SMs)",
    "versions": {"torch": "2.11.0", "cuBLASLt": "13.1.0"}, "date": "2026-12-01",
}  # fmt: skip


def decoder(dtype: str, hidden: int, **changes: Any) -> dict[str, Any]:
    title = (
        f"a decoder of 4 layers under an override against eager: {dtype}, hidden {hidden}, batch 3, length 77, "
        "vocabulary 9001"
    )
    counts = {"tensors": 40, "equal": 40, "different": 0, "products_by_plan": 120, "declined": 0, "errors": 0}
    return {"claim": title, **STAMP, "counts": counts | changes, "differing": [], "eager_differs_from_itself": [],
            "declined_products": {}}  # fmt: skip


def random_calls(number: int, **changes: int) -> dict[str, Any]:
    counts = {"calls": number, "equal": number - 40, "different": 0, "declined": 40, "refused": 0, "lacked_memory": 0,
              "errors": 0, "products_by_plan": number}  # fmt: skip
    return {
        "claim": "random calls of torch's products under an override against eager", **STAMP,
        "counts": counts | changes, "differing": [], "failed": [], "declined_products": {"bmm (no_rule): x": 40},
    }  # fmt: skip


def reports(*outcomes: str, first: int = 1) -> dict[str, Any]:
    """Reports from number ``first`` on, by default all of them."""
    told = outcomes or ("passed",) * 20 + ("declined",) * 7
    rows = [
        {"case": f"A{first + i}", "what": "x", "outcome": outcome, "tests": 2, "equal": 3, "declined": 1}
        for i, outcome in enumerate(told)
    ]
    return {"claim": "public reports", **STAMP, "counts": {}, "cases": rows, "failures": [], "notes": [],
            "reasons": {"A1 no_rule: x": 1}}  # fmt: skip


def pinned(**changes: int) -> dict[str, Any]:
    counts = {"batchings": 200, "sequences": 5000, "different": 0, "equal": 5000, "products_by_plan": 9, "declined": 0,
              "elements_unlike_stock_at_reference": 0, "stock_sequences": 300, "stock_different": 200}  # fmt: skip
    stamp = STAMP | {"card": "NVIDIA H200", "versions": {"torch": "2.11.0"}}
    return {"claim": "logits", **stamp, "counts": counts | changes, "operations_dependent": []}


def good() -> dict[str, list[dict[str, Any]]]:
    return {
        "parity": [*(decoder(d, h) for d in ("float16", "bfloat16") for h in (1024, 2048, 4096)), random_calls(5000)],
        "cases": [reports()], "pinned": [pinned()],
        "host": [{"claim": "host cost of a call", **STAMP, "bars": {"plan.run": True, "matmul": True}}],
    }  # fmt: skip


def written(folder: Path, given: dict[str, list[dict[str, Any]]]) -> tuple[int, Path]:
    arguments, out = [], folder / "torch_parity.json"
    for name, claims in given.items():
        path = folder / f"{name}.input"
        path.write_text(json.dumps({"claims": claims}))
        arguments += [f"--{name}", str(path)]
    return parity_results.main([str(out), *arguments]), out


def bars(path: Path) -> dict[str, bool]:
    return {b["bar"]: b["holds"] for b in json.loads(path.read_text())["claims"][0]["bars"]}


def test_runs_that_hold_all_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = written(tmp_path, good())
    assert code == 0
    assert set(bars(out).values()) == {True}
    assert list(bars(out)) == [
        "public reports", "decoders", "pinned batchings", "random calls", "host cost: plan.run", "host cost: matmul",
    ]  # fmt: skip
    claims = json.loads(out.read_text())["claims"]
    assert claims[0]["card"] == "NVIDIA H200 (sm_90, 132 SMs)"
    decoders = next(c for c in claims if c["claim"].startswith("decoders"))
    assert (decoders["counts"]["decoders"], decoders["counts"]["tensors"]) == (6, 240)
    page = render(tmp_path)
    assert "## torch_parity" in page
    assert "| public reports | 27 pass, or decline as their text demands |" in page
    assert "FAILS" not in capsys.readouterr().out


def test_parts_of_random_calls_are_added_up(tmp_path: Path) -> None:
    given = good()
    given["parity"] = [*given["parity"][:-1], random_calls(2000), random_calls(2500)]
    assert bars(written(tmp_path, given)[1])["random calls"] is False
    given["parity"].append(random_calls(500))
    code, out = written(tmp_path, given)
    assert code == 0
    calls = next(c for c in json.loads(out.read_text())["claims"] if c["claim"].startswith("random"))
    assert (calls["counts"]["calls"], calls["declined_products"]) == (5000, {"bmm (no_rule): x": 120})


@pytest.mark.parametrize(("within", "code"), [(17, 0), (15, 1)])
def test_a_host_cost_is_judged_by_every_case(tmp_path: Path, within: int, code: int) -> None:
    claim = {"claim": "host time of run, at most 1.0 times it", **STAMP, "within_the_bar": within, "of": 17}
    found, out = written(tmp_path, good() | {"host": [claim | {"geomean": {"all": 1.17}}]})
    assert (found, bars(out)[claim["claim"]]) == (code, within == 17)


@pytest.mark.parametrize(
    ("name", "claims", "bar"),
    [
        ("cases", [reports(*["passed"] * 26, "failed")], "public reports"),
        ("cases", [reports(*["passed"] * 26, "not run")], "public reports"),
        ("cases", [reports(*["passed"] * 26)], "public reports"),
        ("pinned", [pinned(different=1)], "pinned batchings"),
        ("pinned", [pinned(batchings=199)], "pinned batchings"),
        ("pinned", [pinned(stock_different=0)], "pinned batchings"),
        ("pinned", [pinned(elements_unlike_stock_at_reference=3)], "pinned batchings"),
        ("parity", [decoder("float16", 1024), random_calls(5000)], "decoders"),
        ("parity", [*(decoder(d, h, declined=h // 4096) for d in ("float16", "bfloat16") for h in (1024, 4096))],
         "decoders"),
        ("parity", [*good()["parity"][:-1], random_calls(5000, different=1)], "random calls"),
        ("parity", [*good()["parity"][:-1], random_calls(5000, errors=1)], "random calls"),
        ("parity", [*good()["parity"][:-1]], "random calls"),
        ("host", [{"claim": "host cost", **STAMP, "bars": {"plan.run": False}}], "host cost: plan.run"),
        ("host", [{"claim": "host cost", **STAMP}], "host cost"),
    ],
)  # fmt: skip
def test_a_bar_that_does_not_hold_fails(name: str, claims: list[dict[str, Any]], bar: str, tmp_path: Path) -> None:
    code, out = written(tmp_path, good() | {name: claims})
    assert code == 1
    assert bars(out)[bar] is False


def test_reports_may_be_run_in_parts_and_again(tmp_path: Path) -> None:
    halves = [reports(*["passed"] * 14), reports(*["passed"] * 12, "failed", first=15)]
    code, out = written(tmp_path, good() | {"cases": halves})
    assert (code, bars(out)["public reports"]) == (1, False)
    code, out = written(tmp_path, good() | {"cases": [*halves, reports("declined", first=27)]})
    assert (code, bars(out)["public reports"]) == (0, True)
    claim = next(c for c in json.loads(out.read_text())["claims"] if c["claim"] == "public reports")
    assert [row["case"] for row in claim["cases"]] == [f"A{i}" for i in range(1, 28)]
    assert (claim["counts"]["passed"], claim["counts"]["declined_as_allowed"]) == (26, 1)
    assert (claim["counts"]["comparisons_equal"], claim["reasons"]) == (81, {"A1 no_rule: x": 3})


def test_what_was_not_run_is_not_measured(tmp_path: Path) -> None:
    code, out = written(tmp_path, {"cases": [reports()]})
    assert code == 1
    found = {b["bar"]: b["found"] for b in json.loads(out.read_text())["claims"][0]["bars"]}
    assert found.pop("public reports") == "20 passed, 7 declined, 0 failed, 0 not run"
    assert set(found.values()) == {"not measured"}


@pytest.mark.parametrize("change", [{"card": "NVIDIA L4"}, {"versions": {"torch": "2.12.0"}}])
def test_runs_of_several_cards_or_releases_are_refused(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = written(tmp_path, good() | {"cases": [reports() | change]})
    assert code == 2
    assert not out.exists()
    assert "runs must be of one" in capsys.readouterr().err
