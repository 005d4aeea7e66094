"""From readings to rules: pure, offline, and without a list of known recipes.

A reading allows a set of step structures, a nest of cuts and a set of types.  Readings of one class of answers are
intersected; every integer that is left open is learned as an expression; what still differs afterwards, but for no
environment of the declared domain, is not a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    OperandCast,
    Rounding,
    Short,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.expressions import Const, Expr, Var, evaluate
from gemmdesc.normal_form import normal_form
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.epilogues import with_epilogues
from gemmdesc.probe.formats import operand_casts
from gemmdesc.probe.learn import Example, learn_integer
from gemmdesc.probe.nest import Level, NestError, compress_parts
from gemmdesc.probe.reading import Reading, StepArithmetic
from gemmdesc.probe.steps import StepOption, step_options
from gemmdesc.problem import environment
from gemmdesc.rule import Rule, evaluate_rule, make_rule

#: At most this many surviving rules are carried along.
MOST_SURVIVORS = 24
#: Environments on which surviving rules are told apart.
_TOLD_APART_ON = 12
#: An accumulator's exponent floor where no operand of the type can show another value for an exact zero.
_DEFAULT_ZERO_EXPONENT = DType.FLOAT32.format.min_exponent
_TYPE_BY_BITS = {d.format.fraction_bits: d for d in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)}


@dataclass(frozen=True, kw_only=True)
class Unexplained:
    """No rule of the space explains the readings; ``reason`` says what stood in the way."""

    reason: str
    scalar: bool = False


@dataclass(frozen=True, kw_only=True)
class Types:
    """One choice of storage types and start for a fold."""

    partial: DType
    merge: DType
    start: Start


def infer_rules(
    readings: Sequence[Reading],
    domain: Sequence[Mapping[str, int]],
    hints: Sequence[Expr] = (),
    preferred: Sequence[Expr] = (),
    zero_exponent: int | None = None,
) -> tuple[Rule, ...] | Unexplained:
    """The rules that explain every reading, simplest first, one for each behaviour on the readings and the domain.

    ``domain``: environments (see :func:`gemmdesc.problem.environment`) on which the rule will be asked.  ``hints``:
    expressions that explained other answers, tried before any others; ``preferred``: for spans, before those.
    ``zero_exponent``: as measured on another operand type of the same card, where these readings cannot show it.
    """
    if not readings:
        return Unexplained(reason="there are no readings")
    if any(r.fused is False for r in readings):
        if any(r.fused for r in readings):
            return Unexplained(reason="some readings fuse products in one step, some do not")
        return Unexplained(reason="no three products meet in one fused step", scalar=True)
    if not any(r.fused for r in readings):
        return Unexplained(reason="too few products to tell a fused step from two additions")
    readings = [r for r in readings if r.fused]
    trouble = [a for r in readings for a in r.anomalies]
    if trouble:
        return Unexplained(reason="; ".join(trouble[:3]))
    try:
        nests = [compress_parts(r.part_tree, r.part_ends) for r in readings]
    except NestError as error:
        return Unexplained(reason=str(error))
    step = _fused_dot([r.arithmetic for r in readings], zero_exponent)
    options = step_options(readings)
    casts = operand_casts(readings)
    if casts is None:
        return Unexplained(reason="what is multiplied of the operands fits no cast to tfloat32")
    if step is None or not options:
        what = "step arithmetic" if step is None else "step boundaries"
        return Unexplained(reason=f"the readings allow no {what}")
    depth = max(len(n) for n in nests)
    types = fold_types(readings) if depth else [Types(partial=DType.FLOAT32, merge=DType.FLOAT32, start=Start.FIRST)]
    environments = [environment(r.problem, r.answer, None) for r in readings]
    integers = _learn(readings, nests, environments, domain, (preferred, hints))
    if integers is None or not types:
        return Unexplained(reason="no expression of the space gives the integers read" if types else "types contradict")
    shorts = _shorts(nests, depth)
    rules = [
        _rule(readings[0], step, o, shorts, t, dict(zip(_paths(depth), chosen, strict=True)))
        for o, t in product(options, types)
        for chosen in integers
    ]
    rules = [_cast(rule, casts) for rule in rules[: 2 * MOST_SURVIVORS]]
    found = with_epilogues(distinct_rules(rules, [*environments, *domain])[:MOST_SURVIVORS], readings)
    return found or Unexplained(reason="no sequence of steps after the sum gives what was read")


def _cast(rule: Rule, casts: tuple[OperandCast | None, OperandCast | None]) -> Rule:
    return rule.restructured(lambda desc: replace(desc, a_cast=casts[0], b_cast=casts[1]))


def distinct_rules(rules: Sequence[Rule], environments: Sequence[Mapping[str, int]]) -> tuple[Rule, ...]:
    """The first rule of each behaviour over the ``environments``, those of small k: a dozen or so suffice."""
    spread = sorted(environments, key=lambda e: e["k"])[:: max(1, len(environments) // (2 * _TOLD_APART_ON))]
    kept: dict[tuple[str, ...], Rule] = {}
    for rule in rules:
        kept.setdefault(behaviour(rule, spread[:_TOLD_APART_ON]), rule)
    return tuple(kept.values())


def behaviour(rule: Rule, environments: Sequence[Mapping[str, int]]) -> tuple[str, ...]:
    """The normal form's digest in each environment, or "declined"."""
    return tuple(_digest(rule, e) for e in environments)


