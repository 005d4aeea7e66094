"""Which function is the library's gelu?  Candidates in CUDA C, each held against what its epilogue wrote.  On a GPU.

    python scripts/find_gelu.py OUT.json [--problems 40] [--samples OUT.npz] [--kinds gelu,gelu_bias] [--seed 0]

Problems of the kinds are drawn as campaigns draw them. One product in each sum is not zero, so that the sum is known
in every bit. A candidate is one spelling of x Phi(x) by the hyperbolic tangent: how its argument is summed, which
tangent or exponential it takes, and how the result is put together, with contraction or without; and which x: the sum
as it is or rounded to D's type, before or after a bias, or both. OUT.json counts, for each family of answers
(``algo_id``, type of D, epilogue), the elements that each of the best candidates gives; NaN equals NaN. ``--samples``
keeps sums, biases and what came out, to look for further spellings without a card.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gemmdesc.bits import bits_dtype, from_float32, to_float32
from gemmdesc.dtypes import DType
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.interface import NO_INPUTS, Inputs
from gemmdesc.nvrtc import Kernel, load_kernels, pointer, word
from gemmdesc.operands import DenseOperand
from gemmdesc.probe.sampling import draw_problem, scope_named
from gemmdesc.problem import BIASED, Failed, GemmProblem, Refused

#: Elements of D and of both operands, at most.
MOST = 1 << 22
#: sqrt(2 / pi), the cubic's factor, and their product.
HEAD = """\
typedef long long i64;
#define K0 0.7978845608028654f
#define K1 0.044715f
#define K01 0.035677408136300125f
static __device__ float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
static __device__ float tanh_approx(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
static __device__ float ex2_approx(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
static __device__ float rcp_approx(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
static __device__ float off(float x, int units) { return __int_as_float(__float_as_int(x) + units); }
#define LOG2E 1.4426950408889634f
"""
ARGUMENTS = {
    "k0*(z*fma(k1,zz,1))": "mul(K0, mul(z, fma_(K1, mul(z, z), 1.0f)))",
    "(k0*z)*fma(k1,zz,1)": "mul(mul(K0, z), fma_(K1, mul(z, z), 1.0f))",
    "(k0*z)*(1+k1*zz)": "mul(mul(K0, z), add(1.0f, mul(K1, mul(z, z))))",
    "(k0*z)*fma(k1*z,z,1)": "mul(mul(K0, z), fma_(mul(K1, z), z, 1.0f))",
    "(k0*z)*(1+(k1*z)*z)": "mul(mul(K0, z), add(1.0f, mul(mul(K1, z), z)))",
    "z*fma(k01,zz,k0)": "mul(z, fma_(K01, mul(z, z), K0))",
    "z*fma(k01*z,z,k0)": "mul(z, fma_(mul(K01, z), z, K0))",
    "k0*fma(k1,zzz,z)": "mul(K0, fma_(K1, mul(mul(z, z), z), z))",
    "k0*(z+k1*zzz)": "mul(K0, add(z, mul(K1, mul(mul(z, z), z))))",
    "k0*fma(k1*zz,z,z)": "mul(K0, fma_(mul(K1, mul(z, z)), z, z))",
    "k0*fma(k1*z*z,z,z)": "mul(K0, fma_(mul(mul(K1, z), z), z, z))",
    "fma(k0,z,k01*zzz)": "fma_(K0, z, mul(K01, mul(mul(z, z), z)))",
    "fma(k01*zz,z,k0*z)": "fma_(mul(K01, mul(z, z)), z, mul(K0, z))",
}
#: Two of them with constants some units in the last place off: how they were rounded is not known.
NEAR = {
    form.format(f"k01{d:+d}ulp", f"k0{e:+d}ulp"): made.format(f"off(K01, {d})", f"off(K0, {e})")
    for form, made in (
        ("z*fma({},zz,{})", "mul(z, fma_({}, mul(z, z), {}))"),
        ("z*fma({}*z,z,{})", "mul(z, fma_(mul({}, z), z, {}))"),
    )
    for d, e in product(range(-2, 21), (-2, -1, 0, 1, 2))
    if d or e
}
#: What the best of them have after the tangent.
NEAR_RESULT = "fma(0.5*z,t,0.5*z)"
TANGENTS = {
    "tanh.approx": "tanh_approx(y)",
    "tanhf": "tanhf(y)",
    "1-2/(1+__expf(2y))": "add(1.0f, -__fdividef(2.0f, add(1.0f, __expf(mul(2.0f, y)))))",
    "1-2/(1+expf(2y))": "add(1.0f, -__fdiv_rn(2.0f, add(1.0f, expf(mul(2.0f, y)))))",
    "fma(-2,rcp(1+ex2(2y*log2e)),1)": "fma_(-2.0f, rcp_approx(add(1.0f, ex2_approx(mul(mul(2.0f, y), LOG2E)))), 1.0f)",
    "fma(-2,rcp(1+ex2(y*2log2e)),1)": "fma_(-2.0f, rcp_approx(add(1.0f, ex2_approx(mul(y, 2.0f * LOG2E)))), 1.0f)",
    "fma(2,rcp(1+ex2(-2y*log2e)),-1)": "fma_(2.0f, rcp_approx(add(1.0f, ex2_approx(mul(y, -2.0f * LOG2E)))), -1.0f)",
}
RESULTS = {
    "(0.5*z)*(1+t)": "mul(mul(0.5f, z), add(1.0f, t))",
    "z*(0.5*(1+t))": "mul(z, mul(0.5f, add(1.0f, t)))",
    "fma(0.5*z,t,0.5*z)": "fma_(mul(0.5f, z), t, mul(0.5f, z))",
    "z*fma(0.5,t,0.5)": "mul(z, fma_(0.5f, t, 0.5f))",
}
#: Without a tangent: x by the logistic function of 2 y.
LOGISTIC = {
    "z/(1+__expf(-2y))": "__fdividef(z, add(1.0f, __expf(mul(-2.0f, y))))",
    "z*rcp(1+ex2(-2log2e*y))": "mul(z, rcp_approx(add(1.0f, ex2_approx(mul(y, -2.0f * LOG2E)))))",
    "z*rcp(1+ex2(log2e*(-2y)))": "mul(z, rcp_approx(add(1.0f, ex2_approx(mul(mul(-2.0f, y), LOG2E)))))",
    "z/(1+expf(-2y))": "__fdiv_rn(z, add(1.0f, expf(mul(-2.0f, y))))",
}
KERNEL = """
extern "C" __global__ void {name}(float* out, const float* x, i64 n) {{
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {{
    const float z = x[i]; const float y = {argument}; const float t = {tangent}; out[i] = {result};
  }}
}}
"""


@dataclass(frozen=True)
class Candidate:
    """One spelling; ``result`` uses z and t, or y where there is no tangent."""

    words: str
    argument: str
    tangent: str
    result: str


def candidates() -> list[Candidate]:
    """Every argument with every tangent and result, and with every logistic function."""
    made = [
        Candidate(f"y={a}; t={t}; {r}", ARGUMENTS[a], TANGENTS[t], RESULTS[r])
        for a, t, r in product(ARGUMENTS, TANGENTS, RESULTS)
    ]
    made += [
        Candidate(f"y={a}; t=tanh.approx; {NEAR_RESULT}", NEAR[a], TANGENTS["tanh.approx"], RESULTS[NEAR_RESULT])
        for a in NEAR
    ]
    return made + [
        Candidate(f"y={a}; {r}", ARGUMENTS[a], "0.0f", LOGISTIC[r]) for a, r in product(ARGUMENTS, LOGISTIC)
    ]


def source(every: list[Candidate]) -> str:
    """CUDA C of all candidates, kernels c0, c1, ..."""
    made = (
        KERNEL.format(name=f"c{i}", argument=c.argument, tangent=c.tangent, result=c.result)
        for i, c in enumerate(every)
    )
    return HEAD + "".join(made)


def drawn(kind: str, seed: int) -> Iterator[GemmProblem]:
    """Problems of the kind whose operands and output are small enough."""
    scope, number = scope_named(kind), 0
    while True:
        p = draw_problem(scope, seed, number)
        number += 1
        if max(p.m * p.n, (p.m + p.n) * p.k) <= MOST and p.m * p.n >= 1 << 12:
            yield p


def operand(rng: np.random.Generator, dtype: DType, outer: int, k: int, at: int, spread: bool) -> DenseOperand:
    """One element a row, in column ``at``: of any exponent where ``spread``, else between 1 and 4; specials too."""
    low, high = (-14.0, 4.0) if spread else (0.0, 2.0)
    values = np.exp2(rng.uniform(low, high, outer)) * np.where(rng.random(outer) < 0.5, -1, 1)
    bits = from_float32(values.astype(np.float32), dtype)
    if spread and outer > 64:
        bits[:6] = from_float32(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 60000.0], np.float32), dtype)
    whole = np.zeros((outer, k), bits_dtype(dtype))
    whole[:, at] = bits
    return DenseOperand(dtype=dtype, array=whole)


def run_one(library: CublasLt, p: GemmProblem, rng: np.random.Generator) -> tuple[str, Any, Any, Any] | None:
    """The family, the sums (m, n) and biases (m, 1) in float32, the latter None without one, and the bytes of D.

    None where the library does not take part.
    """
    answer = library.answer(p)
    if isinstance(answer, Refused) or p.batch_count != 1:
        return None
    at = int(rng.integers(p.k))
    a, b = operand(rng, p.a_dtype, p.m, p.k, at, True), operand(rng, p.b_dtype, p.n, p.k, at, False)
    inputs, bias = NO_INPUTS, None
    if p.epilogue in BIASED:
        drawn_bias = from_float32(rng.normal(0, 2, (1, p.m)).astype(np.float32), p.bias_dtype)
        inputs = Inputs(bias=DenseOperand(dtype=p.bias_dtype, array=drawn_bias))
        bias = to_float32(drawn_bias[0], p.bias_dtype)[:, None]
    got = library.run(p, answer, a, b, inputs=inputs)
    if isinstance(got, Failed):
        return None
    with np.errstate(all="ignore"):
        x = to_float32(a.array[:, at], p.a_dtype)[:, None] * to_float32(b.array[:, at], p.b_dtype)[None, :]
    # The other products are +0.0, and a sum that is zero is +0.0 on tensor cores.
    sums = np.where(x == 0, np.float32(0.0), x).astype(np.float32)
    family = f"algo_id={answer.algo_id} custom_option={answer.custom_option} {p.a_dtype.value}->{p.d_dtype.value}"
    return f"{family} {p.epilogue.value}", sums, bias, got


def entering(sums: Any, bias: Any, dtype: DType) -> dict[str, Any]:
    """What may enter the function, by name; roundings to D's type where that is narrower."""

    def rounded(x: Any) -> Any:
        return to_float32(from_float32(x, dtype), dtype)

    with np.errstate(all="ignore"):
        if bias is None:
            plain = {"x=sum": sums}
            return plain if dtype is DType.FLOAT32 else plain | {"x=round(sum)": rounded(sums)}
        found = {"x=sum+bias": sums + bias}
        if dtype is not DType.FLOAT32:
            found["x=round(sum)+bias"] = rounded(sums) + bias
            found["x=round(sum+bias)"] = rounded(sums + bias)
            found["x=round(round(sum)+bias)"] = rounded(rounded(sums) + bias)
        return found


def held(kernels: list[Kernel], x: np.ndarray, got: np.ndarray, dtype: DType) -> np.ndarray:
    """How many elements each candidate gives."""
    z = torch.from_numpy(np.ascontiguousarray(x)).cuda().reshape(-1)
    view = {DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}[dtype]
    whole = torch.from_numpy(np.ascontiguousarray(got).view(f"i{dtype.itemsize}").copy())
    theirs, out = whole.cuda().reshape(-1), torch.empty_like(z)
    nan = theirs.view(view).isnan()
    counts = []
    stream = torch.cuda.current_stream().cuda_stream
    for kernel in kernels:
        arguments = (pointer(out.data_ptr()), pointer(z.data_ptr()), word(z.numel()))
        kernel.launch((min(1 << 16, -(-z.numel() // 256)), 1, 1), (256, 1, 1), arguments, stream)
        mine = out.to(view)
        counts.append(((mine.view(theirs.dtype) == theirs) | (mine.isnan() & nan)).sum())
    return torch.stack(counts).cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=int, default=40, help="of each kind")
    parser.add_argument("--kinds", default="gelu,gelu_bias")
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    every = candidates()
    kernels = load_kernels(torch.cuda.current_device(), source(every), [f"c{i}" for i in range(len(every))])
    rng = np.random.default_rng(given.seed)
    equal: dict[tuple[str, str], np.ndarray] = {}
    sizes: dict[str, int] = {}
    samples: dict[str, np.ndarray] = {}
    with CublasLt() as library:
        for kind in given.kinds.split(","):
            for _, p in zip(range(given.problems), drawn(kind, given.seed), strict=False):
                found = run_one(library, p, rng)
                if found is None:
                    continue
                family, sums, bias, got = found
                for name, x in entering(sums, bias, p.d_dtype).items():
                    equal[family, name] = equal.get((family, name), 0) + held(kernels, x, got, p.d_dtype)
                sizes[family] = sizes.get(family, 0) + sums.size
                kept = rng.choice(sums.size, min(sums.size, 1 << 13), replace=False)
                whole = (sums, np.broadcast_to(np.float32(0) if bias is None else bias, sums.shape))
                words = [np.ascontiguousarray(v, np.float32).reshape(-1)[kept].view(np.uint32) for v in whole]
                samples[family] = np.stack([*words, got.reshape(-1)[kept].astype(np.uint32)])
    families = {}
    for family, size in sizes.items():
        counts = [(int(c), f"{name}; {every[i].words}") for (f, name), of in equal.items() if f == family
                  for i, c in enumerate(of)]  # fmt: skip
        families[family] = {"elements": size, "best": sorted(counts, key=lambda x: -x[0])[:8]}
    report = {
        "card": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat(),
        "candidates": len(every), "families": families,
    }  # fmt: skip
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if given.samples:
        np.savez_compressed(given.samples, **samples)
    print(json.dumps({family: [of["elements"], *of["best"][0]] for family, of in families.items()}, indent=1))


if __name__ == "__main__":
    main()
