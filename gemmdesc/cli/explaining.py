"""``gemmdesc explain``: which order a product is summed in, and how that is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.output import JsonOption, guarded, wants_json
from gemmdesc.cli.shapelists import AcceptOption
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    from gemmdesc.plan import Explanation
    from gemmdesc.problem import AlgoConfig, GemmProblem
    from gemmdesc.profiles import Profile
    from gemmdesc.routes import TensorMeta

_LAYOUTS = ("nn", "nt", "tn", "tt")
#: Numbers of rows that are looked up in one call.
_MOST_ROWS = 1 << 16


@guarded
def explain(
    context: typer.Context,
    m: Annotated[int, typer.Argument(min=1)],
    n: Annotated[int, typer.Argument(min=1)],
    k: Annotated[int, typer.Argument(min=1)],
    dtype: Annotated[str, typer.Option(help="Of the operands: float16 or bfloat16.")] = "float16",
    out_dtype: Annotated[str | None, typer.Option(help="Of the result: the operands' by default, or float32.")] = None,
    layout: Annotated[
        str, typer.Option(help="For each operand n (row-major) or t (the transpose of one); x @ w.T is nt.")
    ] = "nn",
    answer: Annotated[
        Path | None, typer.Option(help="A recorded answer (JSON), instead of asking the library; needs no GPU.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile's file or folder, looked at first.")] = None,
    book: Annotated[Path | None, typer.Option(help="A book, whose answer to this product is explained.")] = None,
    accept: AcceptOption = "verified",
    pin: Annotated[
        int | None, typer.Option(min=1, help="Sum every row in the order that the library has at this m.")
    ] = None,
    over_m: Annotated[
        str | None, typer.Option(help="Other m, such as 1-64,4096: which of them share bits with one another and M.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """The library's kernel and answer for (m, k) x (k, n), the order in words, and its evidence."""
    sides = _sides((m, n, k), dtype, out_dtype or dtype, layout)
    if book is not None and answer is not None:
        raise InvalidInputError("book must stand alone, without an answer (got both)")
    if answer is not None and (pin is not None or over_m is not None):
        raise InvalidInputError("answer must stand alone, without pin and over_m, which ask for others (got both)")
    if over_m is not None:
        rows = sorted({m, *_numbers(over_m)})
        each = {r: _sides((r, n, k), dtype, out_dtype or dtype, layout) for r in rows}
        typer.echo(_over_m(each, profile, book, accept, pin, as_json=wants_json(context, json)))
        return
    explanation = _explain_here(sides, profile, book, accept, pin) if answer is None else None
    if explanation is None and pin is not None:
        raise InvalidInputError(f"pin must have a library to ask, or a book; use --book FILE (got {pin}, and no GPU)")
    if explanation is None:
        explanation = _explain_recorded(sides, profile, answer, accept)
    typer.echo(explanation.to_json() if wants_json(context, json) else str(explanation))


