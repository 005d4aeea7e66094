"""A source of answers for every kind of product on a CPU: the simulated library of kinds, with its profile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from gemmdesc.dropin import LibrarySource
from gemmdesc.dropin.products import Product
from gemmdesc.errors import Declined
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.problem import AlgoConfig, GemmProblem, Refused
from gemmdesc.routes import Activation
from tests.kind_profiles import profile_of, small_scopes
from tests.kind_samples import answer_of, library_of_kinds, rule_of
from tests.probe_samples import DEVICE, IDENTITY

KINDS = (
    "plain", "float32", "tf32", "float8", "batch", "batch_float32", "bias", "relu", "relu_bias", "add_c", "add_beta_c",
)  # fmt: skip


@cache
def source() -> LibrarySource:
    """One for all tests, as making the profile takes a second."""
    return LibrarySource(library=library_of_kinds(), profile=profile_of(small_scopes(KINDS)))


def answer_by_batch(p: GemmProblem) -> AlgoConfig | Refused:
    """As the library of kinds, but that the slices follow from how many there are in all of the shorter side."""
    answer, rows = answer_of(p), min(p.m, p.n) * p.batch_count
    return answer if isinstance(answer, Refused) else replace(answer, splitk_num=1 + (rows > 4) + (rows > 24))


@cache
def batch_source() -> LibrarySource:
    """A library whose rows depend on the rows beside them."""
    library = SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_by_batch, rules=rule_of)
    return LibrarySource(library=library, profile=source().profile)


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
