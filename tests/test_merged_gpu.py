"""Slices merged by their last program, on a GPU: every config, streams, graphs, and the counters afterwards."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gemmdesc.bits import first_mismatch
from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.structure import Structure


def _script(name: str) -> Any:
    """A module of ``scripts``, which is no package."""
    path = Path(__file__).parents[1] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


check_kernels = _script("check_kernels")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: the descriptors here name Hopper's matrix steps",
    ),
]

F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
MERGED = [s for s in Structure if s.merged]


def case(m: int, n: int, k: int, layouts: str = "rcr", dtype: DType = F16, **desc: Any) -> Any:
    made = check_kernels.make_desc(k, dtype=dtype, **desc)
    return check_kernels.Case(m=m, n=n, k=k, desc=made, layouts=layouts, note="merged")


CASES = [
    *(case(m, 4096, 4096, span=1408) for m in (1, 5, 8, 16, 32, 64)),
    case(64, 4096, 14336, span=4800),
    case(4096, 8, 4096, "rrr", span=1024),
    case(512, 640, 8192, "ccc", span=512),
    case(16, 16, 30000, span=512),
    case(33, 257, 3001, "rrr", span=1000),
    case(70, 90, 1000, span=264, step=8, turn=32),
    case(210, 331, 650, "crc", span=136, step=8, turn=32),
    *(
        case(96, 160, 2000, span=448, partial=partial, merge=merge, start=start, dtype=dtype, out=out)
        for dtype, partial, merge, start, out in product((F16, BF16), (F32, F16), (F32, BF16), Start, (None, F32))
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_config_has_the_replays_bytes(case: Any) -> None:
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.kernels import launch

    a_bits, b_bits, a, b, out = check_kernels.place(case)
    rng = np.random.default_rng(0)
    rows, cols = check_kernels.sampled(case.m, rng, 4, 8), check_kernels.sampled(case.n, rng, 8, 2)
    expected = replay(case.desc, a_bits, b_bits, rows=rows, cols=cols)
    whole, ran = None, 0
    for structure in MERGED:
        for config in configs_of(structure):
            out.zero_()
            choice = launch.run(case.desc, a, b, out, check_kernels.CARD, config=config, structure=structure)
            if isinstance(choice, Declined):
                continue
            ran += 1
            got = check_kernels.to_bits(out, case.desc.output_dtype)
            assert first_mismatch(expected, got[np.ix_(rows, cols)]) is None, config
            whole = got if whole is None else whole
            assert first_mismatch(whole, got) is None, config
    assert ran >= 3
    # The default is one of them, and two launches have its bytes.
    out.zero_()
    assert launch.run(case.desc, a, b, out, check_kernels.CARD).structure.merged
    ran_two = 0
    for two in (Structure.CHAIN_TMA, Structure.CHAIN_POINTER, Structure.GROUPED_CHAIN):
        out.zero_()
        if not isinstance(launch.run(case.desc, a, b, out, check_kernels.CARD, structure=two), Declined):
            ran_two += 1
            assert first_mismatch(whole, check_kernels.to_bits(out, case.desc.output_dtype)) is None, two
    assert ran_two >= 1


class Split:
    """One product, its program, and the bytes that two launches give."""

    def __init__(self, counters: Any = None, sizes: tuple[int, int, int] = (16, 4096, 4096)) -> None:
        from gemmdesc.kernels.counters import device_counters
        from gemmdesc.kernels.launch import kernel_meta, launch
        from gemmdesc.kernels.prepared import PreparedProgram
        from gemmdesc.kernels.preparing import Taken, prepare

        _, _, self.a, self.b, self.out = check_kernels.place(case(*sizes, span=512))
        meta, desc = kernel_meta(self.a, self.b, self.out), check_kernels.make_desc(sizes[2], span=512)
        choice = choose_kernel(desc, meta, check_kernels.CARD)
        assert isinstance(choice, KernelChoice)
        assert choice.structure is Structure.MERGED_TMA
        place = torch.device("cuda", torch.cuda.current_device())
        self.counters = counters or device_counters(place)
        found = prepare(choice, meta, Taken(), place, counters=lambda device: self.counters)
        assert isinstance(found, PreparedProgram), found
        self.program = found
        two = choose_kernel(desc, meta, check_kernels.CARD, structure=Structure.CHAIN_TMA)
        assert isinstance(two, KernelChoice)
        launch(two, self.a, self.b, self.out)
        self.expected = self.out.clone().view(torch.int16)

    def run(self, out: torch.Tensor) -> None:
        from gemmdesc.kernels.beside import NOTHING
        from gemmdesc.kernels.preparing import run_prepared

        run_prepared(self.program, self.a, self.b, out, NOTHING, None)

    def new(self) -> torch.Tensor:
        return torch.full_like(self.out, 3.0)

    def same(self, outs: list[torch.Tensor]) -> bool:
        torch.cuda.synchronize()
        return all(bool((out.view(torch.int16) == self.expected).all()) for out in outs)

    def clean(self) -> bool:
        torch.cuda.synchronize()
        return not bool(self.counters._memory.any())


def test_a_thousand_launches_on_eight_streams() -> None:
    split = Split()
    streams = [torch.cuda.Stream() for _ in range(8)]
    outs = [split.new() for _ in range(1000)]
    torch.cuda.synchronize()
    for i, out in enumerate(outs):
        with torch.cuda.stream(streams[i % 8] if i % 9 else torch.cuda.default_stream()):
            split.run(out)
    assert split.same(outs)
    assert split.clean()


def graph_of(split: Split, outs: list[torch.Tensor]) -> torch.cuda.CUDAGraph:
    """Launches on branches of a graph that may run side by side."""
    graph, side = torch.cuda.CUDAGraph(), [torch.cuda.Stream() for _ in range(3)]
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for i, out in enumerate(outs):
            stream = side[i % 3]
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                split.run(out)
        for stream in side:
            main.wait_stream(stream)
    return graph


def replayed(split: Split, replays: int, also: Callable[[], None] = lambda: None) -> None:
    sets = [[split.new() for _ in range(6)] for _ in range(2)]
    graphs = [graph_of(split, outs) for outs in sets]
    streams = [torch.cuda.Stream() for _ in graphs]
    for out in (out for outs in sets for out in outs):
        out.zero_()
    torch.cuda.synchronize()
    for _ in range(replays):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        also()
    for outs in sets:
        assert split.same(outs)


def test_graphs_that_run_side_by_side_with_each_other_and_with_calls() -> None:
    split = Split()
    split.run(split.new())
    late = [split.new() for _ in range(200)]
    left = iter(late)
    replayed(split, 200, also=lambda: split.run(next(left)))
    assert split.same(late)
    assert split.clean()


def test_launches_for_which_no_counters_are_left_clear_their_own() -> None:
    from gemmdesc.kernels.counters import UNIT, Counters

    split = Split(Counters(torch.zeros(UNIT, dtype=torch.int32, device="cuda")), sizes=(16, 2048, 4096))
    outs = [split.new() for _ in range(50)]
    for out in outs:
        split.run(out)
    assert split.same(outs)
    replayed(split, 50)


def test_launches_that_wait_for_room_beside_other_work() -> None:
    """Calls between long kernels of others, so that programs of several launches are on the card at once."""
    split, streams = Split(sizes=(8, 8192, 8192)), [torch.cuda.Stream() for _ in range(4)]
    filler = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    outs = [split.new() for _ in range(200)]
    torch.cuda.synchronize()
    for i, out in enumerate(outs):
        with torch.cuda.stream(streams[i % 4]):
            if i % 5 == 0:
                filler @ filler
            split.run(out)
    assert split.same(outs)
    assert split.clean()


@pytest.mark.parametrize("span", [512, None])
def test_dependent_launches_that_feed_one_another_have_the_same_bytes(span: int | None) -> None:
    """Each product reads what the one before it wrote; captured and not, against kernels that wait for one another."""
    from gemmdesc.kernels.beside import NOTHING
    from gemmdesc.kernels.counters import device_counters
    from gemmdesc.kernels.launch import kernel_meta
    from gemmdesc.kernels.prepared import PreparedProgram
    from gemmdesc.kernels.preparing import Taken, prepare, run_prepared

    place, k = torch.device("cuda", torch.cuda.current_device()), 4096
    generator = torch.Generator("cuda").manual_seed(3)
    weights = [torch.randn(k, k, device="cuda", generator=generator).div(64).half() for _ in range(3)]
    first = torch.randn(16, k, device="cuda", generator=generator).half()
    desc = check_kernels.make_desc(k, span=span)
    meta = kernel_meta(first, weights[0], torch.empty_like(first))
    plain = choose_kernel(desc, meta, check_kernels.CARD)
    assert isinstance(plain, KernelChoice)
    early = choose_kernel(
        desc, meta, check_kernels.CARD, config=replace(plain.config, dependent=True), structure=plain.structure
    )
    assert isinstance(early, KernelChoice)
    results = []
    for choice in (plain, early):
        program = prepare(choice, meta, Taken(), place, counters=device_counters)
        assert isinstance(program, PreparedProgram), program
        xs = [first.clone(), *(torch.zeros_like(first) for _ in range(60))]

        def work(program: PreparedProgram = program, xs: list[torch.Tensor] = xs) -> None:
            for i, (x, y) in enumerate(pairwise(xs)):
                run_prepared(program, x, weights[i % 3], y, NOTHING, None)

        work()
        torch.cuda.synchronize()
        results.append([x.clone() for x in xs])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        for x in xs[1:]:
            x.zero_()
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        results.append(xs)
    bits = [torch.stack(xs).view(torch.int16) for xs in results]
    assert all(bool((b == bits[0]).all()) for b in bits)
    assert bool(torch.isfinite(results[0][-1]).all())
    assert bool(results[0][-1].any())
