"""The compiled kernels of nests of lanes that can exist.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose_lanes import VECTOR_BYTES, LaneChoice, LaneForm, Read, outputs_of
from gemmdesc.kernels.lanes import BUTTERFLIES, CHUNKED_FOLDS, DEALT_FOLDS, LANE_FOLDS, Digits
from gemmdesc.kernels.nest import NEST_DTYPES
from gemmdesc.kernels.slices import output_dtypes
from gemmdesc.kernels.variant import Constant, Variant

#: Bits of one digit in the code of a fold: three for its length, the rest for its place.
_DIGIT_BITS, _LENGTH_BITS = 8, 3
_STAGES = 1


def lane_variant(choice: LaneChoice) -> Variant:
    """The kernel that computes ``choice``."""
    return _variant(choice.form, choice.operand_dtype, choice.output_dtype, choice.fused)


def fold_code(digits: Digits) -> int:
    """The digits as the kernels take them, the one folded first lowest."""
    return sum((low << _LENGTH_BITS | bits) << _DIGIT_BITS * i for i, (low, bits) in enumerate(digits))


def _variant(form: LaneForm, loaded: DType, stored: DType, fused: bool) -> Variant:
    constants: dict[str, Constant] = {
        "FUSED": fused, "READ": form.read.value, "FLAT": form.flat, "WIDTH": form.width, "CHUNKED": form.chunked,
        "UNITS": form.units,
    }  # fmt: skip
    if form.joins:
        constants["DEALT"] = form.dealt
    constants |= {
        "DIGITS": fold_code(form.digits), "COUNT": len(form.digits), "LANES": form.lanes, "OUTPUTS": form.outputs,
        "UNROLL": form.unroll,
    }  # fmt: skip
    return Variant(
        kernel="lane_join" if form.joins else "lane_nest", loaded=loaded, stored=stored,
        constants=tuple(constants.items()), num_warps=form.num_warps, num_stages=_STAGES, fp_fusion=fused,
    )  # fmt: skip


def enumerate_lane_variants() -> Iterator[Variant]:
    """Every one that the chooser can pick without a number of outputs of the caller's."""
    for loaded, fused in product(NEST_DTYPES, (True, False)):
        for form, stored in product(_forms(VECTOR_BYTES // loaded.itemsize), output_dtypes(loaded)):
            yield _variant(form, loaded, stored, fused)


def _forms(wide: int) -> Iterator[LaneForm]:
    """``wide``: elements of the widest load."""
    for digits in (*LANE_FOLDS, *DEALT_FOLDS):
        dealt, chunkable = digits in DEALT_FOLDS, digits in CHUNKED_FOLDS
        for read, flat, chunked, joins in product(
            Read, (False, chunkable), (False, chunkable), (True, dealt)
        ):
            runnable = digits in BUTTERFLIES and not (flat or chunked)
            if read is Read.RUNS and not runnable:
                continue
            united = runnable and digits and read is Read.ACROSS
            for units, width, outputs in product(
                (False, bool(united)), _widths(read, flat, wide), outputs_of(read, digits)
            ):
                if read is not Read.ACROSS or outputs >= width:
                    yield LaneForm(
                        read=read, flat=flat, width=width, chunked=chunked, units=units, joins=joins, dealt=dealt,
                        digits=digits, outputs=outputs,
                    )  # fmt: skip


def _widths(read: Read, flat: bool, wide: int) -> tuple[int, ...]:
    if read is Read.RUNS:
        return (wide,)
    return (1,) if flat else (1, wide)
