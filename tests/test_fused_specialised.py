"""Fused calls by the specialised chain: which kernels there are, when they are picked, and what a launch gives them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

from gemmdesc.descriptor import (
    Add,
    CastTo,
    Contiguous,
    Cut,
    EpilogueStep,
    Gelu,
    GEMMDesc,
    Multiply,
    Sigmoid,
    Silu,
    Start,
)
from gemmdesc.descriptor import Approximate as Kind
from gemmdesc.errors import Declined
from gemmdesc.kernels import fused
from gemmdesc.kernels.competing import competing_fused
from gemmdesc.kernels.compiling import KERNELS
from gemmdesc.kernels.fused import SPECIALISED_ENDS, FusedChoice, choose_fused, predicted_end_us
from gemmdesc.kernels.instructions import MOST_OPERANDS
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.preparing import Taken, record
from gemmdesc.kernels.program import Box
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.variants import enumerate_variants
from gemmdesc.plan import needed_variants
from gemmdesc.plan.cards import card_arithmetic
from tests import test_fused
from tests.test_fused import E4M3, FP16, FP32, plain, shapes

CARD = card_arithmetic("sm_90")
SPECIALISED = Structure.CHAIN_SPECIALISED
SIZES = (4096, 6144, 2048)
TURNS = next(c for c in SPECIALISED_ENDS if c.turns and c.columns == 128)


def meta(m: int, n: int, k: int, out: test_fused.DType) -> KernelMeta:
    """With a weight by columns, as tiles of one instruction need it."""
    at = test_fused.meta(m, n, k, out)
    return replace(at, b=replace(at.b, row_stride=1, column_stride=k))


def ending(*steps: EpilogueStep, sizes: tuple[int, int, int] = SIZES, **changes: Any) -> GEMMDesc:
    return plain(epilogue=(CastTo(dtype=FP16), *steps), k=sizes[2], **changes)


def asked(desc: GEMMDesc, at: KernelMeta, **what: Any) -> FusedChoice | Declined:
    return choose_fused(desc, at, CARD, choose_whole, structure=SPECIALISED, **what)


@pytest.mark.parametrize("sizes", [SIZES, (256, 6144, 2048), (333, 264, 1000), (4096, 4096, 64)])
@pytest.mark.parametrize("step", [Silu(), Add(operand="residual"), Gelu(approximate=Kind.NONE)], ids=str)
def test_no_card_has_compared_it_so_only_who_asks_gets_it(sizes: tuple[int, int, int], step: EpilogueStep) -> None:
    desc, at = ending(step, sizes=sizes), meta(*sizes, FP16)
    picked = choose_whole(desc, at, CARD)
    assert isinstance(picked, FusedChoice)
    assert picked.product.structure is Structure.CHAIN_TMA
    found = asked(desc, at)
    assert isinstance(found, FusedChoice)
    assert (found.in_chain, found.store_by_descriptor) == (True, True)
    assert found.product.structure is SPECIALISED
    assert found.program == picked.program
    # Of least estimate among those without clusters.
    others = [asked(desc, at, config=c) for c in SPECIALISED_ENDS if c.cluster == 1]
    times = [predicted_end_us(c.product, at, desc.epilogue) for c in others if isinstance(c, FusedChoice)]
    assert predicted_end_us(found.product, at, desc.epilogue) == min(times)
    if isinstance(step, Silu):
        assert shapes(needed_variants(found, at)) <= shapes(enumerate_variants(232448))


def test_once_compared_the_estimate_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "ends_compared", lambda structure: True)
    at = meta(*SIZES, FP16)
    for step in (Silu(), Add(operand="residual")):
        choice = choose_whole(ending(step), at, CARD)
        assert isinstance(choice, FusedChoice)
        assert choice.product.structure is SPECIALISED
        assert choice.product.config.turns
    # A thin side has a kernel of its own shape.
    thin = choose_whole(ending(Silu(), sizes=(16, 4096, 512)), meta(16, 4096, 512, FP16), CARD)
    assert isinstance(thin, FusedChoice)
    assert thin.product.structure is Structure.CHAIN_TMA


def test_groups_that_take_turns_hide_what_follows() -> None:
    """The estimate of a tile's end: each one's of groups that share tiles, the last one's of those that take turns."""
    at, desc = meta(*SIZES, FP16), ending(Silu())
    shared = next(c for c in SPECIALISED_ENDS if replace(TURNS, turns=False, store_buffers=4) == c)
    added = {}
    for config in (TURNS, shared):
        choice = asked(desc, at, config=config)
        assert isinstance(choice, FusedChoice)
        times = [predicted_end_us(choice.product, at, steps) for steps in ((), desc.epilogue)]
        added[config.turns] = times[1] - times[0]
    assert 0 < 5 * added[True] < added[False]
    # Unless a group is not done when the other one has multiplied.
    short = meta(4096, 6144, 64, FP16)
    choice = asked(ending(Silu(), sizes=(4096, 6144, 64)), short, config=TURNS)
    assert isinstance(choice, FusedChoice)
    slow, quick = (predicted_end_us(choice.product, short, steps) for steps in (desc.epilogue, ()))
    assert slow - quick > 10 * added[True]


