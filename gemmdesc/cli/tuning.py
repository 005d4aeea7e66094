"""``gemmdesc tune``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.output import (
    DIFFERENT,
    EQUAL,
    JsonOption,
    Progress,
    command_line,
    first_lines,
    guarded,
    print_json,
    print_table,
    wants_json,
    writing,
)
from gemmdesc.cli.shapelists import (
    Asked,
    DtypeOption,
    GridOption,
    LayoutOption,
    OutDtypeOption,
    ProfileOption,
    SetOption,
    ShapesArgument,
    TokensOption,
)

if TYPE_CHECKING:
    from gemmdesc.plan import Planner
    from gemmdesc.tuning.card import Timed
    from gemmdesc.tuning.search import Measured, TunedRow
    from gemmdesc.tuning.store import Tuned
    from gemmdesc.tuning.times import TimedProduct

#: Between two writes of a table that still grows.
_SECONDS_KEPT = 15.0
#: Declines that a table's note lists.
_LISTED = 10


@guarded
def tune(
    context: typer.Context,
    shapes: ShapesArgument,
    out: Annotated[
        Path | None, typer.Option(help="A folder of profiles; the table goes to <sm>-<SMs>/tuned.parquet there.")
    ] = None,
    tokens: TokensOption = None,
    grid: GridOption = None,
    dtype: DtypeOption = None,
    out_dtype: OutDtypeOption = None,
    layout: LayoutOption = None,
    sets: SetOption = None,
    profile: ProfileOption = None,
    rounds: Annotated[int, typer.Option(min=2, help="Turns that are counted, of each config.")] = 8,
    most: Annotated[int | None, typer.Option(min=1, help="Configs beside the default that compete (12).")] = None,
    within: Annotated[
        float | None, typer.Option(min=1, help="How many times the least estimate one's may be (1.35).")
    ] = None,
    hopeless: Annotated[
        float | None, typer.Option(min=1, help="How many times the fastest's time one may take at first (1.25).")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="No product is begun after so long.")] = 600.0,
    start: Annotated[int, typer.Option(min=0, help="Products that are skipped, as timed before, in tune's order.")] = 0,
    times: Annotated[
        Path | None,
        typer.Option(help="JSON lines of what was timed. Products that it has are skipped; the table is of all of it."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Time the configs of these products' kernels on this card; the fastest are used from then on, with the same bytes.

    Only configs of one descriptor compete, and one whose bytes are not the default's is never timed. Products with most
    to gain come first, by the kernels' estimates. The table is written as it grows: picks of classes of sizes, and of
    exact sizes that want another. Exits 1 where bytes differ.
    """
    from gemmdesc.ops import default_planner
    from gemmdesc.profiles import user_folder
    from gemmdesc.tuning.ahead import Ahead
    from gemmdesc.tuning.card import Contest, defaulted, tune_shapes
    from gemmdesc.tuning.store import read_tuned, tuned_path
    from gemmdesc.tuning.times import read_times

    asked = Asked(
        source=shapes, tokens=tokens, grid=grid, dtype=dtype, out_dtype=out_dtype, layout=layout, sets=sets
    ).shapes()
    planner = default_planner(profiles=profile)
    path = tuned_path(out or user_folder(), planner.device)
    earlier = read_tuned(path) if path.is_file() else None
    before = read_times(times, planner.device) if times is not None and times.exists() else ()
    before = defaulted(planner, before)
    given = {name: x for name, x in (("most", most), ("within", within), ("hopeless", hopeless)) if x is not None}
    contest = Contest(rounds=rounds, **given)  # type: ignore[arg-type]  # most is whole
    written = monotonic()

    def keep(timed: Timed) -> None:
        nonlocal written
        if times is not None:
            _append(times, planner, timed)
        if monotonic() - written > _SECONDS_KEPT:
            _write(made(planner, timed.measured, earlier, before), path)
            written = monotonic()

    with Progress() as progress, Ahead(int(planner.device.sm.removeprefix("sm_"))) as ahead:
        timed = tune_shapes(
            planner, asked, seconds=seconds, start=start, done=[t.shape for t in before], report=progress.report,
            contest=contest, ahead=ahead, soon=ahead.begin, keep=keep,
        )  # fmt: skip
    tuned = made(planner, timed.measured, earlier, before)
    _write(tuned, path)
    reached = start + len(timed.outcomes) if times is None else None
    _print(timed, before, tuned, path, reached, wants_json(context, json))
    return DIFFERENT if any(m.different for m in (*timed.measured, *_measured(before))) else EQUAL


