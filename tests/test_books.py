"""Books: shape lists, recording, the file, and replaying what it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gemmdesc.books import (
    Book,
    BookReader,
    Entry,
    Shape,
    ShapeDefaults,
    book_digest,
    grid_shapes,
    merged_books,
    module_shapes,
    open_reader,
    read_book,
    read_shapes,
    record_book,
    replay_entry,
    require_book,
    with_tokens,
    write_book,
)
from gemmdesc.books.reading import BookLibrary
from gemmdesc.books.store import METADATA_KEY
from gemmdesc.dtypes import DType
from gemmdesc.errors import BookError, Declined, InvalidInputError, ProfileError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.plan import Description
from gemmdesc.problem import AlgoConfig, DeviceId, Failed, GemmProblem, Refused
from gemmdesc.profiles import Level, read_profile
from gemmdesc.verification.cases import named_layers
from tests.book_samples import HIDDEN, SHAPES, book_of, put, release

LIBRARY, PROFILE = release()
BOOK = book_of(LIBRARY)


# --- shape lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "m,n,k,layout,out_dtype\n3,4,5,nt,float32\n6,7,8,,\n"),
        ("a.json", '[{"m": 3, "n": 4, "k": 5, "layout": "nt", "out_dtype": "float32"}, [6, 7, 8]]'),
        ("a.jsonl", '{"tokens": 3, "n": 4, "k": 5, "layout": "nt", "out_dtype": "float32"}\n\n[6, 7, 8]\n[6, 7, 8]\n'),
    ],
)
def test_lists_are_read_alike(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    bf16, fp32 = DType.BFLOAT16, DType.FLOAT32
    assert read_shapes(tmp_path / name, ShapeDefaults(dtype=bf16, layout="tn")) == (
        Shape(m=3, n=4, k=5, layout="nt", dtype=bf16, out_dtype=fp32),
        Shape(m=6, n=7, k=8, layout="tn", dtype=bf16, out_dtype=bf16),
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "m,n\n1,2\n", "line 2: k must be an integer"),
        ("a.csv", "m,n,k\n1,2,x\n", "line 2: k must be an integer"),
        ("a.csv", "m,n,k\n1,2\n", "line 2 must have the columns m, n, k"),
        ("a.csv", "m,n,k\n1,2,3,4\n", "line 2 must have the columns"),
        ("a.csv", "m,n,k\n1,2,0\n", "k must be an integer of at least 1"),
        ("a.csv", "m,n,k,outdtype\n1,2,3,float16\n", "got outdtype"),
        ("a.csv", "m,n,k,layout\n1,2,3,row\n", "layout must be one of"),
        ("a.csv", "m,n,k,dtype\n1,2,3,half\n", "line 2"),
        ("a.csv", "m,tokens,n,k\n1,1,2,3\n", "one of m and tokens"),
        ("a.csv", "m,n,k\n", "one product at least"),
        ("a.csv", "", "one product at least"),
        ("a.json", '{"m": 1}', "a JSON array"),
        ("a.json", "[", "must be JSON"),
        ("a.json", "[[1, 2]]", "element 0"),
        ("a.json", "[[1, 2, true]]", "k must be an integer"),
        ("a.json", "[3]", "element 0 must be an object"),
        ("a.jsonl", "[1, 2, 3]\n{\n", "line 2 must be JSON"),
        ("a.txt", "1 2 3", "ending in"),
    ],
)
def test_a_bad_list_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_shapes(tmp_path / name, ShapeDefaults())


def test_a_missing_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="readable"):
        read_shapes(tmp_path / "none.csv", ShapeDefaults())


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_a_result_is_of_the_operands_type_unless_it_says_otherwise(dtype: DType) -> None:
    shape = Shape(m=3, n=5, k=7, dtype=dtype)
    assert shape.out_dtype is dtype
    assert isinstance(shape.problem(TorchSettings()), GemmProblem)
    assert Shape(m=3, n=5, k=7, dtype=dtype, out_dtype=DType.FLOAT32).out_dtype is DType.FLOAT32


def test_the_packaged_layers_are_such_a_list() -> None:
    path = Path(__file__).parent.parent / "gemmdesc" / "verification" / "model_layers.csv"
    found = read_shapes(path, ShapeDefaults(layout="nt"))
    first = named_layers()[0]
    assert found[0].label == f"{first.model} {first.layer}"
    assert {(s.m, s.n, s.k) for s in found} == {(x.tokens, x.n, x.k) for x in named_layers()}


def test_tokens_spread_and_a_grid_covers() -> None:
    spread = with_tokens([Shape(m=3, n=4, k=5), Shape(m=9, n=4, k=5)], (1, 2))
    assert [s.m for s in spread] == [1, 2]
    assert with_tokens(spread, ()) == spread
    grid = grid_shapes((64, 128), ShapeDefaults(), largest=64)
    sizes = {s.m for s in grid}
    assert sizes == {s.n for s in grid} == {1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64}
    assert len(grid) == 2 * len(sizes) ** 2


def test_layers_of_a_module() -> None:
    shapes = module_shapes("tests.test_books:small_model", (1, 16))
    assert [(s.m, s.n, s.k, s.layout, s.dtype.value, s.bias, s.label) for s in shapes] == [
        (1, 8, 4, "nt", "bfloat16", False, "up"),
        (16, 8, 4, "nt", "bfloat16", False, "up"),
        (1, 4, 8, "nt", "bfloat16", True, "down"),
        (16, 4, 8, "nt", "bfloat16", True, "down"),
    ]
    biased = shapes[-1].problem(TorchSettings())
    assert isinstance(biased, Declined)
    assert (biased.code, "addmm" in biased.reason) == ("out_of_scope", True)


def small_model() -> object:
    import torch

    model = torch.nn.Module()
    model.up = torch.nn.Linear(4, 8, bias=False, dtype=torch.bfloat16)
    model.down = torch.nn.Linear(8, 4, dtype=torch.bfloat16)
    return model


def raising() -> object:
    raise RuntimeError("no weights here")


def no_model() -> object:
    return 3


def no_layer() -> object:
    import torch

    return torch.nn.ReLU()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tests.test_books", "package.module:function"),
        ("tests.no_such:f", "importable"),
        ("tests.test_books:nothing", "importable"),
        ("tests.test_books:SHAPES", "must name a function"),
        ("tests.test_books:raising", "RuntimeError: no weights here"),
        ("tests.test_books:no_model", "torch.nn.Module"),
        ("tests.test_books:no_layer", "torch.nn.Linear"),
    ],
)
def test_a_bad_module_says_why(spec: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        module_shapes(spec, (1,))


def test_a_module_needs_tokens() -> None:
    with pytest.raises(InvalidInputError, match="tokens"):
        module_shapes("tests.test_books:small_model", ())


# --- recording --------------------------------------------------------------------------------------------------------


def test_a_book_holds_answers_launches_and_bytes() -> None:
    assert (BOOK.device, BOOK.library, len(BOOK.entries)) == (LIBRARY.device, LIBRARY.identity, len(SHAPES))
    for shape in SHAPES:
        problem = shape.problem(TorchSettings())
        assert not isinstance(problem, Declined)
        entry = BOOK.by_problem[problem]
        assert entry.answer == LIBRARY.answer(problem)
        assert entry.launch == LIBRARY.launch(problem, entry.answer)
        assert entry.check is not None
        got = LIBRARY.run(problem, entry.answer, *entry.check.operands(problem), entry.check.window)
        assert np.array_equal(got, entry.check.output)


def test_refusals_failures_and_what_is_not_asked() -> None:
    refusing = replace(
        LIBRARY,
        heuristic=lambda p: Refused(status="NOT_SUPPORTED") if p.k == 96 else LIBRARY.answer(p),
        failures=lambda p, a: "EXECUTION_FAILED" if p.k == 100 else None,
    )
    recorded = record_book(
        refusing, [*SHAPES, Shape(m=4, n=4, k=4, bias=True)], TorchSettings(), torch="", command="", date=""
    )
    by_k = {e.problem.k: e for e in recorded.book.entries}
    assert by_k[96].answer == Refused(status="NOT_SUPPORTED")
    assert (by_k[100].check, by_k[100].failure) == (None, "EXECUTION_FAILED")
    assert [d.code for _, d in recorded.declined] == ["out_of_scope"]
    reader = BookReader(recorded.book, PROFILE)
    refused = reader.describe(by_k[96].problem)
    assert isinstance(refused, Declined)
    assert refused.code == "refused_by_library"
    assert replay_entry(by_k[100], reader).compared == 0


def test_one_problem_is_asked_once_and_a_grid_takes_no_bytes() -> None:
    asked: list[object] = []

    def heuristic(problem: object) -> AlgoConfig | Refused:
        asked.append(problem)
        return LIBRARY.answer(problem)  # type: ignore[arg-type]

    shape = SHAPES[0]
    book = book_of(replace(LIBRARY, heuristic=heuristic), [shape, replace(shape, label="again")])
    assert len(asked) == len(book.entries) == 1
    for listed in ([replace(shape, label="grid")], [replace(shape, label="grid"), shape]):
        (entry,) = book_of(LIBRARY, listed).entries
        assert (entry.check is None) is (len(listed) == 1)


def test_repeated_problems_are_no_book() -> None:
    with pytest.raises(InvalidInputError, match="distinct problems"):
        replace(BOOK, entries=(BOOK.entries[0], BOOK.entries[0]))


# --- the file ---------------------------------------------------------------------------------------------------------


def plain(book: Book) -> list[tuple[object, ...]]:
    rows = []
    for e in sorted(book.entries, key=str):
        window = None if e.check is None else (e.check.window.rows.tolist(), e.check.output.tolist())
        opaque = e.answer.opaque if isinstance(e.answer, AlgoConfig) else ""
        rows.append((e.problem, e.answer, opaque, e.launch, e.failure, window))
    return rows


def test_a_book_reads_back_and_is_written_the_same(tmp_path: Path) -> None:
    refused = Entry(problem=replace(BOOK.entries[0].problem, k=97, lda=97, ldb=97), answer=Refused(status="NO"))
    book = replace(BOOK, entries=(*BOOK.entries, refused), settings=TorchSettings(workspace_bytes=123))
    write_book(book, tmp_path / "deep" / "a.book")
    found = read_book(tmp_path / "deep" / "a.book")
    assert plain(found) == plain(book)
    assert (found.device, found.library, found.settings) == (book.device, book.library, book.settings)
    assert (found.command, found.date, found.torch) == (book.command, book.date, book.torch)
    assert book_digest(found) == book_digest(book)
    write_book(replace(found, entries=found.entries[::-1]), tmp_path / "b.book")
    assert (tmp_path / "b.book").read_bytes() == (tmp_path / "deep" / "a.book").read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["b.book"]


def altered(path: Path, out: Path, stamp: dict[str, object] | None = None, output: bytes | None = None) -> Path:
    """``path`` with its stamp or its first entry's bytes changed, the digest left as it was."""
    table = pq.read_table(path)
    metadata = json.loads(table.schema.metadata[METADATA_KEY]) | (stamp or {})
    rows = table.to_pylist()
    if output is not None:
        rows[0]["output"] = output
    schema = table.schema.with_metadata({METADATA_KEY: json.dumps(metadata).encode()})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), out)
    return out


