"""Each rule that keeps the checker sound, on a text that would be merged wrongly, or read wrongly, without it."""

from __future__ import annotations

import pytest

from gemmdesc.equivalence import (
    Different,
    Equal,
    Kernel,
    Launch,
    Nondeterministic,
    SameText,
    Unknown,
    equivalent,
)
from tests.equivalence_texts import EXCHANGE, butterfly, kernel

COPY = "ld.global.b32 %r2, [%rd4];\nst.global.b32 [%rd5], %r2;"


def ask(one: str, other: str, **launch: object) -> object:
    sass = launch.pop("sass", None)
    return equivalent(
        *(Kernel(name=n, ptx=t, launch=Launch(**launch), sass=sass) for n, t in (("one", one), ("other", other)))  # type: ignore[arg-type]
    )


def refused(text: str, code: str, words: str = "", **launch: object) -> None:
    """``text`` is not read, against another text, because of ``code``."""
    answer = ask(text, kernel(COPY), **launch)
    assert isinstance(answer, Unknown), answer
    assert answer.code == code, answer
    assert words in answer.reason, answer


def pair(first: str, second: str, **options: object) -> object:
    threads = options.pop("threads", 32)
    shared = options.pop("shared", 0)
    texts = [kernel(body, threads=threads, shared=shared) for body in (first, second)]  # type: ignore[arg-type]
    return ask(*texts, **options)


def loads(tail: str, count: int = 4) -> str:
    """``count`` values per lane in %r10 and on, then ``tail``."""
    return "\n".join([*(f"ld.global.b32 %r{10 + i}, [%rd4+{128 * i}];" for i in range(count)), tail])


def stored(expression: str) -> str:
    return loads(f"{expression}\nst.global.b32 [%rd5], %r20;")


# Trees.


@pytest.mark.slow
def test_one_tree_reached_by_other_instructions_is_equal() -> None:
    body = butterfly(16, 8, 4, 2, 1)
    answer = pair(body, body.replace("%r2,", "%r90,").replace("%r2;", "%r90;"))
    assert isinstance(answer, Equal)


@pytest.mark.parametrize("offsets", [(1, 2, 4, 8, 16), (8, 16, 4, 2, 1), (16, 8, 4, 1, 2)])
def test_a_swapped_merge_is_different(offsets: tuple[int, ...]) -> None:
    assert isinstance(pair(butterfly(16, 8, 4, 2, 1), butterfly(*offsets)), Different)


def test_the_order_of_a_chain_counts_and_the_order_of_two_terms_does_not() -> None:
    left = stored("add.rn.f32 %r30, %r10, %r11;\nadd.rn.f32 %r20, %r30, %r12;")
    swapped = stored("add.rn.f32 %r30, %r11, %r10;\nadd.rn.f32 %r20, %r12, %r30;")
    right = stored("add.rn.f32 %r30, %r11, %r12;\nadd.rn.f32 %r20, %r10, %r30;")
    assert isinstance(pair(left, swapped), Equal)
    answer = pair(left, right)
    assert isinstance(answer, Different)
    assert (answer.element.parameter, answer.element.offset) == (1, 0)
    assert answer.one != answer.other
    assert "p0[256:4]" in answer.one


def test_another_element_is_different() -> None:
    assert isinstance(pair(COPY, COPY.replace("[%rd4]", "[%rd4+4]")), Different)


def test_an_output_that_one_alone_stores_is_different() -> None:
    answer = pair(COPY, "setp.lt.s32 %p1, %r1, 31;\nld.global.b32 %r2, [%rd4];\n@%p1 st.global.b32 [%rd5], %r2;")
    assert isinstance(answer, Different)
    assert answer.other == "not stored"


def test_a_dropped_fma_is_different() -> None:
    fused = stored("fma.rn.f32 %r20, %r10, %r11, %r12;")
    parted = stored("mul.rn.f32 %r30, %r10, %r11;\nadd.rn.f32 %r20, %r30, %r12;")
    assert isinstance(pair(fused, parted), Different)


# Contraction.

FUSIBLE = stored("mul.f32 %r30, %r10, %r11;\nadd.f32 %r20, %r30, %r12;")


def test_a_fusible_sum_is_unknown_unless_contraction_is_off() -> None:
    marked = stored("mul.rn.f32 %r30, %r10, %r11;\nadd.rn.f32 %r20, %r30, %r12;")
    refused(kernel(FUSIBLE), "contraction", "fuse")
    assert isinstance(pair(FUSIBLE, marked), Unknown)
    assert isinstance(pair(FUSIBLE, marked, contraction=False), Equal)


