"""The replay with its leaves on a device against the replay: the same C compiled for the host, and on a card."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmdesc.arithmetic import device_leaves
from gemmdesc.arithmetic.device_leaves import DeviceSide, leaf_sums
from gemmdesc.arithmetic.device_replay import replay_on_device
from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.leaf_source import KERNEL_NAMES, OPTIONS, SOURCE
from gemmdesc.arithmetic.replay import replay, replay_leaves
from gemmdesc.bits import Bits, bitwise_equal
from gemmdesc.descriptor import (
    Accumulator,
    AddC,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueLast,
    Rounding,
    Scale,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.library.interface import Replaying, Window
from gemmdesc.library.replayed import replay_problem
from gemmdesc.nvrtc import Arguments, available, compile_cubin
from gemmdesc.operands import Family, HashOperand, torch_integer
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem, dense_problem
from gemmdesc.regions import Region
from gemmdesc.schedule import make_schedule
from tests.arithmetic_reference import HOPPER, KINDS, descriptors, draw_bits

COMPILER = shutil.which("g++") or shutil.which("c++")
#: What CUDA gives a kernel, for a host where a grid is a loop.
HOST = """\
#include <cmath>
#include <cstring>
using std::copysign; using std::fabs; using std::rint; using std::trunc;
#define __device__
#define __global__
static struct { unsigned int x; } gridDim, blockDim, blockIdx, threadIdx;
template <class To, class From> static To same_bits(From x) { To y; std::memcpy(&y, &x, sizeof y); return y; }
static double __longlong_as_double(long long x) { return same_bits<double>(x); }
static long long __double_as_longlong(double x) { return same_bits<long long>(x); }
static int __float_as_int(float x) { return same_bits<int>(x); }
static float __int_as_float(int x) { return same_bits<float>(x); }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
extern "C" void place(unsigned int grid, unsigned int block, unsigned int at, unsigned int thread) {
  gridDim.x = grid; blockDim.x = block; blockIdx.x = at; threadIdx.x = thread;
}
"""
SLICES = Cut(
    layout=Contiguous(span=64), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST
)
STEPS = st.builds(
    FusedDot, fraction_bits=st.integers(10, 30), output_bits=st.sampled_from([10, 13, 22, 23]),
    rounding=st.sampled_from([Rounding.TOWARD_ZERO, Rounding.NEAREST_EVEN]), zero_exponent=st.integers(-300, 10),
)  # fmt: skip


class HostKernel:
    """A kernel of the host's library, launched as one of a card."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._library, self._name = library, name

    def launch(self, grid: Sequence[int], block: Sequence[int], arguments: Arguments, stream: int) -> None:
        given = [of(value) for value, of in arguments]
        for at in range(grid[0]):
            for thread in range(block[0]):
                self._library.place(grid[0], block[0], at, thread)
                self._library[self._name](*given)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("needs g++ or c++")
    folder = tmp_path_factory.mktemp("leaves")
    (folder / "host.cpp").write_text(HOST + SOURCE)
    options = ["-O1", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas"]
    subprocess.run([COMPILER, *options, str(folder / "host.cpp"), "-o", str(folder / "host.so")], check=True)
    return ctypes.CDLL(str(folder / "host.so"))


Replay = Callable[..., Bits]


@pytest.fixture
def on_host(host: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """:func:`replay_on_device` with tensors of the host's, which that function would refuse."""
    kernels = tuple(HostKernel(host, name) for name in KERNEL_NAMES)
    monkeypatch.setattr(device_leaves, "_load", lambda index: kernels)
    monkeypatch.setattr(device_leaves, "_MOST_BLOCKS", 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: SimpleNamespace(cuda_stream=0))

    def run(desc: GEMMDesc, a: Bits, b: Bits, rows: Any, cols: Any, epilogue: EpilogueInputs) -> Bits:
        sides = [
            DeviceSide(bits=_tensor(x, dtype), dtype=dtype, cast=cast, chosen=np.asarray(chosen))
            for x, dtype, cast, chosen in (
                (a, desc.a_dtype, desc.a_cast, rows), (b.T, desc.b_dtype, desc.b_cast, cols),
            )
        ]  # fmt: skip
        k = a.shape[1]
        sums = leaf_sums(desc.accumulator.step, make_schedule(desc, k), sides[0], sides[1])
        return replay_leaves(desc, k, sums, epilogue=epilogue)

    return run


def _tensor(bits: Bits, dtype: DType, place: str = "cpu") -> torch.Tensor:
    whole = np.ascontiguousarray(bits).copy()
    return torch.from_numpy(whole.view(f"i{dtype.itemsize}")).view(torch_integer(dtype)).to(place)


def _chosen(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.sort(rng.choice(size, rng.integers(1, size + 1), replace=False))


def _agrees(run: Replay, desc: GEMMDesc, kind: str, seed: int, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    a, b = draw_bits(rng, kind, (m, k), desc.a_dtype), draw_bits(rng, kind, (k, n), desc.b_dtype)
    rows, cols = _chosen(rng, m), _chosen(rng, n)
    c = draw_bits(rng, "narrow", (m, n), DType.FLOAT16)
    whole = EpilogueInputs(alpha=1.5, beta=0.75, c=c, c_dtype=DType.FLOAT16)
    part = EpilogueInputs(alpha=1.5, beta=0.75, c=c[np.ix_(rows, cols)], c_dtype=DType.FLOAT16)
    mine = run(desc, a, b, rows, cols, part)
    assert bitwise_equal(mine, replay(desc, a, b, rows=rows, cols=cols, epilogue=whole))


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(desc=descriptors(), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1), k=st.integers(0, 90))
def test_the_hosts_kernels_give_the_replays_bytes(
    on_host: Replay, desc: GEMMDesc, kind: str, seed: int, k: int
) -> None:
    _agrees(on_host, desc, kind, seed, (3, 4, k))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    step=STEPS, instruction_k=st.sampled_from([1, 2, 4, 7, 8, 9, 16, 31, 32, 33, 70]), kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2]),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_every_length_of_step_gives_the_replays_bytes(
    on_host: Replay, step: FusedDot, instruction_k: int, kind: str, dtype: DType, seed: int
) -> None:
    accumulator = Accumulator(instruction_k=instruction_k, residue=ResidueLast(), step=step)
    _agrees(on_host, _plain(accumulator, dtype), kind, seed, (2, 3, 150))


def _plain(accumulator: Accumulator, dtype: DType = DType.FLOAT16) -> GEMMDesc:
    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=DType.FLOAT32, summed_k=1 << 20, cuts=(), accumulator=accumulator
    )


