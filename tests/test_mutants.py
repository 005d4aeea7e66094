"""Single-field mutants: each differs from the original, and every field has one where it applies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmdesc.descriptor import Contiguous, GEMMDesc, ResidueFirst, ResidueLast, ScalarStep, Short, Start, Strided
from gemmdesc.dtypes import DType
from gemmdesc.mutants import mutants
from gemmdesc.normal_form import normal_form
from gemmdesc.rule import evaluate_rule
from tests.probe_samples import BF16, FP16, FP32, Order

K = 1003
CHAIN = {"instruction_k", "residue"}
SPLIT = CHAIN | {"chunk", "slice_order", "partial_type", "merge_type"}


def desc_of(order: Order, k: int = K, splitk: int = 3, output: DType = FP16) -> GEMMDesc:
    desc = evaluate_rule(order.rule(FP16, output), {"k": k, "splitk_num": splitk})
    assert isinstance(desc, GEMMDesc)
    return desc


CASES = [
    (Order(), CHAIN),
    (Order(instruction_k=8, loop_step=64), CHAIN),
    (Order(summed="sub(k, 7)"), CHAIN | {"tail"}),
    (Order(spans=("round_up(floordiv(k, splitk_num), 64)",)), SPLIT),
    (Order(spans=("round_up(floordiv(k, splitk_num), 64)",), short=Short.FIRST), SPLIT),
    # The start shows only where a partial may be -0.0, which takes a narrow type.
    (Order(spans=("round_up(floordiv(k, splitk_num), 64)",), partial=FP16), SPLIT | {"start"}),
    (Order(spans=("300",), partial=FP16, merge=FP16, start=Start.ZERO, loop_step=32), SPLIT | {"start"}),
    (Order(spans=("256",), summed="sub(k, 100)", partial=FP16), SPLIT | {"start", "tail"}),
    (Order(spans=("300", "128")), SPLIT),
]


@pytest.mark.parametrize("output", [FP16, FP32])
@pytest.mark.parametrize(("order", "kinds"), CASES)
def test_kinds_where_they_apply(order: Order, kinds: set[str], output: DType) -> None:
    found = mutants(desc_of(order, output=output), K)
    assert {m.kind for m in found} == kinds


@pytest.mark.parametrize("k", [1, 2, 17, 64, 65, 999, K])
@pytest.mark.parametrize(("order", "kinds"), CASES)
def test_every_mutant_differs_from_the_original_and_none_repeats(order: Order, kinds: set[str], k: int) -> None:
    # The rules that lose a fixed tail, or that share k out, need some k.
    desc = desc_of(order if k > 100 else replace(order, summed="k", spans=order.spans and ("40",)), k=k)
    own = normal_form(desc, k)
    found = mutants(desc, k)
    assert all(normal_form(m.desc, k) != own for m in found)
    assert all(m.desc != desc for m in found)
    assert len({m.desc for m in found}) == len(found)
    assert {m.kind for m in found} <= kinds | {"start"}


def test_each_kind_changes_its_own_field() -> None:
    desc = desc_of(Order(spans=("256",), summed="sub(k, 134)", partial=FP16, loop_step=64))
    (cut,) = desc.cuts
    assert isinstance(cut.layout, Contiguous)
    by_kind: dict[str, list[GEMMDesc]] = {}
    for m in mutants(desc, K):
        by_kind.setdefault(m.kind, []).append(m.desc)
    layouts = [d.cuts[0].layout for d in by_kind["chunk"]]
    assert [x.span for x in layouts if isinstance(x, Contiguous)] == [320, 192]
    assert [d.cuts[0].layout for d in by_kind["slice_order"]] == [Contiguous(span=256, short=Short.FIRST)]
    assert [d.summed_k for d in by_kind["tail"]] == [K]
    assert [d.cuts[0].partial_dtype for d in by_kind["partial_type"]] == [FP32]
    assert [d.cuts[0].merge_dtype for d in by_kind["merge_type"]] == [FP16]
    assert [d.cuts[0].start for d in by_kind["start"]] == [Start.ZERO]
    assert sorted(d.accumulator.instruction_k for d in by_kind["instruction_k"]) == [8, 32]
    residues = [d.accumulator.residue for d in by_kind["residue"]]
    assert residues == [ResidueLast(), *(ResidueFirst(k_loop_step=t) for t in (128, 32, 16, 256))]


def test_a_narrow_type_is_the_output_s_own() -> None:
    desc = evaluate_rule(Order(spans=("256",)).rule(BF16), {"k": K})
    assert isinstance(desc, GEMMDesc)
    types = {m.desc.cuts[0].partial_dtype for m in mutants(desc, K) if m.kind == "partial_type"}
    assert types == {BF16}


def test_strided_layouts_have_lanes_and_no_chunk() -> None:
    desc = desc_of(Order(spans=("256",)))
    (cut,) = desc.cuts
    strided = GEMMDesc(
        a_dtype=FP16, b_dtype=FP16, output_dtype=FP16, summed_k=K, accumulator=desc.accumulator,
        cuts=(type(cut)(
            layout=Strided(count=4, unit=16), partial_dtype=FP32, merge_dtype=FP32, start=Start.FIRST,
        ),),
    )  # fmt: skip
    found = mutants(strided, K)
    assert {m.kind for m in found} == {"instruction_k", "residue", "partial_type", "merge_type", "lanes"}
    deals = [m.desc.cuts[0].layout for m in found if m.kind == "lanes"]
    assert deals == [Strided(count=c, unit=u) for c, u in ((8, 16), (2, 16), (4, 32), (4, 8), (4, 17), (4, 15))]


def test_a_scalar_step_fuses_or_not_and_starts_from_zero_or_not() -> None:
    """In float32, where a product need not be exact, fusing shows; in float16 it always is, and nothing differs."""
    for dtype, kinds in ((FP32, ["fused", "start"]), (FP16, ["start"])):
        order = Order(instruction_k=1, step=ScalarStep(fused=True))
        desc = evaluate_rule(order.rule(dtype, FP32), {"k": 100})
        assert isinstance(desc, GEMMDesc)
        assert [m.kind for m in mutants(desc, 100)] == kinds
