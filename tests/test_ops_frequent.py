"""The short way of ``matmul`` and ``run``: what it looks a call up by, what sends one the long way, what is launched.

Tensors lie on the host; a device of the tests takes what would be launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

import gemmdesc
from gemmdesc.errors import Declined, LaunchError
from gemmdesc.kernels.preparing import prepare
from gemmdesc.library.torch_settings import read_settings, settings_key
from gemmdesc.ops import plan
from gemmdesc.ops import run as run_plan
from gemmdesc.ops.frequent import FrequentProducts, Made, Runtime
from gemmdesc.ops.launching import taken_by
from gemmdesc.plan import Plan, Planner
from gemmdesc.plan.cache import QuickCache
from gemmdesc.routes import TensorMeta
from tests.test_kernels_prepared import NotingDevice
from tests.test_ops import half, placed, planner_of

HALF = torch.float16
M, N, K = 80, 96, 4096


@dataclass
class Bench:
    """Frequent products on one pretended device, which runs nothing."""

    device: NotingDevice = field(default_factory=NotingDevice)
    planner: Planner = field(default_factory=planner_of)
    captured: bool = False
    stream: int = 3
    index: int = 0
    products: Any = None
    elsewhere: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        runtime = Runtime(
            device_of=lambda t: self.index + any(t is x for x in self.elsewhere), current_device=lambda: 0,
            current_stream=lambda index: self.stream, is_capturing=lambda: self.captured, settings=settings_key(),
        )  # fmt: skip
        self.products = FrequentProducts(runtime)

    def planned(self, a: Any, b: Any, out: Any = None) -> Plan:
        sides = [meta_of(t) for t in (a, b)]
        result = TensorMeta(shape=(M, N), strides=(N, 1), dtype=sides[0].dtype) if out is None else meta_of(out)
        found = self.planner.plan_mm(*sides, result, read_settings("sm_90"), captured=self.captured)
        assert isinstance(found, Plan)
        if self.index not in found.programs.by_device:
            made = prepare(
                found.kernel, found.meta, taken_by(found), torch.device("cpu"), load=self.device.load,
                driver=lambda: self.device,
            )  # fmt: skip
            found.programs.by_device[self.index] = made
        return found

    def long_way(self, a: Any, b: Any, out: Any = None, out_dtype: Any = None) -> Plan:
        """What ``matmul`` does but for launching, with the notes that it takes."""
        noting = self.products.begin(self.planner)
        found = self.planned(a, b, out)
        target = torch.empty((M, N), dtype=HALF) if out is None else out
        self.products.note(noting, found, Made(a=a, b=b, target=target, out=out, out_dtype=out_dtype))
        return found

    def again(self, a: Any, b: Any, out: Any = None, out_dtype: Any = None) -> Any:
        return self.products.matmul(a, b, out, out_dtype, self.planner)


def meta_of(t: Any) -> TensorMeta:
    from gemmdesc.ops.sides import meta_of as real

    return real(t)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def operands() -> tuple[Any, Any, Any]:
    return placed(M, K), placed(K, N), placed(M, N)


def test_a_call_like_one_before_is_launched_on_its_own_tensors(bench: Bench) -> None:
    a, b, out = operands()
    bench.long_way(a, b, out)
    version = out._version
    for left, right, result in ((a, b, out), operands()):
        bench.device.calls.clear()
        assert bench.again(left, right, result) is result
        assert bench.device.streams[-1] == bench.stream
        assert bench.device.calls[0][2][:2] == [left.data_ptr(), right.data_ptr()]
        assert result.data_ptr() in bench.device.calls[-1][2]
    assert out._version == version + 1


def test_a_level_of_dual_numbers_takes_the_long_way(bench: Bench) -> None:
    from torch.autograd import forward_ad

    a, b, out = operands()
    bench.long_way(a, b, out)
    with forward_ad.dual_level():
        assert bench.again(a, b, out) is None
    assert bench.again(a, b, out) is out


def test_a_new_result_is_as_torch_makes_one(bench: Bench) -> None:
    a, b, _ = operands()
    bench.long_way(a, b)
    assert bench.again(a, b, placed(M, N)) is None
    result = bench.again(a, b)
    assert (tuple(result.shape), result.stride(), result.dtype, result._version) == ((M, N), (N, 1), HALF, 0)
    assert not result.requires_grad
    assert result.data_ptr() in bench.device.calls[-1][2]


def test_scratch_is_new_at_each_call_and_nothing_is_kept(bench: Bench) -> None:
    a, b, out = operands()
    found = bench.long_way(a, b, out)
    assert found.programs.by_device[0].scratch_bytes > 0
    seen: list[Any] = []
    original = bench.device.run

    def run(step: Any, programs: int, arguments: list[Any]) -> None:
        seen.append(arguments[0].data_ptr() if hasattr(arguments[0], "data_ptr") else None)
        original(step, programs, arguments)

    bench.device.run = run  # type: ignore[method-assign]
    bench.again(a, b, out)
    partials = seen[-1]
    assert partials not in (a.data_ptr(), b.data_ptr(), out.data_ptr())


@pytest.mark.parametrize("fails", [False, True])
def test_scratch_of_the_allocator_is_the_streams_and_given_back(fails: bool, bench: Bench) -> None:
    a, b, out = operands()
    found = bench.long_way(a, b, out)
    size = found.programs.by_device[0].scratch_bytes
    memory, log = torch.empty(size, dtype=torch.uint8), []

    def take(count: int, stream: int) -> int:
        log.append(("take", count, stream))
        return memory.data_ptr()

    bench.products._runtime = replace(
        bench.products._runtime, scratch=(take, lambda address: log.append(("give back", address)))
    )
    original = bench.device.run

    def run(step: Any, programs: int, arguments: list[Any]) -> None:
        log.append("launch")
        original(step, programs, arguments)
        if fails:
            raise LaunchError("refused")

    bench.device.run = run  # type: ignore[method-assign]
    with pytest.raises(LaunchError) if fails else nullcontext():
        assert bench.again(a, b, out) is out
    launches = ["launch"] * (1 if fails else found.programs.by_device[0].launches)
    assert log == [("take", size, bench.stream), *launches, ("give back", memory.data_ptr())]
    within = range(memory.data_ptr(), memory.data_ptr() + size)
    used = [x for _, _, given in bench.device.calls for x in given if isinstance(x, int) and x in within]
    assert len(used) >= len(launches)


@pytest.mark.parametrize("release", ["this", "takes a tensor", "public only"])
def test_a_write_is_seen_by_autograd_whatever_the_release(
    release: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_a_tensor(tensor: Any) -> None:
        if isinstance(tensor, tuple):
            raise TypeError("expected a tensor")

    if release == "takes a tensor":
        original = torch._C._increment_version
        monkeypatch.setattr(torch._C, "_increment_version", of_a_tensor)
        monkeypatch.setattr(torch.autograd.graph, "increment_version", lambda tensor: original((tensor,)))
    elif release == "public only":
        original = torch._C._increment_version
        monkeypatch.delattr(torch._C, "_increment_version")
        monkeypatch.setattr(torch.autograd.graph, "increment_version", lambda tensor: original((tensor,)))
    bench.products = FrequentProducts(bench.products._runtime)
    a, b, out = operands()
    bench.long_way(a, b, out)
    before = out._version
    assert bench.again(a, b, out) is out
    assert out._version == before + 1


#: Each changes one thing of a call.
CHANGES: dict[str, Callable[[Any, Any, Any], tuple[Any, ...]]] = {
    "alignment of a": lambda a, b, out: (placed(M, K, 1), b, out),
    "alignment of b": lambda a, b, out: (a, placed(K, N, 8), out),
    "alignment of out": lambda a, b, out: (a, b, placed(M, N, 64)),
    "pitch of a": lambda a, b, out: (half(M, K + 64)[:, :K], b, out),
    "layout of b": lambda a, b, out: (a, placed(N, K).T, out),
    "layout of out": lambda a, b, out: (a, b, placed(N, M).T),
    "rows": lambda a, b, out: (placed(2 * M, K), b, placed(2 * M, N)),
    "types": lambda a, b, out: (a.bfloat16(), b.bfloat16(), out.bfloat16()),
    "result's type": lambda a, b, out: (a, b, out.float()),
    "no out": lambda a, b, out: (a, b, None),
    "out_dtype": lambda a, b, out: (a, b, out, HALF),
    "a subclass": lambda a, b, out: (a.as_subclass(type("Odd", (torch.Tensor,), {})), b, out),
    "no tensor": lambda a, b, out: (a, [1.0], out),
    "sparse": lambda a, b, out: (a.to_sparse(), b, out),
    "a type that is none": lambda a, b, out: (a, b, out, [3]),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore")
def test_another_call_takes_the_long_way(name: str, bench: Bench) -> None:
    a, b, out = operands()
    bench.long_way(a, b, out)
    changed = CHANGES[name](a, b, out)
    assert bench.again(*changed) is None
    assert bench.device.calls == []
    assert bench.again(a, b, out) is out


@contextmanager
def flag(name: str, value: Any) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def test_torchs_settings_are_read_at_the_call(bench: Bench) -> None:
    a, b, out = operands()
    bench.long_way(a, b, out)
    with flag("allow_fp16_reduced_precision_reduction", False):
        assert bench.again(a, b, out) is None
        other = bench.long_way(a, b, out)
        assert other.problem.reduction_scheme_mask == 2
        assert bench.again(a, b, out) is out
    assert bench.again(a, b, out) is out
    assert len(bench.planner.frequent) == 2


def test_a_capture_is_another_call(bench: Bench) -> None:
    a, b, out = operands()
    usual = bench.long_way(a, b, out)
    bench.captured = True
    assert bench.again(a, b, out) is None
    captured = bench.long_way(a, b, out)
    assert captured.captured
    assert captured.programs.by_device is usual.programs.by_device
    assert bench.again(a, b, out) is out


def test_settings_that_change_while_a_call_is_planned_leave_no_note(bench: Bench) -> None:
    a, b, out = operands()
    noting = bench.products.begin(bench.planner)
    found = bench.planned(a, b, out)
    with flag("allow_bf16_reduced_precision_reduction", False):
        bench.products.note(noting, found, Made(a=a, b=b, target=out, out=out))
    assert bench.again(a, b, out) is None


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_what_no_lookup_decides_is_checked(bench: Bench) -> None:
    a, b, out = operands()
    bench.long_way(a, b, out)
    buffer = placed(2 * M, K)
    negated = torch.zeros((M, K), dtype=torch.complex32).conj().imag
    leaf = torch.nn.Parameter(placed(M, K))
    assert bench.again(a, b, buffer.view(-1)[: M * N].view(M, N)) is not None
    for left, right, result in (
        (buffer[:M], b, buffer.view(-1)[M * K - 512 : M * K - 512 + M * N].view(M, N)),
        (leaf, b, out),
        (negated, b, out),
    ):
        assert bench.again(left, right, result) is None
    with torch.no_grad():
        assert bench.again(leaf, b, out) is out
    with torch.inference_mode():
        assert bench.again(a, b, placed(M, N)) is not None


def test_autocast_takes_the_long_way_unless_a_plan_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out = operands()
    found = bench.long_way(a, b, out)
    bench.products.note_run(found, Made(a=a, b=b, target=out, out=out), bench.planner)
    bench.products._autocast = lambda: True
    assert bench.again(a, b, out) is None
    assert bench.products.run(found, a, b, out, bench.planner) is out


def test_tensors_on_the_host_take_the_long_way(bench: Bench) -> None:
    a, b, out = operands()
    bench.long_way(a, b, out)
    bench.index = -1
    assert bench.again(a, b, out) is None


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_operand_on_another_device_takes_the_long_way(which: int, bench: Bench) -> None:
    tensors = operands()
    found = bench.long_way(*tensors)
    bench.products.note_run(found, Made(a=tensors[0], b=tensors[1], target=tensors[2], out=tensors[2]), None)
    bench.elsewhere.append(tensors[which])
    bench.products._on_device = lambda index: nullcontext()
    bench.products._runtime = replace(bench.products._runtime, current_device=lambda: which == 0)
    assert bench.again(*tensors) is None
    assert bench.products.run(found, *tensors, None) is None
    assert bench.device.calls == []


def test_another_device_is_made_current(bench: Bench) -> None:
    entered: list[int] = []

    @contextmanager
    def device(index: int) -> Iterator[None]:
        entered.append(index)
        bench.products._runtime = replace(bench.products._runtime, current_device=lambda: index)
        yield

    bench.index, bench.products._on_device = 1, device
    a, b, out = operands()
    found = bench.long_way(a, b, out)
    bench.products.note_run(found, Made(a=a, b=b, target=out, out=out), None)
    assert bench.again(a, b, out) is out
    bench.products._runtime = replace(bench.products._runtime, current_device=lambda: 0)
    assert bench.products.run(found, a, b, out, None) is out
    assert entered == [1, 1]
    bench.index = 0
    assert bench.products.run(found, a, b, out, None) is None


def test_reload_forgets_frequent_calls(bench: Bench) -> None:
    a, b, out = operands()
    noting = bench.products.begin(bench.planner)
    found = bench.long_way(a, b, out)
    bench.planner.reload()
    assert bench.again(a, b, out) is None
    # What was being planned when the profile changed is not noted either.
    bench.products.note(noting, found, Made(a=a, b=b, target=out, out=out))
    assert bench.again(a, b, out) is None


def test_a_plan_runs_the_short_way_on_what_it_ran_on(bench: Bench) -> None:
    a, b, out = operands()
    found = bench.planned(a, b, out)
    go = bench.products.run
    assert go(found, a, b, out, bench.planner) is None
    bench.products.note_run(found, Made(a=a, b=b, target=out, out=out), bench.planner)
    assert go(found, a, b, out, bench.planner) is out
    assert go(found, a, b, None, bench.planner) is None
    assert go(found, a, b, out, planner_of()) is None
    for left, right, result in ((placed(M, K, 1), b, out), (a, placed(N, K).T, out), (a, b, placed(M, N, 8))):
        assert go(found, left, right, result, bench.planner) is None
    bench.products.note_run(found, Made(a=a, b=b, target=out, out=None), bench.planner)
    assert go(found, a, b, None, bench.planner).shape == (M, N)


def test_a_plan_without_a_program_leaves_no_note(bench: Bench) -> None:
    a, b, out = operands()
    found = bench.planned(a, b, out)
    found.programs.by_device[0] = SimpleNamespace(reason="interpreted")
    noting = bench.products.begin(bench.planner)
    bench.products.note(noting, found, Made(a=a, b=b, target=out, out=out))
    bench.products.note_run(found, Made(a=a, b=b, target=out, out=out), bench.planner)
    assert bench.again(a, b, out) is None
    assert bench.products.run(found, a, b, out, bench.planner) is None


def test_both_functions_take_the_short_way(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmdesc.dropin import composite
    from gemmdesc.ops import products

    a, b, out = operands()
    found = bench.long_way(a, b, out)
    bench.long_way(a, b)
    bench.products.note_run(found, Made(a=a, b=b, target=out, out=out), bench.planner)
    for module in (composite, products):
        monkeypatch.setattr(module, "frequent_products", lambda: bench.products)
    assert gemmdesc.matmul(a, b, out=out, planner=bench.planner) is out
    assert gemmdesc.matmul(a, b, planner=bench.planner, on_decline="library").shape == (M, N)
    assert run_plan(found, a, b, out=out, planner=bench.planner) is out
    assert len(bench.device.calls) == 3 * len(found.programs.by_device[0]._streams)
    # A decline is never noted, so that it is always one.
    other = planner_of(Declined(code="no_profile", reason="none"))
    assert isinstance(plan(meta_of(a), meta_of(b), planner=other), Declined)
    assert bench.products.matmul(a, b, out, None, other) is None


def test_a_quick_cache_forgets_what_came_first() -> None:
    cache: QuickCache[int, str] = QuickCache(3)
    for i in range(5):
        cache.put(i, str(i))
    assert [cache.get(i) for i in range(5)] == [None, None, "2", "3", "4"]
    assert len(cache) == 3
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        QuickCache(0)
