"""Probe kinds of problems one after the other, publish what was verified, and verify the profile at other shapes.

    python scripts/measure_kinds.py OUT [--kinds tf32,bias] [--seconds 560] [--share 0.7] [--workers 14]
                                        [--quick] [--tensor-cores] [--shapes 2000] [--simulated]

Rules of the nearest release measured on this card are tried first unless --first-guesses says otherwise.

Campaigns take turns for the share of the time that is for probing: each has a first one, in the order named, then the
one of which most queries would still decline goes on.  What has not ended by then goes on with the next call.  Rows
that are verified by then are published under OUT/profiles, and `verify --replay --kind` compares the profile with the
library at shapes of other seeds until the time is over.  OUT/campaign and OUT/verify resume; OUT/counts.json holds what
each kind came to.  The same as `gemmdesc probe --kind` and `gemmdesc verify --replay --kind`, within one limit of time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

from kind_libraries import Real, Simulated

from gemmdesc.cli.probing import COMPARED_ANSWERS
from gemmdesc.cli.serving import NO_FIRST_GUESSES, known_rows, neighbour
from gemmdesc.library.interface import Library
from gemmdesc.library.torch_settings import TorchSettings, read_settings
from gemmdesc.probe.campaign import Campaign, Findings, Options, quick
from gemmdesc.probe.class_solver import Report
from gemmdesc.probe.offline import campaign_folders, kind_folder, recorded_findings
from gemmdesc.probe.prior import NO_GUESSES
from gemmdesc.probe.publish import guesses_of, make_profile, prior_of
from gemmdesc.probe.sampling import KIND_NAMES, Regime, chosen_kinds, scope_named
from gemmdesc.probe.several import run_several
from gemmdesc.probe.workers import InProcess, ProcessPool, Workers
from gemmdesc.profiles import Profile, merge_profiles, profile_digest, publish, read_profile
from gemmdesc.verification.kind_campaign import KindOptions, run_kinds
from gemmdesc.verification.kind_records import kinds_summary
from gemmdesc.verification.replayed import ReplayBenchFactory

SEED = 0
#: Queries of a rehearsal's campaign.
FEW = 1500
#: Blocks that a campaign scans before it first makes rows: few, so that the answers met most often are served soon.
FIRST_BLOCKS = 100


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one call does; ``workers`` is 0 for this process alone."""

    opener: Callable[[], Library]
    kinds: tuple[str, ...]
    workers: int
    simulated: bool
    quick: bool
    cuda_cores: bool
    first_guesses: str | None = None

    def options(self, name: str) -> Options:
        scope = scope_named(name)
        if self.simulated:
            small = replace(scope, regimes=(Regime.SMALL,))
            return Options(scope=small, seed=SEED, first_blocks=1, most_queries=FEW, target_unseen=1.0)
        options = Options(
            scope=scope, seed=SEED, cuda_cores=self.cuda_cores, compared_answers=COMPARED_ANSWERS,
            first_blocks=FIRST_BLOCKS,
        )  # fmt: skip
        return quick(options) if self.quick else options

    def pool(self, opener: Callable[[], Library]) -> AbstractContextManager[Workers]:
        return InProcess(opener()) if self.workers == 0 else ProcessPool(opener, self.workers)


def probe(plan: Plan, folder: Path, seconds: float) -> dict[str, dict[str, Any]]:
    """All kinds' campaigns, by turns."""
    with plan.pool(plan.opener) as workers:
        library = workers.library
        made: dict[str, Campaign] = {}
        near = neighbour(library.device, library.identity, plan.first_guesses, folder.parent / "profiles")

        def opened(name: str) -> Callable[[Report], Campaign]:
            def opening(report: Report) -> Campaign:
                options = plan.options(name)
                kind, known = options.scope.kind, folder.parent / "profiles"
                prior = [
                    *known_rows(library.device, library.identity, known, kind),
                    # What this call has found of plain products is not published yet.
                    *(row for c in made.values() for row in prior_of(_profile(c.findings(), library), kind)),
                ]
                guesses = NO_GUESSES if near is None else guesses_of(near, options.scope)
                made[name] = Campaign(workers, options, kind_folder(folder, name), report, prior, guesses)
                return made[name]

            return opening

        came = run_several({name: opened(name) for name in plan.kinds}, seconds, _silent)
    found = {name: {k: round(v, 6) if k == "missing" else v for k, v in vars(c).items()} for name, c in came.items()}
    for name, counts in found.items():
        print(name, counts, flush=True)
    return found


