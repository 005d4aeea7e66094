"""``gemmdesc verify``: our products against the library's, and what such a comparison can catch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gemmdesc.cli.libraries import Opener, default_workers
from gemmdesc.cli.output import (
    DIFFERENT,
    EQUAL,
    JsonOption,
    Progress,
    command_line,
    guarded,
    print_found,
    print_json,
    print_table,
    wants_json,
    writing,
)
from gemmdesc.cli.shapelists import AcceptOption
from gemmdesc.cli.sides import Sides, machine_at_hand
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmdesc.probe.workers import Workers
    from gemmdesc.verification.campaign import Options
    from gemmdesc.verification.records import Record

#: Families that the table of them lists.
_TOP = 40


@guarded
def verify(
    context: typer.Context,
    shapes: Annotated[int | None, typer.Option(min=1, help="About this many shapes, in the usual proportions.")] = None,
    unrounded: Annotated[int | None, typer.Option(min=0)] = None,
    aligned: Annotated[int | None, typer.Option(min=0, help="Multiples of 8.")] = None,
    deep: Annotated[int | None, typer.Option(min=0, help="Skinny and deep.")] = None,
    named: Annotated[int | None, typer.Option(min=0, help="Layers of published models, one draw each.")] = None,
    lost_tail: Annotated[int | None, typer.Option(min=0, help="Shapes whose tail the library loses.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Draws a shape.")] = 10,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    folder: Annotated[Path | None, typer.Option(help="Folder of the records; the same one resumes.")] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile's file or folder, looked at first.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Compare the CPU replay, not our kernels.")] = False,
    library: Annotated[str | None, typer.Option(help="With --replay or --power: as for probe.")] = None,
    power: Annotated[
        int | None, typer.Option(min=1, help="Instead: this many trials of each structure and kind of mutant.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Instead: --shapes of this kind, as for probe; give it again for others, or all."),
    ] = None,
    coverage: Annotated[
        list[str] | None,
        typer.Option(help="Instead: a coverage campaign of FAMILY or FAMILY=SHAPES; give it again for others, or all."),
    ] = None,
    regime: Annotated[
        list[str] | None, typer.Option(help="With --coverage: only this regime of sizes now; give it again for others.")
    ] = None,
    shard: Annotated[str, typer.Option(help="With --coverage: part I of N, as I/N, of every family.")] = "0/1",
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="With --kind or --coverage: begin no shape after so long.")
    ] = None,
    accept: AcceptOption = "verified",
    promote: Annotated[
        Path | None,
        typer.Option(help="Where to write the profile with what was compared: weaker rows verified, or refuted."),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(help="With --coverage: where to write the profile, rows declining of which a shape differs."),
    ] = None,
    former: Annotated[
        list[Path] | None,
        typer.Option(help="With --coverage: a profile that an old folder's records were taken on; again for others."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Compare shape by shape with cuBLASLt and torch.mm; exit code 1 where any byte differs.  Resumes by itself."""
    from gemmdesc.cli.verifying_kinds import KindChoice, require_alone, verify_kinds
    from gemmdesc.verification.campaign import Options, options_of_size
    from gemmdesc.verification.kind_campaign import KindOptions

    if power is not None and promote is not None:
        raise InvalidInputError("promote must not stand beside --power, which compares mutants (got both)")
    sizes = {"unrounded": unrounded, "aligned": aligned, "deep": deep, "named": named, "lost_tail": lost_tail}
    if coverage:
        from gemmdesc.cli.verifying_coverage import CoverageChoice, verify_coverage

        require_alone("coverage", {"shapes": shapes, **sizes, "power": power, "promote": promote, "kind": kind or None})
        choice = CoverageChoice(
            families=tuple(coverage), regimes=tuple(regime or ()), shard=shard, draws=draws, seed=seed,
            seconds=seconds, began=monotonic(), apply=apply, former=tuple(former or ()),
        )  # fmt: skip
        choice.options()
        sides = Sides.find(Opener(spec=library), profile, replayed=replay, accept=accept)
        return verify_coverage(context, sides, choice, folder, workers or default_workers(), json)
    for option, value in (("apply", apply), ("former", former or None)):
        if value is not None:
            raise InvalidInputError(f"{option} must be given with --coverage (got {value})")
    if kind:
        require_alone("kind", {**sizes, "power": power})
        wanted = KindOptions(shapes=shapes or KindOptions.shapes, draws=draws, seed=seed, seconds=seconds)
        chosen = KindChoice(kinds=tuple(kind), options=wanted)
        sides = Sides.find(Opener(spec=library), profile, replayed=replay, accept=accept)
        return verify_kinds(context, sides, chosen, folder, workers or default_workers(), json)
    options = Options(seed=seed, draws=draws) if shapes is None else options_of_size(shapes, draws, seed)
    options = replace(options, **{name: value for name, value in sizes.items() if value is not None})
    sides = Sides.find(Opener(spec=library), profile, replayed=replay or power is not None, accept=accept)
    count = workers or default_workers()
    with Progress() as progress:
        if power is not None:
            return _power(context, sides, (power, draws, seed), folder, count, progress, json)
        records = run(sides, options, folder, count, progress)
        if promote is not None:
            progress.say(_promote(sides, records, promote))
    if wants_json(context, json):
        from gemmdesc.verification.summary import summary

        print_json({"options": vars(options), "library": str(sides.library.version), **summary(records)})
    else:
        print_summary(records)
    return code_of(records)


