"""Prepared programs: recording, scratch, packing, the kernels' parameters, threads; bytes in Triton's interpreter."""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.descriptor import Contiguous, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, LaunchError
from gemmdesc.kernels.choose import MOST_COUNTED, KernelChoice, choose_kernel
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.compiling import (
    KERNELS,
    SPECIALISED_KERNELS,
    compile_variant,
    compiled_variants,
    constants_of,
    options_of,
)
from gemmdesc.kernels.counters import UNIT, Counters, device_counters
from gemmdesc.kernels.launch_loop import MOST_MAPS, MOST_WORDS, launch_loop, packed_program, program_runner
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.loaded import (
    BoxFormat,
    LoadedKernel,
    NotPreparableError,
    load_step,
    loaded_kernel,
    ptx_parameter_sizes,
)
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.prepared import KEPT_MAPS, KeptMaps, PreparedProgram
from gemmdesc.kernels.preparing import MOST_STEPS, Taken, Unprepared, prepare, record
from gemmdesc.kernels.program import Box, Input, Lifetime, Program, Step, Word, place_scratch
from gemmdesc.kernels.recording import NotRecordableError, TablesMissingError, recording, stand_in
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import Choice, choose_whole
from gemmdesc.kernels.variants import enumerate_variants
from gemmdesc.plan import needed_variants
from tests.fake_device import CONTEXT, FakeDevice
from tests.lane_samples import butterfly, lane_cut, lanes_of
from tests.nest_samples import draw_nest
from tests.test_kernels_choose import CARD, SHARED, desc, meta
from tests.test_kernels_interpreted import told

HOST = torch.device("cpu")
NOTHING = Taken()


@dataclass
class NotingDevice(FakeDevice):
    """Notes what each kernel is given; of tensors and descriptors where they begin."""

    calls: list[tuple[Step, int, list[Any]]] = field(default_factory=list)

    def run(self, step: Step, programs: int, arguments: list[Any]) -> None:
        self.calls.append((step, programs, [address_of(a) for a in arguments]))


def address_of(argument: Any) -> Any:
    tensor = getattr(argument, "base", argument)
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else argument


def choice_of(descriptor: GEMMDesc, at: KernelMeta) -> Choice:
    choice = choose_whole(descriptor, at, CARD)
    assert not isinstance(choice, Declined), choice.reason
    return choice


def two_launches(descriptor: GEMMDesc, at: KernelMeta) -> KernelChoice:
    """Slices that a second kernel folds."""
    choice = choose_kernel(descriptor, at, CARD, unasked=frozenset())
    assert isinstance(choice, KernelChoice)
    assert choice.merges
    return choice


def one_launch(descriptor: GEMMDesc, at: KernelMeta) -> KernelChoice:
    """Slices that the last program of a tile folds."""
    found = (choose_kernel(descriptor, at, CARD, structure=structure) for structure in Structure if structure.merged)
    return next(choice for choice in found if isinstance(choice, KernelChoice))


def prepared(descriptor: GEMMDesc, at: KernelMeta, device: FakeDevice, choice: Choice | None = None) -> PreparedProgram:
    found = prepare(choice or choice_of(descriptor, at), at, NOTHING, HOST, load=device.load, driver=lambda: device)
    assert isinstance(found, PreparedProgram)
    return found


# Bytes.


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        pytest.param(
            ("interpreted_kernels", "1", "4"),
            {"chain_tma packed", "chain_pointer", "grouped_chain", "scalar_nest", "balanced_chains", "regions"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("interpreted_finish", "5", "24"), {"finished chain_tma", "finished scalar_nest", "regions"},
            marks=pytest.mark.slow,
        ),
        (
            ("interpreted_fused", "6", "24", "none"),
            {"chain_tma whole", "chain_pointer whole", "finished after"},
        ),
        pytest.param(
            ("interpreted_kmajor", "0"), {"kmajor_chain 1 slices", "kmajor_chain 2 packed", "fma_chain"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("interpreted_kinds", "4"), {"bias finished", "add_beta_c finished"}, marks=pytest.mark.slow
        ),
    ],
    ids=("chains", "epilogues", "fused", "k-major", "kinds"),
)
def test_a_prepared_program_gives_the_replays_bytes(arguments: tuple[str, ...], wanted: set[str]) -> None:
    result = told("interpreted_prepared.py", *arguments)
    assert result["bad"] == []
    assert wanted <= set(result["counts"])


