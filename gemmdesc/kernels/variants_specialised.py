"""The compiled kernels of the specialised chain, and the boxes that their tensor descriptors have.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import KernelChoice, configs_of
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.slices import OPERAND_DTYPES, output_dtypes
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variant import Constant, Variant

_UNIT = (Layout.ROWS, Layout.COLUMNS)


def specialised_variant(choice: KernelChoice) -> Variant:
    """The kernel that computes ``choice``, whose structure is the specialised chain."""
    assert isinstance(choice.config, SpecialisedConfig)
    return _variant(
        choice.config, choice.operand_dtype, choice.output_dtype, (choice.a_layout, choice.b_layout),
        (choice.store_by_descriptor, choice.out_layout, choice.wide_offsets),
    )  # fmt: skip


def _variant(
    config: SpecialisedConfig, loaded: DType, stored: DType, layouts: tuple[Layout, Layout],
    store: tuple[bool, Layout, bool],
) -> Variant:  # fmt: skip
    """``store``: by descriptor or not, the output's layout, wide offsets."""
    constants: dict[str, Constant] = {
        "A_ROWS": layouts[0] is Layout.ROWS, "B_ROWS": layouts[1] is Layout.ROWS, "STORE_BY_DESCRIPTOR": store[0],
        "DEPENDENT": config.dependent, "OUT_LAYOUT": store[1].value, "WIDE_OFFSETS": store[2],
        **tile_constants(config, stored),
    }  # fmt: skip
    return Variant(
        kernel=Structure.CHAIN_SPECIALISED.value, loaded=loaded, stored=stored, constants=tuple(constants.items()),
        num_warps=config.num_warps, num_stages=config.num_stages, dependent=config.dependent, cluster=config.cluster,
    )  # fmt: skip


def tile_constants(config: SpecialisedConfig, stored: DType) -> dict[str, Constant]:
    """What ``config`` says of tiles, of the ring, and of how the groups share and store outputs of type ``stored``."""
    return {
        "TURNS": config.turns, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BESIDE_N": config.beside_n,
        "BLOCK_K": config.block_k, "GROUP_M": config.group_m, "STAGES": config.num_stages,
        "STORE_N": config.piece(stored.itemsize), "STORE_BUFFERS": config.store_buffers, "ALONE": config.alone,
        "CLUSTER_M": config.cluster_m, "CLUSTER_N": config.cluster_n, "WHOLE": config.whole,
    }  # fmt: skip


def boxes_of(constants: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Rows and columns of the box of each tensor descriptor of a variant, as its matrix is stored.

    Where two programs load B for both, each loads half of the lines.  A kernel that has no constant for how it stores
    does so by descriptor.
    """
    rows, k, n, beside = (constants[name] for name in ("BLOCK_M", "BLOCK_K", "BLOCK_N", "BESIDE_N"))
    rows = rows if constants["TURNS"] else rows // 2
    half = constants["CLUSTER_M"]
    boxes = {
        "a_desc": (rows, k) if constants["A_ROWS"] else (k, rows),
        "b_desc": (k // half, n) if constants["B_ROWS"] else (n // half, k),
    }
    if constants["WHOLE"]:
        boxes |= {name: (lines // half, k) for name, lines in _boxes_of_b(n).items()}
    if beside:
        boxes["b_beside_desc"] = (k // half, beside) if constants["B_ROWS"] else (beside // half, k)
    if constants.get("STORE_BY_DESCRIPTOR", True):
        piece = constants["STORE_N"]
        boxes["out_desc"] = (rows, piece)
        if beside or (constants["WHOLE"] and n % piece):
            boxes["out_beside_desc"] = (rows, n % piece if constants["WHOLE"] else min(piece, beside))
    return boxes


def _boxes_of_b(width: int) -> dict[str, int]:
    """Columns of the boxes that B is loaded in where one instruction takes them: as large a one as can be, and others.

    Boxes of Triton's are powers of two.
    """
    first = 1 << width.bit_length() - 1
    rest = width - first
    return {"b_desc": first} | ({"b_beside_desc": rest & -rest} if rest else {})


def enumerate_specialised_variants(shared_bytes: int) -> Iterator[Variant]:
    """Every one that may be chosen on a card with that much memory."""
    structure = Structure.CHAIN_SPECIALISED
    stores = [(True, Layout.ROWS, False), *product((False,), _UNIT, (False, True))]
    for config, loaded in product(configs_of(structure), OPERAND_DTYPES):
        assert isinstance(config, SpecialisedConfig)
        for stored, a, b, store in product(output_dtypes(loaded), _UNIT, _UNIT, stores):
            held = config.shared_bytes(loaded.itemsize, stored.itemsize)
            if held <= shared_bytes and not (config.wants_columns and b is Layout.ROWS):
                yield _variant(config, loaded, stored, (a, b), store)
