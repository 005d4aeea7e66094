"""Summation trees that the probe read off cuBLASLt's CUDA-core kernels on hardware, explained offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.scalar_infer import infer_scalar_rules
from gemmdesc.probe.scalar_rule import ScalarReading, confirms
from gemmdesc.probe.tree import Tree
from gemmdesc.problem import GemmProblem, Transpose
from gemmdesc.rule import Rule
from tests.probe_samples import sample_answer

OBSERVED: dict[str, Any] = json.loads((Path(__file__).parent / "observations" / "scalar_trees.json").read_text())


def tree_of(data: Any) -> Tree:
    return tuple(tree_of(x) for x in data) if isinstance(data, list) else int(data)


def reading_of(row: dict[str, Any]) -> ScalarReading:
    a, b, d = (DType(t) for t in row["types"])
    names = ("m", "n", "k", "lda", "ldb")
    problem = GemmProblem(
        a_dtype=a, b_dtype=b, d_dtype=d, transa=Transpose(row["transa"]), transb=Transpose(row["transb"]),
        ldd=row["m"], **{n: row[n] for n in names},
    )  # fmt: skip
    answer = sample_answer(**{n: row[n] for n in ("algo_id", "custom_option", "splitk_num")})
    return ScalarReading(
        problem=problem, answer=answer, launch=None, tree=tree_of(row["tree"]), negative_zero=row["negative_zero"]
    )


READINGS = [reading_of(row) for row in OBSERVED["trees"]]


def test_where_the_trees_come_from() -> None:
    provenance = OBSERVED["provenance"]
    assert (provenance["card"], provenance["library"]) == ("NVIDIA H200", "cuBLASLt 13.1.0")
    assert len(READINGS) > 90


def alike(readings: Sequence[ScalarReading]) -> list[ScalarReading]:
    """The readings as if of one type: the same kernels serve them all."""
    types = {n: getattr(readings[0].problem, n) for n in ("a_dtype", "b_dtype", "d_dtype")}
    return [replace(r, problem=replace(r.problem, **types)) for r in readings]


CLASSES: dict[tuple[int, int], list[ScalarReading]] = {}
for _reading in READINGS:
    CLASSES.setdefault((_reading.answer.algo_id, _reading.answer.custom_option), []).append(_reading)


@pytest.mark.parametrize("key", CLASSES, ids=str)
def test_every_class_has_a_rule_that_induces_its_trees(key: tuple[int, int]) -> None:
    readings = alike(CLASSES[key])
    found = infer_scalar_rules(readings, [r.environment for r in readings])
    assert not isinstance(found, Unexplained), found.reason
    assert all(confirms(rule, r) for rule in found for r in readings)


def integers_of(rule: Rule) -> list[list[str]]:
    return [[str(e) for path, e in branch.integers if path.startswith("cuts")] for _, branch in rule.branches]


def test_an_answer_with_two_kernels_has_a_rule_with_a_condition() -> None:
    """One option runs another kernel where A is stored along k."""
    readings = alike(CLASSES[11, 0])
    found = infer_scalar_rules(readings, [r.environment for r in readings])
    assert not isinstance(found, Unexplained), found.reason
    assert [str(when) for when, _ in found[0].branches] == ["transa", "None"]
    assert integers_of(found[0]) == [["16", "1", "16"], ["ceildiv(k, 2)", "256"]]


@pytest.mark.parametrize("option", [10, 59, 75, 83, 96, 101, 106])
def test_slices_and_lanes_are_found_in_sparse_trees(option: int) -> None:
    readings = alike(CLASSES[13, option])
    found = infer_scalar_rules(readings, [r.environment for r in readings])
    assert not isinstance(found, Unexplained), found.reason
    (integers,) = integers_of(found[0])
    assert integers[0] == "ceildiv(k, splitk_num)"
    assert set(integers[1::2]) == {"2"}


def test_blocks_that_take_turns_are_folded_in_groups() -> None:
    """31 blocks deal the tiles in turn and are folded by their number modulo 4, which no cut of k does."""
    (row,) = OBSERVED["no_nest"]
    reading = reading_of(row)
    found = infer_scalar_rules([reading], [reading.environment])
    assert not isinstance(found, Unexplained), found.reason
    (cut, *lanes) = found[0].structure.cuts
    assert len(cut.fold) == 1
    assert len(lanes) == 7
    assert confirms(found[0], reading)
