"""The little of ELF that identifies a library: its build-id, read without loading it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from gemmdesc.errors import LibraryError

_MAGIC = b"\x7fELF"
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_HEADER_BYTES = 64
_PROGRAM_HEADER_BYTES = 56


def build_id(path: Path) -> str:
    """The GNU build-id of a 64-bit little-endian ELF file, lower-case hex; "" where it was stripped.

    Raises:
        LibraryError: the file is missing, unreadable, truncated or no such ELF file; the message names it.
    """
    try:
        with path.open("rb") as file:
            return _read_build_id(file)
    except OSError as error:
        raise LibraryError(f"path must name a readable file: {error.strerror} (got {path})") from None
    except (struct.error, ValueError) as error:
        raise LibraryError(f"path must name a 64-bit ELF library: {error} (got {path})") from None


def _read_build_id(file: BinaryIO) -> str:
    header = file.read(_HEADER_BYTES)
    if header[:4] != _MAGIC:
        raise ValueError("it does not start with the ELF magic")
    if header[4:6] != b"\x02\x01":
        raise ValueError("it is not 64-bit little-endian")
    (table,) = struct.unpack_from("<Q", header, 32)
    entry_bytes, entries = struct.unpack_from("<HH", header, 54)
    if entry_bytes != _PROGRAM_HEADER_BYTES:
        raise ValueError(f"its program headers are {entry_bytes} bytes each")
    file.seek(table)
    headers = file.read(entry_bytes * entries)
    for i in range(entries):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", headers, i * entry_bytes)
        if kind == _PT_NOTE:
            file.seek(offset)
            found = _find_note(file.read(size))
            if found:
                return found
    return ""


def _find_note(notes: bytes) -> str:
    at = 0
    while at + 12 <= len(notes):
        name_bytes, body_bytes, kind = struct.unpack_from("<III", notes, at)
        name = notes[at + 12 : at + 12 + name_bytes]
        body = at + 12 + _padded(name_bytes)
        if kind == _NT_GNU_BUILD_ID and name == b"GNU\0":
            return notes[body : body + body_bytes].hex()
        at = body + _padded(body_bytes)
    return ""


def _padded(size: int) -> int:
    return (size + 3) // 4 * 4
