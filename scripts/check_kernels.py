"""Check every kernel on this machine's GPU: bytes against the CPU replay, bytes across configs, speed, compile counts.

    python scripts/check_kernels.py results.json [--sections bytes,configs,speed,skinny]

Prints as it goes and writes the JSON after each section; exits 1 if any byte differed or a section failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import cpu_count, get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import bits_dtype, first_mismatch, from_float32
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    Rounding,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.kernels.card import CardArithmetic, MatrixStep
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variants import Variant, enumerate_variants, variants_of

HOPPER_STEP = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
CARD = CardArithmetic(
    steps=tuple(MatrixStep(operand_dtype=d, lanes=16, step=HOPPER_STEP) for d in (DType.FLOAT16, DType.BFLOAT16))
)
TORCH_NAMES = {DType.FLOAT16: "float16", DType.BFLOAT16: "bfloat16", DType.FLOAT32: "float32"}
#: Powers of two that the operands spread over, so that a wrong order shows.
SPREAD = {DType.FLOAT16: 6, DType.BFLOAT16: 30, DType.FLOAT32: 30}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One product: layouts are ``r`` or ``c`` for A, B, output; offsets are elements into a buffer, pads per line."""

    m: int
    n: int
    desc: GEMMDesc
    k: int
    layouts: str = "rrr"
    offsets: tuple[int, int, int] = (0, 0, 0)
    pads: tuple[int, int, int] = (0, 0, 0)
    note: str = ""

    @property
    def name(self) -> str:
        acc = self.desc.accumulator
        turn = acc.residue.k_loop_step if isinstance(acc.residue, ResidueFirst) else 0
        cut = self.desc.cuts[0] if self.desc.cuts else None
        span = cut.layout.span if cut and isinstance(cut.layout, Contiguous) else 0
        fold = f"{cut.partial_dtype.value}/{cut.merge_dtype.value}/{cut.start.value}" if cut else "-"
        return (
            f"{self.m}x{self.n}x{self.k} {self.desc.a_dtype.value}->{self.desc.output_dtype.value} {self.layouts} "
            f"step {acc.instruction_k} turn {turn} span {span} {fold} summed {self.desc.summed_k} "
            f"off {self.offsets} pad {self.pads} {self.note}"
        )


def make_desc(
    k: int,
    *,
    step: int = 16,
    turn: int | None = None,
    span: int | None = None,
    dtype: DType = DType.FLOAT16,
    out: DType | None = None,
    partial: DType = DType.FLOAT32,
    merge: DType = DType.FLOAT32,
    start: Start = Start.FIRST,
    summed_k: int | None = None,
) -> GEMMDesc:
    """A descriptor of the kernels' family."""
    cut = Cut(layout=Contiguous(span=span or 1), partial_dtype=partial, merge_dtype=merge, start=start)
    residue = ResidueLast() if turn is None else ResidueFirst(k_loop_step=turn)
    return GEMMDesc(
        a_dtype=dtype,
        b_dtype=dtype,
        output_dtype=out or dtype,
        summed_k=summed_k or k,
        cuts=(cut,) if span else (),
        accumulator=Accumulator(instruction_k=step, residue=residue, step=HOPPER_STEP),
    )


