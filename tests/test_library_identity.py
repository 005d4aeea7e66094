"""Finding library files and telling them apart."""

from __future__ import annotations

import ctypes
import importlib
import re
import struct
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.library.bindings import (
    ALGO_CONFIG_ATTRIBUTES,
    HeuristicResult,
    MatmulAlgo,
    data_type,
    load_functions,
    status_name,
)
from gemmdesc.library.elf import build_id
from gemmdesc.library.identity import find_library, library_id, mapped_library, package_library, wheel_of
from gemmdesc.problem import ANSWER_ATTRIBUTES

MAPS = """\
7f00-7f01 r--p 00000000 08:01 11 /opt/other/libcublasLt.so.13
7f02-7f03 r-xp 00001000 08:01 11 /opt/other/libcublasLt.so.13
7f04-7f05 r--p 00000000 08:01 12 /opt/torch/libcublasLt.so.13
7f06-7f07 r--p 00000000 08:01 13 /opt/torch/libcublas.so.13
7f08-7f09 rw-p 00000000 00:00 0
7f0a-7f0b rw-p 00000000 00:00 0 [heap]
"""


def elf_with_note(note: bytes) -> bytes:
    """A minimal 64-bit ELF image whose one program header is a PT_NOTE holding ``note``."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 32, 64)
    struct.pack_into("<HH", header, 54, 56, 1)
    program = struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4)
    return bytes(header) + program + note


def gnu_note(kind: int, body: bytes, name: bytes = b"GNU\0") -> bytes:
    return struct.pack("<III", len(name), len(body), kind) + name + body + b"\0" * (-len(body) % 4)


def test_status_names() -> None:
    assert status_name(0) == "CUBLAS_STATUS_SUCCESS"
    assert status_name(15) == "CUBLAS_STATUS_NOT_SUPPORTED"
    assert status_name(77) == "CUBLAS_STATUS_77"


def test_struct_sizes_are_the_headers() -> None:
    assert ctypes.sizeof(MatmulAlgo) == 64
    assert ctypes.sizeof(HeuristicResult) == 64 + 8 + 4 + 4 + 16
    assert HeuristicResult.workspace_size.offset == 64


def test_attribute_table_follows_the_answer() -> None:
    assert tuple(name for name, _, _ in ALGO_CONFIG_ATTRIBUTES) == ANSWER_ATTRIBUTES
    assert [number for _, number, _ in ALGO_CONFIG_ATTRIBUTES] == list(range(9))
    assert [size for _, _, size in ALGO_CONFIG_ATTRIBUTES] == [4] * 7 + [2] * 2


def test_data_types() -> None:
    assert (data_type("a_dtype", DType.FLOAT16), data_type("a_dtype", DType.BFLOAT16)) == (2, 14)
    with pytest.raises(InvalidInputError, match=r"^d_dtype must .*\(got tfloat32\)$"):
        data_type("d_dtype", DType.TFLOAT32)


def test_build_id_of_a_real_library() -> None:
    candidates = [Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line]
    found = [build_id(p) for p in dict.fromkeys(candidates) if p.is_file()]
    assert found
    assert all(re.fullmatch(r"(?:[0-9a-f]{2})*", x) for x in found)
    assert any(len(x) in (32, 40) for x in found)


def test_build_id_is_found_behind_other_notes(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(elf_with_note(gnu_note(5, b"12345") + gnu_note(3, b"no", b"XYZ\0") + gnu_note(3, b"\xab\xcd\xef")))
    assert build_id(path) == "abcdef"
    path.write_bytes(elf_with_note(gnu_note(5, b"1234")))
    assert build_id(path) == ""


@pytest.mark.parametrize(
    "content", [b"", b"MZ not an ELF", b"\x7fELF", b"\x7fELF\x01\x01" + b"\0" * 60, elf_with_note(b"")[:80]]
)
def test_corrupt_files_are_library_errors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libcublasLt.so.13"
    path.write_bytes(content)
    for call in (build_id, library_id):
        with pytest.raises(LibraryError, match=re.escape(str(path))):
            call(path)
    with pytest.raises(LibraryError, match=re.escape(str(path))):
        load_functions(path)


def test_missing_files_are_library_errors(tmp_path: Path) -> None:
    path = tmp_path / "libcublasLt.so.13"
    for call in (build_id, library_id, load_functions, find_library):
        with pytest.raises(LibraryError, match=r"\(got .*libcublasLt.so.13\)$"):
            call(path)
    with pytest.raises(LibraryError):
        build_id(tmp_path)


def test_a_library_that_is_not_cublaslt() -> None:
    with pytest.raises(LibraryError, match=r"^path must name a libcublasLt: .*cublasLtGetVersion"):
        load_functions(Path(importlib.import_module("numpy._core._multiarray_umath").__file__ or ""))


def test_mapped_library_says_which_one_answers() -> None:
    found = mapped_library(MAPS)
    assert found is not None
    assert found.path == Path("/opt/torch/libcublasLt.so.13")
    assert found.others == (Path("/opt/other/libcublasLt.so.13"),)
    assert str(found) == "/opt/torch/libcublasLt.so.13 answers; also mapped: /opt/other/libcublasLt.so.13"


def test_mapped_library_alone_or_absent() -> None:
    alone = mapped_library("1-2 r--p 0 8:1 1 /a b/libcublasLt.so.12.9.1 (deleted)\n")
    assert alone is not None
    assert (str(alone), alone.others) == ("/a b/libcublasLt.so.12.9.1 answers", ())
    assert mapped_library("1-2 r--p 0 8:1 1 /a/libcublas.so.12\n") is None


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up nvidia-cublas 13.1.0.3 on the path, its library file returned."""
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libcublasLt.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    info = tmp_path / "nvidia_cublas-13.1.0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cublas\nVersion: 13.1.0.3\n")
    (info / "RECORD").write_text("nvidia/cu13/lib/libcublasLt.so.13,,\nnvidia/cu13/lib/libcublas.so.13,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return library


def test_packages_are_found_by_release(installed: Path) -> None:
    assert find_library("nvidia-cublas==13.1.0.3") == installed
    assert find_library("nvidia-cublas") == installed
    assert wheel_of(installed) == "nvidia-cublas==13.1.0.3"
    assert wheel_of(Path(sys.executable)) == ""


def test_another_release_says_what_is_installed_and_the_command(installed: Path) -> None:
    with pytest.raises(LibraryError, match=r"which is 13\.1\.0\.3; run: pip install .* nvidia-cublas==13\.2\.0\.1"):
        find_library("nvidia-cublas==13.2.0.1")


def test_missing_packages_say_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_installed)
    with pytest.raises(LibraryError, match=r"run: pip install .*nvidia-cublas-cu12==12\.9\.1\.4.*not installed\)$"):
        package_library("nvidia-cublas-cu12", "12.9.1.4")
