"""Calls made before: found by all that they depend on, launched by one program each; what sends a call the long way.

Tensors lie on the host; a device of the tests takes what would be launched.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gemmdesc
from gemmdesc import Epilogue
from gemmdesc.dropin import fused, planned, repeated, through
from gemmdesc.dropin.ledger import Ledger
from gemmdesc.dropin.planned import Launched, ready
from gemmdesc.dropin.products import Product
from gemmdesc.dropin.repeated import RepeatedCalls
from gemmdesc.errors import Declined, LaunchError
from gemmdesc.kernels.prepared import PreparedProgram
from gemmdesc.kernels.preparing import named_metas, prepare
from gemmdesc.library.torch_settings import TorchSettings, settings_key, settings_parts
from gemmdesc.ops import problems, stored
from gemmdesc.ops.frequent import Runtime
from gemmdesc.ops.launching import taken_by
from gemmdesc.ops.stored import reader_in_python
from gemmdesc.plan import Planner
from gemmdesc.routes import READ_FOR, address_alignment
from tests.test_dropin_planned import planner as kinds_planner
from tests.test_kernels_prepared import NotingDevice

HALF = torch.float16
E = Epilogue()
M, N, K = 24, 64, 96
#: ``kDLCPU``.
DLPACK_CPU = 1


@dataclass(eq=False)
class Bench:
    """An executor of products on one pretended device, and the calls that were made before on it."""

    device: NotingDevice = field(default_factory=NotingDevice)
    planner: Planner = field(default_factory=kinds_planner)
    ledger: Ledger = field(default_factory=Ledger)
    long: int = 0
    captured: bool = False
    device_type: str = "cpu"
    elsewhere: list[Any] = field(default_factory=list)
    stream: int = 3
    current: int = 0
    way: str = "python"

    def __post_init__(self) -> None:
        runtime = Runtime(
            device_of=lambda t: int(any(t is x for x in self.elsewhere)), current_device=lambda: self.current,
            current_stream=lambda index: self.stream, is_capturing=lambda: self.captured, settings=settings_key(),
            settings_parts=settings_parts(), device_type=DLPACK_CPU,
        )  # fmt: skip
        self.calls = RepeatedCalls(runtime, self.ledger, reader_in_python(runtime) if self.way == "python" else None)
        assert (self.calls._repeat is not None) == (self.way != "python")
        if self.way == "C":
            self.device.in_c()

    def circumstances(self, product: Product) -> Any:
        return TorchSettings(), READ_FOR

    def run(self, product: Product) -> Any:
        """The long way, but for launching."""
        self.long += 1
        found = ready(self.planner, product, *self.circumstances(product))
        if isinstance(found, Declined):
            return found
        taken = taken_by(found.plan, named_metas(found.tensors.named))
        program = prepare(
            found.plan.kernel, found.plan.meta, taken, torch.device("cpu"), load=self.device.load,
            driver=lambda: self.device,
        )  # fmt: skip
        assert isinstance(program, PreparedProgram), program
        if product.witness is not None:
            product.witness(Launched(planner=self.planner, program=program, ready=found))
        return found.out


#: Python alone; C that reads, and Python that launches; C that does both.
WAYS = ("python", "reading by C", "C")


@pytest.fixture(params=WAYS)
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return set_up(request.param, monkeypatch)


def set_up(way: str, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(way=way)
    made.planner.reload()
    monkeypatch.setattr(through, "executor_of", lambda **choices: made)
    for module in (fused, repeated):
        monkeypatch.setattr(module, "repeated_calls", lambda: made.calls)
    # A GPU has the functions that a host declines.
    monkeypatch.setattr(planned, "fused_decline", lambda product, route: None)
    monkeypatch.setattr(repeated, "known_planner", lambda index: made.planner)
    monkeypatch.setattr(problems, "address_alignment", lambda a: 256 if a % 64 == 0 else address_alignment(a))
    return made


def half(*shape: int, dtype: Any = HALF) -> Any:
    """At an address that 256 divides, as allocations of a GPU's are."""
    size = torch.Size(shape).numel()
    whole = torch.ones(size + 256, dtype=dtype)
    offset = (-whole.data_ptr() % 256) // whole.element_size()
    return whole[offset : offset + size].view(shape)


