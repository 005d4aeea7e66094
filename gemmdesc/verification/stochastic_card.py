"""Draws inside products on a card: the CPU's samples, and what they cost beside the products themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.numerics.stochastic.inorder import draw_inside
from gemmdesc.numerics.stochastic.inorder_card import draw_sums, drawn_chain
from gemmdesc.verification.stochastic_products import PRODUCTS, Product, operands

Row = dict[str, Any]

#: Tiles, and their warps, that are timed beside the one that the launch takes.
_TILES = ((16, 32, 2), (16, 32, 4), (32, 16, 2), (32, 32, 4), (32, 32, 8), (64, 16, 4))
_TORCH = {DType.FLOAT16: "float16", DType.BFLOAT16: "bfloat16"}


def _chosen() -> tuple[Product, ...]:
    """The products whose sums the kernel draws: matrix steps, and no scale."""
    return tuple(p for p in PRODUCTS if p.operands is not DType.FLOAT32 and p.output.itemsize > 1)


def compare_on_card(
    ks: tuple[int, ...] = (64, 1000, 4096), *, rows: int = 14, columns: int = 96, device: str = "cuda"
) -> tuple[Row, list[Row]]:
    """Samples of the kernel against the CPU's, before the output type: each product, all kinds of operands.

    Counts over all elements, and what differed: for each product with a difference its name, kind and k, how many
    sums and flags differ, and the first such element's bits.  ``device`` "cpu" is for Triton's interpreter.
    """
    counts = {"products": 0, "elements": 0, "equal": 0, "different": 0, "left_to_cpu": 0}
    differing = []
    for number, product in enumerate(_chosen()):
        for i, (kind, k) in enumerate((kind, k) for kind in ("normal", "uniform", "wide") for k in ks):
            a, b, _ = operands(product.operands, kind, 3 * rows - 2, columns, k, 1000 * number + i)
            chosen = np.arange(0, 3 * rows - 2, 3)
            found = draw_inside(product.descriptor(k), a, b, rows=chosen, seed=i)
            # The kernel ends before the output type, whose rounding ``found.exact`` counts too.
            cpu = (from_float32(found.before, DType.FLOAT32), found.gaps == 0.0)
            sums, exact, unsure = _kernels(product, k, a, b, chosen, i, device)
            wrong_sums = (cpu[0] != sums) & ~unsure
            wrong_exact = (cpu[1] != exact) & ~unsure
            wrong = wrong_sums.any(0) | wrong_exact
            counts["products"] += 1
            counts["elements"] += wrong.size
            counts["equal"] += int((~wrong & ~unsure).sum())
            counts["different"] += int(wrong.sum())
            counts["left_to_cpu"] += int(unsure.sum())
            if wrong.any():
                name = f"{product.operands.value} -> {product.output.value}, {product.structure}"
                many = {"sums": int(wrong_sums.any(0).sum()), "flags": int(wrong_exact.sum())}
                first = _first(wrong, cpu, (sums, exact))
                differing.append({"product": name, "operands": kind, "k": k, **many, "first": first})
    return counts, differing


def _first(wrong: Any, cpu: tuple[Bits, Any], kernel: tuple[Bits, Any]) -> Row:
    """The first wrong element: its place among those chosen, and its three sums' bits and flag from both sides."""
    row, column = (int(x) for x in np.argwhere(wrong)[0])
    told: Row = {"row": row, "column": column}
    for name, (sums, exact) in (("cpu", cpu), ("kernel", kernel)):
        told[name] = [f"{int(x):08x}" for x in sums[:, row, column]]
        told[f"{name}_exact"] = bool(exact[row, column])
    return told


def _kernels(product: Product, k: int, a: Bits, b: Bits, rows: Any, seed: int, device: str) -> tuple[Bits, Any, Any]:
    """The kernel's sums as bits, where nothing was lost, and where a sum is left to the CPU."""
    import torch

    chain = drawn_chain(product.descriptor(k), k)
    if isinstance(chain, Declined):
        raise AssertionError(chain.reason)
    left, right = (
        torch.from_numpy(to_float32(x, product.operands)).to(device) for x in (np.ascontiguousarray(a[rows]), b)
    )
    cols = torch.arange(b.shape[1], device=device)
    sums, exact, unsure = draw_sums(chain, left, right, rows=torch.from_numpy(rows).to(device), cols=cols, seed=seed)
    return from_float32(sums.cpu().numpy(), DType.FLOAT32), exact.cpu().numpy(), unsure.cpu().numpy()


def cost_on_card(size: int = 4096, rows: int = 64, *, rounds: int = 100) -> list[Row]:
    """Microseconds of three samples of ``rows`` rows, and of torch's whole product: medians.

    The samples are with the tile that the launch takes by itself, and with others, by rows, columns and warps.  Each is
    a CUDA graph, so that no time of the host is in it; all are run in turn ``rounds`` times without a pause, so that
    all meet the same clocks.  ``called_us``: wall time of one call from Python and the wait for it, medians.
    """
    import torch

    from gemmdesc.kernels.launch_drawn import hold_chain

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
        held = hold_chain(chain, a.device)
        chosen = torch.linspace(0, size - 1, rows, device="cuda").to(torch.int64)
        cols = torch.arange(size, device="cuda")

        def drawn(
            block: Any = None, warps: Any = None, held: Any = held, a: Any = a, b: Any = b, places: Any = (chosen, cols)
        ) -> Any:
            return draw_sums(
                held, a[places[0]], b, rows=places[0], cols=places[1], block=block, num_warps=warps
            )

        works: dict[str, Callable[[], Any]] = {"drawn": drawn, "product": partial(torch.mm, a, b)}
        works |= {f"{m}x{n} of {w} warps": partial(drawn, (m, n), w) for m, n, w in _TILES}
        times = _in_turn(works, rounds)
        drawn_us, product_us = (float(np.median(times.pop(n))) for n in ("drawn", "product"))
        found.append(
            {
                "product": f"{product.operands.value} -> {product.output.value}, {product.structure}",
                "drawn_us": round(drawn_us, 1),
                "product_us": round(product_us, 1),
                "products": round(drawn_us / product_us, 2),
                "tiles_us": {n: round(float(np.median(t)), 1) for n, t in times.items()},
                "called_us": {n: round(_called(works[n]), 1) for n in ("drawn", "product")},
            }
        )
    return found


def _in_turn(works: dict[str, Callable[[], Any]], rounds: int, unmeasured: int = 40) -> dict[str, list[float]]:
    """Microseconds of each run of each of ``works``, all captured and run in turn; the first rounds warm up."""
    import torch

    graphs = {}
    for name, work in works.items():
        # What compiles or allocates at first does so outside the graph.
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            work()
    marks = []
    for _ in range(unmeasured + rounds):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            marks.append((name, begin, end))
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in works}
    for name, begin, end in marks[unmeasured * len(works) :]:
        times[name].append(begin.elapsed_time(end) * 1000)
    return times


def _called(work: Callable[[], Any], runs: int = 20) -> float:
    import torch

    times = []
    for _ in range(3 + runs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    return float(np.median(times[3:]))
