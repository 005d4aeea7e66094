"""Small Triton kernels whose compiled texts the equivalence checker is tried on, with the knobs that each is swept by.

A kernel is written for one launch: all sizes are constants of its case, so that a text and a launch stand for one
computation.  ``cases()`` lists them; a case and a choice of its knobs is a configuration.  Kernels that torch.compile
emitted are cases too, by names that begin with ``compiled-``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import triton
import triton.language as tl

from gemmdesc.equivalence import Kernel, Launch
from tests.equivalence_compiled import Emitted, emitted


@triton.jit
def row_sum(x, y, N: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row, tl.sum(tl.load(x + row * N + tl.arange(0, N)).to(tl.float32), axis=0))


@triton.jit
def row_sum_loop(x, y, N: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, N, BLOCK_N):
        total += tl.sum(tl.load(x + row * N + start + tl.arange(0, BLOCK_N)).to(tl.float32), axis=0)
    tl.store(y + row, total)


@triton.jit
def row_sum_vector_loop(x, y, N: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        total += tl.load(x + row * N + start + tl.arange(0, BLOCK_N)).to(tl.float32)
    tl.store(y + row, tl.sum(total, axis=0))


@triton.jit
def row_sum_masked(x, y, n, N: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, N)
    tl.store(y + row, tl.sum(tl.load(x + row * n + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def row_dot(a, b, y, N: tl.constexpr):
    row = tl.program_id(0)
    at = row * N + tl.arange(0, N)
    tl.store(y + row, tl.sum(tl.load(a + at).to(tl.float32) * tl.load(b + at).to(tl.float32), axis=0))


@triton.jit
def row_max(x, y, N: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row, tl.max(tl.load(x + row * N + tl.arange(0, N)), axis=0))


@triton.jit
def row_argmax(x, y, N: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row, tl.argmax(tl.load(x + row * N + tl.arange(0, N)), axis=0))


@triton.jit
def welford_combine(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    delta = mean_b - mean_a
    count = count_a + count_b
    share = count_b / count
    return mean_a + delta * share, m2_a + m2_b + delta * delta * count_a * share, count


@triton.jit
def welford(x, y, N: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * N + tl.arange(0, N)).to(tl.float32)
    zero, one = tl.zeros([N], tl.float32), tl.full([N], 1.0, tl.float32)
    mean, m2, _ = tl.reduce((v, zero, one), 0, welford_combine)
    tl.store(y + 2 * row, mean)
    tl.store(y + 2 * row + 1, m2 / N)


@triton.jit
def cond_sum(x, y, N: tl.constexpr):
    row = tl.program_id(0)
    if tl.load(x + row * N) > 0.0:
        tl.store(y + row, tl.sum(tl.load(x + row * N + tl.arange(0, N)), axis=0))


@triton.jit
def sum_axis1(x, y, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    tl.store(y + r, tl.sum(tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32), axis=1))


@triton.jit
def sum_axis0(x, y, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    tl.store(y + c, tl.sum(tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32), axis=0))


@triton.jit
def max_axis0(x, y, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    tl.store(y + c, tl.max(tl.load(x + r[:, None] * N + c[None, :]), axis=0))


@triton.jit
def dot_axis0(a, b, y, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    at = r[:, None] * N + c[None, :]
    tl.store(y + c, tl.sum(tl.load(a + at).to(tl.float32) * tl.load(b + at).to(tl.float32), axis=0))


@triton.jit
def exp_sum_axis0(x, y, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    tl.store(y + c, tl.sum(tl.exp(tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32)), axis=0))


@triton.jit
def sum_axis0_loop(x, y, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for start in range(0, K, M):
        total += tl.sum(tl.load(x + (start + r)[:, None] * N + c[None, :]).to(tl.float32), axis=0)
    tl.store(y + c, total)


@triton.jit
def sum_3d(x, y, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr):
    i, j, k = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    v = tl.load(x + i[:, None, None] * (B * C) + j[None, :, None] * C + k[None, None, :]).to(tl.float32)
    s = tl.sum(v, axis=AXIS)
    if AXIS == 0:
        tl.store(y + j[:, None] * C + k[None, :], s)
    elif AXIS == 1:
        tl.store(y + i[:, None] * C + k[None, :], s)
    else:
        tl.store(y + i[:, None] * B + j[None, :], s)


@triton.jit
def sum_two_axes(x, y, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    i, j, k = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    v = tl.load(x + i[:, None, None] * (B * C) + j[None, :, None] * C + k[None, None, :]).to(tl.float32)
    tl.store(y + i, tl.sum(tl.sum(v, axis=2), axis=1))


@triton.jit
def pinned_sum(x, y, N: tl.constexpr, LOG: tl.constexpr):
    v = tl.reshape(tl.load(x + tl.arange(0, N)).to(tl.float32), [1, N])
    for i in tl.static_range(LOG):
        v = tl.sum(tl.reshape(v, [1, N >> (i + 1), 2]), axis=2)
    tl.store(y + tl.arange(0, 1), tl.reshape(v, [1]))


@triton.jit
def split_sum(x, y, N: tl.constexpr, LOG: tl.constexpr):
    v = tl.reshape(tl.load(x + tl.arange(0, N)).to(tl.float32), [1, N])
    for i in tl.static_range(LOG):
        left, right = tl.split(tl.reshape(v, [1, N >> (i + 1), 2]))
        v = left + right
    tl.store(y + tl.arange(0, 1), tl.reshape(v, [1]))


@triton.jit
def softmax(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + at).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + at, (e / tl.sum(e, axis=0)).to(y.dtype.element_ty))


@triton.jit
def layernorm(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + at).to(tl.float32)
    d = v - tl.sum(v, axis=0) / N
    tl.store(y + at, (d / tl.sqrt(tl.sum(d * d, axis=0) / N + 1e-5)).to(y.dtype.element_ty))


@triton.jit
def rmsnorm(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + at).to(tl.float32)
    tl.store(y + at, (v / tl.sqrt(tl.sum(v * v, axis=0) / N + 1e-5)).to(y.dtype.element_ty))


@triton.jit
def row_cumsum(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + at, tl.cumsum(tl.load(x + at), axis=0))


@triton.jit
def vector_add(a, b, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(a + at, mask=at < n) + tl.load(b + at, mask=at < n), mask=at < n)


@triton.jit
def silu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n).to(tl.float32)
    tl.store(y + at, (v * tl.sigmoid(v)).to(y.dtype.element_ty), mask=at < n)


@triton.jit
def axpy(a, b, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(a + at, mask=at < n) * 1.7 + tl.load(b + at, mask=at < n), mask=at < n)


@triton.jit
def atomic_sum(x, y, N: tl.constexpr):
    row = tl.program_id(0)
    tl.atomic_add(y, tl.sum(tl.load(x + row * N + tl.arange(0, N)), axis=0))


@triton.jit
def tile(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
         BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + (start + k)[None, :])
        right = tl.load(b + (start + k)[:, None] * N + n[None, :])
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    return m, n, acc


@triton.jit
def gemm(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
         BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    m, n, acc = tile(a, b, c, M, N, K, BM, BN, BK, PRECISION)
    tl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def gemm_bias_relu(a, b, bias, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                   BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    m, n, acc = tile(a, b, c, M, N, K, BM, BN, BK, "ieee")
    acc = tl.maximum(acc * 0.7 + tl.load(bias + n)[None, :], 0.0)
    tl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def gemm_kgroup(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUPS: tl.constexpr):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros([BM, BN], tl.float32)
    for group in tl.static_range(GROUPS):
        acc = tl.zeros([BM, BN], tl.float32)
        for start in range(group * (K // GROUPS), (group + 1) * (K // GROUPS), BK):
            left = tl.load(a + m[:, None] * K + (start + k)[None, :])
            right = tl.load(b + (start + k)[:, None] * N + n[None, :])
            acc = tl.dot(left, right, acc)
        total += acc
    tl.store(c + m[:, None] * N + n[None, :], total)


@triton.jit
def gemm_splitk(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr):  # fmt: skip
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    part = tl.program_id(0)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(part * (K // SPLITS), (part + 1) * (K // SPLITS), BK):
        left = tl.load(a + m[:, None] * K + (start + k)[None, :])
        acc = tl.dot(left, tl.load(b + (start + k)[:, None] * N + n[None, :]), acc)
    tl.store(c + part * M * N + m[:, None] * N + n[None, :], acc)


@triton.jit
def combine(parts, c, SIZE: tl.constexpr, SPLITS: tl.constexpr, EVEN_ODD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN_ODD:
        even, odd = tl.load(parts + at), tl.load(parts + SIZE + at)
        for i in tl.static_range(1, SPLITS // 2):
            even += tl.load(parts + 2 * i * SIZE + at)
            odd += tl.load(parts + (2 * i + 1) * SIZE + at)
        tl.store(c + at, even + odd)
    else:
        total = tl.load(parts + at)
        for i in tl.static_range(1, SPLITS):
            total += tl.load(parts + i * SIZE + at)
        tl.store(c + at, total)


@triton.jit
def gemm_row_sum(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                 BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    m, _n, acc = tile(a, b, c, M, N, K, BM, BN, BK, "ieee")
    tl.store(c + m, tl.sum(acc, axis=1))


@triton.jit
def gemm_softmax(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                 BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    m, n, acc = tile(a, b, c, M, N, K, BM, BN, BK, "ieee")
    e = tl.exp(acc - tl.max(acc, axis=1)[:, None])
    tl.store(c + m[:, None] * N + n[None, :], e / tl.sum(e, axis=1)[:, None])


@triton.jit
def scalar_chain(a, b, c, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, FUSED: tl.constexpr):
    n = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for k in range(K):
        left, right = tl.load(a + k).to(tl.float32), tl.load(b + k * N + n).to(tl.float32)
        acc = tl.fma(right, tl.broadcast_to(left, [BLOCK]), acc) if FUSED else acc + left * right
    tl.store(c + n, acc)


WARPS = {"num_warps": (1, 2, 4, 8)}
FUSION = {"enable_fp_fusion": (True, False)}
FLOATS = ("fp32", "fp16", "bf16")
#: Cases that take up to minutes to compile: eleven splits and more of packed halves.  Campaigns make them last.
SLOW = tuple(f"split_sum-{kind}-x{scale}" for kind in ("fp16", "bf16") for scale in (2, 4))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel with fixed types and sizes.

    ``pointers``: Triton's element types of the pointer arguments, in order; ``integers``: the run-time integer
    arguments; ``constants``: constexpr arguments that all configurations share; ``knobs``: what is swept, constexpr
    arguments and compiler options together; ``tiles``: constexpr arguments that are chosen together.  ``grid`` is a
    function of the constants chosen.
    """

    name: str
    kernel: Any
    pointers: tuple[tuple[str, str], ...]
    constants: Mapping[str, Any]
    knobs: Mapping[str, tuple[Any, ...]]
    grid: tuple[int, int, int] = (1, 1, 1)
    integers: Mapping[str, int] = field(default_factory=dict)
    tiles: tuple[Mapping[str, Any], ...] = ({},)

    @property
    def family(self) -> str:
        """By what name its kernels are counted together."""
        return f"compiled {self.kernel.family}" if isinstance(self.kernel, Emitted) else str(self.kernel.__name__)

    def configurations(self) -> Iterator[dict[str, Any]]:
        """All choices of the knobs, the last one varying fastest."""
        for tile, *values in itertools.product(self.tiles, *self.knobs.values()):
            yield {**tile, **dict(zip(self.knobs, values, strict=True))}


