"""Verifying kinds of problems by the replay: counts, what is caught, resuming, and each kind's draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemmdesc.descriptor import FusedDot, GEMMDesc, OperandCast, Rounding
from gemmdesc.dtypes import DType
from gemmdesc.errors import CampaignError, InvalidInputError
from gemmdesc.library.interface import Library
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.operands import Family, MaskedOperand
from gemmdesc.probe.sampling import WALKED_KINDS
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import ComputeType, dense_problem
from gemmdesc.rule import Rule
from gemmdesc.verification.draws import draws_of
from gemmdesc.verification.kind_campaign import KindOptions, run_kinds
from gemmdesc.verification.kind_draws import KindItem, kind_operands
from gemmdesc.verification.kind_records import KindRecord, kind_counts, kinds_summary
from gemmdesc.verification.kinds import verify_kind
from tests.kind_profiles import bench_of, profile_of, small_scopes
from tests.kind_samples import answer_of, library_of_kinds, rule_of
from tests.probe_samples import DEVICE, IDENTITY

OPTIONS = KindOptions(shapes=6, draws=10)


class Reported:
    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        self.steps += 1


def run(
    bench: Library, names: Sequence[str], folder: Path, options: KindOptions = OPTIONS
) -> tuple[Mapping[str, tuple[KindRecord, ...]], int]:
    report = Reported()
    return run_kinds(InProcess(bench), small_scopes(names), options, folder, {"profile": "x"}, report), report.steps


def test_every_kind_is_equal_where_the_profile_is_right_and_a_session_resumes(tmp_path: Path) -> None:
    bench = bench_of(profile_of(small_scopes(WALKED_KINDS)))
    found, steps = run(bench, WALKED_KINDS, tmp_path)
    assert steps == 6 * len(WALKED_KINDS)
    refused: Counter[str] = Counter()
    for name, records in found.items():
        counts = kind_counts(records)
        assert counts["equal"] + counts["refused"] == counts["shapes"] == 6, (name, counts)
        assert counts["draws"] == 10 * counts["equal"]
        refused[name] += counts["refused"]
    # The library of these tests refuses e5m2 with itself, and nothing else.
    assert all(name.startswith("float8") for name in +refused)
    again, steps = run(bench, WALKED_KINDS, tmp_path)
    assert steps == 0
    assert again == {n: tuple(replace(r, seconds=round(r.seconds, 4)) for r in x) for n, x in found.items()}
    more, steps = run(bench, ["tf32"], tmp_path, replace(OPTIONS, shapes=8))
    assert (len(more["tf32"]), steps) == (8, 2)
    with pytest.raises(CampaignError):
        run(bench, ["tf32"], tmp_path, replace(OPTIONS, draws=3))


def test_shapes_that_need_a_kernel_of_their_own_come_first(tmp_path: Path) -> None:
    bench = bench_of(profile_of(small_scopes(["relu"])))
    done: list[int] = []

    def verify(library: Library, item: KindItem) -> KindRecord | None:
        done.append(item.index)
        return verify_kind(library, item)

    def needs(library: Library, item: KindItem) -> tuple[str, ...]:
        return ("chain", f"tile {item.index // 3}")

    run_kinds(
        InProcess(bench), small_scopes(["relu"]), KindOptions(shapes=7, draws=1), tmp_path, {}, Reported(), verify,
        needs,
    )  # fmt: skip
    assert done == [0, 3, 6, 1, 2, 4, 5]


def test_another_rounding_of_operands_is_caught_and_located(tmp_path: Path) -> None:
    """Ties alone tell these roundings apart; draws that hold them are among the ten."""

    def even(rule: Rule) -> Rule:
        cast = OperandCast(dtype=DType.TFLOAT32, rounding=Rounding.NEAREST_EVEN)
        return rule.restructured(lambda d: replace(d, a_cast=cast, b_cast=cast))

    found, _ = run(bench_of(profile_of(small_scopes(["tf32"]), even)), ["tf32"], tmp_path)
    assert kind_counts(found["tf32"])["different"] == 6
    data = kinds_summary(found)
    assert len(data["mismatches"]) == 6
    located = data["mismatches"][0]["located"]
    assert located["expected_bits"] != located["got_bits"]


def test_declined_failed_varying_and_late_shapes_are_counted_apart(tmp_path: Path) -> None:
    scopes = small_scopes(["bias"])
    half = profile_of({"bias": replace(scopes["bias"], dtypes=(DType.FLOAT16,))})
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of,
        failures=lambda p, x: "CUBLAS_STATUS_EXECUTION_FAILED" if p.k % 3 == 0 else None,
        nondeterministic=lambda p, x: p.k % 3 == 1,
    )  # fmt: skip
    found, _ = run(bench_of(half, library), ["bias"], tmp_path, KindOptions(shapes=30, draws=2))
    counts = kind_counts(found["bias"])
    assert counts["shapes"] == 30
    assert all(counts[name] for name in ("equal", "declined", "nondeterministic", "reference_failed")), counts
    assert counts["different"] == 0
    for record in found["bias"]:
        if record.outcome == "declined":
            assert "bfloat16" in record.types
        elif record.outcome == "equal":
            assert record.problem["k"] % 3 == 2
    reasons = {r["outcome"]: r["reason"] for r in kinds_summary(found)["reasons"]}
    assert reasons["declined"].startswith("no_rule: the profile has no rows for")
    assert reasons["reference_failed"] == "CUBLAS_STATUS_EXECUTION_FAILED"
    late, _ = run(bench_of(half), ["bias"], tmp_path / "late", KindOptions(shapes=2, seconds=-1.0))
    assert late == {"bias": ()}


def test_what_our_side_raises_counts_as_different(tmp_path: Path) -> None:
    """A step whose sum no float64 holds is a descriptor that the replay refuses; other operand types decline."""

    def deep(desc: GEMMDesc) -> GEMMDesc:
        step = desc.accumulator.step
        assert isinstance(step, FusedDot)
        return replace(desc, accumulator=replace(desc.accumulator, step=replace(step, fraction_bits=60)))

    profile = profile_of(small_scopes(["relu"]), lambda rule: rule.restructured(deep))
    found, _ = run(bench_of(profile), ["relu"], tmp_path, KindOptions(shapes=2))
    assert kind_counts(found["relu"])["different"] == 2
    assert found["relu"][0].failure.startswith("our side raised InvalidInputError")


def test_half_of_the_draws_are_wide_and_some_lie_on_ties() -> None:
    problem = replace(dense_problem(16, 8, 40, DType.FLOAT32), compute_type=ComputeType.COMPUTE_32F_FAST_TF32)
    draws = draws_of(10)
    assert sum(d.family is Family.WIDE for d in draws) == 5
    tied = [d for d in draws if isinstance(kind_operands(problem, d, 5)[0], MaskedOperand)]
    assert tied
    assert all(d.family is Family.NORMAL for d in tied)
    low = kind_operands(problem, tied[0], 5)[1].bits(8, 40) & np.uint32(0x1FFF)
    assert set(np.unique(low)) == {0, 0x1000}




def test_a_lost_device_ends_the_session_and_is_recorded(tmp_path: Path) -> None:
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of,
        failures=lambda p, x: "CUDA error: an illegal memory access",
    )  # fmt: skip
    bench = bench_of(profile_of(small_scopes(["relu"])), library)
    with pytest.raises(CampaignError, match="relu/1/0 is recorded"):
        run(bench, ["relu"], tmp_path)
    with pytest.raises(CampaignError, match="relu/1/1 is recorded"):
        run(bench, ["relu"], tmp_path)


def test_only_a_bench_verifies_and_options_are_checked() -> None:
    item = KindItem(name="relu", scope=small_scopes(["relu"])["relu"], seed=1, index=0, draws=1)
    with pytest.raises(InvalidInputError, match=r"^library must be a ReplayBench"):
        verify_kind(library_of_kinds(), item)
    for wrong in ({"shapes": 0}, {"draws": 0}, {"seed": -1}):
        with pytest.raises(InvalidInputError, match=f"^{next(iter(wrong))} must be at least"):
            KindOptions(**wrong)
