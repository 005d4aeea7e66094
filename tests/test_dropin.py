"""torch's products on a CPU with a simulated card's bytes: values, gradients, refusals, counts, what is left behind."""

from __future__ import annotations

import json
import runpy
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemmdesc
from gemmdesc.dropin import Override, OverrideError, Report
from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.dropin.memory import host_bits, signed_bits
from gemmdesc.dropin.products import Product, route_of
from gemmdesc.dtypes import DType
from gemmdesc.errors import DeclinedError, InvalidInputError
from gemmdesc.library.interface import Inputs
from gemmdesc.operands import DenseOperand
from gemmdesc.problem import AlgoConfig, GemmProblem
from gemmdesc.routes import Release, Route
from gemmdesc.verification.route_draws import draw_call
from tests.dropin_samples import source

torch = pytest.importorskip("torch")
HALF = torch.float16


def same(one: Any, other: Any) -> bool:
    """The same shape, type and bytes."""
    kinds = (one.shape, one.dtype) == (other.shape, other.dtype)
    return kinds and bool((signed_bits(one) == signed_bits(other)).all())


def halves(*shape: int, seed: int = 0) -> Any:
    """Values of mixed magnitudes, in which the order of a sum shows."""
    made = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 7, shape, generator=made).float())
    return (torch.randn(shape, generator=made) * scale).half()


def test_exact_calls_give_torchs_own_values() -> None:
    """Sums of small integers are exact, so that any order gives torch's bytes where the data is handed over right."""
    over = gemmdesc.override(replay=source(), on_decline="library")
    for index in range(160):
        torch.manual_seed(index)
        want = draw_call(5, index, "cpu", exact=True, largest=20).run()
        torch.manual_seed(index)
        call = draw_call(5, index, "cpu", exact=True, largest=20)
        with over:
            assert same(call.run(), want), call.name
    report = over.report()
    assert report.declined == report.library
    ours = {name for name, (computed, _) in report.by_operator.items() if computed}
    assert ours >= {"mm", "addmm", "addmm_", "_addmm_activation", "bmm", "baddbmm", "addmv"}


def reference(call: Callable[[], Any]) -> list[Any]:
    """What the simulated library itself gives for each product of ``call``, asked without our executor."""
    found, held = [], source()

    def handle(inner: TorchCall) -> Any:
        product = inner.found
        assert isinstance(product, Product)
        route = route_of(product, held.settings, held.release)
        assert isinstance(route, Route)
        p: GemmProblem = route.problem
        answer = held.library.answer(p)
        assert isinstance(answer, AlgoConfig)
        first, second = (product.b.mT, product.a) if route.swapped else (product.a, product.b.mT)
        a, b = (DenseOperand(dtype=DType.FLOAT16, array=host_bits(t.reshape(-1, p.k), DType.FLOAT16))
                for t in (first, second))  # fmt: skip
        bias = None
        if product.addend is not None:
            bias = DenseOperand(dtype=DType.FLOAT16, array=host_bits(product.addend[None], DType.FLOAT16))
        bits = held.library.run(p, answer, a, b, inputs=Inputs(bias=bias))
        assert isinstance(bits, np.ndarray)
        matrices = torch.from_numpy(bits.view("i2")).view(HALF).reshape(-1, p.m, p.n)
        result = (matrices.mT if route.swapped else matrices).reshape(product.shape)
        found.append(result)
        return result.clone()

    with intercepted(handle):
        found.append(call())
    return found


