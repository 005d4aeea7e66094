"""One product for each structure of kernels, described by hand, for ``bench_host.py``.

What the library's answers lead to depends on the card and the release; these do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdesc.descriptor import (
    Accumulator,
    Balanced,
    Contiguous,
    Cut,
    GEMMDesc,
    OperandCast,
    Relu,
    ResidueLast,
    Rounding,
    ScalarStep,
    Scale,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.choose import choose_kernel
from gemmdesc.kernels.config import Feature
from gemmdesc.kernels.launch import TORCH_TYPES
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import Choice, choose_whole
from gemmdesc.plan.cards import card_arithmetic

FP16, FP32, E4M3, BF16 = DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3FN, DType.BFLOAT16
CARD = card_arithmetic("sm_90")
#: What the card of these products has; none of them needs more.
SM_COUNT, SHARED_BYTES = 132, 227 * 1024
#: Structures that others may be faster than.
ASKED_FOR = (
    Structure.CHAIN_TMA, Structure.CHAIN_WIDE, Structure.CHAIN_SPECIALISED, Structure.LANE_NEST, Structure.SCALAR_NEST
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Described:
    """A product of ``desc``; ``layouts`` of A, B and the output; ``structure``: the one that computes it."""

    structure: str
    desc: GEMMDesc
    m: int
    n: int
    k: int
    layouts: str = "rrr"

    @property
    def name(self) -> str:
        return f"{self.structure}: {self.m}x{self.n}x{self.k} {self.layouts} {self.desc.a_dtype.value}"

    @property
    def meta(self) -> KernelMeta:
        """Of dense, well aligned tensors."""
        sizes = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        types = (self.desc.a_dtype, self.desc.b_dtype, self.desc.output_dtype)
        a, b, out = (
            MatrixMeta(dtype=t, row_stride=c if x == "r" else 1, column_stride=1 if x == "r" else r, alignment=256)
            for (r, c), t, x in zip(sizes, types, self.layouts, strict=True)
        )
        return KernelMeta(
            m=self.m, n=self.n, k=self.k, a=a, b=b, out=out, sm_count=SM_COUNT, shared_bytes=SHARED_BYTES
        )

    @property
    def choice(self) -> Choice:
        structure = Structure(self.structure)
        asked = structure.merged or structure in ASKED_FOR
        wide = frozenset({Feature.WIDE}) if structure is Structure.CHAIN_WIDE else None
        found: Choice | Declined = (
            choose_kernel(self.desc, self.meta, CARD, structure=structure, unasked=wide)
            if asked else choose_whole(self.desc, self.meta, CARD)
        )  # fmt: skip
        if isinstance(found, Declined):
            raise SystemExit(f"{self.name} must have a kernel (got {found.reason})")
        return found


def chain(k: int, *cuts: Cut, step: int = 16, dtype: DType = FP16, output: DType | None = None) -> GEMMDesc:
    """A chain of matrix steps with the card's own arithmetic."""
    matrix = CARD.step_for(dtype, dtype)
    assert matrix is not None
    leaf = Accumulator(instruction_k=step, residue=ResidueLast(), step=matrix.step)
    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=output or dtype, summed_k=k, cuts=cuts, accumulator=leaf
    )


def cut(layout: Contiguous | Balanced) -> Cut:
    return Cut(layout=layout, partial_dtype=FP32, merge_dtype=FP32, start=Start.FIRST)


