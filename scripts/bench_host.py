"""What a call costs the host: torch.mm, a plan's run, gemmdesc.matmul, and Triton's own launch, in turn, on a GPU.

    PYTHONPATH=. python scripts/bench_host.py OUT.json [--seconds 120] [--starts 5] [--seed 0] [--rehearse]

Bytes come first: a case whose calls do not all give torch.mm's is counted as different and not timed.  Then calls take
turns, a hundred of one without waiting for the GPU, then a hundred of the next, in random order; what is kept is the
time of one call in each turn.  Last, fresh processes make their first call with and without saved plans, in turn.

OUT.json is written anew after every case and every pair of processes, so that a limit loses none; each phase has its
share of --seconds.  It has a claim for each: medians and quartiles in microseconds, and ratios (torch.mm's time /
ours).  Exits 1 where bytes differ, or where a bar is missed: run with ``out`` at most torch.mm's time with ``out``,
matmul at most 1.5 times that.  A product of slices is also run by plans that fold it in two launches and in one, for
comparison and without a bar.  Structures that the library's answers do not lead to are launched from descriptors of
our own, by program and by Triton (``host_structures.py``).

``--rehearse`` needs no GPU: torch.mm stands for every call.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import torch
from host_starts import start_claims
from host_structures import described, launches_of

#: Calls in a row of one turn; with at most five launches each, a stream's queue has room for all of them.
IN_A_ROW = 100
#: At most so much of torch.mm's time with ``out``.
BARS = {"run(out)": 1.0, "matmul(out)": 1.5, "matmul": 1.5}
BASE = "torch.mm(out)"
#: Two ways to fold slices, of which a plan has one; see gemmdesc.speed.schedules.
FOLDS = ("two_launches", "one_launch")
HALF, BF16 = torch.float16, torch.bfloat16
#: Of the time for all; what a phase leaves goes to the next, and each case has at least five turns.
SHARES = {"calls": 0.55, "structures": 0.25, "starts": 0.2}
Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A product: ``layouts`` of A and B, ``r`` by rows or ``c`` by columns; ``offset`` elements into their memory."""

    m: int
    n: int
    k: int
    layouts: str = "rr"
    dtype: torch.dtype = HALF
    offset: int = 0

    @property
    def name(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.m}x{self.n}x{self.k} {self.layouts} {kind}{f' +{self.offset}' if self.offset else ''}"


#: Short on the GPU, and of every structure that the library's answers for such products lead to.
CASES = (
    Case(m=128, n=256, k=512), Case(m=256, n=256, k=256, layouts="rc"), Case(m=64, n=64, k=64, dtype=BF16),
    Case(m=512, n=512, k=128, layouts="cr"), Case(m=16, n=1024, k=1024, layouts="rc"),
    Case(m=16, n=1024, k=1024, layouts="rc", dtype=BF16), Case(m=64, n=64, k=8192),
    Case(m=64, n=64, k=16384, dtype=BF16), Case(m=32, n=48, k=4096, layouts="rc"), Case(m=33, n=45, k=101),
    Case(m=77, n=63, k=333, dtype=BF16), Case(m=128, n=128, k=256, offset=1), Case(m=301, n=299, k=501),
    Case(m=255, n=257, k=1001, layouts="cc"), Case(m=1, n=1024, k=1024, layouts="rc"), Case(m=1024, n=1, k=1024),
    Case(m=8, n=8, k=512), Case(m=7, n=9, k=33),
)  # fmt: skip


def operand(rows: int, columns: int, layout: str, case: Case, generator: torch.Generator, place: str) -> torch.Tensor:
    """Values of wide exponents, so that the order of a sum shows."""
    lines, length = (rows, columns) if layout == "r" else (columns, rows)
    memory = torch.empty(lines * length + case.offset, dtype=case.dtype, device=place)
    values = torch.randn((lines, length), device=place, generator=generator)
    values *= torch.exp2(torch.randint(-6, 7, (lines, length), device=place, generator=generator).float())
    stored = memory[case.offset :].view(lines, length).copy_(values)
    return stored if layout == "r" else stored.T


