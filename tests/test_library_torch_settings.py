"""What torch would give cuBLAS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmdesc.library.torch_settings import (
    TorchSettings,
    default_workspace_bytes,
    parse_lt_workspace,
    parse_workspace_config,
    read_settings,
)

KIB, MIB = 1024, 1024 * 1024


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
