"""Simulated releases with hidden rules, their profiles and their books."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from gemmdesc.books import Book, Recording, Shape, record_book, write_book
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import AlgoConfig, GemmProblem, LibraryId, LibraryVersion, Refused
from gemmdesc.profiles import Profile, profile_path, write_profile
from gemmdesc.rule import Rule
from gemmdesc.verification.hidden import Hidden, hidden_library, hide
from tests.hidden_samples import hidden_profile

SEED = 5
HIDDEN = hide(SEED)
#: Two chains and two splits, one of which may lose its tail; both sides of m against n.
SHAPES = tuple(
    Shape(m=m, n=n, k=k, layout=layout, label=f"layer {i}")
    for i, (m, n, k, layout) in enumerate(
        [(40, 64, 96, "nn"), (64, 40, 100, "nt"), (33, 50, 999, "tn"), (50, 33, 700, "nt"), (1, 48, 515, "tt")]
    )
)
Change = Callable[[int, Rule], Rule | None]


def same(number: int, rule: Rule) -> Rule:
    return rule


def release(
    patch: int = SEED,
    change: Change = same,
    *,
    hidden: Hidden = HIDDEN,
    heuristic: Callable[[GemmProblem], AlgoConfig | Refused] | None = None,
) -> tuple[SimulatedLibrary, Profile]:
    """A release 0.0.``patch`` whose kernels follow changed rules, and the profile that says so."""
    rules = tuple((i, change(at, rule) or rule) for at, (i, rule) in enumerate(hidden.rules))
    changed = replace(hidden, rules=rules)
    identity = LibraryId(
        version=LibraryVersion(major=0, minor=0, patch=patch), build_id=f"simulated{patch}", sha256="none", wheel="none"
    )
    library = replace(hidden_library(changed), identity=identity)
    if heuristic is not None:
        library = replace(library, heuristic=heuristic)
    return library, replace(hidden_profile(hidden, change), library=identity)


def book_of(
    library: SimulatedLibrary,
    shapes: Iterable[Shape] = SHAPES,
    settings: TorchSettings | None = None,
    *,
    check: bool = True,
) -> Book:
    return record_book(
        library, shapes, settings or TorchSettings(), torch="", command="test", date="2026-11-30",
        recording=Recording(check=check),
    ).book  # fmt: skip


def put(folder: Path, profile: Profile, book: Book | None = None) -> Path:
    """The profile's file, and the book's beside it."""
    path = profile_path(folder, profile.device, profile.library.version)
    write_profile(profile, path)
    if book is not None:
        write_book(book, path.with_suffix(".book"))
    return path
