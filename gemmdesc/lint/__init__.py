"""What to know about the products of a model: lost tails, narrow partials, split-K, orders that move with m."""

from gemmdesc.lint.findings import (
    DEFAULT_GATE,
    Finding,
    FindingKind,
    LintReport,
    OrderRun,
    ShapeReport,
    Sweep,
    lint_shapes,
)
from gemmdesc.lint.reproducer import reproducer

__all__ = [
    "DEFAULT_GATE",
    "Finding",
    "FindingKind",
    "LintReport",
    "OrderRun",
    "ShapeReport",
    "Sweep",
    "lint_shapes",
    "reproducer",
]
