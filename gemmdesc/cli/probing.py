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

if TYPE_CHECKING:
    from gemmdesc.probe.campaign import Findings, Options
    from gemmdesc.problem import DeviceId, LibraryId
    from gemmdesc.profiles import Profile


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
    from_observations: Annotated[
        Path | None, typer.Option(help="Instead: infer again, offline, from a campaign's folder; --out: its profile.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Find out which arithmetic a library does on this card, verify it, and write the profile; resumes by itself."""
    from gemmdesc.profiles import profile_path, user_folder, write_profile

    wanted = wants_json(context, json)
    with Progress() as progress:
        if from_observations is not None:
            return _offline(from_observations, out, progress, wanted)
        opener = Opener(spec=library)
        require_card(opener, arch)
        options = options_for(opener, quick=quick, target=target, seed=seed, cuda_cores=not tensor_cores)
        profile, findings = measure(opener, options, workers or default_workers(), campaign, progress)
        path = profile_path(out or user_folder(), profile.device, profile.library.version)
        write_profile(profile, path)
    report = Report(profile=profile, findings=findings, path=path)
    if wanted:
        print_json(report.plain())
    else:
        report.print()
    return EQUAL


def _offline(folder: Path, out: Path | None, progress: Progress, json: bool) -> int:
    """Infer again from saved readings; exit code 1 where a class no longer allows its recorded rule.

    Where ``out`` is given, the profile of what the campaign had verified in full is written under it.
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


def options_for(opener: Opener, *, quick: bool, target: float, seed: int, cuda_cores: bool = True) -> Options:
    """The campaign's options."""
    from gemmdesc.probe.campaign import Options
    from gemmdesc.probe.campaign import quick as shortened
    from gemmdesc.probe.sampling import Scope

    if opener.simulated:
        few = Options(scope=simulated_scope(), seed=seed, target_unseen=max(target, 1e-2), first_blocks=1)
        return replace(few, most_queries=4000)
    options = Options(scope=Scope(), seed=seed, target_unseen=target, cuda_cores=cuda_cores)
    return shortened(options) if quick else options


def measure(
    opener: Opener, options: Options, workers: int, folder: Path | None, progress: Progress
) -> tuple[Profile, Findings]:
    """Run a campaign to its end and make the profile."""
    from datetime import date

    from gemmdesc.probe.campaign import Campaign
    from gemmdesc.probe.publish import make_profile
    from gemmdesc.probe.workers import ProcessPool

    with ProcessPool(opener, workers) as pool:
        library, device = identity_with_digest(pool.library), pool.library.device
        kept = folder or campaign_folder(device, library, options.seed)
        progress.say(f"cuBLASLt {library.version} on {device.name or device.folder}; records in {kept}")
        findings = Campaign(pool, options, kept, progress.report).run()
    profile = make_profile(findings, device, library, command=command_line(), date=date.today().isoformat())
    return profile, findings


def identity_with_digest(library: Any) -> LibraryId:
    """The library's identity, with its file's sha256 where there is a file."""
    find = getattr(library, "identity_with_digest", None)
    found: LibraryId = library.identity if find is None else find()
    return found


def campaign_folder(device: DeviceId, library: LibraryId, seed: int) -> Path:
    """Where a campaign is kept unless told otherwise."""
    from gemmdesc.profiles import user_folder

    build = library.build_id[:12] or "none"
    return user_folder().parent / "campaigns" / f"{device.folder}-cublaslt-{library.version}-{build}-{seed}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What ``probe`` says at its end."""

    profile: Profile
    findings: Findings
    path: Path

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        found, seconds = self.findings, self.findings.seconds
        return {
            "path": str(self.path),
            "library": str(self.profile.library.version),
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
