"""Features of schedules on a GPU: slices merged by their last program, narrow tiles, dependent launches.

Every such config against the replay; streams, graphs, and the counters afterwards.  Kernels are compiled first, by one
process of those that share the tests (``pytest -n 3``) for all of them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch

from gemmdesc.bits import first_mismatch
from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.config import Feature
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.unasked import features_of
from tests.script_modules import load_script

check_kernels = load_script("check_kernels")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: the descriptors here name Hopper's matrix steps",
    ),
]

F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
MERGED = [s for s in Structure if s.merged]
TWO = (Structure.CHAIN_TMA, Structure.CHAIN_POINTER, Structure.GROUPED_CHAIN)


def case(m: int, n: int, k: int, layouts: str = "rcr", dtype: DType = F16, **desc: Any) -> Any:
    made = check_kernels.make_desc(k, dtype=dtype, **desc)
    return check_kernels.Case(m=m, n=n, k=k, desc=made, layouts=layouts, note="merged")


CASES = [
    *(case(m, 4096, 4096, span=1408) for m in (1, 5, 8, 16, 32, 64)),
    *(case(m, 4096, 4096) for m in (1, 24)),
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


#: Cases whose types or layouts no other has run some of the configs only.
SOME = frozenset(c.name for c in CASES if c.layouts != "rcr" or c.k > 20000)


def choices_of(case: Any, meta: Any) -> tuple[list[KernelChoice], list[KernelChoice]]:
    """What is picked when it is asked for; and two launches, which cards have verified."""
    asked = [(s, c) for s in (*MERGED, Structure.CHAIN_TMA) for c in configs_of(s) if features_of(s, c)]
    found = [choose_kernel(case.desc, meta, check_kernels.CARD, config=c, structure=s) for s, c in asked]
    new = [c for c in found if isinstance(c, KernelChoice)]
    two = [choose_kernel(case.desc, meta, check_kernels.CARD, structure=s) for s in TWO]
    return new[:: 3 if case.name in SOME else 1], [c for c in two if isinstance(c, KernelChoice)]


def meta_of(case: Any) -> KernelMeta:
    """Of the tensors that the case will be placed in."""
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    sizes = ((case.m, case.k), (case.k, case.n), (case.m, case.n))
    types = (case.desc.a_dtype, case.desc.b_dtype, case.desc.output_dtype)
    a, b, out = (
        MatrixMeta(dtype=t, row_stride=c if x == "r" else 1, column_stride=1 if x == "r" else r, alignment=256)
        for (r, c), t, x in zip(sizes, types, case.layouts, strict=True)
    )
    return KernelMeta(
        m=case.m, n=case.n, k=case.k, a=a, b=b, out=out, sm_count=card.multi_processor_count,
        shared_bytes=card.shared_memory_per_block_optin,
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All of the kernels, once for all processes."""
    from gemmdesc.plan import needed_variants
    from gemmdesc.tuning.ahead import Ahead

    alone = "PYTEST_XDIST_WORKER" not in os.environ
    shared = tmp_path_factory.mktemp("merged") if alone else tmp_path_factory.getbasetemp().parent
    done = shared / "merged_kernels_are_compiled"
    with (shared / "merged_kernels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            wanted: dict[Any, None] = {}
            for case in CASES:
                meta = meta_of(case)
                kernels = [choice for chosen in choices_of(case, meta) for choice in chosen]
                wanted |= {variant: None for choice in kernels for variant in needed_variants(choice, meta)}
            with Ahead(90) as ahead:
                ahead(wanted)
            assert ahead.failures == []
            done.touch()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_config_has_the_replays_bytes(case: Any) -> None:
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.kernels import launch

    a_bits, b_bits, a, b, out = check_kernels.place(case)
    rng = np.random.default_rng(0)
    rows, cols = check_kernels.sampled(case.m, rng, 4, 8), check_kernels.sampled(case.n, rng, 8, 2)
    expected = replay(case.desc, a_bits, b_bits, rows=rows, cols=cols)
    meta = launch.kernel_meta(a, b, out)
    assert meta == meta_of(case)
    new, two = choices_of(case, meta)
    # Where operands lie askew, few configs may be picked, of which some cases take every third.
    assert new
    assert two
    assert any(c.structure.merged for c in new) == bool(case.desc.cuts)
    whole = None
    for choice in (*two, *new):
        out.fill_(3.0)
        launch.launch(choice, a, b, out)
        got = check_kernels.to_bits(out, case.desc.output_dtype)
        assert first_mismatch(expected, got[np.ix_(rows, cols)]) is None, choice
        whole = got if whole is None else whole
        assert first_mismatch(whole, got) is None, choice


class Split:
    """One product, its program, and the bytes that two launches give."""

    def __init__(self, counters: Any = None, sizes: tuple[int, int, int] = (16, 4096, 4096)) -> None:
        from gemmdesc.kernels.counters import device_counters
        from gemmdesc.kernels.launch import kernel_meta, launch
        from gemmdesc.kernels.prepared import PreparedProgram
        from gemmdesc.kernels.preparing import Taken, prepare

        _, _, self.a, self.b, self.out = check_kernels.place(case(*sizes, span=512))
        meta, desc = kernel_meta(self.a, self.b, self.out), check_kernels.make_desc(sizes[2], span=512)
        choice = choose_kernel(desc, meta, check_kernels.CARD, structure=Structure.MERGED_TMA)
        assert isinstance(choice, KernelChoice)
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
        return not any(bool(block.any()) for block in self.counters.blocks)


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

    few = Counters(lambda n: torch.zeros(n, dtype=torch.int32, device="cuda"), UNIT)
    split = Split(few, sizes=(16, 2048, 4096))
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
    plain = choose_kernel(desc, meta, check_kernels.CARD, unasked=frozenset())
    unasked = frozenset({Feature.DEPENDENT, Feature.NARROW, *((Feature.ONE_LAUNCH,) if span else ())})
    early = choose_kernel(desc, meta, check_kernels.CARD, unasked=unasked)
    assert isinstance(plain, KernelChoice)
    assert isinstance(early, KernelChoice)
    assert early.config.dependent
    assert early.structure.merged == bool(span)
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
