"""Problems, answers, versions: validation, plain forms, the environment of a rule."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.dtypes import DType
from gemmdesc.errors import GemmdescError, InvalidInputError
from gemmdesc.plain import answer_from_plain, problem_from_plain, to_plain
from gemmdesc.problem import (
    ANSWER_ATTRIBUTES,
    AlgoConfig,
    DeviceId,
    GemmProblem,
    KernelNode,
    Launch,
    LibraryId,
    LibraryVersion,
    Transpose,
    attributes,
    dense_problem,
    environment,
)
from tests.strategies import problems

PROBLEM = dense_problem(64, 48, 32, DType.FLOAT16)
ANSWER = AlgoConfig(
    algo_id=66,
    tile_id=0,
    splitk_num=4,
    reduction_scheme=2,
    cta_swizzling=0,
    custom_option=1,
    stages_id=3,
    inner_shape_id=0,
    cluster_shape_id=2,
    opaque="00" * 64,
    workspace_bytes=4096,
)
LAUNCH = Launch(
    kernels=(
        KernelNode(name="main", grid=(3, 2, 4), block=(384, 1, 1), cluster=(2, 1, 1), shared_bytes=1024),
        KernelNode(name="reduce", grid=(9, 1, 1), block=(32, 16, 1), cluster=(1, 1, 1), shared_bytes=0),
    ),
    memset_bytes=(64,),
)


@given(problems())
def test_a_problem_comes_back_from_json(problem: GemmProblem) -> None:
    again = problem_from_plain(json.loads(json.dumps(to_plain(problem))))
    assert again == problem
    assert hash(again) == hash(problem)


@given(problems())
def test_stored_sizes_hold_each_operand_once(problem: GemmProblem) -> None:
    assert problem.a_rows * problem.a_columns == problem.m * problem.k
    assert problem.b_rows * problem.b_columns == problem.k * problem.n
    assert problem.lda >= problem.a_rows
    assert problem.ldb >= problem.b_rows


def test_stored_sizes_follow_the_flags() -> None:
    t = dense_problem(64, 48, 32, DType.FLOAT16, transa=Transpose.T, transb=Transpose.T, d_dtype=DType.FLOAT32)
    assert (PROBLEM.a_rows, PROBLEM.a_columns, PROBLEM.b_rows, PROBLEM.b_columns) == (64, 32, 32, 48)
    assert (t.a_rows, t.a_columns, t.b_rows, t.b_columns) == (32, 64, 48, 32)
    assert (t.lda, t.ldb, t.ldd, t.d_dtype) == (32, 48, 64, DType.FLOAT32)
    assert PROBLEM.d_dtype is DType.FLOAT16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, 0) for name in ("m", "n", "k", "batch_count", "a_alignment_bytes", "d_alignment_bytes")),
        *((name, -1) for name in ("m", "lda", "a_batch_stride", "workspace_limit_bytes", "reduction_scheme_mask")),
        *((name, 1.0) for name in ("m", "ldb", "batch_count", "workspace_limit_bytes", "c_alignment_bytes")),
        *((name, True) for name in ("m", "b_batch_stride")),
        *((name, "64") for name in ("n", "ldd")),
        ("lda", 63),
        ("ldb", 31),
        ("ldd", 63),
        ("a_alignment_bytes", 3),
        ("b_alignment_bytes", 512),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{field} must be .*\(got .*\)$"):
        replace(PROBLEM, **{field: value})


@pytest.mark.parametrize(
    "change",
    [{"m": 0}, {"m": "64"}, {"m": None}, {"a_dtype": "half"}, {"alpha": 1}, {"unknown": 1}, {"transa": "c"}],
)
def test_bad_plain_problems_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"^problem must hold the fields of GemmProblem .*\(got "):
        problem_from_plain(to_plain(PROBLEM) | change)


def test_a_plain_problem_needs_its_sizes() -> None:
    data = to_plain(PROBLEM)
    del data["ldd"]
    with pytest.raises(InvalidInputError, match="ldd"):
        problem_from_plain(data)


def test_an_answer_comes_back_and_is_compared_by_its_attributes() -> None:
    again = answer_from_plain(json.loads(json.dumps(to_plain(ANSWER))))
    assert again == ANSWER
    assert again.opaque == ANSWER.opaque
    assert replace(ANSWER, opaque="", workspace_bytes=0) == ANSWER
    assert hash(replace(ANSWER, opaque="", workspace_bytes=0)) == hash(ANSWER)
    for name in ANSWER_ATTRIBUTES:
        assert replace(ANSWER, **{name: 99}) != ANSWER


def test_attributes_are_the_compared_fields_in_the_headers_order() -> None:
    assert tuple(attributes(ANSWER)) == ANSWER_ATTRIBUTES
    assert "opaque" not in ANSWER_ATTRIBUTES
    assert attributes(ANSWER)["splitk_num"] == 4


@pytest.mark.parametrize("change", [{"unknown": 1}, {"algo_id": 1, "seed": 2}])
def test_bad_plain_answers_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"^answer must hold the fields of AlgoConfig .*\(got "):
        answer_from_plain(to_plain(ANSWER) | change)


def test_the_environment_of_a_rule() -> None:
    expected = {"m": 64, "n": 48, "k": 32, "splitk_num": 4, "transa": 0, "transb": 0, "k_contiguous": 1}
    expected |= {"a_unit_k": 0, "b_unit_k": 1}
    assert environment(PROBLEM, ANSWER, None) == expected
    assert environment(PROBLEM, ANSWER, Launch(kernels=())) == environment(PROBLEM, ANSWER, None)
    assert environment(PROBLEM, replace(ANSWER, splitk_num=0), None)["splitk_num"] == 1
    known = environment(PROBLEM, ANSWER, LAUNCH)
    assert (known["grid_x"], known["grid_y"], known["grid_z"]) == (3, 2, 4)
    assert (known["block_x"], known["block_y"], known["block_z"]) == (384, 1, 1)


def test_launches_print_plainly() -> None:
    assert LAUNCH.names == ("main", "reduce")
    assert to_plain(LAUNCH)["kernels"][1]["block"] == [32, 16, 1]


@given(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)))
def test_versions_come_back_from_text_and_from_the_packed_number(parts: tuple[int, int, int]) -> None:
    version = LibraryVersion(major=parts[0], minor=parts[1], patch=parts[2])
    assert LibraryVersion.parse(str(version)) == version
    assert LibraryVersion.from_packed(parts[0] * 10_000 + parts[1] * 100 + parts[2]) == version


def test_versions_are_ordered_as_numbers() -> None:
    assert LibraryVersion.from_packed(130100) == LibraryVersion.parse("13.1.0")
    assert LibraryVersion.from_packed(120901) == LibraryVersion.parse("12.9.1")
    assert LibraryVersion.from_packed(131000) > LibraryVersion.parse("13.9.9")


@pytest.mark.parametrize("text", ["", "13.1", "13.1.0.3", "13.1.x", "13.-1.0", "13.1.\u00b2", "13. 1.0", "v13.1.0"])
def test_bad_versions_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^version must be three dotted integers \(got "):
        LibraryVersion.parse(text)


def test_a_library_is_its_version_and_its_build() -> None:
    version = LibraryVersion(major=13, minor=1, patch=0)
    one = LibraryId(version=version, build_id="ab", path="/one", sha256="1", wheel="13.1.0.3")
    assert one == LibraryId(version=version, build_id="ab", path="/two")
    assert one != LibraryId(version=version, build_id="cd", path="/one")


def test_a_device_is_its_architecture_and_its_sm_count() -> None:
    device = DeviceId(sm="sm_90", sm_count=132, name="NVIDIA H200", driver="1")
    assert device.folder == "sm_90-132"
    assert device == DeviceId(sm="sm_90", sm_count=132, name="NVIDIA H100", driver="2")
    assert device != DeviceId(sm="sm_90", sm_count=132, mig=True)


def test_invalid_input_is_one_of_ours_and_a_value_error() -> None:
    assert issubclass(InvalidInputError, GemmdescError)
    assert issubclass(InvalidInputError, ValueError)
