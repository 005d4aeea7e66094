"""What the gate holds walks against a card with: draws, matrix steps, texts of single instructions, counts of pairs."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmdesc.arithmetic.models import AccumulatorModel
from gemmdesc.arithmetic.replay import fused_dot
from gemmdesc.bits import bits_dtype
from gemmdesc.equivalence import Launch, walk
from gemmdesc.equivalence.answers import READING
from gemmdesc.equivalence.draws import DRAWS, FORMATS, draw
from gemmdesc.equivalence.evaluate import evaluate, loaded_bytes, missing_functions, needed_nodes
from gemmdesc.equivalence.gate_counts import UNKNOWN, UNNAMED, over_splitting, pairs, summary
from gemmdesc.equivalence.gate_rows import load_gate_rows, store_gate_rows
from gemmdesc.equivalence.holding import compared
from gemmdesc.equivalence.instructions import instruction_ptx, matrix_step_ptx
from gemmdesc.equivalence.matrix_steps import modelled_steps, multiply_pairs, step_model
from gemmdesc.equivalence.relations import RELATIONS
from gemmdesc.equivalence.witnesses import BOUNDED, CARD, EXACT, STAND_IN, repeated, strongest
from gemmdesc.errors import InvalidInputError
from tests.equivalence_texts import EXCHANGE, butterfly, kernel

OBSERVATIONS = Path(__file__).resolve().parent / "observations"
SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "equivalence_gate.py"


def as_floats(data: np.ndarray, kind: str) -> np.ndarray:
    match kind:
        case "fp32":
            return data.view(np.float32)
        case "fp16":
            return data.view(np.float16).astype(np.float32)
        case "bf16":
            return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
def test_draws_are_what_their_names_say(kind: str) -> None:
    made = {name: as_floats(draw(name, kind, 0, 8192), kind) for name in DRAWS}
    with np.errstate(all="ignore"):
        sizes = np.abs(made["twelve decades"].astype(np.float64))
    assert np.isfinite(sizes).all()
    assert sizes.max() / sizes.min() > (1e11 if kind != "fp16" else 1e8)
    signs = np.signbit(made["twelve decades, alternating sign"])
    assert (signs == (np.arange(8192) % 2 == 1)).all()
    assert ((made["all -0.0"] == 0) & np.signbit(made["all -0.0"])).all()
    zeros = made["runs of -0.0"] == 0
    assert 0.3 < zeros.mean() < 0.95
    nan = np.isnan(made["NaN with payloads"])
    assert 0 < nan.sum() < 200
    assert not nan.reshape(-1, 256).any(axis=1).all()
    payloads = draw("NaN with payloads", kind, 0, 8192).view(f"u{FORMATS[kind].bytes}")[nan]
    assert len(np.unique(payloads)) > 8
    assert 0 < np.isinf(made["infinities"]).sum() < 300
    tiny = np.finfo(np.float16 if kind == "fp16" else np.float32).tiny
    assert (np.abs(made["subnormals"]) < tiny).all()
    assert len(np.unique(made["subnormals"])) > 100
    with np.errstate(all="ignore"):
        sums = made["close to overflow"].reshape(-1, 64).sum(axis=1)
    assert kind == "fp16" or np.isinf(sums).any()
    pairs = made["cancelling pairs"].reshape(-1, 2)
    assert 0.9 < (pairs[:, 0] == -pairs[:, 1]).mean() < 0.99


def test_float8_draws_have_no_nan_but_where_they_say_so() -> None:
    for name in DRAWS:
        patterns = draw(name, "fp8e4nv", 1, 4096)
        assert ((patterns & 0x7F) == 0x7F).any() == (name == "NaN with payloads"), name


def test_an_element_does_not_depend_on_how_many_there_are() -> None:
    for name in DRAWS:
        long, short = (draw(name, "bf16", 1, count, seed=3) for count in (5000, 1000))
        assert (long[: len(short)] == short).all()
        assert (draw(name, "bf16", 2, 1000, seed=3) != short).any() or name == "all -0.0"
    with pytest.raises(InvalidInputError, match="fp4"):
        draw("plain", "fp4", 0, 1)


def _model(kinds: str) -> AccumulatorModel:
    found = step_model(f"mma.m16n8k16.{kinds}", "Hopper")
    assert found is not None
    return found


@pytest.mark.parametrize("kinds", ["f32.f16.f16.f32", "f32.bf16.bf16.f32", "f32.tf32.tf32.f32", "f16.f16.f16.f16"])
def test_pairs_multiply_as_the_replay_does(kinds: str) -> None:
    model = _model(kinds)
    kind = {"f16": "fp16", "bf16": "bf16", "tf32": "fp32"}[kinds.split(".")[1]]
    out = "fp16" if kinds.startswith("f16") else "fp32"
    k = 32 // FORMATS[kind].bytes
    for name in DRAWS:
        a, b = (draw(name, kind, p, 64 * k).view(bits_dtype(model.a_dtype)).reshape(64, k) for p in (0, 1))
        c = draw(name, out, 2, 64).view(bits_dtype(model.accumulator_dtype))
        got = multiply_pairs(model, a.view(np.uint32), b.view(np.uint32), c.astype(np.uint64))
        wanted = fused_dot(
            model.step,
            a,
            np.ascontiguousarray(b.T),
            np.ascontiguousarray(np.broadcast_to(c[:, None], (64, 64))),
            a_dtype=model.a_dtype,
            b_dtype=model.b_dtype,
            instruction_k=model.instruction_k,
        )
        assert (got == np.diagonal(wanted)).all(), name


def test_a_step_without_a_model_is_handed_on() -> None:
    name = "mma.m16n8k32.f32.e4m3.e4m3.f32"
    words = np.zeros((3, 8), np.uint32)
    assert step_model(name, "Hopper") is None
    with pytest.raises(InvalidInputError, match="e4m3"):
        modelled_steps("Hopper")(name, words, words, np.zeros(3, np.uint64))
    given = modelled_steps("Hopper", lambda n, a, b, c: c + np.uint64(len(a)))
    assert given(name, words, words, np.zeros(3, np.uint64)).tolist() == [3, 3, 3]


def test_several_draws_are_worked_out_at_once_and_chosen_bytes_alone() -> None:
    walked = walk(kernel(butterfly(16, 8, 4, 2, 1)), Launch())
    memory = np.stack([draw(name, "fp32", 0, 32) for name in DRAWS])
    _, values = evaluate(walked, {0: memory})[1]
    assert values.shape == (len(DRAWS), 4)
    for row, data in zip(values, memory, strict=True):
        assert (row == evaluate(walked, {0: data})[1][1]).all()
    every = needed_nodes(walked)
    chosen = walked.stored.offset >= 2
    assert needed_nodes(walked, chosen) < every
    assert (evaluate(walked, {0: memory}, chosen=chosen)[1][1] == values[:, 2:]).all()
    assert loaded_bytes(walked) == {0: 128}


def test_functions_that_are_missing_are_named() -> None:
    text = kernel("ld.global.b32 %r2, [%rd4];\nex2.approx.ftz.f32 %r3, %r2;\nst.global.b32 [%rd5], %r3;")
    assert missing_functions(walk(text, Launch())) == ("ex2.approx.ftz.f32",)
    assert missing_functions(walk(kernel(EXCHANGE, shared=1024), Launch())) == ()


NAMES = [
    ("ex2.approx.ftz.f32", None),
    ("div.full.f32", None),
    ("div.full.f32", 0x40400000),
    ("tanh.approx.f32", None),
    ("sqrt.approx.f32", None),
    ("cvt.rn.f32.s32", None),
    ("cvt.rn.satfinite.e4m3.f32", None),
    ("cvt.rn.f16.e5m2", None),
    ("setp.lt.s32", None),
    ("fma.rn.f16", None),
    ("shr.u64", None),
]
STEPS = [
    ("mma.m16n8k16.f32.f16.f16.f32", 8),
    ("mma.m16n8k8.f32.bf16.bf16.f32", 4),
    ("mma.m16n8k32.f32.e4m3.e4m3.f32", 8),
]


def test_texts_of_single_instructions_assemble() -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    from gemmdesc.equivalence.card import assemble

    for name, literal in NAMES:
        if "shr" not in name:
            assert assemble(instruction_ptx(name, "sm_90a", "8.7", literal), "sm_90a")
    for name, words in STEPS:
        assert assemble(matrix_step_ptx(name, words, "sm_90a", "8.7"), "sm_90a")


def test_what_torch_compile_emitted_is_counted_apart_and_with_the_rest() -> None:
    kernels = {"row_sum": "reductions", "softmax": "norms", "gemm": "products", "silu": "element by element",
               "compiled var-inner": "compiled reductions", "compiled softmax-outer": "compiled norms",
               "compiled residual-layer-norm": "compiled norms", "compiled rms-norm-backward": "compiled norms",
               "compiled mm-bias-relu": "compiled products", "compiled bias-relu": "compiled element by element",
               "compiled silu-backward": "compiled element by element"}  # fmt: skip
    rows = [{**_row(name, name, ["1"], name), "kernel": name} for name in kernels]
    found = over_splitting(rows)
    counted = {name: group["classes"] for name, group in found["by_group"].items()}
    apart = Counter(kernels.values())
    assert counted == {**apart, "reductions and norms": 6}
    assert found["without_products"]["classes"] == 6 + 3
    assert set(found["by_kernel"]) == set(kernels)


@pytest.mark.parametrize("name", ["", "load", "three-way max.f32", "bar.sync", "redux.sync.max.f99"])
def test_what_is_no_instruction_on_registers_is_said(name: str) -> None:
    with pytest.raises(InvalidInputError, match="name must be"):
        instruction_ptx(name, "sm_90a", "8.7")


def _row(case: str, class_: str, outputs: list[str], text: str) -> dict[str, Any]:
    return {"case": case, "choice": {"w": text}, "class": class_, "outputs": outputs, "text": text}


def test_pairs_are_counted_and_those_that_differ_are_found() -> None:
    rows = [
        _row("a", "x", ["1", "2"], "t1"),
        _row("a", "x", ["1", "2"], "t2"),
        _row("a", "x", ["1", "3"], "t3"),
        _row("a", "y", ["1", "9"], "t4"),
        _row("b", "x", ["1", "2"], "t1"),
        _row("b", "z", ["1", "2"], "t5"),
    ]
    same, different = pairs(rows)
    assert (same["pairs"], same["pairs_that_differ"], same["classes_of_several"]) == (6, 3, 1)
    assert (different["pairs_of_classes"], different["seen_to_differ"], different["never_seen_to_differ"]) == (2, 1, 1)


def test_aimed_draws_count_where_both_rows_have_them() -> None:
    rows: list[dict[str, Any]] = [
        _row("a", "x", ["1"], "t1"),
        {**_row("a", "x", ["1"], "t2"), "aimed": ["1"]},
        {**_row("a", "x", ["1"], "t3"), "aimed": ["2"]},
        {**_row("a", "y", ["1"], "t4"), "aimed": ["3"]},
        _row("a", "z", ["1"], "t5"),
    ]
    same, different = pairs(rows)
    assert (same["pairs"], same["pairs_that_differ"]) == (3, 1)
    assert (different["pairs_of_classes"], different["seen_to_differ"]) == (3, 1)
    found = over_splitting([{**row, "kernel": "sum"} for row in rows])["by_kernel"]["sum"]
    # What z stored on the plain draws connects the other two.
    assert (found["classes"], found["classes_of_bytes"]) == (3, 1)
    held = [{**row, "equal": [True], "aimed_equal": [True, False], "kernel": "sum", "bytes_compared": 4,
             "bytes_stored": 8} for row in rows[1:2]]  # fmt: skip
    counts = summary(held, {})["counts"]
    assert (counts["draws"], counts["equal"], counts["configurations_different"]) == (3, 2, 1)
    assert (counts["bytes_compared"], counts["bytes_stored"], counts["with_aimed_draws"]) == (12, 24, 1)


def test_surplus_pairs_have_names_where_a_relation_has_one() -> None:
    order, fusion, *_ = RELATIONS
    rows = [
        {**_row("a", name, outputs, name), "kernel": "sum", "relaxed": {order: x, fusion: y}}
        for name, outputs, x, y in (
            ("k", ["1"], "o", "f"),
            ("l", ["1"], "o", "g"),
            ("m", ["1"], "p", "f"),
            ("n", ["1"], "q", "h"),
            ("n", ["1"], "q", "h"),
            ("o", ["2"], "o", "h"),
        )
    ]
    found = over_splitting([*rows, {**_row("b", "k", ["1"], "t"), "kernel": "other"}])
    counts = {"texts": 6, "classes": 6, "classes_of_bytes": 3, "classes_apart": 3, "classes_expected": 3}
    assert found["without_products"] == {**counts, "factor": 2.0, "factor_apart": 2.0, "factor_expected": 2.0}
    assert found["surplus_pairs_by_name"] == {UNNAMED: 4, order: 1, fusion: 1}
    assert list(found["surplus_pairs_by_kernel"]) == ["sum"]
    (case,) = found["surplus"]
    assert (case["case"], case["classes"], case["classes_of_bytes"]) == ("a", 5, 2)
    assert len(case["without_name"]) == 4


def test_a_witness_tells_classes_apart() -> None:
    """What pairs without one connect counts as one class."""
    rows = [{**_row("a", name, ["1"], name), "kernel": "softmax"} for name in "klm"]

    def counts(**kinds: str | None) -> tuple[int, int]:
        lines = [_witness(list(pair)[::-1], kind) for pair, kind in kinds.items()]
        found = over_splitting(rows, lines)["by_group"]["norms"]
        assert (found["classes"], found["classes_of_bytes"]) == (3, 1)
        return found["classes_apart"], found["classes_expected"]

    assert counts() == (1, 1)
    assert counts(kl=EXACT) == (1, 1)
    assert counts(kl=EXACT, km=BOUNDED) == (2, 2)
    assert counts(kl=EXACT, km=BOUNDED, lm=STAND_IN) == (2, 3)
    assert counts(kl=EXACT, km=BOUNDED, lm=CARD) == (3, 3)
    assert counts(kl=None, km=STAND_IN, lm=STAND_IN) == (1, 2)
    both = [_witness(["k", "l"], kind) for kind in (STAND_IN, CARD, None)]
    assert strongest(both) == {("a", "k", "l"): both[1]}
    named = {UNNAMED: {UNKNOWN: 2}, "told apart by plain": {CARD: 1}}
    assert over_splitting(rows, both)["surplus_pairs_by_witness"] == named


def test_exact_witnesses_are_held_against_the_card() -> None:
    exact = [_witness(["k", "l"], EXACT), _witness(["k", "m"], EXACT), _witness(["l", "m"], EXACT)]
    other = {**exact[1], "kind": CARD, "found": [{**exact[1]["found"][0], "one": "02"}]}
    swapped = _witness(["l", "k"], CARD)
    swapped["found"] = [{**swapped["found"][0], "one": "01", "other": "00"}]
    assert repeated([*exact, swapped, other]) == {"asked": 2, "repeated": 1}


def _witness(classes: list[str], kind: str | None) -> dict[str, Any]:
    found = {"draw": "plain", "seed": 0, "parameter": 1, "offset": 0, "one": "00", "other": "01"}
    return {"case": "a", "classes": classes, "kind": kind, "found": [found]}


def test_what_is_recorded_counts_up_to_the_results() -> None:
    """The page's figures are those of the rows and witnesses that are kept, torch.compile's kernels apart."""
    lines = (OBSERVATIONS / "equivalence-witnesses.jsonl").read_text(encoding="utf-8").splitlines()
    witnesses = [json.loads(line) for line in lines]
    claims = json.loads((SCRIPT.parent.parent / "docs/results/equivalence.json").read_text(encoding="utf-8"))["claims"]
    split = [c for c in claims if c["claim"].startswith("Over-splitting")]
    held = [c for c in claims if c["claim"].startswith("What the equivalence checker reads")]
    files = [OBSERVATIONS / f"equivalence-gate{which}.parquet" for which in ("", "-compiled")]
    for path, claim, counted in zip(files, split, held, strict=True):
        rows = load_gate_rows([path])
        made = over_splitting([r for r in rows if "outputs" in r], witnesses)
        assert claim["counts"] == made["without_products"]
        assert claim["surplus_pairs_by_witness"] == made["surplus_pairs_by_witness"]
        assert (UNNAMED in made["surplus_pairs_by_name"]) is ("no witness yet" in claim["claim"])
        again = summary(rows, {})
        assert counted["counts"] == again["counts"]
        assert counted["called_equal"]["pairs_that_differ"] == again["called_equal"]["pairs_that_differ"] == 0
        assert (counted["counts"]["different"], counted["counts"]["failed"]) == (0, 0)


@pytest.mark.parametrize(
    ("more", "flags", "again"),
    [
        ({"outputs": [], "equal": [True], "aimed_equal": [False], "aimed": []}, "different", True),
        ({"outputs": [], "equal": [True], "aimed_equal": [True], "aimed": []}, "different", False),
        ({"outputs": [], "equal": [False]}, "aimed", True),
        ({"outputs": [], "equal": [False], "aimed_equal": [True], "aimed": []}, "aimed", False),
        ({"outputs": [], "equal": [False]}, "", False),
        ({"refused": "contraction"}, "different aimed", False),
    ],
)
def test_rows_that_are_made_again(more: dict[str, Any], flags: str, again: bool) -> None:
    options = argparse.Namespace(**{name: name in flags for name in ("different", "aimed")})
    assert runpy.run_path(str(SCRIPT))["_again"](more, options) is again


def test_bytes_that_differ_and_bytes_that_nobody_stores_are_found() -> None:
    walked = walk(kernel(EXCHANGE, shared=1024), Launch())
    memory = np.stack([draw("plain", "fp32", 0, 32, seed) for seed in (0, 1)])
    values = evaluate(walked, {0: memory})
    card = np.full((2, 128 + 64), 0xA5, np.uint8)
    card[:, :128] = values[1][1]
    assert compared({1: card}, values, walked, 2)["equal"] == [True, True]
    card[1, 7] ^= 1
    found = compared({1: card}, values, walked, 2)
    assert found["equal"] == [True, False]
    assert (found["first"]["parameter"], found["first"]["offset"]) == (1, 4)
    card[1, 7] ^= 1
    card[0, 150] = 0
    assert compared({1: card}, values, walked, 2)["equal"] == [False, True]


INDUCTOR = """
ld.global.b32 %r10, [%rd4];
mov.b32 %r40, 0fFF800000;
setp.gt.f32 %p1, %r40, %r10;
selp.f32 %r41, %r40, %r10, %p1;
ld.global.b32 %r11, [%rd4+128];
setp.gt.f32 %p2, %r41, %r11;
setp.nan.f32 %p3, %r41, %r41;
or.pred %p4, %p2, %p3;
selp.f32 %r42, %r41, %r11, %p4;
st.global.b32 [%rd5], %r42;
"""


def test_a_nan_of_a_selection_that_may_be_a_maximum_is_either() -> None:
    """Lane 0: a NaN that meets the constant; lane 1: one that meets data alone; lane 2: both; all others: numbers."""
    walked = walk(kernel(INDUCTOR), Launch())
    words = np.zeros((2, 64), np.uint32)
    words[:, :64] = np.arange(1, 65, dtype=np.float32).view(np.uint32)
    first, second = 0xFFA01234, 0x7FC00567
    words[0, 0], words[0, 33], words[0, 2], words[0, 34] = first, second, first, second
    memory = words.view(np.uint8)
    values = evaluate(walked, {0: memory})
    again = partial(evaluate, walked, {0: memory}, as_extremes=True)
    wanted = np.maximum(words[:, :32], words[:, 32:])
    wanted[0, :3] = first, second, first
    assert (values[1][1].view(np.uint32) == wanted).all()
    canonical = wanted.copy()
    canonical[0, [0, 2]] = 0x7FFFFFFF
    assert (again()[1][1].view(np.uint32) == canonical).all()

    def held(changed: dict[int, int]) -> dict[str, Any]:
        card = np.full((2, 128 + 64), 0xA5, np.uint8)
        words = wanted.copy()
        words[0, list(changed)] = list(changed.values())
        card[:, :128] = words.view(np.uint8)
        return compared({1: card}, values, walked, 2, again)

    assert held({})["equal"] == [True, True]
    assert "as_extremes" not in held({})
    # Element by element, ptxas may have decided otherwise.
    for changed in ({0: 0x7FFFFFFF}, {2: 0x7FFFFFFF}, {0: 0x7FFFFFFF, 2: 0x7FFFFFFF}):
        found = held(changed)
        assert (found["equal"], found["mismatches"]) == ([True, True], 0)
        assert found["as_extremes"] == 4 * len(changed)
    # Another payload, bytes of both, a NaN that no constant met, and a number.
    for changed in ({0: 0x7FC00000}, {0: 0x7FA01234}, {0: 0xFFFFFFFF}, {1: 0x7FFFFFFF}, {5: 0x7FFFFFFF}, {5: 0}):
        found = held(changed)
        assert found["equal"] == [False, True]
        assert found["first"]["offset"] == 4 * next(iter(changed))
    # Without the second reading it is another value.
    card = np.full((2, 128), 0xA5, np.uint8)
    card[:, :128] = canonical.view(np.uint8)
    assert compared({1: card}, values, walked, 2)["equal"] == [False, True]


@pytest.mark.slow
def test_a_rehearsal_runs_resumes_and_counts(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--card", "none", "--processes", "1", "--seconds", "200"]
    for expected in (2, 3):
        most = ["--most", "2" if expected == 2 else "1", "--cases", "softmax-256-bf16"]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent)}
        done = subprocess.run([*command, *most], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        (claim,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["claims"]
        assert claim["counts"]["configurations"] == expected
        assert claim["counts"]["failed"] == 0
        assert claim["counts"]["launched"] == 0


def test_rows_are_stored_small_and_come_back_as_they_were(tmp_path: Path) -> None:
    digest, first = "0123456789abcdef", {"draw": "plain", "offset": 4, "card": "00", "walker": "01"}
    rows = [
        {"case": "a", "choice": {"num_warps": 1, "fused": True}, "kernel": "k", "kinds": ["fp16", "fp32"],
         "reading": READING, "compile_s": 0.1234, "text": 2 * digest, "read_s": 0.0567, "class": 2 * digest[::-1],
         "assuming": ["x"], "relaxed": dict.fromkeys(RELATIONS, digest), "launch_s": 0.0007, "functions": [],
         "outputs": [digest, digest[::-1]], "equal": [True, False], "mismatches": 3, "as_extremes": 4,
         "bytes_compared": 8, "bytes_stored": 16, "evaluate_s": 0.0071, "first": first},
        {"case": "a", "choice": {"num_warps": 2, "fused": True}, "kernel": "k", "kinds": [], "reading": READING,
         "refused": "contraction", "reason": "why", "text": 2 * digest},
        {"case": "b", "choice": {"num_warps": 2}, "kernel": "k", "kinds": [], "reading": READING, "text": 2 * digest,
         "class": 2 * digest, "failed": "LibraryError: x", "where": "there"},
    ]  # fmt: skip
    store_gate_rows(tmp_path / "rows.parquet", rows[::-1])
    assert load_gate_rows([tmp_path / "rows.parquet"]) == rows
    lines = tmp_path / "rows.jsonl"
    later = {**rows[0], "mismatches": 0}
    text = "".join(json.dumps(r) + "\n" for r in (later, {**rows[2], "reading": READING - 1}))
    lines.write_text(text + '{"cut', encoding="utf-8")
    assert load_gate_rows([tmp_path / "rows.parquet", lines]) == [later, *rows[1:]]
    with pytest.raises(InvalidInputError, match="csv"):
        load_gate_rows([tmp_path / "rows.csv"])


def test_a_gate_goes_on_from_known_rows_and_counts_them(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    known, facts = tmp_path / "known.parquet", tmp_path / "facts.json"
    row = {**_row("softmax-256-bf16", "ab" * 16, ["ab" * 8], "cd" * 16), "kernel": "softmax", "reading": READING}
    row["choice"] = {"num_warps": 1, "enable_fp_fusion": True, "num_stages": 1}
    store_gate_rows(known, [row])
    told = {"command": "a command", "card": "a card", "versions": {"driver": "1.2"}, "date": "2026-11-30"}
    facts.write_text(json.dumps({"claims": [{"claim": "x", **told}]}), encoding="utf-8")
    stored = tmp_path / "all.parquet"
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--known", str(known), "--store", str(stored)]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent)}
    done = subprocess.run(
        [*command, "--summary", str(facts)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (claim,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["claims"]
    assert (claim["counts"]["configurations"], claim["card"], claim["versions"]) == (1, "a card", {"driver": "1.2"})
    assert load_gate_rows([stored]) == load_gate_rows([known])
