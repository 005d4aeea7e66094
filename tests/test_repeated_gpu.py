"""Fused calls made before, on a GPU: bytes of the six groups of the speed benchmark, streams, graphs, planners, memory.

Run ``-m gpu``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import gemmdesc
from gemmdesc import Epilogue
from gemmdesc.dropin.memory import signed_bits

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
E = Epilogue()
SHAPES = ((1, 4096, 4096), (16, 2048, 1024), (64, 4096, 4096), (256, 1024, 512))


def drawn(*shape: int, seed: int) -> Any:
    """Values of wide exponents, so that the order of a sum shows."""
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(shape, device="cuda", generator=generator)
    exponents = torch.randint(-6, 7, shape, device="cuda", generator=generator)
    return (values * torch.exp2(exponents.float()) / 64).to(torch.float16)


class Group:
    """One group: our call, and eager torch's."""

    def __init__(self, name: str, m: int, n: int, k: int) -> None:
        self.weight, self.bias = drawn(n, k, seed=1), drawn(n, seed=2)
        self.other = drawn(m, 1, seed=3) if name == "weighted" else drawn(m, n, seed=3)
        functional = torch.nn.functional
        linear, w, b, o = functional.linear, self.weight, self.bias, self.other
        epilogue, bias, eager = {
            "silu": (E.silu(), None, lambda x: functional.silu(linear(x, w))),
            "gelu_bias": (E.gelu(), b, lambda x: functional.gelu(linear(x, w, b))),
            "residual": (E.add("o"), None, lambda x: linear(x, w) + o),
            "sigmoid_gate": (E.sigmoid().multiply("o"), None, lambda x: torch.sigmoid(linear(x, w)) * o),
            "weighted": (E.multiply("o"), None, lambda x: linear(x, w) * o),
            "lora_add": (E.add("o"), None, lambda x: linear(x, w) + o),
        }[name]
        operands = {"o": o} if epilogue.names else {}
        self.eager: Callable[[Any], Any] = eager
        self.ours: Callable[..., Any] = lambda x, **choices: gemmdesc.linear(
            x, w, bias, epilogue=epilogue, operands=operands, **choices
        )


GROUPS = ("silu", "gelu_bias", "residual", "sigmoid_gate", "weighted", "lora_add")


def same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool((signed_bits(one) == signed_bits(other)).all())


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that took the long way."""
    from gemmdesc.dropin import fused

    taken: list[str] = []
    original = fused.FusedCall.run

    def run(self: Any, *given: Any) -> Any:
        taken.append(self.name)
        return original(self, *given)

    monkeypatch.setattr(fused.FusedCall, "run", run)
    return taken


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", GROUPS)
def test_both_ways_have_eagers_bytes(name: str, shape: tuple[int, int, int], long_ways: list[str]) -> None:
    m, _, k = shape
    group = Group(name, *shape)
    group.ours(drawn(m, k, seed=10))
    known = len(long_ways)
    results = []
    for seed in (10, 11, 12):
        x = drawn(m, k, seed=seed)
        results.append(group.ours(x))
        assert same(results[-1], group.eager(x)), seed
    assert len(long_ways) == known, "calls made before take the short way"
    assert len({t.data_ptr() for t in results}) == len(results)


@pytest.mark.parametrize("name", GROUPS)
def test_streams_and_threads_do_not_mix(name: str, long_ways: list[str]) -> None:
    m, n, k = 64, 4096, 4096
    group = Group(name, m, n, k)
    given = [drawn(m, k, seed=20 + i) for i in range(2)]
    want = [group.eager(x) for x in given]
    group.ours(given[0])
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            results = [group.ours(given[i]) for _ in range(50)]
        stream.synchronize()
        wrong.extend(i for t in results if not same(t, want[i]))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert len(long_ways) <= 1


@pytest.mark.parametrize("name", GROUPS)
def test_a_graph_captures_a_call_made_before_and_reads_its_tensors_anew(name: str) -> None:
    m, n, k = 16, 2048, 1024
    group = Group(name, m, n, k)
    x = drawn(m, k, seed=30)
    group.ours(x)
    group.ours(x)
    for _ in range(2):  # the second capture is of a call that was captured before
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = group.ours(x)
        for seed in (31, 32):
            x.copy_(drawn(m, k, seed=seed))
            graph.replay()
            assert same(got, group.eager(x)), seed
    assert same(group.ours(x), group.eager(x))


def test_another_planner_and_a_reload_are_asked_again(long_ways: list[str]) -> None:
    from gemmdesc.ops import default_planner
    from gemmdesc.plan import planner_for

    group = Group("residual", 16, 2048, 1024)
    x = drawn(16, 1024, seed=40)
    group.ours(x)
    long_ways.clear()
    group.ours(x)
    assert long_ways == []
    other = planner_for(torch.cuda.current_device())
    try:
        for _ in range(2):
            assert same(group.ours(x, planner=other), group.eager(x))
        assert len(long_ways) == 1
        default_planner().reload()
        for _ in range(2):
            assert same(group.ours(x), group.eager(x))
        assert len(long_ways) == 2
    finally:
        other.close()


def test_the_host_is_asked_by_c() -> None:
    """Where torch gives DLPack's functions and there is a compiler, all of a call is one function in C."""
    from gemmdesc.dropin.repeated import repeated_calls
    from gemmdesc.kernels.launch_loop import host_function

    if host_function("repeat_call") is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("no compiler, or an older torch")
    group = Group("silu", 16, 2048, 1024)
    group.ours(drawn(16, 1024, seed=50))
    calls = repeated_calls()
    assert calls._repeat is not None
    x = drawn(16, 1024, seed=51)
    head = ("linear", E.silu().spelled, 2)
    with torch.no_grad():
        group.ours(x)
        from gemmdesc.ops.defaults import known_planner

        found = calls._repeat(head, (x, group.weight), {}, None, known_planner)
    assert isinstance(found, torch.Tensor)
    assert same(found, group.eager(x))
