"""Do fused epilogues have the bytes of the eager operators that they replace?  On a GPU.

    PYTHONPATH=. python scripts/check_fused.py OUT.json [--seconds 300] [--seed 0] [--device cpu]
                                                        [--parts candidates,patterns,calls,random]

patterns     every epilogue x float16, bfloat16 on all 65,536 patterns of the product (NaNs as a product has them, -0.0
             and subnormals included), by the kernel that runs after a product and by chains that end with the epilogue
candidates   each spelling of gelu, silu, sigmoid and tanh on all patterns: which ones have eager's bytes
random       random products with random operands: the fused kernel against eager's operators on our own product
calls        gemmdesc.matmul, linear and gated with an epilogue against eager torch, products by cuBLAS included

OUT.json has a claim for each part with counts, and under ``results`` a row for each epilogue and type: ``compared``,
``equal``, ``different``, ``declined`` elements, and of the first difference the product's pattern, eager's bytes and
ours.  It is rewritten after every row.  ``--device cpu`` rehearses in Triton's interpreter (TRITON_INTERPRET=1) what a
CPU rounds as a GPU does, with all NaNs taken for one, and both zeros.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from fused_candidates import CANDIDATES, spelled

import gemmdesc
from gemmdesc import Epilogue
from gemmdesc.descriptor import Accumulator, Contiguous, Cut, GEMMDesc, ResidueLast, Start
from gemmdesc.dropin.following import READ_TOOLKIT, OperandMeta, lowered
from gemmdesc.dropin.fused import laid_over
from gemmdesc.dropin.memory import signed_bits
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DeclinedError
from gemmdesc.kernels.beside import Beside
from gemmdesc.kernels.fused import FusedChoice
from gemmdesc.kernels.launch import kernel_meta, matrix_meta
from gemmdesc.kernels.launch_fused import launch_fused
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tiled import choose_tiled
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.regions import whole
from gemmdesc.routes import Release

CARD = card_arithmetic("sm_90")
TYPES = (torch.float16, torch.bfloat16)
E = Epilogue()
#: What torch does otherwise on a CPU: functions, how it rounds numbers and tensors without axes, casts to 8 bits.
ON_GPU = ("gelu", "silu", "sigmoid", "tanh", "softcap", "plus_number", "fp8", "tensor_scale_32")

Operands = Mapping[str, Any]
Row = dict[str, Any]


def epilogues() -> dict[str, Epilogue]:
    """Every epilogue that is checked, by name; its operands by theirs."""
    found = {
        "relu": E.relu(), "gelu": E.gelu(), "gelu_tanh": E.gelu("tanh"), "silu": E.silu(), "tanh": E.tanh(),
        "sigmoid": E.sigmoid(),
        "softcap": E.softcap(30.0), "softcap_1.7": E.softcap(1.7), "scale": E.multiply(0.37), "divided": E.divide(3.3),
        "plus_number": E.add(0.1), "clamp": E.clamp(-1.3, 447.3), "clamp_zero": E.clamp(-0.0, 0.0),
        "clamp_min": E.clamp(min=0.0), "to_float32": E.to(torch.float32), "to_float32_relu": E.to(torch.float32).relu(),
        "to_float32_gelu": E.to(torch.float32).gelu(), "to_float32_silu": E.to(torch.float32).silu(),
        "to_float32_tanh": E.to(torch.float32).tanh(), "to_float16": E.to(torch.float16),
        "to_bfloat16_silu": E.to(torch.bfloat16).silu(), "fp8": E.to(torch.float8_e4m3fn),
        "fp8_e5m2": E.to(torch.float8_e5m2), "fp8_clamped": E.multiply(0.37).clamp(-448, 448).to(torch.float8_e4m3fn),
        "fp8_from_float32": E.to(torch.float32).multiply(1.7).to(torch.float8_e4m3fn),
    }  # fmt: skip
    scales = ("row_scale", "column_scale", "tensor_scale", "tensor_scale_32")
    for name in ("bias", "residual", "residual_float32", *scales):
        step = E.add if name.startswith(("bias", "residual")) else E.multiply
        found[name] = step(name)
    found["over_column_scale"] = E.divide("column_scale")
    for act in ("relu", "silu", "sigmoid", "gelu"):
        found[f"bias_{act}"] = getattr(E.add("bias"), act)()
        found[f"gated_{act}"] = getattr(E, act)().multiply("up")
    found["gated_gelu_tanh"] = E.gelu("tanh").multiply("up")
    found["bias_gelu_tanh_residual"] = E.add("bias").gelu("tanh").add("residual")
    found["fp8_rows"] = E.to(torch.float32).multiply("row_scale_32").clamp(-448, 448).to(torch.float8_e4m3fn)
    return found


def operand(name: str, m: int, n: int, dtype: torch.dtype, made: torch.Generator, device: str) -> torch.Tensor:
    """The tensor that an epilogue calls so, of mixed magnitudes; some elements are special."""
    shapes = {"bias": (n,), "row_scale": (m, 1), "row_scale_32": (m, 1), "column_scale": (n,)}
    shape = () if name.startswith("tensor_scale") else shapes.get(name, (m, n))
    kind = torch.float32 if name.endswith(("32", "float32")) else dtype
    value = torch.randn(shape, generator=made, device=device)
    value = value * torch.exp2(torch.randint(-9, 10, shape, generator=made, device=device).float())
    if shape:
        special = torch.tensor([float("nan"), float("inf"), -0.0, 0.0, 2.0**-140, 6e4], device=device)
        place = torch.randint(0, 40, shape, generator=made, device=device)
        value = torch.where(place < 6, special[place.clamp(max=5)], value)
    return value.to(kind)


class Report:
    """The file, rewritten after each row."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        cuda = device == "cuda"
        self.about = {
            "command": f"PYTHONPATH=. python scripts/check_fused.py {' '.join(sys.argv[1:])}",
            "card": torch.cuda.get_device_name() if cuda else "none", "date": date.today().isoformat(),
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "triton": _triton()},
        }  # fmt: skip
        self.parts: dict[str, list[Row]] = {}

    def add(self, part: str, row: Row) -> None:
        self.parts.setdefault(part, []).append(row)
        claims = [self._claim(name, rows) for name, rows in self.parts.items()]
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps({"claims": claims}, indent=1) + "\n")
        beside.replace(self.path)
        if row.get("different") or row.get("error"):
            print(part, json.dumps(row), file=sys.stderr, flush=True)

    def _claim(self, part: str, rows: list[Row]) -> Row:
        counts = {k: sum(int(r.get(k, 0)) for r in rows) for k in ("compared", "equal", "different", "declined")}
        return {"claim": f"fused epilogues: {part}", **self.about, "counts": counts, "results": rows}


