"""``matmul``, ``plan`` and ``explain`` with a book, on a CPU."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gemmdesc
from gemmdesc.books import BookReader, Shape, write_book
from gemmdesc.dtypes import DType
from gemmdesc.errors import BookError, Declined, DeclinedError, InvalidInputError
from gemmdesc.expressions import Const
from gemmdesc.ops import book_planner
from gemmdesc.plan import Plan
from gemmdesc.problem import GemmProblem
from gemmdesc.rule import Rule
from tests.book_samples import SHAPES, book_of, put, release

LIBRARY, PROFILE = release()
BOOK = book_of(LIBRARY)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    put(tmp_path, PROFILE)
    return tmp_path


def stored(bits: np.ndarray, transposed: bool) -> torch.Tensor:
    """Bit patterns of float16 as a tensor, by rows or by columns."""
    tensor = torch.from_numpy(np.ascontiguousarray(bits.T if transposed else bits).view(np.int16)).view(torch.float16)
    return tensor.T if transposed else tensor


def product(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Torch's operands of a shape, and what the library makes of them, (m, n)."""
    problem = shape.problem(BOOK.settings)
    assert isinstance(problem, GemmProblem)
    entry = BOOK.by_problem[problem]
    assert entry.check is not None
    left, right = entry.check.operands(problem)  # op(A) is torch's b, since results are row-major
    a = right.bits(problem.n, problem.k, np.arange(problem.n))
    b = left.bits(problem.m, problem.k, np.arange(problem.m)).T
    bytes_ = LIBRARY.run(problem, entry.answer, left, right)  # type: ignore[arg-type]
    assert isinstance(bytes_, np.ndarray)
    return stored(a, shape.layout[0] == "t"), stored(b, shape.layout[1] == "t"), bytes_.T


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_cpu_gives_the_librarys_bytes(shape: Shape, folder: Path) -> None:
    a, b, wanted = product(shape)
    got = gemmdesc.matmul(a, b, book=BOOK, profiles=folder)
    assert got.dtype == torch.float16
    assert np.array_equal(bits_of(got), wanted)
    out = torch.empty_like(got)
    assert gemmdesc.matmul(a, b, out=out, book=BOOK, profiles=folder) is out
    assert np.array_equal(bits_of(out), wanted)


def test_a_books_file_is_read_again_when_it_changes(folder: Path) -> None:
    a, b, wanted = product(SHAPES[0])
    path = folder / "a.book"
    write_book(BOOK, path)
    assert np.array_equal(bits_of(gemmdesc.matmul(a, b, book=path, profiles=folder)), wanted)
    write_book(replace(BOOK, entries=BOOK.entries[1:]), path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DeclinedError, match="not_in_book"):
        gemmdesc.matmul(a, b, book=str(path), profiles=folder)


def test_what_the_book_lacks_declines_by_name(folder: Path) -> None:
    a, b, _ = product(SHAPES[0])
    wide = torch.zeros(a.shape[0], a.shape[1] + 8, dtype=a.dtype)[:, : a.shape[1]]
    shifted = torch.zeros(a.numel() + 1, dtype=a.dtype)[1:].view(a.shape)
    for left, word in ((wide, "ldb 96 instead of 104"), (shifted, "b_alignment_bytes 256 instead of 2")):
        with pytest.raises(DeclinedError, match=word) as raised:
            gemmdesc.matmul(left, b, book=BOOK, profiles=folder)
        assert raised.value.declined.code == "not_in_book"
    with pytest.raises(DeclinedError, match="d_dtype float16 instead of float32"):
        gemmdesc.matmul(a, b, out_dtype=torch.float32, book=BOOK, profiles=folder)


def test_settings_are_the_books(folder: Path) -> None:
    """The process's own flags have no part in it."""
    a, b, wanted = product(SHAPES[0])
    before = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    try:
        assert np.array_equal(bits_of(gemmdesc.matmul(a, b, book=BOOK, profiles=folder)), wanted)
    finally:
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = before


def test_empty_products_need_no_entry(folder: Path) -> None:
    a, b = torch.zeros(3, 0, dtype=torch.float16), torch.zeros(0, 4, dtype=torch.float16)
    assert gemmdesc.matmul(a, b, book=BOOK, profiles=folder).tolist() == [[0.0] * 4] * 3
    assert gemmdesc.matmul(a.T, a, book=BOOK, profiles=folder).shape == (0, 0)


