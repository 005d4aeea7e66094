"""What a library answered, kept on disk from process to process: problem, answer, and the order that it stood for.

One file holds the answers of one card, library, profile, release of gemmdesc and of torch.  It is replaced in one
step, under a lock, together with what other processes have written meanwhile.  A file that cannot be used is passed
over, with a warning and the reason in :meth:`SavedAnswers.info`: the library is asked again, and the next save replaces
it.
"""

from __future__ import annotations

import json
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Lock
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.plain import launch_from_plain, to_plain
from gemmdesc.plan.saved_file import Entry, UnusableFileError, key_digest, locked, read_entries, write_entries
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, Launch, LibraryId, Refused
from gemmdesc.regions import Region
from gemmdesc.text import to_text

#: Answers that a file holds; those saved first go first.
MOST_SAVED = 8192
_PROBLEM = tuple(f.name for f in fields(GemmProblem))
_ANSWER = tuple(f.name for f in fields(AlgoConfig))
#: How variables begin that cuBLAS reads itself, or that change the card that it sees.
_VARIABLES = ("CUBLAS", "CUDA_MPS_", "NVIDIA_TF32_OVERRIDE")
#: Saves are so many seconds apart, and so many times as long as the last one took; the last one is at the end.
_APART, _APART_TIMES = 1.0, 20.0


class SavedAnswersWarning(UserWarning):
    """Answers on disk cannot be used, or cannot be written there; the library is asked instead."""


@dataclass(frozen=True, kw_only=True)
class SavedKey:
    """Everything beside a problem that its answer, or what it means, depends on.

    ``library_digest``: the ELF build-id, or the file's sha256 where there is none.  ``profile_digest``: of its rows.
    ``environment``: variables that may move an answer, as ``NAME=value``.
    """

    device: DeviceId
    library: LibraryId
    profile_digest: str
    gemmdesc: str
    torch: str
    environment: tuple[str, ...] = ()

    @property
    def library_digest(self) -> str:
        return self.library.build_id or self.library.sha256

    def to_plain(self) -> dict[str, Any]:
        """The key as a file states it, with the names of the values in its entries."""
        return {
            "sm": self.device.sm, "sm_count": self.device.sm_count, "mig": self.device.mig,
            "driver": self.device.driver, "environment": list(self.environment),
            "library": str(self.library.version), "library_digest": self.library_digest,
            "profile_digest": self.profile_digest, "gemmdesc": self.gemmdesc, "torch": self.torch,
            "problem": list(_PROBLEM), "answer": list(_ANSWER),
        }  # fmt: skip

    def path(self, folder: Path) -> Path:
        """The file of this key under ``folder``."""
        name = f"cublaslt-{self.library.version}-{key_digest(self.to_plain())[:16]}.json"
        return folder / self.device.folder / name