def _triton() -> str:
    import triton

    return str(triton.__version__)


def compared(want: torch.Tensor, got: torch.Tensor, product: torch.Tensor) -> Row:
    """Counts, and the product's pattern where the first difference is."""
    if (want.shape, want.dtype) != (got.shape, got.dtype):
        had = f"eager has {tuple(want.shape)} {want.dtype}, we {tuple(got.shape)} {got.dtype}"
        return {"error": had, "different": 1}
    if not want.is_cuda:
        want, got = (settled(t.float()).to(t.dtype) for t in (want, got))
    one, other = signed_bits(want).reshape(-1), signed_bits(got).reshape(-1)
    wrong = one != other
    count = int(wrong.sum())
    row: Row = {"compared": one.numel(), "equal": one.numel() - count, "different": count}
    if count:
        at = int(wrong.nonzero()[0])
        size = want.element_size()
        row["first"] = {
            "at": at, "product": _hex(signed_bits(product).reshape(-1)[at], product.element_size()),
            "eager": _hex(one[at], size), "ours": _hex(other[at], size),
        }  # fmt: skip
    return row


def settled(value: torch.Tensor) -> torch.Tensor:
    """``value`` with one NaN and one zero."""
    return torch.where(value.isnan(), torch.nan, torch.where(value == 0, 0.0, value))


