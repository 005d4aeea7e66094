"""From a campaign's findings to a profile: one row for each key, with the evidence that it rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gemmdesc.errors import Declined
from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.campaign import Findings
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.comparisons import FEWEST_COMPARED, Standing, chosen_answers, holds, standing
from gemmdesc.probe.facets import FACETS, Facets, Kind
from gemmdesc.probe.prior import NO_GUESSES, FirstGuesses
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, Row, RowIndex, Solved
from gemmdesc.probe.sampling import Scope, name_of
from gemmdesc.probe.trials import Verified
from gemmdesc.problem import ANSWER_ATTRIBUTES, DeviceId, GemmProblem, LibraryId, is_float8
from gemmdesc.profiles import (
    DeclineOutcome,
    Evidence,
    Example,
    Level,
    Measured,
    Metadata,
    Profile,
    ProfileRow,
    Range,
    RowKey,
    RuleOutcome,
    Scan,
    family_of,
    profile_digest,
)

#: Kernel names kept for one row.
_NAMES_KEPT = 24


def make_profile(
    findings: Findings, device: DeviceId, library: LibraryId, *, command: str, date: str
) -> Profile:
    """The profile of what a campaign found.  Rows whose rule was verified carry it; all others decline.

    ``command`` and ``date`` (ISO) go into the metadata.
    """
    members = _members(findings)
    rows = tuple(_row(findings, row, members[row.key]) for row in findings.rows if members.get(row.key))
    named = [n for n in ANSWER_ATTRIBUTES if any(n in r.key.projection for r in rows)]
    excluded = tuple((n, _values_left_out(findings, members, n)) for n in ANSWER_ATTRIBUTES if n not in named)
    scan = Scan(
        queries=findings.tally.queries,
        distinct_answers=len(findings.tally.counts),
        unseen_mass=findings.unseen,
        queries_per_second=findings.scan_rate,
    )
    return Profile(
        device=device,
        library=library,
        metadata=Metadata(
            command=command,
            date=date,
            answer_key=tuple(named),
            excluded_attributes=excluded,
            scan=scan,
            measured=(
                Measured(
                    kind=name_of(findings.options.scope), command=command, date=date, scan=scan,
                    first_guesses="; ".join(findings.first_guesses),
                ),
            ),
        ),
        rows=rows,
    )


def prior_of(profile: Profile, kind: Kind = Kind.BIAS) -> tuple[Row, ...]:
    """The verified rows of plain products, as a campaign about ``kind`` takes them for first guesses.

    Of products of the same compute type, that is, and accumulated as fast.
    """
    facets = FACETS[kind]
    return _rows_about(profile, Facets(compute_type=facets.compute_type, float8=facets.float8, fast=facets.fast))


def guesses_of(profile: Profile, scope: Scope) -> FirstGuesses:
    """The verified rows about problems of the scope's kind, as a campaign about another build takes them.

    Rows of operand types that the scope does not draw are left out.  Without any, nothing is guessed.
    """
    rows = tuple(row for row in _rows_about(profile, FACETS[scope.kind]) if row.key.types[0] in scope.dtypes)
    if not rows:
        return NO_GUESSES
    library, name = profile.library, name_of(scope)
    scans = [m.scan.queries for m in profile.metadata.measured if m.kind == name]
    source = (
        f"{profile.device.folder}/cublaslt-{library.version}, build-id {library.build_id or 'none'}, rows "
        f"{profile_digest(profile)[:16]}"
    )
    return FirstGuesses(rows=rows, source=source, queries=max(scans, default=0))


def _rows_about(profile: Profile, facets: Facets) -> tuple[Row, ...]:
    """The verified rows of problems with these facets."""
    found = []
    for row in profile.rows:
        f, named = row.key.family, dict(row.key.answer)
        about = Facets(
            compute_type=f.compute_type, float8=is_float8(f.a_dtype), fast=f.fast_accumulation, batched=f.batched,
            alpha=f.alpha_class, beta=f.c_class, epilogue=f.epilogue,
        )  # fmt: skip
        ruled = isinstance(row.outcome, RuleOutcome) and row.evidence.level is Level.VERIFIED
        if about != facets or not ruled or "splitk_num" in named:
            continue
        assert isinstance(row.outcome, RuleOutcome)
        key = AnswerKey(types=(f.a_dtype, f.b_dtype, f.d_dtype), values=tuple(named.get(n) for n in ANSWER_ATTRIBUTES))
        found.append(Row(key=key, classes=(), named=key.named, solved=Solved(rule=row.outcome.rule)))
    return tuple(found)


def _members(findings: Findings) -> dict[AnswerKey, list[AnswerKey]]:
    index = RowIndex(findings.rows)
    members: dict[AnswerKey, list[AnswerKey]] = {}
    for key in findings.tally.counts:
        row = index.find(key)
        if row is not None:
            members.setdefault(row.key, []).append(key)
    return members


def _values_left_out(findings: Findings, members: dict[AnswerKey, list[AnswerKey]], name: str) -> int:
    """The most values of an attribute that one row with a rule takes."""
    with_rule = [r.key for r in findings.rows if r.solved.rule is not None]
    return max((len({k.attribute(name) for k in members.get(key, [])}) for key in with_rule), default=0)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """Problems and comparisons behind one row; ``due``: the answers that the campaign compares; how it stands."""

    problems: tuple[GemmProblem, ...]
    compared: tuple[Verified, ...]
    answers: tuple[AnswerKey, ...]
    due: tuple[AnswerKey, ...]
    standing: Standing


def _row(findings: Findings, row: Row, answers: Sequence[AnswerKey]) -> ProfileRow:
    options, tally = findings.options, findings.tally
    numbers = [tally.numbers[a][0] for a in answers] + [n for a in answers[:8] for n in tally.numbers[a]]
    problems = tuple(findings.source.problem(n) for n in dict.fromkeys(numbers))
    rule = row.solved.rule
    compared = () if rule is None else tuple(findings.comparisons.of(answers, tally.numbers, rule))
    due = chosen_answers(answers, tally.counts, options.compared_answers, tally.given)
    stands = standing(compared, due, tally.given)
    seen = _Seen(problems=problems, compared=compared, answers=tuple(answers), due=due, standing=stands)
    evidence = _evidence(findings, row, seen)
    key = RowKey(family=family_of(problems[0]), answer=_named(row.key))
    if row.solved.rule is not None and evidence.level is Level.VERIFIED:
        return ProfileRow(key=key, outcome=RuleOutcome(rule=row.solved.rule), evidence=evidence)
    code = "out_of_scope" if row.solved.rule is None and _all_scalar(findings, row) else "no_rule"
    reason = row.solved.reason or f"the rule found was not verified ({_shortfall(seen)})"
    if code == "out_of_scope":
        reason = f"its sums are made on CUDA cores, and no order of theirs was found ({reason})"
    return ProfileRow(
        key=key, outcome=DeclineOutcome(declined=Declined(code=code, reason=reason)), evidence=evidence
    )


def _shortfall(seen: _Seen) -> str:
    """What is missing to serve a row's rule."""
    verdicts = Counter(v.verdict.value for v in seen.compared)
    if verdicts[Verdict.EQUAL.value] == len(seen.compared) < FEWEST_COMPARED:
        return f"compared on {len(seen.compared)} problems only, {FEWEST_COMPARED} are needed"
    missing = len(seen.standing.missing - {v.key for v in seen.compared if not holds(v)})
    counts = ", ".join(f"{name} {count}" for name, count in sorted(verdicts.items()))
    return f"{counts or 'nothing compared'}; {missing} of {len(seen.due)} answers not compared in full"


