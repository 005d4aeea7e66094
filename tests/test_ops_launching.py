"""Which launcher a plan gets: programs, Triton with a warning, and what a capture finds missing."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

from gemmdesc.errors import LaunchWarning
from gemmdesc.kernels import preparing
from gemmdesc.kernels.prepared import PreparedProgram
from gemmdesc.kernels.preparing import Unprepared, prepare
from gemmdesc.kernels.recording import TablesMissingError
from gemmdesc.ops import plan
from gemmdesc.ops.launching import launch_plan, ready_program, taken_by
from gemmdesc.plan import CaptureError, Plan, Planner
from tests.test_kernels_prepared import NotingDevice
from tests.test_ops import half, planner_of

HALF = torch.float16


def planned(planner: Planner) -> Plan:
    found = plan((80, 4096), (4096, 96), dtype=HALF, planner=planner)
    assert isinstance(found, Plan)
    return found


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> NotingDevice:
    """Stands for every CUDA device."""
    made = NotingDevice()

    def on_host(choice: Any, meta: Any, taken: Any, place: Any, *, copies: bool) -> Any:
        host = torch.device("cpu")
        return prepare(choice, meta, taken, host, copies=copies, load=made.load, driver=lambda: made)

    monkeypatch.setattr(preparing, "prepare", on_host)
    return made


def test_a_plan_is_prepared_once_for_each_device(device: NotingDevice) -> None:
    planner = planner_of()
    found = planned(planner)
    assert planner.cold(found.variants) == found.variants
    first = ready_program(planner, found, 0, captured=False)
    assert isinstance(first, PreparedProgram)
    assert planner.cold(found.variants) == frozenset()
    assert ready_program(planner, found, 0, captured=False) is first
    other = ready_program(planner, found, 1, captured=False)
    assert other is not first
    assert found.programs.by_device == {0: first, 1: other}


def test_a_capture_takes_what_is_there_and_names_what_is_not(device: NotingDevice) -> None:
    planner = planner_of()
    found = planned(planner)
    with pytest.raises(CaptureError, match=r"make the call once outside, or use gemmdesc\.warmup"):
        ready_program(planner, found, 0, captured=True)
    assert found.programs.by_device == {}
    planner.mark_warm(found.variants)
    within = ready_program(planner, found, 0, captured=True)
    assert isinstance(within, PreparedProgram)
    assert ready_program(planner_of(), found, 0, captured=True) is within


def test_tables_that_a_capture_would_have_to_copy_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def missing(*arguments: Any, copies: bool) -> Any:
        seen.append(copies)
        raise TablesMissingError("tables")

    monkeypatch.setattr(preparing, "prepare", missing)
    planner = planner_of()
    found = planned(planner)
    planner.mark_warm(found.variants)
    with pytest.raises(CaptureError, match=r"^matmul must be warm .* copying its tables .*\(got a first call of "):
        ready_program(planner, found, 0, captured=True)
    assert seen == [False]
    assert found.programs.by_device == {}


@pytest.mark.parametrize("expected", [False, True])
def test_launches_through_triton_are_told_unless_expected(expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Unprepared(reason="a kernel of another kind", expected=expected)
    monkeypatch.setattr(preparing, "prepare", lambda *arguments, **more: left)
    planner = planner_of()
    found = planned(planner)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert ready_program(planner, found, 0, captured=False) is left
        assert ready_program(planner, found, 0, captured=False) is left
    assert [w.category for w in told] == ([] if expected else [LaunchWarning])
    assert all("a kernel of another kind" in str(w.message) for w in told)
    # Triton compiles when it launches, and not before.
    assert planner.cold(found.variants) == found.variants
    with pytest.raises(CaptureError):
        ready_program(planner, found, 0, captured=True)


def test_tensors_on_a_host_go_through_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr("gemmdesc.kernels.launch_tiled.launch_choice", lambda *arguments: launched.append(arguments))
    planner = planner_of()
    found = planned(planner)
    a, b, out = half(80, 4096), half(4096, 96), half(80, 96)
    with warnings.catch_warnings(action="error"):
        launch_plan(planner, found, a, b, out, captured=False)
    assert [id(t) for t in launched[0]] == [id(found.kernel), id(a), id(b), id(out)]
    assert planner.cold(found.variants) == frozenset()


def test_a_copy_of_a_plan_holds_no_programs(device: NotingDevice) -> None:
    planner = planner_of()
    found = planned(planner)
    ready_program(planner, found, 0, captured=False)
    copied = pickle.loads(pickle.dumps(found))
    assert copied == found
    assert copied.programs.by_device == {}
    assert found.programs.by_device != {}


def test_a_plain_product_takes_nothing_beside_its_operands() -> None:
    taken = taken_by(planned(planner_of()))
    assert (taken.c, taken.bias_axis, taken.scales) == (False, None, 0)
