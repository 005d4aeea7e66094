"""The routes of the spellings that people use, for a page: what each poses with each operand type, or why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.routes.addmm import route_addmm, route_product
from gemmdesc.routes.batched import route_baddbmm
from gemmdesc.routes.metas import NdMeta, TensorMeta, contiguous_strides
from gemmdesc.routes.release import READ_FOR, Release
from gemmdesc.routes.route import Activation, Route
from gemmdesc.routes.scaled import route_scaled_mm
from gemmdesc.routes.vectors import DOT, route_addmv

_M, _N, _K, _BATCH = 96, 64, 128, 8


@dataclass(frozen=True, kw_only=True)
class TypedCase:
    """Operand types of a column: ``tf32``: with tfloat32 products allowed."""

    name: str
    dtype: DType
    tf32: bool = False

    @property
    def settings(self) -> TorchSettings:
        return TorchSettings(allow_tf32=self.tf32)


#: The columns of the table.
TYPES = (
    TypedCase(name="float16", dtype=DType.FLOAT16),
    TypedCase(name="bfloat16", dtype=DType.BFLOAT16),
    TypedCase(name="float32", dtype=DType.FLOAT32),
    TypedCase(name="float32 tf32", dtype=DType.FLOAT32, tf32=True),
    TypedCase(name="float8_e4m3fn", dtype=DType.FLOAT8_E4M3FN),
)

Routing = Callable[[TypedCase, Release], Route | Declined | None]


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """A call as one writes it, and the operator that it comes down to; ``route``: None where no such call exists."""

    call: str
    operator: str
    route: Routing


def _nd(*shape: int, dtype: DType) -> NdMeta:
    return NdMeta(shape=shape, strides=contiguous_strides(shape), dtype=dtype)


def _matrices(t: TypedCase, out_dtype: DType | None = None) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    a, b = _nd(_M, _K, dtype=t.dtype).matrix, _nd(_K, _N, dtype=t.dtype).matrix
    return a, b, _nd(_M, _N, dtype=out_dtype or t.dtype).matrix


def _wide(t: TypedCase, release: Release) -> Route | Declined | None:
    if t.dtype is DType.FLOAT32:
        return None
    return route_product(*_matrices(t, DType.FLOAT32), t.settings)


def _added(*shape: int, strides: tuple[int, ...] | None = None, by_columns: bool = False, **given: object) -> Routing:
    """``addmm`` of an addend of ``shape``; ``given``: alpha, beta, activation."""

    def route(t: TypedCase, release: Release) -> Route | Declined | None:
        addend = NdMeta(shape=shape, strides=strides or contiguous_strides(shape), dtype=t.dtype)
        a, b, out = _matrices(t)
        if by_columns:
            out = TensorMeta(shape=out.shape, strides=(1, _M), dtype=t.dtype)
        return route_addmm(addend, a, b, out, t.settings, release=release, **given)  # type: ignore[arg-type]

    return route


def _batched(batch: int, **given: float) -> Routing:
    def route(t: TypedCase, release: Release) -> Route | Declined | None:
        a, b, out = (_nd(batch, *s, dtype=t.dtype) for s in ((_M, _K), (_K, _N), (_M, _N)))
        return route_baddbmm(a, b, out, t.settings, **given)

    return route


def _vector(**given: float) -> Routing:
    def route(t: TypedCase, release: Release) -> Route | Declined | None:
        a, b, out = _nd(_M, _K, dtype=t.dtype), _nd(_K, dtype=t.dtype), _nd(_M, dtype=t.dtype)
        return route_addmv(a.matrix, b, out, t.settings, **given)

    return route


def _scaled(biased: bool, fast: bool) -> Routing:
    def route(t: TypedCase, release: Release) -> Route | Declined | None:
        if t.dtype is not DType.FLOAT8_E4M3FN:
            return None
        a, out = _nd(_M, _K, dtype=t.dtype).matrix, _nd(_M, _N, dtype=DType.BFLOAT16).matrix
        b = TensorMeta(shape=(_K, _N), strides=(1, _K), dtype=t.dtype)
        bias = _nd(_N, dtype=DType.BFLOAT16) if biased else None
        return route_scaled_mm(a, b, out, t.settings, bias=bias, fast_accumulation=fast)

    return route


#: What the page shows, in its order.
SPELLINGS: tuple[Spelling, ...] = (
    Spelling(call="mm(a, b)", operator="mm", route=lambda t, _: route_product(*_matrices(t), t.settings)),
    Spelling(call="mm(a, b, torch.float32)", operator="mm", route=_wide),
    Spelling(call="addmm(bias, a, b)", operator="addmm", route=_added(_N)),
    Spelling(call="addmm(bias, a, b, out=by columns)", operator="addmm", route=_added(_N, by_columns=True)),
    Spelling(call="addmm(bias, a, b, beta=2)", operator="addmm", route=_added(_N, beta=2.0)),
    Spelling(call="addmm(row of shape (1, n), a, b)", operator="addmm", route=_added(1, _N)),
    Spelling(call="addmm(bias.expand(m, n), a, b)", operator="addmm", route=_added(_M, _N, strides=(0, 1))),
    Spelling(call="addmm(c, a, b)", operator="addmm", route=_added(_M, _N)),
    Spelling(call="addmm(c, a, b, beta=0.5, alpha=2)", operator="addmm", route=_added(_M, _N, beta=0.5, alpha=2.0)),
    Spelling(call="addmm(c, a, b, beta=0)", operator="addmm", route=_added(_M, _N, beta=0.0)),
    Spelling(
        call="_addmm_activation(bias, a, b)", operator="_addmm_activation", route=_added(_N, activation=Activation.RELU)
    ),
    Spelling(
        call="_addmm_activation(bias, a, b, use_gelu=True)", operator="_addmm_activation",
        route=_added(_N, activation=Activation.GELU),
    ),
    Spelling(
        call="_addmm_activation(c, a, b)", operator="_addmm_activation",
        route=_added(_M, _N, activation=Activation.RELU),
    ),
    Spelling(
        call="_addmm_activation(bias, a, b, beta=0)", operator="_addmm_activation",
        route=_added(_N, beta=0.0, activation=Activation.RELU),
    ),
    Spelling(call="bmm(a, b)", operator="bmm", route=_batched(_BATCH)),
    Spelling(call="bmm(a, b) of one matrix each", operator="bmm", route=_batched(1)),
    Spelling(call="baddbmm(c, a, b)", operator="baddbmm", route=_batched(_BATCH, beta=1.0)),
    Spelling(
        call="baddbmm(c, a, b, beta=0.5, alpha=2)", operator="baddbmm", route=_batched(_BATCH, beta=0.5, alpha=2.0)
    ),
    Spelling(call="mv(a, x)", operator="addmv", route=_vector()),
    Spelling(call="addmv(y, a, x)", operator="addmv", route=_vector(beta=1.0)),
    Spelling(call="dot(x, y)", operator="dot", route=lambda t, _: DOT),
    Spelling(call="_scaled_mm(a, b, scale_a, scale_b)", operator="_scaled_mm", route=_scaled(False, False)),
    Spelling(call="_scaled_mm(..., bias=bias)", operator="_scaled_mm", route=_scaled(True, False)),
    Spelling(call="_scaled_mm(..., use_fast_accum=True)", operator="_scaled_mm", route=_scaled(False, True)),
)  # fmt: skip


def routes(release: Release = READ_FOR) -> list[tuple[Spelling, dict[str, Route | Declined | None]]]:
    """Every spelling with its route for each of ``TYPES``, by the type's name; None where torch has no such call."""
    return [(s, {t.name: _route(s, t, release) for t in TYPES}) for s in SPELLINGS]


def _route(spelling: Spelling, t: TypedCase, release: Release) -> Route | Declined | None:
    if t.dtype is DType.FLOAT8_E4M3FN and spelling.operator != "_scaled_mm":
        return None
    return spelling.route(t, release)
