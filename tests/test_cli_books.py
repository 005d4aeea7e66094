"""``record``, ``replay --book``, ``lint`` and ``diff --shapes`` on simulated libraries."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gemmdesc.books import Shape, read_book
from gemmdesc.cli import app
from gemmdesc.dtypes import DType
from gemmdesc.problem import AlgoConfig, GemmProblem, Refused
from gemmdesc.profiles import published_profiles
from tests.book_samples import HIDDEN, SEED, SHAPES, book_of, put, release
from tests.test_lint import rule

LIBRARY = f"simulated:{SEED}"


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No profile of this machine's is seen, and nothing is written to its user's folders."""
    folder = tmp_path / "profiles"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("GEMMDESC_PROFILES", str(folder))
    monkeypatch.setattr(import_module("gemmdesc.profiles.lookup"), "packaged_folder", lambda: None)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture(name="listed")
def _listed(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.csv"
    lines = [f"{s.m},{s.n},{s.k},{s.layout},{s.label}" for s in SHAPES]
    path.write_text("\n".join(["m,n,k,layout,layer", *lines]) + "\n")
    return path


def run(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def data_of(result: Result) -> Any:
    return json.loads(result.stdout)


# --- record and replay ------------------------------------------------------------------------------------------------


def test_record_writes_a_book_that_replays(own_folders: Path, listed: Path) -> None:
    result = run("record", listed, "--library", LIBRARY)
    assert result.exit_code == 0, result.output
    (path,) = Path.cwd().glob("*.book")
    assert path.name == f"sm_90-1-cublaslt-0.0.{SEED}.book"
    book = read_book(path)
    assert len(book.entries) == len(SHAPES)
    lacking = run("replay", "--book", path)
    assert lacking.exit_code == 2
    assert "no profile" in lacking.stderr
    put(own_folders, release()[1])
    (data,) = data_of(run("replay", "--book", path, "--json"))
    assert (data["products"], data["equal"], data["different"]) == (len(SHAPES), len(SHAPES), 0)
    both = run("replay", "--book", path, "--book", path)
    assert both.exit_code == 0
    assert both.stdout.count("replayed here") == 2


def test_replay_is_one_where_a_rule_is_wrong_or_missing(own_folders: Path, listed: Path) -> None:
    assert run("record", listed, "--library", LIBRARY, "--out", "a.book").exit_code == 0
    put(own_folders, release(change=lambda i, r: HIDDEN.rules[i ^ 1][1])[1])
    assert run("replay", "--book", "a.book").exit_code == 1
    put(own_folders, release(change=lambda i, r: None if i == 1 else r)[1])
    result = run("replay", "--book", "a.book", "--json")
    assert result.exit_code == 1
    (data,) = data_of(result)
    assert data["declined"] == sum("no_rule" in f["why"] for f in data["failures"]) > 0


def test_record_counts_what_it_did(listed: Path) -> None:
    result = run("record", listed, "--library", LIBRARY, "--no-bytes", "--tokens", "3,4", "--out", "x/a.book", "--json")
    data = data_of(result)
    assert (data["shapes"], data["problems"], data["with_bytes"]) == (10, 10, 0)
    assert (data["bytes"], data["key"]) == (Path("x/a.book").stat().st_size, f"sm_90-1/cublaslt-0.0.{SEED}")
    assert "\n" not in data["digest"]
    assert len(data["digest"]) == 64


def test_record_of_a_module(listed: Path) -> None:
    result = run(
        "record", "tests.test_books:small_model", "--tokens", "1,8", "--dtype", "float16", "--library", LIBRARY,
        "--out", "a.book", "--json",
    )  # fmt: skip
    data = data_of(result)
    assert (data["shapes"], data["problems"], data["not_asked"]) == (4, 2, 2)
    assert {d["code"] for d in data["declined"]} == {"out_of_scope"}
    table = run("record", "tests.test_books:small_model", "--tokens", 1, "--dtype", "float16", "--library", LIBRARY)
    assert "addmm" in " ".join(table.stdout.split())


def test_a_grid_joins_the_list(listed: Path) -> None:
    result = run("record", listed, "--grid", 64, "--no-launches", "--library", LIBRARY, "--out", "g.book", "--json")
    data = data_of(result)
    assert data["problems"] == len(SHAPES) + 28**2
    assert data["with_bytes"] == len(SHAPES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("record", "none.csv"), "readable"),
        (("record", "shapes"), "package.module:function"),
        (("record", "tests.test_books:small_model", "--library", LIBRARY), "tokens"),
        (("record", "tests.test_books:small_model", "--tokens", "1", "--layout", "nn"), "layout"),
        (("record", "shapes.csv", "--tokens", "0", "--library", LIBRARY), "tokens must be whole numbers"),
        (("record", "shapes.csv", "--dtype", "half", "--library", LIBRARY), "half"),
        (("record", "shapes.csv", "--library", "simulated:x"), "seed"),
        (("record", "shapes.csv", "--library", LIBRARY, "--out", "/proc/none/a.book"), "out must be a file"),
        (("replay", "--book", "none.book"), "whole Parquet file"),
        (("replay", "--book", "shapes.csv"), "whole Parquet file"),
        (("replay", "--book", "a.book", "--golden", "x"), "book must stand alone"),
        (("lint", "shapes.csv", "--book", "a.book", "--library", LIBRARY), "beside a book"),
        (("lint", "shapes.csv", "--book", "none.book"), "whole Parquet file"),
        (("lint", "shapes.csv", "--library", LIBRARY, "--gate", "sideways"), "gate must be"),
        (("lint", "shapes.csv", "--library", LIBRARY, "--accept", "surely"), "accept must be"),
        (("lint", "shapes.csv", "--library", LIBRARY), "no profile"),
    ],
)
def test_bad_use_is_two(listed: Path, arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert not result.stdout
    assert "Traceback" not in result.stderr


def test_a_named_profile_has_to_be_the_books(listed: Path) -> None:
    run("record", listed, "--library", LIBRARY, "--out", "a.book")
    other = put(Path("other"), release(SEED + 1)[1])
    result = run("replay", "--book", "a.book", "--profile", other)
    assert result.exit_code == 2
    assert "book must be of the profile's cuBLASLt" in result.stderr


# --- lint -------------------------------------------------------------------------------------------------------------


def losing(folder: Path) -> Path:
    """A book of one product that loses its tail, and one that does not."""

    def heuristic(problem: GemmProblem) -> AlgoConfig | Refused:
        return AlgoConfig(
            algo_id=HIDDEN.rules[3][0], tile_id=1, splitk_num=4, reduction_scheme=2, cta_swizzling=0, custom_option=0,
            stages_id=1, inner_shape_id=0, cluster_shape_id=0,
        )  # fmt: skip

    library, profile = release(change=lambda at, old: rule() if at == 3 else old, heuristic=heuristic)
    shapes = [Shape(m=8, n=8, k=k) for k in (256, 259)]
    return put(folder, profile, book_of(library, shapes)).with_suffix(".book")


def test_lint_finds_a_lost_tail_and_writes_its_script(own_folders: Path) -> None:
    book = losing(own_folders)
    Path("s.jsonl").write_text("[8, 8, 256]\n[8, 8, 259]\n")
    result = run("lint", "s.jsonl", "--book", book, "--reproducer", "tail.py")
    assert result.exit_code == 1, result.output
    assert "the last 3 of 259 k" in " ".join(result.stdout.split())
    assert "reproducer: tail.py, for 8x8x259" in result.stderr
    compile(Path("tail.py").read_text(), "tail.py", "exec")
    data = data_of(run("lint", "s.jsonl", "--book", book, "--json"))
    assert data["counts"] == {"shapes": 2, "lost_tail": 1, "split_k": 2}
    assert [s["lost_tail"] for s in data["shapes"]] == [0, 3]
    assert run("lint", "s.jsonl", "--book", book, "--gate", "narrow_partials,declined").exit_code == 0
    assert run("lint", "s.jsonl", "--book", book, "--gate", "none").exit_code == 0
    assert run("lint", "s.jsonl", "--book", book, "--gate", "any").exit_code == 1
    Path("one.json").write_text("[[8, 8, 256]]")
    clean = run("lint", "one.json", "--book", book, "--reproducer", "none.py")
    assert clean.exit_code == 0
    assert "was not written" in clean.stderr
    assert not Path("none.py").exists()


def test_lint_asks_the_library_and_shows_orders_over_m(own_folders: Path, listed: Path) -> None:
    put(own_folders, release()[1])
    result = run("lint", listed, "--tokens", "1,40,64", "--library", LIBRARY)
    assert result.exit_code in (0, 1)
    assert "order of a row's sum over the batch sizes m" in result.stdout
    data = data_of(run("lint", listed, "--tokens", "1,40,64", "--library", LIBRARY, "--json"))
    assert any(s["orders"] > 1 and s["changes_at_m"] for s in data["sweeps"])
    assert len(data["shapes"]) == 15


def test_lint_of_a_book_that_lacks_a_product_says_so(own_folders: Path) -> None:
    book = losing(own_folders)
    Path("s.json").write_text("[[8, 8, 257]]")
    result = run("lint", "s.json", "--book", book, "--json", "--gate", "declined")
    assert result.exit_code == 1
    assert data_of(result)["shapes"][0]["findings"][0]["message"].startswith("not_in_book")


# --- diff -------------------------------------------------------------------------------------------------------------


def releases() -> tuple[Path, Path]:
    """Two releases whose splits sum in another type."""

    def narrowed(at: int, old: Any) -> Any:
        return rule(merge="float16") if at == 3 else old

    paths = []
    for patch, change in ((5, lambda at, old: rule() if at == 3 else old), (6, narrowed)):
        library, profile = release(patch, change)
        paths.append(put(Path("releases"), profile, book_of(library, check=False)))
    return paths[0], paths[1]


def test_diff_by_shape_gates_on_the_shapes(listed: Path) -> None:
    old, new = releases()
    books = ("--books", old.with_suffix(".book"), new.with_suffix(".book"))
    by_answer = run("diff", old, new)
    assert by_answer.exit_code == 1
    result = run("diff", old, new, "--shapes", listed, *books)
    assert result.exit_code == 1, result.output
    assert "shapes merge_type_changed:" in result.stdout
    data = data_of(run("diff", old, new, "--shapes", listed, *books, "--json"))
    changed = [s for s in data["shapes"] if s["kinds"]]
    assert changed
    assert data["shape_counts"]["merge_type_changed"] == len(changed)
    assert len(data["rows"]) == 1
    assert run("diff", old, new, "--shapes", listed, *books, "--gate", "order_changed").exit_code == 0
    # The one chain of this list is the same in both, whatever other rows say.
    Path("one.json").write_text('[{"m": 40, "n": 64, "k": 96}]')
    assert run("diff", old, new, "--shapes", "one.json", *books).exit_code == 0


def test_diff_writes_a_page(listed: Path) -> None:
    old, new = releases()
    books = ("--books", old.with_suffix(".book"), new.with_suffix(".book"))
    result = run("diff", old, new, "--shapes", listed, *books, "--markdown", "out/page.md")
    assert result.exit_code == 1, result.output
    page = Path("out/page.md").read_text()
    assert page.startswith("# cuBLASLt 0.0.5 to 0.0.6")
    assert "## By shape" in page
    assert "merge_type_changed" in page
    assert run("diff", old, new, "--markdown", "plain.md").exit_code == 1
    assert "## By shape" not in Path("plain.md").read_text()


def test_diff_draws_a_map_where_there_is_a_grid(listed: Path) -> None:
    paths = []
    for patch, change in ((5, lambda at, o: rule() if at == 3 else o), (6, lambda at, o: o)):
        library, _ = release(patch, change)
        shapes = [Shape(m=m, n=n, k=300, label="grid") for m in (1, 7, 64, 200) for n in (2, 9, 70)]
        paths.append(put(Path("grid"), release(patch, change)[1], book_of(library, shapes, check=False)))
    listing = [f'{{"m": {m}, "n": {n}, "k": 300}}' for m in (1, 7, 64, 200) for n in (2, 9, 70)]
    Path("g.jsonl").write_text("\n".join(listing))
    books = ("--books", paths[0].with_suffix(".book"), paths[1].with_suffix(".book"))
    run("diff", paths[0], paths[1], "--shapes", "g.jsonl", *books, "--markdown", "page.md", "--plot-k", 300)
    assert Path("page.png").read_bytes().startswith(b"\x89PNG")
    assert "(page.png)" in Path("page.md").read_text()


def test_diff_needs_both_or_none_and_fitting_books(listed: Path) -> None:
    old, new = releases()
    assert run("diff", old, new, "--shapes", listed).exit_code == 2
    assert run("diff", old, new, "--books", "a", "b").exit_code == 2
    swapped = ("--books", new.with_suffix(".book"), old.with_suffix(".book"))
    result = run("diff", old, new, "--shapes", listed, *swapped)
    assert result.exit_code == 2
    assert "book must be of the profile's" in result.stderr
    assert DType.FLOAT16.value not in result.stdout


def test_published_tables_are_chosen_only_by_name(own_folders: Path) -> None:
    """They lie beside the profile that was measured, which stays the one that is meant."""
    put(own_folders, release()[1])
    for profile in published_profiles():
        put(own_folders, profile)
    assert run("show").exit_code == 0
    assert "0.0.5" in run("show").stdout
    shown = run("show", "--arch", "sm_103")
    assert shown.exit_code == 0
    assert "published" in shown.stdout


# --- explain over m ---------------------------------------------------------------------------------------------------


def test_explain_groups_m_by_order(own_folders: Path) -> None:
    """Every m of one book's layer: the groups cover them all, once each, and one normal form is one group."""
    shapes = [Shape(m=m, n=33, k=700, layout="nt", label="x") for m in (1, 2, 3, 17, 50)]
    library, profile = release()
    put(own_folders, profile, book_of(library, shapes))
    (book,) = own_folders.rglob("*.book")
    result = run("explain", 2, 33, 700, "--layout", "nt", "--book", book, "--over-m", "1-3, 17,50,51", "--json")
    assert result.exit_code == 0, result.output
    data = data_of(result)
    assert (data["n"], data["k"]) == (33, 700)
    spans = [tuple(span) for group in data["groups"] for span in group["m"]]
    assert sorted(m for low, high in spans for m in range(low, high + 1)) == [1, 2, 3, 17, 50, 51]
    (lacking,) = [g for g in data["groups"] if g.get("declined", {}).get("code") == "not_in_book"]
    assert lacking["m"] == [[51, 51]]
    forms = [tuple(g["normal_forms"]) for g in data["groups"] if "normal_forms" in g]
    assert len(forms) == len(set(forms)) > 0
    text = run("explain", 2, 33, 700, "--layout", "nt", "--book", book, "--over-m", "1-3,17,50,51").stdout
    assert f"{len(data['groups'])} groups over 6 m" in text
    assert "m 51\n  declined (not_in_book)" in text
    pinned = data_of(
        run("explain", 2, 33, 700, "--layout", "nt", "--book", book, "--over-m", "1-60", "--pin", 17, "--json")
    )
    assert [g["m"] for g in pinned["groups"]] == [[[1, 60]]]


def test_explain_over_m_refuses_what_is_no_list(own_folders: Path) -> None:
    for text in ("", "x", "3-2", "0", "1-100000"):
        result = run("explain", 2, 33, 700, "--over-m", text)
        assert (result.exit_code, "over_m must" in result.stderr) == (2, True), text
    assert "over_m must have a library to ask, or a book" in run("explain", 2, 33, 700, "--over-m", "1-4").stderr
    assert "pin must have a library to ask, or a book" in run("explain", 2, 33, 700, "--pin", "4").stderr
