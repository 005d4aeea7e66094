"""Forms of matrix steps are merged only where it is asked for, and the answer says what it then rests on."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemmdesc.equivalence import Answer, Different, Equal, Kernel, equivalent, same_as
from gemmdesc.equivalence.draws import DRAWS
from gemmdesc.equivalence.matrix_steps import modelled_steps
from gemmdesc.equivalence.merges import ENOUGH, PADDED, SWAPPED, load_merges, rows_text, with_evidence
from gemmdesc.errors import InvalidInputError
from tests.equivalence_texts import kernel
from tests.script_modules import load_script

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "merges.json"
LOADS = "\n".join(f"ld.global.b32 %r{10 + i}, [%rd4+{128 * i}];" for i in range(5)) + "\nmov.b32 %r20, 0;\n"
MMA = "mma.sync.aligned.m16n8k{k}.row.col.f32.{t}.{t}.f32 {{%r30, %r31, %r32, %r33}}, {{{a}}}, {{{b}}}, {{{c}}};\n"
#: Elements (g, 2 t) and (g, 2 t + 1), to row-major places or to column-major ones.
STORES = """shr.u32 %r40, %r1, 2;
and.b32 %r41, %r1, 3;
shl.b32 %r42, %r41, 1;
mad.lo.s32 %r43, {first}, 8, {second};
mul.wide.u32 %rd10, %r43, 4;
add.s64 %rd11, %rd2, %rd10;
st.global.b32 [%rd11], %r30;
st.global.b32 [%rd11+{next}], %r31;
"""
ROWS = STORES.format(first="%r40", second="%r42", next=4)
COLUMNS = STORES.format(first="%r42", second="%r40", next=32)


def text(k: int, a: str, b: str, stores: str = ROWS, c: str = "%r20, %r20, %r20, %r20", kind: str = "f16") -> str:
    return kernel(LOADS + MMA.format(k=k, a=a, b=b, c=c, t=kind) + stores)


def ask(one: str, other: str, *merges: str) -> Answer:
    return equivalent(Kernel(name="one", ptx=one), Kernel(name="other", ptx=other), merges=merges)


def test_zero_padding_is_merged_on_demand() -> None:
    padded = text(16, "%r10, %r11, %r20, %r20", "%r12, %r20")
    short = text(8, "%r10, %r11", "%r12")
    assert isinstance(ask(padded, short), Different)
    assert isinstance(ask(padded, short, SWAPPED), Different)
    answer = ask(padded, short, PADDED)
    assert isinstance(answer, Equal)
    assert any("zero padding" in line and "check_merges.py" in line for line in answer.assuming)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("%r10, %r11, %r20, %r20", "%r12, %r13"),
        ("%r10, %r11, %r13, %r13", "%r12, %r20"),
        ("%r20, %r20, %r10, %r11", "%r20, %r12"),
    ],
    ids=["only A", "only B", "the lower half"],
)
def test_zeros_on_one_side_are_no_padding(a: str, b: str) -> None:
    """Zero times infinity is no zero; and nothing is said of zeros below."""
    assert isinstance(ask(text(16, a, b), text(8, "%r10, %r11", "%r12"), PADDED), Different)


def test_swapped_operands_are_merged_on_demand() -> None:
    one = text(16, "%r10, %r14, %r11, %r14", "%r12, %r13")
    other = text(16, "%r12, %r14, %r13, %r14", "%r10, %r11", COLUMNS)
    assert isinstance(ask(one, other), Different)
    answer = ask(one, other, SWAPPED)
    assert isinstance(answer, Equal)
    assert any("change places" in line for line in answer.assuming)
    assert isinstance(ask(one, text(16, "%r12, %r14, %r13, %r14", "%r10, %r14", COLUMNS), SWAPPED), Different)


def test_a_merge_is_stated_for_its_types_alone() -> None:
    one, other = (
        text(32, f"{a}, %r14, {b}, %r14", f"{c}, {d}", s, kind="e4m3")
        for a, b, c, d, s in (("%r10", "%r11", "%r12", "%r13", ROWS), ("%r12", "%r13", "%r10", "%r11", COLUMNS))
    )
    assert isinstance(ask(one, other, SWAPPED, PADDED), Different)


def test_answers_that_need_no_merge_rest_on_none() -> None:
    one = text(8, "%r10, %r11", "%r12")
    answer = ask(one, one.replace("%r43", "%r44"), PADDED, SWAPPED)
    assert isinstance(answer, Equal)
    assert not any("padding" in line or "places" in line for line in answer.assuming)


def test_a_merge_that_is_not_there_is_said() -> None:
    with pytest.raises(InvalidInputError, match="mma = wgmma"):
        ask("", "", "mma = wgmma")
    assert {row.name for row in load_merges()} == {SWAPPED, PADDED}


def test_rows_say_where_they_are_established() -> None:
    """The packaged rows are what the recorded claims make of them."""
    claims = json.loads(RESULTS.read_text(encoding="utf-8"))["claims"]
    blank = [replace(row, established=()) for row in load_merges()]
    assert tuple(with_evidence(row, claims) for row in blank) == load_merges()
    for row in load_merges():
        assert [e.card for e in row.established] == ["NVIDIA H200 (sm_90, 132 SMs)"]
        assert "established on NVIDIA H200 (sm_90, 132 SMs), 1,048,580 elements a type" in str(row)
        assert "an assumption, not established on any card" in str(replace(row, established=()))
    answer = ask(text(16, "%r10, %r11, %r20, %r20", "%r12, %r20"), text(8, "%r10, %r11", "%r12"), PADDED)
    assert isinstance(answer, Equal)
    assert any("established on NVIDIA H200" in line for line in answer.assuming)


def test_a_card_is_entered_where_every_type_held_and_taken_out_where_one_failed() -> None:
    merge = replace(load_merges([SWAPPED])[0], established=())

    def claims(equal: int, different: int = 0, date: str = "2026-11-30") -> list[dict[str, Any]]:
        counts = [(ENOUGH, 0)] * (len(merge.types) - 1) + [(equal, different)]
        return [
            {"claim": merge.claim(types), "card": "a card", "versions": {"triton": "3.6.0"}, "date": date,
             "counts": {"equal": e, "different": d}}
            for types, (e, d) in zip(merge.types, counts, strict=True)
        ]  # fmt: skip

    held = with_evidence(merge, claims(ENOUGH + 5))
    assert [(e.card, e.elements) for e in held.established] == [("a card", ENOUGH)]
    assert with_evidence(merge, claims(ENOUGH - 1)).established == ()
    assert with_evidence(merge, claims(ENOUGH)[:-1]).established == ()
    assert with_evidence(held, claims(ENOUGH + 5, different=1)).established == ()
    assert with_evidence(held, []) == held
    assert with_evidence(load_merges([PADDED])[0], claims(ENOUGH, 1)) == load_merges([PADDED])[0]
    again = with_evidence(held, claims(ENOUGH, date="2026-12-01"))
    assert [e.date for e in again.established] == ["2026-12-01"]


def test_the_rows_are_packaged_as_they_are_written() -> None:
    packaged = resources.files("gemmdesc.equivalence").joinpath("merges.json").read_text(encoding="utf-8")
    assert rows_text(load_merges()) == packaged


def test_the_script_compares_the_forms_that_the_rows_speak_of() -> None:
    """The models agree with both rows, so that the card is asked about the right forms."""
    script = load_script("check_merges")
    step = modelled_steps("Hopper")
    for merge in load_merges():
        for types in merge.types:
            for name in DRAWS:
                one, other = script.forms(merge.name, types, step, *script.operands(types, name, 64))
                np.testing.assert_array_equal(one, other)


def test_pruning_takes_merges_and_says_what_it_kept_by_them() -> None:
    texts = {
        "padded": text(16, "%r10, %r11, %r20, %r20", "%r12, %r20"),
        "short": text(8, "%r10, %r11", "%r12"),
        "other": text(8, "%r13, %r11", "%r12"),
        "padded again": text(16, "%r10, %r11, %r20, %r20", "%r12, %r20"),
    }
    configs = [type("Named", (str,), {"all_kwargs": lambda _: {}})(name) for name in texts]
    compiled: list[str] = []

    def compile_(config: str, *_: Any) -> Any:
        compiled.append(config)
        return SimpleNamespace(
            asm={"ptx": texts[config]}, metadata=SimpleNamespace(), src=SimpleNamespace(signature={"x": "*fp32"})
        )

    def kept(merges: tuple[str, ...], reference: str | None = None) -> tuple[list[str], tuple[str, ...]]:
        given = None if reference is None else Kernel(name="reference", ptx=texts[reference])
        prune = same_as(given, compile_=compile_, merges=merges)
        found = prune(configs, {}, grid=(1,))
        assert prune.last is not None
        assert sorted(map(len, prune.last.partition.classes)) == [1, 1, 2]
        return list(map(str, found)), prune.last.assuming

    assert kept(()) == (["padded", "padded again"], ())
    assert kept((SWAPPED,)) == (["padded", "padded again"], ())
    by_merge, assuming = kept((PADDED,))
    assert by_merge == ["padded", "short", "padded again"]
    assert "zero padding" in assuming[0]
    assert kept((PADDED,), "short")[0] == by_merge
    assert kept((PADDED,), "other") == (["other"], ())
    assert compiled == 5 * list(texts)
    with pytest.raises(InvalidInputError, match="merges must be of"):
        kept(("something else",))
