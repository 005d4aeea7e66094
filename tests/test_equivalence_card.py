"""The card's side of the gate, on a driver made of host memory: what is passed where, and what comes back."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemmdesc.equivalence import card as card_module
from gemmdesc.equivalence.card import UNTOUCHED, Card
from gemmdesc.errors import LibraryError


class Pointer(int):
    """A device address."""


class Driver(types.ModuleType):
    """Host memory behind the calls of cuda-bindings' driver module; a kernel is a Python function."""

    class CUdevice_attribute:
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 1
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 2
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 3

    class CUfunction_attribute:
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    CUdeviceptr = Pointer
    CUstream = staticmethod(int)

    def __init__(self, kernels: dict[bytes, Callable[..., None]]) -> None:
        super().__init__("driver")
        self.kernels = kernels
        self.memory: dict[int, Any] = {}
        self.loaded = 0
        self.shared = 0
        for name in ("cuInit", "cuCtxSetCurrent", "cuCtxSynchronize"):
            setattr(self, name, lambda *_: (0,))
        self.cuDeviceGet = lambda index: (0, index)
        self.cuDevicePrimaryCtxRetain = lambda device: (0, device)
        self.cuDeviceGetName = lambda size, device: (0, b"Fake\0" + bytes(size - 5))
        self.cuDeviceGetAttribute = lambda what, device: (0, {1: 9, 2: 0, 3: 132}[what])
        self.cuModuleGetFunction = lambda module, name: (0, module)

    def cuModuleLoadData(self, image: bytes) -> tuple[int, bytes]:
        self.loaded += 1
        return 0, image

    def cuModuleUnload(self, module: bytes) -> tuple[int]:
        self.loaded -= 1
        return (0,)

    def cuFuncSetAttribute(self, function: bytes, what: int, value: int) -> tuple[int]:
        self.shared = value
        return (0,)

    def cuMemAlloc(self, size: int) -> tuple[int, Pointer]:
        block = ctypes.create_string_buffer(size)
        pointer = Pointer(ctypes.addressof(block))
        self.memory[pointer] = block
        return 0, pointer

    def cuMemFree(self, pointer: Pointer) -> tuple[int]:
        del self.memory[pointer]
        return (0,)

    def cuMemcpyHtoD(self, target: Pointer, source: int, size: int) -> tuple[int]:
        ctypes.memmove(int(target), source, size)
        return (0,)

    def cuMemcpyDtoH(self, target: int, source: Pointer, size: int) -> tuple[int]:
        assert isinstance(source, Pointer)
        ctypes.memmove(target, int(source), size)
        return (0,)

    def cuMemsetD8(self, pointer: Pointer, value: int, size: int) -> tuple[int]:
        ctypes.memset(int(pointer), value, size)
        return (0,)

    def cuLaunchKernel(self, function: bytes, *rest: Any) -> tuple[int]:
        *shape, shared, _stream, (values, kinds), extra = rest
        assert len(shape) == 6
        assert all(isinstance(x, int) for x in shape)
        assert extra == 0
        assert len(values) == len(kinds)
        for value, kind in zip(values, kinds, strict=True):
            kind(value)
        if function not in self.kernels:
            return (700,)
        self.kernels[function](tuple(shape), shared, values)
        return (0,)