def _hex(value: torch.Tensor, size: int) -> str:
    return f"{int(value) & ((1 << 8 * size) - 1):#0{2 + 2 * size}x}"


def describe(dtype: torch.dtype, k: int, span: int | None = None) -> GEMMDesc:
    """A plain Hopper chain of ``dtype``, or slices of ``span``."""
    kind = DType(str(dtype).removeprefix("torch."))
    step = CARD.step_for(kind)
    assert step is not None
    cut = Cut(
        layout=Contiguous(span=span or k), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST
    )  # fmt: skip
    return GEMMDesc(
        a_dtype=kind, b_dtype=kind, output_dtype=kind, summed_k=k, cuts=(cut,) if span else (),
        accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=step.step),
    )  # fmt: skip


def steps_of(epilogue: Epilogue, operands: Operands, dtype: torch.dtype, shape: tuple[int, int]) -> Any:
    """(following, named operands) as a call has them, or a decline."""
    metas = {
        n: OperandMeta(dtype=DType(str(t.dtype).removeprefix("torch.")), scalar=t.dim() == 0)
        for n, t in operands.items()
    }  # fmt: skip
    release = Release.parse(torch.__version__)
    toolkit = torch.version.cuda or READ_TOOLKIT
    found = lowered(epilogue, DType(str(dtype).removeprefix("torch.")), metas, release=release, toolkit=toolkit)
    if isinstance(found, Declined):
        return found
    named: dict[str, Any] = dict(found.numbers)
    for name, (source, kind) in found.read.items():
        named[name] = laid_over(operands[source].to(getattr(torch, kind.value)), shape, shape)
    return found.following, named


