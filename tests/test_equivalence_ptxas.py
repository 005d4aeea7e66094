"""What ptxas makes of float instructions beyond PTX: each text would be merged wrongly without its rule.

Where Triton brings ptxas and a disassembler, the texts are assembled, to see that ptxas still does what a rule is for.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gemmdesc.equivalence import Different, Equal, Kernel, Launch, Unknown, equivalent
from gemmdesc.equivalence.walk import EXTREMES, PAYLOADS
from tests.equivalence_texts import kernel


def loads(tail: str, width: int = 32) -> str:
    """Four values per lane in %r10 and on, then ``tail``, then %r20 stored."""
    wider = "add.s64 %rd4, %rd4, %rd3;\nadd.s64 %rd5, %rd5, %rd3;\n" if width == 64 else ""
    name = "%r" if width == 32 else "%rd"
    first = "\n".join(f"ld.global.b{width} {name}{10 + i}, [%rd4+{4 * width * i}];" for i in range(4))
    return kernel(f"{wider}{first}\n{tail}\nst.global.b{width} [%rd5], {name}20;", shared=64)


def ask(one: str, other: str, **launch: object) -> object:
    return equivalent(*(Kernel(name=t[:1], ptx=t, launch=Launch(**launch)) for t in (one, other)))  # type: ignore[arg-type]


def itself(body: str, **launch: object) -> object:
    """The answer for ``body`` and itself under other register names."""
    text = loads(body)
    return ask(text, text.replace("%r30", "%r90").replace("%p1", "%p9"), **launch)


def refused(body: str, words: str = "", **launch: object) -> None:
    answer = itself(body, **launch)
    assert isinstance(answer, Unknown), answer
    assert answer.code == "contraction", answer
    assert words in answer.reason, answer


def sass(body: str, folder: Path) -> str:
    """What ptxas makes of ``body``."""
    triton = pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    from gemmdesc.equivalence.card import assemble

    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    if not tool.exists():
        pytest.skip("Triton brings no disassembler")
    path = folder / "text.cubin"
    path.write_bytes(assemble(loads(body), "sm_90a"))
    return subprocess.run([str(tool), "-c", str(path)], capture_output=True, text=True, check=True).stdout


MOVED = {
    "or": "or.b32 %r30, %r9, 0;",
    "integer sum": "add.s32 %r30, %r9, 0;",
    "shift": "shl.b32 %r30, %r9, 0;",
    "maximum": "max.f32 %r30, %r9, %r9;",
    "conversion": "cvt.f32.f32 %r30, %r9;",
    "wide and back": "cvt.u64.u32 %rd9, %r9;\ncvt.u32.u64 %r30, %rd9;",
    "shuffle": "shfl.sync.bfly.b32 %r30, %r9, 16, 31, -1;",
    "bytes": "prmt.b32 %r30, %r9, %r9, 12816;",
}


@pytest.mark.parametrize("move", MOVED.values(), ids=MOVED.keys())
def test_a_fusible_product_is_followed_through_what_ptxas_sees_through(move: str) -> None:
    body = f"mul.f32 %r9, %r10, %r11;\n{move}\nadd.f32 %r20, %r30, %r12;"
    refused(body, "fuse")
    assert isinstance(itself(body, contraction=False), Equal)
    assert isinstance(itself(body.replace("mul.f32", "mul.rn.f32")), Equal)


SCALED = {
    "halved": "mul.f32 %r20, %r30, 0f3F000000;",
    "halved, with a written rounding": "mul.rn.f32 %r20, %r30, 0f3F000000;",
    "times eight, as a register": "mov.b32 %r31, 0f41000000;\nmul.f32 %r20, %r31, %r30;",
    "divided by two": "div.full.f32 %r20, %r30, 0f40000000;",
}


@pytest.mark.parametrize("scale", SCALED.values(), ids=SCALED.keys())
@pytest.mark.parametrize("product", ["mul.f32 %r30, %r10, %r11;", "div.full.f32 %r30, %r10, %r11;"])
def test_a_product_and_its_scaling_are_one_rounding(product: str, scale: str) -> None:
    """Two roundings, or an overflow between them, against one: subnormal and infinite results differ."""
    body = f"{product}\n{scale}"
    refused(body)
    assert isinstance(itself(body, contraction=False), Equal)


@pytest.mark.parametrize("factor", ["0f40400000", "0f41800000", "%r12"])
def test_other_factors_do_not_scale(factor: str) -> None:
    """Times 3 or a datum; 16 is more than ptxas scales by, but is refused with the rest."""
    answer = itself(f"mul.f32 %r30, %r10, %r11;\nmul.f32 %r20, %r30, {factor};")
    assert isinstance(answer, Unknown if factor == "0f41800000" else Equal)


@pytest.mark.parametrize("one", ["mul.f32 %r30, %r10, 0f3F800000;", "div.full.f32 %r30, %r10, 0f3F800000;"])
def test_a_product_with_one_may_be_dropped_and_keep_a_payload(one: str) -> None:
    refused(f"{one}\nmov.b32 %r20, %r30;")
    marked = one.replace("mul.f32", "mul.rn.f32").replace("div.full.f32 %r30, %r10", "mul.rn.f32 %r30, %r10")
    assert isinstance(itself(f"{marked}\nmov.b32 %r20, %r30;"), Equal)
    # An arithmetic result has no payload to keep.
    assert isinstance(itself(f"add.rn.f32 %r10, %r10, %r11;\n{one}\nmov.b32 %r20, %r30;"), Equal)


def test_a_clamp_is_a_saturation_to_ptxas_whatever_its_flags() -> None:
    """PTX makes 1 of a NaN here, the saturation 0."""
    clamp = "add.rn.f32 %r30, %r10, %r11;\nmin.f32 %r30, %r30, 0f3F800000;\nmax.f32 %r20, %r30, 0f00000000;"
    for contraction in (True, False):
        refused(clamp, "saturation", contraction=contraction)
    assert isinstance(itself(clamp.replace("0f3F800000", "0f40000000")), Equal)
    assert isinstance(itself(clamp.replace("min.f32", "min.NaN.f32").replace("max.f32", "max.NaN.f32")), Equal)
    other = "max.f32 %r30, %r10, 0f00000000;\nmin.f32 %r20, %r30, 0f3F800000;"
    assert isinstance(itself(other), Equal)
    refused(other.replace("0f00000000", "0f80000000"), "saturation")


THREE = "0f40400000"


def test_a_quotient_by_a_literal_is_another_function_than_one_by_a_datum() -> None:
    """ptxas multiplies by the rounded reciprocal of a literal, and runs a reciprocal of anything else."""
    literal = loads(f"div.full.f32 %r20, %r10, {THREE};")
    register = loads(f"mov.b32 %r30, {THREE};\ndiv.full.f32 %r20, %r10, %r30;")
    assert isinstance(ask(literal, register), Equal)
    assert isinstance(ask(literal, loads("div.full.f32 %r20, %r10, %r11;")), Different)


@pytest.mark.parametrize(
    "constant",
    [
        f"mov.b32 %r30, {THREE};\nmov.b32 %r30, {THREE};",
        f"mov.b32 %r8, {THREE};\nshfl.sync.bfly.b32 %r30, %r8, 16, 31, -1;",
        f"mov.u32 %r7, smem;\nst.shared.b32 [%r7], {THREE};\nbar.sync 0;\nld.shared.b32 %r30, [%r7];",
        "mov.b32 %r8, 0f3F800000;\nmov.b32 %r9, 0f40000000;\nadd.rn.f32 %r30, %r8, %r9;",
        "mov.b32 %r8, 0f3F800000;\nmov.b32 %r9, 0f40000000;\nfma.rn.f32 %r30, %r8, %r8, %r9;",
        f"setp.lt.s32 %p1, %r1, 40;\nselp.f32 %r30, {THREE}, 0f40A00000, %p1;",
    ],
    ids=["written twice", "shuffled", "shared", "a sum", "a fused sum", "selected"],
)
def test_a_constant_that_ptxas_may_or_may_not_know_reaches_no_approximate_function(constant: str) -> None:
    refused(f"{constant}\ndiv.full.f32 %r20, %r10, %r30;", "constant")
    refused(f"{constant}\nex2.approx.ftz.f32 %r20, %r30;", "constant")
    exact = itself(f"{constant}\ndiv.rn.f32 %r20, %r10, %r30;")
    assert isinstance(exact, Equal)


def test_a_lane_without_data_beside_lanes_with_data_is_data_to_ptxas() -> None:
    """A masked load leaves its literal in the other lanes; there are none without data in a branch of their own."""
    body = "mov.b32 %r30, 0f40400000;\nsetp.lt.s32 %p1, %r1, 7;\n{}\nex2.approx.ftz.f32 %r20, %r30;"
    assert isinstance(itself(body.format("@%p1 ld.global.b32 %r30, [%rd4];")), Equal)
    refused("mov.b32 %r20, %r10;\n" + body.format("@%p1 ld.global.b32 %r30, [%rd4];").replace("\nex2", "\n@!%p1 ex2"))


def test_lanes_without_data_are_not_what_ptxas_knows() -> None:
    """In every second lane the factor is 1, in the others it is loaded."""
    masked = "mov.b32 %r31, 0f3F800000;\nand.b32 %r8, %r1, 1;\nsetp.eq.s32 %p1, %r8, 0;\n{}\n"
    body = masked + "mul.f32 %r30, %r10, %r31;\nmov.b32 %r20, %r30;"
    assert isinstance(itself(body.format("@%p1 ld.global.b32 %r31, [%rd4];")), Equal)
    refused(body.format(""))


def test_an_integer_argument_is_no_literal() -> None:
    """The walk knows the argument's pattern, ptxas does not."""
    text = kernel(
        "ld.global.b32 %r10, [%rd4];\nld.param.b32 %r30, [kernel_param_2];\n"
        "div.full.f32 %r20, %r10, %r30;\nst.global.b32 [%rd5], %r20;",
        integers=1,
    )
    answer = ask(text, text.replace("%r30", "%r31"), arguments={2: 0x40400000})
    assert isinstance(answer, Unknown)


