"""The measurements behind docs/results/stochastic.json, in small, and the script that writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.normal_form import normal_form
from gemmdesc.profiles import packaged_folder, read_profile
from gemmdesc.verification import stochastic_products as products
from gemmdesc.verification import stochastic_tables as tables
from tests.script_modules import load_script

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script() -> Any:
    return load_script("stochastic_results")


def test_tables_are_the_cases_in_their_order() -> None:
    rows = tables.classical_digits("paper", 9)
    assert len(rows) == 26
    assert all(r["right_by_median"] for r in rows)
    published = {(r["case"], r["format"]): r["published"] for r in rows}
    assert published["1 - cos x, 2 sin^2(x/2)", "float64"] == 14.638
    assert published["Hilbert 12 x 12, no pivot", "float64"] == 0.142
    assert all(r["low"] <= r["median"] <= r["high"] for r in rows)


def test_detection_counts_every_seed() -> None:
    rows = tables.operator_digits("paper", 2)
    assert tables.detection(rows) == {
        "unstable, flagged": 24, "unstable, passed": 0, "stable, flagged": 0, "stable, passed": 28, "accuracy": 1.0,
        "precision": 1.0, "recall": 1.0,
    }  # fmt: skip
    half = [r | {"flagged": r["flagged"] // 2} for r in rows]
    assert tables.detection(half)["recall"] == 0.5
    every = tables.detection([r | {"flagged": r["seeds"]} for r in rows])
    assert every["precision"] == pytest.approx(24 / 52, abs=1e-4)


def test_a_quarter_collapses_in_one_mode_only() -> None:
    assert 0.2 < tables.collapsed_share("paper", 5000) < 0.3
    assert tables.collapsed_share("default", 5000) == 0.0


def test_coverage_in_small() -> None:
    rows = products.coverage(3, m=6, n=24, ks=(96,))
    assert len(rows) == len(products.PRODUCTS)
    by_output = {r["output"]: r for r in products.by_output(rows)}
    assert set(by_output) == {"float16", "bfloat16", "float32", "float8_e4m3fn"}
    assert by_output["float16"]["covered"] > 0.9
    assert by_output["float16"]["slack"] < 0.3
    assert sum(r["elements"] + r["exact"] for r in rows) == 9 * 3 * 6 * 24


def test_orders_are_the_profiles_own() -> None:
    folder = packaged_folder()
    assert folder is not None
    profile = read_profile(folder / "sm_90-132" / "cublaslt-13.1.0.parquet")
    every = products.real_orders(profile, 1024, DType.FLOAT16, DType.FLOAT32)
    assert len(every) >= 4
    assert {(d.a_dtype, d.output_dtype) for d in every} == {(DType.FLOAT16, DType.FLOAT32)}
    assert any(not d.cuts for d in every)
    assert len({normal_form(d, 1024) for d in every}) == len(every)


def test_the_script_keeps_what_it_does_not_make(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "s.json"
    kept = {"part": "orders", "claim": "kept", "counts": {}}
    out.write_text(json.dumps({"claims": [kept]}))
    monkeypatch.setitem(script.PARTS, "table2", lambda seeds: script.table2(2))
    monkeypatch.setitem(script.PARTS, "table3", lambda seeds: [])
    assert script.main([str(out), "--only", "table2", "--seeds", "2"]) == 0
    claims = json.loads(out.read_text())["claims"]
    assert [c["part"] for c in claims] == ["table2", "table2", "orders", "corrections"]
    assert claims[2] == kept
    assert claims[0]["counts"]["right_by_median"] <= 26
    assert {"card", "command", "date", "versions"} <= set(claims[0])


def test_what_is_published_meets_its_bars() -> None:
    """The recorded figures, not a new measurement: what the docs say of them."""
    claims = json.loads((ROOT / "docs" / "results" / "stochastic.json").read_text())["claims"]
    by_part = {c["part"]: c for c in reversed(claims)}
    table2 = by_part["table2"]
    assert table2["counts"] == {"cases": 26, "right_by_median": 26, "seeds": 1000, "published_inside_central_99": 26}
    assert all(r["accuracy"] == r["recall"] == 1.0 for r in by_part["table3"]["counts"].values())
    assert by_part["table3"]["digits"][0]["seeds"] >= 20
    inside = by_part["inside"]
    assert inside["counts"]["covered_bar_met"] == inside["counts"]["output_types"] == 4
    assert inside["counts"]["slack_bar_met"] == 4
    assert by_part["cost"]["met"]
