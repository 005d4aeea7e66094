"""Instructions that round down, for Triton's interpreter, which runs no inline assembly."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter


def add_down(x: Any, y: Any) -> Any:
    """``add.rm.f64`` of numbers whose sum is finite; a sum of zero is -0.0 but for two +0.0."""
    with np.errstate(all="ignore"):
        total = x + y
        part = total - x
        rest = (x - (total - part)) + (y - part)
        found = np.where(rest < 0.0, np.nextafter(total, -np.inf), total)
    positive = (x == 0.0) & (y == 0.0) & ~np.signbit(x) & ~np.signbit(y)
    return np.where(total == 0.0, np.where(positive, 0.0, -0.0), found)


def narrow_down(x: Any) -> Any:
    """``cvt.rm.f32.f64``."""
    with np.errstate(all="ignore"):
        nearest = x.astype(np.float32)
        return np.where(nearest > x, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def patch_directed() -> None:
    def asm(self: Any, text: str, constraints: str, values: Any, types: Any, *rest: Any) -> Any:
        arrays = [np.asarray(v.data, np.float64) for v in values]
        if text.split()[0] == "add.rm.f64":
            return _Results(add_down(*arrays), interpreter.tl.float64)
        assert text.split()[0] == "cvt.rm.f32.f64", text
        return _Results(narrow_down(*arrays), interpreter.tl.float32)

    interpreter.InterpreterBuilder.create_inline_asm = asm


class _Results:
    def __init__(self, found: Any, dtype: Any) -> None:
        self._found, self._dtype = found, dtype

    def get_result(self, i: int) -> Any:
        return interpreter.TensorHandle(self._found, self._dtype)
