"""Which profile a campaign starts from and joins, and where its records are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmdesc.probe.facets import Kind
    from gemmdesc.probe.projection import Row
    from gemmdesc.probe.refutations import Refutation
    from gemmdesc.problem import DeviceId, LibraryId, LibraryVersion
    from gemmdesc.profiles import Profile

#: What names no profile: the campaign begins from scratch.
NO_FIRST_GUESSES = "none"


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


def known_rows(device: DeviceId, library: LibraryId, out: Path | None, kind: Kind) -> tuple[Row, ...]:
    """First guesses for ``kind``: the rows of plain products of the profile that serves, and of the one being written.

    The latter may be about other kinds only; where both have a row, its is the one that counts.
    """
    from gemmdesc.errors import Declined
    from gemmdesc.probe.publish import prior_of
    from gemmdesc.profiles import find_profile, profile_folders, profile_to_join, user_folder

    serving, joined = (
        find_profile(device, library, profile_folders()), profile_to_join(out or user_folder(), device, library)
    )  # fmt: skip
    known = [p for p in (serving, joined) if p is not None and not isinstance(p, Declined)]
    return tuple(row for profile in known for row in prior_of(profile, kind))


def known_refutations(
    serving: Profile | None, files: Sequence[Path], library: LibraryId, device: DeviceId
) -> tuple[Refutation, ...]:
    """What a campaign is to learn from: those in ``files``, and the examples of the refuted rows that served so far.

    Raises:
        InvalidInputError: a file is of another library or card, or holds none.
    """
    from gemmdesc.probe.refutations import Refutation, read_refutations
    from gemmdesc.profiles import refuted_examples

    given = [r for path in files for r in read_refutations(path, library, device)]
    # A file says more of a problem: which draw showed it.
    said = {r.problem for r in given}
    examples = () if serving is None else refuted_examples(serving)
    rest = (Refutation(problem=e.problem, answer=e.answer, launch=e.launch) for e in examples if e.problem not in said)
    return (*given, *rest)


def neighbour(device: DeviceId, library: LibraryId, named: str | None, out: Path | None) -> Profile | None:
    """The profile whose rows a campaign about ``library`` takes for first guesses; None where there is none.

    ``named``: a release, a profile's file, or ``none``; by default the nearest release that was measured on the same
    card: by the difference of major versions, then of minor ones, then of patches, the older of two as near.  Where a
    folder of ``out``, the environment's, the user's and the packaged one have the same release, the first one's counts.

    Raises:
        InvalidInputError: ``named`` is none of these.
        ProfileError: the profile named is not there, or is of another card, of published tables, or of this very build.
    """
    from gemmdesc.profiles import profile_folders, read_profile

    if named == NO_FIRST_GUESSES:
        return None
    if named is not None and Path(named).is_file():
        return _fitting(read_profile(Path(named)), device, library, named)
    folders = [*([] if out is None else [out]), *profile_folders()]
    if named is not None:
        return _of_release(device, library, named, folders)
    found = [p for p in _same_card(device, folders) if _objection(p, device, library) is None]
    return min(found, key=lambda p: _distance(p.library.version, library.version), default=None)


def _of_release(device: DeviceId, library: LibraryId, named: str, folders: Sequence[Path]) -> Profile:
    from gemmdesc.errors import ProfileError
    from gemmdesc.problem import LibraryVersion

    version = LibraryVersion.parse(named)
    for profile in _same_card(device, folders):
        if profile.library.version == version:
            return _fitting(profile, device, library, named)
    raise ProfileError(
        f"first_guesses must name a release with a profile of {device.folder}, or its file (got {named})"
    )


def _same_card(device: DeviceId, folders: Sequence[Path]) -> list[Profile]:
    from gemmdesc.profiles import read_profile

    paths: list[Path] = []
    for folder in folders:
        paths += [folder] if folder.is_file() else sorted((folder / device.folder).glob("cublaslt-*.parquet"))
    return [p for path in dict.fromkeys(paths) if (p := read_profile(path)).device.folder == device.folder]


def _fitting(profile: Profile, device: DeviceId, library: LibraryId, named: str) -> Profile:
    from gemmdesc.errors import ProfileError

    objection = _objection(profile, device, library)
    if objection is not None:
        raise ProfileError(
            f"first_guesses must be of another build measured on {device.folder} (got {named}: {objection})"
        )
    return profile


def _objection(profile: Profile, device: DeviceId, library: LibraryId) -> str | None:
    """Why the profile's rows are no first guesses; None where they are."""
    from gemmdesc.profiles import is_published, objection_to

    if objection_to(profile, device, library) is None:
        return "this very build"
    theirs = profile.device
    if (theirs.folder, theirs.mig) != (device.folder, device.mig):
        return f"of {theirs.folder}{' with MIG' if theirs.mig else ''}"
    return "published tables, which were not measured" if is_published(profile) else None


def _distance(one: LibraryVersion, other: LibraryVersion) -> tuple[int, ...]:
    mine, theirs = (one.major, one.minor, one.patch), (other.major, other.minor, other.patch)
    return (*(abs(a - b) for a, b in zip(mine, theirs, strict=True)), *mine)


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
