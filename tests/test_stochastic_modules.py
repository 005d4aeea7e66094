"""Torch modules on stochastic tensors: their values against float64, reports, and that models are left alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from gemmdesc.descriptor import Accumulator, GEMMDesc, ResidueLast
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic.modules import Analysis, ModuleSettings, Phase, Products, Rounded, lift
from gemmdesc.numerics.stochastic.tensors import StochasticTensor
from tests.arithmetic_reference import HOPPER

BOUNDARY = ModuleSettings(rounded=Rounded.BOUNDARY)
ARITHMETIC = ModuleSettings()
STEPS = ModuleSettings(products=Products.STEPS, order="sequential")


class Attention(nn.Module):
    """Self-attention with a causal mask, in both of torch's spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed, weights = self.heads(x, x, x, attn_mask=mask)
        plain = nn.functional.scaled_dot_product_attention(x, x, mixed, is_causal=True)
        return mixed + plain, weights


class Shapes(nn.Module):
    """Methods and functions that move values, in the way that models use them."""

    def forward(self, x: torch.Tensor) -> Any:
        batch, width = x.size(0), x.shape[-1]
        y = x.view(batch, -1, 2).transpose(1, 2).contiguous().flatten(1)
        first, second = y.chunk(2, dim=-1)
        joined = torch.cat([second, first], dim=-1).unsqueeze(0).expand(2, -1, -1)
        joined = joined.permute(1, 0, 2).reshape(batch, 2 * width).relu_()
        best, _ = joined.max(dim=-1, keepdim=True)
        return torch.where(joined > 0, joined * 2.0, best) / (joined.sum(dim=1, keepdim=True) + 1.0), joined.argmax(-1)


def modules() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Name -> a module, and the shape of its input."""
    return {
        "linear": (nn.Linear(6, 5), (2, 3, 6)),
        "linear without bias": (nn.Linear(6, 5, bias=False), (4, 6)),
        "conv1d": (nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 9)),
        "conv2d": (nn.Conv2d(2, 3, (3, 2), padding=1, dilation=(1, 2)), (2, 2, 6, 7)),
        "grouped conv": (nn.Conv2d(4, 4, 3, groups=2), (1, 4, 5, 5)),
        "transposed conv": (nn.ConvTranspose1d(2, 3, 3), (1, 2, 5)),
        "batch norm": (nn.BatchNorm2d(3), (4, 3, 2, 2)),
        "batch norm, eval": (nn.BatchNorm1d(3).eval(), (4, 3)),
        "layer norm": (nn.LayerNorm([3, 4]), (2, 3, 4)),
        "rms norm": (nn.RMSNorm(8, eps=1e-6), (2, 8)),
        "group norm": (nn.GroupNorm(2, 4), (2, 4, 3)),
        "instance norm": (nn.InstanceNorm1d(3), (2, 3, 8)),
        "softmax": (nn.Softmax(-1), (3, 5)),
        "log-softmax": (nn.LogSoftmax(1), (3, 5)),
        "activations": (nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.GELU(), nn.ELU(),
                                      nn.LeakyReLU(), nn.PReLU(), nn.Softplus(), nn.GELU("tanh"), nn.Hardswish()),
                        (3, 4)),
        "pooling": (nn.Sequential(nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveMaxPool1d(2)), (1, 2, 12)),
        "attention": (Attention(), (2, 4, 8)),
        "encoder layer": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 3, 8)),
        "rnn": (nn.RNN(3, 4, 2), (5, 2, 3)),
        "relu rnn": (nn.RNN(3, 4, nonlinearity="relu", bias=False, batch_first=True), (2, 5, 3)),
        "gru": (nn.GRU(3, 4, bidirectional=True), (4, 2, 3)),
        "lstm": (nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), (2, 4, 3)),
        "lstm, no batch": (nn.LSTM(3, 4), (4, 3)),
        "shapes": (Shapes(), (3, 8)),
}  # fmt: skip


with torch.random.fork_rng():
    torch.manual_seed(0)
    MODULES = modules()


def parts(value: Any) -> list[Any]:
    return [p for v in value for p in parts(v)] if isinstance(value, tuple | list) else [value]


EVERY = [(name, settings) for name in MODULES for settings in (BOUNDARY, ARITHMETIC)]
EVERY += [(name, STEPS) for name in ("linear", "conv2d", "attention", "gru")]


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_values_are_those_of_float64_and_the_model_stays(name: str, settings: ModuleSettings) -> None:
    torch.manual_seed(0)
    model, shape = MODULES[name]
    x = torch.randn(shape)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.random.get_rng_state()
    analysis = Analysis(model, stochastic.start(seed=3), settings)
    found = parts(analysis(x))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    expected = parts(copy.deepcopy(model).double()(x.double()))
    for ours, theirs in zip(found, expected, strict=True):
        if not theirs.is_floating_point():
            assert torch.equal(ours, theirs)
            continue
        assert isinstance(ours, StochasticTensor)
        assert ours.shape == tuple(theirs.shape)
        assert (ours.value - theirs).abs().max() < 1e-5
        near = (ours.value - theirs).abs() <= 4 * ours.estimate().half_width + 1e-12
        assert near.double().mean() > 0.9
    assert analysis.reports


def test_a_seed_fixes_a_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.LayerNorm(6))
    outputs = [Analysis(model, stochastic.start(seed=s))(torch.ones(3, 6)).samples.tolist() for s in (3, 3, 4)]
    assert outputs[0] == outputs[1] != outputs[2]


COVERED = ("linear", "conv1d", "conv2d", "batch norm", "layer norm", "rms norm", "group norm", "softmax", "log-softmax",
           "attention", "encoder layer", "rnn", "relu rnn", "gru", "lstm", "lstm, no batch")  # fmt: skip


@pytest.mark.parametrize("name", COVERED)
def test_formulas_cover_the_operators_they_are_for(name: str) -> None:
    model, shape = MODULES[name]
    analysis = Analysis(model, stochastic.start(seed=1))
    analysis(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    assert {r.rounded for r in analysis.reports} == {"arithmetic"}


def test_losses() -> None:
    torch.manual_seed(1)
    logits, target = torch.randn(6, 4), torch.tensor([0, 3, 1, 2, 2, 0])
    for loss, other in ((nn.CrossEntropyLoss(), target), (nn.NLLLoss(), target), (nn.MSELoss(), torch.randn(6, 4)),
                        (nn.L1Loss(), torch.randn(6, 4)), (nn.CrossEntropyLoss(reduction="sum"), target)):  # fmt: skip
        analysis = Analysis(loss, stochastic.start(seed=2))
        found = analysis(logits, other)
        expected = loss(logits.double(), other.double() if other.is_floating_point() else other)
        assert abs(float(found) - float(expected)) < 1e-4 * abs(float(expected))
        assert analysis.reports[-1].digits.least > 4


class Pathology(nn.Module):
    """A classifier with an operator in its middle that loses its input's digits, or does not."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.first, self.second, self.offset = nn.Linear(8, 8), nn.Linear(8, 3), offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        return self.second((hidden + self.offset) - self.offset)


