"""Record golden bytes on the card at hand: small examples of every verified row of a profile.

    PYTHONPATH=. python scripts/record_golden.py --profile arch_profiles/sm_90-132/cublaslt-13.1.0.parquet \
        --out tests/golden/sm_90-132-cublaslt-13.1.0.parquet --date 2026-11-29

The profile says only which rows want examples: every byte comes from the library.  Each record is checked against the
CPU replay and a difference is reported, but recorded all the same.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from gemmdesc.golden import Golden, Provenance, replay_record, write_golden
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.profiles import index_profile, read_profile
from gemmdesc.verification.recording import Options, natural_examples, record

#: All golden files together stay below this.
MOST_BYTES = 3_000_000


def report(phase: str, done: int, total: int | None) -> None:
    if done % 100 == 0 or done == total:
        print(f"{phase}: {done}/{total}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=Options().queries)
    parser.add_argument("--side", type=int, default=Options().side)
    parser.add_argument("--seed", type=int, default=Options().seed)
    parser.add_argument("--date", default=date.today().isoformat())
    arguments = parser.parse_args()
    options = replace(Options(), queries=arguments.queries, side=arguments.side, seed=arguments.seed)
    index = index_profile(read_profile(arguments.profile))
    with CublasLt() as library:
        examples = natural_examples(library, index, options, report)
        without = [str(key) for key, found in examples.items() if not found]
        records = tuple(record(library, index, examples.items(), options, report))
        provenance = Provenance(
            device=library.device,
            library=library.identity_with_digest(),
            torch=torch.__version__,
            command="python " + " ".join(sys.argv),
            date=arguments.date,
        )
    write_golden(Golden(provenance=provenance, records=records), arguments.out)
    size = arguments.out.stat().st_size
    results = [replay_record(r, index) for r in records]
    different = [str(r) for r, result in zip(records, results, strict=True) if not result.equal]
    print(f"{len(records)} records of {len(examples)} rows, {size} bytes; {len(different)} differ from the replay")
    for text in [*different[:20], *(f"no example: {key}" for key in without)]:
        print(text)
    return 1 if different or size > MOST_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
