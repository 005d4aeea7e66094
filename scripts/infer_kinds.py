"""Read and infer again, offline, from the raw experiments that `scripts/read_kinds.py` kept.

    python scripts/infer_kinds.py READINGS.jsonl [--keep-readings] [--out rules.json]

Each record is read again from its experiments (unless ``--keep-readings``), records of one kind, type and family are
inferred together, and one line says what rule they share, or why there is none.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemmdesc.plain import answer_from_plain, problem_from_plain
from gemmdesc.probe.answers import answer_key
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.kinds import SPREAD_OVER, rules_of
from gemmdesc.probe.raw import RawReader
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reading import Reading, reading_from_plain


def reading_of(record: dict[str, Any], *, again: bool) -> Reading | None:
    """The record's reading, made again from its experiments or as it is; None where there is none."""
    if not again:
        return reading_from_plain(record["reading"]) if "reading" in record else None
    if "raw" not in record:
        return None
    problem, answer = problem_from_plain(record["problem"]), answer_from_plain(record["answer"])
    try:
        reading = read_answer(RawReader(record["raw"]), problem, answer)
    except ReferenceFailed:
        return None
    kept = reading_from_plain(record["reading"]) if "reading" in record else reading
    return replace(reading, launch=kept.launch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--keep-readings", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    groups: dict[str, list[Reading]] = defaultdict(list)
    lost = 0
    for line in options.records.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        reading = reading_of(record, again=not options.keep_readings)
        if reading is None:
            lost += 1
            continue
        key = answer_key(reading.problem, reading.answer).only(SPREAD_OVER)
        groups[f"{record['name']} {key}"].append(reading)
    rows = []
    for name, readings in sorted(groups.items()):
        found = rules_of(readings)
        text = f"unexplained: {found.reason}" if isinstance(found, Unexplained) else found[0].text
        rows.append({"group": name, "readings": len(readings), "rule": text})
        print(f"{name} [{len(readings)}]\n    {text}")
    print(f"{len(rows)} groups, {lost} records without a reading")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
