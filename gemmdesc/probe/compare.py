"""Comparing rules with the library on draws: the step that eliminates and the step that verifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

import numpy as np

from gemmdesc.bits import bitwise_equal, from_float32, to_float32
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.interface import NO_INPUTS, Inputs, Library, Replaying, Window, tanh_approx_of
from gemmdesc.mutants import mutants
from gemmdesc.normal_form import normal_form
from gemmdesc.operands import ConstantOperand, Family, HashOperand, MaskedOperand, Operand, RetypedOperand
from gemmdesc.probe.beside import Asked, crosscheck, distinct_orders, product_and_replays, replays
from gemmdesc.probe.courses import has_gelu
from gemmdesc.probe.reader import empty_inputs
from gemmdesc.probe.scan import Example
from gemmdesc.probe.telling import worth_mutants
from gemmdesc.problem import ComputeType, Failed, GemmProblem, ScalarClass, environment, is_float8
from gemmdesc.regions import PLACE, Region, evaluate_regions
from gemmdesc.rivals import rival_set_operands
from gemmdesc.rule import Rule

#: Rows and columns of D that one comparison replays, at most.
WINDOW_SIDE = 16
#: Rows (or columns) of D that a comparison with rivals replays: each was built against one of them.
RIVAL_ROWS = 96
#: Matrices of a batch that a comparison replays rows of, unless they have too few.
_MATRICES = 4
#: Families of the plain draws, in turn.  Where sums cancel, a narrow output still shows the order, elsewhere seldom;
#: where all products are -0.0, the sign of the sum shows how it starts.
FAMILIES = (
    Family.CANCELLING, Family.NEGATIVE_ZERO, Family.WIDE, Family.SPECIALS, Family.CANCELLING, Family.RAMP,
)  # fmt: skip
#: The bits of a float32 pattern down to the one below tfloat32's last.
_TIES = 0xFFFFF000


class Verdict(Enum):
    """What one comparison says of a rule."""

    EQUAL = "equal"
    DIFFERENT = "different"
    DECLINED = "declined"
    REFERENCE_FAILED = "reference_failed"
    NONDETERMINISTIC = "nondeterministic"


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One pair of operands: of a family, or built against rivals.

    ``number`` names the family unless ``family`` does; of rival draws, even ones cancel and odd ones are tiny
    (``rival_set_operands``).  ``at``: a row and a column of D that the window holds.
    """

    seed: int
    number: int
    rival: bool
    family: Family | None = None
    at: tuple[int, int] | None = None


def plain_draws(seed: int, count: int, first: int = 0) -> tuple[Draw, ...]:
    return tuple(Draw(seed=seed, number=first + i, rival=False) for i in range(count))


def rival_draws(seed: int, count: int, first: int = 0) -> tuple[Draw, ...]:
    return tuple(Draw(seed=seed, number=first + i, rival=True) for i in range(count))


def surroundings(library: Library, example: Example, rules: Sequence[Rule]) -> dict[str, int]:
    """The variables of the example; the library's launch is asked for where one of the rules needs it."""
    needed = any(needs_launch(rule, example) for rule in rules)
    launch = library.launch(example.problem, example.answer) if needed else None
    return environment(example.problem, example.answer, launch)


def needs_launch(rule: Rule, example: Example) -> bool:
    """Whether the rule has variables that only the example's launch gives."""
    return not rule.variables - PLACE <= set(environment(example.problem, example.answer, None))


def describe(rule: Rule, values: Mapping[str, int]) -> tuple[Region, ...] | None:
    """The rule's orders, by rectangles of D; None where it declines."""
    found = evaluate_regions(rule, values)
    return None if isinstance(found, Declined) else found


