"""Epilogues as values, their steps as eager torch types them, bad operands, declines; bytes on a CPU by the replay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gemmdesc
from gemmdesc import Epilogue
from gemmdesc.arithmetic.epilogue import EpilogueInputs, NamedOperand
from gemmdesc.arithmetic.pointwise import apply_binary
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import (
    Accumulator,
    Add,
    AtLeast,
    AtMost,
    CastTo,
    Contiguous,
    Cut,
    Divide,
    GEMMDesc,
    Multiply,
    Relu,
    ResidueLast,
    Sigmoid,
    Silu,
    Start,
    Tanh,
)
from gemmdesc.dropin.following import OperandMeta, lowered
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DeclinedError, DescriptorError, InvalidInputError
from gemmdesc.kernels.card import CardArithmetic, MatrixStep
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.competing import key_of, pick_of
from gemmdesc.kernels.config import Feature
from gemmdesc.kernels.fused import FUSED_CONFIGS, PAIRED, FusedChoice
from gemmdesc.kernels.instructions import assembled
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.tuned import tuned_table
from gemmdesc.kernels.variants import Variant, enumerate_variants
from gemmdesc.normal_form import same_bits
from gemmdesc.plan import Following, needed_variants
from gemmdesc.plan.words import in_words
from gemmdesc.routes import Release
from gemmdesc.text import from_json, parse_descriptor, to_json, to_text
from tests.arithmetic_reference import HOPPER, draw_bits
from tests.dropin_samples import source
from tests.test_dropin import halves, same

torch = pytest.importorskip("torch")
E = Epilogue()
FP16, BF16, FP32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
E4M3, E5M2 = DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2
READ = Release(major=2, minor=11)


def plain(dtype: DType = FP16, k: int = 64, output_dtype: DType | None = None, **changes: Any) -> GEMMDesc:
    leaf = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)
    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=output_dtype or dtype, summed_k=k, accumulator=leaf,
        **({"cuts": ()} | changes),
    )  # fmt: skip


def steps(epilogue: Epilogue, dtype: DType = FP16, release: Release = READ, toolkit: str = "13.0", **metas: Any) -> Any:
    return lowered(epilogue, dtype, metas, release=release, toolkit=toolkit)


# --- values ---------------------------------------------------------------------------------------------------------


def test_an_epilogue_is_a_value_that_grows() -> None:
    one = E.add("bias").gelu("tanh").multiply("up")
    assert one == Epilogue().add("bias").gelu("tanh").multiply("up")
    assert hash(one) == hash(E.add("bias").gelu("tanh").multiply("up"))
    assert one != E.add("bias").gelu().multiply("up")
    assert one.names == ("bias", "up")
    assert E.softcap(30.0) == E.divide(30.0).tanh().multiply(30.0)
    assert Epilogue() == E


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: E.add("not a name"), "operand must be an identifier"),
        (lambda: E.add("lambda"), "operand must be an identifier"),
        (lambda: E.add(True), "operand must be a name or a number"),
        (lambda: E.multiply(None), "operand must be a name or a number"),
        (lambda: E.gelu("fast"), "approximate must be 'none' or 'tanh'"),
        (lambda: E.clamp(), "min or max must be a number"),
        (lambda: E.clamp(min=float("nan")), "min or max must be a number that is no NaN"),
        (lambda: E.to("float64"), "dtype must be one of"),
        (lambda: E.to("float8_e4m3fn").relu(), "an 8-bit float must come last"),
        (lambda: E.add("x")(torch.zeros(2)), "operands must be the epilogue's, x"),
        (lambda: E.before_rounding().relu()(torch.zeros(2)), "epilogue must follow the rounding"),
    ],
)
def test_bad_steps_are_refused_when_they_are_made(make: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{said}.*\(got .*\)$"):
        make()


# --- steps as eager torch types them --------------------------------------------------------------------------------


def test_every_step_rounds_to_the_type_that_it_has_in_torch() -> None:
    found = steps(E.add("bias").relu().add("wide").tanh(), bias=OperandMeta(dtype=FP16), wide=OperandMeta(dtype=FP32))
    assert found.following == Following(
        steps=(Add(operand="bias"), CastTo(dtype=FP16), Relu(), CastTo(dtype=FP16), Add(operand="wide"), Tanh()),
        output_dtype=FP32,
    )
    mixed = steps(E.add("other"), other=OperandMeta(dtype=BF16)).following
    assert mixed == Following(steps=(Add(operand="other"),), output_dtype=FP32)
    assert steps(E.silu()).following == Following(steps=(Silu(),), output_dtype=FP16)


def test_a_tensor_without_axes_is_rounded_first_and_a_number_is_not() -> None:
    scaled = steps(E.multiply("s"), s=OperandMeta(dtype=FP32, scalar=True))
    assert scaled.read == {"s_as_float16": ("s", FP16)}
    assert scaled.following.output_dtype is FP16
    assert steps(E.multiply("s"), s=OperandMeta(dtype=FP32, scalar=True, number=0.1)).numbers == {
        "number_0": float(np.float32(0.1))
    }
    divided = steps(E.divide(3.0))
    assert divided.following.steps == (Multiply(operand="number_0"),)
    assert divided.numbers["number_0"] == float(np.float32(1) / np.float32(3))
    assert steps(E.divide("s"), s=OperandMeta(dtype=FP16)).following.steps == (Divide(operand="s"),)


def test_casts_to_8_bits_follow_the_release() -> None:
    cast = E.to("float8_e4m3fn")
    assert steps(cast).following.steps == (CastTo(dtype=E4M3, overflows=True),)
    assert steps(cast, release=Release(major=2, minor=13)).following.steps == (CastTo(dtype=E4M3),)
    assert steps(E.to("float8_e5m2")).following.steps == (CastTo(dtype=E5M2, overflows=True),)


def test_steps_before_the_rounding_are_rounded_once() -> None:
    found = steps(Epilogue.before_rounding().add("bias").relu(keeps_nan=False), bias=OperandMeta(dtype=FP16))
    assert found.following == Following(
        steps=(Add(operand="bias"), Relu(keeps_nan=False)), output_dtype=FP16, rounded=False
    )


def test_what_was_not_read_declines() -> None:
    for other in (Release(major=2, minor=10), Release(major=2, minor=14)):
        declined = steps(E.relu(), release=other)
        assert isinstance(declined, Declined)
        assert str(other) in declined.reason
        assert not isinstance(steps(E.add("b").multiply(2.0), release=other, b=OperandMeta(dtype=FP16)), Declined)
    declined = steps(E.silu(), toolkit="12.8")
    assert isinstance(declined, Declined)
    assert "12.8" in declined.reason
    assert not isinstance(steps(E.relu(), toolkit="12.8"), Declined)
    assert isinstance(steps(E.relu(), dtype=DType.FLOAT64), Declined)


def test_sigmoid_is_a_function_of_16_bit_values() -> None:
    assert steps(E.sigmoid().multiply("g"), g=OperandMeta(dtype=FP16)).following == Following(
        steps=(Sigmoid(), CastTo(dtype=FP16), Multiply(operand="g")), output_dtype=FP16
    )
    for wide in (E.to("float32").sigmoid(), Epilogue.before_rounding().sigmoid()):
        declined = steps(wide)
        assert isinstance(declined, Declined)
        assert "sigmoid of float32" in declined.reason
    assert isinstance(steps(E.sigmoid(), toolkit="12.8"), Declined)
    desc = plain(epilogue=(CastTo(dtype=FP16), Sigmoid()))
    assert parse_descriptor(to_text(desc)) == desc == from_json(to_json(desc))
    assert "sigmoid as eager torch" in "\n".join(in_words(desc, 64))


# --- descriptors ----------------------------------------------------------------------------------------------------


def test_steps_travel_as_text_and_json() -> None:
    after = (CastTo(dtype=FP16), Add(operand="bias"), CastTo(dtype=FP16), AtLeast(operand="low"), Silu())
    desc = plain(epilogue=after)
    assert parse_descriptor(to_text(desc)) == desc == from_json(to_json(desc))
    assert "add(operand=bias)" in to_text(desc)
    assert "plus bias, rounded to float32" in "\n".join(in_words(desc, 64))
    other = replace(desc, epilogue=(*after[:1], Add(operand="other"), *after[2:]))
    assert not same_bits(desc, other, 64)
    eight = plain(epilogue=(CastTo(dtype=E4M3, overflows=True),), output_dtype=E4M3)
    assert parse_descriptor(to_text(eight)) == eight
    assert not same_bits(eight, replace(eight, epilogue=(CastTo(dtype=E4M3),)), 64)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Add(operand="two words"),
        lambda: CastTo(dtype=FP16, overflows=True),
        lambda: plain(epilogue=(CastTo(dtype=E4M3, overflows=True), Relu())),
        lambda: plain(epilogue=(CastTo(dtype=E4M3, overflows=True),)),
        lambda: gemmdesc.parse_descriptor(to_text(plain()).replace("epilogue=[]", "epilogue=[gelu(approximate=fast)]")),
    ],
)
def test_bad_descriptors_are_refused(make: Any) -> None:
    with pytest.raises(DescriptorError, match=r"\(got .*\)$"):
        make()


def test_the_replay_does_the_steps_on_any_rows_and_columns() -> None:
    rng = np.random.default_rng(0)
    a, b = draw_bits(rng, "narrow", (9, 64), FP16), draw_bits(rng, "narrow", (64, 7), FP16)
    row, low = rng.standard_normal((9, 1)).astype(np.float32), np.float32(-0.5)
    named = {
        "row": NamedOperand(bits=from_float32(row, FP32), dtype=FP32),
        "low": NamedOperand(bits=from_float32(low.reshape(1, 1), FP32), dtype=FP32),
    }  # fmt: skip
    after = (CastTo(dtype=FP16), Multiply(operand="row"), CastTo(dtype=BF16), AtLeast(operand="low"))
    desc = plain(epilogue=after, output_dtype=BF16)
    product = to_float32(replay(plain(), a, b), FP16)
    scaled = to_float32(from_float32(product * row, BF16), BF16)
    want = from_float32(np.maximum(scaled, low), BF16)
    got = replay(desc, a, b, epilogue=EpilogueInputs(named=named))
    assert (got == want).all()
    part = replay(desc, a, b, rows=[2, 7], cols=[0, 6], epilogue=EpilogueInputs(named=named))
    assert (part == want[np.ix_([2, 7], [0, 6])]).all()
    with pytest.raises(InvalidInputError, match=r"row must be given .*\(got low\)"):
        replay(desc, a, b, epilogue=EpilogueInputs(named={"low": named["low"]}))
    with pytest.raises(DeclinedError, match=r"silu takes ex2\.approx"):
        replay(plain(epilogue=(CastTo(dtype=FP16), Silu())), a, b)


def test_comparisons_know_the_signs_of_zeros_and_keep_nan() -> None:
    nan = np.uint32(0x7FC12345).view(np.float32)
    values = np.array([-0.0, 0.0, nan, 3.0, -3.0], np.float32)
    for step, zero, want in (
        (AtLeast(operand="x"), 0.0, [0.0, 0.0, nan, 3.0, 0.0]),
        (AtLeast(operand="x"), -0.0, [-0.0, 0.0, nan, 3.0, -0.0]),
        (AtMost(operand="x"), 0.0, [-0.0, 0.0, nan, 0.0, -3.0]),
        (AtMost(operand="x"), -0.0, [-0.0, -0.0, nan, -0.0, -3.0]),
    ):
        found = apply_binary(values, step, np.full(5, zero, np.float32))
        assert found.view(np.uint32).tolist() == np.array(want, np.float32).view(np.uint32).tolist()


def test_8_bit_casts_overflow_as_torchs_software_did() -> None:
    beyond = np.array([464, 464.01, -480, np.inf, -np.inf, np.nan, 448, 1e-9], np.float32)
    assert from_float32(beyond, E4M3, overflows=True).tolist() == [0x7E, 0x7F, 0xFF, 0x7F, 0xFF, 0x7F, 0x7E, 0]
    assert from_float32(beyond, E4M3).tolist() == [0x7E, 0x7E, 0xFE, 0x7E, 0xFE, 0x7F, 0x7E, 0]
    values = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    number = ~np.isnan(values)
    theirs = torch.from_numpy(values).to(torch.float8_e5m2).view(torch.uint8).numpy()
    assert (from_float32(values, E5M2, overflows=True) == theirs)[number].all()


# --- kernels --------------------------------------------------------------------------------------------------------

CARD = CardArithmetic(steps=tuple(MatrixStep(operand_dtype=d, lanes=16, step=HOPPER) for d in (FP16, BF16)))


def meta(m: int, n: int, k: int, out: DType, dtype: DType = FP16, **changes: Any) -> KernelMeta:
    sides = {
        name: MatrixMeta(dtype=kind, row_stride=columns, column_stride=1, alignment=256)
        for name, kind, columns in (("a", dtype, k), ("b", dtype, n), ("out", out, n))
    }  # fmt: skip
    return KernelMeta(m=m, n=n, k=k, sm_count=132, shared_bytes=232448, **(sides | changes))


def shapes(variants: Iterable[Variant]) -> set[Variant]:
    """Without the program that is compiled in."""
    own = ("PROGRAM", "COUNT", "FORMATS", "RESULT")
    return {replace(v, constants=tuple(c for c in v.constants if c[0] not in own)) for v in variants}


@pytest.mark.parametrize(
    ("sizes", "structure", "in_chain"),
    [
        ((4096, 4096, 4096), Structure.CHAIN_TMA, True),
        ((333, 257, 1000), Structure.CHAIN_TMA, True),
        ((333, 257, 100), Structure.CHAIN_POINTER, True),
        ((16, 4096, 512), Structure.CHAIN_TMA, True),
        ((33, 7, 9), Structure.CHAIN_POINTER, True),
    ],
)
@pytest.mark.parametrize("out", [FP16, FP32, E4M3])
def test_one_kernel_does_a_chain_and_what_follows(
    sizes: tuple[int, int, int], structure: Structure, in_chain: bool, out: DType
) -> None:
    last = (CastTo(dtype=E4M3, overflows=True),) if out is E4M3 else ()
    desc = plain(epilogue=(CastTo(dtype=FP16), Silu(), *last), k=sizes[2], output_dtype=out)
    choice = choose_whole(desc, meta(*sizes, out), CARD)
    assert isinstance(choice, FusedChoice)
    assert (choice.product.structure, choice.in_chain) == (structure, in_chain)
    if structure is Structure.CHAIN_TMA:
        assert choice.product.config in FUSED_CONFIGS
    assert shapes(needed_variants(choice, meta(*sizes, out))) <= shapes(enumerate_variants(232448))


@pytest.mark.parametrize("out", [FP16, FP32])
def test_a_function_at_the_end_knows_the_rounding_of_its_store(out: DType) -> None:
    """What is cheaper where the rounding is known asks the program, which a store says nothing to."""
    followed = (CastTo(dtype=FP16), Silu())
    choice = choose_whole(plain(epilogue=followed, k=2048, output_dtype=out), meta(256, 6144, 2048, out), CARD)
    assert isinstance(choice, FusedChoice)
    said = (*followed, CastTo(dtype=FP16)) if out is FP16 else followed
    assert choice.program == assembled(said)
    # An operand's step has no such need.
    added = (CastTo(dtype=FP16), Add(operand="r"))
    plain_end = choose_whole(plain(epilogue=added, k=2048), meta(256, 6144, 2048, FP16), CARD)
    assert isinstance(plain_end, FusedChoice)
    assert plain_end.program == assembled(added)


def test_a_pick_of_two_widths_leaves_the_rest_in_the_chains_kernel() -> None:
    """What follows a product has tiles of one width, whichever was fastest for the product alone."""
    at, product = meta(512, 4608, 2048, FP16), plain(k=2048)
    wide = choose_kernel(product, at, CARD, structure=Structure.CHAIN_WIDE, unasked=frozenset({Feature.WIDE}))
    assert isinstance(wide, KernelChoice)
    table = tuned_table([(key_of(wide, at), pick_of(wide))])
    assert choose_whole(product, at, CARD, tuned=table) == wide
    choice = choose_whole(plain(epilogue=(CastTo(dtype=FP16), Silu()), k=2048), at, CARD, tuned=table)
    assert isinstance(choice, FusedChoice)
    assert choice.in_chain
    assert choice.product.config in FUSED_CONFIGS


def picked(sizes: tuple[int, int, int], step: Any, out: DType = FP16) -> Any:
    """The config of a kernel that ends with ``step``."""
    desc = plain(epilogue=(CastTo(dtype=FP16), step), k=sizes[2], output_dtype=out)
    choice = choose_whole(desc, meta(*sizes, out), CARD)
    assert isinstance(choice, FusedChoice)
    assert choice.in_chain
    turned = sizes[:2] if not choice.product.swapped else sizes[1::-1]
    config = choice.product.config
    assert choice.product.programs == min(config.tiles(*turned), 132 * config.programs_per_sm)
    assert shapes(needed_variants(choice, meta(*sizes, out))) <= shapes(enumerate_variants(232448))
    return config


def test_functions_of_many_tiles_are_overlapped_by_another_program() -> None:
    largest = FUSED_CONFIGS[0]
    assert picked((4096, 4096, 4096), Silu()) == PAIRED
    assert picked((4096, 4096, 4096), Add(operand="other")) == largest
    assert picked((4096, 4096, 4096), Silu(), FP32) == largest
    # One tile each: both programs would end at the same time.
    assert picked((256, 14336, 4096), Silu()) == largest


@pytest.mark.parametrize("sizes", [(4096, 14336, 64), (256, 14336, 64)])
def test_short_chains_share_a_multiprocessor(sizes: tuple[int, int, int]) -> None:
    for step in (Silu(), Add(operand="other")):
        assert picked(sizes, step).programs_per_sm > 1


@pytest.mark.parametrize("sizes", [(16, 4096, 4096), (64, 4096, 14336), (256, 6144, 64)])
def test_a_small_tile_of_each_program_starts_early(sizes: tuple[int, int, int]) -> None:
    assert picked(sizes, Silu()).dependent
    assert not picked((256, 6144, 2048), Silu()).dependent


def test_what_one_kernel_cannot_do_runs_after_the_product() -> None:
    cut = Cut(layout=Contiguous(span=128), partial_dtype=FP32, merge_dtype=FP32, start=Start.FIRST)
    desc = plain(epilogue=(CastTo(dtype=FP16), Silu()), k=512, cuts=(cut,))
    choice = choose_whole(desc, meta(512, 512, 512, FP16), CARD)
    assert isinstance(choice, FusedChoice)
    assert not choice.in_chain
    assert choice.product_dtype is FP16
    needed = needed_variants(choice, meta(512, 512, 512, FP16))
    assert "fused_after" in {v.kernel for v in needed}
    assert shapes(needed) <= shapes(enumerate_variants(232448))


def test_programs_are_bounded() -> None:
    many = assembled((Silu(),) * 17)
    assert isinstance(many, Declined)
    assert "16 steps" in many.reason
    operands = assembled(tuple(Add(operand=f"x{i}") for i in range(7)))
    assert isinstance(operands, Declined)
    assert "6 operands" in operands.reason
    full = assembled((Silu(), CastTo(dtype=FP16)) * 16)
    assert not isinstance(full, Declined)
    assert full.count == 16


# --- calls on a CPU -------------------------------------------------------------------------------------------------


def check(ours: Any, want: Any) -> None:
    assert (ours.shape, ours.dtype) == (want.shape, want.dtype)
    assert same(ours, want)


CALLS: dict[str, tuple[Epilogue, dict[str, tuple[int, ...]]]] = {
    "bias and relu": (E.add("bias").relu(), {"bias": (11,)}),
    "residual": (E.multiply(0.3).add("r"), {"r": (2, 9, 11)}),
    "rows": (E.to(torch.float32).multiply("s").clamp(-448, 448).to(torch.float8_e4m3fn), {"s": (2, 9, 1)}),
    "rows of a batch": (E.divide("s"), {"s": (2, 1, 1)}),
    "a row": (E.add("s").to(torch.bfloat16), {"s": (1, 11)}),
    "no axes": (E.divide(3.0).add("q"), {"q": ()}),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_torchs_operators_on_our_products(name: str) -> None:
    epilogue, shapes = CALLS[name]
    x, w = halves(2, 9, 70), halves(70, 11, seed=1)
    operands = {n: halves(*shape, seed=7) if shape else torch.tensor(0.1, dtype=torch.float16)
                for n, shape in shapes.items()}  # fmt: skip
    product = gemmdesc.matmul(x, w, replay=source())
    ours = gemmdesc.matmul(x, w, epilogue=epilogue, operands=operands, replay=source())
    want = epilogue(product, **operands)
    if want.dtype == torch.float8_e4m3fn:
        ours, want = ours.view(torch.uint8).to(torch.int16), want.view(torch.uint8).to(torch.int16)
    check(ours, want)


def test_linear_keeps_torchs_place_of_the_bias() -> None:
    weight, bias, r = halves(11, 70, seed=1), halves(11, seed=2), halves(2, 5, 11, seed=3)
    epilogue = E.add("r")
    for x in (halves(2, 5, 70), halves(5, 2, 70).transpose(0, 1)):
        product = gemmdesc.linear(x, weight, bias, replay=source())
        ours = gemmdesc.linear(x, weight, bias, epilogue=epilogue, operands={"r": r}, replay=source())
        check(ours, product + r)


def test_batches_have_their_own_operands() -> None:
    a, b, r = halves(3, 5, 72), halves(3, 72, 6, seed=1), halves(3, 5, 6, seed=2)
    product = gemmdesc.matmul(a, b, replay=source())
    check(gemmdesc.matmul(a, b, epilogue=E.add("r"), operands={"r": r}, replay=source()), product + r)


def test_steps_before_the_rounding_meet_the_sum() -> None:
    made = torch.Generator().manual_seed(0)
    # Sums are whole, so that they are the same in any order; most need more bits than a result has.
    x, w = (torch.randint(-40, 41, s, generator=made).half() for s in ((40, 70), (70, 50)))
    bias = torch.randint(-99, 100, (50,), generator=made).half() / 4
    epilogue = Epilogue.before_rounding().add("bias").relu(keeps_nan=False)
    ours = gemmdesc.matmul(x, w, epilogue=epilogue, operands={"bias": bias}, replay=source())
    check(ours, torch.relu(x.double() @ w.double() + bias.double()).half())
    assert not same(ours, torch.relu(gemmdesc.matmul(x, w, replay=source()) + bias))


def test_functions_decline_on_a_cpu_and_may_be_left_to_torch() -> None:
    x, w = halves(4, 70), halves(70, 5, seed=1)
    with pytest.raises(DeclinedError, match=r"out_of_scope.*silu takes ex2\.approx"):
        gemmdesc.gated(x, w, w, replay=source())
    product = gemmdesc.matmul(x, w, replay=source())
    taken = gemmdesc.matmul(x, w, epilogue=E.silu(), replay=source(), on_decline="library")
    assert taken.dtype == product.dtype
    check(taken, torch.nn.functional.silu(torch.mm(x, w)))


def given(epilogue: Epilogue, **operands: Any) -> dict[str, Any]:
    return {"epilogue": epilogue, "operands": operands}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"epilogue": E.add("b")}, "operands must be the epilogue's, b"),
    "superfluous": (given(E.relu(), b=torch.zeros(5)), "operands must be the epilogue's, none"),
    "no tensor": (given(E.add("b"), b=3.0), r"b must be a torch\.Tensor"),
    "shape": (given(E.add("b"), b=torch.zeros(2, 5).half()), "b must broadcast to"),
    "larger": (given(E.add("b"), b=torch.zeros(3, 4, 5).half()), "b must broadcast to"),
    "type": (given(E.add("b"), b=torch.zeros(5).int()), "b must be of float16"),
    "double": (given(E.add("b"), b=torch.zeros(5).double()), "b must be of float16"),
    "device": (given(E.add("b"), b=torch.zeros(5, device="meta")), "b must be on the operands' device"),
    "reserved": (given(E.add("number_0"), number_0=torch.zeros(5).half()), "operands must not be called number_"),
    "operands alone": ({"operands": {"b": torch.zeros(5)}}, r"epilogue must be a gemmdesc\.Epilogue"),
    "out": ({"epilogue": E.relu(), "out": torch.zeros(4, 5).half()}, "out and out_dtype must be None"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_operands_are_refused(name: str) -> None:
    choices, said = BAD[name]
    x, w = halves(4, 70), halves(70, 5, seed=1)
    with pytest.raises(InvalidInputError, match=rf"^{said}.*\(got .*\)$"):
        gemmdesc.matmul(x, w, replay=source(), **choices)


def test_gradients_and_conversions_decline() -> None:
    x, w = halves(4, 70).requires_grad_(), halves(70, 5, seed=1)
    with pytest.raises(DeclinedError, match="gradients of an epilogue"):
        gemmdesc.matmul(x, w, epilogue=E.relu(), replay=source())
    taken = gemmdesc.matmul(x, w, epilogue=E.relu(), replay=source(), on_decline="library")
    assert taken.requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(DeclinedError, match="autocast is on"):
        gemmdesc.matmul(x.detach(), w, epilogue=E.relu(), replay=source())
    with pytest.raises(DeclinedError, match="a matrix times a vector"):
        gemmdesc.matmul(x.detach(), w[:, 0], epilogue=E.relu(), replay=source())
