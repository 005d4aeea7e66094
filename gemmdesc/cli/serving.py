"""Which profile a campaign starts from and joins, and where its records are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmdesc.probe.projection import Row
    from gemmdesc.problem import DeviceId, LibraryId
    from gemmdesc.profiles import Profile


def serving_profile(device: DeviceId, library: LibraryId, out: Path | None) -> Profile | None:
    """What a new profile of the user's starts from; raises where it could not be published."""
    from gemmdesc.errors import Declined
    from gemmdesc.profiles import find_profile, is_published, profile_folders, profile_to_join, user_folder

    there = profile_to_join(out or user_folder(), device, library)
    if there is not None or out is not None:
        return there
    found = find_profile(device, library, profile_folders())
    if isinstance(found, Declined) or is_published(found) or found.device.name != device.name:
        return None
    return found


def known_rows(device: DeviceId, library: LibraryId, out: Path | None) -> tuple[Row, ...]:
    """The rows of plain products of whatever profile serves this library, or is being written: first guesses."""
    from gemmdesc.errors import Declined
    from gemmdesc.probe.publish import prior_of
    from gemmdesc.profiles import find_profile, profile_folders, profile_to_join, user_folder

    found = profile_to_join(out or user_folder(), device, library) or find_profile(device, library, profile_folders())
    return () if isinstance(found, Declined) else prior_of(found)


def identity_with_digest(library: Any) -> LibraryId:
    """The library's identity, with its file's sha256 where there is a file."""
    find = getattr(library, "identity_with_digest", None)
    found: LibraryId = library.identity if find is None else find()
    return found


def campaign_folder(device: DeviceId, library: LibraryId, seed: int) -> Path:
    """Where a campaign is kept unless told otherwise."""
    from gemmdesc.profiles import user_folder

    build = library.build_id[:12] or "none"
    return user_folder().parent / "campaigns" / f"{device.folder}-cublaslt-{library.version}-{build}-{seed}"
