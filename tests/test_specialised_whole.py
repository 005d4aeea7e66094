"""One instruction across a tile of the specialised chain: its configs, and what the compiled kernel's addresses are.

Which element each register holds is the PTX ISA's figure of a wgmma's D; where a staged element lies, what it says of
tensor maps' swizzling.  Both are written down here again, and the PTX of a kernel is held against them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.competing import competing, predicted_us
from gemmdesc.kernels.compiling import compile_variant
from gemmdesc.kernels.config import Feature
from gemmdesc.kernels.specialised import SPECIALISED_CONFIGS, WHOLE_CONFIGS, SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.unasked import compared
from gemmdesc.kernels.variants_specialised import boxes_of
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.speed.schedules import in_a_word
from tests.ptx_values import Values
from tests.test_kernels_choose import desc, meta
from tests.test_specialised import chosen
from tests.test_specialised_compile import cache as cache
from tests.test_specialised_compile import name_of, variants

HOPPER = card_arithmetic("sm_90")
SPECIALISED = Structure.CHAIN_SPECIALISED
#: Where shared memory begins, and the stage that every carried register is about.
BASE, STAGE = 1024, 2
#: The first operand of a wgmma is a list of its sums, then come two descriptors.
STEP = re.compile(r"wgmma\.mma_async\S*m64n(\d+)k16\S* \{([^}]*)\}, (\S+), (\S+), \S+ 1, 1, (\d), (\d);")
LOAD = re.compile(r"cp\.async\.bulk\.tensor\.2d\.shared\S* \[(\S+)\], \[\S+ \{(\S+), (\S+)\}\], \[(\S+)\]")
STORE = re.compile(r"cp\.async\.bulk\.tensor\.2d\.global\S* \[\S+ \{(\S+), (\S+)\}\], \[(\S+)\]")
MATRICES = re.compile(r"stmatrix\.sync\.aligned\.m8n8\.x(\d)\.shared\.b16 \[(%\w+)\], \{([^}]*)\}")
PLAIN = re.compile(r"st\.shared\S*\.[bf]32\s+\[(%\w+)(?:\+(\d+))?\], (\{[^}]*\}|%\w+);")
ROUNDED = re.compile(r"cvt\.rn\.f16x2\.f32\s+(%\w+), (%\w+), (%\w+);")


def whole(m: int, n: int, sharing: str = "shared") -> SpecialisedConfig:
    return next(c for c in WHOLE_CONFIGS if (c.block_m, c.columns, c.sharing) == (m, n, sharing))


@lru_cache(maxsize=8)
def ptx_of(config: SpecialisedConfig, a_rows: bool = True, stored: DType = DType.FLOAT16) -> str:
    wanted = {"A_ROWS": a_rows, "B_ROWS": False, "STORE_BY_DESCRIPTOR": True, "STORE_N": config.piece(stored.itemsize)}
    variant = next(v for v in variants(config, **wanted) if v.stored is stored)
    found: str = compile_variant(variant, capability=90).asm["ptx"]
    return found


def values_of(ptx: str, thread: int = 0) -> Values:
    known = {"%tid.x": thread, "global_smem": BASE, "%ctaid.x": 0, "%nctaid.x": 132, "%laneid": thread % 32}
    return Values(ptx, known, carried=STAGE)


def steps_of(ptx: str) -> list[tuple[int, list[str], int, int, tuple[int, int]]]:
    """Width, registers, descriptors of A and B, and whether each lies by columns, of each instruction in turn."""
    values = values_of(ptx)
    return [
        (int(found[1]), found[2].replace(" ", "").split(","), values.of(found[3].strip(","), at),
         values.of(found[4].strip(","), at), (int(found[5]), int(found[6])))
        for at, line in enumerate(values.lines) if (found := STEP.search(line))
    ]  # fmt: skip


SOME = [
    whole(256, 144), whole(256, 136), whole(128, 160, "turns"), whole(128, 176, "alone"), whole(128, 96, "alone"),
    whole(256, 192),
]  # fmt: skip


def first_at_leisure(configs: list[SpecialisedConfig]) -> list[Any]:
    """The first of them each time, the others where there is time: each compiles for seconds."""
    return [configs[0], *(pytest.param(c, marks=pytest.mark.slow) for c in configs[1:])]


@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("config", first_at_leisure(SOME[:4]), ids=name_of)
def test_descriptors_are_those_that_triton_makes_and_b_has_no_gaps(config: SpecialisedConfig, a_rows: bool) -> None:
    found = steps_of(ptx_of(config, a_rows))
    rows = config.rows // 64
    assert len(found) == 2 * rows * 4
    assert {width for width, *_ in found} == {config.columns}
    # Of a kernel whose steps Triton lowers, with one box of B in a stage, and as many rows.
    like = next(
        c for c in SPECIALISED_CONFIGS
        if (c.block_m, c.columns, c.turns, c.alone) == (config.block_m, 128, config.turns, False) and c.cluster == 1
    )  # fmt: skip
    theirs = [step for step in steps_of(ptx_of(like, a_rows)) if step[0] == 128]
    for side in (2, 3):
        ours, wanted = ([step[side] - some[0][side] for step in some] for some in (found, theirs))
        # What is said beside the address, and how the address goes on from instruction to instruction.
        assert found[0][side] >> 14 == theirs[0][side] >> 14
        assert [step - ours[0] for step in ours] == [step - wanted[0] for step in wanted]
    assert [step[4] for step in found] == [step[4] for step in theirs] == [(0 if a_rows else 1, 0)] * len(found)
    # An instruction's sums: of each 64 rows of a group a set of its own, all steps the same.
    lists = [tuple(step[1]) for step in found]
    assert [lists[i] for i in range(0, len(lists), 4)] == list(dict.fromkeys(lists))
    registers = {name for some in lists[: len(lists) // 2] for name in some}
    assert len(registers) == config.outputs_per_thread


@pytest.mark.parametrize("config", SOME, ids=name_of)
def test_loads_put_each_column_where_the_instruction_looks_for_it(config: SpecialisedConfig) -> None:
    ptx = ptx_of(config)
    values = values_of(ptx)
    loads = [
        [values.of(word.strip(","), at) for word in found.groups()]
        for at, line in enumerate(values.lines) if (found := LOAD.search(line))
    ]  # fmt: skip
    parts = config.groups_of_rows
    a_loads, b_loads = loads[:parts], loads[parts:]
    variant = variants(config, A_ROWS=True, STORE_BY_DESCRIPTOR=True, STORE_N=config.store_n)[0]
    boxes = boxes_of(dict(variant.constants))
    lines = [boxes["b_desc"][0]] + [boxes["b_beside_desc"][0]] * (len(b_loads) - 1)
    assert sum(lines) == config.columns
    assert len({barrier for *_, barrier in loads}) == 1
    found = steps_of(ptx)
    begins = [(step[3] & 0x3FFF) << 4 for step in found[::4]]
    (begin,) = set(begins)
    assert begin % 1024 == 0
    at = 0
    for (target, lane, column, _), count in zip(b_loads, lines, strict=True):
        assert target == begin + 128 * at
        assert lane == a_loads[0][1]
        assert column - b_loads[0][2] == at
        at += count
    # Each group's steps read the rows that were loaded for it.
    halves = [(step[2] & 0x3FFF) << 4 for step in (found[0], found[len(found) // 2])]
    if parts == 2:
        assert halves == [a[0] for a in a_loads]
        assert a_loads[1][2] - a_loads[0][2] == config.rows
        assert halves[1] - halves[0] == config.rows * 128
    else:
        assert halves == [a_loads[0][0]] * 2
    assert f", {(config.block_m + config.columns) * 128};" in "".join(x for x in values.lines if "expect_tx" in x)


def element_of(register: int, thread: int, width: int) -> tuple[int, int]:
    """Row and column of a group's tile that a thread's register is, counted over all its instructions' sums."""
    block, i = divmod(register, width // 2)
    lane, warp = thread % 32, thread % 128 // 32
    return 64 * block + 16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2


def swizzled(offset: int, line: int) -> int:
    """Where the copy engine has a byte of a box whose lines are ``line`` bytes, which it swizzles where it can."""
    spans = {128: 7, 64: 3, 32: 1}
    return offset ^ ((offset >> 7 & spans[line]) << 4) if line in spans else offset


@pytest.mark.parametrize("stored", [DType.FLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("config", first_at_leisure(SOME[:4]), ids=name_of)
def test_every_sum_is_stored_in_its_place(config: SpecialisedConfig, stored: DType) -> None:
    ptx = ptx_of(config, True, stored)
    size, width, rows = stored.itemsize, config.columns, config.rows
    by_thread = [values_of(ptx, thread) for thread in range(128)]
    lines = by_thread[0].lines
    lists = list(dict.fromkeys(tuple(step[1]) for step in steps_of(ptx)))
    number = {name: i for some in (lists[: rows // 64],) for i, name in enumerate(n for part in some for n in part)}
    memory: dict[int, tuple[int, int]] = {}
    pairs: dict[str, tuple[str, str]] = {}
    stored_columns: list[int] = []
    begin = None
    for at, line in enumerate(lines):
        if found := ROUNDED.search(line):
            # The first operand is the upper half.
            pairs[found[1]] = found[3], found[2]
        elif found := MATRICES.search(line):
            names = found[3].replace(" ", "").split(",")
            if pairs[names[0]][0] not in number:
                continue
            for warp in range(4):
                for i, name in enumerate(names):
                    places = [by_thread[32 * warp + 8 * i + row].of(found[2], at) for row in range(8)]
                    for lane in range(32):
                        for half in (0, 1):
                            target = places[lane // 4] + 4 * (lane % 4) + 2 * half
                            memory[target] = element_of(number[pairs[name][half]], 32 * warp + lane, width)
        elif found := PLAIN.search(line):
            names = re.findall(r"%\w+", found[3])
            held = [pairs.get(n, (n,)) for n in names]
            if held[0][0] not in number:
                continue
            for thread in range(128):
                place = by_thread[thread].of(found[1], at) + int(found[2] or 0)
                for i, name in enumerate(n for some in held for n in some):
                    memory[place + size * i] = element_of(number[name], thread, width)
        elif (found := STORE.search(line)) and memory:
            column, row, source = (by_thread[0].of(word.strip(","), at) for word in found.groups())
            begin = begin or (column, row)
            columns = len(memory) // rows
            for r, c in ((r, c) for r in range(rows) for c in range(columns)):
                here = source + swizzled(r * columns * size + c * size, columns * size)
                assert memory.pop(here) == (r, column - begin[0] + c)
            assert not memory
            assert row == begin[1]
            stored_columns += range(column - begin[0], column - begin[0] + columns)
    assert stored_columns == list(range(width))


def test_no_card_has_compared_them_so_none_is_picked_but_they_compete() -> None:
    for m, n, k in ((1024, 4608, 2048), (512, 3072, 7168), (4096, 4096, 4096)):
        at, d = meta(m, n, k, "rcr"), desc(k)
        for asked in ({}, {"structure": SPECIALISED}, {"unasked": frozenset(Feature)}):
            choice = choose_kernel(d, at, HOPPER, **asked)  # type: ignore[arg-type]
            assert isinstance(choice, KernelChoice)
            assert choice.config not in configs_of(SPECIALISED) or not choice.config.whole  # type: ignore[attr-defined]
        named = choose_kernel(d, at, HOPPER, structure=SPECIALISED, configs=WHOLE_CONFIGS)
        assert isinstance(named, KernelChoice)
        assert named.config in WHOLE_CONFIGS
        found = [c for c in competing(d, at, HOPPER) if c.config in WHOLE_CONFIGS]  # type: ignore[union-attr]
        assert len(found) > 10
    assert not any(compared(SPECIALISED, c) for c in WHOLE_CONFIGS)
    assert in_a_word(chosen(desc(2048), meta(512, 4608, 2048, "rcr"), whole(128, 144, "turns"))) == (
        "chain_specialised 128x144x64, 4 warps, 5 stages, turns whole"
    )


def test_the_estimate_has_one_instruction_read_a_once() -> None:
    for sizes, width in (((1024, 4608, 2048), 144), ((2048, 2560, 5120), 160)):
        at = meta(*sizes, "rcr")
        us: dict[bool, float] = {}
        for config in (c for c in SPECIALISED_CONFIGS if (c.block_m, c.columns, c.alone) == (256, width, True)):
            if config.cluster == 1:
                us[config.whole] = predicted_us(chosen(desc(sizes[2]), at, config), at) or 0.0
        assert us[True] < us[False]


@pytest.mark.parametrize("layouts", ["rrr", "crr"])
def test_b_must_lie_along_k(layouts: str) -> None:
    for config in WHOLE_CONFIGS:
        choice = choose_kernel(desc(64), meta(512, 1024, 64, layouts), HOPPER, structure=SPECIALISED, config=config)
        assert not isinstance(choice, KernelChoice)
        assert not variants(config, B_ROWS=True)
        assert variants(config, B_ROWS=False)


def test_configs_refuse_widths_that_no_kernel_has() -> None:
    good = whole(256, 144)
    for bad in (
        {"block_n": 140}, {"block_n": 56}, {"block_n": 264}, {"block_n": 152}, {"beside_n": 16}, {"block_k": 32},
        {"store_n": 16}, {"alone": True}, {"turns": True, "alone": True}, {"cluster_m": 2, "block_n": 136},
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match="got"):
            replace(good, **bad)  # type: ignore[arg-type]
    assert replace(good, cluster_m=2).cluster == 2
    assert (good.columns, good.rest(2), good.rest(4)) == (144, 16, 0)


@pytest.mark.parametrize(
    ("width", "boxes"),
    [(144, {128, 16}), (160, {128, 32}), (136, {128, 8}), (176, {128, 16}), (240, {128, 16}), (224, {128, 32}),
     (192, {128, 64}), (96, {64, 32}), (112, {64, 16})],
)  # fmt: skip
def test_boxes_of_b_are_powers_of_two_that_make_up_the_width(width: int, boxes: set[int]) -> None:
    config = next(c for c in WHOLE_CONFIGS if c.columns == width)
    found: dict[str, Any] = boxes_of(dict(variants(config, A_ROWS=True)[0].constants))
    assert {found["b_desc"], found["b_beside_desc"]} == {(lines, 64) for lines in boxes}
    assert (width - max(boxes)) % min(boxes) == 0
