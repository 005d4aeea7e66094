"""The link to descriptors: the sum behind one output element as a GEMMDesc.

The expression is read as chains of steps over k, chains are put together by the additions above them, and the nest of
cuts that this suggests is spelled out again and compared with the expression, node by node.  A descriptor that comes
out is therefore exactly what the kernel computes; where the suggestion fails there is none.  Of a matrix step only the
set of k is compared that meets in it: what lanes they are in, and lanes and steps of zeros, the models do not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gemmdesc.arithmetic.models import AccumulatorModel
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.printing import output_node
from gemmdesc.equivalence.spelling import Chain, Column, Spelling
from gemmdesc.equivalence.sums import Reader, Rounded, StrangeError, Sum, Tree, chains_of, ks_of
from gemmdesc.equivalence.walk import Walked
from gemmdesc.errors import Declined
from gemmdesc.normal_form import normal_form

_STORED = {DType.FLOAT16: "cvt.rn.f16.f32", DType.BFLOAT16: "cvt.rn.bf16.f32"}


@dataclass(frozen=True, kw_only=True)
class Element:
    """One output element: the byte ``offset`` behind ``parameter``, and where its row of A and column of B lie.

    ``k``: how many products they hold.  ``model``: of the matrix instruction that the kernel uses, on the card that is
    asked about; None where it uses none.
    """

    parameter: int
    offset: int
    a: Column
    b: Column
    k: int
    output_dtype: DType
    model: AccumulatorModel | None = None


def structure(walked: Walked, element: Element) -> GEMMDesc | Declined:
    """The descriptor of a stored element."""
    found = _read(walked, element)
    if isinstance(found, Declined):
        return found
    tree, spelling, root = found
    chains = tuple(chains_of(tree))
    ranks = {key: i for i, key in enumerate(sorted(ks_of(tree)))}
    for leaf in _leaves(chains, element.model):
        for cuts in _nests(tree, ranks):
            desc = GEMMDesc(
                a_dtype=element.a.dtype, b_dtype=element.b.dtype, output_dtype=element.output_dtype,
                summed_k=len(ranks), cuts=cuts, accumulator=leaf,
            )  # fmt: skip
            if spelling.node(desc, element.k, chains[0].matrix) == root:
                return desc
    return Declined(code="out_of_scope", reason="the element's additions are no nest of cuts")


def implements(walked: Walked, desc: GEMMDesc, element: Element) -> bool | Declined:
    """Whether a stored element has the bits that ``desc`` describes.

    It has where the two expressions are one, or where the descriptor that is read has the normal form of ``desc``.
    """
    if desc.output_dtype is not element.output_dtype or desc.epilogue:
        return False if not desc.epilogue else Declined(code="out_of_scope", reason="epilogues are not read")
    found = _read(walked, element)
    if isinstance(found, Declined):
        return found
    tree, spelling, root = found
    matrix = next(chains_of(tree)).matrix
    step = desc.accumulator.step
    if bool(matrix) != isinstance(step, FusedDot) or (matrix and element.model and step != element.model.step):
        return False
    if element.model is not None and desc.accumulator.instruction_k > element.model.instruction_k:
        return False
    if spelling.node(desc, element.k, matrix) == root:
        return True
    read = structure(walked, element)
    return read if isinstance(read, Declined) else normal_form(read, element.k) == normal_form(desc, element.k)


def _read(walked: Walked, element: Element) -> tuple[Tree, Spelling, int] | Declined:
    """The sum behind an element, and that sum spelled out as descriptors are."""
    try:
        root = output_node(walked, element.parameter, element.offset)
        if element.output_dtype in _STORED:
            here = walked.table.node(root)
            if here.name != _STORED[element.output_dtype]:
                raise StrangeError(f"the element is no {element.output_dtype.value}")
            (root,) = here.children
        lanes = 0 if element.model is None else element.model.instruction_k
        tree = Reader(walked.table, element.a, element.b, lanes).tree(root)
    except StrangeError as error:
        return Declined(code="out_of_scope", reason=f"the element is no sum of products over k: {error}")
    spelling = Spelling(walked.table, element.a, element.b)
    if int(_spelled(spelling, tree)[0]) != root and not any(chain.matrix for chain in chains_of(tree)):
        return Declined(code="out_of_scope", reason="the element is no sum of products over k as it was understood")
    bare = _bare(tree)
    return bare, spelling, int(_spelled(spelling, bare)[0])


def _spelled(spelling: Spelling, tree: Tree) -> Ids:
    match tree:
        case Chain():
            return spelling.chain(tree)
        case Rounded(inner=inner, dtype=dtype):
            return spelling.rounded(_spelled(spelling, inner), dtype)
        case Sum(first=first, second=second):
            below = second if isinstance(second, Start) else _spelled(spelling, second)
            return spelling.sum(_spelled(spelling, first), below)


def _bare(tree: Tree) -> Tree:
    """Without sums with -0.0: those leave every number as it is, and give a NaN one pattern, as descriptors do."""
    match tree:
        case Sum(first=first, second=Start.FIRST):
            return _bare(first)
        case Sum(first=first, second=second):
            return Sum(_bare(first), second if isinstance(second, Start) else _bare(second))
        case Rounded(inner=inner, dtype=dtype):
            return Rounded(_bare(inner), dtype)
    return tree


def _leaves(chains: tuple[Chain, ...], model: AccumulatorModel | None) -> Iterator[Accumulator]:
    """Accumulators whose steps may be those of ``chains``; the right one is found by spelling."""
    if not chains[0].matrix:
        step = ScalarStep(fused=chains[0].fused, start=chains[0].start)
        yield Accumulator(instruction_k=1, residue=ResidueLast(), step=step)
        return
    assert model is not None
    size = max(len(ks) for chain in chains for ks in chain.steps)
    yield Accumulator(instruction_k=size, residue=ResidueLast(), step=model.step)
    longest = [len(ks) for ks in max(chains, key=lambda chain: len(chain.steps)).steps]
    lead = sum(longest[: next((i for i, length in enumerate(longest) if length < size), 0) + 1])
    rest = sum(longest) - lead
    for turn in range(lead + 1, rest + 1):
        if rest % turn == 0:
            yield Accumulator(instruction_k=size, residue=ResidueFirst(k_loop_step=turn), step=model.step)


def _nests(tree: Tree, rank: dict[int, int]) -> list[tuple[Cut, ...]]:
    """Nests of cuts that may spell ``tree``, over the k's places in ``rank``; the right one is found by spelling."""
    if isinstance(tree, Chain):
        return [()]
    found: list[tuple[Cut, ...]] = []
    for parts, merge, start in _foldings(tree):
        bare = [part.inner if isinstance(part, Rounded) else part for part in parts]
        partial = parts[0].dtype if isinstance(parts[0], Rounded) else DType.FLOAT32
        places = [sorted(rank[key] for key in ks_of(part)) for part in bare]
        longest = max(bare, key=lambda part: len(ks_of(part)))
        inner_rank = {key: i for i, key in enumerate(sorted(ks_of(longest)))}
        for inner in _nests(longest, inner_rank):
            for layout in _layouts(places):
                found.append((Cut(layout=layout, partial_dtype=partial, merge_dtype=merge, start=start), *inner))
    return found


