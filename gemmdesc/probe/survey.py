"""Reading many answers of each family before any rule is sought: where slices end is learned from all of them at once.

A class of answers is met on a few problems, which allow many expressions for its spans, most of them wrong elsewhere.
All classes of one ``algo_id`` together allow few.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from gemmdesc.library.interface import Library
from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.scan import Tally
from gemmdesc.probe.tasks import Draws, varied
from gemmdesc.probe.workers import Workers

#: Readings of one family in the first round, which shows whether it is worth reading at all, and in the second.
FIRST_READINGS, READINGS = 3, 40
#: A k above which a reading costs more than it tells.
_LARGEST_K = 1 << 14
#: Outputs along the longer axis below which a reading takes many launches.
_WIDE = 64


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """Read problem ``number``, whose answer is of the family ``algo_id``."""

    source: Draws
    algo_id: int
    number: int


def run_read(library: Library, task: ReadTask) -> Reading | None:
    """The reading; None where the problem is refused or the answer does not run."""
    example = task.source.example(library, task.number)
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
    numbers = {a: [n for n in of if _readable(source, n)] for a, of in split_numbers(tally).items() if a not in done}
    chosen = {a: varied(source, of, READINGS) for a, of in numbers.items()}
    fused: set[int] = set()
    for part in (slice(0, FIRST_READINGS), slice(FIRST_READINGS, READINGS)):
        due = [a for a in chosen if part.start == 0 or a in fused]
        tasks = [ReadTask(source=source, algo_id=a, number=n) for a in due for n in chosen[a][part]]
        for count, (task, reading) in enumerate(workers.run(run_read, tasks), 1):
            report("survey", count, len(tasks))
            if reading is not None and reading.fused:
                fused.add(task.algo_id)
            yield task.algo_id, reading


def split_numbers(tally: Tally) -> dict[int, list[int]]:
    """Problems that got an answer with several slices, by ``algo_id``; answers take turns."""
    found: dict[int, list[list[int]]] = {}
    for key, numbers in tally.numbers.items():
        if (key.attribute("splitk_num") or 0) > 1:
            found.setdefault(_family(key), []).append(numbers)
    return {a: _in_turn(lists) for a, lists in found.items()}


def _in_turn(lists: Sequence[Sequence[int]]) -> list[int]:
    return [x[i] for i in range(max(map(len, lists))) for x in lists if i < len(x)]


def _readable(source: Draws, number: int) -> bool:
    p = source.problem(number)
    return p.k <= _LARGEST_K and max(p.m, p.n) >= _WIDE


def _family(key: AnswerKey) -> int:
    return key.attribute("algo_id") or 0
