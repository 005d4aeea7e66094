"""Calibrating arithmetic: what one step keeps, how it rounds, and in which type partials and running sums are held."""

from __future__ import annotations

from collections.abc import Sequence

from gemmdesc.dtypes import DType
from gemmdesc.probe.experiments import Floats, Magnitudes, Pattern, Reader
from gemmdesc.probe.reading import MergeTypes, StepArithmetic

#: Binades searched for the bits that a step or a type keeps.
_DEPTHS = range(3, 38)


def _deepest(values: Floats, depths: Sequence[int], big: float) -> int | None:
    """The largest depth d at which exactly big x 2^-d came out, if all smaller depths gave theirs too."""
    alive = [d for d, v in zip(depths, values, strict=True) if v == big * 2.0**-d]
    return max(alive) if alive and len(alive) == max(alive) - depths[0] + 1 else None


def _depths(size: Magnitudes) -> list[int]:
    return [d for d in _DEPTHS if size.big * 2.0**-d >= size.tiny]


def calibrate_step(reader: Reader, step: tuple[int, int], later: int | None, size: Magnitudes) -> StepArithmetic:
    """Measure the step over k in ``step`` (begin, end), of at least three products; ``later`` is a k in a later step.

    In one step +L, r, -L leave r as long as the alignment keeps it; with -L only in a later step they leave what the
    accumulator kept.  Truncation and nearest differ on three quarters of the last bit.
    """
    begin = step[0]
    depths = _depths(size)
    aligned = reader.values([_triple(size.big, begin, begin + 2, [(begin + 1, d)]) for d in depths])
    fraction_bits = _deepest(aligned, depths, size.big)
    if later is None or fraction_bits is None:
        return StepArithmetic(fraction_bits=fraction_bits)
    carried = reader.values([_triple(size.big, begin, later, [(begin + 1, d)]) for d in depths])
    output_bits = _deepest(carried, depths, size.big)
    if output_bits is None:
        return StepArithmetic(fraction_bits=fraction_bits)
    return StepArithmetic(
        fraction_bits=fraction_bits,
        output_bits=output_bits,
        toward_zero=_truncates(reader, step, later, (fraction_bits, output_bits), size),
    )


def _triple(big: float, first: int, last: int, small: Sequence[tuple[int, int]]) -> Pattern:
    return ((first, big), (last, -big), *((k, big * 2.0**-d) for k, d in small))


def _truncates(
    reader: Reader, step: tuple[int, int], later: int, bits: tuple[int, int], size: Magnitudes
) -> bool | None:
    """Whether both the alignment and the carried value truncate; None where they disagree or cannot be read.

    Three quarters of the last carried bit take two products where alignment keeps two more bits.  Where it does not,
    two halves of L leave room for one and a half of it beside them, in a step of four products.  One product of 1.5
    half-bits is what alignment itself would have to round.
    """
    begin = step[0]
    aligned, carried = bits
    answers = []
    if aligned >= carried + 2:
        small = [(begin + 1, carried + 1), (begin + 2, carried + 2)]
        answers.append(reader.values([_triple(size.big, begin, later, small)])[0])
    elif aligned >= carried and step[1] - begin >= 4 and size.big * 2.0 ** -(carried + 1) >= size.tiny:
        half, last = 0.5 * size.big, size.big * 2.0**-carried
        five = ((begin, half), (begin + 1, half), (begin + 2, last), (begin + 3, 0.5 * last), (later, -size.big))
        answers.append(reader.values([five])[0] - last)
    fine = size.big * 2.0 ** -(aligned + 1)
    if fine * 0.5 >= size.tiny:
        pattern = ((begin, size.big), (begin + 1, fine * 1.5), (begin + 2, -size.big))
        answers.append(reader.values([pattern])[0])
    if not answers:
        return None
    if all(v == 0.0 for v in answers):
        return True
    return False if all(v != 0.0 for v in answers) else None