def byte_cases() -> list[Case]:
    """The grid of the correctness section."""
    f16, bf16, f32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
    cases = [
        Case(m=m, n=n, k=k, desc=make_desc(k, dtype=dtype, out=out), layouts=layouts)
        for (m, n, k), layouts in zip(
            [(128, 256, 512), (256, 512, 1000), (72, 136, 1024), (264, 520, 2048)] * 2, _all_layouts(), strict=True
        )
        for dtype, out in ((f16, f16), (f16, f32), (bf16, bf16))
    ]
    for k in (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 333, 1000, 1001):
        cases.append(Case(m=65, n=97, k=k, desc=make_desc(k), note="tail"))
        cases.append(Case(m=37, n=150, k=k, desc=make_desc(k, step=8, turn=32), note="tail grouped"))
        cases.append(
            Case(m=130, n=50, k=k, desc=make_desc(k, step=16, turn=64, dtype=bf16), layouts="crr", note="tail grouped")
        )
    for step, turn, k, span in product((8, 16), (32, 64, 128), (777, 1000), (None, 200, 264, 328)):
        cases.append(Case(m=70, n=90, k=k, desc=make_desc(k, step=step, turn=turn, span=span)))
    cases.append(Case(m=70, n=90, k=1003, desc=make_desc(1003, step=8), note="short step last"))
    for dtype in (f16, bf16):
        for partial, merge, start, out in product((f32, dtype), (f32, dtype), Start, (dtype, f32)):
            desc = make_desc(2000, span=448, partial=partial, merge=merge, start=start, dtype=dtype, out=out)
            cases.append(Case(m=96, n=160, k=2000, desc=desc, note="merge"))
    cases.append(Case(m=96, n=160, k=100, desc=make_desc(100, span=500, partial=f16, out=f32), note="one part"))
    for m, n, layouts in product((1, 5, 16, 64), (512, 1000), ("rrr", "rcr", "rcc")):
        cases.append(Case(m=m, n=n, k=4096, desc=make_desc(4096, span=1408), layouts=layouts, note="thin"))
        cases.append(Case(m=n, n=m, k=1024, desc=make_desc(1024, dtype=bf16), layouts=layouts, note="thin"))
    cases.append(Case(m=16, n=16, k=30000, desc=make_desc(30000, span=512), note="deep"))
    cases.append(Case(m=200, n=136, k=6832, desc=make_desc(6832, span=1344, summed_k=6720), note="lost tail"))
    cases.append(Case(m=1, n=8, k=1575, desc=make_desc(1575, span=64, summed_k=1536), note="lost tail"))
    for offsets, pads in product(
        ((0, 0, 0), (1, 0, 0), (0, 1, 1), (2, 4, 8), (8, 8, 8)), ((0, 0, 0), (1, 1, 1), (8, 8, 8))
    ):
        for layouts in ("rrr", "ccr", "rcc"):
            desc = make_desc(264)
            cases.append(
                Case(m=136, n=72, k=264, desc=desc, layouts=layouts, offsets=offsets, pads=pads, note="addresses")
            )
    for step, span, layouts, dtype in product((8, 16), (None, 136, 192), ("rrr", "ccr", "rcc"), (f16, bf16)):
        desc = make_desc(650, step=step, turn=32, span=span, dtype=dtype, merge=dtype if span == 136 else f32)
        cases.append(Case(m=210, n=331, k=650, desc=desc, layouts=layouts, note="packed"))
    cases.append(Case(m=1111, n=777, k=555, desc=make_desc(555, step=8, turn=32), layouts="crc", note="unaligned"))
    cases.append(Case(m=2100, n=2100, k=128, desc=make_desc(128), note="more tiles than programs"))
    cases.append(Case(m=4104, n=4104, k=192, desc=make_desc(192), layouts="rcr", note="more tiles than programs"))
    return cases


def _all_layouts() -> list[str]:
    return ["".join(p) for p in product("rc", repeat=3)]


