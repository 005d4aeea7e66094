"""Give the rows of a gate the digests by which surplus pairs are named, where pairs have no name yet.  No GPU.

    python scripts/equivalence_names.py tests/observations/equivalence-gate-compiled.parquet [--processes 2]

A row's digests are made when it is held against a card; a relation that came later (``relations.py``) is in none of
them.  Kernels of cases with a pair without a name are compiled and read again.  The compiler has to be that of the
gate: another text, or one that is read as another class, is counted and its row left as it is.  The file is rewritten
at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

Row = dict[str, Any]


def unnamed_cases(rows: list[Row]) -> set[str]:
    """Cases with a pair of classes that stored the same bytes and have no name."""
    from gemmdesc.equivalence.gate_counts import UNNAMED, over_splitting

    read = [row for row in rows if "class" in row and "outputs" in row]
    return {found["case"] for found in over_splitting(read)["surplus"] if UNNAMED in found["pairs"]}


def digests(row: Row, cache: str) -> tuple[dict[str, str] | None, str]:
    """The row's digests by relation, or None and why not."""
    os.environ["TRITON_CACHE_DIR"] = cache
    os.environ.pop("TRITON_INTERPRET", None)
    from gemmdesc.equivalence import Kernel, Refused, read, signature
    from gemmdesc.equivalence.answers import text_digest
    from gemmdesc.equivalence.relations import relaxed_digests
    from tests import equivalence_corpus as corpus

    case = corpus.wide_cases()[row["case"]]
    ptx = corpus.compile_case(case, row["choice"], 90).asm["ptx"]
    if text_digest(ptx) != row["text"]:
        return None, "the compiler gives another text"
    walked = read(Kernel(name=case.name, ptx=ptx, launch=corpus.launch_of(case, row["choice"])))
    if isinstance(walked, Refused) or signature(walked) != row["class"]:
        return None, "the text is read as another class"
    return relaxed_digests(walked), "named"


def main() -> None:
    from gemmdesc.equivalence.gate_rows import load_gate_rows, store_gate_rows

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    rows = load_gate_rows([options.store])
    cases = unnamed_cases(rows)
    chosen = [at for at, row in enumerate(rows) if row["case"] in cases and "outputs" in row]
    fates: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as cache,
        ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool,
    ):
        made = pool.map(digests, [rows[at] for at in chosen], [cache] * len(chosen), chunksize=4)
        for at, (found, fate) in zip(chosen, made, strict=True):
            fates[fate] += 1
            if found is not None:
                rows[at] = {**rows[at], "relaxed": found}
    store_gate_rows(options.store, rows)
    print(f"{len(cases)} cases with pairs without a name; rows: {dict(fates)}")


if __name__ == "__main__":
    main()
