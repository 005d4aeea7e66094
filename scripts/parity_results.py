"""Write docs/results/torch_parity.json from runs on a card, and say which of the drop-in's bars they hold.

    python scripts/parity_results.py docs/results/torch_parity.json --parity P.json ... [--cases C.json ...]
        [--pinned D.json ...] [--examples E.json ...] [--host H.json ...]

``--parity``: of ``scripts/check_parity.py``; parts of its random calls are added up.  ``--cases``: of
``scripts/check_cases.py``; of a report that several runs had, the last one counts.  ``--pinned``: of
``examples/pinned_decoder.py``.  ``--examples``: of the other examples.  ``--host``: of ``scripts/bench_host.py``, or
of a benchmark whose claims hold ``bars``, {bar: whether it holds}.

The first claim is a table of the bars: what each wants, what was found, and whether it holds; a bar without a run is
"not measured".  Every figure is counted from the files given.  The exit code is 1 unless all bars hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Claim = dict[str, Any]
#: What is wanted of the runs, see the issue's "done when".
CASES, CALLS, BATCHINGS, LAYERS = 27, 5000, 200, 4
HIDDEN, DTYPES = (1024, 4096), ("float16", "bfloat16")
_DECODER = re.compile(
    r"a decoder of (?P<layers>\d+) layers under an override against eager: (?P<dtype>\w+), hidden (?P<hidden>\d+), "
    r"batch (?P<batch>\d+), length (?P<length>\d+), vocabulary (?P<vocabulary>\d+)"
)
_CALLS = "random calls of torch's products under an override against eager"


class MixedError(Exception):
    """Runs of several cards or releases cannot stand in one table."""


def claims_of(paths: Iterable[Path]) -> list[Claim]:
    """The claims of several files, in their order."""
    return [claim for path in paths for claim in json.loads(path.read_text())["claims"]]


def stamp_of(claims: list[Claim]) -> Claim:
    """The card, the versions and the last date that the claims have in common.

    Raises:
        MixedError: they are of several cards, or of several releases of something.
    """
    # Some runs tell a card by its name alone; the longest words are kept.
    told = sorted((str(c["card"]) for c in claims), key=len)
    cards = {card.partition(" (")[0]: card for card in told}
    if len(cards) != 1:
        raise MixedError(f"runs must be of one card (got {', '.join(sorted(cards))})")
    versions: dict[str, str] = {}
    for claim in claims:
        for name, version in claim["versions"].items():
            if versions.setdefault(name, version) != version:
                raise MixedError(f"runs must be of one {name} (got {versions[name]} and {version})")
    return {"card": next(iter(cards.values())), "versions": versions, "date": max(str(c["date"]) for c in claims)}


def commands(claims: list[Claim]) -> str:
    """What made the claims, each command once."""
    return "\n".join(dict.fromkeys(str(c["command"]) for c in claims))


def decoders(claims: list[Claim]) -> tuple[Claim | None, Claim]:
    """Decoders forward and backward: one claim of them all, and its bar."""
    found = [(match, c) for c in claims if (match := _DECODER.fullmatch(c["claim"]))]
    sizes = f"{LAYERS} layers, hidden {HIDDEN[0]} to {HIDDEN[1]}, both types"
    wanted = f"logits, loss and gradients equal, 0 declined: {sizes}"
    bar = {"bar": "decoders", "wanted": wanted}
    if not found:
        return None, bar | {"found": "not measured", "holds": False}
    rows = [
        {**match.groupdict(), **c["counts"], "eager_unlike_itself": len(c.get("eager_differs_from_itself", ()))}
        for match, c in found
    ]
    totals = Counter[str]()
    reasons = Counter[str]()
    for _, c in found:
        totals.update({name: n for name, n in c["counts"].items() if isinstance(n, int)})
        reasons.update(c["declined_products"])
    covered = {(r["dtype"], int(r["hidden"])) for r in rows if int(r["layers"]) == LAYERS}
    whole = {(d, h) for d in DTYPES for h in HIDDEN} <= covered
    clean = not (totals["different"] or totals["declined"] or totals["errors"])
    steady = not any(r["eager_unlike_itself"] for r in rows)
    claim = {
        "claim": "decoders forward and backward under an override against eager torch",
        **stamp_of([c for _, c in found]), "command": commands([c for _, c in found]),
        "counts": {"decoders": len(rows), **totals}, "decoders": rows, "declined_products": dict(reasons.most_common()),
        "differing": [f"{c['claim']}: {name}" for _, c in found for name in c["differing"]],
    }  # fmt: skip
    told = (
        f"{len(rows)} decoders, {totals['tensors']} tensors, {totals['different']} different, "
        f"{totals['declined']} products declined, {totals['errors']} errors"
    )
    return claim, bar | {"found": told, "holds": whole and clean and steady}


def calls(claims: list[Claim]) -> tuple[Claim | None, Claim]:
    """Random calls, their parts added up, and the bar."""
    found = [c for c in claims if c["claim"] == _CALLS]
    bar = {"bar": "random calls", "wanted": f"{CALLS:,} calls, 0 different, declines by reason"}
    if not found:
        return None, bar | {"found": "not measured", "holds": False}
    totals, reasons = Counter[str](), Counter[str]()
    for c in found:
        totals.update(c["counts"])
        reasons.update(c["declined_products"])
    claim = {
        "claim": _CALLS, **stamp_of(found), "command": commands(found), "counts": dict(totals),
        "declined_products": dict(reasons.most_common()),
        "differing": [text for c in found for text in c["differing"]],
        "failed": [f"{f['index']}: {f['how']}" for c in found for f in c["failed"]],
    }  # fmt: skip
    told = ", ".join(f"{totals[name]:,} {name.replace('_', ' ')}" for name in
                     ("calls", "equal", "different", "declined", "refused", "lacked_memory", "errors"))  # fmt: skip
    holds = totals["calls"] >= CALLS and not totals["different"] and not totals["errors"]
    return claim, bar | {"found": told, "holds": holds}


def cases(claims: list[Claim]) -> tuple[Claim | None, Claim]:
    """Public reports, of one run or of several that had some each, the last word on each; and their bar."""
    bar = {"bar": "public reports", "wanted": f"{CASES} pass, or decline as their text demands"}
    if not claims:
        return None, bar | {"found": "not measured", "holds": False}
    rows = {row["case"]: row for c in claims for row in c["cases"]}
    outcomes = Counter(row["outcome"] for row in rows.values())
    counts = {
        "cases": len(rows), "passed": outcomes["passed"], "declined_as_allowed": outcomes["declined"],
        "failed": outcomes["failed"], "not_run": outcomes["not run"], "tests": sum(r["tests"] for r in rows.values()),
        "comparisons_equal": sum(r["equal"] for r in rows.values()),
        "comparisons_declined": sum(r["declined"] for r in rows.values()),
    }  # fmt: skip
    reasons: Counter[str] = Counter()
    for c in claims:
        reasons.update(c.get("reasons", {}))
    claim = {
        **claims[-1], **stamp_of(claims), "command": commands(claims), "counts": counts,
        "cases": sorted(rows.values(), key=lambda r: int(r["case"][1:])), "reasons": dict(reasons.most_common()),
        "notes": [note for c in claims for note in c.get("notes", ())],
        "failures": [text for c in claims for text in c.get("failures", ())],
    }  # fmt: skip
    good, allowed = counts["passed"], counts["declined_as_allowed"]
    told = f"{good} passed, {allowed} declined, {counts['failed']} failed, {counts['not_run']} not run"
    return claim, bar | {"found": told, "holds": good + allowed == len(rows) == CASES}


def pinned(claims: list[Claim]) -> Claim:
    """The bar of pinned batchings."""
    bar = {"bar": "pinned batchings", "wanted": f"{BATCHINGS} random batchings alike, stock torch's not"}
    if not claims:
        return bar | {"found": "not measured", "holds": False}
    totals = Counter[str]()
    for c in claims:
        totals.update(c["counts"])
    told = (
        f"{totals['batchings']} batchings, {totals['different']} of {totals['sequences']} sequences different, stock "
        f"{totals['stock_different']} of {totals['stock_sequences']}"
    )
    wrong = ("different", "declined", "elements_unlike_stock_at_reference")
    clean = not any(totals[name] for name in wrong) and not any(c.get("operations_dependent") for c in claims)
    largest = max(c["counts"]["batchings"] for c in claims)
    return bar | {"found": told, "holds": largest >= BATCHINGS and clean and totals["stock_different"] > 0}


def host(claims: list[Claim]) -> list[Claim]:
    """The bars of host costs, as their own benchmark judges them."""
    found = [
        {"bar": f"host cost: {name}", "wanted": c["claim"], "found": "measured", "holds": bool(holds)}
        for c in claims
        for name, holds in c.get("bars", {}).items()
    ]
    found += [
        {"bar": c["claim"], "wanted": f"all {c['of']} cases within it", "holds": c["within_the_bar"] == c["of"],
         "found": f"{c['within_the_bar']} of {c['of']}; torch.mm's time over ours {c['geomean']['all']} in the mean"}
        for c in claims if "within_the_bar" in c
    ]  # fmt: skip
    if found:
        return found
    told = "measured, without a judgement" if claims else "not measured"
    wanted = "plan.run at or below torch.mm(out=), matmul at most 1.5 times"
    return [{"bar": "host cost", "wanted": wanted, "found": told, "holds": False}]


def results(args: argparse.Namespace, command: str) -> tuple[list[Claim], list[Claim]]:
    """All claims, the bars' first, and the bars.

    Raises:
        MixedError: as :func:`stamp_of`.
    """
    parity, judged = claims_of(args.parity), claims_of(args.cases)
    batchings, others, costs = (claims_of(paths) for paths in (args.pinned, args.examples, args.host))
    (decoder_claim, decoder_bar), (call_claim, call_bar) = decoders(parity), calls(parity)
    case_claim, case_bar = cases(judged)
    bars = [case_bar, decoder_bar, pinned(batchings), call_bar, *host(costs)]
    stamp = stamp_of([*parity, *judged, *batchings, *others, *costs])
    summary = {
        "claim": "what the drop-in for PyTorch promises, and what runs on a card came to", **stamp, "command": command,
        "counts": {"bars": len(bars), "held": sum(b["holds"] for b in bars)}, "bars": bars,
    }  # fmt: skip
    made = [c for c in (case_claim, decoder_claim, call_claim) if c is not None]
    claims = [summary, *made, *batchings, *others, *costs]
    # A list of nothing needs no line on a page.
    return [{name: value for name, value in c.items() if value not in ([], {})} for c in claims], bars


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    for name in ("parity", "cases", "pinned", "examples", "host"):
        parser.add_argument(f"--{name}", type=Path, nargs="+", default=[])
    args = parser.parse_args(arguments)
    if not any(getattr(args, name) for name in ("parity", "cases", "pinned", "examples", "host")):
        parser.error("some run must be given")
    command = " ".join(["python", *(sys.argv if arguments is None else ["scripts/parity_results.py", *arguments])])
    try:
        claims, bars = results(args, command)
    except MixedError as error:
        print(error, file=sys.stderr)
        return 2
    aside = args.out.with_suffix(".tmp")
    aside.write_text(json.dumps({"claims": claims}, indent=1) + "\n")
    os.replace(aside, args.out)
    for bar in bars:
        print(f"{'holds' if bar['holds'] else 'FAILS':<7}{bar['bar']}: {bar['found']} (wanted: {bar['wanted']})")
    return 0 if all(bar["holds"] for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
