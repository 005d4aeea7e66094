"""A small classifier in training under a stochastic shadow: injected pathologies, normalisations, activations.

The data are scikit-learn's handwritten digits (8 x 8 pixels, 1,797 images), which that package ships; the paper's own
runs use Fashion-MNIST, CIFAR-10 and AG News.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic.modules import Analysis, ModuleSettings, Rounded, ShadowModel
from gemmdesc.numerics.stochastic.modules.shadow import agreement

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]

_HIDDEN, _BATCH = 128, 64
_LARGE = 1e8


def have_data() -> bool:
    """Whether scikit-learn, the extra ``examples``, is installed."""
    return find_spec("sklearn") is not None


def digits_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (1797, 64), standardised pixel by pixel, and classes.

    Raises:
        InvalidInputError: scikit-learn is not installed.
    """
    if not have_data():
        raise InvalidInputError(
            "data must come from scikit-learn, which `pip install gemmdesc[examples]` brings (got none)"
        )
    import torch
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.data, dtype=torch.float32)
    return (images - images.mean(0)) / (images.std(0) + 1.0), torch.tensor(found.target)


def pathologies() -> dict[str, tuple[Callable[[Any], Any], bool]]:
    """Name -> the operator on a hidden vector, and whether it is stable (arXiv 2607.25494, eqs. 56 to 61)."""
    import torch

    def norm(h: Any, epsilon: float) -> Any:
        return torch.nn.functional.layer_norm(h, (_HIDDEN,), eps=epsilon)

    def near_constant(h: Any) -> Any:
        mean = h.mean(-1, keepdim=True)
        return norm(mean + (h - mean) * 2.0**-22, 1e-12)

    def near_tie(h: Any) -> Any:
        gate = 1 / (1 + math.exp(2.0**-22))
        return (h + _LARGE) * gate + (1.0 - h - _LARGE) * (1 - gate)

    def separated(h: Any) -> Any:
        gate = 1 / (1 + math.exp(-8.0))
        return h * gate - h * (1 - gate)

    return {
        "identity": (lambda h: h * 1.0, True),
        "LayerNorm, eps 1e-5": (lambda h: norm(h, 1e-5), True),
        "separated gate": (separated, True),
        "cancellation": (lambda h: (h + _LARGE) - _LARGE, False),
        "near-constant LayerNorm": (near_constant, False),
        "near-tie gate": (near_tie, False),
    }


def pathology_study(*, epochs: int = 3, steps: int = 12, every: int = 4) -> list[Row]:
    """Train one classifier for each pathology; a shadow looks at every ``every``-th step.

    ``least``, ``median``: digits at the operator's output, medians over the shadow's passes; ``agreement``: the share
    of images for which all three samples choose the same class; ``lowest_share``: passes in which no other operator of
    the network before the last layer has fewer digits.
    """
    import torch

    rows = []
    for name, (operator, stable) in pathologies().items():
        torch.manual_seed(0)
        model = _classifier(operator)
        shadow = ShadowModel(model, stochastic.start(format="float32", seed=1))
        found: dict[str, list[float]] = defaultdict(list)
        for step, images, classes, logits in _trained(model, epochs, steps):
            if step % every:
                continue
            before = len(shadow.reports)
            drawn = shadow(images, iteration=step)
            reports = shadow.reports[before:]
            inside = [r for r in reports if r.module == "operator"]
            # The identity multiplies by 1: it is exact where its operand is, and has its operand's digits.
            at_output = inside[-1].digits
            found["least"].append(_digits(at_output.least, at_output.nonfinite_share))
            found["median"].append(_digits(at_output.median, at_output.nonfinite_share))
            found["agreement"].append(agreement(drawn))
            found["accuracy"].append(float((logits.argmax(1) == classes).float().mean()))
            least = {r.name: _digits(r.digits.least, r.digits.nonfinite_share) for r in reports if r.module != "second"}
            found["lowest"].append(float(min(least, key=lambda n: least[n]).startswith("operator")))
        medians = {k: round(float(np.median(v)), 3) for k, v in found.items() if k != "lowest"}
        rows.append({"operator": name, "stable": stable, "passes": len(found["least"]), **medians,
                     "lowest_share": round(float(np.mean(found["lowest"])), 3)})  # fmt: skip
    return rows


def _classifier(operator: Callable[[Any], Any]) -> torch.nn.Sequential:
    """Two layers with ``operator`` between them, as a module, so that what it calls is reported under its name."""
    import torch

    class Operator(torch.nn.Module):
        def forward(self, hidden: Any) -> Any:
            return operator(hidden)

    model = torch.nn.Sequential()
    model.add_module("first", torch.nn.Linear(64, _HIDDEN))
    model.add_module("activation", torch.nn.ReLU())
    model.add_module("operator", Operator())
    model.add_module("second", torch.nn.Linear(_HIDDEN, 10))
    return model


