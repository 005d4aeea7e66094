"""The parts of a PTX text as values."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of a PTX type; a predicate counts as one.
WIDTHS = {
    f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64) if (kind, bits) != ("f", 8)
} | {"pred": 1, "f16x2": 4, "bf16": 2, "bf16x2": 4, "tf32": 4, "f32x2": 8}


@dataclass(frozen=True, slots=True)
class Register:
    """A register; ``width`` in bytes."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal, as the unsigned 64-bit pattern of an integer or the pattern of a float of ``width`` bytes."""

    bits: int
    width: int = 8


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal fraction such as ``1.0``, the share of a cache policy; no instruction that computes reads one."""

    text: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A label or a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Vector:
    """Operands in braces; None stands for the sink ``_``."""

    items: tuple[Register | Immediate | None, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; the offset in bytes."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True, slots=True)
class Pair:
    """``first|second``: a destination and the predicate written with it."""

    first: Register | None
    second: Register | None


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``."""

    register: Register


Operand = Register | Special | Immediate | Decimal | Symbol | Vector | Address | Pair | Negated | None


@dataclass(frozen=True, slots=True)
class Instruction:
    """``guard``: the predicate register and whether it is negated; ``parts``: the opcode split at its dots."""

    opcode: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None
    text: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """An entry's parameter; ``pointer``: declared as one with ``.ptr``."""

    name: str
    kind: str
    pointer: bool


@dataclass(frozen=True, slots=True)
class SharedVariable:
    """``size`` in bytes; None for memory whose size the launch gives."""

    name: str
    align: int
    size: int | None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One kernel.  ``threads``: the block that ``.reqntid`` demands, or None; ``labels`` index ``instructions``."""

    name: str
    target: str
    version: str
    parameters: tuple[Parameter, ...]
    shared: tuple[SharedVariable, ...]
    threads: tuple[int, int, int] | None
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
