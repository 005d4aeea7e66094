"""Run by test_kernels_interpreted.py in a process of its own, with TRITON_INTERPRET=1 and no GPU.

Triton's interpreter runs the real kernels; its matrix product and its conversions are replaced by the exact models of
``gemmdesc.arithmetic`` and ``gemmdesc.bits``, so that the bytes of whole kernels can be compared with the replay.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from gemmdesc.arithmetic.replay import fused_dot, replay
from gemmdesc.bits import first_mismatch, from_float32, to_float32
from gemmdesc.descriptor import (
    Accumulator,
    Balanced,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    Rounding,
    Short,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels import chain, choose, fused_chain, merged_chain, wide_chain
from gemmdesc.kernels.balanced import choose_balanced
from gemmdesc.kernels.card import CardArithmetic, MatrixStep
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.launch import matrix_meta
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import Choice, choose_tiled
from gemmdesc.regions import Region
from tests.nest_samples import draw_nest

STEP = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
CARD = CardArithmetic(
    steps=tuple(MatrixStep(operand_dtype=d, lanes=16, step=STEP) for d in (DType.FLOAT16, DType.BFLOAT16))
)
TORCH = {DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}
#: What a result holds before it is written, and what must stay around it.
FILL = 0x1234
NARROW = {tl.float16: DType.FLOAT16, tl.bfloat16: DType.BFLOAT16}


def _bits(handle: Any) -> Any:
    return np.ascontiguousarray(handle.data).view(np.uint16)


def _dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    dtype = NARROW[a.dtype.scalar]
    assert d.data.dtype == np.float32
    c = np.ascontiguousarray(d.data).view(np.uint32)
    out = fused_dot(STEP, _bits(a), _bits(b), c, a_dtype=dtype, b_dtype=dtype, instruction_k=16)
    return interpreter.TensorHandle(out.view(np.float32), d.dtype.scalar)


def _convert(builder: Any, source: Any, target: Any) -> Any:
    have, want = source.dtype.scalar, target.scalar
    if have == tl.float32 and want in NARROW:
        rounded = from_float32(source.data, NARROW[want])
        return interpreter.TensorHandle(rounded.view(np.float16) if want == tl.float16 else rounded, want)
    assert have in NARROW, (have, want)
    assert want == tl.float32
    return interpreter.TensorHandle(to_float32(_bits(source), NARROW[have]), want)


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """One rounding: products of narrow operands are exact in 64 bits, and a sum's tie beyond these is not drawn."""
    with np.errstate(over="ignore", invalid="ignore"):
        a, b, c = (np.asarray(v.data, np.longdouble) for v in (x, y, z))
        total = (a * b + c).astype(np.float32)
    nan = np.uint32(0x7FFFFFFF).view(np.float32)
    return interpreter.TensorHandle(np.where(np.isnan(total), nan, total), x.dtype.scalar)


def _descriptor_store(builder: Any, desc: Any, value: Any, indices: Any) -> Any:
    """As Hopper stores: of the last chunk of 16 bytes all, whether the tensor ends in it or not."""
    chunk = 16 // (desc.base.dtype.element_ty.primitive_bitwidth // 8)
    inner = desc.shape[-1]
    whole = interpreter.TensorHandle(-(-inner.data // chunk) * chunk, inner.dtype)
    seen = interpreter.TensorDescHandle(
        desc.base, [*desc.shape[:-1], whole], desc.strides, desc.block_shape, desc.padding
    )
    return _plain_descriptor_store(builder, seen, value, indices)


_plain_descriptor_store = interpreter.InterpreterBuilder.create_descriptor_store


def patch_interpreter() -> None:
    """Exact matrix steps, conversions, fused steps and NaNs, stores of whole chunks; scalars as NumPy wants them.

    One program after the other has none to wait for.  Warps that wait for one another are nothing that runs here, so no
    choice is one of the specialised chain.
    """
    structures_for = choose.structures_for
    choose.structures_for = lambda *of: tuple(s for s in structures_for(*of) if s is not Structure.CHAIN_SPECIALISED)
    for kernels in (chain, fused_chain, merged_chain, wide_chain):
        kernels.wait_for_previous = kernels.let_next_start = lambda: None
    builder = interpreter.InterpreterBuilder
    builder.create_descriptor_store = _descriptor_store
    builder.create_fma = _fma
    builder.create_dot = _dot
    builder.create_fp_trunc = builder.create_fp_ext = _convert
    plain_add = builder.create_fadd

    def add(self: Any, left: Any, right: Any) -> Any:
        result = plain_add(self, left, right)
        nan = np.uint32(0x7FFFFFFF).view(np.float32)
        result.data = np.where(np.isnan(result.data), nan, result.data)
        return result

    builder.create_fadd = add
    patch_tensor = interpreter._patch_lang_tensor

    def patch_scalars(tensor: Any, *scope: Any) -> Any:
        result = patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(np.asarray(self.handle.data).reshape(-1)[0])
        return result

    interpreter._patch_lang_tensor = patch_scalars


def draw(rng: np.random.Generator, dtype: DType, rows: int, columns: int) -> Any:
    spread = 6 if dtype is DType.FLOAT16 else 30
    values = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-spread, spread + 1, (rows, columns)))
    return from_float32(values.astype(np.float32), dtype)


