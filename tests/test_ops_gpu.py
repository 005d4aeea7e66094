"""``gemmdesc.matmul`` against ``torch.mm`` on a GPU, byte for byte.  Needs a profile of the library; run ``-m gpu``.

Where a call may decline, the test says so; everywhere else a decline is a failure.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest

import gemmdesc
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError
from gemmdesc.kernels.prepared import PreparedProgram
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.torch_settings import read_settings
from gemmdesc.ops import default_planner, plan, run, warmup
from gemmdesc.plan import CaptureError, Plan, Planner, planner_for
from gemmdesc.problem import AlgoConfig, GemmProblem
from gemmdesc.routes import TensorMeta, route_mm, swaps_operands, tensor_meta

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32
#: Unrounded, rounded, split-K, thin and deep.
SHAPES = ((1000, 999, 1001), (512, 256, 1024), (64, 64, 32768), (16, 4096, 4096), (333, 77, 5000), (2000, 1500, 700))


@pytest.fixture(scope="module", autouse=True)
def planner() -> Iterator[Planner]:
    made = default_planner()
    if isinstance(made.profile, Declined):
        pytest.fail(f"these tests need a profile: {made.profile.reason}")
    yield made
    assert made.cache_info().size <= made.cache_info().capacity


def bits(t: Any) -> Any:
    return t.contiguous().view(torch.int16 if t.element_size() == 2 else torch.int32)


def assert_same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if not torch.equal(bits(got), bits(want)):
        wrong = (bits(got) != bits(want)).nonzero()
        first = tuple(wrong[0].tolist())
        pytest.fail(f"{len(wrong)} of {got.numel()} differ, first at {first}: {got[first]} for {want[first]}")


def draw(
    rows: int, columns: int, dtype: Any = HALF, *, layout: str = "r", offset: int = 0, pad: int = 0, seed: int = 0
) -> Any:
    """Values of wide exponents by rows or columns, ``offset`` elements into a buffer, ``pad`` after each line."""
    generator = torch.Generator("cuda").manual_seed(seed * 7919 + rows * 31 + columns)
    lines, length = (rows, columns) if layout == "r" else (columns, rows)
    buffer = torch.empty(offset + lines * (length + pad), dtype=dtype, device="cuda")
    view = buffer[offset:].view(lines, length + pad)[:, :length]
    scale = torch.randint(-6, 7, (lines, length), device="cuda", generator=generator)
    view.copy_(torch.randn((lines, length), device="cuda", generator=generator) * torch.exp2(scale.float()))
    return view if layout == "r" else view.T


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("layouts", ["".join(p) for p in product("rc", repeat=2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_in_every_layout(shape: tuple[int, int, int], layouts: str, dtype: Any) -> None:
    m, n, k = shape
    a, b = draw(m, k, dtype, layout=layouts[0]), draw(k, n, dtype, layout=layouts[1], seed=1)
    assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_equal_with_float32_results(shape: tuple[int, int, int], dtype: Any) -> None:
    m, n, k = shape
    a, b = draw(m, k, dtype), draw(k, n, dtype, seed=1)
    assert_same(gemmdesc.matmul(a, b, out_dtype=FLOAT), torch.mm(a, b, out_dtype=FLOAT))


@pytest.mark.parametrize("k", [1, 7, 8, 9, 15, 31, 33, 63, 65, 127, 129, 1001])
@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_equal_or_declined_at_every_tail_of_k(k: int, dtype: Any) -> None:
    a, b = draw(1000, k, dtype), draw(k, 999, dtype, seed=1)
    planned = plan(a, b)
    if isinstance(planned, Declined):
        assert planned.code in ("no_rule", "kernel")
    else:
        assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
@pytest.mark.parametrize("pad", [0, 1, 8])
def test_equal_at_every_address_and_pitch(offset: int, pad: int) -> None:
    a = draw(264, 520, offset=offset, pad=pad)
    b = draw(520, 136, offset=2 * offset, pad=pad, layout="c", seed=1)
    assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))


def test_equal_with_an_odd_inner_pitch() -> None:
    a, b = draw(1024, 2048, BF16, layout="c"), draw(2048, 1953, BF16, pad=7920 - 1953, seed=1)
    assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))


@pytest.mark.parametrize("layout", ["r", "c"])
@pytest.mark.parametrize(
    ("n", "offset", "pad"), [(200, 0, 0), (200, 1, 3), (200, 8, 8), (201, 0, 7), (195, 8, 13), (203, 0, 21)]
)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_out_receives_the_product_and_its_gaps_stay(layout: str, n: int, offset: int, pad: int, dtype: Any) -> None:
    a, b = draw(304, 520), draw(n, 520, seed=1).T
    lines, length = (304, n) if layout == "r" else (n, 304)
    size = offset + lines * (length + pad) + 5
    buffers = [torch.full((size,), float("nan"), dtype=dtype, device="cuda") for _ in range(2)]
    outs = []
    for buffer in buffers:
        view = buffer[offset : offset + lines * (length + pad)].view(lines, length + pad)[:, :length]
        outs.append(view if layout == "r" else view.T)
    assert gemmdesc.matmul(a, b, out=outs[0]) is outs[0]
    if dtype is HALF:
        torch.mm(a, b, out=outs[1])
    else:
        torch.mm(a, b, dtype, out=outs[1])
    assert not bool(outs[0].isnan().any())
    assert_same(buffers[0], buffers[1])


def test_nothing_of_out_is_read() -> None:
    a, b = draw(256, 16384), draw(16384, 64, seed=1)
    for filler in (float("nan"), float("inf")):
        out = torch.full((256, 64), filler, dtype=HALF, device="cuda")
        assert_same(gemmdesc.matmul(a, b, out=out), torch.mm(a, b))


@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 0), (0, 7, 3), (5, 0, 3), (0, 0, 0)])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_empty_products_are_torchs(m: int, n: int, k: int, dtype: Any, planner: Planner) -> None:
    a, b = draw(m, k), draw(k, n)
    before = planner.cache_info()
    want = torch.mm(a, b) if dtype is HALF else torch.mm(a, b, out_dtype=dtype)
    assert_same(gemmdesc.matmul(a, b, out_dtype=dtype), want)
    out = torch.full((m, n), float("nan"), dtype=dtype, device="cuda")
    assert_same(gemmdesc.matmul(a, b, out=out), want)
    assert planner.cache_info() == before


@pytest.mark.parametrize("shape", [(256, 512, 1024), (64, 64, 32768), (333, 77, 5001)])
@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_special_values(shape: tuple[int, int, int], dtype: Any) -> None:
    m, n, k = shape
    a, b = draw(m, k, dtype), draw(k, n, dtype, seed=1)
    a[0], a[1, k // 2], a[2, k - 1], a[3, 0] = -0.0, float("nan"), float("inf"), float("-inf")
    a[4] = torch.finfo(dtype).max
    a[5] = torch.finfo(dtype).smallest_normal / 4
    b[k // 3, n // 2], b[:, 3] = float("inf"), -0.0
    assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))


def test_more_operand_elements_than_32_bits_address() -> None:
    a = torch.randn((35783, 65133), dtype=BF16, device="cuda")
    b = torch.randn((65133, 8), dtype=BF16, device="cuda")
    if isinstance(plan(a, b), Plan):
        assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))
    torch.cuda.synchronize()
    del a, b
    small = draw(256, 256), draw(256, 256, seed=1)
    assert_same(gemmdesc.matmul(*small), torch.mm(*small))


def test_more_result_elements_than_32_bits_address() -> None:
    a = torch.randn((46400, 64), dtype=BF16, device="cuda")
    b = torch.randn((64, 46400), dtype=BF16, device="cuda")
    got, want = gemmdesc.matmul(a, b), torch.mm(a, b)
    for begin in range(0, 46400, 4640):
        assert torch.equal(bits(got[begin : begin + 4640]), bits(want[begin : begin + 4640]))


def test_alternating_shapes_do_not_mix() -> None:
    sides = [(draw(m, k, seed=i), draw(k, n, seed=i + 10)) for i, (m, n, k) in enumerate(SHAPES)]
    wanted = [torch.mm(a, b) for a, b in sides]
    for _ in range(3):
        for (a, b), want in zip(sides, wanted, strict=True):
            assert_same(gemmdesc.matmul(a, b), want)


def test_a_plan_runs_many_times() -> None:
    a, b = draw(300, 4096), draw(4096, 200, seed=1)
    planned = plan(a, b)
    assert isinstance(planned, Plan)
    out = torch.empty((300, 200), dtype=HALF, device="cuda")
    for seed in range(3):
        a.copy_(draw(300, 4096, seed=seed))
        assert_same(run(planned, a, b), torch.mm(a, b))
        assert_same(run(planned, a, b, out=out), torch.mm(a, b))
    with pytest.raises(InvalidInputError, match=r"^a must be stored as planned"):
        run(planned, draw(300, 4096, layout="c"), b)


def test_explain_agrees_with_the_plan() -> None:
    a, b = draw(1000, 4111), draw(4111, 255, seed=1)
    told = gemmdesc.explain(a, b)
    assert told.outcome == plan(a, b)
    assert "verified" in str(told)


# Declines.


def test_declines_are_typed_and_the_library_runs_them_if_asked(planner: Planner) -> None:
    a, b = draw(64, 128), draw(128, 32, seed=1)
    wide = draw(64, 256)[:, ::2]
    single = torch.randn(64, 128, device="cuda"), torch.randn(128, 32, device="cuda")
    double = a.double(), b.double()
    for left, right, code in ((wide, b, "unsupported_input"), (*single, "no_rule"), (*double, "out_of_scope")):
        before = planner.decline_counts().get(code, 0)
        with pytest.raises(DeclinedError) as caught:
            gemmdesc.matmul(left, right)
        assert caught.value.declined.code == code
        assert_same_any(gemmdesc.matmul(left, right, on_decline="library"), torch.mm(left, right))
        assert planner.decline_counts()[code] == before + 1


def assert_same_any(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


@contextmanager
def reduction(dtype: Any, allowed: bool, splitk: bool = True) -> Iterator[None]:
    """torch's reduced-precision reduction of one type, set for a while."""
    settings = torch.backends.cuda.matmul
    name = f"allow_{'fp16' if dtype is HALF else 'bf16'}_reduced_precision_reduction"
    before = getattr(settings, name), getattr(settings, f"{name}_split_k")
    setattr(settings, name, (allowed, splitk))
    try:
        yield
    finally:
        setattr(settings, name, before)


