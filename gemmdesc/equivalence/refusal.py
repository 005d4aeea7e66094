"""Why a kernel cannot be read: the reasons that an Unknown answer carries."""

from __future__ import annotations

from gemmdesc.errors import GemmdescError


class RefusalError(GemmdescError):
    """Raised inside the walk where going on would be a guess.

    ``code`` groups refusals in counts; one of ``syntax``, ``instruction``, ``data_dependent``, ``pointer``,
    ``global_memory``, ``shared_memory``, ``poison``, ``divergence``, ``contraction``, ``volatile``, ``launch``,
    ``budget``.  The message is one sentence for a person.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class NondeterministicError(GemmdescError):
    """Raised inside the walk where the bytes may differ from run to run; the message says why."""
