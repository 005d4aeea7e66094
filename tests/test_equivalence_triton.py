"""Kernels that stock Triton compiles here: their classes, their values, and mutations of their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.arithmetic.step import decode_number
from gemmdesc.dtypes import DType
from gemmdesc.equivalence import Different, Equal, Kernel, Nondeterministic, Unknown, equivalent, partition, read
from gemmdesc.equivalence.evaluate import evaluate
from gemmdesc.equivalence.walk import Walked, walk
from tests.equivalence_corpus import cases, kernel_of

CASES = cases()
WARPS = (1, 2, 4, 8)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


def by_warps(name: str, arch: int = 90, **choice: object) -> list[Kernel]:
    return [kernel_of(CASES[name], {"num_warps": w, **choice}, arch) for w in WARPS]


def walked(kernel: Kernel) -> Walked:
    return walk(kernel.ptx, kernel.launch)


@pytest.mark.parametrize(
    ("name", "arch", "classes"),
    [
        ("row_sum-1024-fp32", 90, 4),
        ("row_sum-1024-fp32", 100, 4),
        ("pinned_sum-fp32", 90, 1),
        ("split_sum-fp32", 90, 1),
        ("row_max", 90, 1),
        ("vector_add", 90, 1),
    ],
)
def test_warps_fall_into_as_many_classes_as_there_are_trees(name: str, arch: int, classes: int) -> None:
    extra = {"BLOCK": 256} if name == "vector_add" else {}
    found = partition(by_warps(name, arch, **extra))
    assert found.refused == ()
    assert len(found.classes) == classes, found.classes


def test_a_maximum_does_not_depend_on_its_tree_but_its_function_counts() -> None:
    one, other = by_warps("row_max")[:2]
    assert isinstance(equivalent(one, other), Equal)
    keeping = Kernel(name="nan", ptx=other.ptx.replace("max.f32", "max.NaN.f32"), launch=other.launch)
    assert isinstance(equivalent(one, keeping), Different)


@pytest.mark.parametrize(("stages", "tile"), [(1, 16), (3, 64)])
def test_tiles_and_stages_do_not_move_a_product_but_groups_do(stages: int, tile: int) -> None:
    base = kernel_of(CASES["gemm-fp16"], {"BM": 32, "BN": 64, "BK": 32, "num_stages": 2, "num_warps": 2})
    same = kernel_of(CASES["gemm-fp16"], {"BM": 16, "BN": 32, "BK": tile, "num_stages": stages, "num_warps": 1})
    assert isinstance(equivalent(base, same), Equal)
    grouped = kernel_of(CASES["gemm_kgroup-2-fp16"], {"BK": tile, "num_stages": stages, "num_warps": 2})
    assert isinstance(equivalent(base, grouped), Different)


def test_what_depends_on_data_or_on_the_order_of_atomics_is_not_read() -> None:
    choice = {"num_warps": 4, "enable_fp_fusion": False}
    conditional, atomic = (kernel_of(CASES[name], choice) for name in ("cond_sum", "atomic_sum"))
    answer = equivalent(conditional, kernel_of(CASES["row_sum-1024-fp32"], choice))
    assert isinstance(answer, Unknown)
    assert answer.code == "data_dependent"
    assert isinstance(equivalent(atomic, atomic), Nondeterministic)


@pytest.fixture(scope="module")
def summed(cache: None) -> Kernel:
    return kernel_of(CASES["row_sum-1024-fp32"], {"num_warps": 4, "enable_fp_fusion": True})


def mutated(kernel: Kernel, pattern: str, replacement: str) -> Kernel:
    text, count = re.subn(pattern, replacement, kernel.ptx, count=1)
    assert count == 1
    return Kernel(name="mutant", ptx=text, launch=kernel.launch)


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+), 16,(?s:(.*?bfly\.b32\s+%r\d+, %r\d+), 8,)", r"\1, 8,\2, 16,"),
        (r"(add(?:\.rn)?)\.f32(\s+%r\d+, %r\d+, %r\d+;)", r"mul.rn.f32\2"),
        (r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+), 4,", r"\1, 5,"),
    ],
    ids=["swapped merge", "another operation", "another lane"],
)
def test_a_mutated_reduction_is_different(summed: Kernel, pattern: str, replacement: str) -> None:
    assert isinstance(equivalent(summed, mutated(summed, pattern, replacement)), Different)


def test_a_butterfly_over_lanes_that_hold_one_value_is_the_same_butterfly(summed: Kernel) -> None:
    same = mutated(summed, r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+), 4,", r"\1, 12,")
    assert isinstance(equivalent(summed, same), Equal)


@pytest.mark.parametrize(
    ("pattern", "replacement", "code"),
    [
        (r"bar\.sync\s+0;", "", "shared_memory"),
        (r"@%p\d+ (st\.global\.b32 \[ %rd\d+ \+ 0 \]), { %r\d+ }", r"\1, {{ {thread} }}", "global_memory"),
        (r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+, 16, 31), -1", r"\1, 1", "divergence"),
    ],
    ids=["missing barrier", "racing store", "shuffle out of its mask"],
)
def test_a_broken_reduction_is_refused(summed: Kernel, pattern: str, replacement: str, code: str) -> None:
    thread = re.search(r"(%r\d+), %tid\.x", summed.ptx)
    assert thread is not None
    answer = equivalent(summed, mutated(summed, pattern, replacement.replace("{{ {thread} }}", f"{{ {thread[1]} }}")))
    assert isinstance(answer, Unknown)
    assert answer.code == code


def test_a_dropped_fma_is_different() -> None:
    dot = kernel_of(CASES["row_dot-256-fp32"], {"num_warps": 1, "enable_fp_fusion": True})
    dropped = mutated(dot, r"fma\.rn\.f32(\s+%r\d+, %r\d+, )%r\d+, (%r\d+)", r"add.rn.f32\1\2")
    assert isinstance(equivalent(dot, dropped), Different)


def test_a_missing_barrier_of_a_pipelined_product_is_refused() -> None:
    base = kernel_of(CASES["gemm-fp16"], {"BM": 32, "BN": 64, "BK": 32, "num_stages": 3, "num_warps": 2})
    for pattern in (r"bar\.sync\s+0;", r"cp\.async\.wait_group\s+\d+;"):
        text = re.sub(pattern, "", base.ptx)
        answer = equivalent(base, Kernel(name="mutant", ptx=text, launch=base.launch))
        assert isinstance(answer, Unknown)
        assert answer.code == "shared_memory"


def test_a_compared_pointer_is_refused(summed: Kernel) -> None:
    address = re.search(r"st\.global\.b32 \[ (%rd\d+) \+ 0 \]", summed.ptx)
    assert address is not None
    compare = f"setp.ne.s64 %p1, {address[1]}, 0;\n"
    answer = equivalent(summed, mutated(summed, r"(@%p\d+ st\.global)", compare + r"\1"))
    assert isinstance(answer, Unknown)
    assert answer.code == "pointer"


# Values.

INTEGERS = np.random.default_rng(1)


def small_integers(size: int, kind: str = "fp32") -> np.ndarray:
    values = INTEGERS.integers(-8, 9, size).astype(np.float32)
    return values.astype(np.float16) if kind == "fp16" else values


def stored_floats(w: Walked, parameter: int, *inputs: np.ndarray, matrix_step: object = None) -> np.ndarray:
    memory = {i: np.ascontiguousarray(x).view(np.uint8).ravel() for i, x in enumerate(inputs)}
    offsets, values = evaluate(w, memory, matrix_step=matrix_step)[parameter]  # type: ignore[arg-type]
    assert (offsets == np.arange(len(offsets))).all()
    return values.view(np.float32)


@pytest.mark.parametrize(
    "name", ["row_sum-1024-fp32", "row_dot-1024-fp16", "row_sum_loop-fp16", "sum_axis0-32x64-fp32", "sum_3d-1-fp16"]
)
def test_a_sum_of_small_integers_is_exact_whatever_its_tree(name: str) -> None:
    case = CASES[name]
    choice = next(iter(case.configurations())) | {"num_warps": 2}
    kind = case.pointers[0][1]
    n = {"row_sum_loop-fp16": 2048, "sum_axis0-32x64-fp32": 1024, "sum_3d-1-fp16": 2048}.get(name, 1024)
    inputs = [small_integers(2 * n, kind) for _ in case.pointers[1:]]
    got = stored_floats(walked(kernel_of(case, choice)), len(inputs), *inputs)
    exact = inputs[0].astype(np.float64)
    if len(inputs) == 2:
        exact = exact * inputs[1].astype(np.float64)
    if name.startswith("sum_axis0"):
        wanted = exact.reshape(32, 64)[:32].sum(axis=0) if len(exact) == 2048 else exact
    elif name.startswith("sum_3d"):
        wanted = exact[:4096].reshape(8, 16, 32).sum(axis=1).ravel()
    else:
        wanted = exact.reshape(2, n).sum(axis=1)
    assert (got == wanted.astype(np.float32)).all()


def test_the_four_trees_of_a_sum_have_different_values() -> None:
    x = (INTEGERS.standard_normal(2048) * 10.0 ** INTEGERS.uniform(-6, 6, 2048)).astype(np.float32)
    results = {stored_floats(walked(k), 1, x).tobytes() for k in by_warps("row_sum-1024-fp32")}
    assert len(results) > 1


def decoded(words: np.ndarray, kind: str) -> np.ndarray:
    """Values of a matrix step's row or column, ascending in k."""
    match kind:
        case "f16":
            return np.ascontiguousarray(words).view(np.float16).astype(np.float64)
        case "bf16":
            halves = np.ascontiguousarray(words).view(np.uint16)
            return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case "tf32":
            return np.ascontiguousarray(words).view(np.float32).astype(np.float64)
    raise AssertionError(kind)