def test_a_quotient_by_a_power_of_two_is_exact_however_ptxas_does_it() -> None:
    shuffled = "mov.b32 %r8, 0f44800000;\nshfl.sync.bfly.b32 %r30, %r8, 16, 31, -1;\n"
    answer = itself(f"{shuffled}div.full.f32 %r20, %r10, %r30;")
    assert isinstance(answer, Equal)
    assert any("power of two" in line for line in answer.assuming)


@pytest.mark.parametrize(
    ("body", "loose"),
    [
        ("neg.f32 %r20, %r10;", True),
        ("abs.f32 %r30, %r10;\nsetp.gt.f32 %p1, %r11, %r12;\nselp.f32 %r20, %r30, %r11, %p1;", True),
        ("max.f32 %r20, %r10, %r10;", True),
        ("setp.gtu.f32 %p1, %r10, 0f00000000;\nselp.f32 %r20, %r10, 0f00000000, %p1;", True),
        ("mov.b32 {%rs1, %rs2}, %r10;\ncvt.f32.bf16 %r20, %rs1;", True),
        ("neg.f32 %r30, %r10;\nadd.rn.f32 %r20, %r30, %r11;", False),
        ("max.f32 %r20, %r10, %r11;", False),
        ("mov.b32 {%rs1, %rs2}, %r10;\ncvt.f32.bf16 %r30, %rs1;\nmul.rn.f32 %r20, %r30, %r11;", False),
    ],
)
def test_a_payload_that_only_ptxas_decides_is_an_assumption(body: str, loose: bool) -> None:
    answer = itself(body)
    assert isinstance(answer, Equal)
    assert any("payload" in line for line in answer.assuming) is loose


