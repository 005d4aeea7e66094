"""What one shape of a kind came to, and many of them counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gemmdesc.errors import CampaignError, Declined
from gemmdesc.verification.records import Outcome

REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class KindRecord:
    """One shape.  ``counts``: draws by outcome; none where the heuristic ``refused`` the problem or the rule declined.

    ``located``: the first element that differs, and how many of the window do.  ``kernel``: what computed our side, a
    structure of kernels or ``replay``, whose windows alone were compared.  ``fatal``: this process's device is of no
    further use.
    """

    key: str
    kind: str
    types: str
    problem: dict[str, Any]
    answer: dict[str, Any] | None = None
    counts: dict[str, int]
    refused: str = ""
    declined: Declined | None = None
    failure: str = ""
    located: dict[str, Any] | None = None
    kernel: str = ""
    seconds: float = 0.0
    fatal: bool = False

    @property
    def outcome(self) -> str:
        """The worst of any draw: an ``Outcome``, or ``refused``."""
        if self.refused:
            return REFUSED
        if self.declined is not None:
            vary = self.declined.code == Outcome.NONDETERMINISTIC.value
            return Outcome.NONDETERMINISTIC.value if vary else Outcome.DECLINED.value
        return next(o.value for o in reversed(Outcome) if self.counts.get(o.value))


def kind_record_to_plain(record: KindRecord) -> dict[str, Any]:
    """JSON-ready form."""
    data = asdict(record) | {"seconds": round(record.seconds, 4)}
    return {name: value for name, value in data.items() if value not in (None, False, "")}


def kind_record_from_plain(data: dict[str, Any]) -> KindRecord:
    """The record that :func:`kind_record_to_plain` wrote.

    Raises:
        CampaignError: the data hold no record.
    """
    try:
        declined = data.get("declined")
        return KindRecord(**{**data, "declined": None if declined is None else Declined(**declined), "fatal": False})
    except TypeError as error:
        raise CampaignError(f"record must be one that verify wrote ({error}) (got {str(data)[:200]})") from None


def kind_counts(records: Sequence[KindRecord]) -> dict[str, int]:
    """shapes by outcome, and the draws that were compared."""
    outcomes = Counter(r.outcome for r in records)
    names = ("equal", "different", "declined", "nondeterministic", "reference_failed", REFUSED)
    draws = sum(sum(r.counts.values()) for r in records)
    return {"shapes": len(records), "draws": draws, **{name: outcomes[name] for name in names}}


def kinds_summary(found: Mapping[str, Sequence[KindRecord]]) -> dict[str, Any]:
    """Counts by kind and by types, the processes' seconds, reasons (most frequent first) and mismatches."""
    everything = [r for records in found.values() for r in records]
    said = Counter((r.kind, r.outcome, _reason(r)) for r in everything if _reason(r))
    types = dict.fromkeys((r.kind, r.types) for r in everything)
    return {
        "by_kind": {name: kind_counts(records) for name, records in found.items()},
        "by_types": [
            {"kind": kind, "types": names, **kind_counts([r for r in found[kind] if r.types == names])}
            for kind, names in types
        ],
        "seconds": {name: round(sum(r.seconds for r in records), 1) for name, records in found.items()},
        "reasons": [
            {"kind": kind, "outcome": outcome, "reason": reason, "shapes": number}
            for (kind, outcome, reason), number in said.most_common()
        ],
        "mismatches": [
            {"key": r.key, "problem": r.problem, "answer": r.answer, "located": r.located}
            for r in everything
            if r.outcome == Outcome.DIFFERENT.value
        ],
    }


def _reason(record: KindRecord) -> str:
    if record.declined is not None:
        return f"{record.declined.code}: {record.declined.reason}"
    return record.refused or record.failure
