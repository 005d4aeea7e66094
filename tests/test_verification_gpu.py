"""Verification on a GPU.  Run with ``-m gpu``; what needs a profile of this card and library says so without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmdesc.errors import Declined
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.plan import planner_for
from gemmdesc.routes import tensor_meta
from gemmdesc.verification.bench import Prepared
from gemmdesc.verification.campaign import Machine, Options, run_campaign
from gemmdesc.verification.cases import Case, Regime, case_metas, draw_case
from gemmdesc.verification.comparing import TensorComparer
from gemmdesc.verification.draws import draws_of, operands
from gemmdesc.verification.gpu import GpuBench, GpuBenchFactory, run_torch
from gemmdesc.verification.records import Outcome
from gemmdesc.verification.scope import Scope, scope_of
from gemmdesc.verification.tensors import empty_out, make_a, make_b

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def bench() -> Iterator[GpuBench]:
    with CublasLt() as library:
        yield GpuBench(library, planner_for(0), keep_bytes=4 << 30)


def some_cases(count: int, most: int = 1 << 24) -> list[Case]:
    regimes = (Regime.UNROUNDED, Regime.ALIGNED, Regime.DEEP)
    cases = (draw_case(regime, 9, i) for i in range(10_000) for regime in regimes)
    fitting = (c for c in cases if c.m * c.k + c.n * c.k + c.m * c.n < most)
    return [next(fitting) for _ in range(count)]


def with_profile(bench: GpuBench, case: Case) -> Prepared | None:
    """The prepared case; skips, saying why, where this card and library have no profile."""
    prepared = bench.prepare(case)
    if isinstance(prepared, Prepared) and prepared.declined is not None and prepared.declined.code == "no_profile":
        pytest.skip(f"not covered here: {prepared.declined.reason}")
    return prepared if isinstance(prepared, Prepared) else None


@pytest.mark.parametrize("case", some_cases(60), ids=lambda c: c.key)
def test_tensors_have_the_metas_of_the_case_alignment_included(case: Case) -> None:
    place = torch.device("cuda", 0)
    a, b = operands(case, draws_of(1)[0])
    tensors = make_a(case, a, place), make_b(case, b, place), empty_out(case, place)
    assert tuple(map(tensor_meta, tensors)) == case_metas(case)


def test_torch_and_cublaslt_agree_and_launches_are_known(bench: GpuBench) -> None:
    comparer = TensorComparer(
        place=torch.device("cuda", 0),
        ours=bench.run_cublaslt,  # type: ignore[arg-type]
        references={"cublaslt": bench.run_cublaslt, "torch": run_torch},
    )
    for case in some_cases(60):
        prepared = bench.prepare(case)
        assert isinstance(prepared, Prepared), prepared
        assert scope_of(bench.launch(prepared.problem, prepared.answer)) is not Scope.UNKNOWN
        found = comparer.compare(prepared, draws_of(2))
        assert {c.outcome for c in found.compared} == {Outcome.EQUAL}, (case, found)


def test_our_kernels_give_both_references_bytes(bench: GpuBench) -> None:
    compared = 0
    for case in some_cases(60):
        prepared = with_profile(bench, case)
        if prepared is None or isinstance(prepared.declined, Declined):
            continue
        found = bench.compare(prepared, draws_of(4))
        assert {c.outcome for c in found.compared} == {Outcome.EQUAL}, (case, found)
        compared += 1
    assert compared >= 20


def test_a_case_beyond_memory_is_a_failed_reference(bench: GpuBench) -> None:
    prepared = with_profile(bench, some_cases(1)[0])
    if prepared is None or prepared.declined is not None:
        pytest.skip("not covered here: the first case declines")
    held = []
    try:
        while True:
            held.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    large = draw_case(Regime.NAMED, 1, 0)
    bigger = bench.prepare(large)
    if isinstance(bigger, Prepared) and bigger.declined is None:
        found = bench.compare(bigger, draws_of(1))
        assert {c.outcome for c in found.compared} == {Outcome.REFERENCE_FAILED}
        assert not found.fatal
    held.clear()
    torch.cuda.empty_cache()


def test_a_campaign_over_processes(bench: GpuBench, tmp_path: Path) -> None:
    from gemmdesc.probe.workers import ProcessPool

    with_profile(bench, some_cases(1)[0])
    options = Options(seed=5, draws=2, unrounded=30, aligned=15, deep=10, named=2, lost_tail=2)
    free, _ = torch.cuda.mem_get_info()
    records = run_campaign(
        lambda count: ProcessPool(GpuBenchFactory(), count), options, Machine(workers=2, memory_bytes=free // 2),
        tmp_path, {"test": 1}, lambda *_: None,
    )  # fmt: skip
    assert len(records) >= 57
    assert not [r for r in records if r.outcome("cublaslt") is Outcome.DIFFERENT]
    assert not [r for r in records if r.outcome("torch") is Outcome.DIFFERENT]
