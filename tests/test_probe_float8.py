"""8-bit operands: walks on products of both operands, block accumulators, scales; hidden rules are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.arithmetic.models import find_model
from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import FusedDot, Scale, ScaleOutput
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.probe.experiments import factors, magnitudes_of
from gemmdesc.probe.infer import Unexplained, behaviour, infer_rules
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading
from gemmdesc.problem import GemmProblem, Transpose, environment
from gemmdesc.rule import Rule
from tests.probe_samples import HOPPER, Order, library_of, sample_answer

E4M3, E5M2 = DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2
PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)]
READ = ((1024, 3), (1296, 5), (784, 2), (1616, 4))
DOMAIN = [(k, s) for k in (304, 448, 640, 784, 1024, 1296, 1408) for s in (2, 3, 4, 5)]


def narrow(a: DType, b: DType) -> FusedDot:
    model = find_model(
        architecture="Hopper", instruction="wgmma", a_dtype=a, b_dtype=b, accumulator_dtype=DType.FLOAT32
    )
    return model.step


def problem_of(k: int, a: DType, b: DType, d: DType, *, side: int = 64) -> GemmProblem:
    return GemmProblem(
        m=side, n=side + 16, k=k, a_dtype=a, b_dtype=b, d_dtype=d, transa=Transpose.T, transb=Transpose.N, lda=k, ldb=k,
        ldd=side,
    )  # fmt: skip


def hidden(order: Order, a: DType, b: DType, d: DType) -> Rule:
    rule = replace(order, step=narrow(a, b) if order.step == HOPPER else order.step).rule(a, d)
    epilogue = (Scale(), ScaleOutput()) if d in (E4M3, E5M2) else (Scale(),)
    return replace(rule, structure=replace(rule.structure, b_dtype=b, epilogue=epilogue))


def readings_of(rule: Rule, sizes: tuple[tuple[int, int], ...], a: DType, b: DType, d: DType) -> list[Reading]:
    out = []
    for k, splitk in sizes:
        problem, answer = problem_of(k, a, b, d), sample_answer(splitk_num=splitk)
        out.append(read_answer(LibraryReader(library_of(rule, answer), problem, answer), problem, answer))
    return out


def domain(a: DType, b: DType, d: DType) -> list[Mapping[str, int]]:
    return [environment(problem_of(k, a, b, d), sample_answer(splitk_num=s), None) for k, s in DOMAIN]


ORDERS = {
    "blocks": Order(spans=("128",), instruction_k=32),
    "split over blocks": Order(spans=("round_up(floordiv(k, splitk_num), 128)", "128"), instruction_k=32),
    "one chain": Order(instruction_k=32),
    "slices": Order(spans=("round_up(ceildiv(k, splitk_num), 128)",), instruction_k=32),
    "float32 steps": Order(instruction_k=32, step=replace(HOPPER, zero_exponent=-126)),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("a", "b", "d"), [
    (E4M3, E4M3, DType.BFLOAT16), (E4M3, E4M3, DType.FLOAT32), (E5M2, E4M3, DType.FLOAT16), (E4M3, E5M2, DType.FLOAT32),
])  # fmt: skip
def test_the_hidden_order_is_found(name: str, a: DType, b: DType, d: DType) -> None:
    truth = hidden(ORDERS[name], a, b, d)
    readings = readings_of(truth, READ, a, b, d)
    found = infer_rules(readings, domain(a, b, d))
    assert not isinstance(found, Unexplained), found.reason
    assert any(behaviour(rule, domain(a, b, d)) == behaviour(truth, domain(a, b, d)) for rule in found)
    own = [environment(r.problem, r.answer, None) for r in readings]
    assert all(behaviour(rule, own) == behaviour(truth, own) for rule in found)
    assert {r.arithmetic.toward_zero for r in readings} == {True}


@pytest.mark.parametrize("d", [E4M3, E5M2])
def test_an_8_bit_output_is_read_through_scales(d: DType) -> None:
    truth = hidden(ORDERS["blocks"], E4M3, E4M3, d)
    (reading,) = readings_of(truth, ((1040, 1),), E4M3, E4M3, d)
    (other,) = readings_of(hidden(ORDERS["blocks"], E4M3, E4M3, DType.FLOAT32), ((1040, 1),), E4M3, E4M3, DType.FLOAT32)
    assert reading.part_ends == other.part_ends == (*range(128, 1040, 128), 1040)
    assert reading.windows == other.windows
    assert reading.arithmetic == other.arithmetic


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_pair_is_further_apart_than_any_accumulator_keeps(a: DType, b: DType) -> None:
    for d in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, E4M3, E5M2):
        size = magnitudes_of(problem_of(64, a, b, d))
        assert size.big / size.tiny >= 2.0**33
        for value in (size.big, -size.big, size.tiny, 1.5 * size.big / 2.0**20, -0.0):
            x, y = factors(value, a, b)
            for part, dtype in ((x, a), (y, b)):
                assert to_float32(from_float32(np.array([part]), dtype), dtype)[0] == part
            assert x * y == value
            assert np.signbit(x * y) == np.signbit(value)


def test_values_beyond_any_product_are_named() -> None:
    for value in (2.0**20, 2.0**-20, 1.0 + 2.0**-9):
        with pytest.raises(InvalidInputError, match=r"^value must"):
            LibraryReader(
                library_of(hidden(ORDERS["blocks"], E4M3, E4M3, DType.FLOAT32)),
                problem_of(64, E4M3, E4M3, DType.FLOAT32), sample_answer(),
            ).values([((0, value),)])  # fmt: skip


@pytest.mark.parametrize("d", [E4M3, E5M2])
def test_more_parts_than_an_8_bit_output_counts(d: DType) -> None:
    """Units are asked a few at a time."""
    truth = hidden(ORDERS["split over blocks"], E4M3, E4M3, d)
    readings = readings_of(truth, ((1456, 2), (1808, 3)), E4M3, E4M3, d)
    assert all(len(r.part_ends) > 8 for r in readings)
    own = [environment(r.problem, r.answer, None) for r in readings]
    found = infer_rules(readings, own)
    assert not isinstance(found, Unexplained), found.reason
    assert any(behaviour(rule, own) == behaviour(truth, own) for rule in found)
