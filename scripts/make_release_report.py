"""Write the report of what changed from release to release on one card, from profiles and books that lie in one folder.

    PYTHONPATH=. python scripts/make_release_report.py --folder arch_profiles/sm_90-132 --out docs/releases.md

Each release is a ``cublaslt-V.parquet`` (a profile) with a ``cublaslt-V.book`` beside it, which ``gemmdesc record named
--tokens ... --grid ... --out cublaslt-V.book --library PACKAGE==V`` wrote on that card.  Maps go to a folder beside the
page, where matplotlib is installed.  Needs no GPU.
"""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from gemmdesc.cli.shapelists import NAMED, Asked
from gemmdesc.errors import GemmdescError
from gemmdesc.reports import can_plot, read_releases, release_report, releases_markdown


def parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(description="What changed from release to release on one card.")
    parser.add_argument("--folder", type=Path, default=Path("arch_profiles/sm_90-132"), help="profiles and books")
    parser.add_argument("--out", type=Path, default=Path("docs/releases.md"), help="the page")
    parser.add_argument("--shapes", default=NAMED, help="a list, a module or named, as for `gemmdesc record`")
    parser.add_argument("--tokens", help="batch sizes joined by commas, as for `gemmdesc record`")
    parser.add_argument("--grid", help="k joined by commas of a grid over m and n, as for `gemmdesc record`")
    parser.add_argument("--dtype", help="of operands, as for `gemmdesc record`")
    parser.add_argument("--layout", help="of operands, as for `gemmdesc record`")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """0, or 2 where the report cannot be made."""
    options = parse(arguments)
    asked = Asked(
        source=options.shapes, tokens=options.tokens, grid=options.grid, dtype=options.dtype, layout=options.layout
    )
    try:
        releases = read_releases(options.folder)
        pictures = options.out.with_suffix("") if can_plot() else None
        if pictures is None:
            print("no maps: matplotlib is not installed", file=sys.stderr)
        report = release_report(releases, asked.shapes(), pictures)
    except GemmdescError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    command = shlex.join(["python", "scripts/make_release_report.py", *arguments])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(releases_markdown(report, command), encoding="utf-8")
    print(f"{options.out}: {len(report.steps) + 1} releases")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
