"""From summation trees of one class to rules: those of any rule of the space leave survivors with its normal form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.descriptor import Contiguous, GEMMDesc, ScalarStep, Start, Strided
from gemmdesc.dtypes import DType
from gemmdesc.expressions import Const, Expr, call
from gemmdesc.probe.induced import induced_tree
from gemmdesc.probe.infer import Unexplained, behaviour
from gemmdesc.probe.pieces import ScalarNestError
from gemmdesc.probe.scalar_infer import infer_scalar_rules
from gemmdesc.probe.scalar_rule import ScalarReading, confirms, lend, scalar_descriptor
from gemmdesc.probe.tree import Tree
from gemmdesc.problem import dense_problem
from gemmdesc.rule import Rule, evaluate_rule, make_rule
from tests.probe_samples import BF16, FP16, FP32, environments, sample_answer

#: (k, splitk_num) of the trees read: small ones show few cuts, those above 400 k only some of their sites.
READ = ((7, 1), (33, 2), (100, 3), (257, 4), (391, 2), (700, 3), (1500, 2))
DOMAIN = [5, 16, 40, 129, 256, 300, 411, 640, 1000, 1777]


def some_sites(k: int) -> list[int]:
    if k <= 400:
        return list(range(k))
    drawn = np.random.default_rng(k).choice(np.arange(140, k - 140), size=140, replace=False)
    return sorted({*range(140), *(int(x) for x in drawn), *range(k - 140, k)})


def readings_of(rule: Rule, sizes: Sequence[tuple[int, int]] = READ) -> list[ScalarReading]:
    out = []
    for k, splitk in sizes:
        problem, answer = dense_problem(64, 8, k, FP16), sample_answer(splitk_num=splitk)
        blank = ScalarReading(problem=problem, answer=answer, launch=None, tree=0)
        desc = evaluate_rule(rule, blank.environment)
        assert isinstance(desc, GEMMDesc)
        out.append(replace(blank, tree=induced_tree(desc, k, some_sites(k))))
    return out


def domain() -> list[dict[str, int]]:
    return environments(DOMAIN, (1, 2, 3, 4))


def rule_of(*cuts: tuple[Expr | int, ...]) -> Rule:
    """One number a cut: a contiguous span; two: a strided count and unit."""
    integers: dict[str, Expr] = {"summed_k": call("min", "k", "k")}
    layouts: list[Contiguous | Strided] = []
    for i, given in enumerate(cuts):
        values = [Const(v) if isinstance(v, int) else v for v in given]
        names = ("span",) if len(values) == 1 else ("count", "unit")
        layouts.append(Contiguous(span=1) if len(values) == 1 else Strided(count=1, unit=1))
        integers |= {f"cuts.{i}.layout.{n}": v for n, v in zip(names, values, strict=True)}
    return make_rule(scalar_descriptor(dense_problem(64, 8, 1, FP16), layouts), integers)


def random_rule(rng: np.random.Generator) -> Rule:
    """Slices or none, then lanes folded as a butterfly or left to right, then chunks or none."""

    def pick(*choices: int) -> int:
        return choices[int(rng.integers(len(choices)))]

    cuts: list[tuple[Expr | int, ...]] = []
    length: Expr | str = "k"
    if pick(0, 1):
        length = call("ceildiv", "k", ["splitk_num", 2, 4][pick(0, 1, 2)])
        cuts.append((length,))
    lanes = pick(1, 2, 4, 8)
    share = call("ceildiv", length, lanes)
    unit: Expr | int = [1, 4, share, call("min", share, 16)][pick(0, 1, 2, 3)]
    if pick(0, 1):
        cuts += [(2, unit)] * lanes.bit_length()
    elif lanes > 1:
        cuts.append((lanes, unit))
    if pick(0, 1):
        cuts.append((pick(16, 32),))
    return rule_of(*cuts)


def rules() -> list[Rule]:
    rng = np.random.default_rng(7)
    return [random_rule(rng) for _ in range(14)]


def test_the_random_rules_are_varied() -> None:
    made = rules()
    assert len(set(made)) >= 12
    assert {len(r.structure.cuts) for r in made} >= {1, 2, 3, 4}
    assert any("splitk_num" in r.variables for r in made)


@pytest.mark.parametrize("number", range(14))
def test_survivors_share_the_truth_s_normal_form(number: int) -> None:
    truth = rules()[number]
    readings = readings_of(truth)
    found = infer_scalar_rules(readings, domain())
    assert not isinstance(found, Unexplained), found.reason
    assert all(confirms(rule, r) for rule in found for r in readings)
    everywhere = behaviour(truth, domain())
    assert any(behaviour(rule, domain()) == everywhere for rule in found)


def test_a_rule_says_what_trees_cannot_show() -> None:
    found = infer_scalar_rules(readings_of(rule_of((call("ceildiv", "k", 2),))), domain())
    assert not isinstance(found, Unexplained)
    desc = evaluate_rule(found[0], {"k": 9})
    assert isinstance(desc, GEMMDesc)
    assert desc.accumulator.step == ScalarStep(fused=True)
    assert {(c.partial_dtype, c.merge_dtype) for c in desc.cuts} == {(FP32, FP32)}


def test_a_few_small_trees_leave_what_they_do_not_show() -> None:
    truth = rule_of((2, call("min", call("ceildiv", "k", 2), 64)))
    few = infer_scalar_rules(readings_of(truth, [(7, 1), (33, 1), (100, 1)]), domain())
    assert not isinstance(few, Unexplained)
    assert behaviour(few[0], domain()) != behaviour(truth, domain())
    more = infer_scalar_rules(readings_of(truth), domain())
    assert not isinstance(more, Unexplained)
    assert behaviour(more[0], domain()) == behaviour(truth, domain())


def test_rules_of_other_classes_explain_trees_too_sparse_to_search() -> None:
    truth = rule_of((call("ceildiv", "k", "splitk_num"),), *[(2, 64)] * 4)
    (whole,) = readings_of(truth, [(100_000, 24)])
    desc = evaluate_rule(truth, whole.environment)
    assert isinstance(desc, GEMMDesc)
    sites = np.random.default_rng(1).choice(100_000, size=60, replace=False)
    sparse = [replace(whole, tree=induced_tree(desc, 100_000, sites.tolist()))]
    alone = infer_scalar_rules(sparse, domain())
    lent = infer_scalar_rules(sparse, domain(), others=[lend(truth, dense_problem(64, 8, 9, BF16))])
    if isinstance(alone, Unexplained):
        assert lent == (truth,)
    else:
        assert lent == alone


def wrong(tree: Tree) -> Tree:
    """The tree with its last two leaves in each other's place."""
    if isinstance(tree, int) or all(isinstance(t, int) for t in tree):
        return tree
    return (tree[0][0], (tree[0][1], tree[1])) if isinstance(tree[0], tuple) else (tree[0], wrong(tree[1]))


