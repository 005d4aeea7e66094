"""From ``--library`` to something that answers: the real library, or a simulated one with hidden rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmdesc.library.interface import Library
    from gemmdesc.probe.sampling import Scope

#: ``simulated:SEED`` names a library whose rules are drawn from SEED.
SIMULATED = "simulated:"
#: Processes that run the products of all others on a card: one to keep it busy while the others prepare theirs.
_RUNNERS = 3


@dataclass(frozen=True, kw_only=True)
class Opener:
    """Opens one library in any process.  ``spec``: None, a path, a package, or ``simulated:SEED``."""

    spec: str | None = None

    @property
    def simulated(self) -> bool:
        return self.spec is not None and self.spec.startswith(SIMULATED)

    @property
    def runners(self) -> int:
        """How many processes should run the products of all workers; 0: each its own."""
        return 0 if self.simulated else _RUNNERS

    def __call__(self) -> Library:
        if self.spec is not None and self.simulated:
            from gemmdesc.verification.hidden import HiddenFactory

            return HiddenFactory(seed=seed_of(self.spec))()
        from gemmdesc.library.cublaslt import CublasLt

        return CublasLt(self.spec)


def seed_of(spec: str) -> int:
    """SEED of ``simulated:SEED``.

    Raises:
        InvalidInputError: it is no whole number.
    """
    from gemmdesc.errors import InvalidInputError

    text = spec.removeprefix(SIMULATED)
    if not text.isascii() or not text.isdigit():
        raise InvalidInputError(f"library must name a whole number as its seed (got {spec!r})")
    return int(text)


def simulated_scope() -> Scope:
    """Problems small enough to be executed on a CPU, of the one type that simulated libraries answer."""
    from gemmdesc.probe.sampling import Regime, Scope
    from gemmdesc.verification.hidden import DTYPE

    return Scope(dtypes=(DTYPE,), output_float32=False, regimes=(Regime.SMALL,), misaligned_share=0.0)


def default_workers() -> int:
    """As many processes as there are cores, up to 16."""
    import os

    return max(1, min(16, len(os.sched_getaffinity(0))))
