"""The expression table for NumPy code: arrays of node ids in, arrays of node ids out, one per lane."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence import node_bytes, node_lanes, nodes
from gemmdesc.equivalence.merges import SWAPPED, Merge
from gemmdesc.equivalence.nodes import Bits64, Ids, Store
from gemmdesc.equivalence.operations import flags_of
from gemmdesc.equivalence.refusal import RefusalError

_MOST_NODES = 60_000_000


@dataclass(frozen=True, slots=True)
class Node:
    """One node as plain values.  ``digest``: 32 hexadecimal digits."""

    name: str
    width: int
    children: tuple[int, ...]
    attributes: tuple[int, int]
    digest: str


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

    def matrix_steps(self, node: int) -> list[tuple[int, int]]:
        """Row and column of each step of a chain of matrix steps, the first one first."""
        s = self._store
        rows, columns = int(s.child[node, 0]), int(s.child[node, 1])
        found = []
        while rows:
            found.append((int(s.child[rows, 1]), int(s.child[columns, 1])))
            rows, columns = int(s.child[rows, 0]), int(s.child[columns, 0])
        return found[::-1]

    def make(self, name: str, width: int, *children: Ids) -> Ids:
        """Nodes of ``name`` on one to four arrays of children (one length, or length 1)."""
        lanes = max(len(c) for c in children)
        code = self.code(name)
        store = self._room(4 * lanes)
        out = np.empty(lanes, np.int64)
        padded = (*children, *(_NONE,) * (4 - len(children)))
        node_lanes.make_many(store, code, width, len(children), *padded, out)
        return out

    def constants(self, bits: Bits64, width: int) -> Ids:
        """Constants of ``width`` bytes with the given patterns."""
        out = np.empty(len(bits), np.int64)
        node_lanes.constant_many(self._room(len(bits)), bits, width, out)
        return out

    def leaves(self, parameter: Ids, offset: Ids, width: int) -> Ids:
        """``width`` bytes of the memory behind a parameter, as it was before the launch."""
        out = np.empty(max(len(parameter), len(offset)), np.int64)
        node_lanes.attribute_many(self._room(len(out)), nodes.LEAF, width, parameter, offset, out)
        return out

    def argument(self, parameter: int, width: int) -> Ids:
        """A parameter that is itself data."""
        out = np.empty(1, np.int64)
        at = np.array([parameter], np.int64)
        node_lanes.attribute_many(self._room(1), nodes.SCALAR, width, at, np.zeros(1, np.int64), out)
        return out

    def extract(self, node: Ids, offset: int, width: int) -> Ids:
        """Bytes ``offset`` to ``offset + width`` of each node."""
        out = np.empty(len(node), np.int64)
        node_lanes.extract_many(self._room(8 * len(out)), node, offset, width, out)
        return out

    def pieces(self, node: Ids, width: int, count: int) -> Ids:
        """The first ``count`` pieces of ``width`` bytes of each node, shape (count, nodes)."""
        out = np.empty((count, len(node)), np.int64)
        node_lanes.pieces_many(self._room(8 * out.size), node, width, out)
        return out

    def concat(self, pieces: Sequence[Ids]) -> Ids:
        """Pieces of one width as one value, the first in the lowest bytes; a power of two of them."""
        if len(pieces) == 1:
            return pieces[0]
        lanes = max(map(len, pieces))
        level = np.stack([p if len(p) == lanes else np.full(lanes, p[0]) for p in pieces])
        while len(level) > 1:
            level = self._two(level[0::2].ravel(), level[1::2].ravel()).reshape(-1, lanes)
        return level.ravel()

    def streams(self, registers: Sequence[Ids]) -> Ids:
        """Rows or columns of a matrix step, shape (lanes / 4,): what four neighbouring lanes hold; 0: some is poison.

        Register by register, in tuples of four words, and one tuple of them where there are several.
        """
        words = np.stack(registers)
        out = np.empty(words.shape[1] // 4, np.int64)
        code = self.code("tuple")
        node_lanes.streams_many(self._room(5 * words.size), code, words, out)
        return out

    def _two(self, low: Ids, high: Ids) -> Ids:
        out = np.empty(max(len(low), len(high)), np.int64)
        node_lanes.concat_many(self._room(2 * len(out)), low, high, out)
        return out

    def bitwise(self, name: str, mode: int, width: int, a: Ids, b: Ids) -> Ids:
        """``node_bytes.bytes_many``: or, and, shift left, shift right on data."""
        out = np.empty(max(len(a), len(b)), np.int64)
        code = self.code(name)
        node_bytes.bytes_many(self._room(40 * len(out)), code, a, b, width, mode, out)
        return out

    def longer(self, steps: Ids | None, streams: Ids) -> Ids:
        """Lists of rows or columns of matrix steps, each with one more; ``streams``: none of them poison."""
        out = np.empty(len(streams), np.int64)
        node_lanes.longer_many(self._room(len(out)), _NONE if steps is None else steps, streams, out)
        return out

    def chains(self, name: str, width: int, rows: Ids, columns: Ids, start: Ids) -> Ids:
        """Matrix steps over lists of rows and columns; ``start``: no chain of ``name``, and not poison."""
        out = np.empty(len(start), np.int64)
        code = self.code(name)
        node_lanes.chain_many(self._room(len(out)), code, width, rows, columns, start, out)
        return out

    def begins_chain(self, name: str, start: Ids) -> bool:
        """Whether :meth:`chains` takes every one of ``start``."""
        op = self._store.op[start]
        return not bool(((start == 0) | (op == nodes.PARTIAL) | (op == self.code(name))).any())

    def patterns(self, node: Ids) -> tuple[Bits64, Ids]:
        """Patterns of constants, and for each lane 0 (poison), 1 (a constant) or 2 (data)."""
        s = self._store
        op = s.op[node]
        kind = np.where(node == 0, 0, np.where(op == nodes.CONSTANT, 1, 2)).astype(np.int64)
        return s.attribute[node, 0].view(np.uint64).copy(), kind

    def constant_patterns(self, node: Ids) -> Bits64 | None:
        """Patterns of nodes that are all constants; None where one is not."""
        s = self._store
        if s.op[node[0]] != nodes.CONSTANT or not (s.op[node] == nodes.CONSTANT).all():
            return None
        found: Bits64 = s.attribute[node, 0].view(np.uint64)
        return found

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
_HOT = np.dtype(
    {
        "names": ["high", "low", "op", "width", "varies"],
        "formats": [np.uint64, np.uint64, np.int32, np.int32, np.bool_],
        "itemsize": 32,
    }
)
_COLD = np.dtype([("child", np.int64, 4), ("attribute", np.int64, 2)])


def _allocate(size: int, operations: int) -> Store:
    slots = 1 << (2 * size - 1).bit_length()
    # What an expression above reads of a node lies in one cache line.
    hot, cold = np.zeros(size, _HOT), np.zeros(size, _COLD)
    return Store(
        op=hot["op"],
        width=hot["width"],
        child=cold["child"],
        attribute=cold["attribute"],
        high=hot["high"],
        low=hot["low"],
        slots=np.zeros(slots, np.int64),
        used=np.zeros(1, np.int64),
        op_high=np.zeros(operations, np.uint64),
        op_low=np.zeros(operations, np.uint64),
        op_flags=np.zeros(operations, np.int32),
        twins=np.zeros((operations, 2), np.int32),
        varies=hot["varies"],
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
