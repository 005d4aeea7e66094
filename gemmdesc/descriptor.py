"""GEMMDesc: everything that fixes the bits of one matrix product, and nothing that only fixes its speed.

The specification is ``docs/descriptor.md``.  In short: the k axis is cut by a nest of :class:`Cut`, outermost first;
the parts of a cut are folded as one ascending chain; what is left inside the innermost cut is summed by one
:class:`Accumulator`, a chain of steps that each close with one rounding; then the epilogue runs and the result is
rounded to the output type.  After paper 000 (arXiv 2609.11356), sections 3.2 and 4, in a tagged form.

Layouts, epilogue steps and pointwise steps have modules of their own; all names are to be had here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import get_args

from gemmdesc.descriptor_fields import OPTIONAL, VARIABLE, require_at_least, require_instance, require_integer
from gemmdesc.dtypes import DType
from gemmdesc.epilogue_steps import AddBias as AddBias
from gemmdesc.epilogue_steps import AddC as AddC
from gemmdesc.epilogue_steps import CastTo as CastTo
from gemmdesc.epilogue_steps import EpilogueStep as EpilogueStep
from gemmdesc.epilogue_steps import Relu as Relu
from gemmdesc.epilogue_steps import Scale as Scale
from gemmdesc.epilogue_steps import ScaleOutput as ScaleOutput
from gemmdesc.errors import DescriptorError
from gemmdesc.layouts import Balanced as Balanced
from gemmdesc.layouts import Contiguous as Contiguous
from gemmdesc.layouts import Layout as Layout
from gemmdesc.layouts import Short as Short
from gemmdesc.layouts import Strided as Strided
from gemmdesc.pointwise import Add as Add
from gemmdesc.pointwise import Approximate as Approximate
from gemmdesc.pointwise import AtLeast as AtLeast
from gemmdesc.pointwise import AtMost as AtMost
from gemmdesc.pointwise import Divide as Divide
from gemmdesc.pointwise import Gelu as Gelu
from gemmdesc.pointwise import GeluArgument as GeluArgument
from gemmdesc.pointwise import GeluResult as GeluResult
from gemmdesc.pointwise import GeluTanhApprox as GeluTanhApprox
from gemmdesc.pointwise import Multiply as Multiply
from gemmdesc.pointwise import Sigmoid as Sigmoid
from gemmdesc.pointwise import Silu as Silu
from gemmdesc.pointwise import Tanh as Tanh


class Start(Enum):
    """What a fold starts from: its first partial as it is, or +0.0 (visible only where every partial is -0.0)."""

    FIRST = "first"
    ZERO = "zero"


class Rounding(Enum):
    """Toward zero, or to nearest with ties to even or away from zero."""

    TOWARD_ZERO = "toward_zero"
    NEAREST_EVEN = "nearest_even"
    NEAREST_AWAY = "nearest_away"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One level of the nest: how k is dealt to parts, and how the parts' sums are folded, ascending.

    Each part's sum is rounded to ``partial_dtype`` when it is stored; the running sum is rounded to ``merge_dtype``
    after every addition (each addition is one float32 addition, round to nearest even, before that).  ``open_end``: but
    not after the last one, whose sum goes on in float32: what a kernel does that adds the last part and what follows
    the sum at once.

    ``fold``: layouts, outermost first, that deal the parts themselves to groups, as cuts deal k; the parts of an
    innermost group are folded as one ascending chain, and so are the groups of each layout.  Empty: one chain.

    ``opening``: epilogue steps that the first part's sum meets before the fold goes on, as in kernels that take C or a
    bias in with their first slice; the result is rounded to ``merge_dtype``.  Of a descriptor's cuts only the outermost
    may have any.
    """

    layout: Layout
    partial_dtype: DType
    merge_dtype: DType
    start: Start
    open_end: bool = field(default=False, metadata=OPTIONAL)
    fold: tuple[Layout, ...] = field(default=(), metadata=OPTIONAL)
    opening: tuple[EpilogueStep, ...] = field(default=(), metadata=OPTIONAL)

    def __post_init__(self) -> None:
        require_instance("cut.open_end", self.open_end, bool)
        require_instance("cut.opening", self.opening, tuple)
        for i, step in enumerate(self.opening):
            require_instance(f"cut.opening.{i}", step, *get_args(EpilogueStep))
        require_instance("cut.layout", self.layout, Contiguous, Strided, Balanced)
        require_instance("cut.fold", self.fold, tuple)
        for i, layout in enumerate(self.fold):
            require_instance(f"cut.fold.{i}", layout, Contiguous, Strided, Balanced)
        require_instance("cut.start", self.start, Start)
        for name in ("partial_dtype", "merge_dtype"):
            if getattr(self, name) not in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16):
                raise DescriptorError(
                    f"cut.{name} must be float32, float16 or bfloat16 (got {getattr(self, name)})"
                )


