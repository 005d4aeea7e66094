"""What the host makes for kernels in Gluon: tensor descriptors that name their layout, and sources to compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from triton.compiler import ASTSource
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

from gemmdesc.kernels.meta import TMA_ALIGNMENT, Layout

if TYPE_CHECKING:
    import torch

#: Bytes of the lines that the hardware swizzles, widest first; narrower ones lie as they come.
_SWIZZLES = (128, 64, 32)


def box_layout(box: tuple[int, int], itemsize: int) -> NVMMASharedLayout:
    """How a box of elements of so many bytes lies in shared memory: as a matrix instruction reads it."""
    line = box[1] * itemsize
    swizzle = next((width for width in _SWIZZLES if line % width == 0), 0)
    return NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=8 * itemsize, rank=2)


def descriptor_type(element: str, box: tuple[int, int], itemsize: int) -> str:
    """A descriptor's type in a kernel's signature; ``element`` is Triton's name of the type behind it."""
    return f"tensordesc<{element}[{box[0]}, {box[1]}],{box_layout(box, itemsize)!r}>"


def gluon_descriptor(tensor: torch.Tensor, layout: Layout, box: tuple[int, int]) -> GluonDescriptor:
    """A descriptor over the stored orientation of ``tensor``, in boxes of so many stored rows and columns."""
    stored = tensor if layout is Layout.ROWS else tensor.T
    lines, length = stored.shape
    # Where there is one line, what a descriptor must say of the next is free.
    stride = stored.stride(0) if lines > 1 else -(-length // TMA_ALIGNMENT) * TMA_ALIGNMENT
    shared = box_layout(box, tensor.element_size())
    return GluonDescriptor(stored, [lines, length], [stride, 1], list(box), shared)


def source_of(
    kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any], attributes: Mapping[Any, Any]
) -> ASTSource:
    """``kernel`` as Triton compiles it, in whichever of its two languages it is."""
    if getattr(kernel, "is_gluon", bool)():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource(kernel, signature, constants, attributes)
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
