"""Golden files: the format, replaying, and recording from a library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.golden import (
    Golden,
    GoldenRecord,
    Provenance,
    golden_files,
    golden_folder,
    read_golden,
    replay_record,
    write_golden,
)
from gemmdesc.library.interface import Window
from gemmdesc.operands import Family
from gemmdesc.probe.sampling import draw_problem
from gemmdesc.problem import Failed, KernelNode, Launch
from gemmdesc.profiles import index_profile
from gemmdesc.verification.hidden import hidden_library, hide
from gemmdesc.verification.recording import Options, natural_examples, record
from tests.hidden_samples import SCOPE, first_example, hidden_profile

HIDDEN = hide(5)
LIBRARY = hidden_library(HIDDEN)
INDEX = index_profile(hidden_profile(HIDDEN))


def one_record(algo: int = 2, family: Family = Family.WIDE) -> GoldenRecord:
    problem, answer = first_example(HIDDEN, HIDDEN.rules[algo][0])
    window = Window(rows=np.arange(min(3, problem.m)), columns=np.arange(min(4, problem.n)))
    shape = (len(window.rows), len(window.columns))
    blank = GoldenRecord(
        problem=problem, answer=answer, launch_names=("simulated_tensorop_x",), family=family, seed=1, draw=0,
        window=window, output=np.zeros(shape, dtype=np.uint16),
    )  # fmt: skip
    got = LIBRARY.run(problem, answer, *blank.operands, window)
    assert not isinstance(got, Failed)
    return replace(blank, output=got)


def sample() -> Golden:
    where = Provenance(
        device=LIBRARY.device, library=LIBRARY.identity, torch="2.11.0", command="record", date="2026-11-29"
    )
    return Golden(provenance=where, records=tuple(one_record(i) for i in range(4)))


def test_a_file_is_read_back(tmp_path: Path) -> None:
    golden, path = sample(), tmp_path / "deep" / "a.parquet"
    write_golden(golden, path)
    again = read_golden(path)
    assert again.provenance == golden.provenance
    assert again.provenance.library.path == golden.provenance.library.path
    for one, other in zip(golden.records, again.records, strict=True):
        assert (one.problem, one.answer, one.family, one.seed, one.draw) == (
            other.problem, other.answer, other.family, other.seed, other.draw,
        )  # fmt: skip
        np.testing.assert_array_equal(one.output, other.output)
        np.testing.assert_array_equal(one.window.rows, other.window.rows)
        assert other.output.dtype == np.uint16
        assert str(one) == str(other)
    assert [p.name for p in path.parent.iterdir()] == ["a.parquet"]
    assert golden_files(tmp_path) == (path,)


def test_replaying_gives_the_recorded_bytes_and_sees_a_flipped_bit() -> None:
    for algo in range(4):
        good = one_record(algo)
        assert replay_record(good, INDEX).equal
        flipped = good.output.copy()
        flipped[0, 0] ^= 1
        result = replay_record(replace(good, output=flipped), INDEX)
        assert not result.equal
        assert result.mismatch is not None
        assert result.mismatch.count == 1


def test_a_profile_without_the_row_declines_and_is_not_equal() -> None:
    lacking = index_profile(hidden_profile(HIDDEN, lambda i, r: None if i == 2 else r))
    result = replay_record(one_record(2), lacking)
    assert isinstance(result.declined, Declined)
    assert not result.equal


def test_output_must_fit_the_window() -> None:
    with pytest.raises(InvalidInputError, match=r"^output must"):
        replace(one_record(), output=np.zeros((1, 1), dtype=np.uint16))
    with pytest.raises(InvalidInputError, match=r"^output must"):
        replace(one_record(), output=one_record().output.astype(np.uint32))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    missing, text, foreign = (tmp_path / name for name in ("missing.parquet", "text.parquet", "foreign.parquet"))
    text.write_text("no parquet")
    write_golden(sample(), foreign)
    table = pq.read_table(foreign)
    pq.write_table(table.replace_schema_metadata({}), foreign)
    for path in (missing, text, foreign):
        with pytest.raises(InvalidInputError, match=r"^path must"):
            read_golden(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_golden(sample(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInputError, match=r"^path must"):
        read_golden(path)


def test_recording_takes_cheap_natural_examples_of_every_row() -> None:
    options = Options(queries=300, side=4, seed=3)
    examples = natural_examples(LIBRARY, INDEX, replace(options, queries=0), lambda *_: None)
    assert all(len(found) == 1 for found in examples.values())
    records = list(record(LIBRARY, INDEX, examples.items(), options, lambda *_: None))
    assert len(records) == 2 * len(INDEX.profile.rows)
    assert len({r.family for r in records}) > 1
    assert all(r.output.shape <= (4, 4) for r in records)
    assert all(replay_record(r, INDEX).equal for r in records)


def test_examples_of_a_row_differ_in_k_and_prefer_small_ones() -> None:
    options = Options(queries=400, per_row=2)
    found = natural_examples(LIBRARY, INDEX, options, lambda *_: None)
    assert len(found) == 4
    for naturals in found.values():
        assert 1 <= len(naturals) <= 2
        assert len({n.problem.k for n in naturals}) == len(naturals)
        assert all(LIBRARY.answer(n.problem) == n.answer for n in naturals)


def test_operands_are_those_of_the_problem() -> None:
    r = one_record()
    a, b = r.operands
    assert (a.role, b.role, a.dtype) == ("a", "b", DType.FLOAT16)
    assert draw_problem(SCOPE, 5, 0) == draw_problem(SCOPE, 5, 0)


def test_the_folder_is_none_or_holds_files() -> None:
    folder = golden_folder()
    assert folder is None or golden_files(folder)


def test_a_launch_is_kept_where_the_rule_needs_it(tmp_path: Path) -> None:
    """A rule of one grid size: without the launch there is no descriptor, with it the bytes are the library's."""
    plain = sample()
    record = plain.records[0]
    node = KernelNode(name="k", grid=(2, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
    kept = replace(record, launch=Launch(kernels=(node,), memset_bytes=(4, 20)))
    path = tmp_path / "a.parquet"
    write_golden(replace(plain, records=(kept, record)), path)
    read = read_golden(path).records
    assert read[0].launch == kept.launch
    assert read[1].launch is None
    # Files of before there was the column read as they did.
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["launch"]), path)
    assert read_golden(path).records[0].launch is None
