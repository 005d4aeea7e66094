"""Campaigns of several kinds from the command line: folders, resuming, one profile, and the same from the records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.cli.offline import write_recorded
from gemmdesc.cli.output import Progress
from gemmdesc.cli.probing import Places, measure_kinds
from gemmdesc.dtypes import DType
from gemmdesc.errors import CampaignError, InvalidInputError, ProfileError
from gemmdesc.library.interface import Library
from gemmdesc.probe import scan, verification, workers
from gemmdesc.probe.campaign import Options
from gemmdesc.probe.facets import Kind
from gemmdesc.probe.sampling import (
    KIND_NAMES,
    Scope,
    chosen_kinds,
    name_of,
    scope_named,
    scope_of_kind,
)
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import ComputeType, LibraryId, LibraryVersion
from gemmdesc.profiles import (
    FindingKind,
    Profile,
    RuleOutcome,
    audit,
    is_published,
    packaged_folder,
    profile_path,
    read_profile,
    write_profile,
)
from tests.kind_profiles import bench_of, small_scopes
from tests.kind_samples import library_of_kinds
from tests.probe_samples import DEVICE, IDENTITY

KINDS = ("plain", "tf32")


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Few queries and comparisons, and all work in this process."""
    patch = pytest.MonkeyPatch()
    patch.setattr(scan, "BLOCK_QUERIES", 250)
    patch.setattr(verification, "ROW_PROBLEMS", 10)
    patch.setattr(workers, "ProcessPool", lambda factory, count: InProcess(factory()))
    yield
    patch.undo()


def plans(*names: str) -> dict[str, Options]:
    """Campaigns over one type each."""
    options = {}
    for name, scope in small_scopes(names).items():
        few = scope if name == "tf32" else replace(scope, dtypes=(DType.FLOAT16,), output_float32=False)
        options[name] = Options(scope=few, seed=3, first_blocks=1, target_unseen=1.0)
    return options


class Asked:
    """Opens the library of kinds, and counts how often its heuristic is asked."""

    def __init__(self) -> None:
        self.queries = 0

    def __call__(self) -> Library:
        library = library_of_kinds()
        heuristic = library.heuristic

        def counted(problem: Any) -> Any:
            self.queries += 1
            return heuristic(problem)

        return replace(library, heuristic=counted)


def families(profile: Profile) -> set[tuple[str, str]]:
    return {(row.key.family.compute_type.value, row.key.family.epilogue.value) for row in profile.rows}


@pytest.mark.slow
def test_kinds_are_measured_into_one_profile_and_resume(tmp_path: Path) -> None:
    records, out = tmp_path / "records", tmp_path / "profiles"
    with Progress() as progress:
        first = measure_kinds(Asked(), plans("tf32"), 1, Places(records=records, profiles=out), progress)
        path = first[0].path
        assert path == profile_path(out, DEVICE, IDENTITY.version)
        second = measure_kinds(Asked(), plans("plain"), 1, Places(records=records, profiles=out), progress)
    whole = read_profile(path)
    assert [m.kind for m in whole.metadata.measured] == ["plain", "tf32"]
    for report in (*first, *second):
        assert set(report.profile.rows) <= set(whole.rows)
        assert not [r.outcome for r in report.profile.rows if not isinstance(r.outcome, RuleOutcome)]
        about = report.profile.metadata.measured[0]
        assert about in whole.metadata.measured
        assert about.scan.queries == report.findings.tally.queries == report.plain()["queries"]
        assert report.plain()["kind"] == about.kind
    tf32, plain = ComputeType.COMPUTE_32F_FAST_TF32.value, ComputeType.COMPUTE_32F.value
    assert families(whole) == {(plain, "default"), (tf32, "default")}
    assert not [f for f in audit(whole) if f.kind is not FindingKind.METADATA]
    # The plain kind's records lie where they always did.
    assert (records / "scan.jsonl").is_file()
    assert {p.name for p in records.iterdir() if p.is_dir()} == {"tf32"}
    # No scan is made again (a few problems are, to choose among them), and the rows are the same; so are the records'.
    asked = Asked()
    with Progress() as progress:
        measure_kinds(asked, plans(*KINDS), 1, Places(records=records, profiles=out), progress)
    assert asked.queries < 50
    assert read_profile(path).rows == whole.rows
    recorded = read_profile(write_recorded(records, tmp_path / "recorded", "test"))
    assert recorded.rows == whole.rows
    assert [m.kind for m in recorded.metadata.measured] == ["plain", "tf32"]
    assert bench_of(whole).index.profile == whole