def words(address: int, count: int, kind: str = "<u4") -> np.ndarray:
    size = np.dtype(kind).itemsize * count
    return np.frombuffer((ctypes.c_char * size).from_address(address), kind)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver({})
    package, bindings = types.ModuleType("cuda"), types.ModuleType("cuda.bindings")
    bindings.driver = made  # type: ignore[attr-defined]
    package.bindings = bindings  # type: ignore[attr-defined]
    for name, module in (("cuda", package), ("cuda.bindings", bindings), ("cuda.bindings.driver", made)):
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_a_kernel_runs_once_a_draw_on_its_own_inputs_and_outputs(driver: Driver) -> None:
    seen = []

    def scaled(shape: tuple[int, ...], shared: int, values: tuple[int, ...]) -> None:
        source, sink, factor, nothing = values
        seen.append((shape, shared, factor, nothing))
        words(sink, 8)[:4] = words(source, 4) * factor

    driver.kernels[b"scaled"] = scaled
    card = Card()
    assert card.name == "Fake (sm_90, 132 SMs)"
    data = np.arange(12, dtype="<u4").reshape(3, 4)
    uploads = []
    for _ in range(2):
        given = card.upload("data", lambda: uploads.append(1) or data.view(np.uint8))  # type: ignore[func-returns-value]
        (out,) = card.launch(
            b"scaled",
            "scaled",
            grid=(2, 1, 1),
            block=(32, 1, 1),
            shared=60_000,
            arguments=[("input", given), ("output", 0), ("integer", (3, 4)), ("nothing", None)],
            draws=3,
            outputs=[32],
        )
        assert (np.ascontiguousarray(out[:, :16]).view("<u4") == 3 * data).all()
        assert (out[:, 16:] == UNTOUCHED).all()
    assert len(uploads) == 1
    held = len(driver.memory)
    card.drop("data")
    assert len(driver.memory) == held - 1
    card.upload("data", lambda: uploads.append(1) or data.view(np.uint8))  # type: ignore[func-returns-value]
    assert len(uploads) == 2
    assert seen == [((2, 1, 1, 32, 1, 1), 60_000, 3, 0)] * 6
    assert driver.shared == 60_000
    assert driver.loaded == 0


def test_an_error_of_the_driver_is_said(driver: Driver) -> None:
    with pytest.raises(LibraryError, match="launch a kernel"):
        Card().launch(b"none", "none", grid=(1, 1, 1), block=(1, 1, 1), shared=0, arguments=[], draws=1, outputs=[])
    assert driver.loaded == 0


def test_an_instruction_is_applied_to_each_distinct_operand_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def apply(shape: tuple[int, ...], shared: int, values: tuple[int, ...]) -> None:
        source, sink, count = values
        assert shape[0] * shape[3] >= count
        counts.append(count)
        words(sink, count, "<u8")[:] = words(source, count, "<u8") + np.uint64(1)

    driver.kernels[b"text"] = apply
    monkeypatch.setattr(card_module, "assemble", lambda text, target: b"text")
    run = Card().instruction("ex2.approx.ftz.f32", "sm_90a", "8.7")
    operands = np.array([[5, 7], [5, 9]], np.uint64)
    for _ in range(2):
        assert (run(operands) == operands + np.uint64(1)).all()
    assert counts == [3]


def test_literals_get_texts_of_their_own(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []

    def apply(shape: tuple[int, ...], shared: int, values: tuple[int, ...]) -> None:
        source, sink, count = values
        rows = words(source, 2 * count, "<u8").reshape(2, count)
        words(sink, count, "<u8")[:] = rows[0] + rows[1]

    driver.kernels[b"text"] = apply
    monkeypatch.setattr(card_module, "assemble", lambda text, target: texts.append(text) or b"text")
    run = Card().instruction("div.full.f32 literal", "sm_90a", "8.7")
    x, c = np.arange(6, dtype=np.uint64).reshape(3, 2), np.array([[8], [9], [8]], np.uint64)
    assert (run(x, c) == x + c).all()
    assert sum("0f00000008" in t for t in texts) == 1
    assert sum("0f00000009" in t for t in texts) == 1


def test_matrix_steps_hand_over_rows_columns_and_accumulators(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(shape: tuple[int, ...], shared: int, values: tuple[int, ...]) -> None:
        source, sink, count = values
        assert shape[0] * shape[3] >= 32 * count
        rows = words(source, 17 * count, "<u8").reshape(17, count)
        words(sink, count, "<u8")[:] = rows.sum(axis=0)

    driver.kernels[b"text"] = apply
    monkeypatch.setattr(card_module, "assemble", lambda text, target: b"text")
    step = Card().matrix_step("sm_90a", "8.7")
    a, b = np.arange(40, dtype=np.uint32).reshape(5, 8), np.ones((5, 8), np.uint32)
    got = step("mma.m16n8k32.f32.e4m3.e4m3.f32", a, b, np.arange(5, dtype=np.uint64))
    assert (got == a.sum(axis=1) + 8 + np.arange(5)).all()
