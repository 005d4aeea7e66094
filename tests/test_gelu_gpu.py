"""A library's gelu on a GPU: the card's tangent, kernel = device replay = cuBLASLt, and rules found by experiments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.pointwise import gelu_tanh_approx
from gemmdesc.bits import bitwise_equal, from_float32
from gemmdesc.descriptor import AddBias, CastTo, EpilogueStep, GeluTanhApprox
from gemmdesc.dtypes import DType
from gemmdesc.probe.gelu import Experiments, gelu_rules, plan_gelu
from gemmdesc.probe.publish import prior_of
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.sampling import draw_problem, scope_named
from gemmdesc.problem import BIASED, Refused
from tests.gelu_samples import FORMS
from tests.test_gelu import desc

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an sm_90 GPU"
    ),
]
FP16, FP32 = DType.FLOAT16, DType.FLOAT32


def card() -> Any:
    from gemmdesc.arithmetic.device_functions import card_tanh_approx

    return card_tanh_approx(torch.cuda.current_device())


def test_the_card_s_tangent_is_one_function_and_a_tangent() -> None:
    x = np.random.default_rng(1).uniform(-5, 5, 1 << 20).astype(np.float32)
    found = card()(x)
    assert bitwise_equal(found.view(np.uint32), card()(x[::-1].copy())[::-1].view(np.uint32))
    assert float(np.abs(found - np.tanh(x.astype(np.float64))).max()) < 2.0**-10
    ends = card()(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 30.0, -30.0], np.float32))
    assert ends.view(np.uint32)[[0, 1, 2, 3, 5, 6]].tolist() == [
        0, 0x80000000, 0x3F800000, 0xBF800000, 0x3F800000, 0xBF800000
    ]  # fmt: skip
    assert np.isnan(ends[4])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_finishing_kernel_gives_the_device_s_replay(form: GeluTanhApprox) -> None:
    """Every float16 pattern, and as many sums in float32, through the kernel that runs after a product."""
    from gemmdesc.kernels.functions import gelu_tanh_approx as kernel_form
    from gemmdesc.kernels.steps import GELU_EXPANDED, GELU_FUSED, GELU_SQUARE, gelu_code
    from tests.gelu_kernel import apply_form

    rng = np.random.default_rng(2)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38, 1e-38], np.float32)
    x = np.concatenate([rng.uniform(-6, 6, 1 << 20).astype(np.float32), rng.integers(
        0, 1 << 32, 1 << 18, dtype=np.uint64).astype(np.uint32).view(np.float32), special])  # fmt: skip
    code = gelu_code(form)
    flags = (bool(code & GELU_EXPANDED), bool(code & GELU_SQUARE), bool(code & GELU_FUSED))
    made = apply_form(kernel_form, torch.from_numpy(x).cuda(), *flags).cpu().numpy()
    expected = gelu_tanh_approx(x, form, card())
    nan = np.isnan(expected)
    assert (np.isnan(made) == nan).all()
    assert bitwise_equal(made.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def test_the_replay_on_the_device_asks_the_card() -> None:
    from gemmdesc.arithmetic.device_replay import replay_on_device
    from gemmdesc.arithmetic.replay import replay

    rng = np.random.default_rng(3)
    a, b = (from_float32(rng.normal(0, 1, s).astype(np.float32), FP16) for s in ((70, 1), (1, 50)))
    bias = from_float32(rng.normal(0, 1, (1, 50)).astype(np.float32), FP16)
    tensors = [torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).cuda() for x in (a, b.T)]
    for form in FORMS:
        steps: tuple[EpilogueStep, ...] = (CastTo(dtype=FP16), AddBias(), form)
        one, inputs = desc(*steps, output=FP16), EpilogueInputs(bias=bias, bias_dtype=FP16)
        expected = replay(one, a, b, epilogue=replace(inputs, tanh_approx=card()))
        rows, cols = np.arange(70), np.arange(50)
        assert bitwise_equal(replay_on_device(one, *tensors, rows=rows, cols=cols, epilogue=inputs), expected)


@pytest.mark.parametrize("kind", ["gelu", "gelu_bias"])
def test_a_form_gives_the_library_s_experiments(kind: str) -> None:
    """On answers whose plain rule the profile has: some course bears out every experiment."""
    from gemmdesc.errors import Declined
    from gemmdesc.library.cublaslt import CublasLt
    from gemmdesc.probe.answers import answer_key
    from gemmdesc.probe.prior import Prior
    from gemmdesc.probe.projection import CLASS_ATTRIBUTES
    from gemmdesc.profiles import find_profile, profile_folders

    asked = borne = 0
    with CublasLt() as library:
        profile = find_profile(library.device, library.identity, profile_folders())
        if isinstance(profile, Declined):
            pytest.skip(profile.reason)
        scope = scope_named(kind)
        prior = Prior(prior_of(profile, scope.kind))
        for number in range(120):
            p = draw_problem(scope, 5, number)
            answer = library.answer(p)
            if isinstance(answer, Refused) or (p.m + p.n) * p.k > 1 << 24 or p.m < 16:
                continue
            bare = prior.bare(answer_key(p, answer).only(CLASS_ATTRIBUTES))
            if not bare:
                continue
            outputs = LibraryReader(library, p, answer).outputs(plan_gelu(p, card()))
            experiments = Experiments(p, answer, library.launch(p, answer), outputs, card())
            asked, borne = asked + 1, borne + any(experiments.given_by(r) for r in gelu_rules(bare, p))
            assert (p.epilogue in BIASED) == (kind == "gelu_bias")
            if asked == 12:
                break
    assert asked >= 3
    assert borne >= asked // 2
