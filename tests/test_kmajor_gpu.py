"""The K-major kernels on a GPU; ``scripts/check_kmajor.py`` is the wide version of this."""

from __future__ import annotations

import pytest
import torch

from scripts import check_kmajor
from tests.kmajor_samples import Sample, samples

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: the descriptors here name Hopper's matrix steps",
    ),
]


@pytest.mark.parametrize("seed_sample", list(enumerate(samples(4))), ids=lambda s: s[1].name)
def test_bytes_equal_the_replays_under_every_tile(seed_sample: tuple[int, Sample]) -> None:
    record = check_kmajor.check(seed_sample[1], seed_sample[0], "cuda")
    assert record.get("wrong") == 0, record
    assert record["moved"] == 0, record
    assert record["tiles"] >= len(check_kmajor.TILES) - 1


@pytest.mark.parametrize("seed", range(0, 60, 7))
def test_bytes_of_random_products_equal_the_replays(seed: int) -> None:
    record = check_kmajor.check(check_kmajor.drawn(seed), seed, "cuda")
    assert record.get("wrong") == 0, record
    assert record["moved"] == 0, record


@pytest.mark.parametrize("seed", range(0, 24, 4))
def test_block_sums_of_8_bit_floats_are_torch_s(seed: int) -> None:
    """Sizes of some hundreds, which the library does not split."""
    record = check_kmajor.against_torch(seed)
    assert record["kind"] == "float8"
    assert record["equal"], record