def test_what_opens_a_fold_is_done_between_the_leaves(on_host: Replay) -> None:
    cut = replace(SLICES, layout=Contiguous(span=24), opening=(Scale(), AddC(fused=True)))
    desc = GEMMDesc(
        a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, output_dtype=DType.FLOAT16, summed_k=100, cuts=(cut,),
        accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER),
    )  # fmt: skip
    for seed in range(8):
        _agrees(on_host, desc, "narrow", seed, (5, 6, 100))


def test_a_wrong_order_is_told(on_host: Replay) -> None:
    """The comparison of these tests can fail."""
    right = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)
    wrong = Accumulator(instruction_k=8, residue=ResidueLast(), step=HOPPER)
    rng = np.random.default_rng(0)
    a, b = (draw_bits(rng, "narrow", shape, DType.FLOAT16) for shape in ((4, 64), (64, 4)))
    mine = on_host(_plain(wrong), a, b, np.arange(4), np.arange(4), EpilogueInputs())
    assert not bitwise_equal(mine, replay(_plain(right), a, b))


def test_leaves_must_be_those_of_the_schedule() -> None:
    desc = _plain(Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER))
    with pytest.raises(InvalidInputError, match="leaves must be 1"):
        replay_leaves(desc, 32, np.zeros((2, 1, 1), np.float32))


def test_only_tensors_on_a_card_are_replayed_there() -> None:
    desc = _plain(Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER))
    a = torch.zeros((2, 16), dtype=torch.int16)
    with pytest.raises(InvalidInputError, match=r"^a must have two axes.*got \(2, 16\).*cpu"):
        replay_on_device(desc, a, a, rows=np.arange(2), cols=np.arange(2))


def test_nvrtc_compiles_the_kernels_without_contraction() -> None:
    if not available():
        pytest.skip("needs cuda-bindings and NVRTC")
    from cuda.bindings import nvrtc

    assert compile_cubin(nvrtc, SOURCE, "sm_90", OPTIONS).startswith(b"\x7fELF")


@pytest.mark.gpu
@settings(max_examples=600, deadline=None)
@given(desc=descriptors(), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1), k=st.integers(0, 400))
def test_the_card_gives_the_replays_bytes(desc: GEMMDesc, kind: str, seed: int, k: int) -> None:
    _agrees(_on_card, desc, kind, seed, (5, 7, k))


def _on_card(desc: GEMMDesc, a: Bits, b: Bits, rows: Any, cols: Any, epilogue: EpilogueInputs) -> Bits:
    one, other = _tensor(a, desc.a_dtype, "cuda"), _tensor(b.T, desc.b_dtype, "cuda")
    return replay_on_device(desc, one, other, rows=rows, cols=cols, epilogue=epilogue)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN])
def test_the_card_replays_long_sums(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    accumulator = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)
    a, b = (draw_bits(rng, "narrow", shape, dtype) for shape in ((7, 70001), (70001, 9)))
    mine = _on_card(_plain(accumulator, dtype), a, b, np.arange(7), np.arange(9), EpilogueInputs())
    assert bitwise_equal(mine, replay(_plain(accumulator, dtype), a, b))


@pytest.mark.gpu
def test_the_library_on_a_card_replays_beside_its_products() -> None:
    from gemmdesc.library.cublaslt import CublasLt

    accumulator = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)
    whole = replace(_plain(accumulator), output_dtype=DType.FLOAT16)
    orders = (whole, replace(whole, cuts=(SLICES,)))
    problem = dense_problem(96, 80, 1000, DType.FLOAT16)
    a, b = (
        HashOperand(dtype=DType.FLOAT16, family=Family.CANCELLING, seed=3, draw=0, role=role) for role in ("a", "b")
    )
    window = Window(rows=np.array([0, 7, 95]), columns=np.array([3, 79]))
    regions = [whole_region(problem, order) for order in orders]
    with CublasLt() as library:
        assert isinstance(library, Replaying)
        answer = library.answer(problem)
        assert isinstance(answer, AlgoConfig)
        found = library.run_and_replay(problem, answer, a, b, window, regions)
        alone = library.run(problem, answer, a, b, window)
    assert not isinstance(found, Failed)
    assert not isinstance(alone, Failed)
    assert bitwise_equal(found[0], alone)
    for mine, order in zip(found[1], orders, strict=True):
        assert bitwise_equal(mine, replay_problem(order, problem, a, b, window))
    assert not bitwise_equal(*found[1])


def whole_region(problem: GemmProblem, desc: GEMMDesc) -> tuple[Region, ...]:
    return (Region(row_begin=0, row_end=problem.m, column_begin=0, column_end=problem.n, descriptor=desc),)
