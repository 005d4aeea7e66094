"""Attention out of rounded operations."""

from __future__ import annotations

import math
from typing import Any

from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.modules.pieces import Context, largest


def scaled_dot_product_attention(
    c: Context, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """softmax(Q K^T scale) V with a plain mask; the scores are scaled after the product."""
    if dropout_p or enable_gqa or query.ndim < 2:
        return NotImplemented
    q, k = c.stochastic(query), c.stochastic(key)
    mask = _mask(attn_mask, is_causal, q, k)
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    turned = k.made(k.samples.transpose(-1, -2), k.exact.transpose(-1, -2))
    return c.product(_weights(c, c.product(q, turned) * factor, mask), value)


def _mask(attn_mask: Any, is_causal: bool, q: Any, k: Any) -> Any:
    import torch

    if is_causal:
        return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return attn_mask


def _weights(c: Context, scores: Any, mask: Any) -> Any:
    """The softmax of ``scores`` along the last axis; a bool mask keeps, another is added.  Masked weights are 0."""
    import torch

    if mask is not None and mask.dtype != torch.bool:
        kept = mask != float("-inf")
        scores, mask = scores + torch.where(kept, mask, torch.zeros_like(mask)), kept
    if mask is not None:
        scores = F.where(mask, scores, -c.run.settings.format.largest)
    powers = F.exp(scores - largest(scores, -1))
    powers = powers if mask is None else F.where(mask, powers, 0.0)
    return powers / c.total(powers, -1)


def multi_head_attention(
    c: Context, query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any,
    in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Any,
    out_proj_bias: Any, training: bool = True, key_padding_mask: Any = None, need_weights: bool = True,
    attn_mask: Any = None, use_separate_proj_weight: bool = False, **others: Any,
) -> Any:  # fmt: skip
    """Projections, attention for each head, and the output projection; of inputs (length, batch, width)."""
    covered = bias_k is None and bias_v is None and not add_zero_attn and not use_separate_proj_weight
    if not covered or (training and dropout_p) or key_padding_mask is not None or query.ndim != 3:
        return NotImplemented
    if others.get("is_causal") and attn_mask is None:
        return NotImplemented
    weights = in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    heads = [
        _heads(_projected(c, x, w, b), num_heads) for x, w, b in zip((query, key, value), weights, biases, strict=True)
    ]
    q, k, v = heads
    turned = k.made(k.samples.transpose(-1, -2), k.exact.transpose(-1, -2))
    scores = c.product(q, turned) * (1.0 / math.sqrt(q.shape[-1]))
    # Here a bool mask forbids, unlike in scaled_dot_product_attention.
    mask = ~attn_mask if attn_mask is not None and not attn_mask.is_floating_point() else attn_mask
    if mask is not None and mask.ndim == 3:
        mask = mask.reshape(-1, num_heads, *mask.shape[1:])
    attended = _weights(c, scores, mask)
    mixed = c.product(attended, v)
    length, batch, width = query.shape
    samples = mixed.samples.permute(0, 3, 1, 2, 4).reshape(-1, length, batch, width)
    merged = mixed.made(samples, mixed.exact.permute(2, 0, 1, 3).reshape(length, batch, width))
    out = _projected(c, merged, out_proj_weight, out_proj_bias)
    if not need_weights:
        return out, None
    if not others.get("average_attn_weights", True):
        return out, attended
    return out, c.average(attended, 1).reshape(batch, length, -1)


def _projected(c: Context, x: Any, weight: Any, bias: Any) -> Any:
    x = c.stochastic(x)
    product = c.product(x.reshape(-1, x.shape[-1]), weight.t()).reshape(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


def _heads(x: Any, count: int) -> Any:
    """(length, batch, width) as (batch, heads, length, width of a head)."""
    length, batch, width = x.shape
    samples = x.samples.reshape(-1, length, batch, count, width // count).permute(0, 2, 3, 1, 4)
    return x.made(samples, x.exact.reshape(length, batch, count, width // count).permute(1, 2, 0, 3))
