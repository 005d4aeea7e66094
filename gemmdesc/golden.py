"""Golden bytes: windows of what a library on hardware gave, with everything needed to ask for them again on a CPU.

A golden file is one Parquet table, a row per (problem, draw), with its provenance as JSON in the file's metadata.  The
format is specified in ``docs/verification.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmdesc.bits import Bits, Mismatch, bits_dtype, first_mismatch
from gemmdesc.errors import Declined, GemmdescError, InvalidInputError
from gemmdesc.library.interface import Window
from gemmdesc.operands import Family, HashOperand
from gemmdesc.plain import answer_from_plain, launch_from_plain, problem_from_plain, to_plain
from gemmdesc.plan import Description, describe
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, Launch, LibraryId, LibraryVersion
from gemmdesc.profiles import Level, ProfileIndex

if TYPE_CHECKING:
    import pyarrow as pa

GOLDEN_VERSION = 1
METADATA_KEY = b"gemmdesc.golden"
_PACKAGED = "golden"
_IN_CHECKOUT = ("tests", "golden")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the bytes come from: the card, the library, and what recorded them (``date``: ISO)."""

    device: DeviceId
    library: LibraryId
    torch: str
    command: str
    date: str


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenRecord:
    """One product: op(A) and op(B) are the HashOperands of (family, seed, draw) with roles "a" and "b".

    ``output``: bit patterns of D at ``window``, shape (rows, columns).  ``launch``: what the library enqueued, kept
    where a rule needs more of it than its names.
    """

    problem: GemmProblem
    answer: AlgoConfig
    launch_names: tuple[str, ...]
    family: Family
    seed: int
    draw: int
    window: Window
    output: Bits
    launch: Launch | None = None

    def __post_init__(self) -> None:
        shape = (len(self.window.rows), len(self.window.columns))
        if self.output.shape != shape or self.output.dtype != bits_dtype(self.problem.d_dtype):
            raise InvalidInputError(
                f"output must be {shape} patterns of {self.problem.d_dtype.value} "
                f"(got {self.output.shape}, {self.output.dtype})"
            )

    @property
    def operands(self) -> tuple[HashOperand, HashOperand]:
        """op(A) as m rows of k, op(B) as n rows of k."""
        return golden_operands(self.problem, self.family, self.seed, self.draw)

    def __str__(self) -> str:
        p = self.problem
        layout = f"{p.transa.value}{p.transb.value}"
        names = " + ".join(n.split("<")[0] for n in self.launch_names) or "unknown"
        return f"{p.m}x{p.n}x{p.k} {layout} {p.a_dtype.value}->{p.d_dtype.value} {self.family.value} {names}"