def _sides(
    sizes: tuple[int, int, int], dtype: str, out_dtype: str, layout: str
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    from gemmdesc.dtypes import parse_dtype
    from gemmdesc.errors import InvalidInputError
    from gemmdesc.routes import TensorMeta

    if layout not in _LAYOUTS:
        raise InvalidInputError(f"layout must be one of {', '.join(_LAYOUTS)} (got {layout!r})")
    m, n, k = sizes
    kind, result = parse_dtype(dtype), parse_dtype(out_dtype)

    def side(rows: int, columns: int, letter: str) -> TensorMeta:
        strides = (columns, 1) if letter == "n" else (1, rows)
        return TensorMeta(shape=(rows, columns), strides=strides, dtype=kind)

    out = TensorMeta(shape=(m, n), strides=(n, 1), dtype=result)
    return side(m, k, layout[0]), side(k, n, layout[1]), out


def _explain_here(
    sides: tuple[TensorMeta, TensorMeta, TensorMeta],
    profile: Path | None,
    book: Path | None,
    accept: str,
    pin: int | None,
) -> Explanation | None:
    """Asks the book, or the library at hand; None without either."""
    from gemmdesc.errors import LibraryError
    from gemmdesc.library.device import device_id

    if book is None:
        try:
            device_id()
        except LibraryError:
            return None
    from gemmdesc import ops

    a, b, out = sides
    return ops.explain(a, b, out_dtype=out.dtype, profiles=profile, book=book, accept=accept, pin=pin)


def _numbers(text: str) -> list[int]:
    """The numbers of a list such as ``1-64,4096``."""
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        high = high or low
        if not (low.isdecimal() and high.isdecimal()) or not 1 <= int(low) <= int(high):
            raise InvalidInputError(f"over_m must be numbers and spans of them, such as 1-64,4096 (got {text!r})")
        found += range(int(low), int(high) + 1)
    if len(found) > _MOST_ROWS:
        raise InvalidInputError(f"over_m must hold at most {_MOST_ROWS} numbers (got {len(found)})")
    return found


def _over_m(
    each: dict[int, tuple[TensorMeta, TensorMeta, TensorMeta]],
    profile: Path | None,
    book: Path | None,
    accept: str,
    pin: int | None,
    *,
    as_json: bool,
) -> str:
    import json as writer

    from gemmdesc.plan import shared_orders
    from gemmdesc.plan.orders import orders_data, orders_text

    explained = {m: _explain_here(sides, profile, book, accept, pin) for m, sides in each.items()}
    there = {m: e for m, e in explained.items() if e is not None}
    if not there:
        raise InvalidInputError("over_m must have a library to ask, or a book; use --book FILE (got no GPU)")
    groups = shared_orders({m: e.outcome for m, e in there.items()})
    first = next(iter(there.values()))
    k, n = first.sizes[1]
    if as_json:
        return writer.dumps(orders_data(groups, n, k), indent=1)
    return orders_text(groups, n, k, first.library, first.device)


def _explain_recorded(
    sides: tuple[TensorMeta, TensorMeta, TensorMeta], profile: Path | None, answer: Path | None, accept: str
) -> Explanation:
    """From a recorded answer: the file given, else a golden record or a profile's example of this very problem."""
    from gemmdesc.cli.profiles import choose_profile
    from gemmdesc.cli.recorded import RecordedLibrary
    from gemmdesc.errors import Declined, InvalidInputError
    from gemmdesc.library.torch_settings import TorchSettings
    from gemmdesc.plan import Explanation, Planner
    from gemmdesc.profiles import parse_level, read_profile
    from gemmdesc.routes import route_mm

    path = profile if profile is not None and profile.is_file() else choose_profile(None, None)
    found, settings = read_profile(path), TorchSettings()
    problem = route_mm(*sides, settings)
    sizes = sides[0].shape, sides[1].shape
    if isinstance(problem, Declined):
        return Explanation(sizes=sizes, outcome=problem, library=found.library, device=found.device)
    recorded = read_answer(answer) if answer is not None else _recorded_answer(problem, found)
    if recorded is None:
        raise InvalidInputError(
            "answer must be given where there is no GPU to ask and nothing is recorded for this problem; "
            f"use --answer FILE (got {problem.m} x {problem.n} x {problem.k})"
        )
    library = RecordedLibrary(identity=found.library, device=found.device, recorded=recorded)
    planner = Planner(lambda: library, lambda device, identity: found, accept=parse_level(accept))
    outcome = planner.plan_mm(*sides, settings)
    return Explanation(sizes=sizes, outcome=outcome, library=found.library, device=found.device)


def _recorded_answer(problem: GemmProblem, profile: Profile) -> AlgoConfig | None:
    from gemmdesc.golden import golden_files, golden_folder, read_golden

    for row in profile.rows:
        if row.evidence.example.problem == problem:
            return row.evidence.example.answer
    folder = golden_folder()
    for path in golden_files(folder) if folder is not None else ():
        golden = read_golden(path)
        if golden.provenance.library == profile.library:
            for record in golden.records:
                if record.problem == problem:
                    return record.answer
    return None


def read_answer(path: Path) -> AlgoConfig:
    """An answer's attributes from JSON: the object itself, or one that holds it under ``answer``, as ``verify`` writes.

    Raises:
        InvalidInputError: no such file, or no answer in it.
    """
    import json as reader

    from gemmdesc.errors import InvalidInputError
    from gemmdesc.plain import answer_from_plain

    try:
        data: Any = reader.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"answer must be a JSON file ({error}) (got {path})") from None
    held = data.get("answer", data) if isinstance(data, dict) else data
    if not isinstance(held, dict):
        raise InvalidInputError(f"answer must be an object with the fields of AlgoConfig (got {str(held)[:80]})")
    return answer_from_plain(held)