def compare_rules(
    library: Library,
    example: Example,
    rules: Sequence[Rule],
    draws: Sequence[Draw],
    *,
    side: int = WINDOW_SIDE,
    others: Sequence[Rule] = (),
) -> tuple[Verdict, ...]:
    """One verdict for each rule over all ``draws``: different as soon as one byte of one draw differs.

    At most ``side`` rows and columns of D are compared.  Rival draws are built against what the ``others`` would give
    here, and against mutants.

    Raises:
        CampaignError: the library replays on its device, and a replay there differs from the CPU's.
    """
    values = surroundings(library, example, (*rules, *others))
    descs = [describe(r, values) for r in rules]
    known = [d for d in (*(describe(r, values) for r in others), *descs) if d is not None]
    rivals = tuple(dict.fromkeys(r.descriptor for d in known for r in d))
    verdicts = [Verdict.DECLINED if d is None else Verdict.EQUAL for d in descs]
    problem = example.problem

    def prepared(draw: Draw) -> tuple[Operand, Operand, Window] | None:
        lead = next((d for d, v in zip(descs, verdicts, strict=True) if d is not None and v is Verdict.EQUAL), None)
        if lead is None:
            return None
        # Where elements have several orders, every draw looks at one rectangle, small ones as often as large ones.
        region = _region(problem, lead, draw)
        return (*operands(problem, region.descriptor, draw, rivals), choose_window(problem, draw, side, region))

    # The library's product is waited for by another thread: this one makes the next operands meanwhile, and replays
    # the product where the library does not.
    with ThreadPoolExecutor(1) as waiting:
        following = prepared(draws[0]) if draws else None
        for place in range(len(draws)):
            if following is None or Verdict.EQUAL not in verdicts:
                break
            made, window = following[:2], following[2]
            inputs = draw_inputs(problem, draws[place])
            alive = [i for i, v in enumerate(verdicts) if v is Verdict.EQUAL]
            orders = distinct_orders([descs[i] for i in alive], problem)
            asked = Asked(example, made, window, inputs, orders, tanh_approx_of(library))
            both = waiting.submit(product_and_replays, library, asked)
            expected = None if isinstance(library, Replaying) else replays(asked)
            following = prepared(draws[place + 1]) if place + 1 < len(draws) else None
            found = both.result()
            if isinstance(found, Failed):
                return tuple(Verdict.DECLINED if d is None else Verdict.REFERENCE_FAILED for d in descs)
            if expected is None:
                expected = found[1]
                crosscheck(asked, expected, draws[place].seed + draws[place].number)
            for i, same in zip(alive, asked.places, strict=True):
                if not bitwise_equal(expected[same], found[0]):
                    verdicts[i] = Verdict.DIFFERENT
    return tuple(verdicts)


def _region(problem: GemmProblem, regions: Sequence[Region], draw: Draw) -> Region:
    turn = regions[draw.number % len(regions)]
    if draw.at is None:
        return turn
    row, column = draw.at[0] % problem.m, draw.at[1]
    holding = (
        r for r in regions if r.row_begin <= row < r.row_end and r.column_begin <= column < r.column_end
    )
    return next(holding, turn)


def operands(
    problem: GemmProblem, desc: GEMMDesc, draw: Draw, others: Sequence[GEMMDesc] = ()
) -> tuple[Operand, Operand]:
    """The draw's operands; a rival draw pits ``desc`` against all of the others and of its mutants that differ here."""
    if draw.rival:
        own = normal_form(desc, problem.k)
        changed = [m.desc for m in mutants(desc, problem.k)] if worth_mutants(desc, problem.k) else []
        pool = {normal_form(d, problem.k): d for d in (*others, *changed)}
        pool.pop(own, None)
        made = _rivals(problem, desc, tuple(pool.values()), draw)
        if made is not None:
            return made
    return plain_operands(problem, draw)


def _rivals(
    problem: GemmProblem, desc: GEMMDesc, others: Sequence[GEMMDesc], draw: Draw
) -> tuple[Operand, Operand] | None:
    """Operands against rivals, the patterns in the operand of the longer side; of tfloat32 values where it is cast."""
    along_m = problem.m >= problem.n
    types = (problem.a_dtype, problem.b_dtype) if along_m else (problem.b_dtype, problem.a_dtype)
    cast = desc.a_cast or desc.b_cast
    dtype = types[0] if cast is None else cast.dtype
    made = rival_set_operands(desc, others, problem.k, seed=draw.seed, draw=draw.number, dtype=dtype)
    if made is None:
        return None
    walked, steady = made
    if cast is not None:
        # tfloat32 patterns are float32 patterns too.
        walked, steady = (RetypedOperand(source=x, dtype=types[0]) for x in made)
    elif types[1] is not dtype:
        value = to_float32(steady.bits(1, 1), dtype)
        if (to_float32(from_float32(value, types[1]), types[1]) != value).any():
            return None
        steady = ConstantOperand(dtype=types[1], value_bits=int(from_float32(value, types[1])[0, 0]))
    return (walked, steady) if along_m else (steady, walked)


def draw_inputs(problem: GemmProblem, draw: Draw) -> Inputs:
    """What the draw's product takes beside its operands: hashed C and bias, and scalars that are no powers of two.

    Rivals differ in their sums; they meet zeros and ones.
    """
    p, empty = problem, empty_inputs(problem)
    if draw.rival:
        return empty
    rng = np.random.default_rng([draw.seed, draw.number, 1])
    odd = [float(np.float32(rng.uniform(0.25, 4.0))) for _ in range(5)]
    scaled, other = is_float8(p.a_dtype), ScalarClass.OTHER
    if not (scaled or empty.c or empty.bias or p.alpha is other):
        return NO_INPUTS
    return Inputs(
        alpha=odd[0] if p.alpha is other else 1.0,
        beta=odd[1] if p.beta is other else empty.beta,
        a_scale=odd[2] if scaled else 1.0,
        b_scale=odd[3] if scaled else 1.0,
        d_scale=odd[4] if scaled and is_float8(p.d_dtype) else 1.0,
        c=None if empty.c is None else _hashed(p.c_dtype, draw, 1 << 20),
        bias=None if empty.bias is None else _hashed(p.bias_dtype, draw, 1 << 21, moderate=has_gelu(p)),
    )