@pytest.mark.parametrize(
    "sum_",
    [
        "neg.f32 %r31, %r30;\nadd.f32 %r20, %r31, %r12;",
        "mov.b32 %r31, %r30;\nsub.f32 %r20, %r12, %r31;",
        "setp.lt.s32 %p1, %r1, 7;\nselp.f32 %r31, %r30, %r11, %p1;\nadd.f32 %r20, %r31, %r12;",
        "mov.b64 %rd10, {%r30, %r12};\nadd.f32x2 %rd11, %rd10, %rd10;\nmov.b64 {%r20, %r32}, %rd11;",
    ],
    ids=["negated", "moved", "selected", "packed"],
)
def test_a_fusible_product_is_followed_through_moves(sum_: str) -> None:
    refused(kernel(stored(f"mul.f32 %r30, %r10, %r11;\n{sum_}")), "contraction")


@pytest.mark.parametrize("function", ["div.full.f32", "div.approx.f32", "rcp.approx.f32", "ex2.approx.f16x2"])
def test_the_last_product_of_a_quotient_is_fusible(function: str) -> None:
    """ptxas 12.8 to 13.4 assemble these and a following unmarked sum to one FFMA."""
    operands = "%r10, %r11" if function.startswith("div") else "%r10"
    text = stored(f"{function} %r30, {operands};\nadd.f32 %r20, %r30, %r12;")
    refused(kernel(text), "contraction")
    for change in (("add.f32", "add.rn.f32"), ("add.f32 %r20, %r30, %r12", "fma.rn.f32 %r20, %r11, %r12, %r30")):
        fine = text.replace(*change)
        assert isinstance(pair(fine, fine.replace("%r30", "%r31")), Equal)
    assert isinstance(pair(text, text.replace("%r30", "%r31"), contraction=False), Equal)


def test_a_function_that_ends_in_a_guarded_product_is_an_assumption() -> None:
    text = stored("ex2.approx{}.f32 %r30, %r10;\nadd.f32 %r20, %r30, %r12;")
    for modifier, assumed in (("", True), (".ftz", False)):
        answer = pair(text.format(modifier), text.format(modifier).replace("%r30", "%r31"))
        assert isinstance(answer, Equal)
        assert any("ex2.approx" in line for line in answer.assuming) is assumed


def test_either_mark_keeps_a_sum_from_being_fused() -> None:
    for product, total in (("mul.rn.f32", "add.f32"), ("mul.f32", "add.rn.f32")):
        text = stored(f"{product} %r30, %r10, %r11;\n{total} %r20, %r30, %r12;")
        assert isinstance(pair(text, text.replace("%r30", "%r31")), Equal)


def test_counts_of_the_assembled_text_settle_contraction() -> None:
    kept = "FMUL R1, R2, R3 ;\nFADD R1, R1, R4 ;"
    other = FUSIBLE.replace("%r30", "%r31")
    answer = pair(FUSIBLE, other, sass=kept)
    assert isinstance(answer, Equal)
    assert any("assembled text" in line for line in answer.assuming)
    assert isinstance(pair(FUSIBLE, other, sass="FFMA R1, R2, R3, R4 ;"), Unknown)
    assert isinstance(pair(FUSIBLE, other, sass=kept + "\nFFMA R1, R2, R3, R4 ;"), Unknown)


def test_counts_settle_nothing_where_ptxas_expands_an_instruction() -> None:
    text = stored("mul.f32 %r30, %r10, %r11;\nadd.f32 %r31, %r30, %r12;\nsqrt.approx.f32 %r20, %r31;")
    assert isinstance(pair(text, text.replace("%r30", "%r33"), sass="FMUL\nFADD\n"), Unknown)


# Modifiers.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("add.rn.f32 %r20, %r10, %r11;", "add.rn.ftz.f32 %r20, %r10, %r11;"),
        ("add.rn.f32 %r20, %r10, %r11;", "add.rz.f32 %r20, %r10, %r11;"),
        ("fma.rn.f32 %r20, %r10, %r11, %r12;", "fma.rn.ftz.f32 %r20, %r10, %r11, %r12;"),
        ("div.full.f32 %r20, %r10, %r11;", "div.rn.f32 %r20, %r10, %r11;"),
        ("sqrt.approx.f32 %r20, %r10;", "sqrt.approx.ftz.f32 %r20, %r10;"),
        ("max.f32 %r20, %r10, %r11;", "max.NaN.f32 %r20, %r10, %r11;"),
        ("mul.rn.f32 %r20, %r10, %r11;", "mul.rn.sat.f32 %r20, %r10, %r11;"),
        ("cvt.rn.f32.s32 %r20, %r10;", "cvt.rz.f32.s32 %r20, %r10;"),
        ("ex2.approx.f32 %r20, %r10;", "ex2.approx.ftz.f32 %r20, %r10;"),
        ("sub.rn.f32 %r20, %r10, %r11;", "sub.rn.f32 %r20, %r11, %r10;"),
    ],
)
def test_modifiers_and_places_are_part_of_the_function(one: str, other: str) -> None:
    assert isinstance(pair(stored(one), stored(other)), Different)
    assert isinstance(pair(stored(one), stored(one).replace("%r10", "%r40")), Equal)


