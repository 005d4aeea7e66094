"""Small profiles for the tests of ``gemmdesc.profiles``."""

from __future__ import annotations

from typing import Any

from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueLast,
    Rounding,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.expressions import Const, Var, call
from gemmdesc.problem import (
    AlgoConfig,
    DeviceId,
    GemmProblem,
    KernelNode,
    Launch,
    LibraryId,
    LibraryVersion,
    dense_problem,
)
from gemmdesc.profiles import (
    DeclineOutcome,
    Evidence,
    Example,
    Level,
    Metadata,
    Outcome,
    Profile,
    ProfileRow,
    Range,
    RowKey,
    RuleOutcome,
    Scan,
    family_of,
    project,
)
from gemmdesc.rule import Rule, make_rule

DEVICE = DeviceId(sm="sm_90", sm_count=132, name="A card", driver="580.1")
LIBRARY = LibraryId(
    version=LibraryVersion(major=13, minor=1, patch=0), build_id="ab12", sha256="cd34", wheel="nvidia-cublas 13.1.0.3"
)
ANSWER_KEY = ("algo_id", "custom_option")
DECLINE = DeclineOutcome(declined=Declined(code="nondeterministic", reason="bytes varied from run to run"))


def sample_problem(dtype: DType = DType.FLOAT16, k: int = 6832) -> GemmProblem:
    return dense_problem(256, 512, k, dtype)


def sample_answer(algo_id: int = 66, splitk_num: int = 5, **changes: int) -> AlgoConfig:
    values = {
        "algo_id": algo_id, "tile_id": 0, "splitk_num": splitk_num, "reduction_scheme": 2, "cta_swizzling": 0,
        "custom_option": 1, "stages_id": 35, "inner_shape_id": 0, "cluster_shape_id": 0,
    }  # fmt: skip
    return AlgoConfig(**(values | changes))


def sample_rule(
    span: Any = None, dtype: DType = DType.FLOAT16, merge: DType = DType.FLOAT32, step_k: int = 16, cuts: int = 1
) -> Rule:
    step = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
    cut = Cut(layout=Contiguous(span=1), partial_dtype=DType.FLOAT32, merge_dtype=merge, start=Start.FIRST)
    desc = GEMMDesc(
        a_dtype=dtype,
        b_dtype=dtype,
        output_dtype=dtype,
        summed_k=1,
        cuts=(cut,) * cuts,
        accumulator=Accumulator(instruction_k=step_k, residue=ResidueLast(), step=step),
    )
    chunk = call("round_up", call("floordiv", "k", "splitk_num"), 64)
    sizes = {f"cuts.{i}.layout.span": span or chunk for i in range(cuts)}
    return make_rule(desc, {"summed_k": Var("k"), **sizes})


def sample_row(
    outcome: Outcome | None = None,
    *,
    answer: AlgoConfig | None = None,
    projection: tuple[str, ...] = ANSWER_KEY,
    dtype: DType = DType.FLOAT16,
    level: Level = Level.VERIFIED,
    names: tuple[str, ...] = ("nvjet_a", "splitKreduce"),
    mismatches: int = 0,
) -> ProfileRow:
    answer = answer or sample_answer()
    problem = sample_problem(dtype)
    kernel = KernelNode(name=names[0], grid=(4, 2, 5), block=(384, 1, 1), cluster=(2, 1, 1), shared_bytes=99)
    evidence = Evidence(
        level=level,
        shapes=40,
        draws=120,
        mismatches=mismatches,
        excluded_rivals=17,
        nondeterministic=0,
        m=Range(low=1, high=4096),
        n=Range(low=1, high=4096),
        k=Range(low=64, high=100_000),
        splitk=Range(low=1, high=16),
        launch_names=names,
        example=Example(problem=problem, answer=answer, launch=Launch(kernels=(kernel,), memset_bytes=(64,))),
    )
    key = RowKey(family=family_of(problem), answer=project(answer, projection))
    return ProfileRow(key=key, outcome=outcome or RuleOutcome(rule=sample_rule(dtype=dtype)), evidence=evidence)


def sample_profile(*rows: ProfileRow, device: DeviceId = DEVICE, library: LibraryId = LIBRARY) -> Profile:
    metadata = Metadata(
        command="gemmdesc probe --types fp16",
        date="2026-11-29",
        answer_key=("algo_id", "reduction_scheme", "custom_option"),
        excluded_attributes=(("tile_id", 7), ("cta_swizzling", 2)),
        scan=Scan(queries=1_000_000, distinct_answers=321, unseen_mass=3e-7, queries_per_second=4000.5),
    )
    chosen = rows or (
        sample_row(),
        sample_row(answer=sample_answer(algo_id=24), outcome=RuleOutcome(rule=sample_rule(span=Const(8192)))),
        sample_row(answer=sample_answer(algo_id=21), outcome=DECLINE, level=Level.OBSERVED),
        sample_row(dtype=DType.BFLOAT16),
    )
    return Profile(device=device, library=library, metadata=metadata, rows=chosen)
