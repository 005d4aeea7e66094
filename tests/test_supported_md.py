"""The table of supported cards in README.md is what the profiles say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, ProfileError
from gemmdesc.expressions import Const
from gemmdesc.problem import DeviceId, LibraryVersion
from gemmdesc.profiles import (
    DeclineOutcome,
    Level,
    Outcome,
    Profile,
    ProfileRow,
    Range,
    RuleOutcome,
    profile_path,
    published_profiles,
    write_profile,
)
from gemmdesc.rule import Rule
from scripts.make_supported_md import (
    BEGIN,
    END,
    HEAD,
    MOST_REASONS,
    NOTHING,
    ROOT,
    SupportedError,
    fill,
    kinds,
    main,
    read_profiles,
    render,
)
from tests.profile_samples import (
    DECLINE,
    DEVICE,
    LIBRARY,
    sample_answer,
    sample_profile,
    sample_row,
    sample_rule,
)

CUTLASS = "_ZN7cutlass7Kernel2I55cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nt_align1EEvNT_6ParamsE"
REDUCE = "_ZN8cublasLt19splitKreduce_kernelILi32ELi16Eif6__halffS1_EEvNS_18cublasSplitKParamsIT4_EE"
XMMA = "sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n_tilesize64x64x64_segment_k_off_kernel__5x_cublas"
PAGE = f"# Title\n\n{BEGIN}stale\n{END}\n\nThe rest.\n"


def _row(algo_id: int, outcome: Outcome | None = None, **changes: Any) -> ProfileRow:
    return sample_row(outcome, answer=sample_answer(algo_id=algo_id), **changes)


def _seen(row: ProfileRow, **changes: Any) -> ProfileRow:
    return replace(row, evidence=replace(row.evidence, **changes))


def _declined(code: str, reason: str) -> DeclineOutcome:
    return DeclineOutcome(declined=Declined(code=code, reason=reason))


def _table(text: str) -> list[dict[str, str]]:
    head, rule, *body = [line for line in text.splitlines() if line.startswith("|")]
    assert head == f"| {' | '.join(HEAD)} |"
    assert rule == f"| {' | '.join(['---'] * len(HEAD))} |"
    return [dict(zip(HEAD, line.strip("| ").split(" | "), strict=True)) for line in body]


def _prose(text: str) -> str:
    return " ".join(line for line in text.splitlines() if not line.startswith("|"))


def _store(folder: Path, profile: Profile) -> Path:
    path = profile_path(folder / "arch_profiles", profile.device, profile.library.version)
    write_profile(profile, path)
    return path


def test_the_readme_is_up_to_date() -> None:
    page = (ROOT / "README.md").read_text()
    assert fill(page, render(read_profiles(ROOT / "arch_profiles"))) == page
    assert main(["--check"]) == 0


def test_without_profiles_one_sentence_says_so(tmp_path: Path) -> None:
    assert read_profiles(tmp_path / "arch_profiles") == ()
    assert render(()) == f"{NOTHING}\n"


def test_a_row_counts_what_its_profile_holds() -> None:
    profile = sample_profile(
        _row(66),
        _seen(_row(24, names=tuple(sorted((CUTLASS, REDUCE)))), splitk=Range(low=2, high=16), shapes=1000, draws=3001),
        _row(41, RuleOutcome(rule=sample_rule(dtype=DType.BFLOAT16, cuts=0)), dtype=DType.BFLOAT16, names=(XMMA,)),
        _row(21, DECLINE, level=Level.OBSERVED),
        _row(22, _declined("no_rule", "too few products"), dtype=DType.BFLOAT16, level=Level.OBSERVED),
        _row(23, level=Level.INFERRED, names=("gemmk1_kernel",)),
    )
    text = render((profile,))
    assert _table(text) == [
        {
            "card": "A card (sm_90, 132 SMs)",
            "cuBLASLt": "13.1.0",
            "operands -> output": "bfloat16 -> bfloat16; float16 -> float16",
            "kernels": "nvjet: single pass, split-K; CUTLASS: split-K; xmma: single pass",
            "verified rows": "3 of 6",
            "shapes": "1,080",
            "draws": "3,241",
            "declined rows": "2 `no_rule`, 1 `nondeterministic`",
            "queries": "1,000,000",
            "unseen mass": "3e-07",
            "date": "2026-11-29",
        }
    ]
    assert (
        "Rows that decline with cuBLASLt 13.1.0 on A card (sm_90, 132 SMs): "
        '2 `no_rule` (1 "the rule is only inferred", 1 "too few products"), '
        '1 `nondeterministic` (1 "bytes varied from run to run").'
    ) in _prose(text)
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
    assert render((profile,)) == text


def test_one_type_can_have_two_outputs_and_a_kernel_can_go_unrecorded() -> None:
    row = sample_row()
    wide = replace(row, key=replace(row.key, family=replace(row.key.family, d_dtype=DType.FLOAT32)))
    (cells,) = _table(render((sample_profile(row, _seen(wide, launch_names=(REDUCE,))),)))
    assert cells["operands -> output"] == "float16 -> float16, float32"
    assert cells["kernels"] == "nvjet: single pass, split-K; names not recorded: single pass, split-K"
    assert cells["declined rows"] == "0"


def test_a_profile_that_only_declines_supports_nothing() -> None:
    reasons = [_row(i, _declined("no_rule", f"reason {i}")) for i in range(MOST_REASONS + 2)]
    text = render((sample_profile(*reasons, _row(90, _declined("no_rule", "reason 3\n"))),))
    (cells,) = _table(text)
    assert cells["operands -> output"] == cells["kernels"] == "none"
    assert cells["verified rows"] == "0 of 8"
    assert cells["shapes"] == cells["draws"] == "0"
    assert cells["declined rows"] == "8 `no_rule`"
    quoted = '(2 "reason 3", 1 "reason 0", 1 "reason 1", 1 "reason 2", 1 "reason 4", 2 for other reasons)'
    assert f"(sm_90, 132 SMs): 8 `no_rule` {quoted}." in _prose(text)


def test_two_profiles_are_two_rows_by_path(tmp_path: Path) -> None:
    newer = replace(LIBRARY, version=LibraryVersion(major=13, minor=2, patch=1))
    other = DeviceId(sm="sm_100", sm_count=148, mig=True, name="B|card", driver="580.1")
    _store(tmp_path, sample_profile(_row(66), library=newer))
    _store(tmp_path, sample_profile(_row(66), _row(21, DECLINE), device=other))
    text = render(read_profiles(tmp_path / "arch_profiles"))
    first, second = _table(text)
    assert (first["card"], first["cuBLASLt"]) == ("B\\|card (sm_100, 148 SMs, MIG)", "13.1.0")
    assert (second["card"], second["cuBLASLt"]) == ("A card (sm_90, 132 SMs)", "13.2.1")
    assert (first["verified rows"], second["verified rows"]) == ("1 of 2", "1 of 1")
    assert "No row declines with cuBLASLt 13.2.1 on A card (sm_90, 132 SMs)." in _prose(text)


def test_what_a_cut_is_called_follows_splitk_num() -> None:
    row = sample_row()
    often, never, always = Range(low=1, high=9), Range(low=1, high=1), Range(low=2, high=9)
    split, fixed, uncut = sample_rule(), sample_rule(span=Const(128)), sample_rule(cuts=0)

    def called(rule: Rule, splitk: Range) -> set[str]:
        return set(kinds(rule, replace(row.evidence, splitk=splitk)))

    assert called(uncut, never) == {"single pass"}
    assert called(split, never) == {"single pass"}
    assert called(split, always) == {"split-K"}
    assert called(split, often) == {"single pass", "split-K"}
    assert called(fixed, never) == called(fixed, always) == {"other cuts"}


@pytest.mark.parametrize("count", ["mismatches", "nondeterministic"])
def test_a_verified_row_whose_bytes_differed_is_refused(count: str) -> None:
    with pytest.raises(SupportedError, match=r"^a verified row must have no mismatch and no varying call \(got "):
        render((sample_profile(_seen(_row(66), **{count: 1})),))


def test_the_page_is_filled_and_checked(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    assert main(["--check"], tmp_path) == 1
    assert page.read_text() == PAGE
    assert main([], tmp_path) == 0
    assert page.read_text() == PAGE.replace("stale", NOTHING)
    assert main(["--check"], tmp_path) == 0
    _store(tmp_path, sample_profile())
    assert main(["--check"], tmp_path) == 1
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert page.read_text() == PAGE.replace("stale\n", render((sample_profile(),)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["README.md", "arch_profiles"]


@pytest.mark.parametrize("page", ["", BEGIN, END, END + BEGIN, PAGE + PAGE])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    with pytest.raises(SupportedError, match=r"^page must have .* once each, in this order \(got "):
        fill(page, "text")


def test_a_file_that_no_lookup_finds_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text(PAGE)
    path = _store(tmp_path, sample_profile(device=DEVICE))
    path.rename(path.with_name("cublaslt-13.1.1.parquet"))
    assert main([], tmp_path) == 2
    assert "a profile must lie where lookups search" in capsys.readouterr().err
    path.write_bytes(b"no profile")
    with pytest.raises(ProfileError):
        read_profiles(tmp_path / "arch_profiles")
    assert (tmp_path / "README.md").read_text() == PAGE


def test_published_tables_stand_apart(tmp_path: Path) -> None:
    """They serve nothing by default, and so are no row of the table."""
    (*_, published) = published_profiles()
    text = render((published,))
    assert text.startswith(NOTHING)
    assert "sm_103-152 with cuBLASLt 13.1.1" in " ".join(text.split())
    assert "| card" not in text
