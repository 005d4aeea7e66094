"""Stochastic arithmetic (CESTAC): how many digits of a result mean anything, outside and inside a matrix product.

After J. Vignes (*Numerical Algorithms* 37, 2004), CADNA, and arXiv 2607.25494; see ``docs/stochastic.md``.
"""

from __future__ import annotations

from gemmdesc.numerics.stochastic.counters import Counters, Event, Kind, Level
from gemmdesc.numerics.stochastic.digits import DigitSummary, Estimate, student_quantile
from gemmdesc.numerics.stochastic.formats import RoundingFormat, ieee_format, parse_format
from gemmdesc.numerics.stochastic.run import Mode, Settings, StochasticRun, start

__all__ = [
    "Counters",
    "DigitSummary",
    "Estimate",
    "Event",
    "Kind",
    "Level",
    "Mode",
    "RoundingFormat",
    "Settings",
    "StochasticRun",
    "ieee_format",
    "parse_format",
    "start",
    "student_quantile",
]
