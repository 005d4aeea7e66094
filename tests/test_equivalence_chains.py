"""Matrix steps that accumulate are one node: whoever looks in between, the chain is the same."""

from __future__ import annotations

import numpy as np
import pytest

from gemmdesc.equivalence import Answer, Different, Equal, Kernel, Launch, Unknown, equivalent, walk
from gemmdesc.equivalence.draws import DRAWS, draw
from gemmdesc.equivalence.evaluate import evaluate
from gemmdesc.equivalence.matrix_steps import modelled_steps
from gemmdesc.equivalence.merges import PADDED, SWAPPED
from gemmdesc.equivalence.printing import output_tree
from tests.equivalence_texts import kernel

#: Bytes from one element of a thread to its next.
APART = 384
LOADS = "\n".join(f"ld.global.b32 %r{10 + i}, [%rd4+{APART * i}];" for i in range(10)) + "\nmov.b32 %r20, 0;\n"
ZERO = "%r20, %r20, %r20, %r20"
SUM = "%r30, %r31, %r32, %r33"
#: An instruction of two kinds on each of two fragments.
FIRST, SECOND = ("%r10, %r11, %r12, %r13", "%r14, %r15"), ("%r15, %r16, %r17, %r18", "%r19, %r12")
STORES = "\n".join(f"st.global.b32 [%rd5+{APART * i}], %r{30 + i};" for i in range(4))
#: What makes every element known: registers packed and unpacked.
LOOK = "mov.b64 %rd20, {%r30, %r31};\nmov.b64 {%r30, %r31}, %rd20;\n"
RENAME = "\n".join(f"mov.b32 %r{50 + i}, %r{30 + i};" for i in range(4)) + "\n"
RENAMED = "%r50, %r51, %r52, %r53"


def mma(fragments: tuple[str, str], before: str, *, into: str = SUM, k: int = 16) -> str:
    a, b = fragments
    if k == 8:
        a, b = ", ".join(a.split(", ")[:2]), b.split(", ")[0]
    return f"mma.sync.aligned.m16n8k{k}.row.col.f32.f16.f16.f32 {{{into}}}, {{{a}}}, {{{b}}}, {{{before}}};\n"


def ask(one: str, other: str, *merges: str, threads: int = 32) -> Answer:
    texts = (kernel(LOADS + body + STORES, threads=threads) for body in (one, other))
    return equivalent(*(Kernel(name="k", ptx=text) for text in texts), merges=merges)


PLAIN = mma(FIRST, ZERO) + mma(SECOND, SUM) + mma(FIRST, SUM)


@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize(
    "other",
    [
        mma(FIRST, ZERO) + LOOK + mma(SECOND, SUM) + mma(FIRST, SUM),
        mma(FIRST, ZERO) + mma(SECOND, SUM) + LOOK + mma(FIRST, SUM) + LOOK,
        mma(FIRST, ZERO) + RENAME + mma(SECOND, RENAMED) + mma(FIRST, SUM),
        mma(FIRST, ZERO, into=RENAMED) + mma(SECOND, RENAMED, into=RENAMED) + mma(FIRST, RENAMED),
        mma(FIRST, ZERO) + "add.f32 %r50, %r30, %r31;\n" + mma(SECOND, SUM) + mma(FIRST, SUM),
    ],
    ids=["looked at once", "looked at twice", "moved", "other registers", "read and dropped"],
)
def test_looking_between_the_steps_changes_nothing(other: str, threads: int) -> None:
    assert isinstance(ask(PLAIN, other, threads=threads), Equal)


