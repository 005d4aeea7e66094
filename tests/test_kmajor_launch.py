"""Launching K-major choices: what is refused before anything is launched, and which variants a choice needs."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.launch import matrix_meta
from gemmdesc.kernels.launch_kmajor import Scales
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tiled import Choice, choose_whole
from gemmdesc.kernels.variants import enumerate_variants
from gemmdesc.plan import needed_variants
from gemmdesc.plan.cards import card_arithmetic
from tests.kmajor_samples import contiguous, float8, tf32


def product() -> tuple[Choice, KernelMeta, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    a, b = torch.zeros((32, 64)).to(torch.float8_e4m3fn), torch.zeros((48, 64)).to(torch.float8_e4m3fn).T
    out = torch.zeros((32, 48), dtype=torch.bfloat16)
    meta = KernelMeta(
        m=32, n=48, k=64, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=132, shared_bytes=232448
    )
    choice = choose_whole(float8(64, contiguous(128)), meta, card_arithmetic("sm_90"))
    assert not isinstance(choice, Declined)
    return choice, meta, (a, b, out)


def test_an_epilogue_without_its_scale_is_refused() -> None:
    choice, _, tensors = product()
    for scales in (None, Scales(), Scales(output=torch.ones(1))):
        with pytest.raises(InvalidInputError, match=r"scales\.scale must be given"):
            launch_choice(choice, *tensors, scales=scales)


def test_scales_are_single_float32_values() -> None:
    for wrong in (torch.ones(2), torch.ones(1, dtype=torch.float64)):
        with pytest.raises(InvalidInputError, match="one float32"):
            Scales(scale=wrong)


def test_planning_knows_what_a_choice_needs() -> None:
    choice, meta, _ = product()
    needed = needed_variants(choice, meta)
    assert {v.kernel for v in needed} == {"kmajor_chain", "scaled_merge"}
    assert needed <= enumerate_variants(232448)
    desc = tf32(64)
    single = KernelMeta(
        m=32, n=48, k=64, a=matrix_meta(torch.zeros((32, 64))), b=matrix_meta(torch.zeros((64, 48))),
        out=matrix_meta(torch.zeros((32, 48))), sm_count=132, shared_bytes=232448,
    )  # fmt: skip
    other = choose_whole(desc, single, card_arithmetic("sm_90"))
    assert not isinstance(other, Declined)
    assert {v.kernel for v in needed_variants(other, single)} == {"kmajor_chain", "kmajor_pack"}
