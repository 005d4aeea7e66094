"""Expressions run on operands, against the same computation written out in NumPy or in exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from gemmdesc.arithmetic.step import add_float32, decode_number, scalar_step
from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.equivalence import Launch, walk
from gemmdesc.equivalence.evaluate import evaluate
from gemmdesc.equivalence.functions import NAMED
from gemmdesc.errors import InvalidInputError
from tests.equivalence_texts import EXCHANGE, butterfly, kernel

RANDOM = np.random.default_rng(11)


def floats(count: int, decades: float = 12.0) -> np.ndarray:
    signs = np.where(np.arange(count) % 2, -1.0, 1.0)
    return (signs * RANDOM.standard_normal(count) * 10.0 ** RANDOM.uniform(-decades / 2, decades / 2, count)).astype(
        np.float32
    )


def run(text: str, memory: np.ndarray, **options: object) -> np.ndarray:
    """The 32-bit words that a text stores behind parameter 1, with ``memory`` behind parameter 0."""
    w = walk(text, Launch())
    offsets, values = evaluate(w, {0: memory.view(np.uint8)}, **options)[1]  # type: ignore[arg-type]
    assert (offsets == np.arange(len(offsets))).all()
    return values.view(np.uint32)


@pytest.mark.parametrize("offsets", [(16, 8, 4, 2, 1), (1, 2, 4, 8, 16)])
def test_a_butterfly_adds_in_the_order_of_its_offsets(offsets: tuple[int, ...]) -> None:
    for _ in range(5):
        x = floats(32)
        lanes = x.copy()
        for offset in offsets:
            lanes = lanes + lanes[np.arange(32) ^ offset]
        assert run(kernel(butterfly(*offsets)), x)[0] == lanes[:1].view(np.uint32)[0]


def test_chains_fused_and_not_match_exact_steps() -> None:
    """Parameter 0 holds A, then B; the reference works in fractions."""
    for fused in (True, False):
        lines = ["mov.b32 %r3, 0;"]
        for i in range(24):
            lines += [f"ld.global.b32 %r4, [%rd4+{128 * i}];", f"ld.global.b32 %r5, [%rd4+{4096 + 128 * i}];"]
            if fused:
                lines.append("fma.rn.f32 %r3, %r4, %r5, %r3;")
            else:
                lines += ["mul.rn.f32 %r6, %r4, %r5;", "add.rn.f32 %r3, %r3, %r6;"]
        lines.append("st.global.b32 [%rd5], %r3;")
        memory = floats(2048, 30.0)
        words = memory.view(np.uint32)
        got = run(kernel("\n".join(lines)), memory)
        step = ScalarStep(fused=fused)
        for lane in range(32):
            total = 0
            for i in range(24):
                a, b = int(words[lane + 32 * i]), int(words[1024 + lane + 32 * i])
                total = scalar_step(step, a, b, total, a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32)
            assert got[lane] == total


def test_halves_go_through_packing_conversion_and_shared_memory() -> None:
    body = """ld.global.b32 %r2, [%rd4];
    mov.b32 {%rs1, %rs2}, %r2;
    cvt.f32.f16 %r3, %rs1;
    cvt.f32.f16 %r4, %rs2;
    sub.rn.f32 %r5, %r3, %r4;
    mov.b64 %rd10, {%r3, %r5};
    mov.b64 %rd11, {%r4, %r4};
    mul.rn.f32x2 %rd12, %rd10, %rd11;
    mov.b64 {%r6, %r7}, %rd12;
    cvt.rn.f16x2.f32 %r8, %r7, %r6;
    mov.u32 %r9, smem;
    shl.b32 %r10, %r1, 2;
    add.s32 %r11, %r9, %r10;
    st.shared.b32 [%r11], %r8;
    bar.sync 0;
    xor.b32 %r12, %r10, 8;
    add.s32 %r13, %r9, %r12;
    ld.shared.b16 %rs3, [%r13+2];
    ld.shared.b16 %rs4, [%r13];
    mov.b32 %r14, {%rs3, %rs4};
    st.global.b32 [%rd5], %r14;"""
    halves = RANDOM.standard_normal(64).astype(np.float16)
    low, high = halves[0::2].astype(np.float32), halves[1::2].astype(np.float32)
    first = from_float32(low * high, DType.FLOAT16)
    second = from_float32((low - high) * high, DType.FLOAT16)
    order = np.arange(32) ^ 2
    wanted = second[order].astype(np.uint32) | first[order].astype(np.uint32) << 16
    assert (run(kernel(body, shared=256), halves) == wanted).all()


def test_matrices_go_through_ldmatrix_and_come_out_in_fragments() -> None:
    """Each lane writes a row of four words; ldmatrix hands lane (g, t) word t of row g of each of four matrices."""
    body = """mov.u32 %r9, smem;
    shl.b32 %r10, %r1, 4;
    add.s32 %r11, %r9, %r10;
    mul.wide.u32 %rd6, %r1, 16;
    add.s64 %rd7, %rd1, %rd6;
    ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd7];
    st.shared.v4.b32 [%r11], {%r2, %r3, %r4, %r5};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4.OPTION.shared.b16 {%r20, %r21, %r22, %r23}, [%r11];
    st.global.b32 [%rd5], %r20;
    st.global.b32 [%rd5+128], %r21;
    st.global.b32 [%rd5+256], %r22;
    st.global.b32 [%rd5+384], %r23;"""
    data = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    lane = np.arange(32)
    got = run(kernel(body.replace(".OPTION", ""), shared=1024), data.ravel()).reshape(4, 32)
    pairs = data[:, lane // 4][:, :, :].reshape(4, 32, 4, 2)[:, lane, lane % 4].copy()
    assert (got == pairs.view(np.uint32)[..., 0]).all()
    got = run(kernel(body.replace("OPTION", "trans"), shared=1024), data.ravel()).reshape(4, 32)
    low, high = (data[:, (lane % 4) * 2 + half, lane // 4].astype(np.uint32) for half in (0, 1))
    assert (got == (low | high << 16)).all()


def test_special_values_come_out_as_on_the_card() -> None:
    """NaN results are the canonical one; moved ones keep their payload."""
    specials = np.resize(np.array([0x7FC12345, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001], np.uint32), 32)
    moved = run(kernel(EXCHANGE, shared=1024), specials)
    assert (moved == specials[np.arange(32) ^ 1]).all()
    body = "ld.global.b32 %r2, [%rd4];\nadd.rn.f32 %r3, %r2, %r2;\nst.global.b32 [%rd5], %r3;"
    doubled = run(kernel(body), specials)
    assert doubled[:5].tolist() == [0x7FFFFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0x00000002]
    assert all(int(d) == add_float32(int(s), int(s)) or s == 0x7FC12345 for d, s in zip(doubled, specials, strict=True))


def test_float8_widens_exactly() -> None:
    patterns = np.arange(256, dtype=np.uint64)
    got = to_float32(NAMED["cvt.rn.f16.e4m3"](patterns).astype(np.uint16), DType.FLOAT16)
    for pattern, value in enumerate(got):
        wanted = decode_number(pattern, DType.FLOAT8_E4M3FN)
        if wanted.kind == "nan":
            assert np.isnan(value)
        else:
            assert float(value) == float(wanted.value)
            assert bool(np.signbit(value)) == wanted.negative


def test_functions_of_the_hardware_are_handed_in() -> None:
    text = kernel("ld.global.b32 %r2, [%rd4];\nex2.approx.ftz.f32 %r3, %r2;\nst.global.b32 [%rd5], %r3;")
    x = floats(32, 1.0)
    with pytest.raises(InvalidInputError, match=r"functions must have ex2\.approx\.ftz\.f32"):
        run(text, x)
    got = run(text, x, functions={"ex2.approx.ftz.f32": lambda bits: bits + np.uint64(1)})
    assert (got == x.view(np.uint32) + 1).all()


def test_memory_that_is_too_short_is_said() -> None:
    with pytest.raises(InvalidInputError, match="behind parameter 0"):
        run(kernel(EXCHANGE, shared=1024), floats(31))


def test_shifts_and_sums_are_those_of_integers_of_their_width() -> None:
    random = np.random.default_rng(7)
    for bits in (16, 32, 64):
        values = random.integers(0, 2**64, 500, dtype=np.uint64) >> np.uint64(64 - bits)
        for amount in (0, 1, 7, bits - 1, bits, bits + 1, 70, 255):
            by = np.full_like(values, amount)
            wanted = [int(v) << amount & (2**bits - 1) for v in values]
            assert (NAMED[f"shl.b{bits}"](values, by) & np.uint64(2**bits - 1)).tolist() == wanted
            assert NAMED[f"shr.u{bits}"](values, by).tolist() == [int(v) >> amount for v in values]
        sums = NAMED[f"add.s{bits}"](values, values[::-1]) & np.uint64(2**bits - 1)
        assert sums.tolist() == [(int(a) + int(b)) % 2**bits for a, b in zip(values, values[::-1], strict=True)]


@pytest.mark.parametrize(("kind", "dtype"), [("f16", DType.FLOAT16), ("bf16", DType.BFLOAT16)])
def test_comparisons_of_halves_are_those_of_their_values(kind: str, dtype: DType) -> None:
    every = np.arange(1 << 16, dtype=np.uint64)
    for other in (0x0000, 0x8000, 0x0001, 0x3C00, 0x7F80, 0x7C00, 0x7FFF, 0xFFFF):
        wanted = to_float32(every.astype(np.uint16), dtype), to_float32(np.array([other], np.uint16), dtype)
        fixed = np.full_like(every, other)
        unordered = np.isnan(wanted[0]) | np.isnan(wanted[1])
        with np.errstate(invalid="ignore"):
            for name, order in (("lt", np.less), ("eq", np.equal), ("ge", np.greater_equal), ("ne", np.not_equal)):
                ordered = order(*wanted) & ~unordered
                assert (NAMED[f"setp.{name}.{kind}"](every, fixed) == ordered).all()
                assert (NAMED[f"setp.{name}u.{kind}"](every, fixed) == (ordered | unordered)).all()
            assert (NAMED[f"setp.nan.{kind}"](every, fixed) == unordered).all()
            assert (NAMED[f"setp.num.{kind}"](every, fixed) == ~unordered).all()


def test_comparisons_that_ask_for_a_nan_say_whether_there_is_one() -> None:
    values = np.array([0x00000000, 0x7F800000, 0x7FC00000, 0xFF800001], np.uint64)
    one, other = (x.ravel() for x in np.meshgrid(values, values))
    wanted = (np.maximum(one & np.uint64(0x7FFFFFFF), other & np.uint64(0x7FFFFFFF)) > 0x7F800000).tolist()
    assert NAMED["setp.nan.f32"](one, other).tolist() == wanted
    assert NAMED["setp.num.f32"](one, other).tolist() == [not x for x in wanted]


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
def test_comparisons_of_integers_mind_their_sign(kind: str) -> None:
    bits = int(kind[1:])
    values = np.array([0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1], np.uint64)
    one, other = (x.ravel() for x in np.meshgrid(values, values))

    def number(pattern: int) -> int:
        return pattern - 2**bits if kind[0] == "s" and pattern >= 2 ** (bits - 1) else pattern

    wanted = [number(a) < number(b) for a, b in zip(one.tolist(), other.tolist(), strict=True)]
    assert NAMED[f"setp.lt.{kind}"](one, other).tolist() == wanted
