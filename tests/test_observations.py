"""What the probe read off cuBLASLt 13.1.0 on an H200, inferred again offline: no GPU, no library.

The readings are bytes' consequences recorded on hardware; each file's first line says where and when.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path

import pytest

from gemmdesc.expressions import evaluate
from gemmdesc.probe.infer import Unexplained, infer_rules
from gemmdesc.probe.pool import SpanPool, span_example
from gemmdesc.probe.reading import Reading, reading_from_plain
from gemmdesc.problem import environment
from gemmdesc.rule import evaluate_rule

FOLDER = Path(__file__).parent / "observations"


@pytest.fixture(scope="module")
def readings() -> list[Reading]:
    found = []
    for path in sorted(FOLDER.glob("h200-cublaslt-13.1.0*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            first, *lines = file.read().splitlines()
        assert json.loads(first)["provenance"]["library"] == "13.1.0"
        found += [reading_from_plain(json.loads(line)) for line in lines]
    return found


def _family(readings: list[Reading], **attributes: int) -> list[Reading]:
    return [r for r in readings if all(getattr(r.answer, n) == v for n, v in attributes.items())]


def test_every_calibrated_step_is_the_one_known_of_hopper(readings: list[Reading]) -> None:
    measured = [r.arithmetic for r in readings if r.fused and r.arithmetic.output_bits is not None]
    assert len(measured) > 100
    assert {(m.fraction_bits, m.output_bits, m.toward_zero) for m in measured} == {(25, 23, True)}
    zero = Counter(m.zero_exponent for m in measured)
    zero.pop(None)
    assert set(zero) == {-133}


@pytest.mark.parametrize("algo_id", [21, 23, 24])
def test_one_expression_explains_the_slices_of_a_whole_family(readings: list[Reading], algo_id: int) -> None:
    family = _family(readings, algo_id=algo_id)
    pool = SpanPool()
    pool.add(family)
    (learned,) = pool.expressions(algo_id)
    spans = [e for e in map(span_example, family) if e is not None]
    assert len(spans) > 50
    assert all(evaluate(learned, e.environment) == e.allowed.low for e in spans)
    # Slices end on 64 k where k is a multiple of 64 and some operand stores it contiguously, else on 8.
    for k, contiguous in ((6400, 0), (6400, 1), (6400, 2), (6401, 2), (6408, 1), (64, 1)):
        grain = 64 if k % 64 == 0 and contiguous else 8
        even = math.ceil(k / 7)
        slices = math.ceil(even / grain) * grain
        assert evaluate(learned, {"k": k, "splitk_num": 7, "k_contiguous": contiguous}) == slices


def test_a_lost_tail_is_among_the_readings_and_in_the_rule(readings: list[Reading]) -> None:
    family = [r for r in _family(readings, algo_id=66) if r.fused]
    losing = [r for r in family if r.summed_k < r.problem.k]
    assert losing
    pool = SpanPool()
    pool.add(family)
    (span,) = pool.expressions(66)
    types = (losing[0].problem.a_dtype, losing[0].problem.d_dtype)
    same = [r for r in family if (r.problem.a_dtype, r.problem.d_dtype) == types]
    domain = [environment(r.problem, r.answer, None) for r in same]
    rules = infer_rules(same, domain, preferred=[span], zero_exponent=-133)
    assert not isinstance(rules, Unexplained)
    for reading in same:
        desc = evaluate_rule(rules[0], environment(reading.problem, reading.answer, None))
        assert getattr(desc, "summed_k", None) == reading.summed_k


def test_scheme_4_stores_narrow_partials_and_starts_from_zero(readings: list[Reading]) -> None:
    narrow = [
        r.merge
        for r in _family(readings, reduction_scheme=4)
        if r.fused and len(r.part_ends) > 2 and r.problem.d_dtype is r.problem.a_dtype
    ]
    assert narrow
    for merge in narrow:
        assert merge.partial_bits in (7, 10)
        assert merge.running_bits == 23
        assert merge.starts_at_zero is True


def test_products_on_cuda_cores_are_told_apart_by_what_they_add(readings: list[Reading]) -> None:
    fused = {r.answer.algo_id: set() for r in readings}
    for reading in readings:
        fused[reading.answer.algo_id].add(reading.fused)
    assert fused[66] == {True}
    assert fused[24] <= {True, None}
    scalar = {a for a, seen in fused.items() if False in seen}
    assert scalar
    assert all(True not in fused[a] for a in scalar)
