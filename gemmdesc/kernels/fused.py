"""Choosing kernels that do what follows a product, in the chain's own kernel or right after it.  Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

from gemmdesc.descriptor import AddBias, AddC, CastTo, EpilogueStep, GEMMDesc, Relu, Scale, ScaleOutput
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import MAX_NARROW_OFFSET, KernelChoice, choose_kernel, configs_of, read_span
from gemmdesc.kernels.config import PIPELINED_CONFIGS, SHORT_CONFIGS, SHORT_TILE, TMA_CONFIGS, KernelConfig
from gemmdesc.kernels.estimate import estimated_us, turns_of
from gemmdesc.kernels.instructions import OPERAND_KINDS, Instructions, assembled
from gemmdesc.kernels.meta import TMA_ALIGNMENT, KernelMeta, Layout, MatrixMeta
from gemmdesc.kernels.slices import OPERAND_DTYPES, declined
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import UNTUNED, TunedTable
from gemmdesc.kernels.unasked import ends_compared, pays_unasked
from gemmdesc.pointwise import FunctionStep, PointwiseStep

#: Elements that an aligned output's lines are a multiple of.
LINE = 16
#: Triton has no code for storing rows of 8 so; of the others, those that a card has compared with such ends.
SINGLE_CONFIGS = tuple(c for c in TMA_CONFIGS if c.block_n >= 16 and c not in (*PIPELINED_CONFIGS, *SHORT_CONFIGS))
#: Two programs share a multiprocessor: one multiplies while the other finishes a tile by functions.
PAIRED = KernelConfig(block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=3, programs_per_sm=2)
FUSED_CONFIGS = (
    *SINGLE_CONFIGS, PAIRED,
    *(replace(c, dependent=True) for c in SINGLE_CONFIGS if c.block_m * c.block_n <= SHORT_TILE),
)  # fmt: skip
#: Sums of a thread beside which registers hold what is finished.
_MOST_SUMS = 176
#: Of the specialised chain, those of which every part of a tile is as many columns as an aligned line has elements.
SPECIALISED_ENDS = tuple(
    c for c in configs_of(Structure.CHAIN_SPECIALISED)
    if isinstance(c, SpecialisedConfig) and c.block_n % LINE == c.beside_n % LINE == 0
    and c.outputs_per_thread <= _MOST_SUMS
)  # fmt: skip
#: Nanoseconds in which a program finishes a thousand outputs, about, by functions and by all else.
_FUNCTION_NS, _OTHER_NS = 360.0, 160.0
#: The largest stride of an operand or an output, so that offsets inside a tile have 32 bits.
MOST_STRIDE = MAX_NARROW_OFFSET // 256
FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
#: Steps of a product's own that a chain's kernel does before the product is rounded.
_IN_CHAIN = (Scale, AddBias, Relu)
#: What torch's allocator aligns scratch to, in bytes.
_SCRATCH_ALIGNMENT = 256


@dataclass(frozen=True, kw_only=True)
class FusedChoice:
    """What to launch: ``product``'s chain with ``program`` at its end, or where not ``in_chain`` one after the other.

    ``product_dtype``: what the program starts from, in scratch unless ``in_chain``.  ``aligned``: the output starts at
    a multiple of 16 bytes, and its lines are multiples of 16 elements long and apart.  ``store_by_descriptor``: the
    kernel stores through a tensor descriptor.  ``product`` is any choice but another of these.
    """

    product: Any
    in_chain: bool
    program: Instructions
    product_dtype: DType
    output_dtype: DType
    out_layout: Layout
    aligned: bool
    store_by_descriptor: bool = False

    @property
    def structure(self) -> Structure:
        return Structure.FUSED


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """``before``: steps of the product's own; ``after``: what follows its rounding to ``product_dtype``."""

    before: tuple[EpilogueStep, ...]
    product_dtype: DType
    after: tuple[EpilogueStep, ...]


