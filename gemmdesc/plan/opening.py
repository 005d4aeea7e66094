"""A planner of a real card and of torch's own cuBLASLt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gemmdesc import __version__
from gemmdesc.errors import Declined
from gemmdesc.kernels.tuned import UNTUNED, TunedTable
from gemmdesc.plan.answering import CaptureError
from gemmdesc.plan.planner import DEFAULT_CAPACITY, Planner
from gemmdesc.plan.saved import SavedAnswers, SavedKey, relevant_variables
from gemmdesc.problem import DeviceId, LibraryId
from gemmdesc.profiles import Level, Profile, find_profile, profile_folders
from gemmdesc.tuning.store import find_tuned

#: Where answers are saved: a folder, or ``off``; the platform's cache folder where it is not set.
SAVED_VARIABLE = "GEMMDESC_SAVED_PLANS"
_OFF = ("off", "0", "no", "false")
_FOLDER = "plans"


def saved_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where answers are saved from process to process; None where ``GEMMDESC_SAVED_PLANS`` is ``off``.

    ``environment`` defaults to the process's.
    """
    import platformdirs

    named = (os.environ if environment is None else environment).get(SAVED_VARIABLE, "")
    if named.lower() in _OFF:
        return None
    return Path(named) if named else platformdirs.user_cache_path("gemmdesc") / _FOLDER


def planner_for(
    device_index: int,
    profiles: Path | None = None,
    *,
    capacity: int = DEFAULT_CAPACITY,
    accept: Level = Level.VERIFIED,
    saved: Path | None = None,
    tables: bool = True,
) -> Planner:
    """A new planner of CUDA device ``device_index`` with the cuBLASLt that torch has mapped.

    ``profiles``: a folder or file to look at before those of :func:`gemmdesc.profiles.profile_folders`; tuned tables
    lie in the same folders.  ``capacity``
    and ``accept`` are those of :class:`Planner`.  ``saved``: the folder of saved answers, None where none are kept.
    ``tables``: whether tuned tables are taken.

    Raises:
        LibraryError: no GPU that torch can use, or no such library.
        ProfileError: a profile or a tuned table that should apply is broken.
        InvalidInputError: no such device, or ``capacity`` is less than 1.
        CaptureError: a CUDA graph is being captured.
    """
    import torch

    from gemmdesc.library.cublaslt import CublasLt
    from gemmdesc.library.device import device_id
    from gemmdesc.library.identity import library_id, torch_library, with_digest

    device = device_id(device_index)
    with torch.cuda.device(device_index):
        captured = torch.cuda.is_current_stream_capturing()
    if captured:
        raise CaptureError(
            "planner must be made before a capture, as making its library handle would break it; make the call once "
            f"outside, or use gemmdesc.warmup (got a capture on cuda:{device_index})"
        )
    path = torch_library().path

    def find(device: DeviceId, library: LibraryId) -> Profile | Declined:
        # A stripped library is told apart by its bytes alone.
        known = library if library.build_id else with_digest(library)
        return find_profile(device, known, profile_folders(profiles), accept=accept)

    def tuned(device: DeviceId) -> TunedTable:
        return find_tuned(device, profile_folders(profiles)) if tables else UNTUNED

    def saved_answers(device: DeviceId, library: LibraryId, digest: str) -> SavedAnswers | None:
        if saved is None:
            return None
        known = library if library.build_id else with_digest(library)
        key = SavedKey(
            device=device, library=known, profile_digest=digest, gemmdesc=__version__, torch=torch.__version__,
            environment=relevant_variables(os.environ),
        )  # fmt: skip
        return SavedAnswers(saved, key)

    return Planner(
        lambda: CublasLt(path, device_index=device_index),
        find,
        device_index=device_index,
        shared_bytes=torch.cuda.get_device_properties(device_index).shared_memory_per_block_optin,
        capacity=capacity,
        accept=accept,
        identity=(device, library_id(path)),
        saved=saved_answers,
        tuned=tuned,
    )