def _digest(rule: Rule, values: Mapping[str, int]) -> str:
    desc = evaluate_rule(rule, values)
    return normal_form(desc, values["k"]).digest if isinstance(desc, GEMMDesc) else "declined"


def _paths(depth: int) -> list[str]:
    return ["summed_k", *(f"cuts.{i}.layout.span" for i in range(depth))]


def _learn(
    readings: Sequence[Reading],
    nests: Sequence[tuple[Level, ...]],
    environments: Sequence[Mapping[str, int]],
    domain: Sequence[Mapping[str, int]],
    offered: tuple[Sequence[Expr], Sequence[Expr]],
) -> list[tuple[Expr, ...]] | None:
    """Expressions for ``summed_k`` and each span; None where one of them has none."""
    depth = max(len(n) for n in nests)
    preferred, hints = offered
    spans: list[tuple[Expr, ...]] = []
    for level in range(depth):
        allowed = [_span_allowed(r, n, level, depth) for r, n in zip(readings, nests, strict=True)]
        examples = _examples(environments, allowed)
        found = tuple(e for e in preferred if all(_within(e, x) for x in examples))[:1]
        found = found or learn_integer(examples, domain, hints=hints)
        if not found:
            return None
        spans.append(found)
    if all(r.summed_k == r.problem.k for r in readings):
        return [(Var("k"), *chosen) for chosen in product(*(s[:6] for s in spans))]
    summed = [Allowed.exactly(r.summed_k) for r in readings]
    out: list[tuple[Expr, ...]] = []
    for chosen in product(*(s[:6] for s in spans)):
        for total in learn_integer(_examples(environments, summed), domain, given=chosen[:1], hints=hints)[:4]:
            out.append((total, *chosen))
    return out or None


def _within(expression: Expr, example: Example) -> bool:
    return example.allowed.low <= evaluate(expression, example.environment) <= example.allowed.high


def _examples(environments: Sequence[Mapping[str, int]], allowed: Sequence[Allowed]) -> list[Example]:
    return [Example(environment=e, allowed=a) for e, a in zip(environments, allowed, strict=True)]


def _span_allowed(reading: Reading, nest: tuple[Level, ...], level: int, depth: int) -> Allowed:
    """Levels are matched from the innermost; a level that this reading does not show is a single part."""
    index = level - (depth - len(nest))
    if index >= 0:
        return Allowed(low=nest[index].span, high=nest[index].longest)
    # A last accumulator of a single k cannot be seen (walks.read_part_ends).
    return Allowed.at_least(max(1, reading.summed_k - 1))


