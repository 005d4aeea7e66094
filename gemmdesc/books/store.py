"""Books as Parquet files: written aside and renamed, read back only when whole and as they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmdesc.bits import bits_dtype
from gemmdesc.books.schema import BOOK_VERSION, Book, Check, Entry
from gemmdesc.errors import BookError, GemmdescError
from gemmdesc.library.interface import Window
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import Family
from gemmdesc.plain import answer_from_plain, launch_from_plain, problem_from_plain, to_plain
from gemmdesc.problem import DeviceId, GemmProblem, LibraryId, LibraryVersion, Refused
from gemmdesc.profiles import write_table

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_KEY = b"gemmdesc.book"
#: What of torch's settings a book holds: products have no answers while a workspace is not known, and none has a bias.
_SETTINGS = frozenset(f.name for f in fields(TorchSettings)) - {"unsettled", "fuses_bias"}
_NULLABLE = ("answer", "refused", "launch", "family", "seed", "draw", "rows", "columns", "output")


def arrow_schema() -> pa.Schema:
    """The table's columns; ``docs/books.md`` explains each."""
    import pyarrow as pa

    columns = [(name, pa.string()) for name in ("problem", "answer", "refused", "launch", "failure", "family")]
    columns += [(name, pa.int64()) for name in ("seed", "draw")]
    columns += [(name, pa.list_(pa.int64())) for name in ("rows", "columns")]
    columns += [("output", pa.binary())]
    return pa.schema([pa.field(name, kind, nullable=name in _NULLABLE) for name, kind in columns])


def book_digest(book: Book) -> str:
    """sha256 (hex) over the entries in their order in a file, one JSON object a line."""
    return _digest(_records(book))


def write_book(book: Book, path: Path) -> None:
    """Write ``book`` to ``path`` in one step, entries sorted by their problem.

    Raises:
        OSError: the place cannot be written; nothing is left behind.
    """
    import pyarrow as pa

    records = _records(book)
    schema = arrow_schema().with_metadata({METADATA_KEY: json.dumps(_stamp(book, records), indent=1).encode()})
    write_table(pa.Table.from_pylist(records, schema=schema), path)


