"""The planners that calls use which bring none of their own: one per device and choice of profiles, for the process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import Lock

from gemmdesc.errors import InvalidInputError
from gemmdesc.plan import Planner, SavedAnswers, planner_for, saved_folder
from gemmdesc.profiles import Level, parse_level

#: Keeps two threads from making the same planner at once, each with counts of its own.
_MAKING = Lock()


def default_planner(
    device_index: int | None = None, profiles: str | Path | None = None, accept: Level | str = Level.VERIFIED
) -> Planner:
    """The process's planner of a CUDA device, made on the first call.

    ``device_index``: as torch counts, the current device by default.  ``profiles``: a folder or file to look at before
    the usual ones (``GEMMDESC_PROFILES``, the user's data folder, the packaged ones), which are read when the planner
    is made: use ``default_planner().reload()`` after a probe, and :func:`reset_default_planners` after a change of the
    environment.  ``accept``: the weakest evidence that a rule may have.

    Raises:
        LibraryError: no GPU that torch can use, or no cuBLASLt that torch has mapped.
        ProfileError: a profile that should apply is broken.
    """
    if device_index is None:
        from gemmdesc.library.device import device_id

        device_id()  # says clearly that there is no GPU, where there is none
        import torch

        device_index = int(torch.cuda.current_device())
    level, named = parse_level(accept), None if profiles is None else Path(profiles)
    with _MAKING:
        known, key = _planners(), (device_index, named, level)
        if key not in known:
            folder = saved_folder() if _saving()["on"] else None
            known[key] = planner_for(device_index, named, accept=level, saved=folder, tables=_tables()["on"])
            if named is None and level is Level.VERIFIED:
                _usual()[device_index] = known[key]
        return known[key]


@cache
def _planners() -> dict[tuple[int, Path | None, Level], Planner]:
    """The planners that there are, by device, profiles and level."""
    return {}


@cache
def _usual() -> dict[int, Planner]:
    """Of these, those of calls that choose nothing; looking one up must be cheap."""
    return {}


@cache
def _saving() -> dict[str, bool]:
    """Whether planners that are made keep answers on disk."""
    return {"on": True}


@cache
def _tables() -> dict[str, bool]:
    """Whether planners that are made take tuned tables."""
    return {"on": True}


def known_planner(device_index: int) -> Planner | None:
    """The default planner of a device, or None before its first call."""
    return _usual().get(device_index)


def reset_default_planners() -> None:
    """Forget every default planner, with its plans, counts and library handles; the next call makes a new one."""
    with _MAKING:
        for saved in _saved():
            saved.save()
        _planners().clear()
        _usual().clear()


def use_saved_plans(on: bool) -> None:
    """Whether default planners take answers that earlier processes saved, and save their own; they do unless told.

    It holds for the process; ``GEMMDESC_SAVED_PLANS=off`` does the same from outside, whatever is said here.  Planners
    made before are forgotten.
    """
    reset_default_planners()
    _saving()["on"] = bool(on)


def use_tuned_tables(on: bool) -> None:
    """Whether default planners take tuned tables, as they do unless told; else the model makes every choice of speed.

    It holds for the process.  Planners made before are forgotten.
    """
    reset_default_planners()
    _tables()["on"] = bool(on)


def clear_saved_plans() -> int:
    """Remove every file of saved answers, of all cards and releases; the number of files that there were.

    The default planners of this process forget what they read; other processes keep it until they end.

    Raises:
        OSError: a file cannot be removed.
    """
    folder = saved_folder()
    files = [] if folder is None else sorted(folder.glob("*/cublaslt-*.json"))
    with _MAKING:
        for saved in _saved():
            saved.clear()
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)


def _saved() -> list[SavedAnswers]:
    """Those of the planners that there are."""
    return [planner.saved for planner in _planners().values() if planner.saved is not None]


def chosen_planner(
    device_index: int | None,
    profiles: str | Path | None,
    planner: Planner | None,
    accept: Level | str = Level.VERIFIED,
) -> Planner:
    """``planner``, or the default one of the device.

    Raises:
        InvalidInputError: ``profiles`` or ``accept`` is given beside a planner, or the planner is of another device;
            ``accept`` is no level.
    """
    level = parse_level(accept)
    if planner is None:
        return default_planner(device_index, profiles, level)
    if level is not Level.VERIFIED:
        raise InvalidInputError(f"accept must be left to the planner, which has its own (got {level.value})")
    if profiles is not None:
        raise InvalidInputError(f"profiles must be None beside a planner, which has its own (got {profiles})")
    if device_index not in (None, planner.device_index):
        raise InvalidInputError(
            f"planner must be of the tensors' device cuda:{device_index} (got one of cuda:{planner.device_index})"
        )
    return planner
