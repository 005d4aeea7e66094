"""Public reports on a card, one test or more for each that needs one: eager torch is the reference, byte for byte.

What the profile has no rows for declines, where a report's text leaves room for it; how often it was is in the record
of ``scripts/check_cases.py``.  Run ``-m gpu``; a test's name begins with its report's number, see ``case_log.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import gemmdesc
from gemmdesc.books import BookReader, Shape, record_book
from gemmdesc.dropin.memory import differing
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DeclinedError
from gemmdesc.library import unknown
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.identity import library_id, torch_library
from gemmdesc.library.profiler import Agreement, cross_check
from gemmdesc.library.torch_settings import read_settings
from gemmdesc.lint import FindingKind, lint_shapes
from gemmdesc.operands import DenseOperand
from gemmdesc.ops import default_planner, plan
from gemmdesc.plan import CaptureError, Plan, Planner, planner_for, shared_orders
from gemmdesc.problem import AlgoConfig, Failed, dense_problem
from gemmdesc.profiles import Profile, find_profile, profile_path, write_profile
from gemmdesc.routes import TensorMeta
from gemmdesc.verification.cases import Regime, case_metas, draw_case
from tests.case_log import CaseLog
from tests.child_processes import child_environment, last_words

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32
ROOT = Path(__file__).resolve().parent.parent
LINEAR = torch.nn.functional.linear
#: Why a product may decline that the report leaves room for: the profile has no row that serves it, or no kernel does.
NO_ROWS = ("no_rule", "kernel", "out_of_scope", "nondeterministic")


@pytest.fixture(autouse=True, scope="module")
def measured() -> Profile:
    found = default_planner().profile
    if isinstance(found, Declined):
        pytest.fail(f"these tests need a profile: {found.reason}")
    return found


def draw(*shape: int, dtype: Any = HALF, seed: int = 0) -> Any:
    """Values of mixed magnitudes, in which the order of a sum shows."""
    made = torch.Generator("cuda").manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 7, shape, device="cuda", generator=made).float())
    return (torch.randn(shape, device="cuda", generator=made) * scale).to(dtype)


def at(tensor: Any, offset: int) -> Any:
    """The same values, ``offset`` elements into a buffer."""
    buffer = torch.zeros(tensor.numel() + 16, dtype=tensor.dtype, device="cuda")
    return buffer[offset : offset + tensor.numel()].view(tensor.shape).copy_(tensor)


def eager(case: CaseLog, call: Callable[[], Any], *codes: str, what: object = "") -> bool:
    """Whether ``call`` inside an override has eager's bytes; False where it declines with one of ``codes``."""
    want = call().detach().clone()

    def ours() -> Any:
        with gemmdesc.override():
            return call().detach()

    return case.same_or_declined(ours, want, *codes, what=what)


