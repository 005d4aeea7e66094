# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""What two programs of a cluster do together: meet, load a box for both, arrive at each other's barriers.

Gluon has no names for these.  They are PTX, which wants addresses: of shared memory, of the same place in both
programs, and of tensor descriptors.  What Gluon's values become is LLVM's pointers, and those are asked for by a cast
that Triton's own lowering resolves; a release that lowers otherwise leaves the cast, which does not compile.
"""

from __future__ import annotations

import tempfile
from typing import Any

import triton.experimental.gluon.language as gl
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon.language._core import builtin

#: What is asked for: a value of type {kind}, lowered to {struct} or a pointer, as a number.  The first operation stands
#: for the value, the last one gives the number.
_SHARED_ADDRESS = """
%value = ub.poison : {kind} loc(unknown)
%lowered = builtin.unrealized_conversion_cast %value : {kind} to !llvm.struct<(ptr<3>{offsets})> loc(unknown)
%pointer = llvm.extractvalue %lowered[0] : !llvm.struct<(ptr<3>{offsets})> loc(unknown)
%address = llvm.ptrtoint %pointer : !llvm.ptr<3> to i32 loc(unknown)
"""
_DESCRIPTOR_ADDRESS = """
%value = ub.poison : {kind} loc(unknown)
%pointer = builtin.unrealized_conversion_cast %value : {kind} to !llvm.ptr loc(unknown)
%address = llvm.ptrtoint %pointer : !llvm.ptr to i64 loc(unknown)
"""


@builtin
def shared_address(view, _semantic=None):
    """Where in shared memory a view begins, in this program's window: int32."""
    builder = _semantic.builder
    text = _SHARED_ADDRESS.format(kind=view.handle.get_type(), offsets=", i32" * len(view.shape))
    found = _spliced(builder, view.handle, text, builder.get_int32_ty(), builder.get_int32(0))
    return gl.tensor(found, gl.int32)


@builtin
def descriptor_address(desc, _semantic=None):
    """The generic address of a tensor descriptor that the host made: int64."""
    builder = _semantic.builder
    text = _DESCRIPTOR_ADDRESS.format(kind=desc.handle.get_type())
    found = _spliced(builder, desc.handle, text, builder.get_int64_ty(), builder.get_int64(0))
    return gl.tensor(found, gl.int64)


def _spliced(builder: Any, handle: Any, text: str, kind: Any, otherwise: Any) -> Any:
    """The result of the last operation of ``text``, on ``handle``, at the builder's place.

    Operations are moved into the branch of an ``if`` that is always taken: a block of its own is where they can go.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(f"module {{{text}}}")
        file.flush()
        module = ir.parse_mlir_module(file.name, handle.get_context())
    operations: list[Any] = []
    module.walk(operations.append)
    first, last = operations[0], operations[-2]
    first.get_result(0).replace_all_uses_with(handle)
    result = last.get_result(0)
    place = builder.get_insertion_point()
    branch = builder.create_if_op([kind], builder.get_int1(True), True)
    last.get_block().merge_block_before(branch.get_then_block())
    builder.set_insertion_point_to_end(branch.get_then_block())
    builder.create_yield_op([result])
    builder.set_insertion_point_to_end(branch.get_else_block())
    builder.create_yield_op([otherwise])
    builder.restore_insertion_point(place)
    return branch.get_result(0)


@gluon.jit
def publish_barriers():
    """Let the other program of the cluster see barriers that this thread has initialised, once both have met."""
    gl.inline_asm_elementwise(
        "fence.mbarrier_init.release.cluster; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def meet():
    """Wait until all threads of both programs have come here, and see the barriers that they have published."""
    gl.inline_asm_elementwise(
        "barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire; mov.b32 $0, 0;", "=r", [],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def arrive_there(barrier, rank, pred):
    """One arrival of this group of four warps, at the barrier in the same place of program ``rank`` of the cluster.

    The group's threads must be done: its first one arrives.  A wider scope than the default one would make each arrival
    wait for the thread's stores; what it tells is that matrix steps have read, which the thread has waited for.
    """
    due = gl.to_tensor(pred).to(gl.int32)
    gl.inline_asm_elementwise(
        """{
        .reg .pred alone, due;
        .reg .b32 thread, there;
        mov.u32 thread, %tid.x;
        and.b32 thread, thread, 127;
        setp.ne.b32 due, $3, 0;
        setp.eq.and.b32 alone, thread, 0, due;
        mapa.shared::cluster.u32 there, $1, $2;
        @alone mbarrier.arrive.shared::cluster.b64 _, [there];
        mov.b32 $0, 0;
        }""",
        "=r,r,r,r", [shared_address(barrier), rank, due], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def load_for_both(desc, line, column, first, barrier, buffer):
    """Copy the descriptor's box at (line, column) to ``buffer`` from its line ``first`` on, in both programs.

    Each program's barrier in the place of ``barrier`` gets the bytes that come into that program.  Called by one warp.
    Lines lie in shared memory in pieces as wide as the hardware swizzles, each piece with all lines of the buffer.
    """
    LENGTH: gl.constexpr = desc.block_type.shape[1]
    PIECE_BYTES: gl.constexpr = desc.layout.swizzle_byte_width
    PIECE: gl.constexpr = PIECE_BYTES * 8 // desc.layout.element_bitwidth
    LINES: gl.constexpr = buffer.shape[0]
    map_address = descriptor_address(desc)
    barrier_address = shared_address(barrier)
    begin = shared_address(buffer) + first * PIECE_BYTES
    for piece in gl.static_range(LENGTH // PIECE):
        gl.inline_asm_elementwise(
            """{
            .reg .pred alone;
            .reg .b32 lane;
            .reg .b16 both;
            mov.u32 lane, %laneid;
            setp.eq.b32 alone, lane, 0;
            mov.b16 both, 3;
            @alone cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [$1], [$2, {$3, $4}], [$5], both;
            mov.b32 $0, 0;
            }""",  # noqa: E501
            "=r,r,l,r,r,r",
            [begin + piece * LINES * PIECE_BYTES, map_address, column + piece * PIECE, line, barrier_address],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
