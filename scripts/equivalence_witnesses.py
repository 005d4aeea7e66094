"""Look for operands that tell apart the classes which no draw of a gate has told apart.

    python scripts/equivalence_witnesses.py OUT.jsonl --gate tests/observations/equivalence-gate.parquet
        [--card none] [--seconds 100] [--processes 16] [--seeds 4096]

For each two classes of one case that stored the same bytes on every draw of the gate, both kernels are compiled again,
read, and worked out on draws aimed at what sets them apart (``gemmdesc/equivalence/witnesses.py``), or launched on
them where ``--card first`` is given.  OUT.jsonl gets one line per pair, with the draw and the bytes of the first
element that differs, or with how many draws were tried in vain.  Pairs that have a witness there are not tried again,
with a card those that have one on it.  The compiler has to be that of the gate: another text is said and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from corpus_module import CORPUS, load_corpus

Row = dict[str, Any]


def rows_of(path: Path) -> list[Row]:
    """The whole lines of a file that may not be there."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def kernels_of(group: list[Row]) -> tuple[list[Any], list[Any], str]:
    """Walks and compiled kernels of a group; or why it cannot be tried."""
    from gemmdesc.equivalence import Kernel, Refused, read, signature
    from gemmdesc.equivalence.answers import text_digest

    corpus = load_corpus(CORPUS)
    case = corpus.wide_cases()[group[0]["case"]]
    walks, compiled = [], []
    for row in group:
        kernel = corpus.compile_case(case, row["choice"], 90)
        if text_digest(kernel.asm["ptx"]) != row["text"]:
            return [], [], "the compiler gives another text"
        walked = read(Kernel(name=case.name, ptx=kernel.asm["ptx"], launch=corpus.launch_of(case, row["choice"])))
        if isinstance(walked, Refused) or signature(walked) != row["class"]:
            return [], [], "the text is read as another class"
        walks.append(walked)
        compiled.append(kernel)
    return walks, compiled, ""


def launched(kinds: list[str], walks: list[Any], compiled: list[Any], wanted: list[Any], card: Any) -> dict[Any, Any]:
    """What tells each pair apart on the card."""
    from gemmdesc.equivalence.holding import Holder, Launchable
    from gemmdesc.equivalence.witnesses import CARD, Witness, batches, first_difference

    holder = Holder(card, 0)
    given = [Launchable(cubin=c.asm["cubin"], metadata=c.metadata, kinds=tuple(kinds)) for c in compiled]
    found: dict[Any, Any] = {}
    pairs = set(combinations(range(len(walks)), 2))
    for batch, memory, left, needed in batches(walks, kinds, wanted, pairs, found):
        values = {i: holder.stored_on(walks[i], given[i], memory, "batch") for i in needed}
        holder.drop("batch")
        for pair in left:
            one, other = (values[i] or {} for i in pair)
            difference = first_difference(one, other, batch, kinds, CARD)
            if difference is not None:
                found[pair] = Witness(kind=CARD, found=(difference,))
    return found


def search(group: list[Row], seeds: int, card: str, cache: str) -> list[Row]:
    """One line for each pair of a group."""
    os.environ["TRITON_CACHE_DIR"] = cache
    os.environ.pop("TRITON_INTERPRET", None)
    from gemmdesc.equivalence.matrix_steps import modelled_steps
    from gemmdesc.equivalence.witnesses import aims, find_witnesses, trials

    began, wanted = time.perf_counter(), aims(seeds)
    walks, compiled, reason = kernels_of(group)
    found: dict[Any, Any] = {}
    if not reason and card == "none":
        found = find_witnesses(walks, group[0]["kinds"], wanted, modelled_steps("Hopper"))
    elif not reason:
        from gemmdesc.equivalence.card import Card

        found = launched(group[0]["kinds"], walks, compiled, trials(walks, seeds), Card())
    lines = []
    for pair in combinations(range(len(group)), 2):
        one, other = (group[i] for i in pair)
        line = {"case": one["case"], "choices": [one["choice"], other["choice"]],
                "classes": [one["class"], other["class"]], "reading": one["reading"]}  # fmt: skip
        if pair in found:
            line |= {"kind": found[pair].kind, "found": [asdict(d) for d in found[pair].found]}
        else:
            line |= {"kind": None, "tried": 0 if reason else len(wanted), "on": card, "reason": reason}
        lines.append(line)
    print(f"{group[0]['case']}: {len(found)} of {len(lines)} pairs, {time.perf_counter() - began:.1f} s", flush=True)
    return lines


def main() -> None:
    """Search, write, and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="JSON lines; read, then added to")
    parser.add_argument("--gate", type=Path, nargs="+", required=True, help="rows of gates")
    parser.add_argument("--card", choices=("first", "none"), default="none")
    parser.add_argument("--cases", default="", help="beginnings of case names")
    parser.add_argument("--seeds", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no further group is begun after these")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began = time.time()
    from gemmdesc.equivalence.gate_rows import load_gate_rows
    from gemmdesc.equivalence.witnesses import CARD, pair_key, repeated, unseen

    done = {pair_key(r) for r in rows_of(options.out) if r["kind"] and (options.card == "none" or r["kind"] == CARD)}
    wanted = tuple(name for name in options.cases.split(",") if name)
    groups = [
        group
        for group in unseen(load_gate_rows(options.gate))
        if (not wanted or str(group[0]["case"]).startswith(wanted))
        and any(
            pair_key({"case": a["case"], "classes": [a["class"], b["class"]]}) not in done
            for a, b in combinations(group, 2)
        )
    ]
    print(f"{len(groups)} groups to try", file=sys.stderr, flush=True)
    made: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="equivalence_witnesses_") as cache,
        options.out.open("a", encoding="utf-8") as sink,
        ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool,
    ):
        futures = [pool.submit(search, list(map(dict, g)), options.seeds, options.card, cache) for g in groups]
        for future in as_completed(futures):
            if time.time() - began > options.seconds:
                for other in futures:
                    other.cancel()
            if future.cancelled():
                continue
            try:
                lines = future.result()
            except Exception as error:  # noqa: BLE001 - what cannot be tried is said, and the others go on
                print(f"failed: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
                continue
            made += lines
            sink.write("".join(json.dumps(line) + "\n" for line in lines))
            sink.flush()
    print(json.dumps({"exact witnesses on the card": repeated(rows_of(options.out))}))
    kinds = [line["kind"] for line in made]
    print(json.dumps({str(kind): kinds.count(kind) for kind in sorted(set(kinds), key=str)}))


if __name__ == "__main__":
    main()
