"""Published tables as profiles: what they say, who is served them, and what a card makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits
from gemmdesc.cli import app
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.normal_form import same_bits
from gemmdesc.operands import Family, HashOperand
from gemmdesc.problem import AlgoConfig, DeviceId, LibraryId, LibraryVersion, Transpose, dense_problem, environment
from gemmdesc.profiles import (
    Compared,
    DeclineOutcome,
    FindingKind,
    Level,
    Profile,
    ProfileIndex,
    RuleOutcome,
    audit,
    find_profile,
    index_profile,
    left_out,
    lookup,
    parse_level,
    profile_path,
    promoted,
    published_profiles,
    published_rows,
    read_profile,
    write_profile,
)
from gemmdesc.profiles.published import load_tables
from gemmdesc.rule import evaluate_rule
from gemmdesc.verification.hidden import hide
from tests.hidden_samples import hidden_profile
from tests.test_cli_books import own_folders, run  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parent.parent
PROFILES = published_profiles()
SM_100 = next(p for p in PROFILES if p.device.sm == "sm_100" and p.library.version.major == 13)
SM_103 = next(p for p in PROFILES if p.device.sm == "sm_103")
BUILD = LibraryId(version=SM_100.library.version, build_id="b1", sha256="s1", path="lib.so")
FP16, BF16 = DType.FLOAT16, DType.BFLOAT16


def answer(algo_id: int, splits: int = 1, **more: int) -> AlgoConfig:
    values = {
        "tile_id": 3, "reduction_scheme": 0, "cta_swizzling": 0, "custom_option": 0, "stages_id": 0,
        "inner_shape_id": 0, "cluster_shape_id": 0,
    }  # fmt: skip
    return AlgoConfig(algo_id=algo_id, splitk_num=splits, **(values | more))


def described(
    index: ProfileIndex, sizes: tuple[int, int, int], config: AlgoConfig, dtype: DType = FP16, **ops: Transpose
) -> GEMMDesc | Declined:
    problem = dense_problem(*sizes, dtype, **ops)
    rule = lookup(index, problem, config, accept=Level.PUBLISHED)
    return rule if isinstance(rule, Declined) else evaluate_rule(rule, environment(problem, config, None))


INDEX, INDEX_103 = index_profile(SM_100), index_profile(SM_103)


# --- what the tables say ----------------------------------------------------------------------------------------------


def test_cards_and_releases() -> None:
    found = [(p.device.folder, str(p.library.version)) for p in PROFILES]
    assert found == [("sm_100-152", "12.8.5"), ("sm_100-152", "13.1.1"), ("sm_103-152", "13.1.1")]
    assert PROFILES[0].rows == PROFILES[1].rows
    for profile in PROFILES:
        assert {row.evidence.level for row in profile.rows} == {Level.PUBLISHED}
        assert {f.kind for f in audit(profile)} == {FindingKind.METADATA}
        assert "arXiv" in profile.metadata.command


def test_the_packaged_files_are_what_the_script_writes(tmp_path: Path) -> None:
    for profile in PROFILES:
        path = profile_path(ROOT / "arch_profiles", profile.device, profile.library.version)
        assert read_profile(path) == profile, "run scripts/make_published_profiles.py"


def test_what_is_left_out_is_listed_and_has_no_row() -> None:
    assert all(what and why for what, why in left_out())
    dtypes = {row.key.family.a_dtype for p in PROFILES for row in p.rows}
    assert dtypes == {FP16, BF16}
    for config in (
        answer(12), answer(14), answer(13, custom_option=10), answer(13, custom_option=5),
        answer(21, stages_id=7, reduction_scheme=4), answer(21, stages_id=11), answer(13, custom_option=0),
    ):  # fmt: skip
        assert isinstance(described(INDEX, (64, 64, 640), config), Declined)


@pytest.fixture(name="measured", scope="module")
def _measured() -> ProfileIndex:
    return index_profile(read_profile(ROOT / "arch_profiles" / "sm_90-132" / "cublaslt-13.1.0.parquet"))


def test_the_tables_put_on_sm_90_agree_with_what_was_measured_there(measured: ProfileIndex) -> None:
    """The same tables with that card's matrix steps: wherever both speak, they owe each other the same bits."""
    rows = published_rows(load_tables(), {"sm": "sm_90", "architecture": "Hopper"})
    index = index_profile(replace(SM_100, rows=rows))
    draw, both = Random(4), dict[int, int]()
    keys = [row.evidence.example.answer for row in measured.profile.rows if isinstance(row.outcome, RuleOutcome)]
    for _ in range(4000):
        dtype = draw.choice((FP16, BF16))
        k = draw.choice((draw.randint(1, 70000), 64 * draw.randint(1, 900), 8 * draw.randint(1, 900)))
        config = replace(draw.choice(keys), splitk_num=draw.choice((1, 1, 2, 3, 5, 8, 12, 20)))
        if config.reduction_scheme == 0 and config.algo_id != 66 and config.splitk_num > 1:
            continue  # measured without a split only
        problem = dense_problem(draw.randint(2, 4000), draw.randint(2, 4000), k, dtype)
        rule = lookup(measured, problem, config)
        ours = described(index, (problem.m, problem.n, k), config, dtype)
        if isinstance(rule, Declined) or isinstance(ours, Declined):
            continue
        theirs = evaluate_rule(rule, environment(problem, config, None))
        assert isinstance(theirs, GEMMDesc)
        assert same_bits(ours, theirs, k), (problem, config)
        both[config.algo_id] = both.get(config.algo_id, 0) + 1
    assert all(both.get(algo_id, 0) > 20 for algo_id in (21, 23, 24, 66)), both