@pytest.mark.parametrize("narrow", ["f16", "bf16"])
@pytest.mark.parametrize("base", ["add", "sub"])
def test_mixed_precision_widens_its_first_operand_and_reads_all_of_the_other(base: str, narrow: str) -> None:
    unpack = "mov.b32 {%rs1, %rs2}, %r10;\n"
    mixed = stored(f"{unpack}{base}.rn.f32.{narrow} %r20, %rs1, %r11;")
    parted = stored(f"{unpack}cvt.f32.{narrow} %r30, %rs1;\n{base}.rn.f32 %r20, %r30, %r11;")
    assert isinstance(pair(mixed, parted), Equal)
    # Another upper half of the float32 operand is another value.
    upper = mixed.replace(f"{base}.rn.f32.{narrow}", f"and.b32 %r11, %r11, 65535;\n{base}.rn.f32.{narrow}")
    assert isinstance(pair(mixed, upper), Different)


def test_mixed_precision_sums_take_products_in_as_others_do() -> None:
    product = "mov.b32 {%rs1, %rs2}, %r10;\nmul.f32 %r30, %r11, %r12;\n"
    refused(kernel(stored(f"{product}add.f32.f16 %r20, %rs1, %r30;")), "contraction")
    marked = stored(f"{product}add.rn.f32.f16 %r20, %rs1, %r30;")
    assert isinstance(pair(marked, marked.replace("%r30", "%r31")), Equal)
    fused = stored("mov.b32 {%rs1, %rs2}, %r10;\nfma.rn.f32.bf16 %r20, %rs1, %rs2, %r12;")
    parted = stored("mov.b32 {%rs1, %rs2}, %r10;\ncvt.f32.bf16 %r30, %rs1;\ncvt.f32.bf16 %r31, %rs2;\n"
                    "fma.rn.f32 %r20, %r30, %r31, %r12;")  # fmt: skip
    assert isinstance(pair(fused, parted), Equal)


@pytest.mark.parametrize(
    "line",
    ["add.rn.f64.f16 %r20, %rs1, %r11;", "add.rn.unknown.f32 %r20, %r10, %r11;", "add.rn.f32 %r20, %r10, %r11, %r12;",
     "add.rz.f32.f16 %r20, %rs1, %r11;", "cvt.rn.f16.f32 %rs3, %r10, %r11;", "add.s32 %r20, %r1, %r1, %r1;"],
)  # fmt: skip
def test_forms_of_float_instructions_that_are_not_known_are_refused(line: str) -> None:
    body = "mov.b32 {%rs1, %rs2}, %r10;\nmov.b32 %r20, 0;\n"
    refused(kernel(stored(body + line)), "instruction")


# Pointers.


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("and.b64 %rd10, %rd4, 15;\nsetp.eq.s64 %p1, %rd10, 0;\n@%p1 st.global.b32 [%rd5], %r1;", "and.b64"),
        ("setp.lt.u64 %p1, %rd4, %rd5;\n@%p1 st.global.b32 [%rd5], %r1;", "compares"),
        ("sub.s64 %rd10, %rd4, %rd5;\nadd.s64 %rd11, %rd5, %rd10;\nst.global.b32 [%rd11], %r1;", "sub.s64"),
        ("add.s64 %rd10, %rd4, %rd5;\nst.global.b32 [%rd5], %r1;", "add.s64"),
        ("cvt.u32.u64 %r2, %rd4;\nst.global.b32 [%rd5], %r2;", "cut"),
        ("mov.b64 {%r2, %r3}, %rd4;\nst.global.b32 [%rd5], %r2;", "data"),
        ("div.u64 %rd10, %rd4, 3;\nst.global.b32 [%rd5], %r1;", "div.u64"),
        ("mul.lo.s64 %rd10, %rd4, 3;\nst.global.b32 [%rd5], %r1;", "mul.lo.s64"),
        ("shr.u64 %rd10, %rd4, 4;\nst.global.b32 [%rd5], %r1;", "shr.u64"),
        ("st.global.b64 [%rd2], %rd1;", "data"),
        ("cvt.u64.u32 %rd10, %r1;\nld.global.b32 %r2, [%rd10];\nst.global.b32 [%rd5], %r2;", "not derived"),
    ],
)
def test_a_pointer_makes_addresses_only(body: str, words: str) -> None:
    refused(kernel(body), "pointer", words)


# Global memory.


def test_a_byte_that_another_thread_stores_may_not_be_loaded() -> None:
    body = "ld.global.b32 %r2, [%rd4];\nst.global.b32 [%rd5], %r2;\nxor.b32 %r3, %r1, 1;\nmul.wide.u32 %rd6, %r3, 4;\n"
    body += "add.s64 %rd7, %rd2, %rd6;\nld.global.b32 %r4, [%rd7];\nst.global.b32 [%rd5+128], %r4;"
    refused(kernel(body), "global_memory", "loaded that this launch stores")


