"""Descriptors read from compiled code: hand-written lanes and chains, Triton's, and gemmdesc's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

from gemmdesc.arithmetic.models import find_model
from gemmdesc.arithmetic.replay import fused_dot
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    GEMMDesc,
    ResidueLast,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.equivalence import Launch, walk
from gemmdesc.equivalence.draws import DRAWS, draw
from gemmdesc.equivalence.matrix_steps import multiply_pairs
from gemmdesc.equivalence.spelling import Column
from gemmdesc.equivalence.structure import Element, implements, structure
from gemmdesc.errors import Declined
from gemmdesc.normal_form import normal_form
from tests.equivalence_texts import kernel

F32 = DType.FLOAT32
MODEL = find_model(
    architecture="Hopper", instruction="mma", a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, accumulator_dtype=F32
)


def scalar(k: int, *cuts: Cut, fused: bool = True, dtype: DType = F32) -> GEMMDesc:
    leaf = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=fused))
    return GEMMDesc(a_dtype=dtype, b_dtype=dtype, output_dtype=F32, summed_k=k, cuts=cuts, accumulator=leaf)


def cut(layout: Contiguous | Strided, start: Start = Start.FIRST, partial: DType = F32, merge: DType = F32) -> Cut:
    return Cut(layout=layout, partial_dtype=partial, merge_dtype=merge, start=start)


def lanes(per_lane: int, *, interleaved: bool, offsets: tuple[int, ...]) -> str:
    """Each lane chains ``per_lane`` products of A and B (4096 bytes behind A), then a butterfly."""
    step, stride = (4, 128) if interleaved else (4 * per_lane, 4)
    lines = [f"mul.wide.u32 %rd6, %r1, {step};", "add.s64 %rd7, %rd1, %rd6;", "mov.b32 %r3, 0;"]
    for i in range(per_lane):
        lines += [f"ld.global.b32 %r4, [%rd7+{i * stride}];", f"ld.global.b32 %r5, [%rd7+{4096 + i * stride}];"]
        lines.append("fma.rn.f32 %r3, %r4, %r5, %r3;")
    for offset in offsets:
        lines += [f"shfl.sync.bfly.b32 %r6, %r3, {offset}, 31, -1;", "add.rn.f32 %r3, %r3, %r6;"]
    lines += ["setp.eq.s32 %p1, %r1, 0;", "@%p1 st.global.b32 [%rd2], %r3;"]
    return kernel("\n".join(lines))


def read(text: str, k: int) -> GEMMDesc | Declined:
    a, b = (Column(parameter=0, offset=o, stride=4, dtype=F32) for o in (0, 4096))
    return structure(walk(text, Launch()), Element(parameter=1, offset=0, a=a, b=b, output_dtype=F32, k=k))


def butterfly_of(parts: int, width: int) -> tuple[Cut, ...]:
    """Nested halves of consecutive parts of ``width`` k."""
    cuts = []
    while parts > 1:
        parts //= 2
        cuts.append(cut(Contiguous(span=parts * width)))
    return tuple(cuts)


def test_lanes_of_consecutive_k_under_a_descending_butterfly() -> None:
    found = read(lanes(4, interleaved=False, offsets=(1, 2, 4, 8, 16)), 128)
    assert isinstance(found, GEMMDesc), found
    assert normal_form(found, 128) == normal_form(scalar(128, *butterfly_of(32, 4)), 128)
    assert normal_form(found, 128) != normal_form(scalar(128, *butterfly_of(32, 4), fused=False), 128)
    assert normal_form(found, 128) != normal_form(scalar(128, *butterfly_of(16, 8)), 128)


def test_interleaved_lanes_and_an_ascending_butterfly_are_strided_cuts() -> None:
    found = read(lanes(4, interleaved=True, offsets=(16, 8, 4, 2, 1)), 128)
    wanted = scalar(128, *(cut(Strided(count=2, unit=1)) for _ in range(5)))
    assert isinstance(found, GEMMDesc), found
    assert normal_form(found, 128) == normal_form(wanted, 128)


def test_a_tree_that_no_nest_of_cuts_makes_is_declined() -> None:
    text = lanes(4, interleaved=False, offsets=(1, 2, 4, 8, 16))
    found = read(text.replace("[%rd7+4]", "[%rd7+8]"), 128)
    assert isinstance(found, Declined), found


def folded(parts: int, span: int, start_at_zero: bool) -> str:
    """One thread's chains of ``span`` products, added up in order."""
    lines = ["mov.b32 %r9, 0;"]
    for part in range(parts):
        lines.append("mov.b32 %r3, 0;")
        for i in range(part * span, (part + 1) * span):
            lines += [f"ld.global.b32 %r4, [%rd1+{4 * i}];", f"ld.global.b32 %r5, [%rd1+{4096 + 4 * i}];"]
            lines.append("fma.rn.f32 %r3, %r4, %r5, %r3;")
        lines.append("mov.b32 %r9, %r3;" if part == 0 and not start_at_zero else "add.rn.f32 %r9, %r9, %r3;")
    lines += ["setp.eq.s32 %p1, %r1, 0;", "@%p1 st.global.b32 [%rd2], %r9;"]
    return kernel("\n".join(lines))


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("parts", "span"), [(2, 8), (3, 8), (4, 5), (7, 1)])
def test_a_fold_of_chains_is_one_cut(parts: int, span: int, zero: bool) -> None:
    k = parts * span
    found = read(folded(parts, span, zero), k)
    assert isinstance(found, GEMMDesc), found
    wanted = scalar(k, cut(Contiguous(span=span), Start.ZERO if zero else Start.FIRST))
    assert normal_form(found, k) == normal_form(wanted, k)
    if parts > 3:
        other = scalar(k, cut(Contiguous(span=2 * span)), cut(Contiguous(span=span)))
        assert normal_form(found, k) != normal_form(other, k)


