"""Routing: the problem, executed on raw storage as column-major BLAS would, is a @ b."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import ALL_REDUCTION_SCHEMES, ComputeType, GemmProblem, Transpose
from gemmdesc.routes import (
    COMPUTE_TYPE_REDUCTION,
    Route,
    TensorMeta,
    address_alignment,
    route_mm,
    route_product,
    swaps_operands,
    tensor_meta,
)

FP16, BF16, FP32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
SETTINGS = TorchSettings()
Array = npt.NDArray[Any]


def meta(shape: tuple[int, int], strides: tuple[int, int] | None = None, dtype: DType = DType.FLOAT16) -> TensorMeta:
    return TensorMeta(shape=shape, strides=strides or (shape[1], 1), dtype=dtype)


def routed(a: TensorMeta, b: TensorMeta, out: TensorMeta, settings: TorchSettings = SETTINGS) -> GemmProblem:
    problem = route_mm(a, b, out, settings)
    assert isinstance(problem, GemmProblem), problem
    return problem


@st.composite
def tensors(draw: st.DrawFn, rows: int, columns: int) -> TensorMeta:
    """A tensor as views make them: either order, padded, and with an arbitrary stride on an axis of one element."""
    pad = draw(st.integers(0, 4))
    row_major = draw(st.booleans())
    strides = [columns + pad, 1] if row_major else [1, rows + pad]
    for axis, size in enumerate((rows, columns)):
        if size == 1 and draw(st.booleans()):
            strides[axis] = draw(st.integers(0, 12))
    return meta((rows, columns), (strides[0], strides[1]))


@st.composite
def calls(draw: st.DrawFn) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    m, n, k = (draw(st.integers(1, 6)) for _ in range(3))
    return draw(tensors(m, k)), draw(tensors(k, n)), draw(tensors(m, n))


def storage(t: TensorMeta, values: Array) -> Array:
    """Flat storage with ``values`` where the strides put them, NaN elsewhere, and room for any padded column."""
    flat = np.full(200, np.nan)
    for (i, j), v in np.ndenumerate(values):
        flat[i * t.strides[0] + j * t.strides[1]] = v
    return flat


def column_major(flat: Array, rows: int, columns: int, ld: int) -> Array:
    return np.array([[flat[i + j * ld] for j in range(columns)] for i in range(rows)])


@given(calls(), st.integers(0, 2**32 - 1))
def test_the_problem_computes_the_product(call: tuple[TensorMeta, TensorMeta, TensorMeta], seed: int) -> None:
    a, b, out = call
    problem = route_mm(a, b, out, SETTINGS)
    if isinstance(problem, Declined):
        assert problem.code == "unsupported_input"
        assert problem.reason.startswith("no unit stride")
        return
    p, rng = problem, np.random.default_rng(seed)
    x, y = rng.integers(-9, 10, a.shape), rng.integers(-9, 10, b.shape)
    first, second = storage(a, x), storage(b, y)
    if swaps_operands(out):
        first, second = second, first
    op_a = column_major(first, p.a_rows, p.a_columns, p.lda)
    op_b = column_major(second, p.b_rows, p.b_columns, p.ldb)
    product = (op_a.T if p.transa is Transpose.T else op_a) @ (op_b.T if p.transb is Transpose.T else op_b)
    flat = np.full(200, np.nan)
    for (i, j), v in np.ndenumerate(product):
        flat[i + j * p.ldd] = v
    expected = x @ y
    got = np.array(
        [[flat[i * out.strides[0] + j * out.strides[1]] for j in range(out.shape[1])] for i in range(out.shape[0])]
    )
    np.testing.assert_array_equal(got, expected)


def test_row_major_is_the_swapped_problem() -> None:
    p = routed(meta((3, 5)), meta((5, 7)), meta((3, 7)))
    assert (p.m, p.n, p.k) == (7, 3, 5)
    assert (p.transa, p.transb) == (Transpose.N, Transpose.N)
    assert (p.lda, p.ldb, p.ldd) == (7, 5, 7)


def test_transposed_operands_and_padding() -> None:
    p = routed(meta((3, 5), (1, 4)), meta((5, 7), (1, 8)), meta((3, 7), (16, 1)))
    assert (p.transa, p.transb) == (Transpose.T, Transpose.T)
    assert (p.lda, p.ldb, p.ldd) == (8, 4, 16)


def test_column_major_out_is_not_swapped() -> None:
    out = meta((3, 7), (1, 3))
    p = routed(meta((3, 5)), meta((5, 7)), out)
    assert not swaps_operands(out)
    assert (p.m, p.n, p.transa, p.transb) == (3, 7, Transpose.T, Transpose.T)


def test_alignments_go_with_the_swap() -> None:
    a, b = replace(meta((3, 5)), alignment_bytes=2), replace(meta((5, 7)), alignment_bytes=16)
    p = routed(a, b, replace(meta((3, 7)), alignment_bytes=64))
    assert (p.a_alignment_bytes, p.b_alignment_bytes, p.c_alignment_bytes, p.d_alignment_bytes) == (16, 2, 64, 64)


def test_workspace_and_types() -> None:
    p = routed(meta((3, 5)), meta((5, 7)), meta((3, 7), dtype=DType.FLOAT32), TorchSettings(workspace_bytes=0))
    assert (p.workspace_limit_bytes, p.a_dtype, p.d_dtype) == (0, DType.FLOAT16, DType.FLOAT32)
    a, b, out = (meta(s, dtype=DType.FLOAT32) for s in ((3, 5), (5, 7), (3, 7)))
    assert routed(a, b, out).compute_type is ComputeType.COMPUTE_32F
    assert routed(a, b, out, TorchSettings(allow_tf32=True)).compute_type is ComputeType.COMPUTE_32F_FAST_TF32


@pytest.mark.parametrize("strides", [(14, 2), (2, 6), (50, 3)])
def test_a_result_without_a_unit_stride_is_a_row_major_copy(strides: tuple[int, int]) -> None:
    a, b = meta((3, 5)), meta((5, 7))
    out = replace(meta((3, 7), strides), alignment_bytes=2)
    found, plain = route_product(a, b, out, SETTINGS), route_product(a, b, meta((3, 7)), SETTINGS)
    assert isinstance(found, Route)
    assert isinstance(plain, Route)
    assert (found.problem, found.swapped, found.copies) == (plain.problem, True, ("out",))


@pytest.mark.parametrize("strides", [(0, 2), (2, 2), (2, 0), (3, 2)])
def test_a_result_whose_elements_share_memory_declines(strides: tuple[int, int]) -> None:
    found = route_product(meta((3, 5)), meta((5, 7)), meta((3, 7), strides), SETTINGS)
    assert found == Declined(code="unsupported_input", reason="elements of out that share memory")


@pytest.mark.parametrize("strides", [(10, 2), (0, 0), (1, 2), (0, 1), (2, 1)])
def test_no_unit_stride_declines(strides: tuple[int, int]) -> None:
    declined = route_mm(meta((3, 5), strides), meta((5, 7)), meta((3, 7)), SETTINGS)
    assert isinstance(declined, Declined)
    assert declined.reason.startswith("no unit stride")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (TorchSettings(blas_library="cublaslt"), "preferred_blas_library"),
        (TorchSettings(allow_fp16_splitk=False), "split-K"),
        (TorchSettings(allow_fp16_accumulation=True), "accumulation"),
        (TorchSettings(tunable_op=True), "tunable"),
    ],
)
def test_flags_decline(settings: TorchSettings, word: str) -> None:
    declined = route_mm(meta((3, 5)), meta((5, 7)), meta((3, 7)), settings)
    assert isinstance(declined, Declined)
    assert declined.code == "flags"
    assert word in declined.reason


def reduction(dtype: DType, allowed: bool, splitk: bool = True) -> TorchSettings:
    """The settings after ``torch.backends.cuda.matmul.allow_..._reduced_precision_reduction = (allowed, splitk)``."""
    if dtype is FP16:
        return TorchSettings(allow_fp16_reduced_precision_reduction=allowed, allow_fp16_splitk=splitk)
    return TorchSettings(allow_bf16_reduced_precision_reduction=allowed, allow_bf16_splitk=splitk)


def of_types(dtype: DType, out_dtype: DType) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    return meta((3, 5), dtype=dtype), meta((5, 7), dtype=dtype), meta((3, 7), dtype=out_dtype)


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_the_reduction_mask_follows_the_flag_of_the_operands_type(dtype: DType) -> None:
    call = of_types(dtype, dtype)
    on = routed(*call, reduction(dtype, True))
    off = routed(*call, reduction(dtype, False))
    assert on == routed(*call)
    assert on.reduction_scheme_mask == ALL_REDUCTION_SCHEMES
    assert off == replace(on, reduction_scheme_mask=COMPUTE_TYPE_REDUCTION)


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("out_dtype", [None, FP32])
def test_without_splitk_every_product_declines(dtype: DType, allowed: bool, out_dtype: DType | None) -> None:
    declined = route_mm(*of_types(dtype, out_dtype or dtype), reduction(dtype, allowed, False))
    assert isinstance(declined, Declined)
    assert (declined.code, f"split-K is off for {dtype.value}" in declined.reason) == ("flags", True)


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_without_reduced_precision_a_float32_result_declines(dtype: DType) -> None:
    call = of_types(dtype, FP32)
    assert routed(*call).reduction_scheme_mask == ALL_REDUCTION_SCHEMES
    declined = route_mm(*call, reduction(dtype, False))
    assert isinstance(declined, Declined)
    assert declined.code == "flags"
    assert declined.reason == (
        f"reduced-precision reduction is off, which is not measured for {dtype.value} operands and a float32 result"
    )


@pytest.mark.parametrize(("dtype", "other"), [(FP16, BF16), (BF16, FP16), (FP32, FP16), (FP32, BF16)])
@pytest.mark.parametrize(("allowed", "splitk"), [(True, True), (False, True), (False, False)])
def test_flags_of_another_type_do_not_matter(dtype: DType, other: DType, allowed: bool, splitk: bool) -> None:
    for out_dtype in (dtype, FP32):
        call = of_types(dtype, out_dtype)
        assert routed(*call, reduction(other, allowed, splitk)) == routed(*call)


def test_empty_and_uncovered_decline() -> None:
    for a, b, out in (((0, 5), (5, 7), (0, 7)), ((3, 0), (0, 7), (3, 7))):
        declined = route_mm(meta(a), meta(b), meta(out), SETTINGS)
        assert isinstance(declined, Declined)
        assert declined.code == "unsupported_input"
    a, b, out = (meta(s, dtype=DType.FLOAT64) for s in ((3, 5), (5, 7), (3, 7)))
    assert isinstance(route_mm(a, b, replace(out), SETTINGS), Declined)


@pytest.mark.parametrize(
    ("b", "out", "name"),
    [
        (meta((4, 7)), meta((3, 7)), "b"),
        (meta((5, 7)), meta((3, 8)), "out"),
        (meta((5, 7), dtype=DType.BFLOAT16), meta((3, 7)), "b"),
        (meta((5, 7)), meta((3, 7), dtype=DType.BFLOAT16), "out"),
    ],
)
def test_misuse_names_the_argument(b: TensorMeta, out: TensorMeta, name: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{name} must .*\(got .*\)$"):
        route_mm(meta((3, 5)), b, out, SETTINGS)


@pytest.mark.parametrize(("address", "expected"), [(0, 256), (2, 2), (48, 16), (256, 256), (512, 256), (1027, 1)])
def test_address_alignment(address: int, expected: int) -> None:
    assert address_alignment(address) == expected


def test_contiguity_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    buffer = torch.zeros(400, dtype=torch.float16)
    for rows in (1, 2, 3):
        for columns in (1, 2, 3):
            for s0 in range(5):
                for s1 in range(5):
                    t = buffer.as_strided((rows, columns), (s0, s1))
                    m = tensor_meta(t)
                    assert isinstance(m, TensorMeta)
                    assert m.is_contiguous == t.is_contiguous()
                    assert m.is_dense == torch.ops.aten.is_non_overlapping_and_dense(t)


def test_tensor_meta_declines() -> None:
    torch = pytest.importorskip("torch")
    for tensor, code in (
        (torch.zeros(3), "unsupported_input"),
        (torch.zeros(3, 3, dtype=torch.int32), "out_of_scope"),
        (torch.zeros(3, 3, dtype=torch.complex64).conj(), "out_of_scope"),
    ):
        declined = tensor_meta(tensor)
        assert isinstance(declined, Declined)
        assert declined.code == code
    assert tensor_meta(torch.zeros(8, 8, dtype=torch.float16)[:, 1:]).strides == (8, 1)
