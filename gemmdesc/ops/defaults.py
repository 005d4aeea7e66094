"""The planners that calls use which bring none of their own: one per device and choice of profiles, for the process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import Lock

from gemmdesc.errors import InvalidInputError
from gemmdesc.plan import Planner, planner_for

#: Keeps two threads from making the same planner at once, each with counts of its own.
_MAKING = Lock()


def default_planner(device_index: int | None = None, profiles: str | Path | None = None) -> Planner:
    """The process's planner of a CUDA device, made on the first call.

    ``device_index``: as torch counts, the current device by default.  ``profiles``: a folder or file to look at before
    the usual ones (``GEMMDESC_PROFILES``, the user's data folder, the packaged ones), which are read when the planner
    is made: use ``default_planner().reload()`` after a probe, and :func:`reset_default_planners` after a change of the
    environment.

    Raises:
        LibraryError: no GPU that torch can use, or no cuBLASLt that torch has mapped.
        ProfileError: a profile that should apply is broken.
    """
    if device_index is None:
        from gemmdesc.library.device import device_id

        device_id()  # says clearly that there is no GPU, where there is none
        import torch

        device_index = int(torch.cuda.current_device())
    with _MAKING:
        return _planner(device_index, None if profiles is None else Path(profiles))


@cache
def _planner(device_index: int, profiles: Path | None) -> Planner:
    return planner_for(device_index, profiles)


def reset_default_planners() -> None:
    """Forget every default planner, with its plans, counts and library handles; the next call makes a new one."""
    with _MAKING:
        _planner.cache_clear()


def chosen_planner(device_index: int | None, profiles: str | Path | None, planner: Planner | None) -> Planner:
    """``planner``, or the default one of the device.

    Raises:
        InvalidInputError: ``profiles`` is given beside a planner, or the planner is of another device.
    """
    if planner is None:
        return default_planner(device_index, profiles)
    if profiles is not None:
        raise InvalidInputError(f"profiles must be None beside a planner, which has its own (got {profiles})")
    if device_index not in (None, planner.device_index):
        raise InvalidInputError(
            f"planner must be of the tensors' device cuda:{device_index} (got one of cuda:{planner.device_index})"
        )
    return planner
