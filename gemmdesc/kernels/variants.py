"""The compiled kernels that can exist, one :class:`Variant` each.

The launcher takes a kernel's constants from here, so what it compiles is in :func:`enumerate_variants` unless a caller
overrides the config.  Pure; ``compiling`` counts and compiles them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.choose import MAX_NARROW_OFFSET, KernelChoice, Packing, configs_of, foldable
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.finished import FinishedChoice
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.nest import NEST_CONFIGS, NEST_DTYPES, NestChoice, NestConfig
from gemmdesc.kernels.slices import OPERAND_DTYPES, STEP_SIZES, Merge, output_dtypes
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variant import Constant
from gemmdesc.kernels.variant import Variant as Variant
from gemmdesc.kernels.variants_fma import enumerate_fma_variants
from gemmdesc.kernels.variants_fused import enumerate_fused_variants
from gemmdesc.kernels.variants_kmajor import enumerate_kmajor_variants
from gemmdesc.kernels.variants_lanes import enumerate_lane_variants, lane_variant
from gemmdesc.kernels.variants_specialised import enumerate_specialised_variants, specialised_variant

_MERGE = "merge"
#: Elements that one program of the merge folds.
MERGE_BLOCK = 512
#: Outputs of which one program folds one cut of a nest.
FOLD_BLOCK = 256
#: Outputs that one program finishes.
FINISH_BLOCK = 512
#: Rows and lanes that one program of the repacking copies.
PACK_ROWS = 64
PACK_LANES = 64
_COPY_WARPS = 4
_COPY_STAGES = 3
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
#: Layouts of the operands that a pointer kernel is compiled for; unit strides in both operands, or in neither.
_POINTER_LAYOUTS = (
    *product((Layout.ROWS, Layout.COLUMNS), (Layout.ROWS, Layout.COLUMNS)),
    (Layout.ANY, Layout.ANY),
)


def chain_variant(choice: KernelChoice) -> Variant:
    """The kernel that computes the slices of ``choice``."""
    if choice.structure is Structure.CHAIN_SPECIALISED:
        return specialised_variant(choice)
    return _chain_variant(
        choice.structure,
        choice.config,
        loaded=choice.operand_dtype,
        stored=choice.stored_dtype,
        layouts=(choice.a_layout, choice.b_layout),
        store=(choice.store_by_descriptor, choice.out_layout, choice.wide_offsets),
        instruction_k=choice.slices.instruction_k,
        merge=choice.slices.merge,
    )


def _chain_variant(
    structure: Structure,
    config: KernelConfig,
    *,
    loaded: DType,
    stored: DType,
    layouts: tuple[Layout, Layout],
    store: tuple[bool, Layout, bool],
    instruction_k: int = 0,
    merge: Merge | None = None,
) -> Variant:
    """``store``: by descriptor or not, the output's layout, wide offsets."""
    constants: dict[str, Constant] = {}
    if structure.by_descriptor:
        constants["A_ROWS"] = layouts[0] is Layout.ROWS
        constants["B_ROWS"] = layouts[1] is Layout.ROWS
        if not structure.merged:
            constants["STORE_BY_DESCRIPTOR"] = store[0]
    else:
        constants["A_LAYOUT"] = layouts[0].value
        constants["B_LAYOUT"] = layouts[1].value
    if structure in (Structure.GROUPED_CHAIN, Structure.MERGED_GROUPED):
        constants["INSTRUCTION_K"] = instruction_k
    if structure is Structure.FOLDED_CHAIN and merge is not None:
        constants["PARTIAL_DTYPE"] = merge.partial_dtype.value
        constants["MERGE_DTYPE"] = merge.merge_dtype.value
    if structure in (Structure.CHAIN_TMA, Structure.CHAIN_WIDE, Structure.MERGED_TMA):
        constants["DEPENDENT"] = config.dependent
    constants["OUT_LAYOUT"] = store[1].value
    if not structure.merged:
        constants["WIDE_OFFSETS"] = store[2]
    constants |= {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        **({"BESIDE_N": config.beside_n} if config.beside_n else {}),
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
        dependent=bool(constants.get("DEPENDENT", False)),
    )


