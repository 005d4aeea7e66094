"""Rows of a campaign over many kernels: JSON lines while it runs, a small Parquet file to go on from.

A row is a configuration (``case``, ``choice``, ``arch``, ``triton``), the digest of its ``text``, its ``class`` or why
it is ``refused``, the number of the ``reading`` that said so, and the seconds that it took to compile and to read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gemmdesc.equivalence.row_files import Row, rows_of_files

_SCHEMA = pa.schema(
    [
        ("case", pa.dictionary(pa.int16(), pa.string())),
        ("choice", pa.dictionary(pa.int32(), pa.string())),
        ("arch", pa.int16()),
        ("triton", pa.dictionary(pa.int16(), pa.string())),
        ("reading", pa.int16()),
        ("text", pa.binary(16)),
        ("class", pa.dictionary(pa.int32(), pa.binary(16))),
        ("refused", pa.dictionary(pa.int16(), pa.string())),
        ("reason", pa.dictionary(pa.int32(), pa.string())),
        ("compile_s", pa.float32()),
        ("read_s", pa.float32()),
    ]
)
_DIGESTS = ("text", "class")
_SECONDS = ("compile_s", "read_s")


def row_key(row: Mapping[str, Any]) -> str:
    """What makes a row the row of its configuration."""
    return json.dumps([row[name] for name in ("case", "choice", "arch", "triton")], sort_keys=True)


def load_rows(paths: Iterable[Path]) -> list[Row]:
    """The rows of ``.jsonl`` and ``.parquet`` files, one per configuration, the later file's before the earlier one's.

    Rows of another reading are left out, since their classes may mean something else; so is a last line that a stop
    cut short.

    Raises:
        InvalidInputError: a file's name ends otherwise.
    """
    return rows_of_files(paths, row_key, _from_columns)


def store_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a ``.parquet`` file; it is there whole or not at all."""
    ordered = sorted(rows, key=row_key)
    columns = {field.name: pa.array([_to_column(row, field.name) for row in ordered]) for field in _SCHEMA}
    table = pa.table({name: column.cast(_SCHEMA.field(name).type) for name, column in columns.items()}, _SCHEMA)
    beside = path.with_suffix(".tmp")
    pq.write_table(table, beside, compression="zstd", compression_level=19)
    beside.replace(path)


def _to_column(row: Mapping[str, Any], name: str) -> Any:
    value = row.get(name)
    if name == "choice":
        return json.dumps(value, sort_keys=True)
    return bytes.fromhex(value) if name in _DIGESTS and value is not None else value


def _from_columns(row: Row) -> Row:
    found = {name: value for name, value in row.items() if value is not None}
    found["choice"] = json.loads(found["choice"])
    return found | {n: found[n].hex() for n in _DIGESTS if n in found} | {
        n: round(found[n], 4) for n in _SECONDS if n in found
    }  # fmt: skip