CALLS: dict[str, Any] = {
    "silu": lambda x, w, b, r: gemmdesc.linear(x, w, epilogue=E.silu()),
    "gelu of a bias": lambda x, w, b, r: gemmdesc.linear(x, w, epilogue=E.add("b").gelu(), operands={"b": b}),
    "residual": lambda x, w, b, r: gemmdesc.linear(x, w, epilogue=E.add("r"), operands={"r": r}),
    "sigmoid gate": lambda x, w, b, r: gemmdesc.linear(x, w, epilogue=E.sigmoid().multiply("r"), operands={"r": r}),
    "softcap": lambda x, w, b, r: gemmdesc.matmul(x, w.T, epilogue=E.softcap(30.0)),
    "8 bits": lambda x, w, b, r: gemmdesc.matmul(x, w.T, epilogue=E.multiply(0.5).to(torch.float8_e4m3fn)),
    "linear": lambda x, w, b, r: gemmdesc.linear(x, w),
    "a bias": lambda x, w, b, r: gemmdesc.linear(x, w, b),
    "a bias, relu": lambda x, w, b, r: gemmdesc.linear(x, w, b, epilogue=E.relu()),
    "mm": lambda x, w, b, r: gemmdesc.mm(x, w.T),
}


def tensors() -> tuple[Any, Any, Any, Any]:
    return half(M, K), half(N, K), half(N), half(M, N)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_made_before_is_launched_on_its_own_tensors(name: str, bench: Bench) -> None:
    call, first = CALLS[name], tensors()
    want = call(*first)
    assert bench.long == 1
    for given in (first, tensors()):
        bench.device.calls.clear()
        got = call(*given)
        assert bench.long == 1
        assert (got.shape, got.stride(), got.dtype, got._version) == (want.shape, want.stride(), want.dtype, 0)
        read = {a for _, _, arguments in bench.device.calls for a in arguments if isinstance(a, int)}
        wanted = {given[0].data_ptr(), given[1].data_ptr(), got.data_ptr()}
        wanted |= {given[2].data_ptr()} if "bias" in name else set()
        wanted |= {given[3].data_ptr()} if name in ("residual", "sigmoid gate") else set()
        assert wanted <= read
        # A bias alone is a kernel of its own behind the chain; with something after it, one kernel does it all.
        assert len(bench.device.calls) == (2 if name == "a bias" else 1)
    assert bench.ledger.report().ours == 2


def test_numbers_are_told_apart_by_their_bits(bench: Bench) -> None:
    x, w, _, _ = tensors()
    for number in (0.0, -0.0, 2.0):
        gemmdesc.linear(x, w, epilogue=E.multiply(number))
    assert bench.long == 3
    for number in (0.0, -0.0, 2.0):
        bench.device.calls.clear()
        gemmdesc.linear(x, w, epilogue=E.multiply(number))
        assert str(number) in [str(a) for a in bench.device.calls[0][2] if isinstance(a, float)]
    assert bench.long == 3


def test_what_is_unlike_takes_the_long_way(bench: Bench) -> None:
    x, w, b, r = tensors()
    call = lambda x=x, r=r, name="r", e=None: gemmdesc.linear(  # noqa: E731
        x, w, epilogue=e or E.add(name), operands={name: r}
    )
    call()
    others = [
        lambda: call(r=b), lambda: call(r=half(M, 1)), lambda: call(r=half(M, N, dtype=torch.float32)),
        lambda: call(r=half(N, M).T), lambda: call(name="other"), lambda: call(e=E.multiply("r")),
        lambda: call(x=half(2 * M, K)[::2]), lambda: call(x=half(2, 12, K), r=half(2, 12, N)),
    ]  # fmt: skip
    for i, other in enumerate(others):
        other()
        assert bench.long == 2 + i, i
    bench.captured = True
    call()
    assert bench.long == 2 + len(others)
    bench.captured = False
    call()
    assert bench.long == 2 + len(others)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(gemmdesc.errors.DeclinedError, match="autocast"):
        call()
    with pytest.raises(gemmdesc.errors.DeclinedError, match="gradients"):
        call(r=r.clone().requires_grad_())
    if bench.way == "python":
        bench.elsewhere.append(r)
        call()
        assert bench.long == 3 + len(others), "an operand on another device is never looked up"


