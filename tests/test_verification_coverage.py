"""Coverage campaigns without a GPU: which shapes there are, shards, resuming after a kill, counts, and claims."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.descriptor import FusedDot, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import CampaignError, Declined, InvalidInputError
from gemmdesc.library.interface import Library
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe.sampling import LARGEST_FLOPS, LARGEST_OPERAND_BYTES, Regime, Scope
from gemmdesc.probe.workers import InProcess, Task
from gemmdesc.verification.coverage import (
    FAMILIES,
    REGIMES,
    CoverageOptions,
    CoverageTasks,
    Shard,
    chosen_shapes,
    coverage_item,
    family_scope,
    run_coverage,
    usual_shapes,
)
from gemmdesc.verification.coverage_records import covered_from_plain, covered_of, covered_to_plain
from gemmdesc.verification.coverage_rows import Rows
from gemmdesc.verification.coverage_summary import (
    Coverage,
    coverage_claim,
    coverage_counts,
    coverage_summary,
    read_coverage,
)
from gemmdesc.verification.kind_draws import KindItem, problem_of
from gemmdesc.verification.kind_records import KindRecord
from gemmdesc.verification.kinds import verify_kind
from tests.kind_profiles import bench_of, profile_of, small_scopes
from tests.kind_samples import answer_of, rule_of
from tests.probe_samples import DEVICE, IDENTITY
from tests.script_modules import load_script

IDENTITY_OF = {"profile": "x"}
ABOUT = {"command": "gemmdesc verify", "card": "C", "versions": {"torch": "1"}, "date": "2026-12-01"}


def scopes_of(*families: str) -> dict[str, Scope]:
    """Families with shapes that a CPU can do."""
    kinds = [f for f in families if f not in ("float16", "bfloat16")]
    plain = {f: replace(family_scope(f), regimes=(Regime.SMALL,)) for f in families if f not in kinds}
    return plain | small_scopes(kinds)


def cover(
    library: Library, scopes: dict[str, Scope], folder: Path, options: CoverageOptions,
    tasks: CoverageTasks | None = None, rows: Rows | None = None,
) -> tuple[int, Coverage]:  # fmt: skip
    chosen = tasks or CoverageTasks(verify=verify_kind)
    done = run_coverage(
        InProcess(library), scopes, options, folder, IDENTITY_OF, lambda *_: None, chosen, ABOUT, rows
    )  # fmt: skip
    return done, read_coverage([folder])


def instant(library: Library, item: KindItem) -> KindRecord | None:
    """A record without any comparison, as quick as a task can be."""
    p = problem_of(item)
    problem = {"m": p.m, "n": p.n, "k": p.k, "batch_count": p.batch_count}
    return KindRecord(key=item.key, kind=item.name, types="", problem=problem, counts={"equal": 10}, kernel="chain")


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_draws_its_regimes(family: str) -> None:
    scope = family_scope(family)
    sizes = {}
    for regime in REGIMES:
        items = [coverage_item(family, scope, regime, i, seed=1, draws=10) for i in range(60)]
        problems = [problem_of(item) for item in items]
        sizes[regime] = [(p.m, p.n, p.k) for p in problems]
        assert all(p.a_dtype in scope.dtypes for p in problems)
        rounded = "float8" in family
        if not rounded:
            assert max(2 * p.m * p.n * p.k for p in problems) <= LARGEST_FLOPS
            assert max(4 * max(p.m * p.k, p.n * p.k, p.m * p.n) for p in problems) <= LARGEST_OPERAND_BYTES
    step = 16 if rounded else 8
    assert all(x % step == 0 for shape in sizes[Regime.ALIGNED] for x in shape)
    least = 16 if rounded else 1
    assert all(min(m, n) == least for m, n, _ in sizes[Regime.VECTOR])
    assert max(k for _, _, k in sizes[Regime.DEEP]) > 100_000
    assert all(max(m, n) >= 4096 for m, n, _ in sizes[Regime.LONG])
    assert all(max(m, n) <= 128 and k <= 2048 for m, n, k in sizes[Regime.SMALL])
    if not rounded:
        assert {x % 2 for shape in sizes[Regime.UNROUNDED] for x in shape} == {0, 1}


def test_families_and_regimes_share_no_sizes_and_no_operands() -> None:
    items = [
        coverage_item(f, family_scope(f), r, i, seed=1, draws=1)
        for f in ("float16", "bfloat16", "bias") for r in (Regime.UNROUNDED, Regime.LONG) for i in range(50)
    ]  # fmt: skip
    shapes = {(p.m, p.n, p.k) for p in map(problem_of, items)}
    assert len(shapes) == len(items)
    assert len({item.seed for item in items}) == 6
    again = coverage_item("bias", family_scope("bias"), Regime.LONG, 49, seed=1, draws=1)
    assert problem_of(again) == problem_of(items[-1])
    assert again.seed != coverage_item("bias", family_scope("bias"), Regime.LONG, 49, seed=2, draws=1).seed


def test_usual_numbers_reach_the_bars() -> None:
    shapes = chosen_shapes(["all"])
    assert tuple(shapes) == FAMILIES
    assert shapes["float16"] >= 110_813
    assert shapes["bfloat16"] >= 50_000
    # Three in ten of the 8-bit ones are refused.
    assert 0.7 * (shapes["float8"] + shapes["float8_fast"]) >= 42_793
    assert min(shapes["float32"], shapes["tf32"], shapes["batch"]) >= 10_000
    assert min(shapes.values()) >= 1500
    assert sum(v for f, v in shapes.items() if "bias" in f or "relu" in f or "add" in f or "gelu" in f) >= 10_000


def test_families_as_given() -> None:
    assert chosen_shapes(["tf32=7", "float16"]) == {"float16": usual_shapes("float16"), "tf32": 7}
    assert chosen_shapes(["all", "tf32=7"])["tf32"] == 7
    for wrong in ("float17", "tf32=x", "tf32=0", "plain"):
        with pytest.raises(InvalidInputError, match=r"^(family|shapes of tf32) must"):
            chosen_shapes([wrong])
    for options in ({"draws": 0}, {"seed": -1}, {"regimes": (Regime.DEEP_ALIGNED,)}):
        with pytest.raises(InvalidInputError, match=r"must be"):
            CoverageOptions(shapes={}, **options)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_partition_the_indices_and_each_holds_both_orders(count: int) -> None:
    shards = [Shard.parse(f"{i}/{count}") for i in range(count)]
    for index in range(200):
        assert sum(index in shard for shard in shards) == 1
    for shard in shards:
        assert {i % 2 for i in range(2 * count) if i in shard} == {0, 1}
    for wrong in ("2/2", "1", "a/b", "-1/2", "0/0"):
        with pytest.raises(InvalidInputError, match=r"^shard must"):
            Shard.parse(wrong)


# --- campaigns on a simulated library ---------------------------------------------------------------------------------


def test_families_are_equal_where_the_profile_is_right_and_shards_add_up(tmp_path: Path) -> None:
    families = ("float16", "float32", "tf32", "float8", "batch", "relu_bias", "add_beta_c")
    scopes = scopes_of(*families)
    bench = bench_of(profile_of(scopes))
    shapes = dict.fromkeys(families, 9)
    for i in range(2):
        options = CoverageOptions(shapes=shapes, draws=3, shard=Shard(number=i, count=2))
        cover(bench, scopes, tmp_path / str(i), options)
    _, whole = cover(bench, scopes, tmp_path / "all", CoverageOptions(shapes=shapes, draws=3))
    parts = read_coverage([tmp_path / "0", tmp_path / "1"])
    assert {k: [(c.index, c.sizes, c.outcome) for c in v] for k, v in parts.covered.items()} == {
        k: [(c.index, c.sizes, c.outcome) for c in v] for k, v in whole.covered.items()
    }
    data = coverage_summary(parts)
    assert data["total"]["shapes"] + data["total"]["refused"] == 9 * len(families)
    assert data["total"]["equal"] == data["total"]["shapes"] == data["total"]["replayed"]
    assert data["total"]["draws"] == 3 * data["total"]["equal"]
    # The library of these tests refuses e5m2 with itself.
    assert data["total"]["refused"] == data["by_family"]["float8"]["refused"] > 0
    assert list(data["by_regime"]) == ["small"]
    assert data["mismatches"] == []
    # A shape that two folders hold counts once.
    both = read_coverage([tmp_path / "all", tmp_path / "0"])
    assert coverage_summary(both)["total"] == data["total"]


def test_a_session_goes_on_where_the_records_end(tmp_path: Path) -> None:
    scopes = scopes_of("float16", "tf32")
    bench = bench_of(profile_of(scopes))
    options = CoverageOptions(shapes={"float16": 8, "tf32": 4}, draws=1)
    late, found = cover(bench, scopes, tmp_path, replace(options, seconds=-1.0))
    assert (late, found.covered) == (0, {})
    first, _ = cover(bench, scopes, tmp_path, replace(options, shapes={"float16": 4, "tf32": 2}))
    more, found = cover(bench, scopes, tmp_path, options)
    assert (first, more) == (6, 6)
    assert {k: [c.index for c in v] for k, v in found.covered.items()} == {
        ("float16", "small"): list(range(8)), ("tf32", "small"): list(range(4)),
    }  # fmt: skip
    assert cover(bench, scopes, tmp_path, options)[0] == 0
    with pytest.raises(CampaignError, match=r"^folder must hold this campaign"):
        cover(bench, scopes, tmp_path, replace(options, draws=2))


def test_families_progress_in_proportion(tmp_path: Path) -> None:
    done: list[str] = []

    def verify(library: Library, item: KindItem) -> KindRecord | None:
        done.append(item.name)
        return instant(library, item)

    options = CoverageOptions(shapes={"float16": 600, "tf32": 60})
    scopes = {name: family_scope(name) for name in options.shapes}
    cover(bench_of(profile_of({})), scopes, tmp_path, options, CoverageTasks(verify=verify))
    half = Counter(done[: len(done) // 2])
    assert set(half) == {f"{f}/{r.value}" for f in options.shapes for r in REGIMES}
    assert all(half[f"float16/{r.value}"] == 50 and half[f"tf32/{r.value}"] == 5 for r in REGIMES)


def test_one_regime_alone_and_more_later(tmp_path: Path) -> None:
    scopes = {"float16": family_scope("float16")}
    bench, tasks = bench_of(profile_of({})), CoverageTasks(verify=instant)
    options = CoverageOptions(shapes={"float16": 60})
    alone, found = cover(bench, scopes, tmp_path, replace(options, regimes=(Regime.UNROUNDED,)), tasks)
    assert (alone, list(found.covered)) == (10, [("float16", "unrounded")])
    assert cover(bench, scopes, tmp_path, options, tasks)[0] == 50
    sessions = coverage_summary(read_coverage([tmp_path]))["sessions"]
    assert (sessions[0]["regimes"], sessions[0]["shapes"]) == ("unrounded", 10)
    assert sessions[0]["shapes_a_second"] > 0 or sessions[0]["seconds"] == 0


KILLED = """
import sys, time
from pathlib import Path
from gemmdesc.probe.workers import InProcess
from gemmdesc.verification.coverage import CoverageOptions, CoverageTasks, family_scope, run_coverage
from tests.test_verification_coverage import ABOUT, IDENTITY_OF, instant

