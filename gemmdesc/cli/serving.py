"""Which profile a campaign starts from and joins, and where its records are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmdesc.probe.facets import Kind
    from gemmdesc.probe.projection import Row
    from gemmdesc.probe.refutations import Refutation
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