def calibrate_zero(reader: Reader, begin: int, fraction_bits: int | None) -> int | None:
    """The exponent that an exact zero counts as, from a step of at least three products at ``begin``, float32 outputs.

    Three products that add up to the smallest float32 exactly, the last one 2^-j of it: they come out only if alignment
    keeps bits that small, and the accumulator's zero at the start is what it aligns to.  None where it cannot be seen.
    """
    if fraction_bits is None:
        return None
    least, scale = -149, -60
    seen = []
    for j in range(1, 17):
        # 2^j - 1 in pieces of at most eight bits, each a bfloat16, and the 1 that completes it.
        high = min(j, 8)
        pieces = ((2**high - 1) * 2 ** (j - high), 2 ** (j - high) - 1, 1)
        values = [(begin + i, piece * 2.0 ** (least - j - scale)) for i, piece in enumerate(pieces) if piece]
        got = reader.values([tuple(values)], other=2.0**scale)[0]
        seen.append((j, got == 2.0**least))
    kept = [j for j, ok in seen if ok]
    if not kept or len(kept) == len(seen):
        return None
    return least - max(kept) + fraction_bits


def calibrate_merge(
    reader: Reader,
    starts: Sequence[int],
    operand: DType,
    output: DType,
    size: Magnitudes,
    *,
    everywhere: Sequence[int] = (),
    carried: int | None = None,
) -> MergeTypes:
    """Measure the types of partials and of the running sum; ``starts`` are the first k of the parts, in fold order.

    A partial of 1 + 2^-d in the second part, met by a first part of -1, loses its small bit only to the partial's type;
    1 in the first part, 2^-d in the second and -1 in the third lose it only to the running sum's.  (All are times a
    power of two where the products' least values ask for it.)  ``everywhere``: a k
    of each part that the fold holds, where ``starts`` leaves some out.  ``carried``: the bits that an accumulator
    keeps; no more of a partial can be seen.
    """
    if len(starts) < 2:
        return MergeTypes()
    one = max(1.0, size.tiny * 2.0**24)
    depths = [d for d in range(3, 25) if one * 2.0**-d >= size.tiny]
    zero, first = starts[0], starts[1]
    if len({zero, zero + 1, first, first + 1, first + 2, *starts[2:3]}) < 5 + len(starts[2:3]):
        # Parts too short for two or three values of their own.
        return MergeTypes()
    stored = reader.values([((zero, -one), (first, one), (first + 1, one * 2.0**-d)) for d in depths])
    partial_bits = _deepest(stored, depths, one)
    if len(starts) > 2:
        running = reader.values([((zero, one), (first, one * 2.0**-d), (starts[2], -one)) for d in depths])
    else:
        running = reader.values([((zero, one), (zero + 1, one * 2.0**-d), (first, -one)) for d in depths])
    running_bits = _deepest(running, depths, one)
    if len(starts) == 2 and (partial_bits is None or partial_bits < output.format.fraction_bits + 1):
        running_bits = None
    return MergeTypes(
        partial_bits=partial_bits,
        running_bits=running_bits,
        nearest=_rounds_to_nearest(reader, zero, first, partial_bits if partial_bits != carried else None, one),
        starts_at_zero=_starts_at_zero(reader, everywhere or starts, operand, output, partial_bits),
    )


def _rounds_to_nearest(reader: Reader, zero: int, first: int, bits: int | None, one: float) -> bool | None:
    if bits is None or bits + 2 > 24:
        return None
    up, small = one * 2.0**-bits, ((first + 1, one * 2.0 ** -(bits + 1)), (first + 2, one * 2.0 ** -(bits + 2)))
    got = reader.values([((zero, -one), (first, one), *small)])[0]
    return True if got == up else False if got == 0.0 else None


def _starts_at_zero(
    reader: Reader, starts: Sequence[int], operand: DType, output: DType, bits: int | None
) -> bool | None:
    """All partials so tiny and negative that a type as narrow as the output's rounds each of them to -0.0."""
    if bits is None or bits > output.format.fraction_bits or output is DType.FLOAT32:
        return None
    exponent = output.format.min_exponent - output.format.fraction_bits - 3
    one = max(operand.format.min_exponent, exponent // 2)
    got = reader.values([tuple((k, -(2.0**one)) for k in starts)], other=2.0 ** (exponent - one))[0]
    return None if got != 0.0 else str(got) == "0.0"