def exact_step(name: str, rows: np.ndarray, columns: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """A matrix step in float64, which is exact for small integers."""
    _, left, right, _ = name.split(".")[-4:]
    total = (decoded(rows, left) * decoded(columns, right)).sum(axis=1)
    total += sums.astype(np.uint32).view(np.float32).astype(np.float64)
    return total.astype(np.float32).view(np.uint32).astype(np.uint64)


def stored_as(values: np.ndarray, kind: str) -> np.ndarray:
    """Small integers in the element type of a kernel."""
    match kind:
        case "fp16":
            return values.astype(np.float16)
        case "bf16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        case "fp8":
            table = {v: p for p in range(256) if (v := e4m3(p)) == int(v)}
            return np.array([table[int(v)] for v in values.ravel()], np.uint8).reshape(values.shape)
    return values.astype(np.float32)


def e4m3(pattern: int) -> float:
    number = decode_number(pattern, DType.FLOAT8_E4M3FN)
    return float(number.value) if number.kind == "finite" else 0.5


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32", "fp8"])
def test_a_product_of_small_integers_is_exact(kind: str) -> None:
    """Every fragment is in its place: rows, columns and k of each element type."""
    a, b = small_integers(32 * 512).reshape(32, 512), small_integers(512 * 64).reshape(512, 64)
    choice = {"BM": 32, "BN": 64, "BK": 32, "num_stages": 2, "num_warps": 4}
    kernel = kernel_of(CASES[f"gemm-{kind}"], {k: v for k, v in choice.items() if k in CASES[f"gemm-{kind}"].knobs})
    assert "mma.sync" in kernel.ptx
    got = stored_floats(walked(kernel), 2, stored_as(a, kind), stored_as(b, kind), matrix_step=exact_step)
    assert (got.reshape(32, 64) == a @ b).all()


def test_reading_a_reduction_takes_milliseconds(summed: Kernel) -> None:
    import time

    read(summed)
    began = time.perf_counter()
    read(summed)
    assert time.perf_counter() - began < 0.5
