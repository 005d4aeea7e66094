"""A torch model on stochastic tensors: every function it calls is met once, whatever module calls it.

One mechanism serves all modules: torch hands each function of a pass to a mode (``TorchFunctionMode``) before it runs.
A function that only moves or selects values is done sample by sample; one that computes is done either sample by sample
in float64 and rounded once (``boundary``), or out of rounded operations (``arithmetic``, where ``lowering`` has it).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.digits import summarise
from gemmdesc.numerics.stochastic.modules import samplewise
from gemmdesc.numerics.stochastic.modules.lowering import LOWERED, Lowering
from gemmdesc.numerics.stochastic.modules.reports import OperatorReport, Phase
from gemmdesc.numerics.stochastic.run import StochasticRun
from gemmdesc.numerics.stochastic.tensors import StochasticTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class Rounded(Enum):
    """Once at an operator's output, or after every operation inside it."""

    BOUNDARY = "boundary"
    ARITHMETIC = "arithmetic"


class Products(Enum):
    """How ``arithmetic`` does a product of matrices.

    ``PERTURBED``: a float64 product of operands moved where their samples do not differ (arXiv 2607.25494, eq. 16).
    ``STEPS``: a rounded product and a rounded addition for each k.  ``INSIDE``: in the order of a descriptor, every
    rounding of it drawn; on the CPU, for operands that the descriptor's types represent.
    """

    PERTURBED = "perturbed"
    STEPS = "steps"
    INSIDE = "inside"


@dataclass(frozen=True, kw_only=True)
class ModuleSettings:
    """How operators are done.

    ``order``: of sums in ``arithmetic``, ``pairwise`` or ``sequential``.  ``descriptor``: from (m, n, k) to the order
    of a product, for ``Products.INSIDE``.  ``threshold``: digits below which an operator is reported as unstable.

    Raises:
        InvalidInputError: ``threshold`` is not finite, ``order`` is unknown, or ``descriptor`` is missing or not called
            for.
    """

    rounded: Rounded = Rounded.ARITHMETIC
    products: Products = Products.PERTURBED
    order: str = "pairwise"
    descriptor: Callable[[int, int, int], GEMMDesc] | None = None
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int | float) or not math.isfinite(self.threshold):
            raise InvalidInputError(f"threshold must be finite (got {self.threshold!r})")
        if self.order not in ("pairwise", "sequential"):
            raise InvalidInputError(f"order must be pairwise or sequential (got {self.order!r})")
        if (self.descriptor is None) == (self.products is Products.INSIDE):
            raise InvalidInputError(
                f"descriptor must be given for products inside, and only for them (got {self.descriptor!r})"
            )


