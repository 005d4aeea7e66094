"""Descriptors, operands and sizes for the tests of the K-major kernels, on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gemmdesc.bits import Bits, from_float32
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    OperandCast,
    ResidueFirst,
    ResidueLast,
    Rounding,
    Scale,
    ScaleOutput,
    Start,
)
from gemmdesc.dtypes import DType

E4M3, E5M2, FP32 = DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.FLOAT32
FLOAT8_STEP = FusedDot(fraction_bits=13, output_bits=13, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
TF32_STEP = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
_PAIRS = ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2))
_OUTPUTS = (DType.BFLOAT16, FP32, DType.FLOAT16, E4M3, E5M2)
_CASTS = (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY, Rounding.TOWARD_ZERO)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One product; ``layouts``: how a, b and the output are stored, along rows or columns."""

    name: str
    desc: GEMMDesc
    m: int
    n: int
    k: int
    layouts: str


def contiguous(span: int, dtype: DType = FP32, start: Start = Start.FIRST) -> Cut:
    return Cut(layout=Contiguous(span=span), partial_dtype=dtype, merge_dtype=FP32, start=start)


def float8(
    k: int, *cuts: Cut, pair: tuple[DType, DType] = (E4M3, E4M3), output: DType = DType.BFLOAT16, scales: int = 1,
    step: int = 32, turn: int | None = None,
) -> GEMMDesc:  # fmt: skip
    """A product of 8-bit floats."""
    return GEMMDesc(
        a_dtype=pair[0], b_dtype=pair[1], output_dtype=output, summed_k=k, cuts=cuts,
        accumulator=Accumulator(
            instruction_k=step, residue=ResidueFirst(k_loop_step=turn) if turn else ResidueLast(), step=FLOAT8_STEP
        ),
        epilogue=(Scale(), ScaleOutput())[:scales],
    )  # fmt: skip


def tf32(
    k: int, *cuts: Cut, casts: tuple[Rounding, Rounding] = (Rounding.NEAREST_EVEN, Rounding.NEAREST_EVEN),
    step: int = 8, turn: int | None = None,
) -> GEMMDesc:  # fmt: skip
    """A product of float32 operands rounded to tfloat32."""
    a_cast, b_cast = (OperandCast(dtype=DType.TFLOAT32, rounding=r) for r in casts)
    return GEMMDesc(
        a_dtype=FP32, b_dtype=FP32, output_dtype=FP32, summed_k=k, cuts=cuts, a_cast=a_cast, b_cast=b_cast,
        accumulator=Accumulator(
            instruction_k=step, residue=ResidueFirst(k_loop_step=turn) if turn else ResidueLast(), step=TF32_STEP
        ),
    )  # fmt: skip


def samples(scale: int = 1) -> Iterator[Sample]:
    """Every kind of descriptor that the library is known to ask for, and some beyond; sizes grow with ``scale``."""
    sizes = [(80, 48, 464), (16, 208, 384), (192, 16, 272), (48, 80, 1040)]
    for i, (pair, output) in enumerate((p, o) for p in _PAIRS for o in _OUTPUTS):
        m, n, k = (16 * -(-x * scale // 16) for x in sizes[i % 4])
        scales = 2 if output.itemsize == 1 else i % 3 % 2
        cuts = ((contiguous(128),), (), (contiguous(256), contiguous(128)), (contiguous(1024),))[i % 4]
        desc = float8(k, *cuts, pair=pair, output=output, scales=scales)
        yield Sample(name=f"float8-{i}", desc=desc, m=m, n=n, k=k, layouts="rc" + "rc"[i % 2])
    odd = [
        (float8(333, contiguous(100), turn=64), "crr"),
        (float8(333, contiguous(100), contiguous(50), step=16), "rcc"),
        (float8(300, contiguous(64, DType.BFLOAT16, Start.ZERO)), "crc"),
        (float8(77, contiguous(500, DType.BFLOAT16)), "ccr"),
    ]
    for i, (desc, layouts) in enumerate(odd):
        k = desc.summed_k + i
        yield Sample(name=f"odd-{i}", desc=desc, m=37 * scale, n=(45, 70, 21, 9)[i], k=k, layouts=layouts)
    for i in range(18):
        k = (101, 64, 259, 40, 512, 7)[i % 6] * scale
        cuts = ((), (contiguous(56),), (contiguous(64 * scale, start=Start.ZERO),))[i % 3]
        desc = tf32(
            k, *cuts, casts=(_CASTS[i % 3], _CASTS[i // 3 % 3]), step=(8, 8, 4)[i // 6], turn=(None, 16, 32, 8)[i % 4]
        )
        m, n = [(70, 33), (5, 140), (130, 8), (1, 65)][i % 4]
        layouts = ("rr", "rc", "cr", "cc")[i % 4] + "rc"[i // 4 % 2]
        yield Sample(name=f"tf32-{i}", desc=desc, m=m * scale, n=n, k=k, layouts=layouts)


def draw(rng: np.random.Generator, dtype: DType, rows: int, columns: int, *, special: bool = True) -> Bits:
    """Patterns of wide exponents, the first rows of any pattern at all where ``special``."""
    spread = {E4M3: 4, E5M2: 7, FP32: 30}[dtype]
    values = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-spread, spread + 1, (rows, columns)))
    bits = from_float32(values.astype(np.float32), dtype)
    if dtype is FP32:
        # Midway between two values of tfloat32, where the two roundings to nearest differ.
        bits = np.where(rng.integers(0, 3, bits.shape) == 0, (bits & 0xFFFFE000) | 0x1000, bits).astype(np.uint32)
    if special:
        # NaN and infinity, zeros of both signs, subnormals, and the largest values.
        high = 1 << (8 * dtype.itemsize - 1)
        bits[0, columns // 2] = high - 1
        if rows > 3:
            # Infinity; a NaN that cutting off its low bits makes infinity.
            bits[rows - 1, 0] = {E4M3: 0, E5M2: 0xFC, FP32: 0xFF800000}[dtype]
            bits[rows - 2, columns - 1] = {E4M3: 0xFF, E5M2: 0x7D, FP32: 0x7F800001}[dtype]
            bits[1] = high
            bits[2] = rng.integers(0, {E4M3: 8, E5M2: 4, FP32: 1 << 23}[dtype], columns)
            bits[3] = {E4M3: 0x7E, E5M2: 0x7B, FP32: 0x7F7FFFFF}[dtype] | (rng.integers(0, 2, columns) * high)
    return bits
