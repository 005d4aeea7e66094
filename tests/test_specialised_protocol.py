"""The specialised chain's barriers, run from its own source over many orders of events: see ``gluon_machine``."""

from __future__ import annotations

from random import Random

import pytest

from tests.gluon_machine import SOURCE, Launch, ProtocolError


def drawn(seed: int) -> Launch:
    """Sizes of none, one or many tiles a program, and of one step to several rounds of the ring."""
    random = Random(seed)
    beside, turns = random.choice([0, 0, 1, 2]), random.random() < 0.5
    return Launch(
        m=random.randint(1, 17), n=random.randint(1, 23), k=random.randint(1, 19), programs=random.choice([1, 2, 3, 8]),
        turns=turns, stages=random.randint(2, 5), a_rows=random.random() < 0.5, b_rows=random.random() < 0.5,
        by_descriptor=random.random() < 0.7, out_rows=random.random() < 0.5, dependent=random.random() < 0.5,
        beside_n=beside, store_n=random.choice([1, 2, 4]), store_buffers=random.randint(1, 3),
        group_m=random.randint(1, 3),
    )  # fmt: skip


@pytest.mark.parametrize("count", [150, pytest.param(4000, marks=pytest.mark.slow)])
def test_every_order_of_events_gives_every_output_once(count: int) -> None:
    for seed in range(count):
        drawn(seed).run(seed)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("tiles", [0, 1, 2, 7])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 11])
def test_any_number_of_tiles_and_steps(turns: bool, tiles: int, steps: int) -> None:
    """One program has ``tiles`` tiles, and where that is none, another one has one."""
    programs = 1 if tiles else 2
    for seed in range(3):
        launch = Launch(m=4 * max(1, tiles), n=6, k=2 * steps, programs=programs, turns=turns, stages=3, beside_n=2)
        launch.run(seed)


#: What stands in the kernel, what a slip would make of it, and whether the slip shows only where groups take turns.
SLIPS = {
    "no turn is waited for": ("mbarrier.wait(turns.index(GROUP), turn)", "pass", True),
    "the other group is first": ("turn = 1 - FIRST", "turn = FIRST", True),
    "turns are not told apart": ("turn ^= 1", "pass", True),
    "no turn is handed over": ("mbarrier.arrive(turns.index(1 - GROUP))", "pass", True),
    "a group hands the turn to itself": ("turns.index(1 - GROUP)", "turns.index(GROUP)", True),
    "steps of the other group are not counted": ("number += EVERY", "number += 1", True),
    "no stage is waited for": ("mbarrier.wait(empty.index(stage), parity ^ 1)", "pass", False),
    "no box is waited for": ("mbarrier.wait(full.index(stage), parity)", "pass", False),
    "the first round waits": ("empty.index(stage), parity ^ 1", "empty.index(stage), parity", False),
    "one group empties a stage for both": ("empty.index(stage), count=PARTS", "empty.index(stage), count=1", False),
    "too many steps in flight": ("2 if BESIDE_N > 0 else 1", "3 if BESIDE_N > 0 else 2", False),
    "a stage is handed back a step early": ("empty.index(before), pred", "empty.index(stage), pred", False),
    "the last stage is kept": ("        mbarrier.arrive(empty.index(before))\n", "", False),
    "the ring wraps a step late": ("parity ^ (following == 0)", "parity ^ (following == 1)", False),
    "sums go on from tile to tile": ("use_acc=step > 0", "use_acc=True", False),
    "too many bytes are expected": ("STEP_BYTES)", "STEP_BYTES + 2)", False),
    "too few bytes are expected": ("STEP_BYTES)", "STEP_BYTES - 4)", False),
    "staged too early in a tile": ("tma.store_wait(STORE_BUFFERS - 1)", "tma.store_wait(STORE_BUFFERS)", False),
    "staged too early in the next": ("if NUMBER == 0:\n            tma.store_wait(0)", "if NUMBER == 0:\n            pass",
                                     False),
    "stored before a fence": ("        buffer.store(sums.to(out_desc.dtype))\n        fence_async_shared()\n",
                              "        buffer.store(sums.to(out_desc.dtype))\n", False),
    "ends before all is stored": ("program ends.\n        tma.store_wait(0)", "program ends.\n        pass", False),
    "the next kernel starts early": ("if index + programs >= work:", "if True:", False),
    "nobody waits for the kernel in front": ("        wait_for_previous()\n", "        pass\n", False),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_found(slip: str) -> None:
    right, wrong, in_turns = SLIPS[slip]
    source = SOURCE.read_text()
    assert right in source
    with pytest.raises(ProtocolError):
        for seed in range(120):
            launch = Launch(
                m=12, n=12, k=10, programs=1 + seed % 2, turns=in_turns or bool(seed % 2), stages=2 + seed % 3,
                beside_n=2 * (seed % 2), store_buffers=1 + seed % 2, store_n=1, dependent=True,
            )  # fmt: skip
            launch.run(seed, source.replace(right, wrong))
