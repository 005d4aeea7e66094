"""What the probe read of launches that share out k, cuBLASLt 13.1.0 on an H200, inferred again with no GPU.

The file's first line says where and when; every other line is one class of answers.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.expressions import Call, Const, Operation, Var, parts
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.shared import SharedReading, foretells, infer_shared, shared_from_plain
from gemmdesc.rule import Rule

FILE = Path(__file__).parent / "observations" / "h200-shared-slices-13.1.0.jsonl.gz"
#: By tile_id, as the kernels' names have them: rows of m and columns of n.
TILES = {15: (64, 64), 19: (64, 256), 20: (128, 128), 21: (256, 64)}


def classes() -> list[dict[str, Any]]:
    with gzip.open(FILE, "rt") as file:
        first, *lines = file.read().splitlines()
    assert json.loads(first)["provenance"]["library"] == "13.1.0"
    return [json.loads(line) for line in lines]


CLASSES = classes()


def named(data: dict[str, Any]) -> str:
    types, values = data["key"]
    return f"{types[0]}-{types[2]} algo {values[0]} tile {values[1]} swizzling {values[4]}"


def tiles_of(rule: Rule) -> tuple[set[int], set[int]]:
    """The sizes by which the rule's condition divides rows and columns."""
    assert rule.when is not None
    found: dict[str, set[int]] = {"row": set(), "column": set()}
    for part in parts(rule.when):
        match part:
            case Call(operation=Operation.FLOORDIV, arguments=(Var(name=name), Const(value=size))) if name in found:
                found[name].add(size)
    return found["row"], found["column"]


@pytest.mark.parametrize("data", CLASSES, ids=named)
def test_rules_come_out_of_the_readings_again(data: dict[str, Any]) -> None:
    readings: list[SharedReading] = [shared_from_plain(r) for r in data["shared"]]
    found = infer_shared(readings, -133)
    swizzled = data["key"][1][4] == 1
    if swizzled:
        # Swizzled tiles are numbered in a way that is not known; the class declines.
        assert isinstance(found, Unexplained)
        assert data["rule"] is None
        return
    assert not isinstance(found, Unexplained)
    rule = found[0]
    if data["rule"] is not None:
        assert rule.text == data["rule"]
    row, column = TILES[data["key"][1][1]]
    assert tiles_of(rule) == ({row}, {column})
    assert len(rule.structure.cuts[0].fold) == 6
    # A reading of another class, whose tiles are others, is not foretold.
    other = next(c for c in CLASSES if c["key"][1][1] != data["key"][1][1])
    assert not all(foretells(rule, shared_from_plain(r)) for r in other["shared"])
