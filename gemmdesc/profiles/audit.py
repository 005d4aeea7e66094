"""Checks of a whole profile, and a text of it for reviews."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gemmdesc.errors import Declined, DescriptorError
from gemmdesc.problem import environment
from gemmdesc.profiles.keys import family_of, project
from gemmdesc.profiles.schema import PLAIN, DeclineOutcome, Measured, Profile, ProfileRow, RuleOutcome
from gemmdesc.profiles.store import profile_digest
from gemmdesc.regions import PLACE, evaluate_regions
from gemmdesc.rule import Rule, parse_rule


class FindingKind(Enum):
    """What can be wrong with a profile whose file reads well."""

    DUPLICATE_KEY = "duplicate_key"
    OVERLAPPING_KEYS = "overlapping_keys"
    RULE_TEXT = "rule_text"
    EVIDENCE = "evidence"
    EXAMPLE = "example"
    METADATA = "metadata"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``where``: a row's key as text, or a field of the metadata."""

    kind: FindingKind
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.where}: {self.message}"


def audit(profile: Profile) -> tuple[Finding, ...]:
    """Everything that contradicts itself, lacks evidence or is incomplete; empty for a sound profile.

    Keys: no two rows may speak about one answer.  Rules: the text reads back as the same rule, and gives a descriptor
    on the row's example.  Evidence: a rule has no mismatch and no nondeterministic call, and the example lies in the
    ranges seen and has the row's own key.  Metadata: complete, and every attribute left out of the answer's key was
    seen at two values or more.
    """
    findings = [*_metadata_findings(profile), *_key_findings(profile)]
    for row in profile.rows:
        findings += _example_findings(row)
        if isinstance(row.outcome, RuleOutcome):
            findings += _rule_findings(row, row.outcome.rule)
    return tuple(findings)


def _metadata_findings(profile: Profile) -> Iterator[Finding]:
    library, device, metadata = profile.library, profile.device, profile.metadata
    texts = {
        "card": device.name,
        "driver": device.driver,
        "sha256": library.sha256,
        "wheel": library.wheel,
        "command": metadata.command,
        "date": metadata.date,
    }
    for name, text in texts.items():
        if not text:
            yield Finding(kind=FindingKind.METADATA, where=name, message="is empty")
    for measured in metadata.measured:
        if not measured.scan.queries:
            where = "scan" if measured.kind == PLAIN else f"scan of {measured.kind}"
            yield Finding(kind=FindingKind.METADATA, where=where, message="no query was made")
    for name, values in metadata.excluded_attributes:
        if values < 2:
            yield Finding(
                kind=FindingKind.METADATA,
                where=f"excluded_attributes.{name}",
                message=f"was left out of the key, but only {values} value was seen under one rule",
            )


def _key_findings(profile: Profile) -> Iterator[Finding]:
    for key, count in Counter(row.key for row in profile.rows).items():
        if count > 1:
            yield Finding(kind=FindingKind.DUPLICATE_KEY, where=str(key), message=f"{count} rows")
    families: dict[object, list[ProfileRow]] = {}
    for row in profile.rows:
        families.setdefault(row.key.family, []).append(row)
    for rows in families.values():
        if len({row.key.projection for row in rows}) == 1:
            continue
        for at, row in enumerate(rows):
            for other in rows[at + 1 :]:
                if row.key != other.key and _overlap(row, other):
                    yield Finding(
                        kind=FindingKind.OVERLAPPING_KEYS, where=str(row.key), message=f"also matched by {other.key}"
                    )


def _overlap(row: ProfileRow, other: ProfileRow) -> bool:
    """Whether some answer has both keys."""
    values = dict(other.key.answer)
    return all(values.get(name, value) == value for name, value in row.key.answer)


def _example_findings(row: ProfileRow) -> Iterator[Finding]:
    example, evidence, where = row.evidence.example, row.evidence, str(row.key)
    own = family_of(example.problem) == row.key.family
    if not own or project(example.answer, row.key.projection) != row.key.answer:
        yield Finding(kind=FindingKind.EXAMPLE, where=where, message="the example has another key")
    problem = example.problem
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "splitk": max(1, example.answer.splitk_num)}
    for name, size in sizes.items():
        seen = getattr(evidence, name)
        if not seen.holds(size):
            yield Finding(
                kind=FindingKind.EXAMPLE, where=where, message=f"the example's {name} = {size} is not in {seen}"
            )
    names = {kernel.name for kernel in example.launch.kernels} if example.launch else set()
    if not names <= set(evidence.launch_names):
        yield Finding(kind=FindingKind.EXAMPLE, where=where, message="the example's kernels are not in launch_names")


