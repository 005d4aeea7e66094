"""Answers kept on disk: what a new process takes from them, full keys, several writers, files that are not whole."""

from __future__ import annotations

import json
import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.plain import problem_from_plain
from gemmdesc.plan import (
    CaptureError,
    Plan,
    Planner,
    SavedAnswers,
    SavedAnswersWarning,
    SavedKey,
    saved,
    saved_folder,
)
from gemmdesc.plan.saved import relevant_variables
from gemmdesc.plan.saved_file import UnusableFileError, read_entries, write_entries
from gemmdesc.problem import AlgoConfig, LibraryVersion, Refused, dense_problem
from gemmdesc.profiles import profile_digest
from gemmdesc.text import parse_descriptor
from tests.profile_samples import DEVICE, LIBRARY, sample_answer, sample_profile
from tests.test_plan import GRID, SETTINGS, Counted, call, grid_profile, made, matrix

KEY = SavedKey(device=DEVICE, library=LIBRARY, profile_digest="d1", gemmdesc="0.1.0", torch="2.11.0")


def planner_of(counted: Counted, folder: Path, profile: Any = None, **changes: Any) -> Planner:
    """A planner as of a new process: it knows who answers, and opens nothing."""
    found = sample_profile() if profile is None else profile
    key = replace(KEY, **changes)

    def open_saved(device: Any, library: Any, digest: str) -> SavedAnswers:
        return SavedAnswers(folder, replace(key, profile_digest=digest))

    return Planner(
        counted.open, lambda device, library: found, identity=(DEVICE, LIBRARY), saved=open_saved
    )


def info(planner: Planner) -> Any:
    assert planner.saved is not None
    return planner.saved.info()


def test_a_new_process_asks_nothing_again(tmp_path: Path) -> None:
    first, second = Counted(), Counted()
    planner = planner_of(first, tmp_path)
    plans = [made(planner.plan_mm(*call(m), SETTINGS)) for m in (256, 300, 300)]
    assert (first.asked, info(planner).asked, info(planner).found) == (2, 2, 0)
    planner.close()
    later = planner_of(second, tmp_path)
    assert [made(later.plan_mm(*call(m), SETTINGS)) for m in (256, 300, 300)] == plans
    assert (second.opened, second.asked) == (0, 0)
    assert (info(later).loaded, info(later).found, info(later).asked, info(later).ignored) == (2, 2, 0, ())
    # Nor does a capture, which could open no handle.
    assert made(later.plan_mm(*call(), SETTINGS, captured=True)).answer == plans[0].answer
    with pytest.raises(CaptureError, match="library handle to spare"):
        later.plan_mm(*call(77), SETTINGS, captured=True)


