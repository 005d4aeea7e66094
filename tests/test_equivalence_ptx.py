"""Reading PTX text: what becomes of each part, and what is refused."""

from __future__ import annotations

import pytest

from gemmdesc.equivalence.ptx import parse_ptx
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.syntax import Address, Immediate, Negated, Pair, Register, Special, Symbol, Vector
from tests.equivalence_texts import kernel


def instruction(text: str):  # type: ignore[no-untyped-def]
    """``text`` as the last instruction before ``ret``."""
    return parse_ptx(kernel(text, shared=64)).instructions[-2]


def test_an_entry_has_its_parameters_block_and_target() -> None:
    entry = parse_ptx(kernel("bar.sync 0;", threads=96, shared=48, integers=2))
    assert (entry.name, entry.target, entry.version, entry.threads) == ("kernel", "sm_90a", "8.7", (96, 1, 1))
    assert [(p.kind, p.pointer) for p in entry.parameters] == [("u64", True)] * 2 + [("u32", False)] * 2
    assert [(v.name, v.align, v.size) for v in entry.shared] == [("smem", 16, 48)]


def test_dynamic_shared_memory_has_no_size() -> None:
    text = kernel("bar.sync 0;").replace(".visible", ".extern .shared .align 16 .b8 global_smem[];\n.visible", 1)
    (variable,) = parse_ptx(text).shared
    assert (variable.name, variable.size) == ("global_smem", None)


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("add.s32 %r2, %r1, -5;", (Register("%r2", 4), Register("%r1", 4), Immediate(2**64 - 5))),
        ("mov.b32 %r2, 0f3F800000;", (Register("%r2", 4), Immediate(0x3F800000, 4))),
        ("mov.b64 %rd9, 0d3FF0000000000000;", (Register("%rd9", 8), Immediate(0x3FF0000000000000))),
        ("mov.u32 %r2, %tid.y;", (Register("%r2", 4), Special("%tid.y"))),
        ("mov.b32 %r2, smem;", (Register("%r2", 4), Symbol("smem"))),
        ("mov.b32 {%rs1, _}, %r2;", (Vector((Register("%rs1", 2), None)), Register("%r2", 4))),
        ("ld.global.b32 { %r2 }, [ %rd4 + 0 ];", (Vector((Register("%r2", 4),)), Address(Register("%rd4", 8), 0))),
        ("ld.shared.b32 %r2, [smem+16];", (Register("%r2", 4), Address(Symbol("smem"), 16))),
        ("ld.global.b32 %r2, [%rd4+-8];", (Register("%r2", 4), Address(Register("%rd4", 8), -8))),
        ("ld.global.b32 %r2, [%rd4 - 8];", (Register("%r2", 4), Address(Register("%rd4", 8), -8))),
    ],
)
def test_operands(text: str, operands: tuple[object, ...]) -> None:
    assert instruction(text).operands == operands


def test_pairs_negations_guards_and_vectors_of_several() -> None:
    shuffle = instruction("shfl.sync.up.b32 %r2|%p1, %r3, 1, 0, -1;")
    assert shuffle.operands[0] == Pair(Register("%r2", 4), Register("%p1", 1))
    assert instruction("and.pred %p1, %p2, !%p3;").operands[2] == Negated(Register("%p3", 1))
    guarded = instruction("@!%p4 mov.b32 %r2, 0;")
    assert guarded.guard == (Register("%p4", 1), True)
    four = instruction("ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd4];")
    assert len(four.operands) == 2
    assert four.parts == ("ld", "global", "v4", "b32")


def test_colons_inside_an_opcode_are_no_label() -> None:
    load = instruction("ld.global.L1::evict_last.b32 %r2, [%rd4];")
    assert load.opcode == "ld.global.L1::evict_last.b32"
    assert load.parts[2] == "L1_evict_last"


def test_scopes_have_registers_of_their_own() -> None:
    body = "{ .reg .b32 %r2; .reg .pred p; setp.eq.s32 p, %r1, 0;\n@p mov.b32 %r2, 1; }\nmov.b32 %r2, 2;"
    inner, outer = parse_ptx(kernel(body)).instructions[-3:-1]
    assert inner.operands[0] != outer.operands[0]
    assert outer.operands[0] == Register("%r2", 4)
    with pytest.raises(RefusalError, match="p is not declared"):
        parse_ptx(kernel("{ .reg .pred p; setp.eq.s32 p, %r1, 0; }\n@p mov.b32 %r2, 1;"))


def test_labels_point_at_the_next_instruction() -> None:
    entry = parse_ptx(kernel("bra.uni $L__BB0_1;\n$L__BB0_1:\nmov.b32 %r2, 0;"))
    assert entry.instructions[entry.labels["$L__BB0_1"]].opcode == "mov.b32"


def test_comments_positions_and_debug_sections_are_no_part() -> None:
    text = kernel("// a comment; with .frobnicate\n.loc 1 2 3\n/* bar.sync 1; */ bar.sync 0;")
    text += '.file 1 "a.py"\n.section .debug_abbrev\n{\n.b8 1 // }\n.b8 2\n}\n.section .debug_macinfo { }\n'
    assert parse_ptx(text).instructions[-2].text == "bar.sync 0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (kernel("bar.sync 0;").replace(".target", ".targets"), "at module level"),
        (kernel("bar.sync 0;") + ".section .text { }", "not understood"),
        (kernel("bar.sync 0;").replace(".reqntid", ".explicitcluster\n.reqntid"), "directive .explicitcluster"),
        (kernel(".local .align 4 .b8 depot[16];"), "not understood"),
        (kernel("A:\nA:\nbar.sync 0;"), "defined twice"),
        (kernel("bar.sync 0"), "ret"),
        (kernel("mov.b32 %r2, %r1 + 3;"), "not understood"),
        (kernel(".reg .b512 %huge;"), "b512"),
        (kernel("bar.sync 0;").replace(".param", ".param .align 64 .b8 map[128], .param", 1), "map"),
    ],
    ids=["module", "section", "entry", "local", "label", "semicolon", "operand", "register type", "parameter"],
)
def test_what_is_not_understood_is_refused(text: str, words: str) -> None:
    with pytest.raises(RefusalError, match=words):
        parse_ptx(text)


def test_one_of_several_entries_can_be_named() -> None:
    other = kernel("bar.sync 1;").replace("kernel", "second").partition(".address_size 64")[2]
    both = kernel("bar.sync 0;") + other
    with pytest.raises(RefusalError, match="one entry"):
        parse_ptx(both)
    assert parse_ptx(both, entry="second").name == "second"