@pytest.mark.parametrize("settings", [BOUNDARY, ARITHMETIC], ids=["boundary", "arithmetic"])
def test_the_operator_that_loses_digits_is_named(settings: ModuleSettings) -> None:
    torch.manual_seed(2)
    x = torch.randn(16, 8)
    bad, good = (Analysis(Pathology(offset), stochastic.start(seed=1), settings) for offset in (1e8, 0.0))
    for analysis in (bad, good):
        analysis(x, phase=Phase.TRAINING, epoch=1, iteration=7)
    first = next(r for r in bad.reports if not r.stable)
    assert (first.name, first.phase, first.epoch, first.iteration) == ("sub", Phase.TRAINING, 1, 7)
    assert all(r.stable for r in good.reports)
    assert [r.name for r in good.reports if r.operator == "linear"] == ["first.linear", "second.linear"]


def test_embeddings_start_a_stochastic_pass() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    analysis = Analysis(model, stochastic.start(format="bfloat16", seed=1))
    found = analysis(torch.tensor([[1, 2], [3, 4]]))
    assert isinstance(found, StochasticTensor)
    assert found.shape == (2, 2, 2)
    assert [r.name for r in analysis.reports] == ["1.linear"]


def test_dropout_is_one_mask_for_all_samples() -> None:
    model = nn.Dropout(0.5).train()
    for settings in (BOUNDARY, ARITHMETIC):
        found = Analysis(model, stochastic.start(seed=4), settings)(torch.ones(64))
        zero = found.samples == 0
        assert 10 < int(zero[0].sum()) < 54
        assert (zero == zero[0]).all()


def test_gradients_reach_the_parameters() -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2))
    x, target = torch.randn(4, 5), torch.tensor([0, 1, 1, 0])
    loss = Analysis(model, stochastic.start(seed=5))(x)
    nn.functional.cross_entropy(loss.samples.mean(0), target).backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    nn.functional.cross_entropy(model(x), target).backward()
    for ours, p in zip(found, model.parameters(), strict=True):
        # Gradients at rounded samples are those at neighbouring points: no bytes, but close by float32's rounding.
        assert torch.allclose(ours, p.grad, atol=1e-4)


