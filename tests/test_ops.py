"""What users call, as far as it goes without a GPU: every bad input and its words, planning, declines, captures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gemmdesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError, LibraryError
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.ops import default_planner, plan, reset_default_planners, run, warmup
from gemmdesc.ops.inputs import overlap, overlaps_itself
from gemmdesc.ops.launching import launch_plan
from gemmdesc.ops.products import multiply, require_as_planned
from gemmdesc.plan import CaptureError, Plan, Planner
from gemmdesc.problem import AlgoConfig
from gemmdesc.profiles import Profile
from gemmdesc.routes import TensorMeta
from tests.profile_samples import DEVICE, LIBRARY, sample_answer, sample_profile

torch = pytest.importorskip("torch")

HALF = torch.float16
NO_PROFILE = Declined(code="no_profile", reason="no profile for this card")


def half(*shape: int, dtype: Any = HALF, **options: Any) -> Any:
    return torch.zeros(shape, dtype=dtype, **options)


def planner_of(profile: Profile | Declined | None = None, answer: AlgoConfig | None = None) -> Planner:
    found = sample_profile() if profile is None else profile

    def open_library() -> SimulatedLibrary:
        return SimulatedLibrary(
            identity=LIBRARY, device=DEVICE, heuristic=lambda problem: answer or sample_answer(), rules={}
        )

    return Planner(open_library, lambda device, library: found)


def quantised() -> Any:
    return torch.quantize_per_tensor(torch.zeros(4, 4), 0.1, 0, torch.qint8)


GOOD = (half(4, 6), half(6, 5))
BUFFER = half(64, 64)
BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no tensor": (lambda: {"a": [[1.0]]}, r"a must be a torch.Tensor \(got list\)"),
    "no tensor either": (lambda: {"b": None}, r"b must be a torch.Tensor \(got NoneType\)"),
    "one axis": (lambda: {"a": half(6)}, r"a must be 2-D \(got 1-D of shape \(6,\)\)"),
    "three axes": (lambda: {"b": half(1, 6, 5)}, r"b must be 2-D \(got 3-D of shape \(1, 6, 5\)\)"),
    "integers": (lambda: {"a": half(4, 6, dtype=torch.int32)}, r"a must be of float16 or .* \(got int32\)"),
    "truth": (lambda: {"b": half(6, 5, dtype=torch.bool)}, r"b must be of float16 or .* \(got bool\)"),
    "complex": (lambda: {"a": half(4, 6, dtype=torch.complex64)}, r"a must be of .* \(got complex64\)"),
    "fp8": (lambda: {"a": half(4, 6).to(torch.float8_e4m3fn)}, r"a must be of .* \(got float8_e4m3fn\)"),
    "mixed types": (
        lambda: {"b": half(6, 5, dtype=torch.bfloat16)},
        r"b must be of a's type float16 \(got bfloat16\)",
    ),
    "sizes": (lambda: {"b": half(7, 5)}, r"b must have 6 rows, as many as a has columns \(got shape \(7, 5\)\)"),
    "conjugated": (
        lambda: {"a": half(4, 6, dtype=torch.complex64).conj()},
        r"a must hold its values in memory.*\(got a lazily conjugated view\)",
    ),
    "negated": (
        lambda: {"a": half(4, 6, dtype=torch.complex64).conj().imag},
        r"a must hold its values in memory.*\(got a lazily negated view\)",
    ),
    "sparse": (lambda: {"a": torch.zeros(4, 6).to_sparse()}, r"a must be a dense, strided .*\(got torch.sparse_coo\)"),
    "quantised": (lambda: {"a": quantised()}, r"a must not be quantised \(got qint8\)"),
    "nested": (
        lambda: {"a": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])},
        r"a must be a dense, strided tensor \(got a nested tensor\)",
    ),
    "grad": (lambda: {"a": half(4, 6, requires_grad=True)}, r"a must not require grad.*detach\(\) \(got requires_grad"),
    "two devices": (lambda: {"b": half(6, 5, device="meta")}, r"b must be on a's device cpu \(got meta\)"),
    "no memory": (
        lambda: {"a": half(4, 6, device="meta"), "b": half(6, 5, device="meta")},
        r"a must be on a CUDA device \(got meta\)",
    ),
    "CPU": (dict, r"a must be on a CUDA device; on a CPU gemmdesc.replay gives .* \(got cpu\)"),
    "CPU, empty": (lambda: {"a": half(4, 0), "b": half(0, 5)}, r"a must be on a CUDA device.* \(got cpu\)"),
    "out of another shape": (lambda: {"out": half(5, 4)}, r"out must have shape \(4, 5\) \(got \(5, 4\)\)"),
    "out of another rank": (lambda: {"out": half(20)}, r"out must be 2-D \(got 1-D of shape \(20,\)\)"),
    "out no tensor": (lambda: {"out": 3}, r"out must be a torch.Tensor \(got int\)"),
    "out of another type": (
        lambda: {"out": half(4, 5, dtype=torch.bfloat16)},
        r"out must be of float16 or float32 for these operands \(got bfloat16\)",
    ),
    "out against out_dtype": (
        lambda: {"out": half(4, 5), "out_dtype": torch.float32},
        r"out must be of out_dtype float32 \(got float16\)",
    ),
    "out elsewhere": (lambda: {"out": half(4, 5, device="meta")}, r"out must be on a's device cpu \(got meta\)"),
    "out with grad": (lambda: {"out": half(4, 5, requires_grad=True)}, r"out must not require grad.*\(got requires"),
    "out is an operand": (
        lambda: {"a": BUFFER[:5, :5], "b": half(5, 5), "out": BUFFER[:5, :5]},
        r"out must not share memory with a \(got overlapping address ranges\)",
    ),
    "out in an operand": (
        lambda: {"b": BUFFER[:6, 8:13], "out": BUFFER[2:6, 4:9]},
        r"out must not share memory with b \(got .*\)",
    ),
    "out shared": (
        lambda: {"out": half(1, 5).expand(4, 5)},
        r"out must have a place of its own for every element \(got shape \(4, 5\), strides \(0, 1\)\)",
    ),
    "out_dtype": (lambda: {"out_dtype": torch.bfloat16}, r"out_dtype must be float16 or float32 .*\(got torch.bfl.*\)"),
    "out_dtype no type": (lambda: {"out_dtype": "float32"}, r"out_dtype must be a torch.dtype \(got 'float32'\)"),
    "on_decline": (lambda: {"on_decline": "cublas"}, r"on_decline must be 'raise' or 'library' \(got 'cublas'\)"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore")
def test_bad_input_is_named(name: str) -> None:
    arguments, words = BAD[name]
    given = {"a": GOOD[0], "b": GOOD[1]} | arguments()
    a, b = given.pop("a"), given.pop("b")
    with pytest.raises(InvalidInputError, match=f"^{words}") as caught:
        gemmdesc.ops.matmul(a, b, **given)
    assert re.search(r"\(got .*\)$", str(caught.value), re.DOTALL)
    if "on_decline" not in given:
        assert isinstance(caught.value, ValueError)


def test_bad_input_is_refused_before_anything_is_written() -> None:
    out = torch.full((4, 5), 7.0, dtype=HALF)
    for arguments in ({"a": half(4, 7)}, {"b": half(6, 5, dtype=torch.bfloat16)}, {}):
        given = {"a": GOOD[0], "b": GOOD[1]} | arguments
        with pytest.raises(InvalidInputError):
            gemmdesc.ops.matmul(given["a"], given["b"], out=out)
    assert bool((out == 7).all())


def test_grad_is_no_matter_where_it_is_off() -> None:
    a = half(4, 6, requires_grad=True)
    with torch.no_grad(), pytest.raises(InvalidInputError, match="CUDA device"):
        gemmdesc.ops.matmul(a, GOOD[1])


def test_a_tangent_is_not_lost() -> None:
    """Of either operand or the result, whatever grad mode says; a level without tangents is no matter."""
    from torch.autograd import forward_ad

    a, b = GOOD
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        with pytest.raises(InvalidInputError, match=r"^a must have no tangent.*\(got a dual number\)"):
            gemmdesc.ops.matmul(dual, b)
        with pytest.raises(InvalidInputError, match=r"^b must have no tangent"):
            gemmdesc.ops.matmul(a, forward_ad.make_dual(b, torch.ones_like(b)))
        with pytest.raises(InvalidInputError, match="CUDA device"):
            gemmdesc.ops.matmul(forward_ad.unpack_dual(dual).primal, b)


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (BUFFER[:, :8], BUFFER[:, 8:16], False),
        (BUFFER[:, :8], BUFFER[:, 7:16], True),
        (BUFFER[:8], BUFFER[8:], False),
        (BUFFER[:9], BUFFER[8:], True),
        (BUFFER[:8, 56:], BUFFER[1:9, :8], False),
        (BUFFER.T[:, :8], BUFFER.T[:, 8:], False),
        (BUFFER.T[:8], BUFFER.T[8:], False),
        (BUFFER[::2], BUFFER[1::2], False),
        (BUFFER[:, ::2], BUFFER[:, 1::2], True),
        (BUFFER[:0], BUFFER, False),
        (BUFFER, BUFFER.view(torch.int16), True),
        (BUFFER, half(64, 64), False),
    ],
)
def test_overlap(one: Any, two: Any, expected: bool) -> None:
    assert overlap(one, two) is expected
    assert overlap(two, one) is expected


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (half(3, 4), False),
        (half(3, 4).T, False),
        (half(1, 4).expand(3, 4), True),
        (half(64).as_strided((3, 4), (3, 1)), True),
        (half(64).as_strided((3, 4), (4, 1)), False),
        (half(64).as_strided((1, 4), (0, 1)), False),
        (half(3, 0), False),
    ],
)
def test_overlaps_itself(tensor: Any, expected: bool) -> None:
    assert overlaps_itself(tensor) is expected


# Planning without tensors.


def test_a_plan_of_bare_shapes() -> None:
    planner = planner_of()
    found = plan((256, 6832), (6832, 512), dtype=HALF, planner=planner)
    assert isinstance(found, Plan)
    assert (found.problem.m, found.problem.n, found.problem.k) == (512, 256, 6832)
    for dtype in (DType.FLOAT16, "float16", "torch.float16"):
        assert plan((256, 6832), (6832, 512), dtype=dtype, planner=planner) is found
    shapes = ((256, 6832), (6832, 512), (256, 512))
    sides = [TensorMeta(shape=s, strides=(s[1], 1), dtype=DType.FLOAT16) for s in shapes]
    assert plan(sides[0], sides[1], out=sides[2], planner=planner) is found
    padded = plan(sides[0], sides[1], out=replace(sides[2], strides=(600, 1)), planner=planner)
    assert isinstance(padded, Plan)
    assert padded.problem.ldd == 600


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"a": (4, 6)}, r"dtype must be given where a is a bare shape \(got None\)"),
        ({"a": (4, 6, 7), "dtype": HALF}, r"a must have shape \(rows, columns\) \(got \(4, 6, 7\)\)"),
        ({"a": (4, -6), "dtype": HALF}, r"a must have shape .*\(got \(4, -6\)\)"),
        ({"a": (4, 7), "dtype": HALF}, r"b must have 7 rows.*\(got shape \(6, 5\)\)"),
        ({"a": "4x6", "dtype": HALF}, r"a must be a tensor, a TensorMeta or a shape \(got '4x6'\)"),
        ({"dtype": "half"}, r"dtype must be a type such as torch.float16 \(got 'half'\)"),
        ({"dtype": HALF, "out": half(4, 5)}, r"out must be a TensorMeta .*\(got Tensor\)"),
        ({"dtype": HALF, "out_dtype": "bfloat16"}, r"out_dtype must be float16 or float32 \(got bfloat16\)"),
        ({"a": half(4, 6), "dtype": HALF}, r"b must be a torch.Tensor \(got tuple\)"),
        ({"a": half(4, 6), "b": half(6, 5)}, r"a must be on a CUDA device.*\(got cpu\)"),
        (
            {"a": TensorMeta(shape=(4, 6), strides=(6, 1), dtype=DType.BFLOAT16), "dtype": HALF},
            r"b must be of a's type bfloat16 \(got float16\)",
        ),
        ({"dtype": HALF, "profiles": "/tmp"}, r"profiles must be None beside a planner.*\(got /tmp\)"),
        ({"dtype": HALF, "device_index": 3}, r"planner must be of the tensors' device cuda:3 \(got one of cuda:0\)"),
    ],
)
def test_bad_planning_input_is_named(arguments: dict[str, Any], words: str) -> None:
    given = {"a": (4, 6), "b": (6, 5)} | arguments
    a, b = given.pop("a"), given.pop("b")
    for asked in (plan, gemmdesc.explain):
        with pytest.raises(InvalidInputError, match=f"^{words}$"):
            asked(a, b, planner=planner_of(), **given)


def test_an_empty_product_needs_no_plan() -> None:
    for a, b in (((4, 0), (0, 5)), ((0, 6), (6, 5)), ((4, 6), (6, 0))):
        found = plan(a, b, dtype=HALF, planner=planner_of())
        assert isinstance(found, Declined)
        assert "empty" in found.reason


def test_explain_speaks_of_plans_and_of_declines() -> None:
    told = gemmdesc.explain((256, 6832), (6832, 512), dtype=HALF, planner=planner_of())
    assert "verified: 40 shapes" in str(told)
    assert json.loads(told.to_json())["sizes"] == [[256, 6832], [6832, 512]]
    told = gemmdesc.explain((4, 6), (6, 5), dtype=HALF, planner=planner_of(NO_PROFILE))
    assert "declined (no_profile): no profile for this card" in str(told)


def test_autocast_declines_what_it_would_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_of()
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    found = plan((256, 6832), (6832, 512), dtype=HALF, planner=planner)
    assert isinstance(found, Declined)
    assert (found.code, "autocast" in found.reason) == ("flags", True)
    assert isinstance(plan((256, 6832), (6832, 512), dtype=torch.bfloat16, planner=planner), Plan)
    out = TensorMeta(shape=(256, 512), strides=(512, 1), dtype=DType.FLOAT16)
    sides = [TensorMeta(shape=s, strides=(s[1], 1), dtype=DType.FLOAT16) for s in ((256, 6832), (6832, 512))]
    assert isinstance(plan(*sides, out=out, planner=planner), Plan)
    with pytest.raises(DeclinedError, match="autocast"):
        go(planner, *GOOD)


def test_without_a_gpu_the_default_planner_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for asked in (default_planner, lambda: plan((4, 6), (6, 5), dtype=HALF), lambda: warmup([(4, 5, 6)], dtype=HALF)):
        with pytest.raises(LibraryError, match=r"^device must be a CUDA GPU"):
            asked()
    reset_default_planners()


@pytest.mark.parametrize("shape", [(4, 5), (4, 0, 6), (4, 5, -1)])
def test_warmup_wants_m_n_k(shape: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^shapes must hold \(m, n, k\), each at least 1 \(got "):
        warmup([shape], dtype=HALF, planner=planner_of())
    with pytest.raises(InvalidInputError, match=r"^dtype must be a type"):
        warmup([(4, 5, 6)], dtype="half", planner=planner_of())


# Running, with the launcher replaced.

Launched = list[tuple[Any, Any, Any, Any]]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """What would be launched: (choice, a, b, out)."""
    calls: Launched = []
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    monkeypatch.setattr("gemmdesc.kernels.launch_tiled.launch_choice", lambda *arguments: calls.append(arguments))
    return calls


def go(planner: Planner, a: Any, b: Any, out: Any = None, *, policy: str = "raise", captured: bool = False) -> Any:
    return multiply(planner, a, b, out, HALF, on_decline=policy, captured=captured)


def test_a_plan_is_launched_on_the_very_tensors(launched: Launched) -> None:
    a, b, out = half(16, 64), half(64, 32), half(16, 32)
    planner = planner_of()
    version = out._version
    assert go(planner, a, b, out) is out
    (choice, *tensors), = launched
    assert [id(t) for t in tensors] == [id(a), id(b), id(out)]
    assert choice.output_dtype is DType.FLOAT16
    assert out._version == version + 1
    result = go(planner, a, b)
    assert (result.shape, result.dtype, result.is_contiguous()) == ((16, 32), HALF, True)
    assert launched[1][3] is result


def test_a_decline_raises_before_anything_is_written(launched: Launched) -> None:
    out = torch.full((4, 5), 7.0, dtype=HALF)
    with pytest.raises(DeclinedError, match=r"^declined \(no_profile\)") as caught:
        go(planner_of(NO_PROFILE), *GOOD, out)
    assert caught.value.declined == NO_PROFILE
    assert bool((out == 7).all())
    assert launched == []


def test_the_library_runs_what_declines_if_asked_and_is_counted(launched: Launched) -> None:
    planner = planner_of(NO_PROFILE)
    a, b = torch.randn(4, 6).half(), torch.randn(6, 5).half()
    out = torch.full((4, 5), 7.0, dtype=HALF)
    assert go(planner, a, b, out, policy="library") is out
    assert torch.equal(out, torch.mm(a, b))
    assert torch.equal(go(planner, a, b, policy="library"), torch.mm(a, b))
    view = torch.randn(4, 12).half()[:, ::2]
    assert torch.equal(go(planner_of(), view, b, policy="library"), torch.mm(view, b))
    assert planner.decline_counts() == {"no_profile": 2}
    assert launched == []


def test_a_capture_must_find_everything_warm(launched: Launched) -> None:
    planner = planner_of()
    a, b, out = half(16, 64), half(64, 32), half(16, 32)
    with pytest.raises(CaptureError, match=r"^matmul must be warm .*\(got kernels that are not compiled: .*\)$"):
        go(planner, a, b, out, captured=True)
    assert launched == []
    go(planner, a, b, out)
    go(planner, a, b, out, captured=True)
    assert len(launched) == 2


def test_a_launch_that_fails_leaves_nothing_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("no")

    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    monkeypatch.setattr("gemmdesc.kernels.launch_tiled.launch_choice", fail)
    planner = planner_of()
    a, b, out = half(16, 64), half(64, 32), half(16, 32)
    found = plan((16, 64), (64, 32), dtype=HALF, planner=planner)
    assert isinstance(found, Plan)
    with pytest.raises(RuntimeError):
        launch_plan(planner, found, a, b, out, captured=False)
    assert planner.cold(found.variants) == found.variants


def placed(rows: int, columns: int, offset: int = 0) -> Any:
    """A matrix ``offset`` elements past an address that 256 divides."""
    buffer = half(rows * columns + offset + 256)
    start = -buffer.data_ptr() % 256 // 2 + offset
    return buffer[start : start + rows * columns].view(rows, columns)


def test_a_plan_runs_only_what_it_was_made_for() -> None:
    planner = planner_of()
    found = plan((16, 64), (64, 32), dtype=HALF, planner=planner)
    assert isinstance(found, Plan)
    a, b, out = placed(16, 64), placed(64, 32), placed(16, 32)
    require_as_planned(found, planner, a, b, out)
    for sides, words in (
        ((placed(8, 64), b, placed(8, 32)), r"a and b must have the plan's .* \(16, 32, 64\) \(got \(8, 32, 64\)\)"),
        ((placed(64, 16).T, b, out), r"a must be stored as planned, .* \(got .*\)"),
        ((a, placed(64, 32, 1), out), r"b must be stored as planned, .*alignment=256.* \(got .*alignment=2\).*\)"),
        ((a, b, placed(16, 64)[:, :32]), r"out must be stored as planned, .* \(got .*\)"),
        ((half(0, 64), b, half(0, 32)), r"a and b must not be empty \(got \(0, 64\), \(64, 32\)\)"),
    ):
        with pytest.raises(InvalidInputError, match=f"^{words}$"):
            require_as_planned(found, planner, *sides)
    elsewhere = replace(found, device=replace(DEVICE, sm_count=114))
    with pytest.raises(InvalidInputError, match=r"^plan must be of sm_90-132, .*\(got sm_90-114, 13.1.0\)$"):
        require_as_planned(elsewhere, planner, a, b, out)
    with pytest.raises(InvalidInputError, match="CUDA device"):
        run(found, a, b, planner=planner)


def test_profiles_may_be_a_path_or_its_text() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for profiles in ("/nowhere", Path("/nowhere")):
        with pytest.raises(LibraryError):
            plan((4, 6), (6, 5), dtype=HALF, profiles=profiles)
