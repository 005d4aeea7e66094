"""The specialised chain's barriers, run from its own source over many orders of events: see ``gluon_machine``."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.gluon_machine import SOURCE, Launch, ProtocolError


def drawn_pairs(seed: int) -> Launch:
    """The same of programs in clusters of two, with as many rows and columns of tiles as pairs take, or fewer."""
    random = Random(seed)
    below = random.random() < 0.5
    beside, alone = random.choice([0, 2] if below else [0, 0, 1, 2]), random.random() < 0.4
    m, n, programs = random.randint(1, 17), random.randint(1, 23), random.choice([2, 4, 8])
    if alone:
        programs = 2 * -(-m // (8 if below else 4)) * -(-n // ((4 + beside) * (1 if below else 2)))
    stages = random.randint(2, 5)
    return Launch(
        m=m, n=n, k=random.randint(1, 19), programs=programs, turns=False, alone=alone, stages=stages,
        a_rows=random.random() < 0.5, b_rows=random.random() < 0.5, by_descriptor=random.random() < 0.7,
        out_rows=random.random() < 0.5, dependent=random.random() < 0.5, beside_n=beside,
        store_n=2 if alone else random.choice([1, 2, 4]), store_buffers=stages if alone else random.randint(1, 3),
        group_m=random.randint(1, 3), cluster_m=2 if below else 1, cluster_n=1 if below else 2,
    )  # fmt: skip


def drawn(seed: int) -> Launch:
    """Sizes of none, one or many tiles a program, and of one step to several rounds of the ring."""
    random = Random(seed)
    beside, kind = random.choice([0, 0, 1, 2]), random.choice(["turns", "shared", "alone"])
    m, n, programs = random.randint(1, 17), random.randint(1, 23), random.choice([1, 2, 3, 8])
    if kind == "alone":
        programs = -(-m // 4) * -(-n // (4 + beside))
    stages = random.randint(2, 5)
    return Launch(
        m=m, n=n, k=random.randint(1, 19), programs=programs, turns=kind == "turns", alone=kind == "alone",
        stages=stages, a_rows=random.random() < 0.5, b_rows=random.random() < 0.5,
        by_descriptor=random.random() < 0.7, out_rows=random.random() < 0.5, dependent=random.random() < 0.5,
        beside_n=beside, store_n=2 if kind == "alone" else random.choice([1, 2, 4]),
        store_buffers=stages if kind == "alone" else random.randint(1, 3),
        group_m=random.randint(1, 3),
    )  # fmt: skip


def drawn_whole(seed: int) -> Launch:
    """The same of tiles of one instruction, alone or in pairs, of widths that are two boxes of B or more."""
    random = Random(seed)
    launch = drawn_pairs(seed) if random.random() < 0.3 else drawn(seed)
    # Of pairs below each other, each loads half of every box; what is narrower than a piece is a power of two.
    width = random.choice([4, 6, 10]) if launch.cluster_m == 2 else random.choice([3, 4, 5, 6, 7, 9])
    store = 2 if launch.alone else random.choice([1, 2])
    programs = launch.programs
    if launch.alone:
        high, wide = 4 * launch.cluster_m, width * launch.cluster_n
        programs = launch.cluster_m * launch.cluster_n * -(-launch.m // high) * -(-launch.n // wide)
    return replace(
        launch, whole=True, block_n=width, beside_n=0, b_rows=False, store_n=store, programs=programs,
    )  # fmt: skip


@pytest.mark.parametrize("count", [40, pytest.param(4000, marks=pytest.mark.slow)])
def test_every_order_of_events_gives_every_output_once(count: int) -> None:
    for seed in range(count):
        drawn(seed).run(seed)
        drawn_pairs(seed).run(seed)
        drawn_whole(seed).run(seed)


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
    "staged too early in a tile": ("tma.store_wait(BUFFERS - 1)", "tma.store_wait(BUFFERS)", False),
    "staged too early in the next": ("NUMBER == 0:\n        tma.store_wait(0)", "NUMBER == 0:\n        pass",
                                     False),
    "stored before a fence": ("    buffer.store(rounded)\n    fence_async_shared()\n",
                              "    buffer.store(rounded)\n", False),
    "ends before all is stored": ("program ends.\n        tma.store_wait(0)", "program ends.\n        pass", False),
    "the next kernel starts early": ("if index + programs >= work:", "if True:", False),
    "nobody waits for the kernel in front": ("        wait_for_previous()\n", "        pass\n", False),
}  # fmt: skip


_THERE, _HERE = "arrive_there(empty.index(before), 1 - rank", "arrive_there(empty.index(before), rank"
_LAST = "            mbarrier.wait(empty.index(stage), parity ^ 1)\n            stage, parity"
_BEGIN = "    if DEPENDENT:\n        wait_for_previous()\n    rank"
#: The same of programs in clusters.
PAIR_SLIPS = {
    "only own groups empty a stage": (f"{_THERE}, step > 0)", "pass"),
    "the last stage is handed back here only": (f"{_THERE}, True)", "pass"),
    "a stage is handed back there a step early": (f"{_THERE}, step", "arrive_there(empty.index(stage), 1 - rank, step"),
    "a stage is handed back here twice": (_THERE, _HERE),
    "one program empties a stage for both": ("count=PARTS * PAIR", "count=PARTS"),
    "a program ends while the other comes": (_LAST, "            stage, parity"),
    "the last stages are not all waited for": ("for _ in gl.static_range(STAGES)", "for _ in gl.static_range(1)"),
    "the loading warp does not meet": (f"    if PAIR == 2:\n        meet()\n{_BEGIN}", _BEGIN),
    "barriers are not published": ("publish_barriers()\n    gl.warp", "pass\n    gl.warp"),
    "both load the first half of B": ("line + first, along, first", "line, along, first"),
    "both load to the first half": ("line + first, along, first", "line + first, along, 0"),
    "both load the first rows of A": ("rows = m + rank * ROWS", "rows = m"),
    "rows of A for the other group": ("a_ring.index(stage * PARTS + rank)", "a_ring.index(stage * PARTS + 1 - rank)"),
    "both have the upper tile": ("m += rank * BLOCK_M", "pass"),
    "both have the left tile": ("n += rank * WIDTH", "pass"),
    "pairs are counted as programs": ("gl.num_programs(0) // PAIR\n    number", "gl.num_programs(0)\n    number"),
    "only own bytes are expected": ("STEP_BYTES)", "STEP_BYTES // 2)"),
    "warps that idle do not meet": ('must meet."""\n    meet()', 'must meet."""\n    pass'),
}  # fmt: skip


#: The same of tiles of one instruction.
WHOLE_SLIPS = {
    "units of another stage": ("b = b_ring.index(stage * UNITS)", "b = b_ring.index(stage)"),
    "smaller boxes all go to one place": ("(LINES + i * REST) // PATTERN", "LINES // PATTERN"),
    "smaller boxes are all the first one": ("n + LINES + i * REST, rank", "n + LINES, rank"),
    "pieces are all the first one": ("piece_of(sums, i * STORE_N,", "piece_of(sums, 0,"),
    "the rest is the first piece": ("piece_of(sums, PIECES * STORE_N,", "piece_of(sums, 0,"),
    "the rest is stored in front": ("n = column + PIECES * STORE_N", "n = column"),
    "lower rows are the upper ones": ("joined(sums, ACROSS + FIRST, COUNT)", "joined(sums, FIRST, COUNT)"),
    "right and left are exchanged": ("gl.join(left, right)", "gl.join(right, left)"),
    "sums of another tile go on": ("sums, step > 0, BLOCK_N", "sums, True, BLOCK_N"),
    "sums are read in the making": ("sums = warpgroup_mma_wait(0, deps=sums)", "pass"),
    "a piece too early": ("row, n, staging, i, STORE_BUFFERS", "row, n, staging, -1, STORE_BUFFERS"),
    "each loads the upper half of B": ("n + first, k, first", "n, k, first"),
}  # fmt: skip


def finished(launch: Launch, seed: int) -> Launch:
    """The same, each tile finished by a program before it is stored."""
    return replace(launch, by_descriptor=True, out_rows=True, finished=Random(seed).choice([1, 2, 4]))


@pytest.mark.parametrize("draw", [drawn, drawn_pairs, drawn_whole])
def test_tiles_are_finished_where_they_lie(draw: Any) -> None:
    for seed in range(70):
        finished(draw(seed), seed).run(seed)


#: Other slips: what is in the source of what finishes tiles, and what instead.
FINISH_SLIPS = {
    "operands of the part before": ("column + (i + 1) * WIDTH, m, n, M, N", "column + i * WIDTH, m, n, M, N"),
    "parts the other way round": ("whole_of(parts[:HALF]), whole_of(parts[HALF:])",
                                  "whole_of(parts[HALF:]), whole_of(parts[:HALF])"),
    "a piece in the place of its last part": ("column + (i + 1 - EACH) * WIDTH", "column + i * WIDTH"),
    "all pieces staged in one place": ("NUMBER + i // EACH", "NUMBER"),
    "columns beside finished as the first": ("beside, out_beside_desc, rows, n + BLOCK_N, M, N, staging_beside",
                                             "beside, out_beside_desc, rows, n, M, N, staging_beside"),
}  # fmt: skip


@pytest.mark.parametrize("slip", FINISH_SLIPS)
def test_a_slip_in_finishing_is_found(slip: str) -> None:
    right, wrong = FINISH_SLIPS[slip]
    assert right in SOURCE
    launches = [finished(draw(seed), seed) for seed in range(60) for draw in (drawn, drawn_whole)]
    assert fails(launches, SOURCE.replace(right, wrong))


def fails(launches: list[Launch], source: str | None = None) -> bool:
    """Whether one of them does."""
    for seed, launch in enumerate(launches):
        try:
            launch.run(seed, source)
        except ProtocolError:
            return True
    return False


def test_a_tile_that_is_not_alone_must_not_be_staged_in_the_ring() -> None:
    assert fails([Launch(m=12, n=12, k=10, programs=1, turns=False, alone=True, stages=3, store_buffers=3)] * 60)
    assert not fails([Launch(m=12, n=12, k=10, programs=9, turns=False, alone=True, stages=3, store_buffers=3)] * 5)


@pytest.mark.parametrize("turns", [False, True])
def test_one_stage_is_too_few(turns: bool) -> None:
    """Which is why configs have two at least."""
    assert fails([Launch(m=12, n=12, k=10, programs=1, turns=turns, stages=1)] * 5)


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_found(slip: str) -> None:
    right, wrong, in_turns = SLIPS[slip]
    source = SOURCE
    assert right in source
    launches = [
        Launch(
            m=12, n=12, k=10, programs=1 + seed % 2, turns=in_turns or bool(seed % 2), stages=2 + seed % 3,
            beside_n=2 * (seed % 2), store_buffers=1 + seed % 2, store_n=1, dependent=True,
        )
        for seed in range(120)
    ]  # fmt: skip
    assert fails(launches, source.replace(right, wrong))


@pytest.mark.parametrize("slip", PAIR_SLIPS)
def test_a_slip_of_pairs_is_found(slip: str) -> None:
    right, wrong = PAIR_SLIPS[slip]
    source = SOURCE
    assert right in source
    launches = [
        Launch(
            m=13, n=20, k=10, programs=2 + 2 * (seed % 2), turns=False, stages=2 + seed % 3,
            beside_n=2 * (seed % 3 > 0), store_buffers=1 + seed % 2, store_n=1, cluster_m=1 + seed % 2,
            cluster_n=2 - seed % 2,
        )
        for seed in range(120)
    ]  # fmt: skip
    assert fails(launches, source.replace(right, wrong))


@pytest.mark.parametrize("slip", WHOLE_SLIPS)
def test_a_slip_of_tiles_of_one_instruction_is_found(slip: str) -> None:
    right, wrong = WHOLE_SLIPS[slip]
    assert SOURCE.count(right) == 1
    assert fails([drawn_whole(seed) for seed in range(120)], SOURCE.replace(right, wrong))


def test_a_tile_beyond_the_edge_takes_the_same_steps() -> None:
    """One row, or one column, of tiles: the other program of each pair has none."""
    for seed in range(40):
        below = seed % 2
        Launch(
            m=3 if below else 9, n=9 if below else 4, k=7, programs=2 * (1 + seed % 3), turns=False, stages=2,
            cluster_m=1 + below, cluster_n=2 - below, by_descriptor=seed % 4 < 2,
        ).run(seed)  # fmt: skip