def left(*shape: int) -> Any:
    """Rows whose second half is the negative of the first."""
    x = halves(*shape[:-1], shape[-1] // 2)
    return torch.cat([x, -x], dim=-1)


def right(*shape: int) -> Any:
    """Rows whose second half is the first, almost: their products with ``left`` cancel to what rounding leaves."""
    y = halves(*shape[:-1], shape[-1] // 2, seed=1)
    doubled = torch.cat([y, y], dim=-1)
    doubled[..., 0] += 0.25
    return doubled


CALLS: dict[str, Callable[[], Any]] = {
    "mm": lambda: torch.mm(left(9, 70), right(11, 70).T.contiguous()),
    "columns": lambda: torch.mm(left(9, 70).T.contiguous().T, right(11, 70).T),
    "matmul folded": lambda: torch.matmul(left(2, 5, 70), right(11, 70).T),
    "matmul batched": lambda: torch.matmul(left(3, 5, 72), right(3, 6, 72).mT),
    "linear": lambda: torch.nn.functional.linear(left(2, 5, 70), right(11, 70), halves(11, seed=2) / 64),
    "split": lambda: torch.mm(left(3, 1600), right(5, 1600).T),
    "einsum": lambda: torch.einsum("bij,bkj->bik", left(3, 5, 72), right(3, 6, 72)),
}


@pytest.mark.parametrize("name", CALLS)
def test_bytes_are_the_simulated_librarys(name: str) -> None:
    *_, want = reference(CALLS[name])
    with gemmdesc.override(replay=source()) as over:
        assert same(CALLS[name](), want)
    assert (over.report().ours, over.report().declined) == (1, 0)
    # The library's order is not that of torch's CPU products: equality above is not by chance.
    assert not same(CALLS[name](), want)


def trained(model: Any, x: Any) -> list[Any]:
    model.zero_grad()
    model(x).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def test_forward_and_backward_of_a_model() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.Identity(), torch.nn.Linear(24, 16)).half()
    with torch.no_grad():
        model[0].weight.copy_(right(24, 40) / 16)
    x = left(2, 5, 40) / 16
    with gemmdesc.override(replay=source()) as over:
        ours = trained(model, x)
    report = over.report()
    assert report.by_operator == {"addmm": (2, 0), "mm": (3, 0)}
    *products, _ = reference(lambda: trained(model, x))
    assert len(products) == report.ours
    reached = reference(lambda: trained(model, x))[-1]
    assert all(same(a, b) for a, b in zip(ours, reached, strict=True))
    assert not all(same(a, b) for a, b in zip(ours, trained(model, x), strict=True))


@pytest.mark.parametrize("needs", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("mode", ["plain", "no_grad", "inference_mode"])
def test_a_fold_that_depends_on_gradients_is_torchs(needs: tuple[bool, bool], mode: str) -> None:
    """A 2-D times 3-D product folds where the small side requires grad, and is a batch else."""
    small, large = halves(6, 20), halves(3, 20, 7, seed=1)
    small.requires_grad_(needs[0])
    large.requires_grad_(needs[1])
    around = getattr(torch, mode)() if mode != "plain" else warnings.catch_warnings()
    with around, gemmdesc.override(replay=source()) as over:
        gemmdesc.matmul(small, large, replay=source())
        torch.matmul(small, large)
    folds = needs[0]
    assert over.report().by_operator == {"mm" if folds else "bmm": (1, 0)}


# --- the functions --------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "matmul": (gemmdesc.matmul, torch.matmul, ((4, 6), (6, 5))),
    "matmul of vectors": (gemmdesc.matmul, torch.matmul, ((4, 6), (6,))),
    "matmul from a vector": (gemmdesc.matmul, torch.matmul, ((6,), (6, 5))),
    "matmul broadcast": (gemmdesc.matmul, torch.matmul, ((2, 1, 4, 6), (3, 6, 5))),
    "mm": (gemmdesc.mm, torch.mm, ((4, 6), (6, 5))),
    "bmm": (gemmdesc.bmm, torch.bmm, ((3, 4, 6), (3, 6, 5))),
    "linear": (gemmdesc.linear, torch.nn.functional.linear, ((3, 4, 6), (5, 6), (5,))),
    "linear without bias": (gemmdesc.linear, torch.nn.functional.linear, ((6,), (5, 6))),
    "addmm": (gemmdesc.addmm, torch.addmm, ((4, 5), (4, 6), (6, 5))),
    "addmm of a row": (gemmdesc.addmm, torch.addmm, ((5,), (4, 6), (6, 5))),
    "activation": (gemmdesc.addmm_activation, torch._addmm_activation, ((5,), (4, 6), (6, 5))),
    "baddbmm of one": (gemmdesc.baddbmm, torch.baddbmm, ((5,), (1, 4, 6), (1, 6, 5))),
}


def whole(shape: tuple[int, ...], dtype: Any = HALF) -> Any:
    return torch.randint(1, 3, shape).to(dtype) * (2 * torch.randint(0, 2, shape) - 1).to(dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_torchs_shapes_and_values(name: str) -> None:
    ours, theirs, shapes = FUNCTIONS[name]
    operands = [whole(s) for s in shapes]
    assert same(ours(*operands, replay=source()), theirs(*operands))


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "linear" not in n and n != "activation"])
def test_functions_write_to_out(name: str) -> None:
    ours, theirs, shapes = FUNCTIONS[name]
    operands = [whole(s) for s in shapes]
    want = theirs(*operands)
    out = torch.full_like(want, torch.nan)
    version = out._version
    assert ours(*operands, out=out, replay=source()) is out
    assert same(out, want)
    assert out._version > version


