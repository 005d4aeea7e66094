"""Whether ptxas leaves the wgmma of every main loop in flight.  Where it cannot it says so; sums are right, but slow.

    python scripts/check_ptxas.py [--kernels chain_tma,merged_tma] [--every N] [--jobs 2]

Compiles variants for sm_90, no GPU needed, and gives each one's PTX to the ptxas that Triton takes.  By default one
variant of each kernel, config, stored type and pair of layouts; ``--every 1`` takes all that the chooser can pick,
``--every N`` each Nth of them.  Prints what ptxas said of wgmma, spilled registers, and counts; exits 1 where a main
loop is serialised or waits where the kernel does not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from triton.backends.nvidia.compiler import get_ptxas

from gemmdesc.kernels.compiling import compile_variant
from gemmdesc.kernels.variants import Variant, enumerate_variants

CAPABILITY = 90
SHARED = 232448
#: ptxas's numbers of what it does to wgmma that it cannot leave in flight: serialised (C7514), waits injected (C7517).
_HELD_UP = re.compile(r"\(C75\d\d\)")
_SPILLED = re.compile(r"(\d+) bytes spill stores")
_WGMMA = "wgmma.mma_async"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``wgmma``: whether the kernel has any.  ``held_up``: what ptxas says of them.  ``spilled``: bytes."""

    wgmma: bool
    held_up: tuple[str, ...]
    spilled: int


def verdict_of(ptx: str) -> Verdict:
    """What ptxas says of ``ptx``, a module for sm_90a."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        target = str(source.with_suffix(".cubin"))
        command = [get_ptxas(CAPABILITY).path, "-v", "--gpu-name=sm_90a", str(source), "-o", target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ptxas must assemble the kernel (got {done.stderr[-500:]})")
    said = (done.stdout + done.stderr).splitlines()
    spilled = sum(int(n) for n in _SPILLED.findall(done.stdout + done.stderr))
    return Verdict(
        wgmma=_WGMMA in ptx, held_up=tuple(line for line in said if _HELD_UP.search(line)), spilled=spilled
    )  # fmt: skip


def check(variant: Variant) -> tuple[Variant, Verdict]:
    """Compile ``variant`` and ask ptxas."""
    return variant, verdict_of(compile_variant(variant, capability=CAPABILITY).asm["ptx"])


def one_each(variants: Iterable[Variant]) -> list[Variant]:
    """One variant of each kernel, config, stored type and pair of layouts."""
    found: dict[object, Variant] = {}
    tile = ("BLOCK_M", "BLOCK_N", "BESIDE_N", "BLOCK_K", "TILE_M", "TILE_N", "TILE_K")
    names = ("A_ROWS", "B_ROWS", "A_LAYOUT", "B_LAYOUT", *tile)
    for variant in sorted(variants, key=str):
        constants = dict(variant.constants)
        told = tuple(constants.get(name) for name in names)
        found.setdefault((variant.kernel, variant.stored, variant.num_warps, variant.num_stages, told), variant)
    return list(found.values())


def multiplying(kernels: Iterable[str] | None = None) -> list[Variant]:
    """Every variant with a tile of steps, of these kernels."""
    every = (v for v in enumerate_variants(SHARED) if "BLOCK_K" in dict(v.constants) and v.kernel not in _COPIES)
    return sorted((v for v in every if kernels is None or v.kernel in kernels), key=str)


_COPIES = ("repack", "kmajor_pack", "fma_chain")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=lambda text: text.split(","))
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    variants = multiplying(options.kernels)
    variants = variants[:: options.every] if options.every else one_each(variants)
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for done, (variant, verdict) in enumerate(pool.map(check, variants, chunksize=4), 1):
            counts["variants"] += 1
            counts["wgmma"] += verdict.wgmma
            counts["held up"] += bool(verdict.held_up)
            counts["spilled"] += verdict.spilled > 0
            if verdict.held_up or verdict.spilled:
                print(verdict.spilled, "bytes spilled", *verdict.held_up[:1], variant, flush=True)
            if done % 50 == 0:
                print(f"{done} of {len(variants)}: {dict(counts)}", flush=True)
    print(dict(counts))
    sys.exit(counts["held up"] > 0)


if __name__ == "__main__":
    main()
