"""Products with an epilogue: one call of torch's, its one product computed together with what follows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gemmdesc.dropin.epilogue import Epilogue
from gemmdesc.dropin.executors import Executor
from gemmdesc.dropin.following import READ_TOOLKIT, OperandMeta, lowered
from gemmdesc.dropin.intercept import TorchCall
from gemmdesc.dropin.ledger import process_ledger
from gemmdesc.dropin.lowering import Products, lowered_matmul
from gemmdesc.dropin.overriding import require_policy
from gemmdesc.dropin.planned import Launched
from gemmdesc.dropin.products import Family, Fused, Product
from gemmdesc.dropin.refusals import REFUSALS, refused
from gemmdesc.dropin.repeated import Asked, repeated_calls, witnessed
from gemmdesc.dropin.through import Choices, through
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError
from gemmdesc.routes import Activation

if TYPE_CHECKING:
    import torch

_SCALARS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedCall:
    """A call with one product and an epilogue.

    ``call``: torch's own, without the epilogue.  ``shape``: of its result.  ``tensors``: what it multiplies and adds.
    """

    name: str
    call: Callable[[], torch.Tensor]
    shape: tuple[int, ...]
    tensors: Sequence[torch.Tensor]
    epilogue: Epilogue
    operands: Mapping[str, torch.Tensor]

    def run(self, choices: Choices, asked: Asked | None = None) -> torch.Tensor:
        """The fused result, or what ``on_decline`` says; ``asked``: what a call like it will be found by.

        Raises:
            InvalidInputError: operands are not what the epilogue reads, do not broadcast to the result, are on another
                device or of a type that no step takes.
            DeclinedError: no promise can be made.
        """
        require_operands(self)
        declined = self._objection()
        if declined is not None:
            return self._declined(declined, choices)
        launched: list[Launched] = []

        def prepared(call: TorchCall, executor: Executor) -> TorchCall:
            return witnessed(self._prepared(call, executor), launched.append)

        result = through(self.name, self.call, self.tensors, choices, prepare=prepared)
        if asked is not None:
            repeated_calls().note(asked, launched, result)
        return result

    def _objection(self) -> Declined | None:
        """Why torch's operators would do otherwise than the kernels: a graph of gradients, or conversions."""
        import torch
        from torch.autograd import forward_ad

        tensors = (*self.tensors, *self.operands.values())
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return Declined(code="out_of_scope", reason="gradients of an epilogue; torch.no_grad() goes without them")
        if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
            return Declined(code="out_of_scope", reason="forward derivatives (dual numbers) of an epilogue")
        if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
            return Declined(code="flags", reason="autocast is on, whose rules for pointwise operators are not followed")
        return None

    def _declined(self, declined: Declined, choices: Choices) -> torch.Tensor:
        policy = choices.get("on_decline", "raise")
        require_policy(policy)
        process_ledger().add(self.name, declined, by_library=policy == "library")
        if policy == "raise":
            raise DeclinedError(Declined(code=declined.code, reason=f"{self.name}: {declined.reason}"))
        return self.epilogue(self.call(), **self.operands)

    def _prepared(self, call: TorchCall, executor: Executor) -> TorchCall:
        """The call of one product with the epilogue on it."""
        found = call.found
        if isinstance(found, Declined):
            return replace(call, run=lambda: self._by_torch(call))
        if found.family is Family.VECTOR or found.activation is not Activation.NONE or found.out is not None:
            reason = "an epilogue of a matrix times a vector, or beside an activation"
            found = Declined(code="out_of_scope", reason=reason)
        else:
            found = self._fused(found, executor)
        return replace(call, found=found, run=lambda: self._by_torch(call))

    def _by_torch(self, call: TorchCall) -> torch.Tensor:
        """torch's product, then its operators."""
        result = call.run()
        shaped = {n: t if t.dim() == 0 else laid_over(t, self.shape, result.shape) for n, t in self.operands.items()}
        return self.epilogue(result, **shaped)

    def _fused(self, product: Product, executor: Executor) -> Product | Declined:
        import torch

        _, release = executor.circumstances(product)
        metas = {name: _meta(t, product.a) for name, t in self.operands.items()}
        steps = lowered(
            self.epilogue, DType(str(product.dtype).removeprefix("torch.")), metas, release=release,
            toolkit=torch.version.cuda if product.a.is_cuda else READ_TOOLKIT,
        )  # fmt: skip
        if isinstance(steps, Declined):
            return steps
        named: dict[str, torch.Tensor | float] = dict(steps.numbers)
        for name, (source, dtype) in steps.read.items():
            operand = self.operands[source].detach().to(getattr(torch, dtype.value))
            named[name] = laid_over(operand, self.shape, product.shape)
        sources = {name: source for name, (source, _) in steps.read.items()}
        return replace(product, fused=Fused(following=steps.following, named=named, sources=sources))


def _meta(operand: torch.Tensor, beside: torch.Tensor) -> OperandMeta:
    spelled = str(operand.dtype).removeprefix("torch.")
    dtype = next((d for d in DType if d.value == spelled), DType.FLOAT64)
    apart = operand.dim() == 0 and operand.device != beside.device
    return OperandMeta(dtype=dtype, scalar=operand.dim() == 0, number=float(operand.item()) if apart else None)


def laid_over(operand: torch.Tensor, shape: tuple[int, ...], product: Sequence[int]) -> torch.Tensor:
    """``operand``, which broadcasts to ``shape``, as a view of the product's shape, ``shape`` with its axes folded."""
    full = operand.expand(shape)
    if full.dim() and full.shape[-1] > 1 and full.stride(-1) == 0:
        # One value a row: folding the rows then copies no more than them.
        rows = full[..., :1].reshape(*product[:-1], 1)
        return rows.expand(tuple(product))
    return full.reshape(tuple(product))


