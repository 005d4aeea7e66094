"""What all commands share: where data and progress go, tables, and the exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, Self

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

#: Nothing differs; something does; the call or the machine does not allow an answer.
EQUAL, DIFFERENT, UNUSABLE = 0, 1, 2
#: Columns of a table where the output is no terminal.
_PLAIN_WIDTH = 180
#: Seconds between plain progress lines.
_LINE_SECONDS = 5.0
#: Reasons and mismatches that are listed.
_MOST_FOUND = 40

JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON on stdout.")]
P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was said before the command's name."""

    json: bool = False


def wants_json(context: typer.Context, given: bool) -> bool:
    """Whether ``--json`` stands before or after the command's name."""
    return given or (isinstance(context.obj, Settings) and context.obj.json)


def guarded(command: Callable[P, int | None]) -> Callable[P, None]:
    """A command whose return value is its exit code, and whose expected errors are one line on stderr and code 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from gemmdesc.errors import GemmdescError

        try:
            code = command(*args, **kwargs)
        except GemmdescError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(UNUSABLE) from None
        except KeyboardInterrupt:
            typer.echo("stopped; what was done is kept, the same command goes on from there", err=True)
            raise typer.Exit(130) from None
        if code:
            raise typer.Exit(code)

    return run


def print_json(data: Any) -> None:
    """``data`` on stdout as JSON, keys in their own order."""
    typer.echo(json.dumps(data, indent=1, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "") -> None:
    """A table on stdout; numbers are set to the right.  Prints the title alone where there are no rows."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = [tuple(row) for row in rows]
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)
    console.print(Text(title, style="bold"))
    if listed:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for at, name in enumerate(columns):
            numeric = all(isinstance(row[at], int | float) for row in listed)
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for row in listed:
            table.add_row(*(Text(_cell(value)) for value in row))
        console.print(table)
    if note:
        console.print(Text(note))


def print_found(data: Mapping[str, Any]) -> None:
    """A campaign's reasons and mismatches, the first of each, a line a row; nothing where there are none."""
    for title in ("reasons", "mismatches"):
        if data[title]:
            lines = [" | ".join(f"{k}={v}" for k, v in row.items()) for row in data[title][:_MOST_FOUND]]
            print_table(title, ("",), [(line,) for line in lines])


def first_lines(lines: Sequence[str], most: int, others: str) -> list[str]:
    """The first ``most`` of ``lines``, and where there are more how many: "and 3 more" with ``others`` behind it."""
    more = len(lines) - most
    return [*lines[:most], *([f"and {more} more {others}"] if more > 0 else [])]


@contextmanager
def writing(option: str, path: Path, kind: str = "file") -> Iterator[None]:
    """Around what writes to ``path``, which was given with ``option``; ``kind``: what it is.

    Raises:
        InvalidInputError: it cannot be written.
    """
    from gemmdesc.errors import InvalidInputError

    try:
        yield
    except OSError as error:
        raise InvalidInputError(f"{option} must be a {kind} that can be written ({error}) (got {path})") from error


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Progress:
    """A context manager whose :meth:`report` shows a phase's progress on stderr: a bar, or a line now and then."""

    def __init__(self) -> None:
        self._rich: RichProgress | None = None
        self._bars: dict[str, Any] = {}
        self._phase, self._said, self._began = "", 0.0, monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            self._rich = Progress(*columns, console=Console(stderr=True))
            self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()

    def report(self, phase: str, done: int, total: int | None) -> None:
        """``done`` of ``total`` (None: unknown) in ``phase``."""
        if self._rich is not None:
            if phase not in self._bars:
                self._bars[phase] = self._rich.add_task(phase, total=total)
            self._rich.update(self._bars[phase], completed=done, total=total)
            return
        now = monotonic()
        if phase != self._phase or done == total or now - self._said >= _LINE_SECONDS:
            of = "" if total is None else f"/{total}"
            typer.echo(f"{phase}: {done}{of} ({now - self._began:.0f} s)", err=True)
            self._phase, self._said = phase, now

    def say(self, text: str) -> None:
        """One line on stderr."""
        if self._rich is not None:
            self._rich.console.print(text, highlight=False, markup=False)
        else:
            typer.echo(text, err=True)


def command_line() -> str:
    """The command as it was typed, for provenance."""
    import shlex

    name = Path(sys.argv[0]).name
    return shlex.join(["gemmdesc" if name in ("gemmdesc", "__main__.py") else name, *sys.argv[1:]])
