"""Write the table of supported cards in README.md from the profiles in arch_profiles/.

What stands between the two ``supported`` marks is a function of the profiles alone: the same files give the same bytes.
``--check`` writes nothing and fails if the table is out of date.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from page_files import checked_page, write_page

from gemmdesc.errors import ProfileError
from gemmdesc.expressions import variables
from gemmdesc.plan import kernel_family
from gemmdesc.profiles import (
    DeclineOutcome,
    Evidence,
    Level,
    Measured,
    Profile,
    ProfileRow,
    RuleOutcome,
    is_published,
    operands_in_words,
    profile_path,
    read_profile,
)
from gemmdesc.rule import Rule

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- supported: begin (one row per file in arch_profiles/) -->\n"
END = "<!-- supported: end -->"
NOTHING = (
    "No profile is packaged yet: until `gemmdesc probe` has measured the card at hand, every product declines with "
    '"no profile".'
)
HEAD = (
    "card", "cuBLASLt", "operands -> output", "kernels", "verified rows", "shapes", "draws", "declined rows", "queries",
    "unseen mass", "date",
)  # fmt: skip
NOTES = (
    "A row is a class of cuBLASLt's answers; how many calls meet it is not counted here. Types and kernels are those "
    "of the verified rows; shapes and draws are what was compared for these, summed over rows. The unseen mass is the "
    "Good-Turing estimate of how likely one more query of the scan was to meet a new class, those that decline left "
    "out. An answer with no row declines too (`no_rule`)."
)
#: Words in kernel names, and the family each stands for; a name with none of them is its own first word.
FAMILIES = {"nvjet": "nvjet", "cutlass": "CUTLASS", "xmma": "xmma"}
UNRECORDED = "names not recorded"
#: In the names of the kernels that only merge slices; they say nothing of who made the products.
MERGE = "splitKreduce"
KINDS = ("single pass", "split-K", "other cuts")
#: Reasons of one code that are quoted, the most frequent first; the others are counted together.
MOST_REASONS = 5


class SupportedError(Exception):
    """The table cannot be made."""


def read_profiles(folder: Path) -> tuple[Profile, ...]:
    """All profiles under ``folder``, by path; none where there is no such folder.

    Raises:
        SupportedError: a file lies where no lookup finds it.
        ProfileError: a file is no sound profile.
    """
    profiles = []
    for path in sorted(folder.rglob("cublaslt-*.parquet")):
        profile = read_profile(path)
        place = profile_path(folder, profile.device, profile.library.version)
        if path != place:
            raise SupportedError(f"a profile must lie where lookups search, {place} (got {path})")
        profiles.append(profile)
    return tuple(profiles)


def fill(page: str, text: str) -> str:
    """``page`` with ``text`` between the two marks.

    Raises:
        SupportedError: ``page`` does not have each mark once, in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise SupportedError(f"page must have {BEGIN.strip()} and {END} once each, in this order (got {page!r:.200})")
    return "".join([before, BEGIN, text, END, after])


def render(profiles: Sequence[Profile]) -> str:
    """The table, what declines, and how to read both.

    Raises:
        SupportedError: a row is called verified although calls differed or varied.
    """
    published = [_published_name(p) for p in profiles if is_published(p)]
    profiles = [p for p in profiles if not is_published(p)]
    tables = (
        "From published tables, not measured here, and served only where a caller accepts that "
        f'(`accept="published"`, `docs/profile_format.md`): {", ".join(published)}.'
    )
    if not profiles:
        return "\n\n".join([NOTHING, *([_wrapped(tables)] if published else [])]) + "\n"
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *map(_cells, profiles)))
    paragraphs = [*(_decline_sentence(p) for p in profiles), *([tables] if published else []), NOTES]
    return "\n\n".join([table, *(_wrapped(p) for p in paragraphs)]) + "\n"


def _published_name(profile: Profile) -> str:
    return f"{profile.device.folder} with cuBLASLt {profile.library.version}"


def verified_rows(profile: Profile) -> Iterator[tuple[ProfileRow, Rule]]:
    """The rows that answer by default, with their rules."""
    for row in profile.rows:
        if isinstance(row.outcome, RuleOutcome) and row.evidence.level is Level.VERIFIED:
            if row.evidence.mismatches or row.evidence.nondeterministic:
                raise SupportedError(f"a verified row must have no mismatch and no varying call (got {row.key})")
            yield row, row.outcome.rule


def declines(profile: Profile) -> Counter[tuple[str, str]]:
    """How many rows decline by default, by code and reason; a rule that is not verified is one of them."""
    found: Counter[tuple[str, str]] = Counter()
    for row in profile.rows:
        match row.outcome:
            case DeclineOutcome(declined=declined):
                found[declined.code, " ".join(declined.reason.split())] += 1
            case RuleOutcome() if row.evidence.level is not Level.VERIFIED:
                found["no_rule", f"the rule is only {row.evidence.level.value}"] += 1
    return found


