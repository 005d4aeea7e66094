"""The expression table for NumPy code: arrays of node ids in, arrays of node ids out, one per lane."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence import node_bytes, nodes
from gemmdesc.equivalence.merges import SWAPPED, Merge
from gemmdesc.equivalence.nodes import Bits64, Ids, Store
from gemmdesc.equivalence.refusal import RefusalError

#: Sums and products of these types round to nearest when no rounding is written, and lanes of packed types are alike.
_FLOAT = ("f32", "f16", "bf16")
_MOST_NODES = 60_000_000


@dataclass(frozen=True, slots=True)
class Node:
    """One node as plain values.  ``digest``: 32 hexadecimal digits."""

    name: str
    width: int
    children: tuple[int, ...]
    attributes: tuple[int, int]
    digest: str


def flags_of(name: str) -> int:
    """What is known of an instruction by its opcode, without a written rounding to nearest where that is the default.

    Only opcodes listed here have algebra; every other one is a function of its operands, in their order.
    """
    stem, _, kind = name.partition(".")
    if kind in _FLOAT:
        # Only among 4 bytes does an operand's width tell its type, which the neutral element needs.  Of float64, no
        # document says that a sum of two NaN does not depend on their order.
        if stem == "add":
            return nodes.COMMUTES | nodes.ARITHMETIC | (nodes.ADDITION | nodes.SUM if kind == "f32" else 0)
        if stem == "mul":
            return nodes.COMMUTES | nodes.ARITHMETIC | (nodes.PRODUCT if kind == "f32" else 0)
        if stem == "sub":
            return nodes.ARITHMETIC | (nodes.DIFFERENCE if kind == "f32" else 0)
    if name == "fma.rn.f32":
        return nodes.COMMUTES | nodes.ARITHMETIC | nodes.FUSED
    if stem == "fma" and kind in ("rn.f16", "rn.bf16"):
        return nodes.COMMUTES | nodes.ARITHMETIC
    if stem in ("max", "min") and kind in ("f32", "f16", "bf16", "NaN.f32", "NaN.f16", "NaN.bf16"):
        return nodes.SET
    if name in ("redux.sync.max.f32", "redux.sync.min.f32", "redux.sync.max.NaN.f32", "redux.sync.min.NaN.f32"):
        return nodes.SET
    if stem in ("and", "or", "xor") and kind in ("b16", "b32", "b64", "pred"):
        return nodes.COMMUTES | nodes.MOVES
    if name == "cvt.f32.f16":
        return nodes.WIDENED
    if (stem in ("neg", "abs") and kind in (*_FLOAT, "f64")) or name in ("cvt.f32.bf16", "cvt.f32.f32"):
        # ptxas drops a second sign change, hands the first to a selection, and shifts a bfloat16 up.
        return nodes.LOOSE | nodes.MOVES
    if stem == "selp":
        # ptxas makes a selection by a comparison a maximum where only a NaN's payload tells them apart.
        return nodes.LOOSE | nodes.MOVES
    if stem in ("or", "and", "xor", "shl", "shr"):
        return nodes.MOVES
    return 0


class Table:
    """Expressions by id.  Ids count up: a node's children come before it."""

    def __init__(self, merges: Collection[Merge] = ()) -> None:
        """``merges``: forms of matrix steps that are one function here."""
        self._merges = {merge.name: merge for merge in merges}
        self._codes: dict[str, int] = {}
        self._names: list[str] = []
        self._store = _allocate(1 << 14, 64)
        self._store.used[0] = 1
        for name in nodes.BUILT_IN:
            self.code(name)

    @property
    def store(self) -> Store:
        """The arrays; valid until the next node is made."""
        return self._store

    def __len__(self) -> int:
        return int(self._store.used[0])

    def code(self, name: str) -> int:
        """The number of an operation in this table."""
        found = self._codes.get(name)
        if found is not None:
            return found
        number = self._codes[name] = len(self._names)
        self._names.append(name)
        if number >= len(self._store.op_flags):
            self._store = _grow_operations(self._store)
        digest = hashlib.sha256(name.encode()).digest()
        self._store.op_high[number] = int.from_bytes(digest[:8], "little")
        self._store.op_low[number] = int.from_bytes(digest[8:16], "little")
        flags = flags_of(name) | (nodes.COMMUTES if self.merges(SWAPPED, name) else 0)
        self._store.op_flags[number] = flags
        if flags & nodes.FUSED:
            twins = self.code("mul.f32"), self.code("add.f32")
            self._store.twins[number] = twins
        return number

    def merges(self, merge: str, name: str) -> bool:
        """Whether a merge was asked for and is stated for the matrix step called ``name``."""
        found = self._merges.get(merge)
        return found is not None and name.startswith("mma.") and ".".join(name.split(".")[-4:]) in found.types

    def name(self, code: int) -> str:
        """The operation with this number."""
        return self._names[code]

    def node(self, node: int) -> Node:
        """One node in plain values."""
        s = self._store
        kept = [int(c) for c in s.child[node]]
        while kept and kept[-1] == 0:
            kept.pop()
        return Node(
            name=self._names[s.op[node]],
            width=int(s.width[node]),
            children=tuple(kept),
            attributes=(int(s.attribute[node, 0]), int(s.attribute[node, 1])),
            digest=f"{int(s.high[node]):016x}{int(s.low[node]):016x}",
        )

    def make(self, name: str, width: int, *children: Ids) -> Ids:
        """Nodes of ``name`` on one to four arrays of children (one length, or length 1)."""
        lanes = max(len(c) for c in children)
        store = self._room(4 * lanes)
        code = self.code(name)
        store = self._store
        out = np.empty(lanes, np.int64)
        padded = (*children, *(_NONE,) * (4 - len(children)))
        nodes.make_many(store, code, width, len(children), *padded, out)
        return out

    def constants(self, bits: Bits64, width: int) -> Ids:
        """Constants of ``width`` bytes with the given patterns."""
        out = np.empty(len(bits), np.int64)
        nodes.constant_many(self._room(len(bits)), bits, width, out)
        return out

    def leaves(self, parameter: Ids, offset: Ids, width: int) -> Ids:
        """``width`` bytes of the memory behind a parameter, as it was before the launch."""
        out = np.empty(max(len(parameter), len(offset)), np.int64)
        nodes.attribute_many(self._room(len(out)), nodes.LEAF, width, parameter, offset, out)
        return out

    def argument(self, parameter: int, width: int) -> Ids:
        """A parameter that is itself data."""
        out = np.empty(1, np.int64)
        at = np.array([parameter], np.int64)
        nodes.attribute_many(self._room(1), nodes.SCALAR, width, at, np.zeros(1, np.int64), out)
        return out

    def extract(self, node: Ids, offset: int, width: int) -> Ids:
        """Bytes ``offset`` to ``offset + width`` of each node."""
        out = np.empty(len(node), np.int64)
        nodes.extract_many(self._room(8 * len(out)), node, offset, width, out)
        return out

    def concat(self, pieces: Sequence[Ids]) -> Ids:
        """Pieces of one width as one value, the first in the lowest bytes; a power of two of them."""
        level = list(pieces)
        while len(level) > 1:
            level = [self._two(level[i], level[i + 1]) for i in range(0, len(level), 2)]
        return level[0]

    def _two(self, low: Ids, high: Ids) -> Ids:
        out = np.empty(max(len(low), len(high)), np.int64)
        nodes.concat_many(self._room(2 * len(out)), low, high, out)
        return out

    def bitwise(self, name: str, mode: int, width: int, a: Ids, b: Ids) -> Ids:
        """``node_bytes.bytes_many``: or, and, shift left, shift right on data."""
        out = np.empty(max(len(a), len(b)), np.int64)
        code = self.code(name)
        node_bytes.bytes_many(self._room(40 * len(out)), code, a, b, width, mode, out)
        return out

    def patterns(self, node: Ids) -> tuple[Bits64, Ids]:
        """Patterns of constants, and for each lane 0 (poison), 1 (a constant) or 2 (data)."""
        s = self._store
        op = s.op[node]
        kind = np.where(node == 0, 0, np.where(op == nodes.CONSTANT, 1, 2)).astype(np.int64)
        return s.attribute[node, 0].view(np.uint64).copy(), kind

    def varies(self, node: Ids) -> npt.NDArray[np.bool_]:
        """Whether memory or an argument enters each node."""
        return self._store.varies[node]

    def flags(self, node: Ids) -> npt.NDArray[np.int32]:
        """What ``flags_of`` says of the operation of each node."""
        return self._store.op_flags[self._store.op[node]]

    def is_widened(self, node: Ids) -> bool:
        """Whether every lane is an exact widening of a float16."""
        return bool((self._store.op_flags[self._store.op[node]] & nodes.WIDENED).all())

    def _room(self, more: int) -> Store:
        needed = int(self._store.used[0]) + more
        if needed > len(self._store.op):
            if needed > _MOST_NODES:
                raise RefusalError("budget", f"the expressions have more than {_MOST_NODES} nodes")
            self._store = _grow(self._store, 2 * needed)
        return self._store


