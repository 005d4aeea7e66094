"""The kernels on a GPU, against the replay; ``scripts/check_kernels.py`` is the wide version of this."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gemmdesc.bits import first_mismatch
from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.variants import Variant, variants_of


def _script(name: str) -> Any:
    """A module of ``scripts``, which is no package."""
    path = Path(__file__).parents[1] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


check_kernels = _script("check_kernels")

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
