"""Profile files come back as they were written, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError, ProfileError
from gemmdesc.profiles import (
    DeclineOutcome,
    Level,
    Range,
    RowKey,
    Scan,
    profile_digest,
    profile_path,
    read_profile,
    write_profile,
)
from gemmdesc.profiles.columns import arrow_schema, from_record, to_record
from gemmdesc.profiles.store import METADATA_KEY
from tests.profile_samples import DEVICE, LIBRARY, sample_profile, sample_row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return profile_path(tmp_path, DEVICE, LIBRARY.version)


def _rewrite(path: Path, table: pa.Table, metadata: dict[str, object] | None = None) -> None:
    stored = {METADATA_KEY: json.dumps(metadata).encode()} if metadata else table.schema.metadata
    pq.write_table(table.replace_schema_metadata(stored), path)


def _metadata(path: Path) -> dict[str, object]:
    return dict(json.loads(pq.read_schema(path).metadata[METADATA_KEY]))


def test_round_trip_with_every_field(path: Path) -> None:
    profile = sample_profile()
    write_profile(profile, path)
    again = read_profile(path)
    assert again == profile
    assert (again.device.name, again.device.driver) == (DEVICE.name, DEVICE.driver)
    assert (again.library.sha256, again.library.wheel) == (LIBRARY.sha256, LIBRARY.wheel)
    assert path.relative_to(path.parent.parent).as_posix() == "sm_90-132/cublaslt-13.1.0.parquet"


def test_an_empty_profile_is_a_profile(path: Path) -> None:
    empty = replace(sample_profile(), rows=())
    write_profile(empty, path)
    assert read_profile(path) == empty


def test_same_profile_same_bytes_whatever_the_order_of_rows(path: Path) -> None:
    profile = sample_profile()
    turned = replace(profile, rows=profile.rows[::-1])
    assert turned == profile
    write_profile(profile, path)
    first = path.read_bytes()
    write_profile(turned, path)
    assert path.read_bytes() == first


def test_file_metadata_names_the_measurement(path: Path) -> None:
    profile = sample_profile()
    write_profile(profile, path)
    data = _metadata(path)
    assert data["schema_version"] == 1
    assert data["digest"] == profile_digest(profile)
    assert data["build_id"] == "ab12"
    assert data["answer_key"] == ["algo_id", "reduction_scheme", "custom_option"]
    assert data["excluded_attributes"] == {"tile_id": 7, "cta_swizzling": 2}


def test_attributes_that_are_no_part_of_a_key_are_null(path: Path) -> None:
    write_profile(sample_profile(), path)
    table = pq.read_table(path, partitioning=None)
    assert table.column("algo_id").null_count == 0
    assert table.column("reduction_scheme").null_count == len(table)
    assert table.column("rule").null_count == 1


def test_a_failed_write_leaves_the_former_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(sample_profile(), path)
    before = path.read_bytes()

    def fail(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(KeyboardInterrupt):
        write_profile(sample_profile(sample_row()), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_truncated(path: Path, keep: int) -> None:
    write_profile(sample_profile(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ProfileError, match=r"^path must be a whole Parquet file .*\(got .*\)$"):
        read_profile(path)


def test_missing(path: Path) -> None:
    with pytest.raises(ProfileError, match=r"^path must .*\(got .*\)$"):
        read_profile(path)


def test_foreign_parquet(path: Path) -> None:
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(ProfileError, match=r"^path must be a gemmdesc profile"):
        read_profile(path)


def test_other_schema_version(path: Path) -> None:
    write_profile(sample_profile(), path)
    _rewrite(path, pq.read_table(path, partitioning=None), _metadata(path) | {"schema_version": 2})
    with pytest.raises(ProfileError, match=r"schema version 1 \(got 2"):
        read_profile(path)


def test_other_columns(path: Path) -> None:
    write_profile(sample_profile(), path)
    _rewrite(path, pq.read_table(path, partitioning=None).drop_columns(["shapes"]))
    with pytest.raises(ProfileError, match="columns of schema version"):
        read_profile(path)


def test_edited_rows_do_not_match_their_digest(path: Path) -> None:
    write_profile(sample_profile(), path)
    table = pq.read_table(path, partitioning=None)
    records = table.to_pylist()
    records[0]["shapes"] -= 1
    schema = arrow_schema().with_metadata(table.schema.metadata)
    _rewrite(path, pa.Table.from_pylist(records, schema=schema))
    with pytest.raises(ProfileError, match="digest"):
        read_profile(path)


@pytest.mark.parametrize(
    "change",
    [
        {"rule": None},
        {"decline_code": "no_rule"},
        {"rule": "gemm(nonsense)"},
        {"level": "certain"},
        {"m_min": 9_000},
        {"a_dtype": "float12"},
        {"example_problem": "{}"},
        {"example_launch": "{}"},
        {"mismatches": 121},
        {"shapes": None},
    ],
)
def test_half_filled_or_malformed_rows_are_refused(change: dict[str, object]) -> None:
    record = to_record(sample_row())
    assert from_record(record) == sample_row()
    with pytest.raises(ProfileError, match=r"^row must hold"):
        from_record(record | change)


def test_missing_metadata_is_refused(path: Path) -> None:
    write_profile(sample_profile(), path)
    data = _metadata(path)
    del data["driver"]
    _rewrite(path, pq.read_table(path, partitioning=None), data)
    with pytest.raises(ProfileError, match="well-formed"):
        read_profile(path)


def test_values_refuse_what_cannot_be() -> None:
    evidence = sample_row().evidence
    cases = {
        "shapes": lambda: replace(evidence, shapes=0),
        "draws": lambda: replace(evidence, draws=-1),
        "mismatches": lambda: replace(evidence, mismatches=121),
        "launch_names": lambda: replace(evidence, launch_names=("b", "a")),
        "low": lambda: Range(low=0, high=1),
        "declined": lambda: DeclineOutcome(declined=Declined(code="", reason="x")),
        "answer": lambda: RowKey(family=sample_row().key.family, answer=(("custom_option", 1), ("algo_id", 2))),
        "distinct_answers": lambda: Scan(queries=1, distinct_answers=2, unseen_mass=0, queries_per_second=1),
        "unseen_mass": lambda: Scan(queries=1, distinct_answers=1, unseen_mass=2, queries_per_second=1),
        "rows": lambda: sample_profile(sample_row(projection=("algo_id", "tile_id"))),
        "answer_key": lambda: replace(sample_profile().metadata, answer_key=("tile_id",)),
    }
    for name, make in cases.items():
        with pytest.raises(InvalidInputError, match=rf"^{name} .*\(got .*\)$"):
            make()


def test_levels_are_ordered() -> None:
    assert Level.VERIFIED.reaches(Level.PUBLISHED)
    assert Level.INFERRED.reaches(Level.INFERRED)
    assert not Level.OBSERVED.reaches(Level.INFERRED)


def test_types_survive(path: Path) -> None:
    profile = sample_profile(sample_row(dtype=DType.BFLOAT16))
    write_profile(profile, path)
    assert read_profile(path).rows[0].key.family.d_dtype is DType.BFLOAT16
