"""Findings about a model's products, and the script that shows a lost tail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemmdesc.arithmetic.replay import replay
from gemmdesc.books import BookReader, Shape
from gemmdesc.errors import InvalidInputError
from gemmdesc.lint import FindingKind, LintReport, lint_shapes, reproducer
from gemmdesc.lint.words import order_text
from gemmdesc.normal_form import normal_form
from gemmdesc.problem import AlgoConfig, Refused
from gemmdesc.rule import Rule, parse_rule
from tests.book_samples import HIDDEN, book_of, release

CHAIN, TURNED, SPLIT, LOSING = range(4)
TEXT = (
    "gemm(a_dtype=float16, b_dtype=float16, output_dtype=float16, summed_k=min(k, mul(splitk_num, {span})), "
    "cuts=[cut(layout=contiguous(span={span}, short=last), partial_dtype={partial}, merge_dtype={merge}, "
    "start=first)], accumulator=accumulator(instruction_k=16, residue=residue_last(), step=fused_dot(fraction_bits=25, "
    "output_bits=23, rounding=toward_zero, zero_exponent=-133, accumulator_dtype=float32)), epilogue=[])"
)
SPAN = "round_up(floordiv(k, splitk_num), 64)"


def rule(partial: str = "float32", merge: str = "float32") -> Rule:
    return parse_rule(TEXT.format(span=SPAN, partial=partial, merge=merge))


def answering(splits: int) -> AlgoConfig:
    return AlgoConfig(
        algo_id=HIDDEN.rules[LOSING][0], tile_id=1, splitk_num=splits, reduction_scheme=2, cta_swizzling=0,
        custom_option=0, stages_id=1, inner_shape_id=0, cluster_shape_id=0,
    )  # fmt: skip


def linted(shapes: list[Shape], splits: dict[int, int], **types: str) -> tuple[LintReport, BookReader]:
    """``splits``: split-K parts by torch's m; others are refused."""
    library, profile = release(
        change=lambda at, old: rule(**types) if at == LOSING else old,
        heuristic=lambda p: answering(splits[p.n]) if p.n in splits else Refused(status="NO"),
    )
    reader = BookReader(book_of(library, shapes, check=False), profile)
    return lint_shapes(shapes, reader), reader


def kinds(report: LintReport, at: int = 0) -> list[str]:
    return [f.kind.value for f in report.shapes[at].findings]


def test_a_lost_tail_is_found_and_counted() -> None:
    report, _ = linted([Shape(m=8, n=8, k=4 * 64 + 3)], {8: 4})
    assert report.shapes[0].lost_tail == 3
    assert kinds(report) == ["lost_tail", "split_k"]
    assert report.shapes[0].findings[0].message == "the last 3 of 259 k are in no sum"
    whole, _ = linted([Shape(m=8, n=8, k=4 * 64)], {8: 4})
    assert kinds(whole) == ["split_k"]


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"partial": "float16"}, "4 parts are stored as float16"),
        ({"merge": "float16"}, "the running sum of 4 parts is held as float16"),
    ],
)
def test_narrow_sums_are_found(types: dict[str, str], message: str) -> None:
    report, _ = linted([Shape(m=8, n=8, k=256)], {8: 4}, **types)
    assert kinds(report) == ["narrow_partials", "split_k"]
    assert report.shapes[0].findings[0].message == message
    # One part is never stored.
    single, _ = linted([Shape(m=8, n=8, k=256)], {8: 1}, **types)
    assert kinds(single) == []


def test_declines_are_found_and_named() -> None:
    report, _ = linted([Shape(m=9, n=8, k=256), Shape(m=9, n=8, k=256, bias=True)], {})
    assert kinds(report) == kinds(report, 1) == ["declined"]
    assert report.shapes[0].findings[0].message.startswith("refused_by_library")
    assert report.shapes[1].findings[0].message.startswith("out_of_scope")


def test_orders_over_m() -> None:
    shapes = [Shape(m=m, n=8, k=512) for m in (64, 1, 2, 8, 16, 32, 4)]
    report, _ = linted(shapes, {1: 1, 2: 1, 8: 4, 16: 4, 32: 2, 64: 4})
    (sweep,) = report.sweeps
    assert [(r.low, r.high, r.order) for r in sweep.runs] == [
        (1, 2, "chain of 16"),
        (4, 4, "declined"),
        (8, 16, "4 parts of 128, chain of 16"),
        (32, 32, "2 parts of 256, chain of 16"),
        (64, 64, "4 parts of 128, chain of 16"),
    ]
    assert (sweep.orders, sweep.changes) == (3, (8, 32, 64))
    assert FindingKind.ORDER_CHANGES_OVER_M in report.kinds()
    assert kinds(report, shapes.index(Shape(m=4, n=8, k=512))) == ["declined"]
    assert "order_changes_over_m" in kinds(report)


def test_two_answers_of_one_order_are_no_change() -> None:
    # 3 parts and 4 parts are one part each where the span covers all k.
    report, _ = linted([Shape(m=m, n=8, k=64) for m in (1, 2)], {1: 3, 2: 4})
    (sweep,) = report.sweeps
    assert [(r.low, r.high) for r in sweep.runs] == [(1, 2)]
    assert report.kinds() == frozenset()


def test_words_follow_the_normal_form() -> None:
    """Orders that are told alike have equal normal forms on random samples of the hidden rules."""
    shapes = [Shape(m=m, n=48, k=k) for m in (1, 30, 64, 99) for k in (96, 259, 700)]
    library, profile = release()
    report = lint_shapes(shapes, BookReader(book_of(library, shapes, check=False), profile))
    seen: dict[tuple[int, str], str] = {}
    for found in report.shapes:
        assert found.descriptor is not None
        k = found.shape.k
        digest = normal_form(found.descriptor, k).digest
        assert seen.setdefault((k, order_text(found.descriptor, k)), digest) == digest


# --- the script -------------------------------------------------------------------------------------------------------


def test_the_script_shows_what_the_library_loses(tmp_path: Path) -> None:
    report, reader = linted([Shape(m=8, n=6, k=259, layout="tn")], {8: 4})
    text = reproducer(report.shapes[0], reader.book, "tail.py")
    assert "gemmdesc" not in text
    assert "cuBLASLt 0.0.5" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    path = tmp_path / "tail.py"
    path.write_text(text)
    environment = {"PATH": "", "HOME": str(tmp_path)}
    whole = subprocess.run(
        [sys.executable, path, "--device", "cpu"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr
    assert "every element should be 3.0" in whole.stdout
    assert "0 of 48 elements are not" in whole.stdout
    # The script's operands under the order that was recorded: nothing of the tail is left.
    a = np.zeros((8, 259), dtype=np.float16)
    a[:, -3:] = 1
    b = np.ones((259, 6), dtype=np.float16)
    desc = report.shapes[0].descriptor
    assert desc is not None
    assert not replay(desc, a.view(np.uint16), b.view(np.uint16)).any()


def test_a_product_that_loses_nothing_has_no_script() -> None:
    report, reader = linted([Shape(m=8, n=8, k=256)], {8: 4})
    with pytest.raises(InvalidInputError, match="loses a tail"):
        reproducer(report.shapes[0], reader.book)
    with pytest.raises(InvalidInputError, match="loses a tail"):
        reproducer(replace(report.shapes[0], descriptor=None), reader.book)
