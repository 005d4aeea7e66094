"""Routes of products with an addend, as a card's bytes settled them: the bias of one row, the scalars of vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.dropin.products import Product, route_of
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import Epilogue, GemmProblem, ScalarClass
from gemmdesc.routes import (
    READ_FOR,
    Activation,
    Addend,
    Api,
    NdMeta,
    Release,
    Route,
    as_scalar,
    route_addmm,
    route_addmv,
    route_baddbmm,
)
from gemmdesc.routes.metas import contiguous_strides
from gemmdesc.verification.route_variants import variants
from gemmdesc.verification.routed import RouteChecker, Tally
from tests.pointer_library import HostLibrary

torch = pytest.importorskip("torch")

HALF, BF16, FLOAT = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
SETTINGS = TorchSettings()


def of(*shape: int, dtype: DType = BF16, alignment: int = 256) -> NdMeta:
    return NdMeta(shape=shape, strides=contiguous_strides(shape), dtype=dtype, alignment_bytes=alignment)


def biased(m: int, n: int, k: int, dtype: DType = BF16, alignment: int = 256, **given: Any) -> Route:
    a, b, out = (of(*s, dtype=dtype).matrix for s in ((m, k), (k, n), (m, n)))
    found = route_addmm(of(n, dtype=dtype, alignment=alignment), a, b, out, **{
        "settings": SETTINGS, "release": READ_FOR
    } | given)  # fmt: skip
    assert isinstance(found, Route), found
    return found


# --- whose bias is in the epilogue ----------------------------------------------------------------------------------


def test_torchs_default_and_a_preferred_cublas_are_one() -> None:
    """Reading the preference turns a default into cublas, so that torch itself cannot tell them apart."""
    routes = [biased(64, 96, 128, settings=TorchSettings(blas_library=name)) for name in ("default", "cublas")]
    assert routes[0] == routes[1]
    assert (routes[0].api, routes[0].problem.epilogue) == (Api.CUBLASLT, Epilogue.BIAS)
    a, b, out = (of(*s).matrix for s in ((64, 128), (128, 96), (64, 96)))
    lt = TorchSettings(blas_library="cublaslt")
    found = route_addmm(of(96), a, b, out, lt, release=READ_FOR)
    assert isinstance(found, Declined)
    assert found.code == "flags"


@pytest.mark.parametrize("dtype", [HALF, BF16, FLOAT])
@pytest.mark.parametrize(
    ("activation", "epilogue"),
    [(Activation.NONE, Epilogue.BIAS), (Activation.RELU, Epilogue.RELU_BIAS), (Activation.GELU, Epilogue.GELU_BIAS)],
)
def test_a_bias_of_one_row_is_in_the_epilogue(dtype: DType, activation: Activation, epilogue: Epilogue) -> None:
    """As of many rows, with cuBLASLt's workspace and the bias's alignment in the place of D's."""
    one, many = (biased(m, 177, 3624, dtype, 8, activation=activation) for m in (1, 2))
    assert (one.api, one.addend, one.activation) == (Api.CUBLASLT, Addend.BIAS, Activation.NONE)
    assert one.problem.epilogue is epilogue
    assert one.problem.beta is ScalarClass.ZERO
    assert one.problem.workspace_limit_bytes == SETTINGS.lt_workspace_bytes
    assert (one.problem.c_alignment_bytes, one.problem.d_alignment_bytes) == (256, 8)
    assert replace(one.problem, n=2) == many.problem
    before = biased(1, 177, 3624, dtype, release=Release(major=2, minor=10))
    assert (before.api, before.addend) == (Api.CUBLAS, Addend.IN_PLACE)


def test_a_bias_is_c_where_torch_is_told_not_to_fuse_it() -> None:
    for activation in Activation:
        found = biased(64, 96, 128, settings=TorchSettings(fuses_bias=False), activation=activation)
        assert (found.api, found.addend, found.activation) == (Api.CUBLAS, Addend.IN_PLACE, activation)
        assert (found.problem.epilogue, found.problem.beta) == (Epilogue.DEFAULT, ScalarClass.ONE)
        assert found.problem.workspace_limit_bytes == SETTINGS.workspace_bytes


