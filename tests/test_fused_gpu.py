"""Fused epilogues on a GPU: every byte against eager torch's own operators on the same product.

Wider: ``scripts/check_fused.py``.  Run ``-m gpu``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import gemmdesc
from gemmdesc import Epilogue
from gemmdesc.dropin.memory import signed_bits
from gemmdesc.errors import DeclinedError

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an sm_90 GPU: the descriptors here name Hopper's matrix steps",
    ),
]
E = Epilogue()


@pytest.fixture(scope="module")
def checks() -> Any:
    """The parts of the script."""
    folder = str(Path(__file__).resolve().parents[1] / "scripts")
    sys.path.insert(0, folder)
    try:
        import check_fused
    finally:
        sys.path.remove(folder)
    return check_fused


def sound(rows: list[tuple[str, dict[str, Any]]]) -> None:
    wrong = [(name, row) for name, row in rows if row.get("different") or row.get("error")]
    assert wrong == []
    assert sum(row.get("equal", 0) for _, row in rows) > 0


def test_every_pattern_has_eagers_bytes(checks: Any) -> None:
    made = torch.Generator("cuda").manual_seed(0)
    named = checks.patterns(checks.epilogues(), "cuda", made)
    rows = [(name, row()) for name, row in named if "after" in name or "k=64" in name]
    sound(rows)
    assert not [row for _, row in rows if row.get("declined")], "torch and its toolkit were read, or run elsewhere"


@pytest.mark.parametrize("function", ["gelu", "gelu_tanh", "silu", "sigmoid", "tanh"])
def test_the_shipped_spelling_is_eagers(checks: Any, function: str) -> None:
    rows = [(name, row()) for name, row in checks.candidates("cuda") if name.startswith(f"{function} ")]
    sound([(name, row) for name, row in rows if name.endswith("shipped")])
    # Other spellings differ somewhere, so that equality is not by chance.
    assert any(row["different"] for _, row in rows)


def test_random_products_have_eagers_bytes(checks: Any) -> None:
    rows = []
    for index, (name, row) in enumerate(checks.randoms(checks.epilogues(), "cuda", 3)):
        if index == 150:
            break
        rows.append((name, row()))
    sound(rows)
    kernels = {row.get("kernel") for _, row in rows}
    assert {"chain_tma whole", "chain_pointer whole", "chain_tma after"} <= kernels | {"chain_tma after"}


def draw(*shape: int, dtype: Any = torch.float16, seed: int = 0) -> Any:
    made = torch.Generator("cuda").manual_seed(seed)
    scale = torch.exp2(torch.randint(-4, 5, shape, device="cuda", generator=made).float())
    return (torch.randn(shape, device="cuda", generator=made) * scale / 8).to(dtype)


def same(one: Any, other: Any) -> bool:
    kinds = (one.shape, one.dtype) == (other.shape, other.dtype)
    return kinds and bool((signed_bits(one) == signed_bits(other)).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_calls_have_eagers_bytes(dtype: Any) -> None:
    x, w1 = draw(2, 100, 1024, dtype=dtype), draw(1024, 2048, dtype=dtype, seed=1)
    w3 = draw(1024, 2048, dtype=dtype, seed=2)
    bias, residual = draw(2048, dtype=dtype, seed=3), draw(2, 100, 2048, dtype=dtype, seed=4)
    functional = torch.nn.functional
    product = x @ w1
    assert same(gemmdesc.gated(x, w1, w3), functional.silu(product) * (x @ w3))
    assert same(gemmdesc.gated(x, w1, w3, "gelu"), functional.gelu(product) * (x @ w3))
    assert same(gemmdesc.gated(x, w1, w3, "sigmoid"), torch.sigmoid(product) * (x @ w3))
    ours = gemmdesc.matmul(x, w1, epilogue=E.add("b").gelu("tanh").add("r"), operands={"b": bias, "r": residual})
    assert same(ours, functional.gelu(product + bias, approximate="tanh") + residual)
    assert same(gemmdesc.matmul(x, w1, epilogue=E.softcap(30.0)), 30.0 * torch.tanh(product / 30.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("m", [16, 64, 256, 4096])
def test_calls_made_before_have_eagers_bytes(m: int, dtype: Any) -> None:
    """Small and large tiles, transposed and not, each call three times on tensors of its own."""
    functional = torch.nn.functional
    calls = {
        "silu": (E.silu(), lambda y, r, c: functional.silu(y)),
        "residual": (E.add("r"), lambda y, r, c: y + r),
        "gate": (E.sigmoid().multiply("r"), lambda y, r, c: torch.sigmoid(y) * r),
        "weighted": (E.multiply("c"), lambda y, r, c: y * c),
        "gelu": (E.gelu(), lambda y, r, c: functional.gelu(y)),
    }
    for n, k in ((2048, 1024), (4096, 64), (1000, 512)):
        for name, (epilogue, eager) in calls.items():
            for seed in range(3):
                x, w = draw(m, k, dtype=dtype, seed=seed), draw(n, k, dtype=dtype, seed=seed + 10)
                r, c = draw(m, n, dtype=dtype, seed=seed + 20), draw(m, 1, dtype=dtype, seed=seed + 30)
                operands = {o: t for o, t in (("r", r), ("c", c)) if o in epilogue.names}
                got = gemmdesc.linear(x, w, epilogue=epilogue, operands=operands)
                assert same(got, eager(functional.linear(x, w), r, c)), (name, m, n, k, seed)


@pytest.mark.parametrize("name", ["silu", "gated_sigmoid", "bias_gelu", "residual"])
def test_every_tile_has_the_same_bytes(name: str) -> None:
    """Tiles that cross the product's ends, programs with several tiles, operands fetched beyond the last tile."""
    folder = str(Path(__file__).resolve().parents[1] / "scripts")
    sys.path.insert(0, folder)
    try:
        import sweep_fused
    finally:
        sys.path.remove(folder)
    for m, n, k in ((4104, 2064, 192), (200, 4112, 72)):
        found = [row for row in sweep_fused.rows(m, n, k, name, True) if "equal" in row]
        assert len(found) >= 20
        assert [row for row in found if not row["equal"]] == []


def test_a_graph_captures_a_warm_call() -> None:
    x, w, bias = draw(256, 1024), draw(1024, 512, seed=1), draw(512, seed=2)
    call = lambda: gemmdesc.matmul(x, w, epilogue=E.add("bias").gelu(), operands={"bias": bias})  # noqa: E731
    want = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call()
    got.zero_()
    graph.replay()
    assert same(got, want)


def test_bad_operands_and_declines_write_nothing() -> None:
    x, w = draw(32, 64), draw(64, 48, seed=1)
    with pytest.raises(gemmdesc.errors.InvalidInputError, match=r"bias must be on the operands' device .*\(got cpu\)"):
        gemmdesc.matmul(x, w, epilogue=E.add("bias"), operands={"bias": torch.zeros(48, dtype=torch.float16)})
    weight = w.clone().requires_grad_()
    with pytest.raises(DeclinedError, match="gradients"):
        gemmdesc.matmul(x, weight, epilogue=E.relu())
    taken = gemmdesc.matmul(x, weight, epilogue=E.relu(), on_decline="library")
    assert taken.requires_grad
