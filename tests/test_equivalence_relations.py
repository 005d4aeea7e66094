"""What sets two classes apart is named where leaving out one property makes them one."""

from __future__ import annotations

import pytest

from gemmdesc.equivalence import Launch, walk
from gemmdesc.equivalence.relations import RELATIONS, relation_between, relaxed_digests
from tests.equivalence_texts import butterfly, kernel
from tests.test_equivalence_chains import FIRST, LOADS, SECOND, STORES, SUM, ZERO, mma

ORDER, FUSED, BOTH = RELATIONS
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
