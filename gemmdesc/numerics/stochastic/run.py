"""One stochastic run: its settings, its counter of operations, and how an operation is closed by a rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.coins import MOST_SAMPLES, directions
from gemmdesc.numerics.stochastic.counters import Counters, Level
from gemmdesc.numerics.stochastic.digits import widening
from gemmdesc.numerics.stochastic.formats import RoundingFormat, parse_format
from gemmdesc.numerics.stochastic.rounding import round_directed, round_kicked

if TYPE_CHECKING:
    from gemmdesc.numerics.stochastic.arrays import StochasticArray
    from gemmdesc.numerics.stochastic.tensors import StochasticTensor


class Mode(Enum):
    """Two sets of conventions.

    ``DEFAULT``: an exact result stays as it is and is known to be exact; the last sample takes the opposite direction
    of the one before; digits are capped by the format, an inexact element is never surer than one unit in the last
    place, and more than three samples give no more certainty than they have (``digits.widening``).

    ``PAPER``: the conventions of arXiv 2607.25494 and its package: independent coins, a representable value is moved
    as well, every product of two matrices is a float64 product of perturbed operands, and digits are capped at 15.
    """

    DEFAULT = "default"
    PAPER = "paper"


#: The cap of the paper's mode, whatever the format.
_PAPER_CAP = 15.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What fixes a run.

    ``format``: what every operation rounds to.  ``samples``: at least 2.  ``seed``: with the order of operations, all
    directions follow from it.  ``confidence``: of the digits.  ``counters``: see
    :class:`~gemmdesc.numerics.stochastic.counters.Level`.  ``cancellation_digits``: how many digits an addition must
    lose to count as a cancellation.  ``noise_digits``: a function's result with at most so many counts as unstable.
    ``perturbation``: relative size of the operands' perturbation in the paper's products, default 2^-fraction_bits; 0
    turns it off.

    Raises:
        InvalidInputError: a field is out of its range; the message starts with its name.
    """

    format: RoundingFormat
    samples: int = 3
    mode: Mode = Mode.DEFAULT
    seed: int = 0
    confidence: float = 0.95
    counters: Level = Level.OFF
    cancellation_digits: float = 4.0
    noise_digits: float = 0.5
    perturbation: float | None = None

    def __post_init__(self) -> None:
        if not _integer(self.samples) or not 2 <= self.samples <= MOST_SAMPLES:
            raise InvalidInputError(f"samples must be an integer from 2 to {MOST_SAMPLES} (got {self.samples!r})")
        if not _integer(self.seed) or not 0 <= self.seed < 1 << 63:
            raise InvalidInputError(f"seed must be an integer in [0, 2^63) (got {self.seed!r})")
        if not isinstance(self.confidence, float) or not 0 < self.confidence < 1:
            raise InvalidInputError(f"confidence must be inside (0, 1) (got {self.confidence!r})")
        for name in ("cancellation_digits", "noise_digits", "perturbation"):
            value = getattr(self, name)
            if value is None and name == "perturbation":
                continue
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise InvalidInputError(f"{name} must be finite and at least 0 (got {value!r})")

    @property
    def cap(self) -> float:
        """The most digits that an element can have."""
        return _PAPER_CAP if self.mode is Mode.PAPER else self.format.decimal_digits

    @property
    def wider(self) -> float:
        """By how much intervals are widened beyond the Student factor (:func:`~.digits.widening`)."""
        return 1.0 if self.mode is Mode.PAPER else widening(self.samples, antithetic=True)

    @property
    def resolution(self) -> RoundingFormat | None:
        """What an inexact element's spread is at least, if anything."""
        return None if self.mode is Mode.PAPER else self.format