def test_what_is_planned_soon_after_a_save_is_written_at_the_end(tmp_path: Path) -> None:
    planner = planner_of(Counted(), tmp_path)
    for m in range(20, 30):
        planner.plan_mm(*call(m), SETTINGS)
    assert info(planner).saves <= 2
    path = Path(info(planner).path)
    del planner
    assert len(read_entries(path, replace(KEY, profile_digest=profile_digest(sample_profile())).to_plain())) == 10


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda t: (replace(t[0], alignment_bytes=2), *t[1:]), "alignment of a"),
        (lambda t: (t[0], replace(t[1], alignment_bytes=128), t[2]), "alignment of b"),
        (lambda t: (*t[:2], replace(t[2], alignment_bytes=16)), "alignment of out"),
        (lambda t: (replace(t[0], strides=(6840, 1)), *t[1:]), "pitch"),
        (lambda t: (t[0], matrix(6832, 512, by_columns=True), t[2]), "layout"),
        (lambda t: (*t[:2], replace(t[2], dtype=DType.FLOAT32)), "result"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call_that_differs_in_one_thing_is_asked(change: Callable[[Any], Any], differs: str, tmp_path: Path) -> None:
    planner_of(Counted(), tmp_path).plan_mm(*call(), SETTINGS)
    later = Counted()
    planner = planner_of(later, tmp_path)
    planner.plan_mm(*change(call()), SETTINGS)
    assert later.asked == 1
    planner.plan_mm(*call(), SETTINGS)
    assert later.asked == 1


@pytest.mark.parametrize(
    "settings",
    [TorchSettings(workspace_bytes=8 << 20), TorchSettings(allow_fp16_reduced_precision_reduction=False)],
)
def test_settings_that_move_the_problem_are_in_its_key(settings: TorchSettings, tmp_path: Path) -> None:
    planner_of(Counted(), tmp_path).plan_mm(*call(), SETTINGS)
    later = Counted()
    planner_of(later, tmp_path).plan_mm(*call(), settings)
    assert later.asked == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"device": replace(DEVICE, sm_count=114)},
        {"device": replace(DEVICE, mig=True)},
        {"device": replace(DEVICE, driver="581.0")},
        {"environment": ("CUBLASLT_HEURISTICS_CACHE_CAPACITY=0",)},
        {"library": replace(LIBRARY, version=LibraryVersion(major=13, minor=2, patch=0))},
        {"library": replace(LIBRARY, build_id="ff00")},
        {"library": replace(LIBRARY, build_id="", sha256="ee")},
        {"gemmdesc": "0.2.0"},
        {"torch": "2.12.0"},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_every_part_of_the_key_has_a_file_of_its_own(changes: dict[str, Any], tmp_path: Path) -> None:
    planner_of(Counted(), tmp_path).plan_mm(*call(), SETTINGS)
    later = Counted()
    planner = planner_of(later, tmp_path, **changes)
    planner.plan_mm(*call(), SETTINGS)
    assert (later.asked, info(planner).loaded) == (1, 0)
    assert len(list(tmp_path.glob("*/*.json"))) == 2


def test_variables_that_cublas_reads_are_part_of_the_key() -> None:
    environment = {
        "CUBLAS_EMULATION_STRATEGY": "eager", "PATH": "/bin", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "A": "CUBLAS",
        "NVIDIA_TF32_OVERRIDE": "0",
    }  # fmt: skip
    assert relevant_variables(environment) == (
        "CUBLAS_EMULATION_STRATEGY=eager", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "NVIDIA_TF32_OVERRIDE=0",
    )  # fmt: skip


def test_another_profile_has_a_file_of_its_own(tmp_path: Path) -> None:
    planner_of(Counted(), tmp_path).plan_mm(*call(), SETTINGS)
    profile = sample_profile()
    other = replace(profile, rows=profile.rows[:-1])
    later = Counted()
    planner = planner_of(later, tmp_path, other)
    planner.plan_mm(*call(), SETTINGS)
    assert (later.asked, info(planner).loaded) == (1, 0)


def test_refusals_declines_and_launches_are_kept(tmp_path: Path) -> None:
    first = Counted(answers=lambda problem: Refused(status="CUBLAS_STATUS_NOT_SUPPORTED"))
    refused = planner_of(first, tmp_path / "a").plan_mm(*call(), SETTINGS)
    later = Counted()
    again = planner_of(later, tmp_path / "a").plan_mm(*call(), SETTINGS)
    assert isinstance(refused, Declined)
    assert (again, later.opened) == (refused, 0)

    unknown = Counted(answers=lambda problem: sample_answer(algo_id=9999))
    declined = planner_of(unknown, tmp_path / "b").plan_mm(*call(), SETTINGS)
    later = Counted()
    assert isinstance(declined, Declined)
    assert (planner_of(later, tmp_path / "b").plan_mm(*call(), SETTINGS), later.opened) == (declined, 0)

    launching = Counted(launches=lambda problem, answer: GRID)
    plan = made(planner_of(launching, tmp_path / "c", grid_profile()).plan_mm(*call(), SETTINGS))
    later = Counted()
    kept = made(planner_of(later, tmp_path / "c", grid_profile()).plan_mm(*call(), SETTINGS, captured=True))
    assert (kept.launch, kept.answer, kept.answer.opaque, later.opened) == (GRID, plan.answer, plan.answer.opaque, 0)


