"""Random calls of torch's products: which operator, sizes, layouts, alignments, types and scalars.

A call is fixed by (seed, index), its values apart.  Sizes are those of campaigns, unrounded ones among them; operands
lie by rows or columns, padded, at addresses that only their own type divides, or with no unit stride.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gemmdesc.probe.sampling import Regime, draw_sizes

if TYPE_CHECKING:
    import torch

#: What one drawn product may cost.
_MOST_ELEMENTS = 1 << 25
_MOST_FLOPS = 1 << 38
_DTYPES = ("float16", "bfloat16", "float16", "bfloat16", "float32")
_REGIMES = (Regime.UNROUNDED, Regime.ALIGNED, Regime.ALIGNED, Regime.DEEP, Regime.DEEP_ALIGNED, Regime.SMALL)


@dataclass(frozen=True, kw_only=True)
class Drawer:
    """What draws tensors: ``exact`` values are small integers, whose products and sums are exact in every type."""

    rng: Random
    device: str
    exact: bool
    largest: int | None = None

    def sizes(self) -> tuple[int, int, int]:
        """(m, n, k) of a regime, small enough."""
        while True:
            m, n, k = draw_sizes(self.rng, self.rng.choice(_REGIMES))
            if self.largest is not None:
                m, n, k = (1 + (x - 1) % self.largest for x in (m, n, k))
            if max(m * n, m * k, n * k) <= _MOST_ELEMENTS and 2 * m * n * k <= _MOST_FLOPS:
                return m, n, k

    def dtype(self) -> torch.dtype:
        import torch

        found: torch.dtype = getattr(torch, self.rng.choice(_DTYPES))
        return found

    def values(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A vector of values of mixed magnitudes, in which the order of a sum shows."""
        import torch

        if self.exact:
            # Neither zero nor its sign: a product of zeros may be -0.0 alone, and never as part of a sum.
            signs = 2 * torch.randint(0, 2, (count,), device=self.device) - 1
            return (signs * torch.randint(1, 3, (count,), device=self.device)).to(dtype)
        scale = torch.exp2(torch.randint(-4, 5, (count,), device=self.device).float())
        return (torch.randn(count, device=self.device) * scale).to(dtype)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, *, plain: bool = False) -> torch.Tensor:
        """A tensor of ``shape``, row-major and aligned where ``plain``, else stored as views of torch's may be."""
        rng = self.rng
        offset = 0 if plain or rng.random() < 0.7 else rng.choice((1, 2, 4, 8))
        pad = 0 if plain or rng.random() < 0.7 else rng.choice((1, 3, 8, 16))
        step = 2 if not plain and rng.random() < 0.03 else 1
        by_columns = not plain and len(shape) > 1 and rng.random() < 0.4
        order = list(range(len(shape)))
        if by_columns:
            order[-2:] = order[:-3:-1]
        strides, reach = [0] * len(shape), step
        for axis in reversed(order):
            strides[axis] = reach
            reach *= max(1, shape[axis])
            reach += pad * step if axis == order[-1] and len(shape) > 1 else 0
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        return self.values(extent + offset, dtype).as_strided(shape, strides, offset)

    def scalar(self) -> float:
        return self.rng.choice((1.0, 1.0, 2.0, 0.5) if self.exact else (1.0, 1.0, 0.5, -1.0, 0.3))

    def beta(self) -> float:
        return self.rng.choice((0.0, 1.0, 1.0, self.scalar()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """A call of torch's, ready to be made; ``flags``: what of ``torch.backends.cuda.matmul`` is set for it."""

    name: str
    run: Callable[[], Any]
    flags: tuple[tuple[str, bool], ...] = ()

    def make(self) -> Any:
        """The call's result, with its flags set for as long as it runs."""
        import torch

        matmul = torch.backends.cuda.matmul
        before = [(name, getattr(matmul, name)) for name, _ in self.flags]
        try:
            for name, value in self.flags:
                setattr(matmul, name, value)
            return self.run()
        finally:
            for name, value in before:
                setattr(matmul, name, value)


def draw_call(seed: int, index: int, device: str, *, exact: bool = False, largest: int | None = None) -> Call:
    """Call number ``index`` of ``seed`` on tensors of ``device``; sizes are at most ``largest`` where that is given."""
    rng = Random((seed << 32) | index)
    drawer = Drawer(rng=rng, device=device, exact=exact, largest=largest)
    names = [n for n in CALLS if device == "cuda" or n not in _ON_GPU]
    name = rng.choice(names)
    flags: list[tuple[str, bool]] = []
    if rng.random() < 0.15:
        flags.append(("allow_tf32", True))
    if rng.random() < 0.05:
        flags += [(f"allow_{kind}_reduced_precision_reduction", False) for kind in ("fp16", "bf16")]
    return Call(name=name, run=CALLS[name](drawer), flags=tuple(flags))


def _mm(d: Drawer) -> Callable[[], Any]:
    import torch

    (m, n, k), dtype = d.sizes(), d.dtype()
    a, b = d.tensor((m, k), dtype), d.tensor((k, n), dtype)
    if d.rng.random() < 0.3:
        out = d.tensor((m, n), dtype)
        return lambda: torch.mm(a, b, out=out)
    return lambda: torch.mm(a, b)


def _mm_float32(d: Drawer) -> Callable[[], Any]:
    import torch

    (m, n, k), dtype = d.sizes(), getattr(torch, d.rng.choice(("float16", "bfloat16")))
    a, b = d.tensor((m, k), dtype), d.tensor((k, n), dtype)
    return lambda: torch.mm(a, b, torch.float32)


def _matmul(d: Drawer) -> Callable[[], Any]:
    import torch

    (m, n, k), dtype, batch = d.sizes(), d.dtype(), d.rng.randint(1, 4)
    m = max(1, m // batch)
    shapes = d.rng.choice(
        (((batch, m, k), (k, n)), ((m, k), (batch, k, n)), ((batch, m, k), (1, k, n)), ((m, k), (k,)), ((k,), (k, n)),
         ((2, batch, m, k), (batch, k, n)), ((batch, m, k), (k,)))
    )  # fmt: skip
    left, right = (d.tensor(s, dtype) for s in shapes)
    return lambda: torch.matmul(left, right)


def _linear(d: Drawer) -> Callable[[], Any]:
    import torch

    (m, n, k), dtype = d.sizes(), d.dtype()
    shape = (m, k) if d.rng.random() < 0.5 else (2, max(1, m // 2), k)
    x, weight = d.tensor(shape, dtype, plain=d.rng.random() < 0.7), d.tensor((n, k), dtype, plain=d.rng.random() < 0.7)
    bias = d.tensor((n,), dtype) if d.rng.random() < 0.7 else None
    return lambda: torch.nn.functional.linear(x, weight, bias)


def _trained(d: Drawer) -> Callable[[], Any]:
    """A linear layer forward and backward."""
    import torch

    (m, n, k), dtype = d.sizes(), d.dtype()
    x, weight, grad = (d.tensor(s, dtype, plain=True) for s in ((m, k), (n, k), (m, n)))
    bias = d.tensor((n,), dtype, plain=True)

    def run() -> Any:
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
        torch.nn.functional.linear(*leaves).backward(grad)
        return leaves[0].grad

    return run


def _addmm(d: Drawer) -> Callable[[], Any]:
    import torch

    (m, n, k), dtype = d.sizes(), d.dtype()
    a, b, alpha, beta = d.tensor((m, k), dtype), d.tensor((k, n), dtype), d.scalar(), d.beta()
    shape = d.rng.choice(((n,), (n,), (1, n), (m, 1), (m, n), (m, n)))
    addend = d.tensor(shape, dtype)
    if d.rng.random() < 0.2:
        addend = addend.expand(m, n)
    way = d.rng.choice(("new", "new", "out", "in place"))
    if way == "new":
        return lambda: torch.addmm(addend, a, b, alpha=alpha, beta=beta)
    out = d.tensor((m, n), dtype)
    if way == "out":
        return lambda: torch.addmm(addend, a, b, alpha=alpha, beta=beta, out=out)
    return lambda: out.addmm_(a, b, alpha=alpha, beta=beta)


def _biased(d: Drawer) -> Callable[[], Any]:
    """The spelling that models use: a one-dimensional bias on a new result."""
    import torch

    (m, n, k), dtype = d.sizes(), d.dtype()
    a, b = d.tensor((m, k), dtype), d.tensor((k, n), dtype)
    bias = d.tensor((n,), dtype)
    return lambda: torch.addmm(bias, a, b)


def _activated(d: Drawer) -> Callable[[], Any]:
    import torch

    (m, n, k), dtype, use_gelu = d.sizes(), d.dtype(), d.rng.random() < 0.5 and not d.exact
    a, b, beta = d.tensor((m, k), dtype), d.tensor((k, n), dtype), d.rng.choice((1.0, 1.0, 1.0, 0.0))
    addend = d.tensor(d.rng.choice(((n,), (n,), (m, n))), dtype)
    return lambda: torch._addmm_activation(addend, a, b, beta=beta, use_gelu=use_gelu)


def _batched(d: Drawer) -> tuple[Any, Any, tuple[int, int, int], torch.dtype]:
    (m, n, k), dtype = d.sizes(), d.dtype()
    batch = d.rng.choice((1, 2, 3, 8, 32))
    while batch > 1 and batch * max(m * n, m * k, n * k) > _MOST_ELEMENTS:
        batch //= 2
    left, right = d.tensor((batch, m, k), dtype), d.tensor((batch, k, n), dtype)
    if d.rng.random() < 0.1:
        right = d.tensor((1, k, n), dtype).expand(batch, k, n)
    return left, right, (batch, m, n), dtype


def _bmm(d: Drawer) -> Callable[[], Any]:
    import torch

    a, b, shape, dtype = _batched(d)
    if d.rng.random() < 0.2:
        out = d.tensor(shape, dtype)
        return lambda: torch.bmm(a, b, out=out)
    return lambda: torch.bmm(a, b)


def _baddbmm(d: Drawer) -> Callable[[], Any]:
    import torch

    a, b, shape, dtype = _batched(d)
    alpha, beta = d.scalar(), d.beta()
    addend = d.tensor(d.rng.choice((shape, shape[2:], (1, *shape[1:]))), dtype)
    return lambda: torch.baddbmm(addend, a, b, alpha=alpha, beta=beta)


def _mv(d: Drawer) -> Callable[[], Any]:
    import torch

    (m, _, k), dtype = d.sizes(), d.dtype()
    a, b, addend = d.tensor((m, k), dtype), d.tensor((k,), dtype), d.tensor((m,), dtype)
    if d.rng.random() < 0.5:
        return lambda: torch.mv(a, b)
    alpha, beta = d.scalar(), d.beta()
    return lambda: torch.addmv(addend, a, b, alpha=alpha, beta=beta)


def _scaled_mm(d: Drawer) -> Callable[[], Any]:
    import torch

    m, n, k = (-(-x // 16) * 16 for x in d.sizes())
    types = d.rng.choice((("e4m3fn", "e4m3fn"), ("e4m3fn", "e5m2"), ("e5m2", "e4m3fn")))
    left, right = (getattr(torch, f"float8_{t}") for t in types)
    a = d.values(m * k, left).reshape(m, k)
    b = d.values(n * k, right).reshape(n, k).T
    out_dtype = getattr(torch, d.rng.choice(("float16", "bfloat16", "float32")))
    factors = [d.rng.choice((0.5, 1.0, 2.0)) if d.exact else d.rng.uniform(0.1, 2.0) for _ in range(2)]
    scales = [torch.tensor(x, device=d.device) for x in factors]
    biased = out_dtype != torch.float32 and d.rng.random() < 0.4
    bias, fast = d.values(n, out_dtype) if biased else None, d.rng.random() < 0.5
    return lambda: torch._scaled_mm(a, b, *scales, bias=bias, out_dtype=out_dtype, use_fast_accum=fast)


#: Draws of calls, by name.
CALLS: MappingProxyType[str, Callable[[Drawer], Callable[[], Any]]] = MappingProxyType(
    {
        "mm": _mm,
        "mm_float32": _mm_float32,
        "matmul": _matmul,
        "linear": _linear,
        "linear_trained": _trained,
        "addmm": _addmm,
        "addmm_bias": _biased,
        "activation": _activated,
        "bmm": _bmm,
        "baddbmm": _baddbmm,
        "mv": _mv,
        "scaled_mm": _scaled_mm,
    }
)
#: Those that torch makes on a GPU alone.
_ON_GPU = ("mm_float32",)
