"""The records of coverage campaigns, of one folder or of several shards', counted; and as a claim with its evidence."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmdesc.errors import CampaignError
from gemmdesc.verification.coverage import ABOUT, FAMILIES, REGIMES, SESSIONS
from gemmdesc.verification.coverage_records import Covered, covered_from_plain
from gemmdesc.verification.coverage_rows import ROWS, STAMP
from gemmdesc.verification.kind_records import REFUSED
from gemmdesc.verification.kinds import REPLAY
from gemmdesc.verification.records import Outcome

_NUMBER = re.compile(r"\d+")
#: Reasons and mismatches that a claim lists.
_MOST_LISTED = 60


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """``covered``: by family and regime, each index once.  ``sessions``: the last note of each.  ``about``: what made
    the records, a line for each session.  ``stale``: by family, shapes whose only records were decided by rows that
    have changed since; nothing else counts them.
    """

    draws: int
    covered: Mapping[tuple[str, str], tuple[Covered, ...]]
    sessions: tuple[dict[str, Any], ...]
    about: tuple[dict[str, Any], ...]
    stale: Mapping[str, int] = field(default_factory=dict)

    def of(self, family: str | None = None, regime: str | None = None) -> list[Covered]:
        """All shapes of a family, of a regime, or of both."""
        return [
            c
            for (f, r), shapes in self.covered.items()
            if family in (None, f) and regime in (None, r)
            for c in shapes
        ]

    @property
    def families(self) -> tuple[str, ...]:
        """Those that have a shape, in their usual order."""
        return tuple(f for f in FAMILIES if any(name == f for name, _ in self.covered))

    @property
    def regimes(self) -> tuple[str, ...]:
        """Likewise."""
        return tuple(r.value for r in REGIMES if any(name == r.value for _, name in self.covered))


def read_coverage(folders: Sequence[Path]) -> Coverage:
    """What lies in the folders of one campaign's shards; a shape that several hold counts once.

    Raises:
        CampaignError: a folder holds no coverage campaign, or they are of different ones (library, card, seed, draws,
            the rows of the profile by the last session).
    """
    words = _require_one_campaign(folders)
    stamps = [_stamp(folder) for folder in folders]
    covered: dict[tuple[str, str], dict[int, Covered]] = {}
    stale: dict[tuple[str, str], set[int]] = {}
    sessions: list[dict[str, Any]] = []
    about: list[dict[str, Any]] = []
    for folder in folders:
        about += _lines(folder / f"{ABOUT}.jsonl")
        sessions += {note["session"]: note for note in _lines(folder / f"{SESSIONS}.jsonl")}.values()
        for family in FAMILIES:
            for regime in REGIMES:
                shapes = map(covered_from_plain, _lines(folder / family / f"{regime.value}.jsonl"))
                last = {c.index: c for c in shapes}
                found = {i: c for i, c in last.items() if words is None or c.row in words}
                stale.setdefault((family, regime.value), set()).update(last.keys() - found.keys())
                if found:
                    covered.setdefault((family, regime.value), {}).update(found)
    old = Counter({f: 0 for f, _ in stale})
    for (family, name), indices in stale.items():
        old[family] += len(indices - covered.get((family, name), {}).keys())
    return Coverage(
        draws=stamps[0]["draws"], sessions=tuple(sessions), about=tuple(about), stale=+old,
        covered={place: tuple(shapes[i] for i in sorted(shapes)) for place, shapes in covered.items()},
    )  # fmt: skip


def all_different(folders: Sequence[Path]) -> Iterator[tuple[str, Covered]]:
    """Every shape that ever differed, whichever row decided it then, with its family and regime, ``f/r``."""
    for folder in folders:
        for family in FAMILIES:
            for regime in REGIMES:
                for covered in map(covered_from_plain, _lines(folder / family / f"{regime.value}.jsonl")):
                    if covered.outcome == Outcome.DIFFERENT.value:
                        yield f"{family}/{regime.value}", covered


def _require_one_campaign(folders: Sequence[Path]) -> frozenset[str] | None:
    """The words of rows that hold; None where no session bound its records to rows."""
    stamps = [_stamp(folder) for folder in folders]
    _require_one(folders, stamps)
    said = [(_lines(folder / f"{ROWS}.jsonl") or [{}])[-1] for folder in folders]
    _require_one(folders, said)
    bound = "words" in said[0]
    for family in FAMILIES:
        of_family = [json.loads(s.read_text()) for f in folders if (s := f / family / STAMP).is_file()]
        # Records that name their rows need no digest of all of them.
        kept = [{n: v for n, v in stamp.items() if not (bound and n == ROWS)} for stamp in of_family]
        _require_one(folders, kept or stamps)
    return frozenset(said[0]["words"]) if bound else None


def _require_one(folders: Sequence[Path], stamps: Sequence[dict[str, Any]]) -> None:
    if not stamps or any(stamp != stamps[0] for stamp in stamps):
        raise CampaignError(f"folders must hold shards of one campaign (got {[str(f) for f in folders]}: {stamps})")


def _stamp(folder: Path) -> dict[str, Any]:
    path = folder / STAMP
    stamp = json.loads(path.read_text()) if path.is_file() else {}
    if "draws" not in stamp:
        raise CampaignError(f"folder must hold a coverage campaign (got {folder})")
    return dict(stamp)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a journal, whose last one may be cut off."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def coverage_counts(shapes: Iterable[Covered], draws: int) -> dict[str, int]:
    """shapes that the library accepts, by the outcome of their worst draw; draws compared; ``refused`` ones apart.

    ``replayed``: how many of the shapes were compared on windows by the CPU replay, as no kernel computes their rule.
    """
    listed = list(shapes)
    outcomes = Counter(c.outcome for c in listed)
    names = (o.value for o in (Outcome.EQUAL, Outcome.DIFFERENT, Outcome.DECLINED, Outcome.NONDETERMINISTIC))
    compared = sum(_draws(c, draws) for c in listed)
    return {
        "shapes": len(listed) - outcomes[REFUSED], "draws": compared, **{name: outcomes[name] for name in names},
        Outcome.REFERENCE_FAILED.value: outcomes[Outcome.REFERENCE_FAILED.value], REFUSED: outcomes[REFUSED],
        "replayed": sum(c.kernel == REPLAY for c in listed),
    }  # fmt: skip


def _draws(covered: Covered, draws: int) -> int:
    if covered.outcome == Outcome.EQUAL.value:
        return draws
    return sum((covered.draws or {}).values())


def coverage_summary(coverage: Coverage) -> dict[str, Any]:
    """Counts in total, by family, by regime and by both; declines and others by reason; kernels; mismatches; rates."""
    c, draws = coverage, coverage.draws
    places = [
        {"family": f, "regime": r, **coverage_counts(shapes, draws), "milliseconds": _mean(shapes)}
        for (f, r), shapes in c.covered.items()
    ]
    return {
        "total": coverage_counts(c.of(), draws),
        "by_family": {f: coverage_counts(c.of(f), draws) for f in c.families},
        "by_regime": {r: coverage_counts(c.of(regime=r), draws) for r in c.regimes},
        "by_family_and_regime": places,
        "kernels": dict(Counter(x.kernel for x in c.of() if x.kernel).most_common()),
        "stale": dict(c.stale),
        "reasons": _reasons(c),
        "mismatches": [
            {"shape": f"{f}/{r}/{x.index}", "sizes": list(x.sizes), "kernel": x.kernel, **(x.detail or {})}
            for (f, r), shapes in c.covered.items()
            for x in shapes
            if x.outcome == Outcome.DIFFERENT.value
        ],
        "sessions": [_session(note) for note in c.sessions],
    }


def _mean(shapes: Sequence[Covered]) -> float:
    """Of one process, over shapes that were compared."""
    times = [c.milliseconds for c in shapes if c.kernel]
    return round(sum(times) / len(times), 1) if times else 0.0


def _reasons(coverage: Coverage) -> list[dict[str, Any]]:
    """Why shapes are not equal, numbers left out, most frequent first."""
    said: Counter[tuple[str, str, str, str]] = Counter()
    for (family, _), shapes in coverage.covered.items():
        for c in shapes:
            if c.outcome != Outcome.EQUAL.value:
                said[family, c.outcome, c.code, _NUMBER.sub("#", c.why)[:160]] += 1
    return [
        {"family": family, "outcome": outcome, "code": code, "reason": reason, "shapes": number}
        for (family, outcome, code, reason), number in said.most_common()
    ]


def _session(note: dict[str, Any]) -> dict[str, Any]:
    shapes = sum(note["shapes"].values())
    regimes = {name.split("/")[1] for name in note["shapes"]}
    families = {name.split("/")[0] for name in note["shapes"]}
    return {
        "shard": note["shard"], "families": ", ".join(f for f in FAMILIES if f in families),
        "regimes": ", ".join(r.value for r in REGIMES if r.value in regimes), "shapes": shapes,
        "seconds": note["seconds"], "compiling": note["compiling"],
        "shapes_a_second": round(shapes / note["seconds"], 1) if note["seconds"] else 0.0,
    }  # fmt: skip


def coverage_claim(coverage: Coverage, claim: str) -> dict[str, Any]:
    """The campaign as one claim of a results file.

    Raises:
        CampaignError: the records do not say what made them.
    """
    if not coverage.about or not coverage.about[0]:
        raise CampaignError("folder must say what made its records (got none)")
    data, about = coverage_summary(coverage), coverage.about[0]
    # One line each: sessions and shards of one campaign differ in what they were asked to do.
    command = "\n".join(dict.fromkeys(a["command"] for a in coverage.about))
    return {
        "claim": claim, **about, "command": command,
        "counts": {**data["by_family"], "all": data["total"]},
        "by_regime": data["by_regime"],
        "by_family_and_regime": data["by_family_and_regime"],
        "stale": data["stale"],
        "reasons": data["reasons"][:_MOST_LISTED],
        "kernels": data["kernels"],
        "mismatches": data["mismatches"][:_MOST_LISTED],
        "sessions": data["sessions"],
    }  # fmt: skip