ONE, MINUS_INFINITY = "0f3F800000", "0fFF800000"


def inductor(a: str, b: str, made: str = "%r20", order: str = "gt") -> str:
    """Inductor's ``maximum``: a where a > b or a is a NaN, b otherwise."""
    return (
        f"setp.{order}.f32 %p1, {a}, {b};\nsetp.nan.f32 %p2, {a}, {a};\n"
        f"selp.f32 %r60, {a}, {b}, %p1;\nselp.f32 {made}, {a}, %r60, %p2;"
    )


#: Selections that ptxas makes FMNMX.NAN of, which gives the canonical NaN.
MAXIMA = {
    "unordered": f"setp.gtu.f32 %p1, %r10, {ONE};\nselp.f32 %r20, %r10, {ONE}, %p1;",
    "the other one": f"setp.le.f32 %p1, %r10, {ONE};\nselp.b32 %r20, {ONE}, %r10, %p1;",
    "inductor's maximum": inductor(MINUS_INFINITY, "%r10"),
    "inductor's minimum": inductor("0f7F800000", "%r10", order="lt"),
    "the first of several": f"{inductor(MINUS_INFINITY, '%r10', '%r40')}\n{inductor('%r40', '%r11')}",
}
#: Selections that it leaves alone.
SELECTIONS = {
    "data": inductor("%r10", "%r11"),
    "a size": f"abs.f32 %r40, %r10;\n{inductor('%r40', '%r11')}",
    "another constant": f"setp.gtu.f32 %p1, %r10, 0f40000000;\nselp.f32 %r20, %r10, {ONE}, %p1;",
    "integers": f"setp.gt.s32 %p1, %r10, 0x3F800000;\nselp.b32 %r20, %r10, {ONE}, %p1;",
    "halves": "mov.b32 {%rs1, %rs2}, %r10;\nmov.b16 %rs5, 0x3C00;\nsetp.gtu.f16 %p1, %rs1, %rs5;\n"
    "selp.b16 %rs6, %rs1, %rs5, %p1;\nmov.b32 %r20, {%rs6, %rs2};",
}


