"""Launch the specialised chain of a KernelChoice."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.gluon_host import gluon_descriptor
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.variants_specialised import boxes_of, specialised_variant


def launch_specialised(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, span: int,
    enqueue: Callable[..., None],
) -> None:  # fmt: skip
    """``out = a @ b`` by ``choice``, whose operands are what the kernel reads, ``span`` lanes of them."""
    config, variant = choice.config, specialised_variant(choice)
    boxes = boxes_of(dict(variant.constants))
    sources = {
        "a_desc": (a, choice.a_layout), "b_desc": (b, choice.b_layout), "b_beside_desc": (b, choice.b_layout),
        "out_desc": (out, Layout.ROWS), "out_beside_desc": (out, Layout.ROWS),
    }  # fmt: skip
    described = [
        gluon_descriptor(tensor, layout, boxes[name]) if name in boxes else None
        for name, (tensor, layout) in sources.items()
    ]
    enqueue(variant, choice.programs, *described, out, *out.shape, -(-span // config.block_k), *out.stride())
