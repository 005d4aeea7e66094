"""A CUDA card as the benchmark's device: graphs of many calls over several input sets, replayed and timed by events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gemmdesc.dropin.memory import signed_bits
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DeclinedError, GemmdescError, InvalidInputError
from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.competing import MODEL, chosen_by
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.speed.calls import Call, Tensors, eager_function, fill, library_call, new_tensors, our_call, product_call
from gemmdesc.speed.measuring import (
    AS_OURS,
    FAILED,
    INDUCTOR,
    INDUCTOR_MAX,
    LIBRARY,
    OURS,
    PRODUCT,
    RATED,
    Limits,
    Sides,
    TimingError,
)
from gemmdesc.speed.rates import RATE_SIZES, bandwidth, rate_of
from gemmdesc.speed.schedules import in_a_word, scheduled_plans
from gemmdesc.speed.shapes import SpeedShape
from gemmdesc.tuning.ahead import Ahead
from gemmdesc.tuning.graphs import captured, events_us, set_count

if TYPE_CHECKING:
    import torch

#: Calls in a row of which nothing waits; with some launches each, a stream's queue has room for all of them.
_IN_A_ROW = 64
#: torch.compile's modes; the graphs that max-autotune would make cannot be captured by ours.
_MODES = {INDUCTOR: "default", INDUCTOR_MAX: "max-autotune-no-cudagraphs"}


class CudaDevice:
    """The current CUDA device, with the process's default planner; ``schedules``: what plain products are timed with.

    ``untuned``: the process's planners take no tuned tables from then on.

    Raises:
        LibraryError: no GPU that torch can use.
    """

    def __init__(self, *, seed: int = 0, schedules: tuple[str, ...] = (), untuned: bool = False) -> None:
        import torch

        from gemmdesc.library.device import device_id
        from gemmdesc.ops import use_tuned_tables

        if untuned:
            use_tuned_tables(False)
        self._id, self._seed, self._schedules = device_id(), seed, schedules
        major, minor = torch.cuda.get_device_capability()
        self._ahead = Ahead(10 * major + minor)

    @property
    def about(self) -> dict[str, Any]:
        import torch
        import triton

        from gemmdesc.ops import default_planner

        planner = default_planner()
        return {
            "card": f"{self._id.name} ({self._id.sm}, {self._id.sm_count} SMs)",
            "versions": {
                "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
                "cublaslt": str(planner.library.version), "driver": self._id.driver,
            },
            "tuned_classes": len(planner.tuned.picks), "tuned_exact": len(planner.tuned.exact),
        }  # fmt: skip

    def ready(self, shapes: Sequence[SpeedShape]) -> None:
        """Compile the kernels of plain 16-bit products in all cores, every schedule's; others wait until they run."""
        from gemmdesc.library.torch_settings import read_settings
        from gemmdesc.ops import default_planner

        planner, settings, wanted = default_planner(), read_settings(self._id.sm), []
        for shape in shapes:
            if not shape.plain_half:
                continue
            plan = planner.plan_mm(*shape.product.metas(), settings)
            if not isinstance(plan, Declined):
                others = scheduled_plans(plan, self._schedules, card_arithmetic(self._id.sm))
                wanted += [v for one in (plan, *others.values()) for v in sorted(one.variants, key=str)]
        self._ahead(wanted)

    def close(self) -> None:
        """End what compiles."""
        self._ahead.close()

    def clock(self) -> float:
        return time.monotonic()

    def limits(self) -> Limits:
        """The faster of reading and of copying 2 GiB, and for each type of two square products by the library."""
        import torch

        rate = bandwidth()
        torch.cuda.empty_cache()
        rates = {dtype.value: max(rate_of(dtype, n) for n in RATE_SIZES) for dtype in RATED}
        torch.cuda.empty_cache()
        return Limits(bytes_per_second=rate, operations_per_second=rates)

    @contextmanager
    def open(self, shape: SpeedShape, *, compiled: bool) -> Iterator[CudaShape]:
        import torch

        schedules = self._schedules if shape.plain_half and shape.part != "control" else ()
        opened = CudaShape(shape, compiled=compiled, seed=self._seed, schedules=schedules)
        try:
            yield opened
        finally:
            opened.close()
            if compiled:
                torch.compiler.reset()
            torch.cuda.empty_cache()