def pack_variant(layouts: tuple[Layout, Layout], *, dtype: DType, instruction_k: int, wide_offsets: bool) -> Variant:
    """The kernel that copies both operands, which are (rows, k) of ``layouts``."""
    a, b = layouts
    constants: dict[str, Constant] = {
        "A_LAYOUT": a.value,
        "A_PACKED_ROWS": a is not Layout.COLUMNS,
        "B_LAYOUT": b.value,
        "B_PACKED_ROWS": b is not Layout.COLUMNS,
        "WIDE_OFFSETS": wide_offsets,
        "INSTRUCTION_K": instruction_k,
        "BLOCK_ROWS": PACK_ROWS,
        "BLOCK_K": PACK_LANES,
    }
    return Variant(
        kernel="repack",
        loaded=dtype,
        stored=dtype,
        constants=tuple(constants.items()),
        num_warps=_COPY_WARPS,
        num_stages=_COPY_STAGES,
    )


def packing_variant(choice: KernelChoice, packing: Packing) -> Variant:
    """The kernel that makes the copies that ``choice`` reads."""
    layouts = packing.a_source, packing.b_source.transposed
    return pack_variant(
        layouts, dtype=choice.operand_dtype, instruction_k=choice.slices.instruction_k, wide_offsets=packing.wide
    )


def leaves_variant(choice: NestChoice) -> Variant:
    """The kernel that computes the chains of ``choice``."""
    return _leaves_variant(choice.config, choice.operand_dtype, choice.fused, choice.wide_offsets)


def _leaves_variant(config: NestConfig, loaded: DType, fused: bool, wide_offsets: bool) -> Variant:
    constants: dict[str, Constant] = {
        "FUSED": fused,
        "WIDE_OFFSETS": wide_offsets,
        "BLOCK_OUTPUTS": config.block_outputs,
        "BLOCK_LEAVES": config.block_leaves,
    }
    return Variant(
        kernel="scalar_leaves", loaded=loaded, stored=DType.FLOAT32, constants=tuple(constants.items()),
        num_warps=config.num_warps, num_stages=_COPY_STAGES, fp_fusion=fused,
    )  # fmt: skip


def fold_variant(merge: Merge, stored: DType) -> Variant:
    """The kernel that folds one cut of a nest."""
    constants: dict[str, Constant] = {
        "PARTIAL_DTYPE": merge.partial_dtype.value, "MERGE_DTYPE": merge.merge_dtype.value, "BLOCK": FOLD_BLOCK,
    }  # fmt: skip
    return Variant(
        kernel="fold_level", loaded=DType.FLOAT32, stored=stored, constants=tuple(constants.items()),
        num_warps=_COPY_WARPS, num_stages=_COPY_STAGES,
    )  # fmt: skip


def variants_of(choice: KernelChoice | NestChoice | LaneChoice) -> tuple[Variant, ...]:
    """Every kernel that launching ``choice`` runs, a merge with narrow offsets standing for both of its widths."""
    if isinstance(choice, LaneChoice):
        return (lane_variant(choice),)
    if isinstance(choice, NestChoice):
        inner = tuple(dict.fromkeys(fold_variant(f, DType.FLOAT32) for f in choice.folds[:-1]))
        return (leaves_variant(choice), *inner, fold_variant(choice.folds[-1], choice.output_dtype))
    found = [chain_variant(choice)]
    if choice.packing is not None:
        found.append(packing_variant(choice, choice.packing))
    if choice.merges and choice.slices.merge is not None:
        found.append(merge_variant(choice.slices.merge, choice.output_dtype, wide_offsets=False))
    return tuple(found)