def _all_scalar(findings: Findings, row: Row) -> bool:
    outcomes = [findings.outcomes[c] for c in row.classes if c in findings.outcomes]
    return any(o.scalar for o in outcomes) and not any(o.rule is not None for o in outcomes)


def _evidence(findings: Findings, row: Row, seen: _Seen) -> Evidence:
    verdicts = Counter(v.verdict for v in seen.compared)
    verified = seen.standing.verified
    outcomes = [findings.outcomes[c] for c in row.classes if c in findings.outcomes]
    names = sorted({n for v in seen.compared for n in v.kernels})[:_NAMES_KEPT]
    splits = [max(1, a.attribute("splitk_num") or 0) for a in seen.answers]
    sizes = [(p.m, p.n, p.k) for p in seen.problems] + [(v.m, v.n, v.k) for v in seen.compared]
    ranges = [Range(low=min(x), high=max(x)) for x in zip(*sizes, strict=True)]
    first = seen.answers[0]
    return Evidence(
        level=Level.VERIFIED if verified else Level.OBSERVED,
        shapes=verdicts[Verdict.EQUAL] if verified else 0,
        draws=sum(v.draws for v in seen.compared if v.verdict is Verdict.EQUAL) if verified else 0,
        mismatches=0,
        excluded_rivals=sum(o.rivals for o in outcomes),
        nondeterministic=sum(v.verdict is Verdict.NONDETERMINISTIC for v in seen.compared),
        m=ranges[0],
        n=ranges[1],
        k=ranges[2],
        splitk=Range(low=min(splits), high=max(splits)),
        launch_names=tuple(names),
        example=Example(problem=seen.problems[0], answer=first.answer),
    )


def _named(key: AnswerKey) -> tuple[tuple[str, int], ...]:
    pairs = zip(ANSWER_ATTRIBUTES, key.values, strict=True)
    return tuple((n, v) for n, v in pairs if v is not None and n in CLASS_ATTRIBUTES)
