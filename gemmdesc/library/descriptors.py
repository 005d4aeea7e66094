"""The descriptor objects of one handle, reused from problem to problem."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.library.bindings import (
    COMPUTE_TYPES,
    EPILOGUES,
    OPERATIONS,
    SUCCESS,
    Functions,
    MatmulDescAttribute,
    MatrixLayoutAttribute,
    PreferenceAttribute,
    data_type,
    status_name,
)
from gemmdesc.library.storage import Shape, a_shape, b_shape, c_shape, d_shape
from gemmdesc.problem import BIASED, ComputeType, GemmProblem, Transpose, is_float8

Setter = Callable[..., int]
_LAYOUT_ROWS = int(MatrixLayoutAttribute.ROWS)
_LAYOUT_COLS = int(MatrixLayoutAttribute.COLS)
_LAYOUT_LD = int(MatrixLayoutAttribute.LD)
_LAYOUT_BATCH = int(MatrixLayoutAttribute.BATCH_COUNT)
_LAYOUT_STRIDE = int(MatrixLayoutAttribute.STRIDED_BATCH_OFFSET)
#: What sizes, leading dimensions and addresses of 8-bit operands must be a multiple of.
FLOAT8_MULTIPLE = 16
#: Addresses that a product's descriptor holds beside its layouts, by attribute.
Pointers = Mapping[MatmulDescAttribute, int]


def require_supported(problem: GemmProblem) -> None:
    """Raise InvalidInputError, naming the field, where the adapter cannot state ``problem`` to the library."""
    p = problem
    if p.compute_type is ComputeType.COMPUTE_64F and p.scale_dtype is not DType.FLOAT64:
        raise InvalidInputError(f"scale_dtype must be float64 with 64f (got {p.scale_dtype.value})")
    if is_float8(p.a_dtype) is not is_float8(p.b_dtype):
        raise InvalidInputError(f"b_dtype must be an 8-bit float exactly where a_dtype is (got {p.b_dtype.value})")
    if not is_float8(p.a_dtype):
        if is_float8(p.d_dtype):
            raise InvalidInputError(f"d_dtype must be wider than 8 bits for such operands (got {p.d_dtype.value})")
        return
    for name, op, wanted in (("transa", p.transa, Transpose.T), ("transb", p.transb, Transpose.N)):
        if op is not wanted:
            raise InvalidInputError(f"{name} must be {wanted.value} for 8-bit operands (got {op.value})")
    for name in ("m", "n", "k", "lda", "ldb", "ldd"):
        if getattr(p, name) % FLOAT8_MULTIPLE:
            value = getattr(p, name)
            raise InvalidInputError(f"{name} must be a multiple of {FLOAT8_MULTIPLE} for 8-bit operands (got {value})")
    for name in ("a", "b", "d"):
        value = getattr(p, f"{name}_alignment_bytes")
        if value < FLOAT8_MULTIPLE:
            raise InvalidInputError(
                f"{name}_alignment_bytes must be at least {FLOAT8_MULTIPLE} for 8-bit operands (got {value})"
            )


def require(status: int, call: str, problem: GemmProblem) -> None:
    """Raise LibraryError with the status name and the problem where a call failed that had to work."""
    if status != SUCCESS:
        raise LibraryError(f"{call} must succeed for {problem} (got {status_name(status)})")


class Attributes:
    """One descriptor object; sets an attribute only when its value changed."""

    def __init__(self, setter: Setter, handle: int) -> None:
        self.handle = handle
        self._setter = setter
        self._value = ctypes.c_int64()
        self._pointer = ctypes.addressof(self._value)
        self._known: dict[int, int] = {}

    def set(self, attribute: int, value: int, size: int) -> int:
        """Set ``attribute`` (``size`` bytes, little-endian) to ``value``; the call's status, or 0 without one."""
        if self._known.get(attribute) == value:
            return SUCCESS
        self._value.value = value
        status = self._setter(self.handle, attribute, self._pointer, size)
        if status == SUCCESS:
            self._known[attribute] = value
        return status


class Described(NamedTuple):
    """A problem as the library's own objects: the addresses of its descriptors."""

    matmul: int
    a: int
    b: int
    c: int
    d: int
    preference: int