def test_a_flag_takes_effect_at_once() -> None:
    a, b = draw(64, 16384), draw(16384, 64, seed=1)
    masks = []
    for allowed in (True, False, True):
        with reduction(HALF, allowed):
            assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))
            planned = plan(a, b)
        assert isinstance(planned, Plan)
        masks.append(planned.problem.reduction_scheme_mask)
    assert masks == [7, 2, 7]


#: Beside SHAPES: an in-place split at the default setting on an H200, vectors, and small products.
REDUCED = (*SHAPES, (2047, 2049, 2051), (4097, 4095, 4093), (1, 4096, 4096), (4096, 1, 4096), (33, 17, 900))


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("layouts", ["".join(p) for p in product("rc", repeat=2)])
@pytest.mark.parametrize("shape", REDUCED)
def test_equal_or_declined_without_reduced_precision(shape: tuple[int, int, int], layouts: str, dtype: Any) -> None:
    m, n, k = shape
    a, b = draw(m, k, dtype, layout=layouts[0]), draw(k, n, dtype, layout=layouts[1], seed=1)
    with reduction(dtype, False):
        planned = plan(a, b)
        if isinstance(planned, Declined):
            # No evidence need have met an answer that comes back under this mask alone.
            assert planned.code in ("no_rule", "kernel", "nondeterministic")
        else:
            assert planned.problem.reduction_scheme_mask == 2
            assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("layouts", ["".join(p) for p in product("rc", repeat=2)])
