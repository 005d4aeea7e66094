"""Putting a campaign's profile into one that holds other kinds: families that were measured again are replaced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gemmdesc.errors import ProfileError
from gemmdesc.problem import ANSWER_ATTRIBUTES, DeviceId, LibraryId
from gemmdesc.profiles.lookup import is_published, objection_to
from gemmdesc.profiles.schema import PLAIN, Measured, Metadata, Profile
from gemmdesc.profiles.store import profile_path, read_profile, write_profile


def profile_to_join(folder: Path, device: DeviceId, library: LibraryId) -> Profile | None:
    """The profile that one of this card and library would join under ``folder``.

    None where there is none yet, or one of published tables, whose place a measured one takes.

    Raises:
        ProfileError: the file there is no whole profile, or one of another card or build of the library.
    """
    path = profile_path(folder, device, library.version)
    if not path.is_file():
        return None
    found = read_profile(path)
    if is_published(found):
        return None
    require_same_source(found, device, library, str(path))
    return found


def require_same_source(profile: Profile, device: DeviceId, library: LibraryId, where: str = "profile") -> None:
    """Raise ProfileError where ``profile`` was measured on another card or build of the library; ``where`` names it."""
    objection = objection_to(profile, device, library)
    name = profile.device.name
    if objection is None and name and device.name and name != device.name:
        objection = f"another card, {name}"
    if objection is not None:
        raise ProfileError(
            f"{where} must be of {device.name or device.folder} and build-id {library.build_id or 'none'} for rows "
            f"measured there to join it (got one of {objection})"
        )


def merge_profiles(old: Profile, new: Profile) -> Profile:
    """``new`` with the rows of those families of ``old`` that it has no row of, and the campaigns these come from.

    Raises:
        ProfileError: the two are of different cards or builds of the library.
    """
    require_same_source(old, new.device, new.library, "old")
    again = {row.key.family for row in new.rows}
    kept = tuple(row for row in old.rows if row.key.family not in again)
    return replace(new, metadata=_merged(old.metadata, new.metadata), rows=(*kept, *new.rows))


def publish(new: Profile, folder: Path, base: Profile | None = None) -> tuple[Profile, Path]:
    """Merge ``new`` into the profile of its card and library under ``folder``, or else into ``base``, and write it.

    Raises:
        ProfileError: as :func:`profile_to_join` and :func:`merge_profiles`; nothing is written.
        OSError: the place cannot be written.
    """
    old = profile_to_join(folder, new.device, new.library) or base
    whole = new if old is None else merge_profiles(old, new)
    path = profile_path(folder, new.device, new.library.version)
    write_profile(whole, path)
    return whole, path


def _merged(old: Metadata, new: Metadata) -> Metadata:
    """Each kind's newest campaign; the whole is described by the plain kind's, or the first there is."""
    kinds = {m.kind: m for m in (*old.measured, *new.measured)}
    measured = tuple(sorted(kinds.values(), key=lambda m: (m.kind != PLAIN, m.kind)))
    first: Measured = measured[0]
    named = {*old.answer_key, *new.answer_key}
    excluded = dict(old.excluded_attributes)
    for name, values in new.excluded_attributes:
        excluded[name] = max(values, excluded.get(name, 0))
    return Metadata(
        command=first.command,
        date=first.date,
        answer_key=tuple(n for n in ANSWER_ATTRIBUTES if n in named),
        excluded_attributes=tuple((n, excluded[n]) for n in ANSWER_ATTRIBUTES if n in excluded and n not in named),
        scan=first.scan,
        measured=measured,
    )
