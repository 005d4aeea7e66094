"""The K-major kernels' bytes without a GPU: Triton's interpreter with exact matrix steps, against the replay."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child_processes import child_environment

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no wheel for this platform"
)


def test_float8_tf32_and_float32_nests_give_the_replays_bytes() -> None:
    script = Path(__file__).with_name("interpreted_kmajor.py")
    environment = child_environment(TRITON_INTERPRET="1")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), "4"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bad"] == []
    wanted = {"kmajor_chain 0", "kmajor_chain 0 slices", "kmajor_chain 1", "kmajor_chain 1 slices",
              "kmajor_chain 0 packed", "kmajor_chain 0 packed slices", "kmajor_chain 1 packed",
              "kmajor_chain 1 packed slices", "kmajor_chain 2 packed", "scalar_nest", "fma_chain"}  # fmt: skip
    assert wanted <= set(result["counts"]), result["counts"]
    assert {name.split()[0] for name in result["planned"]} == {"float32", "tf32", "float8", "float8_fast"}
    assert result["caught"] == 2
