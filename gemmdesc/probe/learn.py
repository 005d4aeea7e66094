"""Learning an integer of a descriptor as an expression: enumerate by size, keep what every reading allows.

Expressions are enumerated bottom-up.  Those that agree on every reading and on the whole declared domain (the
environments met in the scan) are one class, represented by its smallest member; the classes that remain are the
survivors, and a further reading is worth most where they disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

from gemmdesc.errors import InvalidInputError
from gemmdesc.expressions import Call, Const, Expr, Operation, Var, apply, evaluate_all, size, variables

Values = npt.NDArray[np.int64]
_BINARY = tuple(o for o in Operation if o.arity == 2)
_LARGEST = 2**62
#: How many single grains are nested once more.
_GRAINS = 400
#: How many one-operation expressions are joined with all of them in the last stage.
_WIDE = 300
#: How many environments of the domain tell expressions apart.
_DOMAIN_SAMPLE = 64


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """The integers that one reading leaves open: ``low`` .. ``high``, both included."""

    low: int
    high: int

    @classmethod
    def exactly(cls, value: int) -> Allowed:
        return cls(low=value, high=value)

    @classmethod
    def at_least(cls, value: int) -> Allowed:
        return cls(low=value, high=_LARGEST)

    @property
    def exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, kw_only=True)
class Example:
    """One reading of one integer: what was allowed, and the variables there."""

    environment: Mapping[str, int]
    allowed: Allowed


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bank:
    """Expressions with their values on the readings, one row each."""

    expressions: tuple[Expr, ...]
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
) -> tuple[Expr, ...]:
    """The surviving expressions, smallest first, at most ``most``; empty if the space holds none.

    ``names`` are the variables of arithmetic, ``conditions`` those that a grain may depend on.  ``given`` are
    expressions already learned, used like variables; ``hints``, learned elsewhere, are tried first.  The search stops
    after the first stage that leaves survivors: hints, single atoms, one operation, two operations, a multiple of a
    grain, an operation on two operations.

    Raises:
        InvalidInputError: there are no examples.
    """
    if not examples:
        raise InvalidInputError("examples must hold at least one reading (got none)")
    search = _Search(examples, domain, (names, conditions), given)
    hinted = partial(search.hinted, hints)
    for stage in (hinted, search.atoms, search.one, search.two, search.grained, search.three):
        found = search.distinct(stage())
        if found:
            return tuple(found[:most])
    return ()


class _Search:
    """Banks hold values on the readings first, then on the domain; only the former decide what is allowed."""

    def __init__(
        self,
        examples: Sequence[Example],
        domain: Sequence[Mapping[str, int]],
        variables: tuple[Sequence[str], Sequence[str]],
        given: Sequence[Expr],
    ) -> None:
        every = [*(e.environment for e in examples), *domain[:: max(1, len(domain) // _DOMAIN_SAMPLE)]]
        self._names, self._conditions = ([n for n in v if all(n in e for e in every)] for v in variables)
        known = (*self._names, *self._conditions)
        self._all = {n: np.array([e[n] for e in every], dtype=np.int64) for n in known}
        self._width = len(every)
        self._read = len(examples)
        self._low = np.array([e.allowed.low for e in examples], dtype=np.int64)
        self._high = np.array([e.allowed.high for e in examples], dtype=np.int64)
        exact = {e.allowed.low for e in examples if e.allowed.exact and e.allowed.low <= 4096}
        constants = sorted({2**i for i in range(11)} | exact)[:24]
        self._grain_constants = [c for c in constants if 4 <= c <= 256 and c & (c - 1) == 0]
        self._atoms = self._bank([*(Var(n) for n in self._names), *given, *(Const(c) for c in constants)])
        self._one: _Bank | None = None

    def _bank(self, expressions: Sequence[Expr]) -> _Bank:
        values = [np.broadcast_to(evaluate_all(e, self._all), (self._width,)) for e in expressions]
        return _Bank(expressions=tuple(expressions), values=np.stack(values))

    def atoms(self) -> Iterator[Expr]:
        yield from self._consistent(self._atoms)

    def one(self) -> Iterator[Expr]:
        self._one = self._join(self._atoms, self._atoms)
        yield from self._consistent(self._one)

    def two(self) -> Iterator[Expr]:
        yield from self._pairs(self._one or self._atoms, self._atoms)

    def hinted(self, hints: Sequence[Expr]) -> Iterator[Expr]:
        usable = [h for h in hints if variables(h) and variables(h) <= set(self._all)]
        if usable:
            yield from self._consistent(self._bank(usable))

    def grained(self) -> Iterator[Expr]:
        """Multiples of a grain, ``select(when, grain, grain)`` nested up to twice: an alignment that x may lack."""
        constants: list[Expr] = [Const(c) for c in self._grain_constants]
        whens: list[Expr] = [Call(Operation.MOD, (Var(n), c)) for n in self._names for c in constants]
        whens += [Var(n) for n in self._conditions]
        near = self._just_below(self._one or self._atoms)
        if not len(near):
            return
        once = _distinct(self._bank(_selects(whens, constants, constants)))
        yield from self._pairs(near, once, (Operation.ROUND_UP,))
        twice = _distinct(self._bank(_selects(whens, constants, once.expressions[:_GRAINS])))
        yield from self._pairs(near, twice, (Operation.ROUND_UP,))

    def _just_below(self, bank: _Bank) -> _Bank:
        """Expressions that rounding up by less than the largest grain could make allowed."""
        reach = max(self._grain_constants, default=1)
        values = bank.values[:, : self._read]
        ok = ((values <= self._high) & (values > self._low - reach)).all(axis=1)
        return _take(bank, np.flatnonzero(ok))

    def three(self) -> Iterator[Expr]:
        one = self._one or self._atoms
        yield from self._pairs(_take(one, np.arange(min(len(one), _WIDE))), one)

    def _allowed(self, values: Values) -> npt.NDArray[np.bool_]:
        return np.asarray(((values >= self._low) & (values <= self._high)).all(axis=1), dtype=np.bool_)

    def _consistent(self, bank: _Bank) -> Iterator[Expr]:
        for i in np.flatnonzero(self._allowed(bank.values[:, : self._read])):
            yield bank.expressions[i]

    def _pairs(
        self, left: _Bank, right: _Bank, operations: Sequence[Operation] = _BINARY
    ) -> Iterator[Expr]:
        """Consistent applications of the operations to one of each bank, nothing kept; in both orders if of all."""
        readings = left.values[:, : self._read]
        for operation, j in product(operations, range(len(right))):
            row = right.values[j][None, : self._read]
            both = operations is _BINARY and not operation.commutes
            for swapped in (False, True) if both else (False,):
                values = apply(operation, *((row, readings) if swapped else (readings, row)))
                for i in np.flatnonzero(self._allowed(values)):
                    pair = (left.expressions[i], right.expressions[j])
                    yield Call(operation, pair[::-1] if swapped else pair)

    def _join(self, left: _Bank, right: _Bank) -> _Bank:
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
        return _Bank(expressions=tuple(expressions), values=whole[kept])

    def distinct(self, found: Iterator[Expr]) -> list[Expr]:
        """One expression, the smallest, for each function on readings and domain; smallest first."""
        by_values: dict[bytes, Expr] = {}
        for expression in found:
            values = np.ascontiguousarray(np.broadcast_to(evaluate_all(expression, self._all), (self._width,)))
            best = by_values.get(values.tobytes())
            if best is None or (size(expression), str(expression)) < (size(best), str(best)):
                by_values[values.tobytes()] = expression
        return sorted(by_values.values(), key=lambda e: (size(e), str(e)))


def _selects(whens: Sequence[Expr], one: Sequence[Expr], other: Sequence[Expr]) -> list[Expr]:
    """Both orders of ``select`` between a constant and something else."""
    pairs = [(x, y) for x, y in product(one, other) if x != y]
    return [
        Call(Operation.SELECT, (w, *order)) for w, (x, y) in product(whens, pairs) for order in ((x, y), (y, x))
    ]


def _distinct(bank: _Bank) -> _Bank:
    """The first expression of each distinct row of values."""
    return _take(bank, _first_rows(bank.values))


def _first_rows(values: Values) -> npt.NDArray[np.intp]:
    """Indices of the first occurrence of each distinct row, ascending; rows are told apart by a 64-bit mix."""
    rows = np.ascontiguousarray(values).view(np.uint64)
    multipliers = np.random.default_rng(0).integers(0, 2**63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed = (rows * multipliers) ^ ((rows * multipliers) >> np.uint64(29))
    _, first = np.unique(mixed.sum(axis=1, dtype=np.uint64), return_index=True)
    return np.sort(first)


def _take(bank: _Bank, index: npt.NDArray[np.intp]) -> _Bank:
    return _Bank(expressions=tuple(bank.expressions[i] for i in index), values=bank.values[index])
