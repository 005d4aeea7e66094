"""The adapter on a GPU, with the library that torch has mapped.  Run with ``-m gpu``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.library.cublaslt import CublasLt
from gemmdesc.library.identity import torch_library
from gemmdesc.library.interface import Library, Window
from gemmdesc.library.profiler import Agreement, cross_check
from gemmdesc.library.stability import Stability, run_to_run
from gemmdesc.library.storage import a_shape, allocate, b_shape, d_shape
from gemmdesc.library.torch_settings import read_settings
from gemmdesc.operands import DenseOperand, Family, HashOperand
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem, Transpose, dense_problem
from gemmdesc.routes import TensorMeta, route_mm, swaps_operands, tensor_meta

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FP16 = DType.FLOAT16
A = HashOperand(dtype=FP16, family=Family.NORMAL, seed=3, draw=0, role="a")
B = HashOperand(dtype=FP16, family=Family.NORMAL, seed=3, draw=0, role="b")


@pytest.fixture(scope="module")
def library() -> Iterator[CublasLt]:
    with CublasLt() as made:
        yield made


def answered(library: CublasLt, problem: GemmProblem) -> AlgoConfig:
    answer = library.answer(problem)
    assert isinstance(answer, AlgoConfig)
    return answer


def test_identity_is_torchs_library(library: CublasLt) -> None:
    as_library: Library = library
    assert as_library.identity.path == str(torch_library().path)
    assert as_library.identity.version.major >= 12
    assert as_library.device.sm_count > 0
    assert as_library.device.driver


@pytest.mark.parametrize("transa", list(Transpose))
@pytest.mark.parametrize("transb", list(Transpose))
@pytest.mark.parametrize("alignment", [2, 16, 256])
def test_small_integers_are_exact_in_every_layout(
    library: CublasLt, transa: Transpose, transb: Transpose, alignment: int, rng: np.random.Generator
) -> None:
    p = dense_problem(37, 29, 53, FP16, transa=transa, transb=transb)
    p = replace(
        p, lda=p.lda + 3, ldb=p.ldb + 1, ldd=p.ldd + 5, a_alignment_bytes=alignment, b_alignment_bytes=alignment,
        c_alignment_bytes=alignment, d_alignment_bytes=alignment,
    )  # fmt: skip
    a, b = (rng.integers(-3, 4, (x, p.k)).astype(np.float32) for x in (p.m, p.n))
    operands = [DenseOperand(dtype=FP16, array=from_float32(x, FP16)) for x in (a, b)]
    got = library.run(p, answered(library, p), *operands)
    assert not isinstance(got, Failed)
    np.testing.assert_array_equal(to_float32(got, FP16), a @ b.T)


def test_window_is_part_of_the_whole(library: CublasLt) -> None:
    p = dense_problem(96, 80, 1000, FP16)
    answer = answered(library, p)
    whole = library.run(p, answer, A, B)
    window = Window(rows=np.array([95, 0, 7]), columns=np.array([79, 3]))
    assert not isinstance(whole, Failed)
    np.testing.assert_array_equal(library.run(p, answer, A, B, window), whole[np.ix_(window.rows, window.columns)])


def test_config_runs_like_the_answer_it_was_rebuilt_from(library: CublasLt) -> None:
    p = dense_problem(333, 4111, 255, FP16)
    answer = answered(library, p)
    bare = replace(answer, opaque="", workspace_bytes=0)
    assert library.check(p, answer)
    assert library.config(p, bare) == answer
    np.testing.assert_array_equal(library.run(p, bare, A, B), library.run(p, answer, A, B))


def test_an_impossible_answer_is_not_accepted(library: CublasLt) -> None:
    p = dense_problem(64, 64, 64, FP16)
    impossible = replace(answered(library, p), opaque="", algo_id=100000)
    assert not library.check(p, impossible)
    assert isinstance(library.run(p, impossible, A, B), Failed)


@pytest.mark.parametrize("shape", [(1, 1, 7), (128, 256, 512), (33, 65, 4097), (1, 4096, 1024), (2000, 3, 17)])
def test_torch_mm_is_the_first_answer(library: CublasLt, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = (torch.randn(s, device="cuda").half() for s in ((m, k), (k, n)))
    expected = torch.mm(a, b)
    out = torch.full_like(expected, float("nan"))
    metas = [tensor_meta(t) for t in (a, b, out)]
    assert all(isinstance(x, TensorMeta) for x in metas)
    p = route_mm(*metas, read_settings(library.device.sm))
    assert isinstance(p, GemmProblem)
    assert swaps_operands(metas[2])
    assert library.matmul(p, answered(library, p), b.data_ptr(), a.data_ptr(), out.data_ptr()) is None
    assert torch.equal(out.view(torch.int16), expected.view(torch.int16))


def test_launch_names_what_runs(library: CublasLt) -> None:
    p = dense_problem(512, 512, 512, FP16)
    answer = answered(library, p)
    launch = library.launch(p, answer)
    assert launch is not None
    assert launch.names
    assert all(launch.names)
    stored = [allocate(shape(p), "cuda") for shape in (a_shape, b_shape, d_shape)]
    checked = cross_check(launch, lambda: library.run_on_device(p, answer, *stored))
    assert checked.agreement is Agreement.EQUAL, checked


def test_a_plain_answer_is_stable(library: CublasLt) -> None:
    p = dense_problem(256, 256, 512, FP16)
    found = run_to_run(library, p, answered(library, p), A, B, repeats=3)
    assert isinstance(found, Stability)
    assert found.stable


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(InvalidInputError, match=r"^device_index must"):
        CublasLt(device_index=99)