def needs_fused(desc: GEMMDesc) -> bool:
    """Whether steps follow the product that no other kernels do: pointwise ones, and casts to 8-bit floats."""
    if desc.overflows or any(isinstance(s, get_args(PointwiseStep)) for s in desc.epilogue):
        return True
    own = any(isinstance(s, AddC | ScaleOutput) for s in desc.epilogue)
    return desc.output_dtype in FLOAT8 and bool(_parts(desc).after) and not own


def _parts(desc: GEMMDesc) -> _Parts:
    steps, kinds = desc.epilogue, get_args(PointwiseStep)
    for i, step in enumerate(steps):
        if isinstance(step, CastTo) and step.dtype in OPERAND_KINDS:
            return _Parts(before=steps[:i], product_dtype=step.dtype, after=steps[i + 1 :])
        if isinstance(step, (*kinds, CastTo)):
            return _Parts(before=steps[:i], product_dtype=DType.FLOAT32, after=steps[i:])
    return _Parts(before=steps, product_dtype=desc.output_dtype, after=())


def choose_fused(
    desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic,
    choose_product: Callable[[GEMMDesc, KernelMeta, CardArithmetic], Any], *, tuned: TunedTable = UNTUNED,
    structure: Structure | None = None, config: KernelConfig | None = None,
) -> FusedChoice | Declined:  # fmt: skip
    """The kernels that compute ``desc`` with what follows its product, bit for bit.

    ``choose_product``: chooses for the product alone, where its own kernel cannot end with the rest.  ``structure``:
    asks for a chain whose kernel ends with the rest, one of ``chain_tma`` and ``chain_specialised``, and ``config`` for
    its config; declines (``kernel``) where there is none.
    """
    if meta.out.dtype is not desc.output_dtype:
        return declined(f"out must have the descriptor's type {desc.output_dtype.value} (got {meta.out.dtype.value})")
    if desc.output_dtype not in (*OPERAND_KINDS, *FLOAT8):
        return declined(f"the output must be a float of 8, 16 or 32 bits (got {desc.output_dtype.value})")
    if not 0 <= min(meta.out.row_stride, meta.out.column_stride) <= max(meta.out.row_stride, meta.out.column_stride):
        return declined(f"strides must not be negative (got {meta.out})")
    if max(meta.out.row_stride, meta.out.column_stride) > MOST_STRIDE:
        return declined(f"strides of out must be at most {MOST_STRIDE} (got {meta.out})")
    parts = _parts(desc)
    after = parts.after
    if desc.output_dtype in FLOAT8 and after[-1:] and after[-1] in (
        CastTo(dtype=desc.output_dtype), CastTo(dtype=desc.output_dtype, overflows=True)
    ):  # fmt: skip
        after = after[:-1]
    canonical = not desc.keeps_nan_patterns
    chain = _chain(desc, parts, meta, card, tuned) if structure is None else None
    if structure is not None or (chain is not None and ends_compared(Structure.CHAIN_SPECIALISED)):
        asked = asked_chain(desc, meta, card, structure or Structure.CHAIN_SPECIALISED, config)
        if structure is not None and asked is None:
            return declined(f"no kernel of the structure and config asked for ends so (got {structure}, {config})")
        chain = min(filter(None, (chain, asked)), key=lambda c: predicted_end_us(c, meta, desc.epilogue))
    if chain is not None:
        steps = (*parts.before, CastTo(dtype=parts.product_dtype), *after)
        program = assembled(_told(steps, desc.output_dtype), overflows=desc.overflows, canonical=canonical)
        if isinstance(program, Declined):
            return program
        turned = meta.swapped if chain.swapped else meta
        return _choice(chain, True, program, parts, desc, turned, chain.out_layout)
    before = parts.before
    single = parts.product_dtype is DType.FLOAT32 and desc.a_dtype in OPERAND_DTYPES
    if single and all(isinstance(s, _IN_CHAIN) for s in before):
        # Kernels of products want a bias of the product's own type.
        before, after = (), (*before, *after)
    program = assembled(_told(after, desc.output_dtype), overflows=desc.overflows, canonical=canonical)
    if isinstance(program, Declined):
        return program
    alone = replace(desc, epilogue=before, output_dtype=parts.product_dtype)
    scratch = MatrixMeta(
        dtype=parts.product_dtype, row_stride=meta.n, column_stride=1, alignment=_SCRATCH_ALIGNMENT
    )  # fmt: skip
    product = choose_product(alone, replace(meta, out=scratch), card)
    if isinstance(product, Declined):
        return product
    if meta.n > MOST_STRIDE:
        return declined(f"n must be at most {MOST_STRIDE} (got {meta.n})")
    by_rows = meta.out.layout(meta.m, meta.n) is Layout.ROWS
    return _choice(product, False, program, parts, desc, meta, Layout.ROWS if by_rows else Layout.ANY)


