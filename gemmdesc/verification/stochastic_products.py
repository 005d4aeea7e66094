"""Draws inside products against exact ones: what ``scripts/stochastic_results.py`` measures, as plain values."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.models import find_model
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.descriptor import Accumulator, Contiguous, Cut, GEMMDesc, ResidueLast, ScalarStep, Scale, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.normal_form import normal_form
from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.formats import format_of
from gemmdesc.numerics.stochastic.inorder import draw_inside
from gemmdesc.numerics.stochastic.inorder_analysis import (
    attribute_sites,
    compare_orders,
    cover,
    digit_gap,
    perturb_outside,
)
from gemmdesc.problem import Epilogue, ScalarClass
from gemmdesc.profiles import Profile, RuleOutcome
from gemmdesc.rule import evaluate_rule

Row = dict[str, Any]
Reals = Any

_SINGLE = DType.FLOAT32
_KINDS = ("normal", "uniform", "wide")
#: An 8-bit output is scaled so that its largest element has this magnitude, half of what the type holds.
_LARGEST8 = 224.0


@dataclass(frozen=True, kw_only=True)
class Product:
    """One kind of product: operands and output, and how its sum is cut."""

    operands: DType
    output: DType
    structure: str

    def descriptor(self, k: int) -> GEMMDesc:
        """On Hopper's ``wgmma``, or a chain of CUDA-core steps for float32 operands."""
        step: Any = ScalarStep(fused=True)
        instruction_k = 1
        if self.operands is not _SINGLE:
            model = find_model(
                architecture="Hopper",
                instruction="wgmma",
                a_dtype=self.operands,
                b_dtype=self.operands,
                accumulator_dtype=_SINGLE,
            )
            step, instruction_k = model.step, model.instruction_k
        spans = {"one chain": None, "4 slices": -(-k // 4), "promoted every 128": 128}
        span = spans[self.structure]
        cut = Cut(layout=Contiguous(span=span or 1), partial_dtype=_SINGLE, merge_dtype=_SINGLE, start=Start.FIRST)
        return GEMMDesc(
            a_dtype=self.operands,
            b_dtype=self.operands,
            output_dtype=self.output,
            summed_k=k,
            cuts=(cut,) if span else (),
            accumulator=Accumulator(instruction_k=instruction_k, residue=ResidueLast(), step=step),
            epilogue=(Scale(),) if self.output.itemsize == 1 else (),
        )


PRODUCTS = (
    Product(operands=DType.FLOAT16, output=DType.FLOAT16, structure="one chain"),
    Product(operands=DType.FLOAT16, output=DType.FLOAT16, structure="4 slices"),
    Product(operands=DType.BFLOAT16, output=DType.BFLOAT16, structure="one chain"),
    Product(operands=DType.FLOAT8_E4M3FN, output=DType.BFLOAT16, structure="promoted every 128"),
    Product(operands=DType.FLOAT16, output=_SINGLE, structure="one chain"),
    Product(operands=DType.BFLOAT16, output=_SINGLE, structure="4 slices"),
    Product(operands=_SINGLE, output=_SINGLE, structure="one chain"),
    Product(operands=DType.FLOAT8_E4M3FN, output=_SINGLE, structure="promoted every 128"),
    Product(operands=DType.FLOAT8_E4M3FN, output=DType.FLOAT8_E4M3FN, structure="promoted every 128"),
)


def operands(dtype: DType, kind: str, m: int, n: int, k: int, seed: int) -> tuple[Bits, Bits, Reals]:
    """Two operands and their product in float64; ``wide`` numbers have exponents over 13 octaves."""
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, int]) -> Bits:
        x = rng.random(shape) if kind == "uniform" else rng.standard_normal(shape)
        if kind == "wide":
            x = x * 2.0 ** rng.integers(-6, 7, shape) / 16
        return from_float32(x.astype(np.float32), dtype)

    a, b = draw((m, k)), draw((k, n))
    return a, b, to_float32(a, dtype).astype(np.float64) @ to_float32(b, dtype).astype(np.float64)


