"""Write docs/results/equivalence.json from the rows of campaigns and the summary of a gate.

    python scripts/equivalence_results.py
        docs/results/equivalence.json --rows ROWS.parquet ... [--gate OUT/summary.json ...]

Every figure is counted from the files given; what a file does not have is not in the result.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

#: What the gate's claim keeps of its summary; lists of examples stay in the summary.
KEPT = ("claim", "command", "card", "versions", "date", "counts", "declined_by_reason", "different_by_kernel",
        "seconds")  # fmt: skip
WITNESSES = "python scripts/equivalence_witnesses.py OUT.jsonl --gate ROWS.parquet"
Row = dict[str, Any]


def texts_of(rows: list[Row]) -> list[Row]:
    """One row for each distinct text of a case, chip and compiler; configurations without a text are left out."""
    return list({(r["case"], r["arch"], r["triton"], r["text"]): r for r in rows if "text" in r}.values())


def place(row: Row) -> str:
    """Chip and compiler."""
    return f"sm_{row['arch']}, triton {row['triton']}"


def kernel_of(case: str) -> str:
    """The kernel of a case; of what torch.compile emitted, the function, without its sizes and settings."""
    first, *words = case.split("-")
    if first != "compiled":
        return first
    return f"compiled {'-'.join(w for w in words if w != 'looped' and not any(map(str.isdecimal, w)))}"


def facts(rows: list[Row], paths: list[Path]) -> dict[str, Any]:
    """What every claim of a campaign says of its making."""
    tritons = ", ".join(sorted({r["triton"] for r in rows}))
    dates = max(path.stat().st_mtime for path in paths)
    return {
        "command": "python scripts/partition_corpus.py ROWS.jsonl --arch 90,100,103 [--wide] --store ROWS.parquet",
        "card": "none: compiled and read on a CPU",
        "versions": {"triton": tritons, "python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d", time.gmtime(dates)),
    }


def campaign(rows: list[Row], given: dict[str, Any]) -> Row:
    """Configurations and distinct texts, read and refused, and classes by chip and compiler."""
    texts = texts_of(rows)
    read = [r for r in texts if "class" in r]
    refused = [r for r in texts if "refused" in r]
    partition = {}
    for name in sorted({place(r) for r in rows}):
        here = [r for r in rows if place(r) == name]
        of_text = [r for r in texts if place(r) == name]
        partition[name] = {
            "configurations": len(here),
            "texts": len(of_text),
            "texts_read": sum("class" in r for r in of_text),
            "classes": len({(r["case"], r["class"]) for r in of_text if "class" in r}),
        }
    reasons = Counter(r["refused"] for r in refused)
    return {
        "claim": "Configurations of the corpus sorted into classes of equal bits; bars are over distinct texts",
        **given,
        "counts": {
            "configurations": len(rows),
            "distinct_texts": len(texts),
            "texts_read": len(read),
            "texts_refused": len(refused),
            "not_compiled": sum(r.get("refused") == "compiler" for r in rows),
        },
        "partition": partition,
        "texts_refused_by_reason": dict(reasons.most_common()),
        "texts_refused_by_kernel": dict(
            Counter(f"{kernel_of(r['case'])}: {r['refused']}" for r in refused).most_common(40)
        ),
    }


def trees(rows: list[Row], given: dict[str, Any]) -> Row | None:
    """How many classes one sum has over num_warps 1, 2, 4, 8, everything else alike."""
    groups: dict[tuple[str, str], dict[str, set[Any]]] = defaultdict(lambda: {"warps": set(), "classes": set()})
    for row in rows:
        choice = row["choice"]
        stem = row["case"].split("-")[0]
        alike = choice.get("num_stages", 1) == 1 and choice.get("enable_fp_fusion", True)
        if stem not in ("row_sum", "pinned_sum", "split_sum") or not alike or choice["num_warps"] > 8:
            continue
        group = groups[(row["case"], place(row))]
        if "class" in row:
            group["warps"].add(choice["num_warps"])
            group["classes"].add(row["class"])
    table: dict[str, dict[str, int]] = defaultdict(dict)
    for (case, where), group in sorted(groups.items()):
        if group["warps"] == {1, 2, 4, 8}:
            table[case][where] = len(group["classes"])
    if not table:
        return None
    return {
        "claim": "Classes of one sum over num_warps 1, 2, 4 and 8: stock tl.sum has a tree for each, a sum pinned by a "
        "chain of sums of two, or of splits, has one",
        **given,
        "counts": {"cases": len(table), "partitions": sum(len(t) for t in table.values())},
        "classes_by_case": dict(table),
    }


def times(rows: list[Row], given: dict[str, Any]) -> Row | None:
    """Median seconds to read a text that was not read before, and what 96 configurations cost."""
    timed = [r for r in rows if "read_s" in r]
    if not timed:
        return None
    groups = {
        "reductions and norms": [
            r for r in timed if not r["case"].startswith(("gemm", "compiled-")) and "class" in r
        ],
        "kernels that torch.compile emits": [
            r for r in timed if r["case"].startswith("compiled-") and "class" in r
        ],
        "products with K = 512": [
            r for r in timed if r["case"] in ("gemm-fp16", "gemm-bf16", "gemm-fp32", "gemm-fp8") and "class" in r
        ],
    }
    seconds = {
        name: {
            "texts": len(g),
            "median_read_s": round(median(r["read_s"] for r in g), 4),
            "median_compile_s": round(median(r["compile_s"] for r in g), 4),
            "read_96_s": round(96 * sum(r["read_s"] for r in g) / len(g), 2),
            "compile_96_s": round(96 * sum(r["compile_s"] for r in g) / len(g), 2),
        }
        for name, g in groups.items()
        if g
    }
    return {
        "claim": "Seconds to read a text, and to compile it, on one core; 96 of them as a tuner would",
        **given,
        "counts": {"texts": len(timed)},
        "seconds": seconds,
    }


def gate(path: Path) -> list[Row]:
    """The gate's claim without its examples, and over-splitting as a claim of its own."""
    (whole,) = json.loads(path.read_text(encoding="utf-8"))["claims"]
    claim = {name: whole[name] for name in KEPT if name in whole}
    for name in ("called_equal", "called_different"):
        claim[name] = {k: v for k, v in whole[name].items() if isinstance(v, int)}
    split = whole["over_splitting"]
    kernels = whole["by_kernel"]
    which = " of what torch.compile emits" if all(name.startswith("compiled ") for name in kernels) else ""
    sought = any(set(kinds) - {"none yet"} for kinds in split["surplus_pairs_by_witness"].values())
    left = sum(kinds.get("none yet", 0) for kinds in split["surplus_pairs_by_witness"].values())
    without = f"; {left} pairs have no witness yet" if left else ""
    return [
        claim,
        {
            "claim": f"Over-splitting{which}: "
            "classes of the checker over classes of the card's bytes on all draws, case by "
            "case; apart: over classes that these bytes or a witness tell apart (operands on which the expressions "
            "differ: exactly, or whatever approximate functions give within bounds, or on a card); expected: with "
            "witnesses under four stand-ins for approximate functions too; the counts are over every kernel that is no "
            f"matrix product{without}",
            **{name: whole[name] for name in ("card", "versions", "date")},
            "command": whole["command"] + (f"\n{WITNESSES}" if sought else ""),
            "counts": split["without_products"],
            **{name: found for name, found in split.items() if name not in ("without_products", "surplus")},
        },
    ]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=Path, nargs="*", default=[])
    parser.add_argument("--gate", type=Path, nargs="*", default=[], help="summaries of gates, each its own claims")
    options = parser.parse_args()
    claims: list[Row] = []
    from gemmdesc.equivalence.campaign_rows import load_rows

    rows = load_rows(options.rows)
    if rows:
        given = facts(rows, options.rows)
        claims += [c for c in (campaign(rows, given), trees(rows, given), times(rows, given)) if c is not None]
    for path in options.gate:
        claims += gate(path)
    if not claims:
        sys.exit("rows or gate must be given (got neither)")
    options.out.write_text(json.dumps({"claims": claims}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(claims, indent=1)[:6000])


if __name__ == "__main__":
    main()
