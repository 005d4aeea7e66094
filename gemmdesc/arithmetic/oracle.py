"""Compare accumulator models with an independent model, the MMA-Sim package (the ``oracle`` extra).

A *call* is one output element of D = A B + C over 32 bytes of k, in as many steps as the model needs.  Operands come
from five named distributions, because each alone is blind to something: ``normal``; ``wide``, exponents over the whole
range; ``cancelling``, pairs of products that nearly annihilate; ``subnormal``; ``special``, with NaN, infinities,
signed zeros and the largest values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmdesc.arithmetic.models import AccumulatorModel
from gemmdesc.arithmetic.replay import fused_dot
from gemmdesc.bits import Bits, bits_dtype, from_float32
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

DISTRIBUTIONS = ("normal", "wide", "cancelling", "subnormal", "special")

_PTX = {
    DType.FLOAT16: "f16",
    DType.BFLOAT16: "bf16",
    DType.TFLOAT32: "tf32",
    DType.FLOAT32: "f32",
    DType.FLOAT8_E4M3FN: "e4m3",
    DType.FLOAT8_E5M2: "e5m2",
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Calls of one model under one distribution, and how many gave other bytes than the independent model."""

    architecture: str
    instruction: str
    a_dtype: DType
    b_dtype: DType
    accumulator_dtype: DType
    distribution: str
    calls: int
    different: int


def compare_model(model: AccumulatorModel, *, distribution: str, size: int, seed: int) -> Comparison:
    """Run ``size`` x ``size`` calls through :func:`~gemmdesc.arithmetic.replay.fused_dot` and through MMA-Sim.

    Raises:
        InvalidInputError: ``distribution`` is unknown.
        ImportError: mmasim or torch is not installed.
    """
    k = _full_k(model)
    rng = np.random.default_rng(seed)
    a = draw(rng, distribution, (size, k), model.a_dtype)
    b = draw(rng, distribution, (k, size), model.b_dtype)
    c = draw(rng, distribution, (size, size), model.accumulator_dtype)
    if distribution == "cancelling":
        a, b = _cancelling(rng, a, b)
    ours = fused_dot(
        model.step, a, b, c, a_dtype=model.a_dtype, b_dtype=model.b_dtype, instruction_k=model.instruction_k
    )
    theirs = independent_dot(model, a, b, c)
    return Comparison(
        architecture=model.architecture,
        instruction=model.instruction,
        a_dtype=model.a_dtype,
        b_dtype=model.b_dtype,
        accumulator_dtype=model.accumulator_dtype,
        distribution=distribution,
        calls=ours.size,
        different=int((ours != theirs).sum()),
    )


def draw(rng: np.random.Generator, distribution: str, shape: tuple[int, int], dtype: DType) -> Bits:
    """Random bit patterns of ``dtype`` after ``distribution``; ``cancelling`` draws as ``normal`` does.

    Raises:
        InvalidInputError: ``distribution`` is unknown.
    """
    if distribution not in DISTRIBUTIONS:
        raise InvalidInputError(f"distribution must be one of {', '.join(DISTRIBUTIONS)} (got {distribution!r})")
    layout = dtype.format
    unsigned = bits_dtype(dtype)
    patterns = rng.integers(0, 1 << layout.storage_bits, shape, dtype=np.uint64)
    low = layout.storage_bits - 1 - (1 - layout.min_exponent).bit_length() - 1
    sign = np.uint64(1 << (layout.storage_bits - 1))
    if distribution == "wide":
        patterns = np.where(_all_ones(patterns, dtype), patterns & np.uint64((1 << low) - 1), patterns)
    elif distribution == "subnormal":
        # Exponent fields 0 to 3; a third of those are the format's subnormals, and some are zeros of either sign.
        patterns &= sign | np.uint64((1 << (low + 2)) - 1)
        patterns = np.where(rng.random(shape) < 0.3, patterns & (sign | np.uint64((1 << low) - 1)), patterns)
        patterns = np.where(rng.random(shape) < 0.1, patterns & sign, patterns)
    else:
        patterns = _normal(rng, shape, dtype)
    if distribution == "special":
        patterns = _with_specials(rng, patterns, dtype)
    return patterns.astype(unsigned)


def _all_ones(patterns: Any, dtype: DType) -> Any:
    low = dtype.format.storage_bits - 2 - (1 - dtype.format.min_exponent).bit_length()
    mask = np.uint64(((1 << (dtype.format.storage_bits - 1)) - 1) >> low << low)
    return (patterns & mask) == mask


