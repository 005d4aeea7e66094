"""From a problem and an answer to a rule: which profile file applies, and which of its rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from gemmdesc.errors import Declined
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, LibraryId
from gemmdesc.profiles.evidence import Level
from gemmdesc.profiles.keys import Family, RowKey, family_of, project
from gemmdesc.profiles.schema import DeclineOutcome, Profile, ProfileRow, RuleOutcome
from gemmdesc.profiles.store import profile_path, read_profile
from gemmdesc.rule import Rule

#: Folders of profiles, separated like PATH, looked at after an explicit one and before the user's.
ENVIRONMENT_VARIABLE = "GEMMDESC_PROFILES"
_FOLDER = "arch_profiles"
#: How a caller takes rows that were not measured.
HOW_TO_ACCEPT = 'accept="published", or --accept published, takes them, and gemmdesc verify holds them against the card'
#: Sums of fewer products have one order, up to which term comes first.
FEWEST_PRODUCTS = 3
#: What a campaign over the default types is expected to take, in minutes.
PROBE_MINUTES = 30


def user_folder() -> Path:
    """Where ``gemmdesc probe`` writes unless told otherwise."""
    import platformdirs

    return platformdirs.user_data_path("gemmdesc") / _FOLDER


def packaged_folder() -> Path | None:
    """The profiles that came with gemmdesc: inside the installed package, or beside it in a checkout."""
    package = Path(str(resources.files("gemmdesc")))
    for folder in (package / _FOLDER, package.parent / _FOLDER):
        if folder.is_dir():
            return folder
    return None


def profile_folders(explicit: Path | None = None, environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Where to look, in order: ``explicit``, ``GEMMDESC_PROFILES``, the user's data folder, the packaged folder.

    ``environment`` defaults to the process's.  An entry may also be one profile file.
    """
    values = os.environ if environment is None else environment
    named = [Path(p) for p in values.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep) if p]
    packaged = packaged_folder()
    return (
        *([] if explicit is None else [explicit]),
        *named,
        user_folder(),
        *([] if packaged is None else [packaged]),
    )


def probe_command(library: LibraryId, folder: Path) -> str:
    """The command line that measures ``library`` and writes its profile under ``folder``."""
    return f"gemmdesc probe --library {library.path or library.version} --out {folder}"


def find_profile(
    device: DeviceId,
    library: LibraryId,
    folders: Iterable[Path],
    *,
    write_folder: Path | None = None,
    accept: Level = Level.VERIFIED,
) -> Profile | Declined:
    """The first profile that was measured on this card with this very library.

    Version, build-id (the file's sha256 where there is no build-id), sm, SM count and MIG must all be equal.  Published
    tables name no build: a profile of such rows alone applies to every build of its release, where ``accept`` is
    ``PUBLISHED`` and nothing that was measured comes before it.  Otherwise
    declines (``no_profile``), naming the key found, the keys at hand, the command that would measure it, its expected
    minutes, and where that writes (``write_folder``, default the user's).

    Raises:
        ProfileError: a file that should apply is truncated, foreign or inconsistent.
    """
    at_hand: list[str] = []
    objections: list[str] = []
    published: list[Profile] = []
    for folder in folders:
        path = folder if folder.is_file() else profile_path(folder, device, library.version)
        at_hand += _keys_at_hand(folder)
        if not path.is_file():
            continue
        profile = read_profile(path)
        objection = objection_to(profile, device, library)
        if objection is None:
            return profile
        same = replace(library, build_id="", sha256="published")
        if is_published(profile) and objection_to(_as_build(profile, same), device, same) is None:
            published.append(profile)
            objection = f"any build of {profile.library.version}, from published tables; {HOW_TO_ACCEPT}"
        objections.append(f"{path} is for {objection}")
    if published and accept is Level.PUBLISHED:
        return replace(published[0], library=library)
    key = f"{device.folder}/cublaslt-{library.version}, build-id {library.build_id or 'none'}"
    target = write_folder or user_folder()
    reason = (
        f"no profile for {key}{' (MIG)' if device.mig else ''}; "
        + "".join(f"{text}; " for text in objections)
        + f"at hand: {', '.join(dict.fromkeys(at_hand)) or 'none'}; "
        f"measure it with `{probe_command(library, target)}` (about {PROBE_MINUTES} minutes), "
        f"which writes {profile_path(target, device, library.version)}"
    )
    return Declined(code="no_profile", reason=reason)


