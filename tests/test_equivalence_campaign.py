"""A campaign's rows: stored small, read back as they were, gone on from, and dropped when a reading changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.equivalence import Launch, signature, walk
from gemmdesc.equivalence.answers import READING
from gemmdesc.equivalence.campaign_rows import load_rows, row_key, store_rows
from gemmdesc.errors import InvalidInputError
from tests.equivalence_texts import EXCHANGE, butterfly, kernel
from tests.test_equivalence_chains import LOADS, PLAIN, STORES

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "partition_corpus.py"
#: Signatures of this reading.  A change here is a change of ``READING``.
SIGNATURES = {
    kernel(butterfly(16, 8, 4, 2, 1)): "SUM",
    kernel(EXCHANGE, shared=1024): "MOVE",
    kernel(LOADS + PLAIN + STORES): "MATRIX",
}


def test_signatures_are_those_of_this_reading() -> None:
    found = {name: signature(walk(text, Launch())) for text, name in SIGNATURES.items()}
    assert (READING, found) == (2, EXPECTED)


EXPECTED = {
    "SUM": "aeb57188a7e5eebb58f8e1778ff0300a",
    "MOVE": "3bb8bee6a117cc0051713e66d5746fb7",
    "MATRIX": "baa14455834415c4cc838e48aaf0121c",
}


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "case": f"sum-{number % 3}", "choice": {"num_warps": number, "enable_fp_fusion": True}, "arch": 90,
        "triton": "3.9.0", "reading": READING, "text": f"{number:032x}", "compile_s": 0.1234, "read_s": 0.0567, **more,
    }  # fmt: skip


ROWS = [
    row(1, **{"class": "ab" * 16}),
    row(2, refused="shared_memory", reason="two threads write one byte"),
    row(300, **{"class": "ab" * 16}),
    {k: v for k, v in row(4, refused="compiler", reason="no").items() if k not in ("text", "compile_s", "read_s")},
]


def test_rows_come_back_as_they_were_stored(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    store_rows(path, ROWS)
    assert sorted(load_rows([path]), key=row_key) == sorted(ROWS, key=row_key)
    assert [p.name for p in tmp_path.iterdir()] == ["rows.parquet"]
    many = [row(i, **{"class": f"{i % 7:032x}"}) for i in range(2000)]
    store_rows(path, many)
    assert path.stat().st_size < 60 * len(many)


def test_rows_of_another_reading_and_cut_lines_are_left_out(tmp_path: Path) -> None:
    stored, lines = tmp_path / "rows.parquet", tmp_path / "rows.jsonl"
    store_rows(stored, [*ROWS, row(9, reading=READING - 1, **{"class": "cd" * 16})])
    newer = {**ROWS[0], "class": "ef" * 16}
    old = {k: v for k, v in row(8).items() if k != "reading"}
    lines.write_text("".join(json.dumps(r) + "\n" for r in (newer, old)) + json.dumps(row(7))[:40], encoding="utf-8")
    found = {row_key(r): r for r in load_rows([stored, lines])}
    assert len(found) == len(ROWS)
    assert found[row_key(newer)] == newer
    with pytest.raises(InvalidInputError, match="path must end"):
        load_rows([tmp_path / "rows.csv"])


def test_a_campaign_goes_on_from_a_stored_file(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    stored = tmp_path / "rows.parquet"

    def run(name: str, *more: str) -> dict[str, Any]:
        command = [sys.executable, str(SCRIPT), str(tmp_path / name), "--cases", "row_sum-256-fp32", "--processes", "1"]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent), "TRITON_CACHE_DIR": str(tmp_path / "c")}
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    assert run("one.jsonl", "--most", "1", "--store", str(stored))["configurations"] == 1
    assert run("two.jsonl", "--most", "1", "--known", str(stored), "--store", str(stored))["configurations"] == 2
    assert len((tmp_path / "two.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert len(load_rows([stored])) == 2