_NONE = np.zeros(1, np.int64)


def _allocate(size: int, operations: int) -> Store:
    slots = 1 << (2 * size - 1).bit_length()
    return Store(
        op=np.zeros(size, np.int32),
        width=np.zeros(size, np.int32),
        child=np.zeros((size, 4), np.int64),
        attribute=np.zeros((size, 2), np.int64),
        high=np.zeros(size, np.uint64),
        low=np.zeros(size, np.uint64),
        slots=np.zeros(slots, np.int64),
        used=np.zeros(1, np.int64),
        op_high=np.zeros(operations, np.uint64),
        op_low=np.zeros(operations, np.uint64),
        op_flags=np.zeros(operations, np.int32),
        twins=np.zeros((operations, 2), np.int32),
        varies=np.zeros(size, np.bool_),
    )


def _grow(old: Store, size: int) -> Store:
    new = _allocate(size, len(old.op_flags))
    count = int(old.used[0])
    for name in ("op", "width", "child", "attribute", "high", "low", "varies"):
        getattr(new, name)[:count] = getattr(old, name)[:count]
    new.used[0] = count
    new = new._replace(op_high=old.op_high, op_low=old.op_low, op_flags=old.op_flags, twins=old.twins)
    nodes.rehash(new)
    return new


def _grow_operations(old: Store) -> Store:
    return old._replace(
        **{
            name: np.concatenate([getattr(old, name), np.zeros_like(getattr(old, name))])
            for name in ("op_high", "op_low", "op_flags", "twins")
        }
    )
