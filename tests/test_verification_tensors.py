"""Tensors of cases and their comparison, on the CPU: torch's storage, what differs, what fails, what varies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gemmdesc.routes import tensor_meta
from gemmdesc.verification.bench import Prepared
from gemmdesc.verification.cases import Case, Regime, case_metas, draw_case
from gemmdesc.verification.comparing import TensorComparer, locate
from gemmdesc.verification.draws import draws_of, operands
from gemmdesc.verification.records import REFERENCES, Outcome
from gemmdesc.verification.tensors import empty_out, integers, make_a, make_b

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")


def small_cases(count: int) -> list[Case]:
    cases = (draw_case(Regime.UNROUNDED, 3, i) for i in range(100_000))
    small = (c for c in cases if c.m * c.k + c.n * c.k + c.m * c.n < 100_000)
    return [next(small) for _ in range(count)]


CASES = small_cases(40)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.key)
def test_tensors_are_stored_as_the_case_says_and_hold_the_operands_bytes(case: Case) -> None:
    a, b = operands(case, draws_of(1)[0])
    tensors = make_a(case, a, CPU), make_b(case, b, CPU), empty_out(case, CPU)
    for tensor, meta, storage in zip(tensors, case_metas(case), (case.a, case.b, case.out), strict=True):
        found = tensor_meta(tensor)
        assert (found.shape, found.strides, found.dtype) == (meta.shape, meta.strides, meta.dtype)
        assert tensor.storage_offset() == storage.offset
    np.testing.assert_array_equal(integers(tensors[0]).numpy().view(np.uint16), a.bits(case.m, case.k))
    np.testing.assert_array_equal(integers(tensors[1]).T.contiguous().numpy().view(np.uint16), b.bits(case.n, case.k))
    assert torch.isnan(tensors[2]).all()


def product(prepared: Prepared, a: Any, b: Any) -> Any:
    out = empty_out(prepared.case, CPU)
    out.copy_(torch.mm(a.float(), b.float()))
    return integers(out)


def flipped(prepared: Prepared, a: Any, b: Any) -> Any:
    out = product(prepared, a, b)
    out[-1, -1] ^= 1
    return out


def prepared(case: Case) -> Prepared:
    nothing: Any = None
    return Prepared(case=case, problem=nothing, answer=nothing, regions=(), declined=None, kernel="")


def outcomes(ours: Any = product, cublaslt: Any = product, by_torch: Any = product) -> Iterator[tuple[Any, ...]]:
    comparer = TensorComparer(place=CPU, ours=ours, references={"cublaslt": cublaslt, "torch": by_torch})
    for case in CASES[:6]:
        found = comparer.compare(prepared(case), draws_of(3))
        by_name = {name: {c.outcome for c in found.compared if c.reference == name} for name in REFERENCES}
        yield case, found, by_name["cublaslt"], by_name["torch"]


def test_equal() -> None:
    for _, found, one, two in outcomes():
        assert one == two == {Outcome.EQUAL}
        assert found.torch_is_cublaslt == 3
        assert not found.fatal


def test_one_flipped_bit_is_located() -> None:
    for case, found, one, two in outcomes(ours=flipped):
        assert one == two == {Outcome.DIFFERENT}
        located = found.compared[0].located
        assert (located.row, located.column, located.count) == (case.m - 1, case.n - 1, 1)
        assert located.expected_bits ^ located.got_bits == 1
    for _, found, one, two in outcomes(by_torch=flipped):
        assert (one, two) == ({Outcome.EQUAL}, {Outcome.DIFFERENT})
        assert found.torch_is_cublaslt == 0


def test_a_reference_that_varies_or_fails() -> None:
    calls = iter(range(10_000))

    def varying(prepared: Prepared, a: Any, b: Any) -> Any:
        return (product, flipped)[next(calls) % 2](prepared, a, b)

    for _, _, one, two in outcomes(cublaslt=varying):
        assert one <= {Outcome.NONDETERMINISTIC, Outcome.EQUAL}
        assert two == {Outcome.EQUAL}
    for _, found, one, two in outcomes(cublaslt=lambda *_: "CUBLAS_STATUS_NOT_SUPPORTED"):
        assert (one, two) == ({Outcome.REFERENCE_FAILED}, {Outcome.EQUAL})
        assert found.compared[0].failure == "CUBLAS_STATUS_NOT_SUPPORTED"


def raising(error: Exception) -> Any:
    def raise_it(*_: Any) -> Any:
        raise error

    return raise_it


def test_what_raises() -> None:
    for _, found, one, two in outcomes(ours=raising(ValueError("no such tile"))):
        assert one == two == {Outcome.DIFFERENT}
        assert "ValueError: no such tile" in found.compared[0].failure
        assert not found.fatal
    for _, found, one, _ in outcomes(ours=raising(torch.OutOfMemoryError("CUDA out of memory"))):
        assert one == {Outcome.REFERENCE_FAILED}
        assert found.compared[0].failure.startswith("out of memory")
    for _, found, one, _ in outcomes(cublaslt=raising(RuntimeError("CUDA error: an illegal access"))):
        assert one == {Outcome.REFERENCE_FAILED}
        assert found.fatal


def test_locate_takes_the_first_in_row_major_order() -> None:
    expected = torch.zeros((5, 7), dtype=torch.int16)
    got = expected.clone()
    got[2, 6], got[3, 1] = -1, 5
    found = locate(expected, got, draws_of(1)[0], "torch")
    assert found is not None
    assert (found.row, found.column, found.count, found.got_bits, found.size) == (2, 6, 2, 0xFFFF, 35)
    assert locate(expected, expected, draws_of(1)[0], "torch") is None
