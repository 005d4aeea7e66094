"""What the rows of a gate add up to: pairs called equal, pairs called different, over-splitting by name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import mean, median
from typing import Any

from gemmdesc.equivalence.relations import relation_between
from gemmdesc.equivalence.witnesses import SHOWN, pair_key, repeated, strongest

Row = Mapping[str, Any]
#: Pairs without a name that are listed for one case.
_LISTED = 4
UNNAMED = "no name"
#: Configurations that a gate has to have launched.
WANTED = 10_000
#: What the name of a kernel begins with that torch.compile emitted.
COMPILED = "compiled "
#: Kernels that are no plain reductions; those that torch.compile emitted by the names of the functions.
_PRODUCTS = ("gemm", "mm-bias-relu")
_NORMS = ("layernorm", "rmsnorm", "softmax", "log-softmax", "layer-norm", "rms-norm", "residual-layer-norm",
          "group-norm", "attention-scores", "causal-scores")  # fmt: skip
_ELEMENTWISE = ("axpy", "combine", "scalar_chain", "silu", "vector_add", "bias-gelu", "bias-gelu-tanh", "bias-relu",
                "gelu-backward", "silu-gate", "silu-backward", "transposed-sum")  # fmt: skip
#: Of a pair that nothing has told apart.
UNKNOWN = "none yet"


def summary(rows: Sequence[Row], facts: Mapping[str, Any], witnesses: Sequence[Row] = ()) -> dict[str, Any]:
    """The claim: configurations and texts apart, and pairs that are called equal or different.

    ``witnesses``: lines of ``scripts/equivalence_witnesses.py``.
    """
    read = [r for r in rows if "class" in r]
    held = [r for r in read if "equal" in r]
    refused = [r for r in rows if "refused" in r]
    failed = [r for r in read if "failed" in r]
    draws = sum(map(_draws, held))
    equal = sum(sum(r["equal"]) + sum(r.get("aimed_equal", ())) for r in held)
    same, different = pairs([r for r in read if "outputs" in r])
    return {
        "claim": "What the equivalence checker reads is what the card stores: expressions worked out with PTX's "
        "arithmetic against launched kernels, ten adversarial draws each; kernels called equal store the same bytes"
        + _which(rows),
        **facts,
        "counts": {
            "configurations": len(rows),
            **({} if _compiled(rows) else {"configurations_wanted": WANTED}),
            "distinct_texts": len({r["text"] for r in rows if "text" in r}),
            "read": len(read),
            "texts_read": len({r["text"] for r in read}),
            "launched": len(held),
            "draws": draws,
            "equal": equal,
            "different": draws - equal,
            "configurations_different": sum(map(_differs, held)),
            "bytes_equal_as_maxima": sum(r.get("as_extremes", 0) for r in held),
            "with_aimed_draws": sum("aimed_equal" in r for r in held),
            "declined": len(refused),
            "failed": len(failed),
            "bytes_compared": sum(r.get("bytes_compared", 0) * _draws(r) for r in held),
            "bytes_stored": sum(r.get("bytes_stored", 0) * _draws(r) for r in held),
            "fully_compared": sum(r["bytes_compared"] == r["bytes_stored"] for r in held),
        },
        "called_equal": same,
        "called_different": different,
        "over_splitting": over_splitting([r for r in read if "outputs" in r], witnesses),
        "declined_by_reason": tally(refused, lambda r: r["refused"]),
        "declined_reasons": dict(Counter(f"{r['kernel']}: {_general(r['reason'])}" for r in refused).most_common(40)),
        "failed_by_reason": dict(Counter(r["failed"][:160] for r in failed).most_common(20)),
        "different_by_kernel": tally([r for r in held if _differs(r)], lambda r: r["kernel"]),
        "first_differences": [
            {k: r[k] for k in ("case", "choice", "first", "assuming") if k in r} for r in held if _differs(r)
        ][:40],
        "by_kernel": tally(rows, lambda r: r["kernel"]),
        "functions_on_the_card": sorted({name for r in read for name in r.get("functions", ())}),
        "seconds": {
            name: {"median": median(values), "mean": round(mean(values), 4)}
            for name in ("compile_s", "read_s", "launch_s", "evaluate_s")
            if (values := [r[name] for r in rows if name in r])
        },
    }


def _compiled(rows: Sequence[Row]) -> bool:
    return all(r["kernel"].startswith(COMPILED) for r in rows)


def _which(rows: Sequence[Row]) -> str:
    """What the rows are of, for the claim."""
    if _compiled(rows):
        return "; kernels that torch.compile emits"
    return "" if len(rows) >= WANTED else f"; unfinished: {len(rows):,} of {WANTED:,} configurations"


def _draws(row: Row) -> int:
    """Draws on which a row was worked out."""
    return len(row["equal"]) + len(row.get("aimed_equal", ()))


def _differs(row: Row) -> bool:
    return not all(row["equal"]) or not all(row.get("aimed_equal", ()))


def _unlike(one: Row, other: Row) -> bool:
    """Whether two rows stored different bytes on a draw that both were launched on."""
    aimed = one.get("aimed"), other.get("aimed")
    return one["outputs"] != other["outputs"] or (None not in aimed and aimed[0] != aimed[1])


def _one_of_each(rows: Sequence[Row]) -> list[Row]:
    """A row of each class, one with aimed draws where there is one."""
    return list({row["class"]: row for row in sorted(rows, key=lambda r: "aimed" in r)}.values())


def _general(reason: str) -> str:
    return re.sub(r"%\w+|0f[0-9A-F]{8}|\d+", "#", reason)[:110]


def tally(rows: Sequence[Row], by: Callable[[Row], str]) -> dict[str, dict[str, int]]:
    """Configurations and distinct texts of each group."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    return {
        name: {"configurations": len(g), "distinct_texts": len({r.get("text", "") for r in g})}
        for name, g in sorted(groups.items(), key=lambda item: -len(item[1]))
    }


