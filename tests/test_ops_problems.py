"""Problems in the library's own terms without a GPU: planned for every kind, and what tensors are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.variants import enumerate_variants
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.ops.problems import ProblemTensors, require_problem_tensors
from gemmdesc.ops.products import require_as_planned
from gemmdesc.plan import Plan, Planner
from gemmdesc.plan.problems import batch_strides, every_matrix, problem_meta
from gemmdesc.probe.sampling import draw_problem
from gemmdesc.problem import Epilogue, GemmProblem, ScalarClass, Transpose, dense_problem
from tests.kind_profiles import KERNEL_KINDS, on_hopper, profile_of, small_scopes
from tests.kind_samples import answer_of, rule_of
from tests.probe_samples import DEVICE, IDENTITY

torch = pytest.importorskip("torch")

FP16, FP32 = DType.FLOAT16, DType.FLOAT32
BOUND = enumerate_variants(227 * 1024)


@cache
def planner() -> Planner:
    profile = profile_of(small_scopes(KERNEL_KINDS), on_hopper)

    def library() -> SimulatedLibrary:
        return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)

    return Planner(library, lambda device, identity: profile)


def planned(problem: GemmProblem, transposed: bool = False) -> Plan:
    meta = planner().problem_meta(problem, transposed=transposed)
    plan = planner().plan_problem(problem, meta, transposed=transposed)
    assert isinstance(plan, Plan), plan
    return plan


@pytest.mark.parametrize("kind", KERNEL_KINDS)
def test_every_problem_of_a_kind_is_planned_from_enumerated_kernels(kind: str) -> None:
    (scope,) = small_scopes([kind]).values()
    for index in range(60):
        plan = planned(draw_problem(scope, 3, index), transposed=bool(index % 2))
        assert plan.variants <= BOUND
        assert plan.transposed is bool(index % 2)
        assert (plan.kernel.structure.value in ("finished", "regions")) is (kind != "batch")


def test_a_problems_matrices_as_the_kernels_see_them() -> None:
    p = dense_problem(10, 20, 30, FP16, d_dtype=FP32, transa=Transpose.T)
    meta = problem_meta(p, transposed=False, sm_count=1, shared_bytes=1)
    strides = [(x.row_stride, x.column_stride) for x in (meta.a, meta.b, meta.out)]
    assert ((meta.m, meta.n, meta.k), strides) == ((10, 20, 30), [(30, 1), (1, 30), (1, 10)])
    assert problem_meta(p, transposed=True, sm_count=1, shared_bytes=1) == meta.swapped


def test_every_matrix_of_a_batch_has_the_alignment_that_kernels_are_chosen_for() -> None:
    p = replace(
        dense_problem(64, 32, 16, FP16), batch_count=3, a_batch_stride=1025, b_batch_stride=0, d_batch_stride=2052
    )
    assert batch_strides(p, transposed=False) == (1025, 0, 2052)
    assert batch_strides(p, transposed=True) == (0, 1025, 2052)
    for transposed in (False, True):
        meta = problem_meta(p, transposed=transposed, sm_count=1, shared_bytes=1)
        every = every_matrix(meta, p, transposed=transposed)
        wanted = (256, 2, 8) if transposed else (2, 256, 8)
        assert (every.a.alignment, every.b.alignment, every.out.alignment) == wanted
    alone = replace(p, batch_count=1)
    meta = problem_meta(alone, transposed=False, sm_count=1, shared_bytes=1)
    assert every_matrix(meta, alone, transposed=False) is meta


def test_declines_are_those_of_the_profile_and_the_kernels() -> None:
    gelu = replace(dense_problem(64, 64, 64, FP16), epilogue=Epilogue.GELU)
    meta = planner().problem_meta(gelu)
    found = planner().plan_problem(gelu, meta)
    assert isinstance(found, Declined)
    assert found.code == "no_rule"
    bias = replace(gelu, epilogue=Epilogue.BIAS)
    with pytest.raises(InvalidInputError, match=r"^meta must have the problem's m, n and k"):
        planner().plan_problem(bias, replace(meta, m=63))
    wrong = replace(meta, out=replace(meta.out, dtype=FP32))
    refused = planner().plan_problem(bias, wrong)
    assert isinstance(refused, Declined)
    assert refused.code == "kernel"


def aligned(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, offset: int = 0) -> Any:
    """A tensor whose address is a multiple of 256, and then ``offset`` elements."""
    extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    buffer = torch.zeros(extent + 512, dtype=dtype)
    first = -buffer.data_ptr() % 256 // buffer.element_size()
    return buffer.as_strided(shape, strides, first + offset)


HALF = torch.float16
PROBLEM = replace(
    dense_problem(24, 16, 40, FP16), epilogue=Epilogue.BIAS, beta=ScalarClass.OTHER, batch_count=3,
    a_batch_stride=24 * 40 + 8, b_batch_stride=0, d_batch_stride=24 * 16,
)  # fmt: skip


def tensors(**changes: Any) -> ProblemTensors:
    """Of ``PROBLEM``, transposed as torch's tensors are: a is op(B)^T, b is op(A)^T, out is D^T."""
    made = ProblemTensors(
        a=aligned((3, 16, 40), (0, 40, 1), HALF), b=aligned((3, 40, 24), (24 * 40 + 8, 24, 1), HALF),
        out=aligned((3, 16, 24), (16 * 24, 24, 1), HALF), c=aligned((3, 16, 24), (16 * 24, 24, 1), HALF),
        bias=torch.zeros(24, dtype=HALF), alpha=1.0, beta=0.5,
    )  # fmt: skip
    return replace(made, **changes)


