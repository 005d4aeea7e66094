"""The kernels' bytes without a GPU: Triton's interpreter with exact matrix steps, against the replay."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no wheel for this platform"
)


def test_every_structure_gives_the_replays_bytes() -> None:
    script = Path(__file__).with_name("interpreted_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(script.parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), "0"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bad"] == []
    wanted = {"chain_tma", "chain_tma packed", "folded_chain packed", "chain_pointer", "grouped_chain", "scalar_nest",
              "balanced_chains", "regions"}  # fmt: skip
    assert wanted <= set(result["counts"])
    assert min(result["counts"].values()) >= 1
