"""Functions whose kernels ``capture_compiled.py`` takes from torch.compile: where the order of arithmetic matters.

Backward kernels are had from the operators that autograd calls, so that nothing need run.  Sizes are small enough for
every element to be worked out, and large enough for looped, persistent and split reductions to be emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

ATEN = torch.ops.aten
F32, F16, BF16, I64 = torch.float32, torch.float16, torch.bfloat16, torch.int64
LOOPED = {"triton.persistent_reductions": False}
ONE_TEMPLATE = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One function to compile: inputs as (shape, dtype), and settings of inductor that differ from its defaults."""

    name: str
    call: Callable[..., Any]
    inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    options: dict[str, Any] = field(default_factory=dict)


def _mean_of_absolutes_and_largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.abs().mean(-1), x.amax(-1)


def _rms_norm_backward(grad: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor) -> Any:
    wide, upstream = x.float(), grad.float() * weight.float()
    inner = (upstream * wide).mean(-1, keepdim=True)
    along_x = scale * upstream - wide * inner * scale * scale * scale
    return along_x.to(x.dtype), (grad.float() * wide * scale).sum(0)


def _attention_scores(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores.float() * 0.125 + mask, dim=-1).to(scores.dtype)


def _causal_scores(scores: torch.Tensor) -> torch.Tensor:
    size = scores.shape[-1]
    at = torch.arange(size, device=scores.device)
    return torch.softmax(torch.where(at.unsqueeze(0) <= at.unsqueeze(1), scores * 0.125, float("-inf")), dim=-1)


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.sum(-1), (x * x).sum(-1), x.amin(-1)


