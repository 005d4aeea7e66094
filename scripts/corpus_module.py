"""The corpus of Triton kernels that scripts compile, loaded from its file: ``tests`` is no part of the package."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "equivalence_corpus.py"


def load_corpus(path: Path) -> ModuleType:
    """The module with ``cases()``, ``wide_cases()`` and ``compile_case``."""
    if path.stem not in sys.modules:
        spec = spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            sys.exit(f"corpus must be a Python file (got {path})")
        sys.modules[path.stem] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]