def test_a_load_before_the_own_store_is_fine_and_one_after_it_is_not() -> None:
    before = "ld.global.b32 %r2, [%rd5];\nst.global.b32 [%rd5], %r2;"
    assert isinstance(pair(before, before.replace("%r2", "%r3")), Equal)
    after = "st.global.b32 [%rd5], %r1;\nld.global.b32 %r2, [%rd5];\nst.global.b32 [%rd5+128], %r2;"
    refused(kernel(after), "global_memory")


def test_a_racing_store_is_refused() -> None:
    refused(kernel("st.global.b32 [%rd2], %r1;"), "global_memory", "two threads")
    same = "mov.b32 %r2, 7;\nst.global.b32 [%rd2], %r2;"
    assert isinstance(pair(same, same.replace("%r2", "%r3")), Equal)


def test_an_output_of_two_blocks_is_refused() -> None:
    text = kernel(COPY)
    refused(text, "global_memory", "two blocks", grid=(2, 1, 1))


def test_every_block_is_walked() -> None:
    body = "mov.u32 %r3, %ctaid.x;\nmul.wide.u32 %rd6, %r3, 128;\nadd.s64 %rd7, %rd4, %rd6;\n"
    body += "add.s64 %rd8, %rd5, %rd6;\n"
    body += "ld.global.b32 %r4, [%rd7];\n{last}\nst.global.b32 [%rd8], %r4;"
    plain, odd = body.format(last=""), body.format(last="setp.eq.s32 %p1, %r3, 2;\n@%p1 mov.b32 %r4, 0;")
    assert isinstance(pair(plain, odd, grid=(2, 1, 1)), Equal)
    answer = pair(plain, odd, grid=(3, 1, 1))
    assert isinstance(answer, Different)
    assert answer.element.offset == 256


def test_blocks_beyond_one_batch_are_walked() -> None:
    """Shared memory limits how many blocks run side by side; the last of them counts as much as the first."""
    body = "mov.u32 %r3, %ctaid.x;\nmul.wide.u32 %rd6, %r3, 128;\nadd.s64 %rd7, %rd4, %rd6;\n"
    body += "add.s64 %rd8, %rd5, %rd6;\nld.global.b32 %r4, [%rd7];\n{last}\nst.global.b32 [%rd8], %r4;"
    odd = body.format(last="setp.eq.s32 %p1, %r3, 1299;\n@%p1 mov.b32 %r4, 0;")
    assert isinstance(pair(body.format(last=""), odd, grid=(1299, 1, 1)), Equal)
    answer = pair(body.format(last=""), odd, grid=(1300, 1, 1))
    assert isinstance(answer, Different)
    assert answer.element.offset == 1299 * 128
    wrapped = "and.b32 %r5, %r3, 1023;\nmul.wide.u32 %rd9, %r5, 128;\nadd.s64 %rd8, %rd5, %rd9"
    again = body.format(last="").replace("add.s64 %rd8, %rd5, %rd6", wrapped)
    refused(kernel(again), "global_memory", "two blocks", grid=(1025, 1, 1))


def test_answers_carry_the_assumption_of_disjoint_memory() -> None:
    answer = pair(COPY, COPY.replace("%r2", "%r3"))
    assert isinstance(answer, Equal)
    assert any("overlap" in line for line in answer.assuming)
    assert any("grid 1x1x1" in line for line in answer.assuming)


def test_kernels_of_different_assemblers_are_not_compared() -> None:
    one, other = (Kernel(name=v, ptx=kernel(COPY), assembler=v) for v in ("ptxas 12.8", "ptxas 12.9"))
    assert isinstance(equivalent(one, other), Unknown)


def test_kernels_for_two_chips_are_not_compared() -> None:
    text = kernel(COPY)
    assert isinstance(ask(text, text.replace("sm_90a", "sm_100a")), Unknown)
    assert isinstance(ask(text, text.replace("sm_90a", "sm_90")), Equal)


@pytest.mark.parametrize("opcode", ["add.sat.s32", "add.cc.u32", "min.relu.u32", "min.s16x2"])
def test_integer_modifiers_that_are_not_known_are_refused(opcode: str) -> None:
    refused(kernel(f"{opcode} %r2, %r1, %r1;\nst.global.b32 [%rd5], %r2;"), "instruction")


# Shared memory.


@pytest.mark.parametrize("threads", [32, 64])
def test_a_missing_barrier_is_refused(threads: int) -> None:
    text = kernel(EXCHANGE, shared=1024, threads=threads)
    assert isinstance(ask(text, text.replace("%r8", "%r9")), Equal)
    refused(text.replace("bar.sync 0;", ""), "shared_memory", "read with no barrier")


