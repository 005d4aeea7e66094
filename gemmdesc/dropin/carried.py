"""Values that belong to a thread and go along to the threads that run its backward passes, kept by torch.

torch carries what ``torch._C._stash_obj_in_tls`` was given to the threads of its autograd engine, as no
``threading.local`` of ours would be.  torch 2.11 keeps the object without counting a reference of its own, and gives
one up in the end (a ``py::handle`` handed to ``c10::SafePyObject``, torch/csrc/Module.cpp); torch 2.13 counts one.
Which of the two the torch at hand does is found out once.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def carry(name: str, value: object) -> None:
    """Keep ``value`` under ``name`` for this thread, and the backward passes that it starts from now on."""
    if not _torch_counts():
        _count(value)
    _stash(name, value)


def carried(name: str, otherwise: Any) -> Any:
    """What :func:`carry` was given last under ``name`` in this thread, or the one whose backward pass it runs."""
    import torch

    return torch._C._get_obj_in_tls(name) if torch._C._is_key_in_tls(name) else otherwise


def _stash(name: str, value: object) -> None:
    import torch

    torch._C._stash_obj_in_tls(name, value)


@cache
def _torch_counts() -> bool:
    """Whether torch counts a reference to what it is given to keep."""
    kept = object()
    _count(kept)  # torch's, should it count none
    before = sys.getrefcount(kept)
    _stash(f"{__name__}.kept", kept)
    counts = sys.getrefcount(kept) > before
    if counts:
        _discount(kept)
    return counts


def _count(value: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _discount(value: object) -> None:
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))
