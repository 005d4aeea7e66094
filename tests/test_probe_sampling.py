"""Problems of every kind: repeatable, of their kind, and such as the library can be asked about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.plain import problem_from_plain, to_plain
from gemmdesc.probe.campaign import Options
from gemmdesc.probe.examples import elsewhere, other_layouts
from gemmdesc.probe.facets import FACETS, Kind
from gemmdesc.probe.offline import recorded_scope
from gemmdesc.probe.records import identity
from gemmdesc.probe.sampling import (
    FLOAT8_MULTIPLE,
    LARGEST_FLOPS,
    Regime,
    Scope,
    draw_problem,
    scope_of_kind,
)
from gemmdesc.probe.scan import resolve
from gemmdesc.problem import ComputeType, Epilogue, GemmProblem, ScalarClass, Transpose, is_float8
from tests.kind_samples import library_of_kinds
from tests.probe_samples import DEVICE, IDENTITY


def drawn(kind: Kind, count: int = 400) -> list[GemmProblem]:
    return [draw_problem(scope_of_kind(kind), 3, i) for i in range(count)]


@pytest.mark.parametrize("kind", Kind)
def test_a_problem_is_fixed_by_its_number_and_travels(kind: Kind) -> None:
    problems = drawn(kind, 60)
    assert problems == drawn(kind, 60)
    assert all(problem_from_plain(to_plain(p)) == p for p in problems)
    if not FACETS[kind].float8:
        plain = [draw_problem(Scope(dtypes=scope_of_kind(kind).dtypes), 3, i) for i in range(60)]
        assert [(p.m, p.n, p.k) for p in problems] == [(p.m, p.n, p.k) for p in plain]


def test_float32_operands_are_aligned_to_an_element() -> None:
    for p in [*drawn(Kind.TF32), *(draw_problem(Scope(dtypes=(DType.FLOAT32,)), 3, i) for i in range(400))]:
        assert min(p.a_alignment_bytes, p.b_alignment_bytes, p.d_alignment_bytes) >= 4
        assert p.a_dtype is p.b_dtype is p.d_dtype is DType.FLOAT32
    assert {p.compute_type for p in drawn(Kind.TF32)} == {ComputeType.COMPUTE_32F_FAST_TF32}


@pytest.mark.parametrize("kind", [Kind.FLOAT8, Kind.FLOAT8_FAST])
def test_float8_problems_keep_what_the_library_asks_for(kind: Kind) -> None:
    problems = drawn(kind)
    for p in problems:
        sizes = (p.m, p.n, p.k, p.lda, p.ldb, p.ldd)
        assert not any(x % FLOAT8_MULTIPLE for x in sizes)
        assert (p.transa, p.transb) == (Transpose.T, Transpose.N)
        assert min(p.a_alignment_bytes, p.b_alignment_bytes, p.d_alignment_bytes) >= FLOAT8_MULTIPLE
        assert p.fast_accumulation is (kind is Kind.FLOAT8_FAST)
        assert p.c_dtype is (DType.FLOAT16 if is_float8(p.d_dtype) else p.d_dtype)
    assert len({(p.a_dtype, p.b_dtype) for p in problems}) == 4
    assert len({p.d_dtype for p in problems}) == 5


def test_batches_lie_one_after_another() -> None:
    problems = drawn(Kind.BATCH)
    for p in problems:
        assert p.batch_count >= 2
        assert p.a_batch_stride >= p.lda * p.a_columns
        assert p.b_batch_stride >= p.ldb * p.b_columns
        assert p.d_batch_stride >= p.ldd * p.n
        assert p.batch_count == 2 or p.batch_count * 2 * p.m * p.n * p.k <= LARGEST_FLOPS
        assert (p.a_outer, p.b_outer, p.d_outer) == (p.m * p.batch_count, p.n * p.batch_count, p.m * p.batch_count)
    assert len({p.batch_count for p in problems}) > 10
    shared = replace(problems[0], b_batch_stride=0)
    assert shared.b_outer == shared.n


def test_epilogues_and_c() -> None:
    for epilogue in Epilogue:
        if epilogue is not Epilogue.DEFAULT:
            assert {p.epilogue for p in drawn(Kind(epilogue.value))} == {epilogue}
    assert {p.beta for p in drawn(Kind.ADD_C)} == {ScalarClass.ONE}
    assert {p.beta for p in drawn(Kind.ADD_BETA_C)} == {ScalarClass.OTHER}


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_s_name_says_all_that_its_problems_share(kind: Kind) -> None:
    words = kind.value
    beta = ScalarClass.OTHER if "add_beta_c" in words else ScalarClass.ONE if "add_c" in words else ScalarClass.ZERO
    alpha = ScalarClass.OTHER if "alpha" in words else ScalarClass.ONE
    after = "_".join(w for w in words.split("_") if w in ("relu", "gelu", "bias")) or "default"
    for p in drawn(kind, 40):
        assert (p.alpha, p.beta, p.epilogue) == (alpha, beta, Epilogue(after))
        assert (p.batch_count > 1) is ("batch" in words)
        assert is_float8(p.a_dtype) is ("float8" in words)
        assert p.fast_accumulation is ("fast" in words)
        assert (p.compute_type is ComputeType.COMPUTE_32F_FAST_TF32) is ("tf32" in words)


def test_dtypes_must_be_of_the_kind() -> None:
    for kind, dtype in ((Kind.TF32, DType.FLOAT16), (Kind.FLOAT8, DType.FLOAT16), (Kind.PLAIN, DType.FLOAT8_E5M2)):
        with pytest.raises(InvalidInputError, match=rf"^dtypes must be operand types of {kind.value}"):
            Scope(dtypes=(dtype,), kind=kind)


@pytest.mark.parametrize("kind", Kind)
def test_a_campaign_s_folder_knows_its_kind(kind: Kind) -> None:
    options = Options(scope=replace(scope_of_kind(kind), regimes=(Regime.SMALL,)), seed=1)
    about = identity(IDENTITY, DEVICE, options)
    assert recorded_scope(about) == options.scope
    assert ("kind" in about) == (kind is not Kind.PLAIN)


def test_an_answer_moves_to_other_sizes_that_its_kind_can_have() -> None:
    library = library_of_kinds()
    for kind in (Kind.BATCH, Kind.FLOAT8):
        scope = replace(scope_of_kind(kind), regimes=(Regime.SMALL,))
        natural = [e for e in (resolve(library, scope, 3, i) for i in range(60)) if e is not None]
        made = [(e, x) for e in natural for x in (*elsewhere(library, [e]), *other_layouts(library, [e]))]
        assert len(made) > 60
        for old, new in ((e.problem, x.problem) for e, x in made):
            if kind is Kind.FLOAT8:
                assert new.k % FLOAT8_MULTIPLE == 0
                assert (new.transa, new.transb) == (Transpose.T, Transpose.N)
            else:
                gap = new.a_batch_stride - new.lda * new.a_columns
                assert gap == old.a_batch_stride - old.lda * old.a_columns >= 0
                assert new.b_batch_stride >= new.ldb * new.b_columns