@pytest.mark.parametrize("shape", REDUCED)
def test_the_stated_problem_is_torchs_without_reduced_precision(
    shape: tuple[int, int, int], layouts: str, dtype: Any, own_library: CublasLt
) -> None:
    m, n, k = shape
    a, b = draw(m, k, dtype, layout=layouts[0]), draw(k, n, dtype, layout=layouts[1], seed=1)
    out = torch.full((m, n), float("nan"), dtype=dtype, device="cuda")
    metas = [t for t in map(tensor_meta, (a, b, out)) if isinstance(t, TensorMeta)]
    with reduction(dtype, False):
        want = torch.mm(a, b)
        problem = route_mm(*metas, read_settings(own_library.device.sm))
    assert isinstance(problem, GemmProblem)
    answer = own_library.answer(problem)
    assert isinstance(answer, AlgoConfig)
    first, second = (b, a) if swaps_operands(metas[2]) else (a, b)
    assert own_library.matmul(problem, answer, first.data_ptr(), second.data_ptr(), out.data_ptr()) is None
    assert_same(out, want)


@pytest.fixture(scope="module")
def own_library() -> Iterator[CublasLt]:
    with CublasLt() as made:
        yield made


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_float32_results_decline_without_reduced_precision(dtype: Any) -> None:
    a, b = draw(64, 16384, dtype), draw(16384, 64, dtype, seed=1)
    with reduction(dtype, False):
        with pytest.raises(DeclinedError, match="a float32 result") as caught:
            gemmdesc.matmul(a, b, out_dtype=FLOAT)
        assert caught.value.declined.code == "flags"
        got = gemmdesc.matmul(a, b, out_dtype=FLOAT, on_decline="library")
        assert_same(got, torch.mm(a, b, out_dtype=FLOAT))


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_without_splitk_we_decline_and_torch_refuses(dtype: Any) -> None:
    a, b = draw(64, 16384, dtype), draw(16384, 64, dtype, seed=1)
    with reduction(dtype, False, splitk=False):
        with pytest.raises(DeclinedError, match="split-K is off"):
            gemmdesc.matmul(a, b)
        with pytest.raises(RuntimeError, match="requires the cuBLASLt backend"):
            gemmdesc.matmul(a, b, on_decline="library")
    assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))