@pytest.mark.parametrize("architecture", ["Ampere", "Hopper"])
def test_lanes_and_steps_of_zeros_are_nothing_to_the_models(architecture: str) -> None:
    """What structures leave out of matrix steps: lanes that are zero on both sides, and steps of nothing else."""
    model = find_model(
        architecture=architecture, instruction="mma", a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16,
        accumulator_dtype=F32,
    )  # fmt: skip
    nothing = np.zeros((512, 8), np.uint32)
    for name in DRAWS:
        a, b = (draw(name, "fp16", p, 512 * 16).view(np.uint32).reshape(512, 8) for p in (0, 1))
        c = draw(name, "fp32", 2, 512).view(np.uint32).astype(np.uint64)
        left = multiply_pairs(model, a, b, c)
        assert (multiply_pairs(model, nothing, nothing, left) == left).all(), name
        zero = np.zeros(512, np.uint64)
        assert (multiply_pairs(model, nothing, nothing, zero) == zero).all()
        short = a.copy(), b.copy()
        for side in short:
            side[:, 3:] = 0
        kept = [np.ascontiguousarray(side[:, :3]).view(np.uint16) for side in short]
        alone = fused_dot(
            model.step, kept[0], np.ascontiguousarray(kept[1].T),
            np.ascontiguousarray(np.broadcast_to(c.astype(np.uint32)[:, None], (512, 512))),
            a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, instruction_k=model.instruction_k,
        )  # fmt: skip
        assert (multiply_pairs(model, *short, c) == np.diagonal(alone)).all(), name


triton = pytest.importorskip("triton", reason="Triton has no wheel for this platform")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("fused", [True, False])
def test_a_scalar_chain_of_triton_is_the_chain_that_it_names(fused: bool) -> None:
    from tests.equivalence_corpus import cases, kernel_of

    case = cases()[f"scalar_chain-{fused}"]
    compiled = kernel_of(case, {"num_warps": 1, "enable_fp_fusion": False, "BLOCK": 128})
    w = walk(compiled.ptx, compiled.launch)
    a = Column(parameter=0, offset=0, stride=4, dtype=F32)
    b = Column(parameter=1, offset=4 * 5, stride=4 * 128, dtype=F32)
    where = Element(parameter=2, offset=4 * 5, a=a, b=b, k=96, output_dtype=F32)
    assert implements(w, scalar(96, fused=fused), where) is True
    assert implements(w, scalar(96, fused=not fused), where) is False
    halves = scalar(96, cut(Contiguous(span=48)), fused=fused)
    assert implements(w, halves, where) is False


