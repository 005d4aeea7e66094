"""The normal form: two descriptors owe each other the same bits at an inner size exactly when theirs are equal there.

The schedule is hashed bottom-up with the identities that no operand can refute: a rounding to a type that already
holds the value; the order of the two terms of one float32 addition; the order of products inside one step; a fused
against an unfused multiply-add whose product is exact; an added +0.0 where -0.0 cannot occur.  What is left differs
for some operands, or is a difference that this page does not know to be invisible; it then errs towards "different".
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gemmdesc.descriptor import CastTo, EpilogueStep, FusedDot, GEMMDesc, ScalarStep, Start
from gemmdesc.dtypes import DType, represents
from gemmdesc.schedule import ROUNDINGS, Index, Op, Schedule, make_schedule
from gemmdesc.text import to_text


@dataclass(frozen=True, kw_only=True)
class NormalForm:
    """Equality and hash are those of ``digest``; ``leaves`` and ``steps`` count accumulators and roundings in them."""

    digest: str
    leaves: int = field(compare=False)
    steps: int = field(compare=False)

    def __str__(self) -> str:
        return f"{self.digest} ({self.leaves} accumulators, {self.steps} steps)"


class _Node(NamedTuple):
    """``dtype``: the narrowest known storage type holding every value; ``negative_zero``: whether -0.0 can occur."""

    digest: bytes
    dtype: DType
    negative_zero: bool


@lru_cache(maxsize=32768)
def normal_form(desc: GEMMDesc, k: int) -> NormalForm:
    """The normal form of ``desc`` at inner size ``k`` (pure; time and memory proportional to k; the last are kept)."""
    schedule = make_schedule(desc, k)
    root = _fold(desc, schedule)
    parts = [b"gemm", desc.a_dtype.value.encode(), desc.b_dtype.value.encode()]
    parts += [to_text(cast).encode() for cast in (desc.a_cast, desc.b_cast) if cast is not None]
    root = _round(_stepped(root, desc.epilogue), desc.output_dtype)
    digest = _hash(*parts, desc.output_dtype.value.encode(), root.digest)
    return NormalForm(
        digest=digest.hex(), leaves=len(schedule.leaf_offsets) - 1, steps=len(schedule.step_ends)
    )


def same_bits(one: GEMMDesc, other: GEMMDesc, k: int) -> bool:
    """Whether the two descriptors owe each other the same bits at inner size ``k``."""
    return normal_form(one, k) == normal_form(other, k)


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(_framed(*parts)).digest()[:16]


def _framed(*parts: bytes) -> bytes:
    """The parts, each behind its length."""
    return b"".join([x for p in parts for x in (len(p).to_bytes(8, "little"), p)])


#: What stands before the digests of an addition's two terms, and between them.
_DIGEST_LENGTH = (16).to_bytes(8, "little")
_ADDITION = _framed(b"add") + _DIGEST_LENGTH
#: An empty sum of +0.0, and one of -0.0.
_EMPTY_DIGEST, _NOTHING_DIGEST = _hash(b"empty"), _hash(b"nothing")


def _stepped(node: _Node, steps: tuple[EpilogueStep, ...]) -> _Node:
    for step in steps:
        if isinstance(step, CastTo) and not step.overflows:
            node = _round(node, step.dtype)
        elif isinstance(step, CastTo):
            node = _Node(_hash(to_text(step).encode(), node.digest), step.dtype, True)
        else:
            node = _Node(_hash(to_text(step).encode(), node.digest), DType.FLOAT32, True)
    return node


def _fold(desc: GEMMDesc, schedule: Schedule) -> _Node:
    leaves = _Leaves(desc, schedule)
    stack: list[_Node] = []
    for op, argument in schedule.program.tolist():
        if op == _LEAF:
            stack.append(leaves.node(argument))
        elif op == _ADD:
            right = stack.pop()
            stack.append(_add(stack.pop(), right))
        elif op == _ROUND:
            stack.append(_round(stack.pop(), ROUNDINGS[argument]))
        elif op == _ADD_TO_ZERO:
            stack.append(_positive_zero(stack.pop()))
        else:
            stack.append(_stepped(stack.pop(), desc.cuts[0].opening))
    (root,) = stack
    return root


# Plain integers: comparing with an enumeration's members takes far longer, and a nest has thousands of additions.
_LEAF, _ADD, _ROUND, _ADD_TO_ZERO = int(Op.LEAF), int(Op.ADD), int(Op.ROUND), int(Op.ADD_TO_ZERO)


#: Stands for every zero_exponent that no operand can show.
_HIDDEN = 0


class _Leaves:
    """Nodes of a schedule's leaves; what leaves share is worked out once."""

    def __init__(self, desc: GEMMDesc, schedule: Schedule) -> None:
        step = desc.accumulator.step
        self._dtype = DType.FLOAT32
        if isinstance(step, FusedDot):
            self._dtype = step.accumulator_dtype
            if not zero_exponent_shows(step, desc.a_dtype, desc.b_dtype):
                step = replace(step, zero_exponent=_HIDDEN)
        elif _product_exact(desc):
            step = replace(step, fused=True)
        # A chain from +0.0 is never -0.0, as +0.0 plus anything is not, unless the sum is a tiny negative product that
        # rounds to -0.0; a matrix step returns +0.0 for an exact zero.
        wide = DType.FLOAT32.format
        underflows = _lowest_product(desc) < wide.min_exponent - wide.fraction_bits
        self._opens_negative = isinstance(step, ScalarStep) and step.start is Start.FIRST
        self._negative_zero = self._opens_negative or (isinstance(step, ScalarStep) and step.fused and underflows)
        self._model = _framed(b"leaf", to_text(step).encode())
        self._schedule = schedule
        self._offsets = schedule.leaf_offsets.tolist()
        self._step_offsets = schedule.step_offsets.tolist()
        # Cuts into contiguous parts leave k ascending throughout.
        order = schedule.order
        self._ascending = bool((order == np.arange(len(order))).all())
        self._stepping: dict[int, bytes] = {}

    def node(self, leaf: int) -> _Node:
        begin, end = self._offsets[leaf], self._offsets[leaf + 1]
        if begin == end:
            empty = _NOTHING_DIGEST if self._opens_negative else _EMPTY_DIGEST
            return _Node(empty, self._dtype, self._opens_negative)
        framed = self._model + _framed(self._steps(leaf, begin, end), self._ks(leaf, begin, end))
        return _Node(hashlib.sha256(framed).digest()[:16], self._dtype, self._negative_zero)

    def _steps(self, leaf: int, begin: int, end: int) -> bytes:
        """Where steps end within the leaf, which depends on its length alone."""
        known = self._stepping.get(end - begin)
        if known is None:
            known = self._stepping[end - begin] = _hash((self._ends(leaf) - begin).tobytes())
        return known

    def _ends(self, leaf: int) -> Index:
        return self._schedule.step_ends[self._step_offsets[leaf] : self._step_offsets[leaf + 1]]

    def _ks(self, leaf: int, begin: int, end: int) -> bytes:
        """Which k the leaf sums, in order of steps, ascending within each; a run of neighbours by its first one."""
        if self._ascending:
            return b"from %d" % begin
        ks = self._schedule.order[begin:end]
        if (np.diff(ks) < 0).any():
            owner = np.searchsorted(self._ends(leaf) - begin, np.arange(end - begin), side="right")
            ks = ks[np.lexsort((ks, owner))]
        return b"from %d" % ks[0] if (np.diff(ks) == 1).all() else ks.tobytes()


