"""PTX texts that run one instruction on many operands: what a function of an expression gives on hardware.

Each kernel is called ``apply`` and takes (operands, results, count): column i of the operands, 64-bit words, one row
per operand, becomes word i of the results.
"""

from __future__ import annotations

import re

from gemmdesc.equivalence.syntax import WIDTHS
from gemmdesc.errors import InvalidInputError

_BYTES = {**WIDTHS, "e4m3": 1, "e5m2": 1}
_ONE = ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt", "neg", "abs", "not", "cvt")
_THREE = ("fma", "mad")
_HEAD = """.version {version}
.target {target}
.address_size 64
.visible .entry apply(.param .u64 source, .param .u64 sink, .param .u32 count) {{
.reg .pred %p<4>;
.reg .b16 %h<40>;
.reg .b32 %r<60>;
.reg .b64 %d<80>;
ld.param.u64 %d60, [source];
ld.param.u64 %d61, [sink];
ld.param.u32 %r50, [count];
mov.u32 %r51, %ctaid.x;
mov.u32 %r52, %ntid.x;
mov.u32 %r53, %tid.x;
mad.lo.u32 %r54, %r51, %r52, %r53;
"""
_FOOT = """DONE:
ret;
}
"""


def instruction_ptx(name: str, target: str, version: str, literal: int | None = None) -> str:
    """A text whose threads each apply the function of a node called ``name``.

    ``literal``: the pattern of the last operand, where ptxas is to know it.

    Raises:
        InvalidInputError: the name is not that of one instruction on registers.
    """
    parts = name.split(".")
    base, kinds = parts[0], parts[-2:] if parts[0] == "cvt" else (parts[-1], parts[-1])
    if base == "setp":
        kinds = ("pred", parts[-1])
    if not re.fullmatch(r"[a-z][a-z0-9_.A-Z]*", name) or not all(kind in _BYTES for kind in kinds):
        raise InvalidInputError(f"name must be an instruction on registers (got {name})")
    result, operand = (_BYTES[kind] for kind in kinds)
    count = 1 if base in _ONE else 3 if base in _THREE else 2
    lines = [_HEAD.format(version=version, target=target), "mul.wide.u32 %d62, %r54, 8;", "mul.wide.u32 %d63, %r50, 8;"]
    lines += ["setp.ge.u32 %p0, %r54, %r50;", "@%p0 bra DONE;", "add.s64 %d60, %d60, %d62;"]
    taken = []
    for i in range(count):
        lines += [f"ld.global.b64 %d{i}, [%d60];", "add.s64 %d60, %d60, %d63;"]
        taken.append(_narrowed(lines, i, max(operand, 2)))
    if literal is not None:
        taken[-1] = f"0f{literal:08X}" if parts[-1] == "f32" else f"{literal:#x}"
    lines += _operation(parts, kinds, taken)
    if result == 8:
        lines.append("mov.b64 %d40, %d30;")
    else:
        lines.append(f"cvt.u64.u{16 if result <= 2 else 32} %d40, %{'h' if result <= 2 else 'r'}30;")
    lines += ["add.s64 %d61, %d61, %d62;", "st.global.b64 [%d61], %d40;", _FOOT]
    return "\n".join(lines)


def _narrowed(lines: list[str], number: int, width: int) -> str:
    """The register that holds operand ``number`` in ``width`` bytes."""
    if width == 8:
        return f"%d{number}"
    register = f"%{'h' if width == 2 else 'r'}{number}"
    lines.append(f"cvt.u{8 * width}.u64 {register}, %d{number};")
    return register