def test_functions_of_the_users_own() -> None:
    run = stochastic.start(seed=6)

    def nested(x: torch.Tensor, scale: float) -> dict[str, Any]:
        return {"out": (x * scale, [x.sum()]), "place": x.argmax()}

    found = lift(run, nested)(torch.tensor([0.1, 0.7, 0.2]), scale=3.0)
    assert found["place"] == 1
    product, (total,) = found["out"]
    assert product.digits.min() > 5
    assert abs(float(total) - 1.0) < 1e-6


def test_without_an_analysis_functions_round_once() -> None:
    run = stochastic.start(format="bfloat16", seed=7)
    x = run.tensor(torch.tensor([[0.5, -1.25], [2.0, 3.0]]))
    out = torch.tanh(nn.functional.linear(x, torch.eye(2, dtype=torch.float64)))
    assert isinstance(out, StochasticTensor)
    assert torch.nn.functional.relu(x).exact.all()
    assert x.view(4).exact.all()
    assert (x.to(torch.float16).samples == x.samples).all()
    assert x.to("cpu") is x.double() is x.float().type_as(x)
    thirds = stochastic.start(format="float32", seed=7).tensor(torch.tensor([1.0, 2.0]) / 3)
    for narrow in (thirds.bfloat16(), thirds.to("cpu", torch.bfloat16), thirds.to(dtype=torch.bfloat16)):
        assert (narrow.samples == narrow.samples.bfloat16().double()).all()
        assert not narrow.exact.any()
    assert x.sum().exact
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
        x.nothing_of_the_kind  # noqa: B018


def inside_order(m: int, n: int, k: int) -> GEMMDesc:
    accumulator = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)
    return GEMMDesc(
        a_dtype=DType.BFLOAT16, b_dtype=DType.BFLOAT16, output_dtype=DType.BFLOAT16, summed_k=k, cuts=(),
        accumulator=accumulator,
    )  # fmt: skip


def test_products_inside_follow_the_order() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).bfloat16()
    settings = ModuleSettings(products=Products.INSIDE, descriptor=inside_order)
    x = torch.randn(8, 64).bfloat16()
    analysis = Analysis(model, stochastic.start(format="bfloat16", seed=8), settings)
    found = analysis(x)
    expected = copy.deepcopy(model).double()(x.double())
    assert (found.value - expected).abs().max() < 0.1
    assert [r.rounded for r in analysis.reports] == ["arithmetic"] * 2
    assert 1.5 < analysis.reports[0].digits.median < 2.41
    again = Analysis(model, stochastic.start(format="bfloat16", seed=8), settings)(x)
    assert torch.equal(again.samples, found.samples)
    with pytest.raises(InvalidInputError, match=r"left must hold values of bfloat16"):
        Analysis(copy.deepcopy(model).float(), stochastic.start(format="float32"), settings)(torch.randn(8, 64))


def test_bad_input_is_named() -> None:
    run = stochastic.start()
    for keywords, message in [({"threshold": math.nan}, "threshold must"), ({"order": "random"}, "order must"),
                              ({"products": Products.INSIDE}, "descriptor must"),
                              ({"descriptor": inside_order}, "descriptor must")]:  # fmt: skip
        with pytest.raises(InvalidInputError, match=message):
            ModuleSettings(**keywords)
    analysis = Analysis(nn.Linear(2, 2), run)
    for bad, message in [(torch.ones(2, 2, dtype=torch.complex64), "complex"), (torch.eye(2).to_sparse(), "sparse")]:
        with pytest.raises(InvalidInputError, match=message):
            analysis(bad)
    plain = torch.ones(3)
    with pytest.raises(InvalidInputError, match="in-place function must be stochastic"):
        plain.add_(run.tensor(torch.ones(3)))


def test_moving_keeps_what_is_exact() -> None:
    run = stochastic.start(seed=9)
    x = run.tensor(torch.tensor([[1.0, 2.0], [0.1, -3.0]], dtype=torch.float64))
    exact = [[True, True], [False, True]]
    assert x.exact.tolist() == exact
    assert torch.neg(x).exact.tolist() == exact
    assert x.t().exact.tolist() == [[True, False], [True, True]]
    padded = nn.functional.pad(x, (1, 0))
    assert padded.exact.tolist() == [[True, True, True], [True, False, True]]
    filled = x.masked_fill(torch.tensor([[False, True], [False, False]]), float("-inf"))
    assert filled.exact.tolist() == exact
    assert torch.tril(x).exact.tolist() == exact
    assert torch.cat([x, torch.zeros(1, 2)]).exact.tolist() == [*exact, [True, True]]
    below = run.tensor(torch.tensor([-0.1, 0.1], dtype=torch.float64))
    assert torch.relu(below).exact.tolist() == [True, False]
    other = stochastic.start(seed=1).tensor(torch.ones(2, 2))
    with pytest.raises(InvalidInputError, match="of one run"):
        torch.cat([x, other])
