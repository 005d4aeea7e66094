"""``gemmdesc verify --coverage``: many shapes of every family over six regimes of sizes, resumed and by shards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from gemmdesc.cli.output import (
    DIFFERENT,
    EQUAL,
    Progress,
    command_line,
    print_found,
    print_json,
    print_table,
    wants_json,
)
from gemmdesc.cli.sides import Sides, machine_at_hand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemmdesc.probe.sampling import Scope
    from gemmdesc.verification.coverage import CoverageOptions, CoverageTasks
    from gemmdesc.verification.coverage_refuted import Found
    from gemmdesc.verification.coverage_rows import Rows

#: What a shape may take without waiting for its turn, which every process may hold, and the most that one takes.
_UNASKED_BYTES, _LARGEST_BYTES = 4 << 30, 16 << 30
#: Where in a campaign's folder the shapes that differed are kept, for a campaign of the probe.
_REFUTED = "refuted.jsonl"


@dataclass(frozen=True, kw_only=True)
class CoverageChoice:
    """What to cover, as given on the command line; ``began``: when by ``time.monotonic``, which ``seconds`` count from.

    ``apply``: where to write the profile as the records leave it; ``former``: profiles of earlier sessions.
    """

    families: tuple[str, ...]
    regimes: tuple[str, ...]
    shard: str
    draws: int
    seed: int
    seconds: float | None
    began: float
    apply: Path | None = None
    former: tuple[Path, ...] = ()

    def options(self) -> CoverageOptions:
        """The same, read.

        Raises:
            InvalidInputError: there is no such family, regime or shard, or a number is too small.
        """
        from gemmdesc.errors import InvalidInputError
        from gemmdesc.verification.coverage import REGIMES, CoverageOptions, Shard, chosen_shapes

        known = {r.value: r for r in REGIMES}
        for name in self.regimes:
            if name not in known:
                raise InvalidInputError(f"regime must be of {', '.join(known)} (got {name!r})")
        return CoverageOptions(
            shapes=chosen_shapes(self.families), regimes=tuple(known[n] for n in self.regimes) or REGIMES,
            draws=self.draws, seed=self.seed, shard=Shard.parse(self.shard), seconds=self.seconds,
        )  # fmt: skip


def verify_coverage(
    context: typer.Context, sides: Sides, choice: CoverageChoice, folder: Path | None, workers: int, json: bool
) -> int:
    """Cover families, resumed or new, and print the counts of all that is on disk; exit code 1 where any byte differs.

    Raises:
        InvalidInputError: as :meth:`CoverageChoice.options`, or the library is simulated and answers float16 only.
    """
    from dataclasses import replace

    from gemmdesc.probe.workers import ProcessPool
    from gemmdesc.verification.coverage import run_coverage
    from gemmdesc.verification.coverage_refuted import find_refuted
    from gemmdesc.verification.coverage_summary import coverage_summary, read_coverage

    options = choice.options()
    usual = sides.folder(options.seed, options.draws)
    part = "" if options.shard.count == 1 else f"-{options.shard.number}-of-{options.shard.count}"
    kept = folder or usual.with_name(f"{usual.name}-coverage{part}")
    with Progress() as progress:
        progress.say(sides.announced(kept))
        tasks, scopes = _tasks(sides, kept, workers), _scopes(sides, options.shapes)
        rows = _rows(sides, scopes, choice.former)
        with ProcessPool(sides.factory, workers) as pool:
            if options.seconds is not None:
                options = replace(options, seconds=options.seconds - (monotonic() - choice.began))
            identity = {name: value for name, value in sides.identity.items() if name != "profile"}
            run_coverage(pool, scopes, options, kept, identity, progress.report, tasks, _about(sides), rows)
            covered = read_coverage([kept])
            found = find_refuted(pool, covered, kept, rows.now.deciding, scopes, options)
            _write(sides, found, kept, choice.apply, progress)
    data = coverage_summary(covered) | {"refuted": [one.plain() for one in found.refuted]}
    if wants_json(context, json):
        print_json({"library": str(sides.library.version), **data})
    else:
        print_coverage(data)
    return DIFFERENT if data["mismatches"] else EQUAL


def _rows(sides: Sides, scopes: Mapping[str, Scope], former: Sequence[Path]) -> Rows:
    """What binds records to rows, of the profile at hand and of former ones.

    Raises:
        ProfileError: a file holds no profile.
    """
    from gemmdesc.profiles import read_profile
    from gemmdesc.verification.coverage_rows import Rows, Taken

    profiles = map(read_profile, former)
    return Rows(
        now=Taken.on(sides.profile, sides.accept, scopes),
        former=tuple(Taken.on(p, sides.accept, scopes) for p in profiles),
    )


def _write(sides: Sides, found: Found, folder: Path, apply: Path | None, progress: Progress) -> None:
    """Write what a campaign of the probe can learn from, and to ``apply``, if given, the profile without wrong rows."""
    from datetime import date

    from gemmdesc.cli.output import writing
    from gemmdesc.probe.refutations import write_refutations
    from gemmdesc.profiles import refuted, write_profile

    if found.refutations:
        path = folder / _REFUTED
        write_refutations(path, found.refutations, sides.library, sides.device)
        progress.say(f"{path}: {len(found.refutations)} shapes for gemmdesc probe --refuted")
    if apply is None:
        return
    old = sides.profile
    made = refuted(old, found.tested, command=command_line(), date=date.today().isoformat())
    with writing("apply", apply):
        write_profile(made, apply)
    changed = sum(one != other for one, other in zip(old.rows, made.rows, strict=True))
    wrong, rest = len(found.refuted), len(old.rows) - changed
    progress.say(f"{apply}: {wrong} rows refuted, {changed - wrong} verified on more shapes, {rest} as they were")


def _scopes(sides: Sides, families: Mapping[str, int]) -> dict[str, Scope]:
    from gemmdesc.cli.libraries import simulated_scope
    from gemmdesc.errors import InvalidInputError
    from gemmdesc.verification.coverage import family_scope
    from gemmdesc.verification.hidden import DTYPE

    if not sides.simulated:
        return {family: family_scope(family) for family in families}
    if tuple(families) != (DTYPE.value,):
        raise InvalidInputError(
            f"coverage must be {DTYPE.value} with a simulated library (got {', '.join(families)})"
        )  # fmt: skip
    return {DTYPE.value: simulated_scope()}


def _tasks(sides: Sides, folder: Path, workers: int) -> CoverageTasks:
    from gemmdesc.verification.coverage import CoverageTasks
    from gemmdesc.verification.kind_kernels import compile_kernels, kernels_needed, verify_widely
    from gemmdesc.verification.kinds import verify_kind
    from gemmdesc.verification.large_turns import LargeTurns

    if sides.name != "kernels":
        return CoverageTasks(verify=verify_kind)
    spare = machine_at_hand(workers, shares_memory=True).memory_bytes - workers * _UNASKED_BYTES
    turns = LargeTurns(
        folder=folder / "turns", turns=max(1, min(workers, spare // _LARGEST_BYTES)), beyond_bytes=_UNASKED_BYTES
    )
    return CoverageTasks(
        verify=partial(verify_widely, turns=turns), needs=kernels_needed, compile=compile_kernels
    )  # fmt: skip


def _about(sides: Sides) -> dict[str, Any]:
    """What makes the records, as results files say it."""
    import platform
    from datetime import date
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str] = {}
    for name in ("torch", "triton"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    device, library = sides.device, sides.library
    built = f" (build-id {library.build_id})" if library.build_id else ""
    versions |= {"cublaslt": f"{library.version}{built}", "python": platform.python_version()}
    versions |= {"driver": device.driver} if device.driver else {}
    card = f"{device.name or 'simulated'} ({device.sm}, {device.sm_count} SMs)"
    return {"command": command_line(), "card": card, "versions": versions, "date": date.today().isoformat()}


def print_coverage(data: dict[str, Any]) -> None:
    """Tables on stdout."""
    by_family = {**data["by_family"], "all": data["total"]}
    columns = [name.replace("_", " ") for name in data["total"]]
    for title, rows in (("family", by_family), ("regime", data["by_regime"])):
        listed = [(name, *row.values()) for name, row in rows.items()]
        print_table(f"cublasLtMatmul against ours, by {title}", (title, *columns), listed)
    if data["stale"]:
        title = "shapes whose row has changed since, not done again yet"
        print_table(title, ("family", "shapes"), list(data["stale"].items()))
    if data["refuted"]:
        wrong = [(r["row"], r["different"], r["equal"], "; ".join(r["separations"])) for r in data["refuted"]]
        print_table("rows that shapes refute", ("row", "different", "equal", "told apart by"), wrong)
    for title in ("by_family_and_regime", "sessions"):
        if data[title]:
            names = tuple(name.replace("_", " ") for name in data[title][0])
            print_table(title.replace("_", " "), names, [tuple(row.values()) for row in data[title]])
    filled = {t: [{k: v for k, v in row.items() if v != ""} for row in data[t]] for t in ("reasons", "mismatches")}
    print_found(filled)
