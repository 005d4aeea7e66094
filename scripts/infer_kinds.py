"""Read and infer again, offline, from the raw experiments that `scripts/read_kinds.py` kept.

    python scripts/infer_kinds.py READINGS.jsonl [--kinds tf32,bias] [--by algo_id] [--matrix-steps] [--workers 2]
                                  [--out rules.json]

Each record is read again from its experiments (unless ``--keep-readings``).  Records of one kind, types and family
(the attributes of ``--by``) are inferred together, and every rule found is replayed on all experiments of all of them:
the first one that gives every output that the library gave is the group's.  Where there is none, each record is
inferred by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gemmdesc.errors import GemmdescError
from gemmdesc.plain import answer_from_plain, problem_from_plain
from gemmdesc.probe.answers import answer_key
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.kinds import SPREAD_OVER, rules_of
from gemmdesc.probe.raw import RawReader
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reading import Reading, reading_from_plain
from gemmdesc.probe.recorded import Agreement, hold_against
from gemmdesc.rule import Rule

#: Rules of one group that are replayed.
TRIED = 6


def reading_of(record: dict[str, Any], *, again: bool) -> Reading | None:
    """The record's reading, made again from its experiments or as it is; None where there is none."""
    if not again:
        return reading_from_plain(record["reading"]) if "reading" in record else None
    if "raw" not in record:
        return None
    problem, answer = problem_from_plain(record["problem"]), answer_from_plain(record["answer"])
    kept = reading_from_plain(record["reading"]) if "reading" in record else None
    try:
        reading = read_answer(RawReader(record["raw"]), problem, answer)
    except ReferenceFailed:
        # Walks that changed ask what was not recorded; what an earlier one concluded from too little is left out.
        return kept and replace(kept, fused_products=kept.fused_products or None)
    return replace(reading, launch=None if kept is None else kept.launch)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What rules a set of readings has: a text or why there is none, and what the recorded experiments say of it."""

    rule: str | None
    reason: str
    agreement: Agreement

    @property
    def whole(self) -> bool:
        return self.rule is not None and self.agreement.whole


def infer(readings: Sequence[Reading], raws: Sequence[RawReader]) -> Held:
    """The first rule that gives every recorded output, or the one that gives most of them."""
    nothing = Agreement(experiments=0, equal=0)
    found = rules_of(readings)
    if isinstance(found, Unexplained):
        return Held(rule=None, reason=found.reason, agreement=nothing)
    best: Held | None = None
    for rule in found[:TRIED]:
        held = _held(rule, readings, raws)
        if held.whole:
            return held
        if best is None or held.agreement.equal > best.agreement.equal:
            best = held
    assert best is not None
    return best


def _held(rule: Rule, readings: Sequence[Reading], raws: Sequence[RawReader]) -> Held:
    total = Agreement(experiments=0, equal=0)
    try:
        for reading, raw in zip(readings, raws, strict=True):
            total += hold_against(rule, reading.problem, reading.answer, raw)
    except GemmdescError as error:
        return Held(rule=None, reason=f"{type(error).__name__}: {error}", agreement=total)
    return Held(rule=rule.text, reason="", agreement=total)


def infer_group(name: str, records: list[dict[str, Any]], again: bool) -> dict[str, Any]:
    """One row: the group's rule, or the outcome of each of its records by itself."""
    began = time.monotonic()
    read = [(r, reading_of(r, again=again)) for r in records]
    kept = [(r, x, RawReader(r["raw"])) for r, x in read if x is not None]
    row: dict[str, Any] = {"group": name, "records": len(records), "readings": len(kept)}
    if kept:
        held = infer([x for _, x, _ in kept], [raw for _, _, raw in kept])
        row |= _plain(held)
        if not held.whole:
            alone = [(r["number"], infer([x], [raw])) for r, x, raw in kept] if len(kept) > 1 else []
            row["alone"] = [{"number": n, **_plain(h)} for n, h in alone]
    return row | {"seconds": round(time.monotonic() - began, 1)}


def _plain(held: Held) -> dict[str, Any]:
    counts = {"experiments": held.agreement.experiments, "equal": held.agreement.equal}
    return {"rule": held.rule, "reason": held.reason, **counts}


def groups_of(path: Path, kinds: Sequence[str], by: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The last record of every kind and number, by kind, types and family."""
    records: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if not kinds or record["name"] in kinds:
            records[record["name"], record["number"]] = record
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records.values():
        if "raw" not in record:
            groups[f"{record['name']} (failed)"].append(record)
            continue
        problem, answer = problem_from_plain(record["problem"]), answer_from_plain(record["answer"])
        groups[f"{record['name']} {answer_key(problem, answer).only(by)}"].append(record)
    return dict(sorted(groups.items()))


def rows_of(groups: dict[str, list[dict[str, Any]]], again: bool, workers: int) -> Iterator[dict[str, Any]]:
    if workers < 2:
        yield from (infer_group(name, records, again) for name, records in groups.items())
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(infer_group, n, r, again) for n, r in groups.items()]):
            yield done.result()


def counted(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """By kind: groups, those of one rule that gives all outputs, and readings with such a rule, together or alone."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        kind = found.setdefault(row["group"].split()[0], dict.fromkeys(
            ("groups", "of_one_rule", "readings", "explained", "experiments", "equal"), 0
        ))  # fmt: skip
        shared = row.get("rule") is not None and row["equal"] == row["experiments"]
        parts = [row] if shared or not row.get("alone") else row["alone"]
        kind["groups"] += 1
        kind["of_one_rule"] += shared
        kind["readings"] += row["readings"]
        kind["explained"] += row["readings"] if shared else sum(
            p.get("rule") is not None and p["equal"] == p["experiments"] for p in row.get("alone", ())
        )  # fmt: skip
        for name in ("experiments", "equal"):
            kind[name] += sum(p.get(name, 0) for p in parts)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--keep-readings", action="store_true")
    parser.add_argument("--kinds", default="", help="only these, with commas")
    parser.add_argument("--by", default=",".join(SPREAD_OVER), help="attributes of an answer, with commas")
    parser.add_argument("--matrix-steps", action="store_true", help="only what fuses products in one step")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    groups = groups_of(options.records, [k for k in options.kinds.split(",") if k], options.by.split(","))
    if options.matrix_steps:
        fused = {n: [r for r in of if r.get("reading", {}).get("fused")] for n, of in groups.items()}
        groups = {n: of for n, of in fused.items() if of}
    rows = []
    for row in rows_of(groups, not options.keep_readings, options.workers):
        rows.append(row)
        print(f"{row['group']} [{row['readings']} of {row['records']}] {row['seconds']} s, "
              f"{row.get('equal', 0)} of {row.get('experiments', 0)} outputs\n    "
              f"{row.get('rule') or row.get('reason', 'nothing was read')}", flush=True)  # fmt: skip
        for one in row.get("alone", ()):
            print(f"    {one['number']}: {one['equal']} of {one['experiments']}, {one['rule'] or one['reason']}")
    rows.sort(key=lambda r: str(r["group"]))
    counts = counted(rows)
    for kind, found in counts.items():
        print(kind, found)
    if options.out:
        options.out.write_text(json.dumps({"counts": counts, "groups": rows}, indent=1) + "\n", encoding="utf-8")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