def test_a_warp_barrier_orders_its_warp_alone() -> None:
    near = EXCHANGE.replace("bar.sync 0", "bar.warp.sync -1")
    far = near.replace("xor.b32 %r6, %r4, 4", "xor.b32 %r6, %r4, 128")
    assert isinstance(pair(EXCHANGE, near, threads=64, shared=1024), Equal)
    refused(kernel(far, threads=64, shared=1024), "shared_memory")


def test_writes_of_two_threads_are_refused() -> None:
    body = "mov.u32 %r3, smem;\nst.shared.b32 [%r3], %r1;\nbar.sync 0;\nld.shared.b32 %r4, [%r3];\n"
    body += "st.global.b32 [%rd5], %r4;"
    refused(kernel(body, shared=64), "shared_memory", "two threads write")
    same = body.replace("%r1;\nbar", "7;\nbar")
    assert isinstance(pair(same, same.replace("%r4", "%r5"), shared=64), Equal)


def test_a_write_after_a_read_needs_a_barrier() -> None:
    again = EXCHANGE + "st.shared.b32 [%r5], %r8;\nbar.sync 0;\nld.shared.b32 %r9, [%r5];\n"
    again += "st.global.b32 [%rd5+128], %r9;"
    refused(kernel(again, shared=1024), "shared_memory", "overwritten")
    fine = again.replace("st.shared.b32 [%r5], %r8", "bar.sync 0;\nst.shared.b32 [%r5], %r8")
    assert isinstance(pair(fine, fine.replace("%r8", "%r10"), shared=1024), Equal)


def test_one_byte_of_a_word_is_watched_alone() -> None:
    body = "mov.u32 %r3, smem;\nadd.s32 %r4, %r3, %r1;\ncvt.u16.u32 %rs1, %r1;\n"
    body += "st.shared.b8 [%r4], %rs1;\nbar.sync 0;\n"
    body += "and.b32 %r5, %r1, 28;\nadd.s32 %r6, %r3, %r5;\nld.shared.b32 %r7, [%r6];\nst.global.b32 [%rd5], %r7;"
    assert isinstance(pair(body, body.replace("%r7", "%r8"), shared=64), Equal)
    refused(kernel(body.replace("bar.sync 0;", ""), shared=64), "shared_memory")


COPY_ASYNC = """
mov.u32 %r3, smem;
shl.b32 %r4, %r1, 2;
add.s32 %r5, %r3, %r4;
cp.async.ca.shared.global [%r5], [%rd4], 0x4;
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
xor.b32 %r6, %r4, 4;
add.s32 %r7, %r3, %r6;
ld.shared.b32 %r8, [%r7];
st.global.b32 [%rd5], %r8;
"""


def test_asynchronous_copies_need_their_wait_and_the_barrier() -> None:
    assert isinstance(pair(COPY_ASYNC, EXCHANGE, shared=1024), Equal)
    refused(kernel(COPY_ASYNC.replace("wait_group 0", "wait_group 1"), shared=1024), "shared_memory", "asynchronous")
    refused(kernel(COPY_ASYNC.replace("bar.sync 0;", ""), shared=1024), "shared_memory", "read with no barrier")
    over = COPY_ASYNC.replace("cp.async.commit_group;", "st.shared.b32 [%r5], %r1;\ncp.async.commit_group;")
    refused(kernel(over, shared=1024), "shared_memory", "asynchronous")


# Poison, divergence, data.


def test_a_register_that_was_never_written_may_not_be_stored() -> None:
    refused(kernel("st.global.b32 [%rd5], %r50;"), "poison")
    refused(kernel("add.rn.f32 %r2, %r50, %r50;\nst.global.b32 [%rd5], %r2;"), "poison")
    refused(kernel("setp.lt.s32 %p1, %r1, 16;\n@%p1 mov.b32 %r2, 0;\nst.global.b32 [%rd5], %r2;"), "poison")
    refused(kernel("@%p9 mov.b32 %r2, 0;\nst.global.b32 [%rd5], %r1;"), "poison", "predicate")
    refused(kernel("mov.u32 %r3, smem;\nld.shared.b32 %r4, [%r3];\nst.global.b32 [%rd5], %r4;", shared=64), "poison")


def test_half_a_register_may_be_poison_as_long_as_nobody_uses_it() -> None:
    half = "ld.global.b32 %r2, [%rd4];\nmov.b64 %rd10, {%r2, %r50};\nadd.rn.f32x2 %rd11, %rd10, %rd10;\n"
    half += "mov.b64 {%r3, %r4}, %rd11;\nst.global.b32 [%rd5], %r3;"
    scalar = "ld.global.b32 %r2, [%rd4];\nadd.rn.f32 %r3, %r2, %r2;\nst.global.b32 [%rd5], %r3;"
    assert isinstance(pair(half, scalar), Equal)
    refused(kernel(half.replace("[%rd5], %r3", "[%rd5], %r4")), "poison")
    refused(kernel(half.replace("add.rn.f32x2 %rd11, %rd10, %rd10", "xor.b64 %rd11, %rd10, %rd10")), "poison")
    wide = "ld.global.b32 %r2, [%rd4];\nmov.b64 %rd10, {%r2, %r50};\nadd.s64 %rd6, %rd5, %rd3;\n"
    wide += "st.global.b64 [%rd6], %rd10;"
    refused(kernel(wide), "poison")


