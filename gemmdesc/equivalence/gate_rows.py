"""Rows of a gate over many kernels: JSON lines while it runs, a small Parquet file to go on from.

A row is a configuration (``case``, ``choice``) with what was read and what a card stored: see
:class:`gemmdesc.equivalence.holding.Holder`.  Both files give back the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gemmdesc.equivalence.row_files import Row, rows_of_files

_TEXT = pa.dictionary(pa.int32(), pa.string())
_TIMES = ("compile_s", "read_s", "launch_s", "evaluate_s")
#: Fields that are lists or objects: stored as JSON, each distinct one once.
_NESTED = ("choice", "kinds", "assuming", "functions", "equal", "aimed_equal", "first")
#: Digests, in hexadecimal in a row; in a file those of one row are one string of bytes, each distinct one once.
_DIGESTS = ("text", "class", "outputs", "aimed", "relaxed")
_DIGEST_BYTES = 8
_SCHEMA = pa.schema(
    [
        *((name, _TEXT) for name in ("case", "kernel", *_NESTED, "relations")),
        ("reading", pa.int16()),
        *((name, pa.dictionary(pa.int32(), pa.binary())) for name in _DIGESTS),
        *((name, _TEXT) for name in ("refused", "reason", "failed", "where")),
        *((name, pa.int64()) for name in ("mismatches", "as_extremes", "bytes_compared", "bytes_stored")),
        *((name, pa.float32()) for name in _TIMES),
    ]
)


def gate_key(row: Mapping[str, Any]) -> str:
    """What makes a row the row of its configuration."""
    return json.dumps([row["case"], row["choice"]], sort_keys=True)


def load_gate_rows(paths: Iterable[Path]) -> list[Row]:
    """The rows of ``.jsonl`` and ``.parquet`` files, one per configuration, the later file's before the earlier one's.

    Rows of another reading are left out; so is a last line that a stop cut short.

    Raises:
        InvalidInputError: a file's name ends otherwise.
    """
    return rows_of_files(paths, gate_key, _from_columns)


def store_gate_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a ``.parquet`` file; it is there whole or not at all."""
    columns = [_to_columns(row) for row in sorted(rows, key=gate_key)]
    arrays = [pa.array([row.get(f.name) for row in columns], _plain(f.type)).cast(f.type) for f in _SCHEMA]
    beside = path.with_suffix(".tmp")
    pq.write_table(pa.table(arrays, _SCHEMA), beside, compression="zstd", compression_level=19)
    beside.replace(path)


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _to_columns(row: Mapping[str, Any]) -> Row:
    made = dict(row)
    for name in _NESTED:
        if name in made:
            made[name] = json.dumps(made[name], sort_keys=True)
    if "relaxed" in made:
        made["relations"] = json.dumps(list(made["relaxed"]))
        made["relaxed"] = list(made["relaxed"].values())
    for name in _DIGESTS:
        if name in made:
            made[name] = bytes.fromhex(made[name] if isinstance(made[name], str) else "".join(made[name]))
    return made


def _from_columns(row: Row) -> Row:
    found = {name: value for name, value in row.items() if value is not None}
    found |= {name: json.loads(found[name]) for name in _NESTED if name in found}
    found |= {name: found[name].hex() for name in ("text", "class") if name in found}
    for name in ("outputs", "aimed", "relaxed"):
        if name in found:
            whole = found[name]
            found[name] = [whole[i : i + _DIGEST_BYTES].hex() for i in range(0, len(whole), _DIGEST_BYTES)]
    relations = found.pop("relations", None)
    if relations is not None:
        found["relaxed"] = dict(zip(json.loads(relations), found["relaxed"], strict=True))
    return found | {name: round(found[name], 4) for name in _TIMES if name in found}