def require_operands(call: FusedCall) -> None:
    """Raise InvalidInputError unless the operands are those of the epilogue, and broadcast to the result."""
    import torch

    call.epilogue.require_names(call.operands)
    device = call.tensors[0].device
    for name, operand in call.operands.items():
        if not isinstance(operand, torch.Tensor):
            raise InvalidInputError(f"{name} must be a torch.Tensor (got {type(operand).__name__})")
        scalar = operand.dim() == 0
        if operand.device != device and not (scalar and operand.device.type == "cpu"):
            raise InvalidInputError(f"{name} must be on the operands' device {device} (got {operand.device})")
        allowed = _SCALARS if scalar else _SCALARS[:3]
        if str(operand.dtype).removeprefix("torch.") not in allowed:
            raise InvalidInputError(f"{name} must be of {' or '.join(allowed)} (got {operand.dtype})")
        if operand.layout is not torch.strided or operand.is_neg():
            raise InvalidInputError(f"{name} must be a dense, strided tensor (got {operand.layout})")
        try:
            fits = torch.broadcast_shapes(operand.shape, call.shape) == torch.Size(call.shape)
        except RuntimeError:
            fits = False
        if not fits:
            raise InvalidInputError(f"{name} must broadcast to {call.shape} (got {tuple(operand.shape)})")


def fused_matmul(
    a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue | None, operands: Mapping[str, torch.Tensor] | None,
    choices: Choices,
) -> torch.Tensor:
    """``epilogue(torch.matmul(a, b), **operands)``."""
    asked, done = _repeated("matmul", (a, b), epilogue, operands, choices)
    if done is not None:
        return done
    import torch

    epilogue = _eager(epilogue)
    shape = _result_shape("matmul", torch.matmul, (a, b))
    own = Products(mm=torch.mm, bmm=torch.bmm, mv=torch.mv, dot=torch.dot, addmm=torch.addmm)
    call = FusedCall(
        name="matmul", call=lambda: lowered_matmul(a, b, own), shape=shape, tensors=(a, b), epilogue=epilogue,
        operands=operands or {},
    )  # fmt: skip
    return call.run(choices, asked)


def fused_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, epilogue: Epilogue | None,
    operands: Mapping[str, torch.Tensor] | None, choices: Choices,
) -> torch.Tensor:  # fmt: skip
    """``epilogue(torch.nn.functional.linear(x, weight, bias), **operands)``."""
    asked, done = _repeated("linear", (x, weight, bias), epilogue, operands, choices)
    if done is not None:
        return done
    import torch

    epilogue = _eager(epilogue)
    linear = torch.nn.functional.linear
    tensors = (x, weight) if bias is None else (x, weight, bias)
    shape = _result_shape("linear", linear, tensors)
    given = dict(operands or {})
    if bias is not None and x.dim() != 2 and not x.is_contiguous():
        # torch adds the bias to the rounded product here.
        if not epilogue.rounds_product:
            raise DeclinedError(Declined(code="out_of_scope", reason="linear: torch rounds before it adds this bias"))
        first = "linear_bias"
        epilogue = replace(epilogue, steps=(*Epilogue().add(first).steps, *epilogue.steps))
        given[first], bias = bias, None
    call = FusedCall(
        name="linear", call=lambda: linear(x, weight, bias), shape=shape, tensors=tensors, epilogue=epilogue,
        operands=given,
    )  # fmt: skip
    return call.run(choices, asked)


def fused_scaled_mm(
    a: torch.Tensor, b: torch.Tensor, call: Callable[[], torch.Tensor], epilogue: Epilogue | None,
    operands: Mapping[str, torch.Tensor] | None, choices: Choices,
) -> torch.Tensor:  # fmt: skip
    """``epilogue(torch._scaled_mm(a, b, ...), **operands)``; ``call``: torch's own."""
    epilogue = _eager(epilogue)
    if a.dim() != 2 or b.dim() != 2:
        raise InvalidInputError(f"a and b must be 2-D (got {a.dim()}-D, {b.dim()}-D)")
    fused = FusedCall(
        name="_scaled_mm", call=call, shape=(a.shape[0], b.shape[1]), tensors=(a, b), epilogue=epilogue,
        operands=operands or {},
    )  # fmt: skip
    return fused.run(choices)


def _repeated(
    name: str, tensors: tuple[torch.Tensor | None, ...], epilogue: Epilogue | None,
    operands: Mapping[str, torch.Tensor] | None, choices: Choices,
) -> tuple[Asked | None, torch.Tensor | None]:  # fmt: skip
    """What the call is looked up by, and its result where one like it was made before."""
    import torch

    if torch.compiler.is_compiling():
        return None, None
    return repeated_calls().find(name, tensors, epilogue, operands, choices)


def _eager(epilogue: Epilogue | None) -> Epilogue:
    """``epilogue``, where there is one and no graph is traced.

    Raises:
        InvalidInputError: otherwise.
    """
    import torch

    if not isinstance(epilogue, Epilogue):
        raise InvalidInputError(f"epilogue must be a gemmdesc.Epilogue (got {type(epilogue).__name__})")
    if torch.compiler.is_compiling():
        raise InvalidInputError("epilogue must be None in a graph (got one)")
    return epilogue


def _result_shape(
    name: str, call: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]
) -> tuple[int, ...]:
    """The shape of torch's result; torch's refusals as ours."""
    import torch

    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInputError(f"operands of {name} must be tensors (got {type(tensor).__name__})")
    try:
        return tuple(call(*(t.detach().to("meta") for t in tensors)).shape)
    except REFUSALS as error:
        raise refused(name, tensors, error) from error
