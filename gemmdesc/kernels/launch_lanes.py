"""Run a LaneChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gemmdesc.kernels.choose_lanes import LaneChoice, Read
from gemmdesc.kernels.recording import zero_counters
from gemmdesc.kernels.variants_lanes import lane_variant


def launch_lanes(
    choice: LaneChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, enqueue: Callable[..., None]
) -> None:
    """Every output of ``out = a @ b`` by one kernel.  ``enqueue(variant, programs, *arguments)`` starts it."""
    if choice.swapped:
        a, b, out = b.T, a.T, out.T
    lanes, form, (m, n) = choice.lanes, choice.form, out.shape
    tiles = -(-m * n // form.outputs)
    # One run is all of a part's k where a part has a single lane.
    unit = min(lanes.span, lanes.summed_k) if form.read is Read.RUNS and lanes.lanes == 1 else lanes.unit
    size = (m, n, int(choice.rows_first), lanes.summed_k, lanes.span)
    rest = (unit, lanes.chunk, choice.opening, *a.stride(), *b.stride(), *out.stride())
    variant = lane_variant(choice)
    if not form.joins:
        enqueue(variant, tiles, a, b, out, *size, *rest)
        return
    scratch = torch.empty((choice.programs, tiles * form.outputs), dtype=torch.float32, device=a.device)
    counters = zero_counters(tiles, a.device)
    enqueue(
        variant, tiles * choice.programs, a, b, out, scratch, counters, *size, choice.programs, lanes.blocks, *rest
    )