def operands(case: Case, seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Bit patterns of A and B with wide exponents; the first rows of A are special where there are enough of them."""
    rng = np.random.default_rng(seed)
    dtype, spread = case.desc.a_dtype, SPREAD[case.desc.a_dtype]

    def draw(*shape: int) -> npt.NDArray[Any]:
        values = rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread + 1, shape))
        return from_float32(values.astype(np.float32), dtype)

    a, b = draw(case.m, case.k), draw(case.k, case.n)
    if case.m >= 32:
        form = dtype.format
        sign = 1 << (form.storage_bits - 1)
        infinity = sign - (1 << form.fraction_bits)
        a[0] = sign
        a[1, case.k // 2] = infinity + 1
        a[2, case.k - 1] = infinity
        a[3] = rng.integers(0, 1 << (dtype.format.fraction_bits), case.k)
        a[4] = (rng.integers(0, 2, case.k) * sign) | (infinity - 1)
        a[5, 0] = infinity | sign
        a[6] = rng.integers(0, 2, case.k) * sign
        b[case.k // 3, case.n // 2] = infinity
    return a, b


def to_device(bits: npt.NDArray[Any], dtype: DType, layout: str, offset: int, pad: int) -> Any:
    """The matrix on the GPU, stored by rows or columns, ``offset`` elements in, ``pad`` after each line."""
    import torch

    stored = bits if layout == "r" else bits.T
    lines, length = stored.shape
    buffer = torch.zeros(offset + lines * (length + pad), dtype=getattr(torch, TORCH_NAMES[dtype]), device="cuda")
    view = buffer[offset:].view(lines, length + pad)[:, :length]
    integer = torch.int16 if dtype.itemsize == 2 else torch.int32
    signed = np.ascontiguousarray(stored).view(f"i{dtype.itemsize}")
    view.view(integer).copy_(torch.from_numpy(signed).cuda())
    return view if layout == "r" else view.T


def to_bits(tensor: Any, dtype: DType) -> npt.NDArray[Any]:
    import torch

    integer = torch.int16 if dtype.itemsize == 2 else torch.int32
    return tensor.contiguous().view(integer).cpu().numpy().view(bits_dtype(dtype))


def place(case: Case, seed: int = 0) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Any, Any, Any]:
    """(A bits, B bits, A, B, output filled with a pattern) of a case."""
    a_bits, b_bits = operands(case, seed)
    out_dtype = case.desc.output_dtype
    filler = np.full(
        (case.m, case.n), 0x5A5A5A5A & ((1 << out_dtype.format.storage_bits) - 1), dtype=bits_dtype(out_dtype)
    )
    placed = [
        to_device(bits, dtype, layout, offset, pad)
        for bits, dtype, layout, offset, pad in zip(
            (a_bits, b_bits, filler), (case.desc.a_dtype, case.desc.b_dtype, out_dtype), case.layouts, case.offsets,
            case.pads, strict=True,
        )
    ]  # fmt: skip
    return a_bits, b_bits, placed[0], placed[1], placed[2]


def sampled(size: int, rng: np.random.Generator, count: int, first: int) -> npt.NDArray[np.int64]:
    chosen = set(range(min(first, size))) | {size - 1} | set(rng.integers(0, size, count).tolist())
    return np.array(sorted(chosen), dtype=np.int64)


def check_bytes(report: dict[str, Any]) -> bool:
    """Every case against the replay on chosen rows and columns."""
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.kernels import launch

    counts: dict[str, int] = {"equal": 0, "different": 0, "declined": 0, "failed": 0}
    bad: list[dict[str, Any]] = []
    structures: dict[str, int] = {}
    for number, case in enumerate(byte_cases()):
        try:
            a_bits, b_bits, a, b, out = place(case, number)
            choice = launch.run(case.desc, a, b, out, CARD)
            if not isinstance(choice, KernelChoice):
                counts["declined"] += 1
                bad.append({"case": case.name, "declined": choice.reason})
                continue
            got = to_bits(out, case.desc.output_dtype)
            rng = np.random.default_rng(number)
            rows, cols = sampled(case.m, rng, 6, 8), sampled(case.n, rng, 10, 2)
            cols = np.union1d(cols, [case.n // 2])
            expected = replay(case.desc, a_bits, b_bits, rows=rows, cols=cols)
            wrong = first_mismatch(expected, got[np.ix_(rows, cols)])
            structures[choice.structure.value] = structures.get(choice.structure.value, 0) + 1
            counts["different" if wrong else "equal"] += 1
            if wrong:
                at = (int(rows[wrong.index[0]]), int(cols[wrong.index[1]]))
                bad.append({
                    "case": case.name, "choice": str(choice), "at": at, "expected": hex(wrong.expected_bits),
                    "got": hex(wrong.got_bits), "count": wrong.count, "of": wrong.size,
                })  # fmt: skip
        except Exception as error:  # noqa: BLE001  one broken case must not hide the others
            counts["failed"] += 1
            bad.append({"case": case.name, "error": f"{type(error).__name__}: {str(error)[:600]}"})
    report["bytes"] = {**counts, "structures": structures, "bad": bad}
    print("bytes:", counts, structures)
    for row in bad[:25]:
        print("  ", json.dumps(row)[:900])
    return not bad


CONFIG_CASES = (
    Case(m=300, n=520, k=1000, desc=make_desc(1000), note="plain"),
    Case(m=304, n=520, k=1000, desc=make_desc(1000, dtype=DType.BFLOAT16), layouts="crr", note="plain"),
    Case(m=304, n=520, k=2000, desc=make_desc(2000, span=512), layouts="rcr", note="split"),
    Case(m=301, n=521, k=1003, desc=make_desc(1003), note="pointer"),
    Case(m=301, n=521, k=1003, desc=make_desc(1003, step=8, turn=32), note="grouped 8"),
    Case(m=301, n=521, k=1003, desc=make_desc(1003, step=16, turn=64, span=336), layouts="ccr", note="grouped 16"),
)


def schedules_for(case: Case) -> list[tuple[Structure, KernelConfig]]:
    """Every structure and config that computes ``case``, and a few configs that the chooser never picks."""
    from gemmdesc.kernels import launch

    _, _, a, b, out = place(case)
    meta = launch.kernel_meta(a, b, out)
    found = []
    for structure in [s for s in Structure if configs_of(s)]:
        configs = [*configs_of(structure)]
        configs += [replace(configs[0], group_m=1), replace(configs[1], num_stages=2)]
        for config in configs:
            if isinstance(choose_kernel(case.desc, meta, CARD, config=config, structure=structure), KernelChoice):
                found.append((structure, config))
    return found


def check_configs(report: dict[str, Any]) -> bool:
    """The whole output under every structure and config that can compute it, against the default choice's bytes."""
    from gemmdesc.kernels import launch

    rows = []
    for case in CONFIG_CASES:
        _, _, a, b, out = place(case)
        launch.run(case.desc, a, b, out, CARD)
        expected = to_bits(out, case.desc.output_dtype)
        for structure, config in schedules_for(case):
            out.zero_()
            launch.run(case.desc, a, b, out, CARD, config=config, structure=structure)
            wrong = first_mismatch(expected, to_bits(out, case.desc.output_dtype))
            state = "different" if wrong else "equal"
            rows.append(
                {
                    "case": case.name,
                    "structure": structure.value,
                    "config": str(config),
                    "state": state,
                    "at": str(wrong),
                }
            )
    counts = {s: sum(r["state"] == s for r in rows) for s in ("equal", "different")}
    report["configs"] = {**counts, "rows": [r for r in rows if r["state"] != "equal"]}
    print("configs:", counts)
    for r in report["configs"]["rows"]:
        print("  ", r["state"], r["case"], r["structure"], r["config"], r["at"])
    return counts["different"] == 0


def graph_of(call: Any, repeats: int) -> Any:
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    return graph


def time_round_robin(calls: dict[str, Any], repeats: int, rounds: int = 7) -> dict[str, float]:
    """Median microseconds of one call of each, replaying graphs in turn."""
    import torch

    graphs = {name: graph_of(call, repeats) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds + 1):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1000 / repeats)
    return {name: statistics.median(t[1:]) for name, t in times.items()}