def _told(steps: tuple[EpilogueStep, ...], stored: DType) -> tuple[EpilogueStep, ...]:
    """``steps`` with the rounding of the store said where a function comes last: it is cheaper where that is known."""
    if stored in OPERAND_DTYPES and steps and isinstance(steps[-1], get_args(FunctionStep)):
        return (*steps, CastTo(dtype=stored))
    return steps


def _choice(
    product: Any, in_chain: bool, program: Instructions, parts: _Parts, desc: GEMMDesc, meta: KernelMeta, layout: Layout
) -> FusedChoice:
    out, m, n = meta.out, meta.m, meta.n
    by_descriptor = Structure.CHAIN_TMA, Structure.CHAIN_SPECIALISED
    stores = in_chain and product.structure in by_descriptor and layout is Layout.ROWS
    line = {Layout.ROWS: out.row_stride | n, Layout.COLUMNS: out.column_stride | m, Layout.ANY: 1}[layout]
    return FusedChoice(
        product=product, in_chain=in_chain, program=program, product_dtype=parts.product_dtype,
        output_dtype=desc.output_dtype, out_layout=layout,
        aligned=out.alignment % TMA_ALIGNMENT == 0 and line % LINE == 0,
        store_by_descriptor=stores and desc.output_dtype not in FLOAT8 and out.stored_by_descriptor(m, n),
    )  # fmt: skip


def asked_chain(
    desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic, structure: Structure, config: KernelConfig | None
) -> KernelChoice | None:
    """The chain of ``structure`` whose kernel ends with all that follows, with ``config`` or that of least estimate."""
    parts = _parts(desc)
    specialised = structure is Structure.CHAIN_SPECIALISED
    if not all(isinstance(s, _IN_CHAIN) for s in parts.before):
        return None
    if specialised:
        # What is stored is 16 bits, by descriptor.
        if desc.output_dtype is not desc.a_dtype:
            return None
        known: tuple[KernelConfig, ...] = tuple(c for c in SPECIALISED_ENDS if c.cluster == 1)
    else:
        known = SINGLE_CONFIGS
    if config is not None:
        known = tuple(c for c in (*SPECIALISED_ENDS, *FUSED_CONFIGS) if c == config)
    held = desc.output_dtype if specialised or parts.before else parts.product_dtype
    alone = replace(desc, epilogue=(), output_dtype=held)
    stored = replace(meta, out=replace(meta.out, dtype=held))
    found = []
    for one in known:
        chain = choose_kernel(alone, stored, card, config=one, structure=structure)
        if isinstance(chain, KernelChoice) and not chain.merges and chain.slices.count == 1:
            found += [chain] if chain.store_by_descriptor or not specialised else []
    return min(found, key=lambda c: predicted_end_us(c, meta, desc.epilogue), default=None)


