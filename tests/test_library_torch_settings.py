"""What torch would give cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gemmdesc.library.torch_settings import (
    TorchSettings,
    default_workspace_bytes,
    parse_lt_workspace,
    parse_workspace_config,
    read_settings,
    settings_key,
    settings_parts,
)

KIB, MIB = 1024, 1024 * 1024


def forget() -> None:
    """A key made from now on is of torch and the environment as they are then."""
    settings_key.cache_clear()
    settings_parts.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, 77),
        ("", 77),
        ("nonsense", 77),
        ("4096:8", 77),
        (":4096:8", 32 * MIB),
        (":4096:2:16:8", 8 * MIB + 128 * KIB),
        (":0:0", 0),
        (":16:8", 128 * KIB),
        ("x:16:8y:1:1", 129 * KIB),
    ],
)
def test_workspace_config(text: str | None, expected: int) -> None:
    assert parse_workspace_config(text, 77) == expected


def test_default_workspace() -> None:
    assert default_workspace_bytes("sm_90") == 32 * MIB
    assert default_workspace_bytes("sm_100") == 8 * MIB + 128 * KIB


def test_lt_workspace_is_capped() -> None:
    assert parse_lt_workspace(None, 32 * MIB) == MIB
    assert parse_lt_workspace("4096", 32 * MIB) == 4 * MIB
    assert parse_lt_workspace("4096", 0) == 0
    assert parse_lt_workspace("much", 32 * MIB) == MIB


def test_read_settings_follows_torch_and_the_environment() -> None:
    assert read_settings("sm_90", {}).workspace_bytes == 32 * MIB
    assert read_settings("sm_90", {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}).workspace_bytes == 128 * KIB
    assert isinstance(read_settings("sm_90", {}), TorchSettings)
    for text, fuses in ((None, True), ("0", True), ("", True), ("1", False), ("11", True)):
        given = {} if text is None else {"DISABLE_ADDMM_CUDA_LT": text}
        assert read_settings("sm_90", given).fuses_bias is fuses


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("value", "reduced", "splitk"),
    [
        (True, True, True),
        (False, False, True),
        ((True, True), True, True),
        ((False, True), False, True),
        ((False, False), False, False),
    ],
)
def test_reduction_flags_are_read_by_type(
    name: str, value: bool | tuple[bool, bool], reduced: bool, splitk: bool
) -> None:
    import torch

    matmul, flag = torch.backends.cuda.matmul, f"allow_{name}_reduced_precision_reduction"
    before = getattr(matmul, flag), getattr(matmul, f"{flag}_split_k")
    unchanged = read_settings("sm_90", {})
    try:
        setattr(matmul, flag, value)
        found = read_settings("sm_90", {})
    finally:
        setattr(matmul, flag, before)
    changes = {f"allow_{name}_reduced_precision_reduction": reduced, f"allow_{name}_splitk": splitk}
    assert found == replace(unchanged, **changes)
    assert read_settings("sm_90", {}) == unchanged


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ({"allow_tf32": True}, True),
        ({"allow_tf32": False}, False),
        ({"fp32_precision": "tf32"}, True),
        ({"fp32_precision": "ieee"}, False),
        ({"everywhere": "tf32"}, True),
        ({"everywhere": "ieee"}, False),
    ],
)
def test_tf32_is_read_in_every_state_that_torch_has(setting: dict[str, bool | str], allowed: bool) -> None:
    """torch refuses to read its older flag where a newer one was set."""
    torch = pytest.importorskip("torch")
    matmul = torch.backends.cuda.matmul
    try:
        for name, value in setting.items():
            place = torch.backends if name == "everywhere" else matmul
            setattr(place, name.replace("everywhere", "fp32_precision"), value)
        assert read_settings("sm_90", {}).allow_tf32 is allowed
    finally:
        torch.backends.fp32_precision = "none"
        matmul.fp32_precision = "none"
    assert not read_settings("sm_90", {}).allow_tf32


@contextmanager
def changed(place: Any, name: str, value: Any, back: Any = None) -> Iterator[None]:
    before = getattr(place, name) if back is None else back
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


def states() -> dict[str, Callable[[], Any]]:
    """Ways to change torch's settings, each a context."""
    torch = pytest.importorskip("torch")
    matmul = torch.backends.cuda.matmul
    found: dict[str, Callable[[], Any]] = {}
    for kind in ("fp16", "bf16"):
        flag = f"allow_{kind}_reduced_precision_reduction"
        for value in ((True, True), (False, True), (False, False)):
            found[f"{kind} {value}"] = lambda f=flag, v=value: changed(matmul, f, v, (True, True))
    found["accumulation"] = lambda: changed(matmul, "allow_fp16_accumulation", True)
    found["tf32"] = lambda: changed(matmul, "allow_tf32", True)
    found["tf32, newer"] = lambda: changed(matmul, "fp32_precision", "tf32", "none")
    found["tf32 everywhere"] = lambda: changed(torch.backends, "fp32_precision", "tf32", "none")

    @contextmanager
    def deterministic() -> Iterator[None]:
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)

    found["deterministic"] = deterministic
    return found