def test_a_shuffle_out_of_its_mask_is_refused() -> None:
    body = butterfly(16, 8, 4, 2, 1)
    refused(kernel(body.replace("1, 31, -1", "1, 31, 1")), "divergence", "leaves it out")
    inactive = "ld.global.b32 %r2, [%rd4];\nsetp.lt.s32 %p1, %r1, 16;\n"
    inactive += "@%p1 shfl.sync.bfly.b32 %r3, %r2, 16, 31, {mask};\n@%p1 st.global.b32 [%rd5], %r3;"
    refused(kernel(inactive.format(mask="-1")), "divergence", "inactive")
    refused(kernel(inactive.format(mask="65535")), "poison")
    inside = inactive.format(mask="65535").replace("%r2, 16, 31", "%r2, 8, 31")
    assert isinstance(pair(inside, inside.replace("%r3", "%r4")), Equal)


def test_segments_and_clamps_of_shuffles_are_followed() -> None:
    body = "ld.global.b32 %r2, [%rd4];\nshfl.sync.{mode}.b32 %r3, %r2, {by}, {clamp}, -1;\nst.global.b32 [%rd5], %r3;"
    down = body.format(mode="down", by=1, clamp=31)
    assert isinstance(pair(down, body.format(mode="down", by=1, clamp=0x101F)), Different)
    index = "xor.b32 %r9, %r1, 3;\n" + body.format(mode="idx", by="%r9", clamp=31)
    assert isinstance(pair(index, body.format(mode="bfly", by=3, clamp=31)), Equal)


def test_a_divergent_barrier_is_refused() -> None:
    body = "setp.lt.s32 %p1, %r1, 16;\n@%p1 bra SKIP;\nbar.sync 0;\nSKIP:\nst.global.b32 [%rd5], %r1;"
    refused(kernel(body), "divergence")
    refused(kernel("setp.lt.s32 %p1, %r1, 16;\n@%p1 bar.sync 0;\nst.global.b32 [%rd5], %r1;"), "divergence")
    refused(kernel("setp.lt.s32 %p1, %r1, 16;\n@%p1 ret;\nbar.sync 0;\nst.global.b32 [%rd5], %r1;"), "divergence")
    refused(kernel("bar.sync 1, 32;\nst.global.b32 [%rd5], %r1;", threads=64), "divergence", "part of the block")
    text = kernel("bar.sync 1, 64;\nst.global.b32 [%rd5], %r1;", threads=64)
    assert isinstance(ask(text, kernel("st.global.b32 [%rd5], %r1;", threads=64)), Equal)


def test_threads_that_part_meet_again() -> None:
    parted = """ld.global.b32 %r2, [%rd4];
    setp.lt.s32 %p1, %r1, 16;
    @%p1 bra LOW;
    add.rn.f32 %r3, %r2, %r2;
    bra.uni JOIN;
    LOW:
    mul.rn.f32 %r3, %r2, %r2;
    JOIN:
    st.global.b32 [%rd5], %r3;"""
    chosen = """ld.global.b32 %r2, [%rd4];
    setp.lt.s32 %p1, %r1, 16;
    add.rn.f32 %r4, %r2, %r2;
    mul.rn.f32 %r5, %r2, %r2;
    selp.f32 %r3, %r5, %r4, %p1;
    st.global.b32 [%rd5], %r3;"""
    assert isinstance(pair(parted, chosen), Equal)
    assert isinstance(pair(parted, chosen.replace("16", "15")), Different)


def test_loops_run_as_often_as_they_do() -> None:
    loop = """mov.b32 %r2, 0;
    mov.b64 %rd10, %rd4;
    mov.b32 %r3, 0;
    LOOP:
    ld.global.b32 %r4, [%rd10];
    add.rn.f32 %r3, %r3, %r4;
    add.s64 %rd10, %rd10, 128;
    add.s32 %r2, %r2, 1;
    setp.lt.s32 %p1, %r2, 3;
    @%p1 bra LOOP;
    st.global.b32 [%rd5], %r3;"""
    straight = loads("add.rn.f32 %r20, 0f00000000, %r10;\nadd.rn.f32 %r21, %r20, %r11;\n", 3)
    straight += "add.rn.f32 %r22, %r21, %r12;\n"
    straight += "st.global.b32 [%rd5], %r22;"
    assert isinstance(pair(loop, straight), Equal)
    assert isinstance(pair(loop.replace("%r2, 3", "%r2, 2"), straight), Different)


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.b32 %r2, [%rd4];\nsetp.gt.f32 %p1, %r2, 0f00000000;\n@%p1 st.global.b32 [%rd5], %r2;",
        "ld.global.b32 %r2, [%rd4];\nmul.wide.s32 %rd6, %r2, 4;\nadd.s64 %rd7, %rd2, %rd6;\nst.global.b32 [%rd7], %r1;",
        "ld.global.b32 %r2, [%rd4];\nshfl.sync.idx.b32 %r3, %r1, %r2, 31, -1;\nst.global.b32 [%rd5], %r3;",
    ],
    ids=["predicate", "address", "shuffle"],
)
def test_data_steer_nothing(body: str) -> None:
    refused(kernel(body), "data_dependent")


