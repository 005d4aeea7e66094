"""Run by test_kernels_interpreted.py in a process of its own, with TRITON_INTERPRET=1 and no GPU.

Arguments: a seed, and how many products.  Tiles of two widths against the replay, all bytes: columns that end inside
either width, or before the second; stores by descriptor and by pointer; slices in scratch; copied operands; more tiles
than programs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import torch

from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import first_mismatch
from gemmdesc.descriptor import Accumulator, Contiguous, Cut, GEMMDesc, ResidueFirst, ResidueLast, Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.config import WIDE_CONFIGS, KernelConfig
from gemmdesc.kernels.launch import launch_here, matrix_meta
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.structure import Structure
from tests.interpreted_kernels import CARD, STEP, draw, framed, gap_stays, patch_interpreter, place


def drawn(rng: np.random.Generator, config: KernelConfig, number: int) -> tuple[GEMMDesc, int, int, int, str]:
    """A chain or slices of one, sizes that end in every part of a tile in turn, and layouts.

    Every fourth has to be copied first, the others are read where they lie.
    """
    dtype, copied = (DType.FLOAT16, DType.BFLOAT16)[number // 2 % 2], number % 4 == 3
    width, first = config.columns, config.block_n
    ends = (width + first // 2, width + first + 8, 2 * width, 2 * width - 8, width + 1, first + 1)
    n, m = ends[number % len(ends)], (72, config.block_m + 8, 136)[number % 3]
    k = int(rng.choice([64, 88, 136]))
    if copied:
        m, n, k = max(m, 128) + 1, max(n, 128) + 1, k + 3
    span = (None, 64, None, 37 if copied else 128)[number // 3 % 4]
    cut = Cut(
        layout=Contiguous(span=span or 1), partial_dtype=(DType.FLOAT32, dtype)[int(rng.integers(2))],
        merge_dtype=(DType.FLOAT32, dtype)[int(rng.integers(2))], start=Start.FIRST,
    )  # fmt: skip
    leaf = Accumulator(
        instruction_k=8 if copied and number % 8 == 3 else 16,
        residue=ResidueFirst(k_loop_step=32) if copied else ResidueLast(), step=STEP,
    )  # fmt: skip
    desc = GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=(dtype, DType.FLOAT32)[number % 5 == 4],
        summed_k=k - int(rng.integers(3)), cuts=(cut,) if span else (), accumulator=leaf,
    )  # fmt: skip
    b_layout = "c" if n % 8 else str(rng.choice(["r", "c"]))
    return desc, m, n, k, str(rng.choice(["r", "c"])) + b_layout + str(rng.choice(["r", "c"]))


def told(choice: KernelChoice, m: int, n: int) -> list[str]:
    """What of the kernel a launch runs, and with what around it."""
    found = {
        "by descriptor": choice.store_by_descriptor, "by pointers": not choice.store_by_descriptor,
        "by columns": choice.out_layout is Layout.COLUMNS, "packed": choice.packing is not None,
        "slices": choice.merges, "turns": choice.config.tiles(m, n) * choice.slices.count > choice.programs,
        f"{choice.config.block_m}x{choice.config.columns}x{choice.config.block_k}": True,
    }  # fmt: skip
    return [name for name, whether in found.items() if whether]


def main() -> None:
    patch_interpreter()
    rng = np.random.default_rng(int(sys.argv[1]))
    bad: list[str] = []
    counts: dict[str, int] = {}
    for number in range(int(sys.argv[2])):
        config = WIDE_CONFIGS[number % len(WIDE_CONFIGS)]
        desc, m, n, k, layouts = drawn(rng, config, number)
        a_bits, b_bits = draw(rng, desc.a_dtype, m, k), draw(rng, desc.a_dtype, k, n)
        infinity = 0x7C00 if desc.a_dtype is DType.FLOAT16 else 0x7F80
        a_bits[0], a_bits[1, k // 2], a_bits[2, k - 1] = 0x8000, infinity + 1, infinity
        a_bits[3] = rng.integers(0, 64, k)
        b_bits[k // 3, n - 1] = infinity | 0x8000
        expected = replay(desc, a_bits, b_bits)
        a, b = place(a_bits, desc.a_dtype, layouts[0]), place(b_bits, desc.a_dtype, layouts[1])
        frame, out = framed(m, n, desc.output_dtype, layouts[2], padded=bool(number % 2))
        meta = KernelMeta(
            m=m, n=n, k=k, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=2, shared_bytes=1 << 20
        )  # fmt: skip
        picked = replace(config, dependent=bool(rng.integers(2)))
        choice = choose_kernel(desc, meta, CARD, structure=Structure.CHAIN_WIDE, config=picked)
        assert isinstance(choice, KernelChoice), (choice, desc, meta)
        launch_here(choice, a, b, out)
        got = out.contiguous().view(torch.int16 if desc.output_dtype.itemsize == 2 else torch.int32).numpy()
        wrong = first_mismatch(expected, got.view(expected.dtype))
        if wrong or not gap_stays(frame, out.shape if layouts[2] == "r" else out.T.shape):
            bad.append(f"{m}x{n}x{k} {layouts} {wrong} {picked} {desc}")
        for name in told(choice, m, n):
            counts[name] = counts.get(name, 0) + 1
    sys.stdout.write(json.dumps({"counts": counts, "bad": bad}) + "\n")


if __name__ == "__main__":
    main()
