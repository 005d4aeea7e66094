"""Routes against torch itself: the routed problem, executed on raw memory, gives the bytes of torch's own call."""

from __future__ import annotations

import json
import runpy
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.dropin.products import Product, route_of
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import BIASED, AlgoConfig, Epilogue, Failed, GemmProblem, Refused
from gemmdesc.routes import READ_FOR, Addend, Release, Route
from gemmdesc.verification import routed
from gemmdesc.verification.route_draws import CALLS, Call, Drawer, draw_call
from gemmdesc.verification.route_variants import variants
from gemmdesc.verification.routed import RouteChecker, Tally, Verdict
from tests.pointer_library import HostLibrary

torch = pytest.importorskip("torch")

LATER = Release(major=2, minor=13)


def checker(tally: Tally, library: HostLibrary | None = None, release: Release = READ_FOR) -> RouteChecker:
    return RouteChecker(library or HostLibrary(), TorchSettings, release, tally.add, lambda run: ("kernel",))


@pytest.mark.parametrize("release", [READ_FOR, LATER], ids=str)
def test_problems_of_random_calls_give_torchs_bytes(release: Release) -> None:
    tally, names = Tally(), set()
    for index in range(450):
        call = draw_call(11, index, "cpu", exact=True, largest=40)
        names.add(call.name)
        with intercepted(checker(tally, release=release)):
            call.run()
    assert names == set(CALLS) - {"mm_float32"}
    assert tally.totals["different"] == tally.totals["reference_failed"] == 0, tally.told[:3]
    assert tally.totals["equal"] > 450
    compared = {(g.operator, g.epilogue) for g in tally.counts}
    for operator, epilogue in (
        ("addmm", "cublaslt bias"), ("addmm", "cublas C one default"), ("addmm", "cublas alpha C other default"),
        ("_addmm_activation", "cublaslt relu_bias"), ("baddbmm", "cublas alpha C one default"),
        ("addmm_", "cublas C other default"), ("addmv", "cublas default"), ("bmm", "cublas default"),
        ("_scaled_mm", "cublaslt bias"),
    ):  # fmt: skip
        assert (operator, epilogue) in compared, (operator, epilogue)


def test_a_wrong_route_is_found_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias is left out of the problem: bytes differ, and the route that adds it gives torch's."""

    def wrong(*args: Any) -> Route:
        route = route_of(*args)
        assert isinstance(route, Route)
        return replace(route, problem=replace(route.problem, epilogue=Epilogue.DEFAULT), addend=Addend.UNREAD)

    monkeypatch.setattr(routed, "route_of", wrong)
    tally = Tally()
    with intercepted(checker(tally)):
        torch.addmm(torch.full((6,), 3.0), torch.ones(4, 5), torch.ones(5, 6))
    assert dict(tally.totals) == {"different": 1}
    (told,) = tally.told
    assert told["differing"] == told["elements"] == 24
    assert told["kernels_of_torch"] == ["kernel"]
    assert any("bias in the epilogue" in name for name in told["equal_with"])
    assert any("C in place" in name for name in told["equal_with"])
    assert not any("workspace of cuBLAS" in name for name in told["equal_with"])


def test_the_library_is_asked_with_a_bias_where_torch_has_it_and_warnings_are_kept() -> None:
    """A library that answers by the bias's address, and a torch that goes on where its fused call fails."""

    class ByAddress(HostLibrary):
        right, asked = 4, 0

        def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
            self.asked = problem.bias_alignment_bytes
            return super().answer(problem)

        def matmul(self, *given: Any, alpha: float | None = None, beta: float | None = None) -> Failed | None:
            wrong = self.asked != self.right and given[0].epilogue in BIASED
            return super().matmul(*given, alpha=(alpha or 1.0) * (1 + wrong), beta=beta)

    def kernels(run: Any) -> tuple[str, ...]:
        warnings.warn("the fused call failed", UserWarning, stacklevel=1)
        return ("kernel",)

    tally, library, bias = Tally(), ByAddress(), torch.full((7,), 3.0)[1:]
    with intercepted(RouteChecker(library, TorchSettings, READ_FOR, tally.add, kernels)):
        torch.addmm(bias, torch.ones(4, 5), torch.ones(5, 6))
        library.right = 16
        torch.addmm(bias, torch.ones(4, 5), torch.ones(5, 6))
    assert dict(tally.totals) == {"equal": 1, "different": 1}
    (told,) = tally.told
    assert "not fused, as where torch's fused call fails" in told["equal_with"]
    assert not any("bias in the epilogue" in name for name in told["equal_with"])
    assert told["torch_warns"] == ["the fused call failed"]


