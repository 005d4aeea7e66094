"""``gemmdesc probe``: measure a library and write its profile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.libraries import Opener, default_workers, simulated_scope
from gemmdesc.cli.output import (
    DIFFERENT,
    EQUAL,
    JsonOption,
    Progress,
    command_line,
    guarded,
    print_json,
    print_table,
    wants_json,
)
from gemmdesc.cli.serving import (
    campaign_folder,
    identity_with_digest,
    known_refutations,
    known_rows,
    neighbour,
    serving_profile,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gemmdesc.library.interface import Library
    from gemmdesc.probe.campaign import Findings, Options
    from gemmdesc.probe.class_solver import Report
    from gemmdesc.probe.prior import FirstGuesses
    from gemmdesc.probe.projection import Row
    from gemmdesc.probe.refutations import Refutation
    from gemmdesc.probe.workers import Workers
    from gemmdesc.profiles import Profile

#: Answers of each class that campaigns about other kinds than plain products compare: the kernels are mostly the same.
COMPARED_ANSWERS = 24


@guarded
def probe(
    context: typer.Context,
    library: Annotated[
        str | None,
        typer.Option(help="A path, nvidia-cublas==V, nvidia-cublas-cu12==V or simulated:SEED; torch's by default."),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Refuse unless the card at hand is this one, such as sm_90.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of profiles to write to; the user's by default.")] = None,
    campaign: Annotated[Path | None, typer.Option(help="Folder of the records; the same one resumes.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look, with a fraction of the queries.")] = False,
    tensor_cores: Annotated[
        bool, typer.Option("--tensor-cores", help="Seek the orders of tensor-core kernels only; the others decline.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.")] = None,
    target: Annotated[float, typer.Option(min=0.0, help="Stop at this estimate of the mass of unseen answers.")] = 1e-5,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", "--kinds", help="What to ask about (default: plain); give it again for others, or all."),
    ] = None,
    first_guesses: Annotated[
        str | None,
        typer.Option(
            help="Whose rules are tried first: a release, a profile's file, or none; by default those of the nearest "
            "release measured on this card."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="End after about so long; the same command goes on from there.")
    ] = None,
    from_observations: Annotated[
        Path | None, typer.Option(help="Instead: infer again, offline, from a campaign's folder; --out: its profile.")
    ] = None,
    refuted: Annotated[
        list[Path] | None,
        typer.Option(help="Shapes that verify --coverage found different (its refuted.jsonl), to be learned from."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Find out which arithmetic a library does on this card, verify it, and write the profile; resumes by itself."""
    from gemmdesc.probe.sampling import chosen_kinds

    wanted = wants_json(context, json)
    with Progress() as progress:
        if from_observations is not None:
            return _offline(from_observations, out, progress, wanted)
        opener = Opener(spec=library)
        require_card(opener, arch)
        plans = {
            name: options_for(opener, quick=quick, target=target, seed=seed, cuda_cores=not tensor_cores, kind=name)
            for name in chosen_kinds(kind or ["plain"])
        }
        places = Places(
            records=campaign, profiles=out, first_guesses=first_guesses, refuted=tuple(refuted or ())
        )
        reports = measure_kinds(opener, plans, workers or default_workers(), places, progress, seconds)
    if wanted:
        print_json(reports[0].plain() if len(reports) == 1 else [r.plain() for r in reports])
    else:
        for report in reports:
            report.print()
    return EQUAL


def _offline(folder: Path, out: Path | None, progress: Progress, json: bool) -> int:
    """Infer again from saved readings; exit code 1 where a class no longer allows its recorded rule.

    Where ``out`` is given, what the campaigns of all kinds had verified in full is published under it.
    """
    from gemmdesc.cli.offline import infer_again, write_recorded

    if out is not None:
        progress.say(f"wrote {write_recorded(folder, out, command_line())}")
    found = infer_again(folder, progress.report)
    if json:
        print_json([vars(a) for a in found])
    else:
        rows = [(a.label, a.readings, a.survivors, a.same, a.reason) for a in found]
        title = f"{folder}: {len(found)} classes inferred again from their readings"
        print_table(title, ("class", "readings", "survivors", "same rule", "why not"), rows)
    return EQUAL if all(a.same for a in found) else DIFFERENT


