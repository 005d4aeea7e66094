"""A source of answers for every kind of product on a CPU: the simulated library of kinds, with its profile."""

from __future__ import annotations

from functools import cache

from gemmdesc.dropin import LibrarySource
from tests.kind_profiles import profile_of, small_scopes
from tests.kind_samples import library_of_kinds

KINDS = (
    "plain", "float32", "tf32", "float8", "batch", "batch_float32", "bias", "relu", "relu_bias", "add_c", "add_beta_c",
)  # fmt: skip


@cache
def source() -> LibrarySource:
    """One for all tests, as making the profile takes a second."""
    return LibrarySource(library=library_of_kinds(), profile=profile_of(small_scopes(KINDS)))
