"""Products of stochastic matrices in the order of a descriptor: each sample's operands, each sample's directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.inorder import draw_each
from gemmdesc.numerics.stochastic.run import Mode, StochasticRun
from gemmdesc.numerics.stochastic.tensors import StochasticTensor


def product_inside(
    run: StochasticRun, left: StochasticTensor, right: StochasticTensor, order: Callable[[int, int, int], GEMMDesc]
) -> StochasticTensor:
    """(..., m, k) times (..., k, n) on the CPU; ``order`` gives the descriptor of (m, n, k).

    The directions are those of the run's next operation.

    Raises:
        InvalidInputError: a sample is not a value of the descriptor's operand type; the run's format should be that.
    """
    import torch

    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    (m, k), n = left.shape[-2:], right.shape[-1]
    desc = order(m, n, k)
    a, b = (
        _patterns(x.samples.expand(-1, *batch, *x.shape[-2:]), dtype, name)
        for x, dtype, name in ((left, desc.a_dtype, "left"), (right, desc.b_dtype, "right"))
    )
    run.draw(np, (1,), np.empty(0))
    seed = (run.settings.seed * 0x9E3779B1 + run.operations) % (1 << 62)
    count = math.prod(batch)
    outputs, exact = [], []
    for i in range(count):
        drawn, kept = draw_each(
            desc, a[:, i], b[:, i], seed=seed + i, antithetic=run.settings.mode is Mode.DEFAULT
        )
        outputs.append(drawn)
        exact.append(kept)
    samples = np.stack(outputs, 1).reshape(run.settings.samples, *batch, m, n)
    known = np.stack(exact).reshape(*batch, m, n)
    given = left.exact.all(-1, keepdim=True) & right.exact.all(-2, keepdim=True)
    value = left.made(
        torch.from_numpy(samples.astype(np.float64)), torch.from_numpy(known) & given.cpu()
    )
    value.samples = value.straight(torch.matmul(left.samples, right.samples), value.samples.to(left.device))
    value.exact = value.exact.to(left.device)
    return value


def _patterns(samples: Any, dtype: DType, name: str) -> Bits:
    """Bit patterns (s, batch, rows, columns) of ``dtype``."""
    lanes = samples.detach().cpu().numpy()
    flat = lanes.reshape(lanes.shape[0], -1, *lanes.shape[-2:])
    bits = from_float32(flat.astype(np.float32), dtype)
    again = to_float32(bits, dtype)
    if not ((again == flat) | np.isnan(flat)).all():
        raise InvalidInputError(
            f"{name} must hold values of {dtype.value}, the descriptor's operand type: run in that format (got others)"
        )
    return bits
