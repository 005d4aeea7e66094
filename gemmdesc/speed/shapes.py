"""A product of the benchmark: where it belongs, what follows it, and the least that it can take."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.books import Shape
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

#: What follows a product in a fused call, in eager torch; each is a group of the fused set.
FOLLOWING = ("silu", "gelu_bias", "residual", "sigmoid_gate", "weighted", "lora_add")


@dataclass(frozen=True, kw_only=True)
class SpeedShape:
    """``part``: the set it belongs to, such as ``decode``; ``group``: within that, what a geometric mean is over.

    ``following``: one of FOLLOWING, "" for the product alone.

    Raises:
        InvalidInputError: ``following`` is unknown.
    """

    part: str
    group: str
    product: Shape
    following: str = ""

    def __post_init__(self) -> None:
        if self.following not in ("", *FOLLOWING):
            raise InvalidInputError(f"following must be empty or one of {', '.join(FOLLOWING)} (got {self.following})")

    @property
    def name(self) -> str:
        """What a row is found by; no two shapes of the benchmark share it."""
        return " ".join(filter(None, (self.part, self.group, str(self.product), self.following)))

    @property
    def operations(self) -> int:
        """Multiplications and additions of the product."""
        p = self.product
        return 2 * p.m * p.n * p.k

    @property
    def moved_bytes(self) -> int:
        """Each operand and the result once, and what follows reads once."""
        p = self.product
        size, beside = p.dtype.itemsize, p.m * p.n
        extra = {"gelu_bias": p.n, "residual": beside, "sigmoid_gate": beside, "weighted": p.m, "lora_add": beside}
        stored = (p.m * p.n + extra.get(self.following, 0)) * p.out_dtype.itemsize
        return (p.m * p.k + p.k * p.n) * size + stored

    @property
    def large(self) -> bool:
        """Above 5 GFLOP, where the published figures part the shapes."""
        return self.operations > 5_000_000_000

    @property
    def plain_half(self) -> bool:
        """A product of 16-bit operands that nothing follows."""
        return not self.following and self.product.dtype in (DType.FLOAT16, DType.BFLOAT16)