class Descriptors:
    """All descriptor objects of one handle, made on first need.  Not for use from two threads at once.

    ``pointers``: where a problem's scales and bias lie; asked only for problems that take some.
    """

    def __init__(self, functions: Functions, pointers: Callable[[GemmProblem], Pointers]) -> None:
        self._functions, self._pointers = functions, pointers
        self._matmuls: dict[tuple[object, ...], Attributes] = {}
        self._layouts: dict[tuple[str, DType, bool], Attributes] = {}
        self._preference: Attributes | None = None

    def describe(self, problem: GemmProblem) -> Described:
        """Bring the objects up to ``problem``; valid until the next call.

        Raises:
            InvalidInputError: a field that the library has no word for, or that is not supported here yet.
            LibraryError: the library refused an attribute.
        """
        require_supported(problem)
        p = problem
        d = self._layout(p, "d", d_shape(p))
        return Described(
            matmul=self._matmul(p).handle,
            a=self._layout(p, "a", a_shape(p)),
            b=self._layout(p, "b", b_shape(p)),
            # C is described as D where it is of D's type.
            c=d if p.c_dtype is p.d_dtype else self._layout(p, "c", c_shape(p)),
            d=d,
            preference=self._preferences(p),
        )

    def close(self) -> None:
        """Destroy every object."""
        groups = (("MatmulDesc", self._matmuls), ("MatrixLayout", self._layouts))
        for kind, objects in groups:
            for held in objects.values():
                self._functions[f"cublasLt{kind}Destroy"](held.handle)
            objects.clear()
        if self._preference is not None:
            self._functions["cublasLtMatmulPreferenceDestroy"](self._preference.handle)
            self._preference = None

    def _matmul(self, p: GemmProblem) -> Attributes:
        key = (
            p.compute_type, p.scale_dtype, p.transa, p.transb, p.fast_accumulation, p.epilogue, p.bias_dtype,
            is_float8(p.a_dtype), is_float8(p.d_dtype),
        )  # fmt: skip
        held = self._matmuls.get(key)
        if held is None:
            held = self._matmuls[key] = self._new_matmul(p)
        if p.epilogue in BIASED or is_float8(p.a_dtype):
            statuses = [held.set(attribute, address, 8) for attribute, address in self._pointers(p).items()]
            require(max(statuses), "cublasLtMatmulDescSetAttribute", p)
        return held

    def _new_matmul(self, p: GemmProblem) -> Attributes:
        handle = ctypes.c_void_p()
        call = "cublasLtMatmulDescCreate"
        compute, scale = COMPUTE_TYPES[p.compute_type], data_type("scale_dtype", p.scale_dtype)
        require(self._functions[call](ctypes.byref(handle), compute, scale), call, p)
        held = Attributes(self._functions["cublasLtMatmulDescSetAttribute"], handle.value or 0)
        statuses = [
            held.set(MatmulDescAttribute.TRANSA, OPERATIONS[p.transa], 4),
            held.set(MatmulDescAttribute.TRANSB, OPERATIONS[p.transb], 4),
            held.set(MatmulDescAttribute.EPILOGUE, EPILOGUES[p.epilogue], 4),
        ]
        if p.fast_accumulation:
            statuses.append(held.set(MatmulDescAttribute.FAST_ACCUM, 1, 1))
        if p.epilogue in BIASED:
            bias = data_type("bias_dtype", p.bias_dtype)
            statuses.append(held.set(MatmulDescAttribute.BIAS_DATA_TYPE, bias, 4))
        require(max(statuses), "cublasLtMatmulDescSetAttribute", p)
        return held

    def _layout(self, p: GemmProblem, name: str, shape: Shape) -> int:
        batched = p.batch_count > 1
        held = self._layouts.get((name, shape.dtype, batched))
        if held is None:
            held = self._layouts[name, shape.dtype, batched] = self._new_layout(p, name, shape)
        status = (
            held.set(_LAYOUT_ROWS, shape.rows, 8)
            or held.set(_LAYOUT_COLS, shape.columns, 8)
            or held.set(_LAYOUT_LD, shape.ld, 8)
        )
        if batched:
            status = status or held.set(_LAYOUT_BATCH, p.batch_count, 4) or held.set(_LAYOUT_STRIDE, shape.stride, 8)
        if status != SUCCESS:
            require(status, "cublasLtMatrixLayoutSetAttribute", p)
        return held.handle

    def _new_layout(self, p: GemmProblem, name: str, shape: Shape) -> Attributes:
        handle = ctypes.c_void_p()
        call, stored = "cublasLtMatrixLayoutCreate", data_type(f"{name}_dtype", shape.dtype)
        made = self._functions[call](ctypes.byref(handle), stored, shape.rows, shape.columns, shape.ld)
        require(made, call, p)
        return Attributes(self._functions["cublasLtMatrixLayoutSetAttribute"], handle.value or 0)

    def _preferences(self, p: GemmProblem) -> int:
        held = self._preference
        if held is None:
            handle = ctypes.c_void_p()
            call = "cublasLtMatmulPreferenceCreate"
            require(self._functions[call](ctypes.byref(handle)), call, p)
            held = Attributes(self._functions["cublasLtMatmulPreferenceSetAttribute"], handle.value or 0)
            self._preference = held
        status = (
            held.set(PreferenceAttribute.MAX_WORKSPACE_BYTES, p.workspace_limit_bytes, 8)
            or held.set(PreferenceAttribute.REDUCTION_SCHEME_MASK, p.reduction_scheme_mask, 4)
            or held.set(PreferenceAttribute.MIN_ALIGNMENT_A_BYTES, p.a_alignment_bytes, 4)
            or held.set(PreferenceAttribute.MIN_ALIGNMENT_B_BYTES, p.b_alignment_bytes, 4)
            or held.set(PreferenceAttribute.MIN_ALIGNMENT_C_BYTES, p.c_alignment_bytes, 4)
            or held.set(PreferenceAttribute.MIN_ALIGNMENT_D_BYTES, p.d_alignment_bytes, 4)
        )
        if status != SUCCESS:
            require(status, "cublasLtMatmulPreferenceSetAttribute", p)
        return held.handle
