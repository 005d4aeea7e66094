"""Hold the kernels for 8-bit floats, tfloat32 and float32 against the replay and against torch, on a GPU.

    PYTHONPATH=. python scripts/check_kmajor.py OUT [--seconds 120] [--parts fixed,random,torch,speed] [--warm 14]
                                                    [--shard 0/1]

One JSON line for each product goes to OUT/kmajor-SHARD.jsonl; what is there already is not computed again, so that a
run that ended at its time is taken up by the same command.  ``--device cpu`` rehearses in Triton's interpreter
(TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, bits_dtype, first_mismatch
from gemmdesc.descriptor import Accumulator, GEMMDesc, ResidueLast, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.fma import FMA_CONFIGS, FmaChoice, choose_fma
from gemmdesc.kernels.kmajor import KMajorChoice, choose_kmajor
from gemmdesc.kernels.kmajor_blocks import TILES
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.nest import choose_nest
from gemmdesc.kernels.tiled import Choice, choose_whole
from gemmdesc.kernels.variant import Variant
from gemmdesc.kernels.variants import enumerate_variants
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.text import to_text
from tests.kmajor_samples import E4M3, E5M2, FP32, Sample, contiguous, draw, float8, samples, tf32
from tests.nest_samples import draw_nest

CARD = card_arithmetic("sm_90")
#: Multiply-adds of a replay on sampled rows and columns.
MOST_WORK = 1 << 26
SPEED = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 8192), (16, 4096, 4096), (256, 4096, 4096))
HELD = {1: "uint8", 2: "int16", 4: "int32"}

Record = dict[str, Any]


def to_tensor(bits: Bits, dtype: DType, layout: str, device: str) -> Any:
    """``bits`` stored along rows or columns."""
    import torch

    from gemmdesc.kernels.launch import TORCH_TYPES

    stored = np.ascontiguousarray(bits if layout == "r" else bits.T)
    view = stored.view("u1" if dtype.itemsize == 1 else f"i{dtype.itemsize}").copy()
    tensor = torch.from_numpy(view).to(device).view({d: t for t, d in TORCH_TYPES.items()}[dtype])
    return tensor if layout == "r" else tensor.T


def to_bits(tensor: Any, dtype: DType) -> Bits:
    """The patterns of a tensor, on the host."""
    import torch

    held = tensor.contiguous().view(getattr(torch, HELD[dtype.itemsize]))
    result: Bits = held.cpu().numpy().view(bits_dtype(dtype))
    return result


def meta_of(a: Any, b: Any, out: Any, device: str) -> KernelMeta:
    """The chooser's view, without a GPU as well."""
    from gemmdesc.kernels.launch import kernel_meta, matrix_meta

    if device == "cuda":
        return kernel_meta(a, b, out)
    return KernelMeta(
        m=a.shape[0], n=b.shape[1], k=a.shape[1], a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3,
        shared_bytes=232448,
    )  # fmt: skip


def sampled(size: int, rng: np.random.Generator, most: int) -> np.ndarray:
    """The first and the last indices and some between."""
    some = {*range(min(4, size)), size - 1, *rng.integers(0, size, most).tolist()}
    return np.array(sorted(some), dtype=np.int64)