@pytest.mark.parametrize(("n", "k"), [(1, 64), (64, 1), (1, 1)])
def test_a_bias_beside_one_column_or_one_k_is_c(n: int, k: int) -> None:
    for m in (1, 64):
        found = biased(m, n, k)
        assert (found.api, found.addend, found.problem.beta) == (Api.CUBLAS, Addend.IN_PLACE, ScalarClass.ONE)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_without_a_unit_stride_is_computed_by_columns(batch: int) -> None:
    a, b = of(batch, 3, 7), of(batch, 7, 5)
    out = NdMeta(shape=(batch, 3, 5), strides=(60, 20, 2), dtype=BF16, alignment_bytes=2)
    by_columns = NdMeta(shape=(batch, 3, 5), strides=(15, 1, 3), dtype=BF16)
    found, plain = route_baddbmm(a, b, out, SETTINGS, beta=1.0), route_baddbmm(a, b, by_columns, SETTINGS, beta=1.0)
    assert isinstance(found, Route)
    assert isinstance(plain, Route)
    assert (found.problem, found.swapped, found.copies) == (plain.problem, False, (*plain.copies, "out"))
    shared = NdMeta(shape=(batch, 3, 5), strides=(60, 2, 2), dtype=BF16)
    declined = route_baddbmm(a, b, shared, SETTINGS)
    assert isinstance(declined, Declined)
    assert declined.reason == "elements of out that share memory"


# --- scalars --------------------------------------------------------------------------------------------------------

TORCH_TYPES = {HALF: torch.float16, BF16: torch.bfloat16, FLOAT: torch.float32}


@pytest.mark.parametrize("dtype", [HALF, BF16, FLOAT])
@pytest.mark.parametrize("value", [0.3, -1.0, 1.0 + 2.0**-9, 1e-7, 3.14e4, float("inf"), -0.0, 1e-40])
def test_scalars_round_as_torchs_do(dtype: DType, value: float) -> None:
    want = torch.tensor(value, dtype=torch.float32).to(TORCH_TYPES[dtype])
    got = torch.tensor(as_scalar(value, dtype), dtype=torch.float32)
    assert torch.equal(got.view(torch.int32), want.float().view(torch.int32))


def addmv(dtype: DType, alpha: float, beta: float) -> Route | Declined:
    return route_addmv(of(8, 152, dtype=dtype).matrix, of(152, dtype=dtype), of(8, dtype=dtype), SETTINGS,
                       alpha=alpha, beta=beta)  # fmt: skip


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_vectors_scalars_are_of_the_operands_type(dtype: DType) -> None:
    found = addmv(dtype, 0.3, 0.7)
    assert isinstance(found, Route)
    narrow = torch.tensor([0.3, 0.7]).to(TORCH_TYPES[dtype]).tolist()
    assert found.scalars(0.3, 0.7) == tuple(narrow)
    assert found.scalars(0.3, 0.7) != (as_scalar(0.3), as_scalar(0.7))
    near = addmv(dtype, 1.0 + 2.0**-20, 2.0**-160)
    assert isinstance(near, Route)
    assert (near.problem.alpha, near.problem.beta, near.addend) == (ScalarClass.ONE, ScalarClass.ZERO, Addend.UNREAD)
    assert near.scalars(1.0 + 2.0**-20, 2.0**-160) == (1.0, 0.0)


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_matrices_scalars_are_float32(dtype: DType) -> None:
    matrix = biased(3, 5, 7, dtype, alpha=0.3, beta=0.7)
    batch = route_baddbmm(
        of(2, 3, 7, dtype=dtype), of(2, 7, 5, dtype=dtype), of(2, 3, 5, dtype=dtype), SETTINGS, alpha=0.3, beta=0.7
    )
    assert isinstance(batch, Route)
    for found in (matrix, batch):
        assert found.scalars(0.3, 0.7) == (as_scalar(0.3), as_scalar(0.7))
    unread = biased(3, 5, 7, dtype, beta=0.0)
    assert unread.scalars(1.0, float("nan")) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("dtype", "alpha", "beta", "code"),
    [
        (HALF, 1e-9, 1.0, "out_of_scope"), (BF16, 1e-42, 1.0, "out_of_scope"),
        (HALF, 65519.0, 0.0, "unsupported_input"),
        (HALF, 1.0, -65505.0, "unsupported_input"), (BF16, 3.3961e38, 0.0, "unsupported_input"),
    ],
)  # fmt: skip
def test_scalars_that_vanish_or_that_torch_refuses_decline(dtype: DType, alpha: float, beta: float, code: str) -> None:
    found = addmv(dtype, alpha, beta)
    assert isinstance(found, Declined), found
    assert found.code == code
    kind = TORCH_TYPES[dtype]
    call = lambda: torch.addmv(torch.ones(2, dtype=kind), torch.ones(2, 2, dtype=kind),  # noqa: E731
                               torch.ones(2, dtype=kind), alpha=alpha, beta=beta)  # fmt: skip
    if code == "unsupported_input":
        with pytest.raises(RuntimeError, match="without overflow"):
            call()
    else:
        call()


