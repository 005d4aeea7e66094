"""Shared test set-up: hypothesis runs the same examples every time, and NumPy's generator is seeded per test."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import settings

from tests.case_log import CaseLog

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=2000)
settings.load_profile("repeatable")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator whose seed is the test's own name."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def case(record_property: Callable[[str, object], None]) -> Iterator[CaseLog]:
    """Counts what a test of a public report finds; see ``scripts/check_cases.py``."""
    log = CaseLog()
    yield log
    for name, value in log.properties().items():
        record_property(name, value)
