"""Tuned tables as Parquet files beside profiles: ``<sm>-<SM count>/tuned.parquet``, with where they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gemmdesc.dtypes import DType
from gemmdesc.errors import GemmdescError, ProfileError
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.specialised import config_from
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import UNTUNED, TunedKey, TunedPick, TunedTable
from gemmdesc.problem import DeviceId
from gemmdesc.profiles import write_table
from gemmdesc.tuning.search import TunedRow, table_of

METADATA_KEY = b"gemmdesc.tuned"
#: Of the columns and of what a class of sizes is; a reader takes no other.
TUNED_VERSION = 1
_FILE = "tuned.parquet"
_TYPES = ("a_dtype", "b_dtype", "output_dtype")
_LAYOUTS = ("a_layout", "b_layout")
_SIZES = ("m", "n", "k")


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


def joined(old: Tuned, new: Tuned, timed: Iterable[TunedKey]) -> Tuned:
    """``new`` with the rows of ``old`` for classes other than ``timed``; a class that was timed again is the new one's.

    Raises:
        ProfileError: they are of two cards.
    """
    if old.device != new.device:
        raise ProfileError(f"tables must be of one card (got {old.device.folder} and {new.device.folder})")
    again = set(timed)
    kept = tuple(row for row in old.rows if row.key not in again)
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
        ProfileError: there is no such file; it is truncated, no Parquet, no such table, of another version, malformed,
            or its rows do not match their digest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, partitioning=None)
        stamp = json.loads((table.schema.metadata or {})[METADATA_KEY])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ProfileError(f"path must be a whole tuned table ({error}) (got {path})") from error
    version = stamp.get("tuned_version") if isinstance(stamp, dict) else None
    if version != TUNED_VERSION or not table.schema.equals(_schema(), check_metadata=False):
        raise ProfileError(f"path must be a tuned table of version {TUNED_VERSION} (got {version}, {path})")
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


def _schema() -> Any:
    import pyarrow as pa

    numbers = (*(f"{s}_class" for s in _SIZES), "products", *(f"example_{s}" for s in _SIZES))
    return pa.schema(
        [pa.field(name, pa.string(), nullable=False) for name in ("steps", *_TYPES, *_LAYOUTS, "structure", "config")]
        + [pa.field("sliced", pa.bool_(), nullable=False)]
        + [pa.field(name, pa.int64(), nullable=False) for name in numbers]
        + [pa.field("gain", pa.float64(), nullable=False)]
    )


def _record(row: TunedRow) -> dict[str, Any]:
    key, pick = row.key, row.pick
    record: dict[str, Any] = {"steps": key.steps, "structure": pick.structure.value, "sliced": key.sliced}
    record |= {name: getattr(key, name).value for name in _TYPES}
    record |= {name: getattr(key, name).name.lower() for name in _LAYOUTS}
    record |= {f"{name}_class": value for name, value in zip(_SIZES, key.sizes, strict=True)}
    record |= {"config": json.dumps(asdict(pick.config)), "gain": row.gain, "products": row.products}
    return record | {f"example_{name}": value for name, value in zip(_SIZES, row.example, strict=True)}


def _row(record: dict[str, Any]) -> TunedRow:
    sizes, example = (tuple(record[name] for name in names) for names in
                      ([f"{s}_class" for s in _SIZES], [f"example_{s}" for s in _SIZES]))  # fmt: skip
    known: dict[str, Any] = {name: DType(record[name]) for name in _TYPES}
    known |= {name: Layout[record[name].upper()] for name in _LAYOUTS}
    structure = Structure(record["structure"])
    return TunedRow(
        key=TunedKey(
            steps=record["steps"], sliced=record["sliced"], sizes=(sizes[0], sizes[1], sizes[2]), **known
        ),
        pick=TunedPick(structure=structure, config=config_from(structure, json.loads(record["config"]))),
        gain=record["gain"],
        products=record["products"], example=(example[0], example[1], example[2]),
    )  # fmt: skip


def _digest(records: Iterable[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(record, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