def slow(library, item):
    time.sleep(0.005)
    return instant(library, item)

run_coverage(
    InProcess(None), {"float16": family_scope("float16")}, CoverageOptions(shapes={"float16": 100000}),
    Path(sys.argv[1]), IDENTITY_OF, lambda *_: None, CoverageTasks(verify=slow), ABOUT,
)
"""


def test_what_is_written_outlives_a_kill_and_the_rest_follows(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parent.parent)
    path = tmp_path / "float16" / "unrounded.jsonl"
    end = time.monotonic() + 120
    while not (path.is_file() and path.read_bytes().count(b"\n") >= 5):
        assert child.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    # As a kill in the middle of a write leaves it.
    with path.open("a") as file:
        file.write('{"i":99,"mnk":[1,2')
    before = read_coverage([tmp_path]).of("float16", "unrounded")
    assert len(before) >= 5
    options = CoverageOptions(shapes={"float16": 300})
    _, found = cover(
        bench_of(profile_of({})), {"float16": family_scope("float16")}, tmp_path, options,
        CoverageTasks(verify=instant),
    )  # fmt: skip
    after = found.of("float16", "unrounded")
    assert [c.index for c in after][:50] == list(range(50))
    assert set(before) <= set(after)
    lines = path.read_text().splitlines()
    assert len({json.loads(line)["i"] for line in lines}) == len(lines)


def test_a_shape_that_ends_a_session_comes_last_from_then_on(tmp_path: Path) -> None:
    done: list[int] = []

    def verify(library: Library, item: KindItem) -> KindRecord | None:
        if item.index == 1 and item.name.endswith("unrounded"):
            raise KeyboardInterrupt
        if item.name.endswith("unrounded"):
            done.append(item.index)
        return instant(library, item)

    options, scopes = CoverageOptions(shapes={"float16": 36}), {"float16": family_scope("float16")}
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            cover(bench_of(profile_of({})), scopes, tmp_path, options, CoverageTasks(verify=verify))
    # The first session met it in its place, the others when all else was done.
    assert done == [0, 2, 3, 4, 5]
    assert not list((tmp_path / "float16").glob("*.key"))
    _, found = cover(bench_of(profile_of({})), scopes, tmp_path, options, CoverageTasks(verify=instant))
    assert len(found.of("float16")) == 36
    assert not list((tmp_path / "marks").iterdir())


def test_a_wrong_rule_is_counted_different_in_full(tmp_path: Path) -> None:
    def coarse(desc: GEMMDesc) -> GEMMDesc:
        step = desc.accumulator.step
        assert isinstance(step, FusedDot)
        return replace(desc, accumulator=replace(desc.accumulator, step=replace(step, fraction_bits=8)))

    scopes = scopes_of("relu", "float16")
    bench = bench_of(profile_of(scopes, lambda rule: rule.restructured(coarse)))
    _, found = cover(bench, scopes, tmp_path, CoverageOptions(shapes={"relu": 4, "float16": 4}, draws=4))
    data = coverage_summary(found)
    assert data["total"]["different"] == data["total"]["shapes"] == 8
    assert data["total"]["draws"] == 32
    shown = data["mismatches"][0]
    assert shown["located"]["expected_bits"] != shown["located"]["got_bits"]
    assert shown["problem"]["m"] == shown["sizes"][0]
    assert shown["shape"].split("/")[1] == "small"


def test_declined_failed_and_varying_shapes_are_counted_apart(tmp_path: Path) -> None:
    scopes = scopes_of("bias")
    half = profile_of({"bias": replace(scopes["bias"], dtypes=(DType.FLOAT16,))})
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of,
        failures=lambda p, x: "CUBLAS_STATUS_EXECUTION_FAILED" if p.k % 3 == 0 else None,
        nondeterministic=lambda p, x: p.k % 3 == 1,
    )  # fmt: skip
    _, found = cover(bench_of(half, library), scopes, tmp_path, CoverageOptions(shapes={"bias": 40}, draws=2))
    counts = coverage_summary(found)["total"]
    outcomes = ("equal", "declined", "nondeterministic", "reference_failed")
    assert all(counts[name] for name in outcomes), counts
    assert sum(counts[name] for name in outcomes) == counts["shapes"] == 40
    assert counts["different"] == 0
    reasons = {r["outcome"]: r for r in coverage_summary(found)["reasons"]}
    assert reasons["declined"]["code"] == "no_rule"
    assert reasons["declined"]["shapes"] <= counts["declined"]
    assert reasons["reference_failed"]["reason"] == "CUBLAS_STATUS_EXECUTION_FAILED"


def test_a_lost_device_is_recorded_and_ends_the_session(tmp_path: Path) -> None:
    scopes = scopes_of("relu")
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of,
        failures=lambda p, x: "CUDA error: an illegal memory access",
    )  # fmt: skip
    bench = bench_of(profile_of(scopes), library)
    for count in (1, 2):
        with pytest.raises(CampaignError, match=r"is recorded, run again"):
            cover(bench, scopes, tmp_path, CoverageOptions(shapes={"relu": 5}, draws=1))
        assert len(read_coverage([tmp_path]).of("relu")) == count


class Counting(InProcess):
    """Notes the order in which tasks are run."""

    def __init__(self) -> None:
        super().__init__(bench_of(profile_of({})))
        self.ran: list[tuple[str, int]] = []

    def run(self, task: Task, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        self.ran.append((getattr(task, "verify", task).__name__, len(items)))
        yield from super().run(task, items)


def test_kernels_are_compiled_once_and_before_all_else(tmp_path: Path) -> None:
    compiled: list[int] = []

    def needs(library: Library, item: KindItem) -> tuple[str, ...]:
        return ("chain", f"tile {item.index // 4}")

    def build(library: Library, item: KindItem) -> None:
        compiled.append(item.index)

    workers = Counting()
    options = CoverageOptions(shapes={"float16": 60})
    run_coverage(
        workers, {"float16": family_scope("float16")}, options, tmp_path, {}, lambda *_: None,
        CoverageTasks(verify=instant, needs=needs, compile=build), ABOUT,
    )  # fmt: skip
    assert [name for name, _ in workers.ran] == ["needs", "build", "instant"]
    assert sorted(i // 4 for i in compiled) == [0, 1, 2]


# --- records and claims -----------------------------------------------------------------------------------------------


def record(**changes: Any) -> KindRecord:
    problem = {"m": 3, "n": 4, "k": 5, "batch_count": 1}
    values = {"key": "k", "kind": "f", "types": "", "problem": problem, "counts": {"equal": 10}, "kernel": "chain"}
    return KindRecord(**(values | changes))


CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "equal"),
    ({"counts": {}, "refused": "CUBLAS_STATUS_NOT_SUPPORTED", "kernel": ""}, "refused"),
    ({"counts": {}, "declined": Declined(code="no_rule", reason="none for 12"), "kernel": ""}, "declined"),
    ({"counts": {}, "declined": Declined(code="nondeterministic", reason="v"), "kernel": ""}, "nondeterministic"),
    ({"counts": {"equal": 9, "different": 1}, "located": {"row": 1}}, "different"),
    ({"counts": {"equal": 9, "nondeterministic": 1}}, "nondeterministic"),
    ({"counts": {"reference_failed": 10}, "failure": "out of memory"}, "reference_failed"),
]


@pytest.mark.parametrize(("changes", "outcome"), CASES)
def test_records_are_short_and_read_back(changes: dict[str, Any], outcome: str) -> None:
    made = covered_of(record(seconds=0.0123, **changes), 7)
    assert made.outcome == outcome
    plain = covered_to_plain(made)
    assert covered_from_plain(json.loads(json.dumps(plain))) == made
    assert ("detail" in plain) is bool(made.draws)
    if outcome == "equal":
        assert plain == {"i": 7, "mnk": [3, 4, 5], "by": "chain", "ms": 12}
    with pytest.raises(CampaignError, match=r"^record must"):
        covered_from_plain({"i": 1})


def test_counts_keep_refused_ones_out_of_shapes() -> None:
    counts = coverage_counts([covered_of(record(**changes), i) for i, (changes, _) in enumerate(CASES)], 10)
    assert counts == {
        "shapes": 6, "draws": 40, "equal": 1, "different": 1, "declined": 1, "nondeterministic": 2,
        "reference_failed": 1, "refused": 1, "replayed": 0,
    }  # fmt: skip


def test_two_hundred_and_thirty_thousand_records_fit_in_ten_megabytes(tmp_path: Path) -> None:
    """By the size of a sample; times and kernels vary as on a card."""
    number, lines = 3000, []
    for i, regime in zip(range(number), (r for _ in iter(int, 1) for r in REGIMES), strict=False):
        item = coverage_item("float16", family_scope("float16"), regime, i, seed=1, draws=10)
        made = instant(None, item)  # type: ignore[arg-type]
        assert made is not None
        kernel = ("chain_tma", "grouped_chain", "merged_pointer", "scalar_nest")[hash((i, 7)) % 4]
        made = replace(made, kernel=kernel, seconds=(i * 7919 % 900) / 1000)
        # As many rows as a family has, of digits that tell nothing.
        row = hashlib.sha256(str(hash((i, 3)) % 300).encode()).hexdigest()[:12]
        lines.append(json.dumps(covered_to_plain(covered_of(made, i, row)), separators=(",", ":")))
    packed = len(lzma.compress("\n".join(lines).encode()))
    assert packed / number * 230_000 < 10e6 / 2


def test_a_claim_has_what_results_files_need(tmp_path: Path) -> None:
    scopes = scopes_of("float16", "float8")
    options = CoverageOptions(shapes={"float16": 6, "float8": 6}, draws=1)
    cover(bench_of(profile_of(scopes)), scopes, tmp_path / "a", options)
    claim = coverage_claim(read_coverage([tmp_path / "a"]), "covered")
    assert {"claim", "command", "card", "versions", "date", "counts", "sessions"} <= set(claim)
    assert list(claim["counts"]) == ["float16", "float8", "all"]
    out = tmp_path / "coverage.json"
    out.write_text(json.dumps({"claims": [{"claim": "other"}]}))
    script = load_script("make_coverage_claims")
    for _ in range(2):
        assert script.main([str(tmp_path / "a"), "--out", str(out)]) == 0
    texts = [c["claim"] for c in json.loads(out.read_text())["claims"]]
    assert texts == ["other", script.CLAIM]
    assert script.main([str(tmp_path), "--out", str(out)]) == 2
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "coverage.json").write_text(json.dumps({"claims": [claim]}))
    page = load_script("make_results_md").render(tmp_path / "docs")
    assert "| float8 |" in page


def test_only_shards_of_one_campaign_are_read_together(tmp_path: Path) -> None:
    scopes = scopes_of("float16")
    bench = bench_of(profile_of(scopes))
    for name, draws in (("a", 1), ("b", 2)):
        cover(bench, scopes, tmp_path / name, CoverageOptions(shapes={"float16": 1}, draws=draws))
    with pytest.raises(CampaignError, match=r"^folders must hold shards of one campaign"):
        read_coverage([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(CampaignError, match=r"^folder must hold a coverage campaign"):
        read_coverage([tmp_path / "a" / "float16"])
