"""The benchmark's products against the tables that they are made from."""

from __future__ import annotations

from collections import Counter

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.speed.layers import GROUPS, deal, model_shapes, models, tokens, weights
from gemmdesc.speed.sets import DECODE_WEIGHTS, PARTS, control_shapes, speed_shapes
from gemmdesc.speed.shapes import FOLLOWING


def test_the_published_counts_and_ranges_are_kept() -> None:
    shapes = model_shapes()
    counts = Counter(s.group for s in shapes)
    assert counts == {
        "attention projections": 45, "MLP up": 21, "MLP down": 21, "MoE up": 55, "MoE down": 57, "LM head": 54,
        "LoRA B": 137,
    }  # fmt: skip
    assert sum(counts.values()) == len(shapes) == 390
    for group in GROUPS:
        products = [s.product for s in shapes if s.group == group.name]
        for axis in "mnk":
            sizes = [getattr(p, axis) for p in products]
            assert (min(sizes), max(sizes)) == getattr(group, axis), (group.name, axis)


def test_widths_are_those_of_the_models() -> None:
    known = models()
    assert len(known) == 16
    assert {m.vocab for m in known} >= {248320, 100352}
    up = {(n, k) for n, k, _ in weights(GROUPS[1], known)}
    assert up == {(m.ffn, m.hidden) for m in known if m.ffn and m.ffn >= 6144}
    assert {(k, n) for n, k, _ in weights(GROUPS[2], known)} == up
    experts = {(m.expert, m.hidden) for m in known if m.expert}
    assert {(n, k) for n, k, _ in weights(GROUPS[3], known)} == experts
    heads = {(n, k) for n, k, _ in weights(GROUPS[5], known)}
    assert heads == {(m.vocab, m.hidden) for m in known}


def test_each_weight_is_dealt_as_often_as_another() -> None:
    for group in GROUPS:
        dealt = [(i, j) for i, j in deal(group.count, len(weights(group, models())), len(tokens(group)))]
        assert len(set(dealt)) == group.count
        often = Counter(i for i, _ in dealt).values()
        assert max(often) - min(often) <= 1
    with pytest.raises(InvalidInputError, match="count must be"):
        deal(7, 2, 3)


def test_sets_are_distinct_and_whole() -> None:
    shapes = speed_shapes()
    assert len({s.name for s in shapes}) == len(shapes)
    counts = Counter(s.part for s in shapes)
    assert tuple(counts) == PARTS
    assert counts["decode"] == 7 * len(DECODE_WEIGHTS) == 28
    assert counts["fused"] == 96
    assert Counter(s.following for s in shapes if s.part == "fused") == dict.fromkeys(FOLLOWING, 16)
    assert all({p.m % 8, p.n % 8, p.k % 8} - {0} for s in shapes if s.part == "unrounded" for p in [s.product])
    assert all(1 in (s.product.m, s.product.n) for s in shapes if s.part == "vector")
    assert all(s.product.dtype is DType.FLOAT8_E4M3FN for s in shapes if s.part == "float8")
    with pytest.raises(InvalidInputError, match="parts must be"):
        speed_shapes(["decode", "model2"])


def test_the_control_has_ten_of_every_length() -> None:
    control = control_shapes()
    assert len({s.name for s in control}) == 10
    assert {s.large for s in control} == {False, True}
    assert any(s.product.k % 8 for s in control)


def test_operations_and_bytes_are_counted_once() -> None:
    decode = speed_shapes(["decode"])[0]
    assert decode.operations == 2 * 4096 * 4096
    assert decode.moved_bytes == 2 * (4096 + 4096 * 4096 + 4096)
    by_following = {s.following: s for s in speed_shapes(["fused"]) if s.product.m == 16 and s.product.n == 4096}
    gate, weighted = by_following["sigmoid_gate"], by_following["weighted"]
    assert gate.moved_bytes - weighted.moved_bytes == 2 * (16 * gate.product.n - 16)
    float8 = speed_shapes(["float8"])[0]
    assert float8.moved_bytes == 2 * 4096 * 4096 + 2 * 4096 * 4096