def families(evidence: Evidence) -> tuple[str, ...]:
    """The families of the kernels that made the products, in words."""
    names = [name for name in evidence.launch_names if MERGE not in name]
    found = (next((f for word, f in FAMILIES.items() if word in name), kernel_family(name)) for name in names)
    return tuple(dict.fromkeys(found)) or (UNRECORDED,)


def kinds(rule: Rule, evidence: Evidence) -> frozenset[str]:
    """How k was cut, of ``KINDS``.

    A cut whose size follows ``splitk_num`` is split-K, and a single pass where that is 1.  Any other is ``other cuts``.
    """
    follows = [
        any("splitk_num" in variables(e) for path, e in branch.integers if path.startswith(f"cuts.{i}."))
        for _, branch in rule.branches
        for i in range(len(branch.structure.cuts))
    ]
    found = set()
    if not follows or (all(follows) and evidence.splitk.low == 1):
        found.add("single pass")
    if any(follows) and evidence.splitk.high > 1:
        found.add("split-K")
    if not all(follows):
        found.add("other cuts")
    return frozenset(found)


def _cells(profile: Profile) -> list[str]:
    verified = list(verified_rows(profile))
    codes = _by_code(declines(profile))
    measured = profile.metadata.measured
    cells = [
        _card(profile),
        str(profile.library.version),
        _types([row for row, _ in verified]),
        _kernels(verified),
        f"{len(verified):,} of {len(profile.rows):,}",
        f"{sum(row.evidence.shapes for row, _ in verified):,}",
        f"{sum(row.evidence.draws for row, _ in verified):,}",
        ", ".join(f"{count:,} `{code}`" for code, count in codes.items()) or "0",
        f"{sum(m.scan.queries for m in measured):,}",
        _unseen(measured),
        max(m.date for m in measured),
    ]
    return [cell.replace("|", "\\|") for cell in cells]


def _unseen(measured: Sequence[Measured]) -> str:
    """The unseen mass, of each kind by its name where there are several."""
    if len(measured) == 1:
        return f"{measured[0].scan.unseen_mass:.2g}"
    return "; ".join(f"{m.kind}: {m.scan.unseen_mass:.2g}" for m in measured)


def _card(profile: Profile) -> str:
    device = profile.device
    return f"{device.name} ({device.sm}, {device.sm_count} SMs{', MIG' if device.mig else ''})"


def _types(rows: Sequence[ProfileRow]) -> str:
    """Operand types, each with the output types that it has: ``float16 -> float16, float32``."""
    outputs: dict[str, dict[str, None]] = {}
    for family in (row.key.family for row in rows):
        outputs.setdefault(operands_in_words(family), {})[family.d_dtype.value] = None
    return "; ".join(f"{operands} -> {', '.join(found)}" for operands, found in outputs.items()) or "none"


def _kernels(verified: Sequence[tuple[ProfileRow, Rule]]) -> str:
    """Families, each with the kinds it was verified for: ``nvjet: single pass, split-K``."""
    found: dict[str, set[str]] = {}
    for row, rule in verified:
        for family in families(row.evidence):
            found.setdefault(family, set()).update(kinds(rule, row.evidence))
    known = [*FAMILIES.values(), *sorted(set(found) - {*FAMILIES.values(), UNRECORDED}), UNRECORDED]
    parts = [f"{f}: {', '.join(kind for kind in KINDS if kind in found[f])}" for f in known if f in found]
    return "; ".join(parts) or "none"


def _by_code(found: Counter[tuple[str, str]]) -> dict[str, int]:
    """Rows by code, most first."""
    codes: Counter[str] = Counter()
    for (code, _), count in found.items():
        codes[code] += count
    return dict(_ranked(codes))


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _decline_sentence(profile: Profile) -> str:
    found = declines(profile)
    where = f"with cuBLASLt {profile.library.version} on {_card(profile)}"
    if not found:
        return f"No row declines {where}."
    parts = []
    for code, count in _by_code(found).items():
        reasons = _ranked(Counter({reason: n for (its, reason), n in found.items() if its == code}))
        quoted = [f'{n:,} "{reason}"' for reason, n in reasons[:MOST_REASONS]]
        if others := sum(n for _, n in reasons[MOST_REASONS:]):
            quoted.append(f"{others:,} for other reasons")
        parts.append(f"{count:,} `{code}` ({', '.join(quoted)})")
    return f"Rows that decline {where}: {', '.join(parts)}."


def _wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, width=120, break_long_words=False, break_on_hyphens=False)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the table is out of date")
    options = parser.parse_args(arguments)
    page = root / "README.md"
    present = page.read_text()
    try:
        text = fill(present, render(read_profiles(root / "arch_profiles")))
    except (SupportedError, ProfileError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        return checked_page(page, text, "make_supported_md.py")
    write_page(page, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
