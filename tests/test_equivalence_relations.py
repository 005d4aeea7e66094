"""What sets two classes apart is named where leaving out one property makes them one."""

from __future__ import annotations

import pytest

from gemmdesc.equivalence import Launch, walk
from gemmdesc.equivalence.relations import EXACT, RELATIONS, relation_between, relaxed_digests
from tests.equivalence_texts import butterfly, kernel
from tests.test_equivalence_chains import FIRST, LOADS, SECOND, STORES, SUM, ZERO, mma

ORDER, FUSED, BOTH, _ = RELATIONS
LOAD = "".join(f"ld.global.b32 %r{10 + i}, [%rd4+{128 * i}];\n" for i in range(4))
STORE = "st.global.b32 [%rd5], %r9;"


def between(one: str, other: str) -> str | None:
    return relation_between(*(relaxed_digests(walk(text, Launch())) for text in (one, other)))


def body(*lines: str) -> str:
    return kernel(LOAD + "\n".join(lines) + "\n" + STORE)


SUMS = body("add.f32 %r9, %r10, %r11;", "add.f32 %r9, %r9, %r12;", "add.f32 %r9, %r9, %r13;")
FMA = body("fma.rn.f32 %r9, %r10, %r11, %r12;", "add.rn.f32 %r9, %r9, %r13;")


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (SUMS, body("add.f32 %r9, %r10, %r11;", "add.f32 %r8, %r12, %r13;", "add.f32 %r9, %r9, %r8;"), ORDER),
        (SUMS, body("add.f32 %r9, %r13, 0f00000000;", *(f"add.f32 %r9, %r9, %r{i};" for i in (12, 11, 10))), ORDER),
        (SUMS, body("add.f32 %r9, %r10, %r11;", "add.f32 %r9, %r9, %r12;", "add.f32 %r9, %r9, %r12;"), None),
        (SUMS, body("add.f32 %r9, %r10, %r11;", "sub.f32 %r9, %r9, %r12;", "add.f32 %r9, %r9, %r13;"), None),
        (FMA, body("mul.rn.f32 %r9, %r10, %r11;", "add.rn.f32 %r9, %r9, %r12;", "add.rn.f32 %r9, %r9, %r13;"), FUSED),
        (FMA, body("add.rn.f32 %r9, %r12, %r13;", "fma.rn.f32 %r9, %r10, %r11, %r9;"), ORDER),
        (FMA, body("mul.rn.f32 %r9, %r10, %r11;", "add.rn.f32 %r8, %r12, %r13;", "add.rn.f32 %r9, %r9, %r8;"), BOTH),
        (FMA, body("fma.rn.f32 %r9, %r10, %r12, %r11;", "add.rn.f32 %r9, %r9, %r13;"), None),
        (kernel(butterfly(16, 8, 4, 2, 1)), kernel(butterfly(1, 2, 4, 8, 16)), ORDER),
        (kernel(butterfly(16, 8, 4, 2, 1)), kernel(butterfly(1, 2, 4, 8)), None),
    ],
)
def test_relations_by_name(one: str, other: str, name: str | None) -> None:
    assert between(one, other) == name
    assert between(other, one) == name
    assert between(one, one) == ORDER


def test_a_maximum_below_a_sum_is_a_function_of_its_set() -> None:
    def shifted(offsets: tuple[int, ...], order: tuple[int, ...]) -> str:
        lines = ["ld.global.b32 %r10, [%rd4];", "mov.b32 %r11, %r10;"]
        for offset in offsets:
            lines += [f"shfl.sync.bfly.b32 %r12, %r11, {offset}, 31, -1;", "max.f32 %r11, %r11, %r12;"]
        lines.append("sub.f32 %r9, %r10, %r11;")
        for offset in order:
            lines += [f"shfl.sync.bfly.b32 %r12, %r9, {offset}, 31, -1;", "add.f32 %r9, %r9, %r12;"]
        return kernel("\n".join([*lines, STORE]))

    up, down = (1, 2, 4, 8, 16), (16, 8, 4, 2, 1)
    assert between(shifted(up, up), shifted(down, down)) == ORDER
    assert between(shifted(up, up), shifted(down[:4], down)) is None


def test_matrix_steps_in_another_order() -> None:
    one = kernel(LOADS + mma(FIRST, ZERO) + mma(SECOND, SUM) + STORES)
    assert between(one, kernel(LOADS + mma(SECOND, ZERO) + mma(FIRST, SUM) + STORES)) == ORDER
    assert between(one, kernel(LOADS + mma(SECOND, ZERO) + mma(SECOND, SUM) + STORES)) is None
    apart = mma(SECOND, ZERO, into="%r50, %r51, %r52, %r53")
    apart += "".join(f"add.f32 %r{i}, %r{i}, %r{i + 20};\n" for i in range(30, 34))
    assert between(one, kernel(LOADS + mma(FIRST, ZERO) + apart + STORES)) == ORDER


