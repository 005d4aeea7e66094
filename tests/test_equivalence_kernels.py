"""Our own kernels are what they are chosen for: what a launch runs is compiled, read, and held against its descriptor.

Launches are recorded where the launcher hands them to Triton, on CPU tensors, so that grids, tables and arguments are
the launcher's own.  Compiled for sm_80 and sm_90, with the accumulator model of each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

from gemmdesc.arithmetic.models import AccumulatorModel, find_model
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.equivalence import Launch, Walked, walk
from gemmdesc.equivalence.spelling import Column
from gemmdesc.equivalence.structure import Element, implements, structure
from gemmdesc.errors import Declined
from gemmdesc.kernels import launch as launching
from gemmdesc.kernels.card import CardArithmetic, MatrixStep
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.compiling import KERNELS, compile_variant
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.nest import NEST_CONFIGS, NestChoice, NestConfig, choose_nest
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variants import Variant
from gemmdesc.normal_form import normal_form

TYPES = {DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}
F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
SHARED = 166912


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@dataclass(frozen=True)
class Recorded:
    """One launch: the variant, how many programs, and its arguments without the constants."""

    variant: Variant
    programs: int
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """One product on CPU tensors, which are never read."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor

    @property
    def meta(self) -> KernelMeta:
        a, b, out = (
            MatrixMeta(dtype=next(d for d, t in TYPES.items() if t is x.dtype), row_stride=x.stride(0),
                       column_stride=x.stride(1), alignment=256)
            for x in (self.a, self.b, self.out)
        )  # fmt: skip
        (m, k), n = self.a.shape, self.b.shape[1]
        return KernelMeta(m=m, n=n, k=k, a=a, b=b, out=out, sm_count=4, shared_bytes=SHARED)


def call(m: int, n: int, k: int, dtype: DType, output: DType, layouts: str = "rr") -> Call:
    made = []
    for (rows, columns), layout in zip(((m, k), (k, n)), layouts, strict=True):
        made.append(torch.empty(rows, columns) if layout == "r" else torch.empty(columns, rows).T)
    a, b = (x.to(TYPES[dtype]) for x in made)
    return Call(a, b, torch.empty(m, n, dtype=TYPES[output]))


