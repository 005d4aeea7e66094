"""Stochastic tensors on a card: NumPy's bytes, and modules."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic.modules import Analysis, ModuleSettings, Rounded, ShadowModel
from tests.stochastic_reference import program

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", ["default", "paper"])
@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float16", (11, 52), (4, 3)])
def test_a_card_gives_the_samples_of_numpy(fmt: Any, mode: str) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 6)) * np.array([[4.0], [0.5]])
    runs = [stochastic.start(format=fmt, mode=mode, seed=11, samples=4, counters="summary") for _ in range(2)]
    ours = program(runs[0], runs[0].array, a, b)
    theirs = program(runs[1], lambda v: runs[1].tensor(torch.from_numpy(v).cuda()), a, b)
    if mode == "paper":
        # A power and matrix products of the libraries, whose bits are their own.
        ours, theirs = ours[:-4], theirs[:-4]
    for x, y in zip(ours, theirs, strict=True):
        assert y.samples.is_cuda
        assert x.samples.tobytes() == y.samples.cpu().numpy().tobytes()
        assert x.exact.tolist() == y.exact.tolist()


@pytest.mark.parametrize("rounded", list(Rounded))
def test_modules_run_there(rounded: Rounded) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).cuda()
    x = torch.randn(8, 16, device="cuda")
    analysis = Analysis(model, stochastic.start(seed=1), ModuleSettings(rounded=rounded))
    found = analysis(x)
    expected = copy.deepcopy(model).double()(x.double())
    assert (found.value - expected).abs().max() < 1e-5
    assert [r.operator for r in analysis.reports] == ["linear", "layer_norm", "gelu", "linear"]
    assert all(r.digits.least > 2 for r in analysis.reports)
    shadow = ShadowModel(model, stochastic.start(seed=1))
    assert (shadow(x).value - expected).abs().max() < 1e-5