def test_what_is_no_whole_book_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "a.book"
    write_book(BOOK, path)
    whole = path.read_bytes()
    cases: list[tuple[Path, str]] = [(tmp_path / "none.book", "whole Parquet file"), (tmp_path, "whole Parquet file")]
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        cut = tmp_path / f"cut{size}.book"
        cut.write_bytes(whole[:size])
        cases.append((cut, "whole Parquet file"))
    pq.write_table(pa.table({"x": [1]}), tmp_path / "foreign.book")
    cases.append((tmp_path / "foreign.book", "gemmdesc book"))
    cases.append((altered(path, tmp_path / "v.book", {"book_version": 2}), "version 1"))
    cases.append((altered(path, tmp_path / "d.book", output=b"\0\0"), "digest"))
    cases.append((altered(path, tmp_path / "s.book", {"settings": {"workspace_bytes": 3}}), "settings must hold"))
    cases.append((altered(path, tmp_path / "m.book", {"library_version": "13"}), "well formed"))
    profile = put(tmp_path, PROFILE)
    cases.append((profile, "gemmdesc book"))
    for case, message in cases:
        with pytest.raises(BookError, match=message):
            read_book(case)
    with pytest.raises(ProfileError):
        read_profile(path)


def test_a_book_is_bound_to_its_card_and_release() -> None:
    require_book(BOOK, LIBRARY.device, LIBRARY.identity, "the profile")
    other = DeviceId(sm="sm_90", sm_count=114)
    with pytest.raises(BookError, match=r"sm_90-114 \(got one of sm_90-1\)"):
        require_book(BOOK, other, LIBRARY.identity, "the profile")
    with pytest.raises(BookError, match="with MIG"):
        require_book(BOOK, replace(LIBRARY.device, mig=True), LIBRARY.identity, "the profile")
    with pytest.raises(BookError, match="build-id other"):
        require_book(BOOK, LIBRARY.device, replace(LIBRARY.identity, build_id="other"), "the profile")
    stripped = replace(BOOK, library=replace(BOOK.library, build_id="", sha256="a"))
    with pytest.raises(BookError):
        require_book(stripped, LIBRARY.device, replace(stripped.library, sha256="b"), "the profile")
    with pytest.raises(BookError, match="the profile's card"):
        BookReader(BOOK, replace(PROFILE, device=other))


