"""Keys and picks of tuned tables as plain data, the same for Parquet files and JSON lines, and back without a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.specialised import config_from
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import Sizes, TunedKey, TunedPick

TYPES = ("a_dtype", "b_dtype", "output_dtype")
LAYOUTS = ("a_layout", "b_layout")
SIZES = ("m", "n", "k")


def key_data(key: TunedKey) -> dict[str, Any]:
    """``key`` as strings, numbers and a bool, with a name each."""
    data: dict[str, Any] = {"steps": key.steps, "sliced": key.sliced}
    data |= {name: getattr(key, name).value for name in TYPES}
    data |= {name: getattr(key, name).name.lower() for name in LAYOUTS}
    return data | {f"{name}_class": value for name, value in zip(SIZES, key.sizes, strict=True)}


def key_from(data: Mapping[str, Any]) -> TunedKey:
    """The key that :func:`key_data` wrote; other names in ``data`` are not looked at.

    Raises:
        InvalidInputError, KeyError, AttributeError, ValueError: it is none.
    """
    if type(data["steps"]) is not str or type(data["sliced"]) is not bool:
        raise InvalidInputError(f"steps must be a word, sliced a bool (got {data['steps']!r}, {data['sliced']!r})")
    known: dict[str, Any] = {name: DType(data[name]) for name in TYPES}
    known |= {name: Layout[data[name].upper()] for name in LAYOUTS}
    sizes = sizes_from(data[f"{name}_class"] for name in SIZES)
    return TunedKey(steps=data["steps"], sliced=data["sliced"], sizes=sizes, **known)


def sizes_from(values: Any) -> Sizes:
    """Three whole numbers.

    Raises:
        InvalidInputError: something else.
    """
    found = tuple(values)
    if len(found) != len(SIZES) or not all(type(value) is int for value in found):
        raise InvalidInputError(f"sizes must be three whole numbers (got {found})")
    return found[0], found[1], found[2]


def pick_data(pick: TunedPick) -> dict[str, Any]:
    """``pick`` with every field of its config, whichever kind of config it is."""
    return {"structure": pick.structure.value, "config": asdict(pick.config)}


def pick_from(data: Mapping[str, Any]) -> TunedPick:
    """The pick that :func:`pick_data` wrote; fields that it lacks, of a file from before they were, are the defaults.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    structure = Structure(data["structure"])
    return TunedPick(structure=structure, config=config_from(structure, data["config"]))