def _tma(m: int, n: int, k: int, warps: int, stages: int, group: int = 8) -> KernelConfig:
    return KernelConfig(block_m=m, block_n=n, block_k=k, num_warps=warps, num_stages=stages, group_m=group)


SPEED_CONFIGS = (
    None,
    _tma(128, 256, 64, 8, 3),
    _tma(128, 256, 64, 8, 3, 4),
    _tma(128, 256, 64, 8, 3, 16),
    _tma(128, 128, 64, 4, 4),
    _tma(256, 128, 64, 8, 3),
)
SPEED_SHAPES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096),
    (2048, 2048, 2048), (1024, 4096, 4096), (512, 4096, 4096), (256, 4096, 4096), (16, 14336, 4096),
)  # fmt: skip


def speed_case(m: int, n: int, k: int, layouts: str) -> Case:
    return Case(m=m, n=n, k=k, desc=make_desc(k), layouts=layouts)


def check_speed(report: dict[str, Any]) -> bool:
    """Against torch.mm where it is one plain chain: bytes first, then graph replays."""
    import torch

    from gemmdesc.kernels import launch

    fine = True
    rows = []
    for (m, n, k), layouts in product(SPEED_SHAPES, ("rrr", "rcr")):
        generator = torch.Generator(device="cuda").manual_seed(1)
        a = torch.randn(m, k, device="cuda", generator=generator).half()
        b = torch.randn(n, k, device="cuda", generator=generator).half().T
        b = b if layouts[1] == "c" else b.contiguous()
        reference, desc = torch.empty(m, n, dtype=torch.float16, device="cuda"), make_desc(k)
        torch.mm(a, b, out=reference)
        calls: dict[str, Any] = {"cublas": lambda a=a, b=b, o=reference: torch.mm(a, b, out=o)}
        for config in SPEED_CONFIGS if m >= 1024 else (None,):
            out = torch.zeros_like(reference)
            choice = launch.run(desc, a, b, out, CARD, config=config)
            if not isinstance(choice, KernelChoice):
                continue
            equal = torch.equal(out.view(torch.int16), reference.view(torch.int16))
            c = choice.config
            name = f"{c.block_m},{c.columns},{c.block_k},{c.num_warps}w,{c.num_stages}s,g{c.group_m}"
            name += " default" if config is None else ""
            if not equal:
                fine = fine and m < 1024  # thin shapes may be split by the library
                rows.append({"shape": [m, n, k], "layouts": layouts, "config": name, "equal": False})
                print(f"speed: {m}x{n}x{k} {layouts} {name}: bytes differ from torch.mm")
            calls[name] = lambda choice=choice, a=a, b=b, o=out: launch.launch(choice, a, b, o)
        repeats = max(2, min(40, int(2e12 / (2 * m * n * k))))
        times = time_round_robin(calls, repeats)
        base = times.pop("cublas")
        for name, t in times.items():
            rows.append(
                {"shape": [m, n, k], "layouts": layouts, "config": name, "us": t, "cublas_us": base, "ratio": base / t}
            )
            print(f"speed: {m}x{n}x{k} {layouts} {name:36s} {t:9.1f} us  cuBLAS {base:9.1f} us  ratio {base / t:.3f}")
    report["speed"] = rows
    return fine


