"""What stands in for a card where there is none: nothing is launched, and what it gives says nothing of hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.card import assemble
from gemmdesc.equivalence.functions import Bits, Function
from gemmdesc.equivalence.instructions import instruction_ptx
from gemmdesc.equivalence.operations import LITERAL

#: What stands in for approximate functions.
_NUMPY: Mapping[str, Callable[..., Any]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "div": np.divide,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "rcp": np.reciprocal,
}


class Rehearsal:
    """The functions of :class:`gemmdesc.equivalence.card.Card`, on NumPy; ``launch`` gives nothing."""

    name = "none (rehearsal)"

    def upload(self, key: object, make: Callable[[], Any]) -> tuple[int, int]:
        """No address."""
        return 0, 0

    def drop(self, key: object) -> None:
        """Nothing."""

    def launch(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def instruction(self, name: str, target: str, version: str) -> Function:
        """NumPy's function, or some other; the text for the card is assembled, to see that it can be."""
        known = 0x3F800000 if name.endswith(LITERAL) else None
        bare = name.removesuffix(LITERAL)
        assemble(instruction_ptx(bare, target, version, known), target)
        function = _NUMPY.get(name.split(".")[0])
        if function is None or not bare.endswith(".f32"):
            return lambda *bits: np.bitwise_xor.reduce(np.broadcast_arrays(*bits)) ^ np.uint64(1)

        def run(*bits: Bits) -> Bits:
            with np.errstate(all="ignore"):
                made = function(*(b.astype(np.uint32).view(np.float32) for b in bits))
            return np.ascontiguousarray(made, np.float32).view(np.uint32).astype(np.uint64)

        return run

    def matrix_step(self, target: str, version: str) -> Callable[..., Bits]:
        """Some function of a row, a column and an accumulator."""

        def run(name: str, rows: npt.NDArray[np.uint32], columns: npt.NDArray[np.uint32], before: Bits) -> Bits:
            total: Bits = rows.sum(axis=1).astype(np.uint64) + columns.sum(axis=1).astype(np.uint64) + before
            return total & np.uint64(0xFFFFFFFF)

        return run
