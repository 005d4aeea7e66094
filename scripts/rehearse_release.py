"""Rehearse a campaign about a release, with and without the rules of its neighbour as first guesses.

    python scripts/rehearse_release.py [--queries 400]

Both libraries are simulated: the neighbour is measured from scratch, then a release equal to it and one in which a few
answers have other orders, each from scratch and from the neighbour's rows.  Printed are products run, readings, trials,
comparisons and seconds of each, and the ratios with guesses to without; the exit code is 1 where an answer met has no
rule, or one that owes other bits than the hidden one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gemmdesc.probe import scan, verification
from gemmdesc.probe.prior import NO_GUESSES
from tests.release_samples import NEW, OLD, Came, Release, campaign, neighbour_guesses, wrong_answers

#: Problems on which a row is compared in depth: a rehearsal's classes are few.
_ROW_PROBLEMS = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=400)
    given = parser.parse_args()
    scan.BLOCK_QUERIES, verification.ROW_PROBLEMS = given.queries, _ROW_PROBLEMS
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        came, guesses = neighbour_guesses(folder / "neighbour")
        wrong += _said("neighbour, from scratch", came, Release(identity=OLD))
        for what, changed in (("equal", False), ("changed", True)):
            release = Release(identity=NEW, changed=changed)
            scratch = campaign(release, folder / f"{what}-scratch", NO_GUESSES)
            guided = campaign(release, folder / f"{what}-guided", guesses)
            wrong += _said(f"{what} release, from scratch", scratch, release)
            wrong += _said(f"{what} release, with first guesses", guided, release)
            print(
                f"{what}: with guesses {guided.products / scratch.products:.2f} of the products, "
                f"{guided.seconds / scratch.seconds:.2f} of the seconds"
            )
    return 1 if wrong else 0


def _said(name: str, came: Came, release: Release) -> int:
    """Print one campaign's counts; how many answers it is wrong about."""
    bad = wrong_answers(came, release)
    print(
        f"{name}: {came.products} products, {came.readings} readings, {came.trials} trials, {came.comparisons} "
        f"comparisons, {came.seconds:.1f} s, {len(bad)} problems wrong",
        flush=True,
    )
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
