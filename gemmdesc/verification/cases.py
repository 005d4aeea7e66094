"""Cases: one ``torch.mm`` call each, fixed by (regime, seed, index) alone, so that a campaign resumes anywhere.

Sizes are never rounded, except in the regime that asks for multiples of 8.  Operand type, operand order, output type,
padding and misalignment are drawn per case.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from random import Random
from typing import Any

import numpy as np

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.probe import sampling
from gemmdesc.problem import MAX_ALIGNMENT_BYTES, GemmProblem
from gemmdesc.routes import TensorMeta, address_alignment, route_mm

#: One case in this many has padded rows or misaligned pointers.
_ODD_STORAGE = 6
#: One case in this many asks for float32 output.
_WIDE_OUTPUT = 4
#: Bytes of the alignments that a misaligned matrix may have, if they hold an element.
_ALIGNMENTS = (2, 4, 8, 16, 32, 64, 128)
_LAYERS = "model_layers.csv"


class Regime(Enum):
    """Where a case's sizes come from.

    UNROUNDED: log-uniform, every integer possible.  ALIGNED: multiples of 8.  DEEP: skinny, k up to 300,000.
    NAMED: layers of published models.  LOST_TAIL: skinny, m and n multiples of 8, k up to
    300,000, and of these only such as get an answer that never sums the end of k.
    """

    UNROUNDED = "unrounded"
    ALIGNED = "multiples_of_8"
    DEEP = "skinny_and_deep"
    NAMED = "named"
    LOST_TAIL = "lost_tail"


_SAMPLED = {
    Regime.UNROUNDED: sampling.Regime.UNROUNDED,
    Regime.ALIGNED: sampling.Regime.ALIGNED,
    Regime.DEEP: sampling.Regime.DEEP,
    Regime.LOST_TAIL: sampling.Regime.DEEP_ALIGNED,
}


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How a matrix lies in memory: its order, and elements added to each line and before the first one."""

    column_major: bool = False
    padding: int = 0
    offset: int = 0

    def strides(self, rows: int, columns: int) -> tuple[int, int]:
        """Strides in elements of a matrix stored this way."""
        if self.column_major:
            return 1, rows + self.padding
        return columns + self.padding, 1

    def extent(self, rows: int, columns: int) -> int:
        """Elements of its buffer."""
        lines, length = (columns, rows) if self.column_major else (rows, columns)
        return self.offset + lines * (length + self.padding)

    @property
    def plain(self) -> bool:
        """Row-major, dense and aligned."""
        return self == Storage()


@dataclass(frozen=True, kw_only=True)
class Case:
    """``torch.mm(a, b)``, (m, k) x (k, n), in torch's row-major terms."""

    regime: Regime
    seed: int
    index: int
    m: int
    n: int
    k: int
    dtype: DType
    out_dtype: DType
    a: Storage
    b: Storage
    out: Storage

    @property
    def key(self) -> str:
        """The case's name in records."""
        return f"{self.regime.value}/{self.seed}/{self.index}"

    @property
    def layout(self) -> str:
        """Operand order in BLAS's letters for row-major matrices: ``nt`` is a row-major, b column-major."""
        return "".join("t" if s.column_major else "n" for s in (self.a, self.b))

    @property
    def operand_draw_seed(self) -> int:
        """The seed of its operands; cases share none."""
        words = np.random.SeedSequence([self.seed, list(Regime).index(self.regime), self.index]).generate_state(1)
        return int(words[0])

    @property
    def operand_bytes(self) -> tuple[int, int, int]:
        """Bytes of a, b and out as stored."""
        a, b = (s.extent(*shape) for s, shape in ((self.a, (self.m, self.k)), (self.b, (self.k, self.n))))
        out = self.out.extent(self.m, self.n)
        return a * self.dtype.itemsize, b * self.dtype.itemsize, out * self.out_dtype.itemsize