def _hashed(dtype: DType, draw: Draw, salt: int, *, moderate: bool = False) -> Operand:
    family = Family.NORMAL if moderate and draw.number % 2 else FAMILIES[draw.number % len(FAMILIES)]
    return HashOperand(dtype=dtype, family=family, seed=draw.seed ^ salt, draw=draw.number, role="a")


def plain_operands(problem: GemmProblem, draw: Draw) -> tuple[Operand, Operand]:
    """Hashed operands of the draw's family.

    Where float32 operands may be rounded to tfloat32, every second draw lies on ties of that format, or every NORMAL
    one where the draw names its family; where gelu follows, the sums of as many are about one.
    """
    odd = draw.number % 2 == 1
    moderate, ties = (odd, not odd) if draw.family is None else (draw.family is Family.NORMAL,) * 2
    if has_gelu(problem) and moderate:
        return moderate_operands(problem, draw.seed, draw.number)
    family = draw.family or FAMILIES[draw.number % len(FAMILIES)]
    a: Operand = HashOperand(dtype=problem.a_dtype, family=family, seed=draw.seed, draw=draw.number, role="a")
    b: Operand = HashOperand(dtype=problem.b_dtype, family=family, seed=draw.seed, draw=draw.number, role="b")
    if problem.compute_type is ComputeType.COMPUTE_32F_FAST_TF32 and ties:
        a, b = MaskedOperand(source=a, mask=_TIES), MaskedOperand(source=b, mask=_TIES)
    return a, b


def moderate_operands(problem: GemmProblem, seed: int, number: int) -> tuple[Operand, Operand]:
    """Hashed elements along the longer side and one power of two in the other operand, so that sums are about one.

    There gelu's tangent is neither one nor its argument, and its forms differ.
    """
    along_m = problem.m >= problem.n
    types = (problem.a_dtype, problem.b_dtype) if along_m else (problem.b_dtype, problem.a_dtype)
    walked = HashOperand(dtype=types[0], family=Family.NORMAL, seed=seed, draw=number, role="a")
    size = from_float32(np.array([2.0 ** -(problem.k.bit_length() // 2)], np.float32), types[1])
    steady = ConstantOperand(dtype=types[1], value_bits=int(size[0]))
    return (walked, steady) if along_m else (steady, walked)


def choose_window(
    problem: GemmProblem, draw: Draw, side: int = WINDOW_SIDE, region: Region | None = None
) -> Window:
    """Rows and columns spread over D, or over a rectangle of it, first and last ones included, others by the seed.

    A rival draw differs from row to row of the longer axis only, so that its window is long and narrow.  What the draw
    is ``at`` is always among them.
    """
    found = _spread_window(problem, draw, side, region)
    if draw.at is None:
        return found
    row, column = draw.at
    return Window(rows=np.union1d(found.rows, [row]), columns=np.union1d(found.columns, [column]))


def _spread_window(problem: GemmProblem, draw: Draw, side: int, region: Region | None) -> Window:
    rng = np.random.default_rng([draw.seed, draw.number])
    rows, columns = side, side
    if draw.rival:
        rows, columns = (RIVAL_ROWS, 2) if problem.m >= problem.n else (2, RIVAL_ROWS)
    if region is None or region.elements == problem.m * problem.n:
        return Window(rows=_spread_rows(rng, problem, rows), columns=_spread(rng, problem.n, columns))
    height, width = region.row_end - region.row_begin, region.column_end - region.column_begin
    return Window(
        rows=region.row_begin + _spread(rng, height, rows), columns=region.column_begin + _spread(rng, width, columns)
    )


def _spread_rows(rng: np.random.Generator, problem: GemmProblem, count: int) -> np.ndarray:
    """Rows of D; of a batch from few of its matrices, first and last ones included: each is replayed by itself."""
    p = problem
    if p.batch_count == 1:
        return _spread(rng, p.m, count)
    matrices = _spread(rng, p.batch_count, max(_MATRICES, -(-count // p.m)))
    each = -(-count // len(matrices))
    return np.concatenate([matrix * p.m + _spread(rng, p.m, each) for matrix in matrices])


def _spread(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    if size <= count:
        return np.arange(size, dtype=np.int64)
    inner = rng.integers(0, size, size=max(0, count - 2))
    return np.unique(np.concatenate([[0, size - 1], inner])).astype(np.int64)