def merge_variant(merge: Merge, output_dtype: DType, *, wide_offsets: bool) -> Variant:
    """The kernel that folds the slices."""
    constants: dict[str, Constant] = {
        "PARTIAL_DTYPE": merge.partial_dtype.value,
        "MERGE_DTYPE": merge.merge_dtype.value,
        "WIDE_OFFSETS": wide_offsets,
        "BLOCK": MERGE_BLOCK,
    }
    return Variant(
        kernel=_MERGE,
        loaded=DType.FLOAT32,
        stored=output_dtype,
        constants=tuple(constants.items()),
        num_warps=_COPY_WARPS,
        num_stages=_COPY_STAGES,
    )


def balanced_variants(choice: BalancedChoice) -> tuple[Variant, ...]:
    """Every kernel that launching ``choice`` runs: its runs' chains, which store their slices, and the folds."""
    chains = [v for run in choice.runs for v in variants_of(run.chain) if v.kernel != _MERGE]
    inner = [fold_variant(f, DType.FLOAT32) for f in choice.folds[:-1]]
    return tuple(dict.fromkeys((*chains, *inner, fold_variant(choice.folds[-1], choice.output_dtype))))


def finish_variant(*, beside: DType, stored: DType, wide_offsets: bool) -> Variant:
    """The kernel that folds sums and does what opens or follows them; ``beside``: the type of C and of the bias."""
    constants: dict[str, Constant] = {"WIDE_OFFSETS": wide_offsets, "BLOCK": FINISH_BLOCK}
    return Variant(
        kernel="finish", loaded=beside, stored=stored, constants=tuple(constants.items()), num_warps=_COPY_WARPS,
        num_stages=_COPY_STAGES, fp_fusion=False,
    )  # fmt: skip


def finish_is_wide(outputs: int, *reaches: int) -> bool:
    """Whether finishing so many outputs, to and from matrices that reach so far, takes 64-bit offsets."""
    return max(outputs, *reaches) + FINISH_BLOCK > MAX_NARROW_OFFSET


def finished_variants(choice: FinishedChoice, *, wide_offsets: bool) -> tuple[Variant, ...]:
    """Every kernel that launching ``choice`` runs: those of its sums but their last fold, and what finishes them."""
    match choice.sums:
        case BalancedChoice(runs=runs, folds=folds):
            found = [v for run in runs for v in variants_of(run.chain) if v.kernel != _MERGE]
            found += [fold_variant(f, DType.FLOAT32) for f in folds[:-1]]
        case NestChoice() as nest:
            found = [leaves_variant(nest), *(fold_variant(f, DType.FLOAT32) for f in nest.folds[:-1])]
        case LaneChoice() as lanes:
            found = [lane_variant(lanes)]
        case KernelChoice() as chain:
            found = [v for v in variants_of(chain) if v.kernel != _MERGE]
    stored = [DType.FLOAT32, choice.output_dtype] if choice.opens_early else [choice.output_dtype]
    last = [finish_variant(beside=choice.output_dtype, stored=s, wide_offsets=wide_offsets) for s in stored]
    return tuple(dict.fromkeys((*found, *last)))


def enumerate_variants(shared_bytes: int) -> frozenset[Variant]:
    """Every variant that the chooser can pick without a ``config`` of the caller's, on a card with that much memory."""
    parts = (
        *_descriptor_variants(shared_bytes),
        *_pointer_variants(shared_bytes),
        *_merged_variants(shared_bytes),
        *_pack_variants(),
        *_merge_variants(),
        *_nest_variants(),
        *enumerate_lane_variants(),
        *_finish_variants(),
        *enumerate_kmajor_variants(shared_bytes),
        *enumerate_fma_variants(),
        *enumerate_fused_variants(shared_bytes),
        *enumerate_specialised_variants(shared_bytes),
    )
    return frozenset(parts)


_UNIT = (Layout.ROWS, Layout.COLUMNS)