def test_gradients_of_a_function_are_torchs() -> None:
    x, weight = whole((4, 6)).requires_grad_(), whole((6, 5)).requires_grad_()
    gemmdesc.matmul(x, weight, replay=source()).sum().backward()
    again = [t.detach().clone().requires_grad_() for t in (x, weight)]
    torch.matmul(*again).sum().backward()
    assert same(x.grad, again[0].grad)
    assert same(weight.grad, again[1].grad)


REFUSED: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "inner sizes": (gemmdesc.matmul, torch.matmul, lambda: (whole((4, 6)), whole((7, 5)))),
    "batches": (gemmdesc.matmul, torch.matmul, lambda: (whole((2, 4, 6)), whole((3, 6, 5)))),
    "no axes": (gemmdesc.matmul, torch.matmul, lambda: (whole(()), whole((6, 5)))),
    "vectors": (gemmdesc.matmul, torch.matmul, lambda: (whole((4, 6)), whole((7,)))),
    "types": (gemmdesc.matmul, torch.matmul, lambda: (whole((4, 6)), whole((6, 5), torch.float32))),
    "types of batches": (gemmdesc.bmm, torch.bmm, lambda: (whole((2, 4, 6)), whole((2, 6, 5), torch.float32))),
    "no tensor": (gemmdesc.matmul, torch.matmul, lambda: ([[1.0]], whole((6, 5)))),
    "three axes": (gemmdesc.mm, torch.mm, lambda: (whole((2, 4, 6)), whole((6, 5)))),
    "addend": (gemmdesc.addmm, torch.addmm, lambda: (whole((4,)), whole((4, 6)), whole((6, 5)))),
    "weight": (gemmdesc.linear, torch.nn.functional.linear, lambda: (whole((4, 6)), whole((5, 7)), None)),
    "batch of matrices": (gemmdesc.bmm, torch.bmm, lambda: (whole((4, 6)), whole((6, 5)))),
    "addend of a batch": (gemmdesc.baddbmm, torch.baddbmm, lambda: (whole((4,)), whole((2, 4, 6)), whole((2, 6, 5)))),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("replayed", [True, False])
def test_what_torch_refuses_raises_its_kind_of_error_and_ours(name: str, replayed: bool) -> None:
    ours, theirs, operands = REFUSED[name]
    with pytest.raises(Exception, match=r".") as by_torch:
        theirs(*operands())
    with pytest.raises(type(by_torch.value), match=r"\(got .*\)$") as caught:
        ours(*operands(), **({"replay": source()} if replayed else {}))
    assert isinstance(caught.value, InvalidInputError)


def test_a_gradient_into_out_is_refused_as_in_torch() -> None:
    x, out = whole((2, 4, 6)).requires_grad_(), whole((2, 4, 5))
    with pytest.raises(RuntimeError, match=r"automatic differentiation.*\(got"):
        gemmdesc.matmul(x, whole((6, 5)), out=out, replay=source())


