"""The kernels on a GPU, against the replay; ``scripts/check_kernels.py`` is the wide version of this."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gemmdesc.bits import first_mismatch
from gemmdesc.descriptor import (
    Accumulator,
    Balanced,
    Contiguous,
    Cut,
    GEMMDesc,
    ResidueLast,
    Short,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.variants import Variant, variants_of
from gemmdesc.regions import Region, whole
from tests.nest_samples import draw_nest
from tests.script_modules import load_script

check_kernels = load_script("check_kernels")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: the descriptors here name Hopper's matrix steps",
    ),
]


@pytest.mark.parametrize("case", check_kernels.byte_cases()[::7], ids=lambda c: c.name)
def test_bytes_equal_the_replays(case: Any) -> None:
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.kernels import launch

    a_bits, b_bits, a, b, out = check_kernels.place(case)
    choice = launch.run(case.desc, a, b, out, check_kernels.CARD)
    assert isinstance(choice, KernelChoice)
    rng = np.random.default_rng(0)
    rows, cols = check_kernels.sampled(case.m, rng, 4, 8), check_kernels.sampled(case.n, rng, 8, 2)
    expected = replay(case.desc, a_bits, b_bits, rows=rows, cols=cols)
    assert first_mismatch(expected, check_kernels.to_bits(out, case.desc.output_dtype)[np.ix_(rows, cols)]) is None


@pytest.mark.parametrize("seed", range(24))
def test_nests_of_scalar_chains_equal_the_replays(seed: int) -> None:
    """Random cuts over a chain of CUDA-core steps, under every config."""
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.kernels.launch import kernel_meta, launch
    from gemmdesc.kernels.nest import NEST_CONFIGS, choose_nest

    rng = np.random.default_rng(seed)
    m, n = [(3000, 1), (1, 2000), (700, 13), (1, 1), (33, 65), (5, 4000)][seed % 6]
    k = int(rng.choice([1, 31, 127, 1000, 4099]))
    desc = draw_nest(rng, (DType.FLOAT16, DType.BFLOAT16)[seed % 2], k)
    case = check_kernels.Case(m=m, n=n, k=k, desc=desc, layouts="".join(rng.choice(["r", "c"], 3)), note="nest")
    a_bits, b_bits, a, b, out = check_kernels.place(case)
    rows, cols = check_kernels.sampled(m, rng, 4, 8), check_kernels.sampled(n, rng, 8, 2)
    expected = replay(desc, a_bits, b_bits, rows=rows, cols=cols)
    for config in NEST_CONFIGS:
        out.zero_()
        choice = choose_nest(desc, kernel_meta(a, b, out), config)
        assert not isinstance(choice, Declined), choice
        launch(choice, a, b, out)
        got = check_kernels.to_bits(out, desc.output_dtype)[np.ix_(rows, cols)]
        assert first_mismatch(expected, got) is None, (config, desc)


@pytest.mark.parametrize("case", check_kernels.CONFIG_CASES, ids=lambda c: c.name)
def test_no_structure_or_config_moves_a_byte(case: Any) -> None:
    from gemmdesc.kernels import launch

    _, _, a, b, out = check_kernels.place(case)
    launch.run(case.desc, a, b, out, check_kernels.CARD)
    expected = check_kernels.to_bits(out, case.desc.output_dtype)
    for structure, config in check_kernels.schedules_for(case):
        out.zero_()
        launch.run(case.desc, a, b, out, check_kernels.CARD, config=config, structure=structure)
        assert first_mismatch(expected, check_kernels.to_bits(out, case.desc.output_dtype)) is None, config


def test_more_sizes_compile_nothing_but_enumerated_variants() -> None:
    from gemmdesc.kernels import launch
    from gemmdesc.kernels.compiling import compiled_variants

    before = sum(compiled_variants().values())
    expected: set[Variant] = set()
    for size in range(1, 40):
        m, n, k = size, 16, 129 + size
        a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
        out = torch.empty(m, n, dtype=torch.float16, device="cuda")
        for desc in (check_kernels.make_desc(k, span=64), check_kernels.make_desc(k, step=8, turn=32)):
            choice = launch.run(desc, a, b, out, check_kernels.CARD)
            assert isinstance(choice, KernelChoice)
            expected |= set(variants_of(choice))
    assert len(expected) < 20
    assert sum(compiled_variants().values()) - before <= len(expected)


@pytest.mark.parametrize("seed", range(12))
def test_balanced_slices_and_regions_equal_the_replays(seed: int) -> None:
    """Slices as even as can be, folded as trees, of the whole product and of rectangles of it."""
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.kernels.launch import kernel_meta
    from gemmdesc.kernels.launch_tiled import launch_choice
    from gemmdesc.kernels.tiled import choose_tiled

    rng = np.random.default_rng(seed)
    m, n, k = [(700, 300, 5000), (33, 1100, 9075), (2500, 17, 3001), (640, 512, 4096)][seed % 4]
    desc = balanced(DTYPES[seed % 2], DTYPES[seed % 2] if seed % 3 else DType.FLOAT32, k, (2, 12, 27, 7)[seed % 4])
    case = check_kernels.Case(m=m, n=n, k=k, desc=desc, layouts="".join(rng.choice(["r", "c"], 3)), note="balanced")
    a_bits, b_bits, a, b, out = check_kernels.place(case)
    plain = replace(desc, cuts=())
    i, j = int(rng.integers(1, m)), int(rng.integers(1, n))
    corners = (region(desc, 0, i, 0, j), region(plain, i, m, 0, j), region(plain, 0, m, j, n))
    for regions in (whole(desc, m, n), corners):
        out.zero_()
        choice = choose_tiled(regions, kernel_meta(a, b, out), check_kernels.CARD)
        assert not isinstance(choice, Declined), choice
        launch_choice(choice, a, b, out)
        for r in regions:
            rows = r.row_begin + check_kernels.sampled(r.row_end - r.row_begin, rng, 4, 8)
            cols = r.column_begin + check_kernels.sampled(r.column_end - r.column_begin, rng, 8, 2)
            expected = replay(r.descriptor, a_bits, b_bits, rows=rows, cols=cols)
            got = check_kernels.to_bits(out, desc.output_dtype)[np.ix_(rows, cols)]
            assert first_mismatch(expected, got) is None, (r, choice)


DTYPES = (DType.FLOAT16, DType.BFLOAT16)


def balanced(dtype: DType, output: DType, k: int, count: int) -> GEMMDesc:
    fold = tuple(Contiguous(span=2**i, short=Short.FIRST) for i in range(6, 0, -1))
    cut = Cut(
        layout=Balanced(count=count, unit=64), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32,
        start=Start.FIRST, fold=fold,
    )  # fmt: skip
    leaf = Accumulator(instruction_k=16, residue=ResidueLast(), step=check_kernels.HOPPER_STEP)
    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=output, summed_k=k, cuts=(cut,), accumulator=leaf
    )  # fmt: skip


def region(desc: GEMMDesc, row: int, row_end: int, column: int, column_end: int) -> Region:
    return Region(row_begin=row, row_end=row_end, column_begin=column, column_end=column_end, descriptor=desc)
