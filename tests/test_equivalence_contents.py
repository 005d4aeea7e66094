"""Tables that a launch fixes, integers reduced over a warp, and launches that go on from what another one left."""

from __future__ import annotations

import numpy as np
import pytest

from gemmdesc.equivalence import Different, Equal, Kernel, Launch, equivalent, walk
from gemmdesc.equivalence.evaluate import evaluate
from gemmdesc.equivalence.printing import output_tree
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.walk import FOLLOWS
from tests.equivalence_texts import kernel

#: Parameter 1 holds the places that lanes load from parameter 0; the sum with their own elements goes to 4096 behind 1.
INDIRECT = """ld.global.b32 %r2, [%rd5];
mul.wide.u32 %rd6, %r2, 4;
add.s64 %rd7, %rd1, %rd6;
ld.global.b32 %r3, [%rd7];
ld.global.b32 %r4, [%rd4];
add.f32 %r5, %r3, %r4;
st.global.b32 [%rd5+4096], %r5;
"""


def table(values: object) -> dict[int, bytes]:
    return {1: np.asarray(values, np.int32).tobytes()}


def test_a_table_of_places_is_as_good_as_an_argument() -> None:
    text, order = kernel(INDIRECT), np.arange(32)[::-1]
    walked = walk(text, Launch(contents=table(order)))
    data = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    _, got = evaluate(walked, {0: data.view(np.uint8)})[1]
    assert (got.view(np.float32) == data[order] + data).all()
    one, other = (Kernel(name="k", ptx=text, launch=Launch(contents=table(x))) for x in (order, np.roll(order, 1)))
    answer = equivalent(one, one)
    assert isinstance(answer, Equal)
    assert any("contents {1: " in line for line in answer.assuming)
    assert isinstance(equivalent(one, other), Different)


@pytest.mark.parametrize("values", [[*range(31)], []])
def test_a_table_ends_where_it_ends(values: list[int]) -> None:
    with pytest.raises(RefusalError, match="leaves the"):
        walk(kernel(INDIRECT), Launch(contents=table(values)))


def test_without_a_table_data_steer_nothing() -> None:
    answer = equivalent(*(Kernel(name="k", ptx=kernel(INDIRECT)) for _ in range(2)))
    assert not isinstance(answer, Equal | Different)


def test_a_table_that_the_launch_writes_is_refused() -> None:
    neighbour = "xor.b32 %r9, %r1, 1;\nmul.wide.u32 %rd8, %r9, 4;\n"
    neighbour += "add.s64 %rd9, %rd2, %rd8;\nld.global.b32 %r2, [%rd9];"
    text = INDIRECT.replace("[%rd5+4096]", "[%rd5]").replace("ld.global.b32 %r2, [%rd5];", neighbour)
    with pytest.raises(RefusalError, match="stores"):
        walk(kernel(text), Launch(contents=table(range(32))))


@pytest.mark.parametrize(
    ("opcode", "wanted"), [("max.s32", 30), ("min.s32", -7), ("max.u32", 2**32 - 7), ("add.u32", 458)]
)
def test_integers_are_reduced_over_a_warp(opcode: str, wanted: int) -> None:
    numbers = np.arange(32)
    numbers[31] = -7
    body = f"ld.global.b32 %r2, [%rd5];\nredux.sync.{opcode} %r3, %r2, -1;\nst.global.b32 [%rd5+4096], %r3;"
    walked = walk(kernel(body), Launch(contents=table(numbers)))
    _, got = evaluate(walked, {})[1]
    assert (got.view(np.uint32) == np.uint32(wanted % 2**32)).all()


@pytest.mark.parametrize(
    "line",
    [
        "redux.sync.max.s32 %r3, %r2, 65535;",
        "@%p1 redux.sync.max.s32 %r3, %r2, -1;",
        "redux.sync.xor.b32 %r3, %r2, -1;",
        "redux.sync.max.s32 %r3, %r90, -1;",
    ],
)
def test_other_reductions_of_integers_are_refused(line: str) -> None:
    body = f"ld.global.b32 %r2, [%rd5];\nsetp.lt.u32 %p1, %r1, 3;\n{line}\nst.global.b32 [%rd5+4096], %r3;"
    with pytest.raises(RefusalError):
        walk(kernel(body), Launch(contents=table(range(32))))
    data = kernel("ld.global.b32 %r2, [%rd4];\nredux.sync.max.s32 %r3, %r2, -1;\nst.global.b32 [%rd5], %r3;")
    with pytest.raises(RefusalError, match="data"):
        walk(data, Launch())


