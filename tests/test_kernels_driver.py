"""The CUDA driver's calls, against a stand-in compiled with NVIDIA's own header: structures, attributes, failures."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import struct
import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.errors import LaunchError
from gemmdesc.kernels.driver import Driver, LaunchAttribute, LaunchConfig, TensorMap, launch_attributes
from gemmdesc.kernels.launch_loop import launch_loop, one_by_one, stream_order

SOURCE = Path(__file__).parent / "fake_cuda" / "fake_cuda.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
TRITON = importlib.util.find_spec("triton")
HEADER = Path(str(TRITON.origin)).parent / "backends" / "nvidia" / "include" if TRITON else Path("/nowhere")
pytestmark = pytest.mark.skipif(
    COMPILER is None or not (HEADER / "cuda.h").is_file(), reason="needs a C compiler, and cuda.h, which Triton has"
)


class Fake:
    """The stand-in, as the driver sees it and as the test does."""

    def __init__(self, path: Path) -> None:
        self.path, self.driver = path, Driver(str(path))
        self.library = ctypes.CDLL(str(path))
        self.library.fake_number.restype = ctypes.c_uint64

    def numbers(self, *places: int) -> list[int]:
        return [self.library.fake_number(place) for place in places]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    path = tmp_path / "libcuda.so.1"
    command = [str(COMPILER), "-O1", "-shared", "-fPIC", f"-I{HEADER}", "-o", str(path), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    return Fake(path)


def launched(fake: Fake, config: LaunchConfig, values: tuple[int, ...] = (1, 2, 3, 4)) -> int:
    held = (ctypes.c_uint64 * 4)(*values)
    begin = ctypes.addressof(held)
    places = (ctypes.c_uint64 * 4)(*(begin + 8 * i for i in range(4)))
    return fake.driver.launch(ctypes.addressof(config), 4321, ctypes.addressof(places), None)


def test_a_launch_says_grid_block_memory_and_stream(fake: Fake) -> None:
    config = LaunchConfig(1320, 1, 1, 256, 1, 1, 200000, 0xABCDEF0123456789, 0, 0)
    assert launched(fake, config, (7, 2**64 - 1, 0, 5)) == 0
    assert fake.numbers(*range(11)) == [1320, 1, 1, 256, 1, 1, 200000, 0xABCDEF0123456789, 0, 4321, 1]
    assert fake.numbers(50, 51, 52, 53) == [7, 2**64 - 1, 0, 5]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"clusters": 1, "cooperative": False, "dependent": False}, []),
        ({"clusters": 1, "cooperative": False, "dependent": True}, [(6, 1)]),
        ({"clusters": 1, "cooperative": True, "dependent": False}, [(2, 1)]),
        ({"clusters": 4, "cooperative": False, "dependent": False}, [(4, 40101), (5, 1)]),
        ({"clusters": 2, "cooperative": True, "dependent": True}, [(6, 1), (2, 1), (4, 20101), (5, 1)]),
    ],
)
def test_attributes_are_those_of_tritons_launcher(
    fake: Fake, wanted: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    made = launch_attributes(clusters=wanted["clusters"], cooperative=bool(wanted["cooperative"]),
                             dependent=bool(wanted["dependent"]))  # fmt: skip
    config = LaunchConfig(1, 1, 1, 32, 1, 1, 0, 0, ctypes.addressof(made) if expected else 0, len(made))
    assert launched(fake, config) == 0
    count = fake.numbers(8)[0]
    named, values = (fake.numbers(*range(place, place + count)) for place in (20, 30))
    assert list(zip(named, values, strict=True)) == expected
    assert ctypes.sizeof(LaunchAttribute) == 72


def steps_of(fake: Fake, count: int) -> tuple[Any, list[Any]]:
    """Words of steps whose grids are 1, 2, ... and functions 101, 102, ..., and what they point at."""
    held: list[Any] = [(ctypes.c_uint64 * 4)(*(9 for _ in range(4))) for _ in range(count)]
    places = [(ctypes.c_uint64 * 4)(*(ctypes.addressof(h) + 8 * i for i in range(4))) for h in held]
    configs = [LaunchConfig(1 + i, 1, 1, 32, 1, 1, 0, 5, 0, 0) for i in range(count)]
    words = [w for i, (c, p) in enumerate(zip(configs, places, strict=True))
             for w in (ctypes.addressof(c), 101 + i, ctypes.addressof(p))]  # fmt: skip
    return (ctypes.c_uint64 * len(words))(*words), [held, places, configs]


@pytest.mark.parametrize("way", ["C", "Python"])
def test_several_kernels_are_launched_by_one_call(fake: Fake, way: str) -> None:
    assert launch_loop() is not None  # there is a compiler here
    launch_all = fake.driver.launch_all if way == "C" else partial(one_by_one, fake.driver.launch)
    words, _held = steps_of(fake, 3)
    begin = ctypes.addressof(words)
    assert launch_all(begin, 0, 3) == 0
    assert fake.numbers(63, 0, 9, 7) == [3, 3, 103, 5]
    assert launch_all(begin, 1, 2) == 0
    assert fake.numbers(63, 0, 9) == [4, 2, 102]
    assert launch_all(begin, 3, 3) == 0
    for failing, first in ((201, 0), (1, 1)):
        fake.library.fake_fail(0, failing)
        assert launch_all(begin, first, 3) == (first << 32 | failing)
    assert fake.numbers(63) == [4]
    # What follows a step that fails is not launched, and the place is that step's.
    words[3 * 2] = words[3 * 2 + 2] = 0
    fake.library.fake_fail_after(2, 700)
    assert launch_all(begin, 0, 3) == (2 << 32 | 700)
    assert fake.numbers(63) == [6]


def test_a_machine_without_a_compiler_launches_one_by_one(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import build

    def refuse(*arguments: Any, **more: Any) -> Any:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(build, "compile_module_from_src", refuse)
    launch_loop.cache_clear()
    try:
        assert launch_loop() is None
        driver = Driver(str(fake.path))
        words, _held = steps_of(fake, 2)
        assert driver.launch_all(ctypes.addressof(words), 0, 2) == 0
        assert fake.numbers(63, 9) == [2, 102]
    finally:
        launch_loop.cache_clear()


def test_the_loop_takes_four_numbers() -> None:
    loop: Any = launch_loop()
    for wrong in ((1, 2, 3), (1, 2, 3, "4"), (1, 2, 3, -4)):
        with pytest.raises((TypeError, OverflowError)):
            loop(*wrong)


def test_a_map_says_the_innermost_axis_first(fake: Fake) -> None:
    made = fake.driver.encode(0x7F0000000010, "bfloat16", 2, (300, 4096), (5000, 1), (128, 64), 3)
    told = fake.numbers(*range(14))
    assert told == [9, 0x7F0000000010, 4096, 300, 10000, 64, 128, 1, 1, 1, 3, 1, 1, 1]
    assert made.address % 128 == 0
    assert bytes(made) == b"\xff" * 128


@pytest.mark.parametrize(("rows", "cleared"), [(2, True), (64, True), (65, False)])
def test_the_bit_of_small_tensors_is_off_where_the_driver_sets_it(fake: Fake, rows: int, cleared: bool) -> None:
    made = fake.driver.encode(0x1000, "float16", 2, (rows, 1024), (1024, 1), (64, 64), 3)
    words = struct.unpack("=16Q", bytes(made))
    expected = 2**64 - 1 - (1 << 21) if cleared else 2**64 - 1
    assert words == (2**64 - 1, expected, *(2**64 - 1,) * 14)


def test_failures_have_the_drivers_names(fake: Fake, tmp_path: Path) -> None:
    fake.library.fake_fail(1, 1)
    with pytest.raises(LaunchError, match=r"^cuTensorMapEncodeTiled of float16 .* at 0x1000 .*INVALID_VALUE\)$"):
        fake.driver.encode(0x1000, "float16", 2, (8, 8), (8, 1), (8, 8), 0)
    fake.library.fake_fail(2, 999)
    with pytest.raises(LaunchError, match=r"^cuCtxSetCurrent must succeed \(got status 999\)$"):
        fake.driver.make_current(5)
    assert fake.driver.context() == 77
    with pytest.raises(LaunchError, match=r"^library must be a CUDA driver \(.*\) \(got .*nothing.so\)$"):
        Driver(str(tmp_path / "nothing.so"))


def test_maps_and_functions_want_a_context(fake: Fake) -> None:
    fake.library.fake_context(ctypes.c_uint64(0))
    with pytest.raises(LaunchError, match=r"^cuTensorMapEncodeTiled of .* \(got CUDA_ERROR_INVALID_CONTEXT\)$"):
        fake.driver.encode(0x1000, "float16", 2, (8, 8), (8, 1), (8, 8), 0)
    fake.driver.make_current(77)
    fake.driver.encode(0x1000, "float16", 2, (8, 8), (8, 1), (8, 8), 0)
    fake.library.fake_fail(2, 999)
    fake.driver.make_current(77)  # it is, and no call is made
    with pytest.raises(LaunchError, match="cuCtxSetCurrent"):
        fake.driver.make_current(5)


def test_a_devices_context_is_retained_once(fake: Fake) -> None:
    assert [fake.driver.primary_context(i) for i in (0, 1, 0, 1)] == [77, 78, 77, 78]
    assert fake.numbers(59) == [2]
    with pytest.raises(LaunchError, match=r"^cuDeviceGet must succeed \(got CUDA_ERROR_INVALID_VALUE\)$"):
        fake.driver.primary_context(2)


def test_large_clusters_are_allowed_by_function(fake: Fake) -> None:
    fake.driver.allow_large_clusters(4321)
    assert fake.numbers(60, 61, 62) == [4321, 1, 1]


@pytest.mark.parametrize("way", ["C", "Python"])
def test_streams_are_asked_and_words_cleared(fake: Fake, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream_order() is not None
    if way == "Python":
        monkeypatch.setattr("gemmdesc.kernels.driver.stream_order", lambda: None)
    driver = Driver(str(fake.path))
    assert [driver.order_of(stream)[0] for stream in (4, 5, 6)] == [0, 506, 0]
    assert driver.order_of(6) == (0, (1 << 40) + 6)
    driver.clear(1 << 33, 96, 4)
    assert fake.numbers(0, 1, 2, 3) == [1 << 33, 0, 96, 4]
    for call in (driver.order_of, lambda stream: driver.clear(0, 1, stream)):
        with pytest.raises(LaunchError, match=r"must succeed \(got CUDA_ERROR_INVALID_VALUE\)$"):
            call(13)


def test_maps_have_memory_of_their_own() -> None:
    maps = [TensorMap() for _ in range(50)]
    begins = sorted(m.address for m in maps)
    assert all(b - a >= 128 for a, b in pairwise(begins))