def test_a_number_on_the_host_is_never_compiled_in(bench: Bench) -> None:
    """Its value may be another one at the next call."""
    if bench.way != "python":
        pytest.skip("C asks the tensors themselves, which are all on the host here")
    x, w, _, _ = tensors()
    scale = torch.tensor(0.5)
    bench.elsewhere.append(scale)
    for _ in range(2):
        gemmdesc.linear(x, w, epilogue=E.multiply("s"), operands={"s": scale})
    assert bench.long == 2


def test_a_repeated_call_does_little(bench: Bench) -> None:
    """Functions of Python's that a fused call enters, beside the pretended device's and the test's own."""
    x, w, _, r = tensors()
    epilogue, operands = E.add("r"), {"r": r}
    call = lambda: gemmdesc.linear(x, w, epilogue=epilogue, operands=operands)  # noqa: E731
    call()
    held = [call()]  # the next result is at another address
    held.append(call())
    entered: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "gemmdesc" in frame.f_globals.get("__name__", ""):
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        del held[0]
        call()
    finally:
        sys.setprofile(None)
    assert bench.long == 1
    assert len(entered) < (12 if bench.way == "C" else 40), entered


class Ours(torch.Tensor):
    """A class of its own."""


class Functions(TorchFunctionMode):
    """Sees torch's functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Sees torch's operators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def setting(name: str, value: Any) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def shifted(tensor: Any, bytes_on: int) -> Any:
    """The same strides at an address of another alignment."""
    whole = half(tensor.numel() + 128)
    at = bytes_on // whole.element_size()
    return whole[at : at + tensor.numel()].view(tensor.shape)


def lazily_negated(*shape: int) -> Any:
    return torch.zeros(shape, dtype=torch.complex32).conj().imag


#: Each changes one thing of a call, by what it is given instead.
OTHER_CALLS: dict[str, Any] = {
    "sizes": lambda x, w, r: {"x": half(2 * M, K), "r": half(2 * M, N)},
    "strides": lambda x, w, r: {"x": half(M, K + 64)[:, :K]},
    "strides of an operand": lambda x, w, r: {"r": half(M, N + 64)[:, :N]},
    "layout of the weight": lambda x, w, r: {"w": half(K, N).T},
    "types": lambda x, w, r: {"x": x.bfloat16(), "w": w.bfloat16(), "r": r.bfloat16()},
    "type of an operand": lambda x, w, r: {"r": half(M, N, dtype=torch.float32)},
    "alignment": lambda x, w, r: {"x": shifted(x, 16)},
    "alignment of an operand": lambda x, w, r: {"r": shifted(r, 64)},
    "a subclass": lambda x, w, r: {"x": x.as_subclass(Ours)},
    "an operand of a subclass": lambda x, w, r: {"r": r.as_subclass(Ours)},
    "no tensor": lambda x, w, r: {"w": [1.0]},
    "an operand that is none": lambda x, w, r: {"r": 2.0},
    "lazily negated": lambda x, w, r: {"x": lazily_negated(M, K)},
    "an operand lazily negated": lambda x, w, r: {"r": lazily_negated(M, N)},
    "sparse": lambda x, w, r: {"r": r.to_sparse()},
    "without memory": lambda x, w, r: {"x": torch.empty((M, K), dtype=HALF, device="meta")},
    "a gradient is wanted": lambda x, w, r: {"x": half(M, K).requires_grad_()},
    "a gradient of an operand is wanted": lambda x, w, r: {"r": half(M, N).requires_grad_()},
    "the epilogue": lambda x, w, r: {"epilogue": E.multiply("r")},
    "no epilogue": lambda x, w, r: {"epilogue": None},
    "a class of epilogues": lambda x, w, r: {"epilogue": type("Own", (Epilogue,), {})(E.add("r").steps)},
    "names": lambda x, w, r: {"operands": {"s": r}},
    "another mapping": lambda x, w, r: {"operands": OrderedDict(r=r)},
    "a bias": lambda x, w, r: {"bias": half(N)},
    "the function": lambda x, w, r: {"name": "matmul"},
    "profiles": lambda x, w, r: {"choices": {"profiles": "here"}},
    "a pin": lambda x, w, r: {"choices": {"pin": object()}},
    "a book": lambda x, w, r: {"choices": {"book": "here"}},
    "an unknown policy": lambda x, w, r: {"choices": {"on_decline": "maybe"}},
    "another planner": lambda x, w, r: {"choices": {"planner": SimpleNamespace(repeated={})}},
}  # fmt: skip

#: Each changes what is around a call.
CIRCUMSTANCES: dict[str, Any] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a function mode": Functions,
    "a dispatch mode": Dispatched,
    "dual numbers": forward_ad.dual_level,
    "a flag": lambda: setting("allow_fp16_reduced_precision_reduction", False),
    "precision": lambda: setting("allow_tf32", True),
}  # fmt: skip


def found(bench: Bench, x: Any, w: Any, r: Any, /, **changed: Any) -> Any:
    """The result of a call that is found, None where it has to take the long way."""
    given = {"name": "linear", "x": x, "w": w, "bias": None, "r": r, "epilogue": E.add("r"), "choices": {}} | changed
    operands = given.get("operands", {"r": given["r"]})
    tensors = given["x"], given["w"], given["bias"]
    return bench.calls.find(given["name"], tensors, given["epilogue"], operands, given["choices"])[1]


@pytest.fixture
def noted(bench: Bench) -> tuple[Bench, Any, Any, Any]:
    x, w, _, r = tensors()
    gemmdesc.linear(x, w, epilogue=E.add("r"), operands={"r": r})
    assert found(bench, x, w, r) is not None
    return bench, x, w, r


@pytest.mark.parametrize("name", OTHER_CALLS)
@pytest.mark.filterwarnings("ignore")
def test_a_call_is_refused_where_one_thing_is_another(name: str, noted: tuple[Bench, Any, Any, Any]) -> None:
    bench, x, w, r = noted
    bench.device.calls.clear()
    assert found(bench, x, w, r, **OTHER_CALLS[name](x, w, r)) is None
    assert bench.device.calls == []
    assert found(bench, x, w, r) is not None


@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_a_call_is_refused_where_something_else_is_on(name: str, noted: tuple[Bench, Any, Any, Any]) -> None:
    bench, x, w, r = noted
    with CIRCUMSTANCES[name]():
        assert found(bench, x, w, r) is None
    assert found(bench, x, w, r) is not None


def test_what_changes_no_call_refuses_none(noted: tuple[Bench, Any, Any, Any]) -> None:
    bench, x, w, r = noted
    with torch.no_grad():
        assert found(bench, torch.nn.Parameter(x), torch.nn.Parameter(w), r) is not None
    with torch.inference_mode():
        assert found(bench, x, w, r).is_inference()
    with torch.device("cpu"):  # a function mode, which names the device of new tensors
        assert found(bench, x, w, r) is not None
    assert found(bench, x, w, r, choices={"on_decline": "library", "planner": bench.planner}) is not None


def test_a_capture_a_reload_and_another_device_are_other_calls(noted: tuple[Bench, Any, Any, Any]) -> None:
    bench, x, w, r = noted
    bench.captured = True
    assert found(bench, x, w, r) is None
    bench.captured, bench.current = False, 1
    assert found(bench, x, w, r) is None
    bench.current = 0
    assert found(bench, x, w, r) is not None
    bench.planner.reload()
    assert found(bench, x, w, r) is None


def test_strides_of_single_rows_are_told_apart(bench: Bench) -> None:
    """Torch's routes may ask for them, though no element lies there."""
    whole = half(4, K)
    keys = [bench.calls._read("", (whole.as_strided((1, K), (step, 1)),), None) for step in (K, 2 * K)]
    assert keys[0] is not None
    assert keys[1] is not None
    assert keys[0][0] != keys[1][0]
    assert keys[0][1:] == keys[1][1:]


