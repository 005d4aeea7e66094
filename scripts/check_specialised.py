"""Hold the specialised chain against a card: bytes of every config first, then its times.

    PYTHONPATH=. python scripts/check_specialised.py OUT.json [--seconds 200] [--configs 0,3] [--no-times] [--silent 25]

Each config runs in a process of its own, which is killed if it says nothing for ``--silent`` seconds: a hang costs
that config only.  Bytes are the stock chain's (chain_tma, the same descriptor on any shape) in all four layouts, all
types, stored by descriptor and by pointers, with fewer tiles than programs, as many, and many more, of one step to
hundreds, ragged, on draws of wide exponents, of normal values and of infinities, NaN and -0.0, each three times over;
around the output nothing may change.  Configs that pass are timed by graph replays, in turn with the stock chain and
torch.mm, whose bytes are compared, too.  OUT.json is rewritten after every config and shape.  Exits 1 where bytes
differ or a config hung.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gemmdesc.descriptor import Accumulator, GEMMDesc, ResidueLast
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.specialised import SPECIALISED_CONFIGS, SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variant import Variant
from gemmdesc.plan.cards import card_arithmetic

CARD = card_arithmetic("sm_90")
#: Multiprocessors and shared memory of the card that kernels are compiled for ahead.
SMS, SHARED = 132, 232448
FP16, BF16, FP32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
#: Processes that check bytes at a time, and rows and columns around an output.
AT_ONCE, AROUND = 5, 16
DEVICE = "cuda"
#: Times of each launch of a case, and what an output holds before it.
AGAIN, FILL = 3, 0x1234
#: m, n, k of x[m, k] @ w[n, k]^T.
SHAPES = (
    (256, 6144, 2048), (512, 4608, 2048), (256, 17408, 5120), (1024, 4608, 2048), (3072, 1536, 3072),
    (512, 3072, 7168), (2048, 2560, 5120), (4096, 2560, 5120), (4096, 4096, 4096), (8192, 2880, 5760),
    (2048, 7168, 14336), (16384, 4096, 4096),
)  # fmt: skip
#: Bytes of weights that calls go through before they meet one again, microseconds of a replay, replays.
ROTATED, REPLAY_US, ROUNDS = 160 << 20, 3000.0, 5
#: Of the configs so many are timed with dependent launches, too, and so many of the stock chain's.
EARLY, STOCK = 3, 3
MM = "torch.mm"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One product: ``layouts`` r by rows and c by columns, of a, b and out."""

    m: int
    n: int
    k: int
    layouts: str = "rcr"
    dtype: DType = FP16
    stored: DType = FP16

    @property
    def desc(self) -> GEMMDesc:
        step = CARD.step_for(self.dtype)
        assert step is not None
        return GEMMDesc(
            a_dtype=self.dtype, b_dtype=self.dtype, output_dtype=self.stored, cuts=(), summed_k=self.k,
            accumulator=Accumulator(step=step.step, instruction_k=16, residue=ResidueLast()),
        )  # fmt: skip

    def meta(self, frame: int = 0) -> KernelMeta:
        """``frame``: rows and columns of the buffer around the output, a multiple of 8."""

        def matrix(rows: int, columns: int, layout: str, dtype: DType, more: int) -> MatrixMeta:
            pitch = -(-(columns if layout == "r" else rows) // 8) * 8 + 2 * more
            strides = (pitch, 1) if layout == "r" else (1, pitch)
            return MatrixMeta(dtype=dtype, row_stride=strides[0], column_stride=strides[1], alignment=16)

        a, b, out = self.layouts
        return KernelMeta(
            m=self.m, n=self.n, k=self.k, a=matrix(self.m, self.k, a, self.dtype, 0),
            b=matrix(self.k, self.n, b, self.dtype, 0), out=matrix(self.m, self.n, out, self.stored, frame),
            sm_count=SMS, shared_bytes=SHARED,
        )  # fmt: skip

    def choose(self, config: SpecialisedConfig | None = None, frame: int = 0) -> KernelChoice | None:
        """The specialised chain with ``config``, or the stock one; None where it has no such kernel."""
        structure = Structure.CHAIN_TMA if config is None else Structure.CHAIN_SPECIALISED
        choice = choose_kernel(self.desc, self.meta(frame), CARD, structure=structure, config=config)
        return choice if isinstance(choice, KernelChoice) else None


def cases_of(config: SpecialisedConfig) -> Iterator[tuple[Case, bool]]:
    """Products that tell, and whether by dependent launches; largest last."""
    rows, columns, stages = config.block_m, config.columns, config.num_stages
    # As many tiles as a card has multiprocessors, in pairs where programs come in clusters.
    high, wide = (11, 12) if config.cluster_n == 2 else (12, 11)
    b = "c" if config.wants_columns else "r"
    for k in (8, 64, 64 * stages, 64 * stages + 72, 4096 + 16):
        for m, n in ((rows, columns), (3 * rows - 5, 2 * columns - 8), (high * rows, wide * columns)):
            yield Case(m=m, n=n, k=k), False
    many = (high * rows - 8, wide * columns - 8) if config.alone else (29 * rows - 8, 25 * columns - 8)
    for m, n, k in ((*many, 56), (*many, 200), (*many, 64 * stages + 8)):
        yield Case(m=m, n=n, k=k), False
        yield Case(m=m, n=n, k=k), True
    yield Case(m=high * rows, n=wide * columns, k=1032, layouts=f"r{b}r", stored=FP32), False
    yield Case(m=many[0], n=many[1], k=264, layouts=f"c{b}r"), False
    yield Case(m=many[0], n=many[1], k=136, layouts="ccr", dtype=BF16, stored=BF16), True
    yield Case(m=many[0], n=many[1] - 3, k=328), False
    yield Case(m=many[0], n=many[1], k=328, layouts=f"r{b}c", stored=FP32), False
    yield Case(m=9, n=columns + 8, k=20000), False


def needed(config: SpecialisedConfig) -> Iterator[Variant]:
    """What checking ``config`` compiles."""
    from gemmdesc.kernels.variants import variants_of

    for case, early in cases_of(config):
        for choice in (case.choose(replace(config, dependent=early), AROUND), case.choose(None, AROUND)):
            if choice is not None:
                yield from variants_of(choice)


def check_bytes(config: SpecialisedConfig, tell: Callable[[Any], None]) -> None:
    """In a process of its own: every case of ``config``; tells of each what differs."""
    import torch

    from gemmdesc.kernels.launch import launch

    for number, (case, early) in enumerate(cases_of(config)):
        kernel, stock = case.choose(replace(config, dependent=early), AROUND), case.choose(None, AROUND)
        name = f"{case.m}x{case.n}x{case.k} {case.layouts} {case.dtype.value}->{case.stored.value}"
        name += " dependent" if early else ""
        if kernel is None or stock is None:
            tell({"case": name, "state": "no such kernel"})
            continue
        kind = torch.int32 if case.stored is FP32 else torch.int16
        state = "equal"
        for draw in ("wide", "normal", "special"):
            a, b = operands(case, draw, number)
            wanted, target = framed(case)
            launch(stock, a, b, target)
            for _ in range(AGAIN):
                got, target = framed(case)
                launch(kernel, a, b, target)
                torch.cuda.synchronize()
                if not torch.equal(got.view(kind), wanted.view(kind)):
                    state = f"different ({draw}, {int((got.view(kind) != wanted.view(kind)).sum())} elements)"
        tell({"case": name, "state": state, "tiles": kernel.config.tiles(case.m, case.n)})


def operands(case: Case, draw: str, seed: int) -> tuple[Any, Any]:
    """A and B on the card, in their layouts, at pitches that tensor descriptors take."""
    import torch

    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    found = []
    dtype = torch.float16 if case.dtype is FP16 else torch.bfloat16
    for rows, columns, layout in ((case.m, case.k, case.layouts[0]), (case.k, case.n, case.layouts[1])):
        values = torch.randn(rows, columns, device=DEVICE, generator=generator)
        if draw == "wide":
            spread = 6 if case.dtype is FP16 else 30
            powers = torch.randint(-spread, spread + 1, (rows, columns), device=DEVICE, generator=generator)
            values *= torch.exp2(powers)
        if draw == "special":
            at = torch.randint(0, 5000, (rows, columns), device=DEVICE, generator=generator)
            for i, value in enumerate((float("inf"), -float("inf"), float("nan"), 2.0**-24)):
                values[at == i] = value
            values[:: 7 if layout == "r" else 1, :: 1 if layout == "r" else 7] = -0.0
        lines, length = (rows, columns) if layout == "r" else (columns, rows)
        stored = torch.empty(lines, -(-length // 8) * 8, dtype=dtype, device=DEVICE)[:, :length]
        stored.copy_(values if layout == "r" else values.T)
        found.append(stored if layout == "r" else stored.T)
    return found[0], found[1]


def framed(case: Case) -> tuple[Any, Any]:
    """A buffer of one pattern, and the output in it."""
    import torch

    dtype = {FP16: torch.float16, BF16: torch.bfloat16, FP32: torch.float32}[case.stored]
    by_rows = case.layouts[2] == "r"
    lines, length = (case.m, case.n) if by_rows else (case.n, case.m)
    size = lines + 2 * AROUND, -(-length // 8) * 8 + 2 * AROUND
    kind = torch.int32 if case.stored is FP32 else torch.int16
    whole = torch.full(size, FILL, dtype=kind, device=DEVICE).view(dtype)
    inner = whole[AROUND : AROUND + lines, AROUND : AROUND + length]
    return whole, inner if by_rows else inner.T


def named(config: Any) -> str:
    c = config
    if not isinstance(c, SpecialisedConfig):
        return f"stock {c.block_m}x{c.block_n}x{c.block_k} {c.num_warps}w {c.num_stages}s" + " dependent" * c.dependent
    return f"{c.block_m}x{c.columns}x{c.block_k} {c.sharing} {c.num_stages}s {c.store_n}/{c.store_buffers}" + (
        " whole" * c.whole + f" cluster {c.cluster_m}x{c.cluster_n}" * (c.cluster > 1) + " dependent" * c.dependent
    )


def stock_choices(case: Case) -> list[KernelChoice]:
    """The stock chain's pick, and what the estimate ranks next, plain and dependent."""
    from gemmdesc.kernels.competing import competing, predicted_us

    found = competing(case.desc, case.meta(), CARD)
    assert not isinstance(found, Declined)
    chains = [c for c in found if isinstance(c, KernelChoice) and c.structure is Structure.CHAIN_TMA]
    ranked = sorted(chains[1:], key=lambda c: predicted_us(c, case.meta()) or 0.0)
    return [*chains[:1], *ranked[:STOCK]]


class Bench:
    """One shape on the card: what is timed there, and whether its bytes are torch.mm's."""

    def __init__(self, m: int, n: int, k: int, tell: Callable[[Any], None]) -> None:
        import torch

        self.case, self.tell = Case(m=m, n=n, k=k), tell
        torch.manual_seed(1)
        count = max(1, min(40, -(-ROTATED // (2 * n * k))))
        self.a = torch.randn(m, k, device=DEVICE).half()
        self.weights = [(torch.randn(n, k, device=DEVICE) / 8).half().T for _ in range(count)]
        self.out, self.reference = self.a.new_empty(m, n), torch.mm(self.a, self.weights[0])
        self.repeats = count * max(1, round(REPLAY_US / (count * (2e-6 * m * n * k / 600 + 3))))
        self.graphs: dict[str, Any] = {}
        self.equal: dict[str, bool] = {}
        self.choices: dict[str, KernelChoice] = {}
        self._add(MM, self._multiply)

    def _multiply(self, weight: Any) -> None:
        import torch

        torch.mm(self.a, weight, out=self.out)

    def add(self, choice: KernelChoice) -> None:
        """Capture its calls, and compare what the first one gives."""
        from gemmdesc.kernels.launch import launch

        name = named(choice.config)
        self.choices[name] = choice
        self._add(name, lambda weight: launch(choice, self.a, weight, self.out))

    def _add(self, name: str, call: Callable[[Any], None]) -> None:
        import torch

        self.tell({"begins": name, "shape": [self.case.m, self.case.n, self.case.k]})
        self.out.fill_(1.0)
        call(self.weights[0])
        self.equal[name] = torch.equal(self.out.view(torch.int16), self.reference.view(torch.int16))
        torch.cuda.synchronize()
        self.graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graphs[name]):
            for i in range(self.repeats):
                call(self.weights[i % len(self.weights)])

    def times(self, rounds: int) -> dict[str, float]:
        return in_turn(self.graphs, self.repeats, rounds)


def check_times(configs: list[SpecialisedConfig], until: float, tell: Callable[[Any], None]) -> None:
    """In a process of its own: times of every shape, those of few tiles first, until the time is over."""
    for m, n, k in SHAPES:
        if time.time() > until:
            break
        bench = Bench(m, n, k, tell)
        own = [c for c in (bench.case.choose(config) for config in configs) if c is not None]
        for choice in (*stock_choices(bench.case), *own):
            bench.add(choice)
        times = bench.times(2)
        for best in sorted(own, key=lambda c: times[named(c.config)])[:EARLY]:
            early = bench.case.choose(replace(best.config, dependent=True))  # type: ignore[arg-type]
            if early is not None:
                bench.add(early)
        programs = {name: choice.programs for name, choice in bench.choices.items()}
        tell({"shape": [m, n, k], "us": bench.times(ROUNDS), "equal": bench.equal, "programs": programs})


def in_turn(graphs: dict[str, Any], repeats: int, rounds: int) -> dict[str, float]:
    """Median microseconds of one call of each."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds + 1):
        for name, made in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            made.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1000 / repeats)
    return {name: statistics.median(t[1:]) for name, t in times.items()}


@dataclass
class Child:
    """A process that tells things, and when it did so last."""

    process: Any
    pipe: Connection
    told: list[Any]
    last: float

    @classmethod
    def start(cls, function: Callable[..., None], *arguments: Any) -> Child:
        # Forked, as torch takes seconds to import; nothing of the parent has touched the card.
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_body, args=(theirs, function, arguments))
        process.start()
        theirs.close()
        return cls(process, ours, [], time.time())

    def listen(self, silent: float) -> str | None:
        """Take what was told; once it has ended, how."""
        try:
            while self.pipe.poll():
                self.told.append(self.pipe.recv())
                self.last = time.time()
        except EOFError:
            self.process.join()
            return "ended" if self.process.exitcode == 0 else f"exit {self.process.exitcode}"
        if time.time() - self.last > silent:
            self.process.kill()
            self.process.join()
            return "hung"
        return None


def _body(pipe: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments, pipe.send)
    except Exception as error:  # noqa: BLE001  told, and counted as a failure
        pipe.send({"error": f"{type(error).__name__}: {str(error)[:400]}"})
        os._exit(2)


def all_bytes(
    configs: list[SpecialisedConfig], silent: float, until: float, note: Callable[[], None], found: Any
) -> None:
    """Check configs, some at a time, until the time is over; ``found`` gets how each ended."""
    waiting, running = list(configs), {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE and time.time() < until:
            config = waiting.pop(0)
            running[named(config)] = Child.start(check_bytes, config)
        if not running:
            break
        wait([c.pipe for c in running.values()], timeout=0.5)
        for name, child in list(running.items()):
            how = child.listen(silent)
            if how is None:
                continue
            del running[name]
            bad = [t for t in child.told if t.get("state") != "equal"]
            held = sum(t.get("state") == "equal" for t in child.told)
            found[name] = {"ended": how, "equal": held, "bad": bad}
            print(f"{name:40s} {how:8s} {held} cases equal {bad[:3] or ''}", flush=True)
            note()
    for config in waiting:
        found[named(config)] = {"ended": "no time", "equal": 0, "bad": []}


def all_times(
    configs: list[SpecialisedConfig], silent: float, until: float, note: Callable[[], None], rows: Any
) -> None:
    """Time configs, again without the one that a process hung or failed at; ``rows`` gets a row for each shape."""
    while configs:
        child = Child.start(check_times, configs, until)
        seen, how = 0, None
        while how is None:
            wait([child.pipe], timeout=0.5)
            how = child.listen(silent)
            for row in (t for t in child.told[seen:] if "us" in t):
                rows.append(row)
                tell_row(row)
                note()
            seen = len(child.told)
        if how == "ended":
            return
        at = next((t["begins"] for t in reversed(child.told) if "begins" in t), "")
        print(f"times: {how} at {at} {[t for t in child.told if 'error' in t]}", flush=True)
        rows.append({"shape": None, "ended": how, "at": at})
        left = [c for c in configs if not at.startswith(named(c))]
        if len(left) == len(configs):
            return
        configs = left


def tell_row(row: dict[str, Any]) -> None:
    us = row["us"]
    own = sorted((t, x) for x, t in us.items() if x != MM and not x.startswith("stock"))
    stock = min((t, x) for x, t in us.items() if x.startswith("stock"))
    print(f"{'x'.join(map(str, row['shape'])):18s} mm {us[MM]:8.1f}  {stock[1]} {us[MM] / stock[0]:.3f}")
    for t, x in own[:4]:
        same = "" if row["equal"][x] else "  BYTES ARE NOT torch.mm's"
        print(f"{'':20s}{x:44s} {t:8.1f}  {us[MM] / t:.3f}{same}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--silent", type=float, default=25.0, help="seconds after which a process counts as hung")
    parser.add_argument("--configs", type=lambda text: [int(x) for x in text.split(",")], help="their numbers")
    parser.add_argument("--no-times", action="store_true")
    options = parser.parse_args()
    until = time.time() + options.seconds
    numbers = options.configs or range(len(SPECIALISED_CONFIGS))
    configs = [SPECIALISED_CONFIGS[i] for i in numbers]
    # Asking for a card must not initialise CUDA before the processes fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch
    import triton

    from gemmdesc.kernels import launch as _launch  # noqa: F401  before the processes fork
    from gemmdesc.kernels.variants import variants_of
    from gemmdesc.tuning.ahead import Ahead

    found: dict[str, Any] = {}
    rows: list[Any] = []
    report: dict[str, Any] = {
        "claim": "The specialised chain gives the stock chain's bytes, and its times",
        "command": f"python scripts/check_specialised.py {' '.join(sys.argv[1:])}", "date": date.today().isoformat(),
        "versions": {"torch": str(torch.__version__), "triton": str(triton.__version__)}, "bytes": found, "times": rows,
    }  # fmt: skip

    def note() -> None:
        options.path.write_text(json.dumps(report, indent=1) + "\n")

    variants = [v for c in configs for v in needed(c)]
    timed = [Case(m=m, n=n, k=k) for m, n, k in SHAPES] if not options.no_times else []
    variants += [v for case in timed for choice in stock_choices(case) for v in variants_of(choice)]
    with Ahead(90) as ahead:
        ahead(variants)
        report["compiled"], report["not_compiled"] = len(ahead.compiled), ahead.failures[:20]
    print(f"{time.time() - until + options.seconds:.0f} s: compiled {len(ahead.compiled)}, failed {ahead.failures[:3]}")
    all_bytes(configs, options.silent, until, note, found)
    print(f"{time.time() - until + options.seconds:.0f} s: bytes")
    good = [c for c in configs if found[named(c)]["ended"] == "ended" and not found[named(c)]["bad"]]
    if not options.no_times:
        all_times(good, options.silent, until, note, rows)
    note()
    print(f"{time.time() - until + options.seconds:.0f} s: {len(good)} of {len(configs)} configs equal")
    return 0 if len(good) == len(configs) and all(r["shape"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
