"""``gemmdesc tune``."""

from __future__ import annotations

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
    ShapesArgument,
    TokensOption,
)

if TYPE_CHECKING:
    from gemmdesc.plan import Planner
    from gemmdesc.tuning.card import Timed
    from gemmdesc.tuning.store import Tuned

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
    profile: ProfileOption = None,
    rounds: Annotated[int, typer.Option(min=2, help="Turns that are counted, of each config.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="No product is begun after so long.")] = 600.0,
    start: Annotated[int, typer.Option(min=0, help="Products that are skipped, as timed before, in tune's order.")] = 0,
    json: JsonOption = False,
) -> int:
    """Time the configs of these products' kernels on this card; the fastest are used from then on, with the same bytes.

    Only configs of one descriptor compete, and one whose bytes are not the default's is never timed. Products with most
    to gain come first, by the kernels' estimates. The table is written as it grows. Exits 1 where bytes differ.
    """
    from gemmdesc.ops import default_planner
    from gemmdesc.profiles import user_folder
    from gemmdesc.tuning.ahead import Ahead
    from gemmdesc.tuning.card import tune_shapes
    from gemmdesc.tuning.store import read_tuned, tuned_path

    asked = Asked(source=shapes, tokens=tokens, grid=grid, dtype=dtype, out_dtype=out_dtype, layout=layout).shapes()
    planner = default_planner(profiles=profile)
    path = tuned_path(out or user_folder(), planner.device)
    earlier = read_tuned(path) if path.is_file() else None
    written = monotonic()

    def keep(timed: Timed) -> None:
        nonlocal written
        if monotonic() - written > _SECONDS_KEPT:
            _write(made(planner, timed, earlier), path)
            written = monotonic()

    with Progress() as progress, Ahead(int(planner.device.sm.removeprefix("sm_"))) as ahead:
        timed = tune_shapes(
            planner, asked, rounds=rounds, seconds=seconds, start=start, report=progress.report, ahead=ahead, keep=keep
        )
    tuned = made(planner, timed, earlier)
    _write(tuned, path)
    _print(timed, tuned, path, start + len(timed.outcomes), wants_json(context, json))
    return DIFFERENT if any(m.different for m in timed.measured) else EQUAL


def _write(tuned: Tuned, path: Path) -> None:
    from gemmdesc.tuning.store import write_tuned

    with writing("out", path, "folder"):
        write_tuned(tuned, path)


def made(planner: Planner, timed: Timed, earlier: Tuned | None) -> Tuned:
    """The table that holds what was timed, and what ``earlier`` has of other classes.

    Raises:
        ProfileError: ``earlier`` is of another card.
    """
    import torch
    import triton

    from gemmdesc import __version__
    from gemmdesc.tuning.search import settle
    from gemmdesc.tuning.store import Provenance, Tuned, joined

    provenance = Provenance(
        command=command_line(), date=date.today().isoformat(), gemmdesc=__version__, torch=str(torch.__version__),
        triton=str(triton.__version__), products=len(timed.measured),
        different=sum(len(m.different) for m in timed.measured),
    )  # fmt: skip
    new = Tuned(device=planner.device, provenance=provenance, rows=settle(timed.measured))
    return new if earlier is None else joined(earlier, new, [m.key for m in timed.measured])


def _print(timed: Timed, tuned: Tuned, path: Path, reached: int, json: bool) -> None:
    from gemmdesc.errors import Declined

    declined = [(str(shape), d) for shape, d in timed.outcomes if isinstance(d, Declined)]
    different = [(m.sizes, str(pick)) for m in timed.measured for pick in m.different]
    rows: list[dict[str, Any]] = [
        {
            "example": "x".join(map(str, row.example)), "steps": row.key.steps, "products": row.products,
            "structure": row.pick.structure.value, "gain": row.gain,
            "config": f"{row.pick.config.block_m}x{row.pick.config.columns}x{row.pick.config.block_k} "
            f"{row.pick.config.num_warps}w {row.pick.config.num_stages}s",
        }
        for row in tuned.rows
    ]  # fmt: skip
    if json:
        print_json(
            {
                "path": str(path), "timed": len(timed.measured), "left": timed.left, "next_start": reached,
                "classes": rows,
                "declined": [{"shape": s, "code": d.code, "reason": d.reason} for s, d in declined],
                "different": [{"sizes": list(sizes), "pick": pick} for sizes, pick in different],
            }
        )  # fmt: skip
        return
    notes = first_lines([f"declined: {s}: {d.code}: {d.reason}" for s, d in declined], _LISTED, "that declined")
    notes += [f"BYTES DIFFER: {sizes} {pick}" for sizes, pick in different]
    notes += [f"left, for want of time: {timed.left}; go on with --start {reached}"] if timed.left else []
    title = f"{path}: {len(timed.measured)} products timed, {len(rows)} classes with a pick of their own"
    columns = ("example", "steps", "products", "structure", "config", "gain")
    print_table(title, columns, [[row[c] for c in columns] for row in rows], "\n".join(notes))
