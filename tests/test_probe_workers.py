"""Tasks run in processes: complete results, and failures that name their item."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gemmdesc.bits import Bits
from gemmdesc.dtypes import DType
from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import Library, Window
from gemmdesc.library.simulated import PermutedLibrary, permuted
from gemmdesc.operands import Family, HashOperand
from gemmdesc.probe import workers
from gemmdesc.probe.workers import InProcess, ProcessPool
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem, dense_problem
from gemmdesc.verification.hidden import HiddenFactory
from tests.probe_samples import FP16


def version_times(library: Library, item: int) -> int:
    """The library's own seed, so that every result shows that a library was there."""
    return library.identity.version.patch * item


def fail_on_seven(library: Library, item: int) -> int:
    if item == 7:
        raise ValueError("no sevens")
    return item


def die(library: Library, item: int) -> int:
    os._exit(3)


def process_of(library: Library, item: int) -> int:
    return os.getpid()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessPool]:
    monkeypatch.setattr(workers, "_LOOK_SECONDS", 1.0)
    with ProcessPool(HiddenFactory(seed=5), 2) as made:
        yield made


def test_in_process() -> None:
    with InProcess(HiddenFactory(seed=5)()) as made:
        assert list(made.run(version_times, range(4))) == [(0, 0), (1, 5), (2, 10), (3, 15)]
        with pytest.raises(ValueError, match="no sevens"):
            list(made.run(fail_on_seven, [7]))


def test_a_pool_returns_every_result_once(pool: ProcessPool) -> None:
    assert pool.library.identity.version.patch == 5
    found = list(pool.run(version_times, range(50)))
    assert sorted(found) == [(i, 5 * i) for i in range(50)]
    assert list(pool.run(version_times, [])) == []
    # One item is less than there are processes.
    assert list(pool.run(version_times, [9])) == [(9, 45)]
    used = {place for _, place in pool.run(process_of, range(40))}
    assert os.getpid() not in used


def test_a_task_that_raises_names_its_item(pool: ProcessPool) -> None:
    with pytest.raises(CampaignError, match=r"^task must not fail on 7 \(got ValueError: no sevens\)"):
        list(pool.run(fail_on_seven, [5, 6, 7, 8]))


def test_a_worker_that_dies(pool: ProcessPool) -> None:
    with pytest.raises(CampaignError, match=r"^workers must stay alive \(got exit codes \[3"):
        list(pool.run(die, [1]))


def test_a_pool_needs_a_process() -> None:
    with pytest.raises(CampaignError, match=r"^count must be at least 1 \(got 0\)"):
        ProcessPool(HiddenFactory(seed=5), 0)


def product_of(library: Library, item: int) -> tuple[str, int, bytes | str]:
    """What ran it, and a product whose bytes depend on the item."""
    problem = dense_problem(4, 3, item, FP16)
    a, b = (HashOperand(dtype=FP16, family=Family.NORMAL, seed=item, draw=0, role=r) for r in ("a", "b"))
    answer = library.answer(problem)
    assert isinstance(answer, AlgoConfig)
    found = library.run(problem, answer, a, b, Window(rows=np.array([0, 2]), columns=np.array([1])))
    return type(library).__name__, os.getpid(), found.status if isinstance(found, Failed) else found.tobytes()


def test_products_run_elsewhere() -> None:
    """The same bytes, from a library that asks here and multiplies in processes that others share."""
    with InProcess(HiddenFactory(seed=5)()) as alone, ProcessPool(HiddenFactory(seed=5), 3, runners=2) as made:
        own = {item: result[2] for item, result in alone.run(product_of, range(1, 40))}
        shared = dict(made.run(product_of, range(1, 40)))
    assert {item: result[2] for item, result in shared.items()} == own
    assert len(set(own.values())) > 30
    assert {result[0] for result in shared.values()} == {"RunElsewhere"}


def wrong_product(library: Library, item: int) -> object:
    """Operands of another type than the problem's."""
    problem = dense_problem(4, 3, 8, FP16)
    a, b = (HashOperand(dtype=DType.BFLOAT16, family=Family.NORMAL, seed=1, draw=0, role=r) for r in ("a", "b"))
    answer = library.answer(problem)
    assert isinstance(answer, AlgoConfig)
    return library.run(problem, answer, a, b)


def test_a_product_that_fails_elsewhere_is_raised_here() -> None:
    with (
        ProcessPool(HiddenFactory(seed=5), 1, runners=1) as made,
        pytest.raises(CampaignError, match=r"got LibraryError: the process that multiplies must not fail \(got Inv"),
    ):
        list(made.run(wrong_product, [1]))


class Deadly(PermutedLibrary):
    """Ends its process at a product."""

    def run(self, *given: object, **named: object) -> Bits | Failed:
        os._exit(4)


class DeadlyFactory:
    def __call__(self) -> Library:
        inner = permuted(HiddenFactory(seed=5)(), 1)
        return Deadly(library=inner.library, renaming=inner.renaming)


def test_a_process_that_multiplies_and_dies_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LOOK_SECONDS", 1.0)
    with (
        ProcessPool(DeadlyFactory(), 1, runners=1) as made,
        pytest.raises(CampaignError, match=r"^workers must stay alive \(got exit codes \[4"),
    ):
        list(made.run(product_of, [5]))


class Faulty(PermutedLibrary):
    """Some products fail, and leave their process without a card."""

    is_broken = False

    def run(self, problem: GemmProblem, *given: Any, **named: Any) -> Bits | Failed:
        if self.is_broken or problem.k % 7 == 0:
            object.__setattr__(self, "is_broken", True)
            return Failed(status="CUDA error")
        return super().run(problem, *given, **named)


class FaultyFactory:
    def __call__(self) -> Library:
        inner = permuted(HiddenFactory(seed=5)(), 1)
        return Faulty(library=inner.library, renaming=inner.renaming)


def test_a_process_that_lost_its_card_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the products that fault fail."""
    monkeypatch.setattr(workers, "_LOOK_SECONDS", 1.0)
    with ProcessPool(FaultyFactory(), 2, runners=1) as made:
        found = dict(made.run(product_of, range(1, 16)))
    assert {item for item, result in found.items() if result[2] == "CUDA error"} == {7, 14}


def test_a_run_left_half_way_leaves_nothing_behind(pool: ProcessPool) -> None:
    first = pool.run(version_times, range(50))
    assert next(first)[1] % 5 == 0
    first.close()
    assert sorted(pool.run(process_sign, range(20))) == [(i, -i) for i in range(20)]


def process_sign(library: Library, item: int) -> int:
    return -item


def test_a_pool_needs_no_less_than_no_runner() -> None:
    with pytest.raises(CampaignError, match=r"^runners must be at least 0 \(got -1\)"):
        ProcessPool(HiddenFactory(seed=5), 1, runners=-1)