@pytest.mark.parametrize("body", [*MAXIMA.values(), *SELECTIONS.values()], ids=[*MAXIMA, *SELECTIONS])
def test_a_selection_that_ptxas_may_make_a_maximum_is_an_assumption(body: str, tmp_path: Path) -> None:
    maximum = body in MAXIMA.values()
    answer = itself(body)
    assert isinstance(answer, Equal)
    assert (EXTREMES in answer.assuming) is maximum
    assert PAYLOADS in answer.assuming
    summed = itself(body.replace("%r20", "%r50") + "\nadd.rn.f32 %r20, %r50, %r12;")
    assert isinstance(summed, Equal)
    assert not {EXTREMES, PAYLOADS}.intersection(summed.assuming)
    assert ("FMNMX.NAN" in sass(body, tmp_path)) is maximum


def test_one_expression_is_two_functions_of_a_nan_to_ptxas(tmp_path: Path) -> None:
    """What ptxas knows of a constant decides: Equal may not be said without what it rests on."""
    known = inductor(ONE, "%r10")
    hidden = f"mov.b32 %r8, {ONE};\nshfl.sync.bfly.b32 %r9, %r8, 16, 31, -1;\n{inductor('%r9', '%r10')}"
    answer = ask(loads(known), loads(hidden))
    assert isinstance(answer, Equal)
    assert EXTREMES in answer.assuming
    assert ["FMNMX.NAN" in sass(body, tmp_path) for body in (known, hidden)] == [True, False]
    # The instruction gives the canonical NaN, whoever assembles it.
    assert isinstance(ask(loads(known), loads(f"max.NaN.f32 %r20, %r10, {ONE};")), Different)


@pytest.mark.parametrize(
    "made",
    ["add.s32 %r20, %r30, 5;", "setp.lt.s32 %p3, %r30, %r11;\nselp.b32 %r20, 1, 0, %p3;", "mul.lo.s32 %r20, %r30, 3;"],
)
def test_an_integer_instruction_sees_a_payload(made: str) -> None:
    body = f"setp.gtu.f32 %p1, %r10, {ONE};\nselp.f32 %r30, %r10, {ONE}, %p1;\n{made}"
    answer = itself(body)
    assert isinstance(answer, Equal)
    assert {EXTREMES, PAYLOADS} <= set(answer.assuming)


def test_a_constant_nan_has_a_payload_too() -> None:
    """ptxas may know it or not."""
    answer = itself(
        f"mov.b32 %r8, 0f7FC12345;\nshfl.sync.bfly.b32 %r9, %r8, 16, 31, -1;\n"
        f"setp.gtu.f32 %p1, %r9, {ONE};\nselp.f32 %r20, %r9, {ONE}, %p1;"
    )
    assert isinstance(answer, Equal)
    assert EXTREMES in answer.assuming


def clamp(first: str, second: str) -> str:
    return (
        f"setp.{first}.f32 %p1, %r10, {ONE};\nselp.f32 %r30, %r10, {ONE}, %p1;\n"
        f"setp.{second}.f32 %p3, %r30, 0f00000000;\nselp.f32 %r20, %r30, 0f00000000, %p3;"
    )


