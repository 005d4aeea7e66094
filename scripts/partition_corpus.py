"""Compile a corpus of Triton kernels without a GPU and sort its configurations into classes of equal bits.

    python scripts/partition_corpus.py rows.jsonl --arch 90,100,103 [--wide] [--cases row_sum,gemm] [--most 1000]
        [--known tests/observations/equivalence-rows.parquet] [--store tests/observations/equivalence-rows.parquet]

One JSON row per configuration: the case, its knobs, the chip, the compiler, a digest of the text, and a class or a
refusal.  Texts are not kept.  Rows that are in the file already, or in one that ``--known`` names, are not made again,
so that a stopped campaign goes on where it was; the summary is over all of them.  ``--store`` writes them all into a
small Parquet file at the end, ``--most 0 --store FILE`` at once.  Rows of an earlier reading are made again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import cpu_count, get_context
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from corpus_module import CORPUS, load_corpus


def end_last_line(path: Path) -> None:
    """Take off a last line that a stop cut short."""
    if path.exists():
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")


def planned(corpus: ModuleType, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every configuration asked for, as the beginning of a row."""
    import triton

    wanted = [name for name in options.cases.split(",") if name]
    for case in (corpus.wide_cases() if options.wide else corpus.cases()).values():
        if wanted and not any(case.name.startswith(name) for name in wanted):
            continue
        for choice in case.configurations():
            for arch in options.arch.split(","):
                yield {"case": case.name, "choice": choice, "arch": int(arch), "triton": triton.__version__}


def work(corpus_path: str, wide: bool, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compile and read some configurations."""
    corpus = load_corpus(Path(corpus_path))
    cases = corpus.wide_cases() if wide else corpus.cases()
    read_texts: dict[tuple[str, str], dict[str, Any]] = {}
    return [finish(corpus, cases[row["case"]], row, read_texts) for row in rows]


def finish(
    corpus: ModuleType, case: Any, row: dict[str, Any], read_texts: dict[tuple[str, str], dict[str, Any]]
) -> dict[str, Any]:
    """A row with its text's digest and its class, or why it has none; a text under one launch is read once."""
    from gemmdesc.equivalence import Kernel, Refused, read, signature
    from gemmdesc.equivalence.answers import READING, text_digest

    row = {**row, "reading": READING}
    began = time.perf_counter()
    try:
        ptx = corpus.compile_case(case, row["choice"], row["arch"]).asm["ptx"]
    except Exception as error:  # noqa: BLE001 - a compiler's failure is a row, whatever it raises
        return {**row, "refused": "compiler", "reason": f"{type(error).__name__}: {str(error)[:200]}"}
    compiled = time.perf_counter()
    row = {**row, "text": text_digest(ptx), "compile_s": round(compiled - began, 4)}
    launch = corpus.launch_of(case, row["choice"])
    known = read_texts.get((row["text"], str(launch)))
    if known is not None:
        return {**row, **known}
    found = read(Kernel(name=case.name, ptx=ptx, launch=launch))
    if isinstance(found, Refused):
        said = {"refused": found.code, "reason": found.reason}
    else:
        said = {"class": signature(found)}
    read_texts[(row["text"], str(launch))] = said
    return {**row, **said, "read_s": round(time.perf_counter() - compiled, 4)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Configurations and distinct texts, read and refused by reason, and classes by chip and compiler."""
    texts = {(row["arch"], row["triton"], row["case"], row.get("text")): row for row in rows}
    read = [row for row in texts.values() if "class" in row]
    refused = [row for row in texts.values() if "refused" in row]
    classes: dict[str, dict[str, int]] = {}
    for row in read:
        name = f"sm_{row['arch']} triton {row['triton']}"
        classes.setdefault(name, {})
    for name, counts in classes.items():
        here = [row for row in read if name == f"sm_{row['arch']} triton {row['triton']}"]
        counts["texts"] = len(here)
        counts["classes"] = len({(row["case"], row["class"]) for row in here})
    return {
        "configurations": len(rows),
        "distinct_texts": len(texts),
        "texts_read": len(read),
        "texts_refused": len(refused),
        "refused_by_reason": dict(Counter(row["refused"] for row in refused).most_common()),
        "partition": classes,
        "median_read_s": median([row["read_s"] for row in rows if "read_s" in row] or [0.0]),
        "median_compile_s": median([row["compile_s"] for row in rows if "compile_s" in row] or [0.0]),
    }


def main() -> None:
    """Run the campaign and print its summary as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, help="JSON lines; read, then added to")
    parser.add_argument("--arch", default="90", help="compute capabilities, such as 90,100,103")
    parser.add_argument("--cases", default="", help="beginnings of case names")
    parser.add_argument("--wide", action="store_true", help="three sizes, more warps and stages")
    parser.add_argument("--most", type=int, default=None, help="new rows to make at most")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="files with rows that need not be made")
    parser.add_argument("--store", type=Path, default=None, help="a Parquet file for all rows")
    parser.add_argument("--processes", type=int, default=cpu_count())
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    options = parser.parse_args()

    from gemmdesc.equivalence.campaign_rows import load_rows, row_key, store_rows

    end_last_line(options.rows)
    done = load_rows([*options.known, *([options.rows] if options.rows.exists() else [])])
    known = {row_key(row) for row in done}
    corpus = load_corpus(options.corpus)
    rows = [row for row in planned(corpus, options) if row_key(row) not in known][: options.most]
    print(f"{len(known)} rows are there, {len(rows)} to make", file=sys.stderr)
    chunks = [rows[i : i + 16] for i in range(0, len(rows), 16)]
    # A campaign that is stopped has rows of every kind, but for cases that take minutes each.
    random.Random(0).shuffle(chunks)
    chunks.sort(key=lambda chunk: any(row["case"] in corpus.SLOW for row in chunk))
    with (
        options.rows.open("a", encoding="utf-8") as sink,
        ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool,
    ):
        futures = [pool.submit(work, str(options.corpus), options.wide, chunk) for chunk in chunks]
        for number, future in enumerate(as_completed(futures), 1):
            made = future.result()
            done += made
            sink.write("".join(json.dumps(row) + "\n" for row in made))
            sink.flush()
            if number % 10 == 0 or number == len(chunks):
                print(f"{number} of {len(chunks)} chunks", file=sys.stderr)
    if options.store is not None:
        store_rows(options.store, done)
    print(json.dumps(summary(done), indent=1))


if __name__ == "__main__":
    main()
