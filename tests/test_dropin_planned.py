"""Planning torch's products without a GPU: what the kernels are given multiplies to what torch computes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.dropin.planned import Ready, ready
from gemmdesc.dropin.products import Product
from gemmdesc.errors import Declined
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.ops import problems
from gemmdesc.plan import Planner
from gemmdesc.problem import BIASED, Epilogue
from gemmdesc.routes import READ_FOR, Release, address_alignment
from gemmdesc.verification.route_draws import draw_call
from tests.kind_profiles import KERNEL_KINDS, on_hopper, profile_of, small_scopes
from tests.kind_samples import answer_of, rule_of
from tests.probe_samples import DEVICE, IDENTITY

torch = pytest.importorskip("torch")


@cache
def planner() -> Planner:
    profile = profile_of(small_scopes(("plain", "float8", *KERNEL_KINDS)), on_hopper)

    def library() -> SimulatedLibrary:
        return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)

    return Planner(library, lambda device, identity: profile)


@pytest.fixture(autouse=True)
def gpu_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocations on a host are aligned to 64 bytes, those of a GPU's to 256 and more."""

    def aligned(address: int) -> int:
        return 256 if address % 64 == 0 else address_alignment(address)

    monkeypatch.setattr(problems, "address_alignment", aligned)


def executed(found: Ready) -> Any:
    """What a kernel of the plan makes of its tensors, in exact arithmetic."""
    t, p = found.tensors, found.plan.problem
    values = t.alpha * (t.a.float() @ t.b.float())
    if t.a_scale is not None and t.b_scale is not None:
        values = values * t.a_scale * t.b_scale
    if t.c is not None:
        values = values + t.beta * t.c.float()
    if t.bias is not None:
        values = values + (t.bias.float() if found.plan.transposed else t.bias.float()[:, None])
    if p.epilogue in (Epilogue.RELU, Epilogue.RELU_BIAS):
        values = values.relu()
    t.out.copy_(values)
    assert (t.bias is not None) is (p.epilogue in BIASED)
    return found.out


@pytest.mark.parametrize("release", [READ_FOR, Release(major=2, minor=13)], ids=str)
def test_what_kernels_are_given_multiplies_to_torchs_result(release: Release) -> None:
    planned: Counter[str] = Counter()

    def handle(call: TorchCall) -> Any:
        product = call.found
        found = product
        if isinstance(product, Product):
            addend = product.addend
            kept = None if addend is None or addend is not product.out else addend.clone()
            found = ready(planner(), product, TorchSettings(), release)
            if isinstance(found, Ready):
                found.fill()
                ours = executed(found).clone()
                found.finish()
                ours = found.out.clone()
                if kept is not None:
                    addend.copy_(kept)
                want = call.run()
                assert torch.equal(ours, want), call.name
                planned[call.name] += 1
                return want
        assert isinstance(found, Declined)
        assert found.code in ("no_rule", "out_of_scope", "unsupported_input")
        return call.run()

    for index in range(220):
        with intercepted(handle):
            draw_call(8, index, "cpu", exact=True, largest=32).run()
    covered = ("mm", "addmm", "addmm_", "_addmm_activation", "bmm", "addmv", "_scaled_mm")
    assert min(planned[n] for n in covered) > 0, planned


OUT_CALLS: dict[str, Any] = {
    "mm": lambda c, a, b, out: torch.mm(a[0], b[0], out=out[0]),
    "addmm": lambda c, a, b, out: torch.addmm(c[0], a[0], b[0], out=out[0]),
    "addmm_": lambda c, a, b, out: out[0].addmm_(a[0], b[0]),
    "bmm": lambda c, a, b, out: torch.bmm(a, b, out=out),
}


@pytest.mark.parametrize("name", OUT_CALLS)
def test_a_result_without_a_unit_stride_is_computed_in_a_copy(name: str) -> None:
    """As torch does: kernels write new memory, by rows or of a batch by columns, and nothing between the elements."""
    made = torch.Generator().manual_seed(1)
    c, a, b = (torch.randint(-4, 5, s, generator=made).half() for s in ((2, 8, 16), (2, 8, 24), (2, 24, 16)))
    frames = [torch.full((2, 8, 40), 7.0).half() for _ in range(2)]
    outs = [frame[:, :, 3:35:2] for frame in frames]
    seen: list[Ready] = []

    def handle(call: TorchCall) -> Any:
        assert isinstance(call.found, Product)
        found = ready(planner(), call.found, TorchSettings(), READ_FOR)
        assert isinstance(found, Ready), found
        seen.append(found)
        assert found.route.copies == ("out",)
        found.fill()
        executed(found)
        assert torch.equal(frames[0], torch.full((2, 8, 40), 7.0).half()), "nothing is written before all is done"
        found.finish()
        return found.out

    OUT_CALLS[name](c, a, b, outs[1])
    with intercepted(handle):
        OUT_CALLS[name](c, a, b, outs[0])
    assert torch.equal(frames[0], frames[1])
    assert sorted(seen[0].space.stride())[0] == 1
    assert seen[0].space.stride()[-1] == (8 if name == "bmm" else 1)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_kernels_are_given_a_vectors_scalars_as_torch_rounds_them(kind: Any) -> None:
    seen: list[Ready | Declined] = []

    def handle(call: TorchCall) -> Any:
        assert isinstance(call.found, Product)
        seen.append(ready(planner(), call.found, TorchSettings(), READ_FOR))
        return call.run()

    a, x, y = torch.ones(8, 152, dtype=kind), torch.ones(152, dtype=kind), torch.ones(8, dtype=kind)
    with intercepted(handle):
        torch.addmv(y, a, x, beta=0.7)
        torch.addmm(y, x[None], a.t(), beta=0.7)
    scalars = []
    for found in seen:
        assert isinstance(found, Ready), found
        scalars.append((found.tensors.alpha, found.tensors.beta))
    single = torch.tensor([1.0, 0.7])
    assert scalars == [tuple(single.to(kind).tolist()), tuple(single.tolist())]
    assert scalars[0] != scalars[1]


def test_a_decline_is_the_planners() -> None:
    seen: list[Ready | Declined] = []

    def handle(call: TorchCall) -> Any:
        assert isinstance(call.found, Product)
        seen.append(ready(planner(), call.found, TorchSettings(allow_fp16_splitk=False), READ_FOR))
        seen.append(ready(planner(), call.found, TorchSettings(), READ_FOR))
        return call.run()

    with intercepted(handle):
        torch.addmm(torch.zeros(6), torch.zeros(4, 5), torch.zeros(5, 6))
        torch.mm(torch.zeros(4, 5).half(), torch.zeros(5, 6).half())
    assert [getattr(x, "code", "ready") for x in seen] == ["no_rule", "no_rule", "flags", "ready"]
