"""The part of the CUDA driver that launches need, by ctypes: launching, tensor maps, streams, the current context.

``cuda-bindings`` has the same functions; but a tensor map must be encoded at a well aligned address, which its
objects do not promise, and launching costs the same here.  Python's lock is given up while the driver runs: a launch
may wait for room in the stream's queue.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial

from gemmdesc.errors import LaunchError
from gemmdesc.kernels.launch_loop import launch_loop, one_by_one, order_by_ctypes, stream_order

#: ``CUDA_SUCCESS``.
SUCCESS = 0
#: ``CUtensorMap``: its bytes, and what must divide its address.
TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT = 128
#: ``CUtensorMapDataType`` of the types that kernels load and store; 8-bit floats travel as bytes.
TENSOR_MAP_TYPES = {
    "float16": 6, "float32": 7, "bfloat16": 9, "float8_e4m3fn": 0, "float8_e5m2": 0,
}  # fmt: skip
_INTERLEAVE_NONE, _L2_PROMOTION_128B, _OOB_FILL_NONE = 0, 2, 0
_CLUSTER_DIMENSION, _CLUSTER_SCHEDULING, _COOPERATIVE, _PROGRAMMATIC_SERIALIZATION = 4, 5, 2, 6
_CLUSTER_SPREAD = 1
_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
_VALUE_BYTES = 64
#: Drivers up to this version set a bit in the maps of small tensors that must be off; CUTLASS and Triton clear it, too.
_LAST_WITH_SMALL_BIT = 13010
_SMALL_TENSOR_BYTES = 128 * 1024
_SMALL_BIT_WORD, _SMALL_BIT = 1, 1 << 21


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid_x", ctypes.c_uint), ("grid_y", ctypes.c_uint), ("grid_z", ctypes.c_uint), ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint), ("block_z", ctypes.c_uint), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_uint64), ("attributes", ctypes.c_uint64), ("attribute_count", ctypes.c_uint),
    )  # fmt: skip


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * (_VALUE_BYTES // 4)))


def launch_attributes(*, clusters: int, cooperative: bool, dependent: bool) -> ctypes.Array[LaunchAttribute]:
    """What Triton's own launcher asks for beside the grid: the same attributes in the same order.

    ``dependent``: the kernel may begin while the one before it on the stream ends (programmatic dependent launch).
    """
    wanted: list[tuple[int, tuple[int, ...]]] = []
    if dependent:
        wanted.append((_PROGRAMMATIC_SERIALIZATION, (1,)))
    if cooperative:
        wanted.append((_COOPERATIVE, (1,)))
    if clusters != 1:
        wanted += [(_CLUSTER_DIMENSION, (clusters, 1, 1)), (_CLUSTER_SCHEDULING, (_CLUSTER_SPREAD,))]
    made = (LaunchAttribute * len(wanted))()
    for attribute, (number, values) in zip(made, wanted, strict=True):
        attribute.id = number
        for i, value in enumerate(values):
            attribute.value[i] = value
    return made


class TensorMap:
    """Memory for one ``CUtensorMap``, well aligned; ``address`` is valid while the object lives."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = (ctypes.c_char * (TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT))()
        begin = ctypes.addressof(self._memory)
        self.address = -(-begin // TENSOR_MAP_ALIGNMENT) * TENSOR_MAP_ALIGNMENT

    def __bytes__(self) -> bytes:
        return ctypes.string_at(self.address, TENSOR_MAP_BYTES)


class Driver:
    """The CUDA driver, or another library with its functions.

    ``launch(config, function, parameters, extra)`` is ``cuLaunchKernelEx``: addresses, or None, to a status.
    ``launch_address``: where it lies.  ``launch_all(steps, first, count)`` launches several, as
    :mod:`gemmdesc.kernels.launch_loop` says.

    Raises:
        LaunchError: there is no such library, or it lacks a function.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None:
        address, count = ctypes.c_void_p, ctypes.c_uint
        try:
            loaded = ctypes.CDLL(library)
            self.launch = _function(loaded, "cuLaunchKernelEx", (address,) * 4)
            many = (address, ctypes.c_int, count, *(address,) * 5, *(ctypes.c_int,) * 4)
            self._encode_tiled = _function(loaded, "cuTensorMapEncodeTiled", many)
            self._error_name = _function(loaded, "cuGetErrorName", (ctypes.c_int, address))
            self._get_context = _function(loaded, "cuCtxGetCurrent", (address,))
            self._set_context = _function(loaded, "cuCtxSetCurrent", (address,))
            self._get_device = _function(loaded, "cuDeviceGet", (address, ctypes.c_int))
            self._retain = _function(loaded, "cuDevicePrimaryCtxRetain", (address, ctypes.c_int))
            self._capture_info = _function(loaded, "cuStreamGetCaptureInfo_v2", (address,) * 6)
            self._stream_id = _function(loaded, "cuStreamGetId", (address, address))
            self._fill_words = _function(loaded, "cuMemsetD32Async", (address, count, ctypes.c_size_t, address))
            self._set_attribute = _function(loaded, "cuFuncSetAttribute", (address, ctypes.c_int, ctypes.c_int))
            version = ctypes.c_int()
            status = _function(loaded, "cuDriverGetVersion", (address,))(ctypes.addressof(version))
        except (OSError, AttributeError) as error:
            raise LaunchError(f"library must be a CUDA driver ({error}) (got {library})") from None
        self._require(status, "cuDriverGetVersion")
        loop = launch_loop()
        at = ctypes.cast(loaded.cuLaunchKernelEx, ctypes.c_void_p).value
        self.launch_all: Callable[[int, int, int], int] = (
            partial(one_by_one, self.launch) if loop is None or at is None else partial(loop, at)
        )
        self.launch_address = at
        order, asked = stream_order(), (loaded.cuStreamGetCaptureInfo_v2, loaded.cuStreamGetId)
        infos = [ctypes.cast(f, ctypes.c_void_p).value for f in asked]
        self._order_of: Callable[[int], tuple[int, int, int]] = (
            partial(order_by_ctypes, self._capture_info, self._stream_id)
            if order is None or infos[0] is None or infos[1] is None
            else partial(order, infos[0], infos[1])
        )
        self._clears_small_bit = version.value <= _LAST_WITH_SMALL_BIT
        self._primary: dict[int, int] = {}

    def encode(
        self, address: int, element: str, element_bytes: int, shape: Sequence[int], strides: Sequence[int],
        block: Sequence[int], swizzle: int,
    ) -> TensorMap:  # fmt: skip
        """A tiled map of the tensor at ``address``; sizes and strides in elements, outermost axis first.

        The thread must have a context, or the driver refuses (``CUDA_ERROR_INVALID_CONTEXT``).

        Raises:
            LaunchError: the driver refuses.
        """
        rank = len(shape)
        sizes = (ctypes.c_uint64 * rank)(*reversed(shape))
        steps = (ctypes.c_uint64 * rank)(*(s * element_bytes for s in reversed(strides[:-1])), 0)
        box, unit = (ctypes.c_uint * rank)(*reversed(block)), (ctypes.c_uint * rank)(*(1,) * rank)
        arrays = [ctypes.addressof(x) for x in (sizes, steps, box, unit)]
        made = TensorMap()
        status = self._encode_tiled(
            made.address, TENSOR_MAP_TYPES[element], rank, address, *arrays, _INTERLEAVE_NONE, swizzle,
            _L2_PROMOTION_128B, _OOB_FILL_NONE,
        )  # fmt: skip
        given = f"{element} {tuple(shape)}, strides {tuple(strides)}, boxes of {tuple(block)}, at {address:#x}"
        self._require(status, f"cuTensorMapEncodeTiled of {given}")
        last = sum((n - 1) * s * element_bytes for n, s in zip(shape, strides, strict=True))
        if self._clears_small_bit and last + 1 < _SMALL_TENSOR_BYTES:
            words = (ctypes.c_uint64 * (TENSOR_MAP_BYTES // 8)).from_address(made.address)
            words[_SMALL_BIT_WORD] &= ~_SMALL_BIT
        return made

    def context(self) -> int:
        """The CUDA context of this thread, 0 where it has none."""
        found = ctypes.c_void_p()
        self._require(self._get_context(ctypes.addressof(found)), "cuCtxGetCurrent")
        return found.value or 0

    def primary_context(self, device_index: int) -> int:
        """The context of a device that torch and Triton work in; it is kept from then on.

        Raises:
            LaunchError: the driver refuses.
        """
        if device_index not in self._primary:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self._require(self._get_device(ctypes.addressof(device), device_index), "cuDeviceGet")
            self._require(self._retain(ctypes.addressof(context), device.value), "cuDevicePrimaryCtxRetain")
            self._primary[device_index] = context.value or 0
        return self._primary[device_index]

    def make_current(self, context: int) -> None:
        """Make ``context`` this thread's, unless it is.

        Raises:
            LaunchError: the driver refuses.
        """
        if self.context() != context:
            self._require(self._set_context(context), "cuCtxSetCurrent")

    def order_of(self, stream: int) -> tuple[int, int]:
        """What puts work on ``stream`` in order: the capture of a graph that it is in, 0 for none, or else its number.

        No other stream of this process has that number, not even one that gets its handle.

        Raises:
            LaunchError: the driver refuses.
        """
        status, capture, number = self._order_of(stream)
        if status:
            self._require(status, "cuStreamGetCaptureInfo and cuStreamGetId")
        return capture, number

    def clear(self, address: int, words: int, stream: int) -> None:
        """Enqueue that ``words`` of four bytes at ``address`` become zero.

        Raises:
            LaunchError: the driver refuses.
        """
        self._require(self._fill_words(address, 0, words, stream), "cuMemsetD32Async")

    def allow_large_clusters(self, function: int) -> None:
        """Let ``function`` have clusters of more than the 8 blocks that every card takes.

        Raises:
            LaunchError: the driver refuses.
        """
        status = self._set_attribute(function, _NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        self._require(status, "cuFuncSetAttribute")

    def status_name(self, status: int) -> str:
        """Such as ``CUDA_ERROR_INVALID_VALUE``."""
        text = ctypes.c_char_p()
        if self._error_name(status, ctypes.addressof(text)) != SUCCESS or text.value is None:
            return f"status {status}"
        return text.value.decode()

    def _require(self, status: int, call: str) -> None:
        if status != SUCCESS:
            raise LaunchError(f"{call} must succeed (got {self.status_name(status)})")


def _function(library: ctypes.CDLL, name: str, arguments: tuple[type, ...]) -> Callable[..., int]:
    found = getattr(library, name)
    found.argtypes, found.restype = arguments, ctypes.c_int
    return found  # type: ignore[no-any-return]


@cache
def cuda_driver() -> Driver:
    """The driver of this process.

    Raises:
        LaunchError: there is none.
    """
    return Driver()
