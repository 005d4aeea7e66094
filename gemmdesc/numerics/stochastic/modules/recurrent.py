"""Recurrent layers out of rounded operations, for torch's fused ``lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.modules.pieces import Context, joined, sigmoid


def recurrent(kind: str) -> Callable[..., Any]:
    """Of unpacked sequences; dropout between layers and projections are not covered."""
    states = 2 if kind == "lstm" else 1

    def run(
        c: Context, input: Any, hx: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any = 0.0,
        train: Any = False, bidirectional: Any = False, batch_first: Any = False,
    ) -> Any:  # fmt: skip
        # A packed sequence passes batch sizes, a tensor, where the state belongs.
        if isinstance(has_biases, list | tuple) or (train and dropout):
            return NotImplemented
        directions = 2 if bidirectional else 1
        each = 4 if has_biases else 2
        if len(params) != num_layers * directions * each:
            return NotImplemented
        x = c.stochastic(input)
        steps = [_at(x, t, batch_first) for t in range(x.shape[1 if batch_first else 0])]
        given = list(hx) if states == 2 else [hx]
        first = [c.stochastic(g) for g in given]
        last: list[list[Any]] = [[] for _ in range(states)]
        for layer in range(num_layers):
            outputs = []
            for direction in range(directions):
                place = layer * directions + direction
                weights = list(params[place * each : (place + 1) * each])
                begin = [s[place] for s in first]
                found, end = _layer(c, kind, steps[::-1] if direction else steps, begin, weights)
                outputs.append(found[::-1] if direction else found)
                for kept, state in zip(last, end, strict=True):
                    kept.append(state)
            steps = [joined(list(parts), -1) if directions == 2 else parts[0] for parts in zip(*outputs, strict=True)]
        axis = 1 if batch_first else 0
        whole = joined([s.reshape(*s.shape[:axis], 1, *s.shape[axis:]) for s in steps], axis)
        ends = [joined([s.reshape(1, *s.shape) for s in kept], 0) for kept in last]
        return (whole, *ends)

    return run


def _at(x: Any, t: int, batch_first: bool) -> Any:
    return x[:, t] if batch_first else x[t]


def _layer(
    c: Context, kind: str, steps: list[Any], state: list[Any], weights: list[Any]
) -> tuple[list[Any], list[Any]]:
    biases = weights[2:] or [None, None]
    outputs = []
    for x in steps:
        from_input = _linear(c, x, weights[0], biases[0])
        from_state = _linear(c, state[0], weights[1], biases[1])
        state = _CELLS[kind](from_input, from_state, state)
        outputs.append(state[0])
    return outputs, state


def _linear(c: Context, x: Any, weight: Any, bias: Any) -> Any:
    rows = x if x.ndim == 2 else x.reshape(1, -1)
    product = c.product(rows, weight.t())
    product = product if bias is None else product + bias
    return product if x.ndim == 2 else product.reshape(-1)


def _parts(x: Any, count: int) -> list[Any]:
    width = x.shape[-1] // count
    return [x[..., i * width : (i + 1) * width] for i in range(count)]


def _lstm(from_input: Any, from_state: Any, state: list[Any]) -> list[Any]:
    i, f, g, o = _parts(from_input + from_state, 4)
    cell = sigmoid(f) * state[1] + sigmoid(i) * F.tanh(g)
    return [sigmoid(o) * F.tanh(cell), cell]


def _gru(from_input: Any, from_state: Any, state: list[Any]) -> list[Any]:
    (r, z, n), (hr, hz, hn) = _parts(from_input, 3), _parts(from_state, 3)
    reset, update = sigmoid(r + hr), sigmoid(z + hz)
    candidate = F.tanh(n + reset * hn)
    return [(1.0 - update) * candidate + update * state[0]]


def _tanh(from_input: Any, from_state: Any, state: list[Any]) -> list[Any]:
    return [F.tanh(from_input + from_state)]


def _relu(from_input: Any, from_state: Any, state: list[Any]) -> list[Any]:
    return [F.maximum(from_input + from_state, 0.0)]


_CELLS: dict[str, Callable[[Any, Any, list[Any]], list[Any]]] = {
    "lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu,
}  # fmt: skip
