"""Summation trees that the probe read off cuBLASLt's CUDA-core kernels on hardware, explained offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.probe.induced import induced_tree
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.pieces import ScalarNestError
from gemmdesc.probe.scalar_infer import infer_scalar_rules
from gemmdesc.probe.scalar_nest import compress_tree
from gemmdesc.probe.scalar_rule import ScalarReading, confirms, scalar_descriptor
from gemmdesc.probe.tree import Tree, leaves
from gemmdesc.problem import GemmProblem, Transpose
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


def label(reading: ScalarReading) -> str:
    answer = reading.answer
    return f"{answer.algo_id}-{answer.custom_option}-{answer.splitk_num}-{reading.problem.k}"


def test_where_the_trees_come_from() -> None:
    provenance = OBSERVED["provenance"]
    assert (provenance["card"], provenance["library"]) == ("NVIDIA H200", "cuBLASLt 13.1.0")
    assert len(READINGS) > 90


@pytest.mark.parametrize("reading", READINGS, ids=label)
def test_every_tree_is_a_nest_whose_descriptor_induces_it(reading: ScalarReading) -> None:
    k, sites = reading.problem.k, leaves(reading.tree)
    for nest in compress_tree(reading.tree, k):
        desc = scalar_descriptor(reading.problem, [level.layout for level in nest])
        assert induced_tree(desc, k, sites) == reading.tree


def test_blocks_that_take_turns_are_no_nest() -> None:
    """31 blocks deal the tiles in turn and are folded by their number modulo 4, which no cut of k does."""
    (row,) = OBSERVED["no_nest"]
    reading = reading_of(row)
    with pytest.raises(ScalarNestError, match="do not explain"):
        compress_tree(reading.tree, reading.problem.k)


def test_the_two_kernels_of_one_family_have_their_rules() -> None:
    """One option runs another kernel where A is stored along k; each class is learned by itself."""
    classes: dict[tuple[int, Transpose], list[ScalarReading]] = {}
    for r in READINGS:
        if r.answer.algo_id == 11:
            classes.setdefault((r.answer.custom_option, r.problem.transa), []).append(r)
    learned = {}
    for key, readings in classes.items():
        found = infer_scalar_rules(readings, [r.environment for r in readings])
        assert not isinstance(found, Unexplained), found.reason
        assert all(confirms(rule, r) for rule in found for r in readings)
        learned[key] = [str(e) for path, e in found[0].integers if path.startswith("cuts")]
    assert learned == {
        (0, Transpose.N): ["ceildiv(k, 2)", "256"],
        (0, Transpose.T): ["16", "1", "16"],
        (1, Transpose.N): ["ceildiv(k, 4)", "128"],
    }
    mixed = [r for (option, _), readings in classes.items() for r in readings if option == 0]
    assert isinstance(infer_scalar_rules(mixed, [r.environment for r in mixed]), Unexplained)
