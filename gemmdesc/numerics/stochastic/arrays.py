"""Stochastic NumPy arrays."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic import functions
from gemmdesc.numerics.stochastic.values import StochasticValue

#: NumPy's names of what ``functions`` and the operators call otherwise.
_NAMES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "absolute": "__abs__", "negative": "__neg__",
    "add": "__add__", "subtract": "__sub__", "multiply": "__mul__", "true_divide": "__truediv__",
    "divide": "__truediv__", "power": "__pow__", "less": "__lt__", "less_equal": "__le__", "greater": "__gt__",
    "greater_equal": "__ge__", "equal": "__eq__", "not_equal": "__ne__",
}  # fmt: skip
_REFLECTED = {
    "__add__": "__radd__", "__sub__": "__rsub__", "__mul__": "__rmul__", "__truediv__": "__rtruediv__",
    "__pow__": "__rpow__", "__lt__": "__gt__", "__le__": "__ge__", "__gt__": "__lt__", "__ge__": "__le__",
    "__eq__": "__eq__", "__ne__": "__ne__",
}  # fmt: skip


class StochasticArray(StochasticValue):
    """s samples of a NumPy array; see :class:`StochasticValue`.  NumPy's functions of the listed names take it."""

    @property
    def xp(self) -> ModuleType:
        return np

    def constant(self, value: Any) -> Any:
        try:
            return np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidInputError(f"other must be a number or an array of numbers (got {value!r})") from None

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = _NAMES.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or keywords:
            return NotImplemented
        if name.startswith("__"):
            if len(inputs) == 2 and not isinstance(inputs[0], StochasticValue):
                return getattr(inputs[1], _REFLECTED[name])(inputs[0])
            return getattr(inputs[0], name)(*inputs[1:])
        if name in ("maximum", "minimum"):
            first, second = inputs if isinstance(inputs[0], StochasticValue) else inputs[::-1]
            return getattr(functions, name)(first, second)
        if name == "sqrt" or name in functions.INTEGRAL or name in functions.EXACT_AT:
            return functions.apply(name, inputs[0])
        return NotImplemented
