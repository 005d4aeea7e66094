"""Check the library adapter on a GPU: one run prints every section and writes JSON to the path given.

    PYTHONPATH=. python scripts/check_library.py out.json

A section that fails records its traceback and the next one goes on.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.bindings import load_functions
from gemmdesc.library.capture import capture_launch
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.descriptors import Descriptors
from gemmdesc.library.identity import torch_library
from gemmdesc.library.profiler import cross_check, executed_kernels, normalised
from gemmdesc.library.stability import Stability, run_to_run
from gemmdesc.library.storage import a_shape, allocate, b_shape, d_shape, empty_d, result_of, store_a, store_b
from gemmdesc.library.torch_settings import read_settings
from gemmdesc.operands import Family, HashOperand
from gemmdesc.plain import to_plain
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem, Refused, dense_problem
from gemmdesc.routes import TensorMeta, route_mm, swaps_operands, tensor_meta

REGIMES = ("multiples_of_8", "unrounded", "skinny_and_deep", "vectors", "small")
TORCH_TYPES = {DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16}
RATE_SECONDS = 3.0


def draw(regime: str, rng: random.Random) -> tuple[int, int, int]:
    """One (m, n, k) of a regime."""

    def log_uniform(low: int, high: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    if regime == "multiples_of_8":
        m, n, k = (8 * log_uniform(1, 1024) for _ in range(3))
    elif regime == "unrounded":
        m, n, k = (log_uniform(1, 8192) for _ in range(3))
    elif regime == "skinny_and_deep":
        m, n, k = log_uniform(1, 256), log_uniform(1, 256), log_uniform(1024, 131072)
    elif regime == "vectors":
        m, n, k = 1, log_uniform(1, 16384), log_uniform(1, 16384)
        m, n = (m, n) if rng.random() < 0.5 else (n, m)
    else:
        m, n, k = (rng.randint(1, 64) for _ in range(3))
    return m, n, k


def draws(count: int, seed: int, largest: float = 1e12) -> Iterator[tuple[str, tuple[int, int, int]]]:
    rng = random.Random(seed)
    for i in range(count):
        regime = REGIMES[i % len(REGIMES)]
        shape = draw(regime, rng)
        while 2.0 * math.prod(shape) > largest:
            shape = draw(regime, rng)
        yield regime, shape


def dense_problems(count: int, seed: int, dtype: DType = DType.FLOAT16) -> list[GemmProblem]:
    return [dense_problem(*shape, dtype) for _, shape in draws(count, seed)]


def key(answer: AlgoConfig) -> tuple[int, int, int, int]:
    return answer.algo_id, answer.stages_id, answer.reduction_scheme, answer.custom_option


def hashed(dtype: DType, role: str, seed: int = 7) -> HashOperand:
    return HashOperand(dtype=dtype, family=next(iter(Family)), seed=seed, draw=0, role="a" if role == "a" else "b")


# --- sections: each takes the library and returns something JSON can hold ---------------------------------------------


def identity(library: CublasLt) -> Any:
    return {
        "identity": to_plain(library.identity_with_digest()),
        "mapped": str(torch_library()),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "device": to_plain(library.device),
        "settings": vars(read_settings(library.device.sm)),
    }


def query_time(library: CublasLt) -> Any:
    by_regime: dict[str, list[float]] = {r: [] for r in REGIMES}
    describe: list[float] = []
    shapes = list(draws(2000, seed=1))
    for regime, shape in shapes:
        problem = dense_problem(*shape, DType.FLOAT16)
        start = time.perf_counter()
        library.answer(problem)
        by_regime[regime].append(time.perf_counter() - start)
    descriptors = Descriptors(load_functions(Path(library.identity.path)))  # our side's share of a query
    for _, shape in shapes:
        problem = dense_problem(*shape, DType.FLOAT16)
        start = time.perf_counter()
        descriptors.describe(problem)
        describe.append(time.perf_counter() - start)
    times = {r: round(median(t) * 1e6, 2) for r, t in by_regime.items()}
    return {"median_us": times, "describe_median_us": round(median(describe) * 1e6, 2)}


def rate_alone(library: CublasLt, problems: list[GemmProblem]) -> float:
    start = time.perf_counter()
    done = 0
    for i in range(0, len(problems), 64):
        done += len(library.answers(problems[i : i + 64]))
        if time.perf_counter() - start > RATE_SECONDS:
            break
    return done / (time.perf_counter() - start)


def rates_of_threads(library: CublasLt) -> Any:
    result = {}
    for count in (1, 4, 16):
        pools = [dense_problems(12000 if count == 1 else 6000, seed=100 + i) for i in range(count)]
        libraries = [library if i == 0 else CublasLt() for i in range(count)]
        rates: list[float] = []
        barrier = threading.Barrier(count)

        def work(i: int, barrier: threading.Barrier = barrier, libraries: Any = libraries, pools: Any = pools,
                 rates: list[float] = rates) -> None:  # fmt: skip
            barrier.wait()
            rates.append(rate_alone(libraries[i], pools[i]))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for extra in libraries[1:]:
            extra.close()
        result[str(count)] = round(sum(rates))
    return result


def process_worker(i: int, barrier: Any, queue: Any) -> None:
    try:
        problems = dense_problems(20000, seed=500 + i)
        library = CublasLt()
        library.answer(problems[0])
        barrier.wait(60)
        queue.put(rate_alone(library, problems[1:]))
    except Exception:  # noqa: BLE001 (reported by the parent)
        barrier.abort()
        queue.put(traceback.format_exc())


def rates_of_processes(_: CublasLt) -> Any:
    context = multiprocessing.get_context("spawn")
    result: dict[str, Any] = {}
    for count in (1, 4, 16):
        barrier, queue = context.Barrier(count), context.Queue()
        workers = [context.Process(target=process_worker, args=(i, barrier, queue), daemon=True) for i in range(count)]
        for w in workers:
            w.start()
        got = [queue.get(timeout=70) for _ in workers]
        for w in workers:
            w.join(20)
        numbers = [x for x in got if isinstance(x, float)]
        result[str(count)] = {"rate": round(sum(numbers)), "workers": len(numbers)}
        errors = [x for x in got if isinstance(x, str)]
        if errors:
            result[str(count)]["error"] = errors[0][-600:]
    return result


def histogram(library: CublasLt) -> Any:
    result = {}
    for dtype in TORCH_TYPES:
        problems = dense_problems(2000, seed=3, dtype=dtype)
        answers = library.answers(problems)
        counts = Counter(str(key(x)) if isinstance(x, AlgoConfig) else x.status for x in answers)
        result[dtype.value] = dict(counts.most_common())
        split = [x for x in answers if isinstance(x, AlgoConfig) and x.splitk_num > 1]
        result[f"{dtype.value}_split_k"] = len(split)
        wide = [x for x in answers if isinstance(x, AlgoConfig) and x.workspace_bytes > 0]
        result[f"{dtype.value}_with_workspace"] = len(wide)
    return result


def rebuilt(library: CublasLt) -> Any:
    """Does rebuilding an answer from its attributes give the same struct and the same bytes?"""
    counts: Counter[str] = Counter()
    examples = []
    for problem in dense_problems(150, seed=11):
        answer = library.answer(problem)
        if not isinstance(answer, AlgoConfig):
            continue
        again = library.config(problem, answer)
        if isinstance(again, Refused):
            counts[f"refused {again.status}"] += 1
            examples.append((to_plain(problem), to_plain(answer)))
            continue
        counts["same attributes" if again == answer else "other attributes"] += 1
        counts["same struct" if again.opaque == answer.opaque else "other struct"] += 1
        counts["same workspace" if again.workspace_bytes == answer.workspace_bytes else "other workspace"] += 1
    return {"counts": dict(counts), "examples": examples[:2]}


LAUNCH_SHAPES = (
    *((4096, 4096, 4096), (333, 4111, 255), (64, 128, 16384), (255, 255, 255), (1, 4096, 4096), (4096, 1, 4096)),
    *((1, 1, 5000), (5, 7, 300), (32, 32, 11528), (4097, 4095, 4093), (16, 4096, 4096), (8, 2000, 37)),
)


def launches(library: CublasLt) -> Any:
    rows = []
    for shape in LAUNCH_SHAPES:
        problem = dense_problem(*shape, DType.FLOAT16)
        answer = library.answer(problem)
        if isinstance(answer, Refused):
            rows.append({"shape": shape, "refused": answer.status})
            continue
        start = time.perf_counter()
        launch = library.launch(problem, answer)
        spent = time.perf_counter() - start
        rows.append(
            {"shape": shape, "answer": to_plain(replace(answer, opaque="")), "launch": to_plain(launch),
             "ms": round(spent * 1e3, 2)}
        )  # fmt: skip
    return rows


def placed(rows: int, columns: int, row_major: bool, dtype: torch.dtype, rng: random.Random) -> torch.Tensor:
    """A random tensor that starts a few elements into a buffer and may have padded rows; a view as a caller has it."""
    outer, inner = (rows, columns) if row_major else (columns, rows)
    pad, offset = rng.choice((0, 0, 1, 3, 8, 64)), rng.choice((0, 0, 1, 2, 4, 8, 16, 128))
    buffer = torch.randn(outer * (inner + pad) + offset, device="cuda").to(dtype)
    view = buffer[offset:].view(outer, inner + pad)[:, :inner]
    return view if row_major else view.t()


def equal_to_torch(library: CublasLt) -> Any:
    """torch.mm against the routed problem's first answer, on the very same operands."""
    rng, settings = random.Random(5), read_settings(library.device.sm)
    counts: Counter[str] = Counter()
    examples = []
    for i, (regime, (m, n, k)) in enumerate(draws(200, seed=6, largest=3e11)):
        layout = i // len(REGIMES) % 4
        dtype = DType.FLOAT16 if rng.random() < 0.6 else DType.BFLOAT16
        a = placed(m, k, layout in (0, 1), TORCH_TYPES[dtype], rng)
        b = placed(k, n, layout in (0, 2), TORCH_TYPES[dtype], rng)
        expected = torch.mm(a, b)
        out = torch.full_like(expected, float("nan"))
        outcome, problem = against_torch(library, a, b, out, expected, settings)
        where = f"{dtype.value} {regime} {'NT'[layout not in (0, 1)]}{'NT'[layout not in (0, 2)]}"
        counts[outcome] += 1
        if outcome != "equal":
            counts[f"{outcome}: {where}"] += 1
            examples.append({"where": where, "problem": problem})
    return {"counts": dict(counts), "examples": examples[:6]}


