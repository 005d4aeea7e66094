"""Write what coverage campaigns came to as a claim of docs/results/coverage.json.

    python scripts/make_coverage_claims.py FOLDER [FOLDER ...] [--claim TEXT] [--out docs/results/coverage.json]

The folders are those of `gemmdesc verify --coverage`: one, or one for each shard of the same campaign.  A claim of the
same text that the file already holds is replaced; all others stay.  Run scripts/make_results_md.py afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gemmdesc.errors import GemmdescError
from gemmdesc.verification.coverage_summary import coverage_claim, read_coverage

OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "coverage.json"
CLAIM = (
    "Coverage: every element of D by our kernels against cublasLtMatmul's, raw, ten draws a shape (half of them WIDE), "
    "families over six regimes of sizes; shapes are those that the library accepts, refused ones are counted apart"
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--claim", default=CLAIM)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(arguments)
    try:
        made = coverage_claim(read_coverage(given.folders), given.claim)
    except GemmdescError as error:
        print(error, file=sys.stderr)
        return 2
    kept = json.loads(given.out.read_text())["claims"] if given.out.exists() else []
    claims = [c for c in kept if c["claim"] != made["claim"]] + [made]
    aside = given.out.with_name(f"{given.out.name}.tmp")
    aside.write_text(json.dumps({"claims": claims}, indent=1) + "\n", encoding="utf-8")
    aside.replace(given.out)
    for family, counts in made["counts"].items():
        print(family, counts)
    return 1 if made["mismatches"] else 0


if __name__ == "__main__":
    sys.exit(main())
