"""Tuned tables as Parquet files beside profiles: ``<sm>-<SM count>/tuned.parquet``, with where they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gemmdesc.errors import GemmdescError, ProfileError
from gemmdesc.kernels.tuned import UNTUNED, TunedTable
from gemmdesc.problem import DeviceId
from gemmdesc.profiles import write_table
from gemmdesc.tuning.records import LAYOUTS, SIZES, TYPES, key_data, key_from, pick_data, pick_from, sizes_from
from gemmdesc.tuning.search import Measured, TunedRow, table_of

METADATA_KEY = b"gemmdesc.tuned"
#: Of the columns and of what a class of sizes is, as it is written; a reader takes the version before, too, which had
#: rows of classes only.
TUNED_VERSION = 2
_CLASSES_ONLY = 1
_FILE = "tuned.parquet"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How a table was made: by which command on which day, and with what.

    ``products``: how many were timed; ``different``: how many configs had other bytes than the default, which is a
    fault of the kernels.
    """

    command: str
    date: str
    gemmdesc: str
    torch: str
    triton: str
    products: int
    different: int


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A table of one card, rows sorted."""

    device: DeviceId
    provenance: Provenance
    rows: tuple[TunedRow, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: json.dumps(_record(row)))))

    @property
    def table(self) -> TunedTable:
        return table_of(self.rows)


def tuned_path(folder: Path, device: DeviceId) -> Path:
    """Where a card's table lies under ``folder``."""
    return folder / device.folder / _FILE


def find_tuned(device: DeviceId, folders: Iterable[Path]) -> TunedTable:
    """The table of the first of ``folders`` that has one of this card; an empty one where none has.

    Raises:
        ProfileError: the file is truncated, foreign or inconsistent.
    """
    for folder in folders:
        path = tuned_path(folder, device)
        if path.is_file():
            tuned = read_tuned(path)
            if tuned.device == device:
                return tuned.table
    return UNTUNED


def joined(old: Tuned, new: Tuned, timed: Iterable[Measured]) -> Tuned:
    """``new`` with what ``old`` has of other classes and products than ``timed``.

    Of a class that was timed again the row is the new one's or none; of its products those that were timed again are,
    and the rows that others have of their own stay.

    Raises:
        ProfileError: they are of two cards.
    """
    if old.device != new.device:
        raise ProfileError(f"tables must be of one card (got {old.device.folder} and {new.device.folder})")
    again = {key for m in timed for key in (m.key, (m.key, m.sizes))}
    again |= {row.place for row in new.rows}
    kept = tuple(row for row in old.rows if row.place not in again)
    counts = {name: getattr(old.provenance, name) + getattr(new.provenance, name) for name in ("products", "different")}
    return replace(new, rows=(*kept, *new.rows), provenance=replace(new.provenance, **counts))


def write_tuned(tuned: Tuned, path: Path) -> None:
    """Write ``tuned`` to ``path`` in one step; folders are created.

    Raises:
        OSError: the place cannot be written; nothing is left behind.
    """
    import pyarrow as pa

    records = [_record(row) for row in tuned.rows]
    device = tuned.device
    stamp = {
        "tuned_version": TUNED_VERSION, "card": device.name, "sm": device.sm, "sm_count": device.sm_count,
        "mig": device.mig, "driver": device.driver, **asdict(tuned.provenance), "digest": _digest(records),
    }  # fmt: skip
    schema = _schema().with_metadata({METADATA_KEY: json.dumps(stamp, indent=1).encode()})
    write_table(pa.Table.from_pylist(records, schema=schema), path)


def read_tuned(path: Path) -> Tuned:
    """The table in the file at ``path``.

    Raises:
        ProfileError: there is no such file; it is truncated, no Parquet, no such table, of a version that is not
            known, malformed, or its rows do not match their digest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, partitioning=None)
        stamp = json.loads((table.schema.metadata or {})[METADATA_KEY])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ProfileError(f"path must be a whole tuned table ({error}) (got {path})") from error
    version: Any = stamp.get("tuned_version") if isinstance(stamp, dict) else None
    if version not in (_CLASSES_ONLY, TUNED_VERSION) or not table.schema.equals(_schema(version), check_metadata=False):
        raise ProfileError(f"path must be a tuned table of version {TUNED_VERSION} or before (got {version}, {path})")
    records = table.to_pylist()
    if _digest(records) != stamp.get("digest"):
        raise ProfileError(f"path must hold the rows of digest {stamp.get('digest')} (got {_digest(records)}, {path})")
    try:
        tuned = Tuned(
            device=DeviceId(sm=stamp["sm"], sm_count=stamp["sm_count"], mig=stamp["mig"], name=stamp["card"],
                            driver=stamp["driver"]),
            provenance=Provenance(**{f.name: stamp[f.name] for f in fields(Provenance)}),
            rows=tuple(_row(record) for record in records),
        )  # fmt: skip
        table_of(tuned.rows)
    except (GemmdescError, KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"path must be a well-formed tuned table ({error}) (got {path})") from error
    return tuned


def _schema(version: int = TUNED_VERSION) -> Any:
    import pyarrow as pa

    numbers = (*(f"{s}_class" for s in SIZES), "products", *(f"example_{s}" for s in SIZES))
    flags = ("sliced",) if version == _CLASSES_ONLY else ("sliced", "exact")
    return pa.schema(
        [pa.field(name, pa.string(), nullable=False) for name in ("steps", *TYPES, *LAYOUTS, "structure", "config")]
        + [pa.field(name, pa.bool_(), nullable=False) for name in flags]
        + [pa.field(name, pa.int64(), nullable=False) for name in numbers]
        + [pa.field("gain", pa.float64(), nullable=False)]
    )


def _record(row: TunedRow) -> dict[str, Any]:
    pick = pick_data(row.pick)
    record = key_data(row.key) | {"exact": row.exact, "structure": pick["structure"]}
    record |= {"config": json.dumps(pick["config"]), "gain": row.gain, "products": row.products}
    return record | {f"example_{name}": value for name, value in zip(SIZES, row.example, strict=True)}


def _row(record: Mapping[str, Any]) -> TunedRow:
    return TunedRow(
        key=key_from(record), exact=record.get("exact", False), gain=record["gain"], products=record["products"],
        pick=pick_from({"structure": record["structure"], "config": json.loads(record["config"])}),
        example=sizes_from(record[f"example_{name}"] for name in SIZES),
    )  # fmt: skip


def _digest(records: Iterable[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(record, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