@pytest.mark.parametrize("look", ["", LOOK], ids=["chains", "one by one"])
@pytest.mark.parametrize(
    "other",
    [
        (FIRST, SECOND, SECOND),
        (SECOND, FIRST, FIRST),
        (FIRST, (SECOND[0], FIRST[1]), FIRST),
        (FIRST, SECOND),
        (FIRST, SECOND, FIRST, FIRST),
    ],
    ids=["another fragment", "another order", "another column", "fewer", "more"],
)
def test_other_steps_are_different(other: tuple[tuple[str, str], ...], look: str) -> None:
    body = ""
    for i, fragments in enumerate(other):
        body += mma(fragments, SUM if i else ZERO) + look
    assert isinstance(ask(PLAIN, body), Different)


@pytest.mark.parametrize("look", ["", LOOK], ids=["chains", "one by one"])
def test_accumulators_that_change_places_are_different(look: str) -> None:
    registers = (31, 30, 32, 33), (30, 30, 32, 33), (32, 33, 30, 31), (30, 31, 32, 20)
    for before in (", ".join(f"%r{i}" for i in numbers) for numbers in registers):
        crossed = mma(FIRST, ZERO) + look + mma(SECOND, before) + mma(FIRST, SUM)
        assert isinstance(ask(PLAIN, crossed), Different), before
        assert isinstance(ask(crossed, mma(FIRST, ZERO) + mma(SECOND, before) + LOOK + mma(FIRST, SUM)), Equal)


def test_two_instructions_are_two_chains() -> None:
    mixed = mma(FIRST, ZERO, k=8) + mma(SECOND, SUM)
    assert isinstance(ask(mixed, mma(FIRST, ZERO) + mma(SECOND, SUM, k=8)), Different)
    assert isinstance(ask(mixed, mma(FIRST, ZERO, k=8) + LOOK + mma(SECOND, SUM)), Equal)


def test_what_a_chain_starts_from_is_a_part_of_it() -> None:
    data = mma(FIRST, "%r10, %r11, %r12, %r13") + mma(SECOND, SUM)
    assert isinstance(ask(data, mma(FIRST, ZERO) + mma(SECOND, SUM)), Different)
    assert isinstance(ask(data, mma(FIRST, "%r10, %r11, %r12, %r13") + LOOK + mma(SECOND, SUM)), Equal)
    added = "".join(f"add.rn.f32 %r{i}, %r{i}, %r10;\n" for i in range(30, 34))
    assert isinstance(ask(mma(FIRST, ZERO) + added + mma(SECOND, SUM), mma(FIRST, ZERO) + mma(SECOND, SUM)), Different)


@pytest.mark.parametrize("at", [0, 1])
def test_poison_in_a_fragment_goes_through_the_chain(at: int) -> None:
    broken = (FIRST[0].replace("%r11", "%r90"), FIRST[1]), (SECOND[0], SECOND[1].replace("%r19", "%r90"))
    steps = [broken[0] if at == 0 else FIRST, SECOND if at == 0 else broken[1]]
    answer = ask(PLAIN, mma(steps[0], ZERO) + mma(steps[1], SUM) + mma(FIRST, SUM))
    assert isinstance(answer, Unknown)
    assert answer.code == "poison"
    answer = ask(PLAIN, mma(FIRST, ZERO.replace("%r20", "%r90")) + mma(SECOND, SUM))
    assert isinstance(answer, Unknown)
    assert answer.code == "poison"


def test_merges_hold_in_chains() -> None:
    """Padded and short steps are one chain; each step's operands may change places by itself."""
    half = ("%r10, %r11, %r20, %r20", "%r14, %r20")
    padded, short = mma(half, ZERO) + mma(half, SUM), mma(half, ZERO, k=8) + mma(half, SUM, k=8)
    assert isinstance(ask(padded, short), Different)
    assert isinstance(ask(padded, short, PADDED), Equal)
    # Where rows and columns hold one fragment, a step and its mirror image meet in the elements of the diagonal alone.
    assert isinstance(ask(PLAIN, mma(FIRST, ZERO) + mma(SECOND, SUM), SWAPPED), Different)
    assert isinstance(ask(PLAIN, mma(FIRST, ZERO) + LOOK + mma(SECOND, SUM) + mma(FIRST, SUM), SWAPPED), Equal)


