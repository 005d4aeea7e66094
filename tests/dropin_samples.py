"""A source of answers for every kind of product on a CPU: the simulated library of kinds, with its profile."""

from __future__ import annotations

from functools import cache
from typing import Any

from gemmdesc.dropin import LibrarySource
from gemmdesc.dropin.products import Product
from gemmdesc.errors import Declined
from gemmdesc.routes import Activation
from tests.kind_profiles import profile_of, small_scopes
from tests.kind_samples import library_of_kinds

KINDS = (
    "plain", "float32", "tf32", "float8", "batch", "batch_float32", "bias", "relu", "relu_bias", "add_c", "add_beta_c",
)  # fmt: skip


@cache
def source() -> LibrarySource:
    """One for all tests, as making the profile takes a second."""
    return LibrarySource(library=library_of_kinds(), profile=profile_of(small_scopes(KINDS)))


class AskTorch:
    """An executor that computes nothing itself: every product is torch's own, on a CPU."""

    device_type = "cpu"

    def run(self, product: Product) -> Any:
        import torch

        p = product
        if p.activation is not Activation.NONE or p.scales is not None:
            return Declined(code="no_rule", reason="only plain products here")
        name = {"addmm_": "addmm", "addmv_": "addmv", "baddbmm_": "baddbmm"}.get(p.name, p.name)
        given = {} if p.addend is None else {"beta": p.beta, "alpha": p.alpha}
        operands = (p.a, p.b) if p.addend is None else (p.addend, p.a, p.b)
        result = getattr(torch, name)(*operands, **given)
        return result if p.out is None else p.out.copy_(result)
