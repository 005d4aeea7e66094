"""The examples on a card, small: what they promise holds, and stock torch fails the same comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.child_processes import child_environment, last_words

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
FOLDER = Path(__file__).resolve().parent.parent / "examples"


def run_example(name: str, *arguments: str) -> Any:
    command = [sys.executable, str(FOLDER / name), "--json", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=child_environment(), timeout=280, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + last_words(done.stderr)
    return json.loads(done.stdout[done.stdout.index("{") :])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_decoder_block_four_ways(dtype: str) -> None:
    claim = run_example("decoder_block.py", "--dtype", dtype)
    assert "has 2 orders" in claim["orders"], claim["orders"]
    counts = claim["counts"]
    assert {(c["different"], c["declined"]) for c in counts.values()} == {(0, 0)}
    assert counts["pinned"]["sequences_dependent_on_the_batch"] == 0
    assert counts["eager"]["sequences_dependent_on_the_batch"] > 0


def test_a_trainer_and_a_server_agree_where_both_are_pinned() -> None:
    claim = run_example("logprob_parity.py", "--length", "12", "--sequences", "7", "--layers", "1")
    assert claim["operations_dependent"] == []
    assert (claim["counts"]["different"], claim["counts"]["declined"]) == (0, 0)
    assert claim["counts"]["stock_different"] > 0