def metas(*tensors: torch.Tensor) -> list[TensorMeta]:
    found = [tensor_meta(t) for t in tensors]
    return [m for m in found if isinstance(m, TensorMeta)]


def against_torch(
    library: CublasLt, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, expected: torch.Tensor, settings: Any,
    mask: int | None = None,
) -> tuple[str, Any]:  # fmt: skip
    a_meta, b_meta, out_meta = metas(a, b, out)
    problem = route_mm(a_meta, b_meta, out_meta, settings)
    if isinstance(problem, Declined):
        return f"declined {problem.code}", problem.reason
    if mask is not None:
        problem = replace(problem, reduction_scheme_mask=mask)
    answer = library.answer(problem)
    if isinstance(answer, Refused):
        return f"refused {answer.status}", to_plain(problem)
    first, second = (b, a) if swaps_operands(out_meta) else (a, b)
    failed = library.matmul(problem, answer, first.data_ptr(), second.data_ptr(), out.data_ptr())
    if isinstance(failed, Failed):
        return f"failed {failed.status}", to_plain(problem)
    width = torch.int16 if out.element_size() == 2 else torch.int32
    same = torch.equal(out.view(width), expected.view(width))
    return ("equal" if same else "different"), to_plain(problem)


def other_calls(library: CublasLt) -> Any:
    """out_dtype=float32, and a column-major out."""
    settings = read_settings(library.device.sm)
    counts: dict[str, Counter[str]] = {"float32_out": Counter(), "column_major_out": Counter(), "float32": Counter()}
    for _, (m, n, k) in draws(60, seed=8, largest=1e11):
        a, b = (torch.randn(s, device="cuda").half() for s in ((m, k), (k, n)))
        wide = torch.mm(a, b, out_dtype=torch.float32)
        counts["float32_out"][against_torch(library, a, b, torch.empty_like(wide), wide, settings)[0]] += 1
        turned = torch.empty(n, m, device="cuda", dtype=torch.float16).t()
        torch.mm(a, b, out=turned)
        outcome, _ = against_torch(library, a, b, torch.empty_like(turned), turned, settings)
        counts["column_major_out"][outcome] += 1
        a32, b32 = a.float(), b.float()
        full = torch.mm(a32, b32)
        counts["float32"][against_torch(library, a32, b32, torch.empty_like(full), full, settings)[0]] += 1
    return counts