def relevant_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Of ``environment``, what cuBLAS reads itself, or what changes the card that it sees."""
    return tuple(f"{name}={environment[name]}" for name in sorted(environment) if name.startswith(_VARIABLES))


@dataclass(frozen=True, kw_only=True)
class SavedAnswer:
    """``launch``: None where it was not needed.  ``orders``: the regions as text, None where they were not kept."""

    answer: AlgoConfig | Refused
    launch: Launch | None
    orders: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class SavedInfo:
    """Counts since the answers were opened.

    ``loaded``: read from the file.  ``found``: problems that needed no library.  ``asked``: those that did.
    ``ignored``: why a file, an entry or a save came to nothing.
    """

    path: str
    loaded: int
    found: int
    asked: int
    saves: int
    ignored: tuple[str, ...]


@dataclass(eq=False)
class _State:
    """What outlives :class:`SavedAnswers` until it was written."""

    path: Path
    key: dict[str, Any]
    entries: dict[str, Entry] = field(default_factory=dict)
    fresh: dict[str, Entry] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    loaded: int = 0
    found: int = 0
    asked: int = 0
    saves: int = 0
    next_save: float = 0.0
    lock: Lock = field(default_factory=Lock)
    saving: Lock = field(default_factory=Lock)

    def ignore(self, reason: str) -> None:
        """Count and say once what came to nothing."""
        if reason not in self.ignored:
            self.ignored.append(reason)
            warnings.warn(f"saved answers: {reason}", SavedAnswersWarning, stacklevel=3)

    def save(self) -> None:
        """Write what is new, unless another thread is writing."""
        if not self.fresh or not self.saving.acquire(blocking=False):
            return
        began = time.monotonic()
        try:
            with locked(self.path):
                self._replace()
        except OSError as error:
            self.ignore(f"{self.path} cannot be written ({error})")
        finally:
            took = time.monotonic() - began
            self.next_save = time.monotonic() + max(_APART, _APART_TIMES * took)
            self.saving.release()

    def _replace(self) -> None:
        with self.lock:
            new, mine = dict(self.fresh), dict(self.entries)
        try:
            others = read_entries(self.path, self.key)
        except UnusableFileError as error:
            self.ignore(f"{self.path} {error}; it is replaced")
            others = mine
        write_entries(self.path, self.key, _trimmed(others | new))
        with self.lock:
            self.saves += 1
            self.fresh = {text: entry for text, entry in self.fresh.items() if new.get(text) is not entry}


class SavedAnswers:
    """The answers of one key under ``folder``, read when opened; may be shared by threads.

    What is added is written after a second or so, when :meth:`save` is called, and at the end of the process.
    """

    def __init__(self, folder: Path, key: SavedKey) -> None:
        self._state = state = _State(path=key.path(folder), key=key.to_plain())
        try:
            state.entries = read_entries(state.path, state.key)
        except UnusableFileError as error:
            state.ignore(f"{state.path} {error}; the library is asked instead")
        except OSError as error:
            state.ignore(f"{state.path} cannot be read ({error})")
        state.loaded = len(state.entries)
        weakref.finalize(self, state.save)

    def find(self, problem: GemmProblem) -> SavedAnswer | None:
        """What was answered to ``problem``, or None, counted as a problem that the library is asked."""
        state, text = self._state, _problem_text(problem)
        entry = state.entries.get(text)
        found = None
        if entry is not None:
            try:
                found = _from_entry(entry)
            except (InvalidInputError, KeyError, TypeError, ValueError) as error:
                state.ignore(f"{state.path} holds a malformed entry ({error})")
        with state.lock:
            state.found += found is not None
            state.asked += found is None
        return found

    def add(
        self,
        problem: GemmProblem,
        answer: AlgoConfig | Refused,
        launch: Launch | None,
        regions: Sequence[Region] | None,
    ) -> None:
        """Keep an answer, and what it was found to mean; None adds nothing to what is known of that."""
        entry = _to_entry(answer, launch, None if regions is None else order_texts(regions))
        state, text = self._state, _problem_text(problem)
        with state.lock:
            known = state.entries.get(text)
            if known == entry or (regions is None and known is not None and known[:2] == entry[:2]):
                return
            state.entries[text] = state.fresh[text] = entry
        if time.monotonic() >= state.next_save:
            state.save()

    def differs(self, problem: GemmProblem) -> None:
        """Note that the answer kept for ``problem`` no longer means what it did, so that the library is asked."""
        with self._state.lock:
            self._state.found -= 1
            self._state.asked += 1
        self._state.ignore(f"{self._state.path} holds orders that its profile does not give")

    def save(self) -> None:
        """Write what is new now."""
        self._state.save()

    def clear(self) -> None:
        """Forget everything, and remove the file."""
        with self._state.lock:
            self._state.entries.clear()
            self._state.fresh.clear()
        self._state.path.unlink(missing_ok=True)

    def info(self) -> SavedInfo:
        """The counts."""
        s = self._state
        return SavedInfo(
            path=str(s.path), loaded=s.loaded, found=s.found, asked=s.asked, saves=s.saves, ignored=tuple(s.ignored)
        )


def order_texts(regions: Sequence[Region]) -> tuple[str, ...]:
    """Each region's bounds and descriptor, as text."""
    return tuple(f"{' '.join(map(str, r.bounds))} {to_text(r.descriptor)}" for r in regions)


def _problem_text(problem: GemmProblem) -> str:
    return json.dumps([to_plain(getattr(problem, name)) for name in _PROBLEM], separators=(",", ":"))


def _to_entry(answer: AlgoConfig | Refused, launch: Launch | None, orders: Sequence[str] | None) -> Entry:
    told = {"refused": answer.status} if isinstance(answer, Refused) else [getattr(answer, n) for n in _ANSWER]
    return [told, None if launch is None else to_plain(launch), None if orders is None else list(orders)]


def _from_entry(entry: Entry) -> SavedAnswer:
    told, launch, orders = entry
    answer: AlgoConfig | Refused
    if isinstance(told, Mapping):
        answer = Refused(status=str(told["refused"]))
    else:
        answer = AlgoConfig(**dict(zip(_ANSWER, told, strict=True)))
        if not all(isinstance(getattr(answer, f.name), {"int": int, "str": str}[str(f.type)]) for f in fields(answer)):
            raise InvalidInputError(f"answer must hold numbers (got {told})")
    return SavedAnswer(
        answer=answer,
        launch=None if launch is None else launch_from_plain(launch),
        orders=None if orders is None else tuple(map(str, orders)),
    )


def _trimmed(entries: dict[str, Entry]) -> dict[str, Entry]:
    extra = len(entries) - MOST_SAVED
    return dict(list(entries.items())[max(0, extra) :])
