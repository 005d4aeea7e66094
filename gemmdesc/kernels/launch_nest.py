"""Run a NestChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from gemmdesc.descriptor import GEMMDesc, Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.nest import MOST_SUMS, NestChoice
from gemmdesc.kernels.recording import tables_place
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
    return Tables(
        order=_on_device(schedule.order, device), leaves=_on_device(schedule.leaf_offsets, device),
        folds=fold_tables(desc, k, device),
    )  # fmt: skip


@lru_cache(_KEPT_TABLES)
def fold_tables(desc: GEMMDesc, k: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """For every level of folds, innermost first, where each fold begins among what it folds, and their number."""
    folds = [*fold_levels(desc, k)][::-1] or [np.array([0, 1], dtype=np.int64)]
    return tuple(_on_device(offsets, device) for offsets in folds)


def _on_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32)).to(device)


def launch_nest(choice: NestChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, enqueue: Enqueue) -> None:
    """Every output of ``out = a @ b``, as many at a time as scratch for their sums allows.

    ``enqueue`` starts one kernel.
    """
    folds = tables_for(choice.descriptor, choice.k, tables_place(a.device)).folds
    for first, sums in nest_sums(choice, a, b, enqueue):
        fold_all(choice.folds, folds, sums, out, choice.output_dtype, first, enqueue)


def nest_sums(
    choice: NestChoice, a: torch.Tensor, b: torch.Tensor, enqueue: Enqueue
) -> Iterator[tuple[int, torch.Tensor]]:
    """(first output, float32 (leaves, outputs from there on)), until all of ``a @ b`` are done, row by row."""
    tables = tables_for(choice.descriptor, choice.k, tables_place(a.device))
    for first, size in _pieces(a.shape[0] * b.shape[1], len(tables.leaves) - 1):
        yield first, _leaves(choice, tables, a, b, first, size, enqueue)


def fold_all(
    folds: Sequence[Merge], offsets: Sequence[torch.Tensor], sums: torch.Tensor, out: torch.Tensor, output_dtype: DType,
    first: int, enqueue: Enqueue,
) -> None:  # fmt: skip
    """Fold ``sums``, float32 (sums of an output, outputs), level by level, innermost first, into the outputs from
    ``first`` on of ``out``, counted along its rows.
    """
    sums = fold_inner(folds[:-1], offsets[:-1], sums, enqueue)
    place = (first, sums.shape[1], out.shape[1])
    _fold(folds[-1], output_dtype, sums, out, offsets[-1], place, (0, *out.stride()), enqueue)


def fold_inner(
    folds: Sequence[Merge], offsets: Sequence[torch.Tensor], sums: torch.Tensor, enqueue: Enqueue
) -> torch.Tensor:
    """What ``folds``, innermost first, make of ``sums``: float32 (folds of the last level, outputs), or ``sums``."""
    size = sums.shape[1]
    for merge, begins in zip(folds, offsets, strict=True):
        target = torch.empty((len(begins) - 1, size), dtype=torch.float32, device=sums.device)
        # In scratch these outputs stand alone, a row of them for each fold.
        _fold(merge, DType.FLOAT32, sums, target, begins, (0, size, size), (size, size, 1), enqueue)
        sums = target
    return sums


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
