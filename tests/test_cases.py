"""Public reports, one test or more for each, as far as they need no GPU: simulated libraries, books, edited profiles.

``tests/test_cases_gpu.py`` has what needs a card.  A test's name begins with its report's number, see ``case_log.py``.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import gemmdesc
from gemmdesc.books import BookReader, Shape
from gemmdesc.cli import app
from gemmdesc.descriptor import AddBias, CastTo
from gemmdesc.dropin import LibrarySource, register_choices
from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.dropin.products import Product, route_of
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError
from gemmdesc.library import capture, profiler, unknown
from gemmdesc.library.interface import Window
from gemmdesc.library.late import LateVariable, WorkspaceWatch, late_words
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.library.torch_settings import TorchSettings, read_settings
from gemmdesc.lint import FindingKind, lint_shapes
from gemmdesc.operands import DenseOperand
from gemmdesc.plan import CaptureError, Plan, Planner, shared_orders
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import (
    AlgoConfig,
    ComputeType,
    Epilogue,
    Failed,
    GemmProblem,
    KernelNode,
    Launch,
    LibraryVersion,
    Refused,
)
from gemmdesc.profiles import (
    DeclineOutcome,
    Profile,
    RuleOutcome,
    find_profile,
    packaged_folder,
    profile_path,
    read_profile,
    write_profile,
)
from gemmdesc.routes import Addend, Release, Route, TensorMeta, route_mm
from gemmdesc.rule import Rule
from gemmdesc.verification.campaign import Machine, Options, run_campaign
from gemmdesc.verification.cases import Regime, draw_case
from gemmdesc.verification.hidden import hidden_library, hide
from gemmdesc.verification.records import Outcome
from gemmdesc.verification.replayed import ReplayBench
from gemmdesc.verification.summary import summary
from tests import kind_samples
from tests.book_samples import book_of, put
from tests.case_log import CASES, CaseLog, case_of
from tests.case_samples import by_library, cancelling
from tests.child_processes import child_environment
from tests.dropin_samples import answer_by_batch, batch_source, source
from tests.hidden_samples import hidden_profile
from tests.kind_profiles import on_hopper, profile_of, small_scopes
from tests.kind_samples import answer_of, rule_of
from tests.probe_samples import DEVICE, IDENTITY, Order
from tests.profile_samples import sample_answer, sample_profile, sample_row

torch = pytest.importorskip("torch")
HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32
SETTINGS = TorchSettings()
ROOT = Path(__file__).resolve().parent.parent
LINEAR = torch.nn.functional.linear
PAGE = ROOT / "docs" / "torch.md"
#: A card's copy of the project may come without its pages.
DOCUMENTED = pytest.mark.skipif(not PAGE.exists(), reason="this copy of the project has no docs/torch.md")


def halves(*shape: int, seed: int = 0, dtype: Any = HALF) -> Any:
    """Values of mixed magnitudes."""
    made = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-5, 6, shape, generator=made).float())
    return (torch.randn(shape, generator=made) * scale).to(dtype)


def matrix(rows: int, columns: int, dtype: DType = DType.FLOAT16, *, by_columns: bool = False) -> TensorMeta:
    return TensorMeta(shape=(rows, columns), strides=(1, rows) if by_columns else (columns, 1), dtype=dtype)


def routes_of(call: Callable[[], Any], settings: TorchSettings = SETTINGS) -> list[Route]:
    """The routes of the products of ``call``, which torch computes."""
    found: list[Route] = []

    def handle(inner: TorchCall) -> Any:
        assert isinstance(inner.found, Product)
        route = route_of(inner.found, settings, Release(major=2, minor=11))
        assert isinstance(route, Route), route
        found.append(route)
        return inner.run()

    with intercepted(handle):
        call()
    return found


def replayed(call: Callable[[], Any], held: LibrarySource | None = None, **choices: Any) -> Any:
    with gemmdesc.override(replay=held or source(), **choices):
        return call()


@cache
def kernel_profile() -> Profile:
    """Rows that kernels of a Hopper card can run."""
    return profile_of(small_scopes(("plain", "batch", "bias", "add_c")), on_hopper)


def planner_with(
    heuristic: Callable[[GemmProblem], AlgoConfig | Refused], profile: Profile | None = None, **more: Any
) -> Planner:
    def library() -> SimulatedLibrary:
        return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=heuristic, rules=rule_of, **more)

    return Planner(library, lambda device, identity: profile or kernel_profile())


def test_every_report_has_a_test() -> None:
    named = {case_of(name) for name in globals() if case_of(name) is not None}
    assert named == set(CASES) == set(range(1, 28))


def test_a01_rows_that_share_an_order_share_bytes(case: CaseLog) -> None:
    """The grouping never puts two batch sizes together whose anchor rows differ."""
    n, k, sizes = 40, 300, (1, 2, 17, 33, 128, 257)
    a, b = cancelling(max(sizes), n, k, HALF)
    weight = b.T.contiguous()
    anchors: dict[int, Any] = {}
    for m in sizes:
        for place in (0, m // 2, m - 1):
            x = a[:m].clone()
            x[place] = a[1]
            want = by_library(batch_source(), lambda x=x: torch.matmul(x, weight.T))
            got = replayed(lambda x=x: torch.matmul(x, weight.T), batch_source())
            case.same(got, want, m)
            row = got[place]
            case.same(row, anchors.setdefault(m, row), (m, place))
    chosen = planner_with(answer_by_batch)
    plans = {
        m: chosen.plan_mm(matrix(m, k), matrix(k, n, by_columns=True), matrix(m, n), SETTINGS) for m in sizes
    }  # fmt: skip
    groups = shared_orders(plans)
    for group in groups:
        for m in group.rows:
            case.same(anchors[m], anchors[group.rows[0]], group.rows)
    case.demand(len(groups) > 1)
    case.demand(len({tuple(row.tolist()) for row in anchors.values()}) > 1, "the batch has to matter")


@cache
def batches_apart() -> LibrarySource:
    """A library whose batches are summed in shorter steps than its single products."""

    def heuristic(p: GemmProblem) -> AlgoConfig | Refused:
        return kind_samples.sample_answer(algo_id=21 if p.batch_count > 1 else 66)

    library = SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=heuristic, rules=rule_of)
    return LibrarySource(library=library, profile=source().profile)


@pytest.mark.parametrize("batch", [100, 256, 512])
def test_a02_a_batch_is_one_product(batch: int, case: CaseLog) -> None:
    a = torch.stack([cancelling(8, 8, 64, HALF, i)[0] for i in range(8)]).repeat(-(-batch // 8), 1, 1)[:batch]
    b = torch.stack([cancelling(8, 8, 64, HALF, i)[1] for i in range(8)]).repeat(-(-batch // 8), 1, 1)[:batch]
    held = batches_apart()
    together = replayed(lambda: torch.bmm(a, b), held)
    case.same(together, by_library(held, lambda: torch.bmm(a, b)))
    single = [replayed(lambda i=i: torch.mm(a[i], b[i]), held) for i in range(8)]
    for i, one in enumerate(single):
        case.same(one, by_library(held, lambda i=i: torch.mm(a[i], b[i])))
    case.demand(not torch.equal(together[:8], torch.stack(single)), "this library's batches have another order")


def test_a02_no_rows_for_batches_decline(case: CaseLog) -> None:
    plain = LibrarySource(library=source().library, profile=profile_of(small_scopes(("plain",))))
    a, b = halves(3, 8, 64), halves(3, 64, 8, seed=1)
    case.declines(lambda: replayed(lambda: torch.bmm(a, b), plain), "no_rule")
    case.same(replayed(lambda: torch.mm(a[0], b[0]), plain), by_library(plain, lambda: torch.mm(a[0], b[0])))


def test_a03_a_fused_bias_and_an_added_one_are_two_results(case: CaseLog) -> None:
    a, weight, bias = (halves(*s, seed=i, dtype=BF16) for i, s in enumerate(((3, 100), (100, 100), (100,))))
    for name, call in (
        ("fused", lambda: LINEAR(a, weight, bias)), ("apart", lambda: torch.matmul(a, weight.T) + bias)
    ):  # fmt: skip
        case.same(replayed(call), by_library(source(), call), name)
        row = lambda call=call: call()[:1]  # noqa: E731
        case.same(replayed(row), by_library(source(), row), f"{name}, of the report's one row")
    fused = gemmdesc.linear(a, weight, bias, replay=source())
    apart = gemmdesc.matmul(a, weight.T, replay=source()) + bias
    case.demand(not torch.equal(fused, apart))


@DOCUMENTED
def test_a03_the_page_tells_the_two_apart(case: CaseLog) -> None:
    for line in ("| `linear(x, w, bias)`, `addmm(bias, x, w.T)` |", "| `matmul(x, w.T) + bias` |"):
        case.demand(line in PAGE.read_text(), line)


def narrowed(rule: Rule) -> Rule:
    """The same, but that a bias is added in the result's own type."""
    desc = rule.structure
    steps = tuple(
        x for s in desc.epilogue for x in ((CastTo(dtype=desc.output_dtype), s) if isinstance(s, AddBias) else (s,))
    )
    return replace(rule, structure=replace(desc, epilogue=steps))


