"""The table of routes in docs/torch.md is what the routes and the card's file say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmdesc.routes.table import SPELLINGS
from scripts.make_results_md import REQUIRED
from scripts.make_results_md import render as render_results
from scripts.make_routes_md import BEGIN, END, ROOT, RoutesError, claims_of, fill, main, measured, render

FILE = {
    "command": "python scripts/check_routes.py x.json", "date": "2026-12-01", "torch": "2.11.0+cu130",
    "card": {"name": "NVIDIA H200", "sm": "sm_90", "sm_count": 132, "driver": "580"},
    "library": {"version": {"major": 13, "minor": 1, "patch": 0}},
    "counts": [
        {"operator": "mm", "dtypes": "float16", "layout": "nn", "epilogue": "cublas default", "equal": 1000},
        {"operator": "mm", "dtypes": "float16", "layout": "tn", "epilogue": "cublas default", "equal": 5,
         "different": 2},
        {"operator": "mm", "dtypes": "float16->float32", "layout": "nn", "epilogue": "cublas default", "equal": 7},
        {"operator": "_scaled_mm", "dtypes": "float8_e4m3fn->float32", "layout": "tn", "epilogue": "cublaslt default",
         "equal": 3, "reference_failed": 1},
        {"operator": "dot", "dtypes": "", "layout": "", "epilogue": "", "declined": 4},
    ],
}  # fmt: skip


def test_the_page_is_up_to_date() -> None:
    assert main(["--check"]) == 0
    page = (ROOT / "docs" / "torch.md").read_text()
    assert all(f"| `{s.call}` |" in page for s in SPELLINGS)


def test_counts_of_a_card_stand_in_the_cells(tmp_path: Path) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "torch.md").write_text(f"before\n{BEGIN}old\n{END}\nafter\n")
    taken = tmp_path / "out.json"
    taken.write_text(json.dumps(FILE))
    assert main(["--take", str(taken)], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    page = (tmp_path / "docs" / "torch.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| `")}
    assert "| 1,005 of 1,007 equal | routed |" in rows["`mm(a, b)`"]
    assert "| 7 of 7 equal |" in rows["`mm(a, b, torch.float32)`"]
    assert "| 3 of 3 equal |" in rows["`_scaled_mm(a, b, scale_a, scale_b)`"]
    assert "not been run" not in page
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    claims = json.loads((tmp_path / "docs" / "results" / "routes.json").read_text())["claims"]
    assert all(claim.get(name) for claim in claims for name in REQUIRED)
    assert claims == claims_of(FILE)["claims"]
    assert "NVIDIA H200 (sm_90, 132 SMs)" in render_results(tmp_path / "docs" / "results")


def test_what_has_changed_since_the_run_is_told_until_the_next(tmp_path: Path) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    page, taken = tmp_path / "docs" / "torch.md", tmp_path / "elsewhere" / "out.json"
    page.write_text(f"{BEGIN}{END}\n")
    taken.parent.mkdir()
    taken.write_text(json.dumps(FILE | {"command": f"python scripts/check_routes.py {taken} --seconds 60"}))
    assert main(["--take", str(taken), "--since", "one thing", "--since", "another"], tmp_path) == 0
    assert page.read_text().endswith(
        "Changed since that run, and not compared again yet:\n\n- one thing\n- another\n" + END + "\n"
    )
    assert main(["--check"], tmp_path) == 0
    claims = json.loads((tmp_path / "docs" / "results" / "routes.json").read_text())["claims"]
    assert {claim["command"] for claim in claims} == {"python scripts/check_routes.py OUT.json --seconds 60"}
    assert main(["--take", str(taken)], tmp_path) == 0
    assert "Changed since" not in page.read_text()
    with pytest.raises(SystemExit):
        main(["--since", "alone"], tmp_path)


def test_without_a_card_no_cell_has_counts(tmp_path: Path) -> None:
    table = render(measured(tmp_path / "none.json"))
    assert "equal |" not in table
    assert "has not been run on a card yet" in table
    assert "1. a float32 matrix times a vector calls cublasSgemv" in table


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RoutesError, match="page must hold"):
        fill("no marks", "block")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "torch.md").write_text("no marks")
    assert main([], tmp_path) == 2
