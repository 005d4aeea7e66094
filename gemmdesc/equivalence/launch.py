"""How a kernel is launched, as far as its bytes can depend on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from gemmdesc.errors import InvalidInputError

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """``block`` and ``grid``: x, y, z; ``block`` None: what the text demands by ``.reqntid``.

    ``arguments``: the integer arguments by position among the entry's parameters (0 first).  A parameter declared as a
    pointer needs none; any other parameter without one is data of unknown value where it is a float, and refuses where
    it is an integer.  ``contraction``: whether ptxas may turn a product and a sum into one fused operation
    (``--fmad``, on unless told otherwise).  ``contents``: by position, the bytes behind a pointer argument where the
    launch fixes them too, such as a table of offsets; what is loaded from there is as good as an integer argument.

    Raises:
        InvalidInputError: an extent is not positive.
    """

    block: Dim3 | None = None
    grid: Dim3 = (1, 1, 1)
    arguments: Mapping[int, int] = field(default_factory=dict)
    contraction: bool = True
    contents: Mapping[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, extents in (("block", self.block or (1, 1, 1)), ("grid", self.grid)):
            if len(extents) != 3 or any(not isinstance(x, int) or x < 1 for x in extents):
                raise InvalidInputError(f"{name} must be three integers of at least 1 (got {extents})")

    def __str__(self) -> str:
        block = "as compiled" if self.block is None else "x".join(map(str, self.block))
        arguments = ", ".join(f"{i}={v}" for i, v in sorted(self.arguments.items()))
        said = f"block {block}, grid {'x'.join(map(str, self.grid))}, arguments {{{arguments}}}"
        tables = (f"{i}: {hashlib.sha256(data).hexdigest()[:16]}" for i, data in sorted(self.contents.items()))
        return f"{said}, contents {{{', '.join(tables)}}}" if self.contents else said
