"""What one case came to, as a value and as a JSON record."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from gemmdesc.errors import CampaignError, Declined
from gemmdesc.verification.cases import Regime
from gemmdesc.verification.scope import Scope


class Outcome(Enum):
    """What one comparison, or one case, came to; listed from best to worst."""

    EQUAL = "equal"
    DECLINED = "declined"
    REFERENCE_FAILED = "reference_failed"
    NONDETERMINISTIC = "nondeterministic"
    DIFFERENT = "different"


#: What our bytes are compared with.
REFERENCES = ("cublaslt", "torch")


@dataclass(frozen=True, kw_only=True)
class Located:
    """The first differing element of one draw, in torch's (row, column); how many of ``size`` elements differ."""

    reference: str
    draw: int
    family: str
    row: int
    column: int
    expected_bits: int
    got_bits: int
    count: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Record:
    """One case.  ``counts``: by reference, draws by outcome.  ``torch_is_cublaslt``: draws on which those two agree.

    ``launch_check``: an :class:`~gemmdesc.library.profiler.Agreement`, "" where the launch was not checked.
    ``lost_tail``: the descriptor sums fewer than k.  ``kernel``: what computed our side.  ``fatal``: the process that
    worked on the case cannot go on.
    """

    key: str
    regime: Regime
    dtype: str
    case: dict[str, Any]
    draws: int
    counts: dict[str, dict[str, int]]
    scope: Scope = Scope.UNKNOWN
    family: str = "unknown"
    kernels: tuple[str, ...] = ()
    launch_check: str = ""
    structure: str = ""
    lost_tail: bool = False
    kernel: str = ""
    torch_is_cublaslt: int = 0
    declined: Declined | None = None
    failure: str = ""
    located: Located | None = None
    problem: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    seconds: float = 0.0
    fatal: bool = field(default=False, compare=False)

    def outcome(self, reference: str) -> Outcome:
        """The worst outcome of any draw against ``reference``."""
        if self.declined is not None:
            return Outcome.NONDETERMINISTIC if self.declined.code == "nondeterministic" else Outcome.DECLINED
        found = [o for o in Outcome if self.counts.get(reference, {}).get(o.value)]
        return found[-1] if found else Outcome.REFERENCE_FAILED

    @property
    def compared(self) -> bool:
        """Whether the record holds a comparison with cuBLASLt that came out."""
        return self.outcome("cublaslt") in (Outcome.EQUAL, Outcome.DIFFERENT)


def record_to_plain(record: Record) -> dict[str, Any]:
    """JSON-ready form."""
    data = asdict(record)
    data["regime"], data["scope"] = record.regime.value, record.scope.value
    data["kernels"] = list(record.kernels)
    data["seconds"] = round(record.seconds, 4)
    return {name: value for name, value in data.items() if value is not None and value is not False and value != ""}


def record_from_plain(data: dict[str, Any]) -> Record:
    """The record that :func:`record_to_plain` wrote.

    Raises:
        CampaignError: the data hold no record.
    """
    try:
        values = dict(data)
        values["regime"], values["scope"] = Regime(values["regime"]), Scope(values["scope"])
        values["kernels"] = tuple(values.get("kernels", ()))
        for name, kind in (("declined", Declined), ("located", Located)):
            if name in values:
                values[name] = kind(**values[name])
        return Record(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise CampaignError(f"record must be one that verify wrote ({error}) (got {str(data)[:200]})") from None


def count(outcomes: list[Outcome]) -> dict[str, int]:
    """How often each outcome occurs, those that do not left out."""
    return {o.value: outcomes.count(o) for o in Outcome if o in outcomes}
