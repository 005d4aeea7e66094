"""KernelConfig: everything about a kernel that never affects the bits.

A test runs one descriptor under every config of its structure and demands equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gemmdesc.errors import InvalidInputError

#: The most tiles whose finished slices a kernel counts, each in a word of its own.
MOST_COUNTED = 1024
#: Products with a side of at most this many rows are computed transposed where that puts the long side on M.
THIN_SIDE = 64
#: Room for the barriers of the pipeline, generously.
_BARRIER_BYTES = 1024


class Feature(Enum):
    """What a schedule does beside tiles, warps and stages.

    One launch: the last program of a tile folds its slices, where else a second kernel does.  Narrow: tiles of fewer
    than 16 columns or 64 rows for a few rows against a large weight.  Dependent: a programmatic dependent launch.
    Wide: tiles of two widths side by side.  Specialised: one warp group loads, two multiply.
    """

    ONE_LAUNCH = "one_launch"
    NARROW = "narrow"
    DEPENDENT = "dependent"
    WIDE = "wide"
    SPECIALISED = "specialised"


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """Tile sizes, warps and stages of one compiled kernel, in the names of the Triton tutorials.

    ``group_m`` rows of tiles share their columns in the order of the tiles.  ``programs_per_sm`` bounds a persistent
    grid; a kernel that is not persistent ignores it.  ``dependent``: start a tensor-descriptor kernel of chains while
    the kernel before it on the stream ends (programmatic dependent launch), and let the next one start likewise.
    ``one_launch``: the kernel of the chains folds the slices, too; a merged structure has no other configs.
    ``beside_n``: columns beside the first ``block_n`` of a tile, with an accumulator of their own, so that a width need
    not be a power of two; only the wide chain has such configs.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group_m: int = 8
    programs_per_sm: int = 1
    dependent: bool = False
    one_launch: bool = False
    beside_n: int = 0

    def __post_init__(self) -> None:
        for name, least in (("block_m", 16), ("block_n", 8), ("block_k", 16)):
            size = getattr(self, name)
            if size < least or size & (size - 1):
                raise InvalidInputError(f"{name} must be a power of two of at least {least} (got {size})")
        # Of fewer than 16 columns Triton makes no wgmma; of two widths that are equal, one is as good.
        if self.beside_n and (self.beside_n & (self.beside_n - 1) or not 16 <= self.beside_n < self.block_n):
            raise InvalidInputError(
                f"beside_n must be 0 or a power of two from 16 to below block_n (got {self.beside_n}, {self.block_n})"
            )
        if self.num_warps not in (1, 2, 4, 8):
            raise InvalidInputError(f"num_warps must be 1, 2, 4 or 8 (got {self.num_warps})")
        for name in ("num_stages", "group_m", "programs_per_sm"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1 (got {getattr(self, name)})")

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.block_n + self.beside_n

    def tiles(self, m: int, n: int) -> int:
        """How many output tiles cover an m x n product."""
        return -(-m // self.block_m) * -(-n // self.columns)

    def bytes_in_flight(self, operand_size: int) -> int:
        """Bytes of A that one program has asked for while it works on a step."""
        return (self.num_stages - 1) * self.block_m * self.block_k * operand_size

    @property
    def cluster(self) -> int:
        """Programs of a cluster, which share what they load."""
        return 1

    @property
    def loaded_lines(self) -> float:
        """Rows and columns of a tile that its program loads; the others of a cluster load the rest for it."""
        return self.block_m + self.columns

    @property
    def outputs_per_thread(self) -> int:
        return self.block_m * self.columns // (32 * self.num_warps)

    @property
    def thin(self) -> bool:
        """Whether a tile of a tensor-descriptor kernel is narrower than a matrix instruction of a warp group."""
        return self.block_m < 64 or self.block_n < 16

    def shared_bytes(self, operand_size: int, stored_size: int, *, by_pointers: bool = False) -> int:
        """Shared memory of a pipeline and of one whole tile staged for its store, ``stored_size`` bytes an element.

        ``by_pointers``: of stores by pointers at the end of a loop that is not flattened, which tiles of two widths
        have: each width in turn is staged where the pipeline was.
        """
        pipeline = self.num_stages * (self.block_m + self.columns) * self.block_k * operand_size
        if by_pointers and self.beside_n:
            return max(pipeline, self.block_m * self.block_n * stored_size) + _BARRIER_BYTES
        return pipeline + self.block_m * self.columns * stored_size + _BARRIER_BYTES


def _config(m: int, n: int, k: int, warps: int, stages: int, *, per_sm: int = 1, beside: int = 0) -> KernelConfig:
    return KernelConfig(
        block_m=m, block_n=n, block_k=k, num_warps=warps, num_stages=stages, programs_per_sm=per_sm, beside_n=beside
    )


#: Tensor-descriptor kernels for a few rows against a large weight: a batch of up to 8 in one instruction's columns,
#: tiles of 32 rows where those of 64 are too few for the card, and deep pipelines for where even so there are few.
THIN_CONFIGS = (
    _config(64, 32, 128, 4, 6),
    _config(64, 16, 128, 4, 6),
    _config(64, 8, 128, 4, 4, per_sm=3),
    _config(64, 8, 64, 4, 6, per_sm=3),
    _config(32, 8, 128, 2, 6, per_sm=3),
)

#: Those for a k so short that a box of 64 lanes would be filled up with zeros: lines of 64 or 32 bytes.
SHORT_CONFIGS = (
    _config(128, 256, 32, 8, 3),
    _config(128, 128, 32, 8, 4, per_sm=2),
    _config(64, 128, 32, 4, 4, per_sm=3),
    _config(64, 64, 32, 4, 4, per_sm=4),
    _config(128, 128, 16, 8, 4, per_sm=2),
    _config(64, 128, 16, 4, 4, per_sm=3),
    _config(64, 64, 16, 4, 4, per_sm=4),
)

#: Several pipelines of one tile: a step takes its latency over the steps that are under way, so that a lone program
#: needs more stages than several that share a multiprocessor.
PIPELINED_CONFIGS = (
    _config(256, 128, 64, 8, 3),
    _config(128, 128, 64, 4, 6),
    _config(128, 128, 64, 8, 6),
    _config(128, 128, 128, 8, 3),
    _config(64, 256, 64, 4, 4),
    _config(64, 128, 64, 4, 8),
    _config(64, 64, 64, 4, 6, per_sm=2),
    _config(64, 64, 128, 4, 6),
    _config(64, 32, 128, 4, 8),
)

#: Tensor-descriptor kernels, largest tile first.
TMA_CONFIGS = (
    _config(128, 256, 64, 8, 3),
    _config(128, 128, 64, 4, 4),
    _config(128, 128, 64, 8, 4),
    _config(64, 128, 128, 4, 4),
    _config(64, 128, 64, 4, 4, per_sm=2),
    _config(64, 64, 64, 4, 4, per_sm=3),
    _config(64, 64, 128, 4, 4, per_sm=2),
    _config(64, 32, 128, 4, 4, per_sm=2),
    _config(64, 16, 128, 4, 4, per_sm=2),
    _config(64, 32, 64, 4, 6, per_sm=2),
    _config(64, 16, 64, 4, 6, per_sm=2),
    *THIN_CONFIGS,
    *PIPELINED_CONFIGS,
    *SHORT_CONFIGS,
)

#: Tensor-descriptor kernels of two widths side by side, for where tiles of powers of two leave multiprocessors idle.
WIDE_CONFIGS = (
    _config(256, 128, 32, 8, 4, beside=64),
    _config(256, 128, 64, 8, 2, beside=64),
    _config(128, 256, 32, 8, 5, beside=64),
    _config(128, 256, 32, 8, 5, beside=32),
    _config(256, 128, 64, 8, 3, beside=16),
    _config(128, 256, 64, 8, 3, beside=16),
    _config(128, 128, 64, 8, 4, beside=64),
    _config(128, 128, 64, 4, 4, beside=64),
    _config(128, 128, 64, 4, 4, beside=32),
    _config(128, 128, 64, 4, 5, beside=16),
    _config(128, 64, 64, 4, 6, beside=32),
    _config(128, 64, 64, 4, 6, beside=16),
    _config(64, 64, 128, 4, 5, beside=32),
    _config(64, 64, 64, 4, 5, per_sm=2, beside=16),
    _config(64, 32, 128, 4, 6, beside=16),
)

#: What competes where configs are tried, and nothing picks unasked: equal bytes on a card, and slower.
UNCOMPARED_CONFIGS = WIDE_CONFIGS

#: Outputs of a thread beyond which it has no registers left for more values of each beside its sums.
MOST_OUTPUTS = 64
#: Outputs of a tile beyond which a kernel that folds runs so long that it does not matter when it started.
SHORT_TILE = 64 * 64


def _in_one_launch(configs: tuple[KernelConfig, ...]) -> tuple[KernelConfig, ...]:
    return tuple(replace(c, one_launch=True) for c in configs)


def _early(configs: tuple[KernelConfig, ...]) -> tuple[KernelConfig, ...]:
    return tuple(replace(c, dependent=True) for c in configs)


#: Tensor-descriptor kernels whose last program of a tile folds its slices.
MERGED_CONFIGS = _in_one_launch(
    tuple(c for c in TMA_CONFIGS if c.outputs_per_thread <= MOST_OUTPUTS and c not in SHORT_CONFIGS)
)
#: All three kinds with dependent launches.
EARLY_TMA_CONFIGS = _early(TMA_CONFIGS)
EARLY_WIDE_CONFIGS = _early(WIDE_CONFIGS)
EARLY_MERGED_CONFIGS = _early(tuple(c for c in MERGED_CONFIGS if c.block_m * c.block_n <= SHORT_TILE))

#: Tensor-descriptor kernels that hold a running sum beside the accumulator, largest tile first.
FOLDED_CONFIGS = (
    _config(128, 128, 64, 8, 4),
    _config(64, 128, 64, 4, 4),
    _config(64, 64, 64, 4, 4, per_sm=2),
)

#: Pointer kernels of a plain chain, largest tile first.
POINTER_CONFIGS = (
    _config(128, 128, 32, 8, 3),
    _config(64, 64, 64, 4, 3),
    _config(32, 32, 64, 4, 3),
    _config(16, 16, 128, 2, 3),
)

#: Pointer kernels of a grouped chain, largest tile first.  ``block_k`` counts lanes, zero ones too.
GROUPED_CONFIGS = (
    _config(128, 128, 32, 8, 3),
    _config(64, 64, 64, 4, 3),
    _config(32, 32, 64, 4, 3),
    _config(16, 16, 128, 2, 3),
)

#: Both of them, with slices that the last program of a tile folds.
MERGED_POINTER_CONFIGS, MERGED_GROUPED_CONFIGS = _in_one_launch(POINTER_CONFIGS), _in_one_launch(GROUPED_CONFIGS)
