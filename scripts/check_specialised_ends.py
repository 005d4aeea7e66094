"""Do fused calls by the specialised chain have the stock kernel's bytes, and eager's?  On a GPU.

    PYTHONPATH=. timeout 120 python scripts/check_specialised_ends.py OUT.json [--configs 12,46] [--seconds 100]
                                                          [--epilogues silu,residual] [--types float16,bfloat16]

Each config (by its number among those without dependent launches, all by default) ends with each epilogue of
``check_fused`` on products of fewer tiles than multiprocessors, of many, ragged, of one step and of many, once by a
dependent launch, each three times into memory that holds something else; around the output nothing may change.  A row
is told before it runs: where a kernel hangs, it is the last one, and whoever started the script ends it.  Kernels are
compiled ahead by several processes.  OUT.json is rewritten after every row.  Exits 1 where bytes differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from check_fused import CARD, Report, compared, describe, epilogues, launched, meta_of, operand, steps_of

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dropin.memory import signed_bits
from gemmdesc.errors import Declined
from gemmdesc.kernels.beside import Beside
from gemmdesc.kernels.fused import SPECIALISED_ENDS, FusedChoice, choose_fused
from gemmdesc.kernels.launch_fused import program_arguments
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.variants_fused import fused_variant
from gemmdesc.tuning.ahead import Ahead

#: In this order; what configs are known by is their number.
CONFIGS = tuple(c for c in SPECIALISED_ENDS if not c.dependent)
EPILOGUES = "silu,bias_gelu,residual,gated_sigmoid,row_scale,bias_silu,column_scale,bias_gelu_tanh_residual"
#: How often a case runs, rows and columns around an output, and what is there before.
AGAIN, AROUND, FILL = 3, 16, 0x1234
DEVICE = "cuda"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One product with an epilogue, on tensors."""

    desc: GEMMDesc
    fused: GEMMDesc
    a: torch.Tensor
    b: torch.Tensor
    operands: dict[str, torch.Tensor]
    named: dict[str, Any]
    whole: torch.Tensor
    out: torch.Tensor

    def choose(self, config: SpecialisedConfig) -> FusedChoice | Declined:
        at = meta_of(self.a, self.b, self.out)
        return choose_fused(
            self.fused, at, CARD, choose_whole, structure=Structure.CHAIN_SPECIALISED, config=config
        )  # fmt: skip


def shapes(config: SpecialisedConfig) -> Iterator[tuple[int, int, int, bool]]:
    """m, n, k, and whether by a dependent launch."""
    rows, columns, stages = config.block_m, config.columns, config.num_stages
    yield rows, columns, 64, False
    yield 3 * rows - 5, 2 * columns - 8, 64 * stages + 72, False
    # As many tiles as a card has multiprocessors, in pairs where programs come in clusters.
    high, wide = (11, 12) if config.cluster_n == 2 else (12, 11)
    many = (high * rows - 8, wide * columns - 8) if config.alone else (23 * rows - 8, 19 * columns - 8)
    yield (*many, 56, False)
    yield (*many, 64 * stages + 8, False)
    yield (*many, 200, True)


