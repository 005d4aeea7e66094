"""Tasks run in processes: complete results, and failures that name their item."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import Library
from gemmdesc.probe import workers
from gemmdesc.probe.workers import InProcess, ProcessPool
from gemmdesc.verification.hidden import HiddenFactory


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


def negated(library: Library, item: int) -> int:
    return -item


def test_a_run_left_half_way_leaves_nothing_behind(pool: ProcessPool) -> None:
    first = pool.run(version_times, range(50))
    assert next(first)[1] % 5 == 0
    first.close()
    assert sorted(pool.run(negated, range(20))) == [(i, -i) for i in range(20)]
