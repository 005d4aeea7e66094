"""Programs of 64-bit words, written down by running a function of lanes on values that record what is done to them.

The function is the one that NumPy and torch run (see :mod:`gemmdesc.operands.lanes`), so its C is the same program.
Words wrap around: sums, products and shifts to the left are unsigned in C, shifts to the right and comparisons signed,
and nothing is undefined there but a division by zero.  A value that is no constant has no truth and no size: a function
that branches on one does not trace.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gemmdesc.errors import InvalidInputError
from gemmdesc.operands.lanes import Lanes, as_signed

#: What the functions of :meth:`Program.c_function` need; C99 and CUDA.
C_PRELUDE = """\
typedef unsigned long long u64;
typedef long long i64;
#ifdef __CUDACC__
#define FUNCTION static __device__ __forceinline__
#else
#define FUNCTION static inline
#endif
FUNCTION u64 floor_div(i64 x, i64 y) {
  const i64 quotient = x / y;
  return (u64)(quotient - (i64)(((x ^ y) < 0) & (quotient * y != x)));
}
"""


class _Operation(NamedTuple):
    """An operation on ``u64`` words in C, and on int64 arrays."""

    c: str
    numpy: Callable[..., Any]


_OPERATIONS = {
    "add": _Operation("{0} + {1}", operator.add),
    "sub": _Operation("{0} - {1}", operator.sub),
    "mul": _Operation("{0} * {1}", operator.mul),
    "floordiv": _Operation("floor_div((i64){0}, (i64){1})", operator.floordiv),
    "lshift": _Operation("{0} << ({1} & 63)", lambda x, y: x << (y & 63)),
    "rshift": _Operation("(u64)((i64){0} >> ({1} & 63))", lambda x, y: x >> (y & 63)),
    "and": _Operation("{0} & {1}", operator.and_),
    "or": _Operation("{0} | {1}", operator.or_),
    "xor": _Operation("{0} ^ {1}", operator.xor),
    "neg": _Operation("0ULL - {0}", operator.neg),
    "invert": _Operation("~{0}", operator.invert),
    "eq": _Operation("(u64)({0} == {1})", lambda x, y: (x == y) * 1),
    "ne": _Operation("(u64)({0} != {1})", lambda x, y: (x != y) * 1),
    "lt": _Operation("(u64)((i64){0} < (i64){1})", lambda x, y: (x < y) * 1),
    "le": _Operation("(u64)((i64){0} <= (i64){1})", lambda x, y: (x <= y) * 1),
    "gt": _Operation("(u64)((i64){0} > (i64){1})", lambda x, y: (x > y) * 1),
    "ge": _Operation("(u64)((i64){0} >= (i64){1})", lambda x, y: (x >= y) * 1),
}


@dataclass(frozen=True)
class Input:
    """A word that the caller hands in."""

    name: str


@dataclass(frozen=True)
class Word:
    """A constant, in [-2^63, 2^63)."""

    value: int


@dataclass(frozen=True)
class Apply:
    """An operation on the results of earlier steps, given by number."""

    operation: str
    arguments: tuple[int, ...]


Step = Input | Word | Apply


@dataclass(frozen=True, kw_only=True)
class Program:
    """Steps in order, each at most once; ``result`` is the number of the step that gives the answer."""

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    result: int

    def c_function(self, name: str) -> str:
        """A C function ``u64 name(u64 input, ...)`` of straight-line code, to stand after ``C_PRELUDE``."""
        spelled, lines = [], []
        for number, step in enumerate(self.steps):
            match step:
                case Input(name=given):
                    spelled.append(given)
                case Word(value=value):
                    spelled.append(f"{value % (1 << 64):#x}ULL")
                case Apply(operation=operation, arguments=arguments):
                    spelled.append(f"v{number}")
                    expression = _OPERATIONS[operation].c.format(*(spelled[x] for x in arguments))
                    lines.append(f"  const u64 v{number} = {expression};\n")
        parameters = ", ".join(f"u64 {given}" for given in self.inputs)
        return f"FUNCTION u64 {name}({parameters}) {{\n{''.join(lines)}  return {spelled[self.result]};\n}}\n"

    def evaluate(self, **inputs: Lanes) -> Lanes:
        """The result on int64 arrays or Python integers that broadcast against one another.

        Raises:
            InvalidInputError: the names are not those of ``inputs``.
        """
        if set(inputs) != set(self.inputs):
            raise InvalidInputError(f"inputs must be {', '.join(self.inputs)} (got {', '.join(inputs)})")
        results: list[Lanes] = []
        for step in self.steps:
            match step:
                case Input(name=given):
                    results.append(np.atleast_1d(np.asarray(inputs[given], dtype=np.int64)))
                case Word(value=value):
                    results.append(np.array([value], dtype=np.int64))
                case Apply(operation=operation, arguments=arguments):
                    results.append(_OPERATIONS[operation].numpy(*(results[x] for x in arguments)))
        return results[self.result]


def trace(function: Callable[..., Lanes], inputs: tuple[str, ...]) -> Program:
    """The program of ``function``, called once with one keyword argument per input.

    Raises:
        InvalidInputError: it does something with a lane that no operation here stands for, or uses an integer that
            does not fit into 64 bits.
    """
    recorder = _Recorder()
    result = function(**{name: TracedLanes(recorder, recorder.number(Input(name))) for name in inputs})
    number = recorder.number_of(result)
    return Program(inputs=inputs, steps=tuple(recorder.numbers), result=number)


class _Recorder:
    """The steps so far, each with its number, in order."""

    def __init__(self) -> None:
        self.numbers: dict[Step, int] = {}

    def number(self, step: Step) -> int:
        return self.numbers.setdefault(step, len(self.numbers))

    def number_of(self, value: object) -> int:
        match value:
            case TracedLanes():
                return value.number
            case int() if value == as_signed(value):
                return self.number(Word(int(value)))
        raise InvalidInputError(f"lanes must meet lanes or integers of 64 bits (got {value!r})")


class Flag:
    """A comparison's result, which :func:`gemmdesc.operands.lanes.flag` makes a word of."""

    def __init__(self, word: TracedLanes) -> None:
        self._word = word

    def __mul__(self, other: object) -> TracedLanes:
        return self._word * other

    def __bool__(self) -> NoReturn:
        raise InvalidInputError("a branch must not depend on lanes (got a comparison of traced lanes)")


