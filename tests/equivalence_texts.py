"""Hand-written PTX for the tests of the equivalence checker."""

from __future__ import annotations

_HEAD = """.version 8.7
.target sm_90a
.address_size 64
{shared}
.visible .entry kernel(
{parameters}
)
.reqntid {threads}
{{
	.reg .pred %p<40>;
	.reg .b16 %rs<40>;
	.reg .b32 %r<100>;
	.reg .b64 %rd<60>;
	ld.param.b64 %rd1, [kernel_param_0];
	ld.param.b64 %rd2, [kernel_param_1];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd3, %r1, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
{body}
	ret;
}}
"""

#: What ``kernel`` has set up: %r1 the thread, %rd4 and %rd5 its float32 element behind parameters 0 and 1.
POINTERS = 2


def kernel(body: str, *, threads: int = 32, shared: int = 0, integers: int = 0) -> str:
    """A text whose parameters are two pointers and ``integers`` 32-bit integers; ``shared`` bytes are called smem."""
    parameters = [f"\t.param .u64 .ptr .global .align 16 kernel_param_{i}" for i in range(POINTERS)]
    parameters += [f"\t.param .u32 kernel_param_{POINTERS + i}" for i in range(integers)]
    declared = f".shared .align 16 .b8 smem[{shared}];" if shared else ""
    lines = "\n".join(f"\t{line.strip()}" for line in body.strip().splitlines())
    return _HEAD.format(parameters=",\n".join(parameters), shared=declared, threads=threads, body=lines)


def butterfly(*offsets: int, op: str = "add.f32") -> str:
    """Load an element, reduce it over lanes at these offsets, and let lane 0 store it."""
    lines = ["ld.global.b32 %r2, [%rd4];"]
    at = 2
    for offset in offsets:
        lines += [f"shfl.sync.bfly.b32 %r{at + 1}, %r{at}, {offset}, 31, -1;", f"{op} %r{at + 2}, %r{at}, %r{at + 1};"]
        at += 2
    lines += ["setp.eq.s32 %p1, %r1, 0;", f"@%p1 st.global.b32 [%rd5], %r{at};"]
    return "\n".join(lines)


#: Lanes leave their elements in shared memory, meet, and each takes its neighbour's.
EXCHANGE = """
ld.global.b32 %r2, [%rd4];
mov.u32 %r3, smem;
shl.b32 %r4, %r1, 2;
add.s32 %r5, %r3, %r4;
st.shared.b32 [%r5], %r2;
bar.sync 0;
xor.b32 %r6, %r4, 4;
add.s32 %r7, %r3, %r6;
ld.shared.b32 %r8, [%r7];
st.global.b32 [%rd5], %r8;
"""