def test_parts_are_merged() -> None:
    first = replace(BOOK, entries=BOOK.entries[:3])
    bare = book_of(LIBRARY, check=False)
    whole = merged_books([bare, first])
    assert {e.problem for e in whole.entries} == {e.problem for e in BOOK.entries}
    assert sum(e.check is not None for e in whole.entries) == 3
    assert [e.check is not None for e in merged_books([BOOK, bare]).entries] == [True] * len(SHAPES)
    with pytest.raises(InvalidInputError, match="one part"):
        merged_books([])
    with pytest.raises(BookError, match="torch settings"):
        merged_books([BOOK, book_of(LIBRARY, settings=TorchSettings(workspace_bytes=1))])
    with pytest.raises(BookError, match="the last part's cuBLASLt"):
        merged_books([BOOK, book_of(release(9)[0])])
    entry = BOOK.entries[0]
    assert isinstance(entry.answer, AlgoConfig)
    other = replace(BOOK, entries=(replace(entry, answer=replace(entry.answer, tile_id=99)),))
    with pytest.raises(BookError, match="answer"):
        merged_books([BOOK, other])


# --- following it -----------------------------------------------------------------------------------------------------


def test_every_product_replays_to_the_recorded_bytes(tmp_path: Path) -> None:
    put(tmp_path, PROFILE)
    reader = open_reader(BOOK, tmp_path)
    for entry in BOOK.entries:
        result = replay_entry(entry, reader)
        assert result.equal
        assert result.compared > 0