def test_no_profile_declines(tmp_path: Path) -> None:
    a, b, _ = product(SHAPES[0])
    with pytest.raises(DeclinedError, match="no_profile"):
        gemmdesc.matmul(a, b, book=BOOK, profiles=tmp_path / "none")


def test_bad_use_raises_before_anything_is_written(folder: Path) -> None:
    a, b, _ = product(SHAPES[0])
    planner = book_planner(BOOK, profiles=folder)
    for kwargs, message in (
        ({"on_decline": "library"}, "on_decline"),
        ({"planner": planner}, "planner must be None"),
        ({"book": 3}, "book must be"),
        ({"out": torch.empty(1, 1, dtype=torch.float16)}, "out must have shape"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            gemmdesc.matmul(a, b, **{"book": BOOK, "profiles": folder, **kwargs})
    with pytest.raises(BookError, match="readable"):
        gemmdesc.matmul(a, b, book=folder / "none.book")
    with pytest.raises(BookError, match="gemmdesc book"):
        gemmdesc.matmul(a, b, book=put(folder, PROFILE))
    with pytest.raises(InvalidInputError, match="CUDA device"):
        gemmdesc.matmul(a.to("meta"), b.to("meta"), book=BOOK, profiles=folder)
    with pytest.raises(InvalidInputError, match="on a CUDA device"):
        gemmdesc.matmul(a, b)


def test_a_plan_of_a_book_needs_no_gpu(folder: Path) -> None:
    shape = SHAPES[3]
    a, b, _ = product(shape)
    plan = gemmdesc.plan(a, b, book=BOOK, profiles=folder)
    assert isinstance(plan, Plan), plan
    problem = shape.problem(BOOK.settings)
    assert isinstance(problem, GemmProblem)
    described = BookReader(BOOK, PROFILE).describe(problem)
    assert not isinstance(described, Declined)
    assert (plan.problem, plan.descriptor) == (problem, described.descriptor)
    assert (plan.device, plan.library) == (BOOK.device, BOOK.library)
    first = SHAPES[0]
    sizes = (first.m, first.k), (first.k, first.n)
    assert isinstance(gemmdesc.plan(*sizes, dtype=DType.FLOAT16, book=BOOK, profiles=folder), Plan)
    absent = gemmdesc.plan((3, 4), (4, 5), dtype="float16", book=BOOK, profiles=folder)
    assert isinstance(absent, Declined)
    assert absent.code == "not_in_book"
    text = str(gemmdesc.explain(*sizes, dtype=DType.FLOAT16, book=BOOK, profiles=folder))
    assert "simulated, cuBLASLt 0.0.5" in text
    assert "verified" in text


def short_steps(number: int, rule: Rule) -> Rule:
    integers = tuple((p, Const(4) if p == "accumulator.instruction_k" else e) for p, e in rule.integers)
    return replace(rule, integers=integers)


def test_an_order_that_no_kernel_has_replays_on_a_cpu(tmp_path: Path) -> None:
    library, profile = release(change=short_steps)
    put(tmp_path, profile)
    shape = SHAPES[0]
    book = book_of(library, [shape])
    a, b, _ = product(shape)
    planned = gemmdesc.plan(a, b, book=book, profiles=tmp_path)
    assert isinstance(planned, Declined)
    assert planned.code == "kernel"
    (entry,) = book.entries
    assert entry.check is not None
    wanted = library.run(entry.problem, entry.answer, *entry.check.operands(entry.problem))  # type: ignore[arg-type]
    assert isinstance(wanted, np.ndarray)
    assert np.array_equal(bits_of(gemmdesc.matmul(a, b, book=book, profiles=tmp_path)), wanted.T)


def test_products_of_more_axes_follow_a_book_on_a_cpu(folder: Path) -> None:
    shape = next(s for s in SHAPES if s.layout[0] == "n")
    a, b, wanted = product(shape)
    got = gemmdesc.matmul(a[None], b, book=BOOK, profiles=folder)
    assert got.shape == (1, *wanted.shape)
    assert np.array_equal(bits_of(got[0]), wanted)
    with pytest.raises(DeclinedError, match=r"mm: the book of .* has no answer"):
        gemmdesc.matmul(a[None, :1], b, book=BOOK, profiles=folder)
