"""``gemmdesc.matmul`` of calls like one made before: found by everything that the problem depends on, and launched.

A call is looked up by its operands' sizes, strides, types, alignments and devices, by the result's, by torch's settings
and by whether a graph is being captured.  What no lookup decides is checked at each call: that autograd builds no
graph, that autocast is off, that no tensor is a lazily negated view, and that ``out`` lies apart.  Whatever is unusual
takes the long way, which notes what it found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from gemmdesc.library.torch_settings import settings_key, settings_parts
from gemmdesc.ops.defaults import known_planner
from gemmdesc.ops.inputs import extent
from gemmdesc.plan import FrequentCall, Plan, Planner

if TYPE_CHECKING:
    import torch

    from gemmdesc.plan.cache import QuickCache

#: ``kDLCUDA``.
DLPACK_CUDA = 2
#: Of A, B and the result; 0 where that is still to be made.
Addresses = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What a call asks torch: a tensor's device, -1 for the host; the current device and stream; its settings.

    ``scratch``: memory of the current device by size and stream, and what gives it back; None where tensors serve.
    ``settings_parts``: functions that give the settings one by one, where there are such.  ``device_type``: DLPack's
    number of what ``current_device`` counts, CUDA by default.
    """

    device_of: Callable[[torch.Tensor], int]
    current_device: Callable[[], int]
    current_stream: Callable[[int], int]
    is_capturing: Callable[[], bool]
    settings: Callable[[], tuple[Any, ...]]
    scratch: tuple[Callable[[int, int], int], Callable[[int], None]] | None = None
    settings_parts: tuple[Callable[[], Any], ...] = ()
    device_type: int = DLPACK_CUDA