PRODUCTS = body(*(f"mul.f32 %r{a}, %r{b}, %r{c};" for a, b, c in ((9, 10, 11), (9, 9, 12), (9, 9, 13))))
SHARED = body("add.f32 %r8, %r10, %r11;", "mul.f32 %r9, %r8, %r12;")


def scaled(*factors: str) -> str:
    """A value times float32 constants, one after the other."""
    lines = [f"mul.rn.f32 %r{8 - i}, %r{9 - i if i else 10}, 0f{factor};" for i, factor in enumerate(factors)]
    return body(*lines, f"mov.b32 %r9, %r{9 - len(factors)};")


def largest(*pairs: tuple[int, int, int], compare: str = "gt", nan: bool = True) -> str:
    """Maxima as torch.compile's kernels have them: a comparison, or a NaN on the left, selects the left operand."""
    lines = []
    for into, a, b in pairs:
        lines.append(f"setp.{compare}.f32 %p1, %r{a}, %r{b};")
        if nan:
            lines += [f"setp.nan.f32 %p2, %r{a}, %r{a};", "or.pred %p1, %p1, %p2;"]
        lines.append(f"selp.b32 %r{into}, %r{a}, %r{b}, %p1;")
    return body(*lines)


FOUR = largest((8, 10, 11), (7, 12, 13), (9, 8, 7))


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (PRODUCTS, body("mul.f32 %r9, %r10, %r11;", "mul.f32 %r8, %r12, %r13;", "mul.f32 %r9, %r9, %r8;"), EXACT),
        (PRODUCTS, body("mul.f32 %r9, %r10, %r11;", "mul.f32 %r8, %r12, %r12;", "mul.f32 %r9, %r9, %r8;"), None),
        (SHARED, body("mul.f32 %r8, %r10, %r12;", "fma.rn.f32 %r9, %r11, %r12, %r8;"), EXACT),
        (SHARED, body("mul.f32 %r8, %r10, %r11;", "fma.rn.f32 %r9, %r11, %r12, %r8;"), None),
        (body("div.full.f32 %r9, %r10, %r11;"), body("div.full.f32 %r8, %r10, %r12;", "div.full.f32 %r7, %r11, %r12;",
                                                     "div.full.f32 %r9, %r8, %r7;"), EXACT),
        (scaled("3E800000"), scaled("BF000000", "BF000000"), EXACT),
        (scaled("3E800000"), scaled("3F000000", "BF000000"), None),
        (scaled("00000001"), scaled("00000002", "3F000000"), EXACT),
        (body("ex2.approx.f32 %r8, %r10;", "mul.f32 %r7, %r8, %r11;", "mul.f32 %r9, %r7, %r8;"),
         body("ex2.approx.f32 %r8, %r10;", "mul.f32 %r7, %r8, %r8;", "mul.f32 %r9, %r7, %r11;"), EXACT),
        (body("ex2.approx.f32 %r8, %r10;", "mul.f32 %r9, %r8, %r11;"),
         body("ex2.approx.ftz.f32 %r8, %r10;", "mul.f32 %r9, %r8, %r11;"), None),
        (FOUR, largest((8, 13, 11), (7, 8, 12), (9, 10, 7)), EXACT),
        (FOUR, largest((8, 13, 11), (7, 8, 11), (9, 10, 7)), None),
        (FOUR, largest((8, 10, 11), (7, 12, 13), (9, 8, 7), compare="lt"), None),
        (FOUR, largest((8, 10, 11), (7, 12, 13), (9, 8, 7), nan=False), None),
        (largest((8, 10, 11), (9, 8, 12), compare="lt"), largest((8, 11, 12), (9, 8, 10), compare="lt"), EXACT),
        (largest((8, 10, 11), (9, 8, 12), compare="ge", nan=False),
         largest((8, 11, 12), (9, 8, 10), compare="gt", nan=False), EXACT),
    ],
)  # fmt: skip
def test_two_kernels_of_one_exact_value_have_that_name(one: str, other: str, name: str | None) -> None:
    assert between(one, other) == name
    assert between(other, one) == name


def test_a_selection_by_constants_is_what_it_selects() -> None:
    chosen = body("setp.eq.f32 %p1, 0f43000000, 0f00000000;", "mul.f32 %r8, %r10, %r11;", "mul.f32 %r7, %r8, %r12;",
                  "selp.b32 %r9, %r13, %r7, %p1;")  # fmt: skip
    other = body("mul.f32 %r8, %r11, %r12;", "mul.f32 %r9, %r10, %r8;")
    assert between(chosen, other) == EXACT
    assert between(chosen.replace("setp.eq", "setp.ne"), other) is None