def reduced_precision_flag(library: CublasLt) -> Any:
    """Which reduction mask is torch's flag off?  Counts of equal bytes by mask, split-K answers only."""
    settings = read_settings(library.device.sm)
    counts: dict[str, Counter[str]] = {}
    before = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    try:
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        for regime, (m, n, k) in draws(300, seed=9, largest=1e11):
            first = library.answer(dense_problem(n, m, k, DType.FLOAT16))
            if regime == "vectors" or not isinstance(first, AlgoConfig) or first.splitk_num <= 1:
                continue
            a, b = (torch.randn(s, device="cuda").half() for s in ((m, k), (k, n)))
            expected = torch.mm(a, b)
            for mask in (7, 3, 2, 1, 0):
                out = torch.empty_like(expected)
                outcome, _ = against_torch(library, a, b, out, expected, settings, mask)
                counts.setdefault(str(mask), Counter())[outcome] += 1
    finally:
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = before
    return counts


def foreign_sizes(library: CublasLt) -> Any:
    """An answer at sizes other than its own: accepted by check, and does it run?"""
    counts: Counter[str] = Counter()
    for problem in dense_problems(60, seed=12):
        answer = library.answer(problem)
        if isinstance(answer, Refused):
            continue
        for name, size in (
            ("k/2", {"k": max(1, problem.k // 2)}),
            ("64x64", {"m": 64, "n": 64}),
            ("k+1", {"k": problem.k + 1}),
        ):
            other = dense_problem(**({"m": problem.m, "n": problem.n, "k": problem.k} | size), dtype=DType.FLOAT16)
            if max(other.m * other.k, other.n * other.k, other.m * other.n) > 1 << 25:
                continue
            accepted = library.check(other, answer)
            result = library.run(other, answer, hashed(DType.FLOAT16, "a"), hashed(DType.FLOAT16, "b"))
            ran = f"failed {result.status}" if isinstance(result, Failed) else "ran"
            counts[f"{name}: check {accepted}, {ran}"] += 1
    return dict(counts)


def negative_zero(library: CublasLt) -> Any:
    """D where every product is -0.0 (a = -0.0, b = 1): bits by answer class."""
    result: dict[str, dict[str, int]] = {}
    for dtype in TORCH_TYPES:
        for problem in dense_problems(400, seed=13, dtype=dtype):
            answer = library.answer(problem)
            if isinstance(answer, Refused) or problem.m * problem.k + problem.n * problem.k > 1 << 27:
                continue
            name = f"{dtype.value} {key(answer)}{' split' if answer.splitk_num > 1 else ''}"
            if sum(result.get(name, {}).values()) >= 5:
                continue
            a = torch.full((problem.m, problem.k), -0.0, device="cuda", dtype=TORCH_TYPES[dtype])
            b = torch.ones((problem.n, problem.k), device="cuda", dtype=TORCH_TYPES[dtype])
            d = empty_d(problem, "cuda")
            failed = library.run_on_device(
                problem, answer, store_a(problem, a.view(torch.int16)), store_b(problem, b.view(torch.int16)), d
            )
            values = [hex(int(v) & 0xFFFF) for v in result_of(d).unique().tolist()]
            seen = failed.status if failed is not None else "+".join(values)
            result.setdefault(name, {})
            result[name][seen] = result[name].get(seen, 0) + 1
    return result


def gaps_and_alignment(library: CublasLt) -> Any:
    """Problems with padding and any alignment: a NaN in the result would be a gap that was read."""
    rng, counts = random.Random(14), Counter()
    for _, (m, n, k) in draws(100, seed=15, largest=1e10):
        base = dense_problem(m, n, k, DType.FLOAT16)
        problem = replace(
            base, lda=base.lda + rng.choice((0, 1, 8)), ldb=base.ldb + rng.choice((0, 1, 8)),
            ldd=base.ldd + rng.choice((0, 1, 8)), a_alignment_bytes=rng.choice((2, 4, 16, 256)),
            b_alignment_bytes=rng.choice((2, 4, 16, 256)), c_alignment_bytes=16, d_alignment_bytes=16,
        )  # fmt: skip
        answer = library.answer(problem)
        if isinstance(answer, Refused):
            counts[f"refused {answer.status}"] += 1
            continue
        result = library.run(problem, answer, hashed(DType.FLOAT16, "a"), hashed(DType.FLOAT16, "b"))
        if isinstance(result, Failed):
            counts[f"failed {result.status}"] += 1
        else:
            counts["nan" if bool(((result & 0x7FFF) > 0x7C00).any()) else "clean"] += 1
    return dict(counts)


def stability(library: CublasLt) -> Any:
    rows = []
    seen: set[Any] = set()
    for problem in dense_problems(200, seed=16):
        answer = library.answer(problem)
        if isinstance(answer, Refused) or key(answer) in seen or problem.m * problem.n > 1 << 22:
            continue
        seen.add(key(answer))
        found = run_to_run(library, problem, answer, hashed(DType.FLOAT16, "a"), hashed(DType.FLOAT16, "b"), repeats=4)
        row = vars(found) if isinstance(found, Stability) else {"failed": found.status}
        rows.append({"key": key(answer), "split": answer.splitk_num, "shape": (problem.m, problem.n, problem.k)} | row)
        if len(rows) == 10:
            break
    return rows


def profiler(library: CublasLt) -> Any:
    rows = []
    for shape in LAUNCH_SHAPES[:3] + LAUNCH_SHAPES[4:8]:
        problem = dense_problem(*shape, DType.FLOAT16)
        answer = library.answer(problem)
        if isinstance(answer, Refused):
            continue
        stored = [allocate(shape_of(problem), "cuda") for shape_of in (a_shape, b_shape, d_shape)]
        call = partial(library.run_on_device, problem, answer, *stored)
        rows.append({"shape": shape} | to_plain(cross_check(library.launch(problem, answer), call)))
    return rows


def launch_of_torch(_: CublasLt) -> Any:
    """The same names through torch.mm's own capture and profile, on three shapes."""
    rows = []
    for m, n, k in LAUNCH_SHAPES[:3]:
        a, b = (torch.randn(s, device="cuda").half() for s in ((n, k), (k, m)))
        out = torch.empty(n, m, device="cuda", dtype=torch.float16)
        torch.mm(a, b, out=out)

        def call(stream: int, a: Any = a, b: Any = b, out: Any = out) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                torch.mm(a, b, out=out)

        launch = capture_launch(call, 0)
        names = [normalised(x) for x in launch.names] if launch else None
        rows.append({"shape": (m, n, k), "captured": names, "executed": executed_kernels(lambda c=call: c(0))})
    return rows


SECTIONS: tuple[Callable[[CublasLt], Any], ...] = (
    *(identity, query_time, histogram, rebuilt, launches, equal_to_torch, gaps_and_alignment, foreign_sizes),
    *(negative_zero, stability, profiler, other_calls, reduced_precision_flag, rates_of_threads, rates_of_processes),
    launch_of_torch,
)


def main() -> int:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "check_library.json")
    results: dict[str, Any] = {}
    library = CublasLt()
    failures = 0
    for section in SECTIONS:
        start = time.perf_counter()
        try:
            results[section.__name__] = section(library)
        except Exception:  # noqa: BLE001 (a failed section must not hide the next)
            results[section.__name__] = {"traceback": traceback.format_exc()}
            failures += 1
        seconds = round(time.perf_counter() - start, 1)
        print(f"== {section.__name__} ({seconds} s)")
        print(json.dumps(results[section.__name__], default=str)[:1500], flush=True)
        results[section.__name__ + "_seconds"] = seconds
        path.write_text(json.dumps(results, indent=1, default=str))
    print(f"{len(SECTIONS) - failures} of {len(SECTIONS)} sections ran; {path}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