def test_a_clamp_of_selections_is_a_saturation_too(tmp_path: Path) -> None:
    """PTX makes 1 of a NaN, the saturation 0, and ptxas has to know both bounds for it."""
    maximum, minimum = "max.f32 %r20, %r30, 0f00000000;", f"min.f32 %r30, %r10, {ONE};"
    dropping = clamp("lt", "gt")
    mixed = "\n".join([*dropping.splitlines()[:2], maximum]), "\n".join([minimum, *dropping.splitlines()[2:]])
    swapped = dropping.replace(f"%r10, {ONE}, %p1", f"{ONE}, %r10, %p1").replace("setp.lt", "setp.geu")
    spelled = dropping.replace(
        "selp.f32 %r30", "setp.nan.f32 %p4, %r9, %r9;\nor.pred %p1, %p1, %p4;\nselp.f32 %r30"
    )
    for body in (dropping, *mixed, swapped):
        refused(body, "saturation")
        assert "FADD.SAT" in sass(body, tmp_path)
    # What it does with a predicate of two is not known, nor what it may do.
    refused("mov.b32 %r9, %r11;\n" + spelled, "saturation")
    for body in (clamp("ltu", "gtu"), clamp("ltu", "gt"), clamp("lt", "gtu"), dropping.replace(ONE, "0f40000000")):
        assert isinstance(itself(body), Equal)
        assert "SAT" not in sass(body, tmp_path)


def test_a_rectifier_of_selections_within_a_conversion_is_an_assumption(tmp_path: Path) -> None:
    body = "setp.gtu.f32 %p1, %r10, {0};\nselp.f32 %r30, %r10, {0}, %p1;\ncvt.rn.bf16x2.f32 %r20, %r30, %r30;"
    for constant, assumed in (("0f00000000", True), (ONE, False)):
        answer = itself(body.format(constant))
        assert isinstance(answer, Equal)
        assert any("conversion" in line for line in answer.assuming) is assumed
        assert ("F2FP.RELU" in sass(body.format(constant), tmp_path)) is assumed


@pytest.mark.parametrize("kind", ["e4m3", "f16"])
def test_an_emulated_matrix_step_ends_in_a_sum(kind: str) -> None:
    shape = {"e4m3": "m16n8k32", "f16": "m16n8k16"}[kind]
    body = (
        "mul.f32 %r30, %r10, %r11;\n"
        f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 {{%r20, %r21, %r22, %r23}}, "
        "{%r10, %r11, %r12, %r13}, {%r10, %r11}, {%r30, %r30, %r30, %r30};"
    )
    if kind == "f16":
        assert isinstance(itself(body), Equal)
    else:
        refused(body, "fuse")
        assert isinstance(itself(body.replace("mul.f32", "mul.rn.f32")), Equal)


def test_a_maximum_within_a_conversion_is_an_assumption() -> None:
    body = "max{}.f32 %r30, %r10, 0f00000000;\ncvt.rn.bf16x2.f32 %r20, %r30, %r30;"
    for modifier, assumed in ((".NaN", True), ("", False)):
        answer = itself(body.format(modifier))
        assert isinstance(answer, Equal)
        assert any("conversion" in line for line in answer.assuming) is assumed


def test_float64_has_no_algebra() -> None:
    """Of two NaN, a double sum may keep the first one's payload."""
    one = loads("add.rn.f64 %rd20, %rd10, %rd11;", 64)
    answer = ask(one, loads("add.rn.f64 %rd20, %rd11, %rd10;", 64))
    assert isinstance(answer, Different)


@pytest.mark.parametrize(
    ("body", "made"),
    [
        *((f"mul.f32 %r9, %r10, %r11;\n{move}\nadd.f32 %r20, %r30, %r12;", "FFMA") for name, move in MOVED.items()
          if name not in ("bytes", "shuffle")),
        ("mul.f32 %r30, %r10, %r11;\nmul.rn.f32 %r20, %r30, 0f3F000000;", "FMUL.D2"),
        ("mul.f32 %r30, %r10, %r11;\ndiv.full.f32 %r20, %r30, 0f40000000;", "FMUL.D2"),
        ("add.rn.f32 %r30, %r10, %r11;\nmin.f32 %r30, %r30, 0f3F800000;\nmax.f32 %r20, %r30, 0f00000000;", "FADD.SAT"),
        ("setp.gtu.f32 %p1, %r10, 0f00000000;\nselp.f32 %r20, %r10, 0f00000000, %p1;", "FMNMX.NAN"),
        ("max.NaN.f32 %r30, %r10, 0f00000000;\ncvt.rn.bf16x2.f32 %r20, %r30, %r30;", "F2FP.RELU"),
        (f"div.full.f32 %r20, %r10, {THREE};", "0.33333334"),
        (
            f"mov.b32 %r8, {THREE};\nshfl.sync.bfly.b32 %r30, %r8, 16, 31, -1;\ndiv.full.f32 %r20, %r10, %r30;",
            "0.33333334",
        ),
    ],
)  # fmt: skip
def test_ptxas_does_what_the_rules_are_for(body: str, made: str, tmp_path: Path) -> None:
    assert made in sass(body, tmp_path)
