"""torch's products on a GPU against eager torch, byte for byte; cases are those of public reports, by their tag.

What the profile has no rows for declines, which a test allows only where it says so.  Run ``-m gpu``.
"""

from __future__ import annotations

import runpy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gemmdesc
from gemmdesc.dropin.memory import signed_bits
from gemmdesc.errors import DeclinedError
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


def equal_or_declined(call: Callable[[], Any], *codes: str) -> bool:
    """Whether ``call`` under an override gives eager's bytes; False where it declines with one of ``codes``."""
    want = call()
    try:
        with gemmdesc.override():
            got = call()
    except DeclinedError as error:
        if error.declined.code not in codes:
            raise
        return False
    assert same(got, want)
    return True


#: What may decline with a profile of plain products alone.
NO_ROWS = ("no_rule", "kernel", "out_of_scope", "nondeterministic")


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


def test_a1_rows_follow_the_librarys_batches() -> None:
    weight, anchor = draw(2048, 2048, dtype=BF16, seed=1), draw(1, 2048, dtype=BF16)
    for m in (1, 2, 17, 33, 128, 257, 1024):
        x = draw(m, 2048, dtype=BF16, seed=2)
        x[m // 2] = anchor[0]
        equal_or_declined(lambda x=x: torch.nn.functional.linear(x, weight), "no_rule")


@pytest.mark.parametrize("batch", [100, 256, 512])
def test_a2_a_batch_is_no_loop(batch: int) -> None:
    a, b = draw(batch, 8, 64), draw(batch, 64, 8, seed=1)
    equal_or_declined(lambda: torch.bmm(a, b), *NO_ROWS)
    equal_or_declined(lambda: torch.mm(a[3], b[3]), *NO_ROWS)


def test_a3_a_bias_inside_or_after_the_rounding() -> None:
    x, weight, bias = draw(1, 100, dtype=BF16), draw(100, 100, dtype=BF16, seed=1), draw(100, dtype=BF16, seed=2)
    equal_or_declined(lambda: torch.nn.functional.linear(x, weight, bias), *NO_ROWS)
    equal_or_declined(lambda: torch.matmul(x, weight.T) + bias, *NO_ROWS)


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_a4_a_bias_under_split_k(dtype: Any) -> None:
    a, b = draw(64, 16384, dtype=dtype), draw(16384, 256, dtype=dtype, seed=1)
    bias = 100 * draw(256, dtype=dtype, seed=2)
    equal_or_declined(lambda: torch.addmm(bias, a, b), *NO_ROWS)
    equal_or_declined(lambda: torch.addmm(bias.expand(64, 256), a, b), *NO_ROWS)


@pytest.mark.parametrize("biased", [True, False])
def test_a10_a_permuted_input(biased: bool) -> None:
    x, weight = draw(2, 226, 4096, dtype=BF16), draw(1920, 4096, dtype=BF16, seed=1)
    bias = draw(1920, dtype=BF16, seed=2) if biased else None
    for given in (x, x.permute(1, 0, 2).contiguous().permute(1, 0, 2)):
        equal_or_declined(lambda given=given: torch.nn.functional.linear(given, weight, bias), *NO_ROWS)


def test_a16_an_inner_size_of_zero() -> None:
    nan = torch.full((5, 7), torch.nan, device="cuda", dtype=HALF)
    for call in (
        lambda: torch.bmm(draw(3, 2, 0), draw(3, 0, 3)), lambda: torch.mm(draw(5, 0), draw(0, 7)),
        lambda: torch.mm(draw(5, 0), draw(0, 7), out=nan.clone()), lambda: torch.mm(draw(0, 4), draw(4, 7)),
        lambda: torch.addmm(draw(7), draw(5, 0), draw(0, 7)), lambda: torch.addmm(nan, draw(5, 0), draw(0, 7), beta=0),
    ):  # fmt: skip
        assert equal_or_declined(call)


@pytest.mark.parametrize("fill", [float("nan"), float("inf")])
def test_a17_beta_zero_never_reads_c(fill: float) -> None:
    a, b = draw(256, 512), draw(512, 128, seed=1)
    want = torch.mm(a, b)
    addend = torch.full_like(want, fill)
    with gemmdesc.override():
        assert same(torch.addmm(addend, a, b, beta=0), want)
        assert same(torch.addmm(addend, a, b, beta=0, out=addend), want)


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("use_gelu", [True, False])
def test_a18_activations(dtype: Any, use_gelu: bool) -> None:
    a, b, bias = draw(512, 768, dtype=dtype), draw(768, 3072, dtype=dtype, seed=1), draw(3072, dtype=dtype, seed=2)
    bias[:6] = torch.tensor([-12.0, -0.0, 60000.0, torch.inf, torch.nan, 3.0], device="cuda").to(dtype)
    equal_or_declined(lambda: torch._addmm_activation(bias, a, b, use_gelu=use_gelu), *NO_ROWS)


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_a19_a_bias_that_is_a_slice(offset: int) -> None:
    buffer = draw(4096 + 8)
    x, weight = draw(64, 512, seed=1), draw(4096, 512, seed=2)
    equal_or_declined(
        lambda: torch.nn.functional.linear(x, weight, buffer[offset : offset + 4096]), *NO_ROWS
    )  # fmt: skip


@pytest.mark.parametrize("allowed", [True, False])
def test_a20_tf32(allowed: bool) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        b = draw(256, 256, dtype=FLOAT)
        equal_or_declined(lambda: torch.eye(256, device="cuda") @ b, *NO_ROWS)
        equal_or_declined(lambda: draw(256, 4096, dtype=FLOAT) @ draw(4096, 256, dtype=FLOAT, seed=1), *NO_ROWS)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_a21_spellings_of_a_bias() -> None:
    a, b, bias = draw(50, 250, dtype=FLOAT), draw(250, 50, dtype=FLOAT, seed=1), draw(50, dtype=FLOAT, seed=2)
    for addend in (bias, bias.expand(50, 50), bias.expand(50, 50).contiguous()):
        equal_or_declined(lambda addend=addend: torch.addmm(addend, a, b), *NO_ROWS)


@pytest.mark.parametrize("needs", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
def test_a22_a_fold_that_depends_on_gradients(needs: tuple[bool, bool], mode: str) -> None:
    left, right = draw(8, 33, 512, dtype=BF16), draw(512, 256, dtype=BF16, seed=1)
    left.requires_grad_(needs[0])
    right.requires_grad_(needs[1])
    with getattr(torch, mode)():
        equal_or_declined(lambda: torch.matmul(left, right).detach(), *NO_ROWS)
        equal_or_declined(lambda: torch.matmul(right.mT, left.mT).detach(), *NO_ROWS)


def test_a26_autocast() -> None:
    narrow, wide = draw(64, 128, dtype=BF16), draw(4, 64, dtype=FLOAT)
    with torch.autocast("cuda", BF16):
        equal_or_declined(lambda: torch.mm(wide, narrow), *NO_ROWS)
        equal_or_declined(lambda: torch.mm(wide, draw(64, 128, dtype=FLOAT)), *NO_ROWS)
    for call in (lambda: torch.mm(wide, narrow), lambda: gemmdesc.matmul(wide, narrow)):
        with pytest.raises(RuntimeError, match="dtype"), gemmdesc.override():
            call()


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


def test_a23_a_captured_product_follows_its_inputs() -> None:
    """Two captures on one stream; the second is dropped, and the first goes on giving eager's bytes."""
    a, b = draw(64, 32768, dtype=BF16), draw(32768, 64, dtype=BF16, seed=1)
    with gemmdesc.override():
        torch.mm(a, b)
        graphs, results = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()], []
        for graph in graphs:
            with torch.cuda.graph(graph):
                results.append(torch.mm(a, b))
    del graphs[1], results[1]
    torch.empty(1 << 26, device="cuda").fill_(1.0)
    for seed in range(100):
        a.copy_(draw(64, 32768, dtype=BF16, seed=seed))
        graphs[0].replay()
        assert same(results[0], torch.mm(a, b)), seed


def test_a24_threads_and_streams() -> None:
    a, b = draw(333, 5000), draw(5000, 77, seed=1)
    want = torch.mm(a, b)
    wrong: list[int] = []

    def multiply(number: int) -> None:
        with gemmdesc.override(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not same(torch.mm(a, b), want):
                    wrong.append(number)
            torch.cuda.current_stream().synchronize()

    with gemmdesc.override():
        torch.mm(a, b)
        threads = [threading.Thread(target=multiply, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a21_a_compiled_function_gives_eagers_bytes() -> None:
    x, weight = draw(64, 512), draw(256, 512, seed=1)
    compiled = torch.compile(lambda x: torch.relu(gemmdesc.linear(x, weight)) * 2, fullgraph=True, dynamic=True)
    for rows in (64, 65, 200):
        given = draw(rows, 512, seed=rows)
        assert same(compiled(given), torch.relu(torch.nn.functional.linear(given, weight)) * 2)
    leaf = x.detach().requires_grad_()
    compiled(leaf).sum().backward()
    again = x.detach().requires_grad_()
    (torch.relu(torch.nn.functional.linear(again, weight)) * 2).sum().backward()
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
    shape = example["Shape"](hidden=512, heads=4, layers=2, vocabulary=500, length=40)
    model = example["Decoder"](shape, "each").to("cuda", BF16)
    lengths = torch.randint(1, 41, (64,), device="cuda")
    pool = example["Sequences"](torch.randint(500, (64, 40), device="cuda"), lengths)
    assert example["dependent_operations"](shape, 64, BF16, "cuda") == []
    counts = example["demonstrated"](model, pool, 8, 12, 0, {})
    assert (counts["different"], counts["declined"], counts["elements_unlike_stock_at_reference"]) == (0, 0, 0)
    assert counts["stock_different"] > 0