def coverage(samples: int, *, m: int = 48, n: int = 96, ks: tuple[int, ...] = (256, 1000, 4096)) -> list[Row]:
    """Each product over all kinds of operands and ``ks``: the samples' mean and the library's result against float64.

    ``library_covered``: the library's own result by the formula's half width, as if there were no bias.
    """
    rows = []
    for number, product in enumerate(PRODUCTS):
        parts: dict[str, list[Any]] = defaultdict(list)
        for i, (kind, k) in enumerate((kind, k) for kind in _KINDS for k in ks):
            a, b, reference = operands(product.operands, kind, m, n, k, 100 * number + i)
            scaled = product.output.itemsize == 1
            alpha = float(np.float32(_LARGEST8 / np.abs(reference).max())) if scaled else 1.0
            inputs = EpilogueInputs(alpha=alpha)
            found = draw_inside(product.descriptor(k), a, b, samples=samples, seed=i, epilogue=inputs)
            exact = reference * alpha
            estimate, plain, told = found.estimate(), found.plain_estimate(), found.library_estimate()
            parts["mean"].append(cover(estimate, estimate.mean, exact))
            parts["formula"].append(cover(plain, plain.mean, exact))
            parts["library"].append(cover(plain, found.library, exact))
            parts["library_with_bias"].append(cover(told, found.library, exact))
            parts["bias"].append(found.bias_summary())
            parts["digits"].append(float(np.median(estimate.digits)))
            parts["exact"].append(int(estimate.exact.sum()))
        rows.append(_covered(product, samples, parts))
    return rows


def _covered(product: Product, samples: int, parts: dict[str, list[Any]]) -> Row:
    row: Row = {
        "operands": product.operands.value,
        "output": product.output.value,
        "order": product.structure,
        "samples": samples,
        "elements": sum(c.elements for c in parts["mean"]),
        "exact": sum(parts["exact"]),
        "median_digits": round(float(np.median(parts["digits"])), 2),
    }
    for name in ("mean", "formula", "library", "library_with_bias"):
        row[f"{name}_covered"] = round(sum(c.covered for c in parts[name]) / row["elements"], 4)
    row["slack"] = round(float(np.median([c.slack for c in parts["mean"]])), 3)
    row["formula_slack"] = round(float(np.median([c.slack for c in parts["formula"]])), 3)
    row["bias_toward_zero"] = float(f"{np.median([b.toward_zero for b in parts['bias']]):.3g}")
    row["bias_in_half_widths"] = round(float(np.median([b.in_half_widths for b in parts["bias"]])), 2)
    return row


def by_output(rows: list[Row]) -> list[Row]:
    """Rows of :func:`coverage` for each output type together."""
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row["output"]].append(row)
    return [
        {
            "output": output,
            "elements": sum(r["elements"] for r in of),
            "covered": round(sum(r["mean_covered"] * r["elements"] for r in of) / sum(r["elements"] for r in of), 4),
            "slack": round(float(np.median([r["slack"] for r in of])), 3),
        }
        for output, of in grouped.items()
    ]


def attribution(k: int = 4096) -> list[Row]:
    """Which sites cost what, for each product on normal operands."""
    rows = []
    for product in PRODUCTS:
        a, b, reference = operands(product.operands, "normal", 32, 64, k, 7)
        scaled = product.output.itemsize == 1
        inputs = EpilogueInputs(alpha=float(np.float32(_LARGEST8 / np.abs(reference).max())) if scaled else 1.0)
        for share in attribute_sites(product.descriptor(k), a, b, epilogue=inputs):
            name = f"{product.operands.value} -> {product.output.value}, {product.structure}"
            rows.append({"product": name, **asdict(share)})
    return rows


def perturbation(k: int = 4096, *, m: int = 48, n: int = 64) -> list[Row]:
    """The paper's data perturbation beside the draws inside, and its theorem 2 on both."""
    rows = []
    for product in (PRODUCTS[0], PRODUCTS[2], PRODUCTS[4], PRODUCTS[5], PRODUCTS[7]):
        for simulated in (_SINGLE, product.operands):
            a, b, reference = operands(product.operands, "normal", m, n, k, 11)
            desc = product.descriptor(k)
            outside = perturb_outside(desc, a, b, format=format_of(simulated))
            inside = draw_inside(desc, a, b)
            error = np.abs(inside.library.astype(np.float64) - reference)
            half = stochastic.student_quantile(0.95, 2) * outside.std(0, ddof=1) / np.sqrt(3)
            rows.append(
                {
                    "product": f"{product.operands.value} -> {product.output.value}, {product.structure}",
                    "perturbed_as": simulated.value,
                    **asdict(digit_gap(inside.samples.astype(np.float64), outside)),
                    "library_covered_by_perturbation": round(float((error <= half).mean()), 4),
                }
            )
    return rows


