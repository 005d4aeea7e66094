"""What a user of torch expects of the functions, on a CPU: each call is made of torch and of us, and has to agree.

Operands are small integers, whose sums are exact in every order, so that torch's own CPU gives the values.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import gemmdesc
from gemmdesc.dropin.memory import signed_bits
from gemmdesc.errors import DeclinedError, InvalidInputError
from tests.dropin_samples import source

torch = pytest.importorskip("torch")
HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32
F8 = torch.float8_e4m3fn

NAMES = ("matmul", "mm", "linear", "addmm", "addmm_activation", "bmm", "baddbmm", "scaled_mm")
THEIRS = SimpleNamespace(
    matmul=torch.matmul, mm=torch.mm, linear=torch.nn.functional.linear, addmm=torch.addmm,
    addmm_activation=torch._addmm_activation, bmm=torch.bmm, baddbmm=torch.baddbmm, scaled_mm=torch._scaled_mm,
)  # fmt: skip
Call = Callable[[SimpleNamespace], Any]


def ours() -> SimpleNamespace:
    return SimpleNamespace(**{name: partial(getattr(gemmdesc, name), replay=source()) for name in NAMES})


def whole(*shape: int, dtype: Any = HALF, needs: bool = False) -> Any:
    values = torch.randint(1, 3, shape) * (2 * torch.randint(0, 2, shape) - 1)
    return values.to(dtype).requires_grad_() if needs else values.to(dtype)


def empty(*shape: int, dtype: Any = HALF) -> Any:
    return torch.full(shape, torch.nan, dtype=dtype)


def outcome(call: Call, names: SimpleNamespace) -> Any:
    """What the call gives: all that a user could see of the result, or the kind of the exception."""
    torch.manual_seed(3)
    try:
        result = call(names)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        return next(kind for kind in (TypeError, IndexError, RuntimeError, ValueError) if isinstance(error, kind))
    graph = type(result.grad_fn).__name__
    return (
        tuple(result.shape), result.dtype, result.stride(), result.requires_grad, result.is_inference(), graph,
        signed_bits(result).tolist(),
    )  # fmt: skip


def rows(*shape: int) -> Any:
    """A tensor whose first two axes are stored the other way round."""
    return whole(shape[1], shape[0], *shape[2:]).transpose(0, 1)


CALLS: dict[str, Call] = {
    "mm": lambda n: n.mm(whole(4, 6), whole(6, 5)),
    "bfloat16": lambda n: n.mm(whole(4, 6, dtype=BF16), whole(6, 5, dtype=BF16)),
    "float32": lambda n: n.mm(whole(4, 6, dtype=FLOAT), whole(6, 5, dtype=FLOAT)),
    "a scalar": lambda n: n.matmul(whole(), whole(6, 5)),
    "many axes and a vector": lambda n: n.matmul(whole(2, 3, 4, 6), whole(6)),
    "a vector and many axes": lambda n: n.matmul(whole(6), whole(3, 6, 5)),
    "batches of other numbers of axes": lambda n: n.matmul(whole(2, 1, 4, 6), whole(3, 6, 5)),
    "batches that do not fit": lambda n: n.matmul(whole(2, 4, 6), whole(3, 6, 5)),
    "views by columns": lambda n: n.matmul(whole(6, 4).T, whole(5, 6).T),
    "a view in steps": lambda n: n.mm(whole(4, 12)[:, ::2], whole(6, 5)),
    "an expanded operand": lambda n: n.mm(whole(1, 6).expand(4, 6), whole(6, 5)),
    "out": lambda n: n.matmul(whole(4, 6), whole(6, 5), out=empty(4, 5)),
    "out of batches": lambda n: n.matmul(whole(2, 4, 6), whole(6, 5), out=empty(2, 4, 5)),
    "out of a vector": lambda n: n.matmul(whole(6), whole(6, 5), out=empty(5)),
    "out of a matrix and a vector": lambda n: n.matmul(whole(4, 6), whole(6), out=empty(4)),
    "out of another type": lambda n: n.matmul(whole(4, 6), whole(6, 5), out=empty(4, 5, dtype=FLOAT)),
    "out by columns": lambda n: n.mm(whole(4, 6), whole(6, 5), out=empty(5, 4).T),
    "out padded": lambda n: n.mm(whole(4, 6), whole(6, 5), out=empty(4, 8)[:, :5]),
    "out that shares places": lambda n: n.mm(whole(4, 6), whole(6, 5), out=empty(1, 5).expand(4, 5)),
    "out that needs a gradient": lambda n: n.mm(whole(4, 6), whole(6, 5), out=whole(4, 5, needs=True)),
    "an empty out": lambda n: n.mm(whole(4, 6), whole(6, 5), out=torch.empty(0, dtype=HALF)),
    "bmm out": lambda n: n.bmm(whole(3, 4, 6), whole(3, 6, 5), out=empty(3, 4, 5)),
    "baddbmm out": lambda n: n.baddbmm(whole(4, 5), whole(1, 4, 6), whole(1, 6, 5), out=empty(1, 4, 5)),
    "baddbmm without its addend": lambda n: n.baddbmm(empty(4, 5), whole(3, 4, 6), whole(3, 6, 5), beta=0),
    "addmm of a row into out": lambda n: n.addmm(whole(1, 5), whole(4, 6), whole(6, 5), out=empty(4, 5)),
    "addmm of a column": lambda n: n.addmm(whole(4, 1), whole(4, 6), whole(6, 5)),
    "addmm of one value": lambda n: n.addmm(whole(1), whole(4, 6), whole(6, 5)),
    "addmm of a scalar": lambda n: n.addmm(whole(), whole(4, 6), whole(6, 5)),
    "addmm of too many axes": lambda n: n.addmm(whole(1, 4, 5), whole(4, 6), whole(6, 5)),
    "addmm of another type": lambda n: n.addmm(whole(5, dtype=FLOAT), whole(4, 6), whole(6, 5)),
    "addmm with a bool for beta": lambda n: n.addmm(whole(5), whole(4, 6), whole(6, 5), beta=True),
    "addmm with a tensor for alpha": lambda n: n.addmm(whole(5), whole(4, 6), whole(6, 5), alpha=torch.tensor(1.0)),
    "addmm with a complex alpha": lambda n: n.addmm(whole(5), whole(4, 6), whole(6, 5), alpha=1j),
    "relu after addmm": lambda n: n.addmm_activation(whole(5), whole(4, 6), whole(6, 5)),
    "linear without axes": lambda n: n.linear(whole(6), whole(5, 6), whole(5)),
    "linear of a vector": lambda n: n.linear(whole(4, 6), whole(6)),
    "linear of a vector and a scalar": lambda n: n.linear(whole(4, 6), whole(6), whole()),
    "linear with a bias of two axes": lambda n: n.linear(whole(4, 6), whole(5, 6), whole(4, 5)),
    "linear of rows apart": lambda n: n.linear(rows(3, 4, 6), whole(5, 6), whole(5)),
    "linear with a bias in steps": lambda n: n.linear(whole(4, 6), whole(5, 6), whole(10)[::2]),
    "linear of many axes": lambda n: n.linear(whole(2, 1, 3, 6), whole(5, 6), whole(5)),
    "linear of nothing": lambda n: n.linear(whole(4, 6), None),
    "no rows": lambda n: n.linear(whole(0, 6, needs=True), whole(5, 6), whole(5)),
    "nothing to sum": lambda n: n.mm(whole(4, 0), whole(0, 5), out=empty(4, 5)),
    "nothing to sum in batches": lambda n: n.bmm(whole(3, 2, 0), whole(3, 0, 3)),
    "types that differ": lambda n: n.mm(whole(4, 6, dtype=FLOAT), whole(6, 5, dtype=BF16)),
    "a float8 result": lambda n: n.scaled_mm(
        whole(16, 32).to(F8), whole(16, 32).to(F8).T, torch.tensor(2.0), torch.tensor(0.5), out_dtype=BF16
    ),
    "needs a gradient": lambda n: n.mm(whole(4, 6, needs=True), whole(6, 5)),
    "batches need a gradient": lambda n: n.bmm(whole(3, 4, 6), whole(3, 6, 5, needs=True)),
    "a layer needs gradients": lambda n: n.linear(whole(2, 4, 6), whole(5, 6, needs=True), whole(5, needs=True)),
    "a batch of one needs a gradient": lambda n: n.matmul(whole(1, 4, 6, needs=True), whole(3, 6, 5)),
    "relu needs a gradient": lambda n: n.addmm_activation(whole(5), whole(4, 6, needs=True), whole(6, 5)),
    "a gradient": lambda n: torch.func.grad(lambda x: n.mm(x, whole(6, 5)).sum())(whole(4, 6)),
    "a forward gradient": lambda n: torch.func.jvp(lambda x: n.mm(x, whole(6, 5)), (whole(4, 6),), (whole(4, 6),))[1],
    "mapped": lambda n: torch.vmap(lambda x, w: n.mm(x, w), in_dims=(0, None))(whole(3, 4, 6), whole(6, 5)),
    "mapped over both": lambda n: torch.vmap(lambda x, y: n.mm(x, y))(whole(3, 4, 6), whole(3, 6, 5)),
    "a mapped layer": lambda n: torch.vmap(lambda x, w: n.linear(x, w), in_dims=(0, None))(whole(3, 4, 6), whole(5, 6)),
    "a mapped matmul": lambda n: torch.vmap(lambda x, w: n.matmul(x, w), in_dims=(0, None))(
        whole(3, 2, 4, 6), whole(6, 5)
    ),
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_torchs(name: str, mode: str) -> None:
    with MODES[mode]():
        want, got = outcome(CALLS[name], THEIRS), outcome(CALLS[name], ours())
    assert got == want


def test_refusals_are_of_our_kind_too() -> None:
    refused = [name for name, call in CALLS.items() if isinstance(outcome(call, THEIRS), type)]
    assert len(refused) > 8
    for name in refused:
        with pytest.raises((InvalidInputError, DeclinedError)):
            CALLS[name](ours())


#: Under autocast of a CPU: products of float32, of two types, and one that it leaves alone.
CAST: dict[str, Call] = {
    "mm": lambda n: n.mm(whole(4, 6, dtype=FLOAT), whole(6, 5, dtype=FLOAT)),
    "two types": lambda n: n.mm(whole(4, 6, dtype=FLOAT), whole(6, 5, dtype=BF16)),
    "matmul": lambda n: n.matmul(whole(2, 4, 6, dtype=FLOAT), whole(6, 5, dtype=BF16)),
    "linear": lambda n: n.linear(whole(4, 6, dtype=FLOAT), whole(5, 6, dtype=BF16), whole(5, dtype=FLOAT)),
    "addmm": lambda n: n.addmm(whole(5, dtype=FLOAT), whole(4, 6, dtype=FLOAT), whole(6, 5, dtype=BF16)),
    "bmm": lambda n: n.bmm(whole(3, 4, 6, dtype=FLOAT), whole(3, 6, 5, dtype=BF16)),
    "baddbmm": lambda n: n.baddbmm(
        whole(4, 5, dtype=FLOAT), whole(1, 4, 6, dtype=FLOAT), whole(1, 6, 5, dtype=BF16)
    ),
    "out": lambda n: n.mm(whole(4, 6, dtype=FLOAT), whole(6, 5, dtype=FLOAT), out=empty(4, 5, dtype=FLOAT)),
    "float16": lambda n: n.mm(whole(4, 6), whole(6, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CAST)
def test_autocast_converts_as_torch_does(name: str) -> None:
    with torch.autocast("cpu", BF16):
        assert outcome(CAST[name], ours()) == outcome(CAST[name], THEIRS)


def test_what_torch_takes_and_we_do_not_declines_and_may_run_on_the_library() -> None:
    for call, code in (
        (lambda n, **on: n.matmul(whole(6), whole(6), **on), "out_of_scope"),
        (lambda n, **on: n.mm(whole(4, 6, dtype=torch.complex64), whole(6, 5, dtype=torch.complex64), **on),
         "out_of_scope"),
        (lambda n, **on: n.mm(whole(4, 6, dtype=torch.float64), whole(6, 5, dtype=torch.float64), **on),
         "out_of_scope"),
        (lambda n, **on: n.mm(whole(4, 6, dtype=torch.int32), whole(6, 5, dtype=torch.int32), **on),
         "unsupported_input"),
        (lambda n, **on: n.baddbmm(whole(4, 5), whole(3, 4, 6), whole(3, 6, 5), **on), "no_rule"),
        (lambda n, **on: n.mm(whole(4, 6, dtype=FLOAT).to_sparse(), whole(6, 5, dtype=FLOAT), **on),
         "unsupported_input"),
        (lambda n, **on: n.scaled_mm(whole(16, 32).to(F8), whole(32, 16).to(F8), torch.tensor(2.0), torch.tensor(0.5),
                                     out_dtype=BF16, **on), "unsupported_input"),
    ):  # fmt: skip
        with pytest.raises(DeclinedError) as caught:
            call(ours())
        assert caught.value.declined.code == code
        got = outcome(lambda n, call=call: call(n, on_decline="library"), ours())
        assert got == outcome(call, THEIRS)


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_out_that_is_an_operand_declines(name: str) -> None:
    """torch takes it, and gives whatever comes of it."""
    operands = {"a": whole(4, 4), "b": whole(4, 4)}
    before = operands[name].clone()
    with pytest.raises(DeclinedError, match="an out whose elements share memory"):
        ours().mm(operands["a"], operands["b"], out=operands[name])
    assert torch.equal(operands[name], before)


def test_fake_tensors_have_torchs_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b = torch.empty(2, 4, 6, dtype=HALF), torch.empty(6, 5, dtype=HALF)
        got, want = ours().matmul(a, b), torch.matmul(a, b)
    assert (got.shape, got.dtype, got.stride(), type(got)) == (want.shape, want.dtype, want.stride(), type(want))


def test_tensors_of_a_subclass_stay_so() -> None:
    class Named(torch.Tensor):
        pass

    a, b = whole(4, 6), whole(6, 5)
    got = ours().mm(a.as_subclass(Named), b)
    assert type(got) is Named
    assert torch.equal(got, torch.mm(a, b))


def test_a_gradient_of_a_gradient() -> None:
    def second(names: SimpleNamespace) -> Any:
        torch.manual_seed(0)
        a, b = whole(4, 6, needs=True), whole(6, 5, needs=True)
        (first,) = torch.autograd.grad(names.mm(a, b).square().sum(), a, create_graph=True)
        first.sum().backward()
        return b.grad

    with gemmdesc.override(replay=source()):
        got = second(ours())
    assert torch.equal(got, second(THEIRS))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_computes_again_by_us(reentrant: bool) -> None:
    layer, x = torch.nn.Linear(6, 5, bias=False).half(), whole(4, 6, needs=True)
    with gemmdesc.override(replay=source()) as over:
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    # Forward, again in backward, and two products of the gradient; where it is not needed again, the last is left out.
    ours, declined = over.report().by_operator["mm"]
    assert ours >= 3
    assert declined == 0
    assert x.grad is not None


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_model_holds_the_operators(strict: bool) -> None:
    from gemmdesc.dropin import register_choices

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = (torch.nn.Parameter(whole(*s)) for s in ((5, 6), (5,)))

        def forward(self, x: Any) -> Any:
            return torch.relu(gemmdesc.linear(x, self.weight, self.bias, named="exported"))

    register_choices("exported", replay=source())
    layer = Layer()
    rows = {"x": {0: torch.export.Dim("rows")}}
    exported = torch.export.export(layer, (whole(4, 6),), strict=strict, dynamic_shapes=rows)
    calls = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert "gemmdesc.addmm.default" in calls
    x = whole(9, 6)
    assert torch.equal(exported.module()(x), torch.relu(torch.nn.functional.linear(x, layer.weight, layer.bias)))
