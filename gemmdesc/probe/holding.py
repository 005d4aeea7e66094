"""Whether a rule that is known beforehand is a class's: on bytes, on trees, and on whole readings."""

from __future__ import annotations

from dataclasses import replace

from gemmdesc.library.interface import Library
from gemmdesc.probe.compare import needs_launch
from gemmdesc.probe.examples import readable, reading_order
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.outcomes import ClassOutcome, ClassTask
from gemmdesc.probe.raw import RawReader, RecordingReader
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.recorded import hold_against
from gemmdesc.probe.scan import Example
from gemmdesc.probe.solve import try_rules
from gemmdesc.rule import Rule


def hold_class(library: Library, task: ClassTask, readings: int = 0) -> ClassOutcome | None:
    """The outcome where a rule known beforehand gives the class's bytes, and its trees if it is one of chains.

    So many ``readings`` are taken then, whose experiments the rule has to give one and all: they measure what bytes
    seldom show, such as what an exact zero counts as.  None where no rule does, or the library runs nothing.
    """
    held = try_rules(library, task)
    if held is None or held.rule is None:
        return None
    order = [i for i in reading_order(task.examples) if readable(task.examples[i])]
    taken: list[Reading] = []
    for index in order:
        if len(taken) == readings or needs_launch(held.rule, task.examples[index]):
            break
        try:
            reading = _borne_out(library, task.examples[index], held.rule, cuda_cores=task.cuda_cores)
        except ReferenceFailed:
            continue
        if reading is None:
            return None
        taken.append(reading)
    return replace(held, readings=(*held.readings, *taken))


def _borne_out(library: Library, example: Example, rule: Rule, *, cuda_cores: bool) -> Reading | None:
    """A reading of the example; None where the rule gives another output for any of its experiments."""
    p, answer = example.problem, example.answer
    reader = RecordingReader(LibraryReader(library, p, answer))
    reading = read_answer(reader, p, answer, cuda_cores=cuda_cores)
    return reading if hold_against(rule, p, answer, RawReader(reader.packed())).whole else None