def test_data_may_select() -> None:
    body = "ld.global.b32 %r2, [%rd4];\nsetp.{how}.f32 %p1, %r2, 0f00000000;\nselp.f32 %r3, %r2, 0f3F800000, %p1;\n"
    body += "st.global.b32 [%rd5], %r3;"
    assert isinstance(pair(body.format(how="gt"), body.format(how="gt").replace("%p1", "%p2")), Equal)
    assert isinstance(pair(body.format(how="gt"), body.format(how="gtu")), Different)


# What varies, and what is not read.


def test_float_atomics_are_equal_to_nothing() -> None:
    text = kernel("ld.global.b32 %r2, [%rd4];\nred.global.add.f32 [%rd2], %r2;")
    assert isinstance(ask(text, text), Nondeterministic)
    assert isinstance(ask(text, kernel(COPY)), Nondeterministic)


@pytest.mark.parametrize("name", ["%clock", "%smid", "%warpid", "%globaltimer"])
def test_volatile_state_is_refused_even_in_one_text(name: str) -> None:
    text = kernel(f"mov.u32 %r2, {name};\nst.global.b32 [%rd5], %r2;")
    refused(text, "volatile", name)
    assert isinstance(ask(text, text), Unknown)


def test_volatile_loads_are_refused() -> None:
    refused(kernel(COPY.replace("ld.global", "ld.global.relaxed.gpu")), "volatile")
    refused(kernel(COPY.replace("ld.global", "ld.volatile.global")), "instruction")


@pytest.mark.parametrize(
    "line",
    [
        "wgmma.fence.sync.aligned;",
        "mbarrier.init.shared.b64 [%r2], 1;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 64;",
        "cp.async.bulk.commit_group;",
        "vote.sync.any.pred %p2, %p1, -1;",
        "elect.sync %r3|%p1, -1;",
    ],
)
def test_what_is_not_read_is_refused_by_name(line: str) -> None:
    text = kernel(f"mov.u32 %r2, smem;\n{line}\n{COPY}", shared=64)
    refused(text, "instruction", line.split()[0].rstrip(";"))
    assert isinstance(ask(text, text), SameText)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", kernel(COPY) + kernel(COPY), kernel(COPY).replace("ld.global.b32 %r2", "ld.global.b32 %q2"),
     kernel(COPY).replace(".reqntid 32", ".frobnicate 3"), kernel("call.uni helper, ();")],
    ids=["empty", "no PTX", "two entries", "undeclared register", "unknown directive", "call"],
)  # fmt: skip
def test_texts_that_are_not_understood_are_refused(text: str) -> None:
    answer = ask(text, kernel(COPY))
    assert isinstance(answer, Unknown)
    assert answer.code in ("syntax", "instruction")


def test_an_integer_argument_has_to_be_given_and_counts() -> None:
    body = "ld.param.b32 %r2, [kernel_param_2];\nsetp.lt.s32 %p1, %r1, %r2;\n@%p1 st.global.b32 [%rd5], %r1;"
    text = kernel(body, integers=1)
    refused(text, "launch", "argument 2")
    one, other = (Kernel(name=str(n), ptx=text, launch=Launch(arguments={2: n})) for n in (5, 6))
    answer = equivalent(one, other)
    assert isinstance(answer, Different)
    assert answer.element.offset == 20


# Packed comparisons, sums of integers, cache policies.


def halves(kind: str, predicate: str) -> str:
    return stored(f"setp.lt.{kind}x2 %p1|%p2, %r10, %r11;\nselp.b32 %r20, %r12, %r13, {predicate};")


def half(kind: str, place: int) -> str:
    unpacked = "mov.b32 {%rs1, %rs2}, %r10;\nmov.b32 {%rs3, %rs4}, %r11;\n"
    compared = f"setp.lt.{kind} %p3, %rs{1 + place}, %rs{3 + place};\nselp.b32 %r20, %r12, %r13, %p3;"
    return stored(unpacked + compared)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_packed_comparison_has_a_predicate_for_each_half(kind: str) -> None:
    lower, upper = (halves(kind, predicate) for predicate in ("%p1", "%p2"))
    assert isinstance(pair(lower, half(kind, 0)), Equal)
    assert isinstance(pair(upper, half(kind, 1)), Equal)
    assert isinstance(pair(lower, upper), Different)
    assert isinstance(pair(lower, half(kind, 1)), Different)
    assert isinstance(pair(lower, halves("bf16" if kind == "f16" else "f16", "%p1")), Different)


