"""The memory of one shape of a kind on a card: matrices as its problem stores them, written anew for every draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmdesc.library.interface import Inputs
from gemmdesc.library.storage import (
    Stored,
    a_rows,
    a_shape,
    allocate,
    b_rows,
    b_shape,
    c_rows,
    c_shape,
    d_shape,
    empty_d,
)
from gemmdesc.operands import torch_integer, write_bits
from gemmdesc.plan.problems import takes_bias, takes_c, takes_output_scale, takes_scales
from gemmdesc.problem import GemmProblem, Transpose
from gemmdesc.verification.draws import Draw
from gemmdesc.verification.kind_draws import kind_inputs, kind_operands
from gemmdesc.verification.tensors import torch_float

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One shape's matrices on the card, which every draw writes anew; ``expected`` and ``got`` are the two D."""

    a: Stored
    b: Stored
    c: Stored | None
    bias: torch.Tensor | None
    scales: Mapping[str, torch.Tensor]
    expected: Stored
    got: Stored

    @classmethod
    def of(cls, problem: GemmProblem, place: torch.device) -> Stage:
        """Memory for the problem; gaps, and both D, hold all-ones bytes."""
        import torch

        p = problem
        taken = {"a_scale": takes_scales(p), "b_scale": takes_scales(p), "d_scale": takes_output_scale(p)}
        bias = torch.empty(p.m, dtype=torch_float(p.bias_dtype), device=place) if takes_bias(p) else None
        return cls(
            a=allocate(a_shape(p), place), b=allocate(b_shape(p), place),
            c=allocate(c_shape(p), place) if takes_c(p) else None, bias=bias,
            scales={n: torch.empty(1, dtype=torch.float32, device=place) for n, is_taken in taken.items() if is_taken},
            expected=empty_d(p, place), got=empty_d(p, place),
        )  # fmt: skip

    @property
    def outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both D with all that lies beside their elements, as far as the two lie alike: on a card, whole buffers."""
        both = self.expected, self.got
        begins = [d.columns.storage_offset() for d in both]
        lead = min(begins)
        tail = min(d.buffer.numel() - begin for d, begin in zip(both, begins, strict=True))
        one, other = (d.buffer[begin - lead : begin + tail] for d, begin in zip(both, begins, strict=True))
        return one, other

    def clear(self) -> None:
        """Fill both D with all-ones bytes."""
        for d in (self.expected, self.got):
            d.buffer.fill_(-1)

    def differs(self) -> bool:
        """Whether the two D differ anywhere, also beside their elements; waits for the card."""
        one, other = self.outputs
        return bool((one != other).any())

    def write(self, problem: GemmProblem, draw: Draw, seed: int) -> Inputs:
        """Enqueue one draw's values; what they are beside A and B."""
        p, (a, b), inputs = problem, kind_operands(problem, draw, seed), kind_inputs(problem, draw, seed)
        write_bits(a, a_rows(p, self.a))
        write_bits(b, b_rows(p, self.b))
        if self.c is not None and inputs.c is not None:
            write_bits(inputs.c, c_rows(self.c))
        if self.bias is not None and inputs.bias is not None:
            write_bits(inputs.bias, self.bias.view(torch_integer(p.bias_dtype))[None, :])
        for name, scale in self.scales.items():
            scale.fill_(getattr(inputs, name))
        return inputs


def footprint(problem: GemmProblem) -> int:
    """Bytes of device memory that comparing the problem may take at once, generously."""
    p = problem
    a, b, d = (shape.extent * shape.dtype.itemsize for shape in (a_shape(p), b_shape(p), d_shape(p)))
    # Operands as stored and as a kernel repacks them; two outputs, C, and what looking closer makes of one.
    return 2 * (a + b) + (3 + takes_c(p)) * d


def op_a(problem: GemmProblem, stored: Stored) -> torch.Tensor:
    """op(A), (m, k) or (batch, m, k), as a view of its storage."""
    view = stored.columns.view(torch_float(problem.a_dtype))
    return _in_batch(problem, view.mT if problem.transa is Transpose.N else view)


def op_b(problem: GemmProblem, stored: Stored) -> torch.Tensor:
    """op(B), (k, n) or (batch, k, n), likewise."""
    view = stored.columns.view(torch_float(problem.b_dtype))
    return _in_batch(problem, view.mT if problem.transb is Transpose.N else view)


def result(problem: GemmProblem, stored: Stored) -> torch.Tensor:
    """D, or C, (m, n) or (batch, m, n), likewise."""
    return _in_batch(problem, stored.columns.view(torch_float(problem.d_dtype)).mT)


def _in_batch(problem: GemmProblem, view: torch.Tensor) -> torch.Tensor:
    """A batch that shares one matrix has it with stride 0."""
    if problem.batch_count == 1 or view.dim() == 3:
        return view
    return view.expand(problem.batch_count, *view.shape)


def locate(problem: GemmProblem, expected: Stored, got: Stored, draw: Draw) -> dict[str, Any] | None:
    """The first element of D, by columns of all D, that differs; None where none does.  ``row`` is one of all D."""
    want, have = (s.columns.reshape(-1, problem.m) for s in (expected, got))
    differs = want != have
    count = int(differs.sum())
    if not count:
        return None
    line = int(differs.any(dim=1).byte().argmax())
    row = int(differs[line].byte().argmax())
    mask = (1 << 8 * want.element_size()) - 1
    return {
        "draw": draw.number, "family": draw.family.value, "row": line // problem.n * problem.m + row,
        "column": line % problem.n, "expected_bits": int(want[line, row]) & mask,
        "got_bits": int(have[line, row]) & mask, "count": count, "size": want.numel(),
    }  # fmt: skip
