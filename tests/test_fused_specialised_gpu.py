"""Fused calls by the specialised chain on a GPU: bytes of the stock kernel and of eager, in a process that may hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gemmdesc.kernels.fused import SPECIALISED_ENDS
from tests.child_processes import child_environment

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_specialised_ends.py"
CONFIGS = [c for c in SPECIALISED_ENDS if not c.dependent]
#: Functions, matrices, a row, a column, and two operands at once.
GROUPS = ("silu", "bias_gelu", "residual", "gated_sigmoid", "row_scale", "bias_gelu_tanh_residual")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: only Hopper's warp groups multiply by wgmma",
    ),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "first", [pytest.param(i, marks=pytest.mark.slow if i % 24 else ()) for i in range(0, len(CONFIGS), 6)]
)
def test_every_group_has_the_stock_kernels_bytes_and_eagers(first: int, dtype: str, tmp_path: Path) -> None:
    numbers = range(first, min(first + 6, len(CONFIGS)))
    path = tmp_path / "found.json"
    command = [
        sys.executable, str(SCRIPT), str(path), "--configs", ",".join(map(str, numbers)), "--types", dtype,
        "--epilogues", ",".join(GROUPS), "--seconds", "280",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env=child_environment(), timeout=320, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (claim,) = json.loads(path.read_text())["claims"]
    assert len(claim["results"]) == len(numbers) * len(GROUPS)
    for row in claim["results"]:
        assert (row["different"], row["declined"]) == (0, 0), row
        assert row["equal"] == row["compared"] > 0
