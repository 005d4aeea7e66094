"""Finding the profile that applies, and the row in it; everything else declines and says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, ProfileError
from gemmdesc.expressions import Const
from gemmdesc.problem import DeviceId, LibraryId, LibraryVersion, ScalarClass
from gemmdesc.profiles import (
    Level,
    Range,
    RuleOutcome,
    find_profile,
    index_profile,
    lookup,
    packaged_folder,
    profile_folders,
    profile_path,
    user_folder,
    write_profile,
)
from gemmdesc.rule import Rule
from tests.profile_samples import (
    DECLINE,
    DEVICE,
    LIBRARY,
    sample_answer,
    sample_problem,
    sample_profile,
    sample_row,
    sample_rule,
)


def _store(folder: Path, **changes: object) -> Path:
    profile = replace(sample_profile(), **changes)  # type: ignore[arg-type]
    path = profile_path(folder, profile.device, profile.library.version)
    write_profile(profile, path)
    return path


def test_the_first_folder_with_this_very_key_wins(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    _store(far)
    assert find_profile(DEVICE, LIBRARY, [near, far]) == sample_profile()
    _store(near, rows=())
    found = find_profile(DEVICE, LIBRARY, [near, far])
    assert not isinstance(found, Declined)
    assert found.rows == ()


def test_a_file_may_stand_for_a_folder(tmp_path: Path) -> None:
    path = _store(tmp_path)
    assert find_profile(DEVICE, LIBRARY, [path]) == sample_profile()


@pytest.mark.parametrize(
    ("device", "library", "words"),
    [
        (DEVICE, replace(LIBRARY, build_id="ffff"), "another build of 13.1.0, build-id ab12"),
        (replace(DEVICE, mig=True), LIBRARY, "a card without MIG"),
        (replace(DEVICE, sm_count=114), LIBRARY, "at hand: sm_90-132/cublaslt-13.1.0"),
        (replace(DEVICE, sm="sm_80"), LIBRARY, "at hand: sm_90-132/cublaslt-13.1.0"),
        (DEVICE, replace(LIBRARY, version=LibraryVersion(major=13, minor=10, patch=0)), "no profile for sm_90-132"),
    ],
)
def test_a_near_key_declines_and_says_so(tmp_path: Path, device: DeviceId, library: LibraryId, words: str) -> None:
    _store(tmp_path)
    found = find_profile(device, library, [tmp_path])
    assert isinstance(found, Declined)
    assert found.code == "no_profile"
    assert words in found.reason


def test_the_file_itself_is_checked_and_not_its_place(tmp_path: Path) -> None:
    path = _store(tmp_path)
    for device, library, words in (
        (replace(DEVICE, sm_count=114), LIBRARY, "another card, sm_90-132"),
        (DEVICE, replace(LIBRARY, version=LibraryVersion(major=13, minor=2, patch=0)), "another release, 13.1.0"),
    ):
        found = find_profile(device, library, [path])
        assert isinstance(found, Declined)
        assert words in found.reason


def test_without_a_build_id_the_file_must_be_the_same(tmp_path: Path) -> None:
    stripped = replace(LIBRARY, build_id="")
    _store(tmp_path, library=stripped)
    assert not isinstance(find_profile(DEVICE, stripped, [tmp_path]), Declined)
    other = find_profile(DEVICE, replace(stripped, sha256="other"), [tmp_path])
    assert isinstance(other, Declined)
    assert "sha256 cd34" in other.reason


def test_a_decline_names_the_command_its_minutes_and_its_target(tmp_path: Path) -> None:
    library = replace(LIBRARY, path="/opt/libcublasLt.so.13")
    found = find_profile(DEVICE, library, [tmp_path], write_folder=tmp_path / "mine")
    assert isinstance(found, Declined)
    assert f"`gemmdesc probe --library /opt/libcublasLt.so.13 --out {tmp_path / 'mine'}`" in found.reason
    assert "minutes" in found.reason
    assert str(tmp_path / "mine" / "sm_90-132" / "cublaslt-13.1.0.parquet") in found.reason
    assert "build-id ab12" in found.reason
    assert "at hand: none" in found.reason


def test_a_broken_file_is_an_error_and_no_decline(tmp_path: Path) -> None:
    path = _store(tmp_path)
    path.write_bytes(b"PAR1")
    with pytest.raises(ProfileError):
        find_profile(DEVICE, LIBRARY, [tmp_path])


def test_folders_in_order(tmp_path: Path) -> None:
    folders = profile_folders(tmp_path / "a", {"GEMMDESC_PROFILES": f"{tmp_path / 'b'}:{tmp_path / 'c'}"})
    assert folders[:4] == (tmp_path / "a", tmp_path / "b", tmp_path / "c", user_folder())
    assert folders[4:] == (() if packaged_folder() is None else (packaged_folder(),))
    assert profile_folders(None, {})[0] == user_folder()


def test_lookup_gives_the_row_of_the_projection() -> None:
    index = index_profile(sample_profile())
    answer = sample_answer(tile_id=99, splitk_num=3)
    assert lookup(index, sample_problem(), answer) == sample_rule()
    other = lookup(index, sample_problem(), replace(answer, algo_id=24))
    assert isinstance(other, Rule)
    assert other == sample_rule(span=Const(8192))
    assert lookup(index, sample_problem(DType.BFLOAT16), answer) == sample_rule(dtype=DType.BFLOAT16)


def test_a_declining_row_declines_in_its_own_words() -> None:
    found = lookup(index_profile(sample_profile()), sample_problem(), sample_answer(algo_id=21))
    assert found == DECLINE.declined


def test_unknown_answers_and_families_decline() -> None:
    index = index_profile(sample_profile())
    unknown = lookup(index, sample_problem(), sample_answer(algo_id=77))
    assert isinstance(unknown, Declined)
    assert unknown.code == "no_rule"
    assert "algo_id=77 reduction_scheme=2 custom_option=1" in unknown.reason
    for problem in (
        replace(sample_problem(), beta=ScalarClass.ONE),
        replace(sample_problem(), alpha=ScalarClass.OTHER),
        replace(sample_problem(), batch_count=2, a_batch_stride=1),
        replace(sample_problem(), d_dtype=DType.FLOAT32),
        replace(sample_problem(), fast_accumulation=True),
    ):
        found = lookup(index, problem, sample_answer())
        assert isinstance(found, Declined)
        assert "no rows for" in found.reason


def test_evidence_below_the_level_asked_for_declines() -> None:
    index = index_profile(sample_profile(sample_row(level=Level.INFERRED)))
    found = lookup(index, sample_problem(), sample_answer())
    assert isinstance(found, Declined)
    assert "only inferred, and verified is required" in found.reason
    assert lookup(index, sample_problem(), sample_answer(), accept=Level.INFERRED) == sample_rule()
    assert lookup(index, sample_problem(), sample_answer(), accept=Level.PUBLISHED) == sample_rule()


def test_a_row_seen_at_one_or_two_products_says_nothing_of_more() -> None:
    row = sample_row()
    for high, served in ((1, False), (2, False), (3, True)):
        seen = replace(row, evidence=replace(row.evidence, k=Range(low=1, high=high)))
        index = index_profile(sample_profile(seen))
        found = lookup(index, sample_problem(), sample_answer())
        assert isinstance(found, Rule) is served
        assert served or f"was seen up to k = {high} only" in found.reason
        assert isinstance(lookup(index, replace(sample_problem(), k=2, lda=256, ldb=2), sample_answer()), Rule)


@pytest.mark.parametrize("projection", [("algo_id",), ("algo_id", "custom_option")])
def test_rows_that_contradict_each_other_decline(projection: tuple[str, ...]) -> None:
    other = sample_row(RuleOutcome(rule=sample_rule(span=Const(64))), projection=projection)
    found = lookup(index_profile(sample_profile(sample_row(), other)), sample_problem(), sample_answer())
    assert isinstance(found, Declined)
    assert "contradicts itself" in found.reason
