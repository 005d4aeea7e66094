"""One compiled kernel, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.dtypes import DType

Constant = bool | int | str


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One compiled kernel: pointer types and ``constants`` fix it.  A constant that names a type is its DType spelling.

    ``loaded`` is the type behind its input pointers or descriptors, ``loaded_b`` that of B's where it is another one,
    ``stored`` that behind its output.  ``fp_fusion``: whether the compiler may contract a multiplication and an
    addition.  ``dependent``: whether it may start while the kernel before it ends.  ``cluster``: programs of a cluster,
    which is how it must be launched; Triton's own launcher does not do so.
    """

    kernel: str
    loaded: DType
    stored: DType
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int
    fp_fusion: bool = True
    loaded_b: DType | None = None
    dependent: bool = False
    cluster: int = 1
