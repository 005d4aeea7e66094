"""The specialised chain on a GPU: every config's bytes, in a process that a hang does not outlive."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gemmdesc.kernels.specialised import SPECIALISED_CONFIGS
from tests.child_processes import child_environment

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_specialised.py"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: only Hopper's warp groups multiply by wgmma",
    ),
]


@pytest.mark.parametrize("first", range(0, len(SPECIALISED_CONFIGS), 6))
def test_every_config_gives_the_stock_chains_bytes(first: int, tmp_path: Path) -> None:
    numbers = ",".join(map(str, range(first, min(first + 6, len(SPECIALISED_CONFIGS)))))
    path = tmp_path / "found.json"
    command = [sys.executable, str(SCRIPT), str(path), "--seconds", "240", "--configs", numbers, "--no-times"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=child_environment(), timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(path.read_text())["bytes"]
    assert len(found) == len(numbers.split(","))
    for name, result in found.items():
        assert (result["ended"], result["bad"]) == ("ended", []), name
        assert result["equal"] == 27, name
