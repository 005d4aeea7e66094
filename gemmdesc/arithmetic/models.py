"""Accumulator models of NVIDIA's matrix instructions, read from ``accumulators.json``.

Every row names its source.  A model is a fact about an instruction family on an architecture; nothing here decides
which instruction a library runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

from gemmdesc.descriptor import FusedDot, Rounding
from gemmdesc.dtypes import DType, parse_dtype
from gemmdesc.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class AccumulatorModel:
    """One row of the table: how one instruction family sums ``terms_per_step`` products onto an accumulator.

    ``architecture``: NVIDIA's name, such as ``Hopper``.  ``instruction``: the PTX family, ``mma``, ``wgmma`` or
    ``tcgen05.mma`` (``mma.m8n8k4`` where a shape has arithmetic of its own).  An instruction with a larger k runs
    several steps, ascending.  ``fraction_bits`` and the rest are those of :class:`gemmdesc.descriptor.FusedDot`.
    ``source``: where the numbers come from.
    """

    architecture: str
    instruction: str
    a_dtype: DType
    b_dtype: DType
    accumulator_dtype: DType
    terms_per_step: int
    fraction_bits: int
    output_bits: int
    rounding: Rounding
    zero_exponent: int
    source: str

    @property
    def instruction_k(self) -> int:
        """Products in a full step; the ``instruction_k`` of a descriptor's accumulator."""
        return self.terms_per_step

    @property
    def step(self) -> FusedDot:
        """The step of a descriptor's accumulator."""
        return FusedDot(
            fraction_bits=self.fraction_bits,
            output_bits=self.output_bits,
            rounding=self.rounding,
            zero_exponent=self.zero_exponent,
            accumulator_dtype=self.accumulator_dtype,
        )


def load_models() -> tuple[AccumulatorModel, ...]:
    """All rows of the packaged table, in its order.

    Raises:
        InvalidInputError: a row lacks a field, has one too many, or spells an unknown type.
    """
    text = resources.files("gemmdesc.arithmetic").joinpath("accumulators.json").read_text(encoding="utf-8")
    return tuple(_model(row) for row in json.loads(text))


def find_model(
    *, architecture: str, instruction: str, a_dtype: DType, b_dtype: DType, accumulator_dtype: DType
) -> AccumulatorModel:
    """The row with this key.

    Raises:
        InvalidInputError: the table has none; the message names the first part of the key that has no match.
    """
    rows = list(load_models())
    wanted: dict[str, str | DType] = {
        "architecture": architecture,
        "instruction": instruction,
        "a_dtype": a_dtype,
        "b_dtype": b_dtype,
        "accumulator_dtype": accumulator_dtype,
    }
    for name, value in wanted.items():
        matching = [row for row in rows if getattr(row, name) == value]
        if not matching:
            known = ", ".join(sorted({_word(getattr(row, name)) for row in rows}))
            raise InvalidInputError(f"{name} must be one of {known} with what stands before it (got {_word(value)})")
        rows = matching
    (row,) = rows
    return row


def _word(value: str | DType) -> str:
    return value.value if isinstance(value, DType) else value


def _model(row: dict[str, Any]) -> AccumulatorModel:
    names = {f.name for f in fields(AccumulatorModel)}
    if set(row) != names:
        raise InvalidInputError(f"accumulators.json must give each row the fields {sorted(names)} (got {sorted(row)})")
    types = {name: parse_dtype(row[name]) for name in ("a_dtype", "b_dtype", "accumulator_dtype")}
    return AccumulatorModel(**{**row, **types, "rounding": Rounding(row["rounding"])})