def golden_operands(problem: GemmProblem, family: Family, seed: int, draw: int) -> tuple[HashOperand, HashOperand]:
    """The operands of a record, in the problem's own terms."""
    return (
        HashOperand(dtype=problem.a_dtype, family=family, seed=seed, draw=draw, role="a"),
        HashOperand(dtype=problem.b_dtype, family=family, seed=seed, draw=draw, role="b"),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Golden:
    """A golden file's contents."""

    provenance: Provenance
    records: tuple[GoldenRecord, ...]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """``declined``: no rule for the record, or none that a CPU replays.

    ``mismatch``: None where the bytes are equal, or there was no rule.
    """

    declined: Declined | None
    mismatch: Mismatch | None

    @property
    def equal(self) -> bool:
        return self.declined is None and self.mismatch is None


def replay_record(record: GoldenRecord, index: ProfileIndex, accept: Level = Level.VERIFIED) -> Replayed:
    """The profile's rule executed on the CPU, against the recorded bytes."""
    found = describe_record(record, index, accept)
    if isinstance(found, Declined):
        return Replayed(declined=found, mismatch=None)
    from gemmdesc.library.replayed import replay_decline, replay_problem

    declined = replay_decline(found.regions)
    if declined is not None:
        return Replayed(declined=declined, mismatch=None)
    got = replay_problem(found.regions, record.problem, *record.operands, record.window)
    return Replayed(declined=None, mismatch=first_mismatch(record.output, got))


def describe_record(
    record: GoldenRecord, index: ProfileIndex, accept: Level = Level.VERIFIED
) -> Description | Declined:
    """What the profile says of the record's answer; ``accept``: the weakest evidence it may have."""
    return describe(record.problem, record.answer, record.launch, index=index, accept=accept)


def golden_folder() -> Path | None:
    """Where golden files lie: packaged, or ``tests/golden`` of a checkout; None where there are none."""
    package = Path(str(resources.files("gemmdesc")))
    for folder in (package / _PACKAGED, package.parent.joinpath(*_IN_CHECKOUT)):
        if golden_files(folder):
            return folder
    return None


def golden_files(folder: Path) -> tuple[Path, ...]:
    """The golden files in ``folder`` and below, sorted; none where there is no such folder."""
    return tuple(sorted(folder.rglob("*.parquet")))


def write_golden(golden: Golden, path: Path) -> None:
    """Write the file in one step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    p = golden.provenance
    stamp = {
        "golden_version": GOLDEN_VERSION, "device": to_plain(p.device), "library": to_plain(p.library),
        "torch": p.torch, "command": p.command, "date": p.date,
    }  # fmt: skip
    schema = _schema().with_metadata({METADATA_KEY: json.dumps(stamp, indent=1).encode()})
    table = pa.Table.from_pylist([_to_row(r) for r in golden.records], schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    try:
        pq.write_table(table, aside, compression="zstd", compression_level=19, version="2.6")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_golden(path: Path) -> Golden:
    """The golden file at ``path``.

    Raises:
        InvalidInputError: no such file, no golden file, another version of the format, or malformed rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, partitioning=None)
        stamp = json.loads((table.schema.metadata or {})[METADATA_KEY])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise InvalidInputError(f"path must be a golden file ({error!r}) (got {path})") from None
    if stamp.get("golden_version") != GOLDEN_VERSION:
        raise InvalidInputError(f"path must be of golden version {GOLDEN_VERSION} (got {stamp.get('golden_version')})")
    try:
        records = tuple(_from_row(row) for row in table.to_pylist())
        return Golden(provenance=_provenance(stamp), records=records)
    except (GemmdescError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"path must hold well-formed golden rows ({error}) (got {path})") from None


def _provenance(stamp: dict[str, Any]) -> Provenance:
    library = dict(stamp["library"])
    library["version"] = LibraryVersion(**library["version"])
    return Provenance(
        device=DeviceId(**stamp["device"]), library=LibraryId(**library), torch=stamp["torch"],
        command=stamp["command"], date=stamp["date"],
    )  # fmt: skip


def _schema() -> pa.Schema:
    import pyarrow as pa

    columns = [(name, pa.string()) for name in ("problem", "answer")]
    columns += [("launch_names", pa.list_(pa.string())), ("family", pa.string())]
    columns += [(name, pa.int64()) for name in ("seed", "draw")]
    columns += [(name, pa.list_(pa.int64())) for name in ("rows", "columns")]
    columns += [("output", pa.binary())]
    whole = [pa.field(name, kind, nullable=False) for name, kind in columns]
    return pa.schema([*whole, pa.field("launch", pa.string())])


def _to_row(record: GoldenRecord) -> dict[str, Any]:
    little_endian = record.output.astype(record.output.dtype.newbyteorder("<"))
    return {
        "problem": json.dumps(to_plain(record.problem), sort_keys=True),
        "answer": json.dumps(to_plain(record.answer), sort_keys=True),
        "launch_names": list(record.launch_names),
        "family": record.family.value,
        "seed": record.seed,
        "draw": record.draw,
        "rows": record.window.rows.tolist(),
        "columns": record.window.columns.tolist(),
        "output": np.ascontiguousarray(little_endian).tobytes(),
        "launch": None if record.launch is None else json.dumps(to_plain(record.launch), sort_keys=True),
    }


def _from_row(row: dict[str, Any]) -> GoldenRecord:
    problem = problem_from_plain(json.loads(row["problem"]))
    window = Window(rows=_indices(row["rows"]), columns=_indices(row["columns"]))
    kind = bits_dtype(problem.d_dtype)
    # Files of before there were rules that need it lack the column.
    launch = row.get("launch")
    output = np.frombuffer(row["output"], dtype=np.dtype(kind).newbyteorder("<")).astype(kind)
    return GoldenRecord(
        problem=problem, answer=answer_from_plain(json.loads(row["answer"])),
        launch_names=tuple(row["launch_names"]), family=Family(row["family"]), seed=row["seed"], draw=row["draw"],
        window=window, output=output.reshape(len(window.rows), len(window.columns)),
        launch=None if launch is None else launch_from_plain(json.loads(launch)),
    )  # fmt: skip


def _indices(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(list(values), dtype=np.int64)
