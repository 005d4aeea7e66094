"""Launch the specialised chain of a KernelChoice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.gluon_host import gluon_descriptor
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.variant import Variant
from gemmdesc.kernels.variants_specialised import boxes_of, specialised_variant


def launch_specialised(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, span: int,
    enqueue: Callable[..., None],
) -> None:  # fmt: skip
    """``out = a @ b`` by ``choice``, whose operands are what the kernel reads, ``span`` lanes of them."""
    config, variant = choice.config, specialised_variant(choice)
    enqueue(
        variant, choice.programs, *described(choice, variant, a, b, out), out, *out.shape, -(-span // config.block_k),
        *out.stride(),
    )  # fmt: skip


def described(
    choice: KernelChoice, variant: Variant, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> list[GluonDescriptor | None]:
    """The tensor descriptors that the kernel ``variant`` of ``choice`` takes, None for those that it does without."""
    boxes = boxes_of(dict(variant.constants))
    sources = {
        "a_desc": (a, choice.a_layout), "b_desc": (b, choice.b_layout), "b_beside_desc": (b, choice.b_layout),
        "out_desc": (out, Layout.ROWS), "out_beside_desc": (out, Layout.ROWS),
    }  # fmt: skip
    return [
        gluon_descriptor(tensor, layout, boxes[name]) if name in boxes else None
        for name, (tensor, layout) in sources.items()
    ]
