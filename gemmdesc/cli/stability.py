"""``gemmdesc stability``: the digits of a model's operators, or of values that a program computes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.output import DIFFERENT, EQUAL, JsonOption, command_line, guarded, print_json, print_table, wants_json
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    from gemmdesc.numerics.stochastic.examining import Examination

_DEFAULT_FUNCTION = "stability"
_BUILT_IN = ("classical", "operators", "tutorials")


@guarded
def stability(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT|MODULE",
            help="path/to/script.py[:function] or package.module[:function]; the function (default: stability) takes a "
            "run and returns a torch module with its batches, or named stochastic values. Or one of classical, "
            "operators, tutorials.",
        ),
    ],
    format: Annotated[str, typer.Option(help="What operations round to: a type's name, or E,S bits.")] = "float32",
    mode: Annotated[str, typer.Option(help="default or paper.")] = "default",
    samples: Annotated[int, typer.Option(help="Synchronous samples.")] = 3,
    seed: Annotated[int, typer.Option(help="Fixes every direction.")] = 0,
    rounded: Annotated[str, typer.Option(help="Operators of a model: arithmetic or boundary.")] = "arithmetic",
    products: Annotated[str, typer.Option(help="Products of a model in arithmetic: perturbed or steps.")] = "perturbed",
    threshold: Annotated[float, typer.Option(help="Digits below which an operator or value is unstable.")] = 0.5,
    out: Annotated[Path | None, typer.Option(help="A folder for report.md, report.html, tables and the plot.")] = None,
    json: JsonOption = False,
) -> int:
    """How many digits of each operator or value mean anything."""
    from gemmdesc.numerics import stochastic
    from gemmdesc.numerics.stochastic.examining import examine
    from gemmdesc.numerics.stochastic.modules import ModuleSettings, Products, Rounded

    settings = ModuleSettings(
        rounded=_member(Rounded, "rounded", rounded, "arithmetic, boundary"),
        products=_member(Products, "products", products, "perturbed, steps"),
        threshold=threshold,
    )
    run = stochastic.start(format=_format(format), mode=mode, samples=samples, seed=seed, counters="summary")
    function = _built_in(target) if target in _BUILT_IN else load(target)
    found = examine(function, run, settings)
    words = f"format {format}, mode {mode}, {samples} samples, seed {seed}, {rounded}"
    if out is not None:
        _write(found, out, target, words)
    if wants_json(context, json):
        print_json({"unstable": found.unstable, "counts": found.counts, "values": found.values,
                    "operators": found.tracker.rows})  # fmt: skip
    else:
        _print(found, target, words)
        if target == "tutorials":
            _print_tutorials()
    return DIFFERENT if found.unstable else EQUAL


def load(target: str) -> Callable[[Any], Any]:
    """The function that ``target`` names.

    Raises:
        InvalidInputError: there is no such script, module or function.
    """
    place, _, name = target.partition(":")
    name = name or _DEFAULT_FUNCTION
    if place.endswith(".py"):
        path = Path(place)
        spec = spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise InvalidInputError(f"target must be a script that exists (got {place!r})")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, "")
        try:
            module = import_module(place)
        except ImportError as error:
            raise InvalidInputError(f"target must be importable ({error}) (got {target!r})") from error
        finally:
            sys.path.remove("")
    function: Callable[[Any], Any] | None = getattr(module, name, None)
    if not callable(function):
        raise InvalidInputError(f"target must have a function called {name} (got {target!r})")
    return function


def _built_in(name: str) -> Callable[[Any], Any]:
    import numpy as np

    from gemmdesc.numerics.stochastic.cases.classical import CASES
    from gemmdesc.numerics.stochastic.cases.operators import OPERATORS
    from gemmdesc.numerics.stochastic.cases.tutorials import TUTORIALS

    def all_of(run: Any) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            if name == "classical":
                return {case.name: case.compute(run) for case in CASES}
            if name == "operators":
                rng = np.random.default_rng(0)
                return {f"{case.category}: {case.name}": case.compute(run, rng) for case in OPERATORS}
            lines = [(f"{t.number}. {t.title}: {what}", value) for t in TUTORIALS for what, value in t.run(run)]
        return {what: value for what, value in lines if hasattr(value, "samples")}

    return all_of


def _write(found: Examination, folder: Path, target: str, words: str) -> None:
    from gemmdesc.reports import StabilityReport, can_plot, plot_digits, stability_html, stability_markdown

    folder.mkdir(parents=True, exist_ok=True)
    rows, plot = found.tracker.rows, ""
    if rows:
        found.tracker.write_parquet(folder / "reports.parquet")
        found.tracker.write_jsonl(folder / "reports.jsonl")
        if can_plot() and plot_digits(rows, folder / "digits.png", target):
            plot = "digits.png"
    title = f"Digits of {target}"
    report = StabilityReport(title=title, command=command_line(), settings=words, found=found, plot=plot)
    for name, text in (("report.md", stability_markdown(report)), ("report.html", stability_html(report))):
        aside = folder / f"{name}.tmp"
        aside.write_text(text, encoding="utf-8")
        aside.replace(folder / name)


def _print(found: Examination, target: str, words: str) -> None:
    from gemmdesc.reports import verdict

    rows = [(r["name"], r["iteration"], f"{r['least']:.2f}", f"{r['median']:.2f}", r["rounded"])
            for r in found.tracker.worst()]  # fmt: skip
    rows += [(v["name"], "", f"{v['least']:.2f}", f"{v['median']:.2f}", "") for v in found.values]
    print_table(f"{target}: {words}", ("what", "iteration", "least digits", "median", "rounded"), rows)
    counted = ", ".join(f"{count} {kind}" for kind, count in found.counts.items() if count) or "none"
    typer.echo(f"{verdict(found)} Instabilities counted: {counted}.")


def _print_tutorials() -> None:
    """What each program counts, beside what is published."""
    from gemmdesc.verification.stochastic_tables import tutorial_counts

    columns = ("program", "format", "cadna", "noisefloat", "default", "kinds", "paper", "kinds")
    ours = ("default_median", "default_kinds", "paper_median", "paper_kinds")
    names = ("program", "format", "cadna", "noisefloat", *ours)
    rows = [tuple(row[name] for name in names) for row in tutorial_counts(1)]
    print_table("instabilities, beside the published totals of CADNA and noisefloat", columns, rows)


def _format(text: str) -> Any:
    parts = text.split(",")
    if len(parts) == 2 and all(p.strip().isdigit() for p in parts):
        return int(parts[0]), int(parts[1])
    return text


def _member(kind: Any, name: str, value: str, known: str) -> Any:
    if value not in known.split(", "):
        raise InvalidInputError(f"{name} must be one of {known} (got {value!r})")
    return kind(value)