# Scratch.

LIVES = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size=size, first=first, last=first + length),
        st.integers(1, 5000), st.integers(0, 12), st.integers(0, 5),
    ),
    max_size=12,
)  # fmt: skip


@given(LIVES)
def test_scratch_of_steps_that_meet_never_overlaps(pieces: list[Lifetime]) -> None:
    starts, total = place_scratch(pieces)
    spans = [(s, s + p.size, p) for s, p in zip(starts, pieces, strict=True)]
    for i, (begin, end, piece) in enumerate(spans):
        assert begin % 512 == 0
        assert end <= total
        for other_begin, other_end, other in spans[:i]:
            meet = piece.first <= other.last and other.first <= piece.last
            assert not meet or end <= other_begin or other_end <= begin
    assert total <= sum(-(-p.size // 512) * 512 for p in pieces)


def test_scratch_is_used_again_once_nothing_reads_it() -> None:
    pieces = [Lifetime(size=1000, first=i, last=i + 1) for i in range(10)]
    assert place_scratch(pieces) == ((0, 1024) * 5, 2048)


# Recording.


def test_a_plain_chain_is_one_step_on_three_boxes() -> None:
    at = meta(1024, 512, 256)
    program = record(choice_of(desc(256), at), at, NOTHING, HOST)
    (step,) = program.steps
    boxes = [a for a in step.arguments if isinstance(a, Box)]
    assert [b.start for b in boxes] == [Word(input=i) for i in (Input.A, Input.B, Input.OUT)]
    assert [(b.element, b.shape, b.strides) for b in boxes] == [
        ("float16", (1024, 256), (256, 1)), ("float16", (256, 512), (512, 1)), ("float16", (1024, 512), (512, 1)),
    ]  # fmt: skip
    assert (program.scratch_bytes, program.inputs) == (0, {Input.A, Input.B, Input.OUT})


@pytest.mark.parametrize(
    ("descriptor", "at"),
    [
        (desc(4096, span=1024), meta(64, 96, 4096)),
        (desc(999, step=8), meta(300, 301, 999)),
        (desc(999, span=333, step=8, turn=32), meta(300, 301, 999, "ccr")),
        (desc(72), meta(20, 30, 72, alignment=2)),
    ],
)
def test_a_program_has_the_kernels_that_planning_expects(descriptor: GEMMDesc, at: KernelMeta) -> None:
    choice = choice_of(descriptor, at)
    program = record(choice, at, NOTHING, HOST)
    assert program.variants == needed_variants(choice, at)
    # What is in scratch was written there by an earlier step, whose output it is; packing makes two copies.
    written: set[int] = set()
    for step in program.steps:
        used = {w.offset for w in step.arguments if isinstance(w, Word) and w.input is Input.SCRATCH}
        used |= {b.start.offset for b in step.arguments if isinstance(b, Box) and b.start.input is Input.SCRATCH}
        assert len(used - written) <= (2 if step.variant.kernel == "repack" else 1)
        written |= used
    assert max(written, default=0) < max(program.scratch_bytes, 1)


def test_operands_that_are_one_tensor_stay_two_inputs() -> None:
    at = meta(256, 256, 256)
    program = record(choice_of(desc(256), at), at, NOTHING, HOST)
    assert program.inputs == {Input.A, Input.B, Input.OUT}
    device = NotingDevice()
    run = prepared(desc(256), at, device)
    run(0, (4096, 4096, 8192, 0))
    run(0, (4096, 16384, 8192, 0))
    assert [call[2][:3] for call in device.calls] == [[4096, 4096, 8192], [4096, 16384, 8192]]


@pytest.mark.parametrize("choose", [None, two_launches, one_launch])
def test_c_launches_what_python_would(choose: Callable[[GEMMDesc, KernelMeta], Choice] | None) -> None:
    """A loop over the steps, and the whole of a program: its words, its maps, its stream."""
    at, descriptor = (meta(300, 301, 999), desc(999, step=8))
    if choose is not None:
        at, descriptor = meta(256, 256, 4096), desc(4096, span=1024)
    noted = []
    for way in ("Python", "loop", "all"):
        device = NotingDevice().in_c()
        loop = launch_loop()
        assert loop is not None
        if way != "Python":
            device.launch_all = partial(loop, device.launch_address)  # type: ignore[method-assign]
        if way != "all":
            device.launch_address = None
        program = prepared(descriptor, at, device, None if choose is None else choose(descriptor, at))
        assert (program.quick is not None) == (way == "all")
        device.current = 5  # the first launch finds no context
        given = ((4096, 8192, 12288, 1 << 20), (4096, 8192, 1 << 30, 1 << 21), (4096, 8192, 12288, 1 << 21))
        for inputs in given:
            program(7, inputs)
        assert device.failures == []
        assert device.streams == [7] * 3 * program.launches
        noted.append([(step.variant, count, given) for step, count, given in device.calls])
        # By C the third call, whose maps are there, used no memory that Python fills.
        assert len(program._pool) == 1
        filled = program._pool[0].key
        assert filled is not None
        assert (filled[1][:4] == given[-1]) == (way != "all")
    assert noted[0] == noted[1] == noted[2]
    if choose is None:
        assert [variant.kernel for variant, _, _ in noted[0]] == ["repack", "chain_tma"] * 3


def test_c_refuses_what_is_no_program() -> None:
    run: Any = program_runner()
    packed = packed_program([0], [], [(0, 3, 0)], [], [], 0, 0)
    with pytest.raises(IndexError, match="inputs must be as many as the program needs"):
        run(1, packed, 0, (1, 2, 3), ())
    with pytest.raises(TypeError, match="run_program takes"):
        run(1, packed, 0, [1, 2, 3, 4], ())
    with pytest.raises(ValueError, match="maps its own"):
        run(1, packed, 0, (1, 2, 3, 4), ({},))
    with pytest.raises(OverflowError):
        run(1, packed, 0, (1, 2, 3, -4), ())
    assert run(1, packed, 0, (1, 2, 3, 4), ()) == 0
    assert packed_program([0] * (MOST_WORDS + 1), [], [], [], [], 0, 0) is None
    assert packed_program([0], [], [], [(0, 0, 0)] * (MOST_MAPS + 1), [], 0, 0) is None


def test_computing_with_stand_ins_is_refused() -> None:
    given = stand_in(meta(8, 8, 8).a, 8, 8)
    with recording(HOST, {Input.A: given}, copies=True):
        assert given.T[1:].shape == (7, 8)
        for compute in (lambda: given + 1, lambda: given.zero_(), lambda: torch.zeros(3, device="meta")):
            with pytest.raises(NotRecordableError, match="must only enqueue kernels"):
                compute()
    assert (given + 1).shape == (8, 8)


def test_a_choice_that_computes_goes_through_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmdesc.kernels import preparing

    at = meta(8, 8, 8)
    monkeypatch.setattr(preparing, "launch_choice", lambda choice, a, *rest, **more: a.zero_())
    found = prepare(choice_of(desc(8), at), at, NOTHING, HOST, load=FakeDevice().load)
    assert isinstance(found, Unprepared)
    assert (found.expected, "zero_" in found.reason) == (False, True)


def nest(seed: int, k: int) -> GEMMDesc:
    return replace(draw_nest(np.random.default_rng(seed), DType.FLOAT16, k), output_dtype=DType.FLOAT16)


def level_by_level(descriptor: GEMMDesc, at: KernelMeta) -> NestChoice:
    """Leaves, then one fold after another."""
    choice = choose_kernel(descriptor, at, CARD, structure=Structure.SCALAR_NEST)
    assert isinstance(choice, NestChoice)
    return choice


def test_tables_are_copied_only_where_they_may_be() -> None:
    at = meta(20, 30, 64)
    choice = level_by_level(nest(3, 64), at)
    with pytest.raises(TablesMissingError):
        record(choice, at, NOTHING, HOST, copies=False)
    program = record(choice, at, NOTHING, HOST)
    tables = [a for step in program.steps for a in step.arguments if isinstance(a, torch.Tensor)]
    assert tables
    assert all(t.device == HOST and t.dtype is torch.int32 for t in tables)


def test_a_program_of_many_steps_is_left_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmdesc.kernels.launch_nest.MOST_SUMS", 256)
    device = FakeDevice()
    for size, ready in ((20, True), (200, False)):
        at = meta(size, size, 64)
        choice = level_by_level(nest(3, 64), at)
        found = prepare(choice, at, NOTHING, HOST, load=device.load, driver=lambda: device)
        assert isinstance(found, PreparedProgram) is ready
    assert isinstance(found, Unprepared)
    assert found.expected
    assert int(found.reason.split()[3]) > MOST_STEPS


def test_lanes_that_join_are_one_launch_with_counters_and_scratch() -> None:
    at = meta(600, 1, 5000)
    split = lanes_of(5000, lane_cut(Contiguous(span=1376)), *butterfly(2, 1), output=DType.FLOAT16)
    choice, alone = (
        choose_kernel(desc, at, CARD, structure=Structure.LANE_NEST)
        for desc in (split, lanes_of(5000, *butterfly(2, 1), output=DType.FLOAT16))
    )
    assert isinstance(choice, LaneChoice)
    assert isinstance(alone, LaneChoice)
    program = record(choice, at, NOTHING, HOST, copies=False)
    assert [step.variant.kernel for step in program.steps] == ["lane_join"]
    assert program.counters > 0
    assert program.scratch_bytes >= 4 * 600 * 4
    other = record(alone, at, NOTHING, HOST)
    assert [step.variant.kernel for step in other.steps] == ["lane_nest"]
    assert (other.counters, other.scratch_bytes) == (0, 0)


def test_stand_ins_are_aligned_as_the_tensors_are() -> None:
    for alignment in (2, 4, 8, 16, 128):
        given = stand_in(replace(meta(8, 8, 8).a, alignment=alignment), 8, 8)
        assert given.data_ptr() & -given.data_ptr() == alignment
    assert stand_in(meta(8, 8, 8).a, 8, 8).data_ptr() == 0


# Packing.


@pytest.mark.parametrize("choose", [two_launches, one_launch])
def test_every_number_arrives_as_it_was(choose: Callable[[GEMMDesc, KernelMeta], Choice]) -> None:
    at = meta(300, 301, 999, "ccr")
    descriptor = desc(999, span=333, step=8, turn=32)
    choice = choose(descriptor, at)
    program = record(choice, at, NOTHING, HOST)
    device = NotingDevice()
    prepared(descriptor, at, device, choice)(9, (1 << 40, 1 << 41, 1 << 42, 1 << 43))
    starts = {Input.A: 1 << 40, Input.B: 1 << 41, Input.OUT: 1 << 42, Input.SCRATCH: 1 << 43}
    counters = device_counters(HOST).of_stream(device.order_of(9)[1])
    assert counters is not None
    starts[Input.COUNTERS] = counters

    def expected(argument: Any) -> Any:
        word = argument.start if isinstance(argument, Box) else argument
        return starts[word.input] + word.offset if isinstance(word, Word) else argument

    assert device.streams == [9] * len(program.steps)
    assert [c[1:] for c in device.calls] == [(s.programs, [*map(expected, s.arguments)]) for s in program.steps]


@pytest.mark.parametrize("choose", [two_launches, one_launch])
def test_other_addresses_and_streams_take_effect(choose: Callable[[GEMMDesc, KernelMeta], Choice]) -> None:
    at, device, split = meta(256, 256, 4096), NotingDevice(), desc(4096, span=1024)
    run = prepared(split, at, device, choose(split, at))
    for call in range(6):
        device.calls.clear()
        device.streams.clear()
        inputs = tuple(4096 * (1 + call % 3 + 10 * i) for i in range(4))
        run(call % 2, inputs)
        assert set(device.streams) == {call % 2}
        assert device.calls[0][2][:2] == [inputs[0], inputs[1]]
        if choose is two_launches:
            assert device.calls[-1][2][:2] == [inputs[3], inputs[2]]
            continue
        counters = device_counters(HOST).of_stream(device.order_of(call % 2)[1])
        assert len(device.calls) == 1
        assert device.calls[-1][2][2:5] == [inputs[2], inputs[3], counters]


def step_of(arguments: tuple[Any, ...]) -> Step:
    variant = next(iter(enumerate_variants(SHARED)))
    return Step(variant=variant, programs=1, arguments=arguments, stand_ins=arguments)


@pytest.mark.parametrize(
    ("arguments", "types", "words"),
    [
        ((2**31,), ("i32",), "an argument must fit i32"),
        ((5,), ("*fp16",), "a pointer must be an address"),
        ((5,), ("fp16",), "an argument must fit fp16"),
        ((5, 6), ("i32",), r"a step must have 1 arguments \(got 2\)"),
        ((Box(start=Word(input=Input.A), element="float16", shape=(8, 8), strides=(8, 1), block=(16, 16)),), ("i32",),
         "a descriptor must be one of the kernel's"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_suit_are_refused(arguments: Any, types: tuple[str, ...], words: str) -> None:
    kernel = LoadedKernel(function=1, types=types, boxes=(), threads=32, shared_bytes=0)
    with pytest.raises(NotPreparableError, match=words):
        PreparedProgram(Program(steps=(step_of(arguments),), scratch_bytes=0), [kernel], FakeDevice(), 0)


def test_numbers_of_every_type_are_packed_as_c_would() -> None:
    values = ((-1, "i32"), (-(2**40), "i64"), (-0.0, "fp32"), (0.1, "fp32"), (7, "i64"), (1, "i32"))
    device, seen = FakeDevice(), []
    kernel = LoadedKernel(
        function=5, types=tuple(k for _, k in values), boxes=(), threads=128, shared_bytes=64,
    )  # fmt: skip
    step = step_of(tuple(v for v, _ in values))
    device.steps[5] = (step, kernel)
    device.run = lambda *given: seen.append(given[2])
    PreparedProgram(Program(steps=(step,), scratch_bytes=0), [kernel], device, 0)(0, ())
    ((*got,),) = seen
    assert struct.pack("=6d", *got) == struct.pack("=6d", -1, -(2**40), -0.0, float(np.float32(0.1)), 7, 1)


def test_maps_are_kept_by_address_and_bounded() -> None:
    device = FakeDevice()
    box = Box(start=Word(input=Input.A), element="float16", shape=(8, 8), strides=(8, 1), block=(16, 16))
    kept = KeptMaps(device, CONTEXT, box, BoxFormat(swizzle=3, element_bytes=2, block=(16, 16)))
    first = kept.at(1024)
    assert kept.at(1024) is first
    for i in range(KEPT_MAPS):
        kept.at(1024 * (i + 2))
    assert len(device.maps) == KEPT_MAPS + 1
    assert kept.at(1024) is not first
    assert len(device.maps) == KEPT_MAPS + 2


# Failures and threads.


def test_a_refused_launch_is_named_and_the_next_one_works() -> None:
    device = NotingDevice()
    run = prepared(desc(256), meta(256, 256, 256), device)
    device.launch = lambda *arguments: 700
    run._launch = device.launch
    with pytest.raises(LaunchError, match=r"^cuLaunchKernelEx must succeed \(got CUDA_ERROR_700\)$"):
        run(0, (4096, 8192, 16384, 0))
    del device.launch
    run._launch = device.launch
    run(0, (4096, 8192, 16384, 0))
    assert device.calls[0][2][:3] == [4096, 8192, 16384]


def test_a_thread_without_a_context_gets_the_programs() -> None:
    device = NotingDevice()
    run = prepared(desc(256), meta(256, 256, 256), device)
    run(0, (4096, 8192, 16384, 0))
    # With maps that are kept the launch is what finds no context; with an operand elsewhere its encoding does.
    for number, inputs in enumerate([(4096, 8192, 16384, 0), (4096, 8192 << 4, 16384, 0)]):
        device.current, encoded = 0, len(device.maps)
        run(0, inputs)
        assert (device.current, len(device.calls), len(device.maps)) == (CONTEXT, number + 2, encoded + number)


@pytest.mark.parametrize(("choose", "launches"), [(two_launches, 2), (one_launch, 1)])
def test_threads_do_not_mix_their_arguments(choose: Callable[[GEMMDesc, KernelMeta], Choice], launches: int) -> None:
    device, descriptor, at = NotingDevice(), desc(4096, span=1024), meta(256, 256, 4096)
    run = prepared(descriptor, at, device, choose(descriptor, at))
    start, wrong = threading.Barrier(4), []

    def work(thread: int) -> None:
        start.wait()
        for i in range(150):
            run(thread, tuple(4096 * (1000 * thread + 4 * i + j + 1) for j in range(4)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(device.calls) == 4 * 150 * launches
    counters = [device_counters(HOST).of_stream(device.order_of(thread)[1]) for thread in range(4)]
    for step, _, arguments in device.calls:
        starts = [v // 4096 - 1 for a, v in zip(step.arguments, arguments, strict=True)
                  if isinstance(a, Box) or (isinstance(a, Word) and a.input is not Input.COUNTERS)]  # fmt: skip
        told = launches == 2 or arguments[4] == counters[starts[0] // 1000]
        if len({s // 4 for s in starts}) != 1 or not told:
            wrong.append(starts)
    assert wrong == []


# Counters.

SPLIT, AT = desc(4096, span=1024), meta(64, 256, 4096)


def counted(run: PreparedProgram, device: NotingDevice, stream: int) -> int:
    """The address of the counters of one run, whose kernel is the only one."""
    device.calls.clear()
    run(stream, (4096, 8192, 16384, 32768))
    ((_, _, arguments),) = device.calls
    assert arguments[:4] == [8192, 4096, 16384, 32768]
    return int(arguments[4])


def split(device: NotingDevice, counters: Counters, *, copies: bool = True) -> PreparedProgram:
    found = prepare(
        one_launch(SPLIT, AT), AT, NOTHING, HOST, copies=copies, load=device.load, driver=lambda: device,
        counters=lambda place: counters,
    )  # fmt: skip
    assert isinstance(found, PreparedProgram)
    return found


def words(count: int) -> Counters:
    """So many at once, and no more: other blocks are not allocated."""
    return Counters(lambda n: torch.zeros(n, dtype=torch.int32), count)


def test_a_stream_has_counters_of_its_own_and_so_has_what_a_graph_captures_from_one() -> None:
    device, counters = NotingDevice(), words(20 * MOST_COUNTED)
    runs = split(device, counters), split(device, counters)
    of_streams = {stream: {counted(run, device, stream) for run in runs * 2} for stream in (0, 1, 2)}
    assert all(len(found) == 1 for found in of_streams.values())
    of_captures = set()
    # Two graphs one after the other, the second from two streams, one of which was captured from before.
    for captured in ({7: 501}, {7: 502, 8: 502}):
        device.captured = captured
        for stream in captured:
            found = {counted(run, device, stream) for run in runs * 2}
            assert len(found) == 1
            of_captures |= found
    assert len(of_captures) == 3
    spans = sorted([(min(f), 4 * MOST_COUNTED) for f in of_streams.values()] + [(c, 4 * UNIT) for c in of_captures])
    assert all(begin + size <= following for (begin, size), (following, _) in pairwise(spans))
    (memory,) = counters.blocks
    assert memory.data_ptr() <= spans[0][0]
    assert sum(spans[-1]) <= memory.data_ptr() + 4 * memory.numel()
    # The stream that was captured from has its own when it runs by itself.
    device.captured = {}
    assert counted(runs[0], device, 7) not in {c for c, _ in spans}
    assert device.cleared == []


def test_a_larger_program_of_a_capture_takes_more_and_a_smaller_one_what_is_there() -> None:
    counters = words(20 * MOST_COUNTED)
    first, larger, again = (counters.of_capture(5, 9, count) for count in (UNIT, UNIT + 1, 3))
    assert first is not None
    assert larger == again == first + 4 * UNIT
    assert counters.of_capture(5, 8, 3) == first + 4 * 3 * UNIT
    # Captures long past are forgotten, and never meet their words again.
    later = [counters.of_capture(6 + i, 9, 3) for i in range(200)]
    assert len(set(later)) == 200
    assert counters.of_capture(5, 9, 3) not in {first, larger, *later}


def test_a_launch_without_counters_clears_some_behind_its_scratch() -> None:
    device, counters = NotingDevice(captured={7: 501}), words(MOST_COUNTED + 2 * UNIT)
    run = split(device, counters)
    (memory,) = counters.blocks
    tiles = run._counted
    partials = run.scratch_bytes - 4 * tiles
    assert record(one_launch(SPLIT, AT), AT, NOTHING, HOST).scratch_bytes == partials
    assert counted(run, device, 3) == memory.data_ptr()
    following = memory.data_ptr() + 4 * MOST_COUNTED
    assert counted(run, device, 7) == following
    device.captured = {7: 502}
    assert counted(run, device, 7) == following + 4 * UNIT
    assert device.cleared == []
    # The words are spent: neither another stream nor another capture gets any.
    device.captured = {7: 503}
    for stream in (7, 5, 7):
        assert counted(run, device, stream) == 32768 + partials
    assert device.cleared == [(32768 + partials, tiles, s) for s in (7, 5, 7)]
    assert counted(run, device, 3) == memory.data_ptr()
    # A new program has more of them allocated, for all, and nobody's are taken away.
    split(device, counters)
    assert len(counters.blocks) == 2
    more = counters.blocks[1].data_ptr()
    assert [counted(run, device, s) for s in (5, 7, 3)] == [more, more + 4 * MOST_COUNTED, memory.data_ptr()]


def test_a_program_made_while_a_graph_is_captured_allocates_no_counters() -> None:
    device = NotingDevice(captured={7: 501})
    run = split(device, None, copies=False)  # type: ignore[arg-type]
    for stream in (7, 0):
        assert counted(run, device, stream) == 32768 + run.scratch_bytes - 4 * run._counted
    assert len(device.cleared) == 2


def test_a_thread_without_a_context_gets_one_before_it_asks_for_counters() -> None:
    device = NotingDevice()
    run = split(device, words(20 * MOST_COUNTED))

    def refused(stream: int) -> tuple[int, int]:
        if device.current != CONTEXT:
            raise LaunchError("cuStreamGetCaptureInfo must succeed (got CUDA_ERROR_201)")
        return 0, stream

    device.order_of = refused  # type: ignore[method-assign]
    device.current = 0
    counted(run, device, 0)
    assert device.current == CONTEXT
    device.order_of = lambda stream: (_ for _ in ()).throw(LaunchError("no (got 1)"))  # type: ignore[method-assign]
    with pytest.raises(LaunchError):
        run(0, (4096, 8192, 16384, 32768))


# The kernels' parameters.

EACH_KERNEL = {v.kernel: v for v in sorted(enumerate_variants(SHARED), key=str)}
#: Warps of a kernel that starts others beside those of its variant.
MORE_WARPS = dict.fromkeys(SPECIALISED_KERNELS, 12)


@pytest.mark.parametrize("kernel", EACH_KERNEL)
def test_parameters_are_those_of_the_ptx(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    compiled = compile_variant(EACH_KERNEL[kernel], capability=90)
    found = loaded_kernel(compiled, 5)
    assert found.function == 5
    warps = MORE_WARPS.get(kernel, EACH_KERNEL[kernel].num_warps)
    assert (found.threads, found.shared_bytes) == (32 * warps, compiled.metadata.shared)
    assert (found.clusters, found.cooperative, found.dependent) == (1, False, EACH_KERNEL[kernel].dependent)
    assert len(found.boxes) == sum(t.startswith("tensordesc") for t in found.types)
    # One parameter more is a kernel that only Triton knows how to start.
    longer = compiled.asm["ptx"].replace(".entry", ".visible .entry", 1).replace("(", "(.param .u32 extra,", 1)
    held = {name: getattr(compiled.metadata, name) for name in compiled.metadata._fields}
    other = SimpleNamespace(metadata=compiled.metadata, src=compiled.src, asm={"ptx": longer})
    with pytest.raises(NotPreparableError, match=r"^parameters must have .* bytes \(got \(4, .*\)"):
        loaded_kernel(other, 5)
    other = SimpleNamespace(
        metadata=SimpleNamespace(**held | {"global_scratch_size": 128}), src=compiled.src, asm=compiled.asm
    )
    with pytest.raises(NotPreparableError, match=r"^global_scratch_size must be 0 \(got 128\)$"):
        loaded_kernel(other, 5)


def test_ptx_of_other_shapes_is_read_or_refused() -> None:
    head = ".visible .entry f(\n"
    good = head + ".param .align 64 .b8 f_0[128],\n.param .u64 .ptr .global .align 1 f_1,\n.param .f32 f_2\n)\n{"
    assert ptx_parameter_sizes(good) == (128, 8, 4)
    assert ptx_parameter_sizes(head + ")") == ()
    with pytest.raises(NotPreparableError, match="must hold an entry"):
        ptx_parameter_sizes("nothing")
    with pytest.raises(NotPreparableError, match=r"\(got \.pred\)"):
        ptx_parameter_sizes(head + ".param .pred f_0)")


# Compiling and loading, with Triton's own driver replaced.


class FakeUtils:
    """Loads nothing, and hands out handles."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, int]] = []

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        assert kernel[:4] == b"\x7fELF"
        self.loaded.append((name, shared))
        return 10, 2000 + len(self.loaded), 32, 0, 1024

    def unload_module(self, module: int) -> None:
        assert module == 10

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED}


class FakeTritonDriver:
    """Triton's driver of a Hopper card that is not there."""

    def __init__(self) -> None:
        self.utils = FakeUtils()

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *arguments: pytest.fail("nothing may be launched")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    from triton.runtime.driver import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    fake = FakeTritonDriver()
    monkeypatch.setattr(driver, "_active", fake)
    for kernel in KERNELS.values():
        kernel.device_caches.clear()
    yield fake
    for kernel in KERNELS.values():
        kernel.device_caches.clear()
    gc.collect()  # kernels are unloaded by the driver that loaded them


@pytest.mark.parametrize(
    ("descriptor", "at"),
    [
        (desc(256), meta(256, 256, 256)),
        (desc(999, span=333, step=8, turn=32), meta(300, 301, 999, "ccr")),
        (desc(72), meta(20, 30, 72, alignment=2)),
        (nest(3, 64), meta(20, 30, 64)),
    ],
    ids=("descriptors", "packed slices", "pointers", "nest"),
)
def test_kernels_are_compiled_once_and_as_real_tensors_have_them(
    descriptor: GEMMDesc, at: KernelMeta, hopper: Any
) -> None:
    choice = choice_of(descriptor, at)
    program = record(choice, at, NOTHING, HOST)
    loaded = [load_step(step) for step in program.steps]
    assert len({k.function for k in loaded}) == len(program.variants) == len(hopper.utils.loaded)
    assert sum(compiled_variants().values()) == len(program.variants)
    # Preparing it again compiles nothing, and what Triton would launch on tensors is in its cache already.
    again = prepare(choice, at, NOTHING, HOST, driver=FakeDevice)
    assert isinstance(again, PreparedProgram)
    assert len(hopper.utils.loaded) == len(program.variants)
    a, b, out = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in (
        stand_in(at.a, at.m, at.k), stand_in(at.b, at.k, at.n), stand_in(at.out, at.m, at.n)))  # fmt: skip
    seen: list[Any] = []

    def compiled(variant: Any, programs: int, *arguments: Any) -> None:
        kernel = KERNELS[variant.kernel]
        seen.append(kernel.warmup(*arguments, grid=(programs,), **constants_of(variant), **options_of(variant)))

    with pytest.MonkeyPatch.context() as patch:
        for module in ("launch", "launch_balanced", "launch_finished", "launch_fma", "launch_kmajor"):
            patch.setattr(f"gemmdesc.kernels.{module}.enqueue", compiled)
        launch_choice(choice, a, b, out)
    assert [k.function for k in seen] == [k.function for k in loaded]


def test_an_interpreted_kernel_is_left_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    at = meta(256, 256, 256)
    program = record(choice_of(desc(256), at), at, NOTHING, HOST)
    monkeypatch.setitem(KERNELS, program.steps[0].variant.kernel, SimpleNamespace())
    with pytest.raises(NotPreparableError, match="must be compiled"):
        load_step(program.steps[0])
    found = prepare(choice_of(desc(256), at), at, NOTHING, HOST)
    assert isinstance(found, Unprepared)
