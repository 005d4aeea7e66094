"""What the tests of public reports find, kept as properties of each test, for ``scripts/check_cases.py``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from gemmdesc.errors import Declined, DeclinedError

#: Each report in a few words; the tests of ``A7`` are those whose names begin with ``test_a07_``.
CASES: MappingProxyType[int, str] = MappingProxyType(
    {
        1: "one row in seven batch sizes",
        2: "a batched product is no loop of single ones",
        3: "a bias before or after the rounding",
        4: "a bias beside split-K, in the epilogue or as C",
        5: "what an upgrade changes, shape by shape",
        6: "which cuBLAS is loaded",
        7: "one die, another number of SMs",
        8: "reduced precision and split-K, allowed or not",
        9: "narrow partial sums are listed",
        10: "a permuted input",
        11: "every size of n, with and without alignment",
        12: "every tail of k",
        13: "an odd inner size in padded rows",
        14: "more than 2^31 elements",
        15: "a first choice that does not run",
        16: "nothing to sum",
        17: "beta = 0 never reads C",
        18: "which gelu",
        19: "a bias that is a slice",
        20: "TF32, read at the call",
        21: "spellings of a bias under a compiler",
        22: "folding that depends on gradients",
        23: "graphs that share a stream",
        24: "streams and threads at once",
        25: "the workspace as a switch",
        26: "autocast",
        27: "a profiler that is attached, and fresh processes",
    }
)
_NAME = re.compile(r"test_a(\d\d)_")


def case_of(test: str) -> int | None:
    """The report that a test's name is of."""
    match = _NAME.search(test)
    return int(match[1]) if match else None


class CaseLog:
    """Comparisons of one test: those that came out equal, those that declined where a report leaves room for it, by
    reason, and other demands that were met, declines that a report demands among them.

    Whatever is not as demanded fails the test.
    """

    def __init__(self) -> None:
        self.equal = self.demands = 0
        self.declined: Counter[str] = Counter()
        self.notes: dict[str, Any] = {}

    def note(self, name: str, value: Any) -> None:
        """Something that a report asks to be told, as a number or text."""
        self.notes[name] = value

    def same(self, got: Any, want: Any, what: object = "") -> None:
        """Two tensors have the same shape, type and bytes."""
        from gemmdesc.dropin.memory import differing  # not before a test needs it

        assert (got.shape, got.dtype) == (want.shape, want.dtype), what
        wrong = differing(got, want)
        assert not wrong, f"{wrong} of {got.numel()} elements differ ({what})"
        self.equal += 1

    def demand(self, holds: object, what: object = "") -> None:
        """Anything else that a report asks for."""
        assert holds, what
        self.demands += 1

    def refused(self, declined: Declined, *codes: str) -> None:
        """A decline that the report demands, for one of these reasons."""
        assert declined.code in codes, declined
        assert declined.reason
        self.demands += 1

    def declines(self, call: Callable[[], Any], *codes: str) -> Declined:
        """``call`` has to decline for one of these reasons."""
        try:
            call()
        except DeclinedError as error:
            self.refused(error.declined, *codes)
            return error.declined
        raise AssertionError(f"the call must decline ({', '.join(codes)})")

    def allowed(self, declined: Declined, *codes: str) -> None:
        """A decline instead of a comparison, which the report's text leaves room for."""
        assert declined.code in codes, declined
        assert declined.reason
        self.declined[f"{declined.code}: {declined.reason[:160]}"] += 1

    def same_or_declined(self, ours: Callable[[], Any], want: Any, *codes: str, what: object = "") -> bool:
        """Whether ``ours`` gives the bytes of ``want``; False where it declines, which only these ``codes`` may."""
        try:
            got = ours()
        except DeclinedError as error:
            self.allowed(error.declined, *codes)
            return False
        self.same(got, want, what)
        return True

    def properties(self) -> dict[str, Any]:
        """What goes into a record."""
        return {"equal": self.equal, "demands": self.demands, "declined": dict(self.declined), "notes": self.notes}
