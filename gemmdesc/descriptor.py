"""GEMMDesc: everything that fixes the bits of one matrix product, and nothing that only fixes its speed.

The specification is ``docs/descriptor.md``.  In short: the k axis is cut by a nest of :class:`Cut`, outermost first;
the parts of a cut are folded as one ascending chain; what is left inside the innermost cut is summed by one
:class:`Accumulator`, a chain of steps that each close with one rounding; then the epilogue runs and the result is
rounded to the output type.  After paper 000 (arXiv 2609.11356), sections 3.2 and 4, in a tagged form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import get_args

from gemmdesc.dtypes import DType
from gemmdesc.errors import DescriptorError
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
from gemmdesc.pointwise import PointwiseStep
from gemmdesc.pointwise import Sigmoid as Sigmoid
from gemmdesc.pointwise import Silu as Silu
from gemmdesc.pointwise import Tanh as Tanh

#: Marks an integer field that a rule may give as an expression in the problem and the answer.
VARIABLE = {"variable": True}
#: Marks a field that the text and JSON forms leave out where it has its default.
OPTIONAL = {"optional": True}


class Short(Enum):
    """Where the short one of otherwise equal contiguous parts falls."""

    FIRST = "first"
    LAST = "last"


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
class Contiguous:
    """Parts of ``span`` consecutive k; the short part, if any, falls as ``short`` says.  ``span`` >= 1."""

    span: int = field(metadata=VARIABLE)
    short: Short = Short.LAST

    def __post_init__(self) -> None:
        _at_least("contiguous.span", self.span, 1)
        _instance("contiguous.short", self.short, Short)


@dataclass(frozen=True, kw_only=True)
class Strided:
    """``count`` parts; units of ``unit`` consecutive k are dealt to them in turn, the first unit to part 0."""

    count: int = field(metadata=VARIABLE)
    unit: int = field(metadata=VARIABLE)

    def __post_init__(self) -> None:
        _at_least("strided.count", self.count, 1)
        _at_least("strided.unit", self.unit, 1)


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """``count`` contiguous parts of whole units of ``unit`` consecutive k (the last unit may be short).

    Of U units every part has U // ``count``, and the last U mod ``count`` parts one more.
    """

    count: int = field(metadata=VARIABLE)
    unit: int = field(metadata=VARIABLE)

    def __post_init__(self) -> None:
        _at_least("balanced.count", self.count, 1)
        _at_least("balanced.unit", self.unit, 1)

    def ends(self, length: int) -> tuple[int, ...]:
        """Where the parts of ``length`` k end (exclusive), ascending; a part may be empty."""
        each, more = divmod(-(-length // self.unit), self.count)
        longer = self.count - more
        ends = (each * (i + 1) + max(0, i + 1 - longer) for i in range(self.count))
        return tuple(min(length, end * self.unit) for end in ends)


Layout = Contiguous | Strided | Balanced


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
        _instance("cut.open_end", self.open_end, bool)
        _instance("cut.opening", self.opening, tuple)
        for i, step in enumerate(self.opening):
            _instance(f"cut.opening.{i}", step, *get_args(EpilogueStep))
        _instance("cut.layout", self.layout, Contiguous, Strided, Balanced)
        _instance("cut.fold", self.fold, tuple)
        for i, layout in enumerate(self.fold):
            _instance(f"cut.fold.{i}", layout, Contiguous, Strided, Balanced)
        _instance("cut.start", self.start, Start)
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
        _at_least("residue_first.k_loop_step", self.k_loop_step, 1)


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
        _at_least("fused_dot.fraction_bits", self.fraction_bits, 1)
        _at_least("fused_dot.output_bits", self.output_bits, 1)
        _instance("fused_dot.rounding", self.rounding, Rounding)
        if self.rounding not in (Rounding.TOWARD_ZERO, Rounding.NEAREST_EVEN):
            raise DescriptorError(f"fused_dot.rounding must be toward_zero or nearest_even (got {self.rounding})")
        _integer("fused_dot.zero_exponent", self.zero_exponent)
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
        _instance("scalar_step.fused", self.fused, bool)
        _instance("scalar_step.start", self.start, Start)

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
        _at_least("accumulator.instruction_k", self.instruction_k, 1)
        _instance("accumulator.residue", self.residue, ResidueLast, ResidueFirst)
        _instance("accumulator.step", self.step, FusedDot, ScalarStep)
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
        _instance("operand_cast.rounding", self.rounding, Rounding)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Multiply by alpha, one float32 rounding.

    The scales of 8-bit operands are part of alpha: their product is formed in float32, then times alpha proper.
    """


@dataclass(frozen=True, kw_only=True)
class AddC:
    """Add beta x C: one float32 rounding if ``fused``, else one for the product and one for the sum."""

    fused: bool

    def __post_init__(self) -> None:
        _instance("add_c.fused", self.fused, bool)


@dataclass(frozen=True, kw_only=True)
class AddBias:
    """Add a bias, one float32 rounding."""


@dataclass(frozen=True, kw_only=True)
class Relu:
    """max(x, +0.0); of a NaN that NaN, or +0.0 where not ``keeps_nan`` (PTX's ``max.NaN`` and ``max``)."""

    keeps_nan: bool = field(default=True, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        _instance("relu.keeps_nan", self.keeps_nan, bool)


@dataclass(frozen=True, kw_only=True)
class CastTo:
    """Round the running value to ``dtype``, nearest even, and go on from there in float32.

    ``overflows``, of an 8-bit float: what lies beyond the largest finite value becomes infinity, or NaN with its sign
    where the type has no infinity; otherwise it becomes that value.
    """

    dtype: DType
    overflows: bool = field(default=False, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        _instance("cast_to.dtype", self.dtype, DType)
        _instance("cast_to.overflows", self.overflows, bool)
        if self.overflows and self.dtype not in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2):
            raise DescriptorError(f"cast_to.overflows must be False but for an 8-bit float (got {self.dtype.value})")


@dataclass(frozen=True, kw_only=True)
class ScaleOutput:
    """Multiply by the scale of an 8-bit output, one float32 rounding."""


EpilogueStep = Scale | AddC | AddBias | Relu | CastTo | ScaleOutput | GeluTanhApprox | PointwiseStep


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
            _instance(name, getattr(self, name), DType)
        _at_least("summed_k", self.summed_k, 0)
        _instance("accumulator", self.accumulator, Accumulator)
        for name, kinds in (("cuts", (Cut,)), ("epilogue", get_args(EpilogueStep))):
            _instance(name, getattr(self, name), tuple)
            for i, item in enumerate(getattr(self, name)):
                _instance(f"{name}.{i}", item, *kinds)
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
            _instance(f"{name}_cast", cast, OperandCast, type(None))

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


def _instance(name: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        raise DescriptorError(f"{name} must be a {' or a '.join(kind.__name__ for kind in kinds)} (got {value!r})")


def _integer(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DescriptorError(f"{name} must be an integer (got {value!r})")


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DescriptorError(f"{name} must be an integer of at least {least} (got {value!r})")