def _fitting(
    structure: Structure, shared_bytes: int, *, by_pointers: bool = False
) -> Iterator[tuple[KernelConfig, DType, DType]]:
    """(config, operand type, stored type) of a structure; ``by_pointers``: as far as they store by pointers."""
    for config, loaded in product(configs_of(structure), OPERAND_DTYPES):
        for stored in output_dtypes(loaded):
            if config.shared_bytes(loaded.itemsize, stored.itemsize, by_pointers=by_pointers) <= shared_bytes:
                yield config, loaded, stored


def _descriptor_variants(shared_bytes: int) -> Iterator[Variant]:
    stores = [(True, Layout.ROWS, False), *product((False,), _UNIT, (False, True))]
    for structure, store in product((Structure.CHAIN_TMA, Structure.CHAIN_WIDE, Structure.FOLDED_CHAIN), stores):
        folds = structure is Structure.FOLDED_CHAIN
        for config, loaded, stored in _fitting(structure, shared_bytes, by_pointers=not store[0]):
            merges = [m for m in _merges() if foldable(m, stored)] if folds else [None]
            for a, b, merge in product(_UNIT, _UNIT, merges):
                yield _chain_variant(
                    structure, config, loaded=loaded, stored=stored, layouts=(a, b), store=store, merge=merge
                )


def _pointer_variants(shared_bytes: int) -> Iterator[Variant]:
    kinds = [(Structure.CHAIN_POINTER, 0), *product((Structure.GROUPED_CHAIN,), STEP_SIZES)]
    for structure, step in kinds:
        for (config, loaded, stored), layouts, out_layout, wide in product(
            _fitting(structure, shared_bytes), _POINTER_LAYOUTS, _UNIT, (False, True)
        ):
            yield _chain_variant(
                structure, config, loaded=loaded, stored=stored, layouts=layouts, store=(False, out_layout, wide),
                instruction_k=step,
            )  # fmt: skip


def _merged_variants(shared_bytes: int) -> Iterator[Variant]:
    """What the fold rounds to is a run-time value, and offsets are narrow."""
    kinds = [(Structure.MERGED_TMA, 0), (Structure.MERGED_POINTER, 0)]
    kinds += [(Structure.MERGED_GROUPED, step) for step in STEP_SIZES]
    for structure, step in kinds:
        layouts = tuple(product(_UNIT, _UNIT)) if structure.by_descriptor else _POINTER_LAYOUTS
        for (config, loaded, stored), pair, out_layout in product(_fitting(structure, shared_bytes), layouts, _UNIT):
            yield _chain_variant(
                structure, config, loaded=loaded, stored=stored, layouts=pair, store=(False, out_layout, False),
                instruction_k=step,
            )  # fmt: skip


def _pack_variants() -> Iterator[Variant]:
    sources = product(Layout, Layout)
    for layouts, dtype, step, wide in product(sources, OPERAND_DTYPES, STEP_SIZES, (False, True)):
        yield pack_variant(layouts, dtype=dtype, instruction_k=step, wide_offsets=wide)


def _merges() -> tuple[Merge, ...]:
    """One merge per pair of roundings; where a fold starts is a run-time value."""
    return tuple(Merge(partial_dtype=p, merge_dtype=r, start=Start.FIRST) for p, r in product(_FLOATS, _FLOATS))


def _merge_variants() -> Iterator[Variant]:
    for merge, stored, wide in product(_merges(), _FLOATS, (False, True)):
        yield merge_variant(merge, stored, wide_offsets=wide)


def _nest_variants() -> Iterator[Variant]:
    for config, loaded, fused, wide in product(NEST_CONFIGS, NEST_DTYPES, (True, False), (False, True)):
        yield _leaves_variant(config, loaded, fused, wide)
    for merge, stored in product(_merges(), _FLOATS):
        yield fold_variant(merge, stored)


def _finish_variants() -> Iterator[Variant]:
    """C and the bias have the output's type; what goes back to scratch is float32."""
    for beside, wide in product(_FLOATS, (False, True)):
        for stored in (beside, DType.FLOAT32):
            yield finish_variant(beside=beside, stored=stored, wide_offsets=wide)