def calls_of(case: Case, seed: int, place: str, rehearse: bool) -> tuple[dict[str, Any], Calls]:
    """What is known of ``case``, and its calls by name, each of which returns the result; none where it declines."""
    generator = torch.Generator(place).manual_seed(seed)
    a = operand(case.m, case.k, case.layouts[0], case, generator, place)
    b = operand(case.k, case.n, case.layouts[1], case, generator, place)
    outs = [torch.full((case.m, case.n), float("nan"), dtype=case.dtype, device=place) for _ in range(5)]
    base: Calls = {BASE: partial(torch.mm, a, b, out=outs[0]), "torch.mm": partial(torch.mm, a, b)}
    if rehearse:
        same = {name: partial(torch.mm, a, b, out=outs[1]) for name in (*BARS, "Triton")}
        return {"structure": "rehearsed", "launches": 1}, base | same
    import gemmdesc
    from gemmdesc.errors import Declined
    from gemmdesc.kernels.launch_tiled import launch_choice
    from gemmdesc.ops import run
    from gemmdesc.plan.cards import card_arithmetic
    from gemmdesc.speed.schedules import scheduled_plans

    planned = gemmdesc.plan(a, b, out=outs[1])
    if isinstance(planned, Declined):
        return {"declined": f"{planned.code}: {planned.reason}"}, {}

    def triton() -> torch.Tensor:
        launch_choice(planned.kernel, a, b, outs[3])
        return outs[3]

    run(planned, a, b, out=outs[1])
    program: Any = planned.programs.by_device[a.get_device()]
    packed = getattr(planned.kernel, "packing", None) is not None
    told = {"structure": planned.kernel.structure.value + (" packed" if packed else "")}
    told |= {"launches": program.launches} if program.prepared else {"unprepared": program.reason}
    ours: Calls = {
        "run(out)": partial(run, planned, a, b, out=outs[1]),
        "matmul(out)": partial(gemmdesc.matmul, a, b, out=outs[2]),
        "matmul": partial(gemmdesc.matmul, a, b),
        "Triton": triton,
    }
    others = scheduled_plans(planned, FOLDS, card_arithmetic(planned.device.sm))
    ours |= {f"run(out), {name}": partial(run, plan, a, b, out=outs[4]) for name, plan in others.items()}
    return told | ({"folds": [*others]} if others else {}), base | ours


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()])


def differing(calls: Calls, base: str) -> list[str]:
    """The calls whose bytes are not those of ``base``, each made three times: the long way first, then the short."""
    want = bits(calls[base]()).clone()
    return [n for n, call in calls.items() if n != "torch" and not all(torch.equal(bits(call()), want) for _ in "123")]


