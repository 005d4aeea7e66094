"""Pinned products: every row has the order of a reference shape, whatever the batch, and is else declined."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import gemmdesc
from gemmdesc.descriptor import Contiguous, Cut, Short, Start
from gemmdesc.dropin import OverrideError
from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.dropin.memory import signed_bits
from gemmdesc.dropin.planned import Ready, ready
from gemmdesc.dropin.products import Product
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.ops import problems
from gemmdesc.plan import Description, Plan, Planner, explain_outcome, pinned, shared_orders
from gemmdesc.plan.orders import orders_text
from gemmdesc.problem import Epilogue, dense_problem
from gemmdesc.regions import Region
from gemmdesc.routes import READ_FOR, TensorMeta, address_alignment
from tests.dropin_samples import answer_by_batch, batch_source
from tests.kind_profiles import on_hopper, profile_of, small_scopes
from tests.kind_samples import rule_of
from tests.probe_samples import DEVICE, IDENTITY
from tests.profile_samples import sample_row, sample_rule

torch = pytest.importorskip("torch")
HALF = torch.float16
SETTINGS = TorchSettings()
K, N = 300, 40


@cache
def planner() -> Planner:
    """One for all tests, as making the profile takes a second."""
    profile = profile_of(small_scopes(("plain", "batch", "bias", "add_c")), on_hopper)

    def library() -> SimulatedLibrary:
        return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_by_batch, rules=rule_of)

    return Planner(library, lambda device, identity: profile)


def side(rows: int, columns: int, *, by_columns: bool = False, alignment: int = 256) -> TensorMeta:
    strides = (1, rows) if by_columns else (columns, 1)
    return TensorMeta(shape=(rows, columns), strides=strides, dtype=DType.FLOAT16, alignment_bytes=alignment)


def planned(chosen: Planner, rows: int, pin: int | None = None, **changes: Any) -> Plan:
    a = replace(side(rows, K), **changes)
    found = chosen.plan_mm(a, side(K, N, by_columns=True), side(rows, N), SETTINGS, pin=pin)
    assert isinstance(found, Plan), found
    return found


def test_a_pinned_plan_has_the_references_order_at_any_number_of_rows() -> None:
    chosen = planner()
    want = planned(chosen, 30)
    assert len(want.descriptor.cuts) == 1
    for rows in (1, 5, 30, 900):
        found = planned(chosen, rows, 30)
        assert found.descriptor == want.descriptor
        assert found.answer == want.answer
        assert (found.problem.n, found.reference) == (rows, want.problem)
        assert (found.regions[0].bounds, len(found.regions)) == ((0, N, 0, rows), 1)
        assert found.kernel.slices.count == 3
    assert planned(chosen, 1).descriptor != want.descriptor
    # How a batch is stored is no part of what a row is pinned to.
    assert planned(chosen, 7, 30, strides=(K + 5, 1), alignment_bytes=2).reference == want.problem
    by_columns = planned(chosen, 7, 30, strides=(1, 7))
    assert by_columns.reference == planned(chosen, 30, strides=(1, 30)).problem


def test_an_explanation_says_that_a_plan_is_pinned() -> None:
    chosen = planner()
    found = explain_outcome(((7, K), (K, N)), planned(chosen, 7, 30), chosen.library, chosen.device)
    lines = str(found).splitlines()
    assert lines[1] == f"pinned      to (30, {K}) x ({K}, {N}): rows have its order, whatever the batch"
    assert json.loads(found.to_json())["pinned_to"]["n"] == 30
    free = explain_outcome(((7, K), (K, N)), planned(chosen, 7), chosen.library, chosen.device)
    assert "pinned" not in str(free)
    assert json.loads(free.to_json())["pinned_to"] is None


def test_plan_takes_a_pin() -> None:
    chosen = planner()
    shapes = (side(7, K), side(K, N, by_columns=True))
    with pytest.raises(InvalidInputError, match=r"pin must be a number of rows, at least 1 \(got 0\)"):
        chosen.plan_mm(*shapes, side(7, N), SETTINGS, pin=0)
    # The reference must differ in sizes and layouts alone.
    problem, meta = planned(chosen, 7).problem, planned(chosen, 7).meta
    for change in ({"k": K + 8, "ldb": K + 8, "lda": K + 8}, {"epilogue": Epilogue.BIAS}):
        name = next(iter(change))
        with pytest.raises(InvalidInputError, match=rf"reference must have the problem's {name}, .*\(got"):
            chosen.plan_problem(problem, meta, transposed=True, reference=replace(problem, **change))


def test_a_reference_of_several_orders_declines() -> None:
    problem = dense_problem(64, 64, 512, DType.FLOAT16)
    desc = replace(sample_rule().structure, cuts=(), summed_k=512)
    cut = Cut(layout=Contiguous(span=512, short=Short.LAST), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32,
              start=Start.FIRST)  # fmt: skip
    regions = tuple(
        Region(row_begin=0, row_end=64, column_begin=begin, column_end=end, descriptor=d)
        for begin, end, d in ((0, 48, desc), (48, 64, replace(desc, cuts=(cut,))))
    )
    found = Description(row=sample_row(), rule=sample_rule(), regions=regions)
    # One part is no cut: the two owe each other the same bits.
    same = pinned(found, problem, replace(problem, n=500))
    assert isinstance(same, Description)
    assert [r.bounds for r in same.regions] == [(0, 64, 0, 500)]
    halves = replace(cut, layout=Contiguous(span=256, short=Short.LAST))
    other = replace(found, regions=(regions[0], replace(regions[1], descriptor=replace(desc, cuts=(halves,)))))
    declined = pinned(other, problem, replace(problem, n=500))
    assert isinstance(declined, Declined)
    assert declined.code == "no_reference"


# --- torch's products -----------------------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool((signed_bits(one) == signed_bits(other)).all())


def halves(*shape: int, seed: int = 0) -> Any:
    """Values of mixed magnitudes."""
    made = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 7, shape, generator=made).float())
    return (torch.randn(shape, generator=made) * scale).half()


# The second half of k almost takes back what the first one adds, so that the order of a sum shows.
ROWS = torch.cat([halves(70, K // 2), -halves(70, K // 2)], dim=1)
WEIGHT = torch.cat([halves(N, K // 2, seed=1)] * 2, dim=1) + halves(N, K, seed=5) / 256
BIAS = halves(N, seed=2) / 64
LAYERS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: torch.nn.functional.linear(x, WEIGHT),
    "with a bias": lambda x: torch.nn.functional.linear(x, WEIGHT, BIAS),
    "with a residual": lambda x: torch.addmm(x[:, :N].contiguous(), x, WEIGHT.T),
    "batched": lambda x: torch.bmm(x[:, None, :].contiguous(), WEIGHT.T.expand(len(x), -1, -1))[:, 0],
}
BATCHES = (1, 2, 7, 32, 70)


def noted(layer: Callable[[Any], Any], rows: int) -> Any:
    with gemmdesc.reference(replay=batch_source()) as reference:
        layer(ROWS[:rows])
    return reference


@pytest.mark.parametrize("name", LAYERS)
def test_pinned_rows_have_the_same_bytes_in_every_batch(name: str) -> None:
    layer = LAYERS[name]
    reference = noted(layer, 32)
    with gemmdesc.override(replay=batch_source()) as over:
        free = [layer(ROWS[:rows]) for rows in BATCHES]
    with gemmdesc.override(replay=batch_source(), pin=reference) as over:
        fixed = [layer(ROWS[:rows]) for rows in BATCHES]
        moved = layer(ROWS[1:8])
    assert over.report().declined == 0
    assert all(same(y[:1], fixed[0]) for y in fixed)
    assert all(same(y, fixed[-1][: len(y)]) for y in fixed)
    assert same(moved, fixed[-1][1:8])
    # At the reference they are the library's own; without the pin they depend on the batch.
    assert same(fixed[BATCHES.index(32)], free[BATCHES.index(32)])
    assert not all(same(y, free[-1][: len(y)]) for y in free)


def test_a_weights_gradient_has_no_reference_at_another_batch() -> None:
    def trained(rows: int) -> tuple[Any, Any]:
        x, weight = ROWS[:rows].clone().requires_grad_(), WEIGHT.clone().requires_grad_()
        torch.nn.functional.linear(x, weight).backward(halves(70, N, seed=3)[:rows])
        return x.grad, weight.grad

    with gemmdesc.reference(replay=batch_source()) as reference:
        trained(32)
    assert len(reference.products) == 3
    with gemmdesc.override(replay=batch_source()):
        free = trained(32)
    with gemmdesc.override(replay=batch_source(), pin=reference, on_decline="library") as over:
        at_reference = trained(32)
        assert over.report().declined == 0
        few = trained(3)
    assert all(same(a, b) for a, b in zip(at_reference, free, strict=True))
    assert same(few[0], at_reference[0][:3])
    (line,) = [x for x in over.report().lines if x.code]
    assert (line.code, line.count) == ("no_reference", 1)
    assert "the reference has no product of k and n as (40, 3) x (3, 300)" in line.reason


def test_rows_of_a_are_the_batch_however_they_lie() -> None:
    layer = LAYERS["linear"]
    reference = noted(layer, 32)
    wide = torch.nn.functional.pad(ROWS, (3, 5))[:, 3 : 3 + K]
    scattered = torch.stack([ROWS, ROWS], dim=2)[:, :, 0]
    with gemmdesc.override(replay=batch_source(), pin=reference):
        assert same(layer(wide[:5]), layer(ROWS[:5]))
        assert same(layer(scattered[:5]), layer(ROWS[:5]))
        # Stored by columns it is another product, and so is one whose columns are the batch.
        for other in (lambda: layer(ROWS[:5].T.contiguous().T), lambda: torch.mm(WEIGHT, ROWS[:5].T)):
            with pytest.raises(DeclinedError, match="has no product of k and n as"):
                other()


def test_two_references_with_other_orders_decline() -> None:
    layer = LAYERS["linear"]
    with gemmdesc.reference(replay=batch_source()) as reference:
        layer(ROWS[:32])
        layer(ROWS[:30])
    with gemmdesc.override(replay=batch_source(), pin=reference):
        layer(ROWS[:5])
    with reference:
        layer(ROWS[:2])
    with gemmdesc.override(replay=batch_source(), pin=reference), pytest.raises(DeclinedError, match="nothing says"):
        layer(ROWS[:5])


def test_a_function_takes_a_pin_and_weights_are_told_apart_by_layout() -> None:
    square = torch.cat([torch.cat([halves(K // 2, K // 2, seed=4)] * 2)] * 2, dim=1) + halves(K, K, seed=6) / 256
    with gemmdesc.reference(replay=batch_source()) as reference:
        torch.mm(ROWS[:32], square)
        torch.mm(ROWS[:2], square.T)
    split, whole = (gemmdesc.mm(ROWS[:5], w, replay=batch_source(), pin=reference) for w in (square, square.T))
    assert same(split, gemmdesc.mm(ROWS[:32], square, replay=batch_source())[:5])
    assert same(whole[:2], gemmdesc.mm(ROWS[:2], square.T, replay=batch_source()))
    assert not same(whole, gemmdesc.mm(ROWS[:5], square.T, replay=batch_source()))


def test_an_override_is_pinned_to_a_reference_alone() -> None:
    with pytest.raises(InvalidInputError, match=r"pin must be what gemmdesc.reference noted \(got int\)"):
        gemmdesc.override(replay=batch_source(), pin=32)  # type: ignore[arg-type]


def test_a_reference_is_entered_once_and_left_in_turn() -> None:
    reference = gemmdesc.reference(replay=batch_source())
    with reference, pytest.raises(OverrideError, match="reference must be left before it is entered again"):
        reference.__enter__()
    with pytest.raises(OverrideError, match="reference must be left in its thread and in its turn"):
        reference.__exit__(None, None, None)


@pytest.mark.parametrize("name", LAYERS)
def test_kernels_are_planned_in_the_references_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a GPU, planned on a host; for one row too, where torch itself would add a bias apart."""
    # Allocations on a host are aligned to 64 bytes, those of a GPU's to 256 and more.
    monkeypatch.setattr(problems, "address_alignment", lambda at: 256 if at % 64 == 0 else address_alignment(at))
    chosen, layer = planner(), LAYERS[name]
    reference = noted(layer, 32)
    seen: list[Ready | Declined] = []

    def handle(call: TorchCall) -> Any:
        assert isinstance(call.found, Product)
        seen.append(ready(chosen, call.found, SETTINGS, READ_FOR, pin=reference))
        return call.run()

    with intercepted(handle):
        for rows in BATCHES:
            layer(ROWS[:rows])
    plans = [found.plan for found in seen if isinstance(found, Ready)]
    assert len(plans) == len(BATCHES)
    (asked,) = {plan.reference for plan in plans}
    assert asked == reference.products[0].route.problem
    assert len({plan.descriptor for plan in plans}) == 1
    assert {plan.problem.epilogue for plan in plans} == {asked.epilogue}
    assert [plan.problem.n * plan.problem.batch_count for plan in plans] == list(BATCHES)
    for found in seen:
        assert isinstance(found, Ready)
        assert (found.tensors.bias is not None, found.tensors.c is not None) == (
            name == "with a bias", name == "with a residual",
        )  # fmt: skip