@cache
def torch_runtime() -> Runtime:
    """torch's own."""
    import torch

    from gemmdesc.kernels.launch_loop import host_function
    from gemmdesc.kernels.streams import current_device, current_stream, is_capturing, scratch_functions

    gather, parts = host_function("gather"), settings_parts()
    return Runtime(
        device_of=torch.Tensor.get_device,
        current_device=current_device(),
        current_stream=current_stream(),
        is_capturing=is_capturing(),
        settings=settings_key() if gather is None else partial(gather, parts),
        scratch=scratch_functions(),
        settings_parts=parts,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Noting:
    """A call on its long way: where it will be noted, and under which settings it began."""

    calls: QuickCache[Any, FrequentCall]
    settings: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """A call that was made: its tensors, the result, and the ``out`` and ``out_dtype`` that it was given."""

    a: torch.Tensor
    b: torch.Tensor
    target: torch.Tensor
    out: torch.Tensor | None
    out_dtype: torch.dtype | None = None


class FrequentProducts:
    """Finds and runs frequent calls; any thread may use it.

    Its functions give the product, or None where the call must take the long way, before anything was written.

    Raises:
        LaunchError: the CUDA driver refuses.
    """

    def __init__(self, runtime: Runtime) -> None:
        import torch

        self._runtime = runtime
        self._types = frozenset((torch.Tensor, torch.nn.Parameter))
        self._bytes, self._empty = torch.uint8, torch.empty_strided
        # Without a device it is asked of CUDA, at a quarter of the cost.
        self._grad_enabled, self._autocast = torch.is_grad_enabled, torch.is_autocast_enabled
        #: Whose level says whether any tensor may be a dual number.
        self._forward = torch.autograd.forward_ad
        self._increment = _quick_increment()
        self._on_device = torch.cuda.device

    def matmul(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None,
        out_dtype: torch.dtype | None,
        planner: Planner | None,
    ) -> torch.Tensor | None:
        """Of :func:`gemmdesc.matmul`."""
        types, runtime = self._types, self._runtime
        if type(a) not in types or type(b) not in types or (out is not None and type(out) not in types):
            return None
        index = runtime.device_of(a)
        if index < 0:
            return None
        if planner is None:
            planner = known_planner(index)
            if planner is None:
                return None
        if index != runtime.current_device():
            with self._on_device(index):
                return self.matmul(a, b, out, out_dtype, planner)
        try:
            at = a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr()
            stored = self._stored(a, b, out, at)
            call = planner.frequent.get((stored, out_dtype, runtime.is_capturing(), runtime.settings()))
        except (RuntimeError, TypeError):  # a tensor without strides or memory, or a type that is none
            return None
        if call is None or self._autocast():
            return None
        return self._launched(call, a, b, out, at, index)

    def run(
        self, plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, planner: Planner | None
    ) -> torch.Tensor | None:
        """Of :func:`gemmdesc.ops.run`."""
        types, runtime = self._types, self._runtime
        if type(a) not in types or type(b) not in types or (out is not None and type(out) not in types):
            return None
        index = runtime.device_of(a)
        found = plan.programs.runs.get((planner, index, out is None))
        if found is None:
            return None
        if index != runtime.current_device():
            with self._on_device(index):
                return self.run(plan, a, b, out, planner)
        try:
            at = a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr()
            if self._stored(a, b, out, at) != found[0]:
                return None
        except RuntimeError:
            return None
        return self._launched(found[1], a, b, out, at, index)

    def _launched(
        self, call: FrequentCall, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, at: Addresses, index: int
    ) -> torch.Tensor | None:
        at_a, at_b, at_out = at
        if a.is_neg() or b.is_neg() or self._forward._current_level >= 0:
            return None
        if self._grad_enabled() and (a.requires_grad or b.requires_grad or (out is not None and out.requires_grad)):
            return None
        if out is None:
            target = call.new_result()
            at_out = target.data_ptr()
        else:
            target = out
            end = at_out + call.out_bytes
            apart = (end <= at_a or at_a + call.a_bytes <= at_out) and (end <= at_b or at_b + call.b_bytes <= at_out)
            if not apart or out.is_neg():
                return None
        stream = self._runtime.current_stream(index)
        if call.scratch_bytes:
            self._with_scratch(call, stream, (at_a, at_b, at_out))
        else:
            call.program(stream, (at_a, at_b, at_out, 0, *call.beside))
        if out is not None and not out.is_inference():
            self._increment((out,))
        return target

    def _with_scratch(self, call: FrequentCall, stream: int, at: Addresses) -> None:
        """Run the program with memory of torch's allocator, for which its place in the stream's order is enough."""
        functions = self._runtime.scratch
        if functions is None:
            held = self._empty((call.scratch_bytes,), (1,), dtype=self._bytes, device=call.device)
            call.program(stream, (*at, held.data_ptr(), *call.beside))
            return
        take, give_back = functions
        scratch = take(call.scratch_bytes, stream)
        try:
            call.program(stream, (*at, scratch, *call.beside))
        finally:
            give_back(scratch)

    def _stored(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, at: Addresses) -> tuple[Any, ...]:
        """How tensors are stored and where; of an address the lowest bit that is set, 0 where 256 divides it."""
        at_a, at_b, at_out = at
        device_of = self._runtime.device_of
        operands = (
            a.shape, a.stride(), at_a & -at_a & 255, a.dtype, b.shape, b.stride(), at_b & -at_b & 255, b.dtype,
            device_of(a), device_of(b),
        )  # fmt: skip
        if out is None:
            return operands
        return (*operands, out.shape, out.stride(), at_out & -at_out & 255, out.dtype, device_of(out))

    def begin(self, planner: Planner) -> Noting:
        """What :meth:`note` needs to know from before the call's settings are read."""
        return Noting(calls=planner.frequent, settings=self._runtime.settings())

    def note(self, noting: Noting, plan: Plan, made: Made) -> None:
        """Remember a call of ``matmul``, unless it has no program, or settings changed under it."""
        call = self._call(plan, made)
        if call is not None and self._runtime.settings() == noting.settings:
            stored = self._stored_of(made)
            noting.calls.put((stored, made.out_dtype, plan.captured, noting.settings), call)

    def note_run(self, plan: Plan, made: Made, planner: Planner | None) -> None:
        """Remember a call of ``run``, unless it has no program."""
        call = self._call(plan, made)
        if call is not None:
            key = (planner, self._runtime.device_of(made.a), made.out is None)
            plan.programs.runs[key] = (self._stored_of(made), call)

    def _stored_of(self, made: Made) -> tuple[Any, ...]:
        at = made.a.data_ptr(), made.b.data_ptr(), 0 if made.out is None else made.out.data_ptr()
        return self._stored(made.a, made.b, made.out, at)

    def _call(self, plan: Plan, made: Made) -> FrequentCall | None:
        from gemmdesc.kernels.prepared import PreparedProgram
        from gemmdesc.kernels.preparing import plain_inputs
        from gemmdesc.kernels.streams import new_tensor

        program = plan.programs.by_device.get(self._runtime.device_of(made.target))
        if not isinstance(program, PreparedProgram):
            return None
        reach = [end - begin for begin, end in map(extent, (made.a, made.b, made.target))]
        m, n, device = plan.meta.m, plan.meta.n, made.target.device
        return FrequentCall(
            program=program, scratch_bytes=program.scratch_bytes, device=device,
            new_result=new_tensor((m, n), (n, 1), made.target.dtype, device), a_bytes=reach[0], b_bytes=reach[1],
            out_bytes=reach[2], beside=plain_inputs(program),
        )  # fmt: skip


def _quick_increment() -> Callable[[tuple[torch.Tensor]], None]:
    """``torch.autograd.graph.increment_version`` of one tensor in a tuple, without looking whether it is one."""
    import torch

    behind: Callable[[tuple[torch.Tensor]], None] | None = getattr(torch._C, "_increment_version", None)
    tried, public = torch.empty(0), torch.autograd.graph.increment_version
    try:
        if behind is not None:
            behind((tried,))
    except TypeError:  # a release that takes no tuple
        behind = None
    return behind if behind is not None and tried._version == 1 else lambda tensors: public(tensors[0])


@cache
def frequent_products() -> FrequentProducts:
    """The process's, on torch's devices."""
    return FrequentProducts(torch_runtime())
