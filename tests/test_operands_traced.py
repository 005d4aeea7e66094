"""Traced programs: what NumPy runs, recorded; the same bytes from the record, and from its C on the host."""

from __future__ import annotations

import ctypes
import operator
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.nvrtc import available, compile_cubin
from gemmdesc.operands import Family, HashOperand, cuda_fill
from gemmdesc.operands.families import extent, hashed_bits
from gemmdesc.operands.lanes import absorb, flag, packed, select, shift_right
from gemmdesc.operands.traced import C_PRELUDE, Apply, trace

ROLES = ("a", "b")
KINDS = [(family, dtype, role) for family in Family for dtype in DType for role in ROLES]
COMPILER = shutil.which("gcc") or shutil.which("cc")
EDGES = np.array([0, 1, 2, 3, 5, 63, 64, -1, -2, -7, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)], dtype=np.int64)

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(x, y)


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: flag(function(x, y)) + 2 * flag(function(x, 3))


#: Functions of lanes x and y that use every operator; no division by zero, no shift beyond 63.
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{function.__name__: _arithmetic(function) for function in ARITHMETIC},
    **{function.__name__: _comparison(function) for function in COMPARISONS},
    "neg": lambda x, y: -x + y * 0,
    "invert": lambda x, y: ~x + y * 0,
    "floordiv": lambda x, y: x // ((y & 1023) + 1),
    "floordiv_negative": lambda x, y: (x >> 1) // ~(y & 1023),
    "lshift": lambda x, y: x << (y & 63),
    "rshift": lambda x, y: x >> (y & 63),
    "reflected": lambda x, y: ((7 - x) + (-5 + y)) ^ (3 * x) ^ (-2 & y) ^ (9 | x) ^ (1 ^ y),
    "reflected_shifts": lambda x, y: (1 << (x & 63)) ^ (-(2**63) >> (y & 63)) ^ (1000 // ((x & 7) + 1)),
    "select": lambda x, y: select(flag(x < y), x, 12) ^ select(flag(x == y), -4, y),
    "packed": lambda x, y: packed(tuple(range(15, -1, -1)), x & 15) + y * 0,
    "shift_right": lambda x, y: shift_right(x, 30) + y * 0,
}


def _pairs(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x, y = (rng.integers(-(2**63), 2**63, 200, dtype=np.int64) for _ in range(2))
    edges = np.meshgrid(EDGES, EDGES)
    return np.concatenate([edges[0].ravel(), x]), np.concatenate([edges[1].ravel(), y])


def _host_library(tmp_path: Any, source: str) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("needs gcc or cc")
    (tmp_path / "host.c").write_text(source)
    options = ["-O1", "-std=c99", "-shared", "-fPIC", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    paths = [str(tmp_path / "host.c"), "-o", str(tmp_path / "host.so")]
    subprocess.run([COMPILER, *options, *paths], check=True, capture_output=True)
    return ctypes.CDLL(str(tmp_path / "host.so"))


@pytest.mark.parametrize("name", OPERATORS)
def test_a_trace_is_evaluated_to_numpys_lanes(name: str, rng: np.random.Generator) -> None:
    x, y = _pairs(rng)
    program = trace(OPERATORS[name], ("x", "y"))
    np.testing.assert_array_equal(program.evaluate(x=x, y=y), OPERATORS[name](x, y))


def test_the_c_of_a_trace_gives_numpys_lanes(tmp_path: Any, rng: np.random.Generator) -> None:
    functions = [trace(f, ("x", "y")).c_function(f"f_{name}") for name, f in OPERATORS.items()]
    loops = [
        f"void run_{name}(u64* out, const u64* x, const u64* y, i64 n)"
        f" {{ for (i64 j = 0; j < n; ++j) out[j] = f_{name}(x[j], y[j]); }}\n"
        for name in OPERATORS
    ]
    library = _host_library(tmp_path, "".join([C_PRELUDE, *functions, *loops]))
    x, y = _pairs(rng)
    for name, function in OPERATORS.items():
        out = np.empty_like(x)
        pointers = (ctypes.c_void_p(v.ctypes.data) for v in (out, x, y))
        getattr(library, f"run_{name}")(*pointers, ctypes.c_longlong(len(x)))
        np.testing.assert_array_equal(out, function(x, y), err_msg=name)


def test_equal_steps_are_shared() -> None:
    program = trace(lambda x, y: (x * 3 + y) ^ ((x * 3 + y) >> 7), ("x", "y"))
    assert len([s for s in program.steps if isinstance(s, Apply)]) == 4
    assert len(set(program.steps)) == len(program.steps)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if x else 0,
        lambda x: 1 if x < 3 else 0,
        lambda x: max(x, 1),
        lambda x: x + 0.5,
        lambda x: x * (1 << 63),
        lambda x: x & ((1 << 64) - 1),
        lambda x: x + flag,
        lambda x: x < 3,
        lambda x: None,
    ],
)
def test_what_no_word_stands_for_does_not_trace(function: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"must .*\(got .*\)$"):
        trace(function, ("x",))