@cache
def narrow_biases() -> LibrarySource:
    """A library whose epilogue adds a bias after the rounding, and C before it."""
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=lambda p, answer: narrowed(rule_of(p, answer))
    )
    return LibrarySource(library=library, profile=profile_of(small_scopes(("bias", "add_c")), narrowed))


@pytest.mark.parametrize("k", [16384, 16383])
def test_a04_a_bias_in_the_epilogue_and_as_c_are_two_problems(k: int, case: CaseLog) -> None:
    """Split along k both ways; at the odd k this library sums slices in D itself, in D's narrow type."""
    held, a, b = narrow_biases(), halves(6, k) / 64, halves(k, 16, seed=1) / 64
    results: dict[Addend, list[Any]] = {}
    for bias in (100 * halves(16, seed=2), halves(16, seed=2)):
        for addend, given in ((Addend.BIAS, bias), (Addend.IN_PLACE, bias.expand(6, 16))):
            call = lambda given=given: torch.addmm(given, a, b)  # noqa: E731
            got = replayed(call, held)
            case.same(got, by_library(held, call), addend)
            (route,) = routes_of(call)
            case.demand(route.addend is addend)
            found = held.look_up(route.problem)
            assert not isinstance(found, Declined)
            case.demand(found.answer.splitk_num > 1)
            family = found.description.row.key.family
            case.demand((family.epilogue is Epilogue.BIAS) is (addend is Addend.BIAS), "the profile says which it was")
            results[addend] = [found.description.descriptor, got]
    fused, as_c = results.values()
    case.demand(fused[0] != as_c[0], "two descriptors")
    case.demand(torch.equal(fused[1], as_c[1]) is (k % 8 != 0), "with other bytes where the product is rounded first")


