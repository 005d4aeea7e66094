"""In which file a mapped library's calls end: asked of the dynamic linker, which bound them.

Two files of one name may be mapped, and which of them a library's calls were bound to follows from the order in which
they were loaded, not from where they lie.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


class _Place(ctypes.Structure):
    """``Dl_info`` of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p),
    )  # fmt: skip


def linked_file(user: Path, symbol: str, version: str = "") -> Path | None:
    """The file whose ``symbol`` a call from ``user``, a mapped library, reaches.

    ``version``: the symbol's, as in ``libcublasLt.so.13``; "" takes any.  None where ``user`` is not mapped, nothing
    offers such a symbol, or the system's linker cannot be asked.
    """
    try:
        # What is open to all of the process comes first, then what the library itself was linked with.
        handles = [ctypes.CDLL(None), ctypes.CDLL(str(user), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)]
    except OSError:
        return None
    found = (_address(handle, symbol, version) for handle in handles)
    return next((_file_of(address) for address in found if address), None)


def _address(handle: ctypes.CDLL, symbol: str, version: str) -> int | None:
    linker = ctypes.CDLL(None)
    number = ctypes.c_void_p(handle._handle)
    if version:
        if not hasattr(linker, "dlvsym"):
            return None
        linker.dlvsym.restype = ctypes.c_void_p
        address: int | None = linker.dlvsym(number, symbol.encode(), version.encode())
        return address
    linker.dlsym.restype = ctypes.c_void_p
    address = linker.dlsym(number, symbol.encode())
    return address


def _file_of(address: int) -> Path | None:
    place = _Place()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(place))
    return Path(os.fsdecode(place.file)) if found and place.file else None
