"""What a user's function asks to have examined: a model on batches, or values it computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.modules import Analysis, ModuleSettings, Tracker
from gemmdesc.numerics.stochastic.run import StochasticRun
from gemmdesc.numerics.stochastic.values import StochasticValue


@dataclass(frozen=True, kw_only=True, eq=False)
class Examination:
    """``tracker``: reports of a model's passes; ``values``: rows of named values; ``counts``: instabilities by kind."""

    tracker: Tracker
    values: tuple[dict[str, Any], ...]
    counts: dict[str, int]
    threshold: float

    @property
    def unstable(self) -> tuple[str, ...]:
        """Names of operators and values that lost their digits, or were not finite, at least once."""
        values = [v["name"] for v in self.values if v["nonfinite_share"] or v["least"] < self.threshold]
        return tuple(dict.fromkeys([r["name"] for r in self.tracker.rows if not r["stable"]] + values))


def examine(function: Callable[[StochasticRun], Any], run: StochasticRun, settings: ModuleSettings) -> Examination:
    """Call ``function`` with ``run``, and examine what it returns.

    Either a torch module and an iterable of batches (each a tensor, or a tuple of arguments), one iteration each; or a
    mapping from names to stochastic values.

    Raises:
        InvalidInputError: it returns neither.
    """
    made = function(run)
    tracker, values = Tracker(), []
    if isinstance(made, Mapping) and made and all(isinstance(v, StochasticValue) for v in made.values()):
        values = [{"name": name, **asdict(value.summary())} for name, value in made.items()]
    elif isinstance(made, tuple) and len(made) == 2 and callable(getattr(made[0], "named_modules", None)):
        model, batches = made
        for iteration, batch in enumerate(batches):
            analysis = Analysis(model, run, settings)
            analysis(*(batch if isinstance(batch, tuple) else (batch,)), iteration=iteration)
            tracker.add(analysis.reports)
    else:
        raise InvalidInputError(
            "function must return a torch module and its batches, or a mapping of stochastic values "
            f"(got {type(made).__name__})"
        )
    return Examination(
        tracker=tracker,
        values=tuple(values),
        counts={kind.value: count for kind, count in run.counters.counts.items()},
        threshold=settings.threshold,
    )
