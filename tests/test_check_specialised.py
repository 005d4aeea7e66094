"""The card's check of the specialised chain, as far as it goes without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

from gemmdesc.dtypes import DType
from gemmdesc.kernels.launch import matrix_meta
from gemmdesc.kernels.specialised import SPECIALISED_CONFIGS
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variants import enumerate_variants
from tests.script_modules import load_script

script = load_script("check_specialised")
BOUND = enumerate_variants(script.SHARED)


@pytest.mark.parametrize("config", SPECIALISED_CONFIGS, ids=script.named)
def test_the_cases_of_a_config_tell(config: Any) -> None:
    cases = list(script.cases_of(config))
    tiles = {config.tiles(case.m, case.n) for case, _ in cases}
    assert {2 if config.cluster > 1 else 1, 132} <= tiles
    assert max(tiles) > 500 or config.alone
    steps = {-(-case.k // config.block_k) for case, _ in cases}
    assert {1, config.num_stages, config.num_stages + 2} <= steps
    assert max(steps) > 300
    stored, layouts, types = set(), set(), set()
    for case, early in cases:
        kernel, stock = case.choose(replace(config, dependent=early), script.AROUND), case.choose(None, script.AROUND)
        assert kernel is not None
        assert (kernel.structure, kernel.config) == (Structure.CHAIN_SPECIALISED, replace(config, dependent=early))
        assert stock.structure is Structure.CHAIN_TMA
        assert kernel.packing is None
        assert 2e-9 * case.m * case.n * case.k < 100
        stored.add((kernel.store_by_descriptor, kernel.out_layout))
        layouts.add(case.layouts[:2])
        types.add((case.dtype, case.stored))
    assert len(stored) == 3
    assert len(layouts) == (2 if config.wants_columns else 4)
    assert types == {(DType.FLOAT16,) * 2, (DType.BFLOAT16,) * 2, (DType.FLOAT16, DType.FLOAT32)}
    assert {early for _, early in cases} == {False, True}
    assert set(script.needed(config)) <= BOUND


def test_tensors_lie_as_the_choice_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "DEVICE", "cpu")
    for layouts in ("rcr", "crc", "rrr", "ccr"):
        for stored in (DType.FLOAT16, DType.FLOAT32):
            case = script.Case(m=37, n=51, k=70, layouts=layouts, stored=stored)
            a, b = script.operands(case, "wide", 3)
            whole, out = script.framed(case)
            wanted = case.meta(script.AROUND)
            for tensor, meta in ((a, wanted.a), (b, wanted.b), (out, wanted.out)):
                found = matrix_meta(tensor)
                assert (found.dtype, found.row_stride, found.column_stride) == (
                    meta.dtype, meta.row_stride, meta.column_stride,
                )  # fmt: skip
                assert found.alignment >= 16
            assert (a.shape, b.shape, out.shape) == ((37, 70), (70, 51), (37, 51))
            out.zero_()
            kind = torch.int32 if stored is DType.FLOAT32 else torch.int16
            assert int((whole.view(kind) == script.FILL).sum()) == whole.numel() - out.numel()


def test_draws_hold_what_they_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "DEVICE", "cpu")
    case = script.Case(m=200, n=200, k=400)
    a, b = script.operands(case, "special", 1)
    for values in (a, b):
        assert values.isnan().any()
        assert values.isinf().any()
        assert ((values == 0) & torch.signbit(values)).any()
    wide, _ = script.operands(case, "wide", 1)
    finite = wide.abs().float().log2()
    assert finite.max() - finite[finite.isfinite()].min() > 12


# What children do is at the top of the module, as they are made by forking.


def good(tell: Callable[[Any], None]) -> None:
    tell({"state": "equal"})


def silent(tell: Callable[[Any], None]) -> None:
    tell({"state": "equal"})
    time.sleep(60)


def failing(tell: Callable[[Any], None]) -> None:
    raise ValueError("no")


def ended(function: Callable[..., None]) -> tuple[str, list[Any]]:
    child = script.Child.start(function)
    how = None
    while how is None:
        time.sleep(0.02)
        how = child.listen(0.5)
    return how, child.told


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_hang_costs_one_process_only() -> None:
    assert ended(good) == ("ended", [{"state": "equal"}])
    assert ended(silent) == ("hung", [{"state": "equal"}])
    assert ended(failing) == ("exit 2", [{"error": "ValueError: no"}])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_config_that_hangs_or_differs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = list(SPECIALISED_CONFIGS[:4])
    found: dict[str, Any] = {}

    def check(config: Any, tell: Callable[[Any], None]) -> None:
        tell({"state": "equal"})
        if config == configs[1]:
            time.sleep(60)
        if config == configs[2]:
            tell({"state": "different"})

    monkeypatch.setattr(script, "check_bytes", check)
    script.all_bytes(configs, 0.5, time.time() + 60, lambda: None, found)
    assert [found[script.named(c)]["ended"] for c in configs] == ["ended", "hung", "ended", "ended"]
    assert [bool(found[script.named(c)]["bad"]) for c in configs] == [False, False, True, False]

    rows: list[Any] = []
    us = {script.MM: 2.0, "stock": 2.0, "own": 1.0}

    def times(kept: list[Any], until: float, tell: Callable[[Any], None]) -> None:
        for config in kept:
            tell({"begins": script.named(config)})
            if config == configs[1]:
                time.sleep(60)
        tell({"shape": [len(kept), 1, 1], "us": us, "equal": {"own": True}})

    monkeypatch.setattr(script, "check_times", times)
    script.all_times(configs, 0.5, time.time() + 60, lambda: None, rows)
    assert [row["shape"] for row in rows] == [None, [3, 1, 1]]
    assert rows[0]["at"] == script.named(configs[1])