def _profile(findings: Findings, library: Library) -> Profile:
    command, day = " ".join(["python", *sys.argv]), date.today().isoformat()
    return make_profile(findings, library.device, library.identity, command=command, date=day)


def _silent(phase: str, done: int, total: int | None) -> None:
    """The counts say what came of it."""


def published(folder: Path, out: Path) -> tuple[Profile, dict[str, dict[str, int]]]:
    """The profile of all that the campaigns in ``folder`` verified, and rows by kind and outcome."""
    made: list[Profile] = []
    rows: dict[str, dict[str, int]] = {}
    for kept in campaign_folders(folder):
        findings, library, device = recorded_findings(kept)
        command = " ".join(["python", *sys.argv])
        profile = make_profile(findings, device, library, command=command, date=date.today().isoformat())
        made.append(profile)
        counts = rows.setdefault(profile.metadata.measured[0].kind, {})
        counts["queries"] = findings.tally.queries
        counts["answers"] = len(findings.tally.counts)
        for row in profile.rows:
            declined = getattr(row.outcome, "declined", None)
            what = row.evidence.level.value if declined is None else declined.code
            counts[what] = counts.get(what, 0) + 1
    _, path = publish(reduce(merge_profiles, made), out)
    return read_profile(path), rows


def verify(plan: Plan, profile: Profile, folder: Path, options: KindOptions) -> dict[str, Any]:
    settings = TorchSettings() if plan.simulated else read_settings(profile.device.sm)
    bench = ReplayBenchFactory(library=plan.opener, profile=profile, settings=settings)
    scopes = {name: plan.options(name).scope for name in plan.kinds}
    # Records of another profile's rules are no evidence for this one's.
    digest = profile_digest(profile)
    identity = {"library": str(profile.library.version), "device": profile.device.folder, "profile": digest}
    with plan.pool(bench) as workers:
        return kinds_summary(run_kinds(workers, scopes, options, folder / digest[:12], identity, _silent))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", default=",".join(n for n in KIND_NAMES if n != "plain"))
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--share", type=float, default=0.7, help="of the time, for probing")
    parser.add_argument("--workers", type=int, default=14, help="0: in this process")
    parser.add_argument("--shapes", type=int, default=2000, help="verified of each kind, at most")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="a first look: few queries, tensor cores only")
    parser.add_argument("--tensor-cores", action="store_true")
    parser.add_argument("--library", help="default: torch's own")
    parser.add_argument(
        "--first-guesses", help="a release, a profile's file, or none; by default the nearest release of this card"
    )
    parser.add_argument("--simulated", action="store_true", help="rehearse on hidden rules, small problems only")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    named = given.kinds.split(",")
    kinds = sorted(chosen_kinds(named), key=lambda n: named.index(n) if n in named else len(named))
    plan = Plan(
        opener=Simulated() if given.simulated else Real(given.library), kinds=tuple(kinds),
        workers=given.workers, simulated=given.simulated, quick=given.quick, cuda_cores=not given.tensor_cores,
        first_guesses=NO_FIRST_GUESSES if given.simulated else given.first_guesses,
    )  # fmt: skip
    found: dict[str, Any] = {"probe": probe(plan, given.out / "campaign", given.share * given.seconds)}
    profile, found["rows"] = published(given.out / "campaign", given.out / "profiles")
    print("rows", found["rows"], flush=True)
    options = KindOptions(shapes=given.shapes, draws=given.draws, seconds=max(5.0, end - time.monotonic()))
    found["verify"] = verify(plan, profile, given.out / "verify", options)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "counts.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, counts in found["verify"]["by_kind"].items():
        print(name, counts)
    print("mismatches", len(found["verify"]["mismatches"]))
    sys.stdout.flush()
    return 1 if found["verify"]["mismatches"] else 0


if __name__ == "__main__":
    code = main()
    # Workers that hold a CUDA context may hang on the way out.
    os._exit(code)