def take_turns(
    calls: Calls, seconds: float, random: Random, settle: Callable[[], None], in_a_row: int = IN_A_ROW
) -> dict[str, list[float]]:
    """Microseconds of one call, of every turn; at least five turns each.  ``settle`` waits for the GPU, untimed."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    until = time.perf_counter() + seconds
    gc.collect()
    gc.disable()
    try:
        while time.perf_counter() < until or min(map(len, times.values())) < 5:
            for name in random.sample(sorted(calls), len(calls)):
                call = calls[name]
                settle()
                begin = time.perf_counter()
                for _ in range(in_a_row):
                    call()
                times[name].append((time.perf_counter() - begin) * 1e6 / in_a_row)
    finally:
        gc.enable()
        settle()
    return times


def quartiles(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"low": round(low, 3), "median": round(middle, 3), "high": round(high, 3)}


def measured(
    name: str, told: dict[str, Any], calls: Calls, base: str, seconds: float, random: Random, place: str
) -> dict[str, Any]:
    """The row of one case: its bytes, then its times."""
    row: dict[str, Any] = {"case": name} | told
    wrong = differing(calls, base) if calls else []
    row["state"] = "declined" if not calls else "different" if wrong else "equal"
    if wrong:
        row["differing"] = wrong
    elif calls:
        gpu = place == "cuda"
        settle = torch.cuda.synchronize if gpu else (lambda: None)
        times = take_turns(calls, seconds, random, settle, IN_A_ROW if gpu else 3)
        row["us"] = {n: quartiles(values) for n, values in times.items()}
        least = row["us"][base]["median"]
        row["ratio"] = {n: round(least / row["us"][n]["median"], 4) for n in calls if n != base}
    medians = {n: v["median"] for n, v in row.get("us", {}).items()}
    print(f"{name}: {row['state']} {row.get('structure', row.get('declined'))} {medians}", flush=True)
    return row


def geomean(values: list[float]) -> float | None:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 4) if values else None


def counts_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    states = {state: sum(r["state"] == state for r in rows) for state in ("equal", "different", "declined")}
    return {"shapes": len(rows), "draws": len(rows), **states, "nondeterministic": 0, "reference_failed": 0}


def cost_claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A claim for each function, and whether it is within its bar at every case."""
    timed = [r for r in rows if "us" in r]
    counts = counts_of(rows)
    claims = []
    for name, bar in (*BARS.items(), ("Triton", None)):
        ratios = {r["case"]: r["ratio"][name] for r in timed}
        allowed = f", at most {bar} times it" if bar else ", for comparison"
        claims.append({
            "claim": f"host time of {name} against {BASE}{allowed}",
            "counts": counts, "ratio": ratios, "geomean": {"all": geomean(list(ratios.values()))},
            **({"within_the_bar": sum(1 / v <= bar for v in ratios.values()), "of": len(ratios)} if bar else {}),
            "microseconds": {
                r["case"]: {"structure": r["structure"], "launches": r.get("launches", "Triton's"),
                            **{f"{n} {q}": r["us"][n][q] for n in (name, BASE) for q in ("low", "median", "high")}}
                for r in timed
            },
        })  # fmt: skip
    claims += fold_claims(timed, counts)
    declined = {r["case"]: r["declined"] for r in rows if "declined" in r}
    claims[0] |= {"declined_cases": declined} if declined else {}
    claims[0] |= {"unprepared": {r["case"]: r["unprepared"] for r in rows if "unprepared" in r}}
    return claims


def fold_claims(timed: list[dict[str, Any]], counts: dict[str, int]) -> list[dict[str, Any]]:
    """Products of slices in two launches and in one, where both were timed: how many keep run's bar in each."""
    names = [f"run(out), {fold}" for fold in FOLDS]
    both = [r for r in timed if all(n in r["us"] for n in names)]
    if not both:
        return []
    return [{
        "claim": f"host time of a product of slices in two launches and in one (ratio: {BASE}'s / one launch's)",
        "counts": counts, "ratio": {r["case"]: r["ratio"][names[1]] for r in both},
        "geomean": {fold: geomean([r["ratio"][n] for r in both]) for fold, n in zip(FOLDS, names, strict=True)},
        "at_most_torch": {fold: sum(r["ratio"][n] >= 1 for r in both) for fold, n in zip(FOLDS, names, strict=True)},
        "products": len(both),
        "microseconds": {
            r["case"]: {f"{n} {q}": r["us"][n][q] for n in (*names, BASE) for q in ("low", "median", "high")}
            for r in both
        },
    }]  # fmt: skip


