"""The environment of tests' child processes: they import what their parent does, wherever it has that from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def child_environment(*, without: str | None = None, **variables: str) -> Mapping[str, str]:
    """This process's variables and ``variables``; modules are found in the project and wherever this process does.

    ``without``: variables whose names begin so are left out, unless they are given.
    """
    kept = {name: value for name, value in os.environ.items() if without is None or not name.startswith(without)}
    paths = dict.fromkeys([str(ROOT), *(path for path in sys.path if path)])
    return kept | {"PYTHONPATH": os.pathsep.join(paths)} | variables


def last_words(text: str, characters: int = 1200) -> str:
    """The end of what a process wrote, where an exception says what it is; whole lines."""
    kept: list[str] = []
    for line in reversed(text.rstrip().splitlines()):
        characters -= len(line)
        if kept and characters < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))
