"""An autotuner that is kept inside one class, on Triton's own tuner without a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import triton

from gemmdesc.equivalence import Kernel, same_as
from gemmdesc.errors import DeclinedError, InvalidInputError
from tests.equivalence_corpus import Case, atomic_sum, cases, compile_case, kernel_of, row_sum_loop, row_sum_masked


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


CASE = cases()["row_sum_loop-fp16"]


def compile_loop(config: Any, named_args: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Any:
    return compile_case(CASE, config.all_kwargs(), 90)


def config(block: int, warps: int, stages: int) -> Any:
    return triton.Config({"BLOCK_N": block}, num_warps=warps, num_stages=stages)


CONFIGS = [config(256, 4, 1), config(256, 4, 3), config(256, 1, 1), config(512, 4, 1), config(256, 1, 3)]
ARGUMENTS = {"x": object(), "y": object()}


def tuned(prune: Any) -> Any:
    tuner = triton.autotune(CONFIGS, key=[], prune_configs_by={"early_config_prune": prune})(row_sum_loop)
    tuner.nargs = ARGUMENTS
    return tuner


def test_the_first_configuration_is_the_reference() -> None:
    prune = same_as(compile_=compile_loop)
    assert tuned(prune).prune_configs({"grid": (2,)}) == CONFIGS[:2]
    assert prune.last is not None
    assert [len(c) for c in prune.last.partition.classes] == [2, 2, 1]
    assert prune.last.kept == tuple(map(str, CONFIGS[:2]))


def test_a_kernel_that_the_caller_compiled_is_the_reference() -> None:
    choice = {"BLOCK_N": 256, "num_warps": 1, "num_stages": 3}
    assert tuned(same_as(kernel_of(CASE, choice), compile_=compile_loop)).prune_configs({"grid": (2,)}) == [
        CONFIGS[2],
        CONFIGS[4],
    ]


def test_a_reference_that_no_configuration_matches_is_declined() -> None:
    other = kernel_of(CASE, {"BLOCK_N": 128, "num_warps": 4})
    with pytest.raises(DeclinedError, match="none has the reference's bits"):
        tuned(same_as(other, compile_=compile_loop)).prune_configs({"grid": lambda values: (2,)})
    with pytest.raises(DeclinedError, match="none has"):
        tuned(same_as(Kernel(name="nonsense", ptx="nonsense"), compile_=compile_loop)).prune_configs({"grid": (2,)})


def test_configurations_of_varying_bytes_are_never_kept() -> None:
    pointers = (("x", "fp32"), ("y", "fp32"))
    case = Case(name="atomic", kernel=atomic_sum, pointers=pointers, constants={"N": 256}, knobs={})
    prune = same_as(compile_=lambda c, named, kwargs: compile_case(case, c.all_kwargs(), 90))
    with pytest.raises(DeclinedError, match="may vary"):
        prune([triton.Config({}, num_warps=2)] * 2, ARGUMENTS, grid=(1,))


def test_integer_arguments_reach_the_walk() -> None:
    case = Case(
        name="masked", kernel=row_sum_masked, pointers=(("x", "fp32"), ("y", "fp32")), constants={"N": 512}, knobs={},
        integers={"n": 100},
    )  # fmt: skip
    prune = same_as(compile_=lambda c, named, kwargs: compile_case(case, c.all_kwargs(), 90))
    kept = prune([triton.Config({}, num_warps=w) for w in (1, 2)], {**ARGUMENTS, "n": 100}, grid=(1,))
    assert len(kept) == 1
    assert prune.last is not None
    assert prune.last.partition.refused == ()


def test_either_the_kernel_or_a_compiler_has_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="kernel must be given"):
        same_as()
