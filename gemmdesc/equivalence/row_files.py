"""Rows of campaigns and gates from files: JSON lines as they are made, or a Parquet file that a module lays out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gemmdesc.equivalence.answers import READING
from gemmdesc.errors import InvalidInputError

Row = dict[str, Any]


def rows_of_files(
    paths: Iterable[Path], key: Callable[[Mapping[str, Any]], str], from_columns: Callable[[Row], Row]
) -> list[Row]:
    """The rows of ``.jsonl`` and ``.parquet`` files, one per ``key``, the later file's before the earlier one's.

    Rows of another reading are left out, since their classes may mean something else; so is a last line that a stop
    cut short.  ``from_columns``: a row of a Parquet file as it was stored.

    Raises:
        InvalidInputError: a file's name ends otherwise.
    """
    found: dict[str, Row] = {}
    for path in paths:
        if path.suffix == ".parquet":
            rows = [from_columns(row) for row in pq.read_table(path).to_pylist()]
        elif path.suffix == ".jsonl":
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
        else:
            raise InvalidInputError(f"path must end in .jsonl or .parquet (got {path})")
        found |= {key(row): row for row in rows if row.get("reading") == READING}
    return list(found.values())
