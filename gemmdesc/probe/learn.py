"""Learning an integer of a descriptor as an expression: enumerate by size, keep what every reading allows.

Expressions are enumerated bottom-up.  Those that agree on every reading and on the whole declared domain (the
environments met in the scan) are one class, represented by its smallest member; the classes that remain are the
survivors, and a further reading is worth most where they disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product

import numpy as np
import numpy.typing as npt

from gemmdesc.errors import InvalidInputError
from gemmdesc.expressions import Call, Const, Expr, Operation, Var, apply, evaluate_all, size, variables
from gemmdesc.probe.allowed import Allowed

Values = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]
_BINARY = tuple(o for o in Operation if o.arity == 2)
#: How many single grains are nested once more.
_GRAINS = 400
#: How many one-operation expressions are joined with all of them in the last stage.
_WIDE = 300
#: Pairs of expressions that are tried at once: their values stay in a cache.
_BLOCK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Example:
    """One reading of one integer: what was allowed, and the variables there."""

    environment: Mapping[str, int]
    allowed: Allowed


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bank:
    """Expressions with their sizes and their values on the readings, one row each."""

    expressions: tuple[Expr, ...]
    sizes: Values
    values: Values

    def __len__(self) -> int:
        return len(self.expressions)


def learn_integer(
    examples: Sequence[Example],
    domain: Sequence[Mapping[str, int]],
    *,
    names: Sequence[str] = ("k", "splitk_num"),
    conditions: Sequence[str] = ("k_contiguous", "transa", "transb"),
    given: Sequence[Expr] = (),
    hints: Sequence[Expr] = (),
    most: int = 24,
    sample: int = 64,
    rivals: bool = False,
    lone: bool = True,
    operations: int | None = None,
) -> tuple[Expr, ...]:
    """The surviving expressions, smallest first, at most ``most``; empty if the space holds none.

    ``names`` are the variables of arithmetic, ``conditions`` those that a grain may depend on.  ``given`` are
    expressions already learned, used like variables; ``hints``, learned elsewhere, are tried first.  ``sample``: how
    many environments of the domain, evenly spread, tell expressions apart.  The search stops after the first stage that
    leaves survivors: hints, single atoms, one operation, two operations, a multiple of a grain, an operation on two
    operations; with ``rivals`` it goes through all stages but the first and the last.  ``lone``: whether an integer
    read only once may be a constant that is no power of two.  ``operations``: the search ends after so many (0 to 2).

    Raises:
        InvalidInputError: there are no examples.
    """
    if not examples:
        raise InvalidInputError("examples must hold at least one reading (got none)")
    search = _Search(examples, domain[:: max(1, len(domain) // sample)], (names, conditions), given, lone=lone)
    hinted = partial(search.hinted, hints)
    if rivals:
        every = (search.atoms(), search.one(), search.two(), search.grained())
        return tuple(_smallest(chain.from_iterable(every))[:most])
    stages = (hinted, search.atoms, search.one, search.two, search.grained, search.three)
    for stage in stages if operations is None else stages[: operations + 2]:
        found = _smallest(stage())
        if found:
            return tuple(found[:most])
    return ()


class _Search:
    """Banks hold values on the readings first, then on the domain; only the former decide what is allowed."""

    def __init__(
        self,
        examples: Sequence[Example],
        domain: Sequence[Mapping[str, int]],
        offered: tuple[Sequence[str], Sequence[str]],
        given: Sequence[Expr],
        *,
        lone: bool,
    ) -> None:
        every = [*(e.environment for e in examples), *domain]
        self._names, self._conditions = ([n for n in v if all(n in e for e in every)] for v in offered)
        known = {*self._names, *self._conditions, *(n for e in given for n in variables(e))}
        self._all = {n: np.array([e[n] for e in every], dtype=np.int64) for n in sorted(known)}
        self._width = len(every)
        self._read = len(examples)
        self._low = np.array([e.allowed.low for e in examples], dtype=np.int64)
        self._high = np.array([e.allowed.high for e in examples], dtype=np.int64)
        self._tables = {i: np.frombuffer(e.allowed.table, np.bool_) for i, e in enumerate(examples) if e.allowed.table}
        # The readings that leave least open come first: they turn most expressions away.
        self._by_room = np.argsort([e.allowed.room for e in examples], kind="stable")
        read = Counter(v for e in examples if (v := e.allowed.sole) is not None and v <= 4096)
        exact = {value for value, count in read.items() if lone or count > 1}
        constants = sorted({2**i for i in range(11)} | exact)[:24]
        self._grain_constants = [c for c in constants if 4 <= c <= 256 and c & (c - 1) == 0]
        self._atoms = self._bank([*(Var(n) for n in self._names), *given, *(Const(c) for c in constants)])
        self._one: _Bank | None = None

    def _bank(self, expressions: Sequence[Expr]) -> _Bank:
        values = [np.broadcast_to(evaluate_all(e, self._all), (self._width,)) for e in expressions]
        sizes = np.array([size(e) for e in expressions], dtype=np.int64)
        return _Bank(expressions=tuple(expressions), sizes=sizes, values=np.stack(values))

    def atoms(self) -> Iterator[_Bank]:
        yield from self._consistent(self._atoms)

    def one(self) -> Iterator[_Bank]:
        self._one = _join(self._atoms, self._atoms)
        yield from self._consistent(self._one)

    def two(self) -> Iterator[_Bank]:
        yield from self._pairs(self._one or self._atoms, self._atoms)

    def hinted(self, hints: Sequence[Expr]) -> Iterator[_Bank]:
        usable = [h for h in hints if variables(h) and variables(h) <= set(self._all)]
        if usable:
            yield from self._consistent(self._bank(usable))

    def grained(self) -> Iterator[_Bank]:
        """Multiples of a grain, ``select(when, grain, grain)`` nested up to twice: an alignment that x may lack."""
        constants: list[Expr] = [Const(c) for c in self._grain_constants]
        conditions: list[Expr] = [Call(Operation.MOD, (Var(n), c)) for n in self._names for c in constants]
        conditions += [Var(n) for n in self._conditions]
        near = self._just_below(self._one or self._atoms)
        if not len(near):
            return
        whens, grains = self._bank(conditions), self._bank(constants)
        once = _selects(whens, grains, grains)
        yield from self._pairs(near, once, (Operation.ROUND_UP,))
        twice = _selects(whens, grains, _take(once, np.arange(min(len(once), _GRAINS))))
        yield from self._pairs(near, twice, (Operation.ROUND_UP,))

    def _just_below(self, bank: _Bank) -> _Bank:
        """Expressions that rounding up by less than the largest grain could make allowed."""
        reach = max(self._grain_constants, default=1)
        values = bank.values[:, : self._read]
        ok = ((values <= self._high) & (values > self._low - reach)).all(axis=1)
        return _take(bank, np.flatnonzero(ok))

    def three(self) -> Iterator[_Bank]:
        one = self._one or self._atoms
        yield from self._pairs(_take(one, np.arange(min(len(one), _WIDE))), one)

    def _consistent(self, bank: _Bank) -> Iterator[_Bank]:
        kept = np.arange(len(bank))
        for reading in self._by_room:
            kept = kept[self._allowed(bank.values[kept, reading], reading)]
        yield _take(bank, kept)

    def _pairs(self, left: _Bank, right: _Bank, operations: Sequence[Operation] = _BINARY) -> Iterator[_Bank]:
        """Consistent applications of the operations to one of each bank; in both orders if of all operations."""
        for operation in operations:
            yield from self._applied(operation, left, right)
            if operations is _BINARY and not operation.commutes:
                yield from self._applied(operation, right, left)

    def _applied(self, operation: Operation, left: _Bank, right: _Bank) -> Iterator[_Bank]:
        """Consistent applications of one operation to one of ``left`` and one of ``right``, in blocks."""
        lefts, rights = (np.ascontiguousarray(b.values[:, : self._read].T) for b in (left, right))
        first = self._by_room[0]
        step = max(1, _BLOCK // len(left))
        for start in range(0, len(right), step):
            row = rights[first, start : start + step, None]
            j, i = np.nonzero(self._allowed(apply(operation, lefts[first], row), first))
            j += start
            for reading in self._by_room[1:]:
                if not len(i):
                    break
                kept = self._allowed(apply(operation, lefts[reading, i], rights[reading, j]), reading)
                i, j = i[kept], j[kept]
            if len(i):
                yield _applications(operation, _take(left, i), _take(right, j))

    def _allowed(self, values: Values, reading: np.intp) -> npt.NDArray[np.bool_]:
        fits = np.asarray((values >= self._low[reading]) & (values <= self._high[reading]), dtype=np.bool_)
        table = self._tables.get(int(reading))
        if table is not None:
            fits &= table[np.clip(values, 1, len(table)) - 1] | (values > len(table))
        return fits


def _smallest(found: Iterator[_Bank]) -> list[Expr]:
    """One expression, the smallest, for each function on readings and domain; smallest first."""
    best: dict[bytes, tuple[int, str, Expr]] = {}
    for bank in found:
        for expression, n, values in zip(bank.expressions, bank.sizes.tolist(), bank.values, strict=True):
            key = values.tobytes()
            known = best.get(key)
            if known is None or n < known[0] or (n == known[0] and str(expression) < known[1]):
                best[key] = (n, str(expression), expression)
    return [e for _, _, e in sorted(best.values(), key=lambda b: b[:2])]


def _applications(operation: Operation, left: _Bank, right: _Bank) -> _Bank:
    """The operation on one row after another of both banks."""
    pairs = zip(left.expressions, right.expressions, strict=True)
    return _Bank(
        expressions=tuple(Call(operation, pair) for pair in pairs),
        sizes=1 + left.sizes + right.sizes,
        values=apply(operation, left.values, right.values),
    )


def _join(left: _Bank, right: _Bank) -> _Bank:
    """All applications, one kept for each distinct row of values; earlier, smaller ones win."""
    made: list[tuple[Operation, int, bool]] = []
    values = [left.values]
    for operation, j in product(_BINARY, range(len(right))):
        row = right.values[j][None, :]
        for swapped in (False,) if operation.commutes else (False, True):
            values.append(apply(operation, *((row, left.values) if swapped else (left.values, row))))
            made.append((operation, j, swapped))
    whole = np.concatenate(values)
    expressions: list[Expr] = []
    kept = _first_rows(whole)
    for block, i in zip(*np.divmod(kept, len(left)), strict=True):
        if block == 0:
            expressions.append(left.expressions[i])
            continue
        operation, j, swapped = made[block - 1]
        pair = (left.expressions[i], right.expressions[j])
        expressions.append(Call(operation, pair[::-1] if swapped else pair))
    sizes = np.array([size(e) for e in expressions], dtype=np.int64)
    return _Bank(expressions=tuple(expressions), sizes=sizes, values=whole[kept])


def _selects(whens: _Bank, one: _Bank, other: _Bank) -> _Bank:
    """Both orders of ``select`` between something and something else, one kept for each distinct row of values."""
    expressions = (*one.expressions, *other.expressions)
    sizes, values = np.concatenate([one.sizes, other.sizes]), np.concatenate([one.values, other.values])
    every = product(range(len(one)), range(len(one), len(expressions)))
    pairs = [(i, j) for i, j in every if expressions[i] != expressions[j]]
    then, otherwise = np.array([o for p in pairs for o in (p, p[::-1])], dtype=np.intp).reshape(-1, 2).T
    holds = whens.values != 0
    # A mix sums over columns, so that of a select is the sum of what either branch gives where it is taken.
    mixed = _mixed(values).T
    mixes = (holds.astype(np.uint64) @ mixed)[:, then] + ((~holds).astype(np.uint64) @ mixed)[:, otherwise]
    when, order = np.divmod(_first(mixes.ravel()), len(then))
    x, y = then[order], otherwise[order]
    return _Bank(
        expressions=tuple(
            Call(Operation.SELECT, (whens.expressions[w], expressions[a], expressions[b]))
            for w, a, b in zip(when.tolist(), x.tolist(), y.tolist(), strict=True)
        ),
        sizes=1 + whens.sizes[when] + sizes[x] + sizes[y],
        values=np.where(holds[when], values[x], values[y]),
    )


def _first_rows(values: Values) -> Index:
    """Indices of the first occurrence of each distinct row, ascending; rows are told apart by a 64-bit mix."""
    return _first(_mixed(values).sum(axis=1, dtype=np.uint64))


def _first(mixes: npt.NDArray[np.uint64]) -> Index:
    """Indices of the first occurrence of each number, ascending."""
    return np.sort(np.unique(mixes, return_index=True)[1])


def _mixed(values: Values) -> npt.NDArray[np.uint64]:
    rows = np.ascontiguousarray(values).view(np.uint64)
    multipliers = np.random.default_rng(0).integers(0, 2**63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    scaled = rows * multipliers
    return scaled ^ (scaled >> np.uint64(29))


def _take(bank: _Bank, index: Index) -> _Bank:
    expressions = tuple(bank.expressions[i] for i in index.tolist())
    return _Bank(expressions=expressions, sizes=bank.sizes[index], values=bank.values[index])