@cache
def plan_of_problem() -> Plan:
    """A plan whose rule is that of the same problem without a bias: tensors are all that is looked at here."""
    plan = planned(replace(PROBLEM, epilogue=Epilogue.DEFAULT, batch_count=1, d_batch_stride=0, a_batch_stride=0), True)
    return replace(plan, problem=PROBLEM)


def test_the_plans_own_tensors_pass_and_c_may_be_out() -> None:
    given = tensors()
    require_problem_tensors(plan_of_problem(), given)
    require_problem_tensors(plan_of_problem(), replace(given, c=given.out))
    require_problem_tensors(plan_of_problem(), replace(given, beta=float("nan")))


def test_a_plan_of_more_than_a_product_is_not_for_run() -> None:
    given = tensors()
    with pytest.raises(InvalidInputError, match=r"^plan must be of one product that takes nothing beside"):
        require_as_planned(plan_of_problem(), planner(), given.a[0], given.b[0], given.out[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"c": None}, "c must be given"),
        ({"bias": None}, "bias must be given"),
        ({"beta": 0.1}, "beta must be a float32 value"),
        ({"beta": "1"}, "beta must be a number"),
        ({"alpha": 2.0}, "alpha must be one for this problem"),
        ({"a": aligned((16, 40), (40, 1), HALF)}, "a must be 3-D"),
        ({"a": aligned((3, 16, 41), (0, 41, 1), HALF)}, r"a must have the plan's shape \(3, 16, 40\)"),
        ({"a": aligned((3, 16, 40), (640, 40, 1), HALF)}, "a must have the problem's batch stride 0"),
        ({"a": aligned((3, 16, 40), (0, 48, 1), HALF)}, "a must be stored as planned"),
        ({"b": aligned((3, 40, 24), (968, 24, 1), HALF, 4)}, "b must be stored as planned"),
        ({"out": aligned((3, 16, 24), (384, 24, 1), torch.float32)}, "out must be stored as planned"),
        ({"c": aligned((3, 16, 24), (384, 24, 1), torch.float32)}, "c must be of float16"),
        ({"c": aligned((3, 16, 24), (400, 24, 1), HALF)}, "c must be stored as out"),
        ({"c": aligned((3, 16, 24), (384, 24, 1), HALF, 4)}, "c must be aligned to 256 bytes"),
        ({"bias": torch.zeros(16, dtype=HALF)}, r"bias must have the plan's shape \(24,\)"),
        ({"bias": torch.zeros(48, dtype=HALF)[::2]}, "bias must be dense"),
        ({"bias": torch.zeros(24)}, "bias must be of float16"),
        ({"bias": [0.0] * 24}, "bias must be a torch.Tensor"),
        ({"a": aligned((3, 16, 40), (0, 40, 1), HALF).requires_grad_()}, "a must not require grad"),
        ({"b": torch.zeros((3, 40, 24), dtype=HALF, device="meta")}, "b must be on a's device"),
    ],
)  # fmt: skip
def test_other_tensors_and_scalars_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        require_problem_tensors(plan_of_problem(), tensors(**changes))


