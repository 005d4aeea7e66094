"""The products of a model at a reference batch, and which of them a product at another batch is pinned to.

The rows of ``a``, and how many matrices there are, are the batch.  A product and its reference have all else in common:
k, the columns of ``b``, types, epilogue, and of two matrices how they are stored.  So a row's order follows from these
alone.  A product whose k is the batch, as a weight's gradient, has no reference at another batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.dropin.products import Family, Product, route_of
from gemmdesc.errors import Declined
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.normal_form import NormalForm, normal_form
from gemmdesc.plan import Description, Plan
from gemmdesc.problem import GemmProblem
from gemmdesc.routes import Activation, Release, Route

if TYPE_CHECKING:
    import torch

#: Fields of a problem that follow from what is summed and how it ends, and so are the reference's.
_ARITHMETIC = ("alpha", "beta", "epilogue", "compute_type", "scale_dtype", "fast_accumulation")
#: Torch's flags and release, where a product is posed.
Circumstances = Callable[[Product], tuple[TorchSettings, Release]]
#: What a library's answer to a problem says of its order.
Describe = Callable[[GemmProblem], Description | Plan | Declined]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a product and its reference have in common, sizes and layouts apart."""

    family: Family
    dtypes: tuple[str, str, str]
    addend: str
    alpha: float
    beta: float
    activation: Activation
    fast_accumulation: bool


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A product at the reference batch: (m, k) x (k, n), a vector being one column.

    ``layouts``: of a and of b, ``rows`` or ``columns``.
    """

    kind: Kind
    m: int
    n: int
    k: int
    layouts: tuple[str, str]
    route: Route


@dataclass(frozen=True, kw_only=True)
class PinnedRoute:
    """The route of a product whose rows have the order of ``reference``."""

    route: Route
    reference: GemmProblem


class Reference:
    """A context that notes torch's products; give it to :func:`gemmdesc.override` as ``pin`` afterwards.

    Inside, torch's own library computes.  It holds for the thread that enters it and the backward passes started
    there, as an override does.
    """

    def __init__(self, device_type: str, circumstances: Circumstances) -> None:
        self._device_type, self._circumstances = device_type, circumstances
        self._noted: dict[Noted, None] = {}
        self._inside = intercepted(self._note, "reference")

    @property
    def products(self) -> tuple[Noted, ...]:
        """What was noted, each once, in the order in which it came."""
        return tuple(self._noted)

    def __enter__(self) -> Self:
        """Begin.

        Raises:
            OverrideError: it has begun already.
        """
        self._inside.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.__exit__(kind, value, trace)

    def _note(self, call: TorchCall) -> Any:
        if call.device_type == self._device_type and isinstance(call.found, Product):
            route = route_of(call.found, *self._circumstances(call.found))
            if isinstance(route, Route):
                self._noted[noted(call.found, route)] = None
        return call.run()

    def pinned(self, product: Product, own: Route, describe: Describe) -> PinnedRoute | Declined:
        """``product`` as its reference is posed; ``own``: its route at its own size.

        Declines (``no_reference``) where nothing noted is its reference, where several are and have other orders, and
        where the result is stored the other way round; and as ``describe`` does.
        """
        mine = noted(product, own)
        found = _candidates(mine, self.products)
        if not found:
            sizes = f"({mine.m}, {mine.k}) x ({mine.k}, {mine.n})"
            reason = f"the reference has no product of k and n as {sizes}, of these types, layouts and epilogue"
            return Declined(code="no_reference", reason=reason)
        orders: set[frozenset[NormalForm]] = set()
        for problem in dict.fromkeys(r.route.problem for r in found) if len(found) > 1 else ():
            described = describe(problem)
            if isinstance(described, Declined):
                return described
            orders.add(frozenset(normal_form(r.descriptor, problem.k) for r in described.regions))
        if len(orders) > 1:
            sizes = ", ".join(f"({r.m}, {r.k}) x ({r.k}, {r.n})" for r in found)
            reason = f"the reference holds {sizes} with other orders, and nothing says which this product follows"
            return Declined(code="no_reference", reason=reason)
        return _posed_as(own, found[0].route)


def noted(product: Product, route: Route) -> Noted:
    """What of ``product`` its reference is found by."""
    p = product
    n = 1 if p.family is Family.VECTOR else p.b.shape[-1]
    kind = Kind(
        family=p.family, dtypes=(str(p.a.dtype), str(p.b.dtype), str(p.dtype)), addend=_addend_kind(p), alpha=p.alpha,
        beta=p.beta, activation=p.activation, fast_accumulation=p.fast_accumulation,
    )  # fmt: skip
    return Noted(
        kind=kind, m=p.a.shape[-2], n=n, k=p.a.shape[-1], layouts=(_layout(p.a), _layout(p.b)), route=route
    )  # fmt: skip


def _addend_kind(product: Product) -> str:
    addend = product.addend
    if addend is None:
        return "none"
    # A bias that is stored with gaps is added in another way.
    return f"{addend.dim()} axes" + (", in gaps" if addend.dim() == 1 and addend.stride(0) != 1 else "")


def _layout(tensor: torch.Tensor) -> str:
    """By rows, as torch also copies what has no unit stride, or by columns."""
    strides = tensor.stride()
    return "columns" if len(strides) > 1 and strides[-1] != 1 and strides[-2] == 1 else "rows"


def _candidates(mine: Noted, products: tuple[Noted, ...]) -> list[Noted]:
    """The products that may be the reference of ``mine``.

    How batches of matrices are stored may follow from how many there are: torch makes views of one and copies of more.
    """
    alike = [r for r in products if (r.kind, r.n, r.k) == (mine.kind, mine.n, mine.k)]
    match mine.kind.family:
        case Family.VECTOR:
            return [r for r in alike if r.m == mine.m]
        case Family.BATCH:
            return alike
    return [r for r in alike if r.layouts == mine.layouts]


def _posed_as(own: Route, reference: Route) -> PinnedRoute | Declined:
    """The product's sizes and layouts, with the reference's arithmetic."""
    if own.swapped != reference.swapped:
        reason = "the result is stored by rows where the reference's is by columns, or the other way round"
        return Declined(code="no_reference", reason=reason)
    arithmetic: dict[str, Any] = {name: getattr(reference.problem, name) for name in _ARITHMETIC}
    route = replace(
        reference, problem=replace(own.problem, **arithmetic), copies=own.copies, swapped=own.swapped
    )  # fmt: skip
    return PinnedRoute(route=route, reference=reference.problem)
