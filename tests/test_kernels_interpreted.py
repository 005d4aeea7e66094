"""The kernels' bytes without a GPU: Triton's interpreter with exact matrix steps, against the replay."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.kernels.config import WIDE_CONFIGS
from tests.child_processes import child_environment

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no wheel for this platform"
)


def told(script: str, *arguments: str) -> dict[str, Any]:
    """What a script of this folder prints as its last line, run in Triton's interpreter."""
    path = Path(__file__).with_name(script)
    environment = child_environment(TRITON_INTERPRET="1")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), *arguments], capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_structure_gives_the_replays_bytes(every: int) -> None:
    """Every third product that is drawn, or all."""
    result = told("interpreted_kernels.py", "0", str(every))
    assert result["bad"] == []
    wanted = {"chain_tma", "chain_tma packed", "folded_chain packed", "chain_pointer", "grouped_chain", "scalar_nest",
              "balanced_chains", "regions", "chain_tma padded", "folded_chain padded",
              "chain_pointer padded", "merged_tma", "merged_pointer", "merged_grouped"}  # fmt: skip
    assert wanted <= set(result["counts"])
    assert min(result["counts"].values()) >= 1


@pytest.mark.parametrize("count", [12, pytest.param(120, marks=pytest.mark.slow)])
def test_slices_are_merged_in_order_whichever_program_is_the_last(count: int) -> None:
    result = told("interpreted_merged.py", "3", str(count))
    assert result["bad"] == []
    assert {"merged_tma", "merged_pointer", "merged_grouped"} <= set(result["counts"])
    assert result["counts"]["packed"] >= 1
    assert result["counts"]["early"] >= 50


@pytest.mark.parametrize("count", [15, pytest.param(240, marks=pytest.mark.slow)])
def test_tiles_of_two_widths_give_the_replays_bytes(count: int) -> None:
    """Each config once, or sixteen times."""
    result = told("interpreted_wide.py", "0", str(count))
    assert result["bad"] == []
    kinds = {"by descriptor", "by pointers", "by columns", "packed", "slices", "turns"}
    tiles = {f"{c.block_m}x{c.columns}x{c.block_k}" for c in WIDE_CONFIGS}
    assert set(result["counts"]) == kinds | tiles


def test_whatever_opens_or_follows_a_sum_gives_the_replays_bytes() -> None:
    result = told("interpreted_finish.py", "3", "44")
    assert result["bad"] == []
    wanted = {"finished chain_tma", "finished chain_pointer", "finished grouped_chain", "finished scalar_nest",
              "finished balanced_chains", "finished balanced_chains early", "regions"}  # fmt: skip
    assert wanted <= set(result["counts"])
    # Slices without a k are all that no kernel takes.
    assert all(reason.startswith("every slice must hold a k") for reason in result["declined"])


@pytest.mark.slow
def test_planned_batches_and_epilogues_give_the_hidden_librarys_bytes() -> None:
    result = told("interpreted_kinds.py", "6")
    assert result["bad"] == []
    assert {name.split()[0] for name in result["counts"]} == {
        "batch", "bias", "relu", "relu_bias", "add_c", "add_beta_c",
    }  # fmt: skip
    assert result["caught"] == 2
    assert result["compared"] >= 4
    assert result["records"] == ["equal"] * 6 + ["declined"]
