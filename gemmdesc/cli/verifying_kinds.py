"""``gemmdesc verify --kind``: our kernels, or the CPU replay, against the library, by kinds of problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gemmdesc.cli.output import DIFFERENT, EQUAL, Progress, print_found, print_json, print_table, wants_json

if TYPE_CHECKING:
    from gemmdesc.cli.sides import Sides
    from gemmdesc.verification.kind_campaign import KindOptions


def require_alone(option: str, others: Mapping[str, object]) -> None:
    """Raise InvalidInputError where options were given that do not go with ``option``."""
    from gemmdesc.errors import InvalidInputError

    given = [name for name, value in others.items() if value is not None]
    if given:
        raise InvalidInputError(f"{given[0]} must not be given with --{option} (got {others[given[0]]})")


@dataclass(frozen=True, kw_only=True)
class KindChoice:
    """What to verify, as given on the command line."""

    kinds: tuple[str, ...]
    options: KindOptions


def verify_kinds(
    context: typer.Context, sides: Sides, choice: KindChoice, folder: Path | None, workers: int, json: bool
) -> int:
    """Verify kinds, resumed or new, and print the counts; exit code 1 where any byte differs.

    Raises:
        InvalidInputError: there is no such kind, or the library is simulated and answers plain products only.
    """
    from gemmdesc.probe.workers import ProcessPool
    from gemmdesc.verification.kind_campaign import run_kinds
    from gemmdesc.verification.kind_kernels import kernels_needed, verify_kernels
    from gemmdesc.verification.kind_records import kinds_summary
    from gemmdesc.verification.kinds import verify_kind

    kernels = sides.name == "kernels"
    task, needs = (verify_kernels, kernels_needed) if kernels else (verify_kind, None)
    options = choice.options
    usual = sides.folder(options.seed, options.draws)
    kept = folder or usual.with_name(f"{usual.name}-kinds")
    with Progress() as progress, ProcessPool(sides.factory, workers) as pool:
        progress.say(sides.announced(kept))
        found = run_kinds(pool, sides.scopes(choice.kinds), options, kept, sides.identity, progress.report, task, needs)
    data = kinds_summary(found)
    if wants_json(context, json):
        print_json({"options": vars(options), "library": str(sides.library.version), **data})
    else:
        print_kinds(data, "our kernels, all elements" if kernels else "the replay of its rule")
    return DIFFERENT if data["mismatches"] else EQUAL


def print_kinds(data: dict[str, Any], ours: str) -> None:
    """Tables on stdout; ``ours``: what was compared with the library."""
    counts: dict[str, dict[str, int]] = data["by_kind"]
    names = list(next(iter(counts.values())))
    columns = ("kind", *(n.replace("_", " ") for n in names), "seconds")
    rows = [(kind, *row.values(), data["seconds"][kind]) for kind, row in counts.items()]
    print_table(f"cublasLtMatmul against {ours}, by kind", columns, rows)
    if data["by_types"]:
        types = data["by_types"]
        print_table("by operand and output types", tuple(types[0]), [tuple(row.values()) for row in types])
    print_found(data)
