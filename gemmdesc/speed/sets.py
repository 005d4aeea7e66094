"""Every set of products that the benchmark times, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from gemmdesc.books import Shape
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.speed.layers import MODEL, model_shapes
from gemmdesc.speed.shapes import FOLLOWING, SpeedShape

#: Rows of a decoding step.
DECODE_M = (1, 2, 4, 8, 16, 32, 64)
#: (n, k) of four weights of 24 to 117 MB.
DECODE_WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (6144, 2048))
#: (m, n, k) of which one is odd at least.
UNROUNDED = (
    (4097, 4095, 4093), (8191, 4096, 4095), (4001, 1999, 3001), (3001, 3003, 3005), (2049, 4097, 4099),
    (2047, 2049, 2051), (1000, 999, 1001), (8193, 4097, 2047), (1023, 50257, 1601), (2051, 6145, 2049),
    (5001, 5003, 1027), (513, 4097, 4097),
)  # fmt: skip
FLOAT8 = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (1024, 4096, 4096), (4096, 14336, 4096),
    (4096, 4096, 14336), (256, 4096, 4096), (16, 4096, 4096), (64, 14336, 4096), (16384, 2048, 7168),
)  # fmt: skip
#: float16 that the library sums on CUDA cores, and float32 without TF32.
CUDA_CORES = (
    (2, 2, 1024), (4, 3, 4096), (3, 5, 8192), (7, 9, 33), (8, 8, 512), (1, 7, 65536), (16, 5, 301), (5, 16, 2048),
)  # fmt: skip
FLOAT32 = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 1024), (333, 777, 555), (64, 4096, 1024),
)  # fmt: skip
#: (length, k) of a matrix times a vector; the vector is the column, or the row.
VECTORS = ((1024, 1024), (4096, 4096), (14336, 4096), (4096, 14336), (50257, 1600), (999, 1001), (128, 65536),
           (8, 300000))  # fmt: skip
#: (m, n, k) of fused calls: 16 for each of six groups.
FUSED = tuple((m, n, k) for m in (16, 64, 256, 4096) for n, k in DECODE_WEIGHTS)
#: Rank of the adapter whose result a fused product is added to.
_LORA_RANK = 64


def _parts() -> dict[str, tuple[SpeedShape, ...]]:
    def made(part: str, group: str, sizes: Iterable[tuple[int, int, int]], layout: str, dtype: DType = DType.FLOAT16,
             out: DType | None = None) -> tuple[SpeedShape, ...]:  # fmt: skip
        return tuple(
            SpeedShape(
                part=part, group=group,
                product=Shape(m=m, n=n, k=k, dtype=dtype, out_dtype=out or dtype, layout=layout),
            )
            for m, n, k in sizes
        )  # fmt: skip

    unrounded = [shape for layout in ("nn", "nt") for shape in made("unrounded", layout, UNROUNDED, layout)]
    decode = [
        shape for n, k in DECODE_WEIGHTS
        for shape in made("decode", f"{n}x{k}", [(m, n, k) for m in DECODE_M], "nt")
    ]  # fmt: skip
    columns = made("vector", "column", [(m, 1, k) for m, k in VECTORS], "nn")
    rows = made("vector", "row", [(1, n, k) for n, k in VECTORS], "nt")
    fused = [
        replace(shape, following=following)
        for following in FOLLOWING
        for shape in made("fused", following, _fused_sizes(following), "nt")
    ]
    return {
        MODEL: model_shapes(),
        "unrounded": tuple(unrounded),
        "decode": tuple(decode),
        "float8": made("float8", "e4m3", FLOAT8, "nt", DType.FLOAT8_E4M3FN, DType.BFLOAT16),
        "cuda_core": made("cuda_core", "float16", CUDA_CORES, "nn")
        + made("cuda_core", "float32", FLOAT32, "nn", DType.FLOAT32),
        "vector": columns + rows,
        "fused": tuple(fused),
    }


def _fused_sizes(following: str) -> Iterable[tuple[int, int, int]]:
    if following != "lora_add":
        return FUSED
    return [(m, n, _LORA_RANK) for m, n in product((16, 64, 256, 4096), (2048, 4096, 6144, 14336))]


#: Names of the sets, in the order in which they are shown.
PARTS = (MODEL, "unrounded", "decode", "float8", "cuda_core", "vector", "fused")


def speed_shapes(parts: Iterable[str] = PARTS) -> tuple[SpeedShape, ...]:
    """The products of ``parts``, in their order.

    Raises:
        InvalidInputError: a part is unknown.
    """
    known, wanted = _parts(), tuple(parts)
    missing = [p for p in wanted if p not in known]
    if missing:
        raise InvalidInputError(f"parts must be some of {', '.join(PARTS)} (got {', '.join(missing)})")
    return tuple(shape for part in wanted for shape in known[part])


#: (m, n, k, layout) of float16 products, short and long, aligned and not, that every session times first and last.
_CONTROL = (
    (256, 4096, 4096, "nt"), (512, 4096, 4096, "nt"), (1024, 4096, 4096, "nt"), (2048, 2048, 2048, "nn"),
    (4096, 4096, 4096, "nn"), (4096, 14336, 4096, "nt"), (16, 4096, 4096, "nt"), (16, 14336, 4096, "nt"),
    (4001, 1999, 3001, "nn"), (64, 6144, 2048, "nt"),
)  # fmt: skip


def control_shapes() -> tuple[SpeedShape, ...]:
    """Ten products whose ratios tell whether the machine stayed as it was."""
    return tuple(
        SpeedShape(part="control", group="control", product=Shape(m=m, n=n, k=k, layout=layout))
        for m, n, k, layout in _CONTROL
    )