def test_an_answer_whose_order_is_not_its_profiles_is_asked_again(tmp_path: Path) -> None:
    planner = planner_of(Counted(), tmp_path)
    plan = made(planner.plan_mm(*call(), SETTINGS))
    path, key = Path(info(planner).path), replace(KEY, profile_digest=profile_digest(sample_profile())).to_plain()
    entries = read_entries(path, key)
    (entry,) = entries.values()
    entry[2] = [text.replace("256", "512") for text in entry[2]]
    write_entries(path, key, entries)
    later = Counted()
    planner = planner_of(later, tmp_path)
    with pytest.warns(SavedAnswersWarning, match="holds orders that its profile does not give"):
        again = made(planner.plan_mm(*call(), SETTINGS))
    assert (again, later.asked) == (plan, 1)
    assert (info(planner).found, info(planner).asked, len(info(planner).ignored)) == (0, 1, 1)
    planner.close()
    last = Counted()
    assert made(planner_of(last, tmp_path).plan_mm(*call(), SETTINGS)) == plan
    assert last.asked == 0


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda content: content[:-7], "is not whole"),
    "half": (lambda content: content[: len(content) // 2], "is no file of answers|is not whole"),
    "empty": (lambda content: b"", "is no file of answers"),
    "no JSON": (lambda content: b"PAR1" * 40, "is no file of answers"),
    "a bit": (lambda content: content[:-20] + bytes([content[-20] ^ 1]) + content[-19:], "is not whole"),
    "another's": (lambda content: content.replace(b'"sm_90"', b'"sm_80"', 1), "is of another key"),
    "another format": (lambda content: content.replace(b'"format":1', b'"format":2', 1), "is of another key"),
    "another list": (lambda content: b'[1]\n' + content.partition(b"\n")[2], "is no file of answers"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_used_is_told_and_replaced(damage: str, tmp_path: Path) -> None:
    planner = planner_of(Counted(), tmp_path)
    plan = made(planner.plan_mm(*call(), SETTINGS))
    path = Path(info(planner).path)
    change, words = DAMAGES[damage]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UnusableFileError, match=words):
        read_entries(path, replace(KEY, profile_digest=profile_digest(sample_profile())).to_plain())
    later = Counted()
    with pytest.warns(SavedAnswersWarning, match=words):
        planner = planner_of(later, tmp_path)
    assert len(info(planner).ignored) == 1
    with warnings.catch_warnings(action="ignore"):
        assert made(planner.plan_mm(*call(), SETTINGS)) == plan
        planner.close()
    assert later.asked == 1
    last = Counted()
    assert made(planner_of(last, tmp_path).plan_mm(*call(), SETTINGS)) == plan
    assert last.asked == 0


def test_a_malformed_entry_is_told_and_replaced(tmp_path: Path) -> None:
    planner = planner_of(Counted(), tmp_path)
    plan = made(planner.plan_mm(*call(), SETTINGS))
    path, key = Path(info(planner).path), replace(KEY, profile_digest=profile_digest(sample_profile())).to_plain()
    (text,) = read_entries(path, key)
    for entry in ([[1, 2, 3], None, None], [["66"] * 11, None, None], ["x"], [{"status": 1}, None, None]):
        write_entries(path, key, {text: entry})  # type: ignore[dict-item]
        later = Counted()
        planner = planner_of(later, tmp_path)
        with pytest.warns(SavedAnswersWarning, match="holds a malformed entry"):
            assert made(planner.plan_mm(*call(), SETTINGS)) == plan
        assert later.asked == 1


def test_a_place_that_cannot_be_written_is_told_and_planning_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("not a folder")
    with pytest.warns(SavedAnswersWarning, match="cannot be read"):
        planner = planner_of(Counted(), folder)
    with pytest.warns(SavedAnswersWarning, match="cannot be written"):
        plan = planner.plan_mm(*call(), SETTINGS)
    assert isinstance(plan, Plan)
    with warnings.catch_warnings(action="error"):
        planner.close()
    assert len(info(planner).ignored) == 2


def writer(folder: str, first: int, ready: Any) -> None:
    """One process of several: plans 40 products and saves after each."""
    planner = planner_of(Counted(), Path(folder))
    ready.wait()
    for m in range(first, first + 40):
        planner.plan_mm(*call(m), SETTINGS)
        assert planner.saved is not None
        planner.saved.save()


def test_processes_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(3)
    workers = [context.Process(target=writer, args=(str(tmp_path), 1000 * (i + 1), ready)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    later = Counted()
    planner = planner_of(later, tmp_path)
    assert info(planner).loaded == 120
    for first in (1000, 2000, 3000):
        for m in range(first, first + 40):
            assert isinstance(planner.plan_mm(*call(m), SETTINGS), Plan)
    assert later.opened == 0
    assert not list(tmp_path.glob("*/*.part"))


def test_files_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "MOST_SAVED", 5)
    held = SavedAnswers(tmp_path, KEY)
    problems = [dense_problem(8 + i, 8, 8, DType.FLOAT16) for i in range(9)]
    for problem in problems:
        held.add(problem, sample_answer(), None, None)
        held.save()
    again = SavedAnswers(tmp_path, KEY)
    assert [again.find(p) is not None for p in problems] == [False] * 4 + [True] * 5


def test_clearing_removes_the_file_and_what_was_read(tmp_path: Path) -> None:
    planner = planner_of(Counted(), tmp_path)
    planner.plan_mm(*call(), SETTINGS)
    assert planner.saved is not None
    planner.saved.clear()
    assert not list(tmp_path.glob("*/*.json"))
    planner.reload()
    planner.plan_mm(*call(), SETTINGS)
    assert info(planner).asked == 1


def test_the_environment_names_the_folder_or_turns_it_off(tmp_path: Path) -> None:
    assert saved_folder({"GEMMDESC_SAVED_PLANS": str(tmp_path)}) == tmp_path
    for word in ("off", "OFF", "0", "no", "false"):
        assert saved_folder({"GEMMDESC_SAVED_PLANS": word}) is None
    usual = saved_folder({})
    assert usual is not None
    assert usual.name == "plans"
    assert "gemmdesc" in str(usual)


def test_default_planners_follow_the_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmdesc.ops import clear_saved_plans, default_planner, defaults, reset_default_planners, use_saved_plans

    monkeypatch.setenv("GEMMDESC_SAVED_PLANS", str(tmp_path))
    counted = Counted()

    def planner_for(index: int, profiles: Any, *, accept: Any, saved: Path | None, tables: bool) -> Planner:
        if saved is None:
            return Planner(counted.open, lambda device, library: sample_profile(), device_index=index)
        return planner_of(counted, saved)

    monkeypatch.setattr(defaults, "planner_for", planner_for)
    reset_default_planners()
    try:
        default_planner(0).plan_mm(*call(), SETTINGS)
        assert default_planner(0) is defaults.known_planner(0)
        use_saved_plans(False)
        assert defaults.known_planner(0) is None
        assert default_planner(0).saved is None
        default_planner(0).plan_mm(*call(), SETTINGS)
        assert counted.asked == 2
        use_saved_plans(True)
        default_planner(0).plan_mm(*call(), SETTINGS)
        assert counted.asked == 2
        assert clear_saved_plans() == 1
        assert clear_saved_plans() == 0
        reset_default_planners()
        default_planner(0).plan_mm(*call(), SETTINGS)
        assert counted.asked == 3
    finally:
        use_saved_plans(True)


def test_a_saved_file_is_text_that_says_what_it_is_of(tmp_path: Path) -> None:
    planner = planner_of(Counted(), tmp_path)
    plan = made(planner.plan_mm(*call(), SETTINGS))
    head, _, body = Path(info(planner).path).read_text().partition("\n")
    told = json.loads(head)["key"]
    assert (told["sm"], told["sm_count"], told["library"], told["library_digest"]) == ("sm_90", 132, "13.1.0", "ab12")
    ((text, (answer, launch, orders)),) = json.loads(body).items()
    problem = dict(zip(told["problem"], json.loads(text), strict=True))
    assert problem_from_plain(problem) == plan.problem
    assert AlgoConfig(**dict(zip(told["answer"], answer, strict=True))) == plan.answer
    assert launch is None
    *bounds, descriptor = orders[0].split(" ", 4)
    assert tuple(map(int, bounds)) == plan.regions[0].bounds
    assert parse_descriptor(descriptor) == plan.descriptor