def meta_of(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> KernelMeta:
    if a.is_cuda:
        return kernel_meta(a, b, out)
    return KernelMeta(
        m=a.shape[0], n=b.shape[1], k=a.shape[1], a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3,
        shared_bytes=232448,
    )  # fmt: skip


def launched(desc: GEMMDesc, a: torch.Tensor, b: torch.Tensor, named: Operands) -> tuple[torch.Tensor, Any] | Declined:
    """The result of ``desc`` in new memory, and the choice that computed it."""
    dtype = getattr(torch, desc.output_dtype.value)
    out = torch.empty((a.shape[0], b.shape[1]), dtype=dtype, device=a.device)
    choice = choose_tiled(whole(desc, *out.shape), meta_of(a, b, out), CARD, fused=bool(desc.epilogue))
    if isinstance(choice, Declined):
        return choice
    launch_choice(choice, a, b, out, Beside(named=named))
    return out, choice


def every_pattern(dtype: torch.dtype, device: str) -> torch.Tensor:
    """All 65,536 patterns, a NaN as a product has it."""
    patterns = torch.arange(65536, dtype=torch.int32, device=device).to(torch.int16)
    value = patterns.view(dtype)
    return torch.where(value.isnan(), torch.tensor(0x7FFF, dtype=torch.int16, device=device), patterns).view(dtype)


def patterns(names: dict[str, Epilogue], device: str, made: torch.Generator) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Every epilogue on every pattern, after a product and at the end of chains."""
    for dtype in TYPES:
        all_of = every_pattern(dtype, device)
        for name, epilogue in names.items():
            yield f"{name} {dtype} after", lambda e=epilogue, d=dtype, p=all_of: _after(e, d, p, made)
        if device == "cuda":
            for k, n in ((1, 16), (64, 128)):
                for name, epilogue in names.items():
                    row = lambda e=epilogue, d=dtype, p=all_of, k=k, n=n: _chained(e, d, p, made, k, n)  # noqa: E731
                    yield f"{name} {dtype} chain k={k}", row


def _after(epilogue: Epilogue, dtype: torch.dtype, all_of: torch.Tensor, made: torch.Generator) -> Row:
    """The kernel that runs after a product, given the patterns as the product."""
    product = all_of.view(512, 128)
    operands = {n: operand(n, 512, 128, dtype, made, str(product.device)) for n in epilogue.names}
    found = steps_of(epilogue, operands, dtype, (512, 128))
    if isinstance(found, Declined):
        return {"declined": product.numel(), "reason": found.reason}
    following, named = found
    a, b = product[:, :16], torch.ones((16, 128), dtype=dtype, device=product.device)
    # Slices leave the epilogue to the kernel that follows.
    desc = following.after(describe(dtype, 16, span=8))
    out = torch.empty((512, 128), dtype=getattr(torch, desc.output_dtype.value), device=product.device)
    choice = choose_tiled(whole(desc, 512, 128), meta_of(a, b, out), CARD, fused=True)
    if not isinstance(choice, FusedChoice):
        return {"declined": product.numel(), "reason": str(choice)}
    assert not choice.in_chain
    launch_fused(choice, a, b, out, Beside(named=named), lambda c, x, y, d, beside: d.copy_(product))
    return compared(epilogue(product, **operands), out, product)


def _chained(
    epilogue: Epilogue, dtype: torch.dtype, all_of: torch.Tensor, made: torch.Generator, k: int, n: int
) -> Row:
    """A chain whose first product is the pattern times one, the others zero."""
    m = all_of.numel()
    a = torch.zeros((m, k), dtype=dtype, device=all_of.device)
    a[:, 0] = all_of
    b = torch.zeros((k, n), dtype=dtype, device=all_of.device)
    b[0] = 1
    return fused_row(epilogue, dtype, a, b, made, describe(dtype, k))


def fused_row(
    epilogue: Epilogue, dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor, made: torch.Generator, desc: GEMMDesc
) -> Row:
    """The fused kernel against eager's operators on the same product of ours."""
    m, n = a.shape[0], b.shape[1]
    operands = {name: operand(name, m, n, dtype, made, str(a.device)) for name in epilogue.names}
    found = steps_of(epilogue, operands, dtype, (m, n))
    if isinstance(found, Declined):
        return {"declined": m * n, "reason": found.reason}
    plain = launched(desc, a, b, {})
    assert not isinstance(plain, Declined)
    ours = launched(found[0].after(desc), a, b, found[1])
    if isinstance(ours, Declined):
        return {"declined": m * n, "reason": ours.reason}
    row = compared(epilogue(plain[0], **operands), ours[0], plain[0])
    return row | {"kernel": f"{ours[1].product.structure.value}{' whole' if ours[1].in_chain else ' after'}"}


def candidates(device: str) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Each spelling of each function on every pattern."""
    eager = {"gelu": E.gelu(), "gelu_tanh": E.gelu("tanh"), "silu": E.silu(), "tanh": E.tanh(),
             "sigmoid": E.sigmoid()}  # fmt: skip
    for name, spellings in CANDIDATES.items():
        for spelling, function in spellings.items():
            for dtype in TYPES:
                x = every_pattern(dtype, device)
                row = lambda f=function, x=x, e=eager[name]: compared(e(x), spelled(f, x), x)  # noqa: E731
                yield f"{name} {dtype} as {spelling}", row


def randoms(names: dict[str, Epilogue], device: str, seed: int) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Random products, shapes unrounded, some of slices, until the time is over."""
    made = torch.Generator(device).manual_seed(seed)
    choose = torch.Generator().manual_seed(seed)
    listed = list(names.items())
    for index in range(1 << 30):
        name, epilogue = listed[int(torch.randint(len(listed), (1,), generator=choose))]
        dtype = TYPES[index % 2]
        top = 60 if device == "cpu" else (100, 700, 3000)[index % 3]
        m, n, k = (int(x) for x in torch.randint(1, top, (3,), generator=choose))
        if index % 4 == 1:
            m, n, k = (-(-x // 64) * 64 for x in (m, n, k))
        span = -(-k // 3) if index % 5 == 4 else None

        def row(e: Epilogue = epilogue, d: torch.dtype = dtype, s: Any = (m, n, k, span)) -> Row:
            m, n, k, span = s
            a, b = (_mixed(shape, d, made, device) for shape in ((m, k), (k, n)))
            return fused_row(e, d, a, b, made, describe(d, k, span)) | {"shape": [m, n, k], "span": span}

        yield f"{name} {dtype}", row


def _mixed(shape: tuple[int, ...], dtype: torch.dtype, made: torch.Generator, device: str) -> torch.Tensor:
    value = torch.randn(shape, generator=made, device=device)
    value = value * torch.exp2(torch.randint(-5, 6, shape, generator=made, device=device).float()) / shape[-1] ** 0.25
    return value.to(dtype)


def calls(names: dict[str, Epilogue], device: str, seed: int) -> Iterator[tuple[str, Callable[[], Row]]]:
    """What users call, against eager torch."""
    made = torch.Generator(device).manual_seed(seed)
    sizes = ((17, 1024, 1024), (256, 1024, 4096), (333, 1000, 770), (1, 4096, 512), (2048, 2048, 2048))
    for dtype in TYPES:
        for m, k, n in sizes:
            x, w, bias = _mixed((m, k), dtype, made, device), _mixed((n, k), dtype, made, device), None
            for name, epilogue in names.items():
                for biased in (False, True):
                    bias = _mixed((n,), dtype, made, device) if biased else None

                    def row(e: Epilogue = epilogue, x: Any = x, w: Any = w, bias: Any = bias) -> Row:
                        ops = {o: operand(o, x.shape[0], w.shape[0], x.dtype, made, device) for o in e.names}
                        product = torch.nn.functional.linear(x, w, bias)
                        try:
                            ours = gemmdesc.linear(x, w, bias, epilogue=e, operands=ops)
                        except DeclinedError as error:
                            return {"declined": product.numel(), "reason": str(error)}
                        return compared(e(product, **ops), ours, product)

                    yield f"linear{' bias' if biased else ''} {m}x{n}x{k} {name} {dtype}", row
            up = _mixed((k, n), dtype, made, device)
            for act in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid"):
                yield f"gated {act} {m}x{n}x{k} {dtype}", lambda a=act, x=x, w=w, u=up: _gated(a, x, w.T, u)


def _gated(act: str, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Row:
    function = {"silu": E.silu(), "gelu": E.gelu(), "gelu_tanh": E.gelu("tanh"), "relu": E.relu(),
                "sigmoid": E.sigmoid()}[act]  # fmt: skip
    product = x @ gate
    try:
        ours = gemmdesc.gated(x, gate, up, act)
    except DeclinedError as error:
        return {"declined": product.numel(), "reason": str(error)}
    return compared(function(product) * (x @ up), ours, product)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", default="candidates,patterns,calls,random")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    names = epilogues()
    if given.device == "cpu":
        from tests.interpreted_fused import patch_more
        from tests.interpreted_kernels import patch_interpreter

        patch_interpreter()
        patch_more()
        names = {n: e for n, e in names.items() if not any(word in n for word in ON_GPU)}
    report, end = Report(given.out, given.device), time.monotonic() + given.seconds
    made = torch.Generator(given.device).manual_seed(given.seed)
    sources: dict[str, Callable[[], Iterator[tuple[str, Callable[[], Row]]]]] = {
        "patterns": lambda: patterns(names, given.device, made),
        "candidates": lambda: candidates(given.device),
        "random": lambda: randoms(names, given.device, given.seed),
        "calls": lambda: calls(names, given.device, given.seed),
    }
    with torch.no_grad():
        for part in given.parts.split(","):
            for name, row in sources[part]():
                if time.monotonic() > end:
                    break
                try:
                    found = row()
                except Exception as error:  # noqa: BLE001  one case must not end the others
                    found = {"error": f"{type(error).__name__}: {error}"[:500]}
                report.add(part, {"case": name, **found})
    for claim in json.loads(given.out.read_text())["claims"]:
        print(claim["claim"], claim["counts"])
        if claim["claim"].endswith("candidates"):
            for r in claim["results"]:
                print("  ", r["case"], "equal" if r.get("different") == 0 else json.dumps(r))


if __name__ == "__main__":
    main()