# --- which numbers of rows share bits -------------------------------------------------------------------------------


def test_numbers_of_rows_are_grouped_by_their_order() -> None:
    chosen = planner()
    outcomes: dict[int, Plan | Declined] = {rows: planned(chosen, rows) for rows in (1, 2, 3, 4, 5, 24, 25, 26, 900)}
    declined = Declined(code="no_rule", reason="none")
    groups = shared_orders(outcomes | {7: declined, 8: declined})
    assert [group.rows for group in groups] == [(1, 2, 3, 4), (5, 24), (7, 8), (25, 26, 900)]
    assert groups[3].spans == ((25, 26), (900, 900))
    assert not any(group.by_place for group in groups)
    text = orders_text(groups, N, K, chosen.library, chosen.device).splitlines()
    assert text[0].startswith(f"(m, {K}) x ({K}, {N}) on ")
    assert text[0].endswith(": 4 groups over 11 m")
    assert [line for line in text if line.startswith("m ")] == ["m 1..4", "m 5, 24", "m 7..8", "m 25..26, 900"]
    assert "  declined (no_rule): none" in text
    # A pin makes one group of all.
    (one,) = shared_orders({rows: planned(chosen, rows, 30) for rows in (1, 24, 900)})
    assert one.rows == (1, 24, 900)


def test_orders_by_place_share_no_group() -> None:
    plan = planned(planner(), 30)
    cut = plan.descriptor.cuts[0]
    halves_of_k = replace(plan.descriptor, cuts=(replace(cut, layout=Contiguous(span=192, short=Short.LAST)),))

    def split(rows: int) -> Plan:
        bands = ((0, 32, plan.descriptor), (32, N, halves_of_k))
        regions = tuple(
            Region(row_begin=begin, row_end=end, column_begin=0, column_end=rows, descriptor=d)
            for begin, end, d in bands
        )
        return replace(plan, regions=regions)

    groups = shared_orders({30: plan, 31: split(31), 32: split(32)})
    assert [(group.rows, group.by_place) for group in groups] == [((30,), False), ((31,), True), ((32,), True)]