def test_data_that_are_compared_in_pairs_guard_nothing() -> None:
    text = "setp.lt.f16x2 %p1|_, %r10, %r11;\n@%p1 mov.b32 %r12, %r13;\nmov.b32 %r20, %r12;"
    refused(kernel(stored(text)), "data_dependent", "predicate")


def test_adding_an_integer_zero_changes_nothing_and_adding_another_number_does() -> None:
    copied = stored("mov.b32 %r20, %r10;")
    assert isinstance(pair(copied, stored("add.s32 %r20, %r10, 0;")), Equal)
    assert isinstance(pair(copied, stored("add.s32 %r20, 0, %r10;")), Equal)
    for other in ("add.s32 %r20, %r10, 1;", "sub.s32 %r20, 0, %r10;", "add.rn.f32 %r20, %r10, 0f00000000;"):
        assert isinstance(pair(copied, stored(other)), Different), other


def one_lane(lane: int, opcode: str = "redux.sync.add.s32") -> str:
    chosen = f"setp.eq.s32 %p1, %r1, {lane};\nselp.b32 %r14, %r10, 0, %p1;"
    return stored(f"{chosen}\n{opcode} %r20, %r14, -1;")


def test_a_sum_over_a_warp_in_which_one_lane_is_not_zero_is_that_lane() -> None:
    taken = stored("shfl.sync.idx.b32 %r20, %r10, 7, 31, -1;")
    assert isinstance(pair(one_lane(7), taken), Equal)
    assert isinstance(pair(one_lane(8), taken), Different)
    every = stored("redux.sync.add.s32 %r20, %r10, -1;")
    assert isinstance(pair(every, every.replace("%r10, -1", "%r11, -1")), Different)
    assert isinstance(pair(every, taken), Different)
    refused(kernel(one_lane(7, "redux.sync.max.s32")), "data_dependent")


LARGER = "setp.gt.f32 %p1, %r10, %r11;\nsetp.nan.f32 %p2, %r10, %r10;\n"


def test_two_reasons_to_take_one_value_are_one_in_any_order() -> None:
    nested = LARGER + "selp.f32 %r14, %r10, %r11, {0};\nselp.f32 %r20, %r10, %r14, {1};"
    one, other = (stored(nested.format(*order)) for order in (("%p1", "%p2"), ("%p2", "%p1")))
    either = stored(LARGER + "or.pred %p3, %p2, %p1;\nselp.f32 %r20, %r10, %r11, %p3;")
    assert isinstance(pair(one, other), Equal)
    assert isinstance(pair(one, either), Equal)
    assert isinstance(pair(one, either.replace("or.pred", "and.pred")), Different)
    for wrong in (
        "selp.f32 %r14, %r11, %r10, %p1;\nselp.f32 %r20, %r10, %r14, %p2;",
        "selp.f32 %r14, %r12, %r11, %p1;\nselp.f32 %r20, %r10, %r14, %p2;",
        "selp.f32 %r14, %r10, %r11, %p1;\nselp.f32 %r20, %r12, %r14, %p2;",
        "selp.f32 %r14, %r10, %r11, %p1;\nselp.f32 %r20, %r14, %r10, %p2;",
    ):
        assert isinstance(pair(one, stored(LARGER + wrong)), Different), wrong


@pytest.mark.parametrize("swapped", [False, True])
def test_a_selection_made_of_comparisons_keeps_its_order(swapped: bool) -> None:
    """Of two zeros, and of two NaN, it takes another one where its operands change places."""
    one, other = ("%r11", "%r10") if swapped else ("%r10", "%r11")
    body = f"setp.gt.f32 %p1, {one}, {other};\nsetp.nan.f32 %p2, {one}, {one};\nor.pred %p3, %p2, %p1;\n"
    chosen = stored(f"{body}selp.f32 %r20, {one}, {other}, %p3;")
    plain = stored(LARGER + "or.pred %p3, %p2, %p1;\nselp.f32 %r20, %r10, %r11, %p3;")
    assert isinstance(pair(plain, chosen), Different if swapped else Equal)


POLICY = "createpolicy.fractional.L2::evict_last.b64 %rd40, 1.0;\n"


def test_a_cache_policy_changes_no_byte_and_is_no_data() -> None:
    hinted = POLICY + "ld.global.L1::evict_last.L2::cache_hint.b32 %r2, [%rd4], %rd40;\nst.global.b32 [%rd5], %r2;"
    assert isinstance(pair(hinted, COPY), Equal)
    refused(kernel(POLICY + "st.global.b64 [%rd2], %rd40;"), "pointer")
    refused(kernel(stored("add.rn.f32 %r20, %r10, 1.0;")), "instruction", "1.0")
