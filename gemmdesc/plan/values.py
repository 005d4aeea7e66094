"""What planning yields: a Plan, which holds everything that was decided about one call; and its key in the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from gemmdesc.descriptor import CastTo, EpilogueStep, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tiled import Choice
from gemmdesc.kernels.variants import Variant
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.plan.needs import needed_variants
from gemmdesc.plan.programs import Programs
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, Launch, LibraryId
from gemmdesc.profiles import Level, ProfileRow
from gemmdesc.regions import Region
from gemmdesc.routes import TensorMeta
from gemmdesc.rule import Rule


@dataclass(frozen=True, kw_only=True)
class MmCall:
    """``torch.mm(a, b, out=out)`` under ``settings``, before it is known which problem that is.

    ``pin``: the number of rows of ``a`` at which the library is asked, None where it is their own.
    """

    a: TensorMeta
    b: TensorMeta
    out: TensorMeta
    settings: TorchSettings
    pin: int | None = None


@dataclass(frozen=True, kw_only=True)
class Following:
    """What is done with a product after the library would have stored it, and the type of the result.

    ``rounded``: whether it meets the product as it would have been stored, or the float32 value before that.
    """

    steps: tuple[EpilogueStep, ...]
    output_dtype: DType
    rounded: bool = True

    def after(self, descriptor: GEMMDesc) -> GEMMDesc:
        """``descriptor`` with all that."""
        stored = (CastTo(dtype=descriptor.output_dtype),) if self.rounded else ()
        return replace(
            descriptor, epilogue=(*descriptor.epilogue, *stored, *self.steps), output_dtype=self.output_dtype
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProblemCall:
    """A problem stated in the library's own terms, and the tensors of its product as the kernels see them.

    ``transposed``: ``meta`` is of the transposed product, whose bits are the same.  ``reference``: what the library is
    asked instead, None where it is asked for the problem itself.  ``following``: what the kernels do after the
    product; the type of ``meta.out`` is then that of the result.
    """

    problem: GemmProblem
    meta: KernelMeta
    transposed: bool = False
    reference: GemmProblem | None = None
    following: Following | None = None


@dataclass(frozen=True, kw_only=True)
class PlanKey:
    """Everything that a plan depends on.

    ``captured``: whether a CUDA graph records the call.  ``digest``: of the profile's rows, "" without a profile.
    """

    call: MmCall | ProblemCall
    captured: bool
    device: DeviceId
    library: LibraryId
    digest: str
    accept: Level


@dataclass(frozen=True, kw_only=True)
class Description:
    """What :func:`gemmdesc.plan.describe` finds: the profile's row and rule, and the rule's value.

    ``regions``: D's rectangles, in the problem's terms, with their descriptors, the largest first; mostly all of D.
    """

    row: ProfileRow
    rule: Rule
    regions: tuple[Region, ...]

    @property
    def descriptor(self) -> GEMMDesc:
        """Of the largest region."""
        return self.regions[0].descriptor


@dataclass(frozen=True, kw_only=True)
class Decision(Description):
    """What :func:`gemmdesc.plan.decide` finds: a description, and a kernel for it."""

    kernel: Choice


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One call resolved: inspect it, and run it many times with :func:`gemmdesc.ops.run`, or ``run_problem``.

    ``problem`` is in cuBLASLt's column-major terms, ``meta`` in those of the product that runs, the first one of a
    batch, which is the transpose of the problem's where ``transposed``.  ``launch`` is what the
    library itself would enqueue, known only where the rule needs it.  ``regions``: D's rectangles, in the problem's
    terms, with their descriptors, the largest first; mostly all of D.  ``digest`` names the profile's rows.
    ``reference``: of a pinned plan, the problem that ``answer`` is to, and whose order every row has.
    """

    problem: GemmProblem
    answer: AlgoConfig
    launch: Launch | None
    row: ProfileRow
    rule: Rule
    regions: tuple[Region, ...]
    kernel: Choice
    meta: KernelMeta
    captured: bool
    library: LibraryId
    device: DeviceId
    digest: str
    transposed: bool = False
    reference: GemmProblem | None = None

    @property
    def descriptor(self) -> GEMMDesc:
        """Of the largest region."""
        return self.regions[0].descriptor

    @property
    def lost_tail(self) -> int:
        """How many k at the end the library, and so the kernel, leaves out of the sum; 0 as a rule."""
        return max(0, self.problem.k - self.descriptor.summed_k)

    @cached_property
    def variants(self) -> frozenset[Variant]:
        """The compiled kernels that running the plan needs."""
        return needed_variants(self.kernel, self.meta)

    @cached_property
    def programs(self) -> Programs:
        """What it runs by, made when it first runs on a device."""
        return Programs()

    @property
    def outside_evidence(self) -> tuple[str, ...]:
        """Which of m, n, k and splitk lie outside the range that the row's evidence saw."""
        seen, p = self.row.evidence, self.reference or self.problem
        sizes = {
            "m": (seen.m, p.m), "n": (seen.n, p.n), "k": (seen.k, p.k),
            "splitk": (seen.splitk, max(1, self.answer.splitk_num)),
        }  # fmt: skip
        return tuple(name for name, (interval, value) in sizes.items() if not interval.holds(value))


@dataclass(frozen=True, kw_only=True)
class CacheInfo:
    """Counts of a planner's cache since it was made; ``size`` plans and declines of at most ``capacity`` are held."""

    hits: int
    misses: int
    size: int
    capacity: int
