"""Prepared programs and frequent calls on a GPU: bytes, captures, streams, threads, devices, processes.  ``-m gpu``.

``scripts/bench_host.py`` measures what they cost.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

import gemmdesc
from gemmdesc.errors import Declined
from gemmdesc.kernels.driver import TENSOR_MAP_BYTES, cuda_driver
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.prepared import PreparedProgram
from gemmdesc.kernels.streams import scratch_functions
from gemmdesc.ops import default_planner, plan, products, run, warmup
from gemmdesc.ops.frequent import frequent_products
from gemmdesc.plan import CaptureError, Plan, Planner, planner_for
from tests.test_ops_gpu import assert_same, bits, draw

pytestmark = pytest.mark.gpu

HALF, BF16 = torch.float16, torch.bfloat16
SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
#: A long split, unrounded sizes, tiles and descriptors, a thin one, and pointers.
SHAPES = ((64, 64, 32768), (1000, 999, 1001), (512, 512, 512), (16, 4096, 4096), (33, 45, 101))
SPLIT = (64, 64, 32768)


@pytest.fixture(scope="module", autouse=True)
def planner() -> Planner:
    made = default_planner()
    if isinstance(made.profile, Declined):
        pytest.fail(f"these tests need a profile: {made.profile.reason}")
    return made


def sides(m: int, n: int, k: int, dtype: Any = HALF, seed: int = 0) -> tuple[Any, Any]:
    return draw(m, k, dtype, seed=seed), draw(k, n, dtype, seed=seed + 1)


def planned(a: Any, b: Any) -> Plan:
    found = plan(a, b)
    assert isinstance(found, Plan), found
    return found


# Bytes.


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_long_way_and_the_short_one_give_torchs_bytes(
    shape: tuple[int, int, int], dtype: Any, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, k = shape
    a, b = sides(m, n, k, dtype)
    out = torch.empty((m, n), dtype=dtype, device="cuda")
    p = planned(a, b)
    gemmdesc.matmul(a, b), gemmdesc.matmul(a, b, out=out), run(p, a, b), run(p, a, b, out=out)
    monkeypatch.setattr(products, "multiply", lambda *rest, **more: pytest.fail("a frequent call took the long way"))
    monkeypatch.setattr(products, "launch_plan", lambda *rest, **more: pytest.fail("a run took the long way"))
    for seed in range(4):
        a2, b2 = sides(m, n, k, dtype, seed=10 * seed)
        want = torch.mm(a2, b2)
        for made in (gemmdesc.matmul(a2, b2), run(p, a2, b2)):
            assert_same(made, want)
        for call in (lambda: gemmdesc.matmul(a2, b2, out=out), lambda: run(p, a2, b2, out=out)):  # noqa: B023
            out.fill_(float("nan"))
            assert call() is out
            assert_same(out, want)


@pytest.fixture
def structures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("host_structures")


def test_every_structure_launches_by_program_as_by_triton(structures: Any) -> None:
    for case in structures.described():
        told, calls = structures.launches_of(case, 3)
        want = calls["Triton"]().clone()
        for _ in range(3):
            got = calls["program"]()
            kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
            assert torch.equal(got.contiguous().view(kind), want.contiguous().view(kind)), case.name
        assert told["structure"] == case.structure
        assert bool((want.float() != 0).any()), case.name


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (300, 4096), (5, 8)])
def test_a_map_is_tritons_own(rows: int, columns: int, swizzle: int) -> None:
    from triton.runtime import driver as triton_driver

    t = torch.empty((rows, columns), dtype=HALF, device="cuda")
    utils = triton_driver.active.utils
    fill = getattr(utils, "fill_tma_descriptor_tiled", None) or utils.fill_tma_descriptor
    inner = {0: 8, 1: 16, 2: 32, 3: 64}[swizzle]
    theirs = fill(t.data_ptr(), swizzle, 2, 6, [16, inner], [rows, columns], [columns, 1], 0)
    # The map is the last, aligned member of Triton's object.
    raw = ctypes.string_at(id(theirs) + type(theirs).__basicsize__ - TENSOR_MAP_BYTES, TENSOR_MAP_BYTES)
    ours = cuda_driver().encode(t.data_ptr(), "float16", 2, (rows, columns), (columns, 1), (16, inner), swizzle)
    # Releases of Triton differ in one bit of small tensors' maps; see gemmdesc.kernels.driver.
    mask = ~(1 << (64 + 21))
    assert int.from_bytes(raw, "little") & mask == int.from_bytes(bytes(ours), "little") & mask


def test_offsets_into_memory_and_padded_results_are_followed() -> None:
    for offset, pad in ((0, 0), (8, 8), (1, 3), (64, 64)):
        a, b = draw(300, 520, offset=offset, pad=pad), draw(520, 200, offset=2 * offset, pad=pad, seed=1)
        outs = [torch.full((300, 200 + pad), float("nan"), dtype=HALF, device="cuda") for _ in range(2)]
        torch.mm(a, b, out=outs[1][:, :200])
        for _ in range(3):
            gemmdesc.matmul(a, b, out=outs[0][:, :200])
            assert_same(outs[0], outs[1])


# Captures.


@pytest.mark.parametrize("by_plan", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a23_graphs_own_their_scratch(shape: tuple[int, int, int], by_plan: bool) -> None:
    """Two captures on one stream; the second is dropped, memory taken, and the first replays 100 changed inputs."""
    m, n, k = shape
    a, b = sides(m, n, k, BF16)
    p = planned(a, b)
    out = torch.empty((m, n), dtype=BF16, device="cuda")

    def call() -> Any:
        return run(p, a, b, out=out) if by_plan else gemmdesc.matmul(a, b)

    call()
    torch.cuda.synchronize()
    graphs, results = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append(call())
        graphs.append(graph)
    graphs.pop().reset()
    del results[1]
    junk = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
    for seed in range(100):
        a.copy_(draw(m, k, BF16, seed=seed))
        want = torch.mm(a, b)
        results[0].fill_(float("nan"))
        graphs[0].replay()
        assert_same(results[0], want)
    assert len(junk) == 8


def test_a_plan_from_before_a_capture_runs_within(planner: Planner) -> None:
    own = planner_for(0)
    a, b = sides(*SPLIT)
    p = plan(a, b, planner=own)
    assert isinstance(p, Plan)
    out = torch.empty(SPLIT[:2], dtype=HALF, device="cuda")
    graph = torch.cuda.CUDAGraph()
    words = r"make the call once outside, or use gemmdesc\.warmup"
    with pytest.raises(CaptureError, match=words), torch.cuda.graph(graph):
        run(p, a, b, out=out, planner=own)
    torch.cuda.synchronize()
    run(p, a, b, out=out, planner=own)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(p, a, b, out=out, planner=own)
    out.zero_()
    graph.replay()
    assert_same(out, torch.mm(a, b))
    own.close()


def test_a_capture_of_new_sizes_is_prepared_from_warm_kernels() -> None:
    own = planner_for(0)
    warmup([(512, 512, 512)], dtype=HALF, planner=own)
    a, b = sides(512, 512, 640)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            got = gemmdesc.matmul(a, b, planner=own)
    except CaptureError:
        torch.cuda.synchronize()  # another tile was chosen, which is said
    else:
        graph.replay()
        assert_same(got, torch.mm(a, b))
    own.close()


def test_scratch_of_a_run_is_given_back_at_once() -> None:
    assert scratch_functions() is not None
    a, b = sides(*SPLIT)
    p = planned(a, b)
    out = torch.empty(SPLIT[:2], dtype=HALF, device="cuda")
    want = torch.mm(a, b)
    for _ in range(2):
        run(p, a, b, out=out)
    assert p.programs.by_device[0].scratch_bytes > 0
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    stream = torch.cuda.Stream()
    for _ in range(50):
        out.fill_(float("nan"))
        run(p, a, b, out=out)
        assert_same(out, want)
        with torch.cuda.stream(stream):
            out.fill_(float("nan"))
            run(p, a, b, out=out)
        stream.synchronize()
        assert_same(out, want)
    assert torch.cuda.memory_allocated() == held


# Streams and threads.


@pytest.mark.parametrize("by_plan", [False, True])
def test_a24_four_streams_and_four_threads_never_vary(by_plan: bool) -> None:
    """A split product, 200 rounds on each of four streams from four threads at once."""
    m, n, k = SPLIT
    a, b = sides(m, n, k, BF16)
    p = planned(a, b)
    want = torch.mm(a, b)
    run(p, a, b)
    gemmdesc.matmul(a, b)
    torch.cuda.synchronize()
    start = threading.Barrier(4)

    def work(_: int) -> int:
        stream = torch.cuda.Stream()
        start.wait()
        wrong = 0
        with torch.cuda.stream(stream):
            for _round in range(200):
                got = run(p, a, b) if by_plan else gemmdesc.matmul(a, b)
                wrong += int((bits(got) != bits(want)).any())
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 0, 0, 0]


def test_threads_that_share_a_stream_do_not_mix() -> None:
    operands = [sides(80, 96, 4096, seed=i) for i in range(4)]
    wanted = [torch.mm(a, b) for a, b in operands]
    p = planned(*operands[0])
    run(p, *operands[0])
    torch.cuda.synchronize()
    start = threading.Barrier(4)

    def work(i: int) -> int:
        start.wait()
        return sum(int((bits(run(p, *operands[i])) != bits(wanted[i])).any()) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 0, 0, 0]


def test_a_thread_that_has_not_used_the_gpu_may_run_a_plan() -> None:
    a, b = sides(512, 512, 512)
    p = planned(a, b)
    out = torch.empty((512, 512), dtype=HALF, device="cuda")
    run(p, a, b, out=out)
    want = torch.mm(a, b)
    out.zero_()
    torch.cuda.synchronize()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            run(p, a, b, out=out)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert failed == []
    assert_same(out, want)


def test_a_plan_moves_to_another_stream() -> None:
    a, b = sides(512, 512, 512)
    p = planned(a, b)
    out = torch.empty((512, 512), dtype=HALF, device="cuda")
    run(p, a, b, out=out)
    want = torch.mm(a, b)
    source = torch.zeros_like(a)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for stream in (*streams, *streams):
        source.zero_()
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            # What runs on another stream would read the zeros.
            torch.cuda._sleep(20_000_000)
            source.copy_(a)
            run(p, source, b, out=out)
        stream.synchronize()
        assert_same(out, want)


# Devices.

TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@TWO
def test_each_device_has_its_programs() -> None:
    a, b = sides(*SPLIT)
    there = [t.to("cuda:1") for t in (a, b)]
    p, want = planned(a, b), torch.mm(a, b)
    for _ in range(3):
        for left, right in ((a, b), there):
            for current in (0, 1):
                with torch.cuda.device(current):
                    assert_same(gemmdesc.matmul(left, right).cpu(), want.cpu())
                    assert_same(run(p, left, right).cpu(), want.cpu())
                    assert torch.cuda.current_device() == current
    programs = p.programs.by_device
    assert set(programs) == {0, 1}
    assert programs[0] is not programs[1]
    assert all(isinstance(x, PreparedProgram) for x in programs.values())


@TWO
def test_threads_on_two_devices_do_not_mix() -> None:
    here = sides(*SPLIT)
    there = tuple(t.to("cuda:1") for t in here)
    want = torch.mm(*here).cpu()
    gemmdesc.matmul(*here), gemmdesc.matmul(*there)
    start = threading.Barrier(4)

    def work(i: int) -> int:
        a, b = (here, there)[i % 2]
        start.wait()
        return sum(int((bits(gemmdesc.matmul(a, b).cpu()) != bits(want)).any()) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 0, 0, 0]


# What is counted and kept.


def test_a_frequent_call_keeps_no_memory() -> None:
    a, b = sides(*SPLIT)
    out = torch.empty(SPLIT[:2], dtype=HALF, device="cuda")
    for _ in range(3):
        gemmdesc.matmul(a, b, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        gemmdesc.matmul(a, b, out=out)
    assert torch.cuda.memory_allocated() == before


def test_version_counters_move_as_torchs_do() -> None:
    a, b = sides(128, 128, 128)
    out = torch.empty((128, 128), dtype=HALF, device="cuda")
    for _ in range(3):
        before = out._version
        gemmdesc.matmul(a, b, out=out)
        assert out._version == before + 1
    with torch.inference_mode():
        inner = torch.empty((128, 128), dtype=HALF, device="cuda")
        for _ in range(3):
            gemmdesc.matmul(a, b, out=inner)
    assert_same(inner, out)


def test_triton_launches_the_same_bytes_beside_programs() -> None:
    for shape in SHAPES:
        a, b = sides(*shape)
        p = planned(a, b)
        out = torch.empty(shape[:2], dtype=HALF, device="cuda")
        for _ in range(2):
            launch_choice(p.kernel, a, b, out)
            assert_same(out, run(p, a, b))


CHILD = """
import hashlib, json, torch, gemmdesc
from gemmdesc.ops import default_planner
digests = []
for m, n, k in ((64, 64, 32768), (333, 77, 5000), (512, 512, 512)):
    g = torch.Generator("cuda").manual_seed(m)
    a, b = (torch.randn(s, device="cuda", generator=g).half() for s in ((m, k), (k, n)))
    got = gemmdesc.matmul(a, b)
    assert torch.equal(got.view(torch.int16), torch.mm(a, b).view(torch.int16))
    digests.append(hashlib.sha256(got.cpu().view(torch.int16).numpy().tobytes()).hexdigest())
info = default_planner().saved.info()
print(json.dumps([digests, info.loaded, info.found, info.asked, list(info.ignored)]))
"""


def test_a_new_process_asks_nothing_that_an_earlier_one_did(tmp_path: Path) -> None:
    told = []
    for _ in range(2):
        environment = {**os.environ, "GEMMDESC_SAVED_PLANS": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        told.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = told
    assert first[0] == second[0]
    assert first[1:] == [0, 0, 3, []]
    assert second[1:] == [3, 3, 0, []]


def test_frequent_calls_are_bounded_by_their_key() -> None:
    own = planner_for(0)
    a, b = sides(256, 256, 256)
    for _ in range(3):
        gemmdesc.matmul(a, b, planner=own)
    assert len(own.frequent) == 1
    other = draw(256, 256, offset=8)
    for _ in range(2):
        assert_same(gemmdesc.matmul(other, b, planner=own), torch.mm(other, b))
    assert len(own.frequent) == 2
    assert frequent_products() is frequent_products()
    own.close()
