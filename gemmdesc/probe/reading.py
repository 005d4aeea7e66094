"""What was read off one problem and one answer: plain values, saved with the campaign and inferred from offline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gemmdesc.descriptor import Rounding
from gemmdesc.errors import InvalidInputError
from gemmdesc.plain import answer_from_plain, launch_from_plain, problem_from_plain, to_plain
from gemmdesc.probe.tree import Tree
from gemmdesc.problem import AlgoConfig, GemmProblem, Launch


@dataclass(frozen=True, kw_only=True)
class StepWindow:
    """Step boundaries in ``begin`` .. ``end``.

    ``ends`` lists every b there where k = b - 1 and k = b lie in different steps; boundaries at ``begin`` + 1
    are not known.
    """

    begin: int
    end: int
    ends: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StepArithmetic:
    """The step as measured; None where this problem could not show it.

    ``fraction_bits``: of the alignment inside a step.  ``output_bits``: kept from one step to the next.
    ``toward_zero``: both roundings truncate (False: nearest).  ``zero_exponent``: what an exact zero counts as.
    """

    fraction_bits: int | None = None
    output_bits: int | None = None
    toward_zero: bool | None = None
    zero_exponent: int | None = None


@dataclass(frozen=True, kw_only=True)
class MergeTypes:
    """Fraction bits that survive in a stored partial and in the running sum; None where it cannot be seen.

    ``starts_at_zero``: whether all-(-0.0) partials come out as +0.0; None where no partial can be -0.0.
    """

    partial_bits: int | None = None
    running_bits: int | None = None
    nearest: bool | None = None
    starts_at_zero: bool | None = None


@dataclass(frozen=True, kw_only=True)
class OperandFormat:
    """The fraction bits of a float32 operand that are multiplied, and how it is rounded to them (None: all are kept).

    ``fraction_bits`` is None where what came out fits no rounding.
    """

    fraction_bits: int | None
    rounding: Rounding | None


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A few products, all others zero, what they met after their sum, and the ``output`` (NaN until it was asked)."""

    pattern: tuple[tuple[int, float], ...]
    alpha: float
    beta: float
    a_scale: float
    b_scale: float
    d_scale: float
    c: float
    bias: float
    output: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Reading:
    """``part_ends``: exclusive ends of the accumulators, ascending, the last one ``summed_k``.

    ``part_tree`` joins part numbers; ``windows`` hold step boundaries (absolute k).  ``fused``: whether several
    products meet in one step (None: too few products to tell); where they do not, nothing further was read but the
    tree over k, of all of them or of some, and ``negative_zero``, whether the output is -0.0 where every product is.
    ``a_format``, ``b_format``: what is multiplied of float32 operands; ``fused_products``: whether their products enter
    sums on CUDA cores unrounded.  ``beside``: what scales, C and a bias did.  ``launch``: what the library
    would enqueue, if that was captured.  ``anomalies`` say in words what fits no hypothesis.
    """

    problem: GemmProblem
    answer: AlgoConfig
    summed_k: int
    part_ends: tuple[int, ...]
    part_tree: Tree
    windows: tuple[StepWindow, ...]
    arithmetic: StepArithmetic
    merge: MergeTypes
    fused: bool | None
    element_tree: Tree | None = None
    negative_zero: bool | None = None
    a_format: OperandFormat | None = None
    b_format: OperandFormat | None = None
    fused_products: bool | None = None
    beside: tuple[Beside, ...] = ()
    launch: Launch | None = None
    anomalies: tuple[str, ...] = ()
    launches: int = 0
    experiments: int = 0


def reading_to_plain(reading: Reading) -> dict[str, Any]:
    """JSON-ready form."""
    plain: dict[str, Any] = to_plain(reading)
    return plain


def reading_from_plain(data: dict[str, Any]) -> Reading:
    """The reading that :func:`reading_to_plain` wrote.

    Raises:
        InvalidInputError: a field is missing or unknown.
    """
    try:
        return Reading(
            **{
                **data,
                "problem": problem_from_plain(data["problem"]),
                "answer": answer_from_plain(data["answer"]),
                "part_ends": tuple(data["part_ends"]),
                "part_tree": _tree(data["part_tree"]),
                "element_tree": None if data["element_tree"] is None else _tree(data["element_tree"]),
                "launch": None if data.get("launch") is None else launch_from_plain(data["launch"]),
                "windows": tuple(StepWindow(**{**w, "ends": tuple(w["ends"])}) for w in data["windows"]),
                "arithmetic": StepArithmetic(**data["arithmetic"]),
                "merge": MergeTypes(**data["merge"]),
                "a_format": _format(data.get("a_format")),
                "b_format": _format(data.get("b_format")),
                "beside": tuple(_beside(b) for b in data.get("beside", ())),
                "anomalies": tuple(data["anomalies"]),
            }
        )
    except (KeyError, TypeError) as error:
        raise InvalidInputError(f"reading must hold the fields of Reading ({error}) (got {sorted(data)})") from None


def _beside(data: dict[str, Any]) -> Beside:
    return Beside(**{**data, "pattern": tuple((int(k), float(v)) for k, v in data["pattern"])})


def _format(data: dict[str, Any] | None) -> OperandFormat | None:
    if data is None:
        return None
    rounding = data["rounding"]
    return OperandFormat(
        fraction_bits=data["fraction_bits"], rounding=None if rounding is None else Rounding(rounding)
    )


def _tree(data: Any) -> Tree:
    return tuple(_tree(x) for x in data) if isinstance(data, list) else int(data)