def test_each_result_has_memory_of_its_own_and_each_call_its_stream(noted: tuple[Bench, Any, Any, Any]) -> None:
    bench, x, w, r = noted
    results = []
    for bench.stream in (3, 2**40 + 1, 0):
        results.append(found(bench, x, w, r))
        assert bench.device.streams[-1] == bench.stream
    assert len({t.data_ptr() for t in results}) == 3
    assert results[0].untyped_storage().nbytes() == results[0].numel() * 2


def test_threads_do_not_mix_their_calls(noted: tuple[Bench, Any, Any, Any]) -> None:
    bench, _, w, r = noted
    bench.device.calls.clear()
    given = [half(M, K) for _ in range(4)]

    def work(x: Any) -> list[Any]:
        return [found(bench, x, w, r) for _ in range(25)]

    with ThreadPoolExecutor(4) as pool:
        results = [t for part in pool.map(work, given) for t in part]
    assert all(t is not None for t in results)
    pairs = {(c[2][1], c[2][2]) for c in bench.device.calls} | {(c[2][0], c[2][2]) for c in bench.device.calls}
    assert {x.data_ptr() for x in given} <= {pair[0] for pair in pairs}
    assert len(bench.device.calls) == 100
    assert bench.device.failures == []
    assert bench.ledger.report().ours == 101