def test_a_cpu_needs_a_replay() -> None:
    for call in (lambda: gemmdesc.bmm(whole((2, 4, 6)), whole((2, 6, 5))), lambda: gemmdesc.mm(*[whole((4, 4))] * 2)):
        with pytest.raises(InvalidInputError, match=r"on a CPU beside replay= \(got cpu\)"):
            call()


def test_empty_products_are_torchs() -> None:
    nan = torch.full((4, 5), torch.nan, dtype=HALF)
    for a, b in (((5, 0), (0, 7)), ((3, 2, 0), (3, 0, 3)), ((0, 5), (5, 7)), ((2, 5, 4), (4, 0))):
        assert same(gemmdesc.matmul(whole(a), whole(b), replay=source()), torch.matmul(whole(a), whole(b)))
    assert same(gemmdesc.addmm(whole((5,)) * 0 + 3, whole((4, 0)), whole((0, 5)), replay=source()),
                torch.full((4, 5), 3.0, dtype=HALF))  # fmt: skip
    assert same(gemmdesc.addmm(nan, whole((4, 0)), whole((0, 5)), beta=0, replay=source()), torch.zeros_like(nan))


def test_beta_zero_never_reads_the_addend() -> None:
    a, b = halves(4, 6), halves(6, 5, seed=1)
    want = gemmdesc.mm(a, b, replay=source())
    for fill in (torch.nan, torch.inf):
        addend = torch.full((4, 5), fill, dtype=HALF)
        assert same(gemmdesc.addmm(addend, a, b, beta=0, replay=source()), want)
        assert same(gemmdesc.addmm(addend, a, b, beta=0, out=addend, replay=source()), want)


def test_a_fused_bias_rounds_once_and_an_added_one_twice() -> None:
    x, weight, bias = halves(4, 100), halves(100, 100, seed=1), halves(100, seed=2)
    fused = gemmdesc.linear(x, weight, bias, replay=source())
    later = gemmdesc.matmul(x, weight.T, replay=source()) + bias
    assert not same(fused, later)


def test_float32_results() -> None:
    a, b = halves(4, 70), halves(70, 5, seed=1)
    wide = gemmdesc.baddbmm(whole((5,)), whole((1, 4, 6)), whole((1, 6, 5)), replay=source())
    assert wide.dtype == HALF
    with pytest.raises(InvalidInputError, match=r"out_dtype must be None unless a and b are matrices"):
        gemmdesc.matmul(a[None], b, out_dtype=torch.float32, replay=source())


def test_a_decline_writes_nothing() -> None:
    out = torch.full((4, 5), 7.0, dtype=HALF)
    with pytest.raises(DeclinedError, match="addmm: the profile has no rows"):
        gemmdesc.addmm(whole((4, 5)), whole((4, 6)), whole((6, 5)), alpha=0.5, out=out, replay=source())
    assert bool((out == 7).all())
    counted = gemmdesc.report().by_operator["addmm"]
    got = gemmdesc.addmm(
        whole((4, 5)), whole((4, 6)), whole((6, 5)), alpha=0.5, out=out, replay=source(), on_decline="library"
    )
    assert got is out
    assert bool((out != 7).any())
    assert gemmdesc.report().by_operator["addmm"] == (counted[0], counted[1] + 1)


def test_an_out_that_torch_would_resize_declines() -> None:
    out = torch.full((2, 5), 7.0, dtype=HALF)
    with warnings.catch_warnings(action="ignore"), pytest.raises(DeclinedError, match="which torch resizes"):
        gemmdesc.mm(whole((4, 6)), whole((6, 5)), out=out, replay=source())
    assert out.shape == (2, 5)
    assert bool((out == 7).all())


def test_an_empty_out_gets_its_shape() -> None:
    out = torch.empty(0, dtype=HALF)
    a, b = whole((4, 6)), whole((6, 5))
    assert gemmdesc.mm(a, b, out=out, replay=source()) is out
    assert same(out, torch.mm(a, b))