def check_skinny(report: dict[str, Any]) -> bool:
    """Time of shapes that must not be silly: unaligned, and deep splits.  Bytes are for the other sections."""
    import torch

    from gemmdesc.kernels import launch

    shapes = {
        (4097, 4095, 4093): make_desc(4093, step=8, turn=32),
        (3001, 3003, 3005): make_desc(3005, step=8, turn=32, span=1008, merge=DType.FLOAT16),
        (1000, 999, 1001): make_desc(1001, step=8, turn=32, span=256),
        (16, 16, 300000): make_desc(300000, span=5056),
        (64, 128, 16384): make_desc(16384, span=1024),
        (16, 17, 300001): make_desc(300001, span=5008, step=8, turn=32),
    }
    rows = []
    for (m, n, k), desc in shapes.items():
        a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
        out, reference = (torch.empty(m, n, dtype=torch.float16, device="cuda") for _ in range(2))
        choice = launch.run(desc, a, b, out, CARD)
        assert isinstance(choice, KernelChoice), choice
        calls = {
            "cublas": lambda a=a, b=b, o=reference: torch.mm(a, b, out=o),
            "ours": lambda choice=choice, a=a, b=b, o=out: launch.launch(choice, a, b, o),
        }
        times = time_round_robin(calls, 4)
        rows.append({"shape": [m, n, k], **times, "ratio": times["cublas"] / times["ours"], "choice": str(choice)})
        took = f"ours {times['ours']:.1f} us  cuBLAS {times['cublas']:.1f} us  ratio {rows[-1]['ratio']:.3f}"
        print(f"skinny: {m}x{n}x{k} {took}  {choice.structure.value}{' packed' if choice.packing else ''}")
    report["skinny"] = rows
    return True