def zero_exponent_shows(step: FusedDot, a_dtype: DType, b_dtype: DType) -> bool:
    """Whether some operands can show what exponent an exact zero counts as.

    Every term of a step is a multiple of the smallest product, and so is what alignment leaves of it; where that
    product's exponent reaches ``zero_exponent``, no zero can raise the largest one.
    """
    a, b = a_dtype.format, b_dtype.format
    smallest = a.min_exponent - a.fraction_bits + b.min_exponent - b.fraction_bits
    return smallest < step.zero_exponent


def _product_exact(desc: GEMMDesc) -> bool:
    """Whether every product of two finite operands is a float32 value, so that fusing cannot be seen."""
    a, b, wide = desc.a_dtype.format, desc.b_dtype.format, DType.FLOAT32.format
    return (
        a.fraction_bits + b.fraction_bits + 1 <= wide.fraction_bits
        and a.max_exponent + b.max_exponent + 1 <= wide.max_exponent
        and _lowest_product(desc) >= wide.min_exponent - wide.fraction_bits
    )


def _lowest_product(desc: GEMMDesc) -> int:
    """The exponent of the smallest product of two non-zero operands."""
    a, b = desc.a_dtype.format, desc.b_dtype.format
    return a.min_exponent - a.fraction_bits + b.min_exponent - b.fraction_bits


def _round(node: _Node, dtype: DType) -> _Node:
    if represents(dtype, node.dtype) or node.digest in (_EMPTY_DIGEST, _NOTHING_DIGEST):
        return node
    # A tiny negative value may round to -0.0.
    return _Node(_hash(b"round", dtype.value.encode(), node.digest), dtype, True)


def _add(left: _Node, right: _Node) -> _Node:
    if left.digest == _NOTHING_DIGEST:
        return right
    if right.digest == _NOTHING_DIGEST:
        return left
    if left.digest == _EMPTY_DIGEST:
        return _positive_zero(right)
    if right.digest == _EMPTY_DIGEST:
        return _positive_zero(left)
    one, other = left.digest, right.digest
    framed = _ADDITION + (one + _DIGEST_LENGTH + other if one < other else other + _DIGEST_LENGTH + one)
    both = left.negative_zero and right.negative_zero
    return _Node(hashlib.sha256(framed).digest()[:16], DType.FLOAT32, both)


def _positive_zero(node: _Node) -> _Node:
    if not node.negative_zero:
        return node
    if node.digest == _NOTHING_DIGEST:
        return _Node(_EMPTY_DIGEST, node.dtype, False)
    return _Node(_hash(b"add zero", node.digest), node.dtype, False)
