"""Summation trees that the probe read off cuBLASLt's CUDA-core kernels on hardware, explained offline."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.descriptor import Contiguous, GEMMDesc, Strided
from gemmdesc.dtypes import DType
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.scalar_infer import infer_scalar_rules
from gemmdesc.probe.scalar_rule import ScalarReading, confirms
from gemmdesc.probe.tree import Tree
from gemmdesc.problem import GemmProblem, Transpose
from gemmdesc.rule import Rule, evaluate_rule
from tests.probe_samples import sample_answer

FOLDER = Path(__file__).parent / "observations"
OBSERVED: dict[str, Any] = json.loads((FOLDER / "scalar_trees.json").read_text())
SPARSE: dict[str, Any] = json.loads(gzip.decompress((FOLDER / "h200-cublaslt-13.1.0-scalar.json.gz").read_bytes()))


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


#: Trees of classes with many slices or blocks, few sites in each: by answer and output type.
SPARSE_CLASSES: dict[tuple[int, int, str], list[ScalarReading]] = {}
for _row in SPARSE["trees"]:
    _key = (_row["algo_id"], _row["custom_option"], _row["types"][2])
    SPARSE_CLASSES.setdefault(_key, []).append(reading_of(_row))


def test_where_the_sparse_trees_come_from() -> None:
    provenance = SPARSE["provenance"]
    assert (provenance["card"], provenance["library"]) == ("NVIDIA H200", "cuBLASLt 13.1.0")
    assert (provenance["arch"], provenance["sm_count"]) == ("sm_90", 132)
    assert provenance["build_id"] == "a7d443494f0d20c8b298dd11cdddca3029179b76"
    assert provenance["command"].startswith("gemmdesc probe")


@pytest.mark.parametrize(("option", "lanes"), [(56, 2), (68, 4), (92, 32)])
def test_lanes_in_slices_are_found_though_few_sites_lie_in_one(option: int, lanes: int) -> None:
    """A lane takes up to 64 k at a time, of a short slice as many as share it out; slices end at known k."""
    readings = SPARSE_CLASSES[13, option, "bfloat16"]
    found = infer_scalar_rules(readings, [r.environment for r in readings])
    assert not isinstance(found, Unexplained), found.reason
    assert all(confirms(rule, r) for rule in found for r in readings)
    for splitk, k in ((16, 16 * 1000), (33, 33 * 11 - 1), (64, 64 * 100)):
        chunk = -(-k // splitk)
        desc = evaluate_rule(found[0], {**readings[0].environment, "k": k, "splitk_num": splitk})
        assert isinstance(desc, GEMMDesc)
        unit = min(64, -(-chunk // lanes))
        wanted = (Contiguous(span=chunk), *[Strided(count=2, unit=unit)] * (lanes.bit_length() - 1))
        assert tuple(cut.layout for cut in desc.cuts) == wanted


def test_blocks_are_folded_as_a_tree_over_their_numbers_in_two_kernels() -> None:
    """Two elements a load where both operands are stored along k, else one: a condition chooses."""
    readings = SPARSE_CLASSES[14, 0, "float32"]
    found = infer_scalar_rules(readings, [r.environment for r in readings])
    assert not isinstance(found, Unexplained), found.reason
    assert all(confirms(rule, r) for rule in found for r in readings)
    assert [str(when) for when, _ in found[0].branches] == ["min(a_unit_k, b_unit_k)", "None"]
    for (_, branch), elements in zip(found[0].branches, (2, 1), strict=True):
        assert [str(e) for path, e in branch.integers if path.startswith("cuts.0.layout")] == [
            "splitk_num", str(128 * elements)
        ]  # fmt: skip
        assert [str(e) for path, e in branch.integers if path.startswith("cuts.0.fold")][:4] == ["4", "1", "8", "1"]
