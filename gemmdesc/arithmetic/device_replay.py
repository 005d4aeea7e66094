"""The replay with its leaves on a CUDA device: the same bits as :mod:`gemmdesc.arithmetic.replay`, sooner."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.device_functions import card_tanh_approx
from gemmdesc.arithmetic.device_leaves import DeviceSide, leaf_sums
from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import replay_leaves
from gemmdesc.bits import Bits
from gemmdesc.descriptor import GeluTanhApprox, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.schedule import make_schedule

if TYPE_CHECKING:
    import torch

_NO_EPILOGUE = EpilogueInputs()


def replay_on_device(
    desc: GEMMDesc,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    rows: npt.NDArray[np.int64],
    cols: npt.NDArray[np.int64],
    epilogue: EpilogueInputs = _NO_EPILOGUE,
) -> Bits:
    """The bytes of the chosen ``rows`` and ``cols`` of D = A B, as :func:`gemmdesc.arithmetic.replay.replay` has them.

    ``a``: (m, k) patterns of ``desc.a_dtype``, ``b``: (n, k) of ``desc.b_dtype``, k contiguous, in torch's integer type
    of the format's size, on one CUDA device.  ``epilogue``: C and bias of the chosen rows and columns alone.  Returns
    (len(rows), len(cols)) patterns of ``desc.output_dtype`` in host memory; it waits for the device, which also gives
    the ``tanh.approx.f32`` of a library's gelu unless ``epilogue`` has one.

    Raises:
        InvalidInputError: shapes, strides, devices or indices do not fit; else as the replay.
        LibraryError: NVRTC or the driver refuses a kernel.
        torch.OutOfMemoryError: the card has no room for it.
    """
    for name, x, dtype, chosen in (("a", a, desc.a_dtype, rows), ("b", b, desc.b_dtype, cols)):
        if dtype is DType.FLOAT64:
            raise InvalidInputError(f"{name}_dtype must be at most 32 bits wide (got float64)")
        if x.ndim != 2 or not x.is_cuda or (x.shape[1] > 1 and x.stride(1) != 1) or x.element_size() != dtype.itemsize:
            raise InvalidInputError(
                f"{name} must have two axes, the second contiguous, and {dtype.itemsize}-byte elements on a device "
                f"(got {tuple(x.shape)}, strides {x.stride()}, {x.dtype}, {x.device})"
            )
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < x.shape[0]:
            raise InvalidInputError(f"the chosen rows of {name} must be below {x.shape[0]} (got {chosen})")
    if a.shape[1] != b.shape[1] or a.device != b.device:
        raise InvalidInputError(
            f"a and b must have one k and one device (got {a.shape[1]} on {a.device}, {b.shape[1]} on {b.device})"
        )
    k = a.shape[1]
    left = DeviceSide(bits=a, dtype=desc.a_dtype, cast=desc.a_cast, chosen=np.asarray(rows, np.int64))
    right = DeviceSide(bits=b, dtype=desc.b_dtype, cast=desc.b_cast, chosen=np.asarray(cols, np.int64))
    sums = leaf_sums(desc.accumulator.step, make_schedule(desc, k), left, right)
    if epilogue.tanh_approx is None and any(isinstance(step, GeluTanhApprox) for step in desc.epilogue):
        epilogue = replace(epilogue, tanh_approx=card_tanh_approx(a.device.index))
    return replay_leaves(desc, k, sums, epilogue=epilogue)
