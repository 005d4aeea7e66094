"""A session's journal: JSON lines, written as shapes are timed, and read back whole or in part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.speed.measuring import Row, Sides, State, Timing, geometric_mean
from gemmdesc.speed.shapes import SpeedShape

#: A session whose control's geometric mean moved by more than this, up or down, is dropped.
MOST_MOVE = 0.02
SUFFIX = ".speed.jsonl"


@dataclass(frozen=True, kw_only=True)
class Session:
    """One process on one machine.

    ``about``: card, versions, command, date, limits.  ``ended``: whether the last control was timed.  Ratios are formed
    within a session only.
    """

    name: str
    about: Mapping[str, Any]
    rows: tuple[Row, ...]
    ended: bool

    @property
    def move(self) -> float | None:
        """The control's last geometric mean of ratios over its first, less 1; None where one is missing."""
        first, last = self._control("first"), self._control("last")
        shared = [name for name in first if name in last]
        mean = geometric_mean(last[name] / first[name] for name in shared)
        return None if mean is None or len(shared) < len(first) else mean - 1

    def _control(self, when: str) -> dict[str, float]:
        ratios = {r.shape.name: r.ratio() for r in self.rows if r.control == when}
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}

    @property
    def dropped(self) -> str:
        """Why its ratios are not used, "" where they are."""
        if not self.ended or self.move is None:
            return "no control at its end"
        return f"its control moved by {self.move:+.1%}" if abs(self.move) > MOST_MOVE else ""

    @property
    def untuned(self) -> bool:
        """Whether tuned tables were ignored, wherever they lay."""
        return bool(self.about.get("untuned", False))

    @property
    def measured(self) -> tuple[Row, ...]:
        """Rows of the benchmark's own shapes."""
        return tuple(r for r in self.rows if not r.control)


class Journal:
    """Appends lines to ``path``, each on the disk before the next shape begins."""

    def __init__(self, path: Path, name: str, about: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._write({"session": name, "about": dict(about)})

    def add(self, row: Row) -> None:
        self._write({"row": row_data(row)})

    def end(self) -> None:
        self._write({"end": True})

    def _write(self, data: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data) + "\n")


def read_sessions(folders: Iterable[Path]) -> tuple[Session, ...]:
    """Every session whose journal lies in ``folders``, by name; a line that was cut short is left out.

    Raises:
        InvalidInputError: a file is no journal, or two sessions have one name.
    """
    found = [_read(path) for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]
    names = [s.name for s in found]
    if len(set(names)) != len(names):
        raise InvalidInputError(f"sessions must have names of their own (got {sorted(names)})")
    return tuple(sorted(found, key=lambda s: s.name))


def _read(path: Path) -> Session:
    lines = list(_lines(path))
    if not lines or "session" not in lines[0]:
        raise InvalidInputError(f"path must be a journal, which begins with its session (got {path})")
    try:
        rows = tuple(row_from_data(line["row"]) for line in lines if "row" in line)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"path must hold rows of this release's form ({error!r}) (got {path})") from error
    return Session(
        name=lines[0]["session"], about=lines[0]["about"], rows=rows, ended=any("end" in line for line in lines)
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except ValueError:
            return  # the process ended while it wrote


def row_data(row: Row) -> dict[str, Any]:
    """JSON-ready form of a row."""
    product = asdict(row.shape.product)
    types = {name: product[name].value for name in ("dtype", "out_dtype")}
    shape = {"part": row.shape.part, "group": row.shape.group, "following": row.shape.following}
    return {
        "shape": shape | product | types, "state": row.state.value, "reason": row.reason, "sides": asdict(row.sides),
        "device": {name: asdict(t) for name, t in row.device.items()},
        "host": {name: asdict(t) for name, t in row.host.items()},
        "least": dict(row.least), "control": row.control,
    }  # fmt: skip


def row_from_data(data: Mapping[str, Any]) -> Row:
    """The row that :func:`row_data` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    from gemmdesc.books import Shape
    from gemmdesc.dtypes import DType

    own = {name: data["shape"][name] for name in ("part", "group", "following")}
    product = {name: value for name, value in data["shape"].items() if name not in own}
    types = {name: DType(product[name]) for name in ("dtype", "out_dtype")}
    sides: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data["sides"].items()}
    return Row(
        shape=SpeedShape(**own, product=Shape(**(product | types))), state=State(data["state"]),
        reason=data["reason"], sides=Sides(**sides), control=data["control"], least=dict(data["least"]),
        device={name: Timing(**t) for name, t in data["device"].items()},
        host={name: Timing(**t) for name, t in data["host"].items()},
    )  # fmt: skip