def made_case(name: str, dtype: torch.dtype, sizes: tuple[int, int, int], seed: int) -> Case:
    """Operands of mixed magnitudes; B lies along k."""
    m, n, k = sizes
    made = torch.Generator(DEVICE).manual_seed(seed)
    a, w = (torch.randn(s, k, generator=made, device=DEVICE) for s in (m, n))
    a = a * torch.exp2(torch.randint(-5, 6, a.shape, generator=made, device=DEVICE).float()) / k**0.25
    pitch = -(-k // 8) * 8
    stored = [torch.empty(x.shape[0], pitch, dtype=dtype, device=DEVICE)[:, :k].copy_(x) for x in (a, w)]
    epilogue = epilogues()[name]
    operands = {o: operand(o, m, n, dtype, made, DEVICE) for o in epilogue.names}
    found = steps_of(epilogue, operands, dtype, (m, n))
    if isinstance(found, Declined):
        raise SystemExit(found.reason)
    desc = describe(dtype, k)
    size = m + 2 * AROUND, -(-n // 8) * 8 + 2 * AROUND
    whole = torch.full(size, FILL, dtype=torch.int16, device=DEVICE).view(dtype)
    return Case(
        desc=desc, fused=found[0].after(desc), a=stored[0], b=stored[1].T, operands=operands, named=dict(found[1]),
        whole=whole, out=whole[AROUND : AROUND + m, AROUND : AROUND + n],
    )  # fmt: skip


def check(name: str, dtype: torch.dtype, config: SpecialisedConfig, seed: int) -> Row:
    """Every shape; the first difference ends it."""
    total: Row = {"compared": 0, "equal": 0, "different": 0, "declined": 0}
    for m, n, k, early in shapes(config):
        case = made_case(name, dtype, (m, n, k), seed)
        choice = case.choose(replace(config, dependent=early))
        if isinstance(choice, Declined):
            total["declined"] += m * n
            total["reason"] = choice.reason
            continue
        plain, stock = launched(case.desc, case.a, case.b, {}), launched(case.fused, case.a, case.b, case.named)
        assert not isinstance(plain, Declined)
        assert not isinstance(stock, Declined)
        eager = epilogues()[name](plain[0], **case.operands)
        for _ in range(AGAIN):
            signed_bits(case.whole).fill_(FILL)
            launch_choice(choice, case.a, case.b, case.out, Beside(named=case.named))
            torch.cuda.synchronize()
            got = case.out.clone()
            case.out.view(torch.int16).fill_(FILL)
            around = int((signed_bits(case.whole) != FILL).sum())
            for against, want in (("stock", stock[0]), ("eager", eager)):
                row = compared(want, got, plain[0])
                for count in ("compared", "equal", "different"):
                    total[count] += row.get(count, 0)
                if row.get("different") or around:
                    return total | {"shape": [m, n, k], "against": against, "around": around, **row, "different": 1}
    return total


def needed(name: str, dtype: torch.dtype, config: SpecialisedConfig) -> Iterator[Any]:
    """What a row compiles."""
    for m, n, k, early in shapes(config):
        case = made_case(name, dtype, (m, n, k), 0)
        choice = case.choose(replace(config, dependent=early))
        if isinstance(choice, FusedChoice):
            turned = Beside(named=case.named)
            swapped = choice.product.swapped
            out, beside = (case.out.T, turned.transposed) if swapped else (case.out, turned)
            yield fused_variant(choice, program_arguments(choice, out, beside)[0])


def in_a_word(c: SpecialisedConfig) -> str:
    cluster = f" cluster {c.cluster_m}x{c.cluster_n}" if c.cluster > 1 else ""
    whole = " whole" if c.whole else ""
    return f"{c.block_m}x{c.columns} {c.sharing} s{c.num_stages} {c.store_n}/{c.store_buffers}{whole}{cluster}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--configs", default="")
    parser.add_argument("--epilogues", default=EPILOGUES)
    parser.add_argument("--types", default="float16,bfloat16")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--list", action="store_true", help="tell the configs' numbers, check nothing")
    options = parser.parse_args()
    if options.list:
        for i, config in enumerate(CONFIGS):
            print(i, in_a_word(config))
        return 0
    until = time.monotonic() + options.seconds
    numbers = [int(x) for x in options.configs.split(",")] if options.configs else range(len(CONFIGS))
    rows = [
        (name, getattr(torch, kind), CONFIGS[i])
        for i in numbers for kind in options.types.split(",") for name in options.epilogues.split(",")
    ]  # fmt: skip
    report, wrong = Report(options.path, DEVICE), 0
    report.about["command"] = f"PYTHONPATH=. python scripts/check_specialised_ends.py {' '.join(sys.argv[1:])}"
    with Ahead(90) as ahead:
        for row in rows:
            ahead.begin(needed(*row))
        for name, dtype, config in rows:
            if time.monotonic() > until:
                break
            ahead(needed(name, dtype, config))
            words = f"{in_a_word(config)} {name} {str(dtype).removeprefix('torch.')}"
            print(words, end=" ", flush=True)
            try:
                found = check(name, dtype, config, 1)
            except Exception as error:  # noqa: BLE001  one case must not end the others
                found = {"error": f"{type(error).__name__}: {error}"[:500], "different": 1}
            wrong += bool(found.get("different"))
            print("DIFFERENT" if found.get("different") else f"{found['equal']} equal", flush=True)
            report.add("by the specialised chain", {"case": words, **found})
        print(json.dumps(ahead.failures[:3]))
    print(f"{wrong} rows differ")
    return int(wrong > 0 or not report.parts)


if __name__ == "__main__":
    sys.exit(main())