def _measured(before: Sequence[TimedProduct]) -> list[Measured]:
    return [timed.measured for timed in before]


def _append(times: Path, planner: Planner, timed: Timed) -> None:
    """The last of ``timed``, unless it declined."""
    from gemmdesc.errors import Declined
    from gemmdesc.tuning.times import TimedProduct, append_times

    shape, outcome = timed.outcomes[-1]
    if not isinstance(outcome, Declined):
        with writing("times", times):
            append_times(times, TimedProduct(shape=shape, device=planner.device, measured=outcome))


def _write(tuned: Tuned, path: Path) -> None:
    from gemmdesc.tuning.store import write_tuned

    with writing("out", path, "folder"):
        write_tuned(tuned, path)


def made(
    planner: Planner, measured: Sequence[Measured], earlier: Tuned | None, before: Sequence[TimedProduct] = ()
) -> Tuned:
    """The table of what was ``measured`` and of what was timed ``before``, and what ``earlier`` has of others.

    What was timed before is counted where ``earlier`` is none, and else part of what that counts.

    Raises:
        ProfileError: ``earlier`` is of another card.
    """
    import torch
    import triton

    from gemmdesc import __version__
    from gemmdesc.tuning.search import settle
    from gemmdesc.tuning.store import Provenance, Tuned, joined

    every = (*_measured(before), *measured)
    counted = every if earlier is None else measured
    provenance = Provenance(
        command=command_line(), date=date.today().isoformat(), gemmdesc=__version__, torch=str(torch.__version__),
        triton=str(triton.__version__), products=len(counted), different=sum(len(m.different) for m in counted),
    )  # fmt: skip
    new = Tuned(device=planner.device, provenance=provenance, rows=settle(every))
    return new if earlier is None else joined(earlier, new, every)


def _shown(row: TunedRow) -> dict[str, Any]:
    from gemmdesc.kernels.specialised import SpecialisedConfig

    config = row.pick.config
    tile = f"{config.block_m}x{config.columns}x{config.block_k} {config.num_warps}w {config.num_stages}s"
    beside = [config.sharing] + ["whole"] * config.whole if isinstance(config, SpecialisedConfig) else []
    beside += ["dependent"] if config.dependent else []
    return {
        "example": "x".join(map(str, row.example)), "for": "its sizes" if row.exact else "its class",
        "steps": row.key.steps, "products": row.products, "structure": row.pick.structure.value, "gain": row.gain,
        "config": " ".join((tile, *beside)),
    }  # fmt: skip


def _print(
    timed: Timed, before: Sequence[TimedProduct], tuned: Tuned, path: Path, reached: int | None, json: bool
) -> None:
    from gemmdesc.errors import Declined

    declined = [(str(shape), d) for shape, d in timed.outcomes if isinstance(d, Declined)]
    different = [(m.sizes, str(pick)) for m in (*_measured(before), *timed.measured) for pick in m.different]
    classes, exact = ([_shown(row) for row in tuned.rows if row.exact is own] for own in (False, True))
    if json:
        print_json(
            {
                "path": str(path), "timed": len(timed.measured), "timed_before": len(before), "left": timed.left,
                "next_start": reached, "classes": classes, "exact": exact,
                "declined": [{"shape": s, "code": d.code, "reason": d.reason} for s, d in declined],
                "different": [{"sizes": list(sizes), "pick": pick} for sizes, pick in different],
            }
        )  # fmt: skip
        return
    notes = first_lines([f"declined: {s}: {d.code}: {d.reason}" for s, d in declined], _LISTED, "that declined")
    notes += [f"BYTES DIFFER: {sizes} {pick}" for sizes, pick in different]
    goes_on = "the same --times" if reached is None else f"--start {reached}"
    notes += [f"left, for want of time: {timed.left}; go on with {goes_on}"] if timed.left else []
    title = f"{path}: {len(timed.measured)} products timed"
    title += f", {len(before)} before" if before else ""
    title += f", {len(classes)} classes and {len(exact)} exact sizes with a pick of their own"
    columns = ("example", "for", "steps", "products", "structure", "config", "gain")
    print_table(title, columns, [[row[c] for c in columns] for row in (*classes, *exact)], "\n".join(notes))