def test_one_wrong_tree_is_not_explained_away() -> None:
    truth = rule_of((call("ceildiv", "k", 4),), (2, 4), (2, 4))
    readings = readings_of(truth)
    spoilt = [*readings[:4], replace(readings[4], tree=wrong(readings[4].tree)), *readings[5:]]
    found = infer_scalar_rules(spoilt, domain())
    assert isinstance(found, Unexplained)
    assert not confirms(truth, spoilt[4])


def test_two_orders_in_one_class_are_not_explained() -> None:
    one, other = rule_of((call("ceildiv", "k", 2),)), rule_of((16, 1))
    found = infer_scalar_rules([*readings_of(one), *readings_of(other)], domain())
    assert isinstance(found, Unexplained)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tree": (0, 1, 2)}, "two at a time"),
        ({"tree": (0, 99)}, "below k = 7"),
        ({"tree": (((0, 3), (1, 2)), ((4, 6), 5))}, "no nest"),
    ],
)
def test_readings_that_no_rule_can_explain(changes: Mapping[str, object], message: str) -> None:
    (reading,) = readings_of(rule_of(), [(7, 1)])
    found = infer_scalar_rules([replace(reading, **changes)], domain())  # type: ignore[arg-type]
    assert isinstance(found, Unexplained)
    assert message in found.reason


def test_the_start_of_the_chains_is_that_of_the_zero_seen() -> None:
    readings = readings_of(rule_of((call("ceildiv", "k", 2),)))
    for seen, start in ((None, Start.ZERO), (False, Start.ZERO), (True, Start.FIRST)):
        found = infer_scalar_rules([replace(readings[0], negative_zero=seen), *readings[1:]], domain())
        assert not isinstance(found, Unexplained)
        assert found[0].structure.accumulator.step == ScalarStep(fused=True, start=start)
    found = infer_scalar_rules([replace(r, negative_zero=i > 2) for i, r in enumerate(readings)], domain())
    assert isinstance(found, Unexplained)
    assert "in others" in found.reason


def test_no_readings() -> None:
    assert infer_scalar_rules([], domain()) == Unexplained(reason="there are no readings")


def test_a_rule_that_declines_confirms_nothing() -> None:
    (reading,) = readings_of(rule_of(), [(7, 1)])
    assert confirms(rule_of(), reading)
    assert not confirms(rule_of((call("floordiv", "k", 100),)), reading)


def test_a_lent_rule_takes_the_problem_s_types() -> None:
    lent = lend(rule_of((8,)), dense_problem(4, 4, 9, BF16, d_dtype=FP32)).structure
    assert (lent.a_dtype, lent.b_dtype, lent.output_dtype) == (BF16, BF16, DType.FLOAT32)
    with pytest.raises(ScalarNestError, match="below k"):
        _ = ScalarReading(problem=dense_problem(4, 4, 2, BF16), answer=sample_answer(), launch=None, tree=(0, 5)).piece