def structure_claim(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same kernels launched by program and by Triton, and how often a program takes no more than torch's call."""
    timed = [r for r in rows if "us" in r]
    ratios = {r["case"]: r["ratio"]["program"] for r in timed}
    within = sum(r["us"]["program"]["median"] <= r["us"]["torch"]["median"] for r in timed)
    return {
        "claim": "host time of launching the same kernels by program and by Triton (ratio: Triton's / a program's)",
        "counts": counts_of(rows), "ratio": ratios, "geomean": {"all": geomean(list(ratios.values()))},
        "at_most_torch": within, "structures": len(timed),
        "microseconds": {
            r["case"]: {"launches": r["launches"],
                        **{f"{n} {q}": r["us"][n][q] for n in r["us"] for q in ("low", "median", "high")}}
            for r in timed
        },
    }  # fmt: skip


def provenance(rehearse: bool) -> dict[str, Any]:
    """Who measured what, as every results file says it."""
    versions: dict[str, str] = {"torch": torch.__version__, "python": platform.python_version()}
    card = "none (rehearsal)"
    if not rehearse:
        import triton

        from gemmdesc.library.device import device_id
        from gemmdesc.library.identity import library_id, torch_library

        here, library = device_id(), library_id(torch_library().path)
        card = f"{here.name} ({here.sm}, {here.sm_count} SMs)"
        versions |= {"triton": triton.__version__, "cublaslt": str(library.version), "driver": here.driver}
    command = "python " + " ".join(sys.argv)
    return {"command": command, "card": card, "versions": versions, "date": date.today().isoformat()}


class Results:
    """OUT.json, written anew whenever more is known, so that whatever ends the run loses none of it."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path, self._about = path, about
        self._claims: dict[str, list[dict[str, Any]]] = {}

    @property
    def claims(self) -> list[dict[str, Any]]:
        return [claim for phase in self._claims.values() for claim in phase]

    def put(self, phase: str, claims: list[dict[str, Any]]) -> None:
        """``claims`` are now those of ``phase``."""
        self._claims[phase] = claims
        told = [{"claim": c["claim"]} | self._about | c for c in self.claims]
        aside = self._path.with_suffix(".tmp")
        aside.write_text(json.dumps({"claims": told}, indent=1))
        aside.replace(self._path)


def measure_all(
    named: list[tuple[str, Callable[[], tuple[dict[str, Any], Calls]]]], base: str, until: float, random: Random,
    place: str, note: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of all; each gets its share of the time that is left until ``until``, and ``note`` sees them grow."""
    rows: list[dict[str, Any]] = []
    for i, (name, made) in enumerate(named):
        told, calls = made()  # plans and compiles, which takes time of its own
        share = max(0.0, until - time.perf_counter()) / (len(named) - i)
        rows.append(measured(name, told, calls, base, share, random, place))
        note(rows)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0, help="for all phases together")
    parser.add_argument("--starts", type=int, default=5, help="fresh processes of each kind, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    begin, seed, rehearse = time.perf_counter(), options.seed, options.rehearse
    place, random = "cpu" if rehearse else "cuda", Random(seed)
    parts = accumulate(share * options.seconds for share in SHARES.values())
    ends = {name: begin + part for name, part in zip(SHARES, parts, strict=True)}
    results = Results(options.path, provenance(rehearse))
    cases = tuple(Case(m=8 + i, n=9, k=10) for i in range(2)) if rehearse else CASES
    rows = measure_all(
        [(c.name, partial(calls_of, c, seed, place, rehearse)) for c in cases], BASE, ends["calls"], random, place,
        lambda found: results.put("calls", cost_claims(found)),
    )  # fmt: skip
    if not rehearse:
        rows += measure_all(
            [(d.name, partial(launches_of, d, seed)) for d in described()], "Triton", ends["structures"], random, place,
            lambda found: results.put("structures", [structure_claim(found)]),
        )  # fmt: skip
    for claim in start_claims(options.starts, place, rehearse, ends["starts"]):
        results.put("starts", [claim])
    missed = [c["claim"] for c in results.claims if c.get("within_the_bar", 0) < c.get("of", 0)]
    for words in missed:
        print(f"missed at some case: {words}")
    return int(bool(missed) or any(r["state"] == "different" for r in rows))


if __name__ == "__main__":
    sys.exit(main())
