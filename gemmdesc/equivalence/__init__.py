"""Do two compiled kernels owe each other the same bits?  Answered from PTX, without running it.

``equivalent`` compares two kernels, ``partition`` sorts many into classes, ``same_as`` keeps an autotuner inside one
class.  What is decided, what refuses, and what the answers assume is in ``docs/equivalence.md``.
"""

from gemmdesc.equivalence.answers import (
    Answer,
    Different,
    Equal,
    Kernel,
    Nondeterministic,
    Partition,
    Refused,
    SameText,
    Unknown,
    equivalent,
    partition,
    read,
    signature,
)
from gemmdesc.equivalence.launch import Launch
from gemmdesc.equivalence.printing import output_tree
from gemmdesc.equivalence.pruning import Pruning, same_as
from gemmdesc.equivalence.walk import Walked, walk

__all__ = [
    "Answer",
    "Different",
    "Equal",
    "Kernel",
    "Launch",
    "Nondeterministic",
    "Partition",
    "Pruning",
    "Refused",
    "SameText",
    "Unknown",
    "Walked",
    "equivalent",
    "output_tree",
    "partition",
    "read",
    "same_as",
    "signature",
    "walk",
]
