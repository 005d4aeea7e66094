"""The real adapter against a stand-in library compiled here, on the CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmdesc.descriptor import Accumulator, GEMMDesc, ResidueLast, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.library import cublaslt, products
from gemmdesc.library.bindings import MatmulDescAttribute
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.device import device_id
from gemmdesc.library.identity import library_id, with_digest
from gemmdesc.library.interface import Inputs, Library, Window
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.side import SideBuffers
from gemmdesc.operands import DenseOperand
from gemmdesc.problem import (
    BIASED,
    AlgoConfig,
    ComputeType,
    DeviceId,
    Epilogue,
    Failed,
    GemmProblem,
    LibraryVersion,
    Refused,
    ScalarClass,
    Transpose,
    dense_problem,
)
from gemmdesc.regions import Region

torch = pytest.importorskip("torch")
SOURCE = Path(__file__).parent / "fake_cublaslt" / "fake_cublaslt.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for the stand-in library")


@pytest.fixture(scope="module")
def library_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fake") / "libcublasLt.so.13"
    command = [str(COMPILER), "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wl,--build-id=0x0123abcd"]
    subprocess.run([*command, "-o", str(path), str(SOURCE)], check=True, capture_output=True)
    return path


@contextmanager
def on_the_cpu(_: int) -> Iterator[int]:
    yield 0


@pytest.fixture(scope="module")
def library(library_file: Path) -> Iterator[CublasLt]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cublaslt, "device_id", lambda _: DeviceId(sm="sm_90", sm_count=132))
        patch.setattr(cublaslt, "place", lambda _: torch.device("cpu"))
        patch.setattr(cublaslt, "selected", on_the_cpu)
        with CublasLt(library_file) as made:
            yield made


def answered(library: CublasLt, problem: GemmProblem) -> AlgoConfig:
    answer = library.answer(problem)
    assert isinstance(answer, AlgoConfig)
    return answer


def words(answer: AlgoConfig) -> list[int]:
    return np.frombuffer(bytes.fromhex(answer.opaque), dtype=np.int32).tolist()


PROBLEM = dense_problem(5, 7, 3, DType.FLOAT32)


def test_it_is_a_library(library: CublasLt, library_file: Path) -> None:
    as_library: Library = library
    assert as_library.identity.version == LibraryVersion(major=13, minor=1, patch=0)
    assert as_library.identity.build_id == "0123abcd"
    assert as_library.identity.path == str(library_file)


def test_digest_is_computed_on_demand(library_file: Path) -> None:
    identity = library_id(library_file)
    assert identity.sha256 == ""
    assert len(with_digest(identity).sha256) == 64
    assert with_digest(identity) == identity


def test_every_attribute_is_read(library: CublasLt) -> None:
    answer = answered(library, dense_problem(300, 200, 3, DType.FLOAT32))
    assert (answer.algo_id, answer.tile_id, answer.splitk_num, answer.custom_option) == (66, 300 & 0xFF, 2, 300)
    assert (answer.stages_id, answer.inner_shape_id, answer.cluster_shape_id) == (35, 0, 3)
    assert answer.workspace_bytes == 4096
    assert len(answer.opaque) == 128


def test_preferences_follow_the_problem(library: CublasLt) -> None:
    changed = replace(
        PROBLEM, a_alignment_bytes=4, b_alignment_bytes=8, c_alignment_bytes=16, d_alignment_bytes=32,
        workspace_limit_bytes=4096, reduction_scheme_mask=3,
    )  # fmt: skip
    for problem, expected in (
        (PROBLEM, [32 << 20, 7, 256, 256, 256, 256]),
        (changed, [4096, 3, 4, 8, 16, 32]),
        (PROBLEM, [32 << 20, 7, 256, 256, 256, 256]),
    ):
        assert words(answered(library, problem))[9:15] == expected


@pytest.mark.parametrize(("m", "status"), [(13, "CUBLAS_STATUS_NOT_SUPPORTED"), (14, "CUBLAS_STATUS_NOT_SUPPORTED")])
def test_refusals_show_the_status(library: CublasLt, m: int, status: str) -> None:
    assert library.answer(dense_problem(m, 1, 1, DType.FLOAT32)) == Refused(status=status)


def test_answers_is_answer_of_each(library: CublasLt) -> None:
    problems = [dense_problem(m, 3, 2, DType.FLOAT32) for m in range(10, 16)]
    assert library.answers(problems) == [library.answer(p) for p in problems]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"a_dtype": DType.FLOAT8_E4M3FN}, "b_dtype"),
        ({"d_dtype": DType.FLOAT8_E5M2}, "d_dtype"),
        ({"compute_type": ComputeType.COMPUTE_64F}, "scale_dtype"),
        ({"a_dtype": DType.TFLOAT32}, "a_dtype"),
    ],
)
def test_unsupported_fields_are_named(library: CublasLt, change: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{name} must .*\(got .*\)$"):
        library.answer(replace(PROBLEM, **change))


def test_config_rebuilds_from_attributes(library: CublasLt) -> None:
    answer = answered(library, PROBLEM)
    rebuilt = library.config(PROBLEM, replace(answer, opaque="", workspace_bytes=0))
    assert rebuilt == answer
    assert isinstance(rebuilt, AlgoConfig)
    assert words(rebuilt)[:9] == words(answer)[:9]
    assert library.config(PROBLEM, replace(answer, algo_id=400)) == Refused(status="CUBLAS_STATUS_INVALID_VALUE")


def test_check(library: CublasLt) -> None:
    answer = replace(answered(library, PROBLEM), opaque="")
    assert library.check(PROBLEM, answer)
    assert not library.check(PROBLEM, replace(answer, algo_id=99))
    assert not library.check(PROBLEM, replace(answer, algo_id=98))  # needs more workspace than the limit


def test_bad_opaque_is_named(library: CublasLt) -> None:
    with pytest.raises(InvalidInputError, match=r"^opaque must"):
        library.check(PROBLEM, replace(answered(library, PROBLEM), opaque="00ff"))


def test_failed_runs_show_the_status(library: CublasLt) -> None:
    operand = [DenseOperand(dtype=DType.FLOAT32, array=np.zeros(s, np.uint32)) for s in ((5, 3), (7, 3))]
    answer = replace(answered(library, PROBLEM), opaque="", algo_id=99)
    assert library.run(PROBLEM, answer, *operand) == Failed(status="CUBLAS_STATUS_EXECUTION_FAILED")


@pytest.mark.parametrize("lacking", [0, 1, 4, 5])
def test_a_product_waits_for_memory(library: CublasLt, monkeypatch: pytest.MonkeyPatch, lacking: int) -> None:
    """Processes beside this one may hold it for a while; where it stays away, the run has failed."""
    whole, tries, waits = products.empty_d, iter(range(100)), []

    def short_of_memory(*arguments: Any) -> Any:
        if next(tries) < lacking:
            raise torch.OutOfMemoryError("out of memory")
        return whole(*arguments)

    monkeypatch.setattr(products, "empty_d", short_of_memory)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(products.time, "sleep", waits.append)
    operands = [DenseOperand(dtype=DType.FLOAT32, array=np.zeros(s, np.uint32)) for s in ((5, 3), (7, 3))]
    got = library.run(PROBLEM, answered(library, PROBLEM), *operands)
    assert isinstance(got, Failed) == (lacking == 5)
    assert waits == [0.5 * i for i in range(min(lacking, 4) + 1)]


def test_a_card_without_nvrtc_has_the_cpu_replay_beside_its_products(
    library: CublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products.nvrtc, "available", lambda: False)
    p, answer = PROBLEM, answered(library, PROBLEM)
    a, b = (DenseOperand(dtype=DType.FLOAT32, array=np.full(s, 0x3F800001, np.uint32)) for s in ((5, 3), (7, 3)))
    step = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))
    orders = [
        GEMMDesc(
            a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, output_dtype=DType.FLOAT32, summed_k=k, cuts=(),
            accumulator=step,
        )
        for k in (3, 2)
    ]  # fmt: skip
    window = Window(rows=np.array([0, 4]), columns=np.array([1, 6]))
    regions = [
        (Region(row_begin=0, row_end=p.m, column_begin=0, column_end=p.n, descriptor=order),) for order in orders
    ]
    found = library.run_and_replay(p, answer, a, b, window, regions)
    assert not isinstance(found, Failed)
    np.testing.assert_array_equal(found[0], library.run(p, answer, a, b, window))
    for mine, order in zip(found[1], orders, strict=True):
        np.testing.assert_array_equal(mine, replay_problem(order, p, a, b, window))
    assert (found[1][0] != found[1][1]).all()


def test_launch_is_unknown_without_cuda_bindings(library: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert library.launch(PROBLEM, answered(library, PROBLEM)) is None


sizes = st.integers(1, 9)
alignments = st.sampled_from([4, 8, 16, 32, 64, 128, 256])


@st.composite
def problems(draw: st.DrawFn) -> GemmProblem:
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    transa, transb = draw(st.sampled_from(Transpose)), draw(st.sampled_from(Transpose))
    p = dense_problem(m, n, k, DType.FLOAT32, transa=transa, transb=transb)
    pads = [draw(st.integers(0, 5)) for _ in range(3)]
    return replace(
        p, lda=p.lda + pads[0], ldb=p.ldb + pads[1], ldd=p.ldd + pads[2], a_alignment_bytes=draw(alignments),
        b_alignment_bytes=draw(alignments), d_alignment_bytes=draw(alignments),
    )  # fmt: skip


@given(problem=problems(), data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_run_is_a_times_b_transposed_in_every_layout(
    library: CublasLt, problem: GemmProblem, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 1 << 30))
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-9, 10, (x, problem.k)).astype(np.float32) for x in (problem.m, problem.n))
    operands = [DenseOperand(dtype=DType.FLOAT32, array=x.view(np.uint32)) for x in (a, b)]
    answer = answered(library, problem)
    got = library.run(problem, answer, *operands)
    assert not isinstance(got, Failed)
    assert got.dtype == np.uint32
    np.testing.assert_array_equal(got.view(np.float32), a @ b.T)
    window = Window(rows=rng.integers(0, problem.m, 3), columns=rng.integers(0, problem.n, 2))
    part = library.run(problem, answer, *operands, window)
    np.testing.assert_array_equal(part, got[np.ix_(window.rows, window.columns)])


def test_operand_types_must_fit(library: CublasLt) -> None:
    half = DenseOperand(dtype=DType.FLOAT16, array=np.zeros((5, 3), np.uint16))
    with pytest.raises(InvalidInputError, match=r"^a must be of float32"):
        library.run(PROBLEM, answered(library, PROBLEM), half, half)


def dense(shape: tuple[int, int], rng: np.random.Generator) -> DenseOperand:
    return DenseOperand(dtype=DType.FLOAT32, array=rng.integers(-9, 10, shape).astype(np.float32).view(np.uint32))


def values(operand: DenseOperand) -> np.ndarray:
    return operand.array.astype(np.uint32).view(np.float32)


@given(problem=problems(), data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_epilogues_and_c_are_stated(library: CublasLt, problem: GemmProblem, data: st.DataObject) -> None:
    """The same arithmetic in NumPy: alpha A B + beta C, then the bias of each row, then relu, matrix by matrix."""
    p = problem
    batch, epilogue = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([
        Epilogue.DEFAULT, Epilogue.BIAS, Epilogue.RELU, Epilogue.RELU_BIAS,
    ]))  # fmt: skip
    beta = data.draw(st.sampled_from([0.0, 1.0, -3.0]))
    if batch > 1:
        gap = data.draw(st.integers(0, 4))
        b_stride = data.draw(st.sampled_from([0, p.ldb * p.b_columns + gap]))
        p = replace(
            p, batch_count=batch, a_batch_stride=p.lda * p.a_columns + gap, b_batch_stride=b_stride,
            d_batch_stride=p.ldd * p.n + gap, a_alignment_bytes=4, b_alignment_bytes=4, d_alignment_bytes=4,
        )  # fmt: skip
    classes = {0.0: ScalarClass.ZERO, 1.0: ScalarClass.ONE}
    p = replace(
        p, epilogue=epilogue, alpha=ScalarClass.OTHER, beta=classes.get(beta, ScalarClass.OTHER),
        c_alignment_bytes=p.d_alignment_bytes,
    )  # fmt: skip
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    a, b = dense((p.a_outer, p.k), rng), dense((p.b_outer, p.k), rng)
    c = dense((p.d_outer, p.n), rng) if beta else None
    bias = dense((1, p.m), rng) if epilogue in BIASED else None
    got = library.run(p, answered(library, p), a, b, inputs=Inputs(alpha=2.0, beta=beta, c=c, bias=bias))
    assert not isinstance(got, Failed)
    expected = np.concatenate([
        2.0 * x @ (values(b) if p.b_outer == p.n else y).T
        for x, y in zip(np.split(values(a), batch), np.split(values(b), batch) if p.b_outer > p.n or batch == 1 else
                        [values(b)] * batch, strict=True)
    ])  # fmt: skip
    expected = expected + (beta * values(c) if c is not None else 0)
    expected = expected + (np.tile(values(bias)[0], batch)[:, None] if bias is not None else 0)
    if epilogue in (Epilogue.RELU, Epilogue.RELU_BIAS):
        expected = np.maximum(expected, 0.0)
    np.testing.assert_array_equal(got.view(np.float32), expected)


def test_a_bias_lies_where_it_is_told_to() -> None:
    problem = replace(dense_problem(5, 3, 4, DType.FLOAT16), epilogue=Epilogue.BIAS)
    bits = np.arange(1, 6, dtype=np.uint16)[None]
    buffers = SideBuffers(torch.device("cpu"))
    starts: dict[int, int] = {}
    for alignment in (2, 16, 256):
        bias = DenseOperand(dtype=DType.FLOAT16, array=bits)
        there = replace(problem, bias_alignment_bytes=alignment)
        buffers.fill(there, Inputs(bias=bias))
        address = buffers.pointers(there)[MatmulDescAttribute.BIAS_POINTER]
        assert ctypes.string_at(address, 10) == bits.tobytes()
        starts[alignment] = address
    assert (starts[2] - starts[256], starts[16] - starts[256]) == (2, 16)


@pytest.mark.parametrize(
    ("change", "inputs", "name"),
    [
        ({"epilogue": Epilogue.BIAS}, Inputs(), "bias"),
        ({}, Inputs(bias=DenseOperand(dtype=DType.FLOAT32, array=np.zeros((1, 5), np.uint32))), "bias"),
        ({"beta": ScalarClass.ONE}, Inputs(beta=1.0), "c"),
        ({}, Inputs(alpha=2.0), "alpha"),
        ({}, Inputs(beta=1.0), "beta"),
        ({}, Inputs(a_scale=2.0), "a_scale"),
        ({"epilogue": Epilogue.BIAS}, Inputs(bias=DenseOperand(dtype=DType.FLOAT16, array=np.zeros((1, 5), np.uint16))),
         "bias"),
    ],
)  # fmt: skip
def test_inputs_that_the_problem_does_not_take(
    library: CublasLt, change: dict[str, Any], inputs: Inputs, name: str
) -> None:
    operand = [DenseOperand(dtype=DType.FLOAT32, array=np.zeros(s, np.uint32)) for s in ((5, 3), (7, 3))]
    problem = replace(PROBLEM, **change)
    with pytest.raises(InvalidInputError, match=rf"^{name} must .*\(got .*\)$"):
        library.run(problem, answered(library, problem), *operand, inputs=inputs)


FLOAT8 = GemmProblem(
    m=32, n=16, k=48, a_dtype=DType.FLOAT8_E4M3FN, b_dtype=DType.FLOAT8_E5M2, d_dtype=DType.BFLOAT16,
    transa=Transpose.T, transb=Transpose.N, lda=48, ldb=48, ldd=32,
)  # fmt: skip


def test_float8_problems_are_stated_with_scales_and_c_of_its_own_type(library: CublasLt) -> None:
    assert isinstance(library.answer(FLOAT8), AlgoConfig)
    assert isinstance(library.answer(replace(FLOAT8, fast_accumulation=True, d_dtype=DType.FLOAT8_E4M3FN)), AlgoConfig)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"transa": Transpose.N}, "transa"), ({"transb": Transpose.T}, "transb"), ({"m": 24}, "m"), ({"k": 40}, "k"),
        ({"lda": 56}, "lda"), ({"a_alignment_bytes": 8}, "a_alignment_bytes"),
    ],
)  # fmt: skip
def test_what_8_bit_operands_ask_for_is_named(library: CublasLt, change: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{name} must .*8-bit operands \(got .*\)$"):
        library.answer(replace(FLOAT8, **change))


def test_closing_twice_is_harmless(library_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "device_id", lambda _: DeviceId(sm="sm_90", sm_count=132))
    monkeypatch.setattr(cublaslt, "selected", on_the_cpu)
    made = CublasLt(library_file)
    made.answer(PROBLEM)
    made.close()
    made.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="checks the message on a machine without a GPU")
def test_no_gpu_is_a_library_error_with_a_hint() -> None:
    with pytest.raises(LibraryError, match="SimulatedLibrary"):
        device_id(0)
