"""Lists of products in torch's terms, (m, k) x (k, n): from CSV, JSON or JSONL, over batch sizes, or as a grid."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemmdesc.dtypes import DType, parse_dtype
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import GemmProblem
from gemmdesc.routes import TensorMeta, route_mm

#: For each operand n (row-major) or t (the transpose of a row-major matrix); ``x @ w.T`` is nt.
LAYOUTS = ("nn", "nt", "tn", "tt")
_SUFFIXES = (".csv", ".json", ".jsonl")
#: The names of a product's columns; ``tokens`` is another name of m.
_SIZES = ("m", "n", "k")
_TYPES = ("dtype", "out_dtype")
_WORDS = ("model", "layer", "label")
_COLUMNS = (*_SIZES, "tokens", "layout", *_TYPES, *_WORDS)
_BIAS = (
    "a Linear with a bias calls torch.addmm, which is another problem than torch.mm and is not recorded; drop the bias "
    "or list the product itself"
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One product of torch's on whole, dense, aligned matrices: (m, k) x (k, n) -> (m, n), row-major.

    ``out_dtype``: ``dtype`` where it is not given.  ``bias``: a biased Linear, whose product is another problem.
    ``label``: for people.

    Raises:
        InvalidInputError: a size below 1, or an unknown layout.
    """

    m: int
    n: int
    k: int
    dtype: DType = DType.FLOAT16
    out_dtype: DType = None  # type: ignore[assignment]  # never None once made
    layout: str = "nn"
    bias: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        if self.out_dtype is None:
            object.__setattr__(self, "out_dtype", self.dtype)
        for name in _SIZES:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidInputError(f"{name} must be an integer of at least 1 (got {value!r})")
        if self.layout not in LAYOUTS:
            raise InvalidInputError(f"layout must be one of {', '.join(LAYOUTS)} (got {self.layout!r})")

    def metas(self) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
        """a, b and the output as torch allocates them."""

        def side(rows: int, columns: int, letter: str) -> TensorMeta:
            strides = (columns, 1) if letter == "n" else (1, rows)
            return TensorMeta(shape=(rows, columns), strides=strides, dtype=self.dtype)

        out = TensorMeta(shape=(self.m, self.n), strides=(self.n, 1), dtype=self.out_dtype)
        return side(self.m, self.k, self.layout[0]), side(self.k, self.n, self.layout[1]), out

    def problem(self, settings: TorchSettings) -> GemmProblem | Declined:
        """What ``torch.mm`` poses under ``settings``.

        Declines for a bias (``out_of_scope``), and as :func:`gemmdesc.routes.route_mm` does.

        Raises:
            InvalidInputError: an ``out_dtype`` that ``torch.mm`` does not take.
        """
        if self.bias:
            return Declined(code="out_of_scope", reason=_BIAS)
        return route_mm(*self.metas(), settings)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.layout} {self.dtype.value}->{self.out_dtype.value}"


@dataclass(frozen=True, kw_only=True)
class ShapeDefaults:
    """What a row of a list means that does not say; ``out_dtype`` None: the row's own ``dtype``."""

    dtype: DType = DType.FLOAT16
    out_dtype: DType | None = None
    layout: str = "nn"


def read_shapes(path: Path, defaults: ShapeDefaults, sets: Sequence[str] = ()) -> tuple[Shape, ...]:
    """The products that the file at ``path`` lists, without repetitions, in its order.

    ``sets``: only rows whose label is one of these, or begins with one and a space; all rows where there are none.

    CSV has a header; JSON is an array, JSONL one value a line, each an object with the same names or an array
    [m, n, k].  Names: m (or tokens), n, k, and, not needed, layout, dtype, out_dtype, model, layer, label.

    Raises:
        InvalidInputError: no such file, another suffix, no row, a row that is no product, in which case the message has
            its place, or a set that no row is of.
    """
    if path.suffix not in _SUFFIXES:
        raise InvalidInputError(f"shapes must be a file ending in {', '.join(_SUFFIXES)} (got {path})")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"shapes must be a readable file ({error}) (got {path})") from None
    rows = [(row, _shape(row, defaults, f"{path.name}, {place}")) for place, row in _rows(path, text)]
    if not rows:
        raise InvalidInputError(f"shapes must list one product at least (got {path}, which lists none)")
    missing = [name for name in sets if not any(_is_of(row, (name,)) for row, _ in rows)]
    if missing:
        raise InvalidInputError(f"set must be labels of {path.name} (got {', '.join(missing)}, which no row has)")
    return tuple(dict.fromkeys(shape for row, shape in rows if not sets or _is_of(row, sets)))


