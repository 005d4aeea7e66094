"""PTX text as values: one entry with its parameters, registers, shared variables and instructions.

Nothing is skipped but comments, debug information and source positions: a directive or a statement that is not
understood refuses the text.  What an instruction means is for the walk to say.
"""

from __future__ import annotations

import re

from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.syntax import (
    WIDTHS,
    Address,
    Decimal,
    Entry,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Parameter,
    Register,
    SharedVariable,
    Special,
    Symbol,
    Vector,
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(r"(?:\.visible\s+|\.weak\s+)*\.entry\s+([\w$]+)\s*(\((.*?)\))?", re.S)
_SHARED = re.compile(
    r"(?:\.extern\s+|\.visible\s+)*\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*(?:\[\s*(\d*)\s*\])?\s*$"
)
#: Variables that are not parameters: an instruction that names one refuses, so the declaration itself may stand.
_DATA = re.compile(r"(?:\.visible\s+|\.extern\s+|\.weak\s+)*\.(?:global|const)\s")
_NEUTRAL = re.compile(r"\.(version|target|address_size)\s+([^\n]+)|\.file\s[^\n]*|\.(?:minnctapersm|maxnreg)\s+\d+")
_DIMENSIONS = re.compile(r"\.(reqntid|maxntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)$", re.S)
_NUMBER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_FLOAT = re.compile(r"0[fFdD]([0-9a-fA-F]{8}|[0-9a-fA-F]{16})$")
_DECIMAL = re.compile(r"\d+\.\d+$")
_LABEL = re.compile(r"([\w$]+)\s*:(?!:)")
_OPCODE = re.compile(r"(?:@(!?)\s*([%\w$.]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_MEMORY = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+?\s*(-?\s*\w+))?\s*\]$")
_COMMA = re.compile(r",(?![^{\[]*[}\]])")


def parse_ptx(text: str, entry: str | None = None) -> Entry:
    """The entry of a PTX text, or the one called ``entry`` where it has several.

    Raises:
        RefusalError: the text has another number of entries, or something in it is not understood.
    """
    bare = re.sub(r"(?m)^\s*\.loc\s[^\n]*$", "", _COMMENT.sub("", text))
    found, shared, facts = _module(bare)
    chosen = [e for e in found if entry is None or e[0] == entry]
    if len(chosen) != 1:
        raise RefusalError("syntax", f"the text must hold one entry {entry or ''} (got {[e[0] for e in found]})")
    name, parameters, directives, body = chosen[0]
    threads: dict[str, tuple[int, int, int]] = {}
    for match in _DIMENSIONS.finditer(directives):
        x, y, z = (int(match[i] or 1) for i in (2, 3, 4))
        threads[match[1]] = (x, y, z)
    rest = _NEUTRAL.sub("", _DIMENSIONS.sub("", directives)).strip()
    if rest:
        raise RefusalError("syntax", f"the entry's directive {rest.split()[0]} is not understood")
    reader = _Body(body)
    return Entry(
        name=name,
        target=facts.get("target", ""),
        version=facts.get("version", ""),
        parameters=_parameters(parameters),
        shared=(*shared, *reader.shared),
        threads=threads.get("reqntid"),
        instructions=tuple(reader.instructions),
        labels=reader.labels,
    )


_Found = tuple[list[tuple[str, str, str, str]], list[SharedVariable], dict[str, str]]


def _module(text: str) -> _Found:
    """Entries as (name, parameters, directives, body), shared variables, and version and target."""
    entries: list[tuple[str, str, str, str]] = []
    shared: list[SharedVariable] = []
    facts: dict[str, str] = {}
    at, end = 0, len(text)
    while True:
        while at < end and text[at].isspace():
            at += 1
        if at >= end:
            return entries, shared, facts
        if match := _ENTRY.match(text, at):
            opening = text.index("{", match.end())
            closing = _closing(text, opening)
            entries.append((match[1], match[3] or "", text[match.end() : opening], text[opening + 1 : closing]))
            at = closing + 1
        elif match := _NEUTRAL.match(text, at):
            if match[1]:
                facts[match[1]] = match[2].strip()
            at = match.end()
        elif text.startswith(".section", at):
            opening = text.index("{", at)
            if ".debug" not in text[at:opening]:
                raise RefusalError("syntax", f"{text[at:opening].strip()} is not understood")
            at = _closing(text, opening) + 1
        else:
            stop = text.find(";", at)
            if stop > at and _DATA.match(text[at:stop]):
                at = stop + 1
                continue
            variable = _shared(text[at:stop].strip()) if stop > at else None
            if variable is None:
                raise RefusalError("syntax", f"{text[at:].split(None, 1)[0]} at module level is not understood")
            shared.append(variable)
            at = stop + 1


def _closing(text: str, opening: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    raise RefusalError("syntax", "a brace is never closed")


def _shared(statement: str) -> SharedVariable | None:
    match = _SHARED.match(statement)
    if match is None:
        return None
    count = 1 if match[4] is None else int(match[4] or 0)
    size = count * WIDTHS[match[2]] if count else None
    return SharedVariable(match[3], int(match[1] or WIDTHS[match[2]]), size)


def _parameters(text: str) -> tuple[Parameter, ...]:
    found = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        words = item.split()
        if words[0] != ".param" or len(words) < 3 or "[" in item or words[1][1:] not in WIDTHS:
            raise RefusalError("syntax", f"the parameter {item!r} is not understood")
        found.append(Parameter(words[-1], words[1][1:], ".ptr" in words))
    return tuple(found)


class _Body:
    """Reads an entry's body; nested scopes give their registers names of their own."""

    def __init__(self, text: str) -> None:
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.shared: list[SharedVariable] = []
        self._scopes: list[dict[str, Register]] = [{}]
        self._families: list[tuple[str, int, int]] = []
        self._opened = 0
        at, end = 0, len(text)
        while True:
            while at < end and text[at].isspace():
                at += 1
            if at >= end:
                return
            if text[at] in "{}":
                self._scope(text[at])
                at += 1
            elif match := _LABEL.match(text, at):
                if match[1] in self.labels:
                    raise RefusalError("syntax", f"the label {match[1]} is defined twice")
                self.labels[match[1]] = len(self.instructions)
                at = match.end()
            else:
                stop = text.find(";", at)
                if stop < 0:
                    raise RefusalError("syntax", f"{text[at : at + 40]!r} is never closed")
                self._statement(text[at:stop].strip())
                at = stop + 1

    def _scope(self, brace: str) -> None:
        if brace == "{":
            self._scopes.append({})
            self._opened += 1
        else:
            self._scopes.pop()

    def _statement(self, text: str) -> None:
        if not text or text.startswith(".pragma"):
            return
        if match := _REGISTERS.match(text):
            self._declare(match[1], match[2])
        elif text.startswith("."):
            variable = _shared(text)
            if variable is None:
                raise RefusalError("syntax", f"{text.split()[0]} is not understood")
            self.shared.append(variable)
        else:
            self._instruction(text)

    def _declare(self, kind: str, names: str) -> None:
        if kind not in WIDTHS:
            raise RefusalError("syntax", f"registers of type .{kind} are not understood")
        suffix = f"@{self._opened}" if len(self._scopes) > 1 else ""
        for name in (piece.strip() for piece in names.split(",")):
            if match := re.match(r"([%\w$]+)<(\d+)>$", name):
                self._families.append((match[1], int(match[2]), WIDTHS[kind]))
                if suffix:
                    for i in range(int(match[2])):
                        self._scopes[-1][f"{match[1]}{i}"] = Register(f"{match[1]}{i}{suffix}", WIDTHS[kind])
            else:
                self._scopes[-1][name] = Register(name + suffix, WIDTHS[kind])

    def _instruction(self, text: str) -> None:
        match = _OPCODE.match(text)
        if match is None:
            raise RefusalError("syntax", f"{text!r} is not understood")
        guard = None
        if match[2]:
            guard = (self._register(match[2]), bool(match[1]))
        operands = tuple(self._operand(piece.strip()) for piece in _COMMA.split(match[4])) if match[4].strip() else ()
        opcode = match[3]
        self.instructions.append(
            Instruction(opcode, tuple(opcode.replace("::", "_").split(".")), operands, guard, " ".join(text.split()))
        )

    def _find(self, name: str) -> Register | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        for prefix, count, width in self._families:
            if name.startswith(prefix) and (tail := name[len(prefix) :]).isdecimal() and int(tail) < count:
                return self._scopes[0].setdefault(name, Register(name, width))
        return None

    def _register(self, name: str) -> Register:
        found = self._find(name)
        if found is None:
            raise RefusalError("syntax", f"the register {name} is not declared")
        return found

    def _operand(self, text: str) -> Operand:
        if text.startswith("{"):
            items = tuple(self._operand(piece.strip()) for piece in text[1:-1].split(","))
            if not all(item is None or isinstance(item, Register | Immediate) for item in items):
                raise RefusalError("syntax", f"the operand {text} is not understood")
            return Vector(items)  # type: ignore[arg-type]
        if text.startswith("["):
            return self._address(text)
        if text == "_":
            return None
        if text.startswith("!"):
            return Negated(self._register(text[1:].strip()))
        if "|" in text:
            first, _, second = (piece.strip() for piece in text.partition("|"))
            return Pair(*(None if name == "_" else self._register(name) for name in (first, second)))
        return self._plain(text)

    def _plain(self, text: str) -> Register | Special | Immediate | Decimal | Symbol:
        if _NUMBER.match(text):
            return Immediate(int(text.rstrip("U"), 0) & (2**64 - 1))
        if match := _FLOAT.match(text):
            return Immediate(int(match[1], 16), len(match[1]) // 2)
        if _DECIMAL.match(text):
            return Decimal(text)
        if (found := self._find(text)) is not None:
            return found
        if re.match(r"%[\w.]+$", text):
            return Special(text)
        if not re.match(r"[\w$]+$", text):
            raise RefusalError("syntax", f"the operand {text!r} is not understood")
        return Symbol(text)

    def _address(self, text: str) -> Address:
        match = _MEMORY.match(text)
        if match is None:
            raise RefusalError("syntax", f"the address {text} is not understood")
        base = self._plain(match[1])
        if isinstance(base, Special | Decimal):
            raise RefusalError("syntax", f"the address {text} is not understood")
        try:
            return Address(base, int((match[2] or "0").replace(" ", ""), 0))
        except ValueError:
            raise RefusalError("syntax", f"the address {text} is not understood") from None