class TracedLanes:
    """Lanes that record every operation; compared, they give a :class:`Flag`.

    ``number`` is that of the step whose result they are.
    """

    __slots__ = ("_recorder", "number")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recorder: _Recorder, number: int) -> None:
        self._recorder, self.number = recorder, number

    def _apply(self, operation: str, *arguments: object) -> TracedLanes:
        step = Apply(operation, tuple(self._recorder.number_of(x) for x in arguments))
        return TracedLanes(self._recorder, self._recorder.number(step))

    def __bool__(self) -> NoReturn:
        raise InvalidInputError("a branch must not depend on lanes (got traced lanes)")

    def __neg__(self) -> TracedLanes:
        return self._apply("neg", self)

    def __invert__(self) -> TracedLanes:
        return self._apply("invert", self)

    def __add__(self, other: object) -> TracedLanes:
        return self._apply("add", self, other)

    def __radd__(self, other: object) -> TracedLanes:
        return self._apply("add", other, self)

    def __sub__(self, other: object) -> TracedLanes:
        return self._apply("sub", self, other)

    def __rsub__(self, other: object) -> TracedLanes:
        return self._apply("sub", other, self)

    def __mul__(self, other: object) -> TracedLanes:
        return self._apply("mul", self, other)

    def __rmul__(self, other: object) -> TracedLanes:
        return self._apply("mul", other, self)

    def __floordiv__(self, other: object) -> TracedLanes:
        return self._apply("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> TracedLanes:
        return self._apply("floordiv", other, self)

    def __lshift__(self, other: object) -> TracedLanes:
        return self._apply("lshift", self, other)

    def __rlshift__(self, other: object) -> TracedLanes:
        return self._apply("lshift", other, self)

    def __rshift__(self, other: object) -> TracedLanes:
        return self._apply("rshift", self, other)

    def __rrshift__(self, other: object) -> TracedLanes:
        return self._apply("rshift", other, self)

    def __and__(self, other: object) -> TracedLanes:
        return self._apply("and", self, other)

    def __rand__(self, other: object) -> TracedLanes:
        return self._apply("and", other, self)

    def __or__(self, other: object) -> TracedLanes:
        return self._apply("or", self, other)

    def __ror__(self, other: object) -> TracedLanes:
        return self._apply("or", other, self)

    def __xor__(self, other: object) -> TracedLanes:
        return self._apply("xor", self, other)

    def __rxor__(self, other: object) -> TracedLanes:
        return self._apply("xor", other, self)

    def __eq__(self, other: object) -> Flag:  # type: ignore[override]
        return Flag(self._apply("eq", self, other))

    def __ne__(self, other: object) -> Flag:  # type: ignore[override]
        return Flag(self._apply("ne", self, other))

    def __lt__(self, other: object) -> Flag:
        return Flag(self._apply("lt", self, other))

    def __le__(self, other: object) -> Flag:
        return Flag(self._apply("le", self, other))

    def __gt__(self, other: object) -> Flag:
        return Flag(self._apply("gt", self, other))

    def __ge__(self, other: object) -> Flag:
        return Flag(self._apply("ge", self, other))
