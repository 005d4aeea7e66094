"""A simulated library whose rules are drawn from a seed: something to find, and to check findings against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmdesc.arithmetic.models import find_model
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.normal_form import same_bits
from gemmdesc.problem import (
    AlgoConfig,
    DeviceId,
    GemmProblem,
    KernelNode,
    Launch,
    LibraryId,
    LibraryVersion,
    Refused,
    environment,
)
from gemmdesc.rule import Rule, evaluate_rule, parse_rule
from gemmdesc.text import to_text

#: The hidden kernels: a chain, a chain with its partial turn first, a split, and a split that may lose its tail.
KERNELS = ("chain", "turned", "split", "losing")
DTYPE = DType.FLOAT16
_LONG = 256
_IDS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """The hidden rules of one seed, by ``algo_id``, and the heuristic that chooses among them."""

    seed: int
    rules: tuple[tuple[int, Rule], ...]

    def rule(self, answer: AlgoConfig) -> Rule:
        """The rule behind an answer.

        Raises:
            InvalidInputError: the library never gives this answer.
        """
        found = dict(self.rules).get(answer.algo_id)
        if found is None:
            raise InvalidInputError(f"answer must be one of this library's (got algo_id {answer.algo_id})")
        return found

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        """Short k: a chain; long k: a split; which of two by the sizes.  Tile and stages carry no meaning."""
        long, second = problem.k >= _LONG, problem.m > problem.n
        algo_id = self.rules[2 * long + second][0]
        return AlgoConfig(
            algo_id=algo_id, tile_id=10 + problem.m % 3, splitk_num=2 + (problem.m + problem.n) % 29 if long else 1,
            reduction_scheme=2 if long else 0, cta_swizzling=0, custom_option=0, stages_id=1 + problem.n % 2,
            inner_shape_id=0, cluster_shape_id=0,
        )  # fmt: skip

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch:
        """A made-up tensor-core kernel."""
        name = f"simulated_tensorop_{KERNELS[[i for i, _ in self.rules].index(answer.algo_id)]}"
        one = (1, 1, 1)
        return Launch(kernels=(KernelNode(name=name, grid=one, block=one, cluster=one, shared_bytes=0),))

    def choose(self, problem: GemmProblem, answer: AlgoConfig) -> Rule:
        """What a simulated library follows."""
        return self.rule(answer)


def hide(seed: int) -> Hidden:
    """Rules and ids drawn from ``seed``."""
    rng = np.random.default_rng([seed, 7])
    ids = rng.choice(_IDS, size=len(KERNELS), replace=False)
    rules = tuple((int(i), _draw_rule(rng, kernel)) for i, kernel in zip(ids, KERNELS, strict=True))
    return Hidden(seed=seed, rules=rules)


def _draw_rule(rng: np.random.Generator, kernel: str) -> Rule:
    def pick(*choices: str | int) -> str:
        return str(choices[int(rng.integers(len(choices)))])

    model = find_model(
        architecture="Hopper", instruction="wgmma", a_dtype=DTYPE, b_dtype=DTYPE, accumulator_dtype=DType.FLOAT32
    )
    residue = f"residue_first(k_loop_step={pick(32, 64)})" if kernel == "turned" else "residue_last()"
    summed, cuts = "k", ""
    if kernel in ("split", "losing"):
        grain = pick(32, 64)
        share = "floordiv" if kernel == "losing" else pick("floordiv", "ceildiv")
        span = f"round_up({share}(k, splitk_num), {grain})"
        summed = f"min(k, mul(splitk_num, {span}))" if kernel == "losing" else "k"
        partial, merge = pick("float32 float32", "float32 float32", "float16 float32").split()
        cuts = (
            f"cut(layout=contiguous(span={span}, short=last), partial_dtype={partial}, merge_dtype={merge}, "
            f"start={pick('first', 'zero')})"
        )
    text = (
        f"gemm(a_dtype=float16, b_dtype=float16, output_dtype=float16, summed_k={summed}, cuts=[{cuts}], "
        f"accumulator=accumulator(instruction_k={pick(8, 16)}, residue={residue}, step={to_text(model.step)}), "
        "epilogue=[])"
    )
    return parse_rule(text)


def hidden_library(hidden: Hidden) -> SimulatedLibrary:
    """The library that follows ``hidden``."""
    return SimulatedLibrary(
        identity=LibraryId(
            version=LibraryVersion(major=0, minor=0, patch=hidden.seed), build_id=f"simulated{hidden.seed}",
            path="simulated", sha256="none", wheel="none",
        ),
        device=DeviceId(sm="sm_90", sm_count=1, name="simulated", driver="none"),
        heuristic=hidden.answer,
        rules=hidden.choose,
        launches=hidden.launch,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HiddenFactory:
    """Makes the library of a seed in a worker process."""

    seed: int

    def __call__(self) -> SimulatedLibrary:
        return hidden_library(hide(self.seed))


def same_rule(
    one: Rule, other: Rule, problem: GemmProblem, answer: AlgoConfig, launch: Launch | None = None
) -> bool:
    """Whether two rules owe each other the same bits at one problem and answer, with what the library launches."""
    values = environment(problem, answer, launch)
    first, second = evaluate_rule(one, values), evaluate_rule(other, values)
    return isinstance(first, GEMMDesc) and isinstance(second, GEMMDesc) and same_bits(first, second, problem.k)
