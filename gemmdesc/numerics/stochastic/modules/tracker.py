"""Reports over iterations, written as Parquet and as lines of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gemmdesc.numerics.stochastic.modules.reports import OperatorReport

_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("module", pa.string()),
        ("operator", pa.string()),
        ("call", pa.int64()),
        ("phase", pa.string()),
        ("epoch", pa.int64()),
        ("iteration", pa.int64()),
        ("rounded", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("stable", pa.bool_()),
        ("elements", pa.int64()),
        *((name, pa.float64()) for name in ("least", "low", "median", "mean")),
        *((f"{name}_share", pa.float64()) for name in ("exact", "zero", "nonfinite")),
        ("task", pa.string()),
    ]
)


class Tracker:
    """Collects reports with what the task said of the same iteration (a loss, an accuracy), and writes them."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, reports: Iterable[OperatorReport], **task: float) -> None:
        """Take in the reports of one pass; ``task``: numbers that belong to it."""
        text = json.dumps(task, sort_keys=True)
        self._rows.extend(report.row() | {"task": text} for report in reports)

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """One flat row for each report, in order."""
        return tuple(self._rows)

    def worst(self, count: int = 10) -> list[dict[str, Any]]:
        """Operators by the least digits they had anywhere, the fewest first; those that were always exact left out."""
        found: dict[str, dict[str, Any]] = {}
        for row in self._rows:
            if row["nonfinite_share"] > 0:
                row = row | {"least": 0.0}
            if not math.isnan(row["least"]) and row["least"] < found.get(row["name"], {"least": math.inf})["least"]:
                found[row["name"]] = row
        return sorted(found.values(), key=lambda row: (row["least"], row["name"]))[:count]

    def write_parquet(self, path: Path) -> None:
        """All rows as a table, written aside and renamed."""
        table = pa.Table.from_pylist(self._rows, schema=_SCHEMA)
        _replaced(path, lambda aside: pq.write_table(table, aside))

    def write_jsonl(self, path: Path) -> None:
        """All rows as lines of JSON, NaN as null, written aside and renamed."""
        lines = (json.dumps({k: _plain(v) for k, v in row.items()}) for row in self._rows)
        _replaced(path, lambda aside: aside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8"))


def read_parquet(path: Path) -> tuple[dict[str, Any], ...]:
    """The rows of a file that :meth:`Tracker.write_parquet` wrote."""
    return tuple(pq.read_table(path).to_pylist())


def _replaced(path: Path, write: Callable[[Path], object]) -> None:
    aside = path.with_name(path.name + ".tmp")
    write(aside)
    aside.replace(path)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