def check(sample: Sample, seed: int, device: str, *, special: bool = True, tiles: bool = True) -> Record:
    """One product against the replay, and under every tile."""
    import torch

    from gemmdesc.kernels.launch_kmajor import Scales
    from gemmdesc.kernels.launch_tiled import launch_choice

    desc, rng = sample.desc, np.random.default_rng(seed)
    a_bits = draw(rng, desc.a_dtype, sample.m, sample.k, special=special)
    b_bits = draw(rng, desc.b_dtype, sample.k, sample.n, special=special and seed % 2 == 0 and sample.n > 8)
    scale, output_scale = np.float32(rng.standard_normal()), np.float32(2.0 ** rng.integers(-8, 9) * 1.37)
    a = to_tensor(a_bits, desc.a_dtype, sample.layouts[0], device)
    b = to_tensor(b_bits, desc.b_dtype, sample.layouts[1], device)
    blank = np.full((sample.m, sample.n), 0x34, bits_dtype(desc.output_dtype))
    out = to_tensor(blank, desc.output_dtype, sample.layouts[2], device)
    meta = meta_of(a, b, out, device)
    choice = choose_whole(desc, meta, CARD)
    if isinstance(choice, Declined):
        return {"declined": choice.reason}
    scales = Scales(scale=torch.tensor([scale], device=device), output=torch.tensor([output_scale], device=device))
    launch_choice(choice, a, b, out, scales=scales)
    got = to_bits(out, desc.output_dtype)
    most = max(2, int((MOST_WORK / sample.k) ** 0.5) // 2)
    rows, cols = sampled(sample.m, rng, min(most, 60)), sampled(sample.n, rng, min(most, 60))
    inputs = EpilogueInputs(alpha=float(scale), output_scale=float(output_scale))
    expected = replay(desc, a_bits, b_bits, rows=rows, cols=cols, epilogue=inputs)
    wrong = first_mismatch(expected, got[np.ix_(rows, cols)])
    record: Record = {"outputs": expected.size, "wrong": 0 if wrong is None else wrong.count, "tiles": 0, "moved": 0}
    if wrong is not None:
        record["first"] = str(wrong)
    record["structure"] = choice.structure.value
    if tiles:
        if isinstance(choice, KMajorChoice):
            record["folded"], record["packed"] = choice.folded, choice.packings is not None
        for other in others(choice, desc, meta):
            launch_choice(other, a, b, out, scales=scales)
            record["tiles"] += 1
            record["moved"] += first_mismatch(got, to_bits(out, desc.output_dtype)) is not None
    return record


def others(choice: Choice, desc: GEMMDesc, meta: KernelMeta) -> Iterator[Choice]:
    """The same product under every tile or config of its structure, and a tiled chain as a nest too."""
    found: list[Choice | Declined | None] = []
    if isinstance(choice, KMajorChoice):
        found += [choose_kmajor(desc, meta, CARD, tile) for tile in TILES]
    if isinstance(choice, FmaChoice):
        found += [choose_fma(desc, meta, config) for config in FMA_CONFIGS]
        found.append(choose_nest(desc, meta))
    yield from (c for c in found if c is not None and not isinstance(c, Declined))


def fixed(device: str) -> Iterator[tuple[str, Callable[[], Record]]]:
    """The samples of the tests at three scales, and random nests of float32 chains."""
    for scale in (1,) if device == "cpu" else (1, 4, 17):
        for seed, sample in enumerate(samples(scale)):
            yield f"{sample.name}-x{scale}", lambda s=sample, i=seed: check(s, i, device)
    rng = np.random.default_rng(1)
    for seed in range(2 if device == "cpu" else 60):
        m, n = [(37, 9), (5, 700), (400, 5), (64, 129)][seed % 4]
        k = int(rng.choice([1, 31, 64, 101, 1000]))
        sample = Sample(
            name=f"nest-{seed}", desc=draw_nest(rng, FP32, k), m=m, n=n, k=k, layouts="".join(rng.choice(["r", "c"], 3))
        )
        yield sample.name, lambda s=sample, i=seed: check(s, i, device)


def drawn(seed: int, largest: tuple[int, int, int] = (11, 11, 14)) -> Sample:
    """A product of log-uniform sizes, up to 2^``largest``, with a descriptor as the library asks for."""
    rng = np.random.default_rng(seed)
    m, n, k = (int(2 ** rng.uniform(0, e)) for e in largest)
    kind = ("float8", "float8_fast", "tf32", "float32")[seed % 4]
    split = int(rng.integers(2, 9)) if rng.integers(3) == 0 else 1
    if kind.startswith("float8"):
        m, n, k = (16 * -(-x // 16) for x in (m, n, k))
        span = -(-(k // split) // 128) * 128
        cuts = [contiguous(span)] * (0 < span < k) + [contiguous(128)] * (kind == "float8")
        pair = ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3))[rng.integers(3)]
        output = (DType.BFLOAT16, DType.FLOAT16, FP32, E4M3)[rng.integers(4)]
        desc = float8(k, *cuts, pair=pair, output=output, scales=2 if output is E4M3 else 1)
        return Sample(name=kind, desc=desc, m=m, n=n, k=k, layouts="rc" + "rc"[seed // 4 % 2])
    layouts = "".join(rng.choice(["r", "c"], 3))
    cuts = [contiguous(-(-k // split))] * (split > 1)
    desc = scalar(k, *cuts) if kind == "float32" else tf32(k, *cuts, turn=(None, 8, 16, 32)[rng.integers(4)])
    return Sample(name=kind, desc=desc, m=m, n=n, k=k, layouts=layouts)


def scalar(k: int, *cuts: Any) -> GEMMDesc:
    """A float32 chain on CUDA cores."""
    step = ScalarStep(fused=True, start=Start.ZERO)
    accumulator = Accumulator(instruction_k=1, residue=ResidueLast(), step=step)
    return GEMMDesc(
        a_dtype=FP32, b_dtype=FP32, output_dtype=FP32, summed_k=k, cuts=cuts, accumulator=accumulator
    )  # fmt: skip


def random(device: str) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Products of log-uniform sizes."""
    for seed in range(16 if device == "cpu" else 400):
        sample = drawn(seed, (6, 6, 8)) if device == "cpu" else drawn(seed)
        yield f"random-{seed}", lambda s=sample, i=seed: (
            {"kind": s.name, "size": [s.m, s.n, s.k]} | check(s, i, device, special=i % 8 == 0, tiles=i % 5 == 0)
        )


def torch_calls(device: str) -> Iterator[tuple[str, Callable[[], Record]]]:
    """What torch's own calls give, and which of a few descriptors gives the same bytes."""
    if device == "cpu":
        return
    for seed in range(48):
        yield f"torch-{seed}", lambda i=seed: against_torch(i)


def against_torch(seed: int) -> Record:
    """One call of torch's; ``equal``: the descriptors that give its bytes, ``tried``: all."""
    import torch

    from gemmdesc.kernels.launch_kmajor import Scales
    from gemmdesc.kernels.launch_tiled import launch_choice

    rng = np.random.default_rng(seed)
    kind = ("float8", "float8_fast", "tf32", "float32")[seed % 4]
    m, n, k = (int(16 * rng.integers(8, 160)) for _ in range(3))
    dtype = E4M3 if kind.startswith("float8") else FP32
    a = to_tensor(draw(rng, dtype, m, k, special=False), dtype, "r", "cuda")
    b = to_tensor(draw(rng, dtype, k, n, special=False), dtype, "c", "cuda")
    one = torch.tensor([1.37], device="cuda")
    if dtype is E4M3:
        tried = [float8(k, contiguous(128))] if kind == "float8" else [float8(k)]
        wanted = torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=kind == "float8_fast")
    else:
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        wanted = torch.mm(a, b)
        tried = [tf32(k, turn=t) for t in (None, 8, 16, 32)] if kind == "tf32" else [scalar(k)]
    equal = []
    for desc in tried:
        out = torch.empty_like(wanted)
        choice = choose_whole(desc, meta_of(a, b, out, "cuda"), CARD)
        if isinstance(choice, Declined):
            return {"declined": choice.reason}
        launch_choice(choice, a, b, out, scales=Scales(scale=one * one))
        if first_mismatch(to_bits(wanted, desc.output_dtype), to_bits(out, desc.output_dtype)) is None:
            equal.append(to_text(desc))
    return {"kind": kind, "size": [m, n, k], "tried": len(tried), "equal": equal}


def speed(device: str) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Milliseconds of the kernels and of torch's call, medians of one run."""
    if device == "cpu":
        return
    for size in SPEED:
        for kind in ("float8", "float8_fast", "tf32", "float32"):
            if kind != "float32" or max(size) <= 4096:
                name = f"speed-{kind}-{'x'.join(map(str, size))}"
                yield name, lambda k=kind, s=size: timed(k, *s)


def timed(kind: str, m: int, n: int, k: int) -> Record:
    """One size of one kind."""
    import torch
    from triton.testing import do_bench

    from gemmdesc.kernels.launch_kmajor import Scales
    from gemmdesc.kernels.launch_tiled import launch_choice

    dtype = E4M3 if kind.startswith("float8") else FP32
    held = torch.float8_e4m3fn if dtype is E4M3 else torch.float32
    a, b = torch.randn((m, k), device="cuda").to(held), torch.randn((n, k), device="cuda").to(held).T
    one = torch.ones(1, device="cuda")
    desc = {"float8": float8(k, contiguous(128)), "float8_fast": float8(k), "tf32": tf32(k), "float32": scalar(k)}[kind]
    out = torch.empty((m, n), dtype=torch.bfloat16 if dtype is E4M3 else torch.float32, device="cuda")
    choice = choose_whole(desc, meta_of(a, b, out, "cuda"), CARD)
    if isinstance(choice, Declined):
        return {"declined": choice.reason}
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"

    def library() -> Any:
        if dtype is not E4M3:
            return torch.mm(a, b, out=out)
        return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=kind == "float8_fast")

    ours = do_bench(lambda: launch_choice(choice, a, b, out, scales=Scales(scale=one)), return_mode="median")
    theirs = do_bench(library, return_mode="median")
    return {"kind": kind, "size": [m, n, k], "ours_ms": ours, "library_ms": theirs, "ratio": theirs / ours}


def warm(workers: int) -> None:
    """Compile what the products below run, in processes of their own; launches find it in Triton's cache."""
    kernels = ("kmajor_chain", "kmajor_pack", "scaled_merge", "fma_chain", "scalar_leaves", "fold_level")
    found = [v for v in enumerate_variants(232448) if v.kernel in kernels and not dict(v.constants).get("WIDE_OFFSETS")]
    begin = time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        failed = [f for f in pool.map(compile_quietly, sorted(found, key=str), chunksize=4) if f]
    print(f"{len(found)} variants compiled in {time.monotonic() - begin:.1f} s, {len(failed)} failed {failed[:3]}")


def compile_quietly(variant: Variant) -> str:
    """Why ``variant`` does not compile, or nothing."""
    from gemmdesc.kernels.compiling import compile_variant

    try:
        compile_variant(variant, capability=90)
    except Exception as error:  # noqa: BLE001  the launch that needs it says so again
        return f"{variant.kernel}: {type(error).__name__}: {error}"[:300]
    return ""


PARTS = {"fixed": fixed, "random": random, "torch": torch_calls, "speed": speed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--warm", type=int, default=0, help="processes that compile all kernels first")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        from tests.interpreted_kmajor import patch

        patch()
    if arguments.warm:
        warm(arguments.warm)
    shard, shards = map(int, arguments.shard.split("/"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"kmajor-{shard}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    done = {str(json.loads(line)["id"]) for line in lines}
    end = time.monotonic() + arguments.seconds
    left = 0
    with path.open("a") as file:
        for part in arguments.parts.split(","):
            for i, (name, job) in enumerate(PARTS[part](arguments.device)):
                if i % shards != shard or name in done:
                    continue
                if time.monotonic() > end:
                    left += 1
                    continue
                begin = time.monotonic()
                try:
                    record = job()
                except Exception as error:  # noqa: BLE001  the others still tell something
                    record = {"error": f"{type(error).__name__}: {error}"[:2000]}
                line = {"id": name, "part": part} | record | {"seconds": round(time.monotonic() - begin, 3)}
                file.write(json.dumps(line) + "\n")
                file.flush()
    return summarise(path, left)


def summarise(path: Path, left: int) -> int:
    """Print what ``path`` holds; 0 where nothing is wrong and nothing is left."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    checked = [r for r in records if "outputs" in r]
    bad = [r for r in records if r.get("wrong") or r.get("moved") or "error" in r or "declined" in r]
    print(f"{len(records)} products, {left} left; {sum(r['outputs'] for r in checked)} outputs against the replay, ")
    print(f"{sum(r['tiles'] for r in checked)} launches under other tiles; {len(bad)} products wrong")
    for record in bad[:20]:
        print(json.dumps(record)[:600])
    kinds = sorted({r["kind"] for r in records if "tried" in r})
    for kind in kinds:
        calls = [r for r in records if "tried" in r and r["kind"] == kind]
        equal = sum(bool(r["equal"]) for r in calls)
        print(f"torch {kind}: {equal} of {len(calls)} calls equal one of the descriptors")
    for record in (r for r in records if "ratio" in r):
        print(f"{record['id']}: {record['ours_ms']:.3f} ms, library {record['library_ms']:.3f} ms")
    return 1 if bad or left else 0


if __name__ == "__main__":
    sys.exit(main())