def _shorts(nests: Sequence[tuple[Level, ...]], depth: int) -> list[Short]:
    """Where the short part falls, by level, from any reading that shows one; last where none does."""
    out = []
    for level in range(depth):
        shown = [n[level - (depth - len(n))].short for n in nests if level - (depth - len(n)) >= 0]
        out.append(next((s for s in shown if s is Short.FIRST), Short.LAST))
    return out


def _fused_dot(measured: Sequence[StepArithmetic], zero_exponent: int | None) -> FusedDot | None:
    """The one step that all readings allow; None where they contradict or none of them calibrated it."""
    values = {
        name: {getattr(m, name) for m in measured} - {None}
        for name in ("fraction_bits", "output_bits", "toward_zero", "zero_exponent")
    }
    if any(len(v) > 1 for v in values.values()):
        return None
    one = {name: next(iter(v), None) for name, v in values.items()}
    if one["fraction_bits"] is None or one["output_bits"] is None or one["toward_zero"] is None:
        return None
    zero = one["zero_exponent"] if one["zero_exponent"] is not None else zero_exponent
    return FusedDot(
        fraction_bits=one["fraction_bits"],
        output_bits=one["output_bits"],
        rounding=Rounding.TOWARD_ZERO if one["toward_zero"] else Rounding.NEAREST_EVEN,
        zero_exponent=_DEFAULT_ZERO_EXPONENT if zero is None else zero,
    )


def fold_types(readings: Sequence[Reading]) -> list[Types]:
    """Types that every reading allows, plainest first."""
    out = []
    stored = (DType.FLOAT32, readings[0].problem.c_dtype)
    for partial, merge, start in product(stored, stored, Start):
        choice = Types(partial=partial, merge=merge, start=start)
        if choice not in out and all(_allows(r, choice) for r in readings):
            out.append(choice)
    return out


def _allows(reading: Reading, choice: Types) -> bool:
    merge, carried = reading.merge, reading.arithmetic.output_bits
    if not (_keeps(choice.partial, merge.partial_bits, carried) and _keeps(choice.merge, merge.running_bits, carried)):
        return False
    if merge.nearest is False:
        return False
    return merge.starts_at_zero is None or merge.starts_at_zero == (choice.start is Start.ZERO)


def _keeps(dtype: DType, bits: int | None, carried: int | None) -> bool:
    """Whether so many fraction bits may be seen of a value stored as ``dtype``, of which accumulators keep ``carried``.

    A type that holds more than an accumulator keeps shows no more than that.
    """
    if bits is None or _TYPE_BY_BITS.get(bits) is dtype:
        return True
    return bits == carried and dtype.format.fraction_bits > bits


def _rule(
    reading: Reading,
    step: FusedDot,
    option: StepOption,
    shorts: Sequence[Short],
    types: Types,
    integers: Mapping[str, Expr],
) -> Rule:
    plain = Types(partial=DType.FLOAT32, merge=DType.FLOAT32, start=Start.FIRST)
    cuts = tuple(
        Cut(layout=Contiguous(span=1, short=short), partial_dtype=t.partial, merge_dtype=t.merge, start=t.start)
        for short, t in zip(shorts, [types, *[plain] * len(shorts)], strict=False)
    )
    desc = GEMMDesc(
        a_dtype=reading.problem.a_dtype,
        b_dtype=reading.problem.b_dtype,
        output_dtype=reading.problem.d_dtype,
        summed_k=1,
        cuts=cuts,
        accumulator=Accumulator(instruction_k=option.instruction_k, residue=option.residue, step=step),
    )
    constants: dict[str, Expr] = {"accumulator.instruction_k": Const(option.instruction_k)}
    if option.k_loop_step is not None:
        constants["accumulator.residue.k_loop_step"] = Const(option.k_loop_step)
    return make_rule(desc, {**integers, **constants})
