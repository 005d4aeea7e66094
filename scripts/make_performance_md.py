"""Write the tables of docs/performance.md from docs/results/speed.json.

What stands between the two marks is a function of that file alone: the same file gives the same bytes.  ``--check``
writes nothing and exits 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from page_files import checked_page, write_page

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- tables: scripts/make_performance_md.py -->", "<!-- end of tables -->"
NOTHING = "No session on a card has been recorded yet."
_COLUMNS = ("group", "shapes", "timed", "geometric mean", "worst", "bar", "met", "limit: bytes, operations",
            "ours of limit", "cuBLAS of limit")  # fmt: skip

_SCHEDULE_COLUMNS = ("schedule", "applies to", "timed", "different", "ours over it", "cuBLAS over it",
                     "faster than ours by 2%", "slower")  # fmt: skip


class PageError(Exception):
    """The page or the file cannot be used."""


def tables(claims: list[dict[str, Any]]) -> str:
    """The bars by group with what limits each, then the sessions.

    Raises:
        PageError: the claims are not those of scripts/bench_gemm.py.
    """
    try:
        speed, least = claims[0], claims[1]["by_group"]
        lines = [f"{speed['card']}; {_words(speed['versions'])}; {speed['date']}.", ""]
        lines += [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        lines += [_row(name, group, least.get(name)) for name, group in speed["by_group"].items()]
        counts = speed["counts"]
        lines += ["", f"Of {counts['shapes']} shapes {counts['equal']} had equal bytes, {counts['different']} others; "
                  f"{counts['declined']} declined, {counts['failed']} failed, {counts['not_measured']} are not "
                  f"measured. {counts['sessions']} sessions, {counts['sessions_dropped']} dropped."]  # fmt: skip
        for claim in claims[2:]:
            lines += _schedules(claim["by_schedule"]) if "by_schedule" in claim else []
            lines += [
                f"{mode}: cuBLAS's bytes on {found['equal']} of {found['compared']} shapes."
                for mode, found in claim.get("by_mode", {}).items()
            ]
    except (KeyError, IndexError, TypeError) as error:
        raise PageError(f"speed.json must hold the claims of scripts/bench_gemm.py (got {error!r})") from None
    return "\n".join(lines)


def _row(name: str, group: dict[str, Any], least: dict[str, Any] | None) -> str:
    timed = group["geomean"] is not None
    worst = f"{group['worst']:.3f} ({group['worst_shape']})" if timed else ""
    cells = [name, str(group["shapes"]), str(group["timed"]), f"{group['geomean']:.3f}" if timed else "", worst,
             f"{group['bar']:.3f}", "yes" if group["met"] else "no"]  # fmt: skip
    if least is None or not timed:
        return f"| {' | '.join([*cells, '', '', ''])} |"
    shares = [f"{least[key]:.2f}" for key in ("ours_of_limit", "library_of_limit")]
    by = f"{least['by_bytes']}, {least['by_operations']}"
    return f"| {' | '.join([*cells, by, *shares])} |"


def _schedules(schedules: dict[str, dict[str, Any]]) -> list[str]:
    """How other schedules of the same descriptors do beside ours, where they apply."""
    lines = ["", f"| {' | '.join(_SCHEDULE_COLUMNS)} |", "|" + "---|" * len(_SCHEDULE_COLUMNS)]
    for name, found in schedules.items():
        ratios = [f"{found[key]:.3f}" if found[key] is not None else "" for key in ("over_ours", "library_over_it")]
        cells = [name, *(str(found[key]) for key in ("applies", "timed", "different")), *ratios,
                 str(found["faster"]), str(found["slower"])]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _words(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def render(page: str, results: Path) -> str:
    """``page`` with the tables of ``results``, or with a line that says that there are none.

    Raises:
        PageError: the marks are not there once each in order, or the file is no such file.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise PageError(f"page must have the marks {BEGIN} and {END} once each")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    body = NOTHING
    if results.is_file():
        try:
            body = tables(json.loads(results.read_text())["claims"])
        except (ValueError, KeyError, TypeError) as error:
            raise PageError(f"{results.name} must be an object with claims (got {error!r})") from None
    return f"{before}{BEGIN}\n{body}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    options = parser.parse_args(arguments)
    path = DOCS / "performance.md"
    try:
        old = path.read_text()
        text = render(old, DOCS / "results" / "speed.json")
    except (OSError, PageError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        return checked_page(path, text, "make_performance_md.py")
    write_page(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
