"""``gemmdesc replay``: recorded bytes of a library, made again on the CPU from a profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.books import replay_books
from gemmdesc.cli.output import (
    DIFFERENT,
    EQUAL,
    JsonOption,
    Progress,
    guarded,
    print_json,
    print_table,
    wants_json,
)
from gemmdesc.cli.shapelists import AcceptOption
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    from gemmdesc.golden import Golden, GoldenRecord, Replayed
    from gemmdesc.profiles import Level, Profile


@guarded
def replay(
    context: typer.Context,
    files: Annotated[list[Path] | None, typer.Argument(help="Golden files.")] = None,
    golden: Annotated[Path | None, typer.Option(help="A folder of them; by default what came with gemmdesc.")] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile's file or folder, looked at first.")] = None,
    book: Annotated[
        list[Path] | None, typer.Option(help="Instead: a book, whose recorded products are made again.")
    ] = None,
    accept: AcceptOption = "verified",
    json: JsonOption = False,
) -> int:
    """Replay recorded products on the CPU and compare bytes; exit code 1 where one differs or has no rule."""
    from gemmdesc.profiles import parse_level

    if book:
        if files or golden is not None:
            raise InvalidInputError("book must stand alone, without golden files (got both)")
        return replay_books(book, profile, accept, wants_json(context, json))
    paths, level = paths_of(files or [], golden), parse_level(accept)
    with Progress() as progress:
        results = [Result.of(path, profile, progress, accept=level) for path in paths]
    if wants_json(context, json):
        print_json([result.plain() for result in results])
    else:
        for result in results:
            result.print()
    return EQUAL if all(result.equal for result in results) else DIFFERENT


def paths_of(files: list[Path], folder: Path | None) -> tuple[Path, ...]:
    """The golden files that a command means.

    Raises:
        InvalidInputError: there are none.
    """
    from gemmdesc.golden import golden_files, golden_folder

    if files:
        return tuple(files)
    chosen = folder or golden_folder()
    found = golden_files(chosen) if chosen is not None else ()
    if not found:
        raise InvalidInputError(
            "golden must be a folder with golden files; none came with this copy of gemmdesc, and "
            f"scripts/record_golden.py records them on a card (got {folder or 'no folder'})"
        )
    return found


def profile_for(golden: Golden, explicit: Path | None, accept: Level) -> Profile:
    """The profile of the card and library that the bytes come from.

    Raises:
        DeclinedError: there is none.
    """
    from gemmdesc.errors import Declined, DeclinedError
    from gemmdesc.profiles import find_profile, profile_folders

    where = golden.provenance
    found = find_profile(where.device, where.library, profile_folders(explicit), accept=accept)
    if isinstance(found, Declined):
        raise DeclinedError(found)
    return found


@dataclass(frozen=True, kw_only=True)
class Result:
    """One golden file replayed."""

    path: Path
    golden: Golden
    replayed: tuple[tuple[GoldenRecord, Replayed], ...]

    @classmethod
    def of(
        cls,
        path: Path,
        profile: Path | None,
        progress: Progress,
        most: int | None = None,
        accept: Level | None = None,
    ) -> Result:
        """Replay ``path``, or ``most`` of its records spread over it."""
        from gemmdesc.golden import read_golden, replay_record
        from gemmdesc.profiles import Level, index_profile

        golden, level = read_golden(path), accept or Level.VERIFIED
        index = index_profile(profile_for(golden, profile, level))
        records = golden.records
        if most is not None and len(records) > most:
            records = tuple(records[i * len(records) // most] for i in range(most))
        done = []
        for number, record in enumerate(records, 1):
            done.append((record, replay_record(record, index, level)))
            progress.report(f"replay {path.name}", number, len(records))
        return cls(path=path, golden=golden, replayed=tuple(done))

    @property
    def equal(self) -> bool:
        return all(result.equal for _, result in self.replayed)

    def groups(self) -> list[tuple[str, str, int, int, int, int, int]]:
        """By kernels and types: records, elements compared, equal, different and declined records."""
        found: dict[tuple[str, str], list[tuple[GoldenRecord, Replayed]]] = {}
        for record, result in self.replayed:
            found.setdefault(_group(record), []).append((record, result))
        return [(*key, *_counts(members)) for key, members in sorted(found.items())]

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        columns = ("kernels", "types", "records", "elements", "equal", "different", "declined")
        bad = [(record, result) for record, result in self.replayed if not result.equal]
        return {
            "path": str(self.path),
            "card": self.golden.provenance.device.name,
            "library": str(self.golden.provenance.library.version),
            "groups": [dict(zip(columns, row, strict=True)) for row in self.groups()],
            "failures": [{"record": str(record), "why": _why(result)} for record, result in bad],
        }

    def print(self) -> None:
        """A table on stdout."""
        where = self.golden.provenance
        columns = ("kernels", "types", "records", "elements", "equal", "different", "declined")
        title = f"{self.path.name}: bytes of cuBLASLt {where.library.version} on {where.device.name}, replayed here"
        bad = [f"{record}: {_why(result)}" for record, result in self.replayed if not result.equal]
        print_table(title, columns, self.groups(), "\n".join(bad[:20]))


def _group(record: GoldenRecord) -> tuple[str, str]:
    from gemmdesc.verification.scope import short_name

    names = " + ".join(short_name(n) for n in record.launch_names) or "unknown"
    return names, f"{record.problem.a_dtype.value} -> {record.problem.d_dtype.value}"


def _counts(members: Iterable[tuple[GoldenRecord, Replayed]]) -> tuple[int, int, int, int, int]:
    listed = list(members)
    declined = sum(result.declined is not None for _, result in listed)
    equal = sum(result.equal for _, result in listed)
    elements = sum(record.output.size for record, result in listed if result.declined is None)
    return len(listed), elements, equal, len(listed) - equal - declined, declined


def _why(result: Replayed) -> str:
    if result.declined is not None:
        return f"declined ({result.declined.code}): {result.declined.reason}"
    return f"differs first at {result.mismatch.index}, {result.mismatch.count} elements" if result.mismatch else "equal"
