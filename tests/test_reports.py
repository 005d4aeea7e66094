"""Releases compared shape by shape, as text, Markdown and a map."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.books import BookReader, Shape, ShapeDefaults, grid_shapes
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import BookError, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import AlgoConfig, GemmProblem, KernelNode, Launch, Refused
from gemmdesc.profiles import ChangeKind, diff_profiles
from gemmdesc.reports import (
    DiffReport,
    ShapeDiff,
    diff_markdown,
    diff_shapes,
    plot_panels,
    plot_regions,
    read_releases,
    release_report,
    releases_markdown,
    shape_counts,
    shapes_json,
    shapes_text,
)
from gemmdesc.rule import Rule
from tests.book_samples import HIDDEN, SHAPES, Change, book_of, put, release, same
from tests.script_modules import load_script

ROOT = Path(__file__).resolve().parent.parent


def reader(patch: int = 5, change: Change = same, shapes: tuple[Shape, ...] = SHAPES, **more: object) -> BookReader:
    library, profile = release(patch, change, **more)  # type: ignore[arg-type]
    return BookReader(book_of(library, shapes, check=False), profile)


OLD = reader()


def kinds(new: BookReader, shapes: tuple[Shape, ...] = SHAPES, old: BookReader = OLD) -> list[tuple[str, ...]]:
    return [tuple(k.value for k in d.kinds) for d in diff_shapes(shapes, old, new)]


def with_cut(rule: Rule, **changes: object) -> Rule:
    (cut,) = rule.structure.cuts
    return replace(rule, structure=replace(rule.structure, cuts=(replace(cut, **changes),)))


def test_equal_releases_have_no_change() -> None:
    diffs = diff_shapes(SHAPES, OLD, reader(6))
    assert shape_counts(diffs) == {"same": len(SHAPES)}
    assert not any(d.numeric for d in diffs)
    assert shapes_text(diffs) == f"shapes same: {len(SHAPES)}\n"


def test_kinds_of_change_are_told_apart() -> None:
    """Two splits: one sums in another type, the other is split in another way; a chain takes longer steps."""

    def moved(problem: GemmProblem) -> AlgoConfig | Refused:
        answer = HIDDEN.answer(problem)
        assert isinstance(answer, AlgoConfig)
        return replace(answer, splitk_num=3) if problem.k == 999 else answer

    split = [at for at, (_, rule) in enumerate(HIDDEN.rules) if rule.structure.cuts]
    merged = reader(6, lambda at, r: with_cut(r, merge_dtype=DType.BFLOAT16) if at in split else r)
    found = dict(zip([s.k for s in SHAPES], kinds(merged), strict=True))
    assert found == {96: (), 100: ()} | dict.fromkeys((999, 700, 515), ("merge_type_changed",))

    resplit = dict(zip([s.k for s in SHAPES], kinds(reader(6, heuristic=moved)), strict=True))
    assert resplit == {96: (), 100: (), 999: ("split_changed",), 700: (), 515: ()}

    def coarse(at: int, rule: Rule) -> Rule:
        leaf = rule.structure.accumulator
        step = replace(leaf.step, fraction_bits=9)
        return replace(rule, structure=replace(rule.structure, accumulator=replace(leaf, step=step)))

    assert set(kinds(reader(6, coarse))) == {("accumulator_changed",)}


def test_a_split_of_one_part_is_no_change() -> None:
    """Rules as texts differ, and no operand at these k can tell."""

    def spelled(at: int, rule: Rule) -> Rule:
        return with_cut(rule, merge_dtype=DType.FLOAT16) if rule.structure.cuts else rule

    def one(problem: GemmProblem) -> AlgoConfig | Refused:
        answer = HIDDEN.answer(problem)
        assert isinstance(answer, AlgoConfig)
        return replace(answer, splitk_num=1)

    old, new = reader(5, heuristic=one), reader(6, spelled, heuristic=one)
    assert isinstance(old.profile, type(new.profile))
    assert kinds(new, old=old) == [()] * len(SHAPES)


def test_renamed_kernels_and_answers_are_no_numeric_change() -> None:
    library, profile = release(6)

    def launched(problem: GemmProblem, answer: AlgoConfig) -> Launch:
        node = KernelNode(name="other", grid=(1, 1, 1), block=(1, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
        return Launch(kernels=(node,))

    renamed = BookReader(book_of(replace(library, launches=launched), check=False), profile)
    diffs = diff_shapes(SHAPES, OLD, renamed)
    assert {d.kinds for d in diffs} == {(ChangeKind.RENAMED_SAME_ORDER,)}
    assert "-> other" in diffs[0].detail
    assert not diffs[0].numeric

    tiles = replace(library, heuristic=lambda p: replace(HIDDEN.answer(p), tile_id=77))  # type: ignore[type-var]
    diffs = diff_shapes(SHAPES, OLD, BookReader(book_of(tiles, check=False), profile))
    assert "tile_id 11 -> 77" in diffs[0].detail


def test_support_that_comes_and_goes() -> None:
    def refusing(problem: GemmProblem) -> AlgoConfig | Refused:
        return Refused(status="NO") if problem.k == 96 else HIDDEN.answer(problem)

    refused = reader(6, heuristic=refusing)
    assert kinds(refused)[0] == ("dropped",)
    assert kinds(OLD, old=refused)[0] == ("newly_supported",)
    both = diff_shapes(SHAPES[:1], refused, refused)
    assert (both[0].name, both[0].kinds) == ("declined_on_both", ())
    fewer = reader(6, shapes=SHAPES[1:])
    assert kinds(fewer)[0] == ("not_measured",)
    absent = diff_shapes([replace(SHAPES[0], m=999)], OLD, OLD)[0]
    assert absent.detail == "the old and the new book lacks it"
    assert diff_shapes([replace(SHAPES[0], bias=True)], OLD, OLD)[0].declined


def test_books_of_other_settings_are_refused() -> None:
    library, profile = release(6)
    other = BookReader(book_of(library, settings=TorchSettings(workspace_bytes=5), check=False), profile)
    with pytest.raises(BookError, match="workspace_bytes 33554432 and 5"):
        diff_shapes(SHAPES, OLD, other)


# --- pages and maps ---------------------------------------------------------------------------------------------------

GRID = grid_shapes((300, 40), ShapeDefaults(), largest=64)


def half(problem: GemmProblem) -> AlgoConfig | Refused:
    answer = HIDDEN.answer(problem)
    assert isinstance(answer, AlgoConfig)
    return replace(answer, splitk_num=1) if problem.m > 32 else answer


def test_a_page_has_sources_counts_and_tables(tmp_path: Path) -> None:
    shapes = (*SHAPES, *GRID)
    old, new = reader(5, shapes=shapes), reader(6, shapes=shapes, heuristic=half)
    diffs = diff_shapes(shapes, old, new)
    panels = plot_regions(diffs, tmp_path / "map.png", "a title") if importlib.util.find_spec("matplotlib") else ()
    profiles = release(5)[1], release(6)[1]
    report = DiffReport(
        old=profiles[0], new=profiles[1], changes=diff_profiles(*profiles), books=(old.book, new.book), shapes=diffs,
        plot="map.png" if panels else "", panels=panels,
    )  # fmt: skip
    page = diff_markdown(report, "gemmdesc diff")
    changed = sum(d.numeric for d in diffs if d.shape.label != "grid")
    assert "# cuBLASLt 0.0.5 to 0.0.6" in page
    assert f"{changed} of {len(SHAPES)} listed products give other bytes." in page
    assert f"of {len(GRID)} points of the grid" in page
    assert "No row changed." in page
    assert page.count("| layer ") == 1 + sum(d.shape.label != "grid" and bool(d.kinds) for d in diffs)
    assert ("![Where" in page) is bool(panels)


def test_a_map_is_a_small_png(tmp_path: Path) -> None:
    diffs = diff_shapes(GRID, reader(5, shapes=GRID), reader(6, shapes=GRID, heuristic=half))
    assert {d.name for d in diffs} >= {"same", "order_changed"} or {d.name for d in diffs} >= {"same", "split_changed"}
    assert plot_regions(diffs, tmp_path / "deep" / "map.png", "t") == (40, 300)
    data = (tmp_path / "deep" / "map.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 100_000
    assert plot_regions(diffs, tmp_path / "one.png", "t", (300,)) == (300,)
    with pytest.raises(InvalidInputError, match="inner sizes"):
        plot_regions(diffs, tmp_path / "none.png", "t", (41,))
    assert plot_regions(diffs[:3], tmp_path / "few.png", "t") == ()
    assert not (tmp_path / "few.png").exists()


def test_panels_are_the_k_with_most_pairs() -> None:
    def one(m: int, k: int) -> ShapeDiff:
        return ShapeDiff(shape=Shape(m=m, n=1, k=k), kinds=(), detail="", old="", new="")

    diffs = [one(m, k) for k in range(1, 7) for m in range(1, 9 + k)]
    assert plot_panels(diffs) == (3, 4, 5, 6)
    assert plot_panels(diffs, (6, 1)) == (6, 1)
    assert plot_panels(diffs[:5]) == ()


def test_json_has_every_shape() -> None:
    data = shapes_json(diff_shapes(SHAPES, OLD, reader(6)))
    assert [d["k"] for d in data] == [s.k for s in SHAPES]
    assert all(d["kinds"] == [] and d["numeric"] is False and d["old"] == d["new"] for d in data)


# --- several releases -------------------------------------------------------------------------------------------------


def three(folder: Path, shapes: tuple[Shape, ...] = SHAPES) -> Path:
    """Releases 5, 10 and 11: the second splits otherwise, the third goes back."""
    for patch, heuristic in ((11, None), (5, None), (10, half)):
        library, profile = release(patch, heuristic=heuristic)
        path = put(folder, profile, book_of(library, shapes, check=False))
    return path.parent


def test_each_release_is_held_against_the_one_before(tmp_path: Path) -> None:
    folder = three(tmp_path)
    releases = read_releases(folder)
    assert [p.library.version.patch for p, _ in releases] == [5, 10, 11]
    report = release_report(releases, SHAPES)
    forth, back = ([d.kinds for d in step.shapes] for step in report.steps)
    assert forth == back
    assert any(forth)
    page = releases_markdown(report, "the command")
    assert "# cuBLASLt 0.0.5, 0.0.10, 0.0.11 on simulated" in page
    assert "## 0.0.5 to 0.0.10" in page
    assert "## 0.0.10 to 0.0.11" in page
    assert "| kind | 0.0.5 to 0.0.10 | 0.0.10 to 0.0.11 |" in page


def test_too_few_releases_and_a_foreign_book(tmp_path: Path) -> None:
    library, profile = release(5)
    folder = put(tmp_path, profile, book_of(library, check=False)).parent
    other = put(tmp_path, release(6)[1])
    with pytest.raises(InvalidInputError, match=r"two releases at least.*cublaslt-0\.0\.6\.parquet"):
        read_releases(folder)
    other.with_suffix(".book").write_bytes((folder / "cublaslt-0.0.5.book").read_bytes())
    with pytest.raises(BookError, match=r"cuBLASLt 0\.0\.6"):
        release_report(read_releases(folder), SHAPES)


def script() -> Any:
    return load_script("make_release_report")


def test_one_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = tmp_path / "s.csv"
    rows = [f"{s.m},{s.n},{s.k},{s.layout},{s.label}" for s in SHAPES]
    shapes.write_text("\n".join(["m,n,k,layout,layer", *rows]) + "\n")
    folder = three(tmp_path / "p", (*SHAPES, *GRID))
    out = tmp_path / "docs" / "releases.md"
    arguments = ["--folder", str(folder), "--shapes", str(shapes), "--out", str(out)]
    assert script().main(arguments) == 0
    page = out.read_text()
    assert "0 of 5 listed" not in page
    assert "of 5 listed products" in page
    assert script().main(["--folder", str(tmp_path), "--out", str(out)]) == 2
    assert "two releases at least" in capsys.readouterr().err


def test_descriptors_are_compared_at_the_shape_itself() -> None:
    (diff,) = diff_shapes(SHAPES[2:3], OLD, reader(6, heuristic=half))
    problem = SHAPES[2].problem(TorchSettings())
    assert isinstance(problem, GemmProblem)
    described = OLD.describe(problem)
    assert isinstance(getattr(described, "descriptor", None), GEMMDesc)
    assert diff.old != diff.new
