"""Tiles of two widths on a GPU: every config against the replay, several tiles a program; dependent launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gemmdesc.bits import first_mismatch
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.structure import Structure
from tests.script_modules import load_script

check_kernels = load_script("check_kernels")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: the descriptors here name Hopper's matrix steps",
    ),
]


def case(m: int, n: int, k: int, layouts: str = "rcr", dtype: DType = DType.FLOAT16, **desc: Any) -> Any:
    made = check_kernels.make_desc(k, dtype=dtype, **desc)
    return check_kernels.Case(m=m, n=n, k=k, desc=made, layouts=layouts, note="wide")


#: Every tile leaves some of the first two to a second turn of the programs, and none divides their sides.
CASES = [
    case(2064, 6696, 328),
    case(2064, 6696, 328, "crc", DType.BFLOAT16),
    case(2064, 3352, 2048, "rrr", span=512),
    case(1031, 2051, 523, "rrr", step=8, turn=32),
    case(1031, 2051, 1500, "ccr", span=336),
    case(300, 200, 72, out=DType.FLOAT32),
]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All of the kernels, in all cores."""
    from gemmdesc.kernels import launch
    from gemmdesc.plan import needed_variants
    from gemmdesc.tuning.ahead import Ahead

    wanted: dict[Any, None] = {}
    for one in CASES:
        _, _, a, b, out = check_kernels.place(one)
        meta = launch.kernel_meta(a, b, out)
        for choice in choices_of(one, meta):
            wanted |= dict.fromkeys(needed_variants(choice, meta))
    with Ahead(90) as ahead:
        ahead(wanted)
    assert ahead.failures == []


def choices_of(one: Any, meta: Any) -> list[KernelChoice]:
    """The wide ones, and first the chain of one width."""
    found: list[Any] = [choose_kernel(one.desc, meta, check_kernels.CARD, structure=Structure.CHAIN_TMA)]
    found += [
        choose_kernel(one.desc, meta, check_kernels.CARD, structure=Structure.CHAIN_WIDE, config=config)
        for config in configs_of(Structure.CHAIN_WIDE)
    ]
    return [choice for choice in found if isinstance(choice, KernelChoice)]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.name)
def test_every_config_has_the_replays_bytes(one: Any) -> None:
    from gemmdesc.arithmetic.replay import replay
    from gemmdesc.kernels import launch

    a_bits, b_bits, a, b, out = check_kernels.place(one)
    rng = np.random.default_rng(0)
    rows, cols = check_kernels.sampled(one.m, rng, 6, 8), check_kernels.sampled(one.n, rng, 10, 2)
    expected = replay(one.desc, a_bits, b_bits, rows=rows, cols=cols)
    first, *wide = choices_of(one, launch.kernel_meta(a, b, out))
    assert len(wide) >= 12
    launch.launch(first, a, b, out)
    whole = check_kernels.to_bits(out, one.desc.output_dtype)
    assert first_mismatch(expected, whole[np.ix_(rows, cols)]) is None
    for choice in wide:
        # Twice without a wait between, as dependent launches overlap.
        for _ in range(2):
            out.fill_(3.0)
            launch.launch(choice, a, b, out)
        assert first_mismatch(whole, check_kernels.to_bits(out, one.desc.output_dtype)) is None, choice


def test_dependent_launches_of_one_stream_wait_for_what_they_read() -> None:
    """A chain of products, each of the one before it, by every dependent config in turn."""
    from gemmdesc.kernels import launch

    one = case(768, 768, 768)
    _, _, a, b, out = check_kernels.place(one)
    meta = launch.kernel_meta(a, b, out)
    first, *wide = choices_of(one, meta)
    a, b = (torch.randn(768, 768, device=a.device).to(torch.float16) / 28 for _ in range(2))
    b = b.T.contiguous().T

    def chained(choices: list[KernelChoice]) -> torch.Tensor:
        value = a
        for choice in choices:
            after = torch.empty_like(out)
            launch.launch(choice, value, b, after)
            value = after
        return value.view(torch.int16)

    early = [c for c in wide if c.config.dependent] * 4
    assert early
    assert torch.equal(chained(early), chained([first] * len(early)))