def require_card(opener: Opener, arch: str | None) -> None:
    """Raise LibraryError where the card at hand is not the one that ``--arch`` names."""
    from gemmdesc.errors import LibraryError
    from gemmdesc.library.device import device_id

    if arch is None:
        return
    device = opener().device if opener.simulated else device_id()
    if arch not in (device.sm, device.folder):
        raise LibraryError(
            f"arch must be that of the card at hand, {device.folder} ({device.name}); a profile is measured on its own "
            f"card only (got {arch})"
        )


def options_for(
    opener: Opener, *, quick: bool, target: float, seed: int, cuda_cores: bool = True, kind: str = "plain"
) -> Options:
    """The options of a campaign about one kind.

    Raises:
        InvalidInputError: there is no such kind, or the library is simulated and answers plain products only.
    """
    from gemmdesc.errors import InvalidInputError
    from gemmdesc.probe.campaign import Options
    from gemmdesc.probe.campaign import quick as shortened
    from gemmdesc.probe.facets import Kind
    from gemmdesc.probe.sampling import scope_named

    if opener.simulated:
        if kind != Kind.PLAIN.value:
            raise InvalidInputError(f"kind must be plain with a simulated library (got {kind!r})")
        few = Options(scope=simulated_scope(), seed=seed, target_unseen=max(target, 1e-2), first_blocks=1)
        return replace(few, most_queries=4000)
    options = Options(scope=scope_named(kind), seed=seed, target_unseen=target, cuda_cores=cuda_cores)
    if kind != Kind.PLAIN.value:
        options = replace(options, compared_answers=COMPARED_ANSWERS)
    return shortened(options) if quick else options


def measure(
    opener: Callable[[], Library], options: Options, workers: int, folder: Path | None, progress: Progress
) -> tuple[Profile, Findings]:
    """Run a campaign to its end and make the profile; ``folder`` keeps its records."""
    from gemmdesc.probe.workers import ProcessPool

    with ProcessPool(opener, workers) as pool:
        library, device = identity_with_digest(pool.library), pool.library.device
        kept = folder or campaign_folder(device, library, options.seed)
        progress.say(f"cuBLASLt {library.version} on {device.name or device.folder}; records in {kept}")
        return _campaign(pool, options, kept, progress.report)


@dataclass(frozen=True, kw_only=True)
class Places:
    """The folders of all records and of profiles, and whose rules are tried first; the usual ones where None.

    ``refuted``: files to learn from.
    """

    records: Path | None = None
    profiles: Path | None = None
    first_guesses: str | None = None
    refuted: tuple[Path, ...] = ()


def measure_kinds(
    opener: Callable[[], Library], plans: Mapping[str, Options], workers: int, places: Places, progress: Progress,
    seconds: float | None = None,
) -> list[Measurement]:  # fmt: skip
    """Run a campaign about each kind of ``plans``, by name, and publish each as soon as it has ended.

    A new profile of the user's starts from the one that served so far, which it takes the place of.

    Raises:
        InvalidInputError: the first guesses named are neither a release nor a file; or a file of refuted shapes is of
            another library or card, or holds none.
        ProfileError: the profile to join is of another card or build of the library, or the first guesses named are not
            there or of another card; nothing is asked or written.
        CampaignError: ``seconds`` are over; kinds that ended are published, and what else was learned is on disk.
    """
    from gemmdesc.probe.facets import Kind
    from gemmdesc.probe.offline import kind_folder
    from gemmdesc.probe.prior import NO_GUESSES
    from gemmdesc.probe.publish import guesses_of
    from gemmdesc.probe.workers import ProcessPool
    from gemmdesc.profiles import publish, user_folder

    records, out = places.records, places.profiles
    report = progress.report if seconds is None else _until(progress.report, seconds)
    reports = []
    with ProcessPool(opener, workers) as pool:
        library, device = identity_with_digest(pool.library), pool.library.device
        base = serving_profile(device, library, out)
        known = known_refutations(base, places.refuted, library, device)
        near = neighbour(device, library, places.first_guesses, out)
        for name, options in plans.items():
            guesses = NO_GUESSES if near is None else guesses_of(near, options.scope)
            prior = () if name == Kind.PLAIN.value else known_rows(device, library, out, options.scope.kind)
            kept = kind_folder(records or campaign_folder(device, library, options.seed), name)
            progress.say(f"{name}: cuBLASLt {library.version} on {device.name or device.folder}; records in {kept}")
            progress.say(f"{name}: first guesses: {guesses.source or 'none'}")
            asking = replace(options, first_blocks=first_blocks(options, guesses))
            measured, findings = _campaign(pool, asking, kept, report, prior, guesses, known)
            _, path = publish(measured, out or user_folder(), base)
            reports.append(Measurement(profile=measured, findings=findings, path=path))
    return reports


