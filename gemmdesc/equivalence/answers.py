"""The question and its answers: do two compiled kernels owe each other the same bits?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from gemmdesc.equivalence.launch import Launch
from gemmdesc.equivalence.merges import Merge, load_merges
from gemmdesc.equivalence.printing import output_tree
from gemmdesc.equivalence.refusal import NondeterministicError, RefusalError
from gemmdesc.equivalence.table import Table
from gemmdesc.equivalence.walk import Walked, output_digests, walk

#: Refusals after which one text under one launch still is one computation.
_SAME_TEXT = ("instruction", "data_dependent", "contraction", "budget", "syntax")
#: What a signature means, and what is read at all: it counts up whenever either changes, so that classes that were
#: stored before are not compared with classes of today.
READING = 2
#: Assembled by nobody knows what.
UNSTATED = ""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A compiled kernel under one launch.

    ``sass``: its assembled text, if at hand; it can settle whether products were fused into sums.  ``assembler``: the
    version and flags of the ptxas that assembles it, as free text; two kernels with different ones are not compared.
    """

    name: str
    ptx: str
    launch: Launch = field(default_factory=Launch)
    sass: str | None = None
    assembler: str = UNSTATED


@dataclass(frozen=True, kw_only=True)
class Equal:
    """Every stored byte is one expression in both.  ``assuming``: what the answer rests on."""

    assuming: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Element:
    """A byte behind a pointer parameter."""

    parameter: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Different:
    """Some byte is another expression, or stored by one alone; ``one`` and ``other`` print the two.

    Different expressions may still agree on some or, rarely, on all operands: the answer promises nothing.
    """

    element: Element
    one: str
    other: str


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """One of the kernels cannot be read; ``code`` groups the reasons."""

    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SameText:
    """The kernel cannot be read, for ``reason``, but both are one text under one launch."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Nondeterministic:
    """A kernel's bytes may vary from run to run: it is equal to nothing, itself included."""

    reason: str


Answer = Equal | Different | Unknown | SameText | Nondeterministic


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A kernel that is in no class.  ``code``: a refusal's, or ``nondeterministic``."""

    name: str
    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Partition:
    """``classes``: names of kernels that owe each other the same bits, in order of appearance."""

    classes: tuple[tuple[str, ...], ...]
    refused: tuple[Refused, ...]


def read(kernel: Kernel, merges: Collection[Merge] = ()) -> Walked | Refused:
    """Walk a kernel, or say why it cannot be walked; ``merges``: forms of matrix steps that are one function."""
    try:
        return walk(kernel.ptx, kernel.launch, sass=kernel.sass, table=Table(merges))
    except RefusalError as error:
        return Refused(name=kernel.name, code=error.code, reason=error.reason)
    except NondeterministicError as error:
        return Refused(name=kernel.name, code="nondeterministic", reason=str(error))


def equivalent(one: Kernel, other: Kernel, *, merges: Collection[str] = ()) -> Answer:
    """Whether the two kernels store the same bytes for every content of their inputs.

    Pointer arguments are matched by their position among the parameters.  ``merges``: names of rows of
    :func:`gemmdesc.equivalence.merges.load_merges` that may be assumed where the kernels differ without them.

    Raises:
        InvalidInputError: there is no row of that name.
    """
    answer = _equivalent(one, other, ())
    rows = load_merges(merges)
    if not rows or not isinstance(answer, Different):
        return answer
    merged = _equivalent(one, other, rows)
    return replace(merged, assuming=(*merged.assuming, *map(str, rows))) if isinstance(merged, Equal) else answer


def _equivalent(one: Kernel, other: Kernel, merges: Collection[Merge]) -> Answer:
    if one.assembler != other.assembler:
        return Unknown(
            code="launch", reason=f"the kernels are assembled differently ({one.assembler} and {other.assembler})"
        )
    first = read(one, merges)
    second = first if _same(one, other) else read(other, merges)
    for found in (first, second):
        if isinstance(found, Refused) and found.code == "nondeterministic":
            return Nondeterministic(reason=found.reason)
    for found in (first, second):
        if isinstance(found, Refused):
            if _same(one, other) and found.code in _SAME_TEXT:
                return SameText(reason=found.reason)
            return Unknown(code=found.code, reason=f"{found.name}: {found.reason}")
    assert isinstance(first, Walked)
    assert isinstance(second, Walked)
    if first.chip != second.chip:
        return Unknown(code="launch", reason=f"the kernels are for two chips ({first.chip} and {second.chip})")
    difference = compare(first, second)
    if difference is not None:
        return difference
    launches = (f"launches: {one.launch}; {other.launch}",)
    assembler = (f"assembler: {one.assembler}",) if one.assembler else ()
    return Equal(assuming=(*dict.fromkeys((*first.assuming, *second.assuming)), *assembler, *launches))


def compare(one: Walked, other: Walked) -> Different | None:
    """The first byte, by parameter and offset, that two walks do not agree on; None where there is none."""
    a, b = output_digests(one), output_digests(other)
    if a.shape == b.shape and np.array_equal(a, b):
        return None
    rows = ({(int(p), int(np.int64(o))): (h, low) for p, o, h, low in table} for table in (a, b))
    first, second = rows
    missing = (first.keys() | second.keys()) - (first.keys() & second.keys())
    changed = {key for key in first.keys() & second.keys() if first[key] != second[key]}
    parameter, offset = min(missing | changed)
    trees = [
        output_tree(walked, parameter, offset) if (parameter, offset) in known else "not stored"
        for walked, known in ((one, first), (other, second))
    ]
    return Different(element=Element(parameter=parameter, offset=offset), one=trees[0], other=trees[1])


def signature(walked: Walked) -> str:
    """A digest of the chip, of everything that is stored and how it is computed (32 hex digits).

    Equal ones mean equal bytes.
    """
    return hashlib.sha256(walked.chip.encode() + output_digests(walked).tobytes()).hexdigest()[:32]


def partition(kernels: Iterable[Kernel]) -> Partition:
    """Classes of kernels that owe each other the same bits; what cannot be read is in none."""
    classes: dict[tuple[str, str], list[str]] = {}
    refused = []
    for kernel in kernels:
        found = read(kernel)
        if isinstance(found, Refused):
            refused.append(found)
        else:
            classes.setdefault((kernel.assembler, signature(found)), []).append(kernel.name)
    return Partition(classes=tuple(map(tuple, classes.values())), refused=tuple(refused))


def text_digest(ptx: str) -> str:
    """A digest of the text without comments, source positions and debug information (32 hex digits)."""
    return hashlib.sha256(_bare(ptx).encode()).hexdigest()[:32]


def _same(one: Kernel, other: Kernel) -> bool:
    return one.launch == other.launch and (one.ptx == other.ptx or _bare(one.ptx) == _bare(other.ptx))


def _bare(ptx: str) -> str:
    code = re.split(r"(?m)^\s*\.(?:file|section)\b", re.sub(r"//[^\n]*", "", ptx))[0]
    lines = (line.strip() for line in code.splitlines())
    return "\n".join(
        line for line in lines if line and not line.startswith(".loc") and not re.match(r"\$L__(tmp|func)\w*:", line)
    )
