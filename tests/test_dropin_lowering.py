"""Lowered composites against torch's own: the same products of the same operands, and the same result."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from gemmdesc.dropin.intercept import TorchCall, intercepted, intercepted_here
from gemmdesc.dropin.lowering import Products, lowered_linear, lowered_matmul

torch = pytest.importorskip("torch")
PRODUCTS = Products(mm=torch.mm, bmm=torch.bmm, mv=torch.mv, dot=torch.dot, addmm=torch.addmm)


def recorded(call: Callable[[], Any]) -> tuple[list[Any], Any]:
    """Every product of ``call`` with the shapes and strides of its operands, and the result."""
    seen: list[Any] = []

    def handle(inner: TorchCall) -> Any:
        given = [t for t in (*inner.args, *inner.kwargs.values()) if isinstance(t, torch.Tensor)]
        seen.append((inner.name, [(tuple(t.shape), t.stride()) for t in given]))
        return inner.run()

    with intercepted(handle):
        result = call()
    return seen, result


def stored(rng: Random, shape: list[int]) -> Any:
    """A tensor of ``shape`` by rows, with its axes turned round, or padded."""
    kind = rng.random()
    if kind < 0.3:
        tensor = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    elif kind < 0.5 and len(shape) > 1:
        tensor = torch.randn([*shape[:-1], shape[-1] + 2])[..., : shape[-1]]
    else:
        tensor = torch.randn(shape)
    return tensor.detach().requires_grad_(rng.random() < 0.3)


def operands(rng: Random) -> tuple[Any, Any]:
    k, batch = rng.choice([1, 2, 3, 5]), [rng.choice([1, 2, 3]) for _ in range(2)]

    def shape(axes: int, ends: list[int]) -> list[int]:
        return [rng.choice([n, n, 1]) for n in batch][2 - max(0, axes - 2) :] * (axes > 2) + ends[-min(axes, 2) :]

    a, b = rng.randint(1, 4), rng.randint(1, 4)
    right = shape(b, [k, rng.choice([1, 2, 4])]) if b > 1 else [k]
    return stored(rng, shape(a, [rng.choice([1, 2, 4]), k])), stored(rng, right)


def assert_lowered(ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    (want_calls, want), (got_calls, got) = recorded(theirs), recorded(ours)
    assert got_calls == want_calls
    assert torch.equal(got, want)
    assert got.stride() == want.stride()


def test_matmul_is_lowered_as_torch_does_it() -> None:
    rng, folded = Random(0), 0
    for _ in range(900):
        a, b = operands(rng)
        assert_lowered(lambda a=a, b=b: lowered_matmul(a, b, PRODUCTS), lambda a=a, b=b: torch.matmul(a, b))
        folded += a.dim() == b.dim() == 3 and a.shape[0] != b.shape[0]
    assert folded > 10


def test_linear_is_lowered_as_torch_does_it() -> None:
    rng = Random(1)
    for _ in range(400):
        k, n = rng.choice([1, 3, 5]), rng.choice([1, 2, 4])
        x = stored(rng, [rng.choice([1, 2, 3]) for _ in range(rng.randint(0, 3))] + [k])
        weight, bias = stored(rng, [n, k]), torch.randn(n) if rng.random() < 0.7 else None
        assert_lowered(
            lambda x=x, w=weight, b=bias: lowered_linear(x, w, b, PRODUCTS),
            lambda x=x, w=weight, b=bias: torch.nn.functional.linear(x, w, b),
        )


def test_a_dispatch_mode_changes_what_matmul_folds() -> None:
    """Why an override is none: where one is on, torch folds a batch of one that it broadcasts else."""
    a, b, seen = torch.randn(3, 4, 5), torch.randn(1, 5, 6), []

    def handle(call: TorchCall) -> Any:
        seen.append(call.name)
        return call.run()

    with intercepted(handle):
        torch.matmul(a, b)
    with intercepted_here(handle):
        torch.matmul(a, b)
    assert seen == ["bmm", "mm"]
