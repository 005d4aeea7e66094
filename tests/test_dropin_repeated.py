"""Calls made before: found by all that they depend on, launched by one program each; what sends a call the long way.

Tensors lie on the host; a device of the tests takes what would be launched.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

import gemmdesc
from gemmdesc import Epilogue
from gemmdesc.dropin import fused, planned, repeated, through
from gemmdesc.dropin.ledger import Ledger
from gemmdesc.dropin.planned import Launched, ready
from gemmdesc.dropin.products import Product
from gemmdesc.dropin.repeated import RepeatedCalls
from gemmdesc.errors import Declined
from gemmdesc.kernels.prepared import PreparedProgram
from gemmdesc.kernels.preparing import named_metas, prepare
from gemmdesc.library.torch_settings import TorchSettings, settings_key
from gemmdesc.ops import problems
from gemmdesc.ops.frequent import Runtime
from gemmdesc.ops.launching import taken_by
from gemmdesc.plan import Planner
from gemmdesc.routes import READ_FOR, address_alignment
from tests.test_dropin_planned import planner as kinds_planner
from tests.test_kernels_prepared import NotingDevice

HALF = torch.float16
E = Epilogue()
M, N, K = 24, 64, 96


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

    def __post_init__(self) -> None:
        runtime = Runtime(
            device_of=lambda t: int(any(t is x for x in self.elsewhere)), current_device=lambda: 0,
            current_stream=lambda index: 3, is_capturing=lambda: self.captured, settings=settings_key(),
        )  # fmt: skip
        self.calls = RepeatedCalls(runtime, self.ledger)

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


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
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
    bench.elsewhere.append(r)
    call()
    assert bench.long == 3 + len(others), "an operand on another device is never looked up"


def test_a_number_on_the_host_is_never_compiled_in(bench: Bench) -> None:
    """Its value may be another one at the next call."""
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
    call()
    entered: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "gemmdesc" in frame.f_globals.get("__name__", ""):
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert bench.long == 1
    assert len(entered) < 40, entered