class StochasticRun:
    """Makes values, gives every operation its directions, and counts instabilities.

    Two runs with equal settings that do the same operations give the same samples.  NumPy and torch give the same ones
    wherever IEEE 754 fixes the operation: all but transcendental functions, powers, and the paper's matrix products.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counters = Counters(settings.counters)
        #: Called with the name and result of every operation, where set.
        self.observe: Callable[[str, Any], None] | None = None
        #: The torch type that modules are told a stochastic tensor has; None: float32.
        self.declared_dtype: Any = None
        self._operations = 0

    def array(self, values: Any) -> StochasticArray:
        """Samples of real ``values`` (anything that NumPy makes float64 of).

        What the format does not represent is rounded in a drawn direction; in the paper's mode everything is moved.
        """
        from gemmdesc.numerics.stochastic.arrays import StochasticArray

        lanes = np.asarray(values, dtype=np.float64)
        return StochasticArray(*self.close(np, _repeated(lanes, self.settings.samples), None), self)

    def tensor(self, values: Any) -> StochasticTensor:
        """As :meth:`array`, for a torch tensor of a floating-point type, on its device; gradients pass through.

        Raises:
            InvalidInputError: ``values`` is no dense tensor of a floating-point type.
        """
        from gemmdesc.numerics.stochastic.tensors import make_tensor

        return make_tensor(self, values)

    def draw(self, xp: Any, shape: tuple[int, ...], like: Any, *, antithetic: bool | None = None) -> Any:
        """Directions (samples, \\*shape) of the next operation."""
        if antithetic is None:
            antithetic = self.settings.mode is Mode.DEFAULT
        self._operations += 1
        return directions(
            xp,
            shape,
            seed=self.settings.seed,
            operation=self._operations,
            samples=self.settings.samples,
            antithetic=antithetic,
            like=like,
        )

    @property
    def operations(self) -> int:
        """How many operations have drawn directions so far."""
        return self._operations

    def close(self, xp: Any, value: Any, rest: Any, fmt: RoundingFormat | None = None) -> tuple[Any, Any]:
        """Round exact results (samples, \\*shape) in drawn directions; also bool lanes (\\*shape): was nothing lost?

        ``rest``: what float64 left out (see ``rounding``), or None where nothing is.  It is NaN where ``value`` is only
        near the result: a representable ``value`` other than 0 is moved there.  ``fmt``: default the run's.
        """
        fmt = self.settings.format if fmt is None else fmt
        up = self.draw(xp, tuple(value.shape[1:]), value)
        if self.settings.mode is Mode.PAPER:
            return round_kicked(xp, value, up, fmt), xp.zeros_like(up[0])
        rest = xp.zeros_like(value) if rest is None else rest
        rest = xp.where(xp.isnan(rest), xp.where(value == 0, 0.0, xp.where(up, 1.0, -1.0)), rest)
        with np.errstate(all="ignore"):
            rounded = round_directed(xp, value, rest, up, fmt)
        kept = (rounded == value) & (rest == 0) & xp.isfinite(value)
        return rounded, kept.all(0)


def start(
    *,
    format: str | tuple[int, int] | RoundingFormat = "float32",
    samples: int = 3,
    mode: str | Mode = Mode.DEFAULT,
    seed: int = 0,
    confidence: float = 0.95,
    counters: str | Level = Level.OFF,
    **thresholds: float,
) -> StochasticRun:
    """A run; ``format``, ``mode`` and ``counters`` may be spelled as text, the rest is as in :class:`Settings`.

    Raises:
        InvalidInputError: a spelling is unknown, or as :class:`Settings`.
    """
    known = ("cancellation_digits", "noise_digits", "perturbation")
    for name in thresholds:
        if name not in known:
            raise InvalidInputError(f"{name} must be one of {', '.join(known)} (got {name!r})")
    settings = Settings(
        format=parse_format(format),
        samples=samples,
        mode=_member(Mode, "mode", mode),
        seed=seed,
        confidence=confidence,
        counters=_member(Level, "counters", counters),
        **thresholds,
    )
    return StochasticRun(settings)


def _repeated(lanes: Any, samples: int) -> Any:
    return np.broadcast_to(lanes, (samples, *lanes.shape))


def _member(kind: Any, name: str, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise InvalidInputError(f"{name} must be one of {known} (got {value!r})") from None


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