def _trained(model: torch.nn.Module, epochs: int, steps: int) -> Any:
    """(step, images, classes, logits) after each step of Adam on the digits."""
    import torch

    images, classes = digits_data()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(epochs * steps):
        chosen = torch.randint(0, len(images), (_BATCH,), generator=generator)
        logits = model(images[chosen])
        loss = torch.nn.functional.cross_entropy(logits, classes[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield step, images[chosen], classes[chosen], logits.detach()


def normalisation_study(steps: int = 24) -> list[Row]:
    """Digits before and after a normalisation of 256 features, trained first; in both modes."""
    import torch

    rows = []
    for name, norm in (("BatchNorm", torch.nn.BatchNorm1d(256)), ("LayerNorm", torch.nn.LayerNorm(256)),
                       ("RMSNorm", torch.nn.RMSNorm(256, eps=1e-6))):  # fmt: skip
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), norm, torch.nn.ReLU(), torch.nn.Linear(256, 10))
        for _ in _trained(model, 1, steps):
            pass
        images, _ = digits_data()
        for mode in ("default", "paper"):
            analysis = Analysis(model, stochastic.start(mode=mode, seed=2))
            with torch.no_grad():
                analysis(images[:128])
            before, after = (next(r for r in analysis.reports if r.module == m).digits for m in ("0", "1"))
            rows.append({"normalisation": name, "mode": mode, "mean_before": round(before.mean, 3),
                         "mean_after": round(after.mean, 3), "least_after": round(after.least, 3)})  # fmt: skip
    return rows


def activation_study(steps: int = 24) -> list[Row]:
    """Digits of a hidden activation: the mean over all elements, as the paper takes it, and its parts."""
    import torch

    rows = []
    for activation in (torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.PReLU(), torch.nn.Tanh(), torch.nn.GELU()):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), activation, torch.nn.Linear(256, 10))
        for _ in _trained(model, 1, steps):
            pass
        images, _ = digits_data()
        row: Row = {"activation": type(activation).__name__}
        for mode in ("paper", "default"):
            with torch.no_grad():
                value = Analysis(model[:2], stochastic.start(mode=mode, seed=3))(images[:128])
            found = value.estimate()
            zero = found.zero.numpy()
            collapsed = (value.samples == value.samples[0]).all(0).numpy() & ~zero & ~found.exact.numpy()
            row[f"{mode}_mean_of_all"] = round(float(found.digits.mean()), 3)
            row[f"{mode}_mean_of_inexact"] = round(value.summary().mean, 3)
            row[f"{mode}_zero_share"] = round(float(zero.mean()), 3)
            row[f"{mode}_equal_share"] = round(float(collapsed.mean()), 3)
        rows.append(row)
    return rows


def overhead(tries: int = 3) -> list[Row]:
    """How many times as long an operator takes on three samples as in plain float32, on this CPU."""
    import torch

    torch.manual_seed(0)
    cases: dict[str, tuple[torch.nn.Module, tuple[int, ...]]] = {
        "linear": (torch.nn.Linear(256, 256), (64, 256)),
        "conv2d": (torch.nn.Conv2d(16, 16, 3, padding=1), (4, 16, 16, 16)),
        "layer_norm": (torch.nn.LayerNorm(256), (64, 256)),
        "batch_norm": (torch.nn.BatchNorm2d(16), (4, 16, 16, 16)),
        "softmax": (torch.nn.Softmax(-1), (64, 256)),
        "gelu": (torch.nn.GELU(), (64, 256)),
        "attention": (torch.nn.MultiheadAttention(64, 4, batch_first=True), (4, 32, 64)),
        "lstm": (torch.nn.LSTM(64, 64), (16, 8, 64)),
        "gru": (torch.nn.GRU(64, 64), (16, 8, 64)),
    }
    rows = []
    for name, (module, shape) in cases.items():
        x = torch.randn(shape)
        inputs = (x, x, x) if name == "attention" else (x,)
        with torch.no_grad():
            plain = _best(partial(module, *inputs), tries, 20)
            row: Row = {"operator": name, "plain_us": round(plain * 1e6, 1)}
            for how in Rounded:
                analysis = Analysis(module, stochastic.start(seed=1), ModuleSettings(rounded=how))
                row[f"{how.value}_times_as_long"] = round(_best(partial(analysis, *inputs), tries, 1) / plain, 1)
        rows.append(row)
    return rows


def _best(work: Callable[[], Any], tries: int, calls: int) -> float:
    work()
    best = math.inf
    for _ in range(tries):
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best


def _digits(value: float, nonfinite_share: float) -> float:
    """Digits of a summary: 0 where something is not finite, those of the format where all is exact."""
    if nonfinite_share:
        return 0.0
    return 24 * math.log10(2) if math.isnan(value) else value
