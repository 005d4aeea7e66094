"""A library without a GPU: a heuristic plus rules, executed by the CPU replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gemmdesc.arithmetic.pointwise import TanhApprox
from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.interface import NO_INPUTS, Inputs, Library, Window, tanh_approx_of
from gemmdesc.library.replayed import replay_decline, replay_problem
from gemmdesc.operands import Operand
from gemmdesc.problem import (
    AlgoConfig,
    DeviceId,
    Failed,
    GemmProblem,
    Launch,
    LibraryId,
    Refused,
    environment,
)
from gemmdesc.regions import Region, evaluate_regions
from gemmdesc.rule import Rule

Heuristic = Callable[[GemmProblem], AlgoConfig | Refused]
RuleChoice = Callable[[GemmProblem, AlgoConfig], Rule] | Mapping[AlgoConfig, Rule]
_NO_RULE = "CUBLAS_STATUS_NOT_SUPPORTED"


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedLibrary:
    """Implements :class:`~gemmdesc.library.interface.Library` on the CPU.

    ``heuristic``: the answer to a problem.  ``rules``: the rule that an answer follows at a problem, as a function or
    by answer.  ``launches``: what an answer would enqueue (None: unknown everywhere).  ``failures``: the status name
    with which an answer fails at a problem, None where it runs.  ``nondeterministic``: whether an answer's bytes vary
    there; such an answer flips the lowest bit of the first output on every second run.  ``tanh_approx``: what stands
    for the card's; without one an answer with a gelu that takes it does not run.
    """

    identity: LibraryId
    device: DeviceId
    heuristic: Heuristic
    rules: RuleChoice
    launches: Callable[[GemmProblem, AlgoConfig], Launch | None] | None = None
    failures: Callable[[GemmProblem, AlgoConfig], str | None] | None = None
    nondeterministic: Callable[[GemmProblem, AlgoConfig], bool] | None = None
    tanh_approx: TanhApprox | None = None
    _runs: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        return self.heuristic(problem)

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        """Whether :meth:`run` would succeed."""
        return not isinstance(self.regions(problem, answer), Failed)

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        return self.launches(problem, answer) if self.launches is not None else None

    def regions(self, problem: GemmProblem, answer: AlgoConfig) -> tuple[Region, ...] | Failed:
        """What ``answer`` computes at ``problem``, by rectangles of D; Failed where it does not run."""
        status = self.failures(problem, answer) if self.failures is not None else None
        if status is not None:
            return Failed(status=status)
        rule = self.rules.get(answer) if isinstance(self.rules, Mapping) else self.rules(problem, answer)
        if rule is None:
            return Failed(status=_NO_RULE)
        found = evaluate_regions(rule, environment(problem, answer, self.launch(problem, answer)))
        unfit = isinstance(found, Declined) or (self.tanh_approx is None and replay_decline(found) is not None)
        return Failed(status=_NO_RULE) if unfit or isinstance(found, Declined) else found

    def run(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window | None = None,
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> Bits | Failed:
        """See the interface; only the rows and columns of ``window`` are made and computed.

        Raises:
            InvalidInputError: an operand's type, or the descriptor's, is not the problem's; the inputs are not what it
                takes.
        """
        regions = self.regions(problem, answer)
        if isinstance(regions, Failed):
            return regions
        for region in regions:
            _require_types(problem, region.descriptor, a, b)
        result = replay_problem(regions, problem, a, b, window, inputs=inputs, tanh_approx=self.tanh_approx)
        if self.nondeterministic is not None and self.nondeterministic(problem, answer) and result.size:
            self._runs["all"] += 1
            result[0, 0] ^= bits_dtype(problem.d_dtype).type(self._runs["all"] & 1)
        return result


def _require_types(problem: GemmProblem, desc: GEMMDesc, a: Operand, b: Operand) -> None:
    for name, given, wanted in (
        ("a", a.dtype, problem.a_dtype),
        ("b", b.dtype, problem.b_dtype),
        ("rules", desc.a_dtype, problem.a_dtype),
        ("rules", desc.b_dtype, problem.b_dtype),
        ("rules", desc.output_dtype, problem.d_dtype),
    ):
        if given is not wanted:
            raise InvalidInputError(f"{name} must be of {wanted.value} for this problem (got {given.value})")


#: The attributes that name things; ``splitk_num`` counts and keeps its value.
ID_ATTRIBUTES = (
    "algo_id",
    "tile_id",
    "reduction_scheme",
    "cta_swizzling",
    "custom_option",
    "stages_id",
    "inner_shape_id",
    "cluster_shape_id",
)
_ID_RANGE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Renaming:
    """A seeded bijection of the ids below 2^16, one per attribute; larger ids stay as they are."""

    factors: tuple[int, ...]
    offsets: tuple[int, ...]

    def forth(self, answer: AlgoConfig) -> AlgoConfig:
        """``answer`` under its new names."""
        return self._mapped(answer, lambda v, factor, offset: (v * factor + offset) % _ID_RANGE)

    def back(self, answer: AlgoConfig) -> AlgoConfig:
        """The answer that :meth:`forth` renamed."""
        return self._mapped(answer, lambda v, factor, offset: (v - offset) * pow(factor, -1, _ID_RANGE) % _ID_RANGE)

    def _mapped(self, answer: AlgoConfig, change: Callable[[int, int, int], int]) -> AlgoConfig:
        values: dict[str, Any] = {}
        for name, factor, offset in zip(ID_ATTRIBUTES, self.factors, self.offsets, strict=True):
            value = getattr(answer, name)
            values[name] = change(value, factor, offset) if 0 <= value < _ID_RANGE else value
        return replace(answer, **values)


@dataclass(frozen=True, kw_only=True, eq=False)
class PermutedLibrary:
    """Another library under other ids: what it reports is renamed, what it is given is renamed back."""

    library: Library
    renaming: Renaming

    @property
    def identity(self) -> LibraryId:
        return self.library.identity

    @property
    def device(self) -> DeviceId:
        return self.library.device

    @property
    def tanh_approx(self) -> TanhApprox | None:
        return tanh_approx_of(self.library)

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        answer = self.library.answer(problem)
        return answer if isinstance(answer, Refused) else self.renaming.forth(answer)

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        return self.library.check(problem, self.renaming.back(answer))

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        return self.library.launch(problem, self.renaming.back(answer))

    def run(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window | None = None,
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> Bits | Failed:
        return self.library.run(problem, self.renaming.back(answer), a, b, window, inputs=inputs)


def permuted(library: Library, seed: int) -> PermutedLibrary:
    """``library`` with every id that it reports renamed by bijections drawn from ``seed``; ids carry no meaning."""
    draw = np.random.default_rng(seed)
    factors = tuple(int(x) * 2 + 1 for x in draw.integers(1, _ID_RANGE // 2, len(ID_ATTRIBUTES)))
    offsets = tuple(int(x) for x in draw.integers(0, _ID_RANGE, len(ID_ATTRIBUTES)))
    return PermutedLibrary(library=library, renaming=Renaming(factors=factors, offsets=offsets))
