"""What a product reads from the device beside its matrices: the scales of 8-bit types and a bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdesc.library.bindings import MatmulDescAttribute
from gemmdesc.library.interface import Inputs
from gemmdesc.problem import BIASED, MAX_ALIGNMENT_BYTES, GemmProblem, is_float8

if TYPE_CHECKING:
    import torch

#: Bytes between two scales, so that each is aligned as an allocation of its own.
_APART = 256
#: Bytes of the first bias buffer; a longer bias takes a longer one.
_BIAS_BYTES = 1 << 16


class SideBuffers:
    """Device memory for three scales and one bias, kept from product to product; contents are set before each.

    Serves one stream at a time, like the handle that it belongs to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._scales: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None

    def pointers(self, problem: GemmProblem) -> dict[MatmulDescAttribute, int]:
        """The addresses that ``problem``'s descriptor must hold."""
        found: dict[MatmulDescAttribute, int] = {}
        if is_float8(problem.a_dtype):
            base = self._scale_buffer().data_ptr()
            found[MatmulDescAttribute.A_SCALE_POINTER] = base
            found[MatmulDescAttribute.B_SCALE_POINTER] = base + _APART
            if is_float8(problem.d_dtype):
                found[MatmulDescAttribute.D_SCALE_POINTER] = base + 2 * _APART
        if problem.epilogue in BIASED:
            found[MatmulDescAttribute.BIAS_POINTER] = self._bias_buffer(problem).data_ptr()
        return found

    def fill(self, problem: GemmProblem, inputs: Inputs) -> None:
        """Enqueue the inputs' scales and bias on torch's current stream."""
        import torch

        if is_float8(problem.a_dtype):
            # A copy from the host would wait for all that is enqueued.
            held = self._scale_buffer().view(torch.float32)
            for place, value in enumerate((inputs.a_scale, inputs.b_scale, inputs.d_scale)):
                held[place * (_APART // 4)].fill_(value)
        if inputs.bias is not None:
            bits = inputs.bias.torch_bits(1, problem.m, self._device).reshape(-1).contiguous().view(torch.uint8)
            self._bias_buffer(problem)[: bits.numel()].copy_(bits)

    def _scale_buffer(self) -> torch.Tensor:
        import torch

        if self._scales is None:
            self._scales = torch.zeros(3 * _APART, dtype=torch.uint8, device=self._device)
            self._scales.view(torch.float32)[:: _APART // 4].fill_(1.0)
        return self._scales

    def _bias_buffer(self, problem: GemmProblem) -> torch.Tensor:
        """Where ``problem``'s bias lies, as aligned as it says."""
        import torch

        size = problem.m * problem.bias_dtype.itemsize + MAX_ALIGNMENT_BYTES
        if self._bias is None or self._bias.numel() < size:
            self._bias = torch.zeros(max(size, _BIAS_BYTES), dtype=torch.uint8, device=self._device)
        return self._bias[problem.bias_alignment_bytes % MAX_ALIGNMENT_BYTES :]