@dataclass(frozen=True, kw_only=True)
class ResidueLast:
    """Steps are counted from the first k; a short step comes last."""


@dataclass(frozen=True, kw_only=True)
class ResidueFirst:
    """The partial turn of a main loop of ``k_loop_step`` comes first; the short step closes that turn."""

    k_loop_step: int = field(metadata=VARIABLE)

    def __post_init__(self) -> None:
        require_at_least("residue_first.k_loop_step", self.k_loop_step, 1)


@dataclass(frozen=True, kw_only=True)
class FusedDot:
    """A matrix instruction's step: products and accumulator aligned, truncated, added exactly, rounded once.

    Every term is aligned to the largest exponent among the products (sum of the operands' exponents) and the
    accumulator, an exact zero counting as ``zero_exponent``; each is truncated toward zero to ``fraction_bits``
    fraction bits of that exponent; the exact sum is rounded to ``output_bits`` fraction bits of
    ``accumulator_dtype``.  An exact zero comes out as +0.0.
    """

    fraction_bits: int
    output_bits: int
    rounding: Rounding
    zero_exponent: int
    accumulator_dtype: DType = DType.FLOAT32

    def __post_init__(self) -> None:
        require_at_least("fused_dot.fraction_bits", self.fraction_bits, 1)
        require_at_least("fused_dot.output_bits", self.output_bits, 1)
        require_instance("fused_dot.rounding", self.rounding, Rounding)
        if self.rounding not in (Rounding.TOWARD_ZERO, Rounding.NEAREST_EVEN):
            raise DescriptorError(f"fused_dot.rounding must be toward_zero or nearest_even (got {self.rounding})")
        require_integer("fused_dot.zero_exponent", self.zero_exponent)
        if self.accumulator_dtype not in (DType.FLOAT32, DType.FLOAT16):
            raise DescriptorError(
                f"fused_dot.accumulator_dtype must be float32 or float16 (got {self.accumulator_dtype})"
            )


@dataclass(frozen=True, kw_only=True)
class ScalarStep:
    """A CUDA-core step of one product in float32, nearest even: one rounding if ``fused``, else two.

    ``start``: the chain opens with +0.0, or with -0.0, which leaves its first product as it is.
    """

    fused: bool
    start: Start = Start.ZERO

    def __post_init__(self) -> None:
        require_instance("scalar_step.fused", self.fused, bool)
        require_instance("scalar_step.start", self.start, Start)

    @property
    def opening(self) -> float:
        """What the chain's first product is added to."""
        return 0.0 if self.start is Start.ZERO else -0.0


@dataclass(frozen=True, kw_only=True)
class Accumulator:
    """The leaf: one chain over its k, ``instruction_k`` products a step, from +0.0 or as a scalar step says."""

    instruction_k: int = field(metadata=VARIABLE)
    residue: ResidueLast | ResidueFirst
    step: FusedDot | ScalarStep

    def __post_init__(self) -> None:
        require_at_least("accumulator.instruction_k", self.instruction_k, 1)
        require_instance("accumulator.residue", self.residue, ResidueLast, ResidueFirst)
        require_instance("accumulator.step", self.step, FusedDot, ScalarStep)
        if isinstance(self.step, ScalarStep) and self.instruction_k != 1:
            raise DescriptorError(
                f"accumulator.instruction_k must be 1 for a scalar step (got {self.instruction_k})"
            )


