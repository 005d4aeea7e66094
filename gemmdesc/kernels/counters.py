"""Words of device memory that are zero whenever no kernel uses them, for kernels that count their finished programs.

Such a kernel leaves its words as it found them, zero, so that nothing has to be cleared in front of it.  All that must
hold is that no two launches which could run at the same time have the same words:

- launches on one stream run one after the other, so each stream has words of its own, whichever program runs there;
- a launch that a graph captures runs whenever the graph does, on whichever stream, but never twice at a time, as its
  operands and its scratch would not bear that either: it has words that nothing else is ever given.

There are so many words and no more.  A launch that gets none clears some in its scratch first.
"""

from __future__ import annotations

from functools import cache
from threading import Lock

import torch

from gemmdesc.kernels.choose import MOST_COUNTED

#: Words of one device: enough for the launches that dozens of streams and thousands of captured calls make.
ALL_WORDS = 2**18
#: Words that one captured launch takes are a multiple of this, so that none shares a line of the cache.
UNIT = 32
_WORD_BYTES = 4


class Counters:
    """The words of one device; ``memory`` is int32, zero, and seen as zero from every stream."""

    def __init__(self, memory: torch.Tensor) -> None:
        #: Holding the tensor keeps the words.
        self._memory, self._begin, self._taken = memory, int(memory.data_ptr()), 0
        self._streams: dict[int, int] = {}
        self._lock = Lock()

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

    def of_capture(self, count: int) -> int | None:
        """The address of ``count`` words that nothing else gets, if so many are left."""
        with self._lock:
            return self._take(-(-count // UNIT) * UNIT)

    def _take(self, count: int) -> int | None:
        if self._taken + count > self._memory.numel():
            return None
        self._taken += count
        return self._begin + _WORD_BYTES * (self._taken - count)


@cache
def device_counters(device: torch.device) -> Counters:
    """Those of a device of this process, which lie there as long as it runs: a graph may outlive any program.

    Not to be called while a graph is captured.
    """
    memory = torch.zeros((ALL_WORDS,), dtype=torch.int32, device=device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return Counters(memory)
