"""Batches and epilogues on a GPU: our kernels against the replay, and against cuBLASLt where a profile has rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gemmdesc.probe.sampling import Regime, Scope, scope_named
from tests.finish_samples import draw_finished
from tests.kind_profiles import KERNEL_KINDS, KMAJOR_KINDS
from tests.probe_samples import HOPPER

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: the descriptors here name Hopper's matrix steps",
    ),
]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_opens_or_follows_a_sum_equals_the_replay(seed: int) -> None:
    from tests.interpreted_finish import check

    rng = np.random.default_rng(seed)
    told: dict[str, Any] = {"counts": {}, "bad": [], "declined": {}}
    for number in range(40):
        m, n = [(37, 45), (12, 270), (300, 257), (512, 384), (2000, 9)][int(rng.integers(5))]
        k = int(rng.choice([40, 101, 512, 1000, 1337]))
        check(draw_finished(rng, number, k, HOPPER), m, n, k, number, rng, told, device="cuda")
    assert told["bad"] == []
    assert sum(told["counts"].values()) >= 30


def small(name: str) -> Scope:
    return replace(scope_named(name), regimes=(Regime.SMALL, Regime.UNROUNDED, Regime.ALIGNED))


@pytest.mark.parametrize("name", [*KERNEL_KINDS, "gelu", "gelu_bias", *KMAJOR_KINDS])
def test_kinds_equal_cublaslt_where_the_profile_has_rows(name: str) -> None:
    from gemmdesc.verification.gpu import GpuBenchFactory
    from gemmdesc.verification.kind_draws import KindItem
    from gemmdesc.verification.kind_kernels import verify_kernels

    bench = GpuBenchFactory()()
    outcomes: dict[str, int] = {}
    for index in range(40):
        record = verify_kernels(bench, KindItem(name=name, scope=small(name), seed=11, index=index, draws=4))
        assert record is not None
        outcomes[record.outcome] = outcomes.get(record.outcome, 0) + 1
        assert record.outcome != "different", record
        assert record.declined is None or record.declined.code != "kernel", record
    if not outcomes.get("equal"):
        pytest.skip(f"the profile has no rows for {name}: {outcomes}")


def test_c_may_be_out_and_a_batch_may_share_a_matrix() -> None:
    """On hand-made plans: the rule is that of the simulated library, whose rules the replay follows."""
    from tests.interpreted_kinds import compare_in_place

    told: dict[str, Any] = {"bad": [], "compared": 0}
    for index in range(40):
        compare_in_place(index, told, device="cuda")
    assert told["bad"] == []
    assert told["compared"] >= 20