@dataclass(frozen=True, kw_only=True)
class OperandCast:
    """A float32 operand as a matrix instruction takes it: each element rounded to ``dtype``, which is tfloat32."""

    dtype: DType
    rounding: Rounding

    def __post_init__(self) -> None:
        if self.dtype is not DType.TFLOAT32:
            raise DescriptorError(f"operand_cast.dtype must be tfloat32 (got {self.dtype})")
        require_instance("operand_cast.rounding", self.rounding, Rounding)


@dataclass(frozen=True, kw_only=True)
class GEMMDesc:
    """What fixes the bits of D = A B for one inner size.

    ``summed_k`` is how many k, counted from 0, enter the sum at all: the inner size, or less where the library loses
    a tail.  ``cuts`` are outermost first.  ``a_cast``, ``b_cast``: how float32 elements are rounded before they are
    multiplied (None: not at all).  After the epilogue the value is rounded to ``output_dtype``, nearest even.

    Raises:
        DescriptorError: a field is out of range; the message starts with its name.
    """

    a_dtype: DType
    b_dtype: DType
    output_dtype: DType
    summed_k: int = field(metadata=VARIABLE)
    cuts: tuple[Cut, ...]
    accumulator: Accumulator
    epilogue: tuple[EpilogueStep, ...] = ()
    a_cast: OperandCast | None = field(default=None, metadata=OPTIONAL)
    b_cast: OperandCast | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        for name in ("a_dtype", "b_dtype", "output_dtype"):
            require_instance(name, getattr(self, name), DType)
        require_at_least("summed_k", self.summed_k, 0)
        require_instance("accumulator", self.accumulator, Accumulator)
        for name, kinds in (("cuts", (Cut,)), ("epilogue", get_args(EpilogueStep))):
            require_instance(name, getattr(self, name), tuple)
            for i, item in enumerate(getattr(self, name)):
                require_instance(f"{name}.{i}", item, *kinds)
        for i, step in enumerate(self.epilogue):
            last = i + 1 == len(self.epilogue) and getattr(step, "dtype", None) is self.output_dtype
            if isinstance(step, CastTo) and step.overflows and not last:
                raise DescriptorError(f"epilogue.{i} must come last, and cast to output_dtype (got {step})")
        for i, cut in enumerate(self.cuts[1:], 1):
            if cut.opening:
                raise DescriptorError(f"cuts.{i}.opening must be empty but in the outermost cut (got {cut.opening})")
        for name, dtype in (("a", self.a_dtype), ("b", self.b_dtype)):
            cast = getattr(self, f"{name}_cast")
            if cast is not None and dtype is not DType.FLOAT32:
                raise DescriptorError(f"{name}_cast must cast float32 elements (got {dtype.value})")
            require_instance(f"{name}_cast", cast, OperandCast, type(None))

    @property
    def overflows(self) -> bool:
        """Whether the output is what a last cast to an 8-bit float makes of values that are too large for it."""
        last = self.epilogue[-1] if self.epilogue else None
        return isinstance(last, CastTo) and last.overflows

    @property
    def keeps_nan_patterns(self) -> bool:
        """Whether a NaN of the output is a narrower type's, widened by a cast: nothing is computed with it since."""
        steps = [s for s in self.epilogue if not (isinstance(s, Relu) and s.keeps_nan)]
        steps = [s for s in steps if not isinstance(s, AtLeast | AtMost)]
        narrow = [isinstance(s, CastTo) and s.dtype is not DType.FLOAT32 for s in steps[-2:-1]]
        widened = narrow == [True] and steps[-1] == CastTo(dtype=DType.FLOAT32)
        return self.output_dtype is DType.FLOAT32 and widened