def test_inputs_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"^inputs must be x, y"):
        trace(lambda x, y: x + y, ("x", "y")).evaluate(x=1, z=2)


@pytest.mark.parametrize(("family", "dtype", "role"), KINDS, ids=lambda x: getattr(x, "value", x))
def test_an_elements_program_gives_the_operands_bytes(
    family: Family, dtype: DType, role: str, rng: np.random.Generator
) -> None:
    program = cuda_fill.element_program(family, dtype, role)
    for k in (1, 2, 130, 2**31 + 11, 2**40):
        length, levels = extent(k)
        at = {
            "i": np.concatenate([np.arange(5), rng.integers(0, 2**40, 20)])[:, None],
            "kk": np.concatenate([np.arange(min(k, 9)), rng.integers(0, k, 200)])[None, :],
        }
        words = {"base": absorb(int(rng.integers(2**63)), k), "length": length, "levels": levels}
        expected = hashed_bits(family, dtype, role, **words, **at)
        np.testing.assert_array_equal(np.broadcast_to(program.evaluate(**words, **at), expected.shape), expected)


_HOST_GRID = """
static struct { unsigned int x, y; } gridDim, blockDim, blockIdx, threadIdx;
"""
_HOST_LAUNCH = """
void run_%(name)s(void* out, i64 outer, i64 k, u64 base, u64 length, u64 levels, i64 per, i64 matrix, i64 row,
                  i64 step, i64 by_rows, const unsigned int* shape) {
  gridDim.x = shape[0]; gridDim.y = shape[1]; blockDim.x = shape[2]; blockDim.y = shape[3];
  for (blockIdx.y = 0; blockIdx.y < shape[1]; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < shape[0]; ++blockIdx.x)
      for (threadIdx.y = 0; threadIdx.y < shape[3]; ++threadIdx.y)
        for (threadIdx.x = 0; threadIdx.x < shape[2]; ++threadIdx.x)
          fill_%(name)s(out, outer, k, base, length, levels, per, matrix, row, step, by_rows);
}
"""


def _host_kernel(family: Family, dtype: DType, role: str) -> str:
    name = f"{family.value}_{dtype.value}_{role}"
    source = cuda_fill.kernel_source(family, dtype, role).removeprefix(C_PRELUDE)
    names = ((f" {cuda_fill.KERNEL_NAME}(", f" fill_{name}("), ("element(", f"element_{name}("))
    for old, new in (('extern "C" __global__', "static"), *names):
        assert old in source
        source = source.replace(old, new)
    return source + _HOST_LAUNCH % {"name": name}