def pairs(rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pairs called equal, over all cases, and pairs of classes of one case, which are called different.

    Element types are no part of a class, but draws depend on them: pairs over two types are not counted.
    """
    classes: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        classes[(row["class"], *row.get("kinds", ()))].append(row)
    shared = {name: group for name, group in classes.items() if len(group) > 1}
    odd = {
        name: g
        for name, g in shared.items()
        if any(len({tuple(r[field]) for r in g if field in r}) > 1 for field in ("outputs", "aimed"))
    }
    texts = {name: {(r["case"], r["text"]): r for r in g} for name, g in shared.items()}
    by_case: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_case[row["case"]].append(row)
    seen = unseen = 0
    kernels: Counter[str] = Counter()
    for case, found in by_case.items():
        for one, other in combinations(_one_of_each(found), 2):
            if _unlike(one, other):
                seen += 1
            else:
                unseen += 1
                kernels[found[0].get("kernel", case.split("-")[0])] += 1
    return {
        "classes": len(classes),
        "classes_of_several": len(shared),
        "pairs": sum(_pairs(len(g)) for g in shared.values()),
        "pairs_of_distinct_texts": sum(_pairs(len(g)) for g in texts.values()),
        "pairs_that_differ": sum(_unlike(*pair) for g in odd.values() for pair in combinations(g, 2)),
        "examples": [[(r["case"], r["choice"], r["outputs"]) for r in g[:3]] for g in list(odd.values())[:5]],
    }, {
        "pairs_of_classes": seen + unseen,
        "seen_to_differ": seen,
        "never_seen_to_differ": unseen,
        "never_seen_by_kernel": dict(kernels.most_common()),
    }


def over_splitting(rows: Sequence[Row], witnesses: Sequence[Row] = ()) -> dict[str, Any]:
    """For each kernel, the checker's classes against those of the bytes, case by case, over distinct texts.

    A surplus pair is two classes of one case that stored the same bytes on every draw; its name is the first of
    ``RELATIONS`` in which they agree, or else the draw that tells them apart; its witness the strongest that there is.
    ``classes_apart`` counts what the bytes or a witness tell apart; ``classes_expected`` takes stand-ins for
    approximate functions as witnesses too.
    """
    known = strongest(witnesses)
    cases: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        cases[row["case"]].append(row)
    kernels: dict[str, Counter[str]] = defaultdict(Counter)
    names: dict[str, Counter[str]] = defaultdict(Counter)
    shown: dict[str, Counter[str]] = defaultdict(Counter)
    surplus = []
    for case, group in cases.items():
        kernel = group[0]["kernel"]
        found = [(*_named(name, known.get(_key(a, b))), a, b) for name, a, b in _surplus_pairs(group)]
        counts = _classes(group, found)
        kernels[kernel] += Counter(counts)
        if found:
            by_name = Counter(name for name, _, _, _ in found)
            names[kernel] += by_name
            for name, kind, _, _ in found:
                shown[name][kind] += 1
            unnamed = [[a["choice"], b["choice"]] for name, kind, a, b in found if (name, kind) == (UNNAMED, UNKNOWN)]
            surplus.append(
                {"case": case, **counts, "pairs": dict(by_name.most_common()), "without_name": unnamed[:_LISTED]}
            )
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for name, c in kernels.items():
        groups[_group(name)] += c
    for name in ("reductions", "norms"):
        groups["reductions and norms"] += groups[name] + groups[COMPILED + name]
    elementwise = groups["element by element"] + groups[f"{COMPILED}element by element"]
    return {
        "without_products": _factors(groups["reductions and norms"] + elementwise),
        "by_group": {name: _factors(groups[name]) for name in sorted(groups) if groups[name]},
        "by_kernel": {name: _factors(counts) for name, counts in sorted(kernels.items())},
        "surplus_pairs_by_name": dict(sum(names.values(), Counter()).most_common()),
        "surplus_pairs_by_witness": {name: dict(counts.most_common()) for name, counts in sorted(shown.items())},
        "exact_witnesses_on_the_card": repeated(witnesses),
        "surplus_pairs_by_kernel": {name: dict(counts.most_common()) for name, counts in sorted(names.items())},
        "surplus": surplus,
    }


def _named(name: str, line: Row | None) -> tuple[str, str]:
    """The name of a surplus pair, and the kind of its witness."""
    if line is None:
        return name, UNKNOWN
    return (f"told apart by {line['found'][0]['draw']}" if name == UNNAMED else name), line["kind"]


def _classes(group: Sequence[Row], surplus: Sequence[tuple[str, str, Row, Row]]) -> dict[str, int]:
    """Texts and classes of one case; ``surplus``: name and kind of witness of each surplus pair, and its rows."""
    classes = {row["class"] for row in group}
    pairs = [(kind, frozenset((a["class"], b["class"]))) for _, kind, a, b in surplus]
    return {
        "texts": len({r["text"] for r in group}),
        "classes": len(classes),
        "classes_of_bytes": _apart(classes, {pair for _, pair in pairs}),
        "classes_apart": _apart(classes, {pair for kind, pair in pairs if kind not in SHOWN}),
        "classes_expected": _apart(classes, {pair for kind, pair in pairs if kind == UNKNOWN}),
    }


def _group(kernel: str) -> str:
    """What a kernel is counted as; what torch.compile emitted apart."""
    origin, function = (COMPILED, kernel.removeprefix(COMPILED)) if kernel.startswith(COMPILED) else ("", kernel)
    if function.startswith(_PRODUCTS):
        return f"{origin}products"
    if function in _ELEMENTWISE:
        return f"{origin}element by element"
    norm = function.removesuffix("-backward").removesuffix("-outer") in _NORMS
    return f"{origin}{'norms' if norm else 'reductions'}"


def _factors(counts: Mapping[str, int]) -> dict[str, Any]:
    """Counts, and the checker's classes over each count of classes that differ."""
    over = {
        name: round(counts["classes"] / max(counts[of], 1), 4)
        for name, of in (("factor", "classes_of_bytes"), ("factor_apart", "classes_apart"),
                         ("factor_expected", "classes_expected"))
    }  # fmt: skip
    return {**counts, **over}


def _apart(classes: set[str], alike: set[frozenset[str]]) -> int:
    """How many classes there are at least if no pair of ``alike`` differs: what such pairs connect is one."""
    parent = {name: name for name in classes}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for one, other in alike:
        parent[root(one)] = root(other)
    return len({root(name) for name in classes})


def _key(one: Row, other: Row) -> tuple[str, ...]:
    return pair_key({"case": one["case"], "classes": [one["class"], other["class"]]})


def _surplus_pairs(group: Sequence[Row]) -> Iterator[tuple[str, Row, Row]]:
    """Name and two rows of every pair of classes that stored the same bytes."""
    for one, other in combinations(_one_of_each(group), 2):
        if not _unlike(one, other):
            yield relation_between(one.get("relaxed", {}), other.get("relaxed", {})) or UNNAMED, one, other


def _pairs(count: int) -> int:
    return count * (count - 1) // 2

