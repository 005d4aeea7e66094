"""docs/performance.md: its tables are those of docs/results/speed.json."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.speed.journal import read_sessions
from gemmdesc.speed.rehearsal import RehearsalDevice
from gemmdesc.speed.session import Plan, run_session
from gemmdesc.speed.sets import speed_shapes
from gemmdesc.speed.summary import Collected, claims

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("make_performance_md")


def test_the_page_is_up_to_date(script: Any) -> None:
    assert script.main(["--check"]) == 0


def test_tables_come_from_the_file_alone(script: Any, tmp_path: Path) -> None:
    shapes = speed_shapes(["decode"])
    plan = Plan(shapes=shapes, seconds=5000.0, compiled=2)
    run_session(RehearsalDevice(), plan, tmp_path, "one", {"command": "x", "date": "2026-01-01"})
    found = claims(Collected(shapes, read_sessions([tmp_path])), "x")
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"claims": found}))
    page = f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n"
    text = script.render(page, path)
    assert text.startswith("before\n")
    assert text.endswith(f"{script.END}\nafter\n")
    assert "old" not in text
    row = next(line for line in text.splitlines() if line.startswith("| decode, 4096x4096, M to 32 |"))
    mean = found[0]["by_group"]["decode, 4096x4096, M to 32"]["geomean"]
    assert f"| 6 | 6 | {mean:.3f} |" in row
    assert "28 had equal bytes" in text
    assert "inductor_max: cuBLAS's bytes on 8 of 8 shapes." in text
    assert script.render(text, path) == text
    assert script.NOTHING in script.render(text, tmp_path / "none.json")


def test_other_schedules_have_a_table(script: Any, tmp_path: Path) -> None:
    shapes = speed_shapes(["decode"])
    plan, about = Plan(shapes=shapes, seconds=5000.0), {"command": "x", "date": "2026-01-01"}
    run_session(RehearsalDevice(), plan, tmp_path, "one", about)
    found = claims(Collected(shapes, read_sessions([tmp_path])), "x")
    ratios = {"over_ours": 1.25, "library_over_it": None}
    schedule = {"applies": 7, "timed": 6, "different": 1, **ratios, "faster": 5, "slower": 0}
    text = script.tables([*found[:2], {"by_schedule": {"narrow": schedule}}])
    assert "| narrow | 7 | 6 | 1 | 1.250 |  | 5 | 0 |" in text.splitlines()


def test_what_is_no_page_or_file_is_said(script: Any, tmp_path: Path) -> None:
    with pytest.raises(script.PageError, match="marks"):
        script.render("no marks", tmp_path / "none.json")
    path = tmp_path / "speed.json"
    page = f"{script.BEGIN}{script.END}"
    for broken in ("{", '{"claims": []}', '{"claims": [{"card": "x"}]}'):
        path.write_text(broken)
        with pytest.raises(script.PageError, match="must"):
            script.render(page, path)
