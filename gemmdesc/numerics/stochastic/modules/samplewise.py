"""Torch functions on stochastic tensors, sample by sample: what is moved, what is computed, what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.run import StochasticRun
from gemmdesc.numerics.stochastic.tensors import StochasticTensor

#: Functions whose results are copies of operands' elements, or 0: no rounding, and exactness goes with the element.
MOVES = frozenset((
    "view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "permute", "transpose", "t", "swapaxes",
    "swapdims", "movedim", "moveaxis", "unsqueeze", "squeeze", "expand", "expand_as", "repeat",
    "repeat_interleave", "tile", "contiguous", "clone", "detach", "chunk", "split", "tensor_split", "unbind",
    "cat", "concat", "concatenate", "stack", "hstack", "vstack", "getitem", "index_select", "gather",
    "take_along_dim", "select", "narrow", "roll", "flip", "masked_fill", "masked_select", "pad", "unfold",
    "pixel_shuffle", "tril", "triu", "diagonal", "identity", "relu", "relu6", "hardtanh", "clamp", "clip",
    "neg", "negative", "abs", "maximum", "minimum", "where", "max", "min", "amax", "amin", "max_pool1d",
    "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "threshold", "alias", "positive",
))  # fmt: skip
#: Moves that choose among elements: their exactness cannot be moved along, so it holds only where all operands have it.
CHOICES = frozenset((
    "relu6", "hardtanh", "clamp", "clip", "maximum", "minimum", "where", "max", "min", "amax", "amin",
    "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "threshold", "abs",
    "relu",
))  # fmt: skip
#: Functions of plain operands whose results become stochastic.
LOOKUPS = frozenset(["embedding", "embedding_bag"])
_CASTS = frozenset(["to", "float", "double", "half", "bfloat16", "type_as", "cpu", "cuda"])


def name_of(function: Any) -> str:
    """Torch's name of ``function``; an operator's without its underscores."""
    name = str(getattr(function, "__name__", type(function).__name__))
    return name.strip("_") if name.startswith("__") and name.endswith("__") else name


def apply_plainly(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """``function`` outside of any analysis: moved, or computed and rounded once."""
    name = name_of(function)
    plain = plain_part(name)
    work = moved(plain, function, arguments, keywords) if plain in MOVES else computed(function, arguments, keywords)
    return work if plain == name else stored_in_place(arguments[0], work)


def plain_part(name: str) -> str:
    """The function that an in-place one does: ``add`` of ``add_``."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``change`` of every leaf of nested tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        parts = [mapped(v, change) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: mapped(v, change) for k, v in value.items()}
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """Of nested tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        for v in value:
            yield from leaves(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from leaves(v)
    else:
        yield value


def stochastic_parts(value: Any) -> list[StochasticTensor]:
    """All stochastic leaves."""
    return [v for v in leaves(value) if isinstance(v, StochasticTensor)]


def has_stochastic(value: Any) -> bool:
    """Whether any leaf is stochastic."""
    return any(isinstance(v, StochasticTensor) for v in leaves(value))


def run_of(value: Any) -> StochasticRun:
    """The run that all stochastic leaves belong to.

    Raises:
        InvalidInputError: they belong to several.
    """
    parts = stochastic_parts(value)
    if any(v.run is not parts[0].run for v in parts):
        raise InvalidInputError("arguments must be stochastic tensors of one run (got several runs)")
    return parts[0].run


def converted(run: StochasticRun, value: Any) -> Any:
    """Floating-point tensors among the leaves made stochastic.

    Raises:
        InvalidInputError: one is sparse, quantised or complex; the message says what to do.
    """
    import torch

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.is_complex() or leaf.is_quantized or leaf.layout != torch.strided:
            kind = "complex" if leaf.is_complex() else "quantised" if leaf.is_quantized else str(leaf.layout)
            raise InvalidInputError(
                "inputs must be dense real tensors; split a complex one, call .dequantize() or .to_dense() (got "
                f"{kind})"
            )
        return run.tensor(leaf) if leaf.is_floating_point() else leaf

    return mapped(value, change)


def function_mode(meet: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> Any:
    """A context in which torch's functions go to ``meet(function, arguments, keywords)``."""
    from torch.overrides import TorchFunctionMode

    class Meeting(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return meet(function, args, kwargs or {})

    return Meeting()


def computed(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """``function`` in float64 for each sample, its floating-point results rounded once.

    What is not floating-point (indices, comparisons) is that of the samples' mean.  No result is called exact.
    """
    run = run_of((arguments, keywords))
    name = name_of(function)
    if name in _CASTS:
        return _cast(function, arguments, keywords)
    keywords = {k: v for k, v in keywords.items() if k != "inplace"}
    parts = _each(run, function, arguments, keywords)
    means = _at_mean(function, arguments, keywords, parts)

    def close(*leaf: Any) -> Any:
        import torch

        first = leaf[0]
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return leaf[-1]
        stacked = torch.stack(leaf[:-1])
        rounded, _ = run.close(torch, stacked.detach(), None)
        value = StochasticTensor(rounded, torch.zeros_like(rounded[0], dtype=torch.bool), run)
        value.samples = value.straight(stacked, rounded)
        return value

    return _joined(close, *parts, means)


def moved(name: str, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """``function`` for each sample, nothing rounded."""
    import torch

    given = stochastic_parts((arguments, keywords))
    run = run_of((arguments, keywords))
    keywords = {k: v for k, v in keywords.items() if k != "inplace"}
    parts = _each(run, function, arguments, keywords)
    means = _at_mean(function, arguments, keywords, parts)
    if name in CHOICES:
        all_exact = bool(torch.stack([v.exact.all() for v in given]).all())
    else:
        kept, lost = (mapped((arguments, keywords), _marks(exact)) for exact in (True, False))
        marked = (function(*kept[0], **kept[1]), function(*lost[0], **lost[1]))

    def join(*leaf: Any) -> Any:
        first = leaf[0]
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return leaf[-3]
        stacked = torch.stack(leaf[:-3])
        if name == "relu":
            operand = given[0].estimate()
            # A zero that no rounding on the way can have made is an exact one.
            exact = given[0].exact | (operand.finite & (operand.mean + operand.half_width < 0))
        elif name in CHOICES:
            exact = torch.full_like(first, all_exact, dtype=torch.bool)
        else:
            # Constants that a function fills in are exact, whether 0 or not.
            exact = (leaf[-2] != 0) | (leaf[-1] == 0)
        return StochasticTensor(stacked, exact, run)

    return _joined(join, *parts, means, *((means, means) if name in CHOICES else marked))


def stored_in_place(target: Any, result: Any) -> Any:
    """What an in-place function leaves in ``target``, which must be stochastic.

    Raises:
        InvalidInputError: a plain tensor would have to hold samples.
    """
    if not isinstance(target, StochasticTensor):
        raise InvalidInputError(
            "target of an in-place function must be stochastic; write it out of place (got a plain tensor)"
        )
    target.samples, target.exact = result.samples, result.exact
    return target


def _marks(exact: bool) -> Callable[[Any], Any]:
    """1 where a leaf is exact (or, with ``exact`` false, is not) and 0 elsewhere; plain floats are exact."""
    import torch

    def marks(leaf: Any) -> Any:
        if isinstance(leaf, StochasticTensor):
            return (leaf.exact if exact else ~leaf.exact).to(torch.float64)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return torch.full_like(leaf, float(exact), dtype=torch.float64)
        return leaf

    return marks


def _each(run: StochasticRun, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    """``function`` of every sample, plain floating-point operands in float64 copies."""
    import torch

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.to(torch.float64) if leaf.requires_grad else leaf.to(torch.float64, copy=True)
        return leaf

    given = mapped((arguments, keywords), widened)
    results = []
    # Whatever is random in a function is the same for all samples.
    kept = _generators(stochastic_parts((arguments, keywords))[0])
    for i in range(run.settings.samples):
        for state, put_back in kept:
            put_back(state)
        picked = mapped(given, _sample(i))
        results.append(function(*picked[0], **picked[1]))
    return results


def _generators(value: StochasticTensor) -> list[tuple[Any, Callable[[Any], None]]]:
    """The states of torch's generators that a function of ``value`` can draw from, and what puts each back."""
    import torch

    kept: list[tuple[Any, Callable[[Any], None]]] = [(torch.random.get_rng_state(), torch.random.set_rng_state)]
    if value.is_cuda:
        device = value.device
        kept.append((torch.cuda.get_rng_state(device), lambda state: torch.cuda.set_rng_state(state, device)))
    return kept


def _sample(i: int) -> Callable[[Any], Any]:
    return lambda leaf: leaf.samples[i] if isinstance(leaf, StochasticTensor) else leaf


def _at_mean(function: Any, arguments: Any, keywords: Any, parts: list[Any]) -> Any:
    """``function`` of the samples' means, where a result is not floating-point; else what stands for it."""
    import torch

    if all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in leaves(parts[0])):
        return parts[0]
    picked = mapped(
        (arguments, keywords),
        lambda leaf: leaf.value if isinstance(leaf, StochasticTensor) else leaf.to(torch.float64)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf,
    )  # fmt: skip
    return function(*picked[0], **picked[1])


def _joined(join: Callable[..., Any], *parts: Any) -> Any:
    """``join`` of the leaves that stand at one place of equal nests."""
    first = parts[0]
    if isinstance(first, tuple | list):
        joined = [_joined(join, *(p[i] for p in parts)) for i in range(len(first))]
        return tuple(joined) if isinstance(first, tuple) else joined
    if isinstance(first, dict):
        return {k: _joined(join, *(p[k] for p in parts)) for k in first}
    return join(*parts)


def _cast(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A conversion: to a narrower type one rounding to it, and a move to another device; else nothing."""
    import torch

    value = arguments[0]

    # What torch makes of a plain tensor says what was asked for.
    def empty(leaf: Any) -> Any:
        plain = not isinstance(leaf, StochasticTensor)
        return leaf if plain else torch.empty(0, dtype=leaf.dtype, device=leaf.device)

    stand_in = mapped((arguments, keywords), empty)
    asked = function(*stand_in[0], **stand_in[1])
    if asked.dtype != value.dtype and asked.dtype in (torch.float16, torch.bfloat16):
        value = value.cast(str(asked.dtype).removeprefix("torch."))
    if asked.device == value.device:
        return value
    return value.made(value.samples.to(asked.device), value.exact.to(asked.device))
