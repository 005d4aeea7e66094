"""Problems on which a rule's bytes were not the library's, met outside of a campaign: what its rules have to pass.

A file holds one JSON line for each, written by whoever compared, read by a campaign on the same card and library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdesc.errors import GemmdescError, InvalidInputError
from gemmdesc.operands import Family
from gemmdesc.plain import answer_from_plain, launch_from_plain, problem_from_plain, to_plain
from gemmdesc.probe.answers import AnswerKey, answer_key
from gemmdesc.probe.facets import FACETS
from gemmdesc.probe.sampling import Scope
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, Launch, LibraryId, is_float8

#: Refutations of one answer that a campaign takes up: a rule that passes these is compared elsewhere anyway.
MOST_OF_AN_ANSWER = 8


@dataclass(frozen=True, kw_only=True)
class RefutingDraw:
    """The hashed operands (:class:`~gemmdesc.operands.HashOperand`) and the element of D that showed it.

    ``row`` is one of all rows of D, those of a batch's matrices behind one another.
    """

    seed: int
    number: int
    family: Family
    row: int
    column: int


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """``problem``, ``answer`` and ``launch`` (where it was captured) of one such shape; ``draw``: where it is known.

    ``shape``: its name where it was found; ``row``: the key of the profile's row whose rule was refuted.
    """

    problem: GemmProblem
    answer: AlgoConfig
    launch: Launch | None = None
    draw: RefutingDraw | None = None
    shape: str = ""
    row: str = ""

    @property
    def key(self) -> AnswerKey:
        """The answer as a campaign counts it."""
        return answer_key(self.problem, self.answer)


def refutation_to_plain(refutation: Refutation) -> dict[str, Any]:
    """JSON-ready form."""
    r = refutation
    data: dict[str, Any] = {"shape": r.shape, "row": r.row}
    data |= {"problem": to_plain(r.problem), "answer": to_plain(r.answer)}
    if r.launch is not None:
        data["launch"] = to_plain(r.launch)
    if r.draw is not None:
        data["draw"] = to_plain(r.draw)
    return data


def refutation_from_plain(data: dict[str, Any]) -> Refutation:
    """The refutation that :func:`refutation_to_plain` wrote.

    Raises:
        InvalidInputError: the data hold none.
    """
    try:
        launch, draw = data.get("launch"), data.get("draw")
        return Refutation(
            problem=problem_from_plain(data["problem"]), answer=answer_from_plain(data["answer"]),
            launch=None if launch is None else launch_from_plain(launch),
            draw=None if draw is None else RefutingDraw(**{**draw, "family": Family(draw["family"])}),
            shape=str(data.get("shape", "")), row=str(data.get("row", "")),
        )  # fmt: skip
    except (GemmdescError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"refutation must be one that verify --coverage wrote ({error!r}) (got {str(data)[:200]})"
        ) from None


def write_refutations(
    path: Path, refutations: Iterable[Refutation], library: LibraryId, device: DeviceId
) -> None:  # fmt: skip
    """Write all of them to ``path`` in one step, each with the library and the card that it holds for.

    Raises:
        OSError: the place cannot be written.
    """
    asked = _asked(library, device)
    lines = [json.dumps({**asked, **refutation_to_plain(r)}, separators=(",", ":")) + "\n" for r in refutations]
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text("".join(lines))
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def read_refutations(path: Path, library: LibraryId, device: DeviceId) -> tuple[Refutation, ...]:
    """What ``path`` holds.

    Raises:
        InvalidInputError: it cannot be read, a line holds no refutation, or is of another library or card.
    """
    try:
        lines = path.read_text().splitlines()
        found = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"refuted must be a file of JSON lines ({error}) (got {path})") from None
    asked = _asked(library, device)
    for number, data in enumerate(found, 1):
        given = {name: data.get(name) for name in asked} if isinstance(data, dict) else None
        if given != asked:
            raise InvalidInputError(f"refuted must be of {asked} (got {given} in line {number} of {path})")
    return tuple(map(refutation_from_plain, found))


def _asked(library: LibraryId, device: DeviceId) -> dict[str, Any]:
    return {"library": [str(library.version), library.build_id], "device": device.folder}


def in_scope(problem: GemmProblem, scope: Scope) -> bool:
    """Whether a campaign about ``scope`` is about problems of this kind and these operand types."""
    p, facets = problem, FACETS[scope.kind]
    asked = (p.compute_type, p.epilogue, p.alpha, p.beta, p.fast_accumulation, p.batch_count > 1, is_float8(p.a_dtype))
    wanted = (
        facets.compute_type, facets.epilogue, facets.alpha, facets.beta, facets.fast, facets.batched, facets.float8
    )  # fmt: skip
    output = scope.output_float32 or p.d_dtype in scope.dtypes or facets.float8
    return asked == wanted and p.a_dtype in scope.dtypes and p.b_dtype in scope.dtypes and output


def joined(known: Sequence[Refutation], found: Iterable[Refutation], scope: Scope) -> tuple[Refutation, ...]:
    """Those ``found`` that are of ``scope`` and say more than the ones ``known``, few of each answer.

    Of each answer the smallest and the largest outputs take part first: one answer may be several kernels.
    """
    of_answer: dict[AnswerKey, list[Refutation]] = {}
    for one in found:
        if in_scope(one.problem, scope):
            of_answer.setdefault(one.key, []).append(one)
    seen = {(r.problem, r.draw) for r in known}
    fresh: list[Refutation] = []
    for key, several in of_answer.items():
        left = MOST_OF_AN_ANSWER - sum(r.key == key for r in known)
        by_size = sorted(several, key=lambda r: (r.problem.batch_count * r.problem.m * r.problem.n, r.problem.k))
        for one in _from_both_ends(by_size):
            if left > 0 and (one.problem, one.draw) not in seen:
                seen.add((one.problem, one.draw))
                fresh.append(one)
                left -= 1
    return tuple(fresh)


def _from_both_ends(ordered: Sequence[Refutation]) -> list[Refutation]:
    half = -(-len(ordered) // 2)
    turns = zip(ordered[:half], [*reversed(ordered[half:]), None], strict=False)
    return [one for pair in turns for one in pair if one is not None]