def naive_lanes(a: np.ndarray, b: np.ndarray, lanes: int, unit: int, chunk: int, butterfly: bool) -> np.float32:
    """The published text of the vector kernel, step by step, in float32 (products of float16 are exact)."""
    totals = []
    for lane in range(lanes):
        ks = [k for k in range(len(a)) if k // unit % lanes == lane]
        size = chunk * unit or max(1, len(ks))
        parts = [np.float32(0)]
        for begin in range(0, len(ks), size):
            total = np.float32(0)
            for k in ks[begin : begin + size]:
                total = np.float32(total + np.float32(a[k]) * np.float32(b[k]))
            parts.append(total)
        total = parts[0]
        for part in parts[1:]:
            total = np.float32(total + part)
        totals.append(total)
    if butterfly:
        half = lanes // 2
        while half:
            totals = [np.float32(totals[i] + totals[i + half]) for i in range(half)]
            half //= 2
        return totals[0]
    total = totals[0]
    for other in totals[1:]:
        total = np.float32(total + other)
    return total


def vectors(k: int) -> tuple[np.ndarray, np.ndarray, Bits, Bits]:
    a, b = (HashOperand(dtype=FP16, family=Family.WIDE, seed=2, draw=k, role=role).bits(1, k) for role in "ab")
    return a.view(np.float16)[0], b.view(np.float16)[0], a, np.ascontiguousarray(b.T)


@pytest.mark.parametrize(
    ("option", "lanes", "chunk", "butterfly", "wide"),
    [(48, 2, 0, True, True), (58, 4, 0, True, True), (36, 32, 0, True, True), (43, 8, 0, True, False),
     (37, 32, 0, True, False), (12, 16, 16, False, False), (11, 16, 32, False, False), (6, 1, 0, False, False)],
)  # fmt: skip
def test_lanes_mean_what_was_published(option: int, lanes: int, chunk: int, butterfly: bool, wide: bool) -> None:
    for k in (1, 37, 500, 3001):
        desc = described(INDEX, (1, 1, k), answer(13, custom_option=option))
        assert isinstance(desc, GEMMDesc), desc
        unit = min(64, -(-k // lanes)) if wide else 1
        a, b, a_bits, b_bits = vectors(k)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = np.float16(naive_lanes(a, b, lanes, unit, chunk, butterfly))
        assert replay(desc, a_bits, b_bits).view(np.float16)[0, 0].tobytes() == wanted.tobytes(), k


def test_gates_decline_what_was_not_published() -> None:
    lost = described(INDEX, (64, 64, 11528), answer(66, 9, stages_id=35))
    assert isinstance(lost, Declined)
    kept = described(INDEX, (64, 64, 11520), answer(66, 9, stages_id=35))
    assert isinstance(kept, GEMMDesc)
    split = answer(66, 5, stages_id=35)
    assert isinstance(described(INDEX, (64, 64, 6832), split), GEMMDesc)
    assert isinstance(described(INDEX, (64, 64, 6832), replace(split, splitk_num=65)), Declined)
    for ops in ({"transa": Transpose.T}, {"transb": Transpose.T}):
        assert isinstance(described(INDEX, (64, 64, 6832), split, **ops), Declined)
    assert isinstance(described(INDEX, (2, 2, 64), answer(13, custom_option=6)), Declined)
    assert isinstance(described(INDEX, (1, 2, 64), answer(13, custom_option=6)), GEMMDesc)
    assert isinstance(described(INDEX, (4, 4, 64), answer(11, 2)), Declined)
    assert isinstance(described(INDEX, (4, 4, 64), answer(11)), GEMMDesc)


def test_sm_103_declines_its_matrix_instructions_by_name() -> None:
    found = described(INDEX_103, (64, 64, 640), answer(66, stages_id=35))
    assert isinstance(found, Declined)
    assert "one step" in found.reason
    assert isinstance(described(INDEX_103, (1, 9, 640), answer(13, custom_option=8)), GEMMDesc)
    assert isinstance(described(INDEX, (1, 9, 640), answer(13, custom_option=8)), Declined)


# --- who is served ----------------------------------------------------------------------------------------------------


def test_lookup_and_search_decline_unless_the_level_is_accepted(tmp_path: Path) -> None:
    problem, config = dense_problem(64, 64, 640, FP16), answer(66, stages_id=35)
    declined = lookup(INDEX, problem, config)
    assert isinstance(declined, Declined)
    assert 'only published, and verified is required (accept="published"' in declined.reason
    write_profile(SM_100, profile_path(tmp_path, SM_100.device, SM_100.library.version))
    for accept in (Level.VERIFIED, Level.INFERRED, Level.OBSERVED):
        found = find_profile(SM_100.device, BUILD, [tmp_path], accept=accept)
        assert isinstance(found, Declined)
        assert "from published tables" in found.reason
        assert "--accept published" in found.reason
    served = find_profile(SM_100.device, BUILD, [tmp_path], accept=Level.PUBLISHED)
    assert isinstance(served, Profile)
    assert (served.library, served.rows) == (BUILD, SM_100.rows)
    other = replace(BUILD, version=LibraryVersion(major=13, minor=2, patch=0))
    assert isinstance(find_profile(SM_100.device, other, [tmp_path], accept=Level.PUBLISHED), Declined)
    fewer = DeviceId(sm="sm_100", sm_count=148)
    assert isinstance(find_profile(fewer, BUILD, [tmp_path], accept=Level.PUBLISHED), Declined)


def test_what_was_measured_comes_first(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    measured = replace(SM_100, library=BUILD)
    write_profile(SM_100, profile_path(first, SM_100.device, BUILD.version))
    write_profile(measured, profile_path(second, SM_100.device, BUILD.version))
    found = find_profile(SM_100.device, BUILD, [first, second], accept=Level.PUBLISHED)
    assert isinstance(found, Profile)
    assert found.library.sha256 == "s1"


def test_levels_are_parsed() -> None:
    assert parse_level("published") is parse_level(Level.PUBLISHED) is Level.PUBLISHED
    with pytest.raises(InvalidInputError, match="accept must be one of published"):
        parse_level("surely")


# --- what a card makes of them ----------------------------------------------------------------------------------------


def comparisons(config: AlgoConfig, count: int, different: int = 0) -> Iterator[Compared]:
    for i in range(count):
        problem = dense_problem(64 + i, 64, 640, FP16)
        wrong = i < different
        yield Compared(problem=problem, answer=config, launch_names=("kernel",), equal=10, different=int(wrong))


def test_rows_are_verified_refuted_or_left() -> None:
    good, bad, few = (answer(66, stages_id=35), answer(21, stages_id=13), answer(23, stages_id=13))
    compared = [*comparisons(good, 8), *comparisons(bad, 8, different=1), *comparisons(few, 7)]
    found = promoted(SM_100, compared, replace(SM_100.device, name="B200"), BUILD, command="verify", date="2026-12-01")
    assert (found.device.name, found.library.build_id) == ("B200", "b1")
    assert found.metadata.command.startswith("verify; before: scripts/make_published_profiles.py")
    index = index_profile(found)
    problem = dense_problem(64, 64, 640, FP16)
    assert not isinstance(lookup(index, problem, good), Declined)
    refuted = lookup(index, problem, bad)
    assert isinstance(refuted, Declined)
    assert "the published rule was refuted: 1 of 8 problems differ, the first 64 x 64 x 640" in refuted.reason
    left = lookup(index, problem, few)
    assert isinstance(left, Declined)
    assert "only published" in left.reason
    changed = [new for old, new in zip(SM_100.rows, found.rows, strict=True) if new != old]
    assert len(changed) == 2
    thin = [replace(one, equal=9) for one in comparisons(good, 20)]
    assert promoted(SM_100, thin, SM_100.device, BUILD, command="", date="").rows == SM_100.rows
    verified = next(row for row in changed if row.evidence.level is Level.VERIFIED)
    assert (verified.evidence.shapes, verified.evidence.draws, verified.evidence.m.high) == (8, 80, 71)
    again = promoted(found, comparisons(good, 8, different=8), found.device, BUILD, command="c", date="d")
    assert again.rows == found.rows, "a verified row is not this function's to judge"


def weak(profile: Profile) -> Profile:
    """The profile as others might have published it: no build, no measurements."""
    rows = tuple(
        replace(r, evidence=replace(r.evidence, level=Level.PUBLISHED, shapes=0, draws=0)) for r in profile.rows
    )
    return replace(profile, library=replace(profile.library, build_id="", sha256=""), rows=rows)


def test_verify_turns_published_rows_into_verified_or_refutes_them(own_folders: Path, tmp_path: Path) -> None:  # noqa: F811
    """A simulated library against right tables of it, one of whose rows is wrong."""
    hidden = hide(5)
    swapped = hidden.rules[1][1]
    profile = weak(hidden_profile(hidden, lambda at, rule: swapped if at == 0 else rule))
    write_profile(profile, profile_path(own_folders, profile.device, profile.library.version))
    options = ("verify", "--replay", "--library", "simulated:5", "--draws", 10, "--workers", 1, "--aligned", 0)
    counts = ("--named", 0, "--lost-tail", 0, "--deep", 12, "--unrounded", 140)
    refused = run(*options, *counts, "--folder", tmp_path / "v")
    assert refused.exit_code == 2
    assert "--accept published" in refused.stderr
    out = tmp_path / "promoted.parquet"
    result = run(*options, *counts, "--folder", tmp_path / "v", "--accept", "published", "--promote", out)
    assert result.exit_code == 1, result.output
    found = read_profile(out)
    assert found.library.build_id == "simulated5"
    outcomes = {dict(row.key.answer)["algo_id"]: row for row in found.rows}
    wrong = outcomes[hidden.rules[0][0]]
    assert isinstance(wrong.outcome, DeclineOutcome)
    assert "refuted" in wrong.outcome.declined.reason
    others = [outcomes[algo_id].evidence.level for algo_id, _ in hidden.rules[1:]]
    assert Level.VERIFIED in others
    assert app is not None