def read_book(path: Path) -> Book:
    """The book in the file at ``path``.

    Raises:
        BookError: there is no such file; it is truncated, no Parquet, no book, of another version of the format,
            malformed, or its entries do not match their digest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise BookError(f"book must be a whole Parquet file ({error}) (got {path})") from error
    stamp = _read_stamp(table.schema.metadata, path)
    if not table.schema.equals(arrow_schema(), check_metadata=False):
        raise BookError(f"book must have the columns of version {BOOK_VERSION} (got {path})")
    records = table.to_pylist()
    if _digest(records) != stamp.get("digest"):
        raise BookError(f"book must hold the entries of digest {stamp.get('digest')} (got {_digest(records)}, {path})")
    try:
        return _book(stamp, tuple(_entry(record) for record in records))
    except (GemmdescError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BookError(f"book must be well formed ({error}) (got {path})") from error


def require_book(book: Book, device: DeviceId, library: LibraryId, what: str) -> None:
    """Raise BookError unless ``book`` is of ``device`` (architecture, SM count, MIG) and ``library`` (version, build).

    ``what`` says whose these are.
    """
    if book.device != device:
        cards = [f"{d.folder}{' with MIG' if d.mig else ''}" for d in (device, book.device)]
        raise BookError(f"book must be of {what}'s card {cards[0]} (got one of {cards[1]})")
    theirs, ours = book.library, library
    if theirs != ours or (not ours.build_id and theirs.sha256 != ours.sha256):
        builds = [f"cuBLASLt {i.version}, build-id {i.build_id or 'none'}" for i in (ours, theirs)]
        raise BookError(f"book must be of {what}'s {builds[0]} (got one of {builds[1]})")


def _records(book: Book) -> list[dict[str, Any]]:
    return sorted((_record(entry) for entry in book.entries), key=lambda record: str(record["problem"]))


def _digest(records: Iterable[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for record in records:
        output = record["output"]
        plain = record | {"output": None if output is None else output.hex()}
        digest.update(json.dumps(plain, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _json(value: object) -> str:
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"))


def _record(entry: Entry) -> dict[str, Any]:
    refused = entry.answer.status if isinstance(entry.answer, Refused) else None
    record: dict[str, Any] = dict.fromkeys(_NULLABLE) | {
        "problem": _json(entry.problem),
        "answer": None if refused is not None else _json(entry.answer),
        "refused": refused,
        "launch": None if entry.launch is None else _json(entry.launch),
        "failure": entry.failure,
    }
    check = entry.check
    if check is not None:
        little_endian = check.output.astype(check.output.dtype.newbyteorder("<"))
        record |= {
            "family": check.family.value, "seed": check.seed, "draw": check.draw,
            "rows": check.window.rows.tolist(), "columns": check.window.columns.tolist(),
            "output": np.ascontiguousarray(little_endian).tobytes(),
        }  # fmt: skip
    return record


def _entry(record: dict[str, Any]) -> Entry:
    problem = problem_from_plain(json.loads(record["problem"]))
    if (record["answer"] is None) is (record["refused"] is None):
        raise BookError(f"entry must hold either an answer or a refusal (got {record['problem']})")
    refused = record["refused"]
    return Entry(
        problem=problem,
        answer=Refused(status=refused) if refused is not None else answer_from_plain(json.loads(record["answer"])),
        launch=None if record["launch"] is None else launch_from_plain(json.loads(record["launch"])),
        check=None if record["output"] is None else _check(record, problem),
        failure=record["failure"],
    )


def _check(record: dict[str, Any], problem: GemmProblem) -> Check:
    window = Window(rows=_indices(record["rows"], problem.d_outer), columns=_indices(record["columns"], problem.n))
    kind = bits_dtype(problem.d_dtype)
    output = np.frombuffer(record["output"], dtype=np.dtype(kind).newbyteorder("<")).astype(kind)
    return Check(
        family=Family(record["family"]), seed=record["seed"], draw=record["draw"], window=window,
        output=output.reshape(len(window.rows), len(window.columns)),
    )  # fmt: skip


def _indices(values: Iterable[int], size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    found = np.array(list(values), dtype=np.int64)
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < size:
        raise BookError(f"window must lie within the {size} of the output (got {found.min()} to {found.max()})")
    return found


def _stamp(book: Book, records: list[dict[str, Any]]) -> dict[str, Any]:
    device, library = book.device, book.library
    return {
        "book_version": BOOK_VERSION,
        "card": device.name, "sm": device.sm, "sm_count": device.sm_count, "mig": device.mig, "driver": device.driver,
        "library_version": str(library.version), "build_id": library.build_id, "sha256": library.sha256,
        "wheel": library.wheel,
        "settings": {name: value for name, value in to_plain(book.settings).items() if name in _SETTINGS},
        "torch": book.torch, "command": book.command, "date": book.date,
        "digest": _digest(records),
    }  # fmt: skip


def _read_stamp(metadata: dict[bytes, bytes] | None, path: Path) -> dict[str, Any]:
    try:
        stamp = json.loads((metadata or {})[METADATA_KEY])
    except (KeyError, ValueError) as error:
        raise BookError(f"book must be a gemmdesc book, with its metadata (got {path})") from error
    version = stamp.get("book_version") if isinstance(stamp, dict) else None
    if version != BOOK_VERSION:
        raise BookError(f"book must have version {BOOK_VERSION} of the format (got {version}, {path})")
    return dict(stamp)


def _book(stamp: dict[str, Any], entries: tuple[Entry, ...]) -> Book:
    device = DeviceId(
        sm=stamp["sm"], sm_count=stamp["sm_count"], mig=stamp["mig"], name=stamp["card"], driver=stamp["driver"]
    )
    library = LibraryId(
        version=LibraryVersion.parse(stamp["library_version"]), build_id=stamp["build_id"], sha256=stamp["sha256"],
        wheel=stamp["wheel"],
    )  # fmt: skip
    given = stamp["settings"]
    if not isinstance(given, dict) or set(given) != _SETTINGS:
        raise BookError(f"settings must hold {', '.join(sorted(_SETTINGS))} (got {given})")
    return Book(
        device=device, library=library, settings=TorchSettings(**given), torch=stamp["torch"],
        command=stamp["command"], date=stamp["date"], entries=entries,
    )  # fmt: skip