@pytest.mark.parametrize("public", [False, True])
def test_a_key_tells_every_change_of_settings(public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``public``: of a torch and a Python that have nothing behind their public ways."""
    torch = pytest.importorskip("torch")
    forget()
    if public:
        for name in [n for n in vars(torch._C) if n.startswith(("_get_cublas_", "_get_blas_"))]:
            if name != "_get_cublas_allow_tf32":  # torch's own public property needs it
                monkeypatch.delattr(torch._C, name)
        behind = {
            "allow_fp16_reduced_precision_reduction": True, "allow_fp16_reduced_precision_reduction_split_k": True,
            "allow_bf16_reduced_precision_reduction": True, "allow_bf16_reduced_precision_reduction_split_k": True,
            "allow_fp16_accumulation": False,
        }  # fmt: skip
        monkeypatch.setattr(torch.backends.cuda, "matmul", type("Older", (), behind)())
        monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda: "_BlasBackend.Default")
    key, met = settings_key(), {}
    if public:
        matmul = torch.backends.cuda.matmul
        usual = key()
        with changed(matmul, "allow_fp16_accumulation", True):
            assert key() != usual
        with changed(matmul, "allow_bf16_reduced_precision_reduction_split_k", False):
            assert key() != usual
        assert key() == usual
    else:
        for name, state in states().items():
            with state():
                met[name] = key(), read_settings("sm_90", {})
        for one, (key_of_one, settings_of_one) in met.items():
            for other, (key_of_other, settings_of_other) in met.items():
                assert (key_of_one != key_of_other) or settings_of_one == settings_of_other, (one, other)
        assert len({settings for _, settings in met.values()}) >= 8
    forget()


@pytest.mark.parametrize("name", ["CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "DISABLE_ADDMM_CUDA_LT"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_key_follows_the_environment(name: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    pytest.importorskip("torch")
    if not wrapped:
        monkeypatch.setattr(os, "environ", {})
    monkeypatch.delenv(name, raising=False)
    forget()
    key = settings_key()
    before = key()
    monkeypatch.setenv(name, ":16:8")
    one = key()
    monkeypatch.setenv(name, ":32:8")
    assert len({before, one, key()}) == 3
    monkeypatch.delenv(name)
    assert key() == before
    forget()


@pytest.mark.parametrize("behind", [True, False])
def test_a_key_follows_workspaces_that_torch_tells(behind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``behind``: of a torch with CUDA, which has functions behind its public ones."""
    torch = pytest.importorskip("torch")
    sizes = [32 * MIB, MIB]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for i, kind in enumerate(("", "Lt")):
        tells = partial(sizes.__getitem__, i)
        monkeypatch.setattr(torch.backends.cuda, f"cublas{kind.lower()}_workspace_size", tells, raising=False)
        name = f"_cuda_getCublas{kind}WorkspaceSize"
        monkeypatch.setattr(torch._C, name, tells, raising=False)
        if not behind:
            monkeypatch.delattr(torch._C, name)
    forget()
    key = settings_key()
    met = {key()}
    for sizes[0], sizes[1] in ((8 * MIB, MIB), (8 * MIB, 2 * MIB)):
        met.add(key())
    assert len(met) == 3
    forget()


def test_a_key_is_of_plain_values() -> None:
    """Others may take longer to compare than everything else that a call does."""
    pytest.importorskip("torch")
    forget()
    flat = [x for part in settings_key()() for x in (part if isinstance(part, tuple) else (part,))]
    assert {type(x) for x in flat} <= {bool, int, str, bytes, type(None)}
    forget()
