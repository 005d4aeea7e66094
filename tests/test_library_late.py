"""Workspace variables that change after CUDA's start are seen, told once, and make products decline."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.late import LateSettingWarning, LateVariable, WorkspaceWatch, late_words
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.routes import NdMeta, TensorMeta, route_mm, route_scaled_mm
from gemmdesc.routes.batched import route_baddbmm
from tests.child_processes import child_environment

NAME = "CUBLAS_WORKSPACE_CONFIG"


def test_nothing_is_late_before_cuda_is_there() -> None:
    watch = WorkspaceWatch()
    assert watch.late({NAME: ":16:8"}) == ()
    watch.initialised({NAME: ":16:8"})
    assert watch.late({NAME: ":16:8"}) == ()


@pytest.mark.parametrize("now", [None, ":4096:8"])
@pytest.mark.parametrize("at_start", [None, {NAME: ":16:8"}])
def test_a_change_is_late_until_it_is_undone(now: str | None, at_start: dict[str, str | None] | None) -> None:
    watch = WorkspaceWatch()
    watch.initialised({NAME: ":16:8", "OTHER": "1"}, at_start)
    watch.initialised({NAME: "later"})
    values = {} if now is None else {NAME: now}
    assert watch.late(values) == (LateVariable(name=NAME, before=":16:8", now=now, certain=True),)
    assert watch.late({NAME: ":16:8", "OTHER": "2"}) == ()


def test_a_value_that_was_set_before_anybody_looked_is_in_doubt() -> None:
    watch = WorkspaceWatch()
    watch.initialised({NAME: ":16:8"}, {})
    assert watch.late({NAME: ":16:8"}) == (LateVariable(name=NAME, before=None, now=":16:8", certain=False),)
    assert watch.late({}) == (LateVariable(name=NAME, before=":16:8", now=None, certain=True),)


def test_torchs_own_word_on_workspaces_says_nothing_of_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the variable of these at its first product; one that is set afterwards has no meaning."""
    pytest.importorskip("torch")
    from gemmdesc.library import torch_settings

    watch = WorkspaceWatch()
    watch.initialised({})
    monkeypatch.setattr(torch_settings, "process_watch", lambda: watch)
    monkeypatch.setattr(torch_settings, "_told_workspaces", lambda: (5120, 2048))
    monkeypatch.delenv("DISABLE_ADDMM_CUDA_LT", raising=False)
    assert torch_settings.read_settings("sm_90").unsettled == ""
    monkeypatch.setenv(NAME, ":1:5")
    assert torch_settings.read_settings("sm_90").unsettled == ""
    monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
    with pytest.warns(LateSettingWarning):
        found = torch_settings.read_settings("sm_90")
    assert found.unsettled.startswith("DISABLE_ADDMM_CUDA_LT was not set once CUDA was initialised")


def test_what_is_certain_is_said_as_a_reason_and_all_is_warned_of_once() -> None:
    # Values of their own, as a change is warned of once in a process.
    known = LateVariable(name=NAME, before=None, now=":1:77", certain=True)
    guessed = LateVariable(name="CUBLASLT_WORKSPACE_SIZE", before="78", now="79", certain=False)
    with pytest.warns(LateSettingWarning) as warned:
        words = late_words((known, guessed))
    assert words == f"{NAME} was not set once CUDA was initialised, and is ':1:77' now"
    assert ["decline" in str(w.message) for w in warned] == [True, False]
    with warnings.catch_warnings(action="error"):
        assert late_words((known, guessed)) == words
    assert late_words(()) == ""


def test_no_product_is_routed_under_a_workspace_that_is_not_known() -> None:
    half, f8 = DType.FLOAT16, DType.FLOAT8_E4M3FN
    matrix = TensorMeta(shape=(64, 64), strides=(64, 1), dtype=half)
    batch = NdMeta(shape=(2, 64, 64), strides=(4096, 64, 1), dtype=half)
    by_rows = replace(matrix, dtype=f8)
    by_columns = replace(by_rows, strides=(1, 64))
    unsettled = TorchSettings(unsettled="it was changed")
    for settings, declines in ((TorchSettings(), False), (unsettled, True)):
        for route in (
            route_mm(matrix, matrix, matrix, settings), route_baddbmm(batch, batch, batch, settings),
            route_scaled_mm(by_rows, by_columns, matrix, settings),
        ):  # fmt: skip
            assert isinstance(route, Declined) is declines
            assert not declines or route == Declined(code="flags", reason="it was changed")


_CHILD = """
import os, warnings
import torch
from gemmdesc.library.torch_settings import read_settings

{before}
if {watched}:
    read_settings("sm_90")
torch.cuda.is_initialized = lambda: True
for call, _ in list(torch.cuda._queued_calls):
    if call.__module__.startswith("gemmdesc"):
        call()  # as torch does when it initialises CUDA
first = read_settings("sm_90")
{after}
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    second, third = read_settings("sm_90"), read_settings("sm_90")
assert second == third
print(first.workspace_bytes, bool(first.unsettled), second.workspace_bytes, bool(second.unsettled), len(warned))
"""
_SET = 'os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":1:1"'


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("", "", "33554432 False 33554432 False 0"),
        (_SET, "", "1024 False 1024 False 0"),
        ("", _SET, "33554432 False 1024 True 1"),
    ],
)
def test_a_process_that_sets_it_in_time_and_one_that_does_not(
    before: str, after: str, wanted: str, watched: bool
) -> None:
    """CUDA's start is made up, as torch's own hook for it is used; torch's word on its workspaces is left out.

    Where nobody ``watched`` before CUDA's start, a value that was set by then is warned of at once, and followed.
    """
    pytest.importorskip("torch")
    text = _CHILD.format(before=before, after=after, watched=watched)
    if "cublas_workspace_size" in dir(__import__("torch").backends.cuda):
        text = text.replace("import torch\n", "import torch\ndel torch.backends.cuda.cublas_workspace_size\n", 1)
    environment = child_environment(without="CUBLAS")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == wanted, done.stderr


def test_torchs_own_word_counts_where_it_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from gemmdesc.library.torch_settings import read_settings

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "cublas_workspace_size", lambda: 5120, raising=False)
    monkeypatch.setattr(torch.backends.cuda, "cublaslt_workspace_size", lambda: 2048, raising=False)
    found = read_settings("sm_90")
    assert (found.workspace_bytes, found.lt_workspace_bytes, found.unsettled) == (5120, 2048, "")
    assert read_settings("sm_90", {}).workspace_bytes == 32 << 20
