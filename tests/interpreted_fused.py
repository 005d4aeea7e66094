"""Run by test_fused_interpreted.py with TRITON_INTERPRET=1: fused kernels against the replay, all bytes.

The special function unit is replaced by what ``fused_samples`` has in its place, and so are the few instructions that
Triton has no operation for.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import product as pairs
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

import gemmdesc
from gemmdesc.arithmetic.epilogue import EpilogueInputs, NamedOperand
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import bits_dtype, first_mismatch, from_float32, to_float32
from gemmdesc.descriptor import Accumulator, CastTo, Contiguous, Cut, GEMMDesc, ResidueFirst, ResidueLast, Start
from gemmdesc.dropin import through
from gemmdesc.dropin.planned import ready
from gemmdesc.dropin.products import Product
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.beside import Beside
from gemmdesc.kernels.fused import FusedChoice
from gemmdesc.kernels.fused_steps import alone
from gemmdesc.kernels.instructions import assembled
from gemmdesc.kernels.launch import matrix_meta
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tiled import Choice, choose_tiled
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.ops import problems
from gemmdesc.ops.problems import launch_problem
from gemmdesc.regions import whole
from gemmdesc.routes import READ_FOR, address_alignment
from tests import fused_samples
from tests.fused_samples import FUNCTIONS, MODELS, NAMES, draw_epilogue
from tests.interpreted_finish import drawn, exact_fma, scalar
from tests.interpreted_kernels import CARD, STEP, draw, patch_interpreter, place
from tests.test_dropin_planned import planner

TORCH = {
    DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32,
    DType.FLOAT8_E4M3FN: torch.float8_e4m3fn, DType.FLOAT8_E5M2: torch.float8_e5m2,
}  # fmt: skip
ASM = {
    "ex2.approx.ftz.f32": fused_samples.stand_in_exp2, "rcp.approx.ftz.f32": fused_samples.stand_in_reciprocal,
    "fma.rn.sat.f32": fused_samples.fma_saturate, "fma.rm.f32": fused_samples.fma_down, "mov.b32": lambda x: x,
    "nanosleep.u32": lambda x: x, "prefetch.global.L2": lambda x: x,
    "cvt.rn.f16x2.f32": lambda x: from_float32(x, DType.FLOAT16),
    "cvt.rn.bf16x2.f32": lambda x: from_float32(x, DType.BFLOAT16),
}  # fmt: skip


def canonical(x: Any) -> Any:
    found = np.asarray(x, np.float32)
    return np.where(np.isnan(found), np.uint32(0x7FFFFFFF).view(np.float32), found)


def patch_more() -> None:
    """Fused operations, the special function unit, and NaNs as a GPU has them."""
    builder = interpreter.InterpreterBuilder
    builder.create_fma = exact_fma

    def asm(self: Any, text: str, constraints: str, values: Any, types: Any, *rest: Any) -> Any:
        with np.errstate(all="ignore"):
            found = np.asarray(ASM[text.split()[0]](*(np.asarray(v.data, np.float32) for v in values)))
        return Results(found.view(np.int16) if found.dtype == np.uint16 else np.asarray(found, np.float32))

    class Results:
        def __init__(self, found: Any) -> None:
            self.found = found

        def get_result(self, i: int) -> Any:
            kind = interpreter.tl.int16 if self.found.dtype == np.int16 else interpreter.tl.float32
            return interpreter.TensorHandle(self.found, kind)

    builder.create_inline_asm = asm
    narrow = builder.create_fp_trunc

    def truncated(self: Any, source: Any, target: Any) -> Any:
        # A number that is no normal float32 comes as float64 here; the annotation of a compiled kernel forbids that.
        if source.data.dtype == np.float64:
            return interpreter.TensorHandle(source.data.astype(np.float32), target.scalar)
        return narrow(self, source, target)

    builder.create_fp_trunc = truncated
    for name in ("create_fmul", "create_fsub", "create_fdiv", "create_precise_divf"):
        plain = getattr(builder, name)

        def settled(self: Any, left: Any, right: Any, plain: Any = plain) -> Any:
            with np.errstate(all="ignore"):
                result = plain(self, left, right)
            if result.data.dtype == np.float32:
                result.data = canonical(result.data)
            return result

        setattr(builder, name, settled)


def descriptor(rng: np.random.Generator, number: int, dtype: DType, k: int) -> GEMMDesc:
    output = (dtype, DType.FLOAT32, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)[int(rng.integers(4))]
    cut = Cut(
        layout=Contiguous(span=int(rng.choice([24, 64]))), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32,
        start=Start.FIRST,
    )  # fmt: skip
    split, grouped = number % 4 == 3, number % 7 == 5
    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=output, summed_k=k - number % 3, cuts=(cut,) if split else (),
        accumulator=Accumulator(
            instruction_k=8 if grouped else 16, residue=ResidueFirst(k_loop_step=32) if grouped else ResidueLast(),
            step=STEP,
        ), epilogue=draw_epilogue(rng, dtype, output),
    )  # fmt: skip


def operands(
    rng: np.random.Generator, m: int, n: int
) -> tuple[dict[str, NamedOperand], dict[str, torch.Tensor | float]]:
    """Each operand for the replay and for the kernels: whole matrices, rows, columns, numbers, of three types."""
    bits: dict[str, NamedOperand] = {}
    given: dict[str, torch.Tensor | float] = {}
    shapes = {"residual": (m, n), "row_scale": (m, 1), "column_scale": (1, n)}
    for name in NAMES:
        kind = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)[int(rng.integers(3))]
        if name in ("low", "high") or rng.random() < 0.15:
            value = scalar(rng)
            value = -1.25 if np.isnan(value) and name in ("low", "high") else value
            number = from_float32(np.array([[value]], np.float32), DType.FLOAT32)
            bits[name], given[name] = NamedOperand(bits=number, dtype=DType.FLOAT32), float(value)
            continue
        shape = shapes[name]
        made = drawn(rng, kind, *shape)
        layout = str(rng.choice(["r", "c"]))
        padded = int(rng.integers(2))
        stored = np.concatenate([made, made[:, : 3 * padded]], axis=1)
        tensor = place(stored, kind, layout)[:, : shape[1]]
        bits[name] = NamedOperand(bits=made, dtype=kind)
        given[name] = tensor.expand(m, n)
    return bits, given


def check(number: int, rng: np.random.Generator, told: dict[str, Any]) -> None:
    dtype = (DType.FLOAT16, DType.BFLOAT16)[number % 2]
    m, n = [(37, 45), (12, 70), (136, 144), (66, 33), (5, 9), (130, 16)][int(rng.integers(6))]
    k = int(rng.choice([40, 72, 101, 131]))
    desc = descriptor(rng, number, dtype, k)
    a_bits, b_bits = draw(rng, dtype, m, k), draw(rng, dtype, k, n)
    infinity = 0x7C00 if dtype is DType.FLOAT16 else 0x7F80
    a_bits[0], a_bits[1, k // 2], a_bits[2, k - 1] = 0x8000, infinity + 1, infinity
    bits, given = operands(rng, m, n)
    bias_bits = drawn(rng, dtype, 1, n)
    bias = place(bias_bits, dtype, "r").expand(m, n)
    alpha = scalar(rng)
    inputs = EpilogueInputs(alpha=alpha, bias=bias_bits, bias_dtype=dtype, named=bits)
    expected = replay(desc, a_bits, b_bits, epilogue=inputs)
    layouts = rng.choice(["r", "c"], 3)
    a, b = (place(x, dtype, by) for x, by in zip((a_bits, b_bits), layouts[:2], strict=True))
    out = blank(m, n, desc.output_dtype, str(layouts[2]))
    meta = KernelMeta(
        m=m, n=n, k=k, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3, shared_bytes=232448
    )  # fmt: skip
    choice = choose_tiled(whole(desc, m, n), meta, CARD, fused=True)
    if isinstance(choice, Declined):
        told["declined"][choice.reason] = told["declined"].get(choice.reason, 0) + 1
        return
    launch_choice(choice, a, b, out, Beside(bias=bias, alpha=alpha, named=given))
    count(told, choice, expected, read(out, desc.output_dtype), f"{m}x{n}x{k} {layouts} alpha {alpha} {desc}")


def blank(m: int, n: int, dtype: DType, layout: str) -> torch.Tensor:
    shape = (m, n) if layout == "r" else (n, m)
    made = torch.full(shape, 0x12, dtype={1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize])
    tensor = made.view(TORCH[dtype])
    return tensor if layout == "r" else tensor.T


def read(out: torch.Tensor, dtype: DType) -> Any:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    return out.contiguous().view(integer).numpy().view(bits_dtype(dtype))


def count(told: dict[str, Any], choice: Choice, expected: Any, got: Any, words: str) -> None:
    name = choice.structure.value
    if isinstance(choice, FusedChoice):
        name = f"{choice.product.structure.value}{' whole' if choice.in_chain else ' after'}"
    told["counts"][name] = told["counts"].get(name, 0) + 1
    wrong = first_mismatch(expected, got)
    if wrong:
        told["bad"].append(f"{name} {words} {wrong}")


@triton.jit
def every_pattern_kernel(x_ptr, y_ptr, OPERATION: tl.constexpr, BETWEEN: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(y_ptr + index, alone(tl.load(x_ptr + index), tl.full((), OPERATION, tl.int32), BETWEEN))


def check_patterns(dtype: DType, told: dict[str, Any]) -> None:
    """Every pattern of a 16-bit type through each function, in float32 and for the type itself, against its model."""
    x = to_float32(np.arange(65536, dtype=np.uint16), dtype).reshape(-1)
    for step, between in pairs(FUNCTIONS, (0, {DType.FLOAT16: 1, DType.BFLOAT16: 2}[dtype])):
        program = assembled((step,))
        assert not isinstance(program, Declined)
        y = torch.empty(65536)
        every_pattern_kernel[(1,)](torch.from_numpy(x), y, program.program, between, 65536)
        rounded = dtype if between else DType.FLOAT32
        with np.errstate(all="ignore"):
            expected = MODELS[step](x)
        found = y.numpy()
        if between:
            expected, found = canonical(expected), canonical(found)
        wrong = first_mismatch(from_float32(expected, rounded), from_float32(found, rounded))
        if wrong:
            told["bad"].append(f"{step} {dtype.value} {between} {wrong}")
        told["functions"] += 65536


def check_functions(dtype: DType, told: dict[str, Any]) -> None:
    """Functions of products, against their models."""
    patterns = np.arange(65536, dtype=np.uint16)
    for step in FUNCTIONS:
        m, n = 128, 80
        a_bits = patterns[:: 65536 // m].reshape(-1, 1)
        b_bits = from_float32(np.linspace(-3, 3, n, dtype=np.float32)[None], dtype)
        plain = GEMMDesc(
            a_dtype=dtype, b_dtype=dtype, output_dtype=dtype, summed_k=1, cuts=(),
            accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=STEP),
        )  # fmt: skip
        values = to_float32(replay(plain, a_bits, b_bits), dtype)
        with np.errstate(all="ignore"):
            expected = from_float32(MODELS[step](values), dtype)
        desc = replace(plain, epilogue=(CastTo(dtype=dtype), step))
        a, b, out = place(a_bits, dtype, "r"), place(b_bits, dtype, "r"), blank(m, n, dtype, "r")
        meta = KernelMeta(
            m=m, n=n, k=1, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3, shared_bytes=232448
        )  # fmt: skip
        choice = choose_tiled(whole(desc, m, n), meta, CARD)
        assert isinstance(choice, FusedChoice), choice
        launch_choice(choice, a, b, out, Beside())
        count(told, choice, expected, read(out, dtype), f"{step} {dtype.value} {m}x{n}")


class Interpreted:
    """Products of tensors on a CPU by our kernels in the interpreter, planned for a simulated card."""

    device_type = "cpu"

    def circumstances(self, product: Product) -> Any:
        return TorchSettings(), READ_FOR

    def run(self, product: Product) -> Any:
        found = ready(planner(), product, *self.circumstances(product))
        if isinstance(found, Declined):
            return found
        self.kernels.append(found.plan.kernel)
        found.fill()
        launch_problem(found.plan, found.tensors)
        found.finish()
        return found.out

    def __init__(self) -> None:
        self.kernels: list[Any] = []


def check_calls(told: dict[str, Any]) -> None:
    """Whole calls: the product with its epilogue against torch's operators on the product alone."""
    executor = Interpreted()
    through.executor_of = lambda **choices: executor
    problems.address_alignment = lambda address: 256 if address % 64 == 0 else address_alignment(address)
    made = torch.Generator().manual_seed(0)

    def drawn_tensor(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=made) * torch.exp2(torch.randint(-4, 5, shape, generator=made))).half()

    e, w, bias = gemmdesc.Epilogue(), drawn_tensor(40, 24), drawn_tensor(24)
    for x in (drawn_tensor(20, 40), drawn_tensor(2, 9, 40), drawn_tensor(9, 2, 40).transpose(0, 1)):
        shape = (*x.shape[:-1], 24)
        cases = {
            "bias and rows": (e.add("b").multiply("r"), {"b": bias, "r": drawn_tensor(*shape[:-1], 1)}),
            "residual": (e.relu().add("residual"), {"residual": drawn_tensor(*shape)}),
            "eight": (e.to(torch.float32).clamp(-9, 9).to(torch.float8_e5m2), {}),
        }
        for name, (epilogue, given) in cases.items():
            # Two matrices alone take a short way that leads to a GPU.
            plain = {"matmul": lambda x=x, **k: gemmdesc.matmul(x, w, **k) if k or x.dim() > 2 else gemmdesc.mm(x, w),
                     "linear": lambda x=x, **k: gemmdesc.linear(x, w.T.contiguous(), bias, **k)}  # fmt: skip
            for call, product in plain.items():
                want = epilogue(product(), **given)
                got = product(epilogue=epilogue, operands=given)
                told["calls"] += 1
                same = torch.equal(want.view(torch.uint8), got.view(torch.uint8))
                if want.dtype != got.dtype or want.shape != got.shape or not same:
                    told["bad"].append(f"{call} {name} {tuple(x.shape)} {executor.kernels[-1]}")
    a, b, r = drawn_tensor(3, 16, 40), drawn_tensor(3, 40, 24), drawn_tensor(3, 16, 24)
    want = gemmdesc.matmul(a, b) + r
    got = gemmdesc.matmul(a, b, epilogue=e.add("r"), operands={"r": r})
    told["calls"] += 1
    if not torch.equal(want, got):
        told["bad"].append("batch")
    told["fused"] = sum(isinstance(k, FusedChoice) for k in executor.kernels)


def main() -> None:
    patch_interpreter()
    patch_more()
    rng = np.random.default_rng(int(sys.argv[1]))
    told: dict[str, Any] = {"counts": {}, "bad": [], "declined": {}, "functions": 0, "calls": 0}
    for number in range(int(sys.argv[2])):
        check(number, rng, told)
    if sys.argv[3] == "functions":
        for dtype in (DType.FLOAT16, DType.BFLOAT16):
            check_patterns(dtype, told)
            check_functions(dtype, told)
    if sys.argv[3] == "calls":
        check_calls(told)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
