"""How the tensors of a call are stored, read all at once: what calls made before are found by.

Reading is most of what finding such a call costs.  In C it goes through DLPack's exchange functions, which torch gives
on its tensor type for that purpose; where C or those are missing, Python asks each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gemmdesc.kernels.launch_loop import host_function
from gemmdesc.ops.frequent import Runtime

if TYPE_CHECKING:
    import torch

#: What a call is found by: what it does, how its tensors are stored, the operands' names, whether a graph is captured,
#: and torch's settings.
Key = tuple[Hashable, Hashable, tuple[str, ...], bool, Hashable]
#: ``read(head, tensors, operands)``: the key of a call that does ``head``, the tensors' addresses, those of ``tensors``
#: first, and their device.  None where nothing may be noted of the call: it is not on the current device alone, a
#: tensor is of another class, has no strides or no memory or is lazily negated, autograd would build a graph, or
#: something unusual is on.
Reader = Callable[
    [Hashable, "tuple[torch.Tensor, ...]", "Mapping[str, torch.Tensor] | None"],
    "tuple[Key, tuple[int, ...], int] | None",
]


#: ``repeat(head, tensors, operands, planner, known)``: the result of a call that ``planner`` knows, known(device) where
#: that is None, and that one program makes without scratch; else what a reader gives.
Repeater = Callable[..., "torch.Tensor | tuple[Key, tuple[int, ...], int] | None"]


def tensor_reader(runtime: Runtime) -> tuple[Reader, Repeater | None]:
    """The quicker one of the two readers that there are, and what launches such calls, too, where that is in C."""
    state = state_for_c(runtime)
    if state is None:
        return reader_in_python(runtime), None
    return partial(host_function("read_tensors"), state), partial(host_function("repeat_call"), state)


def state_for_c(runtime: Runtime) -> tuple[Any, ...] | None:
    """What the functions of ``host.c`` take first; None where they, or DLPack's functions, are missing."""
    import torch

    read = host_function("read_tensors")
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if read is None or exchange is None:
        return None
    state = (
        torch.Tensor, torch.nn.Parameter, exchange, runtime.device_type, runtime.current_device, runtime.is_capturing,
        torch.is_grad_enabled, runtime.settings_parts or (runtime.settings,), unusual(), torch.Tensor.is_neg,
        "requires_grad", runtime.current_stream,
    )  # fmt: skip
    try:
        read(state, "", (torch.empty(1, device="cpu"),), None)
    except (TypeError, ValueError):  # an exchange of another version
        return None
    return state


def reader_in_python(runtime: Runtime) -> Reader:
    """By what each tensor says of itself."""
    import torch

    types = frozenset((torch.Tensor, torch.nn.Parameter))
    grad_enabled, odd = torch.is_grad_enabled, unusual()

    def read(
        head: Hashable, tensors: tuple[torch.Tensor, ...], operands: Mapping[str, torch.Tensor] | None
    ) -> tuple[Key, tuple[int, ...], int] | None:
        device_of = runtime.device_of
        given = (*tensors, *operands.values()) if operands else tensors
        stored: list[Hashable] = []
        at = []
        try:
            # Torch is not asked of its device before there is a tensor on one.
            if type(given[0]) not in types:
                return None
            index = device_of(given[0])
            if index < 0 or index != runtime.current_device() or any(is_on() for is_on in odd):
                return None
            graph = grad_enabled()
            for tensor in given:
                if type(tensor) not in types or device_of(tensor) != index:
                    return None
                address = tensor.data_ptr()
                if not address or tensor.is_neg() or (graph and tensor.requires_grad):
                    return None
                at.append(address)
                stored += (tensor.shape, tensor.stride(), address & -address & 255, tensor.dtype)
        except RuntimeError:  # a tensor without strides or memory
            return None
        key = head, tuple(stored), tuple(operands or ()), runtime.is_capturing(), runtime.settings()
        return key, tuple(at), index

    return read


def unusual() -> tuple[Callable[[], Any], ...]:
    """What must all be false for a call to be as the one before: autocast, modes of torch's, forward derivatives."""
    import torch
    from torch.autograd import forward_ad
    from torch.utils._device import DeviceContext

    behind: Callable[[], bool] | None = getattr(torch._C, "_is_any_autocast_enabled", None)
    autocast = behind or (lambda: torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"))
    dispatch, functions = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
    at = torch._C._get_function_stack_at

    def others() -> bool:
        """Modes beside torch's default device, which changes no call on tensors; or a level of dual numbers."""
        count = functions()
        return (count > 0 and any(type(at(i)) is not DeviceContext for i in range(count))) or (
            forward_ad._current_level >= 0
        )

    return autocast, dispatch, others
