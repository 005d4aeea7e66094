"""The sweep of what descriptors can say: its grid, and every schedule of some of its points in the interpreter."""

from __future__ import annotations

import importlib
import importlib.util
from itertools import islice
from pathlib import Path

import pytest

from gemmdesc.descriptor import Contiguous
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.competing import competing, pick_of
from gemmdesc.kernels.structure import Structure
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.verification.combinations import AXES, FAMILIES, Swept, combinations, grid_size, merged
from tests.test_kernels_interpreted import told

CARD = card_arithmetic("sm_90")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton has no wheel here")


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("schedules", [24, 400])
def test_every_schedule_of_a_point_gives_the_replays_bytes(schedules: int) -> None:
    swept = told("interpreted_configs.py", "0", str(schedules))
    assert swept["wrong"] == []
    assert swept["configs"] >= schedules
    assert swept["compared"] == 2 * swept["configs"]
    assert set(swept["by_structure"]) >= {"chain_tma", "chain_wide", "chain_pointer", "grouped_chain", "merged_tma"}
    # The draws would have shown another descriptor. What a fold starts from shows in a lone -0.0 only, which no matrix
    # step gives; so that mutant is not asked for.
    tried = {kind: counts for kind, counts in swept["power"].items() if kind != "start"}
    assert len(tried) >= 5
    assert sum(caught for caught, _ in tried.values()) >= 0.75 * sum(count for _, count in tried.values()), tried


@needs_triton
@pytest.mark.slow
def test_a_merge_that_folds_backwards_is_caught() -> None:
    swept = told("interpreted_configs.py", "0", "6", "backwards")
    assert swept["wrong"]


@needs_triton
def test_a_tuners_trial_sees_equal_bytes_and_others() -> None:
    assert told("interpreted_configs.py", "0", "3", "trials")["equal"] >= 9


@needs_triton
def test_the_sweep_may_be_of_some_features_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "scripts"))
    script = importlib.import_module("sweep_configs")
    cut = (p for p in combinations("16-bit", CARD, 0) if p.desc.cuts and (p.m, p.n) == (16, 136) and p.k > 300)
    point = next(p for p in cut if p.desc.accumulator.instruction_k == 16 and p.desc.cuts[0].layout.span == 128)  # type: ignore[union-attr]
    choices = competing(point.desc, point.meta(132, 232448), CARD)
    assert not isinstance(choices, Declined)
    assert list(filter(script.keeping(""), choices)) == list(choices)
    kept = {name: list(filter(script.keeping(name), choices)) for name in ("one_launch", "narrow", "dependent")}
    assert all(c.structure.merged for c in kept["one_launch"])
    assert len(kept["one_launch"]) == sum(c.structure.merged for c in choices)
    assert all(kept.values())
    assert all(c.config.dependent for c in kept["dependent"])  # type: ignore[union-attr]
    both = list(filter(script.keeping("one_launch,narrow"), choices))
    assert {pick_of(c) for c in both} == {pick_of(c) for name in ("one_launch", "narrow") for c in kept[name]}
    whole = (competing(p.desc, p.meta(132, 232448), CARD) for p in combinations("16-bit", CARD, 0) if not p.desc.cuts)
    keep = script.keeping("chain_specialised")
    own = next(filter(None, (list(filter(keep, c)) for c in whole if isinstance(c, tuple))))
    assert all(c.structure is Structure.CHAIN_SPECIALISED for c in own)
    with pytest.raises(ValueError, match="wider"):
        script.keeping("wider")


def test_the_grid_meets_every_value_of_every_axis_early() -> None:
    first = list(islice(combinations("16-bit", CARD, 0), 300))
    assert len(set(first)) == 300
    spans = {c.desc.cuts[0].layout.span if c.desc.cuts else 0 for c in first}  # type: ignore[union-attr]
    assert spans == set(AXES["span"])
    assert all(isinstance(c.desc.cuts[0].layout, Contiguous) for c in first if c.desc.cuts)
    assert {c.desc.accumulator.instruction_k for c in first} == {8, 16}
    assert {(c.desc.a_dtype, c.desc.output_dtype) for c in first} == {
        (a, out) for a in AXES["dtype"] for out in (a, DType.FLOAT32)
    }
    assert {c.k - c.desc.summed_k for c in first} == set(AXES["tail"])
    assert {(c.m, c.n) for c in first} == set(AXES["size"])
    assert {c.layouts for c in first} == set(AXES["layouts"])
    assert list(islice(combinations("16-bit", CARD, 0), 20)) == first[:20]
    assert list(islice(combinations("16-bit", CARD, 1), 20)) != first[:20]


def test_the_grids_are_large_and_all_of_them_is_described() -> None:
    assert grid_size("16-bit") > 100_000
    for family in FAMILIES:
        assert next(combinations(family, CARD, 3)).desc.a_dtype in FAMILIES[family]["dtype"]
    whole = list(combinations("float32", CARD, 0))
    assert len(whole) == len(set(whole)) <= grid_size("float32")
    with pytest.raises(InvalidInputError, match="family must be"):
        next(combinations("4-bit", CARD, 0))


def test_counts_are_added() -> None:
    one = Swept(points=1, configs=2, compared=4, by_structure={"a": 2}, power={"x": [1, 2]}, wrong=["w"])
    both = merged([one, Swept(points=3, declined=1, by_structure={"a": 1, "b": 1}, power={"x": [0, 1], "y": [1, 1]})])
    assert (both.points, both.declined, both.configs, both.compared) == (4, 1, 2, 4)
    assert both.by_structure == {"a": 3, "b": 1}
    assert both.power == {"x": [1, 3], "y": [1, 1]}
    assert both.wrong == ["w"]
