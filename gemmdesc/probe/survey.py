"""Reading many answers of each family before any rule is sought: where slices end is learned from all of them at once.

A class of answers is met on a few problems, which allow many expressions for its spans, most of them wrong elsewhere.
All classes of one ``algo_id`` together allow few.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from gemmdesc.library.interface import Library
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.scan import Tally
from gemmdesc.probe.tasks import Draws, moved, varied
from gemmdesc.probe.workers import Workers

#: Readings of one family in the first round, which shows whether it is worth reading at all, and in the second.
FIRST_READINGS, READINGS = 3, 40
#: Further ones at sizes that leave one product beyond equal slices.
UNEVEN_READINGS = 12
#: A k above which a reading costs more than it tells.
_LARGEST_K = 1 << 14
#: Outputs along the longer axis below which a reading takes many launches.
_WIDE = 64


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """Read problem ``number``, whose answer is of the family ``algo_id``; at inner size ``size`` if that is not 0."""

    source: Draws
    algo_id: int
    number: int
    size: int = 0


def run_read(library: Library, task: ReadTask) -> Reading | None:
    """The reading; None where the problem is refused or the answer does not run."""
    example = task.source.example(library, task.number)
    if example is not None and task.size:
        example = moved(library, example, task.size)
    if example is None:
        return None
    try:
        reader = LibraryReader(library, example.problem, example.answer)
        return read_answer(reader, example.problem, example.answer)
    except ReferenceFailed:
        return None


def survey(
    workers: Workers, source: Draws, tally: Tally, done: Container[int], report: Callable[[str, int, int | None], None]
) -> Iterator[tuple[int, Reading | None]]:
    """Read split answers of every family but those in ``done``: (family, reading) as they come, None if it failed.

    A family whose first readings show no fused step is read no further.
    """
    slices = {a: {n: s for n, s in of if _readable(source, n)} for a, of in split_numbers(tally).items()}
    chosen = {a: varied(source, list(of), READINGS) for a, of in slices.items() if a not in done}
    first = [ReadTask(source=source, algo_id=a, number=n) for a, of in chosen.items() for n in of[:FIRST_READINGS]]
    fused: set[int] = set()
    for task, reading in _read(workers, first, report):
        if reading is not None and reading.fused:
            fused.add(task.algo_id)
        yield task.algo_id, reading
    rest = []
    for a in fused:
        for n in chosen[a][FIRST_READINGS:]:
            rest.append(ReadTask(source=source, algo_id=a, number=n))
        for n in chosen[a][:UNEVEN_READINGS]:
            size = uneven_size(source.problem(n).k, slices[a][n])
            rest.append(ReadTask(source=source, algo_id=a, number=n, size=size))
    for task, reading in _read(workers, rest, report):
        yield task.algo_id, reading


def _read(
    workers: Workers, tasks: Sequence[ReadTask], report: Callable[[str, int, int | None], None]
) -> Iterator[tuple[ReadTask, Reading | None]]:
    for count, found in enumerate(workers.run(run_read, tasks), 1):
        report("survey", count, len(tasks))
        yield found


def uneven_size(k: int, slices: int) -> int:
    """A size near ``k`` with one product more than equal slices of a multiple of 64 hold: where a tail gets lost."""
    return max(1, k // (64 * slices)) * 64 * slices + 1


def split_numbers(tally: Tally) -> dict[int, list[tuple[int, int]]]:
    """Problems that got an answer with several slices, and how many, by ``algo_id``; answers take turns."""
    found: dict[int, list[list[tuple[int, int]]]] = {}
    for key, numbers in tally.numbers.items():
        slices = key.attribute("splitk_num") or 0
        if 1 < slices < 1 << 31:
            found.setdefault(key.attribute("algo_id") or 0, []).append([(n, slices) for n in numbers])
    return {a: _in_turn(lists) for a, lists in found.items()}


def _in_turn(lists: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [x[i] for i in range(max(map(len, lists))) for x in lists if i < len(x)]


def _readable(source: Draws, number: int) -> bool:
    p = source.problem(number)
    return p.k <= _LARGEST_K and max(p.m, p.n) >= _WIDE