def _is_of(row: Any, sets: Sequence[str]) -> bool:
    label = str(row.get("label", "")) if isinstance(row, dict) else ""
    return any(label == name or label.startswith(f"{name} ") for name in sets)


def _rows(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".csv":
        reader = csv.DictReader(text.splitlines())
        for row in reader:
            if None in row or None in row.values():
                names = ", ".join(reader.fieldnames or ())
                raise InvalidInputError(f"line {reader.line_num} must have the columns {names} (got {path.name})")
            yield f"line {reader.line_num}", {name.strip(): v.strip() for name, v in row.items() if v.strip()}
        return
    lines = enumerate(text.splitlines(), 1) if path.suffix == ".jsonl" else [(1, text)]
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise InvalidInputError(f"line {number} must be JSON ({error}) (got {path.name})") from None
        if path.suffix == ".jsonl":
            yield f"line {number}", value
        elif isinstance(value, list):
            yield from ((f"element {at}", element) for at, element in enumerate(value))
        else:
            raise InvalidInputError(f"shapes must be a JSON array (got {type(value).__name__} in {path.name})")


def _shape(row: Any, defaults: ShapeDefaults, place: str) -> Shape:
    if isinstance(row, list):
        row = dict(zip(_SIZES, row, strict=False)) if len(row) == len(_SIZES) else None
    if not isinstance(row, dict):
        raise InvalidInputError(f"{place} must be an object or [m, n, k] (got {row!r})")
    unknown = sorted(set(row) - set(_COLUMNS))
    if unknown:
        raise InvalidInputError(f"{place} must use the names {', '.join(_COLUMNS)} (got {', '.join(unknown)})")
    if "tokens" in row:
        if "m" in row:
            raise InvalidInputError(f"{place} must have one of m and tokens (got both)")
        row = row | {"m": row["tokens"]}
    try:
        dtype = parse_dtype(str(row["dtype"])) if "dtype" in row else defaults.dtype
        wide = parse_dtype(str(row["out_dtype"])) if "out_dtype" in row else defaults.out_dtype or dtype
        m, n, k = (_size(name, row) for name in _SIZES)
        label = " ".join(str(row[word]) for word in _WORDS if row.get(word))
        layout = str(row.get("layout", defaults.layout))
        return Shape(m=m, n=n, k=k, dtype=dtype, out_dtype=wide, layout=layout, label=label)
    except InvalidInputError as error:
        raise InvalidInputError(f"{place}: {error}") from None


def _size(name: str, row: dict[str, Any]) -> int:
    value = row.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if type(value) is not int:
        raise InvalidInputError(f"{name} must be an integer (got {value!r})")
    return value


def with_tokens(shapes: Iterable[Shape], tokens: Sequence[int]) -> tuple[Shape, ...]:
    """Every product at every m in ``tokens``, without repetitions; as they are where ``tokens`` is empty."""
    listed = tuple(shapes)
    if tokens:
        listed = tuple(replace(shape, m=m) for shape in listed for m in tokens)
    return tuple(dict.fromkeys(listed))


#: Sizes of a grid's axes: powers of two, sizes between them, and odd neighbours, up to its largest.
_STEPS = (1.0, 1.4142)


def grid_shapes(ks: Iterable[int], defaults: ShapeDefaults, largest: int = 16384) -> tuple[Shape, ...]:
    """For each k a grid over m and n, log-spaced from 1 to ``largest``; what a map of (m, n) regions is drawn from."""
    sizes: list[int] = []
    power = 1
    while power <= largest:
        sizes += [round(power * step) for step in _STEPS]
        power *= 2
    axis = sorted({size for size in sizes if size <= largest})
    out_dtype = defaults.out_dtype or defaults.dtype
    return tuple(
        Shape(m=m, n=n, k=k, dtype=defaults.dtype, out_dtype=out_dtype, layout=defaults.layout, label="grid")
        for k in dict.fromkeys(ks)
        for m in axis
        for n in axis
    )