def described() -> tuple[Described, ...]:
    """Every structure, at sizes that a GPU is soon done with."""
    scalar = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True, start=Start.ZERO))
    single = GEMMDesc(a_dtype=FP32, b_dtype=FP32, output_dtype=FP32, summed_k=64, cuts=(), accumulator=scalar)
    lanes = replace(single, summed_k=512, cuts=(cut(Contiguous(span=128)),))
    float8 = replace(chain(512, cut(Contiguous(span=128)), step=32, dtype=E4M3, output=BF16), epilogue=(Scale(),))
    slices, odd = chain(4096, cut(Contiguous(span=1024))), chain(999, cut(Contiguous(span=333)), step=8)
    cast = OperandCast(dtype=DType.TFLOAT32, rounding=Rounding.NEAREST_AWAY)
    tf32 = replace(chain(256, step=8, dtype=DType.TFLOAT32, output=FP32), a_dtype=FP32, b_dtype=FP32)
    return (
        Described(structure="chain_tma", desc=chain(512), m=256, n=256, k=512),
        Described(structure="chain_tma", desc=chain(512), m=256, n=256, k=512, layouts="rcc"),
        Described(structure="chain_wide", desc=chain(512), m=256, n=256, k=512),
        Described(structure="chain_tma", desc=slices, m=80, n=96, k=4096),
        Described(structure="chain_specialised", desc=chain(512), m=512, n=640, k=512, layouts="rcr"),
        Described(structure="chain_specialised", desc=chain(512), m=512, n=640, k=512, layouts="ccc"),
        Described(structure="merged_tma", desc=slices, m=80, n=96, k=4096),
        Described(structure="merged_tma", desc=slices, m=8, n=4096, k=4096, layouts="rcr"),
        Described(structure="chain_tma", desc=chain(499, step=8), m=300, n=301, k=499),
        Described(structure="chain_tma", desc=odd, m=300, n=301, k=999, layouts="crr"),
        Described(structure="merged_tma", desc=odd, m=300, n=301, k=999, layouts="crr"),
        Described(structure="merged_pointer", desc=slices, m=33, n=45, k=4096, layouts="crr"),
        Described(structure="merged_grouped", desc=odd, m=33, n=45, k=999),
        Described(structure="folded_chain", desc=chain(256, cut(Contiguous(span=64))), m=1280, n=1280, k=256),
        Described(structure="chain_pointer", desc=chain(101), m=33, n=45, k=101),
        Described(structure="grouped_chain", desc=chain(101, step=8), m=33, n=45, k=101),
        Described(structure="balanced_chains", desc=chain(1000, cut(Balanced(count=6, unit=16))), m=96, n=80, k=1000),
        Described(structure="finished", desc=replace(chain(512), epilogue=(Relu(),)), m=128, n=128, k=512),
        Described(structure="scalar_nest", desc=replace(single, cuts=(cut(Contiguous(span=16)),) * 2), m=8, n=9, k=64),
        Described(structure="lane_nest", desc=lanes, m=600, n=1, k=512),
        Described(structure="fma_chain", desc=single, m=64, n=64, k=64),
        Described(structure="kmajor_chain", desc=float8, m=128, n=128, k=512, layouts="rcr"),
        Described(structure="kmajor_chain", desc=replace(tf32, a_cast=cast, b_cast=cast), m=128, n=128, k=256),
    )


def launches_of(case: Described, seed: int) -> tuple[dict[str, Any], dict[str, Callable[[], torch.Tensor]]]:
    """What is known of ``case``'s program, two ways to launch the same kernels, and torch's call of such a product."""
    from gemmdesc.kernels.beside import NOTHING
    from gemmdesc.kernels.launch_kmajor import Scales
    from gemmdesc.kernels.launch_tiled import launch_choice
    from gemmdesc.kernels.preparing import Taken, Unprepared, prepare, run_prepared

    generator = torch.Generator("cuda").manual_seed(seed)
    types = {d: t for t, d in TORCH_TYPES.items()}

    def tensor(rows: int, columns: int, dtype: DType, layout: str) -> torch.Tensor:
        stored = (rows, columns) if layout == "r" else (columns, rows)
        values = torch.randn(stored, device="cuda", generator=generator).to(types[dtype])
        return values if layout == "r" else values.T

    d = case.desc
    a, b = tensor(case.m, case.k, d.a_dtype, case.layouts[0]), tensor(case.k, case.n, d.b_dtype, case.layouts[1])
    outs = [tensor(case.m, case.n, d.output_dtype, case.layouts[2]) for _ in range(3)]
    scales = Scales(scale=torch.full((1,), 0.75, device="cuda")) if d.epilogue == (Scale(),) else None
    choice, taken = case.choice, Taken(scales=int(scales is not None))
    program = prepare(choice, case.meta, taken, torch.device("cuda", torch.cuda.current_device()))
    if isinstance(program, Unprepared):
        raise SystemExit(f"{case.name} must be prepared (got {program.reason})")

    one = torch.ones(1, device="cuda")

    def ours() -> torch.Tensor:
        run_prepared(program, a, b, outs[0], NOTHING, scales)
        return outs[0]

    def triton() -> torch.Tensor:
        launch_choice(choice, a, b, outs[1], scales=scales)
        return outs[1]

    def torchs() -> torch.Tensor:
        if d.a_dtype is E4M3:
            return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, out=outs[2])
        return torch.mm(a, b, out=outs[2])

    calls = {"Triton": triton, "program": ours, "torch": torchs}
    return {"structure": case.structure, "launches": program.launches}, calls
