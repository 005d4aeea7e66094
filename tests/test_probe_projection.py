"""Dividing classes into rows, undoing divisions, and keys that do not overlap."""

from __future__ import annotations

from itertools import product

from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.projection import Node, Row, RowIndex, Solved, divide, families, join, joinable, make_row, narrowed
from gemmdesc.problem import ANSWER_ATTRIBUTES
from gemmdesc.rule import Rule
from tests.probe_samples import FP16, FP32, Order

ONE, OTHER = Order(instruction_k=8).rule(), Order(instruction_k=16).rule()
TYPES = (FP16, FP16, FP16)


def key(*, types: tuple[object, ...] = TYPES, **values: int) -> AnswerKey:
    return AnswerKey(types=types, values=tuple(values.get(n, 0) for n in ANSWER_ATTRIBUTES))  # type: ignore[arg-type]


def classes(stages: tuple[int, ...] = (1, 2), schemes: tuple[int, ...] = (0, 4), tiles: int = 3) -> list[AnswerKey]:
    every = product(stages, schemes, range(tiles))
    return [key(algo_id=23, stages_id=s, reduction_scheme=r, tile_id=t) for s, r, t in every]


def row(members: list[AnswerKey], rule: Rule | None, *named: str) -> Row:
    return make_row(Node(classes=tuple(members), named=("algo_id", *named)), Solved(rule=rule))


def of(members: list[AnswerKey], **values: int) -> list[AnswerKey]:
    return [c for c in members if all(c.attribute(n) == v for n, v in values.items())]


def test_families_are_told_apart_by_types_and_algo_id() -> None:
    wide = key(algo_id=1, types=(FP16, FP16, FP32))
    found = families([key(algo_id=1), key(algo_id=1, tile_id=2), key(algo_id=2), wide])
    assert sorted(len(n.classes) for n in found) == [1, 1, 2]
    assert {n.named for n in found} == {("algo_id",)}


def test_the_attribute_that_tells_best_divides() -> None:
    members = classes()
    parts = divide(Node(classes=tuple(members), named=("algo_id",)), of(members, stages_id=2))
    assert [p.named for p in parts] == [("algo_id", "stages_id")] * 2
    assert {frozenset(p.classes) for p in parts} == {frozenset(of(members, stages_id=s)) for s in (1, 2)}


def test_few_values_divide_rather_than_many() -> None:
    """An attribute with a value of its own for every class misplaces none, and tells nothing."""
    members = [key(algo_id=1, tile_id=i, stages_id=i % 2) for i in range(8)]
    parts = divide(Node(classes=tuple(members), named=("algo_id",)), of(members, stages_id=1))
    assert {p.named for p in parts} == {("algo_id", "stages_id")}


def test_classes_with_one_value_everywhere_are_not_divided() -> None:
    assert divide(Node(classes=(key(algo_id=1),), named=("algo_id",)), ()) == []


def test_a_key_names_what_divided_and_what_took_one_value() -> None:
    found = row(of(classes(), stages_id=2), ONE, "stages_id")
    assert found.key.attribute("stages_id") == 2
    assert found.key.attribute("inner_shape_id") == 0
    assert found.key.attribute("tile_id") is None
    assert found.key.attribute("reduction_scheme") is None


def test_rows_with_rules_that_one_attribute_divided_are_joined() -> None:
    members = classes()
    rows = [row(of(members, stages_id=s), ONE, "stages_id") for s in (1, 2)]
    ((first, second),) = joinable(rows, "stages_id")
    whole = join((first, second), "stages_id", Solved(rule=ONE))
    assert whole.named == ("algo_id",)
    assert set(whole.classes) == set(members)
    assert joinable([rows[0], row(of(members, stages_id=2), None, "stages_id")], "stages_id") == []


def test_rows_name_whatever_divides_their_family() -> None:
    """One row was never divided by the scheme; elsewhere in the family the scheme mattered."""
    members = classes(stages=(1, 2, 3), schemes=(0, 2, 4))
    rows = [
        row(of(members, stages_id=1), ONE, "stages_id"),
        row(of(members, stages_id=2), ONE, "stages_id"),
        *(row(of(members, stages_id=3, reduction_scheme=r), OTHER, "stages_id", "reduction_scheme") for r in (0, 2, 4)),
        row([key(algo_id=66, tile_id=t) for t in range(4)], ONE),
    ]
    found = narrowed(rows)
    assert len(found) == 3 * 3 + 1
    assert all({"stages_id", "reduction_scheme"} <= set(r.key.named) for r in found if r.key.attribute("algo_id") == 23)
    index = RowIndex(found)
    for member in members:
        owner = index.find(member)
        assert owner is not None
        assert member in owner.classes
        assert owner.solved.rule is (OTHER if member.attribute("stages_id") == 3 else ONE)
    # A value not met is not taken, a value of what never mattered is.
    assert index.find(key(algo_id=23, stages_id=1, reduction_scheme=1)) is None
    assert index.find(key(algo_id=23, stages_id=1, reduction_scheme=2, tile_id=99)) is not None


def test_no_two_narrowed_keys_take_one_class() -> None:
    members = classes(stages=(1, 2, 3), schemes=(0, 1, 2))
    rows = [row(of(members, stages_id=1), ONE, "stages_id"), row(of(members, stages_id=2), OTHER, "stages_id")]
    rows += [row(of(members, stages_id=3, reduction_scheme=r), ONE, "reduction_scheme", "stages_id") for r in (0, 1, 2)]
    found = narrowed(rows)
    for member in members:
        assert sum(r.key == member.only(r.key.named) for r in found) == 1
