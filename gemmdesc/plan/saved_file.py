"""One file of answers, whole or not at all: read, replaced in one step, and locked against other processes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemmdesc.errors import GemmdescError

_FORMAT = 1
#: Seconds to wait for another process that is saving.
_PATIENCE = 2.0

#: An answer, a launch or None, and orders or None; see :mod:`gemmdesc.plan.saved`.
Entry = list[Any]


class UnusableFileError(GemmdescError):
    """A file of answers is not whole, or of another key."""


def key_digest(key: dict[str, Any]) -> str:
    """sha256 (hex) of a key."""
    return hashlib.sha256(_dumped(key)).hexdigest()


def read_entries(path: Path, key: dict[str, Any]) -> dict[str, Entry]:
    """The entries of the file at ``path``, none where there is no file.

    A line with the key and a digest comes first, then the entries, which the digest is of.

    Raises:
        UnusableFileError: the file is truncated, no such file at all, or of another key.
        OSError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    head, _, body = content.partition(b"\n")
    try:
        told = json.loads(head)
        digest, named = told["sha256"], (told["format"], told["key"])
    except (ValueError, KeyError, TypeError):
        raise UnusableFileError("is no file of answers") from None
    if named != (_FORMAT, key):
        raise UnusableFileError("is of another key")
    if hashlib.sha256(body).hexdigest() != digest:
        raise UnusableFileError("is not whole")
    entries = json.loads(body)
    if not isinstance(entries, dict):
        raise UnusableFileError("is no file of answers")
    return entries


def write_entries(path: Path, key: dict[str, Any], entries: dict[str, Entry]) -> None:
    """Replace the file at ``path``: a reader sees the former one or the whole new one.

    Raises:
        OSError: the place cannot be written; nothing is left behind.
    """
    body = json.dumps(entries, separators=(",", ":")).encode()
    head = _dumped({"format": _FORMAT, "key": key, "sha256": hashlib.sha256(body).hexdigest()})
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(head + b"\n" + body)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among the processes that write to ``path``; the lock is a file beside it, which stays.

    Raises:
        OSError: another one did not finish in time, or there is no place for the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "ab") as file:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError("another process is saving") from None
                time.sleep(0.01)
        yield


def _dumped(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
