"""What is known of an instruction by its name."""

from __future__ import annotations

from gemmdesc.equivalence import nodes

#: How a walk names a function of a constant that ptxas knows.
LITERAL = " literal"
#: Sums and products of these types round to nearest when no rounding is written, and lanes of packed types are alike.
_FLOAT = ("f32", "f16", "bf16")


def flags_of(name: str) -> int:
    """What is known of an instruction by its opcode, without a written rounding to nearest where that is the default.

    Only opcodes listed here have algebra; every other one is a function of its operands, in their order.
    """
    flags = _algebra(name)
    return flags | (nodes.SETTLES if not flags & nodes.MOVES and _settles(name) else 0)


def _settles(name: str) -> bool:
    """Whether a NaN operand gives one result whatever its payload.

    So do floating-point instructions on up to 4 bytes, which give the canonical NaN, and comparisons.  Of float64 no
    document says it; an integer instruction on a float's bits sees the payload.
    """
    parts = name.removesuffix(LITERAL).split(".")
    if parts[0] == "setp":
        return parts[-1] in (*_FLOAT, "f64")
    return parts[0] == "mma" or (parts[-1] in (*_FLOAT, "e4m3", "e5m2") and "f64" not in parts)


def _algebra(name: str) -> int:
    stem, _, kind = name.partition(".")
    if stem == "mma":
        return nodes.MATRIX
    if kind in _FLOAT:
        # Only among 4 bytes does an operand's width tell its type, which the neutral element needs.  Of float64, no
        # document says that a sum of two NaN does not depend on their order.
        if stem == "add":
            return nodes.COMMUTES | nodes.ARITHMETIC | (nodes.ADDITION | nodes.SUM if kind == "f32" else 0)
        if stem == "mul":
            return nodes.COMMUTES | nodes.ARITHMETIC | (nodes.PRODUCT if kind == "f32" else 0)
        if stem == "sub":
            return nodes.ARITHMETIC | (nodes.DIFFERENCE if kind == "f32" else 0)
    if name == "fma.rn.f32":
        return nodes.COMMUTES | nodes.ARITHMETIC | nodes.FUSED
    if stem == "fma" and kind in ("rn.f16", "rn.bf16"):
        return nodes.COMMUTES | nodes.ARITHMETIC
    if stem in ("max", "min") and kind in ("f32", "f16", "bf16", "NaN.f32", "NaN.f16", "NaN.bf16"):
        return nodes.SET
    if name in ("redux.sync.max.f32", "redux.sync.min.f32", "redux.sync.max.NaN.f32", "redux.sync.min.NaN.f32"):
        return nodes.SET
    if stem in ("and", "or", "xor") and kind in ("b16", "b32", "b64", "pred"):
        return nodes.COMMUTES | nodes.MOVES
    if name == "cvt.f32.f16":
        return nodes.WIDENED
    if (stem in ("neg", "abs") and kind in (*_FLOAT, "f64")) or name in ("cvt.f32.bf16", "cvt.f32.f32"):
        # ptxas drops a second sign change, hands the first to a selection, and shifts a bfloat16 up.
        return nodes.LOOSE | nodes.MOVES
    if stem == "selp":
        # ptxas makes a selection by a comparison a maximum where only a NaN's payload tells them apart.
        return nodes.LOOSE | nodes.MOVES
    if stem in ("or", "and", "xor", "shl", "shr"):
        return nodes.MOVES
    return 0