def matrix(k: int, *cuts: Cut) -> GEMMDesc:
    leaf = Accumulator(instruction_k=MODEL.instruction_k, residue=ResidueLast(), step=MODEL.step)
    return GEMMDesc(
        a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, output_dtype=F32, summed_k=k, cuts=cuts, accumulator=leaf
    )


@pytest.mark.parametrize(("groups", "cuts"), [(1, ()), (4, (cut(Contiguous(span=128)),))])
def test_matrix_chains_and_groups_of_them(groups: int, cuts: tuple[Cut, ...]) -> None:
    from tests.equivalence_corpus import cases, kernel_of

    case = cases()[f"gemm_kgroup-{groups}-fp16"]
    compiled = kernel_of(case, {"BK": 32, "num_stages": 2, "num_warps": 2})
    w = walk(compiled.ptx, compiled.launch)
    row, column = 3, 17
    a = Column(parameter=0, offset=2 * 512 * row, stride=2, dtype=DType.FLOAT16)
    b = Column(parameter=1, offset=2 * column, stride=2 * 64, dtype=DType.FLOAT16)
    where = Element(
        parameter=2, offset=4 * (64 * row + column), a=a, b=b, k=512, output_dtype=F32, model=MODEL
    )  # fmt: skip
    start = Start.ZERO
    wanted = tuple(cut(c.layout, start) for c in cuts)
    assert implements(w, matrix(512, *wanted), where) is True
    assert implements(w, matrix(512, cut(Contiguous(span=256))), where) is False
    short = matrix(512, cut(Contiguous(span=300, short=Short.FIRST)))
    assert implements(w, short, where) is False


def test_our_own_chain_kernel_is_the_chain_that_it_is_chosen_for() -> None:
    from gemmdesc.kernels.choose import Structure
    from gemmdesc.kernels.compiling import KERNELS, compile_variant
    from gemmdesc.kernels.variants import enumerate_variants

    found = [
        v
        for v in enumerate_variants(232448)
        if v.kernel == Structure.CHAIN_POINTER.value
        and v.loaded is v.stored is DType.FLOAT16
        and dict(v.constants)["BLOCK_M"] <= 32
        and not dict(v.constants)["WIDE_OFFSETS"]
    ]
    variant = min(found, key=str)
    constants = dict(variant.constants)
    m, n, k = int(constants["BLOCK_M"]), int(constants["BLOCK_N"]), 2 * int(constants["BLOCK_K"])
    names = [p.name for p in KERNELS[variant.kernel].params if p.name not in constants]
    # Row-major A and B whatever the layouts the variant may assume: a unit stride is given where it demands one.
    strides = {
        "stride_am": k, "stride_ak": 1, "stride_bk": n, "stride_bn": 1, "stride_os": m * n, "stride_om": n,
        "stride_on": 1,
    }  # fmt: skip
    given = {"M": m, "N": n, "summed_k": k, "span": k, **strides}
    arguments = {i: given[name] for i, name in enumerate(names) if name in given}
    text = compile_variant(variant, capability=90).asm["ptx"]
    w = walk(text, Launch(arguments=arguments))
    a = Column(parameter=names.index("a_ptr"), offset=0, stride=2, dtype=DType.FLOAT16)
    b = Column(parameter=names.index("b_ptr"), offset=0, stride=2 * n, dtype=DType.FLOAT16)
    desc = matrix(k)
    desc = GEMMDesc(**{**{f: getattr(desc, f) for f in desc.__dataclass_fields__}, "output_dtype": DType.FLOAT16})
    where = Element(
        parameter=names.index("out_ptr"), offset=0, a=a, b=b, k=k, output_dtype=DType.FLOAT16, model=MODEL
    )  # fmt: skip
    assert implements(w, desc, where) is True
