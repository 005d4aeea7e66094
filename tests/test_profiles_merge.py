"""Profiles of several kinds: what is measured again takes the place of what was, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, ProfileError
from gemmdesc.profiles import (
    Measured,
    Profile,
    Scan,
    audit,
    merge_profiles,
    packaged_folder,
    profile_path,
    profile_text,
    profile_to_join,
    publish,
    read_profile,
    write_profile,
)
from tests.profile_samples import DECLINE, DEVICE, LIBRARY, sample_answer, sample_profile, sample_row

SCAN = Scan(queries=10, distinct_answers=2, unseen_mass=0.1, queries_per_second=5.0)
OLD = sample_profile()


def of_kind(profile: Profile, kind: str, date: str = "2026-12-01") -> Profile:
    about = Measured(kind=kind, command=f"gemmdesc probe --kind {kind}", date=date, scan=SCAN)
    metadata = replace(profile.metadata, command=about.command, date=date, scan=SCAN, measured=(about,))
    return replace(profile, metadata=metadata)


def test_families_measured_again_are_replaced_and_the_others_kept() -> None:
    new = of_kind(sample_profile(sample_row(dtype=DType.BFLOAT16, outcome=DECLINE)), "tf32")
    whole = merge_profiles(OLD, new)
    half = [r for r in OLD.rows if r.key.family.a_dtype is DType.FLOAT16]
    assert len(half) == 3
    assert set(whole.rows) == {*half, *new.rows}
    assert [m.kind for m in whole.metadata.measured] == ["plain", "tf32"]
    assert whole.metadata.measured[0] == OLD.metadata.measured[0]
    # The plain kind describes the whole.
    assert (whole.metadata.command, whole.metadata.scan) == (OLD.metadata.command, OLD.metadata.scan)
    assert not [f for f in audit(whole) if f not in audit(OLD)]
    assert "kind tf32: 10 queries" in profile_text(whole)
    again = merge_profiles(whole, of_kind(OLD, "plain", "2026-12-02"))
    assert set(again.rows) == set(OLD.rows)
    assert [(m.kind, m.date) for m in again.metadata.measured] == [("plain", "2026-12-02"), ("tf32", "2026-12-01")]


def test_an_attribute_that_matters_to_one_kind_is_in_the_key() -> None:
    row = sample_row(dtype=DType.BFLOAT16, answer=sample_answer(), projection=("algo_id", "tile_id"))
    named = replace(OLD.metadata, answer_key=("algo_id", "tile_id"), excluded_attributes=(("stages_id", 3),))
    whole = merge_profiles(OLD, of_kind(replace(OLD, metadata=named, rows=(row,)), "batch"))
    assert whole.metadata.answer_key == ("algo_id", "tile_id", "reduction_scheme", "custom_option")
    assert dict(whole.metadata.excluded_attributes) == {"cta_swizzling": 2, "stages_id": 3}


@pytest.mark.parametrize(
    "changed",
    [
        replace(OLD, library=replace(LIBRARY, build_id="0123")),
        replace(OLD, device=replace(DEVICE, sm_count=114)),
        replace(OLD, device=replace(DEVICE, mig=True)),
        replace(OLD, device=replace(DEVICE, name="another card with as many processors")),
    ],
)
def test_another_card_or_build_is_refused_and_nothing_written(changed: Profile, tmp_path: Path) -> None:
    path = profile_path(tmp_path, DEVICE, LIBRARY.version)
    write_profile(changed, path)
    before = path.read_bytes()
    with pytest.raises(ProfileError, match=r"must be of .* for rows measured there to join it"):
        profile_to_join(tmp_path, DEVICE, LIBRARY)
    with pytest.raises(ProfileError, match=r"must be of"):
        publish(OLD, tmp_path)
    with pytest.raises(ProfileError, match=r"^old must be of"):
        merge_profiles(changed, OLD)
    assert path.read_bytes() == before
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


def test_publishing_joins_what_lies_there_or_else_the_base(tmp_path: Path) -> None:
    new = of_kind(sample_profile(sample_row(dtype=DType.BFLOAT16)), "tf32")
    alone, path = publish(new, tmp_path / "a")
    assert alone == new == read_profile(path)
    joined, path = publish(OLD, tmp_path / "a")
    assert joined == read_profile(path) == merge_profiles(new, OLD)
    based, path = publish(new, tmp_path / "b", OLD)
    assert based == read_profile(path) == merge_profiles(OLD, new)


def test_a_shipped_profile_is_described_by_its_plain_kind() -> None:
    folder = packaged_folder()
    assert folder is not None
    for path in folder.rglob("cublaslt-*.parquet"):
        profile = read_profile(path)
        plain, *others = profile.metadata.measured
        assert (plain.kind, plain.scan) == ("plain", profile.metadata.scan)
        assert all(m.scan.queries and m.kind != "plain" for m in others)
        assert profile.rows


def test_a_kind_is_measured_once_and_has_a_name() -> None:
    about = OLD.metadata.measured[0]
    with pytest.raises(InvalidInputError, match=r"^measured must hold one"):
        replace(OLD.metadata, measured=(about, about))
    with pytest.raises(InvalidInputError, match=r"^kind must have a name"):
        replace(about, kind="")
