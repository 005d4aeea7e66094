"""What running a choice enqueues, as a value: every kernel with its arguments, addresses told from where they start.

A choice launches the same kernels with the same sizes each time; only addresses, and alpha and beta, differ from call
to call.  So its launch functions run once, on stand-ins (:mod:`gemmdesc.kernels.recording`), and what they enqueue is
kept as a :class:`Program`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gemmdesc.kernels.variant import Variant

#: Pieces of a program's scratch start at multiples of this many bytes, as do blocks of torch's allocator.
SCRATCH_ALIGNMENT = 512


class Input(IntEnum):
    """What a program is given at each run: addresses, and the bits of float32 values.

    A plain product takes the first four.  From ``NAMED`` on come the operands of a fused epilogue, addresses or bits,
    in the order in which a call names them.  Counters are no caller's to give: see :mod:`gemmdesc.kernels.counters`.
    """

    A = 0
    B = 1
    OUT = 2
    SCRATCH = 3
    C = 4
    BIAS = 5
    SCALE = 6
    OUTPUT_SCALE = 7
    ALPHA = 8
    BETA = 9
    NAMED = 10
    NAMED_1 = 11
    NAMED_2 = 12
    NAMED_3 = 13
    NAMED_4 = 14
    NAMED_5 = 15
    COUNTERS = 16


#: How many inputs a product takes that has nothing beside its operands.
PLAIN_INPUTS = 4
#: How many operands by name a program takes.
MOST_NAMED = Input.COUNTERS - Input.NAMED


@dataclass(frozen=True, kw_only=True)
class Word:
    """An address ``offset`` bytes after an input's; the bits of alpha and beta have offset 0."""

    input: Input
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Box:
    """What a tensor descriptor is made of: where it starts, sizes and strides in elements, and the box of one load.

    ``element``: torch's name of the type, such as ``float16``.
    """

    start: Word
    element: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]


#: A :class:`Word`, a :class:`Box`, a number, None, or a tensor of constants that lies on the device.
Argument = Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One kernel on a grid of ``programs``; ``arguments`` are those before the variant's constants.

    ``stand_ins``: the same arguments as they were recorded, of which Triton reads types and alignments.
    """

    variant: Variant
    programs: int
    arguments: tuple[Argument, ...]
    stand_ins: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Kernels in order, and how much scratch they share; steps use what is in it only after another wrote it.

    ``counters``: how many int32 of :attr:`Input.COUNTERS` a step uses, which are zero before it and after it.
    """

    steps: tuple[Step, ...]
    scratch_bytes: int
    counters: int = 0

    @property
    def inputs(self) -> frozenset[Input]:
        """Those that a step reads."""
        words = [w for step in self.steps for w in map(_word, step.arguments) if w is not None]
        return frozenset(w.input for w in words)

    @property
    def variants(self) -> frozenset[Variant]:
        return frozenset(step.variant for step in self.steps)


def _word(argument: Argument) -> Word | None:
    if isinstance(argument, Box):
        return argument.start
    return argument if isinstance(argument, Word) else None


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A piece of scratch: its bytes, and the first and last step that use it."""

    size: int
    first: int
    last: int


def place_scratch(pieces: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Where each piece starts, and how many bytes all take: pieces share memory where their lifetimes do not meet.

    Steps run in order on one stream, so that a later step may write where an earlier one was the last to read.
    """
    starts: list[int] = []
    total = 0
    for index, piece in enumerate(pieces):
        taken = sorted(
            (starts[i], starts[i] + _rounded(other.size))
            for i, other in enumerate(pieces[:index])
            if other.first <= piece.last and piece.first <= other.last
        )
        start = 0
        for begin, end in taken:
            if start + piece.size <= begin:
                break
            start = max(start, end)
        starts.append(start)
        total = max(total, start + _rounded(piece.size))
    return tuple(starts), total


def _rounded(size: int) -> int:
    return -(-size // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
