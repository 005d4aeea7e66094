"""docs/results.md is what the results files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.make_results_md import DOCS, REQUIRED, ResultsError, main, render

CLAIM = {
    "claim": "bytes equal to cuBLAS",
    "command": "gemmdesc verify --seed 1",
    "card": "NVIDIA H200",
    "versions": {"torch": "2.11.0", "triton": "3.6.0"},
    "date": "2026-11-29",
    "counts": {"declined": 0, "draws": 30000, "shapes": 3000, "equal": 30000, "different": 0, "skipped_rows": 0},
    "ratio": {"4096x4096x4096": 0.97, "8192x8192x8192": 1.0123456},
    "geomean": 0.99,
    "rates": [{"threads": 1, "per_second": 1500.0}, {"threads": 4, "per_second": 4000.5}],
}


def _write(folder: Path, name: str, *claims: object) -> None:
    (folder / name).write_text(json.dumps({"claims": claims}))


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "results.md").read_text() == render(DOCS / "results")
    assert main(["--check"]) == 0


def test_a_claim_shows_its_command_card_versions_date_and_counts(tmp_path: Path) -> None:
    _write(tmp_path, "b.json", CLAIM)
    _write(tmp_path, "a.json", {**CLAIM, "counts": {"nvjet": {"shapes": 7}, "cutlass": {"equal": 3, "shapes": 3}}})
    page = render(tmp_path)
    assert page.index("## a\n") < page.index("## b\n")
    assert "NVIDIA H200; torch 2.11.0, triton 3.6.0; 2026-11-29" in page
    assert "```\ngemmdesc verify --seed 1\n```" in page
    assert "| shapes | draws | equal | different | declined | skipped rows |" in page
    assert "| 3,000 | 30,000 | 30,000 | 0 | 0 | 0 |" in page
    assert "| family | shapes | equal |\n| --- | --- | --- |\n| nvjet | 7 |  |\n| cutlass | 3 | 3 |" in page
    assert "| 8192x8192x8192 | 1.012 |" in page
    assert "| threads | per second |" in page
    assert "- geomean: 0.99" in page
    assert render(tmp_path) == page


@pytest.mark.parametrize("name", REQUIRED)
def test_a_claim_without_its_provenance_is_refused(tmp_path: Path, name: str) -> None:
    _write(tmp_path, "a.json", {key: value for key, value in CLAIM.items() if key != name})
    with pytest.raises(ResultsError, match=rf"^a.json must give {name} for each claim \(got "):
        render(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"claims": 1'])
def test_a_file_that_is_no_results_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ResultsError, match=r"^a.json must be an object with claims \(got "):
        render(tmp_path)
