"""What registers of a kernel's PTX hold, computed from its text: addresses, descriptors and coordinates of one thread.

A register that is assigned in several places, as what a loop carries is, holds what the caller says for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_ASSIGNED = re.compile(r"^\s*(?:@!?\S+\s+)?([a-z][\w.]*)\s+(%?\w+), (.*);$")
_WORDS = re.compile(r"[%\w.+-]+")


def _signed(value: int) -> int:
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


#: By the operation's name without its types: 32-bit ones are cut to size by the type that comes last.
_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "bfe": lambda a, b, c: a >> b & (1 << c) - 1,
    "min": min,
    "max": max,
    "rem": lambda a, b: a - abs(b) * (abs(a) // abs(b)) * (1 if a >= 0 else -1),
    "div": lambda a, b: abs(a) // abs(b) * (1 if a * b >= 0 else -1),
    "setp": lambda a, b: 0,
    "selp": lambda a, b, c: a if c else b,
}


@dataclass
class Values:
    """``known``: of special registers, symbols and parameters.  ``carried``: of what is assigned several times."""

    ptx: str
    known: Mapping[str, int]
    carried: int = 0
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.ptx.splitlines()
        self._assigned: dict[str, list[int]] = {}
        for at, line in enumerate(self.lines):
            found = _ASSIGNED.match(line)
            if found and "wgmma" not in line:
                self._assigned.setdefault(found[2], []).append(at)
        self._found: dict[tuple[str, int], int] = {}

    def of(self, name: str, at: int) -> int:
        """The value of a register, name or number as line ``at`` finds it."""
        if re.fullmatch(r"-?\d+", name):
            return int(name)
        if name in self.known:
            return self.known[name]
        places = self._assigned.get(name, [])
        if not name.startswith("%"):
            # A name of inline PTX: what it was assigned last.
            places = [place for place in places if place < at][-1:]
        if len(places) != 1:
            return self.carried
        key = name, places[0]
        if key not in self._found:
            self._found[key] = self._computed(places[0])
        return self._found[key]

    def _computed(self, at: int) -> int:
        found = _ASSIGNED.match(self.lines[at])
        assert found is not None
        operation, *types = found[1].split(".")
        if operation == "ld":
            return self.carried
        values = [self.of(word, at) for word in _WORDS.findall(found[3])]
        signed = types[-1] == "s32"
        values = [_signed(v) if signed else v for v in values]
        result = _OPERATIONS[operation](*values)
        if operation == "bfe" and signed:
            # Of a signed field the highest bit is its sign.
            result -= (result >> values[2] - 1) << values[2]
        if types[-1] in ("s32", "u32", "b32"):
            return _signed(result) if signed else result & 0xFFFFFFFF
        return result & (1 << 64) - 1