def place(bits: Any, dtype: DType, layout: str) -> torch.Tensor:
    stored = np.ascontiguousarray(bits if layout == "r" else bits.T)
    tensor = torch.from_numpy(stored.view(f"i{dtype.itemsize}").copy()).view(TORCH[dtype])
    return tensor if layout == "r" else tensor.T


def framed(m: int, n: int, dtype: DType, layout: str, *, padded: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A buffer of one pattern as integers, and the matrix (m, n) in it.

    ``padded``: its lines lie apart, at a pitch that a tensor descriptor takes.
    """
    lines, length = (m, n) if layout == "r" else (n, m)
    kind = torch.int16 if dtype.itemsize == 2 else torch.int32
    frame = torch.full((lines, length + (-length % 8 + 8 if padded else 0)), FILL, dtype=kind)
    inner = frame.view(TORCH[dtype])[:, :length]
    return frame, inner if layout == "r" else inner.T


def gap_stays(frame: torch.Tensor, stored: tuple[int, ...]) -> bool:
    """Whether what lies beyond the lines of a matrix stored as ``stored`` in ``frame`` is as it was."""
    return bool((frame[:, stored[1] :] == FILL).all())


def check(
    desc: GEMMDesc, m: int, n: int, k: int, layouts: str, seed: int, counts: dict[str, int], bad: list[str],
    *, padded: bool = False,
) -> None:  # fmt: skip
    """Every structure that computes ``desc``, all of its bytes; ``padded``: into lines that lie apart."""
    rng = np.random.default_rng(seed)
    a_bits, b_bits = draw(rng, desc.a_dtype, m, k), draw(rng, desc.a_dtype, k, n)
    infinity = 0x7C00 if desc.a_dtype is DType.FLOAT16 else 0x7F80
    a_bits[0] = 0x8000
    a_bits[1, k // 2] = infinity + 1
    a_bits[2, k - 1] = infinity
    a_bits[3] = rng.integers(0, 64, k)
    a_bits[4] = (rng.integers(0, 2, k) << 15) | (infinity - 1)
    b_bits[k // 3, n // 2] = infinity | 0x8000
    expected = replay(desc, a_bits, b_bits)
    a, b = place(a_bits, desc.a_dtype, layouts[0]), place(b_bits, desc.a_dtype, layouts[1])
    # The rest of a structure's kernels is what the others are; a few products show that rectangles are put together.
    for structure in [s for s in Structure if s is not Structure.REGIONS or seed % 4 == 0]:
        frame, out = framed(m, n, desc.output_dtype, layouts[2], padded=padded)
        meta = KernelMeta(
            m=m, n=n, k=k, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3, shared_bytes=232448
        )  # fmt: skip
        choice = _chosen(desc, meta, structure)
        if isinstance(choice, Declined):
            continue
        launch_choice(choice, a, b, out)
        got = out.contiguous().view(torch.int16 if desc.output_dtype.itemsize == 2 else torch.int32).numpy()
        wrong = first_mismatch(expected, got.view(expected.dtype))
        packed = isinstance(choice, KernelChoice) and choice.packing
        name = structure.value + (" packed" if packed else "") + (" padded" if padded else "")
        if not gap_stays(frame, out.shape if layouts[2] == "r" else out.T.shape):
            bad.append(f"{name} {m}x{n}x{k} {layouts} wrote between the lines of out, {desc}")
        counts[name] = counts.get(name, 0) + 1
        if wrong:
            bad.append(f"{name} {m}x{n}x{k} {layouts} {wrong} {desc}")


def _chosen(desc: GEMMDesc, meta: KernelMeta, structure: Structure) -> Choice | Declined:
    """``structure``'s kernels; as regions, a corner is computed apart from the rest."""
    if structure is Structure.BALANCED_CHAINS:
        return choose_balanced(desc, meta, CARD)
    if structure is Structure.REGIONS:
        i, j = meta.m // 3, meta.n // 2
        bounds = [(0, i, 0, j), (i, meta.m, 0, j), (0, meta.m, j, meta.n)]
        names = ("row_begin", "row_end", "column_begin", "column_end")
        regions = [Region(**dict(zip(names, b, strict=True)), descriptor=desc) for b in bounds]
        return choose_tiled(regions, meta, CARD)
    return choose_kernel(desc, meta, CARD, structure=structure)


def between_lines(dtype: DType) -> list[tuple[GEMMDesc, int, int, int, str]]:
    """Single chains and folded slices whose lines end inside a chunk of 16 bytes, or at its end."""
    leaf = Accumulator(instruction_k=16, residue=ResidueLast(), step=STEP)
    cut = Cut(
        layout=Contiguous(span=64), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST
    )  # fmt: skip
    found = []
    for m, n, output, cuts, layouts in (
        (72, 45, dtype, (), "rcr"), (41, 136, dtype, (), "rcc"), (72, 45, DType.FLOAT32, (), "rcr"),
        (150, 130, dtype, (cut,), "rcr"), (72, 48, dtype, (), "rcr"),
    ):  # fmt: skip
        desc = GEMMDesc(
            a_dtype=dtype, b_dtype=dtype, output_dtype=output, summed_k=128, cuts=cuts, accumulator=leaf
        )  # fmt: skip
        found.append((desc, m, n, 128, layouts))
    return found


def balanced(rng: np.random.Generator) -> list[tuple[GEMMDesc, int, int, int]]:
    """Slices as even as can be, folded as trees and otherwise, with the sizes to compute them at."""
    found = []
    for number, (m, n, k) in enumerate([(70, 40, 200), (33, 20, 333), (12, 130, 130), (40, 36, 97)]):
        spans = [8, 4, 2][: int(rng.integers(4))]
        fold = tuple(Contiguous(span=s, short=(Short.FIRST, Short.LAST)[number % 2]) for s in spans)
        dtype = (DType.FLOAT16, DType.BFLOAT16)[number % 2]
        cut = Cut(
            layout=Balanced(count=(7, 5, 3, 6)[number], unit=(16, 8, 32, 16)[number]), partial_dtype=DType.FLOAT32,
            merge_dtype=(DType.FLOAT32, dtype)[int(rng.integers(2))], start=Start.FIRST, fold=fold,
        )  # fmt: skip
        leaf = Accumulator(instruction_k=(16, 16, 8, 16)[number], residue=ResidueLast(), step=STEP)
        desc = GEMMDesc(
            a_dtype=dtype, b_dtype=dtype, output_dtype=(dtype, DType.FLOAT32)[number // 2], summed_k=k, cuts=(cut,),
            accumulator=leaf,
        )  # fmt: skip
        found.append((desc, m, n, k))
    return found


def main() -> None:
    patch_interpreter()
    counts: dict[str, int] = {}
    bad: list[str] = []
    rng, every = np.random.default_rng(int(sys.argv[1])), int(sys.argv[2])
    sizes = [(150, 136, 88), (37, 45, 101), (136, 152, 131), (12, 130, 72)]
    for number, ((m, n, k), step, dtype) in enumerate(product(sizes, (8, 16), (DType.FLOAT16, DType.BFLOAT16))):
        for span in (None, int(rng.choice([64, 24, 37]))):
            cut = Cut(
                layout=Contiguous(span=span or 1),
                partial_dtype=(DType.FLOAT32, dtype)[int(rng.integers(2))],
                merge_dtype=(DType.FLOAT32, dtype)[int(rng.integers(2))],
                start=(Start.FIRST, Start.ZERO)[int(rng.integers(2))],
            )
            turn = (None, 32, 64)[int(rng.integers(3))]
            desc = GEMMDesc(
                a_dtype=dtype,
                b_dtype=dtype,
                output_dtype=(dtype, DType.FLOAT32)[int(rng.integers(2))],
                summed_k=k - int(rng.integers(3)),
                cuts=(cut,) if span else (),
                accumulator=Accumulator(
                    instruction_k=step, residue=ResidueFirst(k_loop_step=turn) if turn else ResidueLast(), step=STEP
                ),
            )
            layouts = "".join(rng.choice(["r", "c"], 3))
            # Of sizes, steps and types one half is cut, the other whole.
            if (number + number // 4 + bool(span)) % every == 0:
                check(desc, m, n, k, layouts, number, counts, bad)
    for number in range(24 // every):
        dtype = (DType.FLOAT16, DType.BFLOAT16)[number % 2]
        m, n = [(37, 9), (5, 70), (200, 5), (8, 8)][number % 4]
        k = int(rng.choice([7, 31, 64, 101]))
        check(draw_nest(rng, dtype, k), m, n, k, "".join(rng.choice(["r", "c"], 3)), number, counts, bad)
    for number, (desc, m, n, k, layouts) in enumerate(
        found for dtype in NARROW.values() for found in between_lines(dtype)
    ):
        check(desc, m, n, k, layouts, number, counts, bad, padded=True)
    for number, (desc, m, n, k) in enumerate(balanced(rng)):
        check(desc, m, n, k, "".join(rng.choice(["r", "c"], 3)), number, counts, bad)
    sys.stdout.write(json.dumps({"counts": counts, "bad": bad}) + "\n")


if __name__ == "__main__":
    main()