def _foldings(tree: Sum | Rounded) -> list[tuple[list[Tree], DType, Start]]:
    """Ways to see a tree as parts folded in order: from two parts to as many as its spine has."""
    merge = DType.FLOAT32
    if isinstance(tree, Rounded):
        merge = tree.dtype
    ways: list[tuple[list[Tree], DType, Start]] = []
    tail: list[Tree] = []
    at: Tree = tree
    while True:
        body = at.inner if isinstance(at, Rounded) and at.dtype is merge else at
        if not isinstance(body, Sum):
            return ways
        if isinstance(body.second, Start):
            ways.append(([body.first, *tail], merge, Start.ZERO))
            return ways
        tail = [body.second, *tail]
        ways.append(([body.first, *tail], merge, Start.FIRST))
        at = body.first


def _layouts(places: list[list[int]]) -> list[Contiguous | Strided]:
    first, last = places[0], places[-1]
    run = int(np.argmax(np.diff([*first, first[-1] + 2]) != 1)) + 1
    layouts: list[Contiguous | Strided] = [Contiguous(span=len(first))]
    if len(first) < len(last):
        layouts.append(Contiguous(span=len(last), short=Short.FIRST))
    if len(places) > 1:
        layouts.append(Strided(count=len(places), unit=run))
    return layouts
