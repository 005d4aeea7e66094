"""Which operations were unstable: the tests behind the counters."""

from __future__ import annotations

from typing import Any

from gemmdesc.numerics.stochastic.counters import Kind

_ADDITIONS = ("add", "sub")


def after_operation(name: str, left: Any, right: Any, result: Any) -> None:
    """Count what an operation on two operands met; one of them may be a constant, which is without error."""
    run, xp = result.run, result.xp
    operands = [x for x in (left, right) if hasattr(x, "samples")]
    found = result.estimate()
    events = [(Kind.MATHEMATICAL, _appeared(xp, operands, found))]
    if name in _ADDITIONS:
        before = [xp.round(x.estimate().digits) for x in operands]
        least = before[0] if len(before) == 1 else xp.minimum(*before)
        events.append((Kind.CANCELLATION, least >= xp.round(found.digits) + run.settings.cancellation_digits))
    if name == "div" and hasattr(right, "samples"):
        events.append((Kind.DIVISION, right.estimate().noise))
    if name == "mul" and len(operands) == 2:
        events.append((Kind.MULTIPLICATION, left.estimate().noise & right.estimate().noise))
    if name == "pow" and hasattr(right, "samples"):
        events.append((Kind.POWER, right.estimate().noise))
    if name in ("div", "pow"):
        events.append((Kind.INTRINSIC, found.digits <= run.settings.noise_digits))
    run.counters.record(name, [(kind, xp.broadcast_to(lanes, result.shape)) for kind, lanes in events])


def after_function(name: str, operand: Any, result: Any) -> None:
    """Count what a function of one operand met."""
    run, xp = result.run, result.xp
    found = result.estimate()
    if name == "abs":
        positive, negative = (operand.samples > 0).any(0), (operand.samples < 0).any(0)
        unstable = positive & negative
    else:
        unstable = found.finite & (found.digits <= run.settings.noise_digits)
    run.counters.record(name, [(Kind.MATHEMATICAL, _appeared(xp, [operand], found)), (Kind.INTRINSIC, unstable)])


def after_comparison(name: str, run: Any, difference: Any) -> None:
    """Count where a branch would be taken on noise."""
    run.counters.record(name, [(Kind.BRANCHING, difference.noise)])


def _appeared(xp: Any, operands: list[Any], found: Any) -> Any:
    """Where a result is not finite though its operands were."""
    before = operands[0].estimate().finite
    for operand in operands[1:]:
        before = before & operand.estimate().finite
    return before & ~found.finite