def test_a_wrong_rule_is_seen() -> None:
    _, profile = release(change=lambda i, rule: HIDDEN.rules[i ^ 1][1])
    results = [replay_entry(entry, BookReader(BOOK, profile)) for entry in BOOK.entries]
    assert any(r.mismatch is not None for r in results)


def test_an_absent_problem_declines_and_is_named() -> None:
    reader = BookReader(BOOK, PROFILE)
    known = BOOK.entries[0].problem
    assert isinstance(reader.describe(known), Description)
    for other, words in (
        (replace(known, workspace_limit_bytes=0), ("workspace_limit_bytes 33554432 instead of 0", f"k={known.k}")),
        (replace(known, m=7, n=9, k=11, lda=99, ldb=99, ldd=99), ("none of them near", "m=7 n=9 k=11")),
    ):
        found = reader.describe(other)
        assert isinstance(found, Declined)
        assert found.code == "not_in_book"
        assert all(word in found.reason for word in words), found.reason
    assert "none of them near" in str(BookReader(replace(BOOK, entries=()), PROFILE).describe(known))


def test_no_profile_and_weak_evidence_decline(tmp_path: Path) -> None:
    problem = BOOK.entries[0].problem
    found = open_reader(BOOK, tmp_path / "empty").describe(problem)
    assert isinstance(found, Declined)
    assert found.code == "no_profile"
    rows = tuple(replace(r, evidence=replace(r.evidence, level=Level.INFERRED)) for r in PROFILE.rows)
    weak = replace(PROFILE, rows=rows)
    declined = BookReader(BOOK, weak).describe(problem)
    assert isinstance(declined, Declined)
    assert "only inferred" in declined.reason
    assert isinstance(BookReader(BOOK, weak, accept=Level.INFERRED).describe(problem), Description)


def test_a_book_as_a_library_answers_and_runs_nothing() -> None:
    library, entry = BookLibrary(book=BOOK), BOOK.entries[0]
    assert isinstance(entry.answer, AlgoConfig)
    assert (library.identity, library.device) == (BOOK.library, BOOK.device)
    assert library.answer(entry.problem) == entry.answer
    assert library.check(entry.problem, entry.answer)
    assert library.launch(entry.problem, entry.answer) == entry.launch
    other = replace(entry.problem, workspace_limit_bytes=1)
    assert isinstance(library.answer(other), Refused)
    assert not library.check(other, entry.answer)
    assert library.launch(other, entry.answer) is None
    assert entry.check is not None
    assert isinstance(library.run(entry.problem, entry.answer, *entry.check.operands(entry.problem)), Failed)
