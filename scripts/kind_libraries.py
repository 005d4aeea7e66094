"""The libraries that scripts ask about kinds of problems: the card's, or a simulated one for a rehearsal."""

from __future__ import annotations

import sys
from pathlib import Path

from gemmdesc.library.interface import Library


class Real:
    """Opens the library at a path, or torch's own."""

    def __init__(self, path: str | None) -> None:
        self.path = path

    def __call__(self) -> Library:
        from gemmdesc.library.cublaslt import CublasLt

        return CublasLt(self.path)


class Simulated:
    """Opens a library with hidden rules of every kind, for a rehearsal."""

    def __call__(self) -> Library:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from tests.kind_samples import library_of_kinds

        return library_of_kinds()
