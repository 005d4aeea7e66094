"""Hold the equivalence checker against a card: what it reads has to be what the card stores, bit for bit.

    python scripts/equivalence_gate.py OUT [--seconds 250] [--processes 16] [--most 10000] [--card none]
        [--known tests/observations/equivalence-gate.parquet] [--store tests/observations/equivalence-gate.parquet]
        [--aimed] [--different]

Configurations of the corpus are compiled here, read, and launched with ten adversarial draws each.  The expression
behind every stored byte (of a sample, where they are many) is worked out with PTX's arithmetic, functions that only
hardware defines on the card, and compared with what the card stored; bytes that no thread stores have to stay as they
were.  So are the aimed draws of ``draws.py``.  Configurations that the checker calls equal have to store the same bytes
on every draw, and on eight more that are launched only.

OUT/rows-*.jsonl has one line per configuration.  Lines that are there already, or in a file that ``--known`` names, are
not made again, so that a run that the time limit ended goes on where it was; OUT/summary.json counts over all of them,
and ``--store`` writes them all into a small Parquet file.  ``--card none`` rehearses the script without a GPU: nothing
is launched, and its counts say nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from corpus_module import CORPUS, load_corpus

SEED = 20261130


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows of the files that are known and of all shards, one per configuration; none of an earlier reading."""
    from gemmdesc.equivalence.gate_rows import load_gate_rows

    return load_gate_rows([*options.known, *sorted(options.out.glob("rows-*.jsonl"))])


