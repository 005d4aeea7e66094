"""Canonical text of descriptors and rules, and its way back.

A value prints as ``tag(field=value, ...)`` with every field named (optional ones only where they are not at their
default), enumerations as bare words, tuples in square
brackets, and integers as themselves or, in a rule, as expressions.  The text parses as a Python expression; reading
it uses :mod:`ast` and never evaluates anything.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from gemmdesc import descriptor as d
from gemmdesc.dtypes import DType
from gemmdesc.errors import DescriptorError

_TAGS: dict[str, type] = {
    "gemm": d.GEMMDesc,
    "cut": d.Cut,
    "contiguous": d.Contiguous,
    "strided": d.Strided,
    "balanced": d.Balanced,
    "accumulator": d.Accumulator,
    "residue_last": d.ResidueLast,
    "residue_first": d.ResidueFirst,
    "fused_dot": d.FusedDot,
    "scalar_step": d.ScalarStep,
    "scale": d.Scale,
    "add_c": d.AddC,
    "add_bias": d.AddBias,
    "relu": d.Relu,
    "cast_to": d.CastTo,
    "scale_output": d.ScaleOutput,
    "operand_cast": d.OperandCast,
    "add": d.Add,
    "multiply": d.Multiply,
    "divide": d.Divide,
    "at_least": d.AtLeast,
    "at_most": d.AtMost,
    "gelu": d.Gelu,
    "gelu_tanh_approx": d.GeluTanhApprox,
    "silu": d.Silu,
    "sigmoid": d.Sigmoid,
    "tanh": d.Tanh,
}
_NAMES = {cls: tag for tag, cls in _TAGS.items()}
_ENUMS: tuple[type[Enum], ...] = (DType, d.Short, d.Start, d.Rounding, d.Approximate, d.GeluArgument, d.GeluResult)
#: Field name -> its enumeration, for reading bare words back.
_WORDS: dict[str, type[Enum]] = {
    "a_dtype": DType,
    "b_dtype": DType,
    "output_dtype": DType,
    "partial_dtype": DType,
    "merge_dtype": DType,
    "accumulator_dtype": DType,
    "dtype": DType,
    "short": d.Short,
    "start": d.Start,
    "rounding": d.Rounding,
    "approximate": d.Approximate,
    "argument": d.GeluArgument,
    "result": d.GeluResult,
}
#: Fields whose bare words are names that a caller chose.
_FREE = ("operand",)


def to_text(value: Any, expressions: Mapping[str, str] | None = None) -> str:
    """Canonical text of a descriptor or of any of its parts; ``expressions`` replace integers by path."""
    return _print(value, "", expressions or {})


def _print(value: Any, path: str, expressions: Mapping[str, str]) -> str:
    if path in expressions:
        return expressions[path]
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, tuple):
        items = (_print(v, f"{path}.{i}", expressions) for i, v in enumerate(value))
        return "[" + ", ".join(items) + "]"
    inner = ", ".join(
        f"{name}={_print(getattr(value, name), f'{path}.{name}' if path else name, expressions)}"
        for name in _shown(value)
    )
    return f"{_NAMES[type(value)]}({inner})"


def _shown(value: Any) -> list[str]:
    """The fields that are spelled: all but optional ones at their default."""
    return [f.name for f in fields(value) if not (f.metadata.get("optional") and getattr(value, f.name) == f.default)]


def parse_tree(text: str) -> ast.expr:
    """The syntax tree of canonical text.

    Raises:
        DescriptorError: the text is not an expression.
    """
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DescriptorError(f"text must be a descriptor or an expression ({error}) (got {text[:80]!r})") from None


def build(node: ast.expr, name: str = "", path: str = "", holes: dict[str, ast.expr] | None = None) -> Any:
    """Build the value that ``node`` spells.

    Where ``holes`` is given, each variable field is put there by path and stands as 1.

    Raises:
        DescriptorError: an unknown tag, field or word, or a value that a constructor refuses.
    """
    if isinstance(node, ast.List):
        return tuple(build(item, name, f"{path}.{i}", holes) for i, item in enumerate(node.elts))
    if isinstance(node, ast.Name):
        return _word(node.id, name)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TAGS:
        return _construct(_TAGS[node.func.id], node, path, holes)
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)) if not isinstance(value, bool):
            return -value
        case ast.Constant(value=bool() | int() as value):
            return value
    where = path or name or "text"
    raise DescriptorError(f"{where} must be a tag, a word, a list or an integer (got {ast.unparse(node)[:80]!r})")


def _construct(cls: type, node: ast.Call, path: str, holes: dict[str, ast.expr] | None) -> Any:
    known = {f.name: f for f in fields(cls)}
    if node.args:
        raise DescriptorError(f"{_NAMES[cls]} must name every field (got a positional value)")
    values: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg not in known or keyword.arg in values:
            only = f"only the fields {', '.join(known)}, once each" if known else "no fields"
            raise DescriptorError(f"{_NAMES[cls]} must have {only} (got {keyword.arg})")
        child = f"{path}.{keyword.arg}" if path else keyword.arg
        if holes is not None and known[keyword.arg].metadata.get("variable"):
            holes[child] = keyword.value
            values[keyword.arg] = 1
        else:
            values[keyword.arg] = build(keyword.value, keyword.arg, child, holes)
    for name, f in known.items():
        if name not in values and f.default is MISSING:
            raise DescriptorError(f"{_NAMES[cls]}.{name} must be given (got {', '.join(values) or 'no field'})")
    return cls(**values)


def _word(word: str, name: str) -> Enum | str:
    if name in _FREE:
        return word
    enum = _WORDS.get(name)
    if enum is None:
        raise DescriptorError(f"{name or 'text'} must not be a bare word (got {word})")
    try:
        return enum(word)
    except ValueError:
        known = ", ".join(str(e.value) for e in enum)
        raise DescriptorError(f"{name} must be one of {known} (got {word})") from None


def parse_descriptor(text: str) -> d.GEMMDesc:
    """The descriptor that canonical ``text`` spells.

    Raises:
        DescriptorError: the text is not a descriptor; the message names the field.
    """
    value = build(parse_tree(text))
    if not isinstance(value, d.GEMMDesc):
        raise DescriptorError(f"text must be a gemm(...) (got {type(value).__name__})")
    return value


def to_json(desc: d.GEMMDesc) -> str:
    """The descriptor as JSON: each part an object with its tag under ``is``."""
    return json.dumps(_plain(desc), sort_keys=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if is_dataclass(value):
        return {"is": _NAMES[type(value)], **{name: _plain(getattr(value, name)) for name in _shown(value)}}
    return value


def from_json(text: str) -> d.GEMMDesc:
    """The descriptor that :func:`to_json` wrote.

    Raises:
        DescriptorError: not JSON, or not a descriptor.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DescriptorError(f"json must be valid ({error}) (got {text[:80]!r})") from None
    return parse_descriptor(_respell(data, "json"))


def _respell(data: Any, name: str) -> str:
    if isinstance(data, bool | int):
        return repr(data)
    if isinstance(data, str) and data.isidentifier():
        return data
    if isinstance(data, list):
        return "[" + ", ".join(_respell(item, name) for item in data) + "]"
    if isinstance(data, dict) and str(data.get("is", "")).isidentifier() and all(key.isidentifier() for key in data):
        inner = (f"{key}={_respell(v, key)}" for key, v in data.items() if key != "is")
        return f"{data['is']}({', '.join(inner)})"
    raise DescriptorError(f"{name} must be an object with a tag under 'is' (got {str(data)[:60]!r})")
