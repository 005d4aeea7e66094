"""Write docs/results.md from docs/results/*.json.

Each file is ``{"claims": [{"claim", "command", "card", "versions", "date", "counts", ...}]}``.  The page is a function
of the files alone: the same files give the same bytes.  ``--check`` writes nothing and fails if the page is out of
date.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from page_files import checked_page, write_page

DOCS = Path(__file__).resolve().parent.parent / "docs"
REQUIRED = ("claim", "command", "card", "versions", "date")
#: Fields that only scripts use.
HIDDEN = ("part",)
#: Counts of a comparison, in the order in which they are shown; any others follow in the order of the file.
COUNTS = ("shapes", "draws", "equal", "different", "declined", "nondeterministic", "reference_failed")

HEADER = """# Results

Every figure here comes from a file in `docs/results/`, with the command that made it, the card, the versions and the
date. `scripts/make_results_md.py` writes this page from those files; edit those, not this.
"""


class ResultsError(Exception):
    """A results file cannot be shown."""


def render(folder: Path) -> str:
    """The page for all results files in ``folder``, sorted by name.

    Raises:
        ResultsError: a file is not JSON, or a claim lacks a required field.
    """
    sections = [_file(path) for path in sorted(folder.glob("*.json"))]
    return "\n".join([HEADER, *sections] if sections else [HEADER, "Nothing has been recorded yet.\n"])


def _file(path: Path) -> str:
    try:
        claims = json.loads(path.read_text())["claims"]
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path.name} must be an object with claims (got {error!r})") from None
    for claim in claims:
        missing = [name for name in REQUIRED if not claim.get(name)]
        if missing:
            raise ResultsError(f"{path.name} must give {', '.join(missing)} for each claim (got {claim!r:.200})")
    return "\n".join([f"## {path.stem}", "", *(_claim(claim) for claim in claims)])


def _claim(claim: dict[str, Any]) -> str:
    lines = [
        f"### {claim['claim']}",
        "",
        f"{claim['card']}; {_versions(claim['versions'])}; {claim['date']}",
        "",
        *("```", claim["command"], "```", ""),
    ]
    if claim.get("counts"):
        lines += [*_counts(claim["counts"]), ""]
    scalars = {}
    for name, value in claim.items():
        if name in (*REQUIRED, *HIDDEN, "counts"):
            continue
        if isinstance(value, dict | list) and value:
            lines += [f"{_words(name)}:", "", *_table(name, value), ""]
        else:
            scalars[name] = value
    lines += [f"- {_words(name)}: {_cell(value)}" for name, value in scalars.items()]
    return "\n".join(lines).rstrip() + "\n"


def _versions(versions: Any) -> str:
    if isinstance(versions, dict):
        return ", ".join(f"{name} {version}" for name, version in versions.items())
    return str(versions)


def _counts(counts: dict[str, Any]) -> list[str]:
    """One row, or one row per family where the counts are given per family."""
    if any(isinstance(value, dict) for value in counts.values()):
        return _grid("family", {family: _ordered(row) for family, row in counts.items() if isinstance(row, dict)})
    row = _ordered(counts)
    return _lines([_words(name) for name in row], [[_cell(value) for value in row.values()]])


def _ordered(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (*COUNTS, *row) if name in row}


def _table(name: str, value: dict[str, Any] | list[Any]) -> list[str]:
    """A dict of dicts or a list of dicts as a grid, anything else as two columns or a list."""
    if isinstance(value, dict) and all(isinstance(v, dict) for v in value.values()):
        return _grid(_words(name), value)
    if isinstance(value, dict):
        return _lines(["", _words(name)], [[str(key), _cell(v)] for key, v in value.items()])
    if all(isinstance(v, dict) for v in value):
        columns = list(dict.fromkeys(key for row in value for key in row))
        return _lines([_words(c) for c in columns], [[_cell(row.get(c, "")) for c in columns] for row in value])
    return [f"- {_cell(v)}" for v in value]


def _grid(corner: str, rows: dict[str, dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    body = [[str(key), *(_cell(row.get(c, "")) for c in columns)] for key, row in rows.items()]
    return _lines([corner, *(_words(c) for c in columns)], body)


def _lines(head: list[str], body: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> str:
    if isinstance(value, bool | str) or value is None:
        return str(value).replace("|", "\\|")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_cell(v) for v in value)
    return ", ".join(f"{_words(str(name))} {_cell(v)}" for name, v in value.items())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    options = parser.parse_args(arguments)
    page = DOCS / "results.md"
    try:
        text = render(DOCS / "results")
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        return checked_page(page, text, "make_results_md.py")
    write_page(page, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