@pytest.mark.parametrize(("dtype", "other"), [(HALF, BF16), (BF16, HALF)])
@pytest.mark.parametrize("splitk", [True, False])
def test_flags_of_the_other_type_do_not_matter(dtype: Any, other: Any, splitk: bool) -> None:
    a, b = draw(64, 16384, dtype), draw(16384, 64, dtype, seed=1)
    usual = plan(a, b)
    assert isinstance(usual, Plan)
    with reduction(other, False, splitk):
        planned = plan(a, b)
        assert isinstance(planned, Plan)
        assert planned.problem == usual.problem
        assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))


def test_autocast_declines_or_copies_torch() -> None:
    a, b = draw(256, 512), draw(512, 128, seed=1)
    with torch.autocast("cuda", BF16):
        with pytest.raises(DeclinedError, match="autocast"):
            gemmdesc.ops.matmul(a, b)
        assert_same(gemmdesc.matmul(a, b), torch.mm(a, b))
        assert_same(gemmdesc.matmul(a.bfloat16(), b.bfloat16()), torch.mm(a.bfloat16(), b.bfloat16()))


def test_operands_on_two_devices_are_refused() -> None:
    a, b = draw(4, 6), draw(6, 5)
    with pytest.raises(InvalidInputError, match=r"^b must be on a's device cuda:0 \(got cpu\)$"):
        gemmdesc.matmul(a, b.cpu())
    if torch.cuda.device_count() > 1:
        with pytest.raises(InvalidInputError, match=r"^b must be on a's device cuda:0 \(got cuda:1\)$"):
            gemmdesc.matmul(a, b.to("cuda:1"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_operands_device_counts_and_not_the_current_one() -> None:
    a, b = (t.to("cuda:1") for t in (draw(300, 520), draw(520, 200, seed=1)))
    with torch.cuda.device(0):
        got = gemmdesc.matmul(a, b)
    assert got.device == a.device
    assert_same(got, torch.mm(a, b))


# Streams, threads, graphs.


def test_four_streams_and_four_threads_never_vary() -> None:
    a, b = draw(64, 32768, BF16), draw(32768, 64, BF16, seed=1)
    want = torch.mm(a, b)
    gemmdesc.matmul(a, b)
    torch.cuda.synchronize()
    start = threading.Barrier(4)

    def work(_: int) -> int:
        stream = torch.cuda.Stream()
        start.wait()
        with torch.cuda.stream(stream):
            results = [gemmdesc.matmul(a, b) for _ in range(50)]
        stream.synchronize()
        return sum(not torch.equal(bits(r), bits(want)) for r in results)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 0, 0, 0]


def test_work_goes_to_the_current_stream() -> None:
    a, b = draw(512, 512), draw(512, 512, seed=1)
    want = torch.mm(a, b)
    gemmdesc.matmul(a, b)
    source, stream = torch.zeros_like(a), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        source.copy_(a)
        got = gemmdesc.matmul(source, b)
    stream.synchronize()
    assert_same(got, want)


@pytest.mark.parametrize("shape", [(64, 64, 32768), (1000, 999, 1001), (512, 512, 512)])
def test_graphs_replay_torchs_bytes_and_own_their_scratch(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = draw(m, k, BF16), draw(k, n, BF16, seed=1)
    gemmdesc.matmul(a, b)
    torch.cuda.synchronize()
    graphs, outs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append(gemmdesc.matmul(a, b))
        graphs.append(graph)
    graphs.pop().reset()
    del outs[1]
    junk = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
    for seed in range(20):
        a.copy_(draw(m, k, BF16, seed=seed))
        graphs[0].replay()
        assert_same(outs[0], torch.mm(a, b))
    assert len(junk) == 8


def test_a_cold_capture_says_so_and_the_process_goes_on() -> None:
    cold = planner_for(0)
    a, b = draw(300, 520), draw(520, 200, seed=1)
    graph = torch.cuda.CUDAGraph()
    # Without a handle it cannot even plan; with a plan it has no kernels.
    for reason in (r"^planner must have a library handle .*\(got none\)$", r"^matmul must be warm "):
        with pytest.raises(CaptureError, match=reason) as raised, torch.cuda.graph(graph):
            gemmdesc.matmul(a, b, planner=cold)
        torch.cuda.synchronize()
        assert "make the call once outside, or use gemmdesc.warmup" in str(raised.value)
        assert isinstance(plan(a, b, planner=cold), Plan)
        graph = torch.cuda.CUDAGraph()
    assert_same(gemmdesc.matmul(a, b, planner=cold), torch.mm(a, b))
    with torch.cuda.graph(graph):
        within = gemmdesc.matmul(a, b, planner=cold)
    graph.replay()
    assert_same(within, torch.mm(a, b))
    cold.close()


def test_warmup_makes_the_first_capture_possible() -> None:
    own = planner_for(0)
    plans = warmup([(320, 192, 512), (64, 64, 16384)], dtype=HALF, planner=own)
    assert all(isinstance(p, Plan) for p in plans)
    asked = own.cache_info().misses
    for m, n, k in ((320, 192, 512), (64, 64, 16384)):
        a, b = draw(m, k), draw(k, n, seed=1)
        want = torch.mm(a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = gemmdesc.matmul(a, b, planner=own)
        graph.replay()
        assert_same(got, want)
    assert own.cache_info().misses == asked
    own.close()


@pytest.mark.parametrize("layouts", ["rr", "cr", "rc"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_plan_knows_the_kernels_that_it_launches(shape: tuple[int, int, int], layouts: str) -> None:
    m, n, k = shape
    a, b = draw(m, k, layout=layouts[0]), draw(k, n, layout=layouts[1], seed=1)
    planned = plan(a, b)
    assert isinstance(planned, Plan)
    run(planned, a, b)
    program = planned.programs.by_device[torch.cuda.current_device()]
    assert isinstance(program, PreparedProgram)
    assert program.variants == planned.variants


def test_many_shapes_compile_few_kernels() -> None:
    from gemmdesc.kernels.compiling import compiled_variants

    def count() -> int:
        return sum(compiled_variants().values())

    for m in range(256, 264):
        gemmdesc.matmul(draw(m, 512), draw(512, 256, seed=1))
    before = count()
    for m in range(264, 296):
        gemmdesc.matmul(draw(m, 512), draw(512, 256, seed=1))
    assert count() - before <= 2