# --- releases, libraries, cards -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Upgrade:
    """A release in which some of 200 products have other answers; ``number`` is the release's."""

    number: int

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(Shape(m=64 + i, n=40, k=517 + i % 3, label=f"layer {i}") for i in range(200))

    def answer(self, problem: GemmProblem) -> AlgoConfig:
        at, later = problem.n - 64, self.number > 1
        if later and at in (11, 60, 199):
            return sample_answer(algo_id=8, splitk_num=1)
        if later and at == 150:
            return sample_answer(algo_id=9, splitk_num=1)
        return sample_answer(algo_id=7, splitk_num=3 if later and at in (3, 77) else 2)

    def launched(self, problem: GemmProblem, answer: AlgoConfig) -> Launch:
        name = "renamed" if self.number > 1 and problem.n == 64 + 42 else "kernel"
        node = KernelNode(name=name, grid=(1, 1, 1), block=(1, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
        return Launch(kernels=(node,))

    @property
    def profile(self) -> Profile:
        outcomes = {
            7: RuleOutcome(rule=Order(spans=("round_up(ceildiv(k, splitk_num), 64)",)).rule()),
            8: RuleOutcome(rule=Order(spans=("256", "128")).rule()),
            9: DeclineOutcome(declined=Declined(code="nondeterministic", reason="bytes vary")),
        }
        rows = (
            sample_row(outcome, answer=sample_answer(algo_id=algo), projection=("algo_id",))
            for algo, outcome in outcomes.items()
        )
        version = LibraryVersion(major=13, minor=self.number, patch=0)
        return sample_profile(*rows, device=DEVICE, library=replace(IDENTITY, version=version))

    def stored(self, folder: Path) -> tuple[Path, Path]:
        profile = self.profile
        library = SimulatedLibrary(
            identity=profile.library, device=DEVICE, heuristic=self.answer, rules={}, launches=self.launched
        )
        path = put(folder / str(self.number), profile, book_of(library, self.shapes, check=False))
        return path, path.with_suffix(".book")


def test_a05_an_upgrade_is_told_shape_by_shape(tmp_path: Path, case: CaseLog) -> None:
    (old, old_book), (new, new_book) = Upgrade(1).stored(tmp_path), Upgrade(2).stored(tmp_path)
    listed = tmp_path / "shapes.csv"
    rows = [f"{s.m},{s.n},{s.k},{s.label}" for s in Upgrade(1).shapes]
    listed.write_text("\n".join(["m,n,k,layer", *rows]) + "\n")

    def diff(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["diff", *map(str, arguments)], catch_exceptions=False)

    books = ("--shapes", listed, "--books")
    result = diff(old, new, *books, old_book, new_book, "--json")
    case.demand(result.exit_code == 1)
    changed = {s["m"] - 64: s for s in json.loads(result.stdout)["shapes"] if s["kinds"]}
    wanted = {
        **dict.fromkeys((11, 60, 199), "order_changed"), **dict.fromkeys((3, 77), "split_changed"), 150: "dropped",
        42: "renamed_same_order",
    }  # fmt: skip
    case.demand({at: s["kinds"][0] for at, s in changed.items()} == wanted)
    case.demand([at for at, s in changed.items() if s["numeric"]] == [3, 11, 60, 77, 199], "a rename is no number")
    case.demand(all(s["old"] and s["new"] for s in changed.values()), "both descriptors are shown")
    case.demand("bytes vary" in changed[150]["new"])
    case.demand(diff(old, new, *books, old_book, new_book, "--gate", "renamed_same_order").exit_code == 1)
    case.demand(diff(old, new, *books, old_book, new_book, "--gate", "merge_type_changed").exit_code == 0)
    same = diff(old, old, *books, old_book, old_book, "--json")
    case.demand(same.exit_code == 0)
    case.demand(not any(s["kinds"] for s in json.loads(same.stdout)["shapes"]))
    case.demand(diff(old, old).stdout == "no change\n")


_BLAS = """
#include <stddef.h>
size_t cublasLtGetVersion(void);
size_t answering(void) { return cublasLtGetVersion(); }
"""
_MAPPED = """
import ctypes, json, sys
from types import ModuleType, SimpleNamespace
stand_in = ModuleType("torch")  # which maps no library of its own here
stand_in.version, stand_in.__version__ = SimpleNamespace(cuda="12.6"), "0"
sys.modules["torch"] = stand_in
for path in sys.argv[2:]:
    ctypes.CDLL(path)
blas = ctypes.CDLL(sys.argv[1])
blas.answering.restype = ctypes.c_size_t
from gemmdesc.cli import environment
print(json.dumps({"answering": blas.answering(), **environment._library()}))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cuBLASLt of one name and two versions, and a cuBLAS that was linked with the first."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("libraries")
    text = (ROOT / "tests" / "fake_cublaslt" / "fake_cublaslt.c").read_text()
    (folder / "map").write_text("libcublasLt.so.13 { global: *; };")
    (folder / "blas.c").write_text(_BLAS)
    shared = ["gcc", "-shared", "-fPIC", "-w"]
    for place, version in (("wheel", 130100), ("system", 130200)):
        (folder / place).mkdir()
        code, library = folder / f"{version}.c", folder / place / "libcublasLt.so.13"
        code.write_text(text.replace("return 130100;", f"return {version};"))
        script = [f"-Wl,--version-script,{folder / 'map'}", "-Wl,-soname,libcublasLt.so.13", "-Wl,--build-id=sha1"]
        subprocess.run([*shared, *script, "-o", str(library), str(code), "-lm"], check=True)
    linked = ["-Wl,-soname,libcublas.so.13", "-Wl,-rpath,$ORIGIN", "-o", str(folder / "wheel" / "libcublas.so.13")]
    beside = str(folder / "wheel" / "libcublasLt.so.13")
    subprocess.run([*shared, *linked, str(folder / "blas.c"), beside], check=True)
    return folder


@pytest.mark.parametrize(("first", "version"), [("system", 130200), ("wheel", 130100)])
def test_a06_the_library_that_answers_is_the_one_that_calls_reach(
    first: str, version: int, libraries: Path, case: CaseLog
) -> None:
    """Whatever lies beside cuBLAS, and whatever torch was built for."""
    order = [str(libraries / place / "libcublasLt.so.13") for place in sorted(("system", "wheel"), key=first.__ne__)]
    blas, environment = str(libraries / "wheel" / "libcublas.so.13"), child_environment()
    command = [sys.executable, "-c", _MAPPED, blas, *order]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    found = json.loads(done.stdout)
    case.demand(found["answering"] == version)
    case.demand(found["version"] == str(LibraryVersion.from_packed(version)), found)
    case.demand(found["path"] == order[0])
    case.demand(found["also mapped"] == order[1], "the other one is named")
    case.demand(found["answers, as"] == "the linker bound libcublas.so.13 to it")
    case.demand(found["torch's own word"] == "CUDA 12.6")


def test_a06_another_version_declines(tmp_path: Path, case: CaseLog) -> None:
    profile = sample_profile()
    write_profile(profile, profile_path(tmp_path, profile.device, profile.library.version))
    near = replace(profile.library, version=LibraryVersion(major=13, minor=1, patch=1))
    for wanted in (near, replace(profile.library, build_id="ff")):
        found = find_profile(profile.device, wanted, [tmp_path])
        assert isinstance(found, Declined)
        case.refused(found, "no_profile")
        case.demand("sm_90-132/cublaslt-13.1.0" in found.reason, "the near one is named, and not used")


def test_a07_a_profile_of_another_sm_count_is_refused(tmp_path: Path, case: CaseLog) -> None:
    folder = packaged_folder()
    assert folder is not None
    measured = read_profile(next(folder.glob("sm_90-132/*.parquet")))
    other = replace(measured, device=replace(measured.device, sm_count=114))
    path = profile_path(tmp_path, other.device, other.library.version)
    write_profile(other, path)
    for folders in ([path], [tmp_path]):
        found = find_profile(measured.device, measured.library, folders)
        assert isinstance(found, Declined)
        case.refused(found, "no_profile")
        case.demand("sm_90-114" in found.reason)
    mig = find_profile(replace(other.device, mig=True), other.library, [path])
    assert isinstance(mig, Declined)
    case.refused(mig, "no_profile")
    case.demand(find_profile(other.device, other.library, [path]) == other)
    with pytest.raises(InvalidInputError, match="profile must be of the library's card"):
        LibrarySource(library=source().library, profile=replace(source().profile, device=other.device))


def test_a07_the_shape_of_the_report(case: CaseLog) -> None:
    sides = [cancelling(116, 128, 116, HALF, i) for i in range(4)]
    a, b = torch.stack([a for a, _ in sides]), torch.stack([b for _, b in sides])
    case.same(replayed(lambda: torch.bmm(a, b)), by_library(source(), lambda: torch.bmm(a, b)))


# --- flags and split-K ----------------------------------------------------------------------------------------------


def narrow_where_allowed(p: GemmProblem) -> AlgoConfig:
    """Slices summed in D itself, in its type, where all reductions are allowed; in float32 else."""
    answer = kind_samples.sample_answer(algo_id=21, splitk_num=4)
    return answer if p.reduction_scheme_mask == 7 else replace(answer, algo_id=66)


def in_narrow_slices(p: GemmProblem, answer: AlgoConfig) -> Any:
    merge = p.d_dtype if answer.algo_id == 21 else DType.FLOAT32
    order = Order(spans=("ceildiv(k, splitk_num)",), partial=merge, merge=merge)
    return order.rule(p.a_dtype, p.d_dtype)


@contextmanager
def reduction(name: str, value: tuple[bool, bool]) -> Any:
    matmul, flag = torch.backends.cuda.matmul, f"allow_{name}_reduced_precision_reduction"
    before = getattr(matmul, flag), getattr(matmul, f"{flag}_split_k")
    setattr(matmul, flag, value)
    try:
        yield
    finally:
        setattr(matmul, flag, before)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", DType.FLOAT16), ("bf16", DType.BFLOAT16)])
def test_a08_every_state_of_the_flag_has_its_answer(name: str, dtype: DType, case: CaseLog) -> None:
    """The exact sum is 0: +2 and -2 in the halves of k; what partial sums of 16384 times 2 leave follows the flag."""
    m = n = 4
    k, plain = 65536, (matrix(m, 65536, dtype), matrix(65536, n, dtype), matrix(m, n, dtype))
    two = {DType.FLOAT16: 0x4000, DType.BFLOAT16: 0x4000}[dtype]
    one = {DType.FLOAT16: 0x3C00, DType.BFLOAT16: 0x3F80}[dtype]
    rows = np.full((m, k), two, dtype=np.uint16)
    rows[:, k // 2 :] |= 0x8000
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=narrow_where_allowed, rules=in_narrow_slices
    )
    problem = route_mm(*plain, SETTINGS)
    assert isinstance(problem, GemmProblem)
    answers = [narrow_where_allowed(replace(problem, reduction_scheme_mask=mask)) for mask in (7, 2)]
    profile_rows = (
        sample_row(RuleOutcome(rule=in_narrow_slices(problem, a)), answer=a, projection=("algo_id",), dtype=dtype)
        for a in answers
    )
    profile = sample_profile(*profile_rows, device=DEVICE, library=IDENTITY)
    chosen = Planner(lambda: library, lambda device, identity: profile)
    results, seen = [], []
    window = Window(rows=np.arange(2), columns=np.arange(2))
    a_side, b_side = (DenseOperand(dtype=dtype, array=x) for x in (np.full((n, k), one, dtype=np.uint16), rows))
    for state in ((True, True), (False, True), (True, True)):
        with reduction(name, state):
            plan = chosen.plan_mm(*plain, read_settings("sm_90"))
        assert isinstance(plan, Plan), plan
        want = library.run(plan.problem, plan.answer, a_side, b_side, window)
        got = replay_problem(plan.regions, plan.problem, a_side, b_side, window)
        assert not isinstance(want, Failed)
        case.same(torch.from_numpy(got.view(np.int16)), torch.from_numpy(want.view(np.int16)), state)
        results.append(got.tobytes())
        seen.append(plan.row.key)
    case.demand(seen[0] == seen[2] != seen[1], "two settings of two orders have two rows")
    case.demand(results[0] == results[2], "the flag takes effect at once, both ways")
    case.demand((results[0] != results[1]) is (dtype is DType.FLOAT16), "float16 overflows, bfloat16 does not")
    with reduction(name, (False, False)):
        declined = chosen.plan_mm(*plain, read_settings("sm_90"))
    assert isinstance(declined, Declined)
    case.refused(declined, "flags")
    case.demand("split-K is off" in declined.reason)


def test_a09_narrow_partials_are_stated_and_listed(tmp_path: Path, case: CaseLog) -> None:
    """Of layers some of whose slices are stored in 16 bits, a query lists exactly those."""
    shapes = tuple(Shape(m=m, n=n, k=14336) for m, n in ((64, 4096), (512, 4096), (4096, 64), (300, 4096)))

    def answer(p: GemmProblem) -> AlgoConfig:
        narrow = p.n == 64
        return sample_answer(algo_id=24 if narrow else 66, splitk_num=7 if narrow else 1)

    narrow = Order(spans=("ceildiv(k, splitk_num)",), partial=DType.FLOAT16, merge=DType.FLOAT32)
    rows = tuple(
        sample_row(RuleOutcome(rule=order.rule()), answer=sample_answer(algo_id=algo), projection=("algo_id",))
        for algo, order in ((24, narrow), (66, Order()))
    )
    profile = sample_profile(*rows, device=DEVICE, library=IDENTITY)
    library = SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer, rules={})
    book = book_of(library, shapes, check=False)
    report = lint_shapes(shapes, BookReader(book, profile))
    listed = [r.shape for r in report.shapes if any(f.kind is FindingKind.NARROW_PARTIALS for f in r.findings)]
    case.demand(listed == [shapes[0]])
    descriptor = report.shapes[0].descriptor
    assert descriptor is not None
    (cut,) = descriptor.cuts
    case.demand((cut.partial_dtype, cut.merge_dtype) == (DType.FLOAT16, DType.FLOAT32))
    path = put(tmp_path, profile, book)
    (tmp_path / "shapes.csv").write_text("m,n,k\n" + "".join(f"{s.m},{s.n},{s.k}\n" for s in shapes))
    result = CliRunner().invoke(
        app,
        ["lint", str(tmp_path / "shapes.csv"), "--book", str(path.with_suffix(".book")), "--profile", str(path),
         "--json"],
    )  # fmt: skip
    case.demand(result.exit_code == 1, result.output)
    found = json.loads(result.stdout)["shapes"]
    case.demand([s["m"] for s in found if any(f["kind"] == "narrow_partials" for f in s["findings"])] == [64])


# --- layouts and sizes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("biased", [True, False])
def test_a10_a_permuted_input_is_another_call(biased: bool, case: CaseLog) -> None:
    a, b = cancelling(14, 20, 96, BF16)
    plain, weight = a.reshape(2, 7, 96), b.T.contiguous()
    bias = halves(20, seed=2, dtype=BF16) if biased else None
    problems = []
    for x in (plain, plain.permute(1, 0, 2).contiguous().permute(1, 0, 2)):
        call = lambda x=x: LINEAR(x, weight, bias)  # noqa: E731
        case.same(replayed(call), by_library(source(), call))
        (route,) = routes_of(call)
        case.demand(route.copies == (), "nothing is made contiguous that torch hands on as it is")
        problems.append(route.problem)
    case.demand(problems[0] != problems[1])
    case.demand((problems[0].batch_count, problems[1].batch_count) == (1, 2))


@pytest.mark.parametrize("m", [None, 16])
def test_a11_every_size_has_its_bytes(m: int | None, case: CaseLog) -> None:
    for n in range(33, 74):
        a, b = cancelling(m or n, n, n, BF16, n)
        case.same(replayed(lambda a=a, b=b: torch.mm(a, b)), by_library(source(), lambda a=a, b=b: torch.mm(a, b)), n)


def test_a11_shares_are_given_over_unrounded_sizes_beside_rounded_ones(tmp_path: Path, case: CaseLog) -> None:
    drawn = [draw_case(Regime.UNROUNDED, 1, i) for i in range(2000)]
    for name in ("m", "n", "k"):
        case.demand({getattr(c, name) % 16 for c in drawn} == set(range(16)), f"{name} takes every residue")
    bench = ReplayBench(hidden_library(hide(3)), sample_index(), SETTINGS)
    options = Options(seed=4, draws=1, unrounded=30, aligned=30, deep=0, named=0, lost_tail=0)
    records = run_campaign(lambda count: InProcess(bench), options, Machine(), tmp_path, {"seed": 4}, lambda *_: None)
    shares = summary(records)["by_regime"]["cublaslt"]
    case.demand({name: counts["shapes"] for name, counts in shares.items()} == {"unrounded": 30, "multiples_of_8": 30})
    case.demand(all({"equal", "declined", "different"} <= counts.keys() for counts in shares.values()))


def sample_index() -> Any:
    from gemmdesc.profiles import index_profile

    return index_profile(hidden_profile(hide(3)))


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_a12_every_tail_of_k(dtype: Any, case: CaseLog) -> None:
    for k in (1, 7, 8, 9, 15, 31, 33, 63, 65, 127, 129, 1001):
        a, b = cancelling(10, 9, k, dtype, k) if k > 1 else (halves(10, 1, dtype=dtype), halves(1, 9, dtype=dtype))
        got = replayed(lambda a=a, b=b: torch.mm(a, b))
        case.same(got, by_library(source(), lambda a=a, b=b: torch.mm(a, b)), k)
        if k == 1:
            case.same(got, (a.double() * b.double()).to(dtype), "one product, rounded once")


@pytest.mark.parametrize("dtype", [FLOAT, BF16])
def test_a13_gaps_between_rows_are_left_alone(dtype: Any, case: CaseLog) -> None:
    a = torch.empty_strided((24, 70), (1, 24), dtype=dtype)
    b = torch.empty_strided((70, 53), (79, 1), dtype=dtype)
    a.copy_(halves(24, 70, dtype=dtype))
    b.copy_(halves(70, 53, seed=1, dtype=dtype))
    buffer = torch.full((24, 61), 7.0, dtype=dtype)
    out = buffer[:, :53]
    want = by_library(source(), lambda: torch.mm(a, b))
    case.same(replayed(lambda: torch.mm(a, b)), want)
    replayed(lambda: torch.mm(a, b, out=out))
    case.same(out.contiguous(), want)
    case.demand(bool((buffer[:, 53:] == 7).all()), "nothing is written between the rows")


def test_a14_more_elements_than_32_bits_count(case: CaseLog) -> None:
    """Deciding alone: metas of operands, and of a result, beyond 2^31 elements."""
    chosen = planner_with(answer_of)
    for m, n, k in ((35783, 8, 65133), (46400, 46400, 64)):
        found = chosen.plan_mm(*(matrix(*s, DType.BFLOAT16) for s in ((m, k), (k, n), (m, n))), SETTINGS)
        assert isinstance(found, Plan), found
        case.demand((found.meta.m, found.meta.n, found.meta.k) == (m, n, k))
    found = chosen.plan_mm(matrix(2**31, 4), matrix(4, 4), matrix(2**31, 4), SETTINGS)
    assert isinstance(found, Declined)
    case.refused(found, "unsupported_input")
    case.demand("2^31 - 1" in found.reason)


def test_a15_a_first_choice_that_does_not_run_is_recorded(tmp_path: Path, case: CaseLog) -> None:
    def failing(problem: GemmProblem, answer: AlgoConfig) -> str | None:
        return "CUBLAS_STATUS_EXECUTION_FAILED" if problem.k % 5 == 0 else None

    library = replace(hidden_library(hide(3)), failures=failing)
    bench = ReplayBench(library, sample_index(), SETTINGS)
    options = Options(seed=4, draws=1, unrounded=100, aligned=0, deep=0, named=0, lost_tail=0)
    records = run_campaign(lambda count: InProcess(bench), options, Machine(), tmp_path, {"seed": 4}, lambda *_: None)
    case.demand(len(records) == 100, "the sweep goes on")
    compared = [r for r in records if r.counts]
    failed = [r for r in compared if r.outcome("cublaslt") is Outcome.REFERENCE_FAILED]
    case.demand(failed and len(failed) < len(compared))
    case.demand({r.failure for r in failed} == {"CUBLAS_STATUS_EXECUTION_FAILED"})
    case.demand(all(r.case["k"] % 5 == 0 for r in failed))
    counts = summary(records)["total"]["cublaslt"]
    case.demand((counts["reference_failed"], counts["different"]) == (len(failed), 0))
    case.demand(counts["equal"] == len(compared) - len(failed), "neither equal nor different")


EMPTY: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "batches": (lambda: torch.bmm(halves(3, 2, 0), halves(3, 0, 3)), lambda: torch.zeros(3, 2, 3)),
    "matrices": (lambda: torch.mm(halves(5, 0), halves(0, 7)), lambda: torch.zeros(5, 7)),
    "out": (
        lambda: torch.mm(halves(5, 0), halves(0, 7), out=torch.full((5, 7), torch.nan, dtype=HALF)),
        lambda: torch.zeros(5, 7),
    ),
    "a bias": (
        lambda: torch.addmm(torch.full((7,), 3.0).half(), halves(5, 0), halves(0, 7)), lambda: torch.full((5, 7), 3.0)
    ),
    "beta": (
        lambda: torch.addmm(torch.full((5, 7), 3.0).half(), halves(5, 0), halves(0, 7), beta=2),
        lambda: torch.full((5, 7), 6.0),
    ),
    "C": (
        lambda: torch.baddbmm(torch.full((2, 5, 7), 3.0).half(), halves(2, 5, 0), halves(2, 0, 7)),
        lambda: torch.full((2, 5, 7), 3.0),
    ),
    "no rows": (lambda: torch.mm(halves(0, 4), halves(4, 7)), lambda: torch.zeros(0, 7)),
    "no columns": (lambda: torch.matmul(halves(2, 3, 4), halves(4, 0)), lambda: torch.zeros(2, 3, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_a16_nothing_to_sum_needs_no_library(name: str, case: CaseLog) -> None:
    class Silent:
        settings, release = SETTINGS, Release(major=2, minor=11)

        def look_up(self, problem: GemmProblem) -> Any:
            raise AssertionError("no library takes part in it")

    call, want = EMPTY[name]
    with gemmdesc.override(replay=Silent()) as over:
        case.same(call(), want().half())
    case.demand(over.report().lines == ())


@pytest.mark.parametrize("fill", [torch.nan, torch.inf])
def test_a17_beta_zero_never_reads_c(fill: float, case: CaseLog) -> None:
    a, b = cancelling(9, 11, 70, HALF)
    want = by_library(source(), lambda: torch.mm(a, b))
    for shape in ((9, 11), (11,), (1, 11)):
        addend = torch.full(shape, fill, dtype=HALF)
        case.same(replayed(lambda addend=addend: torch.addmm(addend, a, b, beta=0)), want)
    out = torch.full((9, 11), fill, dtype=HALF)
    case.same(replayed(lambda: torch.addmm(out, a, b, beta=0, out=out)), want)
    case.same(replayed(lambda: torch.mm(a, b, out=torch.full((9, 11), fill, dtype=HALF))), want)
    batch = torch.full((1, 9, 11), fill, dtype=HALF)
    case.same(replayed(lambda: torch.baddbmm(batch, a[None], b[None], beta=0)[0]), want)


def test_a18_gelu_is_the_tanh_form_of_torchs_own_call(case: CaseLog) -> None:
    a, b = cancelling(6, 16, 70, HALF)
    bias = torch.tensor([-12.0, -3.0, -0.0, 3.0, 60000.0, torch.inf, torch.nan, 1.0]).half().repeat(2)
    relu = lambda: torch._addmm_activation(bias, a, b)  # noqa: E731
    case.same(replayed(relu), by_library(source(), relu))
    (route,) = routes_of(lambda: torch._addmm_activation(bias, a, b, use_gelu=True))
    case.demand(route.problem.epilogue is Epilogue.GELU_BIAS, "the library's own epilogue")
    gelu = lambda: torch._addmm_activation(bias, a, b, use_gelu=True)  # noqa: E731
    case.declines(lambda: replayed(gelu), "no_rule", "out_of_scope")
    (later,) = routes_of(lambda: torch._addmm_activation(bias, a, b, beta=0, use_gelu=True))
    case.demand(later.activation.value == "gelu", "torch's own kernel after the rounding")
    named = set(inspect.signature(gemmdesc.addmm_activation).parameters)
    case.demand(not any("erf" in name for name in named), "the erf form has no place in this call")


@DOCUMENTED
def test_a18_the_page_says_which_gelu(case: CaseLog) -> None:
    case.demand("neither `relu(addmm(...))` nor `gelu(linear(...))`" in PAGE.read_text())


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_a19_addresses_are_part_of_the_call(offset: int, case: CaseLog) -> None:
    a, b = cancelling(9, 64, 72, HALF)
    weight = b.T.contiguous()

    def at(tensor: Any, start: int) -> Any:
        buffer = torch.zeros(tensor.numel() + 8, dtype=HALF)
        view = buffer[start : start + tensor.numel()].view(tensor.shape)
        return view.copy_(tensor)

    bias = at(halves(64, seed=2), offset)
    call = lambda: LINEAR(a, weight, bias)  # noqa: E731
    case.same(replayed(call), by_library(source(), call))
    (route,) = routes_of(call)
    wanted = {0: 256, 1: 2, 2: 4, 4: 8}[offset]
    case.demand(route.problem.d_alignment_bytes == wanted, "torch tells the bias's address for D's")
    for operands in ((at(a, offset), weight), (a, at(weight, offset))):
        product = lambda x=operands: torch.mm(x[0], x[1].T)  # noqa: E731
        case.same(replayed(product), by_library(source(), product))
    moved = [r.problem for x in (at(a, offset), a) for r in routes_of(lambda x=x: torch.mm(x, weight.T))]
    case.demand((moved[0] == moved[1]) is (offset == 0), "another address is another key")
    case.demand(moved[0].b_alignment_bytes == wanted)


@pytest.mark.parametrize("state", ["highest", "high", "medium", True, False])
def test_a20_tf32_is_read_at_the_call(state: str | bool, case: CaseLog) -> None:
    matmul, before = torch.backends.cuda.matmul, torch.get_float32_matmul_precision()
    try:
        if isinstance(state, str):
            torch.set_float32_matmul_precision(state)
        else:
            matmul.allow_tf32 = state
        settings = read_settings("sm_90")
    finally:
        torch.set_float32_matmul_precision(before)
    allowed = state in ("high", "medium", True)
    held = LibrarySource(library=source().library, profile=source().profile, settings=settings)
    (route,) = routes_of(lambda: torch.mm(torch.eye(8), torch.eye(8)), settings)
    wanted = ComputeType.COMPUTE_32F_FAST_TF32 if allowed else ComputeType.COMPUTE_32F
    case.demand(route.problem.compute_type is wanted)
    b = halves(40, 40, dtype=FLOAT) * (1 + 2.0**-12)
    for call in (lambda: torch.eye(40) @ b, lambda: torch.mm(*cancelling(8, 8, 300, FLOAT))):
        case.same(replayed(call, held), by_library(held, call), state)
    identity = replayed(lambda: torch.eye(40) @ b, held)
    case.demand(torch.equal(identity, b) is not allowed, "with TF32 the identity no longer gives b")
    without = LibrarySource(
        library=held.library, profile=profile_of(small_scopes(("float32",))), settings=settings
    )  # fmt: skip
    if allowed:
        case.declines(lambda: replayed(lambda: torch.eye(40) @ b, without), "no_rule")
    else:
        case.same(replayed(lambda: torch.eye(40) @ b, without), identity)
    case.demand(read_settings("sm_90").allow_tf32 is False, "the state is not kept")


# --- compilers, gradients, graphs, threads --------------------------------------------------------------------------


def spelled(spelling: str, bias: Any, rows: int) -> Any:
    expanded = bias.expand(rows, bias.numel())
    return {"vector": bias, "expanded": expanded, "whole": expanded.contiguous()}[spelling]


@pytest.mark.parametrize(
    "mode",
    ["eager", "aot_eager", pytest.param("default", marks=pytest.mark.slow),
     pytest.param("max-autotune", marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.parametrize("spelling", ["vector", "expanded", "whole"])
def test_a21_a_compiled_spelling_has_eagers_bytes(spelling: str, mode: str, case: CaseLog) -> None:
    register_choices("cases", replay=source())
    a, b = cancelling(50, 50, 250, HALF)
    bias = halves(50, seed=2)

    def function(a: Any, b: Any, bias: Any) -> Any:
        return gemmdesc.addmm(spelled(spelling, bias, 50), a, b, named="cases")

    torch._dynamo.reset()
    how = {"backend": mode} if "eager" in mode else {"mode": mode}
    compiled = torch.compile(function, fullgraph=True, **how)
    call = lambda: torch.addmm(spelled(spelling, bias, 50), a, b)  # noqa: E731
    case.same(compiled(a, b, bias), by_library(source(), call), mode)
    case.same(function(a, b, bias), by_library(source(), call))
    case.declines(lambda: compiled(a.float(), b.float(), bias.float()), "no_rule")


@pytest.mark.parametrize("needs", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
def test_a22_a_fold_that_depends_on_gradients(needs: tuple[bool, bool], mode: str, case: CaseLog) -> None:
    a, b = cancelling(24, 12, 70, BF16)
    left, right = a.reshape(3, 8, 70).requires_grad_(needs[0]), b.requires_grad_(needs[1])
    with getattr(torch, mode)():
        for call in (lambda: torch.matmul(left, right), lambda: torch.matmul(right.mT, left.mT)):
            want = by_library(source(), call)
            got = replayed(call)
            case.same(got.detach(), want.detach(), (needs, mode))
            case.demand(got.requires_grad is (mode == "enable_grad" and any(needs)))
            if got.requires_grad:
                got.sum().backward()
                case.demand([t.grad is not None for t in (left, right)] == list(needs), "leaf tensors get gradients")
                left.grad = right.grad = None


@DOCUMENTED
def test_a22_the_page_says_which_route_it_is(case: CaseLog) -> None:
    case.demand("side requires a gradient, on autograd (`should_fold`" in PAGE.read_text())


def test_a23_a_capture_that_comes_first_is_told_so(case: CaseLog) -> None:
    """A rule that reads the launch cannot be planned while a graph is captured; afterwards it can."""
    node = KernelNode(name="k", grid=(2, 1, 5), block=(1, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
    rule = Order(spans=("grid_z",)).rule()
    profile = sample_profile(sample_row(RuleOutcome(rule=rule)), device=DEVICE, library=IDENTITY)

    def library() -> SimulatedLibrary:
        return SimulatedLibrary(
            identity=IDENTITY, device=DEVICE, heuristic=lambda p: sample_answer(), rules={},
            launches=lambda p, answer: Launch(kernels=(node,)),
        )  # fmt: skip

    chosen = Planner(library, lambda device, identity: profile)
    sides = (matrix(64, 32768), matrix(32768, 64), matrix(64, 64))
    with pytest.raises(CaptureError, match=r"plan must be made once outside the capture.*\(got "):
        chosen.plan_mm(*sides, SETTINGS, captured=True)
    first = chosen.plan_mm(*sides, SETTINGS)
    assert isinstance(first, Plan), first
    second = chosen.plan_mm(*sides, SETTINGS, captured=True)
    assert isinstance(second, Plan)
    case.demand((second.descriptor, second.captured) == (first.descriptor, True))
    case.demand(chosen.cold(second.variants) == second.variants, "nothing counts as compiled before it was")


def test_a24_threads_share_no_library_and_no_bytes(case: CaseLog) -> None:
    in_use: set[int] = set()
    lock, clashes = threading.Lock(), []

    class Alone:
        """A library that notices a second thread."""

        def __init__(self) -> None:
            self.inner = source().library
            self.identity, self.device = IDENTITY, DEVICE

        def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
            with lock:
                clashes.extend([id(self)] * (id(self) in in_use))
                in_use.add(id(self))
            found = self.inner.answer(problem)
            with lock:
                in_use.discard(id(self))
            return found

        def launch(self, problem: GemmProblem, answer: AlgoConfig) -> None:
            return None

    chosen = Planner(Alone, lambda device, identity: kernel_profile())
    a, b = cancelling(7, 9, 1601, HALF)
    want = by_library(source(), lambda: torch.mm(a, b))

    def work(number: int) -> None:
        for turn in range(25):
            sides = (matrix(8 + number, 96 + turn), matrix(96 + turn, 16), matrix(8 + number, 16))
            assert isinstance(chosen.plan_mm(*sides, SETTINGS), Plan)
            case.same(replayed(lambda: torch.mm(a, b)), want)

    with gemmdesc.override(replay=source()), ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, i) for i in range(4)]:
            done.result()
    case.demand(clashes == [], "a library handle serves one thread at a time")


def by_workspace(p: GemmProblem) -> AlgoConfig | Refused:
    return replace(answer_of(p), splitk_num=1 + (p.workspace_limit_bytes > 1024) + (p.workspace_limit_bytes > 1 << 20))


def test_a25_the_workspace_is_part_of_the_key(case: CaseLog) -> None:
    chosen, sides = planner_with(by_workspace), (matrix(64, 1024), matrix(1024, 64), matrix(64, 64))
    plans = []
    for text in (":1:1", ":1024:1", None, ":1:1"):
        environment = {} if text is None else {"CUBLAS_WORKSPACE_CONFIG": text}
        found = chosen.plan_mm(*sides, read_settings("sm_90", environment))
        assert isinstance(found, Plan), found
        plans.append(found)
    case.demand([p.problem.workspace_limit_bytes for p in plans] == [1024, 1 << 20, 32 << 20, 1024])
    case.demand(len({p.row.key for p in plans}) == 3, "another size is another row, not a mismatch")
    case.demand(plans[0] is plans[3])


def test_a25_a_value_that_comes_too_late_is_told(case: CaseLog) -> None:
    watch = WorkspaceWatch()
    watch.initialised({"CUBLAS_WORKSPACE_CONFIG": ":9:9"})
    late = watch.late({"CUBLAS_WORKSPACE_CONFIG": ":9:8"})
    case.demand(
        late == (LateVariable(name="CUBLAS_WORKSPACE_CONFIG", before=":9:9", now=":9:8", certain=True),)
    )  # fmt: skip
    with pytest.warns(UserWarning, match="torch may not follow"):
        words = late_words(late)
    held = LibrarySource(
        library=source().library, profile=source().profile, settings=TorchSettings(unsettled=words)
    )  # fmt: skip
    found = case.declines(lambda: replayed(lambda: torch.mm(halves(4, 6), halves(6, 5)), held), "flags")
    case.demand("was ':9:9' once CUDA was initialised, and is ':9:8' now" in found.reason)
    case.demand(watch.late({"CUBLAS_WORKSPACE_CONFIG": ":9:9"}) == ())


def test_a25_leaving_restores_everything(case: CaseLog) -> None:
    def state() -> Any:
        kernels = [repr(torch.library.get_kernel(f"aten::{name}", "CPU")) for name in ("mm", "addmm.out", "bmm")]
        return dict(os.environ), read_settings("sm_90"), kernels, gemmdesc.is_overridden(), torch.is_grad_enabled()

    before = state()
    with gemmdesc.override(replay=source()):
        torch.mm(halves(4, 6), halves(6, 5))
    case.demand(state() == before)
    with pytest.raises(DeclinedError), gemmdesc.override(replay=source()), gemmdesc.override(replay=batch_source()):
        torch.dot(halves(4), halves(4))
    case.demand(state() == before, "after an exception, too")
    gemmdesc.enable_override(replay=source())
    gemmdesc.disable_override()
    case.demand(state() == before)


@pytest.mark.parametrize("compiled", [False, True])
def test_a26_autocast_converts_as_torch_does(compiled: bool, case: CaseLog) -> None:
    register_choices("cases", replay=source())
    a, b = cancelling(4, 128, 64, FLOAT)
    function = lambda x, y: gemmdesc.mm(x, y, named="cases")  # noqa: E731
    torch._dynamo.reset()
    ours = torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function
    for left, right in ((a, b.to(BF16)), (a, b)):
        with torch.autocast("cpu", BF16):
            got = ours(left, right)
            case.same(got, by_library(source(), lambda x=left, y=right: torch.mm(x, y)))
        case.demand(got.dtype is BF16)
    for call in (lambda: torch.mm(a, b.to(BF16)), lambda: gemmdesc.mm(a, b.to(BF16), replay=source())):
        with pytest.raises(RuntimeError, match="dtype"):
            replayed(call)
        case.demand(True, "outside of autocast types must agree")


# --- recording launches ---------------------------------------------------------------------------------------------


@pytest.fixture
def unsaid() -> Any:
    """Nothing was said yet of kernel names."""
    unknown._said.cache_clear()
    yield
    unknown._said.cache_clear()


@pytest.mark.usefixtures("unsaid")
def test_a27_a_profiler_that_is_on_is_left_on(case: CaseLog) -> None:
    calls: list[int] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as outer:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = [profiler.executed_kernels(lambda: calls.append(1)) for _ in range(3)]
        torch.mm(halves(4, 6), halves(6, 5))
    case.demand(found == [None] * 3, "kernel names are unknown")
    case.demand([w.category for w in told] == [unknown.KernelNamesUnknownWarning], "which is said once")
    case.demand(any(e.name == "aten::mm" for e in outer.events()), "the first profiler saw what it was on for")


@pytest.mark.usefixtures("unsaid")
@pytest.mark.parametrize("missing", [True, False])
def test_a27_a_launch_that_cannot_be_recorded_is_unknown(
    missing: bool, monkeypatch: pytest.MonkeyPatch, case: CaseLog
) -> None:
    """Without cuda-bindings, and where another tool has a capture refused: one warning, and probing goes on."""
    driver = ModuleType("driver")
    driver.CUstreamCaptureMode = type("Mode", (), {"CU_STREAM_CAPTURE_MODE_RELAXED": 2})  # type: ignore[attr-defined]
    driver.CUstream = int  # type: ignore[attr-defined]
    driver.cuStreamBeginCapture = lambda stream, mode: (901,)  # type: ignore[attr-defined]
    bindings = ModuleType("cuda.bindings")
    if not missing:
        bindings.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.delitem(sys.modules, "cuda.bindings.driver", raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "Stream", lambda index: type("Stream", (), {"cuda_stream": 5})())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [capture.capture_launch(lambda stream: None, 0) for _ in range(5)]
    case.demand(found == [None] * 5)
    case.demand([w.category for w in told] == [unknown.KernelNamesUnknownWarning])
    case.demand(("cuda-bindings" if missing else "cuStreamBeginCapture: 901") in str(told[0].message))
    library = source().library
    problem = route_mm(matrix(8, 96), matrix(96, 8), matrix(8, 8), SETTINGS)
    assert isinstance(problem, GemmProblem)
    case.demand(library.launch(problem, library.answer(problem)) is None, "a launch may be unknown to what follows")
    chosen = planner_with(answer_of)
    case.demand(isinstance(chosen.plan_mm(matrix(8, 96), matrix(96, 8), matrix(8, 8), SETTINGS), Plan))


_CHOICES = """
import hashlib
from tests.case_samples import choices
print(hashlib.sha256(repr(choices()).encode()).hexdigest())
"""


def test_a27_fresh_processes_choose_alike(case: CaseLog) -> None:
    """Tiles are no matter of timing, nor of the order of sets: every process chooses the same kernels."""
    command = [sys.executable, "-c", _CHOICES]
    environments = [child_environment(PYTHONHASHSEED=str(seed)) for seed in range(6)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=e) for e in environments]
    hashes = [p.communicate(timeout=200)[0].strip() for p in running]
    case.demand(len(set(hashes)) == 1, hashes)
    case.demand(len(hashes[0]) == 64)
