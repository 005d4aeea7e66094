"""Configs of the chain whose warps are specialised: one loads, two groups multiply.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.structure import Structure

#: Warps of a group that multiplies; one instruction of theirs takes 64 rows, and at most 256 columns.
GROUP_WARPS = 4
_GROUP_ROWS, _MOST_COLUMNS, _LEAST_COLUMNS = 64, 256, 8
#: Bytes of an output of which ``store_n`` counts the columns, and of a barrier.
_STORED_UNIT, _BARRIER = 2, 8
#: Programs of a cluster, rows and columns of them, and lines after which the hardware's swizzling begins again.
_CLUSTERS, _PATTERN = ((1, 1), (2, 1), (1, 2)), 8
#: Fewest columns that one instruction takes where their number need not be a power of two.
_LEAST_WHOLE = 64
#: Fewest columns of 16 bits of its pieces: half as many of float32 are what a tensor of its sums has.
_LEAST_PIECE = 32
#: Fewest columns beside the first ones that a B by rows can have.
LEAST_BY_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class SpecialisedConfig(KernelConfig):
    """What :class:`KernelConfig` says, and how the groups share their work.

    ``num_warps`` are those of one group, ``num_stages`` the buffers that the loading warp fills ahead.  A tile has
    ``beside_n`` columns beside its first ``block_n``, 0 or a power of two, so that a width need not be one.
    ``turns``: the two groups take a tile each in turn, one storing while the other multiplies; else both work on one
    tile, half of its rows each.  A group stores ``store_n`` columns of 16-bit outputs at a time, half as many of
    float32, from ``store_buffers`` buffers in turn.  ``alone``: for at most one tile a multiprocessor, which is staged
    in the ring, each piece in a box of A that the group has read.  ``cluster_m``, ``cluster_n``: 2 where two programs
    are a cluster that loads B for a tile and the one below it, or A for a tile and the one beside it, once for both.
    Then ``group_m`` counts rows of pairs.  ``whole``: one instruction takes all columns of the tile, ``block_n``, which
    is then any multiple of 8 whose rest beside its pieces is a power of two; B must lie along k.
    """

    beside_n: int = 0
    turns: bool = False
    store_n: int = 32
    store_buffers: int = 1
    alone: bool = False
    cluster_m: int = 1
    cluster_n: int = 1
    whole: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (
            ("block_m", _GROUP_ROWS * self.groups_of_rows, 256), ("block_n", 16, _MOST_COLUMNS), ("block_k", 16, 128),
            ("store_n", 16, 128),
        ):  # fmt: skip
            size = getattr(self, name)
            any_width = self.whole and name == "block_n"
            if not least <= size <= most or (size & (size - 1) and not any_width):
                raise InvalidInputError(f"{name} must be a power of two from {least} to {most} (got {size})")
        if self.whole:
            self._check_whole()
        beside = self.beside_n
        if beside and (beside & (beside - 1) or not _LEAST_COLUMNS <= beside < self.block_n):
            raise InvalidInputError(
                f"beside_n must be 0 or a power of two from {_LEAST_COLUMNS} to below block_n (got {beside})"
            )
        fits = self.store_n <= self.block_k if self.whole else self.store_n == self.block_k
        boxes = fits and self.store_buffers == self.num_stages
        if self.alone and (self.turns or not boxes):
            raise InvalidInputError(f"a tile alone must be shared and stored in boxes of A (got {self})")
        self._check_cluster()
        if self.num_warps != GROUP_WARPS or self.programs_per_sm != 1 or self.one_launch:
            raise InvalidInputError(
                f"a group must have {GROUP_WARPS} warps, a multiprocessor one program, and slices no fold "
                f"(got {self.num_warps}, {self.programs_per_sm}, {self.one_launch})"
            )
        # A stage is handed back only once the step after its own has been issued, which takes another stage.
        for name, fewest in (("num_stages", 2), ("group_m", 1), ("store_buffers", 1)):
            if getattr(self, name) < fewest:
                raise InvalidInputError(f"{name} must be at least {fewest} (got {getattr(self, name)})")

    def _check_whole(self) -> None:
        width = self.block_n
        rests = [self.rest(stored_size) for stored_size in (_STORED_UNIT, 2 * _STORED_UNIT)]
        if width < _LEAST_WHOLE or width % _PATTERN or self.beside_n or any(rest & (rest - 1) for rest in rests):
            raise InvalidInputError(
                f"one instruction must take all columns, a multiple of {_PATTERN} from {_LEAST_WHOLE} on, stored in "
                f"pieces and a rest that is a power of two (got {width}, {self.beside_n} beside, {self.store_n})"
            )
        whole_boxes = width & -width >= _PATTERN * self.cluster_m
        if self.block_k != _BLOCK_K or self.store_n < _LEAST_PIECE or not whole_boxes:
            raise InvalidInputError(
                f"of one instruction, block_k must be {_BLOCK_K}, store_n at least {_LEAST_PIECE}, and each load whole "
                f"patterns of {_PATTERN} columns (got {self.block_k}, {self.store_n}, {width} by {self.cluster_m})"
            )

    def _check_cluster(self) -> None:
        shape = self.cluster_m, self.cluster_n
        if shape not in _CLUSTERS:
            raise InvalidInputError(f"a cluster must be 1 x 1, 2 x 1 or 1 x 2 (got {shape[0]} x {shape[1]})")
        if self.turns and self.cluster > 1:
            raise InvalidInputError("groups of a cluster must share their tiles (got turns)")
        # Half of a box must begin where the pattern does in which the hardware swizzles lines, every eighth.
        if self.cluster_m > 1 and 0 < self.beside_n < 2 * _PATTERN:
            raise InvalidInputError(
                f"beside_n must be 0 or at least {2 * _PATTERN} where each loads half of B (got {self.beside_n})"
            )

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def loaded_lines(self) -> float:
        return self.block_m / self.cluster_n + self.columns / self.cluster_m

    @property
    def wants_columns(self) -> bool:
        """Whether B must lie along k."""
        return self.whole or 0 < self.beside_n < LEAST_BY_ROWS

    @property
    def sharing(self) -> str:
        """What the groups do, in a word: take ``turns``, or tiles ``shared``, or one of them ``alone``."""
        return "alone" if self.alone else "turns" if self.turns else "shared"

    @property
    def groups_of_rows(self) -> int:
        """Into how many parts the rows of a tile are shared."""
        return 1 if self.turns else 2

    @property
    def rows(self) -> int:
        """Rows of a tile that one group multiplies."""
        return self.block_m // self.groups_of_rows

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.block_n + self.beside_n

    def tiles(self, m: int, n: int) -> int:
        """How many output tiles cover an m x n product, those of a pair beyond its edge among them."""
        pairs = -(-m // (self.block_m * self.cluster_m)) * -(-n // (self.columns * self.cluster_n))
        return pairs * self.cluster

    @property
    def outputs_per_thread(self) -> int:
        return self.rows * self.columns // (32 * GROUP_WARPS)

    def piece(self, stored_size: int) -> int:
        """Columns that a group stores at a time, of outputs of ``stored_size`` bytes."""
        return min(self.store_n * _STORED_UNIT // stored_size, self.block_n)

    def rest(self, stored_size: int) -> int:
        """Columns at the end of a tile that are narrower than a piece."""
        piece = self.piece(stored_size)
        return self.block_n % piece if self.whole else self.beside_n if self.beside_n < piece else 0

    def shared_bytes(self, operand_size: int, stored_size: int, *, by_pointers: bool = False) -> int:
        """Shared memory of the ring, of what is staged for its store, and of the barriers, however it is stored."""
        ring = self.num_stages * (self.block_m + self.columns) * self.block_k * operand_size
        piece = self.piece(stored_size)
        staged = 2 * self.rows * (self.store_buffers * piece + self.rest(stored_size)) * stored_size
        return ring + (0 if self.alone else staged) + (2 * self.num_stages + 2) * _BARRIER + _ALIGNING


#: What aligning the parts of shared memory may cost.
_ALIGNING = 512


def _config(
    m: int, n: int, beside: int, stages: int, store: tuple[int, int], *, turns: bool = False
) -> SpecialisedConfig:
    """``store``: columns of a piece, and buffers for pieces."""
    return SpecialisedConfig(
        block_m=m, block_n=n, beside_n=beside, block_k=_BLOCK_K, num_warps=GROUP_WARPS, num_stages=stages, turns=turns,
        store_n=store[0], store_buffers=store[1],
    )  # fmt: skip


def _alone(m: int, n: int, beside: int, stages: int) -> SpecialisedConfig:
    return replace(_config(m, n, beside, stages, (_BLOCK_K, stages)), alone=True)


#: Lanes of a step: as many as lines of 128 bytes hold, which the hardware swizzles.
_BLOCK_K = 64
#: Largest tile first.  A ring hides the loads; in what it leaves, as much of a tile is staged as there is room for.
_SINGLE = (
    _config(256, 128, 32, 4, (32, 1)),
    _alone(256, 128, 32, 4),
    _config(256, 128, 16, 4, (32, 1)),
    _alone(256, 128, 16, 4),
    _alone(256, 128, 8, 4),
    _alone(128, 256, 16, 4),
    _config(256, 128, 0, 4, (32, 2)),
    _config(128, 256, 0, 4, (64, 2)),
    _config(128, 128, 64, 5, (32, 3)),
    _config(128, 128, 32, 5, (32, 2), turns=True),
    _config(128, 128, 16, 5, (32, 2), turns=True),
    _alone(128, 128, 16, 6),
    _config(128, 128, 0, 6, (32, 4)),
    _config(128, 128, 0, 6, (32, 2), turns=True),
    _alone(128, 128, 0, 7),
    _config(128, 64, 32, 7, (32, 3)),
    _alone(128, 64, 32, 8),
    _alone(128, 64, 0, 9),
)


def _below(config: SpecialisedConfig) -> SpecialisedConfig:
    return replace(config, cluster_m=2)


def _aside(config: SpecialisedConfig) -> SpecialisedConfig:
    return replace(config, cluster_n=2)


#: Of these, programs of a cluster share the side that is longer, and where both are alike, either.
CLUSTERED_CONFIGS = (
    _aside(_config(256, 128, 32, 4, (32, 1))),
    _aside(_alone(256, 128, 32, 4)),
    _aside(_alone(256, 128, 16, 4)),
    _aside(_alone(256, 128, 8, 4)),
    _aside(_config(256, 128, 0, 4, (32, 2))),
    _below(_config(128, 256, 0, 4, (64, 2))),
    _below(_config(128, 128, 64, 5, (32, 3))),
    _aside(_alone(128, 128, 16, 6)),
    _below(_config(128, 128, 0, 6, (32, 4))),
    _aside(_config(128, 128, 0, 6, (32, 4))),
    _aside(_alone(128, 128, 0, 7)),
    _aside(_config(128, 64, 32, 7, (32, 3))),
    _below(_alone(128, 64, 32, 8)),
    _aside(_alone(128, 64, 32, 8)),
    _aside(_alone(128, 64, 16, 8)),
)


def _whole(
    m: int, n: int, stages: int, store: tuple[int, int] | None = None, *, turns: bool = False
) -> SpecialisedConfig:
    """``store``: as in :func:`_config`; None of a tile alone, in as wide pieces as leave one rest."""
    widest = _BLOCK_K if (rest := n % _BLOCK_K) & (rest - 1) == 0 else _BLOCK_K // 2
    piece, buffers = store or (widest, stages)
    return SpecialisedConfig(
        block_m=m, block_n=n, block_k=_BLOCK_K, num_warps=GROUP_WARPS, num_stages=stages, turns=turns, store_n=piece,
        store_buffers=buffers, alone=store is None, whole=True,
    )  # fmt: skip


#: One instruction across, where two would read A twice; the ring is as deep as memory allows.
WHOLE_CONFIGS = (
    _whole(256, 192, 3, (32, 3)),
    _whole(256, 192, 4),
    _whole(256, 176, 3, (32, 3)),
    _whole(256, 176, 4),
    _whole(256, 160, 4, (32, 1)),
    _whole(256, 160, 4),
    _whole(256, 144, 4, (32, 1)),
    _whole(256, 144, 4),
    _whole(256, 136, 4, (32, 1)),
    _whole(256, 136, 4),
    _whole(128, 240, 4, (32, 4)),
    _whole(128, 240, 4),
    _whole(128, 224, 4, (32, 4)),
    _whole(128, 224, 5),
    _whole(128, 208, 5, (32, 1)),
    _whole(128, 208, 5),
    _whole(128, 192, 5, (32, 3)),
    _whole(128, 192, 5, (32, 1), turns=True),
    _whole(128, 192, 5),
    _whole(128, 176, 5, (32, 3)),
    _whole(128, 176, 5, (32, 1), turns=True),
    _whole(128, 176, 5),
    _whole(128, 160, 5, (32, 4)),
    _whole(128, 160, 5, (32, 2), turns=True),
    _whole(128, 160, 6),
    _whole(128, 144, 6, (32, 2)),
    _whole(128, 144, 5, (32, 2), turns=True),
    _whole(128, 144, 6),
    _whole(128, 112, 7, (32, 1)),
    _whole(128, 112, 7),
    _whole(128, 96, 7, (32, 3)),
    _whole(128, 96, 8),
    _whole(128, 80, 8, (32, 1)),
    _whole(128, 80, 8),
)
#: In this order on a card: what scripts know configs by is their number.
SPECIALISED_CONFIGS = _SINGLE + CLUSTERED_CONFIGS + WHOLE_CONFIGS
#: The same with dependent launches.
EARLY_SPECIALISED_CONFIGS = tuple(replace(c, dependent=True) for c in SPECIALISED_CONFIGS)


def config_from(structure: Structure, fields: Mapping[str, Any]) -> KernelConfig:
    """The config of ``structure`` whose fields are these.

    Raises:
        InvalidInputError: no such config can be.
        TypeError: a field is missing, or none of its.
    """
    kind = SpecialisedConfig if structure is Structure.CHAIN_SPECIALISED else KernelConfig
    return kind(**fields)


def specialised_fits(config: KernelConfig, structure: Structure, meta: KernelMeta, span: int) -> bool:
    """Whether ``config`` is one of ``structure``, and where that is the specialised chain, whether it suits ``meta``.

    ``span``: the lanes that it reads.  The kernel counts the steps of all tiles in 32 bits.  Of a B by rows, a box of 8
    columns has lines of 16 bytes, for which the hardware has no swizzle that a warp group's instruction reads.
    """
    if not isinstance(config, SpecialisedConfig):
        return structure is not Structure.CHAIN_SPECIALISED
    tiles = config.tiles(meta.m, meta.n)
    narrow = config.wants_columns and meta.b.layout(meta.k, meta.n) is Layout.ROWS
    crowded = config.alone and tiles > meta.sm_count // config.cluster * config.cluster
    counted = tiles * -(-span // config.block_k) < 2**31
    return structure is Structure.CHAIN_SPECIALISED and counted and not (narrow or crowded)