def draw_case(regime: Regime, seed: int, index: int) -> Case:
    """Case number ``index`` of ``seed`` in ``regime``.

    Raises:
        InvalidInputError: ``index`` is beyond the list of named layers.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, 1 + list(Regime).index(regime), index]))
    if regime is Regime.NAMED:
        layer = named_layer(index)
        m, n, k = layer.tokens, layer.n, layer.k
    else:
        m, n, k = sampling.draw_sizes(Random(int(rng.integers(2**63))), _SAMPLED[regime])
    dtype = (DType.FLOAT16, DType.BFLOAT16)[int(rng.integers(2))]
    out_dtype = DType.FLOAT32 if rng.integers(_WIDE_OUTPUT) == 0 else dtype
    if 4 * m * n > sampling.LARGEST_OPERAND_BYTES:
        out_dtype = dtype
    orders = [bool(rng.integers(2)) for _ in range(2)]
    odd = regime is not Regime.NAMED and rng.integers(_ODD_STORAGE) == 0
    a, b = (_draw_storage(rng, order, dtype, odd) for order in orders)
    # torch.mm(..., out_dtype=) makes its own output.
    out = _draw_storage(rng, bool(rng.integers(2)), dtype, odd) if odd and out_dtype is dtype else Storage()
    return Case(
        regime=regime, seed=seed, index=index, m=m, n=n, k=k, dtype=dtype, out_dtype=out_dtype, a=a, b=b, out=out
    )  # fmt: skip


def _draw_storage(rng: np.random.Generator, column_major: bool, dtype: DType, odd: bool) -> Storage:
    if not odd:
        return Storage(column_major=column_major)
    padding = int(rng.integers(0, 9)) * int(rng.choice([1, 2, 4, 8]))
    alignments = [x // dtype.itemsize for x in _ALIGNMENTS if x >= dtype.itemsize]
    offset = int(rng.choice([0, *alignments])) * int(rng.choice([1, 3]))
    return Storage(column_major=column_major, padding=padding, offset=offset)


def case_problem(case: Case, settings: TorchSettings) -> GemmProblem | Declined:
    """The cuBLASLt problem that the call poses; no tensor is made (buffers start at 256 bytes)."""
    return route_mm(*case_metas(case), settings)


def case_metas(case: Case) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """a, b and the output as routing sees them."""
    a = _meta(case.a, (case.m, case.k), case.dtype)
    b = _meta(case.b, (case.k, case.n), case.dtype)
    return a, b, out_meta(case)


def out_meta(case: Case) -> TensorMeta:
    """The output as routing sees it."""
    return _meta(case.out, (case.m, case.n), case.out_dtype)


def _meta(storage: Storage, shape: tuple[int, int], dtype: DType) -> TensorMeta:
    address = MAX_ALIGNMENT_BYTES + storage.offset * dtype.itemsize
    return TensorMeta(
        shape=shape, strides=storage.strides(*shape), dtype=dtype, alignment_bytes=address_alignment(address)
    )


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One product of a published model: ``tokens`` rows, k inputs, n outputs."""

    model: str
    layer: str
    tokens: int
    n: int
    k: int


def named_layers() -> tuple[Layer, ...]:
    """The packaged list of larger shapes, in the file's order."""
    text = (resources.files("gemmdesc.verification") / _LAYERS).read_text()
    return tuple(
        Layer(model=r["model"], layer=r["layer"], tokens=int(r["tokens"]), n=int(r["n"]), k=int(r["k"]))
        for r in csv.DictReader(text.splitlines())
    )


def named_layer(index: int) -> Layer:
    """Number ``index`` of :func:`named_layers`.

    Raises:
        InvalidInputError: there is no such row.
    """
    layers = named_layers()
    if not 0 <= index < len(layers):
        raise InvalidInputError(f"index must be at least 0 and below the {len(layers)} named layers (got {index})")
    return layers[index]


def case_to_plain(case: Case) -> dict[str, Any]:
    """JSON-ready form, for people; a reader needs only the key."""
    matrices = {"a": case.a, "b": case.b, "out": case.out}
    stored = {name: [s.column_major, s.padding, s.offset] for name, s in matrices.items() if not s.plain}
    return {
        "key": case.key, "regime": case.regime.value, "m": case.m, "n": case.n, "k": case.k, "layout": case.layout,
        "dtype": case.dtype.value, "out_dtype": case.out_dtype.value, "stored": stored,
    }  # fmt: skip


def case_of(key: str) -> Case:
    """The case that a record's key names.

    Raises:
        InvalidInputError: ``key`` is no such name.
    """
    try:
        regime, seed, index = key.split("/")
        return draw_case(Regime(regime), int(seed), int(index))
    except ValueError:
        raise InvalidInputError(f"key must be regime/seed/index (got {key!r})") from None
