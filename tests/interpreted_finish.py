"""Run by test_kernels_interpreted.py as interpreted_kernels.py is: what opens or follows a sum, against the replay.

Every product has NaN, infinities, -0.0 and subnormals in its operands, C, bias and scalars; some are written over C.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from gemmdesc.arithmetic.device_functions import card_tanh_approx
from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.kernels import fma_float32
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import bits_dtype, first_mismatch
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.beside import Beside
from gemmdesc.kernels.finished import FinishedChoice
from gemmdesc.kernels.launch import matrix_meta
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tiled import choose_tiled
from gemmdesc.regions import Region, whole
from tests.finish_samples import draw_finished
from tests.gelu_samples import stand_in_tanh
from tests.interpreted_kernels import CARD, STEP, TORCH, draw, patch_interpreter, place

#: Scalars that a caller may bring; most are ordinary ones.
SCALARS = (1.0, 1.5, -0.75, 3.25, 0.1, -0.0, 0.0, 2.0**-140, 3.0e38, float("inf"), float("nan"))
#: NaN (quiet and signalling), infinities, zeros and subnormals by type.
SPECIALS = {
    DType.FLOAT16: (0x7C01, 0x7E00, 0x7C00, 0xFC00, 0x0000, 0x8000, 0x0001, 0x83FF),
    DType.BFLOAT16: (0x7F81, 0x7FC0, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x0001, 0x807F),
    DType.FLOAT32: (0x7F800001, 0x7FC00000, 0x7F800000, 0xFF800000, 0, 0x80000000, 1, 0x807FFFFF),
}


def exact_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """One rounding, whatever the operands are."""
    flat = [np.ascontiguousarray(v.data, np.float32) for v in (x, y, z)]
    total = fma_float32(*(np.broadcast_to(v, flat[2].shape).ravel() for v in flat)).reshape(flat[2].shape)
    nan = np.uint32(0x7FFFFFFF).view(np.float32)
    return interpreter.TensorHandle(np.where(np.isnan(total), nan, total), x.dtype.scalar)


def tangent(builder: Any, text: str, constraints: str, values: Any, types: Any, *rest: Any) -> Any:
    """The one instruction that the finishing kernel spells in PTX."""
    assert text.split()[0] == "tanh.approx.f32"
    found = interpreter.TensorHandle(stand_in_tanh(values[0].data), interpreter.tl.float32)
    return SimpleNamespace(get_result=lambda i: (found,)[i])


def drawn(rng: np.random.Generator, dtype: DType, rows: int, columns: int) -> Any:
    """Wide values, a few of them special."""
    bits = draw(rng, dtype, rows, columns)
    some = rng.random((rows, columns)) < 0.05
    return np.where(some, rng.choice(np.array(SPECIALS[dtype], dtype=bits_dtype(dtype)), (rows, columns)), bits)


def scalar(rng: np.random.Generator) -> float:
    return float(np.float32(SCALARS[int(rng.choice(len(SCALARS), p=[0.2, *[0.13] * 4, *[0.28 / 6] * 6]))]))


def check(
    desc: GEMMDesc, m: int, n: int, k: int, number: int, rng: np.random.Generator, told: dict[str, Any],
    device: str = "cpu",
) -> None:  # fmt: skip
    """One product, all bytes; a GPU's tests do the same on their ``device``."""
    a_bits, b_bits = draw(rng, desc.a_dtype, m, k), draw(rng, desc.a_dtype, k, n)
    specials = np.array(SPECIALS[desc.a_dtype], dtype=np.uint16)
    a_bits[0], a_bits[1, k // 2], a_bits[2, k - 1] = 0x8000, specials[0], specials[2]
    a_bits[3] = rng.integers(0, 64, k)
    b_bits[k // 3, n // 2] = specials[3]
    output = desc.output_dtype
    c_bits = drawn(rng, output, m, n)
    by_row = bool(rng.integers(2))
    bias_bits = drawn(rng, output, *((m, 1) if by_row else (1, n)))
    alpha, beta = scalar(rng), scalar(rng)
    inputs = EpilogueInputs(
        alpha=alpha, beta=beta, c=c_bits, c_dtype=output, bias=bias_bits, bias_dtype=output,
        tanh_approx=stand_in_tanh if device == "cpu" else card_tanh_approx(0),
    )  # fmt: skip
    expected = replay(desc, a_bits, b_bits, epilogue=inputs)
    layouts = rng.choice(["r", "c"], 3)
    a, b = (place(x, desc.a_dtype, by).to(device) for x, by in zip((a_bits, b_bits), layouts[:2], strict=True))
    c = place(c_bits, output, layouts[2]).to(device)
    bias = place(bias_bits, output, "r").to(device).expand(m, n)
    out = c if number % 3 == 0 else place(np.full_like(expected, 0x1234), output, layouts[2]).to(device)
    meta = KernelMeta(
        m=m, n=n, k=k, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3 if device == "cpu" else 132,
        shared_bytes=232448,
    )  # fmt: skip
    regions = whole(desc, m, n)
    if number % 5 == 0:
        i = m // 3
        bounds = [(0, i, 0, n), (i, m, 0, n)]
        names = ("row_begin", "row_end", "column_begin", "column_end")
        regions = tuple(Region(**dict(zip(names, x, strict=True)), descriptor=desc) for x in bounds)
    choice = choose_tiled(regions, meta, CARD)
    if isinstance(choice, Declined):
        told["declined"][choice.reason] = told["declined"].get(choice.reason, 0) + 1
        return
    launch_choice(choice, a, b, out, Beside(c=c, bias=bias, alpha=alpha, beta=beta))
    got = out.cpu().contiguous().view(torch.int16 if output.itemsize == 2 else torch.int32).numpy()
    wrong = first_mismatch(expected, got.view(expected.dtype))
    name = choice.structure.value
    if isinstance(choice, FinishedChoice):
        name += f" {choice.sums.structure.value}{' early' if choice.opens_early else ''}"
    told["counts"][name] = told["counts"].get(name, 0) + 1
    if wrong:
        told["bad"].append(f"{name} {m}x{n}x{k} {layouts} alpha {alpha} beta {beta} {wrong} {desc}")


def main() -> None:
    patch_interpreter()
    interpreter.InterpreterBuilder.create_fma = exact_fma
    interpreter.InterpreterBuilder.create_inline_asm = tangent
    assert set(TORCH) == set(SPECIALS)
    rng = np.random.default_rng(int(sys.argv[1]))
    told: dict[str, Any] = {"counts": {}, "bad": [], "declined": {}}
    for number in range(int(sys.argv[2])):
        m, n = [(37, 45), (12, 70), (136, 130), (66, 33)][int(rng.integers(4))]
        k = int(rng.choice([40, 72, 101, 131]))
        if number % 4 == 3:
            m, n = [(37, 9), (5, 70), (8, 8)][int(rng.integers(3))]
        check(draw_finished(rng, number, k, STEP), m, n, k, number, rng, told)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
