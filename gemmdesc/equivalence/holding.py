"""One walk held against a card: the same operands to both, and the bytes that differ."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence import nodes
from gemmdesc.equivalence.card import UNTOUCHED
from gemmdesc.equivalence.draws import AIMED, DRAWS, FORMATS, draw
from gemmdesc.equivalence.evaluate import evaluate, loaded_bytes, missing_functions, needed_nodes
from gemmdesc.equivalence.matrix_steps import modelled_steps
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.walk import Walked
from gemmdesc.errors import InvalidInputError

#: Values of expressions, over all draws, that are worked out for one kernel at most.
MOST_VALUES = 1_500_000
#: Further draws that are launched, and not worked out, to tell apart what 16-bit outputs round to one value.
EXTRA = 8
#: Bytes around each output that have to stay as they were.
MARGIN = 1024
#: Which stored bytes are worked out where they are many.
_SAMPLE_SEED = 20261130
#: What the operands of the gate's draws are called on the card.
_GATE = "gate"
#: Matrix steps are worked out with the models of the architecture that the walks are compiled for.
ARCHITECTURE = "Hopper"

Bytes = npt.NDArray[np.uint8]
Chosen = npt.NDArray[np.bool_]
#: Offsets and bytes of each output, as :func:`evaluate` gives them.
Values = Mapping[int, tuple[Ids, Bytes]]


@dataclass(frozen=True, kw_only=True)
class Launchable:
    """A compiled kernel as Triton gives it, for a card.

    ``kinds``: Triton's element types of the pointer arguments, in order, which come before all other arguments;
    ``metadata``: Triton's.
    """

    cubin: bytes
    metadata: Any
    kinds: tuple[str, ...]


class Holder:
    """Holds one walk after the other against ``card``; operands are drawn from ``seed`` and kept."""

    def __init__(self, card: Any, seed: int) -> None:
        self._card, self._seed = card, seed
        self._memory: dict[tuple[Any, ...], Bytes] = {}
        self._uploaded: set[tuple[Any, ...]] = set()

    def hold(self, walked: Walked, compiled: Launchable) -> dict[str, Any]:
        """Launch, work out, compare: a row of counts, digests of what was stored on each draw, and times.

        ``outputs`` and ``equal`` speak of the draws of every gate, and of more plain ones that are launched only;
        ``aimed`` and ``aimed_equal`` of the aimed ones.

        Raises:
            InvalidInputError: the kernel cannot be launched here, or reads what it writes.
            LibraryError: the driver reports an error.
        """
        inputs = self._inputs(walked, compiled.kinds)
        compare = len(DRAWS) + len(AIMED)
        draws = compare + EXTRA
        began = time.perf_counter()
        stored = walked.stored
        card = self._launched(walked, compiled, inputs, draws, _GATE)
        launched = time.perf_counter()
        chosen = sample(walked, len(DRAWS))
        target, version = walked.entry.target.split(",")[0].strip(), walked.entry.version
        functions = {n: self._card.instruction(n, target, version) for n in missing_functions(walked, chosen)}
        steps = modelled_steps(ARCHITECTURE, self._card.matrix_step(target, version))
        worked = {p: data if card is None else data[:compare] for p, data in inputs.items()}
        work_out = partial(evaluate, walked, worked, functions=functions, matrix_step=steps, chosen=chosen)
        values = work_out()
        row: dict[str, Any] = {"launch_s": round(launched - began, 4), "functions": sorted(functions)}
        if card is None:
            row["outputs"] = [_digest([v[d] for _, v in values.values()]) for d in range(draws)]
        else:
            row |= compared(card, values, walked, compare, partial(work_out, as_extremes=True))
            row["aimed_equal"] = row["equal"][len(DRAWS) :]
            row["equal"] = row["equal"][: len(DRAWS)]
        row["aimed"] = row["outputs"][len(DRAWS) : compare]
        row["outputs"] = row["outputs"][: len(DRAWS)] + row["outputs"][compare:]
        row["bytes_compared"] = int(chosen.sum())
        row["bytes_stored"] = len(stored.ids)
        row["evaluate_s"] = round(time.perf_counter() - launched, 4)
        return row

    def stored_on(
        self, walked: Walked, compiled: Launchable, inputs: Mapping[int, Bytes], label: str
    ) -> dict[int, tuple[Ids, Bytes]] | None:
        """The bytes that the card stores on given operands, as :func:`evaluate` gives them; None where it is no card.

        ``inputs``: shape (draws, bytes) for each pointer; they stay on the card, by ``label``, until :meth:`drop`.

        Raises:
            InvalidInputError: the kernel cannot be launched here, or reads what it writes.
            LibraryError: the driver reports an error.
        """
        draws = max((len(data) for data in inputs.values()), default=1)
        found = self._launched(walked, compiled, inputs, draws, label)
        if found is None:
            return None
        stored, made = walked.stored, {}
        for parameter, got in found.items():
            offsets = stored.offset[stored.parameter == parameter]
            made[parameter] = offsets, got[:, offsets]
        return made

    def drop(self, label: str) -> None:
        """Free what :meth:`stored_on` left on the card under this label."""
        for key in [key for key in self._uploaded if key[0] == label]:
            self._card.drop(key)
            self._uploaded.remove(key)

    def _inputs(self, walked: Walked, kinds: Sequence[str]) -> dict[int, Bytes]:
        """Bytes behind each pointer that is read, shape (draws, bytes), the extra draws last; one key, one array."""
        found = {}
        for parameter, size in loaded_bytes(walked).items():
            each = FORMATS[kinds[parameter]].bytes
            count = -(-size // (each * 4096)) * 4096
            key = (parameter, kinds[parameter], count)
            if key not in self._memory:
                wanted = [(name, self._seed) for name in (*DRAWS, *AIMED)]
                wanted += [("plain", self._seed + 1 + i) for i in range(EXTRA)]
                made = [draw(d, kinds[parameter], parameter, count, seed) for d, seed in wanted]
                self._memory[key] = np.stack(made)
            found[parameter] = self._memory[key]
        return found

    def _launched(
        self, walked: Walked, compiled: Launchable, inputs: Mapping[int, Bytes], draws: int, label: str
    ) -> dict[int, Bytes] | None:
        """What lies behind each output after each draw; None where the card is none."""
        metadata, stored = compiled.metadata, walked.stored
        scratch = [getattr(metadata, n, 0) for n in ("global_scratch_size", "profile_scratch_size")]
        if any(scratch) or getattr(metadata, "num_ctas", 1) != 1:
            raise InvalidInputError(f"metadata must ask for no scratch memory and no cluster (got {metadata})")
        written = sorted(set(stored.parameter.tolist()))
        found = self._card.launch(
            compiled.cubin,
            walked.entry.name,
            grid=walked.launch.grid,
            block=walked.launch.block or walked.entry.threads,
            shared=int(metadata.shared),
            arguments=self._arguments(walked, compiled.kinds, inputs, written, label),
            draws=draws,
            outputs=[int(stored.offset[stored.parameter == p].max()) + 1 + MARGIN for p in written],
        )
        return None if found is None else dict(zip(written, found, strict=True))

    def _arguments(
        self, walked: Walked, kinds: Sequence[str], inputs: Mapping[int, Bytes], written: list[int], label: str
    ) -> list[tuple[str, Any]]:
        arguments: list[tuple[str, Any]] = []
        for index, parameter in enumerate(walked.entry.parameters):
            if index in written and index in inputs:
                raise InvalidInputError(f"kernel must not read what it writes (got parameter {index})")
            if index in inputs:
                data = inputs[index]
                key = (label, index, kinds[index], data.shape[1])
                self._uploaded.add(key)
                arguments.append(("input", self._card.upload(key, lambda data=data: data)))
            elif index in written:
                arguments.append(("output", written.index(index)))
            elif index in walked.launch.arguments:
                width = int(parameter.kind[1:]) // 8
                arguments.append(("integer", (walked.launch.arguments[index], width)))
            else:
                arguments.append(("nothing", None))
        return arguments


def sample(walked: Walked, draws: int) -> Chosen:
    """Which stored bytes are worked out: all, or whole groups of eight bytes at random until the work is bounded."""
    stored = walked.stored
    chosen = np.ones(len(stored.ids), np.bool_)
    if needed_nodes(walked) * draws <= MOST_VALUES:
        return chosen
    _, group = np.unique(np.stack([stored.parameter, stored.offset // 8]), axis=1, return_inverse=True)
    share = groups = int(group.max()) + 1
    order = np.random.default_rng(_SAMPLE_SEED).permutation(groups)
    while share > 4 and needed_nodes(walked, chosen) * draws > MOST_VALUES:
        share = max(4, share // 2)
        chosen = np.isin(group.ravel(), order[:share])
    return chosen


def compared(
    card: Mapping[int, Bytes],
    values: Values,
    walked: Walked,
    draws: int,
    as_extremes: Callable[[], Values] | None = None,
) -> dict[str, Any]:
    """Digests of what the card stored on every draw, and where the first ``draws`` are not what expressions give.

    ``as_extremes``: gives the values with selections as maxima, where ptxas may make them that; an element, whole, may
    be either.  Bytes that are so only as maxima are counted under that name.
    """
    stored, row = walked.stored, dict[str, Any]()
    either: Values | None = None
    left = 0
    every = len(next(iter(card.values())))
    pieces: list[list[Bytes]] = [[] for _ in range(every)]
    wrong = np.zeros(draws, np.int64)
    for parameter, got in card.items():
        offsets = stored.offset[stored.parameter == parameter]
        free = np.ones(got.shape[1], np.bool_)
        free[offsets] = False
        wrong += (got[:draws, free] != UNTOUCHED).sum(axis=1)
        for number in range(every):
            pieces[number].append(got[number, offsets])
        if parameter in values:
            at, wanted = values[parameter]
            differ = got[:draws, at] != wanted
            if differ.any() and as_extremes is not None:
                either = as_extremes() if either is None else either
                again = in_elements(walked, parameter, at, got[:draws, at] != either[parameter][1])
                left += int((differ & ~again).sum())
                differ &= again
            wrong += differ.sum(axis=1)
            if differ.any() and "first" not in row:
                row["first"] = {"parameter": parameter, **_first(differ, at, got, wanted)}
    row["outputs"] = [_digest(parts) for parts in pieces]
    row["equal"] = [bool(count == 0) for count in wrong]
    row["mismatches"] = int(wrong.sum())
    if left:
        row["as_extremes"] = left
    return row


def in_elements(walked: Walked, parameter: int, at: Ids, differ: Chosen) -> Chosen:
    """Every byte of an element of which some byte differs, shape (draws, bytes); ``at``: the bytes' offsets."""
    stored, s = walked.stored, walked.table.store
    offsets, ids = (x[stored.parameter == parameter] for x in (stored.offset, stored.ids))
    ids = ids[np.searchsorted(offsets, at)]
    begins = at - np.where(s.op[ids] == nodes.EXTRACT, s.attribute[ids, 0], 0)
    first, element = np.unique(begins, return_inverse=True)
    found = np.zeros((len(differ), len(first)), np.bool_)
    for number, place in np.argwhere(differ).tolist():
        found[number, element.ravel()[place]] = True
    made: Chosen = found[:, element.ravel()]
    return made


def _first(differ: Chosen, at: Ids, got: Bytes, wanted: Bytes) -> dict[str, Any]:
    """The word around the first byte that differs."""
    number, place = (int(x[0]) for x in np.nonzero(differ))
    begin = int(at[place]) // 4 * 4
    here = (at >= begin) & (at < begin + 4)
    return {
        "draw": [*DRAWS, *AIMED][number],
        "offset": begin,
        "card": got[number, at[here]].tobytes().hex(),
        "walker": wanted[number, here].tobytes().hex(),
    }


def _digest(parts: list[Bytes]) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest()[:16]