def _operation(parts: list[str], kinds: list[str] | tuple[str, str], taken: list[str]) -> list[str]:
    result, operand = kinds
    to = {1: "%h30", 2: "%h30", 4: "%r30", 8: "%d30"}[_BYTES[result]]
    if result in ("e4m3", "e5m2"):
        # Only pairs are converted; the second operand lands below.
        opcode = ".".join((*parts[:-2], f"{result}x2", operand))
        if operand == "f32":
            return ["mov.b32 %r20, 0;", f"{opcode} %h20, %r20, {taken[0]};", f"and.b16 {to}, %h20, 255;"]
        return [
            "mov.b16 %h21, 0;",
            f"mov.b32 %r20, {{{taken[0]}, %h21}};",
            f"{'.'.join((*parts[:-2], f'{result}x2', f'{operand}x2'))} %h20, %r20;",
            f"and.b16 {to}, %h20, 255;",
        ]
    if operand in ("e4m3", "e5m2"):
        opcode = ".".join((*parts[:-2], f"{result}x2", f"{operand}x2"))
        return [f"and.b16 %h21, {taken[0]}, 255;", f"{opcode} %r20, %h21;", f"mov.b32 {{{to}, %h22}}, %r20;"]
    if result == "pred":
        return [f"{'.'.join(parts)} %p3, {', '.join(taken)};", f"selp.u16 {to}, 1, 0, %p3;"]
    return [f"{'.'.join(parts)} {to}, {', '.join(taken)};"]


def matrix_step_ptx(name: str, words: int, target: str, version: str) -> str:
    """A text whose warps each run one matrix instruction and keep its first element.

    ``name``: of a node, such as ``mma.m16n8k16.f32.f16.f16.f32``; ``words``: 32-bit words of a row, and of a column.
    Operands are the row's words, the column's, and the accumulator.

    Raises:
        InvalidInputError: the name is not that of a matrix step.
    """
    parts = name.split(".")
    if parts[0] != "mma" or len(parts) != 6 or words not in (4, 8):
        raise InvalidInputError(f"name must be a matrix step of 4 or 8 words (got {name}, {words})")
    chunks, half = words // 4, parts[-1] == "f16"
    lines = [_HEAD.format(version=version, target=target), "shr.u32 %r55, %r54, 5;", "and.b32 %r56, %r54, 31;"]
    lines += ["mul.wide.u32 %d62, %r55, 8;", "mul.wide.u32 %d63, %r50, 8;"]
    lines += ["setp.ge.u32 %p0, %r55, %r50;", "@%p0 bra DONE;", "add.s64 %d60, %d60, %d62;", "cvt.u64.u32 %d64, %r56;"]
    lines += ["setp.lt.u32 %p1, %r56, 4;", "setp.eq.u32 %p2, %r56, 0;", "mul.lo.u64 %d65, %d64, %d63;"]
    lines += ["add.s64 %d66, %d60, %d65;", *(f"mov.b32 %r{i}, 0;" for i in range(20))]
    for i in range(2 * chunks):
        # Word t + 4 i of the row, then of the column, goes to lane t.
        lines += [f"mul.lo.u64 %d67, %d63, {4 * i};", "add.s64 %d67, %d66, %d67;"]
        lines += [f"@%p1 ld.global.b64 %d{i}, [%d67];", f"@%p1 cvt.u32.u64 %r{i}, %d{i};"]
    lines += [f"mul.lo.u64 %d67, %d63, {2 * words};", "add.s64 %d67, %d60, %d67;"]
    lines += ["@%p2 ld.global.b64 %d10, [%d67];", "@%p2 cvt.u32.u64 %r10, %d10;"]
    # A's registers alternate between rows g and g + 8, and only row 0 is not zero.
    left = ", ".join(f"%r{i // 2}" if i % 2 == 0 else "%r15" for i in range(2 * chunks))
    right = ", ".join(f"%r{chunks + i}" for i in range(chunks))
    before = "%r10, %r16" if half else "%r10, %r16, %r17, %r18"
    after = "%r30, %r31" if half else "%r30, %r31, %r32, %r33"
    opcode = f"mma.sync.aligned.{parts[1]}.row.col.{'.'.join(parts[2:])}"
    lines.append(f"{opcode} {{{after}}}, {{{left}}}, {{{right}}}, {{{before}}};")
    if half:
        lines.append("and.b32 %r30, %r30, 65535;")
    lines += ["cvt.u64.u32 %d40, %r30;", "add.s64 %d61, %d61, %d62;", "@%p2 st.global.b64 [%d61], %d40;", _FOOT]
    return "\n".join(lines)