OPTIONS = ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion")


def compile_case(case: Case, choice: Mapping[str, Any], arch: int) -> Any:
    """The compiled kernel of one configuration for ``sm_<arch>``; needs no GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {**case.constants, **{k: v for k, v in choice.items() if k not in OPTIONS}}
    options = {"enable_fp_fusion": True, **{k: v for k, v in choice.items() if k in OPTIONS}}
    signature = {name: f"*{kind}" for name, kind in case.pointers}
    signature |= dict.fromkeys(case.integers, "i32") | dict.fromkeys(constants, "constexpr")
    names = case.kernel.arg_names
    compiled = isinstance(case.kernel, Emitted)
    aligned = [n for n, _ in case.pointers] + [n for n, v in case.integers.items() if v % 16 == 0]
    if compiled:
        aligned = list(case.kernel.aligned)
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    signature = {n: signature[n] for n in names}
    function = case.kernel.jit() if compiled else case.kernel
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def _reductions(scale: int) -> Iterator[Case]:
    for kind in FLOATS:
        xy = (("x", kind), ("y", "fp32"))
        aby = (("a", kind), ("b", kind), ("y", "fp32"))
        knobs = {**WARPS, **FUSION}
        for n in (256 * scale, 1024 * scale, 4096 * scale):
            yield Case(name=f"row_sum-{n}-{kind}", kernel=row_sum, pointers=xy, constants={"N": n}, knobs=knobs,
                       grid=(2, 1, 1))  # fmt: skip
            yield Case(name=f"row_dot-{n}-{kind}", kernel=row_dot, pointers=aby, constants={"N": n}, knobs=knobs,
                       grid=(2, 1, 1))  # fmt: skip
        loop = {"BLOCK_N": (128, 256, 512), "num_stages": (1, 3), **knobs}
        for kernel in (row_sum_loop, row_sum_vector_loop):
            yield Case(name=f"{kernel.__name__}-{kind}", kernel=kernel, pointers=xy, constants={"N": 2048 * scale},
                       knobs=loop, grid=(2, 1, 1))  # fmt: skip
        yield Case(name=f"welford-{kind}", kernel=welford, pointers=xy, constants={"N": 512 * scale}, knobs=knobs)
        for m, n in ((8 * scale, 128), (32 * scale, 64), (64 * scale, 16)):
            size = {"M": m, "N": n}
            for kernel in (sum_axis1, sum_axis0, exp_sum_axis0):
                yield Case(name=f"{kernel.__name__}-{m}x{n}-{kind}", kernel=kernel, pointers=xy, constants=size,
                           knobs=knobs)  # fmt: skip
            yield Case(name=f"dot_axis0-{m}x{n}-{kind}", kernel=dot_axis0, pointers=aby, constants=size, knobs=knobs)
        yield Case(name=f"sum_axis0_loop-{kind}", kernel=sum_axis0_loop, pointers=xy,
                   constants={"K": 256 * scale, "N": 64}, knobs={"M": (16, 32, 64), **knobs})  # fmt: skip
        for axis in (0, 1, 2):
            yield Case(name=f"sum_3d-{axis}-{kind}", kernel=sum_3d, pointers=xy,
                       constants={"A": 8, "B": 16 * scale, "C": 32, "AXIS": axis}, knobs=knobs)  # fmt: skip
        yield Case(name=f"sum_two_axes-{kind}", kernel=sum_two_axes, pointers=xy,
                   constants={"A": 8, "B": 16 * scale, "C": 32}, knobs=knobs)  # fmt: skip
        for kernel in (pinned_sum, split_sum):
            yield Case(name=f"{kernel.__name__}-{kind}", kernel=kernel, pointers=xy, knobs=WARPS,
                       constants={"N": 1024 * scale, "LOG": 9 + scale.bit_length()})  # fmt: skip


def _others(scale: int) -> Iterator[Case]:
    xy = (("x", "fp32"), ("y", "fp32"))
    knobs = {**WARPS, **FUSION}
    for kind in FLOATS:
        pair = (("x", kind), ("y", kind))
        for kernel in (softmax, layernorm, rmsnorm):
            for n in (256 * scale, 1024 * scale):
                yield Case(name=f"{kernel.__name__}-{n}-{kind}", kernel=kernel, pointers=pair, constants={"N": n},
                           knobs=knobs, grid=(2, 1, 1))  # fmt: skip
        yield Case(name=f"silu-{kind}", kernel=silu, pointers=pair, constants={}, integers={"n": 1000},
                   knobs={"BLOCK": (256, 512), **knobs}, grid=(4, 1, 1))  # fmt: skip
    yield Case(name="row_sum_masked", kernel=row_sum_masked, pointers=xy, constants={"N": 1024},
               integers={"n": 777}, knobs=knobs, grid=(2, 1, 1))  # fmt: skip
    for kernel in (row_max, cond_sum, row_cumsum, atomic_sum):
        yield Case(name=kernel.__name__, kernel=kernel, pointers=xy, constants={"N": 1024 * scale}, knobs=knobs)
    yield Case(name="row_argmax", kernel=row_argmax, pointers=(("x", "fp32"), ("y", "i32")),
               constants={"N": 512 * scale}, knobs=knobs)  # fmt: skip
    yield Case(name="max_axis0", kernel=max_axis0, pointers=xy, constants={"M": 32 * scale, "N": 64}, knobs=knobs)
    for kernel in (vector_add, axpy):
        yield Case(name=kernel.__name__, kernel=kernel, pointers=(("a", "fp32"), ("b", "fp32"), ("y", "fp32")),
                   constants={}, integers={"n": 1000}, knobs={"BLOCK": (256, 512), **knobs})  # fmt: skip
    yield Case(name="combine", kernel=combine, pointers=(("parts", "fp32"), ("c", "fp32")),
               constants={"SIZE": 1024, "SPLITS": 8 * scale}, grid=(4, 1, 1),
               knobs={"EVEN_ODD": (False, True), "BLOCK": (256,), **WARPS})  # fmt: skip
    for fused in (True, False):
        yield Case(name=f"scalar_chain-{fused}", kernel=scalar_chain,
                   pointers=(("a", "fp32"), ("b", "fp32"), ("c", "fp32")), knobs={"BLOCK": (128,), **knobs},
                   constants={"N": 128, "K": 96 * scale, "FUSED": fused})  # fmt: skip


def _products(scale: int) -> Iterator[Case]:
    size = {"M": 32, "N": 64, "K": 512 * scale}
    sweep = {"BK": (16, 32, 64), "num_stages": (1, 2, 3), "num_warps": (1, 2, 4)}
    for kind in FLOATS:
        abc = (("a", kind), ("b", kind), ("c", "fp32"))
        one = {**size, "BM": 32, "BN": 64}
        precision = "tf32" if kind == "fp32" else "ieee"
        yield Case(name=f"gemm-{kind}", kernel=gemm, pointers=abc, constants={**size, "PRECISION": precision},
                   knobs={"BM": (16, 32), "BN": (32, 64), **sweep}, grid=(1, 1, 1))  # fmt: skip
        for groups in (1, 2, 4):
            yield Case(name=f"gemm_kgroup-{groups}-{kind}", kernel=gemm_kgroup, pointers=abc, knobs=sweep,
                       constants={**one, "GROUPS": groups})  # fmt: skip
        for kernel in (gemm_row_sum, gemm_softmax):
            yield Case(name=f"{kernel.__name__}-{kind}", kernel=kernel, pointers=abc, constants=one, knobs=sweep)
    yield Case(name="gemm-fp32-ieee", kernel=gemm, pointers=(("a", "fp32"), ("b", "fp32"), ("c", "fp32")),
               constants={"M": 16, "N": 32, "K": 64 * scale, "BM": 16, "BN": 32, "PRECISION": "ieee"},
               knobs={"BK": (16, 32), **WARPS, **FUSION})  # fmt: skip
    abc16 = (("a", "fp16"), ("b", "fp16"), ("c", "fp32"))
    one = {**size, "BM": 32, "BN": 64}
    yield Case(name="gemm_splitk", kernel=gemm_splitk, pointers=abc16, constants={**one, "SPLITS": 4},
               knobs=sweep, grid=(4, 1, 1))  # fmt: skip
    yield Case(name="gemm_bias_relu", kernel=gemm_bias_relu, constants=one, knobs={**sweep, **FUSION},
               pointers=(("a", "bf16"), ("b", "bf16"), ("bias", "fp32"), ("c", "bf16")))  # fmt: skip
    yield Case(name="gemm-fp8", kernel=gemm, pointers=(("a", "fp8e4nv"), ("b", "fp8e4nv"), ("c", "fp32")),
               constants={**size, "BM": 32, "BN": 64, "PRECISION": "ieee"},
               knobs={**sweep, "BK": (32, 64)})  # fmt: skip
    yield Case(name="gemm-wide", kernel=gemm, pointers=abc16,
               constants={"M": 64, "N": 64, "K": 128 * scale, "BM": 64, "BN": 64, "PRECISION": "ieee"},
               knobs={"BK": (32, 64), "num_warps": (4, 8)})  # fmt: skip


def _compiled() -> Iterator[Case]:
    """What torch.compile emitted, with the block sizes that inductor's heuristics would try."""
    several = Counter(one.function for one in emitted())
    for one in emitted():
        number = f"-{one.number}" if several[one.function] > 1 else ""
        yield Case(
            name=f"compiled-{one.function}{number}", kernel=one, pointers=one.pointers, constants=one.constants,
            integers=one.integers, tiles=one.tiles, knobs={**WARPS, **FUSION, "num_stages": one.stages},
        )  # fmt: skip


