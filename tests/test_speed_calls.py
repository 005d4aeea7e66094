"""The calls that are timed: ours asks for what eager torch does, and operands are drawn as the shape stores them."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from gemmdesc import Epilogue  # noqa: E402
from gemmdesc.books import Shape  # noqa: E402
from gemmdesc.dropin.memory import signed_bits  # noqa: E402
from gemmdesc.dtypes import DType  # noqa: E402
from gemmdesc.errors import Declined  # noqa: E402
from gemmdesc.speed.calls import (  # noqa: E402
    eager_function,
    epilogue_of,
    fill,
    library_call,
    new_tensors,
    our_call,
    product_call,
)
from gemmdesc.speed.measuring import Limits, Sides, State  # noqa: E402
from gemmdesc.speed.shapes import FOLLOWING, SpeedShape  # noqa: E402

SMALL = Shape(m=5, n=12, k=7, layout="nt")


def shape(following: str = "", product: Shape = SMALL) -> SpeedShape:
    return SpeedShape(part="fused", group=following or "plain", product=product, following=following)


@pytest.mark.parametrize("following", FOLLOWING)
def test_our_epilogue_is_the_function_that_eager_and_torch_compile_get(following: str) -> None:
    asked = shape(following)
    tensors = new_tensors(asked, "cpu")
    fill(asked, tensors, torch.Generator().manual_seed(1), wide=True)
    expected = library_call(asked)(tensors)
    assert torch.equal(
        signed_bits(expected), signed_bits(eager_function(asked)(tensors.a, tensors.b, *tensors.beside.values()))
    )
    epilogue = epilogue_of(following)
    if isinstance(epilogue, Declined):
        assert following == "sigmoid_gate"
        assert not hasattr(Epilogue, "sigmoid")
        assert isinstance(our_call(asked), Declined)
        return
    product = torch.nn.functional.linear(tensors.a, tensors.b.T, tensors.beside.get("bias"))
    operands = {name: t for name, t in tensors.beside.items() if name != "bias"}
    assert torch.equal(signed_bits(epilogue(product, **operands)), signed_bits(expected))
    # The epilogue does something, and the product alone is without it.
    alone = product_call(asked)(tensors)
    assert not torch.equal(signed_bits(alone), signed_bits(expected))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_operands_lie_as_the_shape_says(layout: str, dtype: DType) -> None:
    asked = shape(product=replace(SMALL, layout=layout, dtype=dtype, out_dtype=dtype))
    tensors = new_tensors(asked, "cpu")
    for tensor, meta in zip((tensors.a, tensors.b, tensors.out), asked.product.metas(), strict=True):
        assert (tuple(tensor.shape), tensor.stride()) == (meta.shape, meta.strides)
        assert str(tensor.dtype) == f"torch.{meta.dtype.value}"
    assert library_call(asked)(tensors).data_ptr() == tensors.out.data_ptr()


def test_wide_draws_show_the_order_and_draws_are_repeated() -> None:
    asked = shape(product=replace(SMALL, m=64, n=64, k=64))
    sets = [new_tensors(asked, "cpu") for _ in range(3)]
    for tensors, wide in zip(sets, (True, True, False), strict=True):
        fill(asked, tensors, torch.Generator().manual_seed(5), wide=wide)
    first, again, plain = (t.a.float().abs() for t in sets)
    assert torch.equal(first, again)
    assert first.max() / first[first > 0].median() > 4 * plain.max() / plain.median()
    # In another order the sums of this draw are other bytes.
    a, b = sets[0].a.float(), sets[0].b.float()
    up, down = (sum((a[:, k : k + 1] * b[k : k + 1] for k in order), torch.zeros(64, 64))
                for order in (range(64), reversed(range(64))))  # fmt: skip
    assert not torch.equal(up.half(), down.half())


def test_limits_of_a_shape() -> None:
    limits = Limits(bytes_per_second=1e12, operations_per_second={"float16": 2e12})
    least = limits.least_us(shape())
    assert least["operations"] == pytest.approx(2 * 5 * 12 * 7 / 2e12 * 1e6)
    assert least["bytes"] == pytest.approx(2 * (5 * 7 + 7 * 12 + 5 * 12) / 1e12 * 1e6)
    assert set(limits.least_us(shape(product=replace(SMALL, dtype=DType.BFLOAT16)))) == {"bytes"}


@pytest.mark.gpu
def test_a_card_times_equal_bytes() -> None:
    from random import Random

    from gemmdesc.speed.card import CudaDevice
    from gemmdesc.speed.measuring import LIBRARY, OURS, measure
    from gemmdesc.speed.sets import control_shapes, speed_shapes

    device = CudaDevice()
    limits = device.limits()
    assert 2e12 < limits.bytes_per_second < 1e13
    asked = (*control_shapes()[:2], speed_shapes(["fused"])[0], speed_shapes(["unrounded"])[6])
    for one in asked:
        row = measure(device, one, limits, Random(0), rounds=3, compiled=False)
        assert row.state is State.EQUAL, (one.name, row.reason)
        assert {LIBRARY, OURS} <= set(row.device)
        # Nothing is faster than its limit, but for what stays in the L2.
        assert row.device[OURS].median > 0.5 * max(row.least.values())


@pytest.mark.gpu
def test_a_card_sees_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmdesc.speed import card

    def nudged(asked: SpeedShape) -> object:
        return lambda t: torch.mm(t.a, t.b, out=t.out).mul_(1.5)

    monkeypatch.setattr(card, "our_call", nudged)
    with card.CudaDevice().open(shape(product=replace(SMALL, m=64, n=64, k=64)), compiled=False) as opened:
        sides: Sides = opened.sides
    assert sides.different == ("ours",)
