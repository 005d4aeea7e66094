"""Which matrix steps a card realises: its sm's architecture, from ``architectures.json``, and the models of that."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

from gemmdesc.arithmetic.models import AccumulatorModel, load_models
from gemmdesc.descriptor import FusedDot, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.kernels.card import CardArithmetic, MatrixStep, multiplied_dtypes
from gemmdesc.normal_form import zero_exponent_shows

#: The one architecture whose warp groups multiply by wgmma.
_WITH_WGMMA = "Hopper"


def architecture_of(sm: str) -> str | None:
    """NVIDIA's name of the architecture of ``sm`` such as ``sm_90``; None where the table has no row for it."""
    text = resources.files("gemmdesc.plan").joinpath("architectures.json").read_text(encoding="utf-8")
    return next((str(row["architecture"]) for row in json.loads(text) if row["sm"] == sm), None)


def card_arithmetic(sm: str) -> CardArithmetic:
    """The matrix steps with a float32 accumulator on a card of ``sm``, one per pair of operand types.

    A pair whose instructions disagree on that architecture has no entry, since the compiler picks among them; a card
    whose architecture is not known has none at all.
    """
    architecture = architecture_of(sm)
    models = [m for m in load_models() if m.architecture == architecture and _usable(m)]
    by_types: dict[tuple[DType, DType], set[MatrixStep]] = {}
    for model in models:
        other = None if model.b_dtype is model.a_dtype else model.b_dtype
        step = MatrixStep(operand_dtype=model.a_dtype, lanes=model.terms_per_step, step=model.step, b_dtype=other)
        by_types.setdefault((model.a_dtype, model.b_dtype), set()).add(step)
    steps = tuple(next(iter(steps)) for steps in by_types.values() if len(steps) == 1)
    return CardArithmetic(steps=steps, wgmma=architecture == _WITH_WGMMA)


def _usable(model: AccumulatorModel) -> bool:
    return model.accumulator_dtype is DType.FLOAT32


def realised(desc: GEMMDesc, card: CardArithmetic) -> GEMMDesc:
    """``desc`` in the card's own words: its ``zero_exponent`` replaced by the card's where no operand can tell the two.

    Everything else is left as it is, so that the kernel chooser declines what differs.
    """
    types = multiplied_dtypes(desc)
    step, own = desc.accumulator.step, card.step_for(*types)
    if own is None or not isinstance(step, FusedDot) or replace(step, zero_exponent=own.step.zero_exponent) != own.step:
        return desc
    if any(zero_exponent_shows(s, *types) for s in (step, own.step)):
        return desc
    return replace(desc, accumulator=replace(desc.accumulator, step=own.step))
