"""Hypothesis strategies for the plain values: descriptors, expressions, rules, problems."""

from __future__ import annotations

from hypothesis import strategies as st

from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    AddC,
    CastTo,
    Contiguous,
    Cut,
    FusedDot,
    GeluArgument,
    GeluResult,
    GeluTanhApprox,
    GEMMDesc,
    OperandCast,
    Relu,
    ResidueFirst,
    ResidueLast,
    Rounding,
    ScalarStep,
    Scale,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.expressions import Call, Const, Expr, Operation, Var
from gemmdesc.problem import MAX_ALIGNMENT_BYTES, ComputeType, Epilogue, GemmProblem, ScalarClass, Transpose
from gemmdesc.rule import Rule, choose_rule, make_rule
from gemmdesc.variable_fields import variable_fields

VARIABLES = ("m", "n", "k", "splitk_num")
INT64 = st.integers(-(2**63), 2**63 - 1)

positive = st.integers(1, 1 << 20)
dtypes = st.sampled_from(DType)
stored = st.sampled_from([DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])

layouts = st.one_of(
    st.builds(Contiguous, span=positive, short=st.sampled_from(Short)),
    st.builds(Strided, count=positive, unit=positive),
)
cuts = st.builds(
    Cut, layout=layouts, partial_dtype=stored, merge_dtype=stored, start=st.sampled_from(Start), open_end=st.booleans(),
    fold=st.lists(layouts, max_size=2).map(tuple),
)  # fmt: skip
residues = st.one_of(st.builds(ResidueLast), st.builds(ResidueFirst, k_loop_step=positive))
fused_dots = st.builds(
    FusedDot,
    fraction_bits=st.integers(1, 40),
    output_bits=st.integers(1, 40),
    rounding=st.sampled_from([Rounding.TOWARD_ZERO, Rounding.NEAREST_EVEN]),
    zero_exponent=st.integers(-300, 300),
    accumulator_dtype=st.sampled_from([DType.FLOAT32, DType.FLOAT16]),
)
accumulators = st.one_of(
    st.builds(Accumulator, instruction_k=positive, residue=residues, step=fused_dots),
    st.builds(
        Accumulator, instruction_k=st.just(1), residue=residues,
        step=st.builds(ScalarStep, fused=st.booleans(), start=st.sampled_from(Start)),
    ),
)
epilogue_steps = st.one_of(
    st.builds(Scale),
    st.builds(AddC, fused=st.booleans()),
    st.builds(AddBias),
    st.builds(Relu),
    st.builds(CastTo, dtype=dtypes),
    st.builds(GeluTanhApprox, argument=st.sampled_from(GeluArgument), result=st.sampled_from(GeluResult)),
)
operand_casts = st.one_of(
    st.none(), st.builds(OperandCast, dtype=st.just(DType.TFLOAT32), rounding=st.sampled_from(Rounding))
)


@st.composite
def descriptors_of(draw: st.DrawFn) -> GEMMDesc:
    a_dtype, b_dtype = draw(dtypes), draw(dtypes)
    return GEMMDesc(
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        output_dtype=draw(dtypes),
        summed_k=draw(st.integers(0, 1 << 20)),
        cuts=tuple(draw(st.lists(cuts, max_size=3))),
        accumulator=draw(accumulators),
        epilogue=tuple(draw(st.lists(epilogue_steps, max_size=3))),
        a_cast=draw(operand_casts) if a_dtype is DType.FLOAT32 else None,
        b_cast=draw(operand_casts) if b_dtype is DType.FLOAT32 else None,
    )


descriptors = descriptors_of()


def _calls(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.sampled_from(Operation).flatmap(
        lambda operation: st.tuples(*[inner] * operation.arity).map(lambda a: Call(operation, a))
    )


edges = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])
expressions: st.SearchStrategy[Expr] = st.recursive(
    st.one_of(st.sampled_from(VARIABLES).map(Var), st.one_of(st.integers(-300, 300), edges, INT64).map(Const)),
    _calls,
    max_leaves=8,
)
environments = st.fixed_dictionaries({name: st.one_of(st.integers(-300, 300), edges, INT64) for name in VARIABLES})


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    desc = draw(descriptors)
    paths = sorted(variable_fields(desc))
    chosen = draw(st.lists(st.sampled_from(paths), unique=True))
    return make_rule(desc, {path: draw(expressions) for path in chosen})


branching = st.recursive(rules(), lambda inner: st.builds(choose_rule, expressions, rules(), inner), max_leaves=3)


@st.composite
def problems(draw: st.DrawFn) -> GemmProblem:
    m, n, k = (draw(st.integers(1, 1 << 33)) for _ in range(3))
    transa, transb = draw(st.sampled_from(Transpose)), draw(st.sampled_from(Transpose))
    pad = st.integers(0, 64)
    alignment = st.sampled_from([1 << i for i in range(MAX_ALIGNMENT_BYTES.bit_length())])
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        a_dtype=draw(dtypes),
        b_dtype=draw(dtypes),
        d_dtype=draw(dtypes),
        transa=transa,
        transb=transb,
        lda=(m if transa is Transpose.N else k) + draw(pad),
        ldb=(k if transb is Transpose.N else n) + draw(pad),
        ldd=m + draw(pad),
        compute_type=draw(st.sampled_from(ComputeType)),
        alpha=draw(st.sampled_from(ScalarClass)),
        beta=draw(st.sampled_from(ScalarClass)),
        epilogue=draw(st.sampled_from(Epilogue)),
        fast_accumulation=draw(st.booleans()),
        batch_count=draw(st.integers(1, 64)),
        a_alignment_bytes=draw(alignment),
        d_alignment_bytes=draw(alignment),
        workspace_limit_bytes=draw(st.integers(0, 1 << 26)),
        reduction_scheme_mask=draw(st.integers(0, 7)),
    )
