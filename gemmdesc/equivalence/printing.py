"""Expressions as text: what one stored element is computed from."""

from __future__ import annotations

import numpy as np

from gemmdesc.equivalence.table import Node, Table
from gemmdesc.equivalence.walk import Walked
from gemmdesc.errors import InvalidInputError


def output_node(walked: Walked, parameter: int, offset: int) -> int:
    """The node that the byte at ``offset`` behind a pointer parameter is a part of.

    Raises:
        InvalidInputError: the launch does not store that byte.
    """
    s = walked.stored
    found = np.flatnonzero((s.parameter == parameter) & (s.offset == offset))
    if len(found) != 1:
        raise InvalidInputError(f"offset must be a byte that the launch stores (got parameter {parameter}, {offset})")
    node = int(s.ids[found[0]])
    whole = walked.table.node(node)
    return whole.children[0] if whole.name == "extract" else node


def output_tree(walked: Walked, parameter: int, offset: int, most_lines: int = 400) -> str:
    """The expression behind one stored byte, one node a line, children indented below.

    ``p0[8:4]`` is four bytes from byte 8 behind parameter 0; a value that occurs again is named where it first stands.
    """
    return format_tree(walked.table, output_node(walked, parameter, offset), most_lines)


def format_tree(table: Table, node: int, most_lines: int = 400) -> str:
    """An expression, one node a line, cut after ``most_lines``."""
    repeated = _repeated(table, node)
    names: dict[int, str] = {}
    lines: list[str] = []
    stack = [(node, 0)]
    while stack:
        at, depth = stack.pop()
        if len(lines) == most_lines:
            lines.append("...")
            break
        known = names.get(at)
        if known is not None:
            lines.append("  " * depth + known)
            continue
        here = table.node(at)
        text = _text(here)
        if here.name.startswith("mma."):
            text = f"{len(table.matrix_steps(at))} steps of {text}"
        if at in repeated and here.children:
            names[at] = f"t{len(names)}"
            text = f"{names[at]} = {text}"
        lines.append("  " * depth + text)
        stack += [(child, depth + 1) for child in reversed(_operands(table, at))]
    return "\n".join(lines)


def _text(node: Node) -> str:
    first, second = node.attributes
    match node.name:
        case "constant":
            return f"0x{first & (2 ** (8 * node.width) - 1):0{2 * node.width}x}"
        case "load":
            return f"p{first}[{second}:{node.width}]"
        case "argument":
            return f"argument {first}"
        case "extract":
            return f"bytes {first} to {first + node.width} of"
    return node.name


def _repeated(table: Table, node: int) -> set[int]:
    seen: set[int] = set()
    again: set[int] = set()
    stack = [node]
    while stack:
        at = stack.pop()
        if at in seen:
            again.add(at)
            continue
        seen.add(at)
        stack += _operands(table, at)
    return again


def _operands(table: Table, node: int) -> tuple[int, ...]:
    """What stands below a node; of a chain of matrix steps what it starts from, then each step's row and column."""
    here = table.node(node)
    if not here.name.startswith("mma."):
        return here.children
    return here.children[2], *(stream for step in table.matrix_steps(node) for stream in step)