def test_matrices_decline_what_float32_does_not_hold() -> None:
    a, b, out = (of(*s).matrix for s in ((3, 7), (7, 5), (3, 5)))
    for alpha, beta in ((1e39, 1.0), (1.0, -1e39)):
        found = route_addmm(of(5), a, b, out, SETTINGS, release=READ_FOR, alpha=alpha, beta=beta)
        assert isinstance(found, Declined)
        assert found.code == "unsupported_input"
        assert found.reason.endswith("beyond the range of float32, which torch refuses")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_the_library_is_run_with_the_rounded_scalars(kind: Any) -> None:
    a, x, y = torch.ones(8, 152, dtype=kind), torch.ones(152, dtype=kind), torch.ones(8, dtype=kind)
    wanted = tuple(torch.tensor([0.3, 0.7]).to(kind).tolist())
    given: list[tuple[float | None, float | None]] = []

    class Watched(HostLibrary):
        def matmul(self, problem: GemmProblem, *rest: Any, **scalars: Any) -> Any:
            given.append((scalars["alpha"], scalars["beta"]))
            return super().matmul(problem, *rest, **scalars)

    checker = RouteChecker(Watched(), TorchSettings, READ_FOR, Tally().add, lambda run: None, most_explained=0)
    with intercepted(checker):
        torch.addmv(y, a, x, alpha=0.3, beta=0.7)
    assert given == [wanted]


# --- what is tried where bytes differ -------------------------------------------------------------------------------


def test_an_activation_in_the_epilogue_and_rounded_scalars_are_tried() -> None:
    seen: dict[str, Route] = {}

    def look(call: TorchCall) -> Any:
        assert isinstance(call.found, Product)
        route = route_of(call.found, SETTINGS, Release(major=2, minor=10))
        assert isinstance(route, Route)
        seen.update(variants(call.found, route, SETTINGS))
        return call.run()

    with intercepted(look):
        torch._addmm_activation(torch.ones(6), torch.ones(1, 5), torch.ones(5, 6), alpha=0.3, use_gelu=True)
    acted = seen["bias and activation in the epilogue, cuBLASLt's workspace"]
    assert (acted.problem.epilogue, acted.activation, acted.addend) == (
        Epilogue.GELU_BIAS, Activation.NONE, Addend.BIAS,
    )  # fmt: skip
    matrix = seen["C in place, activation in the epilogue, cuBLAS's workspace"]
    assert (matrix.problem.epilogue, matrix.problem.beta) == (Epilogue.GELU, ScalarClass.ONE)
    assert seen["scalars rounded to float32"].scalars(0.3, 1.0) == (as_scalar(0.3), 1.0)
    look_vector: dict[str, Route] = {}

    def vector(call: TorchCall) -> Any:
        assert isinstance(call.found, Product)
        route = route_of(call.found, SETTINGS, READ_FOR)
        assert isinstance(route, Route)
        look_vector.update(variants(call.found, route, SETTINGS))
        return call.run()

    with intercepted(vector):
        torch.addmv(torch.ones(3).half(), torch.ones(3, 5).half(), torch.ones(5).half(), alpha=0.3)
    assert look_vector["scalars rounded to float32"].scalars(0.3, 1.0) != look_vector[
        "scalars rounded to float16"
    ].scalars(0.3, 1.0)
