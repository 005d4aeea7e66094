"""Run a NestChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from gemmdesc.descriptor import GEMMDesc, Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.nest import MOST_SUMS, NestChoice
from gemmdesc.kernels.slices import Merge
from gemmdesc.kernels.variants import FOLD_BLOCK, fold_variant, leaves_variant
from gemmdesc.schedule import fold_levels, make_schedule

#: Nests whose tables stay on a device.
_KEPT_TABLES = 256
#: ``enqueue(variant, programs, *arguments)``.
Enqueue = Callable[..., None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """int32 on one device.  ``order``: k by place; ``leaves``: offsets into it; ``folds``: offsets, innermost first."""

    order: torch.Tensor
    leaves: torch.Tensor
    folds: tuple[torch.Tensor, ...]


@lru_cache(_KEPT_TABLES)
def tables_for(desc: GEMMDesc, k: int, device: torch.device) -> Tables:
    """The tables of ``desc`` at inner size ``k``."""
    schedule = make_schedule(desc, k)
    folds = [*fold_levels(desc, k)][::-1] or [np.array([0, 1], dtype=np.int64)]

    def on_device(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int32)).to(device)

    return Tables(
        order=on_device(schedule.order), leaves=on_device(schedule.leaf_offsets), folds=tuple(map(on_device, folds))
    )


def launch_nest(choice: NestChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, enqueue: Enqueue) -> None:
    """Every output of ``out = a @ b``, as many at a time as scratch for their sums allows.

    ``enqueue`` starts one kernel.
    """
    tables = tables_for(choice.descriptor, choice.k, a.device)
    for first, size in _pieces(out.shape[0] * out.shape[1], len(tables.leaves) - 1):
        sums = _leaves(choice, tables, a, b, first, size, enqueue)
        for merge, offsets in zip(choice.folds[:-1], tables.folds[:-1], strict=True):
            target = torch.empty((len(offsets) - 1, size), dtype=torch.float32, device=a.device)
            # In scratch these outputs stand alone, a row of them for each fold.
            _fold(merge, DType.FLOAT32, sums, target, offsets, (0, size, size), (size, size, 1), enqueue)
            sums = target
        place = (first, size, out.shape[1])
        _fold(choice.folds[-1], choice.output_dtype, sums, out, tables.folds[-1], place, (0, *out.stride()), enqueue)


def _pieces(outputs: int, leaves: int) -> Iterator[tuple[int, int]]:
    """(first output, how many) of each pass."""
    most = max(FOLD_BLOCK, MOST_SUMS // leaves)
    for first in range(0, outputs, most):
        yield first, min(most, outputs - first)


def _leaves(
    choice: NestChoice, tables: Tables, a: torch.Tensor, b: torch.Tensor, first: int, size: int, enqueue: Enqueue
) -> torch.Tensor:
    leaves = len(tables.leaves) - 1
    sums = torch.empty((leaves, size), dtype=torch.float32, device=a.device)
    config = choice.config
    programs = -(-size // config.block_outputs) * -(-leaves // config.block_leaves)
    enqueue(
        leaves_variant(choice), programs, a, b, sums, tables.order, tables.leaves, first, size, b.shape[1], leaves,
        choice.opening, *a.stride(), *b.stride(),
    )  # fmt: skip
    return sums


def _fold(
    merge: Merge, stored: DType, sums: torch.Tensor, target: torch.Tensor, offsets: torch.Tensor,
    place: tuple[int, int, int], strides: tuple[int, ...], enqueue: Enqueue,
) -> None:  # fmt: skip
    """``place``: the first output, how many, and how many are in a row."""
    programs = (len(offsets) - 1) * -(-place[1] // FOLD_BLOCK)
    begin = -0.0 if merge.start is Start.FIRST else 0.0
    enqueue(fold_variant(merge, stored), programs, sums, target, offsets, *place, begin, *strides)
