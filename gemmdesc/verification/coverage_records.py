"""What one shape of a coverage campaign came to, in a line as short as it can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemmdesc.errors import CampaignError
from gemmdesc.verification.kind_records import REFUSED, KindRecord
from gemmdesc.verification.records import Outcome

#: What is kept in full of a shape that is neither equal nor declined nor refused.
_DETAIL = ("problem", "answer", "counts", "located", "failure")


@dataclass(frozen=True, kw_only=True)
class Covered:
    """One shape.

    ``sizes``: m, n, k, and the matrices of a batch; ``outcome``: an ``Outcome`` or ``refused``, that of the worst draw;
    ``kernel``: what computed our side (``replay``: on windows), "" where nothing did; ``code``, ``why``: of a decline,
    a refusal or a failure.  ``row``: the word of the profile's row that decided it (``gemmdesc.profiles.Deciding``), ""
    in records of before they had one.  ``detail``: everything that is known, of shapes that were compared and are not
    equal.
    """

    index: int
    sizes: tuple[int, ...]
    outcome: str
    milliseconds: int
    kernel: str = ""
    code: str = ""
    why: str = ""
    row: str = ""
    detail: dict[str, Any] | None = None

    @property
    def draws(self) -> dict[str, int] | None:
        """Draws by outcome; None where all were equal, or nothing was compared."""
        return None if self.detail is None else self.detail["counts"]


def covered_of(record: KindRecord, index: int, row: str = "") -> Covered:
    """Shape ``index`` of its family and regime, which ``row`` decided."""
    p, outcome = record.problem, record.outcome
    sizes = (p["m"], p["n"], p["k"], *((p["batch_count"],) if p["batch_count"] > 1 else ()))
    declined = record.declined
    plain = {name: getattr(record, name) for name in _DETAIL}
    compared = declined is None and outcome not in (Outcome.EQUAL.value, REFUSED)
    return Covered(
        index=index, sizes=sizes, outcome=outcome, milliseconds=round(1000 * record.seconds), kernel=record.kernel,
        code="" if declined is None else declined.code,
        why=record.refused or record.failure if declined is None else declined.reason,
        row=row, detail=plain if compared else None,
    )  # fmt: skip


def covered_to_plain(covered: Covered) -> dict[str, Any]:
    """JSON-ready form; an equal shape has no more than its index, sizes, kernel, milliseconds and row."""
    c = covered
    data = {"i": c.index, "mnk": list(c.sizes), "by": c.kernel, "ms": c.milliseconds}
    data |= {} if c.outcome == Outcome.EQUAL.value else {"is": c.outcome}
    beside = {"row": c.row, "code": c.code, "why": c.why, "detail": c.detail}
    return {name: value for name, value in (data | beside).items() if value not in (None, "")}


def covered_from_plain(data: dict[str, Any]) -> Covered:
    """The record that :func:`covered_to_plain` wrote.

    Raises:
        CampaignError: the data hold no record.
    """
    try:
        return Covered(
            index=data["i"], sizes=tuple(data["mnk"]), outcome=data.get("is", Outcome.EQUAL.value),
            milliseconds=data["ms"], kernel=data.get("by", ""), code=data.get("code", ""), why=data.get("why", ""),
            row=data.get("row", ""), detail=data.get("detail"),
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise CampaignError(f"record must be one that verify wrote ({error!r}) (got {str(data)[:200]})") from None