def recorded(choice: KernelChoice | NestChoice, on: Call, monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """What launching ``choice`` runs."""
    found: list[Recorded] = []
    monkeypatch.setattr(launching, "enqueue", lambda v, programs, *given: found.append(Recorded(v, programs, given)))
    launching.launch_here(choice, on.a, on.b, on.out)
    return found


def read(launches: list[Recorded], capability: int, edit: Callable[[str], str] = str) -> tuple[Walked, int]:
    """All launches, each on what the one before left, and which parameter of the last is the output."""
    walked: Walked | None = None
    before: dict[int, int] = {}
    for launch in launches:
        compiled = compile_variant(launch.variant, capability=capability)
        tensors = {i: x for i, x in enumerate(launch.arguments) if isinstance(x, torch.Tensor)}
        numbers = {i: x for i, x in enumerate(launch.arguments) if not isinstance(x, torch.Tensor)}
        constants = dict(launch.variant.constants)
        free = [p.name for p in KERNELS[launch.variant.kernel].params if p.name not in constants]
        assert len(free) == len(launch.arguments)
        given = Launch(
            grid=(launch.programs, 1, 1),
            arguments={i: struct.unpack("I", struct.pack("f", x))[0] if isinstance(x, float) else int(x)
                       for i, x in numbers.items()},
            contents={i: x.contiguous().numpy().tobytes() for i, x in tensors.items() if x.dtype == torch.int32},
            contraction=launch.variant.fp_fusion,
        )  # fmt: skip
        taking = {i: before[x.data_ptr()] for i, x in tensors.items() if x.data_ptr() in before}
        walked = walk(edit(compiled.asm["ptx"]), given, after=walked, taking=taking)
        (stored,) = set(walked.stored.parameter.tolist())
        before = {tensors[stored].data_ptr(): stored}
    assert walked is not None
    return walked, stored


def elements(
    on: Call, launches: list[Recorded], parameter: int, model: AccumulatorModel | None = None
) -> Iterator[Element]:
    """The last element and one within; the launcher may have changed A and B over."""
    (m, k), n = on.a.shape, on.b.shape[1]
    dtype, output = on.meta.a.dtype, on.meta.out.dtype
    size = dtype.itemsize
    places = {x.data_ptr(): i for i, x in enumerate(launches[0].arguments[:2])}
    for row, column in {(m - 1, n - 1), (m // 2, n // 3)}:
        yield Element(
            parameter=parameter,
            offset=output.itemsize * (row * on.out.stride(0) + column * on.out.stride(1)),
            a=Column(parameter=places[on.a.data_ptr()], offset=size * row * on.a.stride(0),
                     stride=size * on.a.stride(1), dtype=dtype),
            b=Column(parameter=places[on.b.data_ptr()], offset=size * column * on.b.stride(1),
                     stride=size * on.b.stride(0), dtype=dtype),
            k=k,
            output_dtype=output,
            model=model,
        )  # fmt: skip


def cut(layout: Contiguous | Strided, start: Start = Start.FIRST, partial: DType = F32) -> Cut:
    return Cut(layout=layout, partial_dtype=partial, merge_dtype=F32, start=start)


def scalar(k: int, *cuts: Cut, fused: bool = True, start: Start = Start.ZERO, dtype: DType = BF16) -> GEMMDesc:
    leaf = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=fused, start=start))
    return GEMMDesc(a_dtype=dtype, b_dtype=dtype, output_dtype=F32, summed_k=k, cuts=cuts, accumulator=leaf)


LANES = tuple(cut(Strided(count=2, unit=1)) for _ in range(3))
NESTS = {
    "one chain": scalar(37),
    "one chain, two roundings": scalar(37, fused=False),
    "opened with -0.0": scalar(19, fused=False, start=Start.FIRST),
    "opened with -0.0, fused": scalar(19, start=Start.FIRST),
    "parts": scalar(50, cut(Contiguous(span=16))),
    "parts from zero, the short one first": scalar(50, cut(Contiguous(span=16, short=Short.FIRST), Start.ZERO)),
    "lanes of a butterfly": scalar(40, *LANES, fused=False),
    "parts of lanes": scalar(48, cut(Contiguous(span=24)), cut(Strided(count=4, unit=2), Start.ZERO)),
    "rounded parts": scalar(30, cut(Contiguous(span=8), partial=BF16)),
    "half precision": scalar(33, cut(Strided(count=4, unit=1)), dtype=F16),
}
SMALL = {"outputs": (NEST_CONFIGS[0], 3, 5), "both": (NEST_CONFIGS[1], 3, 5), "leaves": (NEST_CONFIGS[2], 1, 3)}


def nest_of(desc: GEMMDesc, on: Call, config: NestConfig) -> NestChoice:
    choice = choose_nest(desc, on.meta, config)
    assert isinstance(choice, NestChoice), choice
    return choice


@pytest.mark.parametrize(("shape", "capability"), [("outputs", 90), ("both", 80), ("both", 90), ("leaves", 90)])
@pytest.mark.parametrize("name", NESTS)
def test_a_scalar_nest_is_the_descriptor_that_it_is_launched_for(
    name: str, shape: str, capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desc, (config, m, n) = NESTS[name], SMALL[shape]
    on = call(m, n, desc.summed_k, desc.a_dtype, F32, "rc" if shape == "leaves" else "rr")
    launches = recorded(nest_of(desc, on, config), on, monkeypatch)
    walked, out = read(launches, capability)
    others = [d for d in NESTS.values() if d.summed_k == desc.summed_k and d.a_dtype is desc.a_dtype]
    for element in elements(on, launches, out):
        assert implements(walked, desc, element) is True
    for other in [*others, *changed(desc)]:
        same = normal_form(other, on.meta.k) == normal_form(desc, on.meta.k)
        assert implements(walked, other, element) is same, other


def changed(desc: GEMMDesc) -> Iterator[GEMMDesc]:
    """Descriptors that differ in one field."""
    leaf, step = desc.accumulator, desc.accumulator.step
    assert isinstance(step, ScalarStep)
    yield replace(desc, cuts=(*desc.cuts, cut(Contiguous(span=4))))
    yield replace(desc, summed_k=desc.summed_k - 1)
    yield replace(desc, accumulator=replace(leaf, step=replace(step, fused=not step.fused)))
    yield replace(desc, output_dtype=F16)
    for i, one in enumerate(desc.cuts):
        for other in (replace(one, start=Start.ZERO if one.start is Start.FIRST else Start.FIRST),
                      replace(one, partial_dtype=F16),
                      replace(one, layout=Contiguous(span=3))):  # fmt: skip
            yield replace(desc, cuts=(*desc.cuts[:i], other, *desc.cuts[i + 1 :]))


def test_a_nest_with_the_tables_of_another_order_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    desc = scalar(48, cut(Contiguous(span=12)))
    other = scalar(48, cut(Strided(count=4, unit=1)))
    on = call(3, 5, 48, BF16, F32)
    mine, theirs = (recorded(nest_of(d, on, NEST_CONFIGS[1]), on, monkeypatch) for d in (desc, other))
    order = 3
    mixed = replace(mine[0], arguments=(*mine[0].arguments[:order], theirs[0].arguments[order],
                                        *mine[0].arguments[order + 1 :]))  # fmt: skip
    launches = [mixed, mine[1]]
    walked, out = read(launches, 90)
    for element in elements(on, launches, out):
        assert implements(walked, desc, element) is False
        assert implements(walked, other, element) is True


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fma.rn.f32", "fma.rz.f32"),
        ("add.rn.f32", "add.rz.f32"),
        ("add.rn.f32", "add.rn.ftz.f32"),
        ("add.rn.f32", "mul.rn.f32"),
    ],
)
def test_a_nest_whose_code_says_something_else_does_not_pass(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desc = scalar(48, cut(Contiguous(span=12)))
    on = call(3, 5, 48, BF16, F32)
    launches = recorded(nest_of(desc, on, NEST_CONFIGS[1]), on, monkeypatch)
    walked, out = read(launches, 90, lambda ptx: ptx.replace("add.f32", "add.rn.f32").replace(old, new))
    assert any(old in compile_variant(x.variant, capability=90).asm["ptx"].replace("add.f32", "add.rn.f32")
               for x in launches)  # fmt: skip
    for element in elements(on, launches, out):
        assert implements(walked, desc, element) is not True


MODELS = {
    80: find_model(architecture="Ampere", instruction="mma", a_dtype=F16, b_dtype=F16, accumulator_dtype=F32),
    90: find_model(architecture="Hopper", instruction="mma", a_dtype=F16, b_dtype=F16, accumulator_dtype=F32),
}
TILES = {
    16: KernelConfig(block_m=16, block_n=16, block_k=64, num_warps=2, num_stages=3),
    32: KernelConfig(block_m=32, block_n=32, block_k=32, num_warps=4, num_stages=2),
}


def matrix(
    model: AccumulatorModel, k: int, *cuts: Cut, step: int = 0, turn: int | None = None, output: DType = F16
) -> GEMMDesc:
    residue = ResidueFirst(k_loop_step=turn) if turn else ResidueLast()
    leaf = Accumulator(instruction_k=step or model.instruction_k, residue=residue, step=model.step)
    return GEMMDesc(a_dtype=F16, b_dtype=F16, output_dtype=output, summed_k=k, cuts=cuts, accumulator=leaf)


def chosen(desc: GEMMDesc, on: Call, kind: Structure, tile: int, model: AccumulatorModel) -> KernelChoice:
    card = CardArithmetic(
        steps=(MatrixStep(operand_dtype=F16, lanes=model.instruction_k, step=model.step),)
    )  # fmt: skip
    choice = choose_kernel(desc, on.meta, card, config=TILES[tile], structure=kind)
    assert isinstance(choice, KernelChoice), choice
    return choice


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("k", "layouts"), [(64, "rr"), (100, "rc"), (100, "cr"), (131, "rr")])
def test_a_chain_of_matrix_steps_is_the_descriptor_that_it_is_launched_for(
    k: int, tile: int, layouts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[90]
    desc = matrix(model, k)
    on = call(40, 24, k, F16, F16, layouts)
    launches = recorded(chosen(desc, on, Structure.CHAIN_POINTER, tile, model), on, monkeypatch)
    walked, out = read(launches, 90)
    for element in elements(on, launches, out, model):
        assert implements(walked, desc, element) is True
        for other in (matrix(model, k, step=8), matrix(model, k, cut(Contiguous(span=48))), matrix(model, k - 1),
                      matrix(model, k, turn=80 if k % 80 % 16 else 48), replace(desc, output_dtype=F32),
                      scalar(k, dtype=F16)):  # fmt: skip
            same = normal_form(other, k) == normal_form(desc, k)
            assert implements(walked, other, element) is same, other


@pytest.mark.parametrize(
    ("k", "step", "turn"), [(80, 8, None), (93, 8, None), (93, 16, 64), (100, 8, 32), (50, 16, 32)]
)
@pytest.mark.parametrize("tile", TILES)
def test_a_grouped_chain_is_the_descriptor_that_it_is_launched_for(
    k: int, step: int, turn: int | None, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[90]
    desc = matrix(model, k, step=step, turn=turn)
    on = call(20, 24, k, F16, F16)
    launches = recorded(chosen(desc, on, Structure.GROUPED_CHAIN, tile, model), on, monkeypatch)
    walked, out = read(launches, 90)
    for element in elements(on, launches, out, model):
        assert implements(walked, desc, element) is True
        found = structure(walked, element)
        assert isinstance(found, GEMMDesc), found
        assert normal_form(found, k) == normal_form(desc, k)
        for other in (matrix(model, k, step=24 - step), matrix(model, k), matrix(model, k, step=step, turn=48)):
            same = normal_form(other, k) == normal_form(desc, k)
            assert implements(walked, other, element) is same, other


@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize("partial", [F32, F16])
@pytest.mark.parametrize(("k", "span"), [(128, 48), (100, 64)])
def test_slices_and_their_merge_are_the_descriptor_that_they_are_launched_for(
    k: int, span: int, partial: DType, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[90]
    desc = matrix(model, k, cut(Contiguous(span=span), start, partial))
    on = call(20, 24, k, F16, F16)
    launches = recorded(chosen(desc, on, Structure.CHAIN_POINTER, 32, model), on, monkeypatch)
    assert [x.variant.kernel for x in launches] == ["chain_pointer", "merge"]
    walked, out = read(launches, 90)
    for element in elements(on, launches, out, model):
        assert implements(walked, desc, element) is True
        other_start = Start.ZERO if start is Start.FIRST else Start.FIRST
        for other in (matrix(model, k), matrix(model, k, cut(Contiguous(span=16), start, partial)),
                      matrix(model, k, cut(Contiguous(span=span), other_start, partial)),
                      matrix(model, k, cut(Contiguous(span=span), start, BF16))):  # fmt: skip
            same = normal_form(other, k) == normal_form(desc, k)
            assert implements(walked, other, element) is same, other


def test_the_same_text_on_another_card_is_another_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """sm_80 takes eight products in a step: what is read depends on the model, and a model is never guessed."""
    on = call(20, 24, 64, F16, F16)
    hopper, ampere = MODELS[90], MODELS[80]
    assert ampere.instruction_k == 8
    launches = recorded(chosen(matrix(hopper, 64), on, Structure.CHAIN_POINTER, 32, hopper), on, monkeypatch)
    walked, out = read(launches, 80)
    for element in elements(on, launches, out, ampere):
        assert implements(walked, matrix(ampere, 64), element) is True
        assert implements(walked, matrix(hopper, 64), element) is False
        assert isinstance(structure(walked, replace(element, model=None)), Declined)