class CudaShape:
    """A shape's input sets, calls and graphs; nothing is made before it is asked for."""

    def __init__(
        self, shape: SpeedShape, *, compiled: bool, seed: int, schedules: tuple[str, ...] = ()
    ) -> None:
        self._shape, self._compiled, self._seed, self._schedules = shape, compiled, seed, schedules
        self._sets: list[Tensors] = []
        self._calls: dict[str, Call] = {}
        self._graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}

    @cached_property
    def sides(self) -> Sides:
        """Makes input sets and calls, and compares bytes on a draw of wide exponents, before normal ones are drawn."""
        import torch

        try:
            return self._open()
        except DeclinedError as error:
            return Sides(calls=(), declined=f"{error.declined.code}: {error.declined.reason}")
        except (torch.OutOfMemoryError, RuntimeError, GemmdescError) as error:
            return Sides(calls=(), failure=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")

    def _open(self) -> Sides:
        import torch

        shape = self._shape
        ours = our_call(shape)
        if isinstance(ours, Declined):
            return Sides(calls=(), declined=f"{ours.code}: {ours.reason}")
        self._sets = [new_tensors(shape, "cuda") for _ in range(set_count(shape.moved_bytes))]
        generator = torch.Generator("cuda").manual_seed(self._seed)
        fill(shape, self._sets[0], generator, wide=True)
        self._calls = {LIBRARY: library_call(shape), OURS: ours}
        if shape.following:
            self._calls[PRODUCT] = product_call(shape)
        if self._compiled:
            self._calls |= {name: self._compile(mode) for name, mode in _MODES.items()}
        want = signed_bits(self._calls[LIBRARY](self._sets[0])).clone()
        different = [n for n in self._calls if n not in (LIBRARY, PRODUCT) and not self._has(want, self._calls[n])]
        schedules = {} if OURS in different else self._add_schedules(want, different)
        for tensors in self._sets:
            fill(shape, tensors, generator, wide=False)
        kernel, slices, tuned = self._kernel()
        return Sides(
            calls=tuple(self._calls), different=tuple(different), kernel=kernel, slices=slices, tuned=tuned,
            sets=len(self._sets), schedules=schedules,
        )  # fmt: skip

    def _add_schedules(self, want: torch.Tensor, different: list[str]) -> dict[str, str]:
        """By name what they launch; those of equal bytes become calls, the others' names go to ``different``."""
        from gemmdesc.ops import plan as plan_call
        from gemmdesc.ops import run

        first, found = self._sets[0], {}
        plan = plan_call(first.a, first.b, out=first.out) if self._schedules else None
        if plan is None or isinstance(plan, Declined):
            return {}
        for name, other in scheduled_plans(plan, self._schedules, card_arithmetic(plan.device.sm)).items():
            if other.kernel == plan.kernel:
                found[name] = AS_OURS
                continue
            found[name] = in_a_word(other.kernel)
            call: Call = partial(lambda one, t: run(one, t.a, t.b, out=t.out), other)
            try:
                equal = self._has(want, call)
            except Exception as error:  # noqa: BLE001  whatever a compiler says of it, the shape's other calls are timed
                found[name] = f"{FAILED}{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                continue
            if equal:
                self._calls[name] = call
            else:
                different.append(name)
        return found

    def _compile(self, mode: str) -> Call:
        import torch

        function = torch.compile(eager_function(self._shape), mode=mode, dynamic=False)
        return lambda t: function(t.a, t.b, *t.beside.values())

    def _has(self, want: torch.Tensor, call: Call) -> bool:
        """Whether ``call`` has those bytes on the first set; called twice, the second time by a shorter way."""
        import torch

        first = self._sets[0]
        for _ in range(2):
            first.out.fill_(float("nan"))
            got = call(first)
            if got.shape != first.out.shape or not torch.equal(signed_bits(got), want):
                return False
        return True

    def _kernel(self) -> tuple[str, int, str]:
        """Ours in a word, into how many slices, and what of a tuned table it is.

        Of other than plain 16-bit products the word is what they are, and of calls that ``torch.mm`` has not all.
        """
        from gemmdesc.ops import default_planner
        from gemmdesc.ops import plan as plan_call

        first, shape = self._sets[0], self._shape
        word = shape.following or shape.product.dtype.value
        if shape.following or shape.product.dtype is DType.FLOAT8_E4M3FN:
            return word, 1, MODEL
        plan = plan_call(first.a, first.b, out=first.out)
        if isinstance(plan, Declined):
            return "declined" if shape.plain_half else word, 1, MODEL
        kernel, tuned = plan.kernel, chosen_by(plan.kernel, plan.meta, default_planner().tuned)
        if not shape.plain_half:
            return word, 1, tuned
        if isinstance(kernel, KernelChoice):
            return in_a_word(kernel), kernel.slices.count, tuned
        return kernel.structure.value, 1 if not plan.descriptor.cuts else 2, tuned

    def device_us(self, call: str) -> float:
        """See :class:`~gemmdesc.speed.measuring.Opened`.

        Raises:
            TimingError: the call cannot be captured.
        """
        if call not in self._graphs:
            try:
                self._graphs[call] = captured(self._calls[call], self._sets)
            except (RuntimeError, GemmdescError) as error:
                raise TimingError(f"{call} must be captured ({str(error).splitlines()[0][:200]})") from error
        graph, count = self._graphs[call]
        return events_us(graph.replay) / count

    def host_us(self, call: str) -> float:
        """See :class:`~gemmdesc.speed.measuring.Opened`."""
        import torch

        run, sets = self._calls[call], self._sets
        torch.cuda.synchronize()
        began = time.perf_counter()
        for i in range(_IN_A_ROW):
            run(sets[i % len(sets)])
        taken = time.perf_counter() - began
        torch.cuda.synchronize()
        return 1e6 * taken / _IN_A_ROW

    def close(self) -> None:
        """Give up graphs and tensors."""
        self._graphs.clear()
        self._calls.clear()
        self._sets.clear()


def require_gpu() -> None:
    """Raise InvalidInputError where torch has no GPU to time on."""
    import torch

    if not torch.cuda.is_available():
        raise InvalidInputError("device must be a CUDA GPU; --rehearse goes without one (got none)")