def is_published(profile: Profile) -> bool:
    """Whether it names no build, and rests on nothing that was measured."""
    library = profile.library
    levels = {row.evidence.level for row in profile.rows}
    return not library.build_id and not library.sha256 and levels == {Level.PUBLISHED}


def _as_build(profile: Profile, build: LibraryId) -> Profile:
    """``profile`` as one of its release's builds."""
    return replace(profile, library=replace(build, version=profile.library.version))


def _keys_at_hand(folder: Path) -> list[str]:
    if folder.is_file():
        return [str(folder)]
    return [f"{p.parent.name}/{p.stem}" for p in sorted(folder.glob("*/cublaslt-*.parquet"))]


def objection_to(profile: Profile, device: DeviceId, library: LibraryId) -> str | None:
    """What the profile is for, where it is not for this device and library; None where it is."""
    theirs, measured = profile.library, profile.device
    if (measured.sm, measured.sm_count) != (device.sm, device.sm_count):
        return f"another card, {measured.folder}"
    if measured.mig != device.mig:
        return "a card with MIG" if measured.mig else "a card without MIG"
    if theirs.version != library.version:
        return f"another release, {theirs.version}"
    if theirs.build_id != library.build_id:
        return f"another build of {theirs.version}, build-id {theirs.build_id or 'none'}"
    if not theirs.build_id and (theirs.sha256 != library.sha256 or not theirs.sha256):
        return f"another build of {theirs.version}, without a build-id, sha256 {theirs.sha256 or 'none'}"
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class ProfileIndex:
    """A profile with its rows by key; lookups cost one hash per projection that the family uses."""

    profile: Profile
    rows: Mapping[RowKey, tuple[ProfileRow, ...]]
    projections: Mapping[Family, tuple[tuple[str, ...], ...]]


def index_profile(profile: Profile) -> ProfileIndex:
    """The index of ``profile``."""
    projections: dict[Family, dict[tuple[str, ...], None]] = {}
    rows: dict[RowKey, tuple[ProfileRow, ...]] = {}
    for row in profile.rows:
        projections.setdefault(row.key.family, {})[row.key.projection] = None
        rows[row.key] = (*rows.get(row.key, ()), row)
    return ProfileIndex(
        profile=profile, rows=rows, projections={family: tuple(found) for family, found in projections.items()}
    )


def matching_rows(index: ProfileIndex, problem: GemmProblem, answer: AlgoConfig) -> tuple[ProfileRow, ...]:
    """The rows that speak about this answer to this problem: none, or one in a profile that passes its audit."""
    family = family_of(problem)
    keys = (RowKey(family=family, answer=project(answer, p)) for p in index.projections.get(family, ()))
    return tuple(row for key in keys for row in index.rows.get(key, ()))


def lookup(
    index: ProfileIndex, problem: GemmProblem, answer: AlgoConfig, *, accept: Level = Level.VERIFIED
) -> Rule | Declined:
    """The rule for one answer to one problem.

    Declines (``no_rule``) where the family was not measured, no row speaks about the answer, rows contradict each
    other, the row's evidence is below ``accept``, or it was seen only at k below ``FEWEST_PRODUCTS`` and the problem's
    is not; and as the row says where it holds a decline.
    """
    family = family_of(problem)
    if family not in index.projections:
        return Declined(code="no_rule", reason=f"the profile has no rows for {family}")
    rows = matching_rows(index, problem, answer)
    if not rows:
        seen = " ".join(f"{name}={value}" for name, value in project(answer, index.profile.metadata.answer_key))
        return Declined(code="no_rule", reason=f"the profile has no row for the answer {seen} of {family}")
    row = rows[0]
    if any(other.outcome != row.outcome for other in rows[1:]):
        return Declined(code="no_rule", reason=f"the profile contradicts itself on {row.key}")
    match row.outcome:
        case DeclineOutcome(declined=declined):
            return declined
        case RuleOutcome(rule=rule):
            if row.evidence.k.high < FEWEST_PRODUCTS <= problem.k:
                return Declined(
                    code="no_rule", reason=f"the rule for {row.key} was seen up to k = {row.evidence.k.high} only"
                )
            return _accepted(rule, rows, accept)


def _accepted(rule: Rule, rows: tuple[ProfileRow, ...], accept: Level) -> Rule | Declined:
    level = min((r.evidence.level for r in rows), key=list(Level).index)
    if not level.reaches(accept):
        hint = f" ({HOW_TO_ACCEPT})" if level is Level.PUBLISHED else ""
        reason = f"the rule for {rows[0].key} is only {level.value}, and {accept.value} is required{hint}"
        return Declined(code="no_rule", reason=reason)
    return rule
