"""Measure what docs/results/stochastic.json claims.  No GPU is needed.

    python scripts/stochastic_results.py docs/results/stochastic.json [--seeds 1000] [--only NAME ...]

``--only``: names of parts; claims of the others are kept as they are in the file.  The list of published claims is made
from all parts that the file then has.  ``classifier`` needs scikit-learn, for its data.  ``card`` needs a GPU and is
made only where it is asked for, alone: --only card.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gemmdesc.numerics.stochastic.digits import student_quantile, widening
from gemmdesc.profiles import packaged_folder, read_profile
from gemmdesc.verification import stochastic_card as on_card
from gemmdesc.verification import stochastic_products as products
from gemmdesc.verification import stochastic_tables as tables
from gemmdesc.verification import stochastic_training as training
from gemmdesc.verification.stochastic_corrections import corrections

Claim = dict[str, Any]

#: Bars: the share covered, the median slack in digits, and the cost in products.
COVERED, SLACK, PRODUCTS = 0.95, 0.7, 3.0
#: log10 of the ratio of Student's 95% quantile to its median at two degrees of freedom.
CALIBRATED = "0.722"


def table2(seeds: int) -> list[Claim]:
    claims = []
    for mode in ("paper", "default"):
        rows = tables.classical_digits(mode, seeds)
        right = sum(r["right_by_median"] for r in rows)
        claim: Claim = {
            "part": "table2",
            "claim": f"Table 2 of arXiv 2607.25494, {mode} mode: its 13 cases in both formats, {seeds:,} seeds each, "
            "thresholds 3 (float32) and 10 (float64)",
            "counts": {"cases": len(rows), "right_by_median": right, "seeds": seeds},
            "wrong_share_of_all_seeds": round(sum(r["wrong_share"] for r in rows) / len(rows), 4),
            "largest_wrong_share": max(r["wrong_share"] for r in rows),
        }
        if mode == "paper":
            claim["counts"]["published_inside_central_99"] = sum(r["inside"] for r in rows)
        else:
            rows = [{k: v for k, v in r.items() if k not in ("published", "inside")} for r in rows]
        claims.append(claim | {"digits": rows})
    return claims


def table3(seeds: int) -> list[Claim]:
    claims = []
    for mode in ("paper", "default"):
        rows = tables.operator_digits(mode, max(20, seeds // 20))
        by_format = {f: tables.detection([r for r in rows if r["format"] == f]) for f in ("float32", "float64")}
        claims.append(
            {
                "part": "table3",
                "claim": f"Table 3 of arXiv 2607.25494, {mode} mode: its operator pairs, detected by the least digits "
                f"of an output, {rows[0]['seeds']} seeds each (sizes and draws are ours; the paper's are not known)",
                "counts": by_format,
                "digits": rows,
            }
        )
    return claims


def tutorials(seeds: int) -> list[Claim]:
    count = max(5, seeds // 50)
    return [
        {
            "part": "tutorials",
            "claim": f"CADNA's tutorial programs 1 to 7: instabilities counted, the median of {count} seeds, beside "
            "the totals published for CADNA and for the package of arXiv 2607.25494",
            "counts": {"programs": 14, "seeds": count},
            "instabilities": tables.tutorial_counts(count),
        }
    ]


def inside(seeds: int) -> list[Claim]:
    claims = []
    for samples in (3, 8):
        rows = products.coverage(samples)
        outputs = products.by_output(rows)
        for row in outputs:
            row["covered_bar"], row["slack_bar"] = row["covered"] >= COVERED, row["slack"] <= SLACK
        claims.append(
            {
                "part": "inside",
                "claim": f"Draws inside the product, {samples} samples, default mode at 95%: the samples' mean against "
                f"float64, at least {COVERED:.0%} covered, median slack at most {SLACK} digit for each output type",
                "counts": {
                    "elements": sum(r["elements"] for r in rows),
                    "output_types": len(outputs),
                    "covered_bar_met": sum(r["covered_bar"] for r in outputs),
                    "slack_bar_met": sum(r["slack_bar"] for r in outputs),
                },
                "student_factor": round(student_quantile(0.95, samples - 1) * widening(samples, antithetic=True), 3),
                "by_output": outputs,
                "by_product": rows,
            }
        )
        if samples == 3:
            claims[-1]["formula_alone"] = (
                "an interval that covers exactly 95% by Student's t with two degrees of freedom has a median slack of "
                f"{CALIBRATED} digit: the formula on three samples cannot meet the bar, what the sites met can"
            )
    return claims


def sites(seeds: int) -> list[Claim]:
    rows = products.attribution()
    return [
        {
            "part": "sites",
            "claim": "Which rounding sites cost digits: each kind drawn alone, K = 4096, normal operands",
            "counts": {"products": len({r["product"] for r in rows}), "kinds_drawn": len(rows)},
            "shares": rows,
        }
    ]


def perturbation(seeds: int) -> list[Claim]:
    rows = products.perturbation()
    return [
        {
            "part": "perturbation",
            "claim": "The data perturbation of arXiv 2607.25494 beside draws inside the product, and its theorem 2 "
            "with these as the ideal samples, K = 4096, normal operands",
            "counts": {
                "elements": sum(r["elements"] for r in rows),
                "within_conditions": sum(r["within_conditions"] for r in rows),
                "bounded": sum(r["bounded"] for r in rows),
            },
            "gaps": rows,
        }
    ]


def orders(seeds: int) -> list[Claim]:
    folder = packaged_folder()
    if folder is None:
        return []
    path = folder / "sm_90-132" / "cublaslt-13.1.0.parquet"
    rows = products.orders(read_profile(path))
    return [
        {
            "part": "orders",
            "claim": "The orders that cuBLASLt 13.1.0 has for one product of K = 4096 on an H200 (replayed): do they "
            "agree in the digits promised for the first",
            "counts": {"products": len(rows), "elements": sum(r["elements"] for r in rows)},
            "least_kept_share": min(r["kept_share"] for r in rows),
            "least_inside_share": min(r["inside_share"] for r in rows),
            "agreement": rows,
        }
    ]


def cost(seeds: int) -> list[Claim]:
    row = products.cost_inside(4096, 64, 3)
    return [
        {
            "part": "cost",
            "claim": "Three samples inside 64 rows of a product of 4096 cubed, against the replay of the whole product "
            f"on the same CPU: below the cost of {PRODUCTS:.0f} products. Not measured against a GPU's product",
            "counts": {"rows": row["rows"], "samples": row["samples"]},
            "met": row["products"] < PRODUCTS,
            "seconds": [row],
        },
        {
            "part": "cost",
            "claim": "How many times as long an operation on three samples takes as NumPy's on float64",
            "counts": {"operations": 6},
            "operations": products.cost_outside(),
        },
    ]


def classifier(seeds: int) -> list[Claim]:
    rows = training.pathology_study()
    right = sum((r["least"] < 0.5) != r["stable"] for r in rows)
    return [
        {
            "part": "classifier",
            "claim": "A classifier of scikit-learn's digits in training with an operator of the paper's eqs. 56 to 61 "
            "inside, under a float32 shadow: the operator's digits, and whether the samples choose the same class",
            "counts": {"operators": len(rows), "told_apart": right},
            "pathologies": rows,
        },
        {
            "part": "classifier",
            "claim": "Digits before and after a normalisation (scikit-learn's digits, 256 features)",
            "counts": {"normalisations": 3},
            "normalisations": training.normalisation_study(),
        },
        {
            "part": "classifier",
            "claim": "Digits of a hidden activation: the mean over all elements, as the paper takes it, and its parts "
            "(scikit-learn's digits, 256 features)",
            "counts": {"activations": 5},
            "activations": training.activation_study(),
        },
    ]


def modules(seeds: int) -> list[Claim]:
    rows = training.overhead()
    return [
        {
            "part": "modules",
            "claim": "How many times as long an operator of torch takes on three samples as in plain float32, on a CPU",
            "counts": {"operators": len(rows)},
            "overhead": rows,
        }
    ]


def card(seeds: int) -> list[Claim]:
    """Needs a GPU, and is made only where it is asked for."""
    (counts, differing), rows = on_card.compare_on_card(), on_card.cost_on_card()
    return [
        {
            "part": "card",
            "claim": "Three samples of the sums of products, drawn on the card against the CPU's bytes",
            "counts": counts,
        }
        | ({"differing": differing} if differing else {}),
        {
            "part": "card",
            "claim": "Three samples of 64 rows of a product of 4096 cubed, drawn on the card: below the cost of "
            f"{PRODUCTS:.0f} of torch's products",
            "counts": {"products": len(rows), "met": sum(r["products"] < PRODUCTS for r in rows)},
            "cost": rows,
        },
    ]


PARTS = {
    f.__name__: f
    for f in (table2, table3, tutorials, inside, sites, perturbation, orders, cost, classifier, modules, card)
}


def card_name() -> str:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name} (sm_{properties.major}{properties.minor}, {properties.multi_processor_count} SMs)"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=[p for p in PARTS if p != "card"])
    options = parser.parse_args(arguments)
    kept = json.loads(options.output.read_text())["claims"] if options.output.exists() else []
    on_a_card = options.only == ["card"]
    only = " --only card" if on_a_card else ""
    facts = {
        "command": f"python scripts/stochastic_results.py OUT.json --seeds {options.seeds}{only}",
        "card": card_name() if on_a_card else f"none (CPU, {platform.machine()})",
        "versions": {n: version(n) for n in ("numpy", "numba", "torch")} | {"python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d"),
    }
    made: dict[str, list[Claim]] = {}
    for name in options.only:
        begin = time.perf_counter()
        made[name] = [claim | facts for claim in PARTS[name](options.seeds)]
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    claims = [c for name in PARTS for c in made.get(name, [k for k in kept if k["part"] == name])]
    # They are made from parts that are not the card's.
    claims += [k for k in kept if k["part"] == "corrections"] if on_a_card else [c | facts for c in corrections(claims)]
    aside = options.output.with_suffix(".json.tmp")
    aside.write_text(json.dumps({"claims": claims}, indent=1) + "\n")
    aside.replace(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