def predicted_end_us(chain: KernelChoice, meta: KernelMeta, epilogue: tuple[EpilogueStep, ...]) -> float:
    """Estimated microseconds of ``chain`` whose kernel ends with ``epilogue``; infinite where it reads by pointers."""
    if not chain.structure.by_descriptor:
        return math.inf
    turned = meta.swapped if chain.swapped else meta
    functions = any(isinstance(s, get_args(FunctionStep)) for s in epilogue)
    return estimated_us(
        chain.structure, chain.config, turned, chain.slices, read_span(chain.slices, turned),
        finishing_ns=_FUNCTION_NS if functions else _OTHER_NS,
    )  # fmt: skip


def _chain(
    desc: GEMMDesc, parts: _Parts, meta: KernelMeta, card: CardArithmetic, tuned: TunedTable
) -> KernelChoice | None:
    """The chain whose kernel can end with all that follows: one slice, read where offsets have 32 bits."""
    if not all(isinstance(s, _IN_CHAIN) for s in parts.before):
        return None
    if desc.output_dtype not in (desc.a_dtype, DType.FLOAT32, *FLOAT8):
        return None
    held = DType.FLOAT32 if parts.before else parts.product_dtype
    alone = replace(desc, epilogue=(), output_dtype=held)
    stored = replace(meta, out=replace(meta.out, dtype=held))
    chain = choose_kernel(alone, stored, card, tuned=tuned, unasked=frozenset())
    if not isinstance(chain, KernelChoice) or chain.merges or chain.slices.count != 1:
        return None
    if chain.structure in (Structure.CHAIN_TMA, Structure.CHAIN_WIDE, Structure.CHAIN_SPECIALISED):
        if chain.config not in FUSED_CONFIGS:
            chosen = choose_kernel(alone, stored, card, configs=SINGLE_CONFIGS, structure=Structure.CHAIN_TMA)
            if not isinstance(chosen, KernelChoice):
                return None
            chain = chosen
        return _scheduled(chain, alone, stored, card, paired=_wants_pairs(desc))
    narrow = meta.a.last_offset(meta.m, meta.k), meta.b.last_offset(meta.k, meta.n)
    fits = chain.structure is Structure.CHAIN_POINTER and max(narrow) <= MAX_NARROW_OFFSET
    return chain if fits else None


def _wants_pairs(desc: GEMMDesc) -> bool:
    """Whether functions follow, and results are so narrow that two programs share a multiprocessor's memory."""
    return desc.output_dtype.itemsize <= 2 and any(isinstance(s, get_args(FunctionStep)) for s in desc.epilogue)


def _scheduled(
    chain: KernelChoice, alone: GEMMDesc, meta: KernelMeta, card: CardArithmetic, *, paired: bool
) -> KernelChoice:
    """``chain`` of several programs on each multiprocessor where what follows takes long, or started early.

    A program that finishes a tile multiplies nothing, and waits for operands and stores.  Where chains are short, other
    programs ask for theirs meanwhile; where each program has several tiles and what follows wants pairs (``paired``),
    the other one multiplies.
    """
    turned = meta.swapped if chain.swapped else meta
    turns = turns_of(Structure.CHAIN_TMA, chain.config, turned, chain.slices, read_span(chain.slices, turned))
    chosen: Any = chain
    short = turns.steps < chain.config.num_stages and 2 * turns.items > turned.sm_count
    if short and chain.config.programs_per_sm == 1:
        shared = tuple(c for c in SINGLE_CONFIGS if c.programs_per_sm > 1 and c.block_n * c.block_m >= SHORT_TILE)
        chosen = choose_kernel(alone, meta, card, configs=shared, structure=Structure.CHAIN_TMA)
    elif paired and turns.each > 1 and chain.config == SINGLE_CONFIGS[0]:
        chosen = choose_kernel(alone, meta, card, config=PAIRED, structure=Structure.CHAIN_TMA)
    if not isinstance(chosen, KernelChoice):
        chosen = chain
    early = replace(chosen.config, dependent=True)
    pays = early in FUSED_CONFIGS and pays_unasked(
        Structure.CHAIN_TMA, early, turned, chosen.slices, read_span(chosen.slices, turned)
    )
    started: KernelChoice = replace(chosen, config=early) if pays else chosen
    return started
