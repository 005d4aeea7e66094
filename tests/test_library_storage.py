"""Matrices as the library stores them: layout, padding and alignment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.library.storage import a_shape, aligned_offset, allocate, empty_d, result_of, store_a, store_b
from gemmdesc.problem import Transpose, dense_problem
from gemmdesc.routes import address_alignment

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_offsets_give_exactly_the_alignment(alignment: int) -> None:
    for address in (0, 3, 256, 511, 4096 + 17):
        assert address_alignment(address + aligned_offset(address, alignment)) == alignment
        assert 0 <= aligned_offset(address, alignment) < 512


@pytest.mark.parametrize("alignment", [2, 16, 256])
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN])
def test_allocation(alignment: int, dtype: DType) -> None:
    problem = replace(dense_problem(3, 5, 7, dtype), lda=4, a_alignment_bytes=alignment)
    stored = allocate(a_shape(problem), "cpu")
    assert stored.columns.shape == (7, 3)
    assert stored.columns.stride() == (4, 1)
    assert address_alignment(stored.pointer) == alignment
    assert stored.columns.data_ptr() == stored.pointer
    assert int(stored.buffer.min()) == int(stored.buffer.max()) == -1


def test_alignment_below_an_element_is_refused() -> None:
    problem = replace(dense_problem(3, 5, 7, DType.FLOAT32), a_alignment_bytes=2)
    with pytest.raises(InvalidInputError, match=r"^alignment_bytes must be at least one element, 4"):
        allocate(a_shape(problem), "cpu")


@pytest.mark.parametrize("transpose", list(Transpose))
def test_padding_stays_nan(transpose: Transpose) -> None:
    p = dense_problem(3, 5, 4, DType.FLOAT16, transa=transpose, transb=transpose)
    p = replace(p, lda=9, ldb=9)
    for store, outer in ((store_a, 3), (store_b, 5)):
        stored = store(p, torch.zeros((outer, 4), dtype=torch.int16))
        assert int((stored.buffer == 0).sum()) == outer * 4
        assert int((stored.buffer == -1).sum()) == stored.buffer.numel() - outer * 4


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"^bits must have shape \(3, 4\), .*\(got \(4, 4\)"):
        store_a(dense_problem(3, 5, 4, DType.FLOAT16), torch.zeros((4, 4), dtype=torch.int16))


def test_d_starts_as_nan() -> None:
    d = empty_d(dense_problem(3, 5, 4, DType.FLOAT16), "cpu")
    assert result_of(d).shape == (3, 5)
    assert bool((result_of(d) == -1).all())


@pytest.mark.parametrize("transpose", list(Transpose))
@pytest.mark.parametrize("shared", [False, True])
def test_the_matrices_of_a_batch_lie_a_stride_apart(transpose: Transpose, shared: bool) -> None:
    p = dense_problem(3, 5, 4, DType.FLOAT32, transa=transpose, transb=transpose)
    p = replace(p, batch_count=2, a_batch_stride=20, b_batch_stride=0 if shared else 32, d_batch_stride=40)
    for store, outer, stride in ((store_a, p.a_outer, 20), (store_b, p.b_outer, p.b_batch_stride)):
        bits = torch.arange(outer * 4, dtype=torch.int32).reshape(outer, 4) + 1
        stored = store(p, bits)
        begin = stored.columns.storage_offset()
        one = p.m if store is store_a else p.n
        lone = store(replace(p, batch_count=1), bits[:one]).columns
        for batch in range(outer // one):
            first = bits[batch * one :][:one]
            at = stored.buffer.as_strided(lone.shape, lone.stride(), begin + batch * stride)
            turned = transpose is (Transpose.N if store is store_a else Transpose.T)
            assert bool((at == (first.T if turned else first)).all())
    d = empty_d(p, "cpu")
    assert result_of(d).shape == (6, 5)
    d.columns[1, 2, 0] = 7
    assert result_of(d).tolist()[3][2] == 7