def in_a_process(text: str, *arguments: str, **variables: str) -> Any:
    environment = child_environment(without="CUBLAS", **variables)
    command = [sys.executable, "-c", text, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    if done.returncode:
        pytest.fail(f"the child ended with {done.returncode}: {last_words(done.stderr)}")
    return json.loads(done.stdout.splitlines()[-1])


# --- batches and biases ---------------------------------------------------------------------------------------------


def test_a01_rows_follow_the_librarys_batches(case: CaseLog) -> None:
    weight, anchor, sizes = draw(2048, 2048, dtype=BF16, seed=1), draw(2048, dtype=BF16), (1, 2, 17, 33, 128, 257, 1024)
    anchors: dict[int, list[Any]] = {}
    plans: dict[int, Any] = {}
    for m in sizes:
        x = draw(m, 2048, dtype=BF16, seed=2)
        plans[m] = plan(x, weight.t())
        for place in (0, m // 2, m - 1):
            x = draw(m, 2048, dtype=BF16, seed=2)
            x[place] = anchor
            anchors.setdefault(m, []).append(torch.mm(x, weight.t())[place].clone())
            eager(case, lambda x=x: torch.mm(x, weight.t()), *NO_ROWS, what=(m, place))
    groups = [g for g in shared_orders(plans) if not isinstance(g.outcome, Declined)]
    for group in groups:
        places = range(1) if group.by_place else range(3)
        for m in group.rows:
            for i in places:
                case.same(anchors[m][i], anchors[group.rows[0]][i], f"{group.rows} share an order")
    case.note("groups", [list(g.rows) for g in groups])
    case.demand(groups)


@pytest.mark.parametrize("batch", [100, 256, 512])
def test_a02_a_batch_is_no_loop(batch: int, case: CaseLog) -> None:
    a, b = draw(batch, 8, 64), draw(batch, 64, 8, seed=1)
    eager(case, lambda: torch.bmm(a, b), *NO_ROWS)
    for i in (0, 3, batch - 1):
        eager(case, lambda i=i: torch.mm(a[i], b[i]), *NO_ROWS)
    loop = torch.stack([torch.mm(x, y) for x, y in zip(a, b, strict=True)])
    agrees = not differing(torch.bmm(a, b), loop)
    case.note(f"batch {batch} equals a loop in eager torch", agrees)


@pytest.mark.parametrize("rows", [1, 3])
def test_a03_a_bias_inside_or_after_the_rounding(rows: int, case: CaseLog) -> None:
    x, weight, bias = draw(rows, 100, dtype=BF16), draw(100, 100, dtype=BF16, seed=1), draw(100, dtype=BF16, seed=2)
    eager(case, lambda: LINEAR(x, weight, bias), *NO_ROWS)
    eager(case, lambda: torch.matmul(x, weight.T) + bias, *NO_ROWS)


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_a04_a_bias_under_split_k(dtype: Any, case: CaseLog) -> None:
    a, b = draw(64, 16384, dtype=dtype) / 1024, draw(16384, 256, dtype=dtype, seed=1)
    bias = (100 * torch.mm(a, b).float().abs().median()).to(dtype) * draw(256, dtype=dtype, seed=2).sign()
    for addend in (bias, bias.expand(64, 256), bias.expand(64, 256).contiguous()):
        eager(case, lambda addend=addend: torch.addmm(addend, a, b), *NO_ROWS)


# --- libraries and cards --------------------------------------------------------------------------------------------


def test_a06_the_key_is_the_mapped_librarys(case: CaseLog) -> None:
    mapped, planner = torch_library(), default_planner()
    identity = library_id(mapped.path)
    case.demand((planner.library.version, planner.library.build_id) == (identity.version, identity.build_id))
    case.demand(str(mapped.path) in Path("/proc/self/maps").read_text())
    case.note("library", f"{identity.version} of {identity.wheel or 'no wheel'}, {mapped.how}")
    case.note("torch says", f"CUDA {torch.version.cuda}")
    near = replace(planner.library, version=replace(identity.version, patch=identity.version.patch + 1))
    found = find_profile(planner.device, near, [ROOT / "arch_profiles"])
    assert isinstance(found, Declined)
    case.refused(found, "no_profile")


def test_a07_another_sm_count_is_refused(tmp_path: Path, measured: Profile, case: CaseLog) -> None:
    a, b = draw(32, 116, 116), draw(32, 116, 128, seed=1)
    eager(case, lambda: torch.bmm(a, b), *NO_ROWS)
    eager(case, lambda: torch.matmul(a, b[0]), *NO_ROWS)
    other = replace(measured, device=replace(measured.device, sm_count=measured.device.sm_count - 18))
    path = profile_path(tmp_path, other.device, other.library.version)
    write_profile(other, path)
    own = Planner(CublasLt, lambda device, library: find_profile(device, library, [path]))
    found = case.declines(lambda: gemmdesc.matmul(a[0], b[0], planner=own), "no_profile")
    case.demand(other.device.folder in found.reason)
    own.close()


# --- flags and split-K ----------------------------------------------------------------------------------------------


@contextmanager
def reduction(dtype: Any, value: tuple[bool, bool]) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    name = f"allow_{'fp16' if dtype is HALF else 'bf16'}_reduced_precision_reduction"
    before = getattr(matmul, name), getattr(matmul, f"{name}_split_k")
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_a08_reduced_precision_flags(dtype: Any, case: CaseLog) -> None:
    a = torch.full((64, 65536), 2.0, dtype=dtype, device="cuda")
    a[:, 32768:] = -2.0
    ones, mixed = torch.ones((65536, 64), dtype=dtype, device="cuda"), draw(65536, 64, dtype=dtype)
    for state in ((True, True), (False, True), (True, True), (False, False), (False, True), (True, True)):
        with reduction(dtype, state):
            for b in (ones, mixed):
                if state[1]:
                    eager(case, lambda b=b: torch.mm(a, b), *NO_ROWS, what=state)
                    continue
                with pytest.raises(RuntimeError), warnings.catch_warnings(action="ignore"):
                    torch.mm(a, b)
                case.declines(lambda b=b: gemmdesc.matmul(a, b), "flags")
    case.note(f"{dtype} of +2 and -2", str(float(torch.mm(a, ones)[0, 0])))


@pytest.mark.parametrize("m", [64, 512])
def test_a09_narrow_partials(m: int, measured: Profile, case: CaseLog) -> None:
    made = torch.Generator("cuda").manual_seed(0)
    a, b = ((2 * torch.rand(s, device="cuda", generator=made) - 1).to(BF16) for s in ((m, 14336), (14336, 4096)))
    eager(case, lambda: torch.mm(a, b), *NO_ROWS)
    shapes = [Shape(m=size, n=4096, k=14336, dtype=DType.BFLOAT16) for size in (m, 33, 128)]
    with CublasLt() as library:
        settings = read_settings(library.device.sm)
        book = record_book(library, shapes, settings, torch="", command="test", date="2026-12-01").book
    report = lint_shapes(shapes, BookReader(book, measured))
    for found in report.shapes:
        narrow = any(f.kind is FindingKind.NARROW_PARTIALS for f in found.findings)
        if found.descriptor is None:
            case.demand(not narrow, "nothing is said of what is not known")
            continue
        types = {t for cut in found.descriptor.cuts for t in (cut.partial_dtype, cut.merge_dtype)}
        case.demand(not narrow or types - {DType.FLOAT32}, "the descriptor states what is stored in what")
    case.note(f"narrow of m {', '.join(str(s.m) for s in shapes)}",
              [f.message for r in report.shapes for f in r.findings if f.kind is FindingKind.NARROW_PARTIALS])


# --- layouts and sizes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("biased", [True, False])
def test_a10_a_permuted_input(biased: bool, case: CaseLog) -> None:
    x, weight = draw(2, 226, 4096, dtype=BF16), draw(1920, 4096, dtype=BF16, seed=1)
    bias = draw(1920, dtype=BF16, seed=2) if biased else None
    for given in (x, x.permute(1, 0, 2).contiguous().permute(1, 0, 2)):
        eager(case, lambda given=given: LINEAR(given, weight, bias), *NO_ROWS)


@pytest.mark.parametrize("m", [None, 64])
def test_a11_every_size_of_n(m: int | None, case: CaseLog) -> None:
    for n in range(2033, 2074):
        a, b = draw(m or n, n, dtype=BF16), draw(n, n, dtype=BF16, seed=1)
        eager(case, lambda a=a, b=b: torch.mm(a, b), *NO_ROWS, what=n)


def test_a11_the_share_over_unrounded_sizes_beside_that_over_multiples_of_16(case: CaseLog) -> None:
    """Planned, not run: sizes of the campaign as they are drawn, and the same rounded up to multiples of 16."""
    for name, rounded in (("unrounded", False), ("multiples of 16", True)):
        planned = 0
        for i in range(300):
            drawn = draw_case(Regime.UNROUNDED, 77, i)
            if rounded:
                drawn = replace(drawn, **{s: -(-getattr(drawn, s) // 16) * 16 for s in ("m", "n", "k")})
            a, b, out = case_metas(drawn)
            planned += isinstance(plan(a, b, out=out), Plan)
        case.note(f"covered of 300 {name} sizes", planned)
        case.demand(planned > 0)


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_a12_every_tail_of_k(dtype: Any, case: CaseLog) -> None:
    for k in (1, 7, 8, 9, 15, 31, 33, 63, 65, 127, 129, 1001):
        a, b = draw(1000, k, dtype=dtype), draw(k, 999, dtype=dtype, seed=1)
        a[0], b[:, 5] = -0.0, 0.0
        eager(case, lambda a=a, b=b: torch.mm(a, b), *NO_ROWS, what=k)


@pytest.mark.parametrize("dtype", [FLOAT, BF16])
def test_a13_an_odd_inner_size_in_padded_rows(dtype: Any, case: CaseLog) -> None:
    a = torch.empty_strided((1024, 2048), (1, 1024), dtype=dtype, device="cuda").copy_(draw(1024, 2048, dtype=dtype))
    b = torch.empty_strided((2048, 1953), (7920, 1), dtype=dtype, device="cuda")
    b.copy_(draw(2048, 1953, dtype=dtype, seed=1))
    eager(case, lambda: torch.mm(a, b), *NO_ROWS)

    def padded() -> Any:
        buffer = torch.full((1024, 1984), 7.0, dtype=dtype, device="cuda")
        torch.mm(a, b, out=buffer[:, :1953])
        return buffer

    eager(case, padded, *NO_ROWS, what="with the gap between the rows")


def test_a14_more_operand_elements_than_32_bits_count(case: CaseLog) -> None:
    a = torch.randn((35783, 65133), dtype=BF16, device="cuda")
    b = torch.randn((65133, 8), dtype=BF16, device="cuda")
    eager(case, lambda: torch.mm(a, b), *NO_ROWS, "unsupported_input")
    torch.cuda.synchronize()
    a = b = None
    eager(case, lambda: torch.mm(draw(256, 256), draw(256, 256, seed=1)), what="afterwards")


def test_a14_more_result_elements_than_32_bits_count(case: CaseLog) -> None:
    a = torch.randn((46400, 64), dtype=BF16, device="cuda")
    b = torch.randn((64, 46400), dtype=BF16, device="cuda")
    eager(case, lambda: torch.mm(a, b), *NO_ROWS, "unsupported_input")
    torch.cuda.synchronize()
    eager(case, lambda: torch.mm(draw(256, 256), draw(256, 256, seed=1)), what="afterwards")


_FAILING = """
import json
from dataclasses import replace
from random import Random
import numpy as np
import torch
from gemmdesc.dtypes import DType
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.operands import DenseOperand
from gemmdesc.problem import Failed, dense_problem
rng, statuses, sound = Random(0), [], 0
with CublasLt() as library:
    for _ in range(100):
        m, n, k = (16 * rng.randint(1, 32) for _ in range(3))
        aligned = dense_problem(m, n, k, DType.FLOAT16)
        answer = library.answer(aligned)
        a, b = (DenseOperand(dtype=DType.FLOAT16, array=np.full((r, k), 0x3C00, dtype=np.uint16)) for r in (m, n))
        found = library.run(replace(aligned, a_alignment_bytes=2, b_alignment_bytes=2), answer, a, b)
        statuses.append(found.status if isinstance(found, Failed) else "")
        sound += not isinstance(library.run(aligned, answer, a, b), Failed)
x = torch.ones(64, 64, device="cuda", dtype=torch.float16)
print(json.dumps({"statuses": statuses, "sound": sound, "product": float((x @ x)[0, 0])}))
"""


def test_a15_answers_that_do_not_run_are_failures_of_the_reference(case: CaseLog) -> None:
    """Answers for aligned operands, run on operands that only their type aligns; in a process of its own."""
    found = in_a_process(_FAILING)
    failed = [status for status in found["statuses"] if status]
    case.note("of 100 answers run where they do not belong, failed", len(failed))
    case.demand(failed and len(found["statuses"]) == 100, "the sweep goes on")
    case.demand(all(status.startswith("CUBLAS_STATUS_") for status in failed), sorted(set(failed)))
    case.demand((found["sound"], found["product"]) == (100, 64.0), "the context is usable")


def test_a16_nothing_to_sum(case: CaseLog) -> None:
    nan = torch.full((5, 7), torch.nan, device="cuda", dtype=HALF)
    c = draw(5, 7)
    before = default_planner().cache_info().misses
    for call in (
        lambda: torch.bmm(draw(3, 2, 0), draw(3, 0, 3)), lambda: torch.mm(draw(5, 0), draw(0, 7)),
        lambda: torch.mm(draw(5, 0), draw(0, 7), out=nan.clone()), lambda: torch.mm(draw(0, 4), draw(4, 7)),
        lambda: torch.mm(draw(4, 7), draw(7, 0)), lambda: torch.addmm(draw(7), draw(5, 0), draw(0, 7)),
        lambda: torch.addmm(c, draw(5, 0), draw(0, 7)), lambda: torch.addmm(c, draw(5, 0), draw(0, 7), beta=0.5),
        lambda: torch.addmm(nan, draw(5, 0), draw(0, 7), beta=0),
        lambda: torch.baddbmm(c, draw(3, 5, 0), draw(3, 0, 7)), lambda: LINEAR(draw(0, 4), draw(6, 4), draw(6)),
    ):  # fmt: skip
        eager(case, call)
    case.demand(default_planner().cache_info().misses == before, "no plan is made for it")


@pytest.mark.parametrize("fill", [float("nan"), float("inf")])
def test_a17_beta_zero_never_reads_c(fill: float, case: CaseLog) -> None:
    a, b = draw(256, 512), draw(512, 128, seed=1)
    want = torch.mm(a, b)
    for shape in ((256, 128), (128,), (1, 128)):
        addend = torch.full(shape, fill, device="cuda", dtype=HALF)
        with gemmdesc.override():
            case.same(torch.addmm(addend, a, b, beta=0), want)
    out = torch.full((256, 128), fill, device="cuda", dtype=HALF)
    with gemmdesc.override():
        case.same(torch.addmm(out, a, b, beta=0, out=out), want)
        case.same(torch.mm(a, b, out=torch.full_like(want, fill)), want)
    for _ in range(8):
        torch.full((256, 128), fill, device="cuda", dtype=HALF)  # and back to the allocator
        case.same(gemmdesc.matmul(a, b), want)


# --- epilogues ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("use_gelu", [True, False])
def test_a18_activations(dtype: Any, use_gelu: bool, case: CaseLog) -> None:
    a, b, bias = draw(512, 768, dtype=dtype), draw(768, 3072, dtype=dtype, seed=1), draw(3072, dtype=dtype, seed=2)
    a[0] = 0.0  # a row in which the bias alone is seen
    bias[:7] = torch.tensor([-12.0, -3.0, -0.0, 3.0, 60000.0, torch.inf, torch.nan], device="cuda").to(dtype)
    eager(case, lambda: torch._addmm_activation(bias, a, b, use_gelu=use_gelu), *NO_ROWS)
    eager(case, lambda: torch._addmm_activation(bias, a / 64, b / 64, use_gelu=use_gelu), *NO_ROWS)


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_a19_operands_and_a_bias_that_are_slices(offset: int, case: CaseLog) -> None:
    x, weight, bias = draw(64, 512, seed=1), draw(4096, 512, seed=2), draw(4096)
    eager(case, lambda: LINEAR(x, weight, at(bias, offset)), *NO_ROWS, what="the bias")
    for name, left, right in (("a", at(x, offset), weight), ("b", x, at(weight, offset))):
        eager(case, lambda left=left, right=right: torch.mm(left, right.T), *NO_ROWS, what=name)
        eager(case, lambda left=left, right=right: LINEAR(left, right, bias), *NO_ROWS, what=name)
    planned = [plan(t, weight.T) for t in (at(x, offset), x)]
    if all(isinstance(p, Plan) for p in planned):
        case.demand((planned[0].problem == planned[1].problem) is (offset == 0), "an address is part of the key")


@pytest.mark.parametrize("state", ["highest", "high", "medium", True, False])
def test_a20_tf32(state: str | bool, case: CaseLog) -> None:
    matmul, before = torch.backends.cuda.matmul, torch.get_float32_matmul_precision()
    left, right, b = draw(256, 4096, dtype=FLOAT), draw(4096, 256, dtype=FLOAT, seed=1), draw(256, 256, dtype=FLOAT)
    try:
        if isinstance(state, str):
            torch.set_float32_matmul_precision(state)
        else:
            matmul.allow_tf32 = state
        eager(case, lambda: torch.eye(256, device="cuda") @ b, *NO_ROWS, what=state)
        eager(case, lambda: left @ right, *NO_ROWS, what=state)
    finally:
        torch.set_float32_matmul_precision(before)
    eager(case, lambda: left @ right, *NO_ROWS, what="the state is read at the call")


# --- compilers, gradients, graphs, threads --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, "default", "max-autotune"])
@pytest.mark.parametrize("dtype", [FLOAT, HALF])
@pytest.mark.parametrize("spelling", ["vector", "expanded", "whole"])
def test_a21_spellings_of_a_bias(spelling: str, dtype: Any, mode: str | None, case: CaseLog) -> None:
    a, b, bias = draw(50, 250, dtype=dtype), draw(250, 50, dtype=dtype, seed=1), draw(50, dtype=dtype, seed=2)

    def function(call: Callable[..., Any], a: Any, b: Any, bias: Any) -> Any:
        expanded = bias.expand(50, 50)
        addend = {"vector": bias, "expanded": expanded, "whole": expanded.contiguous()}[spelling]
        return call(addend, a, b)

    want = function(torch.addmm, a, b, bias)
    ours = lambda a, b, bias: function(gemmdesc.addmm, a, b, bias)  # noqa: E731
    if mode is not None:
        torch._dynamo.reset()
        ours = torch.compile(ours, mode=mode, fullgraph=True)
    for _ in range(3):  # a graph of CUDA's is warm, captured and replayed
        if not case.same_or_declined(lambda: ours(a, b, bias).clone(), want, *NO_ROWS, what=(spelling, mode)):
            break


def test_a21_a_compiled_layer_gives_eagers_bytes(case: CaseLog) -> None:
    x, weight = draw(64, 512), draw(256, 512, seed=1)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(gemmdesc.linear(x, weight)) * 2, fullgraph=True, dynamic=True)
    for rows in (64, 65, 200):
        given = draw(rows, 512, seed=rows)
        case.same(compiled(given), torch.relu(LINEAR(given, weight)) * 2, rows)
    leaf, again = x.detach().requires_grad_(), x.detach().requires_grad_()
    compiled(leaf).sum().backward()
    (torch.relu(LINEAR(again, weight)) * 2).sum().backward()
    case.same(leaf.grad, again.grad)


@pytest.mark.parametrize("needs", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
def test_a22_a_fold_that_depends_on_gradients(needs: tuple[bool, bool], mode: str, case: CaseLog) -> None:
    left, right = draw(8, 33, 512, dtype=BF16), draw(512, 256, dtype=BF16, seed=1)
    left.requires_grad_(needs[0])
    right.requires_grad_(needs[1])

    def gradients(call: Callable[[], Any]) -> Any:
        left.grad = right.grad = None
        call().backward(torch.ones((8, 33, 256), dtype=BF16, device="cuda"))
        return torch.cat([t.grad.flatten() for t in (left, right) if t.grad is not None])

    with getattr(torch, mode)():
        eager(case, lambda: torch.matmul(left, right), *NO_ROWS, what=(needs, mode))
        eager(case, lambda: torch.matmul(right.mT, left.mT), *NO_ROWS, what=(needs, mode))
    if mode == "enable_grad" and any(needs):
        eager(case, lambda: gradients(lambda: torch.matmul(left, right)), *NO_ROWS, what="backward")


def test_a23_a_graph_outlives_another_on_its_stream(case: CaseLog) -> None:
    a, b = draw(64, 32768, dtype=BF16), draw(32768, 64, dtype=BF16, seed=1)
    with gemmdesc.override():
        torch.mm(a, b)
        graphs, results = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()], []
        for graph in graphs:
            with torch.cuda.graph(graph):
                results.append(torch.mm(a, b))
    graphs.pop().reset()
    del results[1]
    kept = [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(16)]
    for seed in range(100):
        a.copy_(draw(64, 32768, dtype=BF16, seed=seed))
        graphs[0].replay()
        case.same(results[0], torch.mm(a, b), seed)
    assert kept


def test_a23_a_first_use_inside_a_capture_says_so(case: CaseLog) -> None:
    cold, (a, b) = planner_for(0), (draw(300, 520), draw(520, 200, seed=1))
    graph = torch.cuda.CUDAGraph()
    said = r"^planner must have a library handle .*make the call once outside, or use gemmdesc\.warmup \(got none\)$"
    with pytest.raises(CaptureError, match=said) as told, gemmdesc.override(planner=cold), torch.cuda.graph(graph):
        torch.mm(a, b)
    case.demand("(got " in str(told.value))
    torch.cuda.synchronize()
    with gemmdesc.override(planner=cold):
        case.same(torch.mm(a, b), gemmdesc.matmul(a, b), "and the process goes on")
    cold.close()


def test_a24_streams_and_threads_never_vary(case: CaseLog) -> None:
    a, b = draw(64, 32768, dtype=BF16), draw(32768, 64, dtype=BF16, seed=1)
    want = torch.mm(a, b)
    case.same(gemmdesc.matmul(a, b), want)
    torch.cuda.synchronize()
    start = Barrier(4)

    def work(_: int) -> int:
        stream, wrong = torch.cuda.Stream(), 0
        start.wait()
        with gemmdesc.override(), torch.cuda.stream(stream):
            for _ in range(20):
                results = [torch.mm(a, b) for _ in range(10)]
                wrong += sum(differing(r, want) > 0 for r in results)
        stream.synchronize()
        return wrong

    with gemmdesc.override(), ThreadPoolExecutor(4) as pool:
        case.demand(list(pool.map(work, range(4))) == [0] * 4, "200 rounds on each of 4 streams")


def test_a24_the_reference_has_a_handle_and_a_workspace_of_its_own(case: CaseLog) -> None:
    problem = dense_problem(64, 64, 32768, DType.BFLOAT16)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((128, 32768)) * 2.0 ** rng.integers(-6, 7, (128, 32768))
    rows = (values.astype(np.float32).view("u4") >> 16).astype(np.uint16)
    a, b = (DenseOperand(dtype=DType.BFLOAT16, array=x) for x in (rows[:64], rows[64:]))
    with CublasLt() as library:
        answer = library.answer(problem)
        assert isinstance(answer, AlgoConfig)
        want = library.run(problem, answer, a, b)
    assert not isinstance(want, Failed)

    def work(_: int) -> int:
        with torch.cuda.stream(torch.cuda.Stream()), CublasLt() as own:
            found = [own.run(problem, answer, a, b) for _ in range(25)]
        return sum(isinstance(x, Failed) or not np.array_equal(x, want) for x in found)

    with ThreadPoolExecutor(4) as pool:
        case.demand(list(pool.map(work, range(4))) == [0] * 4)


_WORKSPACE = """
import json, os, sys, warnings
import torch, gemmdesc
from gemmdesc.errors import DeclinedError
made = torch.Generator("cuda").manual_seed(0)
a, b = (torch.randn(s, device="cuda", generator=made).to(torch.bfloat16) for s in ((64, 32768), (32768, 64)))

def ours():
    try:
        with gemmdesc.override():
            got = torch.mm(a, b)
    except DeclinedError as error:
        return {"declined": error.declined.code, "reason": error.declined.reason}
    want = torch.mm(a, b)
    return {"equal": bool((got.view(torch.int16) == want.view(torch.int16)).all())}

def workspace():
    from gemmdesc.library.torch_settings import read_settings
    return read_settings("sm_90").workspace_bytes

found = {"first": ours(), "workspace": workspace()}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    if len(sys.argv) > 1:
        before = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = sys.argv[1]
        found["late"] = ours()
        if before is None:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]
        else:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = before
        found["restored"] = ours()
found["told"] = [str(w.message) for w in told if w.category.__name__ == "LateSettingWarning"]
print(json.dumps(found))
"""


@pytest.mark.parametrize(("setting", "size"), [(None, 32 << 20), (":1:1", 1024), (":32768:1", 32 << 20)])
def test_a25_a_workspace_set_in_time(setting: str | None, size: int, case: CaseLog) -> None:
    found = in_a_process(_WORKSPACE, **({} if setting is None else {"CUBLAS_WORKSPACE_CONFIG": setting}))
    case.demand(found["workspace"] == size)
    case.demand(found["told"] == [])
    if "declined" in found["first"]:
        case.allowed(Declined(code=found["first"]["declined"], reason=found["first"]["reason"]), *NO_ROWS)
    else:
        case.demand(found["first"]["equal"], "eager's bytes under this workspace")


def test_a25_a_workspace_set_too_late_is_told(case: CaseLog) -> None:
    found = in_a_process(_WORKSPACE, ":1:1")
    case.demand(found["first"].get("equal"), found)
    case.demand(found["restored"].get("equal"), "as it was, once the value is what it was")
    if "declined" in found["late"]:
        case.refused(Declined(code=found["late"]["declined"], reason=found["late"]["reason"]), "flags")
        case.demand("once CUDA was initialised" in found["late"]["reason"])
        case.demand(len(found["told"]) == 1)
    else:
        # A release of torch that says which workspace it gives: the value that came late has no effect.
        case.demand(found["late"]["equal"])
        case.demand(hasattr(torch.backends.cuda, "cublas_workspace_size"))


def test_a25_leaving_restores_everything(case: CaseLog) -> None:
    def state() -> Any:
        kernels = [repr(torch.library.get_kernel(f"aten::{name}", "CUDA")) for name in ("mm", "addmm.out", "bmm")]
        return dict(os.environ), read_settings("sm_90"), kernels, gemmdesc.is_overridden()

    a, b = draw(64, 512), draw(512, 64, seed=1)
    before = state()
    with gemmdesc.override():
        torch.mm(a, b)
    case.demand(state() == before)
    with pytest.raises(DeclinedError), gemmdesc.override():
        torch.dot(a[0], a[0])
    case.demand(state() == before, "after an exception, too")


def test_a26_autocast(case: CaseLog) -> None:
    narrow, wide = draw(64, 128, dtype=BF16), draw(4, 64, dtype=FLOAT)
    other = draw(64, 128, dtype=FLOAT, seed=3)
    with torch.autocast("cuda", BF16):
        for right in (narrow, other):
            eager(case, lambda right=right: torch.mm(wide, right), *NO_ROWS)
            want = torch.mm(wide, right)
            case.same_or_declined(lambda right=right: gemmdesc.matmul(wide, right), want, *NO_ROWS)
            case.same_or_declined(lambda right=right: gemmdesc.mm(wide, right), want, *NO_ROWS)
    for call in (lambda: torch.mm(wide, narrow), lambda: gemmdesc.matmul(wide, narrow)):
        with pytest.raises(RuntimeError, match="type"), gemmdesc.override():
            call()
        case.demand(True, "outside of autocast types must agree")


# --- recording launches ---------------------------------------------------------------------------------------------


@pytest.fixture
def unsaid() -> Iterator[None]:
    unknown._said.cache_clear()
    yield
    unknown._said.cache_clear()


@pytest.mark.usefixtures("unsaid")
def test_a27_launches_are_recorded_under_a_profiler(case: CaseLog) -> None:
    problem = dense_problem(512, 512, 4096, DType.FLOAT16)
    with CublasLt() as library, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        answer = library.answer(problem)
        assert isinstance(answer, AlgoConfig)
        outside = library.launch(problem, answer)
        with torch.profiler.profile() as outer:
            inside = library.launch(problem, answer)
            x = torch.ones(64, 64, device="cuda", dtype=HALF)
            checked = cross_check(inside, lambda: torch.mm(x, x))
            torch.mm(x, x)
            torch.cuda.synchronize()
    unsure = [w for w in told if w.category is unknown.KernelNamesUnknownWarning]
    case.demand(outside is not None and outside.names)
    case.demand(inside in (outside, None), "the same launch, or an unknown one")
    case.demand(checked.agreement is Agreement.UNAVAILABLE)
    case.demand(len(unsure) == 1, [str(w.message) for w in unsure])
    case.demand(any(e.name == "aten::mm" for e in outer.events()), "the first profiler saw what it was on for")


_TRACED = """
import ctypes, json, re, warnings
from pathlib import Path
import torch
from gemmdesc.dtypes import DType
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.profiler import cross_check
from gemmdesc.problem import dense_problem
torch.ones(1, device="cuda")
paths = set(re.findall(r"/\\S*libcupti\\.so\\S*", Path("/proc/self/maps").read_text()))
held = None
if paths:
    cupti = ctypes.CDLL(sorted(paths)[0])
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
    seen, subscriber = kind(lambda *_: None), ctypes.c_void_p()
    held = cupti.cuptiSubscribe(ctypes.byref(subscriber), seen, None)
with warnings.catch_warnings(record=True) as told, CublasLt() as library:
    warnings.simplefilter("always")
    problem = dense_problem(512, 512, 4096, DType.FLOAT16)
    answer = library.answer(problem)
    launches = [library.launch(problem, answer) for _ in range(3)]
    x = torch.ones(64, 64, device="cuda", dtype=torch.float16)
    agreements = [cross_check(launches[0], lambda: torch.mm(x, x)).agreement.value for _ in range(2)]
names = [w for w in told if w.category.__name__ == "KernelNamesUnknownWarning"]
print(json.dumps({"held": held, "names": [list(x.names) if x else None for x in launches], "agreements": agreements,
                  "told": len(names), "product": float((x @ x)[0, 0])}))
"""


def test_a27_a_tracer_that_holds_cupti_is_survived(case: CaseLog) -> None:
    found = in_a_process(_TRACED)
    case.note("cuptiSubscribe of the tracer", found["held"])
    case.demand(found["product"] == 64.0)
    unknown_launches = sum(names is None for names in found["names"])
    case.demand(unknown_launches in (0, 3))
    case.demand(set(found["agreements"]) <= {"equal", "different", "unavailable"})
    unavailable = "unavailable" in found["agreements"]
    case.demand(found["told"] <= 2, "one warning of each kind")
    case.demand(found["told"] == bool(unknown_launches) + (unavailable and not unknown_launches), found)


_HASHED = """
import hashlib, json
import torch, gemmdesc
made, digest = torch.Generator("cuda").manual_seed(0), hashlib.sha256()
for m, n, k in ((256, 256, 1024), (128, 512, 2048), (1000, 999, 1001), (64, 64, 32768), (333, 77, 5000)):
    a, b = (torch.randn(s, device="cuda", generator=made).half() for s in ((m, k), (k, n)))
    digest.update(gemmdesc.matmul(a, b, on_decline="library").cpu().numpy().tobytes())
print(json.dumps({"digest": digest.hexdigest(), "declined": gemmdesc.ops.decline_counts()}))
"""


def test_a27_fresh_processes_hash_alike(case: CaseLog) -> None:
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda seed: in_a_process(_HASHED, PYTHONHASHSEED=str(seed)), range(20)))
    case.demand(len({f["digest"] for f in found}) == 1, "twenty processes, one result")
    case.demand(len(bytes.fromhex(found[0]["digest"])) == hashlib.sha256().digest_size)
    case.demand(all(f["declined"] == {} for f in found), found[0])


def test_a27_metas_are_planned_alike_twice(case: CaseLog) -> None:
    """No timing takes part in a choice: two planners choose the same kernels."""
    planners = [planner_for(0), planner_for(0)]
    for m, n, k in ((256, 256, 1024), (128, 512, 2048), (1000, 999, 1001), (2048, 2048, 2048)):
        shapes = (((m, k), (k, 1)), ((k, n), (n, 1)), ((m, n), (n, 1)))
        metas = [TensorMeta(shape=shape, strides=strides, dtype=DType.FLOAT16) for shape, strides in shapes]
        one, other = (p.plan_mm(metas[0], metas[1], metas[2], read_settings("sm_90")) for p in planners)
        case.demand(one == other)
        case.demand(isinstance(one, Plan))
    for planner in planners:
        planner.close()
