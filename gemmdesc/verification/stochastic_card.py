"""Draws inside products on a card: the CPU's samples, and what they cost beside the products themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.numerics.stochastic.inorder import draw_inside
from gemmdesc.numerics.stochastic.inorder_card import draw_sums, drawn_chain
from gemmdesc.verification.stochastic_products import PRODUCTS, Product, operands

Row = dict[str, Any]

_TORCH = {DType.FLOAT16: "float16", DType.BFLOAT16: "bfloat16"}


def _chosen() -> tuple[Product, ...]:
    """The products whose sums the kernel draws: matrix steps, and no scale."""
    return tuple(p for p in PRODUCTS if p.operands is not DType.FLOAT32 and p.output.itemsize > 1)


def compare_on_card(ks: tuple[int, ...] = (64, 1000, 4096)) -> Row:
    """Samples on the card against the CPU's, 16 rows and 96 columns of each product, all kinds of operands."""
    import torch

    counts = {"products": 0, "elements": 0, "equal": 0, "different": 0, "left_to_cpu": 0}
    for number, product in enumerate(_chosen()):
        for i, (kind, k) in enumerate((kind, k) for kind in ("normal", "uniform", "wide") for k in ks):
            a, b, _ = operands(product.operands, kind, 40, 96, k, 1000 * number + i)
            desc, rows = product.descriptor(k), np.arange(0, 40, 3)
            found = draw_inside(desc, a, b, rows=rows, seed=i)
            chain = drawn_chain(desc, k)
            if isinstance(chain, Declined):
                raise AssertionError(chain.reason)
            left, right = (
                torch.from_numpy(to_float32(x, product.operands)).cuda() for x in (np.ascontiguousarray(a[rows]), b)
            )
            cols = torch.arange(96, device="cuda")
            sums, exact, unsure = draw_sums(
                chain, left, right, rows=torch.from_numpy(rows).cuda(), cols=cols, seed=i
            )
            sure = ~unsure.cpu().numpy()
            ours, theirs = (from_float32(x, DType.FLOAT32) for x in (found.before, sums.cpu().numpy()))
            same = (ours == theirs).all(0) & (found.exact == exact.cpu().numpy())
            counts["products"] += 1
            counts["elements"] += same.size
            counts["equal"] += int((same & sure).sum())
            counts["different"] += int((~same & sure).sum())
            counts["left_to_cpu"] += int((~sure).sum())
    return counts


def cost_on_card(size: int = 4096, rows: int = 64) -> list[Row]:
    """Microseconds of three samples of ``rows`` rows, and of torch's whole product, medians of 20 runs."""
    import torch

    found = []
    for product in _chosen():
        name = _TORCH.get(product.operands)
        if name is None:
            continue
        dtype = getattr(torch, name)
        a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
        chain = drawn_chain(product.descriptor(size), size)
        if isinstance(chain, Declined):
            raise AssertionError(chain.reason)
        chosen = torch.linspace(0, size - 1, rows, device="cuda").to(torch.int64)
        cols = torch.arange(size, device="cuda")
        wide = b.float()

        def drawn(chain: Any = chain, a: Any = a, wide: Any = wide, chosen: Any = chosen, cols: Any = cols) -> Any:
            return draw_sums(chain, a[chosen].float(), wide, rows=chosen, cols=cols)

        def whole(a: Any = a, b: Any = b) -> Any:
            return torch.mm(a, b)

        drawn_us, whole_us = _microseconds(drawn), _microseconds(whole)
        found.append(
            {
                "product": f"{product.operands.value}, {product.structure}",
                "drawn_us": round(drawn_us, 1),
                "product_us": round(whole_us, 1),
                "products": round(drawn_us / whole_us, 2),
            }
        )
    return found


def _microseconds(work: Callable[[], Any], runs: int = 20) -> float:
    import torch

    for _ in range(3):
        work()
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return float(np.median(times))