def test_a_failure_of_ours_is_no_refusal_of_torchs() -> None:
    class Broken:
        settings, release = source().settings, Release(major=2, minor=11)

        def look_up(self, problem: GemmProblem) -> Any:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match=r"^broken$"):
        gemmdesc.bmm(whole((2, 4, 6)), whole((2, 6, 5)), replay=Broken())


def test_scaled_products_decline_or_replay() -> None:
    a, b = (torch.eye(32).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.tensor(2.0)
    got = gemmdesc.scaled_mm(a, b.T, scale, scale, out_dtype=torch.bfloat16, replay=source())
    assert same(got, 4 * torch.eye(32, dtype=torch.bfloat16))


# --- the context ----------------------------------------------------------------------------------------------------


def ones() -> Any:
    return torch.mm(whole((4, 6)), whole((6, 5)))


def test_contexts_nest_and_the_innermost_decides() -> None:
    with gemmdesc.override(replay=source()) as outer:
        ones()
        with gemmdesc.override(replay=source()) as inner:
            ones()
            ones()
        ones()
    ones()
    assert (outer.report().ours, inner.report().ours) == (2, 2)
    assert not gemmdesc.is_overridden()


def test_an_exception_leaves_nothing_behind() -> None:
    over, vector = gemmdesc.override(replay=source()), whole((4,))
    with pytest.raises(DeclinedError), over:
        torch.dot(vector, vector)
    assert not gemmdesc.is_overridden()
    with over:
        ones()
    assert (over.report().ours, over.report().declined) == (1, 1)
    torch.dot(whole((4,)), whole((4,)))


def test_other_threads_are_left_alone() -> None:
    seen: list[bool] = []
    with gemmdesc.override(replay=source()) as over:
        thread = threading.Thread(target=lambda: seen.append(gemmdesc.is_overridden() or bool(ones() is None)))
        thread.start()
        thread.join()
    assert seen == [False]
    assert over.report() == Report(lines=())


def test_torchs_own_kernels_come_back() -> None:
    def kernel() -> str:
        return repr(torch.library.get_kernel("aten::mm", "CPU"))

    before = kernel()
    with gemmdesc.override(replay=source()):
        assert kernel() != before
        with gemmdesc.override(replay=source()):
            pass
        assert kernel() != before
    assert kernel() == before


def test_a_decline_in_backward_is_raised_by_backward() -> None:
    leaf = whole((4, 6), torch.float32).requires_grad_()
    product = torch.mv(torch.ones(3, 4), torch.mv(leaf, torch.ones(6)))
    with pytest.raises(DeclinedError, match=r"addmv_: .*cublasSgemv"), gemmdesc.override(replay=source()):
        product.sum().backward()


def test_backward_on_another_thread_of_the_engine_is_ours() -> None:
    """A backward nested deeply enough goes on in a thread of autograd's own, as every backward on a GPU does."""
    threads: list[int] = []

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, depth: int) -> Any:
            ctx.depth = depth
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            leaf = whole((4, 6)).requires_grad_()
            with torch.enable_grad():
                if ctx.depth:
                    Nested.apply(leaf, ctx.depth - 1).sum().backward()
                else:
                    threads.append(threading.get_ident())
                    torch.mm(leaf, whole((6, 5))).sum().backward()
            return grad, None

    with gemmdesc.override(replay=source()) as over:
        Nested.apply(whole((4, 6)).requires_grad_(), 70).sum().backward()
    assert threads != [threading.get_ident()]
    assert over.report().by_operator == {"mm": (2, 0)}


def test_what_a_compiled_graph_hands_to_torch_is_ours() -> None:
    def function(a: Any, b: Any) -> Any:
        return torch.relu(torch.matmul(a, b)) + 1

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    a, b = left(2, 5, 70), right(11, 70).T
    with gemmdesc.override(replay=source()) as over:
        got = compiled(a, b)
        assert same(got, function(a, b))
    assert over.report().ours == 2
    assert not same(got, compiled(a, b))


