"""torch's products on a GPU against eager torch, byte for byte.  Run ``-m gpu``; public reports are in a file apart."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import gemmdesc
from gemmdesc.dropin.memory import signed_bits
from gemmdesc.ops import plan, run
from gemmdesc.plan import Plan
from gemmdesc.verification.route_draws import draw_call

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32


def same(one: Any, other: Any) -> bool:
    kinds = (one.shape, one.dtype) == (other.shape, other.dtype)
    return kinds and bool((signed_bits(one) == signed_bits(other)).all())


def draw(*shape: int, dtype: Any = HALF, seed: int = 0) -> Any:
    """Values of mixed magnitudes, in which the order of a sum shows."""
    made = torch.Generator("cuda").manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 7, shape, device="cuda", generator=made).float())
    return (torch.randn(shape, device="cuda", generator=made) * scale).to(dtype)


@pytest.mark.parametrize("block", range(4))
def test_random_calls_are_equal_or_declined(block: int) -> None:
    """No call differs; what is declined runs on the library and is counted."""
    over = gemmdesc.override(on_decline="library")
    for index in range(60 * block, 60 * (block + 1)):
        torch.manual_seed(index)
        want = draw_call(21, index, "cuda", largest=1500).make()
        torch.manual_seed(index)
        call = draw_call(21, index, "cuda", largest=1500)
        with over:
            assert same(call.make(), want), (index, call.name)
    assert over.report().ours > 0


def test_backward_products_are_eagers() -> None:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(512, 1024, bias=False), torch.nn.GELU(), torch.nn.Linear(1024, 512, bias=False))
    model = torch.nn.Sequential(*layers).to("cuda", HALF)
    x = draw(64, 512) / 64

    def trained() -> list[Any]:
        model.zero_grad()
        model(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    want = trained()
    with gemmdesc.override(on_decline="library") as over:
        got = trained()
    assert all(same(a, b) for a, b in zip(got, want, strict=True))
    assert over.report().by_operator["mm"][0] > 0
    assert sum(x.count for x in over.report().lines) == 5


def test_the_functions_are_torchs() -> None:
    a, b = draw(4, 128, 256), draw(256, 64, seed=1)
    assert same(gemmdesc.matmul(a, b), torch.matmul(a, b))
    assert same(gemmdesc.linear(a, b.T), torch.nn.functional.linear(a, b.T))
    leaf = b.detach().requires_grad_()
    gemmdesc.matmul(a, leaf).sum().backward()
    again = b.detach().requires_grad_()
    torch.matmul(a, again).sum().backward()
    assert same(leaf.grad, again.grad)


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize(("n", "k"), [(1000, 4096), (255, 4111)])
def test_pinned_rows_have_the_same_bytes_in_every_batch(dtype: Any, n: int, k: int) -> None:
    weight, x = draw(n, k, dtype=dtype, seed=1), draw(700, k, dtype=dtype)
    layer = lambda rows: torch.nn.functional.linear(rows, weight)  # noqa: E731
    with gemmdesc.reference() as reference:
        want = layer(x[:256])
    with gemmdesc.override(pin=reference) as over:
        found = [layer(x[:rows]) for rows in (1, 2, 7, 32, 256, 700)]
        moved = layer(x[1:9])
        apart = layer(torch.nn.functional.pad(x[:33], (0, 8))[:, :k])
    assert (over.report().ours, over.report().declined) == (8, 0)
    assert all(same(y, found[-1][: len(y)]) for y in found)
    assert same(moved, found[-1][1:9])
    assert same(apart, found[-1][:33])
    assert same(found[4], want)
    # Stock products of few rows are summed in other orders.
    assert not all(same(layer(x[:rows]), found[-1][:rows]) for rows in (1, 2, 7, 32))


def test_a_pinned_plan_runs() -> None:
    a, b = draw(700, 4096), draw(4096, 512, seed=1)
    want = torch.mm(a[:128], b)
    for rows in (1, 17, 128, 700):
        pinned = plan(a[:rows], b, pin=128)
        assert isinstance(pinned, Plan), pinned
        assert same(run(pinned, a[:rows], b)[: len(want)], want[:rows])


def test_a_pinned_decoder_does_not_depend_on_its_batch() -> None:
    path = Path(__file__).resolve().parent.parent / "examples" / "pinned_decoder.py"
    example: dict[str, Any] = runpy.run_path(str(path))
    torch.manual_seed(0)
    width = example["found_width"](512, 40, 8, BF16, {})
    assert len(width.groups) > 1, width
    shape = example["Shape"](hidden=512, inner=width.inner, heads=4, layers=2, vocabulary=500, length=40)
    model = example["Decoder"](shape, "each").to("cuda", BF16)
    lengths = torch.randint(1, 41, (64,), device="cuda")
    pool = example["Sequences"](torch.randint(500, (64, 40), device="cuda"), lengths)
    assert example["dependent_operations"](shape, 64, BF16, "cuda") == []
    counts = example["demonstrated"](model, pool, 8, 12, 0, {})
    assert (counts["different"], counts["declined"], counts["elements_unlike_stock_at_reference"]) == (0, 0, 0)
    assert counts["stock_different"] > 0