def _rule_findings(row: ProfileRow, rule: Rule) -> Iterator[Finding]:
    evidence, where = row.evidence, str(row.key)
    try:
        same = parse_rule(rule.text) == rule
    except DescriptorError as error:
        yield Finding(kind=FindingKind.RULE_TEXT, where=where, message=f"does not read back: {error}")
        same = True
    if not same:
        yield Finding(kind=FindingKind.RULE_TEXT, where=where, message="reads back as another rule")
    for name in ("mismatches", "nondeterministic"):
        if getattr(evidence, name):
            yield Finding(
                kind=FindingKind.EVIDENCE, where=where, message=f"a rule with {getattr(evidence, name)} {name}"
            )
    family = row.key.family
    types = {(b.structure.a_dtype, b.structure.b_dtype, b.structure.output_dtype) for _, b in rule.branches}
    if types != {(family.a_dtype, family.b_dtype, family.d_dtype)}:
        yield Finding(kind=FindingKind.RULE_TEXT, where=where, message="the rule is for other operand or output types")
    example = evidence.example
    values = environment(example.problem, example.answer, example.launch)
    desc = evaluate_regions(rule, values)
    # Launches are not kept with a campaign's problems.
    known = example.launch is not None or rule.variables - PLACE <= set(values)
    if isinstance(desc, Declined) and known:
        yield Finding(kind=FindingKind.EXAMPLE, where=where, message=f"the rule fails on the example: {desc.reason}")


def profile_text(profile: Profile) -> str:
    """The profile as text, one fact a line, in a stable order: two profiles differ where their texts do."""
    device, library, metadata, scan = profile.device, profile.library, profile.metadata, profile.metadata.scan
    lines = [
        f"card: {device.name}",
        f"device: {device.folder}{' mig' if device.mig else ''}",
        f"driver: {device.driver}",
        f"library: cublaslt {library.version}",
        f"build_id: {library.build_id}",
        f"sha256: {library.sha256}",
        f"wheel: {library.wheel}",
        f"command: {metadata.command}",
        f"date: {metadata.date}",
        f"digest: {profile_digest(profile)}",
        f"answer_key: {' '.join(metadata.answer_key)}",
        *(f"excluded: {name} seen at {count} values under one rule" for name, count in metadata.excluded_attributes),
        f"scan: {scan.queries} queries, {scan.distinct_answers} distinct answers, unseen mass {scan.unseen_mass:.3g}, "
        f"{scan.queries_per_second:.3g} queries/s",
        *(_measured_line(m) for m in metadata.measured if len(metadata.measured) > 1),
        f"rows: {len(profile.rows)}",
    ]
    for row in profile.rows:
        lines += ["", *_row_lines(row)]
    return "\n".join(lines) + "\n"


def _measured_line(measured: Measured) -> str:
    scan = measured.scan
    return (
        f"kind {measured.kind}: {scan.queries} queries, {scan.distinct_answers} distinct answers, unseen mass "
        f"{scan.unseen_mass:.3g}; {measured.date}; {measured.command}"
    )


def _row_lines(row: ProfileRow) -> list[str]:
    evidence = row.evidence
    match row.outcome:
        case RuleOutcome(rule=rule):
            outcome = f"  rule: {rule.text}"
        case DeclineOutcome(declined=declined):
            outcome = f"  declined: {declined.code}: {declined.reason}"
    problem = evidence.example.problem
    return [
        f"row: {row.key}",
        outcome,
        f"  evidence: {evidence.level.value}, {evidence.shapes} shapes, {evidence.draws} draws, "
        f"{evidence.mismatches} mismatches, {evidence.excluded_rivals} excluded rivals, "
        f"{evidence.nondeterministic} nondeterministic",
        f"  seen: m {evidence.m}, n {evidence.n}, k {evidence.k}, splitk {evidence.splitk}",
        f"  example: {problem.m} x {problem.n} x {problem.k} {problem.transa.value}{problem.transb.value}",
        *(f"  launch: {name}" for name in evidence.launch_names),
    ]
