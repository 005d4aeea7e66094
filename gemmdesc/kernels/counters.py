"""Words of device memory that are zero whenever no kernel uses them, for kernels that count their finished programs.

Such a kernel leaves its words as it found them, zero, so that nothing has to be cleared in front of it.  All that must
hold is that no two launches which could run at the same time have the same words:

- launches on one stream run one after the other, so each stream has words of its own, whichever program runs there;
- launches that a graph captures from one stream run one after the other, too, and whenever the graph runs, which it
  never does twice at a time, as its operands and its scratch would not bear that either: for what one graph captures
  from one stream there are words that nothing else is ever given.

More are allocated when a program is made and few are left.  A launch that gets none clears some in its scratch first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock

import torch

from gemmdesc.kernels.choose import MOST_COUNTED

#: Words that are allocated at a time: enough for dozens of streams, or hundreds of graphs.
BLOCK_WORDS = 2**17
#: When fewer are left, a new program has more allocated.
_LOW = 2**16
#: Words that one capture takes are a multiple of this, so that no two share a line of the cache.
UNIT = 32
_WORD_BYTES = 4
#: Captures that may be under way at once in threads of one process; more take new words now and then.
_SIDE_BY_SIDE = 64


class Counters:
    """The words of one device.  ``allocate(n)``: int32, n of them, zero, and seen as zero from every stream.

    Not to be made, nor :meth:`top_up` called, while a graph is captured.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor], words: int = BLOCK_WORDS) -> None:
        self._allocate, self._words = allocate, words
        #: Holding the tensors keeps the words.
        self._blocks: list[torch.Tensor] = []
        self._at = self._end = 0
        self._streams: dict[int, int] = {}
        self._captured: dict[tuple[int, int], tuple[int, int]] = {}
        self._lock = Lock()
        self.top_up()

    @property
    def blocks(self) -> tuple[torch.Tensor, ...]:
        """All that was allocated."""
        return tuple(self._blocks)

    def top_up(self) -> None:
        """Allocate more where few are left."""
        with self._lock:
            if self._at + _WORD_BYTES * min(_LOW, self._words) > self._end:
                block = self._allocate(self._words)
                self._blocks.append(block)
                self._at = int(block.data_ptr())
                self._end = self._at + _WORD_BYTES * self._words

    def of_stream(self, stream_id: int) -> int | None:
        """The address of :data:`~gemmdesc.kernels.choose.MOST_COUNTED` words that are that stream's, if any are left.

        ``stream_id``: unlike a handle, never another stream's later on.
        """
        found = self._streams.get(stream_id)
        if found is not None:
            return found
        with self._lock:
            if stream_id not in self._streams:
                taken = self._take(MOST_COUNTED)
                if taken is None:
                    return None
                self._streams[stream_id] = taken
            return self._streams[stream_id]

    def of_capture(self, capture: int, stream: int, count: int) -> int | None:
        """The address of ``count`` words for what is captured from the stream of that handle, if so many are left.

        ``capture``: never another capture's later on.
        """
        with self._lock:
            size, address = self._captured.get((capture, stream), (0, 0))
            if size < count:
                size = -(-count // UNIT) * UNIT
                taken = self._take(size)
                if taken is None:
                    return None
                # Captures come one after the other, as a rule: what is known of those before is of no use.
                self._captured = {at: known for at, known in self._captured.items() if at[0] >= capture - _SIDE_BY_SIDE}
                self._captured[capture, stream] = size, taken
                return taken
            return address

    def _take(self, count: int) -> int | None:
        taken = self._at
        if taken + _WORD_BYTES * count > self._end:
            return None
        self._at += _WORD_BYTES * count
        return taken


@cache
def device_counters(device: torch.device) -> Counters:
    """Those of a device of this process, which lie there as long as it runs: a graph may outlive any program.

    Not to be called while a graph is captured.
    """

    def allocate(words: int) -> torch.Tensor:
        memory = torch.zeros((words,), dtype=torch.int32, device=device)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return memory

    return Counters(allocate)
