"""Launch a kernel whose programs come in clusters, which Triton's own launcher does not start."""

from __future__ import annotations

from typing import Any

import torch

from gemmdesc.kernels.driver import cuda_driver
from gemmdesc.kernels.loaded import load_step
from gemmdesc.kernels.prepared import PreparedProgram
from gemmdesc.kernels.program import Argument, Input, Program, Step, Word
from gemmdesc.kernels.recording import DESCRIPTORS, box_of
from gemmdesc.kernels.streams import current_stream
from gemmdesc.kernels.variant import Variant


def launch_clustered(variant: Variant, programs: int, arguments: tuple[Any, ...]) -> None:
    """Start ``variant`` on the current stream, on at most as many tensors as a product has: A, B and the output.

    Raises:
        NotPreparableError: the kernel runs in Triton's interpreter.
        LaunchError: the driver refuses, such as where a card has no room for a cluster.
    """
    addresses: list[int] = []

    def start(tensor: torch.Tensor) -> Word:
        if tensor.data_ptr() not in addresses:
            addresses.append(tensor.data_ptr())
        return Word(input=Input(addresses.index(tensor.data_ptr())))

    def told(argument: Any) -> Argument:
        if isinstance(argument, DESCRIPTORS):
            return box_of(argument, start(argument.base))
        return start(argument) if isinstance(argument, torch.Tensor) else argument

    step = Step(variant=variant, programs=programs, arguments=tuple(map(told, arguments)), stand_ins=arguments)
    device = torch.cuda.current_device()
    program = PreparedProgram(Program(steps=(step,), scratch_bytes=0), [load_step(step)], cuda_driver(), device)
    program(current_stream()(device), tuple(addresses))
