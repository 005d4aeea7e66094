"""``gemmdesc show``, ``diff`` and ``audit``: reading profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.output import (
    DIFFERENT,
    EQUAL,
    JsonOption,
    guarded,
    print_json,
    print_table,
    wants_json,
)
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    from gemmdesc.profiles import Example, Profile
    from gemmdesc.rule import Rule


@guarded
def show(
    context: typer.Context,
    profile: Annotated[Path | None, typer.Argument(help="A profile's file; by default what applies here.")] = None,
    arch: Annotated[str | None, typer.Option(help="Instead: a card, such as sm_90 or sm_90-132.")] = None,
    release: Annotated[str | None, typer.Option(help="With --arch: a cuBLASLt version, such as 13.1.0.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Every row in full, in a stable order.")] = False,
    json: JsonOption = False,
) -> None:
    """The rows of a profile."""
    from gemmdesc.profiles import profile_text, read_profile

    path = profile or choose_profile(arch, release)
    found = read_profile(path)
    if wants_json(context, json):
        print_json(_profile_data(found, path))
    elif text:
        typer.echo(profile_text(found), nl=False)
    else:
        _print_profile(found, path)


def choose_profile(arch: str | None, release: str | None) -> Path:
    """The only profile in the usual folders for ``arch`` and ``release``; without both, the one that applies here.

    Published tables are chosen only where ``arch`` or ``release`` asks for them.

    Raises:
        ProfileError: none fits, or several do.
    """
    from gemmdesc.errors import ProfileError
    from gemmdesc.profiles import is_published, profile_folders, read_profile

    paths = [p for folder in profile_folders() if folder.is_dir() for p in sorted(folder.glob("*/cublaslt-*.parquet"))]
    if arch is None and release is None:
        applying = _applying()
        if applying is not None:
            return applying
        if len(paths) > 1:
            paths = [p for p in paths if not is_published(read_profile(p))]
    fitting = [
        p
        for p in paths
        if (arch is None or p.parent.name == arch or p.parent.name.startswith(f"{arch}-"))
        and (release is None or p.stem == f"cublaslt-{release}")
    ]
    names = {f"{p.parent.name}/{p.stem}" for p in fitting}
    if len(names) != 1:
        at_hand = ", ".join(sorted(f"{p.parent.name}/{p.stem}" for p in paths)) or "none"
        raise ProfileError(
            f"profile must be given as a file, or arch and release must choose one of those at hand: {at_hand} "
            f"(got arch {arch}, release {release})"
        )
    return fitting[0]


def _applying() -> Path | None:
    """The file of the card and library at hand; None without them."""
    from gemmdesc.errors import GemmdescError
    from gemmdesc.library.device import device_id
    from gemmdesc.library.identity import library_id, torch_library
    from gemmdesc.profiles import profile_folders, profile_path

    try:
        device, library = device_id(), library_id(torch_library().path)
    except GemmdescError:
        return None
    return next((p for f in profile_folders() if (p := profile_path(f, device, library.version)).is_file()), None)


def _profile_data(profile: Profile, path: Path) -> dict[str, Any]:
    from gemmdesc.plain import to_plain
    from gemmdesc.profiles import profile_digest

    metadata = profile.metadata
    return {
        "path": str(path),
        "device": to_plain(profile.device),
        "library": to_plain(profile.library),
        "command": metadata.command,
        "date": metadata.date,
        "digest": profile_digest(profile),
        "answer_key": list(metadata.answer_key),
        "excluded_attributes": dict(metadata.excluded_attributes),
        "scan": to_plain(metadata.scan),
        "kinds": [to_plain(m) for m in metadata.measured],
        "rows": _rows(profile),
    }


def _rows(profile: Profile) -> list[dict[str, Any]]:
    from gemmdesc.profiles import RuleOutcome, family_in_words

    rows = []
    for row in profile.rows:
        family, evidence = row.key.family, row.evidence
        outcome: dict[str, str] = (
            {"rule": row.outcome.rule.text}
            if isinstance(row.outcome, RuleOutcome)
            else {"declined": row.outcome.declined.code, "reason": row.outcome.declined.reason}
        )
        rows.append(
            {
                "family": family_in_words(family),
                "operands": family.a_dtype.value,
                "output": family.d_dtype.value,
                "answer": dict(row.key.answer),
                **outcome,
                "level": evidence.level.value,
                "shapes": evidence.shapes,
                "draws": evidence.draws,
                "mismatches": evidence.mismatches,
                "launch_names": list(evidence.launch_names),
            }
        )
    return rows


def _print_profile(profile: Profile, path: Path) -> None:
    from gemmdesc.profiles import RuleOutcome, family_in_words
    from gemmdesc.verification.scope import short_name

    table = []
    for row in profile.rows:
        family, evidence = row.key.family, row.evidence
        outcome = row.outcome
        if isinstance(outcome, RuleOutcome):
            what = _structure(outcome.rule, evidence.example)
        else:
            what = f"declined: {outcome.declined.code}"
        answer = " ".join(f"{name.removesuffix('_id')}={value}" for name, value in row.key.answer)
        names = sorted({short_name(n) for n in evidence.launch_names})
        types = family_in_words(family)
        table.append((types, answer, what, evidence.level.value, evidence.shapes, evidence.draws, ", ".join(names)))
    title = f"{path}: {profile.device.name or profile.device.folder}, cuBLASLt {profile.library.version}"
    scans = [
        f"{m.kind}: {m.scan.queries:,} queries, {m.scan.distinct_answers:,} answers, unseen mass "
        f"{m.scan.unseen_mass:.2g}, {m.date}"
        for m in profile.metadata.measured
    ]
    note = "; ".join([f"{len(profile.rows)} rows", *scans])
    print_table(title, ("types", "answer", "structure", "level", "shapes", "draws", "kernels"), table, note)


def _structure(rule: Rule, example: Example) -> str:
    """The structure of the rule's descriptor on the row's example."""
    from gemmdesc.errors import Declined
    from gemmdesc.problem import environment
    from gemmdesc.regions import evaluate_regions
    from gemmdesc.verification.structure import structure_of

    found = evaluate_regions(rule, environment(example.problem, example.answer, example.launch))
    if isinstance(found, Declined):
        return "no descriptor on its example"
    return "; elsewhere ".join(dict.fromkeys(structure_of(r.descriptor) for r in found))


@guarded
def audit(
    context: typer.Context,
    profile: Annotated[Path, typer.Argument(help="A profile's file.")],
    against: Annotated[
        Path | None, typer.Option(help="Instead: the folder of another campaign, whose comparisons it is held against.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --against: where to write the profile without the rows contradicted.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Everything in a profile that contradicts itself or lacks evidence; exit code 1 where there is anything."""
    from gemmdesc import profiles

    if against is not None:
        return _audit_against(profile, against, out, wants_json(context, json))
    if out is not None:
        raise InvalidInputError("out must come with --against (got it alone)")
    findings = profiles.audit(profiles.read_profile(profile))
    if wants_json(context, json):
        print_json([{"kind": f.kind.value, "where": f.where, "message": f.message} for f in findings])
    else:
        rows = [(f.kind.value, f.where, f.message) for f in findings]
        print_table(f"{profile}: {len(findings) or 'no'} findings", ("kind", "where", "message"), rows)
    return DIFFERENT if findings else EQUAL


def _audit_against(path: Path, folder: Path, out: Path | None, json: bool) -> int:
    """A profile held against another campaign's comparisons."""
    from gemmdesc import profiles
    from gemmdesc.probe.crosscheck import crosscheck, withdrawn

    profile = profiles.read_profile(path)
    found = crosscheck(profile, folder)
    if out is not None:
        profiles.write_profile(withdrawn(profile, found, "another campaign"), out)
    rows = [
        (str(key), count, f"{p.m} x {p.n} x {p.k} {p.transa.value}{p.transb.value}")
        for key, count in found.against.items()
        for p in (found.examples[key],)
    ]
    if json:
        names = ("row", "comparisons", "example")
        counts = {"agreeing": found.agreeing, "not_served": found.not_served, "not_judged": found.not_judged}
        print_json({**counts, "against": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        rest = f"{found.not_served} where nothing is served, {found.not_judged} not judged"
        title = f"{found.agreeing} comparisons agree, {rest}"
        print_table(title, ("row", "against", "example"), rows)
    return DIFFERENT if rows else EQUAL