def _normal(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Any:
    values = rng.standard_normal(shape).astype(np.float32) * np.float32(2.0) ** rng.integers(-6, 7, shape)
    wide = from_float32(values.astype(np.float32), DType.FLOAT32).astype(np.uint64)
    layout = dtype.format
    if layout.storage_bits == 32:
        return wide
    if layout.storage_bits == 16:
        return from_float32(values.astype(np.float32), dtype).astype(np.uint64)
    # An 8-bit format: cut the float32 pattern and rebias it, which is as random as rounding.
    magnitude = (wide & np.uint64(0x7FFFFFFF)) >> np.uint64(23 - layout.fraction_bits)
    rebias = (127 - (1 - layout.min_exponent)) << layout.fraction_bits
    magnitude = np.clip(magnitude.astype(np.int64) - rebias, 0, 0x77).astype(np.uint64)
    return magnitude | (wide >> np.uint64(31) << np.uint64(7))


def _with_specials(rng: np.random.Generator, patterns: Any, dtype: DType) -> Any:
    """Replace about one pattern in ten by NaN, infinity or zero of either sign, or a largest value."""
    top = (1 << (dtype.format.storage_bits - 1)) - 1
    low = dtype.format.storage_bits - 2 - (1 - dtype.format.min_exponent).bit_length()
    infinity = top >> low << low
    sign = np.uint64(1 << (dtype.format.storage_bits - 1))
    choice = rng.random(patterns.shape)
    for limit, magnitude in ((0.004, top), (0.01, infinity), (0.04, 0), (0.10, infinity - 1)):
        new = (patterns & sign) | np.uint64(magnitude)
        patterns = np.where((choice >= 0) & (choice < limit), new, patterns)
        choice = np.where(choice < limit, -1.0, choice)
    return patterns


def _cancelling(rng: np.random.Generator, a: Bits, b: Bits) -> tuple[Bits, Bits]:
    """Make k = 2i + 1 repeat k = 2i with the opposite sign and, half of the time, one unit in the last place more."""
    a, b = a.copy(), b.copy()
    k = a.shape[1] // 2 * 2
    sign = 1 << (8 * b.dtype.itemsize - 1)
    a[:, 1:k:2] = a[:, 0:k:2]
    nudge = rng.integers(0, 2, b[1:k:2].shape, dtype=b.dtype)
    b[1:k:2] = (b[0:k:2] + nudge) ^ np.asarray(sign, dtype=b.dtype)
    return a, b


def _instruction(model: AccumulatorModel) -> Any:
    from mmasim import nv_ptx

    a, b, d = (_PTX[t] for t in (model.a_dtype, model.b_dtype, model.accumulator_dtype))
    if model.instruction == "wgmma":
        return nv_ptx.WGMMA(model.architecture, f"m64n8k{_full_k(model)}.{d}.{a}.{b}")
    if model.instruction == "tcgen05.mma":
        kind = {"tf32": "tf32", "f16": "f16", "bf16": "f16"}.get(a, "f8f6f4")
        return nv_ptx.TCGen05MMA(model.architecture, f"m64n8k{_full_k(model)}.kind::{kind}.{d}.{a}.{b}")
    # The smallest shape of each type runs exactly one step; four products of float16 are Volta's m8n8k4.
    k = model.terms_per_step
    shape = "m8n8k4" if (k, model.a_dtype) == (4, DType.FLOAT16) else f"m16n8k{k}"
    return nv_ptx.MMA(model.architecture, f"{shape}.{d}.{a}.{b}.{d}")


def _full_k(model: AccumulatorModel) -> int:
    """k of the largest dense shape: 32 bytes of an operand."""
    return 32 // model.a_dtype.itemsize


def independent_dot(model: AccumulatorModel, a: Bits, b: Bits, c: Bits) -> Bits:
    """D = A B + C by MMA-Sim: (m, k), (k, n) and (m, n) bit patterns as in ``fused_dot``; k of any length, chained.

    Raises:
        ImportError: mmasim or torch is not installed.
    """
    import torch

    instruction = _instruction(model)

    def tensor(bits: Bits, dtype: Any) -> Any:
        signed = np.ascontiguousarray(bits).view(f"i{bits.dtype.itemsize}")
        return torch.from_numpy(signed).view(dtype)

    rows, columns = tensor(a, instruction.a_type), tensor(b.T, instruction.b_type)
    full = (rows.shape[0], columns.shape[0], rows.shape[1])
    result = instruction.dpa(
        rows[:, None, :].expand(full), columns[None, :, :].expand(full), tensor(c, instruction.c_type)
    )
    signed = result.view({2: torch.int16, 4: torch.int32}[c.dtype.itemsize]).numpy()
    unsigned: Bits = signed.view(c.dtype)
    return unsigned
