"""The examples of one class and their variables: those met, and the same answers at k where they were not met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmdesc.library.interface import Library
from gemmdesc.probe.examples import stretched
from gemmdesc.probe.scan import Example
from gemmdesc.problem import Launch, environment

#: Examples whose answers are taken to other k.
_STRETCHED = 6
#: Kernels and blocks of one class that are told apart: where there are more, blocks follow sizes.
_MOST_KERNELS = 8


class Met:
    """``examples`` and their variables, ``domain``, which grow together; ``launched``: with those of the launches."""

    def __init__(self, library: Library, examples: Sequence[Example]) -> None:
        self._library = library
        self.launched = False
        self.examples = list(examples)
        self.domain = [self._variables(e) for e in examples]
        self._kernels: dict[int, object] = {}
        self._stretched = False

    def _variables(self, example: Example) -> dict[str, int]:
        return environment(example.problem, example.answer, self._launch(example) if self.launched else None)

    def _launch(self, example: Example) -> Launch | None:
        return self._library.launch(example.problem, example.answer)

    def see_launches(self) -> None:
        """From now on the variables hold those of the launches, where they are known."""
        self.launched = True
        self.domain[:] = [self._variables(e) for e in self.examples]

    def stretch(self) -> None:
        """Examples at other k, once: what was met may not tell short slices, nor deep ones."""
        if not self._stretched:
            self._stretched = True
            made = stretched(self._library, self.examples[:_STRETCHED])
            self.examples += made
            self.domain += [self._variables(e) for e in made]

    def other_kernels(self, left: Sequence[int], read: Iterable[int]) -> list[int]:
        """Those of ``left`` that launch another kernel, or other blocks of it, than any example in ``read``."""
        read = list(read)
        for index in (*left, *read):
            if index not in self._kernels:
                launch = self._launch(self.examples[index])
                self._kernels[index] = launch and (launch.names, tuple(k.block for k in launch.kernels[:1]))
        if len(set(self._kernels.values())) > _MOST_KERNELS:
            return []
        seen = {self._kernels[i] for i in read}
        return [i for i in left if self._kernels[i] not in seen]