@pytest.mark.parametrize("name", CALLS)
def test_all_ways_give_the_kernels_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the long way's program is given by Python, number for number but for addresses of new memory."""
    call, given, noted = CALLS[name], tensors(), []
    for way in WAYS:
        with monkeypatch.context() as patch:
            here = set_up(way, patch)
            call(*given)
            held = []
            for _ in range(3):
                here.device.calls.clear()
                held.append(call(*given))
            assert here.long == 1
            known = {t.data_ptr() for t in given} | {held[-1].data_ptr()}
            named = {held[-1].data_ptr(): "out"}
            noted.append([
                (step.variant, programs, [
                    "scratch" if isinstance(a, int) and a > 2**32 and a not in known else named.get(a, a)
                    for a in arguments
                ])
                for step, programs, arguments in here.device.calls
            ])  # fmt: skip
    assert noted[0] == noted[1] == noted[2]
    assert any("out" in arguments for _, _, arguments in noted[0])


def test_a_refused_launch_is_named_and_the_next_call_works(noted: tuple[Bench, Any, Any, Any]) -> None:
    bench, x, w, r = noted
    before = bench.ledger.report().ours
    bench.device.launch = lambda *given: 700  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match=r"^cuLaunchKernelEx must succeed \(got CUDA_ERROR_700\)$"):
        found(bench, x, w, r)
    del bench.device.launch
    assert found(bench, x, w, r) is not None
    assert bench.ledger.report().ours == before + 1


def test_settings_that_change_under_the_long_way_leave_no_note(bench: Bench) -> None:
    x, w, _, r = tensors()
    original = bench.run

    def run(product: Product) -> Any:
        bench.captured = True
        return original(product)

    bench.run = run  # type: ignore[method-assign]
    gemmdesc.linear(x, w, epilogue=E.add("r"), operands={"r": r})
    for bench.captured in (False, True):
        assert found(bench, x, w, r) is None


def test_derivatives_of_dual_numbers_are_declined(bench: Bench) -> None:
    x, w, _, r = tensors()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(gemmdesc.errors.DeclinedError, match="forward derivatives"):
            gemmdesc.linear(dual, w, epilogue=E.add("r"), operands={"r": r})
        gemmdesc.linear(x, w, epilogue=E.add("r"), operands={"r": r})
    assert bench.long == 1


def test_a_ledger_counts_tallies_too() -> None:
    ledger = Ledger()
    tally = ledger.tally("mm")
    assert ledger.report().lines == ()
    ledger.add("mm")
    tally[0] += 2
    assert ledger.tally("mm") is tally
    assert (ledger.report().ours, ledger.report().by_operator) == (3, {"mm": (3, 0)})
    ledger.clear()
    assert (ledger.report().ours, tally) == (0, [0])


def test_without_dlpacks_functions_or_a_compiler_python_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = set_up("C", monkeypatch)
    for take_away in (
        lambda patch: patch.delattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        lambda patch: patch.setattr(stored, "host_function", lambda name: None),
    ):
        with monkeypatch.context() as patch:
            take_away(patch)
            read, repeat = stored.tensor_reader(bench.calls._runtime)
        assert repeat is None
        assert read("", (half(4, 4),), None) is not None
