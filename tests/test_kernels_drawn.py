"""The kernel of drawn chains: the CPU's samples in Triton's interpreter and on a card, and what it declines."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gemmdesc.descriptor import Accumulator, AddBias, Contiguous, Cut, GEMMDesc, ResidueLast, ScalarStep, Start, Strided
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.numerics.stochastic.inorder_card import drawn_chain
from tests.arithmetic_reference import HOPPER
from tests.test_kernels_interpreted import pytestmark as needs_triton
from tests.test_kernels_interpreted import told

CUT = Cut(layout=Contiguous(span=32), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)
PLAIN = GEMMDesc(
    a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, output_dtype=DType.FLOAT16, summed_k=100, cuts=(),
    accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER),
)  # fmt: skip


@needs_triton
@pytest.mark.slow
def test_the_interpreter_gives_the_cpus_samples() -> None:
    found = told("interpreted_drawn.py")
    assert found["bad"] == []
    assert found["counts"] > 500
    # Steps whose products one float64 holds, and others, often in one chain.
    assert found["calls"]["tight_stepped"] > 60
    assert found["calls"]["stepped"] > 30
    # Only operands of bfloat16 at random can lie too far apart for three float64; they are told.
    assert found["unsure"] > 0


@pytest.mark.slow
@needs_triton
def test_the_comparison_made_on_a_card_finds_no_difference_in_the_interpreter() -> None:
    """Its own products and seeds at k = 64; some of those sums are exact, and an output type then rounds them."""
    found = told("interpreted_drawn_card.py")
    assert found["differing"] == []
    assert found["counts"]["products"] == 21
    assert found["counts"]["equal"] == found["counts"]["elements"]
    # A kernel that draws with another seed is told, with the first element's bits.
    told_apart = found["told"]
    assert {row["operands"] for row in told_apart} == {"normal", "uniform", "wide"}
    assert all(row["sums"] > 0 and row["first"]["cpu"] != row["first"]["kernel"] for row in told_apart)


@needs_triton
def test_steps_round_exact_sums_and_extents_are_those_of_fractions() -> None:
    found = told("interpreted_drawn_steps.py")
    steps, extents = found["steps"], found["extents"]
    assert steps["different"] == steps["flagged"] == 0
    # Sums that a float64 does not hold, that cancel, and that end below float32's normal range.
    assert min(steps["beyond_float64"], steps["zeros"], steps["subnormal"]) > 1000
    assert steps["beyond_float64"] < steps["lost"] < steps["steps"]
    assert extents["wrong"] == 0
    assert extents["infinite"] > 0
    assert extents["zero"] > 0


@needs_triton
def test_folds_close_where_the_schedule_says() -> None:
    chain = drawn_chain(replace(PLAIN, cuts=(CUT,)), 100)
    assert not isinstance(chain, Declined)
    assert chain.ends == (16, 32, 48, 64, 80, 96, 100)
    # Seven steps are sites 0 to 6; rows of the program follow: leaf, leaf, add, leaf, add, leaf, add.
    assert chain.folds == (-1, -2, -1, 9, -1, 11, 13)
    assert (chain.step, chain.fraction_bits, chain.wide, chain.opposite) == (16, 23, False, True)
    single = drawn_chain(PLAIN, 100)
    assert not isinstance(single, Declined)
    assert single.folds == (-1,) * 6 + (-2,)


@pytest.mark.parametrize(
    "desc",
    [
        replace(PLAIN, accumulator=Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))),
        replace(PLAIN, cuts=(replace(CUT, partial_dtype=DType.FLOAT16),)),
        replace(PLAIN, cuts=(replace(CUT, layout=Strided(count=2, unit=1)),)),
        replace(PLAIN, cuts=(replace(CUT, start=Start.ZERO),)),
        replace(PLAIN, cuts=(CUT, CUT)),
        replace(PLAIN, epilogue=(AddBias(),)),
        replace(PLAIN, summed_k=0),
    ],
)
def test_other_orders_are_declined(desc: GEMMDesc) -> None:
    found = drawn_chain(desc, 100)
    assert isinstance(found, Declined)
    assert found.code == "kernel"


@needs_triton
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize(("even", "opposite"), [(False, True), (True, True), (True, False)])
def test_it_compiles_for_hopper_to_matrix_steps_of_float64(
    wide: bool, folded: bool, even: bool, opposite: bool
) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    from gemmdesc.kernels.drawn_chain import drawn_chain_kernel

    constants = {"BLOCK_M": 16, "BLOCK_N": 32, "STEP": 16, "INNER": 16, "FRACTION": 23, "WIDE": wide, "FOLDED": folded,
                 "OPPOSITE": opposite, "EVEN": even}  # fmt: skip
    pointers = {"rows_ptr": "*i64", "cols_ptr": "*i64", "ends_ptr": "*i32", "folds_ptr": "*i32",
                "a_extents_ptr": "*i32", "b_extents_ptr": "*i32", "flags_ptr": "*i8", "a_ptr": "*fp16",
                "b_ptr": "*fp16"}  # fmt: skip
    signature = {}
    for parameter in drawn_chain_kernel.params:
        name = parameter.name
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = pointers.get(name, "*fp32")
        else:
            signature[name] = parameter.annotation_type
    divisible = [
        (i,)
        for i, parameter in enumerate(drawn_chain_kernel.params)
        if parameter.name.endswith("_ptr") or parameter.name in ("M", "N", "stride_a", "stride_b")
    ]
    source = ASTSource(
        fn=drawn_chain_kernel, signature=signature, constexprs=constants,
        attrs={place: [["tt.divisibility", 16]] for place in divisible},
    )  # fmt: skip
    options = {"num_warps": 4, "enable_fp_fusion": False}
    compiled = triton_compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    # Up to the loop of sums one by one, no tile changes threads on the way of a step.
    short_way = compiled.asm["ttgir"].split("scf.for")[1]
    assert "tt.dot" in short_way
    assert "ttg.convert_layout" not in short_way
    ptx = compiled.asm["ptx"]
    # Operands side by side are loaded at once where all steps are whole.
    assert bool(re.search(r"ld\.global\.v\d\.b32", ptx)) or not even
    assert re.search(r"mma\.sync\.aligned\.\w+\.row\.col\.f64\.f64\.f64\.f64", ptx)
    # Error-free sums need their operations one by one, and subnormal operands their values.
    assert "fma.rn.f64" not in ptx
    assert "add.rn.f64" in ptx
    # A sample of the short way: its accumulator widened, one addition and one conversion that round down.
    assert "add.rm.f64" in ptx
    assert "cvt.rm.f32.f64" in ptx
    assert ".ftz" not in ptx
    assert ".local" not in ptx


@pytest.mark.gpu
def test_a_card_gives_the_cpus_samples() -> None:
    from gemmdesc.verification.stochastic_card import compare_on_card

    counts, differing = compare_on_card(ks=(64, 300))
    assert differing == []
    assert counts["equal"] + counts["left_to_cpu"] == counts["elements"]
    assert counts["left_to_cpu"] < 0.01 * counts["elements"]


@pytest.mark.gpu
def test_one_tile_timed_twice_takes_as_long() -> None:
    from gemmdesc.verification.stochastic_card import cost_on_card

    for row in cost_on_card(1024, rounds=20):
        again = row["tiles_us"]["16x32 of 4 warps"]
        assert 0.8 < row["drawn_us"] / again < 1.25, row
        assert row["called_us"]["drawn"] > row["drawn_us"]
