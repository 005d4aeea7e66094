"""Rules inferred again from what was read off cuBLASLt 13.1.0 on an H200 for problems other than plain products.

The records are those of `scripts/read_kinds.py` whose readings the probe could not explain when they were made:
in-place split-K that takes C or the bias in with its first slice, and 8-bit slices of more blocks than are sites of a
tree.  The file's first line says where and when.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.descriptor import AddBias, AddC, EpilogueStep, GEMMDesc, Relu
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.kinds import rules_of
from gemmdesc.probe.raw import RawReader
from gemmdesc.probe.reading import Reading, reading_from_plain
from gemmdesc.probe.recorded import hold_against
from gemmdesc.problem import environment
from gemmdesc.rule import Rule, evaluate_rule

PATH = Path(__file__).parent / "observations" / "kinds-h200-cublaslt-13.1.0.jsonl.gz"


def records() -> dict[tuple[str, int], dict[str, Any]]:
    _, *lines = gzip.decompress(PATH.read_bytes()).decode().splitlines()
    return {(r["name"], r["number"]): r for r in map(json.loads, lines)}


def inferred(name: str, number: int) -> tuple[Reading, Rule]:
    reading = reading_from_plain(records()[name, number]["reading"])
    found = rules_of([reading])
    assert not isinstance(found, Unexplained), found.reason
    return reading, found[0]


@pytest.mark.parametrize(("name", "number", "opening", "steps"), [
    ("add_c", 1685, AddC, ()),
    ("bias", 1685, AddBias, ()),
    ("bias", 5546, AddBias, ()),
    ("add_beta_c", 5546, AddC, ()),
    ("relu_bias", 1685, AddBias, (Relu,)),
])  # fmt: skip
def test_a_fold_in_place_opens_with_c_or_the_bias(
    name: str, number: int, opening: type[EpilogueStep], steps: tuple[type[EpilogueStep], ...]
) -> None:
    reading, rule = inferred(name, number)
    (cut,) = rule.structure.cuts
    assert cut.merge_dtype is reading.problem.d_dtype
    assert [type(s) for s in cut.opening] == [opening]
    assert tuple(type(s) for s in rule.structure.epilogue) == steps


@pytest.mark.parametrize(("number", "span"), [(2230, 3200), (1988, 2944), (5400, 3456)])
def test_slices_of_many_blocks(number: int, span: int) -> None:
    """97, 112 and 160 blocks of 128 k in 4, 5 and 6 slices: whole blocks, as many in each slice but the last."""
    reading, rule = inferred("float8", number)
    desc = evaluate_rule(rule, environment(reading.problem, reading.answer, None))
    assert isinstance(desc, GEMMDesc)
    slices, blocks = (c.layout for c in desc.cuts)
    assert (slices.span, blocks.span) == (span, 128)  # type: ignore[union-attr]
    k = reading.problem.k
    assert -(-k // span) == reading.answer.splitk_num


def test_the_rule_gives_every_output_that_was_recorded() -> None:
    reading, rule = inferred("add_c", 1685)
    raw = RawReader(records()["add_c", 1685]["raw"])
    found = hold_against(rule, reading.problem, reading.answer, raw)
    assert (found.experiments, found.whole) == (reading.experiments, True)
