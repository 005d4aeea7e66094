"""Fused kernels without a GPU: Triton's interpreter against the replay, and functions against eager's dataflow."""

from __future__ import annotations

import importlib.util

import pytest

from tests.test_kernels_interpreted import told

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no wheel for this platform"
)


def test_random_epilogues_give_the_replays_bytes_and_functions_their_models() -> None:
    result = told("interpreted_fused.py", "0", "60", "functions")
    assert result["bad"] == []
    assert result["functions"] == 2 * 2 * 5 * 65536
    assert {"chain_tma whole", "chain_pointer whole", "finished after"} <= set(result["counts"])
    # In two launches, or in one.
    assert {"chain_pointer after", "merged_pointer after"} & set(result["counts"])
    assert result["declined"] == {}


def test_whole_calls_are_torchs_operators_on_our_products() -> None:
    result = told("interpreted_fused.py", "0", "0", "calls")
    assert result["bad"] == []
    assert (result["calls"], result["fused"]) == (19, 19)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_many_random_epilogues_give_the_replays_bytes(seed: str) -> None:
    result = told("interpreted_fused.py", seed, "300", "none")
    assert result["bad"] == []