@pytest.fixture(scope="module")
def host_kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Every kernel as host C, with a grid and a block that are loops."""
    kernels = [_host_kernel(*kind) for kind in KINDS]
    return _host_library(tmp_path_factory.mktemp("kernels"), "".join([C_PRELUDE, _HOST_GRID, *kernels]))


@pytest.mark.parametrize(("family", "dtype", "role"), KINDS, ids=lambda x: getattr(x, "value", x))
def test_the_kernels_c_gives_the_operands_bytes(
    host_kernels: ctypes.CDLL, family: Family, dtype: DType, role: str
) -> None:
    run = getattr(host_kernels, f"run_{family.value}_{dtype.value}_{role}")
    operand = HashOperand(dtype=dtype, family=family, seed=2**63 - 1, draw=9, role=role)  # type: ignore[arg-type]
    base = absorb(operand.seed, operand.draw, ord(role))
    for outer, k in ((1, 1), (3, 5), (33, 130), (5, 1025), (700, 3), (2, 10007)):
        grid, block = cuda_fill.launch_shape(outer, k)
        # A grid that is too small has every thread stride in both directions.
        for shape in ((*grid, *block), (1, 1, 2, 2)):
            out = np.full((outer, k), 0x5A, dtype=f"u{dtype.itemsize}")
            dense = cuda_fill.Places.of((outer, k), (k, 1))
            words = (ctypes.c_longlong(x) for x in (outer, k, base, *extent(k), *dense.words))
            run(ctypes.c_void_p(out.ctypes.data), *words, (ctypes.c_uint * 4)(*shape))
            np.testing.assert_array_equal(out, operand.bits(outer, k))


#: (matrices, rows, k) and strides in elements: padded rows, columns, batches of both with gaps between matrices.
PLACES = [
    ((1, 33, 70), (0, 75, 1)), ((1, 70, 33), (0, 1, 71)), ((3, 20, 9), (200, 9, 1)), ((3, 20, 9), (300, 1, 32)),
    ((5, 1, 300), (301, 1, 1)), ((4, 130, 1), (131, 1, 130)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "strides"), PLACES)
def test_the_kernels_c_writes_elements_where_they_belong_and_nothing_else(
    host_kernels: ctypes.CDLL, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    family, dtype, role = Family.RAMP, DType.FLOAT16, "a"
    run = getattr(host_kernels, f"run_{family.value}_{dtype.value}_{role}")
    operand = HashOperand(dtype=dtype, family=family, seed=3, draw=1, role="a")
    places, k = cuda_fill.Places.of(shape, strides), shape[-1]
    grid, block = cuda_fill.launch_shape(places.outer, k, by_rows=places.by_rows)
    assert places.by_rows is (strides[1] < strides[2])
    for launched in ((*grid, *block), (1, 1, 2, 2)):
        out = np.full(1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 8, 0x5A5A, dtype=np.uint16)
        wanted = out.copy()
        view = np.lib.stride_tricks.as_strided(wanted, shape, tuple(2 * s for s in strides))
        view[...] = operand.bits(places.outer, k).reshape(shape)
        words = (places.outer, k, absorb(3, 1, ord("a")), *extent(k), *places.words)
        run(ctypes.c_void_p(out.ctypes.data), *map(ctypes.c_longlong, words), (ctypes.c_uint * 4)(*launched))
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("outer", [1, 2, 3, 100, 70_000, 2**31, 2**40])
@pytest.mark.parametrize("k", [1, 2, 3, 100, 1000, 2**20, 2**31, 2**40])
def test_a_launch_is_within_the_hardwares_limits_and_wastes_little(outer: int, k: int) -> None:
    (down, along), (x, y) = cuda_fill.launch_shape(outer, k, by_rows=True)
    assert 1 <= x * y <= 256
    assert (1 <= down < 2**31, 1 <= along <= 65535) == (True, True)
    (down, along), (x, y) = cuda_fill.launch_shape(outer, k)
    assert 1 <= x * y <= 256
    assert 1 <= down < 2**31
    assert 1 <= along <= 65535
    assert x < 2 * k
    assert y < 2 * outer
    if down < 2**31 - 1:
        assert down * y < outer + y
    if outer * k >= 256:
        assert x * y > 64


class _Nvrtc:
    """What :func:`gemmdesc.nvrtc.compile_cubin` calls of ``cuda.bindings.nvrtc``."""

    def __init__(self, status: int) -> None:
        self.status, self.calls = status, []

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        answers = {"nvrtcCreateProgram": ("program",), "nvrtcGetProgramLogSize": (8,), "nvrtcGetCUBINSize": (3,)}

        def call(*arguments: object) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name == "nvrtcGetProgramLog":
                assert isinstance(arguments[1], bytes)
                ctypes.memmove(arguments[1], b"no good\0", 8)
            return (self.status if name == "nvrtcCompileProgram" else 0, *answers.get(name, ()))

        return call


def test_a_refused_kernel_raises_with_the_log() -> None:
    nvrtc = _Nvrtc(6)
    with pytest.raises(LibraryError, match=r"^NVRTC must compile a kernel for sm_90 \(got 6\):\nno good$"):
        compile_cubin(nvrtc, "x", "sm_90")
    assert nvrtc.calls[-1] == ("nvrtcDestroyProgram", "program")
    assert ("nvrtcCompileProgram", "program", 1, [b"--gpu-architecture=sm_90"]) in nvrtc.calls
    assert len(compile_cubin(_Nvrtc(0), "x", "sm_90")) == 3


def test_nvrtc_compiles_every_kernel() -> None:
    if not available():
        pytest.skip("needs cuda-bindings and NVRTC")
    from cuda.bindings import nvrtc

    for kind in KINDS:
        assert compile_cubin(nvrtc, cuda_fill.kernel_source(*kind), "sm_90").startswith(b"\x7fELF")


def test_only_a_tensor_on_a_card_is_filled() -> None:
    import torch

    out = torch.empty((2, 3), dtype=torch.int16)
    with pytest.raises(InvalidInputError, match=r"^out must be .*\(got \(2, 3\)"):
        cuda_fill.fill(out, family=Family.WIDE, dtype=DType.FLOAT16, role="a", base=0)