def test_nothing_is_asked_where_the_profile_is_of_another_build(tmp_path: Path) -> None:
    from tests.profile_samples import sample_profile

    other = sample_profile(device=DEVICE, library=replace(IDENTITY, build_id="0123"))
    path = profile_path(tmp_path, DEVICE, IDENTITY.version)
    write_profile(other, path)
    asked, places = Asked(), Places(records=tmp_path / "records", profiles=tmp_path)
    with Progress() as progress, pytest.raises(ProfileError, match="must be of"):
        measure_kinds(asked, plans("relu"), 1, places, progress)
    assert asked.queries == 0
    assert not (tmp_path / "records").exists()
    assert read_profile(path) == other


def test_a_session_ends_when_its_time_is_over_and_keeps_what_it_learned(tmp_path: Path) -> None:
    places = Places(records=tmp_path / "records", profiles=tmp_path / "profiles")
    with Progress() as progress, pytest.raises(CampaignError, match=r"^seconds must suffice"):
        measure_kinds(Asked(), plans("relu"), 1, places, progress, seconds=0.0)
    assert (tmp_path / "records" / "relu" / "scan.jsonl").is_file()
    assert not (tmp_path / "profiles").exists()


def test_names_of_kinds() -> None:
    assert chosen_kinds(["relu", "plain", "relu"]) == ("plain", "relu")
    assert chosen_kinds(["all"]) == KIND_NAMES
    assert chosen_kinds(["gelu_bias", "plain", "gelu"]) == ("plain", "gelu", "gelu_bias")
    for name in KIND_NAMES:
        assert name_of(scope_named(name)) == name
    assert {scope_named(n).kind for n in KIND_NAMES} == set(Kind)
    assert name_of(scope_of_kind(Kind.BIAS, (DType.FLOAT16,))) == "bias"
    assert name_of(Scope(dtypes=(DType.FLOAT16,))) == "plain"
    with pytest.raises(InvalidInputError, match=r"^kind must be of"):
        chosen_kinds(["tf31"])


def test_the_packaged_profile_takes_part_in_the_user_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A first profile of the user's starts from the one that it would hide."""
    from gemmdesc.cli import probing

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("GEMMDESC_PROFILES", raising=False)
    folder = packaged_folder()
    assert folder is not None
    shipped = next(p for p in map(read_profile, sorted(folder.rglob("cublaslt-*.parquet"))) if not is_published(p))
    serving = probing.serving_profile(shipped.device, shipped.library, None)
    assert serving == shipped
    assert probing.serving_profile(shipped.device, shipped.library, tmp_path) is None
    assert probing.serving_profile(replace(shipped.device, name="other"), shipped.library, None) is None


def named(version: str) -> LibraryId:
    return replace(IDENTITY, version=LibraryVersion.parse(version), build_id=f"build-{version}")


@dataclass(frozen=True)
class OfRelease:
    """Opens the library of kinds as a release's."""

    version: str

    def __call__(self) -> Library:
        return replace(library_of_kinds(), identity=named(self.version))


@pytest.mark.slow
def test_a_release_begins_with_its_neighbour_s_rows_of_every_kind_and_resumes(tmp_path: Path) -> None:
    """Plain and another kind in one command, published as each ends, cut off twice for want of time."""
    places = Places(records=tmp_path / "old", profiles=tmp_path / "profiles", first_guesses="none")
    with Progress() as progress:
        measure_kinds(OfRelease("13.1.0"), plans("plain", "bias"), 1, places, progress)
    old = read_profile(profile_path(tmp_path / "profiles", DEVICE, named("13.1.0").version))
    assert [m.first_guesses for m in old.metadata.measured] == ["", ""]
    places = Places(records=tmp_path / "new", profiles=tmp_path / "profiles")
    with Progress() as progress:
        for _ in range(2):
            with pytest.raises(CampaignError, match="same command goes on"):
                measure_kinds(OfRelease("13.2.0"), plans("plain", "bias"), 1, places, progress, seconds=2.0)
        measure_kinds(OfRelease("13.2.0"), plans("plain", "bias"), 1, places, progress)
    new = read_profile(profile_path(tmp_path / "profiles", DEVICE, named("13.2.0").version))
    for measured in new.metadata.measured:
        assert "cublaslt-13.1.0, build-id build-13.1.0" in measured.first_guesses
    rules = [
        {str(r.key): r.outcome.rule.text for r in p.rows if isinstance(r.outcome, RuleOutcome)} for p in (old, new)
    ]
    assert rules[0] == rules[1]
    # Only what the neighbour has no verified row for is surveyed.
    surveys = [tmp_path / name / "survey.jsonl" for name in ("old", "new")]
    old_count, new_count = (len(s.read_text().splitlines()) if s.is_file() else 0 for s in surveys)
    assert new_count < old_count
