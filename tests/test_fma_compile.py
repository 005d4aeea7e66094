"""Tiled float32 chains compiled for sm_90: every output is the ascending fma chain, read from the PTX's dataflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.descriptor import Accumulator, GEMMDesc, ResidueLast, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.equivalence import Launch, walk
from gemmdesc.equivalence.spelling import Column
from gemmdesc.equivalence.structure import Element, implements
from gemmdesc.kernels.compiling import KERNELS, compile_variant
from gemmdesc.kernels.fma import FMA_CONFIGS
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.variants_fma import enumerate_fma_variants

F32 = DType.FLOAT32


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def chain(k: int, start: Start) -> GEMMDesc:
    step = ScalarStep(fused=True, start=start)
    accumulator = Accumulator(instruction_k=1, residue=ResidueLast(), step=step)
    return GEMMDesc(a_dtype=F32, b_dtype=F32, output_dtype=F32, summed_k=k, cuts=(), accumulator=accumulator)


@pytest.mark.parametrize("config", FMA_CONFIGS, ids=lambda c: f"{c.block_m}x{c.block_n}")
@pytest.mark.parametrize("rows", [(True, False), (False, True)], ids=["rc", "cr"])
def test_every_output_is_one_ascending_chain_of_fused_steps(config: object, rows: tuple[bool, bool]) -> None:
    layouts = tuple((Layout.ROWS if r else Layout.COLUMNS).value for r in rows)
    (variant,) = (
        v
        for v in enumerate_fma_variants()
        if (c := dict(v.constants)) and (c["A_LAYOUT"], c["B_LAYOUT"]) == layouts
        and (c["OUT_LAYOUT"], c["WIDE_OFFSETS"]) == (1, False)
        and (c["BLOCK_M"], c["BLOCK_N"]) == (config.block_m, config.block_n)  # type: ignore[attr-defined]
    )  # fmt: skip
    constants = dict(variant.constants)
    m, n, k = int(constants["BLOCK_M"]), int(constants["BLOCK_N"]), 2 * int(constants["BLOCK_K"])
    names = [p.name for p in KERNELS[variant.kernel].params if p.name not in constants]
    given = {
        "M": m, "N": n, "summed_k": k, "span": k, "start": 0, "stride_am": k if rows[0] else 1,
        "stride_ak": 1 if rows[0] else m, "stride_bk": n if rows[1] else 1, "stride_bn": 1 if rows[1] else k,
        "stride_os": m * n, "stride_om": n, "stride_on": 1,
    }  # fmt: skip
    ptx = compile_variant(variant, capability=90).asm["ptx"]
    assert not re.search(r"\b(mul|add)\S*\.f32|\.ftz|mma|\.local\b", ptx)
    walked = walk(ptx, Launch(arguments={i: given[name] for i, name in enumerate(names) if name in given}))
    for row, column in ((0, 0), (5, 7), (m - 1, n - 1), (m - 1, 0)):
        a = Column(
            parameter=names.index("a_ptr"), offset=4 * row * given["stride_am"], stride=4 * given["stride_ak"],
            dtype=F32,
        )  # fmt: skip
        b = Column(
            parameter=names.index("b_ptr"), offset=4 * column * given["stride_bn"], stride=4 * given["stride_bk"],
            dtype=F32,
        )  # fmt: skip
        where = Element(
            parameter=names.index("out_ptr"), offset=4 * (row * n + column), a=a, b=b, k=k, output_dtype=F32
        )
        assert implements(walked, chain(k, Start.ZERO), where) is True
        assert implements(walked, chain(k, Start.FIRST), where) is False
