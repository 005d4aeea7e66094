"""Nests of lanes on a GPU: library, kernel and replay agree byte for byte; graphs, streams and prepared programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gemmdesc.bits import first_mismatch
from gemmdesc.descriptor import Contiguous, GEMMDesc, Strided
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.choose_lanes import LaneChoice, choose_lanes, outputs_of
from tests.lane_rows import case_of, packed, scalar_rows
from tests.lane_samples import BLOCK_FOLD, LaneCase, butterfly, draw_cases, lane_cut, lanes_of
from tests.script_modules import load_script

check_kernels = load_script("check_kernels")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an sm_90 GPU"
    ),
]
PROFILE = Path(__file__).parents[1] / "arch_profiles" / "sm_90-132" / "cublaslt-13.1.0.parquet"
F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32


def placed(case: LaneCase) -> Any:
    """(bits of a, bits of b, a, b, out) on the GPU."""
    return check_kernels.place(
        check_kernels.Case(m=case.m, n=case.n, k=case.k, desc=case.desc, layouts=case.layouts, note=case.name)
    )


def sampled(case: LaneCase) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return check_kernels.sampled(case.m, rng, 4, 8), check_kernels.sampled(case.n, rng, 4, 8)


def launched(desc: GEMMDesc, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, outputs: int | None) -> LaneChoice:
    from gemmdesc.kernels.launch import kernel_meta, launch

    choice = choose_lanes(desc, kernel_meta(a, b, out), outputs)
    assert isinstance(choice, LaneChoice), choice
    out.fill_(1.5)
    launch(choice, a, b, out)
    return choice


def checked(case: LaneCase) -> None:
    """Under every number of outputs of a program, twice."""
    from gemmdesc.arithmetic.replay import replay

    a_bits, b_bits, a, b, out = placed(case)
    rows, columns = sampled(case)
    expected = replay(case.desc, a_bits, b_bits, rows=rows, cols=columns)
    first = launched(case.desc, a, b, out, None)
    whole = check_kernels.to_bits(out, case.desc.output_dtype)
    assert first_mismatch(expected, whole[np.ix_(rows, columns)]) is None, (first.form, case)
    tiles = 1024 if first.form.joins else 2**30
    for outputs in outputs_of(first.form.read, first.form.digits):
        if -(-case.m * case.n // outputs) > tiles:
            continue
        for _ in range(2):
            form = launched(case.desc, a, b, out, outputs).form
            again = check_kernels.to_bits(out, case.desc.output_dtype)
            assert first_mismatch(whole, again) is None, (form, case)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_lanes_equal_the_replays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for case in draw_cases(rng, (F16, BF16, F32)[seed % 3]):
        checked(case)


def large_cases() -> list[LaneCase]:
    """Sizes of real vectors: many waves of programs, many parts, aligned and not."""
    turn = (lane_cut(Strided(count=16, unit=1)), lane_cut(Contiguous(span=32)))
    split = lane_cut(Contiguous(span=1376))
    dealt = lane_cut(Strided(count=264, unit=256), BLOCK_FOLD)
    found = []
    for name, cuts, m, k, layouts in (
        ("one chain", (), 100003, 24, "crr"), ("runs", butterfly(1, 27), 119625, 54, "rrr"),
        ("in turn", turn, 28358, 774, "rrr"), ("in turn, aligned", turn, 20000, 4096, "rrr"),
        ("parts in turn", (split, *turn), 5000, 44000, "rrr"), ("five", butterfly(5, 1), 2105, 3068, "crr"),
        ("five along", butterfly(5, 1), 2193, 20001, "rrr"),
        ("parts across", (split, *butterfly(1, 1)), 30001, 8001, "crr"),
        ("parts across, aligned", (split, *butterfly(1, 64)), 25408, 8000, "crr"),
        ("dealt", (dealt, *butterfly(7, 2), *butterfly(1, 1)), 12, 197084, "rrr"),
        ("dealt, one output", (dealt, *butterfly(7, 2), *butterfly(1, 1)), 1, 298001, "rrr"),
    ):  # fmt: skip
        desc = lanes_of(k, *cuts, dtype=BF16 if len(found) % 2 else F16, output=F32)
        found.append(LaneCase(name=name, desc=desc, m=m, n=1, k=k, layouts=layouts))
    flat = lanes_of(341, lane_cut(Contiguous(span=171)), lane_cut(Contiguous(span=128)))
    found.append(LaneCase(name="nine columns", desc=flat, m=13000, n=9, k=341, layouts="crr"))
    thin = lanes_of(2064, lane_cut(Strided(count=16, unit=1)), lane_cut(Contiguous(span=16)))
    found.append(LaneCase(name="a small square", desc=thin, m=16, n=16, k=2064, layouts="rcr"))
    return found


@pytest.mark.parametrize("case", large_cases(), ids=lambda case: case.name)
def test_large_vectors_equal_the_replays(case: LaneCase) -> None:
    checked(case)


def test_joined_lanes_run_in_graphs_and_on_streams() -> None:
    """Counters are back at zero after each run, whichever program was the last."""
    case = large_cases()[4]
    from gemmdesc.kernels.beside import NOTHING
    from gemmdesc.kernels.launch import kernel_meta
    from gemmdesc.kernels.prepared import PreparedProgram
    from gemmdesc.kernels.preparing import Taken, prepare, run_prepared

    _, _, a, b, out = placed(case)
    launched(case.desc, a, b, out, None)
    expected = out.clone()
    meta = kernel_meta(a, b, out)
    choice = choose_lanes(case.desc, meta)
    assert not isinstance(choice, Declined)
    program = prepare(choice, meta, Taken(), a.device)
    assert isinstance(program, PreparedProgram), program
    streams = [torch.cuda.Stream() for _ in range(3)]
    outs = [torch.zeros_like(out) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, target in zip(streams, outs, strict=True):
            with torch.cuda.stream(stream):
                run_prepared(program, a, b, target, NOTHING, None)
    torch.cuda.synchronize()
    assert all(torch.equal(target.view(torch.int32), expected.view(torch.int32)) for target in outs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            run_prepared(program, a, b, outs[0], NOTHING, None)
    for _ in range(20):
        outs[0].zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(outs[0].view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("part", range(8))
def test_library_kernel_and_replay_agree_for_every_scalar_row(part: int) -> None:
    """The example of every eighth row of the packaged profile: the library's bytes, the kernel's and the replay's."""
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.kernels.choose_lanes import choose_scalar
    from gemmdesc.kernels.launch import kernel_meta, launch
    from gemmdesc.library.cublaslt import CublasLt

    rows, compared = scalar_rows(PROFILE)[part::8], 0
    with CublasLt() as library:
        for row, _ in rows:
            known = row.evidence.example
            problem = packed(known.problem, known.problem.m, known.problem.n, known.problem.k)
            case = case_of(row, problem)
            if case is None or (case.m + case.n) * case.k > 2**28:
                continue
            a_bits, b_bits, a, b, out = placed(case)
            choice = choose_scalar(case.desc, kernel_meta(a, b, out))
            assert not isinstance(choice, Declined), (choice, case)
            launch(choice, a, b, out)
            ours = check_kernels.to_bits(out, case.desc.output_dtype)
            some = sampled(case)
            expected = replay(case.desc, a_bits, b_bits, rows=some[0], cols=some[1])
            assert first_mismatch(expected, ours[np.ix_(*some)]) is None, (choice, case)
            if not library.check(problem, known.answer):
                continue
            theirs = torch.empty_like(out)
            failed = library.matmul(problem, known.answer, b.data_ptr(), a.data_ptr(), theirs.data_ptr())
            if failed is None:
                torch.cuda.synchronize()
                wrong = first_mismatch(check_kernels.to_bits(theirs, case.desc.output_dtype), ours)
                assert wrong is None, (wrong, choice, case)
                compared += 1
    assert compared or not rows