class Analysis:
    """Passes of one model on stochastic inputs; ``reports`` holds one report for each operator of each pass.

    The model is left as it is: its parameters are read, its buffers and torch's generators are put back after a pass,
    and hooks are taken off.  Gradients of a pass reach its parameters straight through the roundings.
    """

    def __init__(self, model: torch.nn.Module, run: StochasticRun, settings: ModuleSettings | None = None) -> None:
        self.model, self.run = model, run
        self.settings = ModuleSettings() if settings is None else settings
        self.reports: list[OperatorReport] = []
        lowering = {"products": self.settings.products.value, "order": self.settings.order}
        self._lowering = Lowering(run=run, descriptor=self.settings.descriptor, **lowering)
        self._names = {id(module): name for name, module in model.named_modules()}
        self._modules: list[str] = []
        self._calls: Counter[tuple[str, str]] = Counter()
        self._pass = (Phase.INFERENCE, 0, 0)

    def __call__(
        self, *inputs: Any, phase: Phase = Phase.INFERENCE, epoch: int = 0, iteration: int = 0, **keywords: Any
    ) -> Any:
        """The model's output on ``inputs``, whose floating-point tensors become stochastic.

        Raises:
            InvalidInputError: a tensor is of a type that is not covered; the message names it.
        """
        self._pass = (phase, epoch, iteration)
        self._calls.clear()
        with ExitStack() as stack:
            stack.enter_context(_put_back(self.model, self.run.settings.seed))
            stack.enter_context(self._hooks())
            inputs = samplewise.converted(self.run, inputs)
            keywords = samplewise.converted(self.run, keywords)
            stack.enter_context(samplewise.function_mode(self.meet))
            stack.enter_context(self._observing())
            return self.model(*inputs, **keywords)

    def meet(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What torch's ``function`` gives here; called with torch's own functions in force."""
        self.run.observe = None
        try:
            return self._met(function, arguments, keywords)
        finally:
            self.run.observe = self._observed

    def _met(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        name = samplewise.name_of(function)
        if not samplewise.has_stochastic((arguments, keywords)):
            result = function(*arguments, **keywords)
            return samplewise.converted(self.run, result) if name in samplewise.LOOKUPS else result
        plain = samplewise.plain_part(name)
        if plain in samplewise.MOVES:
            result, how = samplewise.moved(plain, function, arguments, keywords), None
        elif self.settings.rounded is Rounded.ARITHMETIC and plain in LOWERED:
            result, how = self._lowering.lower(plain, arguments, keywords), Rounded.ARITHMETIC.value
            if result is NotImplemented:
                result, how = samplewise.computed(function, arguments, keywords), Rounded.BOUNDARY.value
        else:
            result, how = samplewise.computed(function, arguments, keywords), Rounded.BOUNDARY.value
        if plain != name:
            return samplewise.stored_in_place(arguments[0], result)
        if how is not None:
            self._report(name, how, result)
        return result

    def _observed(self, operator: str, result: Any) -> None:
        """A Python operator between stochastic tensors, which torch does not see."""
        self._report(operator, Rounded.ARITHMETIC.value, result)

    @contextmanager
    def _observing(self) -> Iterator[None]:
        parameter = next(self.model.parameters(), None)
        self.run.declared_dtype = None if parameter is None else parameter.dtype
        self.run.observe = self._observed
        try:
            yield
        finally:
            self.run.observe, self.run.declared_dtype = None, None

    def _report(self, operator: str, how: str, result: Any) -> None:
        for value in samplewise.stochastic_parts(result):
            module = self._modules[-1] if self._modules else ""
            phase, epoch, iteration = self._pass
            digits = summarise(value.estimate())
            reached = math.isnan(digits.least) or digits.least >= self.settings.threshold
            self.reports.append(
                OperatorReport(
                    module=module,
                    operator=operator,
                    call=self._calls[module, operator],
                    phase=phase,
                    epoch=epoch,
                    iteration=iteration,
                    rounded=how,
                    shape=value.shape,
                    stable=reached and digits.nonfinite_share == 0,
                    digits=digits,
                )
            )
            self._calls[module, operator] += 1

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """Keep the names of the modules that are running."""

        def enter(module: Any, _inputs: Any) -> None:
            self._modules.append(self._names.get(id(module), type(module).__name__))

        def leave(_module: Any, _inputs: Any, _output: Any) -> None:
            self._modules.pop()

        handles = []
        try:
            for module in self.model.modules():
                handles.append(module.register_forward_pre_hook(enter))
                handles.append(module.register_forward_hook(leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._modules.clear()


def lift(run: StochasticRun, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of plain tensors as an operator of stochastic ones: done sample by sample, rounded once.

    Nested tuples, lists and dicts of tensors come back as such; tensors that are not floating-point are those of the
    samples' mean.
    """

    def lifted(*arguments: Any, **keywords: Any) -> StochasticTensor | Any:
        given = samplewise.converted(run, (arguments, keywords))
        return samplewise.computed(function, *given)

    return lifted


@contextmanager
def _put_back(model: Any, seed: int) -> Iterator[None]:
    """Seed torch's generators for the pass, and put them and the model's buffers back after it."""
    import torch

    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
    finally:
        with torch.no_grad():
            for buffer, kept in before:
                buffer.copy_(kept)
