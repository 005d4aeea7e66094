"""Planning without a GPU: every decline, the cache and its key, threads, and what is said about a plan."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from enum import Enum
from threading import Barrier
from typing import Any

import pytest

from gemmdesc.arithmetic.models import load_models
from gemmdesc.descriptor import FusedDot, GEMMDesc, Rounding
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, GemmdescError, InvalidInputError
from gemmdesc.expressions import Const, Var
from gemmdesc.kernels.card import CardArithmetic, MatrixStep
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.kmajor import KMajorChoice
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.structure import Structure
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.plan import (
    CaptureError,
    Decision,
    Explanation,
    MmCall,
    Plan,
    PlanKey,
    Planner,
    ProblemCall,
    architecture_of,
    card_arithmetic,
    decide,
    explain_outcome,
    in_words,
    kernel_family,
    mm_meta,
    needed_variants,
    needs_launch,
    realised,
    zero_exponent_shows,
)
from gemmdesc.problem import (
    AlgoConfig,
    DeviceId,
    GemmProblem,
    KernelNode,
    Launch,
    LibraryId,
    LibraryVersion,
    Refused,
    Transpose,
    dense_problem,
)
from gemmdesc.profiles import Level, Profile, RuleOutcome, family_of, index_profile
from gemmdesc.routes import TensorMeta, route_mm
from gemmdesc.rule import Rule, make_rule, parse_rule
from gemmdesc.tuning.card import kernel_descriptor
from tests.kmajor_samples import E4M3, float8
from tests.profile_samples import (
    DECLINE,
    DEVICE,
    LIBRARY,
    sample_answer,
    sample_profile,
    sample_row,
    sample_rule,
)

FP16, BF16, FP32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
SETTINGS = TorchSettings()
SHARED = 227 * 1024
NO_PROFILE = Declined(code="no_profile", reason="no profile for this card")


def matrix(rows: int, columns: int, dtype: DType = FP16, *, by_columns: bool = False) -> TensorMeta:
    strides = (1, rows) if by_columns else (columns, 1)
    return TensorMeta(shape=(rows, columns), strides=strides, dtype=dtype)


def call(m: int = 256, n: int = 512, k: int = 6832, dtype: DType = FP16) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    return matrix(m, k, dtype), matrix(k, n, dtype), matrix(m, n, dtype)


@dataclass(eq=False)
class Counted:
    """A simulated library whose heuristic counts its calls; ``answers`` maps a problem to its answer."""

    answers: Callable[[GemmProblem], AlgoConfig | Refused] = lambda problem: sample_answer()
    launches: Callable[[GemmProblem, AlgoConfig], Launch | None] | None = None
    opened: int = 0
    asked: int = 0

    def open(self) -> SimulatedLibrary:
        self.opened += 1
        return SimulatedLibrary(
            identity=LIBRARY, device=DEVICE, heuristic=self.answer, rules={}, launches=self.launches
        )

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        self.asked += 1
        return self.answers(problem)


def planner_of(
    counted: Counted, profile: Profile | Declined | None = None, *, capacity: int = 64, accept: Level = Level.VERIFIED
) -> Planner:
    found = sample_profile() if profile is None else profile
    return Planner(counted.open, lambda device, library: found, capacity=capacity, accept=accept)


def planned(profile: Profile | Declined | None = None, answer: AlgoConfig | Refused | None = None) -> Plan | Declined:
    counted = Counted() if answer is None else Counted(answers=lambda problem: answer)
    return planner_of(counted, profile).plan_mm(*call(), SETTINGS)


def declined(outcome: Plan | Declined) -> Declined:
    assert isinstance(outcome, Declined)
    return outcome


def made(outcome: Plan | Declined) -> Plan:
    assert isinstance(outcome, Plan), outcome
    return outcome


def test_a_plan_holds_everything_that_was_decided() -> None:
    plan = made(planned())
    assert (plan.problem.m, plan.problem.n, plan.problem.k) == (512, 256, 6832)
    assert plan.answer == sample_answer()
    assert plan.rule == sample_rule()
    assert plan.row.evidence.level is Level.VERIFIED
    assert plan.descriptor.cuts[0].layout.span == 1408  # type: ignore[union-attr]
    assert plan.kernel.slices.count == 5
    assert (plan.lost_tail, plan.outside_evidence) == (0, ())
    assert (plan.library, plan.device) == (LIBRARY, DEVICE)
    assert len(plan.digest) == 64
    assert hash(plan) == hash(made(planned()))
    assert plan == made(planned())
    assert plan.variants == needed_variants(plan.kernel, plan.meta)


def explained(outcome: Plan | Declined) -> Explanation:
    return explain_outcome(((256, 6832), (6832, 512)), outcome, LIBRARY, DEVICE)


def rule_with(**integers: Any) -> Rule:
    """The sample rule with some of its integers replaced, ``step`` and ``dtypes`` of its structure aside."""
    rule = sample_rule()
    values = dict(rule.integers) | {path.replace("__", "."): e for path, e in integers.items()}
    return Rule(structure=rule.structure, integers=tuple(values.items()))


def test_a_lost_tail_is_said() -> None:
    rule = rule_with(summed_k=Const(6720))
    plan = made(planned(sample_profile(sample_row(RuleOutcome(rule=rule)))))
    assert plan.lost_tail == 112
    text = str(explained(plan))
    assert "the last 112 k are in no sum" in text


def test_no_profile_declines_and_asks_nothing() -> None:
    counted = Counted()
    planner = planner_of(counted, NO_PROFILE)
    assert planner.plan_mm(*call(), SETTINGS) == NO_PROFILE
    assert planner.profile == NO_PROFILE
    assert counted.asked == 0


def test_a_refusing_library_declines_with_its_status() -> None:
    found = declined(planned(answer=Refused(status="CUBLAS_STATUS_NOT_SUPPORTED")))
    assert found.code == "refused_by_library"
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in found.reason


def test_rows_that_do_not_answer_decline() -> None:
    assert declined(planned(answer=sample_answer(algo_id=77))).code == "no_rule"
    assert declined(planned(answer=sample_answer(algo_id=21))) == DECLINE.declined
    inferred = sample_profile(sample_row(level=Level.INFERRED))
    assert "only inferred" in declined(planned(inferred)).reason
    planner = planner_of(Counted(), inferred, accept=Level.INFERRED)
    assert isinstance(planner.plan_mm(*call(), SETTINGS), Plan)


def test_a_rule_that_does_not_apply_declines() -> None:
    profile = sample_profile(sample_row(RuleOutcome(rule=rule_with(cuts__0__layout__span=Const(0)))))
    assert "does not apply" in declined(planned(profile)).reason


def test_a_rule_of_other_types_declines() -> None:
    profile = sample_profile(sample_row(RuleOutcome(rule=sample_rule(dtype=BF16))))
    found = declined(planned(profile))
    assert (found.code, "bfloat16" in found.reason) == ("no_rule", True)


def test_no_kernel_declines() -> None:
    profile = sample_profile(sample_row(RuleOutcome(rule=sample_rule(cuts=2))))
    assert declined(planned(profile)).code == "kernel"
    profile = sample_profile(sample_row(RuleOutcome(rule=sample_rule(step_k=4))))
    assert declined(planned(profile)).code == "kernel"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"blas_library": "cublaslt"}, "cublaslt"),
        ({"tunable_op": True}, "tunable"),
        ({"allow_fp16_splitk": False}, "split-K"),
        ({"allow_fp16_accumulation": True}, "accumulation"),
    ],
)
def test_flags_decline_by_name(change: dict[str, Any], word: str) -> None:
    found = declined(planner_of(Counted()).plan_mm(*call(), replace(SETTINGS, **change)))
    assert (found.code, word in found.reason) == ("flags", True)


def test_reduced_precision_off_moves_the_answer_and_not_its_row() -> None:
    def answer(problem: GemmProblem) -> AlgoConfig:
        masks.append(problem.reduction_scheme_mask)
        return sample_answer()

    masks: list[int] = []
    planner = planner_of(Counted(answers=answer))
    on = planner.plan_mm(*call(), SETTINGS)
    off = planner.plan_mm(*call(), replace(SETTINGS, allow_fp16_reduced_precision_reduction=False))
    assert isinstance(on, Plan)
    assert off == replace(on, problem=replace(on.problem, reduction_scheme_mask=2))
    assert masks == [7, 2]


def test_a_view_without_a_unit_stride_declines_with_the_layouts() -> None:
    a, b, out = call()
    view = replace(a, strides=(2 * 6832, 2))
    found = declined(planner_of(Counted()).plan_mm(view, b, out, SETTINGS))
    assert found.code == "unsupported_input"
    assert "no unit stride" in found.reason
    assert "a 256 x 6832, strides (13664, 2)" in found.reason


def test_types_out_of_scope_decline() -> None:
    for dtype, code in ((DType.FLOAT64, "out_of_scope"), (FP32, "no_rule")):
        assert declined(planner_of(Counted()).plan_mm(*call(dtype=dtype), SETTINGS)).code == code


def test_declines_are_kept_like_plans() -> None:
    counted = Counted(answers=lambda problem: sample_answer(algo_id=77))
    planner = planner_of(counted)
    first = planner.plan_mm(*call(), SETTINGS)
    assert planner.plan_mm(*call(), SETTINGS) is first
    assert counted.asked == 1
    assert (planner.cache_info().hits, planner.cache_info().misses) == (1, 1)


def other(value: Any) -> Any:
    """A value of the same type that differs; a pin or a reference where there is none."""
    if value is None:
        return 7
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 or 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, Enum):
        return next(v for v in type(value) if v is not value)
    if isinstance(value, LibraryVersion):
        return replace(value, patch=value.patch + 1)
    assert isinstance(value, tuple)
    return (other(value[0]), *value[1:])


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """``value`` with each compared field changed in turn, the path to the field beside it."""
    for f in fields(value):
        if not f.compare:
            continue
        inner = getattr(value, f.name)
        if hasattr(inner, "__dataclass_fields__") and not isinstance(inner, LibraryVersion):
            yield from ((f"{f.name}.{path}", replace(value, **{f.name: new})) for path, new in changed(inner))
        else:
            yield f.name, replace(value, **{f.name: other(inner)})


def keys() -> list[PlanKey]:
    a, b, out = call()
    problem = route_mm(a, b, out, SETTINGS)
    assert isinstance(problem, GemmProblem)
    # Room for every change: no size outgrows a leading dimension, no alignment its limit.
    problem = replace(problem, **dict.fromkeys(("lda", "ldb", "ldd"), 20_000))
    problem = replace(problem, **dict.fromkeys((f"{x}_alignment_bytes" for x in (*"abcd", "bias")), 64))
    meta = mm_meta(a, b, out, sm_count=132, shared_bytes=SHARED)
    calls = (MmCall(a=a, b=b, out=out, settings=SETTINGS), ProblemCall(problem=problem, meta=meta, transposed=True))
    return [
        PlanKey(call=c, captured=False, device=DEVICE, library=LIBRARY, digest="d", accept=Level.VERIFIED)
        for c in calls
    ]


@pytest.mark.parametrize("key", keys(), ids=("torch.mm", "problem"))
def test_the_key_tells_every_field_apart(key: PlanKey) -> None:
    others = dict(changed(key))
    named = {path.rpartition(".")[2] for path in others}
    assert {"captured", "digest", "accept", "sm", "sm_count", "mig", "version", "build_id"} <= named
    inside: type = GemmProblem if isinstance(key.call, ProblemCall) else TorchSettings
    assert {f.name for f in fields(inside)} <= named
    assert key not in others.values()
    assert len(set(others.values())) == len(others)


def test_a_call_that_differs_anywhere_is_asked_anew() -> None:
    a, b, out = call()
    counted = Counted()
    planner = planner_of(counted)
    calls = [
        (a, b, out, SETTINGS),
        *((new, b, out, SETTINGS) for new in (replace(a, alignment_bytes=2), replace(a, strides=(6840, 1)))),
        (a, replace(b, alignment_bytes=16), out, SETTINGS),
        (a, matrix(6832, 512, by_columns=True), out, SETTINGS),
        (a, b, replace(out, alignment_bytes=32), SETTINGS),
        (a, b, matrix(256, 512, by_columns=True), SETTINGS),
        (a, b, out, replace(SETTINGS, workspace_bytes=1024)),
    ]
    for arguments in calls * 2:
        planner.plan_mm(*arguments)
    planner.plan_mm(*calls[0], captured=True)
    assert counted.asked == len(calls) + 1


def test_the_workspace_reaches_the_problem() -> None:
    planner = planner_of(Counted())
    plans = [made(planner.plan_mm(*call(), replace(SETTINGS, workspace_bytes=size))) for size in (1024, 1 << 25)]
    assert [p.problem.workspace_limit_bytes for p in plans] == [1024, 1 << 25]


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    counted = Counted()
    planner = planner_of(counted, capacity=3)
    for n in (8, 16, 24, 8, 32):
        planner.plan_mm(*call(n=n), SETTINGS)
    assert planner.cache_info().size == 3
    assert counted.asked == 4
    planner.plan_mm(*call(n=8), SETTINGS)
    assert counted.asked == 4
    planner.plan_mm(*call(n=16), SETTINGS)
    assert counted.asked == 5
    with pytest.raises(InvalidInputError, match=r"^capacity must .* \(got 0\)$"):
        planner_of(counted, capacity=0)


def test_reload_takes_the_new_profile() -> None:
    found: list[Profile | Declined] = [NO_PROFILE, sample_profile()]
    planner = Planner(Counted().open, lambda device, library: found.pop(0))
    assert planner.plan_mm(*call(), SETTINGS) == NO_PROFILE
    planner.reload()
    assert isinstance(planner.plan_mm(*call(), SETTINGS), Plan)


def test_threads_share_plans_and_never_a_library() -> None:
    threads = 4
    together = Barrier(threads)
    in_use: set[int] = set()

    class Exclusive(SimulatedLibrary):
        def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
            assert id(self) not in in_use
            in_use.add(id(self))
            try:
                return self.heuristic(problem)
            finally:
                in_use.discard(id(self))

    made_libraries: list[SimulatedLibrary] = []

    def open_library() -> SimulatedLibrary:
        library = Exclusive(identity=LIBRARY, device=DEVICE, heuristic=lambda problem: sample_answer(), rules={})
        made_libraries.append(library)
        return library

    planner = Planner(open_library, lambda device, library: sample_profile(), capacity=16)

    def work(thread: int) -> list[Plan | Declined]:
        together.wait()
        return [planner.plan_mm(*call(n=8 * (1 + (i + thread) % 32)), SETTINGS) for i in range(64)]

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(work, range(threads)))
    assert all(isinstance(p, Plan) for row in results for p in row)
    for thread, row in enumerate(results):
        assert [made(p).problem.m for p in row] == [8 * (1 + (i + thread) % 32) for i in range(64)]
    info = planner.cache_info()
    assert (info.size, info.hits + info.misses) == (16, threads * 64)
    assert 1 <= len(made_libraries) <= threads


NODE = KernelNode(name="nvjet_x", grid=(4, 2, 5), block=(384, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
GRID = Launch(kernels=(NODE,))


def grid_profile() -> Profile:
    return sample_profile(sample_row(RuleOutcome(rule=rule_with(cuts__0__layout__span=Var("grid_z")))))


def test_the_launch_is_asked_for_only_where_a_rule_reads_it() -> None:
    asked: list[GemmProblem] = []

    def launches(problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        asked.append(problem)
        return GRID

    assert made(planner_of(Counted(launches=launches)).plan_mm(*call(), SETTINGS)).launch is None
    assert asked == []
    planner = planner_of(Counted(launches=launches), grid_profile())
    outcome = planner.plan_mm(*call(), SETTINGS)
    assert len(asked) == 1
    assert made(outcome).launch == GRID
    unknown = declined(planner_of(Counted(), grid_profile()).plan_mm(*call(), SETTINGS))
    assert "grid_z" in unknown.reason


def test_a_capture_takes_the_launch_recorded_before_or_says_so() -> None:
    planner = planner_of(Counted(launches=lambda problem, answer: GRID), grid_profile())
    with pytest.raises(CaptureError, match=r"outside the capture.*\(got "):
        planner.plan_mm(*call(), SETTINGS, captured=True)
    planner.plan_mm(*call(), SETTINGS)
    plan = made(planner.plan_mm(*call(), SETTINGS, captured=True))
    assert (plan.launch, plan.captured) == (GRID, True)


def test_a_capture_opens_no_library() -> None:
    counted = Counted()
    planner = planner_of(counted)
    planner.close()
    words = r"library handle to spare .*outside, or use gemmdesc\.warmup \(got none\)$"
    with pytest.raises(CaptureError, match=words):
        planner.plan_mm(*call(), SETTINGS, captured=True)
    assert counted.opened == 1
    assert isinstance(planner.plan_mm(*call(), SETTINGS), Plan)
    assert counted.opened == 2
    assert issubclass(CaptureError, GemmdescError)


def test_a_capture_waits_for_no_handle_that_is_in_use() -> None:
    told: list[str] = []

    def answer(problem: GemmProblem) -> AlgoConfig:
        if not told:
            with pytest.raises(CaptureError) as raised:
                planner.plan_mm(*call(300), SETTINGS, captured=True)
            told.append(str(raised.value))
        return sample_answer()

    planner = planner_of(Counted(answers=answer))
    assert isinstance(planner.plan_mm(*call(), SETTINGS), Plan)
    assert told[0].endswith("gemmdesc.warmup (got none that is not in use)")
    assert isinstance(planner.plan_mm(*call(300), SETTINGS, captured=True), Plan)


def test_a_library_that_fails_is_handed_back() -> None:
    def fail(problem: GemmProblem) -> AlgoConfig:
        raise InvalidInputError("batch_count must be 1 (got 2)")

    counted = Counted(answers=fail)
    planner = planner_of(counted)
    for _ in range(3):
        with pytest.raises(InvalidInputError):
            planner.plan_mm(*call(), SETTINGS)
    assert counted.opened == 1


def test_a_problem_can_be_planned_as_it_stands() -> None:
    a, b, out = call()
    problem = route_mm(a, b, out, SETTINGS)
    assert isinstance(problem, GemmProblem)
    meta = mm_meta(a, b, out, sm_count=132, shared_bytes=SHARED)
    planner = planner_of(Counted())
    assert planner.plan_problem(problem, meta, transposed=True) == planner.plan_mm(a, b, out, SETTINGS)
    assert planner.cache_info().size == 2


def test_declines_and_warm_kernels_are_counted_per_planner() -> None:
    planner = planner_of(Counted())
    planner.count_decline(NO_PROFILE)
    planner.count_decline(NO_PROFILE)
    planner.count_decline(DECLINE.declined)
    assert planner.decline_counts() == {"no_profile": 2, "nondeterministic": 1}
    variants = made(planner.plan_mm(*call(), SETTINGS)).variants
    assert planner.cold(variants) == variants
    planner.mark_warm(variants)
    assert planner.cold(variants) == frozenset()


@pytest.mark.parametrize("sizes", [(256, 512, 6832), (8, 512, 6832), (300, 301, 6831), (1, 7, 65), (4000, 4000, 6832)])
def test_variants_hold_the_chain_its_copies_and_its_merge(sizes: tuple[int, int, int]) -> None:
    plan = made(planner_of(Counted()).plan_mm(*call(*sizes), SETTINGS))
    named = sorted(v.kernel for v in plan.variants)
    assert plan.kernel.structure.value in named
    assert ("merge" in named) == plan.kernel.merges
    assert ("repack" in named) == (plan.kernel.packing is not None)


def test_a_merge_beyond_32_bits_is_another_kernel() -> None:
    plan = made(planner_of(Counted()).plan_mm(*call(8, 512, 6832), SETTINGS))
    wanted = kernel_descriptor(plan)
    assert not isinstance(wanted, Declined)
    kernel = choose_kernel(wanted, plan.meta, card_arithmetic("sm_90"), structure=Structure.CHAIN_TMA)
    assert isinstance(kernel, KernelChoice)
    assert kernel.merges
    far = replace(plan.meta, out=replace(plan.meta.out, row_stride=2**29))
    narrow, wide = needed_variants(kernel, plan.meta), needed_variants(kernel, far)
    (merge,) = narrow - wide
    (other_merge,) = wide - narrow
    assert (merge.kernel, other_merge.kernel) == ("merge", "merge")


# Cards.


def test_the_architecture_is_a_cited_row() -> None:
    assert architecture_of("sm_90") == "Hopper"
    assert architecture_of("sm_1") is None
    assert card_arithmetic("sm_1") == CardArithmetic(steps=())


def test_hopper_has_one_step_per_type() -> None:
    card = card_arithmetic("sm_90")
    for dtype in (FP16, BF16):
        step = card.step_for(dtype)
        assert step is not None
        assert (step.lanes, step.step.fraction_bits, step.step.output_bits) == (16, 25, 23)


@pytest.mark.parametrize("sm", ["sm_70", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_an_architecture_in_the_table_has_models(sm: str) -> None:
    assert card_arithmetic(sm).step_for(FP16) is not None


def test_a_type_whose_instructions_disagree_has_no_step() -> None:
    models = [m for m in load_models() if m.architecture == architecture_of("sm_75") and m.a_dtype is FP16]
    assert len({(m.terms_per_step, m.step) for m in models if m.accumulator_dtype is FP32}) > 1
    assert card_arithmetic("sm_75").step_for(FP16) is None


def with_step(dtype: DType, **changes: Any) -> GEMMDesc:
    rule = sample_rule(dtype=dtype)
    desc = replace(rule.structure, cuts=())
    step = desc.accumulator.step
    assert isinstance(step, FusedDot)
    return replace(desc, accumulator=replace(desc.accumulator, step=replace(step, **changes)))


def test_a_zero_exponent_that_fp16_cannot_show_is_the_cards() -> None:
    card = card_arithmetic("sm_90")
    own = card.step_for(FP16)
    assert own is not None
    # The smallest product of two float16 values is 2^-48.
    for zero in (-132, -400, -73, -48):
        assert realised(with_step(FP16, zero_exponent=zero), card).accumulator.step == own.step
    for unlike in (
        with_step(FP16, zero_exponent=-47),
        with_step(FP16, zero_exponent=-132, fraction_bits=24),
        with_step(FP16, zero_exponent=-132, rounding=Rounding.NEAREST_EVEN),
        with_step(BF16, zero_exponent=-132),
    ):
        assert realised(unlike, card) == unlike


def test_the_cards_own_zero_exponent_must_be_invisible_too() -> None:
    step = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-20)
    card = CardArithmetic(steps=(MatrixStep(operand_dtype=FP16, lanes=16, step=step),))
    desc = with_step(FP16, zero_exponent=-133)
    assert realised(desc, card) == desc
    assert zero_exponent_shows(step, FP16, FP16)


@pytest.mark.parametrize(("dtype", "smallest"), [(FP16, -48), (BF16, -266)])
def test_a_zero_exponent_shows_above_the_smallest_product(dtype: DType, smallest: int) -> None:
    step = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=smallest)
    assert not zero_exponent_shows(step, dtype, dtype)
    assert zero_exponent_shows(replace(step, zero_exponent=smallest + 1), dtype, dtype)


def test_a_plan_with_another_zero_exponent_keeps_its_descriptor() -> None:
    rule = sample_rule()
    step = rule.structure.accumulator.step
    assert isinstance(step, FusedDot)
    leaf = replace(rule.structure.accumulator, step=replace(step, zero_exponent=-400))
    rule = make_rule(replace(rule.structure, accumulator=leaf), dict(rule.integers))
    plan = made(planned(sample_profile(sample_row(RuleOutcome(rule=rule)))))
    assert plan.descriptor.accumulator.step == leaf.step


# decide, bare.


def test_decide_is_a_function_of_its_arguments() -> None:
    a, b, out = call()
    problem = route_mm(a, b, out, SETTINGS)
    assert isinstance(problem, GemmProblem)
    index, answer = index_profile(sample_profile()), sample_answer()
    meta: KernelMeta = mm_meta(a, b, out, sm_count=132, shared_bytes=SHARED)

    def decided() -> Any:
        return decide(problem, answer, None, index=index, card=card_arithmetic("sm_90"), meta=meta, transposed=True)

    assert decided() == decided()
    assert not needs_launch(index, problem, answer, Level.VERIFIED)
    assert needs_launch(index_profile(grid_profile()), problem, answer, Level.VERIFIED)
    unknown = decide(problem, answer, None, index=index, card=CardArithmetic(steps=()), meta=meta, transposed=True)
    assert isinstance(unknown, Declined)
    assert unknown.code == "kernel"


# What is said.


def test_an_explanation_reads_well() -> None:
    text = str(explained(made(planned())))
    for words in (
        "(256, 6832) x (6832, 512) on A card, cuBLASLt 13.1.0",
        "nvjet, splitKreduce (nvjet_a, splitKreduce)",
        "algo_id=66 custom_option=1",
        "k is cut into 5 parts of 1408 consecutive k, the last one of 1200",
        "16 products each",
        "verified: 40 shapes, 120 draws, 0 different, 17 rival rules excluded",
        "5 slices",
    ):
        assert words in text
    assert "lost tail" not in text


def test_what_the_evidence_did_not_see_is_said() -> None:
    planner = planner_of(Counted())
    outcome = planner.plan_mm(*call(m=5000, n=8, k=100_001), SETTINGS)
    assert made(outcome).outside_evidence == ("n", "k")
    text = str(explained(outcome))
    assert "n, k outside the range seen" in text


def test_an_explanation_as_data() -> None:
    data = json.loads(explained(made(planned())).to_json())
    assert data["evidence"]["level"] == "verified"
    assert data["kernels"] == ["nvjet_a", "splitKreduce"]
    assert parse_rule(data["rule"]) == sample_rule()
    assert data["lost_tail"] == 0
    declined_data = json.loads(explained(NO_PROFILE).to_json())
    assert declined_data["declined"] == {"code": "no_profile", "reason": NO_PROFILE.reason}
    assert str(explained(NO_PROFILE)).endswith(
        "declined (no_profile): no profile for this card"
    )


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("nvjet_sm90_hsh_64x64_64x13_4x2_h_bz_TNT", "nvjet"),
        ("cutlass_75_tensorop_s1688gemm_f16_128x128_nn_align1", "cutlass"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(Params)", "cutlass::Kernel2"),
        ("_ZN7cutlass7Kernel2I66cutlass_80_x", "cutlass::Kernel2"),
        ("_ZN8cublasLt19splitKreduce_kernelILi32E", "cublasLt::splitKreduce"),
        ("_Z16gemmSN_NN_kernel", "gemmSN"),
        ("internal::gemvx::kernel<int>", "internal::gemvx::kernel"),
        ("_Zodd", "Zodd"),
    ],
)
def test_kernel_families(name: str, family: str) -> None:
    assert kernel_family(name) == family


def test_words_follow_the_descriptor() -> None:
    desc = with_step(FP16)
    desc = replace(desc, summed_k=100)
    lines = in_words(desc, 120)
    assert lines[0] == "only the first 100 of 120 k are summed: the library loses the last 20"
    assert lines[1].startswith("over all k one ascending chain")
    assert lines[-1] == "the result is rounded to float16, to nearest even"


def test_planning_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['triton'] = None; import gemmdesc.plan.planner, gemmdesc.ops"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_device_and_library_are_the_first_librarys() -> None:
    planner = planner_of(Counted())
    assert isinstance(planner.device, DeviceId)
    assert isinstance(planner.library, LibraryId)
    assert (planner.device, planner.library, planner.device_index) == (DEVICE, LIBRARY, 0)


@pytest.mark.parametrize("scales", [0, 1])
def test_operands_of_8_bits_are_planned_with_scales_and_without(scales: int) -> None:
    problem = dense_problem(128, 256, 512, E4M3, d_dtype=DType.FLOAT32, transa=Transpose.T)
    rule = make_rule(float8(512, output=DType.FLOAT32, scales=scales), {})
    row = sample_row(RuleOutcome(rule=rule), answer=sample_answer())
    row = replace(row, key=replace(row.key, family=family_of(problem)))
    sides = {
        "a": MatrixMeta(dtype=E4M3, row_stride=512, column_stride=1, alignment=256),
        "b": MatrixMeta(dtype=E4M3, row_stride=1, column_stride=512, alignment=256),
        "out": MatrixMeta(dtype=DType.FLOAT32, row_stride=1, column_stride=128, alignment=256),
    }
    meta = KernelMeta(m=128, n=256, k=512, **sides, sm_count=132, shared_bytes=SHARED)
    made = decide(
        problem, sample_answer(), None, index=index_profile(sample_profile(row)), card=card_arithmetic("sm_90"),
        meta=meta, transposed=False,
    )  # fmt: skip
    assert isinstance(made, Decision)
    assert isinstance(made.kernel, KMajorChoice)
    assert made.kernel.scales == scales