def wanted_variants() -> list[Variant]:
    """What the sections will compile, found without compiling."""
    from gemmdesc.kernels import launch

    found: dict[Variant, None] = {}
    tried: list[tuple[Case, KernelConfig | None, Structure | None]] = [(c, None, None) for c in byte_cases()]
    tried += [(case, config, structure) for case in CONFIG_CASES for structure, config in schedules_for(case)]
    tried += [(speed_case(1024, 1024, 64, layouts), c, None) for layouts in ("rrr", "rcr") for c in SPEED_CONFIGS]
    for case, config, structure in tried:
        _, _, a, b, out = place(case)
        choice = choose_kernel(case.desc, launch.kernel_meta(a, b, out), CARD, config=config, structure=structure)
        if isinstance(choice, KernelChoice):
            found |= dict.fromkeys(variants_of(choice))
    return list(found)


def _compile_quietly(variant: Variant, capability: int) -> str:
    from gemmdesc.kernels.compiling import compile_variant

    try:
        compile_variant(variant, capability=capability)
    except Exception as error:  # noqa: BLE001  the launch will report it in full
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def warm(report: dict[str, Any]) -> None:
    """Compile in parallel processes into Triton's disk cache, which the launches then hit."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    capability = properties.major * 10 + properties.minor
    variants = wanted_variants()
    begin = time.perf_counter()
    with ProcessPoolExecutor(min(16, cpu_count()), mp_context=get_context("spawn")) as pool:
        errors = list(pool.map(_compile_quietly, variants, [capability] * len(variants)))
    failures = [{"variant": str(v), "error": e} for v, e in zip(variants, errors, strict=True) if e]
    report["compile"] = {
        "variants": len(variants),
        "seconds": time.perf_counter() - begin,
        "failures": failures,
        "bound": len(enumerate_variants(properties.shared_memory_per_block_optin)),
    }
    took = f"{len(variants)} variants in {report['compile']['seconds']:.1f} s"
    print(f"compile: {took}, bound {report['compile']['bound']}, failures {len(failures)}")
    for f in failures[:10]:
        print("  ", f)


SECTIONS = {"bytes": check_bytes, "configs": check_configs, "speed": check_speed, "skinny": check_skinny}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="where the JSON goes")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    arguments = parser.parse_args()

    import torch
    import triton

    report: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
    }
    fine = True
    for name, section in [("warm", warm), *((n, SECTIONS[n]) for n in arguments.sections.split(","))]:
        begin = time.perf_counter()
        try:
            fine = section(report) is not False and fine
        except Exception:  # noqa: BLE001  the other sections still tell something
            fine = False
            report[f"{name}_error"] = traceback.format_exc()
            print(f"{name} FAILED\n{report[f'{name}_error']}")
        print(f"-- {name}: {time.perf_counter() - begin:.1f} s")
        arguments.path.write_text(json.dumps(report, indent=1))
    from gemmdesc.kernels.compiling import compiled_variants

    report["compiled"] = compiled_variants()
    print("compiled in this process:", report["compiled"])
    arguments.path.write_text(json.dumps(report, indent=1))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
