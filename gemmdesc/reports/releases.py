"""Several releases on one card, each against the one before: from profiles and books that lie in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdesc.books import Book, BookReader, Shape, read_book
from gemmdesc.errors import InvalidInputError
from gemmdesc.profiles import Profile, diff_profiles, read_profile
from gemmdesc.reports.markdown import DiffReport, diff_sections, sources, table
from gemmdesc.reports.plot import plot_regions
from gemmdesc.reports.shapes import diff_shapes, shape_counts

_PROFILES = "cublaslt-*.parquet"
_BOOK_SUFFIX = ".book"


@dataclass(frozen=True, kw_only=True)
class ReleaseReport:
    """``steps``: from each release to the next, oldest first."""

    steps: tuple[DiffReport, ...]


def read_releases(folder: Path) -> tuple[tuple[Profile, Book], ...]:
    """The profiles in ``folder`` that have a book beside them (``cublaslt-<version>.book``), by release.

    Raises:
        InvalidInputError: fewer than two, or they are of different cards.
        ProfileError: a profile is broken.
        BookError: a book is broken, or of another card or build than its profile.
    """
    paths = [p for p in sorted(folder.glob(_PROFILES)) if p.with_suffix(_BOOK_SUFFIX).is_file()]
    found = sorted(
        ((read_profile(p), read_book(p.with_suffix(_BOOK_SUFFIX))) for p in paths), key=lambda x: x[0].library.version
    )
    if len(found) < 2:
        at_hand = ", ".join(p.name for p in sorted(folder.glob("cublaslt-*"))) or "nothing"
        raise InvalidInputError(
            f"folder must hold two releases at least, each cublaslt-V.parquet with cublaslt-V.book (got {at_hand})"
        )
    if len({profile.device for profile, _ in found}) > 1:
        cards = ", ".join(profile.device.folder for profile, _ in found)
        raise InvalidInputError(f"folder must hold the releases of one card (got {cards})")
    return tuple(found)


def release_report(
    releases: Sequence[tuple[Profile, Book]], shapes: Sequence[Shape], pictures: Path | None = None
) -> ReleaseReport:
    """Each release against the one before, by answer and for ``shapes``.

    ``pictures``: the folder for one map a step, ``None`` for none.

    Raises:
        BookError: as :func:`gemmdesc.reports.diff_shapes`, or a book is not its profile's.
        InvalidInputError: ``pictures`` is given without matplotlib.
    """
    readers = [BookReader(book, profile) for profile, book in releases]
    steps = []
    for at in range(1, len(releases)):
        (old, old_book), (new, new_book) = releases[at - 1], releases[at]
        diffs = diff_shapes(shapes, readers[at - 1], readers[at])
        plot = ""
        panels: tuple[int, ...] = ()
        if pictures is not None:
            plot = f"{old.library.version}-{new.library.version}.png"
            title = f"cuBLASLt {old.library.version} to {new.library.version}"
            panels = plot_regions(diffs, pictures / plot, title)
        step = DiffReport(
            old=old, new=new, changes=diff_profiles(old, new), books=(old_book, new_book), shapes=diffs,
            plot=f"{pictures.name}/{plot}" if pictures is not None and panels else "", panels=panels,
        )  # fmt: skip
        steps.append(step)
    return ReleaseReport(steps=tuple(steps))


def releases_markdown(report: ReleaseReport, command: str) -> str:
    """The report as a page: releases, one summary for all steps, then every step."""
    steps = report.steps
    profiles = [steps[0].old, *(step.new for step in steps)]
    versions = [str(p.library.version) for p in profiles]
    card = profiles[0].device.name or profiles[0].device.folder
    lines = [f"# cuBLASLt {', '.join(versions)} on {card}", "", f"Made by `{command}`.", "", *sources(profiles), ""]
    lines += [
        "A listed product counts as changed where the two releases owe each other other bytes for the same call; names "
        "of kernels and answers that changed without that are told apart.",
        "",
        *_summary(steps),
    ]
    for step in steps:
        lines += ["", f"## {step.old.library.version} to {step.new.library.version}", "", *diff_sections(step, "###")]
    return "\n".join(lines) + "\n"


def _summary(steps: Sequence[DiffReport]) -> list[str]:
    counts = [shape_counts(d for d in step.shapes if d.shape.label != "grid") for step in steps]
    names = list(dict.fromkeys(name for count in counts for name in count))
    columns = ["kind", *(f"{step.old.library.version} to {step.new.library.version}" for step in steps)]
    return table(columns, [(name, *(count.get(name, 0) for count in counts)) for name in names])