def real_orders(profile: Profile, k: int, operand: DType, output: DType) -> tuple[GEMMDesc, ...]:
    """The orders that a profile's rules have for one plain product, in as many slices as its answers name or 1 to 8.

    Rows whose answers were met at other inner sizes only are left out, and those of CUDA-core kernels, which are for
    products of few rows or columns.
    """
    found: dict[str, GEMMDesc] = {}
    for row in profile.rows:
        met, family = row.evidence.k, row.key.family
        plain = (family.epilogue, family.alpha_class, family.c_class, family.batched)
        if plain != (Epilogue.DEFAULT, ScalarClass.ONE, ScalarClass.ZERO, False):
            continue
        if not isinstance(row.outcome, RuleOutcome) or not met.low <= k <= met.high:
            continue
        for slices in (1, 2, 4, 8, row.evidence.example.answer.splitk_num):
            desc = evaluate_rule(row.outcome.rule, {"m": 512, "n": 512, "k": k, "splitk_num": max(1, slices)})
            if isinstance(desc, Declined) or isinstance(desc.accumulator.step, ScalarStep):
                continue
            if (desc.a_dtype, desc.output_dtype) == (operand, output):
                found.setdefault(str(normal_form(desc, k)), desc)
    return tuple(found.values())


def orders(profile: Profile, k: int = 4096) -> list[Row]:
    """The library's own orders of one product, beside the digits promised for the first."""
    rows = []
    for operand, output in ((DType.FLOAT16, _SINGLE), (DType.BFLOAT16, _SINGLE), (DType.FLOAT16, DType.FLOAT16),
                            (DType.BFLOAT16, DType.BFLOAT16)):  # fmt: skip
        every = real_orders(profile, k, operand, output)
        for kind in _KINDS:
            a, b, _ = operands(operand, kind, 48, 96, k, 23)
            spread = asdict(compare_orders(every, a, b))
            rows.append({"product": f"{operand.value} -> {output.value}, {kind}", **_rounded(spread)})
    return rows


def cost_inside(size: int, rows: int, samples: int) -> Row:
    """Seconds of a whole replay and of draws on ``rows`` rows, fp16, one product of ``size`` cubed."""
    product = PRODUCTS[0]
    a, b, _ = operands(product.operands, "normal", size, size, size, 3)
    desc, chosen = product.descriptor(size), np.linspace(0, size - 1, rows).astype(np.int64)
    replay(desc, a[:8], b)
    draw_inside(desc, a, b, rows=chosen[:8])
    whole = _seconds(lambda: replay(desc, a, b))
    drawn = _seconds(lambda: draw_inside(desc, a, b, rows=chosen, samples=samples))
    return {
        "size": size,
        "rows": rows,
        "samples": samples,
        "replay_seconds": round(whole, 2),
        "drawn_seconds": round(drawn, 2),
        "products": round(drawn / whole, 4),
    }


def cost_outside(elements: int = 1 << 16) -> list[Row]:
    """How many times as long a stochastic operation takes as the plain one, for one element and for many."""
    rows = []
    for mode in ("default", "paper"):
        for size in (1, elements):
            x, y = np.random.default_rng(0).uniform(1, 2, (2, size))
            run = stochastic.start(mode=mode)
            u, v = run.array(x), run.array(y)
            for name, (ours, plain) in _operations(u, v, x, y).items():
                ratio = _best(ours) / _best(plain)
                rows.append({"operation": name, "mode": mode, "elements": size, "times_as_long": round(ratio, 1)})
    return rows


def _operations(u: Any, v: Any, x: Any, y: Any) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    return {
        "add": (lambda: u + v, lambda: x + y),
        "multiply": (lambda: u * v, lambda: x * y),
        "divide": (lambda: u / v, lambda: x / y),
        "sqrt": (lambda: F.sqrt(u), lambda: np.sqrt(x)),
        "exp": (lambda: F.exp(u), lambda: np.exp(x)),
        "digits": (lambda: u.digits, lambda: x + y),
    }


def _rounded(row: Row) -> Row:
    return {name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()}


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _best(work: Callable[[], Any], tries: int = 7) -> float:
    """Seconds of one call, the best of ``tries`` series of as many calls as take about a hundredth of a second."""
    calls = max(1, int(0.01 / max(_seconds(work), 1e-7)))
    return min(_seconds(lambda: [work() for _ in range(calls)]) for _ in range(tries)) / calls