def cases() -> dict[str, Case]:
    """The cases that tests take from, by name."""
    return _named([*_reductions(1), *_others(1), *_products(1), *_compiled()])


def wide_cases() -> dict[str, Case]:
    """Every case at three sizes, swept over more warps and stages; the compiled ones as they are."""
    found = []
    for scale in (1, 2, 4):
        for case in (*_reductions(scale), *_others(scale), *_products(scale)):
            knobs = {**case.knobs, "num_warps": (1, 2, 4, 8, 16), "num_stages": (1, 2, 3, 4)}
            name = case.name if scale == 1 else f"{case.name}-x{scale}"
            found.append(replace(case, name=name, knobs=knobs))
    return _named([*found, *_compiled()])


def _named(listed: list[Case]) -> dict[str, Case]:
    found = {case.name: case for case in listed}
    assert len(found) == len(listed)
    return found


def grid_of(case: Case, choice: Mapping[str, Any]) -> tuple[int, int, int]:
    """The launch grid of one configuration."""
    if isinstance(case.kernel, Emitted):
        return case.kernel.grid(choice)
    if case.kernel is gemm:
        every = {**case.constants, **choice}
        return every["M"] // every["BM"], every["N"] // every["BN"], 1
    if "n" in case.integers and "BLOCK" in choice:
        return -(-case.integers["n"] // choice["BLOCK"]), 1, 1
    return case.grid


def launch_of(case: Case, choice: Mapping[str, Any]) -> Launch:
    """The launch of one configuration; constexpr arguments are no parameters of the text."""
    names = [p for p in case.kernel.arg_names if p in dict(case.pointers) or p in case.integers]
    arguments = {names.index(name): value for name, value in case.integers.items()}
    return Launch(grid=grid_of(case, choice), arguments=arguments)


def kernel_of(case: Case, choice: Mapping[str, Any], arch: int = 90) -> Kernel:
    """One configuration, compiled, with its launch."""
    name = f"{case.name} {' '.join(f'{k}={v}' for k, v in choice.items())} sm_{arch}"
    return Kernel(name=name, ptx=compile_case(case, choice, arch).asm["ptx"], launch=launch_of(case, choice))
