"""Variables of workspaces and of biased products that are changed when torch may have read them already.

torch reads them as it makes its first handle, or at each call, by its release; and a workspace that was allocated once
stays as large as it was.  So a value that is changed after CUDA was initialised has no meaning that could be relied on.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

#: What fixes the workspaces that torch gives cuBLAS and cuBLASLt.
WORKSPACE_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE")
#: torch reads it at its first product, and never again.
NO_FUSED_BIAS = "DISABLE_ADDMM_CUDA_LT"
WATCHED = (*WORKSPACE_VARIABLES, NO_FUSED_BIAS)
_AT_START = Path("/proc/self/environ")

Values = Mapping[str, str | None]


class LateSettingWarning(UserWarning):
    """A variable was changed when torch may have read it already."""


@dataclass(frozen=True, kw_only=True)
class LateVariable:
    """``before``: what it held once CUDA was initialised; or, where ``certain`` is False, when the process started.

    ``now``: what it holds; None where it is not set.
    """

    name: str
    before: str | None
    now: str | None
    certain: bool

    def __str__(self) -> str:
        when = "once CUDA was initialised" if self.certain else "when the process started, before CUDA was initialised"
        before, now = (repr(x) if x is not None else "not set" for x in (self.before, self.now))
        return f"{self.name} was {before} {when}, and is {now} now"


class WorkspaceWatch:
    """Remembers the variables' values at the moment when CUDA is initialised, or as soon afterwards as it is asked."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[str, str | None] | None = None
        self._started: dict[str, str | None] = {}

    def initialised(self, values: Values, at_start: Values | None = None) -> None:
        """CUDA is initialised, the variables hold ``values``; the first call counts.

        ``at_start``: what the process was started with, where CUDA may have been initialised before they were set.
        """
        with self._lock:
            if self._kept is None:
                self._kept = {name: values.get(name) for name in WATCHED}
                started = values if at_start is None else at_start
                self._started = {name: started.get(name) for name in WATCHED}

    def late(self, values: Values) -> tuple[LateVariable, ...]:
        """The variables of which torch may not know what they hold."""
        with self._lock:
            kept, started = self._kept, self._started
        if kept is None:
            return ()
        found = []
        for name in WATCHED:
            now, certain = values.get(name), values.get(name) != kept[name]
            before = kept[name] if certain else started[name]
            if certain or now != before:
                found.append(LateVariable(name=name, before=before, now=now, certain=certain))
        return tuple(found)


@cache
def process_watch() -> WorkspaceWatch:
    """This process's watch, which begins with the first call; imports torch."""
    import torch

    watch = WorkspaceWatch()
    if torch.cuda.is_initialized():
        watch.initialised(os.environ, _values_at_start())
    else:
        # torch runs what it is handed here as it initialises CUDA.
        torch.cuda._lazy_call(lambda: watch.initialised(os.environ))
    return watch


def _values_at_start() -> Values:
    try:
        text = _AT_START.read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in text.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def late_words(late: tuple[LateVariable, ...]) -> str:
    """What is known to have come too late, in words for a decline; "" where nothing is.  Warns once of each change."""
    for variable in late:
        _warn(variable)
    return "; ".join(str(variable) for variable in late if variable.certain)


@cache
def _warn(variable: LateVariable) -> None:
    what = (
        "products decline until it is as it was" if variable.certain
        else "it is taken to have been set before torch made its first handle"
    )  # fmt: skip
    warnings.warn(f"{variable}; torch may not follow: {what}", LateSettingWarning, stacklevel=2)