def test_a_chain_is_worked_out_step_by_step() -> None:
    """Also chains of several lengths at once: a step starts from what the one before, of another launch, leaves."""
    steps = modelled_steps("Hopper")
    mixed = ("%r21, %r11, %r12, %r13", FIRST[1])
    body = LOADS + "xor.b32 %r21, %r10, %r16;\n" + mma(mixed, ZERO, into=RENAMED) + mma(FIRST, ZERO) + mma(SECOND, SUM)
    body += STORES + "".join(f"\nst.global.b32 [%rd5+{APART * (4 + i)}], %r{50 + i};" for i in range(4))
    begun = "\n".join(f"ld.global.b32 %r{30 + i}, [%rd4+{APART * (16 + i)}];" for i in range(4)) + "\n"
    for name in ("plain", "twelve decades", "NaN with payloads", "subnormals"):
        assert name in DRAWS
        memory = draw(name, "fp16", 0, 2048)[: 10 * APART]
        got = evaluate(walk(kernel(body), Launch()), {0: memory}, matrix_step=steps)[1][1]
        first = evaluate(walk(kernel(LOADS + mma(FIRST, ZERO) + STORES), Launch()), {0: memory}, matrix_step=steps)
        both = np.zeros(20 * APART, np.uint8)
        both[: len(memory)] = memory
        both[16 * APART + first[1][0]] = first[1][1]
        second = walk(kernel(LOADS + begun + mma(SECOND, SUM) + STORES), Launch())
        assert (evaluate(second, {0: both}, matrix_step=steps)[1][1] == got[:512]).all(), name
        alone = walk(kernel(LOADS + "xor.b32 %r21, %r10, %r16;\n" + mma(mixed, ZERO) + STORES), Launch())
        assert (evaluate(alone, {0: memory}, matrix_step=steps)[1][1] == got[512:]).all(), name


def test_a_chain_prints_its_start_then_rows_and_columns() -> None:
    lines = output_tree(walk(kernel(LOADS + PLAIN + STORES), Launch()), 1, 0).splitlines()
    assert lines[0] == "3 steps of mma.m16n8k16.f32.f16.f16.f32"
    assert lines[1] == "  0x00000000"
    assert sum(line.startswith("  ") and not line.startswith("   ") for line in lines) == 7


BLOCKS = "mov.u32 %r70, %ctaid.x;\nmul.wide.u32 %rd30, %r70, 4096;\nadd.s64 %rd5, %rd5, %rd30;\n"


def test_blocks_that_part_are_read_one_by_one_and_threads_that_part_are_not() -> None:
    """Blocks side by side may run chains of several lengths, as slices of k do; within a block nobody stays behind."""
    launch = Launch(grid=(3, 1, 1))
    chain = BLOCKS + LOADS + mma(FIRST, ZERO)

    def parted(register: str) -> Kernel:
        body = f"setp.lt.u32 %p1, {register}, 1;\n@%p1 bra SHORT;\n" + mma(SECOND, SUM) + "SHORT:\n"
        return Kernel(name=register, ptx=kernel(chain + body + STORES), launch=launch)

    whole = Kernel(name="whole", ptx=kernel(chain + mma(SECOND, SUM) + STORES), launch=launch)
    answer = equivalent(parted("%r70"), whole)
    assert isinstance(answer, Different)
    assert answer.element.offset == 0
    assert answer.one.startswith("1 steps")
    walked = walk(parted("%r70").ptx, launch)
    assert len(walked.stored.ids) == 3 * 4 * 128
    assert output_tree(walked, 1, 4096) == output_tree(walk(whole.ptx, launch), 1, 4096)
    answer = equivalent(parted("%r1"), whole)
    assert isinstance(answer, Unknown)
    assert answer.code == "divergence"