def code_of(records: Sequence[Record]) -> int:
    """The exit code that records earn."""
    from gemmdesc.verification.summary import differs

    return DIFFERENT if any(differs(r) for r in records) else EQUAL


def _promote(sides: Sides, records: Sequence[Record], path: Path) -> str:
    """Write the profile as the records leave it; returns what became of its rows."""
    from datetime import date

    from gemmdesc.profiles import DeclineOutcome, Level, promoted, write_profile
    from gemmdesc.verification.summary import compared_problems

    today = date.today().isoformat()
    found = promoted(
        sides.profile, compared_problems(records), sides.device, sides.library, command=command_line(), date=today
    )
    with writing("promote", path):
        write_profile(found, path)
    changed = [new for old, new in zip(sides.profile.rows, found.rows, strict=True) if old != new]
    refuted = sum(isinstance(row.outcome, DeclineOutcome) for row in changed)
    rest = sum(not row.evidence.level.reaches(Level.VERIFIED) for row in found.rows) - refuted
    return f"{path}: {len(changed) - refuted} rows verified, {refuted} refuted, {rest} weaker ones as they were"


def run(sides: Sides, options: Options, folder: Path | None, workers: int, progress: Progress) -> tuple[Record, ...]:
    """The campaign, resumed or new."""
    from gemmdesc.probe.workers import ProcessPool
    from gemmdesc.verification.campaign import run_campaign

    def open_workers(count: int) -> AbstractContextManager[Workers]:
        return ProcessPool(sides.factory, count)

    kept = folder or sides.folder(options.seed, options.draws)
    progress.say(sides.announced(kept))
    machine = machine_at_hand(workers, shares_memory=sides.name == "kernels")
    identity = sides.identity | {"seed": options.seed, "draws": [options.draws, options.named_draws]}
    return run_campaign(open_workers, options, machine, kept, identity, progress.report)


def print_summary(records: Sequence[Record]) -> None:
    """Tables on stdout."""
    from gemmdesc.verification.records import REFERENCES
    from gemmdesc.verification.summary import counts_of, grouped, summary

    data = summary(records)
    for reference in REFERENCES:
        if not any(reference in r.counts for r in records):
            continue
        rows = grouped(records, lambda r: r.regime.value, reference) | {"all": counts_of(records, reference)}
        names = [name.replace("_", " ") for name in rows["all"]]
        print_table(
            f"against {reference}", ("regime", *names), [(regime, *counts.values()) for regime, counts in rows.items()]
        )
    families = data["by_regime_family_dtype"]
    if families:
        columns = [c for c in families[0] if any(row[c] for row in families)]
        shown = sorted(families, key=lambda row: -row["shapes"])[:_TOP]
        note = f"... and {len(families) - _TOP} more, all in --json" if len(families) > _TOP else ""
        print_table("by regime, kernels and type", columns, [[row[c] for c in columns] for row in shown], note)
    names_seen = [(r["name"], r["shapes"], r["tensor_cores"]) for r in data["kernel_names"]]
    print_table("kernel names, and whether they count as in scope", ("name", "shapes", "tensor cores"), names_seen)
    lost = data["lost_tail"]
    if lost["shapes"]:
        print_table("lost tails", tuple(name.replace("_", " ") for name in lost), [tuple(lost.values())])
    checked = data["launches_cross_checked"]
    if checked:
        print_table("captured launches against torch.profiler", tuple(checked), [tuple(checked.values())])
    print_found(data)


def _power(
    context: typer.Context, sides: Sides, amounts: tuple[int, int, int], folder: Path | None, workers: int,
    progress: Progress, json: bool,
) -> int:  # fmt: skip
    """Power trials, printed by structure and kind; exit code 1 where the profile's own descriptor differed."""
    from gemmdesc.probe.workers import ProcessPool
    from gemmdesc.verification.power import Options, power_summary, run_power

    per_kind, draws, seed = amounts
    options = Options(seed=seed, draws=draws, per_kind=per_kind)
    kept = folder or sides.folder(seed, draws).with_name(sides.folder(seed, draws).name + "-power")
    progress.say(f"records in {kept}")
    with ProcessPool(sides.factory, workers) as pool:
        trials = run_power(pool, options, kept, sides.identity, progress.report)
    data = power_summary(trials)
    if wants_json(context, json):
        print_json(data)
    else:
        rows = [(s, kind, *counts.values()) for s, kinds in data.items() for kind, counts in kinds.items()]
        measured = ("trials", "caught", "share", "by rivals", "by plain", "no rivals", "disagreeing")
        columns = ("structure", "mutant", *measured)
        print_table("power: single-field mutants caught", columns, rows)
    return DIFFERENT if any(not t.agrees and not t.failure for t in trials) else EQUAL
