"""Which arithmetic a matrix product does, as data, and the same bytes back.

The public names are below.  Each is imported from its module on first use, so ``import gemmdesc`` touches no GPU and
loads neither torch nor triton.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.bits import bitwise_equal, first_mismatch
    from gemmdesc.descriptor import (
        Accumulator,
        AddBias,
        AddC,
        CastTo,
        Contiguous,
        Cut,
        FusedDot,
        GEMMDesc,
        Relu,
        ResidueFirst,
        ResidueLast,
        Rounding,
        ScalarStep,
        Scale,
        Short,
        Start,
        Strided,
    )
    from gemmdesc.dropin import (
        Epilogue,
        addmm,
        addmm_activation,
        baddbmm,
        bmm,
        disable_override,
        enable_override,
        gated,
        is_overridden,
        linear,
        matmul,
        mm,
        override,
        reference,
        report,
        scaled_mm,
    )
    from gemmdesc.dtypes import DType
    from gemmdesc.errors import Declined, DeclinedError, GemmdescError
    from gemmdesc.normal_form import NormalForm, normal_form, same_bits
    from gemmdesc.ops import explain, plan, warmup
    from gemmdesc.problem import AlgoConfig, GemmProblem
    from gemmdesc.rule import Rule, evaluate_rule, parse_rule
    from gemmdesc.text import from_json, parse_descriptor, to_json, to_text

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "AddBias",
    "AddC",
    "AlgoConfig",
    "CastTo",
    "Contiguous",
    "Cut",
    "DType",
    "Declined",
    "DeclinedError",
    "Epilogue",
    "FusedDot",
    "GEMMDesc",
    "GemmProblem",
    "GemmdescError",
    "NormalForm",
    "Relu",
    "ResidueFirst",
    "ResidueLast",
    "Rounding",
    "Rule",
    "ScalarStep",
    "Scale",
    "Short",
    "Start",
    "Strided",
    "__version__",
    "addmm",
    "addmm_activation",
    "baddbmm",
    "bitwise_equal",
    "bmm",
    "disable_override",
    "enable_override",
    "evaluate_rule",
    "explain",
    "first_mismatch",
    "from_json",
    "gated",
    "is_overridden",
    "linear",
    "matmul",
    "mm",
    "normal_form",
    "override",
    "parse_descriptor",
    "parse_rule",
    "plan",
    "reference",
    "replay",
    "report",
    "same_bits",
    "scaled_mm",
    "to_json",
    "to_text",
    "warmup",
]

#: Module -> the public names that it holds.
_MODULES = {
    "arithmetic.replay": ("replay",),
    "bits": ("bitwise_equal", "first_mismatch"),
    "descriptor": (
        "Accumulator", "AddBias", "AddC", "CastTo", "Contiguous", "Cut", "FusedDot", "GEMMDesc", "Relu",
        "ResidueFirst", "ResidueLast", "Rounding", "ScalarStep", "Scale", "Short", "Start", "Strided",
    ),
    "dropin": (
        "Epilogue", "addmm", "addmm_activation", "baddbmm", "bmm", "disable_override", "enable_override", "gated",
        "is_overridden", "linear", "matmul", "mm", "override", "reference", "report", "scaled_mm",
    ),
    "dtypes": ("DType",),
    "errors": ("Declined", "DeclinedError", "GemmdescError"),
    "normal_form": ("NormalForm", "normal_form", "same_bits"),
    "ops": ("explain", "plan", "warmup"),
    "problem": ("AlgoConfig", "GemmProblem"),
    "rule": ("Rule", "evaluate_rule", "parse_rule"),
    "text": ("from_json", "parse_descriptor", "to_json", "to_text"),
}  # fmt: skip
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}


class _Package(ModuleType):
    """A public function may bear a module's name; importing that module must not put it in the function's place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _EXPORTS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