def _until(report: Report, seconds: float) -> Report:
    """``report``, which raises CampaignError once ``seconds`` are over: whatever was reported is on disk by then."""
    from time import monotonic

    from gemmdesc.errors import CampaignError

    end = monotonic() + seconds

    def reported(phase: str, done: int, total: int | None) -> None:
        report(phase, done, total)
        if monotonic() > end:
            raise CampaignError(f"seconds must suffice for the campaign; the same command goes on (got {seconds:g})")

    return reported


def first_blocks(options: Options, guesses: FirstGuesses) -> int:
    """Blocks to scan before rows are made: as many as the guesses' campaign asked for in all, where that is more.

    A neighbour needs about as many, and every further round of scanning ends with workers that wait for the last one.
    """
    from gemmdesc.probe.scan import BLOCK_QUERIES

    wanted = min(guesses.queries, options.most_queries) // BLOCK_QUERIES
    return max(options.first_blocks, wanted)


def _campaign(
    workers: Workers, options: Options, folder: Path, report: Report, prior: Sequence[Row] = (),
    guesses: FirstGuesses | None = None,
    refuted: Sequence[Refutation] = (),
) -> tuple[Profile, Findings]:  # fmt: skip
    from datetime import date

    from gemmdesc.probe.campaign import Campaign
    from gemmdesc.probe.prior import NO_GUESSES
    from gemmdesc.probe.publish import make_profile

    library, device = identity_with_digest(workers.library), workers.library.device
    findings = Campaign(
        workers, options, folder, report, prior, guesses or NO_GUESSES, refuted
    ).run()
    profile = make_profile(findings, device, library, command=command_line(), date=date.today().isoformat())
    return profile, findings


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What ``probe`` says at its end of one kind: its campaign, and the profile's path.

    ``profile``: of this campaign alone.
    """

    profile: Profile
    findings: Findings
    path: Path

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        found, seconds = self.findings, self.findings.seconds
        return {
            "path": str(self.path),
            "kind": self.profile.metadata.measured[0].kind,
            "library": str(self.profile.library.version),
            "first_guesses": "; ".join(found.first_guesses) or "none",
            "card": self.profile.device.name,
            "queries": found.tally.queries,
            "queries_per_second": round(found.scan_rate, 1),
            "answers": len(found.tally.counts),
            "refused": dict(found.tally.refused),
            "unseen_mass_in_scope": found.unseen,
            "unseen_mass": found.unseen_all,
            **self._row_counts(),
            "minutes": {phase: round(s / 60, 2) for phase, s in seconds.items()},
            "minutes_in_all": round(sum(seconds.values()) / 60, 2),
        }

    def _row_counts(self) -> dict[str, Any]:
        from collections import Counter

        from gemmdesc.profiles import DeclineOutcome, Level, RuleOutcome

        rows = self.profile.rows
        ruled = [r for r in rows if isinstance(r.outcome, RuleOutcome)]
        declines = Counter(r.outcome.declined.code for r in rows if isinstance(r.outcome, DeclineOutcome))
        return {
            "rows": len(rows),
            "rows_verified": sum(r.evidence.level is Level.VERIFIED for r in ruled),
            "rows_not_verified": sum(r.evidence.level is not Level.VERIFIED for r in ruled),
            "rows_declined": dict(declines),
        }

    def print(self) -> None:
        """A table on stdout."""
        rows = [(name.replace("_", " "), _text(value)) for name, value in self.plain().items()]
        print_table("probe", ("", ""), rows)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