def _quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 448.0
    return (x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def _residual_norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x + y
    return total, F.layer_norm(total, (total.shape[-1],), w, b)


def _rows(shape: tuple[int, int], kind: torch.dtype) -> Iterator[Compiled]:
    """What reads a matrix by rows, columns or both."""
    rows, columns = shape
    label = f"{rows}x{columns}-{str(kind).removeprefix('torch.')}"
    one = ((shape, kind),)

    def made(name: str, call: Callable[..., Any], *more: tuple[tuple[int, ...], torch.dtype]) -> Compiled:
        return Compiled(name=f"{name}-{label}", call=call, inputs=(*one, *more))

    yield made("sum-inner", lambda x: x.sum(-1))
    yield made("sum-outer", lambda x: x.sum(0))
    yield made("mean-inner", lambda x: x.mean(-1))
    yield made("amax-outer", lambda x: x.amax(0))
    yield made("var-inner", lambda x: x.var(-1))
    yield made("std-mean-outer", lambda x: torch.std_mean(x, dim=0))
    yield made("prod-inner", lambda x: x.prod(-1))
    yield made("logsumexp", lambda x: torch.logsumexp(x, -1))
    yield made("norm-inner", lambda x: torch.linalg.vector_norm(x, dim=-1))
    yield made("abs-mean-amax", _mean_of_absolutes_and_largest)
    yield made("moments", _moments)
    yield made("softmax", lambda x: torch.softmax(x, -1))
    yield made("softmax-outer", lambda x: torch.softmax(x, 0))
    yield made("log-softmax", lambda x: torch.log_softmax(x, -1))
    yield made("cumsum", lambda x: x.cumsum(-1))
    weight, bias = ((columns,), kind), ((columns,), kind)
    yield made("layer-norm", lambda x, w, b: F.layer_norm(x, (columns,), w, b), weight, bias)
    yield made("rms-norm", lambda x, w: F.rms_norm(x, (columns,), w, 1e-6), weight)
    yield made("residual-layer-norm", _residual_norm, (shape, kind), weight, bias)
    yield made("cross-entropy", lambda x, t: F.cross_entropy(x, t), ((rows,), I64))
    yield made("softmax-backward", lambda g, y: ATEN._softmax_backward_data(g, y, -1, kind), (shape, kind))
    yield made("log-softmax-backward", lambda g, y: ATEN._log_softmax_backward_data(g, y, -1, kind), (shape, kind))
    statistics = (((rows, 1), F32), ((rows, 1), F32))
    yield made(
        "layer-norm-backward",
        lambda g, x, m, r, w, b: ATEN.native_layer_norm_backward(g, x, [columns], m, r, w, b, [True, True, True]),
        (shape, kind), *statistics, weight, bias,
    )  # fmt: skip
    yield made("rms-norm-backward", _rms_norm_backward, (shape, kind), ((rows, 1), F32), weight)


def _others() -> Iterator[Compiled]:
    """Reductions over all axes, split ones, groups, and pointwise functions."""
    for kind in (F32, BF16):
        label = str(kind).removeprefix("torch.")
        yield Compiled(name=f"sum-all-{label}", call=lambda x: x.sum(), inputs=(((64, 1024), kind),))
        yield Compiled(name=f"mean-split-{label}", call=lambda x: x.mean(-1), inputs=(((2, 32768), kind),))
        yield Compiled(name=f"var-split-{label}", call=lambda x: x.var(-1), inputs=(((2, 32768), kind),))
        yield Compiled(name=f"sum-outer-split-{label}", call=lambda x: x.sum(0), inputs=(((4096, 32), kind),))
        yield Compiled(name=f"sum-middle-{label}", call=lambda x: x.sum(1), inputs=(((4, 96, 32), kind),))
        yield Compiled(name=f"sum-ends-{label}", call=lambda x: x.sum((0, 2)), inputs=(((8, 16, 96), kind),))
        yield Compiled(name=f"group-norm-{label}", call=lambda x, w, b: F.group_norm(x, 4, w, b),
                       inputs=(((2, 16, 8, 8), kind), ((16,), kind), ((16,), kind)))  # fmt: skip
        yield Compiled(name=f"attention-scores-{label}", call=_attention_scores,
                       inputs=(((2, 2, 16, 256), kind), ((16, 256), F32)))  # fmt: skip
        yield Compiled(name=f"causal-scores-{label}", call=_causal_scores, inputs=(((2, 128, 128), kind),))
        yield Compiled(name=f"bias-gelu-{label}", call=lambda x, b: F.gelu(x + b),
                       inputs=(((16, 192), kind), ((192,), kind)))  # fmt: skip
        yield Compiled(name=f"bias-gelu-tanh-{label}", call=lambda x, b: F.gelu(x + b, approximate="tanh"),
                       inputs=(((16, 192), kind), ((192,), kind)))  # fmt: skip
        yield Compiled(name=f"silu-gate-{label}", call=lambda x, y: F.silu(x) * y,
                       inputs=(((16, 192), kind), ((16, 192), kind)))  # fmt: skip
        yield Compiled(name=f"silu-backward-{label}", call=lambda g, x: ATEN.silu_backward(g, x),
                       inputs=(((16, 192), kind), ((16, 192), kind)))  # fmt: skip
        yield Compiled(name=f"gelu-backward-{label}", call=lambda g, x: ATEN.gelu_backward(g, x),
                       inputs=(((16, 192), kind), ((16, 192), kind)))  # fmt: skip
        yield Compiled(name=f"bias-relu-{label}", call=lambda x, b: F.relu(x * 0.7 + b),
                       inputs=(((16, 192), kind), ((192,), F32)))  # fmt: skip
        yield Compiled(name=f"transposed-sum-{label}", call=lambda x, y: x.t() * 0.3 + y,
                       inputs=(((64, 32), kind), ((32, 64), kind)))  # fmt: skip
    yield Compiled(name="mixed-dot", call=lambda a, b, c: (a.float() * b.float() + c).sum(-1),
                   inputs=(((8, 1024), F16), ((8, 1024), BF16), ((8, 1024), F32)))  # fmt: skip
    yield Compiled(name="quantized-rows", call=_quantized, inputs=(((8, 1024), BF16),))
    yield Compiled(name="addmv", call=lambda a, x: (a * x).sum(-1), inputs=(((16, 512), F32), ((512,), F32)))
    yield Compiled(name="cumsum-split", call=lambda x: x.cumsum(0), inputs=(((65536,), F32),))
    yield Compiled(name="cumprod", call=lambda x: x.cumprod(-1), inputs=(((4, 512), F32),))
    yield Compiled(name="logcumsumexp", call=lambda x: torch.logcumsumexp(x, -1), inputs=(((4, 512), F32),))


def _templates() -> Iterator[Compiled]:
    """Matrix products from inductor's Triton template, with an epilogue; one choice each, so that none is timed."""
    for kind in (F16, BF16, F32):
        label = str(kind).removeprefix("torch.")
        for n, k, stages, warps in ((32, 16, 1, 2), (32, 128, 2, 4), (64, 32, 5, 8)):
            tile = {"BLOCK_M": 32, "BLOCK_N": n, "BLOCK_K": k, "num_stages": stages, "num_warps": warps}
            yield Compiled(
                name=f"mm-bias-relu-{label}-k{k}",
                call=lambda a, b, c: F.relu(torch.mm(a, b) + c),
                inputs=(((32, 256), kind), ((256, 64), kind), ((64,), kind)),
                options={**ONE_TEMPLATE, "template": tile},
            )


def functions() -> dict[str, Compiled]:
    """Every function by name: the row functions at three shapes and types, some of them with looped reductions too."""
    listed = [
        *_rows((8, 1024), F32),
        *_rows((8, 1024), BF16),
        *_rows((4, 3000), F32),
        *_rows((16, 250), F16),
        *_others(),
        *_templates(),
    ]
    for one in [*_rows((8, 1024), F32), *_rows((8, 512), BF16)]:
        listed.append(Compiled(name=f"{one.name}-looped", call=one.call, inputs=one.inputs, options=LOOPED))
    found = {one.name: one for one in listed}
    assert len(found) == len(listed)
    return found