def test_out_shares_no_memory_but_with_a_c_that_is_out() -> None:
    plan, given = plan_of_problem(), tensors()
    buffer = aligned((8192,), (1,), HALF)
    begin = buffer.storage_offset()
    out = buffer.as_strided((3, 16, 24), (384, 24, 1), begin)
    b = buffer.as_strided((3, 40, 24), (968, 24, 1), begin + 128)
    with pytest.raises(InvalidInputError, match=r"^out must not share memory with b"):
        require_problem_tensors(plan, replace(given, out=out, b=b))
    c = buffer.as_strided((3, 16, 24), (384, 24, 1), begin + 128)
    with pytest.raises(InvalidInputError, match=r"^out must not share memory with c"):
        require_problem_tensors(plan, replace(given, out=out, c=c))
    crowded = replace(plan, problem=replace(PROBLEM, d_batch_stride=383))
    narrow = aligned((3, 16, 24), (383, 24, 1), HALF)
    with pytest.raises(InvalidInputError, match=r"^out must have a place of its own"):
        require_problem_tensors(crowded, replace(given, out=narrow, c=narrow))


SCALED = dense_problem(32, 16, 64, DType.FLOAT8_E4M3FN, transa=Transpose.T)


def scaled_tensors(**changes: Any) -> ProblemTensors:
    """Of ``SCALED``, in its own terms."""
    kind = torch.float8_e4m3fn
    made = ProblemTensors(
        a=aligned((32, 64), (64, 1), torch.uint8).view(kind), b=aligned((64, 16), (1, 64), torch.uint8).view(kind),
        out=aligned((32, 16), (1, 32), torch.uint8).view(kind), a_scale=torch.ones(()), b_scale=torch.ones(1),
        d_scale=torch.ones(1, 1),
    )  # fmt: skip
    return replace(made, **changes)


@cache
def plan_of_scaled() -> Plan:
    profile = profile_of(small_scopes(["float8"]), on_hopper)

    def library() -> SimulatedLibrary:
        return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)

    planner = Planner(library, lambda device, identity: profile)
    plan = planner.plan_problem(SCALED, planner.problem_meta(SCALED))
    assert isinstance(plan, Plan), plan
    return plan


def test_products_of_8_bit_operands_take_a_scale_for_each_and_for_an_8_bit_output() -> None:
    require_problem_tensors(plan_of_scaled(), scaled_tensors())
    wide = replace(plan_of_scaled(), problem=replace(SCALED, d_dtype=FP32))
    with pytest.raises(InvalidInputError, match=r"^d_scale must be given where the problem takes one, and only there"):
        require_problem_tensors(wide, scaled_tensors())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a_scale": None}, r"^a_scale must be given where the problem takes one"),
        ({"b_scale": torch.ones(2)}, r"^b_scale must be one float32 \(got float32, \(2,\)\)"),
        ({"d_scale": torch.ones(1, dtype=HALF)}, r"^d_scale must be one float32 \(got float16"),
        ({"a_scale": torch.ones(1, device="meta")}, r"^a_scale must be on a's device cpu \(got meta"),
        ({"a_scale": torch.ones(1, requires_grad=True)}, r"^a_scale must"),
    ],
)
def test_wrong_scales_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidInputError, RuntimeError), match=message):
        require_problem_tensors(plan_of_scaled(), scaled_tensors(**change))


def test_a_product_without_8_bit_operands_takes_no_scale() -> None:
    with pytest.raises(InvalidInputError, match=r"^b_scale must be given where the problem takes one, and only there"):
        require_problem_tensors(plan_of_problem(), tensors(b_scale=torch.ones(1)))


def test_a_scale_in_the_output_is_refused() -> None:
    given = scaled_tensors()
    inside = given.out.view(torch.uint8).T.reshape(-1)[:4].view(torch.float32)
    with pytest.raises(InvalidInputError, match=r"^out must not share memory with d_scale"):
        require_problem_tensors(plan_of_scaled(), replace(given, d_scale=inside))
