"""One shape's memory and draws without a GPU: operands written in place, and what a comparison of all bytes catches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.storage import (
    a_rows,
    a_shape,
    allocate,
    b_rows,
    b_shape,
    c_rows,
    c_shape,
    store_a,
    store_b,
    store_c,
)
from gemmdesc.operands import (
    ConstantOperand,
    DenseOperand,
    Family,
    HashOperand,
    MaskedOperand,
    Operand,
    RetypedOperand,
    torch_integer,
    write_bits,
)
from gemmdesc.probe.sampling import draw_problem
from gemmdesc.problem import Failed, GemmProblem
from gemmdesc.profiles import Level, index_profile
from gemmdesc.verification import kind_kernels
from gemmdesc.verification.device_compare import KERNEL_SOURCE, flag_difference
from gemmdesc.verification.draws import draws_of
from gemmdesc.verification.gpu import GpuBench
from gemmdesc.verification.kind_draws import KindItem, kind_operands
from gemmdesc.verification.kind_stage import Stage, footprint
from gemmdesc.verification.kinds import Compared
from gemmdesc.verification.large_turns import LargeTurns
from gemmdesc.verification.records import Outcome
from tests.kind_profiles import profile_of, small_scopes
from tests.kind_samples import library_of_kinds

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")
KINDS = ("batch", "bias", "add_beta_c", "float8", "tf32", "float32", "gelu_bias")


# --- operands in place ------------------------------------------------------------------------------------------------


def _operands(dtype: DType) -> list[Operand]:
    hashed = HashOperand(dtype=dtype, family=Family.WIDE, seed=3, draw=1, role="a")
    array = np.arange(12 * 7, dtype=f"u{dtype.itemsize}").reshape(12, 7)
    return [
        hashed, MaskedOperand(source=hashed, mask=0x55), RetypedOperand(source=hashed, dtype=dtype),
        ConstantOperand(dtype=dtype, value_bits=0x81), DenseOperand(dtype=dtype, array=array),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E5M2], ids=lambda d: d.value)
@pytest.mark.parametrize(("shape", "strides"), [((12, 7), (9, 1)), ((12, 7), (1, 13)), ((3, 4, 7), (40, 1, 5))])
def test_operands_are_written_where_they_belong(
    dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    for operand in _operands(dtype):
        buffer = torch.full((200,), -1, dtype=torch_integer(dtype))
        view = buffer.as_strided(shape, strides, 3)
        write_bits(operand, view)
        wanted = torch.full((200,), -1, dtype=torch_integer(dtype))
        wanted.as_strided(shape, strides, 3).copy_(operand.torch_bits(12, 7, "cpu").view(shape))
        assert torch.equal(buffer, wanted), operand
    with pytest.raises(InvalidInputError, match=r"^out must be of torch"):
        write_bits(_operands(dtype)[0], torch.zeros(3, 4, dtype=torch.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_written_in_place_are_stored_as_ever(kind: str) -> None:
    scope = small_scopes([kind])[kind]
    for index in range(30):
        p = draw_problem(scope, 3, index)
        if p.batch_count > 1 and index % 3 == 0:
            p = replace(p, b_batch_stride=0)
        a, b = kind_operands(p, draws_of(2)[index % 2], 5)
        c = HashOperand(dtype=p.c_dtype, family=Family.NORMAL, seed=1, draw=1, role="a")
        for operand, shape, rows, store, outer, inner in (
            (a, a_shape(p), lambda s, p=p: a_rows(p, s), store_a, p.a_outer, p.k),
            (b, b_shape(p), lambda s, p=p: b_rows(p, s), store_b, p.b_outer, p.k),
            (c, c_shape(p), c_rows, store_c, p.d_outer, p.n),
        ):
            made = allocate(shape, CPU)
            write_bits(operand, rows(made))
            assert torch.equal(made.columns, store(p, operand.torch_bits(outer, inner, CPU)).columns), (kind, p)


# --- comparing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_a_difference_is_flagged_and_ours_is_cleared(dtype: Any) -> None:
    for size in (1, 7, 16, 1000):
        expected = torch.arange(size).to(dtype)
        for at in (None, 0, size - 1):
            got, flags = expected.clone(), torch.zeros(2, dtype=torch.int32)
            if at is not None:
                got[at] ^= 1
            flag_difference(expected, got, flags[1])
            assert flags.tolist() == [0, int(at is not None)]
            assert (got == -1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_a_difference_is_flagged_on_a_card(dtype: Any) -> None:
    for size in (1, 7, 16, 1000, 3_000_017):
        expected = torch.arange(size, device="cuda").to(dtype)
        for at in (None, 0, size // 2, size - 1):
            got, flags = expected.clone(), torch.zeros(2, dtype=torch.int32, device="cuda")
            if at is not None:
                got[at] ^= 1
            flag_difference(expected, got, flags[1])
            assert flags.tolist() == [0, int(at is not None)]
            assert (got == -1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_card_writes_the_bytes_that_a_cpu_does(kind: str) -> None:
    scope = small_scopes([kind])[kind]
    for index in range(30):
        p = draw_problem(scope, 3, index)
        for draw in draws_of(10):
            stages = [Stage.of(p, torch.device(place)) for place in ("cpu", "cuda")]
            inputs = [stage.write(p, draw, 5) for stage in stages]
            assert inputs[0] == inputs[1]
            for name in ("a", "b", "c"):
                one, other = (getattr(stage, name) for stage in stages)
                assert one is None or torch.equal(one.columns, other.columns.cpu()), (kind, name, p, draw)


def test_nvrtc_compiles_the_comparison() -> None:
    from gemmdesc.nvrtc import available, compile_cubin

    if not available():
        pytest.skip("needs cuda-bindings and NVRTC")
    from cuda.bindings import nvrtc

    assert compile_cubin(nvrtc, KERNEL_SOURCE, "sm_90").startswith(b"\x7fELF")


# --- shapes -----------------------------------------------------------------------------------------------------------

PROBLEM = replace(draw_problem(small_scopes(["relu"])["relu"], 3, 4), m=20, n=9, k=33, lda=40, ldb=40, ldd=24)
DRAWS = draws_of(6)
#: The draw and the element that defects touch.
AT, ROW, COLUMN = 3, 17, 5


def product(p: GemmProblem, a: Any, b: Any) -> Any:
    """Any function of all bytes of both operands, as (n, m) patterns; draws give unrelated ones."""
    total = a.columns.to(torch.int64).sum() * 31 + b.columns.to(torch.int64).sum()
    return (torch.arange(p.n * p.m) * 7919 + total).to(torch_integer(p.d_dtype)).view(p.n, p.m)


class Sides:
    """The two sides, with a defect of either at one draw; ``again``: how often ours shows its own."""

    def __init__(self, defect: str = "", again: int = 99) -> None:
        self.defect, self.left = defect, again
        self.draw, self.library_runs = -1, 0
        self.stage: Any = None

    def reference(self, lt: Any, p: GemmProblem, answer: Any, a: Any, b: Any, c: Any, d: Any, inputs: Any) -> Any:
        self.stage, self.library_runs = (a, b), self.library_runs + 1
        self.draw += 1
        if self.defect == "fails" and self.draw == AT:
            return Failed(status="CUBLAS_STATUS_EXECUTION_FAILED")
        d.columns.copy_(product(p, a, b))
        if self.defect == "varies" and self.library_runs > AT:
            d.columns[COLUMN, ROW] = self.library_runs
        return None

    def ours(self, plan: Any, a: Any, b: Any, out: Any, **_: Any) -> None:
        made = product(plan.problem, *self.stage).clone()
        hit = self.draw >= AT and self.left > 0 and self.defect not in ("", "fails", "varies")
        held = out.view(torch_integer(plan.problem.d_dtype)).mT
        if hit:
            self.left -= 1
            if self.defect == "raises":
                raise ValueError("no")
            if self.defect == "unwritten":
                made[COLUMN, ROW] = held[COLUMN, ROW]
            if self.defect == "wrong":
                made[COLUMN, ROW] ^= 1
        held.copy_(made)
        if hit and self.defect == "beyond":
            held.as_strided((1,), (1,), held.storage_offset() + COLUMN * plan.problem.ldd + plan.problem.m)[0] = 5


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sides], list[Compared]]:
    def run(sides: Sides) -> list[Compared]:
        monkeypatch.setattr(kind_kernels, "enqueue_reference", sides.reference)
        monkeypatch.setattr(kind_kernels, "run_problem", sides.ours)
        bench: Any = SimpleNamespace(place=CPU, cublaslt=None, planner=None)
        plan: Any = SimpleNamespace(problem=PROBLEM, transposed=False)
        return kind_kernels.Shape(bench=bench, plan=plan, answer=None, seed=3).compare(DRAWS)  # type: ignore[arg-type]

    return run


def outcomes(found: list[Compared]) -> list[str]:
    return [c.outcome.value for c in found]


def test_equal_sides_are_equal_on_every_draw(compared: Callable[[Sides], list[Compared]]) -> None:
    sides = Sides()
    assert outcomes(compared(sides)) == ["equal"] * 6
    assert sides.library_runs == 6


def test_an_element_that_ours_leaves_is_no_other_draws(compared: Callable[[Sides], list[Compared]]) -> None:
    found = compared(Sides("unwritten"))
    assert outcomes(found) == ["equal"] * AT + ["different"] * 3
    located = found[AT].located
    assert located is not None
    assert (located["row"], located["column"], located["count"]) == (ROW, COLUMN, 1)
    assert located["got_bits"] == (1 << 8 * PROBLEM.d_dtype.itemsize) - 1


def test_a_wrong_bit_is_located(compared: Callable[[Sides], list[Compared]]) -> None:
    found = compared(Sides("wrong"))
    assert outcomes(found) == ["equal"] * AT + ["different"] * 3
    located = found[AT].located
    assert located is not None
    assert located["expected_bits"] ^ located["got_bits"] == 1
    assert (located["draw"], located["family"]) == (AT, DRAWS[AT].family.value)


def test_what_ours_writes_between_columns_is_different(compared: Callable[[Sides], list[Compared]]) -> None:
    found = compared(Sides("beyond"))
    assert outcomes(found) == ["equal"] * AT + ["different"] * 3
    assert found[AT].located is None
    assert found[AT].failure == "differed outside of its elements"


def test_what_differs_once_is_said_to(compared: Callable[[Sides], list[Compared]]) -> None:
    found = compared(Sides("wrong", again=1))
    assert outcomes(found) == ["equal"] * AT + ["different"] + ["equal"] * 2
    assert found[AT].failure == "differed once, and not when run again"


def test_a_kernel_that_raises_is_different_and_the_other_draws_are_compared(
    compared: Callable[[Sides], list[Compared]],
) -> None:
    found = compared(Sides("raises", again=1))
    assert outcomes(found) == ["equal"] * AT + ["different"] + ["equal"] * 2
    assert found[AT].failure == "our side raised ValueError: no"


def test_a_library_that_varies_or_fails_is_told_from_one_that_differs(
    compared: Callable[[Sides], list[Compared]],
) -> None:
    assert set(outcomes(compared(Sides("varies")))) == {"equal", "nondeterministic"}
    failed = compared(Sides("fails"))
    assert outcomes(failed) == ["equal"] * AT + ["reference_failed"] + ["equal"] * 2
    assert failed[AT].failure == "CUBLAS_STATUS_EXECUTION_FAILED"
    assert failed[AT].outcome is Outcome.REFERENCE_FAILED


class Declining:
    """A planner that declines, whatever it is asked."""

    def __init__(self, code: str) -> None:
        self.code = code

    def problem_meta(self, problem: GemmProblem, *, transposed: bool) -> None:
        return None

    def plan_problem(self, problem: GemmProblem, meta: None, *, transposed: bool) -> Declined:
        return Declined(code=self.code, reason="none")


@pytest.mark.parametrize(("code", "kernel"), [("kernel", "replay"), ("no_rule", "")])
def test_the_replay_stands_in_where_no_kernel_computes_the_rule_and_only_there(
    code: str, kernel: str, tmp_path: Path
) -> None:
    scopes = small_scopes(["tf32"])
    bench = GpuBench.__new__(GpuBench)
    bench.library, bench.accept = library_of_kinds(), Level.VERIFIED
    bench.__dict__ |= {"_planner": Declining(code), "index": index_profile(profile_of(scopes))}
    item = KindItem(name="tf32", scope=scopes["tf32"], seed=1, index=2, draws=3)
    turns = LargeTurns(folder=tmp_path, turns=1, beyond_bytes=1 << 30)
    found = kind_kernels.verify_widely(bench, item, turns=turns)
    assert found is not None
    assert (found.kernel, found.outcome) == (kernel, "equal" if kernel else "declined")
    assert sum(found.counts.values()) == (3 if kernel else 0)
    assert kind_kernels.kernels_needed(bench, item) == ()
    kind_kernels.compile_kernels(bench, item)
    declined = kind_kernels.verify_kernels(bench, item)
    assert declined is not None
    assert declined.declined == Declined(code=code, reason="none")
    assert kind_kernels.verify_widely(bench, replace(item, until=0.0), turns=turns) is None
    with pytest.raises(InvalidInputError, match=r"^library must be a GpuBench"):
        kind_kernels.compile_kernels(library_of_kinds(), item)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_footprint_counts_both_outputs_and_repacked_operands() -> None:
    dense = 2 * 2 * (PROBLEM.lda * PROBLEM.a_columns + PROBLEM.ldb * PROBLEM.b_columns)
    assert footprint(PROBLEM) == dense + 3 * PROBLEM.ldd * PROBLEM.n * PROBLEM.d_dtype.itemsize


def test_large_shapes_take_turns_and_small_ones_do_not(tmp_path: Path) -> None:
    import threading

    turns = LargeTurns(folder=tmp_path / "turns", turns=2, beyond_bytes=100)
    inside, most, lock = 0, 0, threading.Lock()

    def work(size: int) -> None:
        nonlocal inside, most
        with turns.turn(size):
            with lock:
                inside += 1
                most = max(most, inside)
            threading.Event().wait(0.05)
            with lock:
                inside -= 1

    for size, wanted in ((101, 2), (100, 6)):
        most = 0
        threads = [threading.Thread(target=work, args=(size,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == wanted
    with pytest.raises(InvalidInputError, match=r"^turns must"):
        LargeTurns(folder=tmp_path, turns=0, beyond_bytes=1)
