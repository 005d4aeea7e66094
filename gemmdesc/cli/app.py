"""The typer application and its entry point."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmdesc import __version__
from gemmdesc.cli import (
    books,
    demo,
    diffing,
    environment,
    equivalence,
    explaining,
    linting,
    probing,
    profiles,
    replaying,
    stability,
    tuning,
    verifying,
)
from gemmdesc.cli.output import JsonOption, Settings

app = typer.Typer(
    name="gemmdesc",
    help="Which arithmetic your cuBLAS does, as data, and the same bytes back. Exit codes: 0 equal, 1 different, "
    "2 usage or environment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options that every command takes."""
    context.obj = Settings(json=json)


app.command("env")(environment.env)
app.command("probe")(probing.probe)
app.command("show")(profiles.show)
app.command("explain")(explaining.explain)
app.command("verify")(verifying.verify)
app.command("diff")(diffing.diff)
app.command("record")(books.record)
app.command("lint")(linting.lint)
app.command("replay")(replaying.replay)
app.command("audit")(profiles.audit)
app.command("equiv")(equivalence.equiv)
app.command("stability")(stability.stability)
app.command("tune")(tuning.tune)
app.command("demo")(demo.demo)


def main() -> None:
    """Run the command line on the process's arguments; leaves with an exit code."""
    app()
