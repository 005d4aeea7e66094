"""Shared test set-up: hypothesis runs the same examples every time, and NumPy's generator is seeded per test."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=2000)
settings.load_profile("repeatable")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator whose seed is the test's own name."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
