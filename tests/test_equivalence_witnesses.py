"""Operands that tell apart what draws have not: exact ones, ones within bounds, ones that only a card can confirm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmdesc.equivalence import Launch, Walked, walk
from gemmdesc.equivalence.answers import READING
from gemmdesc.equivalence.bounds import applies, ranges
from gemmdesc.equivalence.draws import AIMED, DRAWS, FORMATS, draw
from gemmdesc.equivalence.evaluate import evaluate
from gemmdesc.equivalence.functions import NAMED, Bits, Function
from gemmdesc.equivalence.gate_rows import store_gate_rows
from gemmdesc.equivalence.holding import EXTRA, Holder, Launchable
from gemmdesc.equivalence.stand_ins import STAND_INS, largest, smallest, stand_in
from gemmdesc.equivalence.witnesses import BOUNDED, EXACT, STAND_IN, aims, find_witnesses, trials, unseen
from gemmdesc.errors import InvalidInputError
from tests.equivalence_texts import butterfly, kernel
from tests.script_modules import load_script

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "equivalence_witnesses.py"
LOAD = "".join(f"ld.global.b32 %r{10 + i}, [%rd4+{128 * i}];\n" for i in range(4))
STORE = "st.global.b32 [%rd5], %r9;"
#: x / sqrt(s / 4 + eps) for a sum s of squares, in a given order; and x / s for a sum of exponentials.
ROOT = "div.full.f32 %r9, %r9, 0f40800000;\nadd.rn.f32 %r9, %r9, 0f3727C5AC;\nsqrt.approx.ftz.f32 %r9, %r9;\n"
NORM = "".join(f"mul.rn.f32 %r{20 + i}, %r{10 + i}, %r{10 + i};\n" for i in range(4)) + "{sum}" + ROOT
SOFT = "".join(f"ex2.approx.f32 %r{20 + i}, %r{10 + i};\n" for i in range(4)) + "{sum}"
ORDERS = (
    "add.rn.f32 %r9, %r20, %r21;\nadd.rn.f32 %r9, %r9, %r22;\nadd.rn.f32 %r9, %r9, %r23;\n",
    "add.rn.f32 %r9, %r20, %r21;\nadd.rn.f32 %r8, %r22, %r23;\nadd.rn.f32 %r9, %r9, %r8;\n",
)
KINDS = ("fp32", "fp32")


def body(*lines: str) -> Walked:
    return walk(kernel(LOAD + "\n".join(lines) + "\n" + STORE), Launch())


def norms() -> list[Walked]:
    return [body(NORM.format(sum=order), "div.full.f32 %r9, %r10, %r9;") for order in ORDERS]


def patterns(*values: float) -> Bits:
    return np.array(values, np.float32).view(np.uint32).astype(np.uint64)


def floats(bits: Bits) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


def test_stand_ins_are_rounded_correctly_then_bent() -> None:
    x = patterns(0.3, 2.0, 1e-30, 1e30, 0.0, np.inf, np.nan)
    for name in ("sqrt.approx.f32", "ex2.approx.f32"):
        exact = {"sqrt": np.sqrt, "ex2": np.exp2}[name.split(".")[0]]
        with np.errstate(all="ignore"):
            wanted = exact(floats(x).astype(np.float64)).astype(np.float32).view(np.uint32)
        got = {style: stand_in(name, bend)(x).astype(np.int64) for style, bend in STAND_INS.items()}
        np.testing.assert_array_equal(floats(got["rounded correctly"].view(np.uint64))[:6], wanted.view(np.float32)[:6])
        number = np.isfinite(wanted.view(np.float32)) & (wanted != 0)
        for style, units in (("two units up", 2), ("two units down", -2)):
            assert (got[style] - got["rounded correctly"] == np.where(number, units, 0)).all()
        assert (np.abs(got["scattered"] - got["rounded correctly"]) <= 2).all()
    halves = stand_in("div.full.f32", STAND_INS["two units up"])(patterns(3.0, 3.0), patterns(4.0, 5.0))
    assert floats(halves)[0] == 0.75
    assert floats(halves)[1] == np.float32(0.6) + 2 * np.spacing(np.float32(0.6))
    assert (stand_in("sqrt.approx.ftz.f32", STAND_INS["two units up"])(np.array([5], np.uint64)) == 0).all()
    for name in ("tanh.approx.f32", "div.rn.f64"):
        with pytest.raises(InvalidInputError, match="name must be"):
            stand_in(name, STAND_INS["scattered"])


def test_what_the_manual_fixes_is_not_bent() -> None:
    a, b, c = (np.random.default_rng(n).integers(0x20000000, 0x5F000000, 2000).astype(np.uint64) for n in range(3))
    for bend in STAND_INS.values():
        down, near = (floats(stand_in(f"fma.{mode}.ftz.f32", bend)(a, b, c)) for mode in ("rm", "rn"))
        exact = floats(a).astype(np.float64) * floats(b) + floats(c)
        assert (down <= exact).all()
        assert (near == exact.astype(np.float32)).all()
        assert ((down == near) | (np.nextafter(down, np.float32(np.inf)) == near)).all()
        assert (down != near).any()
        clipped = stand_in("cvt.ftz.sat.f32.f32", bend)(patterns(-1.0, 0.25, 3.0, np.nan))
        assert floats(clipped).tolist() == [0.0, 0.25, 1.0, 0.0]
    root = floats(stand_in("rsqrt.approx.ftz.f32", STAND_INS["two units up"])(patterns(3.0)))
    assert root == np.float32(1 / np.sqrt(3.0)) + 2 * np.spacing(np.float32(0.57))


def test_zeros_of_both_signs_come_with_numbers_of_one_sign() -> None:
    signs = set()
    for seed in range(8):
        x = draw("zeros of both signs", "fp32", 0, 1024, seed).view(np.float32)
        assert 0.6 < (x == 0).mean() < 0.9
        assert 0.3 < np.signbit(x[x == 0]).mean() < 0.7
        (sign,) = set(np.signbit(x[x != 0]).tolist())
        signs.add(sign)
    assert signs == {False, True}
    assert ("zeros of both signs", 0) in aims(1)


def test_bounds_hold_every_stand_in_and_no_power_of_two() -> None:
    x = np.random.default_rng(3).integers(0, 0x7F800000, 20000).astype(np.uint64)
    y = patterns(*(2.0 ** (2 * k) for k in range(-60, 60)))
    for values in (x, y):
        low, high = smallest("sqrt.approx.f32")(values), largest("sqrt.approx.f32")(values)
        assert (low & 0x7FFFFF != 0).all()
        assert (high & 0x7FFFFF != 0).all()
        for bend in STAND_INS.values():
            made = stand_in("sqrt.approx.f32", bend)(values)
            assert (low < made).all()
            assert (made < high).all()


def test_ranges_hold_what_every_stand_in_gives() -> None:
    (walked, _) = norms()
    assert applies(walked)
    memory = np.stack([draw(name, "fp32", 0, 128, seed) for name in (*DRAWS, *AIMED) for seed in range(4)])
    (found,) = ranges(walked, {0: memory}, KINDS).values()
    assert found.known.any()
    assert not found.apart(found).any()
    for bend in STAND_INS.values():
        functions = {name: stand_in(name, bend) for name in ("sqrt.approx.ftz.f32", "div.full.f32")}
        made = evaluate(walked, {0: memory}, functions=functions)[1][1].view(np.uint32).astype(np.int64)
        size, inside = made & 0x7FFFFFFF, found.known
        assert (size >= found.low)[inside].all()
        assert (size <= found.high)[inside].all()
        assert ((made >> 31 == 1) == found.negative)[inside].all()


@pytest.mark.parametrize(
    "lines",
    [
        ("ex2.approx.f32 %r9, %r10;",),
        ("sqrt.approx.f32 %r9, %r10;",),
        ("sqrt.approx.f32 %r9, %r10;", "div.full.f32 %r9, %r9, %r11;"),
        ("sqrt.approx.f32 %r9, %r10;", "add.rn.f32 %r9, %r9, %r11;"),
        ("sqrt.approx.f32 %r9, %r10;", "div.full.f32 %r9, %r11, %r9;", "add.rn.f32 %r9, %r9, %r11;"),
        ("div.full.f32 %r9, %r10, %r11;",),
        ("div.full.f32 %r9, %r10, 0f40400000;", "sqrt.approx.f32 %r9, %r9;", "div.full.f32 %r9, %r11, %r9;"),
        ("sqrt.approx.f32 %r9, %r10;", "div.approx.f32 %r9, %r11, %r9;"),
    ],
)
def test_bounds_are_for_a_last_quotient_by_a_root_alone(lines: tuple[str, ...]) -> None:
    assert not applies(body(*lines))


def test_an_order_is_told_apart_exactly_and_the_bytes_are_those_of_the_expressions() -> None:
    orders = ((16, 8, 4, 2, 1), (1, 2, 4, 8, 16), (16, 8, 4, 2, 1))
    walks = [walk(kernel(butterfly(*order)), Launch()) for order in orders]
    found = find_witnesses(walks, KINDS, aims(2))
    assert set(found) == {(0, 1), (1, 2)}
    witness = found[0, 1]
    assert witness.kind == EXACT
    (difference,) = witness.found
    memory = {0: draw(difference.draw, "fp32", 0, 32, difference.seed)}
    for walked, text in zip(walks, (difference.one, difference.other), strict=False):
        assert bytes(evaluate(walked, memory)[1][1]).hex() == text
    assert difference.one != difference.other
    assert find_witnesses(walks[:2], KINDS, [("all -0.0", 0)]) == {}


def test_a_payload_that_ptxas_may_drop_is_no_witness() -> None:
    """A selection gives the NaN that it is given or, as a maximum, the canonical one that the instruction gives."""
    selected = "setp.gtu.f32 %p1, %r10, 0f3F800000;\nselp.f32 %r9, %r10, 0f3F800000, %p1;"
    made = [body("max.NaN.f32 %r9, %r10, 0f3F800000;"), body(selected)]
    assert find_witnesses(made, KINDS, aims(8)) == {}
    # Where a selection is none of a constant, it gives the payload, and where numbers differ they do.
    other = "setp.gtu.f32 %p1, %r10, %r11;\nselp.f32 %r9, %r10, %r11, %p1;"
    for one, two in (("max.NaN.f32 %r9, %r10, %r11;", other), ("min.NaN.f32 %r9, %r10, 0f3F800000;", selected)):
        assert find_witnesses([body(one), body(two)], KINDS, aims(8))[0, 1].kind == EXACT


def test_a_fused_product_is_told_apart_where_products_underflow() -> None:
    """Products of two bfloat16 are exact everywhere else."""
    wide = [f"shl.b32 %r{20 + i}, %r{10 + i}, 16;" for i in range(4)]
    wide.append("mul.rn.f32 %r22, %r22, %r23;")
    fused = body(*wide, "fma.rn.f32 %r9, %r20, %r21, %r22;")
    apart = body(*wide, "mul.rn.f32 %r9, %r20, %r21;", "add.rn.f32 %r9, %r9, %r22;")
    found = find_witnesses([fused, apart], ("bf16", "fp32"), aims(64))
    assert found[0, 1].found[0].draw == "products that underflow"


def test_a_difference_shows_whatever_approximate_functions_give() -> None:
    """Two halves of the last place of the largest number: lost one by one, or 2 ** 128 together, and x / inf = 0."""
    walks = norms()
    values = np.zeros((1, 128), np.float32)
    values[0, [0, 32, 64, 96]] = np.nextafter(np.float32(2.0**64), np.float32(0)), 2.0**52, 2.0**51, 2.0**51
    finite, infinite = (ranges(w, {0: values.view(np.uint8)}, KINDS)[1] for w in walks)
    assert (infinite.high == 0).all()
    # The ends hold 2, and little else.
    two = int(np.float32(2.0).view(np.uint32))
    assert finite.low[0, 0] <= two <= finite.high[0, 0]
    assert finite.high[0, 0] - finite.low[0, 0] < 64
    assert finite.apart(infinite).tolist() == infinite.apart(finite).tolist() == [[True] + 31 * [False]]
    values[0, 64] = 0
    assert not finite.apart(ranges(walks[1], {0: values.view(np.uint8)}, KINDS)[1]).any()


def test_what_only_the_card_defines_is_looked_for_under_every_stand_in() -> None:
    walks = [body(SOFT.format(sum=order), "div.full.f32 %r9, %r20, %r9;") for order in ORDERS]
    witness = find_witnesses(walks, KINDS, aims(32))[0, 1]
    assert witness.kind == STAND_IN
    assert [d.functions for d in witness.found] == list(STAND_INS)
    assert trials(walks, 9) == aims(9)
    assert trials(norms(), 9)[-len(aims(9)) :] == aims(9)
    assert len(trials(norms(), 9)) > len(aims(9))


def test_aimed_draws_are_what_their_names_say() -> None:
    values = {name: draw(name, "fp32", 0, 4096, 1).view(np.float32) for name in AIMED}
    with np.errstate(all="ignore"):
        halves = (draw("products that underflow", "bf16", p, 4096).view(np.uint16) for p in (0, 1))
        a, b = ((half.astype(np.uint32) << 16).view(np.float32) for half in halves)
        assert 0.1 < (a.astype(np.float64) * b.astype(np.float64) != (a * b).astype(np.float64)).mean() < 0.9
    assert 0.15 < np.isnan(values["many NaN"]).mean() < 0.35
    assert set(np.abs(values["small odd integers"]).tolist()) == {1.0, 3.0, 5.0, 7.0}
    assert (values["positive"] > 0).all()
    large = np.abs(values["large, cancelling, and specks"]) > 1
    assert values["large, cancelling, and specks"][large].astype(np.float64).sum() == 0
    for kind in FORMATS:
        assert len(draw("squares that sum to infinity, or almost", kind, 0, 1000, 5)) == 1000 * FORMATS[kind].bytes


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_squares_sum_to_the_largest_number_almost(kind: str) -> None:
    rows = set()
    for seed in range(40):
        data = draw("squares that sum to infinity, or almost", kind, 0, 512, seed)
        wide = data.view(np.uint32) if kind == "fp32" else data.view(np.uint16).astype(np.uint32) << 16
        values = [int(v) for v in np.abs(wide.view(np.float32))]
        sums = [sum(v * v for v in values[begin : begin + 256]) for begin in (0, 256)]
        assert sums[0] == sums[1]
        (halvings,) = [h for h in range(5) if abs((sums[0] << h) - (1 << 128)) < 1 << 107]
        rows.add(256 << halvings)
    assert rows == {256, 512, 1024, 2048, 4096}


def test_integers_are_compared_with_and_without_their_sign() -> None:
    a, b = np.array([1, 2, 0xFFFFFFFF], np.uint64), np.array([2, 2, 1], np.uint64)
    assert NAMED["setp.lt.s32"](a, b).tolist() == [1, 0, 1]
    assert NAMED["setp.lt.u32"](a, b).tolist() == [1, 0, 0]
    assert NAMED["setp.ge.s32"](a, b).tolist() == [0, 1, 0]
    assert NAMED["setp.ne.u32"](a, b).tolist() == [1, 0, 1]


def test_groups_are_classes_of_one_case_with_the_same_bytes() -> None:
    rows = [
        {"case": case, "class": name, "outputs": list(out), "choice": number}
        for number, (case, name, out) in enumerate([("a", "k", "12"), ("a", "l", "12"), ("a", "k", "12"),
                                                    ("a", "m", "13"), ("b", "n", "12")])
    ]  # fmt: skip
    found = unseen([*rows, {"case": "a", "class": "o"}])
    assert [[row["choice"] for row in group] for group in found] == [[0, 1]]


class Evaluating:
    """A card whose kernels are walks, worked out under a stand-in."""

    def __init__(self, walks: Sequence[Walked]) -> None:
        self.walks = dict(enumerate(walks))
        self.held: dict[Any, Any] = {}

    def upload(self, key: Any, make: Any) -> tuple[Any, int]:
        self.held[key] = make()
        return len(self.held) - 1, self.held[key].shape[1]

    def drop(self, key: Any) -> None:
        del self.held[key]

    def instruction(self, name: str, *_: str) -> Function:
        return stand_in(name, STAND_INS["scattered"])

    def matrix_step(self, *_: str) -> None:
        return None

    def launch(self, cubin: bytes, name: str, *, arguments: Any, draws: int, outputs: Any, **_: Any) -> list[Any]:
        walked = self.walks[cubin[0]]
        (data,) = self.held.values()
        assert len(data) == draws
        functions = {n: self.instruction(n) for n in ("ex2.approx.f32", "div.full.f32")}
        at, values = evaluate(walked, {0: data}, functions=functions)[1]
        out = np.full((draws, outputs[0]), 0xA5, np.uint8)
        out[:, at] = values
        return [out]


def test_a_card_is_asked_for_the_same_and_keeps_nothing() -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    script = load_script("equivalence_witnesses")
    walks = [body(SOFT.format(sum=order), "div.full.f32 %r9, %r20, %r9;") for order in (*ORDERS, ORDERS[0])]
    card = Evaluating(walks)
    compiled = [type("Compiled", (), {"asm": {"cubin": bytes([i])}, "metadata": type("M", (), {"shared": 0})})
                for i in range(3)]  # fmt: skip
    found = script.launched(list(KINDS), walks, compiled, aims(32), card)
    wanted = find_witnesses(walks[:2], KINDS, aims(32))[0, 1].found[-1]
    assert wanted.functions == "scattered"
    assert set(found) == {(0, 1), (1, 2)}
    (got,) = found[0, 1].found
    for name in ("draw", "seed", "parameter", "offset", "one", "other"):
        assert getattr(got, name) == getattr(wanted, name)
    assert card.held == {}
    memory = {0: np.zeros((2, 512), np.uint8)}
    given = Launchable(cubin=b"\0", metadata=compiled[0].metadata, kinds=KINDS)
    holder = Holder(card, 0)
    stored = holder.stored_on(walks[0], given, memory, "x")
    assert stored is not None
    assert stored[1][1].shape == (2, 128)
    assert len(card.held) == 1


def test_aimed_draws_are_held_against_the_card_as_well() -> None:
    walks = [body(SOFT.format(sum=order), "div.full.f32 %r9, %r20, %r9;") for order in ORDERS]
    rows = []
    for number, walked in enumerate(walks):
        given = Launchable(cubin=bytes([number]), metadata=type("M", (), {"shared": 0}), kinds=KINDS)
        rows.append(Holder(Evaluating(walks), 0).hold(walked, given))
    for row in rows:
        assert row["equal"] == [True] * len(DRAWS)
        assert row["aimed_equal"] == [True] * len(AIMED)
        assert len(row["outputs"]) == len(DRAWS) + EXTRA
        assert len(row["aimed"]) == len(AIMED)
    assert rows[0]["aimed"] != rows[1]["aimed"]
    wrong = Evaluating(walks[::-1])
    given = Launchable(cubin=b"\0", metadata=type("M", (), {"shared": 0}), kinds=KINDS)
    row = Holder(wrong, 0).hold(walks[0], given)
    assert row["mismatches"]
    assert not all(row["equal"] + row["aimed_equal"])
    assert "first" in row


def test_the_script_finds_writes_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    from gemmdesc.equivalence import signature
    from gemmdesc.equivalence.answers import text_digest
    from tests import equivalence_corpus as corpus

    case = corpus.wide_cases()["row_dot-256-bf16"]
    rows = []
    for fusion in (True, False):
        choice = {"num_warps": 4, "enable_fp_fusion": fusion, "num_stages": 1}
        ptx = corpus.compile_case(case, choice, 90).asm["ptx"]
        walked = walk(ptx, corpus.launch_of(case, choice))
        rows.append({"case": case.name, "choice": choice, "kernel": "row_dot", "kinds": ["bf16", "bf16", "fp32"],
                     "reading": READING, "text": text_digest(ptx), "class": signature(walked),
                     "outputs": ["ab" * 8]})  # fmt: skip
    store_gate_rows(tmp_path / "gate.parquet", rows)
    out = tmp_path / "out.jsonl"
    command = [sys.executable, str(SCRIPT), str(out), "--gate", str(tmp_path / "gate.parquet"), "--processes", "1"]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent)}
    for number in (1, 0):
        done = subprocess.run([*command, "--seeds", "2"], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"{number} groups to try" in done.stderr
    (line,) = [json.loads(text) for text in out.read_text(encoding="utf-8").splitlines()]
    assert line["kind"] == EXACT
    assert [sorted(pair) for pair in combinations(line["classes"], 2)] == [sorted(r["class"] for r in rows)]
    assert line["kind"] != BOUNDED