def test_what_it_does_not_end_declines() -> None:
    at = meta(*SIZES, FP16)
    for desc, there in (
        (ending(Silu(), output_dtype=FP32), meta(*SIZES, FP32)),
        (ending(Silu(), CastTo(dtype=E4M3, overflows=True), output_dtype=E4M3), meta(*SIZES, E4M3)),
        # By columns, unaligned: neither is stored by descriptor.
        (ending(Silu()), replace(at, out=replace(at.out, row_stride=1, column_stride=4096))),
        (ending(Silu()), replace(at, out=replace(at.out, alignment=2))),
    ):
        found = asked(desc, there)
        assert isinstance(found, Declined)
        assert found.code == "kernel"
        assert isinstance(choose_whole(desc, there, CARD), FusedChoice)
    # One tile for each multiprocessor at most.
    alone = next(c for c in SPECIALISED_ENDS if c.alone)
    assert isinstance(asked(ending(Silu()), at, config=alone), Declined)
    assert isinstance(choose_fused(ending(Silu()), at, CARD, choose_whole, structure=Structure.CHAIN_WIDE), Declined)


def test_candidates_are_the_models_choice_then_specialised_ones_by_their_estimates() -> None:
    at, desc = meta(*SIZES, FP16), ending(Sigmoid(), CastTo(dtype=FP16), Multiply(operand="gate"))
    found = competing_fused(desc, at, CARD)
    assert isinstance(found, tuple)
    assert found[0] == choose_whole(desc, at, CARD)
    structures = [c.product.structure for c in found[1:]]
    assert structures == sorted(structures, key=lambda s: s is not SPECIALISED)
    own = [c for c in found if c.product.structure is SPECIALISED]
    times = [predicted_end_us(c.product, at, desc.epilogue) for c in own]
    assert times == sorted(times)
    assert {c.product.config.sharing for c in own} == {"turns", "shared"}
    assert {c.product.config.cluster for c in own} == {1, 2}
    assert len({(c.product.structure, c.product.config) for c in found}) == len(found) > 40
    assert {c.program for c in found} == {found[0].program}
    cut = Cut(layout=Contiguous(span=128), partial_dtype=FP32, merge_dtype=FP32, start=Start.FIRST)
    assert isinstance(competing_fused(ending(Silu(), sizes=(512, 512, 512), cuts=(cut,)), at, CARD), Declined)


def recorded(choice: FusedChoice, at: KernelMeta, named: Any) -> Any:
    (step,) = record(choice, at, Taken(named=named), torch.device("cpu")).steps
    return step


PAIRS = tuple(c for c in SPECIALISED_ENDS if c.cluster > 1 and not c.alone)


@pytest.mark.parametrize("config", [TURNS, *PAIRS[:2]], ids=str)
def test_a_launch_gives_descriptors_and_the_operands_of_the_program(config: SpecialisedConfig) -> None:
    at = meta(*SIZES, FP16)
    desc = ending(Multiply(operand="row"), CastTo(dtype=FP16), Add(operand="residual"))
    choice = asked(desc, at, config=config)
    assert isinstance(choice, FusedChoice)
    row = replace(at.out, row_stride=1, column_stride=0)
    step = recorded(choice, at, (("row", row), ("residual", at.out)))
    names = [p.name for p in KERNELS["fused_specialised"].params if not p.is_constexpr]
    given = dict(zip(names, step.arguments, strict=True))
    assert step.variant.kernel == "fused_specialised"
    assert (step.variant.fp_fusion, step.variant.cluster) == (False, config.cluster)
    assert step.programs == choice.product.programs == min(config.tiles(4096, 6144), 132)
    constants = dict(step.variant.constants)
    boxes = {name: x.block for name, x in given.items() if isinstance(x, Box)}
    assert boxes["out_desc"] == (config.rows, config.store_n)
    assert boxes["a_desc"] == (config.rows, config.block_k)
    assert (given["M"], given["N"], given["k_tiles"]) == (4096, 6144, 2048 // config.block_k)
    # The operands in the order in which the program reads them.
    assert [given[f"m{i}"] for i in range(MOST_OPERANDS)] == [1, 6144, 0, 0, 0, 0]
    assert [given[f"n{i}"] for i in range(MOST_OPERANDS)] == [0, 1, 0, 0, 0, 0]
    assert constants["COUNT"] == 3
    assert constants["ROUNDS_FIRST"] is True


def test_fewer_columns_are_finished_at_once_where_registers_are_short() -> None:
    at = meta(*SIZES, FP16)
    wide = max((c for c in SPECIALISED_ENDS if c.cluster == 1), key=lambda c: c.outputs_per_thread)
    found = {}
    for name, config, operands in (
        ("none", TURNS, {}), ("bias", TURNS, {"bias": replace(at.out, row_stride=0)}),
        ("matrix", TURNS, {"one": at.out}), ("two", TURNS, {"one": at.out, "two": at.out}),
        ("wide", wide, {"one": at.out, "two": at.out}),
    ):  # fmt: skip
        steps = [Add(operand=o) for o in operands] or [Gelu(approximate=Kind.NONE)]
        choice = asked(ending(*steps), at, config=config)
        assert isinstance(choice, FusedChoice)
        constants = dict(recorded(choice, at, tuple(operands.items())).variant.constants)
        found[name] = constants["FINISH_N"], constants["AHEAD"]
    assert found["none"] == (32, True)
    assert found["bias"][0] >= found["matrix"][0] >= found["two"][0] >= 16
    assert found["matrix"] == (16, True)
    assert found["wide"] == (16, False)
