"""Does torch pose the problem that the routes say?  Each product that torch makes, made again by cuBLASLt itself.

The library is asked with the routed problem and runs its first answer on the very operands that torch multiplied; every
byte of the result is compared.  Where bytes differ, other problems are tried, one change at a time, and those that give
torch's bytes are named, so that a wrong route can be understood without the card.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from gemmdesc.dropin.intercept import TorchCall
from gemmdesc.dropin.memory import alignment_of, differing, host_bits, space_like
from gemmdesc.dropin.products import Product, operands_of, route_of, scales_of, space_of
from gemmdesc.errors import Declined, GemmdescError
from gemmdesc.library.interface import Inputs
from gemmdesc.library.profiler import normalised
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import DenseOperand
from gemmdesc.plain import to_plain
from gemmdesc.problem import BIASED, AlgoConfig, Failed, GemmProblem, Launch, Refused
from gemmdesc.routes import Activation, Addend, Release, Route, epilogue_words
from gemmdesc.verification.route_variants import variants

if TYPE_CHECKING:
    import torch


class PointerLibrary(Protocol):
    """What of :class:`gemmdesc.library.cublaslt.CublasLt` a comparison on torch's own memory needs."""

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused: ...

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None: ...

    def set_inputs(self, problem: GemmProblem, inputs: Inputs) -> None: ...

    def matmul(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a_pointer: int,
        b_pointer: int,
        d_pointer: int,
        *,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Failed | None: ...


class Verdict(Enum):
    """``SPLIT``: the answer splits k where the route holds for others only."""

    EQUAL = "equal"
    DIFFERENT = "different"
    DECLINED = "declined"
    REFERENCE_FAILED = "reference_failed"
    SPLIT = "declined_split"


@dataclass(frozen=True, kw_only=True)
class Group:
    """What counts are kept by; ``layout``: op flags, ``p`` for padded and ``m`` for misaligned operands, copies."""

    operator: str
    dtypes: str
    layout: str
    epilogue: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One product of torch's beside the library's; ``detail`` is ready for JSON."""

    group: Group
    verdict: Verdict
    detail: dict[str, Any]


def finding_from_plain(data: dict[str, Any]) -> Finding:
    """The finding that :func:`gemmdesc.plain.to_plain` wrote."""
    return Finding(group=Group(**data["group"]), verdict=Verdict(data["verdict"]), detail=data["detail"])


@dataclass(kw_only=True, eq=False)
class Tally:
    """Counts by group, and the findings that are worth reading."""

    counts: dict[Group, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    told: list[dict[str, Any]] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.counts.setdefault(finding.group, Counter())[finding.verdict.value] += 1
        if finding.verdict is Verdict.DECLINED:
            self.reasons[f"{finding.group.operator}: {finding.detail['reason']}"] += 1
        elif finding.verdict is not Verdict.EQUAL:
            self.told.append({"group": to_plain(finding.group), "verdict": finding.verdict.value} | finding.detail)

    @property
    def totals(self) -> Counter[str]:
        """Counts of all groups together."""
        return sum(self.counts.values(), Counter())


class RouteChecker:
    """Compares products as :func:`gemmdesc.dropin.intercept.intercepted` hands them over.

    Args:
        library: asked and run; on the device of the products.
        settings: torch's, read at each product.
        release: torch's.
        record: takes each finding.
        kernels: names of the kernels that a call of torch's launches, None where they are not asked for.
        most_explained: how many differing products of one group are looked into.
    """

    def __init__(
        self,
        library: PointerLibrary,
        settings: Callable[[], TorchSettings],
        release: Release,
        record: Callable[[Finding], None],
        kernels: Callable[[Callable[[], Any]], tuple[str, ...] | None],
        most_explained: int = 4,
    ) -> None:
        self._explained: Counter[Group] = Counter()
        self._most_explained = most_explained
        self._library, self._settings, self._release = library, settings, release
        self._record, self._kernels = record, kernels

    def __call__(self, call: TorchCall) -> Any:
        """torch's own result of ``call``; what was found on the way is recorded."""
        product, run = call.found, call.run
        route = product if isinstance(product, Declined) else route_of(product, self._settings(), self._release)
        if isinstance(route, Declined) or isinstance(product, Declined):
            reason = route.reason if isinstance(route, Declined) else ""
            group = Group(operator=call.name, dtypes=_dtypes(product), layout="", epilogue="")
            self._record(Finding(group=group, verdict=Verdict.DECLINED, detail={"reason": reason}))
            return run()
        taken = _Taken(product, route)
        result = run()
        self._compare(taken, result, run)
        return result

    def _compare(self, taken: _Taken, result: torch.Tensor, run: Callable[[], Any]) -> None:
        product, route = taken.product, taken.route
        group = _group(product, route)
        detail: dict[str, Any] = {"problem": to_plain(route.problem), "route": _route_words(route)}
        try:
            answer = self._library.answer(route.problem)
            detail["answer"] = to_plain(answer)
            if isinstance(answer, AlgoConfig) and route.unsplit_only and answer.splitk_num > 1:
                self._record(Finding(group=group, verdict=Verdict.SPLIT, detail=detail))
                return
            ours = taken.made(self._library, route, answer)
            if isinstance(ours, str):
                self._record(Finding(group=group, verdict=Verdict.REFERENCE_FAILED, detail=detail | {"status": ours}))
                return
            unequal = differing(result, ours)
            if unequal == 0:
                self._record(Finding(group=group, verdict=Verdict.EQUAL, detail=detail))
                return
            detail |= {"differing": unequal, "elements": result.numel(), "call": taken.words}
            self._explained[group] += 1
            if self._explained[group] <= self._most_explained:
                detail |= {"equal_with": self._equal_with(taken, result)}
                launch = self._library.launch(route.problem, answer) if isinstance(answer, AlgoConfig) else None
                detail["kernels_of_problem"] = None if launch is None else [normalised(n) for n in launch.names]
                detail["kernels_of_torch"], detail["torch_warns"] = _names(self._kernels, result, run)
            self._record(Finding(group=group, verdict=Verdict.DIFFERENT, detail=detail))
        except (GemmdescError, RuntimeError) as error:
            status = f"{type(error).__name__}: {error}"
            self._record(Finding(group=group, verdict=Verdict.REFERENCE_FAILED, detail=detail | {"status": status}))

    def _equal_with(self, taken: _Taken, result: torch.Tensor) -> list[str]:
        """The names of other routes that give torch's bytes."""
        found = []
        for name, other in variants(taken.product, taken.route, self._settings()):
            try:
                ours = taken.made(self._library, other, self._library.answer(other.problem))
            except GemmdescError:
                continue
            if _differing(result, ours) == 0:
                found.append(name)
        return found


def _names(
    kernels: Callable[[Callable[[], Any]], tuple[str, ...] | None], result: torch.Tensor, run: Callable[[], Any]
) -> tuple[list[str] | None, list[str]]:
    """What ``run`` launches and warns of; its result, which it may write to again, is restored.

    torch warns where a fused call fails and it goes on without.
    """
    kept = result.clone()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        names = kernels(run)
    result.copy_(kept)
    return None if names is None else list(names), [str(w.message) for w in told]


def _differing(wanted: torch.Tensor, found: torch.Tensor | str | None) -> int | None:
    """How many elements differ, where there is a result."""
    return differing(wanted, found) if found is not None and not isinstance(found, str) else None


class _Taken:
    """A product with what it will read and write, taken before torch's call may overwrite it."""

    def __init__(self, product: Product, route: Route) -> None:
        self.product, self.route = product, route
        self._a, self._b = operands_of(product, route)
        addend, overwritten = product.addend, product.addend is product.out
        self._addend = addend.clone() if overwritten and addend is not None else addend

    @property
    def words(self) -> dict[str, Any]:
        """Shapes, strides and scalars of the call."""
        p = self.product
        named = (("a", p.a), ("b", p.b), ("addend", p.addend), ("out", p.out))
        tensors = {n: [list(t.shape), list(t.stride()), alignment_of(t)] for n, t in named if t is not None}
        return tensors | {"alpha": p.alpha, "beta": p.beta, "activation": p.activation.value}

    def made(self, library: PointerLibrary, route: Route, answer: AlgoConfig | Refused) -> torch.Tensor | str:
        """The result as ``library`` makes it, or the status that it failed with."""
        import torch

        if isinstance(answer, Refused):
            return answer.status
        product, problem = self.product, route.problem
        d = space_of(product, route) if "out" in route.copies else None
        d = space_like(product.out if d is None else d, product.shape, product.dtype, product.a.device)
        if route.addend is Addend.IN_PLACE:
            assert self._addend is not None
            d.copy_(self._addend.expand(product.shape))
        library.set_inputs(problem, self._inputs(route))
        first, second = (self._b, self._a) if route.swapped else (self._a, self._b)
        alpha, beta = route.scalars(product.alpha, product.beta)
        pointers = (first.data_ptr(), second.data_ptr(), d.data_ptr())
        failed = library.matmul(problem, answer, *pointers, alpha=alpha, beta=beta)
        if failed is not None:
            return failed.status
        if route.activation is Activation.RELU:
            torch.relu_(d)
        if route.activation is Activation.GELU:
            d.copy_(torch.nn.functional.gelu(d, approximate="tanh"))
        return d

    def _inputs(self, route: Route) -> Inputs:
        problem, bias = route.problem, None
        if problem.epilogue in BIASED:
            assert self._addend is not None
            bits = host_bits(self._addend.reshape(1, -1), problem.bias_dtype)
            bias = DenseOperand(dtype=problem.bias_dtype, array=bits)
        a_scale, b_scale = scales_of(self.product, route)
        return Inputs(bias=bias, a_scale=a_scale, b_scale=b_scale)


def _group(product: Product, route: Route) -> Group:
    p = route.problem
    dense = (p.a_rows, p.b_rows, p.m)
    padded = "p" if any(ld > rows for ld, rows in zip((p.lda, p.ldb, p.ldd), dense, strict=True)) else ""
    misaligned = "m" if min(p.a_alignment_bytes, p.b_alignment_bytes, p.d_alignment_bytes) < 16 else ""
    layout = f"{p.transa.value}{p.transb.value}{padded}{misaligned}{'+copy' * bool(route.copies)}"
    return Group(operator=product.name, dtypes=_dtypes(product, p), layout=layout, epilogue=epilogue_words(route))


def _dtypes(product: Product | Declined, problem: GemmProblem | None = None) -> str:
    if isinstance(product, Declined):
        return ""
    name = f"{str(product.a.dtype).removeprefix('torch.')}"
    if product.dtype != product.a.dtype:
        name += f"->{str(product.dtype).removeprefix('torch.')}"
    return name + (" tf32" if problem is not None and "tf32" in problem.compute_type.value else "")


def _route_words(route: Route) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(route)
    del plain["problem"]
    return plain