@pytest.mark.parametrize(("opcode", "wanted"), [("min.relu.s32", [0, 0, 2, 3]), ("max.relu.s32", [3, 3, 3, 5])])
def test_the_smaller_or_larger_integer_is_clamped_from_below(opcode: str, wanted: list[int]) -> None:
    numbers = np.array([-7, -1, 2, 5] * 8)
    body = f"ld.global.b32 %r2, [%rd5];\n{opcode} %r3, %r2, 3;\nst.global.b32 [%rd5+4096], %r3;"
    walked = walk(kernel(body), Launch(contents=table(numbers)))
    _, got = evaluate(walked, {})[1]
    assert got.view(np.uint32).ravel()[:4].tolist() == wanted
    for line in ("min.relu.u32 %r3, %r2, 3;", "add.relu.s32 %r3, %r2, 3;"):
        with pytest.raises(RefusalError):
            walk(kernel(body.replace(f"{opcode} %r3, %r2, 3;", line)), Launch(contents=table(numbers)))
    with pytest.raises(RefusalError, match="data"):
        walk(kernel(body.replace("[%rd5];", "[%rd4];")), Launch())


LEAVE = "ld.global.b32 %r2, [%rd4];\nadd.f32 %r3, %r2, %r2;\nst.global.b32 [%rd5], %r3;"
GO_ON = "ld.global.b32 %r2, [%rd4];\nmul.rn.f32 %r3, %r2, %r2;\nst.global.b32 [%rd5], %r3;"
BOTH = "ld.global.b32 %r2, [%rd4];\nadd.f32 %r3, %r2, %r2;\nmul.rn.f32 %r3, %r3, %r3;\nst.global.b32 [%rd5], %r3;"


def test_a_launch_goes_on_from_what_the_one_before_left() -> None:
    first = walk(kernel(LEAVE), Launch())
    second = walk(kernel(GO_ON), Launch(), after=first, taking={0: 1})
    whole = walk(kernel(BOTH), Launch())
    assert [output_tree(second, 1, 4 * i) for i in range(32)] == [output_tree(whole, 1, 4 * i) for i in range(32)]
    assert FOLLOWS in second.assuming
    assert FOLLOWS not in first.assuming


def test_parts_of_what_was_left_are_parts_of_its_values() -> None:
    first = walk(kernel(LEAVE), Launch())
    loads = "ld.global.v2.b16 {%rs1, %rs2}, [%rd4];\nmov.b32 %r2, {%rs1, %rs2};"
    halves = GO_ON.replace("ld.global.b32 %r2, [%rd4];", loads)
    second = walk(kernel(halves), Launch(), after=first, taking={0: 1})
    assert output_tree(second, 1, 4) == output_tree(walk(kernel(BOTH), Launch()), 1, 4)


def test_what_no_launch_left_is_not_taken_for_data() -> None:
    first = walk(kernel(LEAVE), Launch())
    with pytest.raises(RefusalError, match="nothing says"):
        walk(kernel(GO_ON), Launch(), after=first, taking={})
    with pytest.raises(RefusalError, match="nothing says"):
        walk(kernel(GO_ON), Launch(), after=first)
    with pytest.raises(RefusalError, match="stores nothing"):
        walk(kernel(GO_ON), Launch(), after=first, taking={0: 0})
    with pytest.raises(RefusalError, match="never stored"):
        walk(kernel(GO_ON.replace("[%rd4]", "[%rd4+4]")), Launch(), after=first, taking={0: 1})
    with pytest.raises(RefusalError, match="another chip"):
        walk(kernel(GO_ON).replace("sm_90a", "sm_80"), Launch(), after=first, taking={0: 1})
