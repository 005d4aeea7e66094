"""What a call enqueues, read from a CUDA graph: kernels with their launch shape, and memsets.  Nothing is executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmdesc.library.unknown import names_unknown
from gemmdesc.problem import KernelNode, Launch


def capture_launch(enqueue: Callable[[int], object], device_index: int) -> Launch | None:
    """The kernels and memsets that ``enqueue(stream)`` puts on a CUDA stream (its handle as an integer), in order.

    None where ``enqueue`` returns anything but None; and where the call cannot be recorded, for want of cuda-bindings
    or because a capture fails, which is warned of once in a process
    (:class:`~gemmdesc.library.unknown.KernelNamesUnknownWarning`).  CUPTI, which has one place only that a profiler
    takes, has no part in it.
    """
    found = _captured(enqueue, device_index)
    if isinstance(found, Unrecorded):
        names_unknown("launch capture", found.why)
        return None
    return found


@dataclass(frozen=True, kw_only=True)
class Unrecorded:
    """Why a launch could not be recorded."""

    why: str


def _captured(enqueue: Callable[[int], object], device_index: int) -> Launch | Unrecorded | None:
    try:
        from cuda.bindings import driver
    except ImportError:
        return Unrecorded(why="cuda-bindings is not installed")
    import torch

    with torch.cuda.device(device_index):
        stream = torch.cuda.Stream(device_index)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        handle = driver.CUstream(stream.cuda_stream)
        begun = driver.cuStreamBeginCapture(handle, mode)
        if _failed(begun):
            return Unrecorded(why=f"cuStreamBeginCapture: {begun[0]}")
        refusal: object = "the call raised"
        try:
            refusal = enqueue(stream.cuda_stream)
        finally:
            ended = driver.cuStreamEndCapture(handle)
        if _failed(ended):
            return None if refusal is not None else Unrecorded(why=f"cuStreamEndCapture: {ended[0]}")
        graph = ended[1]
        try:
            if refusal is not None:
                return None
            return _read(driver, graph) or Unrecorded(why="the captured graph cannot be read")
        finally:
            driver.cuGraphDestroy(graph)


def _failed(result: tuple[Any, ...]) -> bool:
    return int(result[0]) != 0


def _read(driver: Any, graph: Any) -> Launch | None:
    counted = driver.cuGraphGetNodes(graph, 0)
    if _failed(counted):
        return None
    listed = driver.cuGraphGetNodes(graph, counted[-1])
    if _failed(listed):
        return None
    kinds = driver.CUgraphNodeType
    kernels, memsets = [], []
    for node in list(listed[1])[: counted[-1]]:
        kind = driver.cuGraphNodeGetType(node)
        if _failed(kind):
            return None
        if kind[1] == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
            kernel = _kernel(driver, node)
            if kernel is None:
                return None
            kernels.append(kernel)
        elif kind[1] == kinds.CU_GRAPH_NODE_TYPE_MEMSET:
            memsets.append(_memset_bytes(driver, node))
    return Launch(kernels=tuple(kernels), memset_bytes=tuple(memsets))


def _kernel(driver: Any, node: Any) -> KernelNode | None:
    result = driver.cuGraphKernelNodeGetParams(node)
    if _failed(result):
        return None
    p = result[1]
    return KernelNode(
        name=_name(driver, p),
        grid=(p.gridDimX, p.gridDimY, p.gridDimZ),
        block=(p.blockDimX, p.blockDimY, p.blockDimZ),
        cluster=_cluster(driver, node),
        shared_bytes=int(p.sharedMemBytes),
    )


def _name(driver: Any, params: Any) -> str:
    for get, handle in ((driver.cuFuncGetName, params.func), (driver.cuKernelGetName, params.kern)):
        if handle is not None and int(handle):
            result = get(handle)
            if not _failed(result):
                text: bytes | str = result[1]
                return text.decode() if isinstance(text, bytes) else text
    return ""


def _cluster(driver: Any, node: Any) -> tuple[int, int, int]:
    attribute = driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    result = driver.cuGraphKernelNodeGetAttribute(node, attribute)
    if _failed(result):
        return (1, 1, 1)
    size = result[1].clusterDim
    return (max(1, size.x), max(1, size.y), max(1, size.z))


def _memset_bytes(driver: Any, node: Any) -> int:
    result = driver.cuGraphMemsetNodeGetParams(node)
    if _failed(result):
        return 0
    p = result[1]
    return int(p.width) * int(p.elementSize) * max(1, int(p.height))
