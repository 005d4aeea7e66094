"""The compiled kernels that can exist: one :class:`Variant` each, and all of them.

The launcher takes a kernel's constants from here, so what it compiles is in :func:`enumerate_variants` unless a caller
overrides the config.  Pure; ``compiling`` counts and compiles them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import (
    OPERAND_DTYPES,
    STEP_SIZES,
    KernelChoice,
    Layout,
    Merge,
    Structure,
    configs_of,
    output_dtypes,
)
from gemmdesc.kernels.config import KernelConfig

Constant = bool | int | str
#: Elements that one program of the merge folds.
MERGE_BLOCK = 512
_MERGE_WARPS = 4
_MERGE_STAGES = 3
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
#: Layouts of the operands that a pointer kernel is compiled for; unit strides in both operands, or in neither.
_POINTER_LAYOUTS = (
    *product((Layout.ROWS, Layout.COLUMNS), (Layout.ROWS, Layout.COLUMNS)),
    (Layout.ANY, Layout.ANY),
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One compiled kernel: pointer types and ``constants`` fix it.  A constant that names a type is its DType spelling.

    ``loaded`` is the type behind its input pointers or descriptors, ``stored`` that behind its output.
    """

    kernel: str
    loaded: DType
    stored: DType
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int


def chain_variant(choice: KernelChoice) -> Variant:
    """The kernel that computes the slices of ``choice``."""
    stored = DType.FLOAT32 if choice.slices.merge else choice.output_dtype
    return _chain_variant(
        choice.structure,
        choice.config,
        loaded=choice.operand_dtype,
        stored=stored,
        layouts=(choice.a_layout, choice.b_layout),
        out_layout=choice.out_layout,
        store_by_descriptor=choice.store_by_descriptor,
        wide_offsets=choice.wide_offsets,
        instruction_k=choice.slices.instruction_k,
    )


def _chain_variant(
    structure: Structure,
    config: KernelConfig,
    *,
    loaded: DType,
    stored: DType,
    layouts: tuple[Layout, Layout],
    out_layout: Layout,
    store_by_descriptor: bool,
    wide_offsets: bool,
    instruction_k: int,
) -> Variant:
    constants: dict[str, Constant] = {}
    match structure:
        case Structure.CHAIN_TMA:
            constants["A_ROWS"] = layouts[0] is Layout.ROWS
            constants["B_ROWS"] = layouts[1] is Layout.ROWS
            constants["STORE_BY_DESCRIPTOR"] = store_by_descriptor
        case Structure.CHAIN_POINTER | Structure.GROUPED_CHAIN:
            constants["A_LAYOUT"] = layouts[0].value
            constants["B_LAYOUT"] = layouts[1].value
    if structure is Structure.GROUPED_CHAIN:
        constants["INSTRUCTION_K"] = instruction_k
    constants |= {
        "OUT_LAYOUT": out_layout.value,
        "WIDE_OFFSETS": wide_offsets,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
    }
    return Variant(
        kernel=structure.value,
        loaded=loaded,
        stored=stored,
        constants=tuple(constants.items()),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def merge_variant(merge: Merge, output_dtype: DType, *, wide_offsets: bool) -> Variant:
    """The kernel that folds the slices."""
    constants: dict[str, Constant] = {
        "PARTIAL_DTYPE": merge.partial_dtype.value,
        "MERGE_DTYPE": merge.merge_dtype.value,
        "START_AT_ZERO": merge.start is Start.ZERO,
        "WIDE_OFFSETS": wide_offsets,
        "BLOCK": MERGE_BLOCK,
    }
    return Variant(
        kernel="merge",
        loaded=DType.FLOAT32,
        stored=output_dtype,
        constants=tuple(constants.items()),
        num_warps=_MERGE_WARPS,
        num_stages=_MERGE_STAGES,
    )


def enumerate_variants(shared_bytes: int) -> frozenset[Variant]:
    """Every variant that the chooser can pick without a ``config`` of the caller's, on a card with that much memory."""
    return frozenset([*_tma_variants(shared_bytes), *_pointer_variants(shared_bytes), *_merge_variants()])


def _tma_variants(shared_bytes: int) -> Iterator[Variant]:
    units = (Layout.ROWS, Layout.COLUMNS)
    stores = [(True, Layout.ROWS, False), *product((False,), units, (False, True))]
    for loaded, config in product(OPERAND_DTYPES, configs_of(Structure.CHAIN_TMA)):
        for stored, a, b, store in product(output_dtypes(loaded), units, units, stores):
            if config.shared_bytes(loaded.itemsize, stored.itemsize) > shared_bytes:
                continue
            yield _chain_variant(
                Structure.CHAIN_TMA, config, loaded=loaded, stored=stored, layouts=(a, b), out_layout=store[1],
                store_by_descriptor=store[0], wide_offsets=store[2], instruction_k=0,
            )  # fmt: skip


def _pointer_variants(shared_bytes: int) -> Iterator[Variant]:
    kinds = [(Structure.CHAIN_POINTER, 0), *product((Structure.GROUPED_CHAIN,), STEP_SIZES)]
    for (structure, step), loaded in product(kinds, OPERAND_DTYPES):
        for config, stored, layouts, out_layout, wide in product(
            configs_of(structure), output_dtypes(loaded), _POINTER_LAYOUTS, (Layout.ROWS, Layout.COLUMNS), (False, True)
        ):
            if config.shared_bytes(loaded.itemsize, stored.itemsize) > shared_bytes:
                continue
            yield _chain_variant(
                structure, config, loaded=loaded, stored=stored, layouts=layouts, out_layout=out_layout,
                store_by_descriptor=False, wide_offsets=wide, instruction_k=step,
            )  # fmt: skip


def _merge_variants() -> Iterator[Variant]:
    for partial, merged, start, stored, wide in product(_FLOATS, _FLOATS, Start, _FLOATS, (False, True)):
        merge = Merge(partial_dtype=partial, merge_dtype=merged, start=start)
        yield merge_variant(merge, stored, wide_offsets=wide)
