"""Every tile that a fused kernel can have, timed on a GPU: does the chooser take the fastest?

    PYTHONPATH=. python scripts/sweep_fused.py OUT.json [--seconds 300] [--sizes 4096x14336x4096,256x6144x2048]
                                               [--epilogues silu,gated_sigmoid] [--all-configs]

For each product (m x n x k, float16, the weight by columns) and epilogue of ``check_fused``: microseconds of the kernel
as it is chosen and with other tiles, all of whose bytes must be those of the chosen one, and of the product alone by
the library.  By default the tiles are the chosen one, the largest, the pair that shares a multiprocessor and the
smaller ones that do; ``--all-configs`` takes every one.  ``--specialised 4`` adds the specialised chain with so many
configs, those of least estimate.  OUT.json has one row for each; it is rewritten after every product.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from check_fused import CARD, describe, epilogues, meta_of, operand, steps_of

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dropin.memory import signed_bits
from gemmdesc.errors import Declined
from gemmdesc.kernels.beside import Beside
from gemmdesc.kernels.competing import competing_fused
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.fused import FUSED_CONFIGS, PAIRED, SINGLE_CONFIGS, FusedChoice
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_tiled
from gemmdesc.regions import whole

SIZES = "4096x14336x4096,4096x4096x4096,4096x6144x2048,256x14336x4096,256x6144x2048,4096x14336x64,64x4096x4096"
EPILOGUES = "silu,gated_sigmoid,bias_gelu,residual,row_scale"
#: Launches in one graph, and how often it is replayed.
LAUNCHES, REPLAYS = 10, 7
Row = dict[str, Any]


def in_a_word(c: KernelConfig) -> str:
    early = " early" if c.dependent else ""
    if isinstance(c, SpecialisedConfig):
        cluster = f" cluster {c.cluster_m}x{c.cluster_n}" if c.cluster > 1 else ""
        return f"{c.block_m}x{c.columns}x{c.block_k} {c.sharing} s{c.num_stages}{cluster}{early}"
    return f"{c.block_m}x{c.block_n}x{c.block_k} w{c.num_warps} s{c.num_stages} p{c.programs_per_sm}{early}"


def timed(run: Callable[[], None]) -> float:
    """Median microseconds of one ``run``, of a graph of several."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            run()
    graph.replay()
    found = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(1e3 * begin.elapsed_time(end) / LAUNCHES)
    return statistics.median(found)


def others(chosen: KernelConfig, every: bool) -> list[KernelConfig]:
    """The configs to try beside the chosen one."""
    some = [SINGLE_CONFIGS[0], PAIRED, *(c for c in SINGLE_CONFIGS if c.programs_per_sm > 1 and c.block_n >= 64)]
    return [c for c in (FUSED_CONFIGS if every else some) if c != chosen]


def with_config(choice: FusedChoice, config: KernelConfig, m: int, n: int, sm_count: int) -> FusedChoice:
    """``choice`` by another tile, the product turned as it is there."""
    turned = (n, m) if choice.product.swapped else (m, n)
    programs = min(config.tiles(*turned), sm_count * config.programs_per_sm)
    return replace(choice, product=replace(choice.product, config=config, programs=programs))


def specialised(desc: GEMMDesc, meta: KernelMeta, most: int) -> list[FusedChoice]:
    """The specialised chain that ends with what follows, by the ``most`` configs of least estimate."""
    found = competing_fused(desc, meta, CARD) if most else ()
    if isinstance(found, Declined):
        raise SystemExit(found.reason)
    return [c for c in found if c.product.structure is Structure.CHAIN_SPECIALISED][:most]


def rows(m: int, n: int, k: int, name: str, every: bool, most: int = 0) -> Iterator[Row]:
    """One for each config of a product with the epilogue ``name``; ``most``: so many of the specialised chain."""
    made = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(s, k, generator=made, device="cuda").half() for s in (m, n))
    b = b.T
    epilogue = epilogues()[name]
    given = {o: operand(o, m, n, torch.float16, made, "cuda") for o in epilogue.names}
    found = steps_of(epilogue, given, torch.float16, (m, n))
    if isinstance(found, Declined):
        raise SystemExit(found.reason)
    following, named = found
    out = torch.empty((m, n), dtype=torch.float16, device="cuda")
    meta = meta_of(a, b, out)
    desc = following.after(describe(torch.float16, k))
    choice = choose_tiled(whole(desc, m, n), meta, CARD, fused=True)
    if not isinstance(choice, FusedChoice) or not choice.in_chain:
        raise SystemExit(f"the product must end with its epilogue (got {choice})")
    beside, want = Beside(named=named), torch.empty_like(out)
    launch_choice(choice, a, b, want, beside)
    about = {"m": m, "n": n, "k": k, "epilogue": name}
    yield about | {"config": "library's product", "us": timed(lambda: torch.mm(a, b, out=out))}
    tried = [choice]
    if choice.product.structure is Structure.CHAIN_TMA:
        tried += [with_config(choice, c, m, n, meta.sm_count) for c in others(choice.product.config, every)]
    for i, one in enumerate([*tried, *specialised(desc, meta, most)]):
        out.fill_(float("nan"))
        us = timed(lambda c=one: launch_choice(c, a, b, out, beside))  # type: ignore[misc]
        equal = bool((signed_bits(out) == signed_bits(want)).all())
        yield about | {"config": in_a_word(one.product.config), "chosen": i == 0, "us": us, "equal": equal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--epilogues", default=EPILOGUES)
    parser.add_argument("--all-configs", action="store_true")
    parser.add_argument("--specialised", type=int, default=0, help="configs of the specialised chain")
    options = parser.parse_args()
    until, done = time.monotonic() + options.seconds, []
    for size in options.sizes.split(","):
        m, n, k = map(int, size.split("x"))
        for name in options.epilogues.split(","):
            if time.monotonic() > until:
                break
            for row in rows(m, n, k, name, options.all_configs, options.specialised):
                done.append(row)
                mark = "*" if row.get("chosen") else " "
                told = f"{row['config']:28}{row['us']:9.2f} us  {row.get('equal', '')}"
                print(f"{size} {name:16}{mark}{told}", flush=True)
            options.path.write_text(json.dumps(done, indent=1) + "\n")
    sys.exit(any(row.get("equal") is False for row in done))


if __name__ == "__main__":
    main()
