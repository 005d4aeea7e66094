"""Run by test_merged.py in Triton's interpreter: slices merged by their last program, whichever program that is.

    interpreted_merged.py SEED COUNT

The interpreter runs one program after the other; here in an order that is drawn anew for each launch, so that the last
program of a tile is one of any slice.  All launches share their counters, which must be zero after each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import first_mismatch
from gemmdesc.descriptor import Accumulator, Contiguous, Cut, GEMMDesc, ResidueFirst, ResidueLast, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels import launch
from gemmdesc.kernels.choose import MOST_COUNTED, choose_kernel, configs_of
from gemmdesc.kernels.launch import matrix_meta
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.structure import Structure
from tests.interpreted_kernels import CARD, STEP, draw, patch_interpreter, place


class Shuffled:
    """Program ids of each launch in a drawn order; ``last``: how many tiles were folded by a slice that is not last."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.order: Any = None
        plain = interpreter.InterpreterBuilder.set_grid_idx

        def permuted(builder: Any, x: int, y: int, z: int) -> None:
            if x == 0:
                self.order = rng.permutation(builder.grid_dim[0])
            plain(builder, int(self.order[x]), y, z)

        interpreter.InterpreterBuilder.set_grid_idx = permuted

    def early(self, slices: int, tiles: int) -> int:
        """Of the latest launch, tiles whose last program had another slice than the last one."""
        latest = {int(i) % tiles: int(i) // tiles for i in self.order}
        return sum(part != slices - 1 for part in latest.values())


def drawn(rng: np.random.Generator, number: int) -> tuple[GEMMDesc, int, int, int]:
    dtype = (DType.FLOAT16, DType.BFLOAT16)[number % 2]
    m, n, k = [(72, 8, 200), (8, 40, 336), (33, 65, 257), (136, 144, 160), (24, 96, 512)][number % 5]
    plain = number % 10 < 4
    kinds = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
    span = 64 if plain else int(rng.choice([64, 48, 37, 400]))
    cut = Cut(
        layout=Contiguous(span=span), partial_dtype=kinds[int(rng.integers(3))],
        merge_dtype=kinds[int(rng.integers(3))], start=(Start.FIRST, Start.ZERO)[int(rng.integers(2))],
    )  # fmt: skip
    turn = None if plain else (None, 32)[int(rng.integers(2))]
    residue = ResidueFirst(k_loop_step=turn) if turn else ResidueLast()
    leaf = Accumulator(instruction_k=16 if plain else (16, 8)[int(rng.integers(2))], residue=residue, step=STEP)
    desc = GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=(dtype, DType.FLOAT32)[int(rng.integers(2))],
        summed_k=k - int(rng.integers(3)), cuts=(cut,), accumulator=leaf,
    )  # fmt: skip
    return desc, m, n, k


def main() -> None:
    patch_interpreter()
    rng, bad, counts = np.random.default_rng(int(sys.argv[1])), [], dict.fromkeys(("launches", "early", "packed"), 0)
    shuffled = Shuffled(rng)
    counters = torch.zeros((MOST_COUNTED,), dtype=torch.int32)
    launch.zero_counters = lambda count, device: counters[:count]
    for number in range(int(sys.argv[2])):
        desc, m, n, k = drawn(rng, number)
        a_bits, b_bits = draw(rng, desc.a_dtype, m, k), draw(rng, desc.a_dtype, k, n)
        infinity = 0x7C00 if desc.a_dtype is DType.FLOAT16 else 0x7F80
        a_bits[0], a_bits[1, k // 2], a_bits[2, k - 1] = 0x8000, infinity + 1, infinity
        expected, layouts = replay(desc, a_bits, b_bits), "".join(rng.choice(["r", "c"], 3))
        a, b = place(a_bits, desc.a_dtype, layouts[0]), place(b_bits, desc.a_dtype, layouts[1])
        for structure in (s for s in Structure if s.merged):
            for config in rng.permutation(np.array(configs_of(structure), dtype=object))[:2]:
                out = place(np.full_like(expected, 0x1234), desc.output_dtype, layouts[2])
                meta = KernelMeta(
                    m=m, n=n, k=k, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3,
                    shared_bytes=232448,
                )  # fmt: skip
                choice = choose_kernel(desc, meta, CARD, structure=structure, config=config)
                if isinstance(choice, Declined):
                    continue
                launch.launch_here(choice, a, b, out)
                got = out.contiguous().view(torch.int16 if desc.output_dtype.itemsize == 2 else torch.int32).numpy()
                wrong = first_mismatch(expected, got.view(expected.dtype))
                if wrong or counters.any():
                    bad.append(f"{structure} {m}x{n}x{k} {layouts} {wrong} {int(counters.abs().sum())} {config} {desc}")
                counts["launches"] += 1
                counts["packed"] += choice.packing is not None
                counts[structure.value] = counts.get(structure.value, 0) + 1
                counts["early"] += shuffled.early(choice.slices.count, choice.programs // choice.slices.count)
    sys.stdout.write(json.dumps({"counts": counts, "bad": bad}) + "\n")


if __name__ == "__main__":
    main()
