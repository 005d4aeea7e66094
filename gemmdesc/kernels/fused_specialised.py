# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""The specialised chain that finishes each tile by a program: one group does so while the other multiplies."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
import triton.language as tl
from triton.experimental import gluon

from gemmdesc.kernels.fused_steps import PROGRAM_ARGUMENTS
from gemmdesc.kernels.specialised_chain import run_specialised
from gemmdesc.kernels.tile import ROWS, RUN_TIME

_RUN_TIME = (*RUN_TIME, *PROGRAM_ARGUMENTS)


@gluon.jit(do_not_specialize=_RUN_TIME)
def fused_specialised_kernel(
    a_desc, b_desc, b_beside_desc, out_desc, out_beside_desc,
    M: tl.int32, N: tl.int32, k_tiles: tl.int32,
    x0: tl.int64, x1: tl.int64, x2: tl.int64, x3: tl.int64, x4: tl.int64, x5: tl.int64,
    f0: tl.float32, f1: tl.float32, f2: tl.float32, f3: tl.float32, f4: tl.float32, f5: tl.float32,
    m0: tl.int64, m1: tl.int64, m2: tl.int64, m3: tl.int64, m4: tl.int64, m5: tl.int64,
    n0: tl.int64, n1: tl.int64, n2: tl.int64, n3: tl.int64, n4: tl.int64, n5: tl.int64,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, DEPENDENT: gl.constexpr, ROUNDS_FIRST: gl.constexpr,
    FINISH_N: gl.constexpr, AHEAD: gl.constexpr,
    PROGRAM: gl.constexpr, COUNT: gl.constexpr, FORMATS: gl.constexpr, RESULT: gl.constexpr, TURNS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, STORE_N: gl.constexpr, STORE_BUFFERS: gl.constexpr,
    ALONE: gl.constexpr, CLUSTER_M: gl.constexpr, CLUSTER_N: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """As ``chain_specialised_kernel`` with a program's arguments as fused kernels have them; stores by descriptor.

    FINISH_N: columns that are finished at once, a power of two, or as many as are stored at once where those are fewer;
    AHEAD: the operands of the next ones are asked for before.
    """
    # As an argument at once: a variable would have the numbers of the program be values of the machine.
    run_specialised(
        a_desc, b_desc, b_beside_desc, out_desc, out_beside_desc, None, M, N, k_tiles, None, None,
        (
            (f0, f1, f2, f3, f4, f5), (x0, x1, x2, x3, x4, x5), (m0, m1, m2, m3, m4, m5), (n0, n1, n2, n3, n4, n5),
            PROGRAM, COUNT, FORMATS, RESULT, ROUNDS_FIRST, FINISH_N, AHEAD,
        ),
        A_ROWS, B_ROWS, True, DEPENDENT, ROWS, False, TURNS, BLOCK_M, BLOCK_N, BESIDE_N, BLOCK_K, GROUP_M, STAGES,
        STORE_N, STORE_BUFFERS, ALONE, CLUSTER_M, CLUSTER_N, WHOLE,
    )  # fmt: skip
