"""Run by test_kmajor_interpreted.py in a process of its own, with TRITON_INTERPRET=1 and no GPU.

As ``interpreted_kernels.py``, for 8-bit floats, tfloat32 and float32 nests.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.kernels import fma_float32
from gemmdesc.arithmetic.replay import fused_dot, replay
from gemmdesc.bits import Bits, first_mismatch, from_float32, to_float32
from gemmdesc.descriptor import Accumulator, ResidueLast, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.launch import TORCH_TYPES, matrix_meta
from gemmdesc.kernels.launch_kmajor import Scales
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.verification import kind_kernels
from tests import interpreted_kinds
from tests.interpreted_kernels import patch_interpreter
from tests.kind_profiles import KMAJOR_KINDS, small_scopes
from tests.kmajor_samples import FLOAT8_STEP, TF32_STEP, Sample, contiguous, draw, samples, tf32
from tests.nest_samples import draw_nest

TYPES = {
    tl.float16: DType.FLOAT16, tl.bfloat16: DType.BFLOAT16, tl.float32: DType.FLOAT32,
    tl.float8e4nv: DType.FLOAT8_E4M3FN, tl.float8e5: DType.FLOAT8_E5M2,
}  # fmt: skip
CARD = card_arithmetic("sm_90")
NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def _bits(handle: Any) -> Bits:
    dtype = TYPES[handle.dtype.scalar]
    return np.ascontiguousarray(handle.data).view(f"u{dtype.itemsize}")


def _dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    if precision == interpreter._ir.INPUT_PRECISION.IEEE and a.dtype.scalar == tl.float32:
        total = d
        for k in range(a.data.shape[1]):
            left, right = (interpreter.TensorHandle(x, tl.float32) for x in (a.data[:, k : k + 1], b.data[k : k + 1]))
            total = _fma(builder, left, right, total)
        return total
    narrow = a.dtype.scalar != tl.float32
    types = [TYPES[x.dtype.scalar] if narrow else DType.TFLOAT32 for x in (a, b)]
    if not narrow:
        assert not ((_bits(a) | np.uint32(0)) & np.uint32(0x1FFF)).any(), "what is multiplied must be tfloat32 already"
    out = fused_dot(
        FLOAT8_STEP if narrow else TF32_STEP, _bits(a), _bits(b), np.ascontiguousarray(d.data).view(np.uint32),
        a_dtype=types[0], b_dtype=types[1], instruction_k=32 if narrow else 8,
    )  # fmt: skip
    return interpreter.TensorHandle(out.view(np.float32), d.dtype.scalar)


def _to_float8(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
    assert source.dtype.scalar == tl.float32
    return interpreter.TensorHandle(from_float32(source.data, TYPES[target.scalar]), target.scalar)


def _convert(builder: Any, source: Any, target: Any) -> Any:
    values = to_float32(_bits(source), TYPES[source.dtype.scalar])
    bits = from_float32(values, TYPES[target.scalar])
    held = {tl.float16: np.float16, tl.float32: np.float32}.get(target.scalar, np.uint16)
    return interpreter.TensorHandle(bits.view(held), target.scalar)


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    parts = [np.ascontiguousarray(v, dtype=np.float32) for v in np.broadcast_arrays(x.data, y.data, z.data)]
    total = np.asarray(fma_float32(*(p.ravel() for p in parts)), np.float32).reshape(parts[0].shape)
    return interpreter.TensorHandle(np.where(np.isnan(total), NAN, total), x.dtype.scalar)


def patch() -> None:
    """Exact steps, conversions and products beyond those of 16-bit operands."""
    patch_interpreter()
    builder = interpreter.InterpreterBuilder
    builder.create_dot, builder.create_fma = _dot, _fma
    builder.create_fp_to_fp = _to_float8
    builder.create_fp_trunc = builder.create_fp_ext = _convert
    plain = builder.create_fmul

    def multiply(self: Any, left: Any, right: Any) -> Any:
        result = plain(self, left, right)
        result.data = np.where(np.isnan(result.data), NAN, result.data)
        return result

    builder.create_fmul = multiply


def place(bits: Bits, dtype: DType, layout: str) -> torch.Tensor:
    stored = np.ascontiguousarray(bits if layout == "r" else bits.T)
    types = {d: t for t, d in TORCH_TYPES.items()}
    held = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    tensor = torch.from_numpy(stored.view("u1" if dtype.itemsize == 1 else f"i{dtype.itemsize}").copy())
    assert tensor.dtype is held
    tensor = tensor.view(types[dtype])
    return tensor if layout == "r" else tensor.T


def check(sample: Sample, seed: int, counts: dict[str, int], bad: list[str]) -> None:
    """All bytes of one product."""
    desc, rng = sample.desc, np.random.default_rng(seed)
    a_bits = draw(rng, desc.a_dtype, sample.m, sample.k)
    b_bits = draw(rng, desc.b_dtype, sample.k, sample.n, special=seed % 2 == 0 and sample.n > 8)
    scale, output_scale = np.float32(rng.standard_normal()), np.float32(2.0 ** rng.integers(-8, 9) * 1.37)
    inputs = EpilogueInputs(alpha=float(scale), output_scale=float(output_scale))
    expected = replay(desc, a_bits, b_bits, epilogue=inputs)
    a, b = place(a_bits, desc.a_dtype, sample.layouts[0]), place(b_bits, desc.b_dtype, sample.layouts[1])
    out = place(np.full_like(expected, 0x34), desc.output_dtype, sample.layouts[2])
    meta = KernelMeta(
        m=sample.m, n=sample.n, k=sample.k, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3,
        shared_bytes=232448,
    )  # fmt: skip
    choice = choose_whole(desc, meta, CARD)
    if isinstance(choice, Declined):
        bad.append(f"{sample.name} {choice.reason}")
        return
    scales = Scales(scale=torch.tensor([scale]), output=torch.tensor([output_scale]))
    launch_choice(choice, a, b, out, scales=scales)
    held = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[desc.output_dtype.itemsize]
    got = out.contiguous().view(held).numpy().view(expected.dtype)
    wrong = first_mismatch(expected, got)
    kind = str(choice.structure.value)
    if hasattr(choice, "folded"):
        kind += f" {choice.folded}{' packed' if choice.packings else ''}{' slices' if choice.blocks.slices > 1 else ''}"
    counts[kind] = counts.get(kind, 0) + 1
    if wrong:
        bad.append(f"{sample} {kind} {wrong}")


def planned(count: int) -> dict[str, Any]:
    """The first problems of every kind, planned and run as the bench of ``verify --kind`` does, scales included."""
    kind_kernels.run_problem = interpreted_kinds.run_here
    planner = interpreted_kinds.planner_of_kinds(KMAJOR_KINDS)
    told: dict[str, Any] = {"counts": {}, "bad": [], "caught": 0}
    for name, scope in small_scopes(KMAJOR_KINDS).items():
        for index in range(count):
            interpreted_kinds.compare(scope, index, planner, told, of=name)
    interpreted_kinds.compare(small_scopes(["float8"])["float8"], 1, planner, told, wrong=True)
    return told


def main() -> None:
    patch()
    counts: dict[str, int] = {}
    bad: list[str] = []
    for seed, sample in enumerate(samples()):
        check(sample, seed, counts, bad)
    rng = np.random.default_rng(0)
    for seed in range(8):
        m, n = [(37, 9), (5, 70), (40, 5), (8, 8)][seed % 4]
        k = int(rng.choice([7, 31, 64, 101]))
        desc = draw_nest(rng, DType.FLOAT32, k)
        layouts = "".join(rng.choice(["r", "c"], 3))
        check(Sample(name=f"nest-{seed}", desc=desc, m=m, n=n, k=k, layouts=layouts), seed, counts, bad)
    for seed, (m, n, k) in enumerate([(40, 70, 37), (33, 16, 64), (70, 150, 5), (17, 17, 100)]):
        cuts = ((), (contiguous(-(-k // 3), start=list(Start)[seed // 2]),))[seed % 2]
        step = ScalarStep(fused=True, start=list(Start)[seed % 2])
        desc = replace(tf32(k - seed, *cuts), a_cast=None, b_cast=None)
        desc = replace(desc, accumulator=Accumulator(instruction_k=1, residue=ResidueLast(), step=step))
        layouts = "".join(rng.choice(["r", "c"], 3))
        check(Sample(name=f"fma-{seed}", desc=desc, m=m, n=n, k=k, layouts=layouts), seed, counts, bad)
    told = planned(int(sys.argv[1]))
    told |= {"bad": bad + told["bad"], "counts": counts, "planned": told["counts"]}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
