"""Every accumulator model against the independent MMA-Sim package, byte for byte."""

from __future__ import annotations

import pytest

from gemmdesc.arithmetic.models import AccumulatorModel, load_models
from gemmdesc.arithmetic.oracle import DISTRIBUTIONS, compare_model
from gemmdesc.errors import InvalidInputError

pytest.importorskip("mmasim")


def name(model: AccumulatorModel) -> str:
    types = (model.a_dtype, model.b_dtype, model.accumulator_dtype)
    return f"{model.architecture} {model.instruction} {' '.join(t.value for t in types)}"


@pytest.mark.parametrize("model", load_models(), ids=name)
def test_a_model_gives_the_bytes_of_the_independent_one(model: AccumulatorModel) -> None:
    results = [compare_model(model, distribution=d, size=46, seed=i) for i, d in enumerate(DISTRIBUTIONS)]
    assert sum(r.calls for r in results) >= 10_000
    assert [r for r in results if r.different] == []


def test_an_unknown_distribution_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^distribution must be one of .*\(got 'flat'\)$"):
        compare_model(load_models()[0], distribution="flat", size=2, seed=0)