def planned(corpus: ModuleType, seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Every configuration of the wide corpus, in an order that only ``seed`` fixes.

    Matrix products cost five times what the rest does; at first they are thinned out, to take half of the time.  Cases
    that take Triton minutes to compile come last.
    """
    draw = random.Random(seed)
    every = [(case.name, choice) for case in corpus.wide_cases().values() for choice in case.configurations()]

    def place(item: tuple[str, dict[str, Any]]) -> tuple[bool, float]:
        return item[0] in corpus.SLOW, draw.random() * (2.0 if item[0].startswith("gemm") else 1.0)

    return sorted(every, key=place)


def card_of(name: str) -> Any:
    """The first card, or what stands in for one."""
    if name == "none":
        from gemmdesc.equivalence.rehearsal import Rehearsal

        return Rehearsal()
    from gemmdesc.equivalence.card import Card

    return Card()


class Reader:
    """Compiles, reads, launches and compares one configuration after the other."""

    def __init__(self, corpus: ModuleType, card: Any, seed: int) -> None:
        from gemmdesc.equivalence.holding import Holder

        self.corpus, self.cases, self.holder = corpus, corpus.wide_cases(), Holder(card, seed)

    def compiled(self, name: str, choice: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """The beginning of a row, and the compiled kernel or None."""
        began = time.perf_counter()
        from gemmdesc.equivalence.answers import READING

        case = self.cases[name]
        kinds = [kind for _, kind in case.pointers]
        row: dict[str, Any] = {"case": name, "choice": choice, "kernel": case.family, "kinds": kinds,
                               "reading": READING}  # fmt: skip
        try:
            kernel = self.corpus.compile_case(case, choice, 90)
        except Exception as error:  # noqa: BLE001 - a compiler's failure is a row, whatever it raises
            return {**row, "refused": "compiler", "reason": f"{type(error).__name__}: {str(error)[:200]}"}, None
        return {**row, "compile_s": round(time.perf_counter() - began, 4)}, kernel

    def finished(self, row: dict[str, Any], compiled: Any) -> dict[str, Any]:
        """The row with everything that reading and launching say."""
        from gemmdesc.equivalence import Kernel, Refused, read, signature
        from gemmdesc.equivalence.answers import text_digest

        if compiled is None:
            return row
        from gemmdesc.equivalence.holding import Launchable
        from gemmdesc.equivalence.relations import relaxed_digests

        case = self.cases[row["case"]]
        launch = self.corpus.launch_of(case, row["choice"])
        began = time.perf_counter()
        ptx = compiled.asm["ptx"]
        row["text"] = text_digest(ptx)
        walked = read(Kernel(name=case.name, ptx=ptx, launch=launch))
        row["read_s"] = round(time.perf_counter() - began, 4)
        if isinstance(walked, Refused):
            return {**row, "refused": walked.code, "reason": walked.reason[:200]}
        row["class"] = signature(walked)
        row["assuming"] = list(walked.assuming[2:])
        row["relaxed"] = relaxed_digests(walked)
        given = Launchable(cubin=compiled.asm["cubin"], metadata=compiled.metadata, kinds=tuple(row["kinds"]))
        try:
            return {**row, **self.holder.hold(walked, given)}
        except Exception as error:  # noqa: BLE001 - what could not be held against the card is counted, with its reason
            said = f"{type(error).__name__}: {str(error)[:300]}"
            return {**row, "failed": said, "where": traceback.format_exc()[-600:]}


def work(number: int, options: dict[str, Any], todo: list[Any], counter: Any, warm: Any, ends: float) -> None:
    """One process: take configurations until there are none or the time is over."""
    os.environ["TRITON_CACHE_DIR"] = f"{options['scratch']}/triton-{number}"
    os.environ.pop("TRITON_INTERPRET", None)
    corpus = load_corpus(Path(options["corpus"]))
    reader = Reader(corpus, card_of(options["card"]), options["seed"])
    path = Path(options["out"]) / f"rows-{int(time.time())}-{number}.jsonl"
    taken = _taken(todo, counter, ends)
    if number == 0:
        warm_up(reader)
        warm.set()
    ahead = []
    # Compile ahead while one process fills Numba's cache, which the others then read.
    while not warm.is_set():
        item = next(taken, None)
        if item is None:
            break
        ahead.append(reader.compiled(*item))
    warm.wait(timeout=max(0.0, ends - time.time()))
    with path.open("a", encoding="utf-8") as sink:
        for row, kernel in itertools.chain(ahead, (reader.compiled(*item) for item in taken)):
            if time.time() > ends:
                break
            made = reader.finished(row, kernel)
            sink.write(json.dumps(made) + "\n")
            sink.flush()
            if made.get("failed", "").startswith("LibraryError: CUDA"):
                # The context is lost with the first illegal access, and with it every later launch of this process.
                print(f"process {number} ends: {made['failed']}", file=sys.stderr, flush=True)
                break


def _taken(todo: list[Any], counter: Any, ends: float) -> Iterator[Any]:
    while time.time() < ends:
        with counter.get_lock():
            index = counter.value
            counter.value += 1
        if index >= len(todo):
            return
        yield todo[index]


def warm_up(reader: Reader) -> None:
    """Have Numba compile what reading and working out need."""
    cases = reader.cases
    for name, choice in (
        ("gemm-fp16", {"BM": 16, "BN": 32, "BK": 32, "num_stages": 2, "num_warps": 1}),
        ("gemm-fp32", {"BM": 16, "BN": 32, "BK": 32, "num_stages": 1, "num_warps": 1}),
        ("softmax-256-bf16", {"num_warps": 4, "enable_fp_fusion": False, "num_stages": 1}),
    ):
        if name in cases:
            reader.finished(*reader.compiled(name, choice))


def facts_of(options: argparse.Namespace) -> dict[str, Any]:
    """Command, card, versions and date of a claim."""
    import triton

    from gemmdesc.library.device import driver_version

    versions = {"triton": triton.__version__, "numpy": np.__version__, "python": platform.python_version()}
    card = card_of(options.card).name
    if driver := driver_version():
        versions["driver"] = driver
    command = f"python scripts/equivalence_gate.py OUT --seconds {options.seconds} --seed {options.seed}"
    return {"command": command, "card": card, "versions": versions, "date": time.strftime("%Y-%m-%d")}


def main() -> None:
    """Run, then write and print the summary; exit 1 if a byte or a pair differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder for rows and the summary; what is there is not made again")
    parser.add_argument("--seconds", type=float, default=250.0, help="wall clock from start to summary")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most", type=int, default=None, help="new configurations at most")
    parser.add_argument("--cases", default="", help="beginnings of case names")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--card", choices=("first", "none"), default="first")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="files with rows that need not be made")
    parser.add_argument("--aimed", action="store_true", help="make rows again that were not launched on aimed draws")
    parser.add_argument("--different", action="store_true", help="make rows again in which some draw differed")
    parser.add_argument("--store", type=Path, default=None, help="a Parquet file for all rows")
    parser.add_argument("--witnesses", type=Path, default=None, help="lines of equivalence_witnesses.py, to count with")
    parser.add_argument("--summary", type=Path, default=None, metavar="FACTS",
                        help="only count what is there; FACTS: the summary of the run that made it")  # fmt: skip
    options = parser.parse_args()
    began = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.summary is None:
        run(options, began)
        facts = facts_of(options)
    else:
        (claim,) = json.loads(options.summary.read_text(encoding="utf-8"))["claims"]
        facts = {name: claim[name] for name in ("command", "card", "versions", "date")}
    from gemmdesc.equivalence.gate_counts import summary
    from gemmdesc.equivalence.gate_rows import store_gate_rows

    rows = rows_of(options)
    if options.store is not None:
        store_gate_rows(options.store, rows)
    lines = options.witnesses.read_text(encoding="utf-8").splitlines() if options.witnesses is not None else []
    made = summary(rows, facts, [json.loads(line) for line in lines])
    text = json.dumps({"claims": [made]}, indent=1)
    (options.out / "summary.json").write_text(text + "\n", encoding="utf-8")
    print(text[:8000])
    sys.exit(1 if made["counts"]["different"] or made["called_equal"]["pairs_that_differ"] else 0)


def _again(row: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether a row that is there is to be made again."""
    differs = not all([*row.get("equal", ()), *row.get("aimed_equal", ())])
    return (options.aimed and "outputs" in row and "aimed" not in row) or (options.different and differs)


def run(options: argparse.Namespace, began: float) -> None:
    """Have the processes take configurations until the time is over."""
    from gemmdesc.equivalence.gate_rows import gate_key

    known = {gate_key(row) for row in rows_of(options) if not _again(row, options)}
    wanted = [name for name in options.cases.split(",") if name]
    todo = [
        item
        for item in planned(load_corpus(options.corpus), options.seed)
        if json.dumps(list(item), sort_keys=True) not in known
        and (not wanted or any(item[0].startswith(name) for name in wanted))
    ][: options.most]
    print(f"{len(known)} rows are there, {len(todo)} to make", file=sys.stderr, flush=True)
    context = get_context("spawn")
    counter, warm = context.Value("l", 0), context.Event()
    scratch = tempfile.mkdtemp(prefix="equivalence_gate_")
    given = {"out": str(options.out), "corpus": str(options.corpus), "card": options.card, "seed": options.seed,
             "scratch": scratch}  # fmt: skip
    ends = began + options.seconds - 15
    processes = [
        context.Process(target=work, args=(n, given, todo, counter, warm, ends)) for n in range(options.processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=max(0.0, ends + 10 - time.time()))
    for process in processes:
        if process.is_alive():
            process.kill()
    shutil.rmtree(scratch, ignore_errors=True)
    print(f"{time.time() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