def test_an_in_place_call_is_taken_before_it_overwrites_its_addend() -> None:
    tally, result = Tally(), torch.full((4, 6), 2.0)
    with intercepted(checker(tally)):
        result.addmm_(torch.ones(4, 5), torch.ones(5, 6), beta=3.0)
    assert dict(tally.totals) == {"equal": 1}
    assert torch.equal(result, torch.full((4, 6), 11.0))


def test_a_library_that_refuses_is_no_difference() -> None:
    tally = Tally()
    with intercepted(checker(tally, HostLibrary(refuses=True))):
        torch.mm(torch.ones(4, 5), torch.ones(5, 6))
    assert dict(tally.totals) == {Verdict.REFERENCE_FAILED.value: 1}


@pytest.mark.parametrize(("release", "verdict"), [(READ_FOR, Verdict.EQUAL), (LATER, Verdict.SPLIT)], ids=str)
def test_a_bias_beside_several_slices_declines_on_later_releases(release: Release, verdict: Verdict) -> None:
    tally = Tally()
    with intercepted(checker(tally, HostLibrary(splitk_num=3), release)):
        torch.addmm(torch.ones(6), torch.ones(4, 5), torch.ones(5, 6))
        torch.mm(torch.ones(4, 5), torch.ones(5, 6))
    found = {g.operator: dict(c) for g, c in tally.counts.items()}
    assert found == {"addmm": {verdict.value: 1}, "mm": {"equal": 1}}


def test_variants_change_one_thing_each() -> None:
    tally: list[tuple[str, Route]] = []

    def look(call: TorchCall) -> Any:
        assert isinstance(call.found, Product)
        route = route_of(call.found, TorchSettings(), READ_FOR)
        assert isinstance(route, Route)
        tally.extend(variants(call.found, route, TorchSettings()))
        return call.run()

    with intercepted(look):
        torch.baddbmm(torch.ones(6), torch.ones(2, 4, 5), torch.ones(2, 5, 6))
    assert len({name for name, _ in tally}) == len(tally)
    assert "alignments of every matrix" in {name for name, _ in tally}


def test_a_calls_flags_are_set_while_it_runs() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction
    flags = (("allow_tf32", not before[0]), ("allow_fp16_reduced_precision_reduction", not before[1]))
    seen = Call(
        name="x", run=lambda: (matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction), flags=flags
    ).make()  # fmt: skip
    assert seen == (not before[0], not before[1])
    assert (matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction) == before


def test_calls_for_a_gpu_alone_can_be_drawn() -> None:
    for index in range(20):
        assert callable(CALLS["mm_float32"](Drawer(rng=Random(index), device="cpu", exact=False, largest=40)))


def test_the_script_rehearses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that ends its process is counted as an error, with its index, and the calls behind it go on."""
    out = tmp_path / "routes.json"
    script = Path(__file__).resolve().parent.parent / "scripts" / "check_routes.py"
    given = [str(script), str(out), "--rehearse", "--calls", "40", "--seed", "2", "--dies", "9"]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    data = json.loads(out.read_text())
    assert sum(data["calls"].values()) == 39
    assert data["errors"] == {"the process died": 1}
    (failed,) = data["failed"]
    assert (failed["index"], data["seed"]) == (9, 2)
    assert failed["how"].startswith("killed by SIGSEGV: Fatal Python error: Segmentation fault")
    assert data["totals"].get("different", 0) == 0
    assert sum(c.get("equal", 0) for c in data["counts"]) == data["totals"]["equal"] > 20
