"""The bytes of nests of lanes without a GPU: Triton's interpreter against the replay."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.test_kernels_interpreted import told

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no wheel for this platform"
)
PROFILE = Path(__file__).parents[1] / "arch_profiles" / "sm_90-132" / "cublaslt-13.1.0.parquet"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "rounds"), [(0, 1), (1, 9)])
def test_every_kind_of_lanes_gives_the_replays_bytes(seed: int, rounds: int) -> None:
    """Every read, width, fold and number of outputs; tails, empty lanes, NaNs, infinities, -0.0 and subnormals."""
    result = told("interpreted_lanes.py", str(seed), str(rounds))
    assert result["bad"] == []
    assert len(result["counts"]) == 27
    assert min(result["counts"].values()) == rounds


@pytest.mark.parametrize("every", [72, pytest.param(1, marks=pytest.mark.slow)])
def test_every_scalar_row_of_the_profile_gives_the_replays_bytes(every: int) -> None:
    result = told("interpreted_lanes.py", str(PROFILE), str(every), "0")
    assert result["bad"] == []
    assert result["counts"]