def test_vmap_and_functional_gradients() -> None:
    a, b = whole((3, 4, 6)), whole((6, 5))
    want = torch.vmap(torch.mm, in_dims=(0, None))(a, b)
    with gemmdesc.override(replay=source()) as over:
        assert same(torch.vmap(torch.mm, in_dims=(0, None))(a, b), want)
        gradient = torch.func.grad(lambda x: torch.mm(x, b).sum())(a[0])
    assert same(gradient, torch.func.grad(lambda x: torch.mm(x, b).sum())(a[0]))
    assert over.report().ours == 3


def test_enable_disable_and_query() -> None:
    with pytest.raises(OverrideError, match="enable_override must come before"):
        gemmdesc.disable_override()
    gemmdesc.enable_override(replay=source())
    assert gemmdesc.is_overridden()
    ones()
    with gemmdesc.override(replay=source()), pytest.raises(OverrideError, match="in its turn"):
        gemmdesc.disable_override()
    assert gemmdesc.is_overridden()
    assert gemmdesc.disable_override().ours == 1
    assert not gemmdesc.is_overridden()


def test_a_context_is_entered_once() -> None:
    over = gemmdesc.override(replay=source())
    with over, pytest.raises(OverrideError, match="left before it is entered again"):
        over.__enter__()
    with pytest.raises(OverrideError, match="in its turn"):
        over.__exit__(None, None, None)


def test_an_override_of_gpus_leaves_a_cpu_alone() -> None:
    with gemmdesc.override() as over:
        a, b = whole((4, 6)), whole((6, 5))
        assert torch.mm(a, b).shape == (4, 5)
    assert over.report() == Report(lines=())


def test_bad_choices() -> None:
    with pytest.raises(InvalidInputError, match=r"on_decline must be 'raise' or 'library' \(got 'torch'\)"):
        gemmdesc.override(on_decline="torch")
    with pytest.raises(InvalidInputError, match="replay must be a book, its file, or a source"):
        gemmdesc.override(replay=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="replay must be the only source"):
        gemmdesc.override(replay=source(), book="x.book")
    with pytest.raises(InvalidInputError, match="profiles must be None beside a source"):
        gemmdesc.override(replay=source(), profiles="x")


def test_a_report_reads_well() -> None:
    with gemmdesc.override(replay=source(), on_decline="library") as over:
        ones()
        torch.dot(whole((4,)), whole((4,)))
    assert isinstance(over, Override)
    text = str(over.report()).splitlines()
    assert text[0] == "1 products by plan, 1 declined, of which the library ran 1"
    assert [line.split()[0] for line in text[1:3]] == ["dot", "mm"]
    assert "1 x dot declined (out_of_scope): torch.dot calls cublasDotEx" in text[3]
    assert str(Report(lines=())) == "no products"


def test_the_parity_script_rehearses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that ends its process is counted as an error, with its index, and the calls behind it go on."""
    out = tmp_path / "parity.json"
    script = Path(__file__).resolve().parent.parent / "scripts" / "check_parity.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(out), "--rehearse", "--calls", "60", "--dies", "3"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    *claims, calls = json.loads(out.read_text())["claims"]
    assert len(claims) == 2
    counts = calls["counts"]
    assert (counts["calls"], counts["different"], counts["refused"], counts["errors"]) == (60, 0, 0, 1)
    assert [(f["index"], f["how"]) for f in calls["failed"]] == [(3, "killed by SIGKILL")]
    assert counts["equal"] > counts["declined"] > 0
    # Eight products forward, and two for each of them backward.
    assert all(c["counts"] == {"tensors": 15, "equal": 15, "different": 0, "products_by_plan": 24, "declined": 0,
                               "errors": 0} for c in claims)  # fmt: skip


def test_tracing_tensors_are_left_alone() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with gemmdesc.override(replay=source()) as over, FakeTensorMode():
        assert torch.mm(torch.empty(4, 6), torch.empty(6, 5)).shape == (4, 5)
    assert over.report() == Report(lines=())
