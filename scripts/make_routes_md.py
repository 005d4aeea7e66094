"""Write the table of routes in docs/torch.md from the routes themselves and from what a card said of them.

    python scripts/make_routes_md.py [--take OUT.json [--since WORDS ...]] [--check]

``--take``: a file of ``scripts/check_routes.py``, whose counts become docs/results/routes.json first; ``--since``: a
route that has changed since that run, and is yet to be compared, in words.  What stands between the two ``routes``
marks is a function of the code and of that file alone; ``--check`` writes nothing and fails if it is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page_files import write_page

from gemmdesc.errors import Declined
from gemmdesc.problem import is_float8
from gemmdesc.routes import READ_FOR, Addend, Route, epilogue_words
from gemmdesc.routes.table import TYPES, routes

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- routes: begin (scripts/make_routes_md.py) -->\n"
END = "<!-- routes: end -->"
ADDENDS = {Addend.UNREAD: "", Addend.IN_PLACE: "copied into D, which is C", Addend.BIAS: "in the epilogue"}
#: Counts by (operator, types, epilogue).
Measured = dict[tuple[str, str, str], Counter[str]]


class RoutesError(Exception):
    """The page has no marks."""


def claims_of(data: dict[str, Any], since: Sequence[str] = ()) -> dict[str, Any]:
    """docs/results/routes.json from a file of ``check_routes.py``: a claim for each operator, and what has changed."""
    by_operator: dict[str, dict[str, Counter[str]]] = {}
    for row in data["counts"]:
        family = f"{row['dtypes']}; {row['epilogue']}" if row["epilogue"] else row["dtypes"] or "others"
        counts = {k: v for k, v in row.items() if isinstance(v, int)}
        by_operator.setdefault(row["operator"], {}).setdefault(family, Counter()).update(counts)
    card, library = data["card"], data["library"]["version"]
    version = ".".join(str(library[x]) for x in ("major", "minor", "patch"))
    # A claim does not depend on where the file lay.
    command = re.sub(r"\S+\.json\b", "OUT.json", data["command"])
    stamp = {
        "command": command, "card": f"{card['name']} ({card['sm']}, {card['sm_count']} SMs)",
        "versions": {"torch": data["torch"], "cuBLASLt": version, "driver": card["driver"]}, "date": data["date"],
    }  # fmt: skip
    return {
        "claims": [
            {"claim": f"{operator}: the routed problem gives the bytes of torch's call", **stamp,
             "counts": {family: dict(c) for family, c in sorted(families.items())}}
            for operator, families in sorted(by_operator.items())
        ],
        "changed_since": list(since),
    }  # fmt: skip


def measured(path: Path) -> Measured:
    """The counts of docs/results/routes.json, none where there is no such file."""
    found: Measured = {}
    if not path.exists():
        return found
    for claim in json.loads(path.read_text())["claims"]:
        operator = claim["claim"].partition(":")[0]
        for family, counts in claim["counts"].items():
            dtypes, _, epilogue = family.partition("; ")
            found[operator, dtypes, epilogue] = Counter(counts)
    return found


def changed_since(path: Path) -> list[str]:
    """The routes that have changed since the counts of docs/results/routes.json were made."""
    found: list[str] = json.loads(path.read_text()).get("changed_since", []) if path.exists() else []
    return found


def render(counts: Measured, since: Sequence[str] = ()) -> str:
    """The table, the reasons of its declines, and what has changed since the counts were made."""
    reasons: list[str] = []
    head = ("call", "torch asks", "addend", *(t.name for t in TYPES))
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for spelling, found in routes():
        first = next((r for r in found.values() if isinstance(r, Route)), None)
        asks = "" if first is None else epilogue_words(first)
        addend = "" if first is None else ADDENDS[first.addend]
        cells = [_cell(spelling.operator, name, r, counts, reasons) for name, r in found.items()]
        lines.append("| " + " | ".join([f"`{spelling.call}`", asks, addend, *cells]) + " |")
    said = f"Routes of torch {READ_FOR}, of new row-major operands."
    if not counts:
        said += " They follow torch's source; `scripts/check_routes.py` has not been run on a card yet."
    why = [f"{i}. {reason}" for i, reason in enumerate(reasons, start=1)]
    changed = ["", "Changed since that run, and not compared again yet:", "", *(f"- {words}" for words in since)]
    return "\n".join([*lines, "", said, "", *why, *(changed if since else [])]) + "\n"


def _cell(
    operator: str, dtypes: str, route: Route | Declined | None, counts: Measured, reasons: list[str]
) -> str:
    if route is None:
        return ""
    if isinstance(route, Declined):
        if route.reason not in reasons:
            reasons.append(route.reason)
        return f"declined ({reasons.index(route.reason) + 1})"
    p, seen = route.problem, Counter[str]()
    wide = "" if p.d_dtype is p.a_dtype or is_float8(p.a_dtype) else f"->{p.d_dtype.value}"
    for (its, types, epilogue), c in counts.items():
        same_types = types.partition("->")[0] == dtypes if is_float8(p.a_dtype) else types == f"{dtypes}{wide}"
        # An operator in place, and one with out, poses what its twin does.
        if (its.rstrip("_"), epilogue) == (operator, epilogue_words(route)) and same_types:
            seen.update(c)
    compared = seen["equal"] + seen["different"]
    return f"{seen['equal']:,} of {compared:,} equal" if compared else "routed"


def fill(page: str, block: str) -> str:
    """``page`` with ``block`` between its marks.

    Raises:
        RoutesError: it has no such marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RoutesError(f"page must hold {BEGIN.strip()} and {END} (got neither or one)")
    return f"{before}{BEGIN}{block}{END}{after}"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--take", type=Path, help="a file of scripts/check_routes.py")
    parser.add_argument("--since", action="append", default=[], help="a route that has changed since the run taken")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the table is out of date")
    options = parser.parse_args(arguments)
    page, results = root / "docs" / "torch.md", root / "docs" / "results" / "routes.json"
    if options.since and options.take is None:
        parser.error("--since is said of the run that --take takes")
    if options.take is not None:
        taken = claims_of(json.loads(options.take.read_text()), options.since)
        results.write_text(json.dumps(taken, indent=1) + "\n")
    try:
        text = fill(page.read_text(), render(measured(results), changed_since(results)))
    except RoutesError as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        return 0 if page.read_text() == text else 1
    write_page(page, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
