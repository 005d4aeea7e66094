"""Compiling kernels in processes of their own before they are launched, into Triton's disk cache.  Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import cpu_count, get_context

from gemmdesc.kernels.variant import Variant

#: More processes than this wait for one another's disk.
_MOST_WORKERS = 16


class Ahead:
    """Compiles each variant once; close it, or use it in a ``with`` statement, to end its processes.

    ``capability``: of the card, as 90.  ``failures``: what could not be compiled, with why; a launch says it in full.
    """

    def __init__(self, capability: int) -> None:
        self._capability = capability
        self._pool: ProcessPoolExecutor | None = None
        self._begun: dict[Variant, Future[str]] = {}
        self.compiled: set[Variant] = set()
        self.failures: list[str] = []

    def begin(self, variants: Iterable[Variant]) -> None:
        """Have those of ``variants`` compiled that were not met before, behind what was begun; returns at once."""
        for variant in dict.fromkeys(variants):
            if variant not in self.compiled and variant not in self._begun:
                if self._pool is None:
                    # Forked processes must not use CUDA, which Triton asks about itself.
                    self._pool = ProcessPoolExecutor(min(_MOST_WORKERS, cpu_count()), mp_context=get_context("spawn"))
                self._begun[variant] = self._pool.submit(_quietly, variant, self._capability)

    def __call__(self, variants: Iterable[Variant]) -> None:
        """Compile those of ``variants`` that were not met before; returns when all are there."""
        wanted = [v for v in dict.fromkeys(variants) if v not in self.compiled]
        self.begin(wanted)
        for variant in wanted:
            error = self._begun.pop(variant).result()
            self.compiled.add(variant)
            if error:
                self.failures.append(f"{variant}: {error}")

    def close(self) -> None:
        """End the processes; what was begun and nobody waited for is given up."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
            self._begun.clear()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _quietly(variant: Variant, capability: int) -> str:
    """Why ``variant`` could not be compiled, "" if it could."""
    from gemmdesc.kernels.compiling import compile_variant

    try:
        compile_variant(variant, capability=capability)
    except Exception as error:  # noqa: BLE001  the launch reports it in full
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""
