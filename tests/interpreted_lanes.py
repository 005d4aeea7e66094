"""Run by test_lanes_interpreted.py in Triton's interpreter: nests of lanes, all of their bytes, against the replay.

    interpreted_lanes.py SEED ROUNDS
    interpreted_lanes.py PROFILE EVERY PART   each EVERY-th scalar row of a profile, from PART on
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import first_mismatch, from_float32
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.choose_lanes import choose_lanes, outputs_of
from gemmdesc.kernels.launch import matrix_meta
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.meta import KernelMeta
from tests.interpreted_kernels import draw, framed, gap_stays, patch_interpreter, place
from tests.lane_samples import LaneCase, draw_cases


def operands(case: LaneCase, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Values of any size, and a row each of -0.0, NaN, infinities and subnormals where there are so many."""
    a = draw(rng, case.desc.a_dtype, case.m, case.k)
    b = draw(rng, case.desc.a_dtype, case.k, case.n)
    one = from_float32(np.array([[np.inf]], dtype=np.float32), case.desc.a_dtype)[0, 0]
    sign = a.dtype.type(1 << (8 * a.dtype.itemsize - 1))
    rows = a if case.m >= case.n else b.T
    if len(rows) > 30:
        rows[1] = sign
        rows[3, rng.integers(case.k)] = one + a.dtype.type(1)
        rows[5, rng.integers(case.k)] = one
        rows[len(rows) // 2] = rng.integers(0, 64, case.k)
        rows[-1, rng.integers(case.k)] = one | sign
    return a, b


def checked(case: LaneCase, rng: np.random.Generator, *, padded: bool, every: bool) -> list[str]:
    """What is wrong with the bytes of ``case``, under every number of outputs of a program if ``every``."""
    a_bits, b_bits = operands(case, rng)
    expected = replay(case.desc, a_bits, b_bits)
    dtype = case.desc.a_dtype
    a, b = place(a_bits, dtype, case.layouts[0]), place(b_bits, dtype, case.layouts[1])
    frame, out = framed(case.m, case.n, case.desc.output_dtype, case.layouts[2], padded=padded)
    meta = KernelMeta(
        m=case.m, n=case.n, k=case.k, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=4,
        shared_bytes=232448,
    )  # fmt: skip
    first = choose_lanes(case.desc, meta)
    if isinstance(first, Declined):
        return [f"{case.name}: {first.reason} {case}"]
    bad = []
    known = outputs_of(first.form.read, first.form.digits)
    for outputs in known if every else [first.form.outputs]:
        choice = choose_lanes(case.desc, meta, outputs)
        assert not isinstance(choice, Declined)
        out.fill_(1.5)
        launch_choice(choice, a, b, out)
        got = out.contiguous().view(torch.int16 if case.desc.output_dtype.itemsize == 2 else torch.int32).numpy()
        wrong = first_mismatch(expected, got.view(expected.dtype))
        if wrong or not gap_stays(frame, out.shape if case.layouts[2] == "r" else out.T.shape):
            bad.append(f"{case.name} {choice.form} {wrong} {case}")
    return bad


def main() -> None:
    patch_interpreter()
    bad: list[str] = []
    counts: dict[str, int] = {}
    if Path(sys.argv[1]).suffix == ".parquet":
        from tests.lane_rows import row_cases

        cases = row_cases(Path(sys.argv[1]))[int(sys.argv[3]) :: int(sys.argv[2])]
        rng = np.random.default_rng(7)
        for case in cases:
            counts[case.name] = counts.get(case.name, 0) + 1
            bad += checked(case, rng, padded=False, every=False)
    else:
        for seed in range(int(sys.argv[2])):
            rng = np.random.default_rng([int(sys.argv[1]), seed])
            dtype = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)[seed % 3]
            for case in draw_cases(rng, dtype):
                counts[case.name] = counts.get(case.name, 0) + 1
                bad += checked(case, rng, padded=bool(rng.integers(2)), every=True)
    sys.stdout.write(json.dumps({"counts": counts, "bad": bad}) + "\n")


if __name__ == "__main__":
    main()
