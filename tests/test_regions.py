"""One product, several orders: rectangles of D, their replay, the plan made of them, and rules that spell none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.bits import first_mismatch
from gemmdesc.descriptor import (
    Accumulator,
    Balanced,
    Contiguous,
    Cut,
    GEMMDesc,
    OperandCast,
    ResidueLast,
    Rounding,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.expressions import Const, Expr, call, parse_expression
from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.tiled import TiledChoice
from gemmdesc.library.interface import Window
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import Family, HashOperand
from gemmdesc.plan import Plan, Planner, explain_outcome
from gemmdesc.problem import KernelNode, Launch, dense_problem, environment
from gemmdesc.profiles import RuleOutcome
from gemmdesc.regions import Region, depends_on_place, evaluate_regions, same_regions, whole
from gemmdesc.routes import TensorMeta
from gemmdesc.rule import Rule, choose_rule, make_rule, parse_rule
from gemmdesc.schedule import fold_levels, make_schedule
from tests.probe_samples import HOPPER
from tests.profile_samples import DEVICE, LIBRARY, sample_answer, sample_profile, sample_row, sample_rule


def plain() -> Rule:
    return sample_rule(cuts=0)


def balanced(count: int = 3) -> Rule:
    cut = Cut(
        layout=Balanced(count=1, unit=1), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST,
        fold=(Contiguous(span=1),),
    )  # fmt: skip
    desc = replace(plain().structure, cuts=(cut,))
    integers = dict(plain().integers) | {
        "cuts.0.layout.count": Const(count), "cuts.0.layout.unit": Const(16), "cuts.0.fold.0.span": Const(2),
    }  # fmt: skip
    return make_rule(desc, integers)


def corner() -> Expr:
    """Tiles of 32 x 16 from the second of rows and the third of columns on."""
    return call("mul", call("floordiv", "row", 32), call("floordiv", call("floordiv", "column", 16), 2))


def cornered() -> Rule:
    return choose_rule(
        call("floordiv", call("mul", call("floordiv", "row", 32), call("floordiv", "column", 16)), "grid_x"),
        balanced(), plain(),
    )  # fmt: skip


@given(st.integers(0, 400), st.integers(1, 9), st.integers(1, 40))
def test_balanced_parts_differ_by_one_unit(length: int, count: int, unit: int) -> None:
    ends = Balanced(count=count, unit=unit).ends(length)
    assert len(ends) == count
    assert ends[-1] == length
    units = [-(-(e - b) // unit) for b, e in zip((0, *ends), ends, strict=False)]
    assert sum(units) == -(-length // unit)
    assert units == sorted(units)
    assert units[-1] - units[0] <= 1
    # All but the last unit of all are whole.
    assert all(e % unit == 0 or e == length for e in ends)


def test_a_balanced_cut_deals_k_in_the_schedule() -> None:
    desc = evaluate(balanced(4), k=150)
    schedule = make_schedule(desc, 150)
    # Ten units of 16, the last one short: two parts of two units, then two of three.
    assert schedule.leaf_offsets.tolist() == [0, 32, 64, 112, 150]
    assert [x.tolist() for x in fold_levels(desc, 150)] == [[0, 2], [0, 2, 4]]


def evaluate(rule: Rule, **values: int) -> GEMMDesc:
    found = evaluate_regions(rule, {"m": 1, "n": 1, "k": 8, "splitk_num": 1} | values)
    assert not isinstance(found, Declined)
    return found[0].descriptor


def test_rectangles_hold_every_element_once() -> None:
    values = {"m": 100, "n": 70, "k": 90, "grid_x": 3, "splitk_num": 1}
    regions = evaluate_regions(cornered(), values)
    assert not isinstance(regions, Declined)
    seen = np.zeros((100, 70), dtype=int)
    for r in regions:
        seen[r.row_begin : r.row_end, r.column_begin : r.column_end] += 1 if r.descriptor.cuts else 10
    wanted = [[1 if (i // 32) * (j // 16) // 3 else 10 for j in range(70)] for i in range(100)]
    assert seen.tolist() == wanted
    assert [r.elements for r in regions] == sorted((r.elements for r in regions), reverse=True)
    assert regions[0].transposed.transposed == regions[0]
    assert depends_on_place(cornered())
    assert not depends_on_place(plain())
    text = cornered().text
    assert evaluate_regions(parse_rule(text), values) == regions


@pytest.mark.parametrize(
    "condition",
    [
        "sub(row, 1)", "floordiv(row, column)", "floordiv(row, 0)", "mod(column, 2)", "row",
        "floordiv(add(row, 1), 4)", "floordiv(row, grid_y)",
    ],
)  # fmt: skip
def test_places_that_are_no_tiles_decline(condition: str) -> None:
    rule = choose_rule(parse_expression(condition), balanced(), plain())
    found = evaluate_regions(rule, {"m": 64, "n": 64, "k": 64, "grid_y": 0, "splitk_num": 1})
    assert isinstance(found, Declined)
    assert found.code == "no_rule"


def test_what_a_region_cannot_have_declines() -> None:
    """A count of 0 in the branch that some elements have, a missing variable, too many tiles."""
    values = {"m": 100, "n": 70, "k": 90, "grid_x": 3, "splitk_num": 1}
    none = choose_rule(corner(), balanced(0), plain())
    assert isinstance(evaluate_regions(none, values), Declined)
    nowhere = evaluate_regions(none, values | {"m": 20})
    assert not isinstance(nowhere, Declined)
    assert len(nowhere) == 1
    lacking = evaluate_regions(cornered(), {name: v for name, v in values.items() if name != "grid_x"})
    assert isinstance(lacking, Declined)
    assert "grid_x" in lacking.reason
    fine = choose_rule(parse_expression("mul(floordiv(row, 1), floordiv(column, 1))"), balanced(), plain())
    assert isinstance(evaluate_regions(fine, values | {"m": 1 << 20, "n": 1 << 20}), Declined)


def test_regions_owe_the_same_bits_rectangle_by_rectangle() -> None:
    values = {"m": 100, "n": 70, "k": 90, "grid_x": 3, "splitk_num": 1}
    one, other = (evaluate_regions(cornered(), values | {"grid_x": g}) for g in (3, 4))
    assert not isinstance(one, Declined)
    assert not isinstance(other, Declined)
    assert same_regions(one, one, 90)
    assert not same_regions(one, other, 90)
    assert not same_regions(one, one[:-1], 90)
    assert not same_regions(whole(one[0].descriptor, 100, 70), one, 90)


def launch() -> Launch:
    node = KernelNode(name="k", grid=(3, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
    return Launch(kernels=(node,))


def test_the_replay_goes_by_rectangle() -> None:
    problem = dense_problem(100, 70, 90, DType.FLOAT16)
    answer = sample_answer(splitk_num=1)
    regions = evaluate_regions(cornered(), environment(problem, answer, launch()))
    assert not isinstance(regions, Declined)
    a, b = (HashOperand(dtype=DType.FLOAT16, family=Family.WIDE, seed=1, draw=0, role=r) for r in ("a", "b"))
    each = {r.descriptor: replay_problem(r.descriptor, problem, a, b) for r in regions}
    assert len(each) == 2
    assert first_mismatch(*each.values()) is not None
    got = replay_problem(regions, problem, a, b)
    for r in regions:
        box = np.s_[r.row_begin : r.row_end, r.column_begin : r.column_end]
        assert first_mismatch(each[r.descriptor][box], got[box]) is None
    window = Window(rows=np.array([0, 99, 40]), columns=np.array([69, 3, 40, 41]))
    some = replay_problem(regions, problem, a, b, window)
    assert first_mismatch(got[np.ix_(window.rows, window.columns)], some) is None
    library = SimulatedLibrary(
        identity=LIBRARY, device=DEVICE, heuristic=lambda p: answer, rules={answer: cornered()},
        launches=lambda p, x: launch(),
    )  # fmt: skip
    assert first_mismatch(got, np.asarray(library.run(problem, answer, a, b))) is None
    unknown = replace(library, launches=None)
    assert not unknown.check(problem, answer)


def planner(rule: Rule) -> Planner:
    answer = sample_answer(splitk_num=1)
    library = SimulatedLibrary(
        identity=LIBRARY, device=DEVICE, heuristic=lambda p: answer, rules={answer: rule},
        launches=lambda p, x: launch(),
    )  # fmt: skip
    profile = sample_profile(sample_row(RuleOutcome(rule=rule), answer=answer))
    return Planner(lambda: library, lambda device, identity: profile)


def meta(rows: int, columns: int, *, by_rows: bool = True) -> TensorMeta:
    return TensorMeta(
        shape=(rows, columns), strides=(columns, 1) if by_rows else (1, rows), dtype=DType.FLOAT16, alignment_bytes=256
    )


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("size", [(128, 200), (130, 130)])
def test_a_plan_has_a_kernel_for_every_rectangle(size: tuple[int, int], by_rows: bool) -> None:
    """torch's row-major result is the library's D transposed; of a square product, too."""
    m, n = size
    made = planner(cornered()).plan_mm(meta(m, 90), meta(90, n), meta(m, n, by_rows=by_rows), TorchSettings())
    assert isinstance(made, Plan)
    assert made.launch is not None
    kernel = made.kernel
    assert isinstance(kernel, TiledChoice)
    owner = np.zeros((m, n), dtype=int)
    for part in kernel.parts:
        owner[slice(*part.rows), slice(*part.columns)] += 1 if isinstance(part.choice, BalancedChoice) else 10
    # In the library's terms, tiles of 32 rows and 16 columns.
    def cut(i: int, j: int) -> bool:
        row, column = (j, i) if by_rows else (i, j)
        return (row // 32) * (column // 16) // 3 > 0

    assert owner.tolist() == [[1 if cut(i, j) else 10 for j in range(n)] for i in range(m)]
    assert {v.kernel for v in made.variants} >= {"fold_level"}
    text = str(explain_outcome(((m, 90), (90, n)), made, made.library, made.device))
    assert "of the library's D" in text
    assert "balanced_chains" in text


def test_a_plan_of_one_order_is_one_kernel() -> None:
    made = planner(balanced()).plan_mm(meta(128, 90), meta(90, 200), meta(128, 200), TorchSettings())
    assert isinstance(made, Plan)
    assert isinstance(made.kernel, BalancedChoice)
    assert [run.count for run in made.kernel.runs] == [3]
    assert made.regions == whole(made.descriptor, 200, 128)
    assert made.kernel.swapped is False
    assert isinstance(made.regions[0], Region)


def test_a_transposed_product_has_the_operands_the_other_way_round() -> None:
    """Whatever one of them has for itself, its type and its cast, goes along."""
    leaf = Accumulator(instruction_k=32, residue=ResidueLast(), step=HOPPER)
    desc = GEMMDesc(
        a_dtype=DType.FLOAT8_E5M2, b_dtype=DType.FLOAT8_E4M3FN, output_dtype=DType.FLOAT32, summed_k=64, cuts=(),
        accumulator=leaf,
    )  # fmt: skip
    (region,) = whole(desc, 16, 48)
    turned = region.transposed
    assert turned.bounds == (0, 48, 0, 16)
    assert (turned.descriptor.a_dtype, turned.descriptor.b_dtype) == (desc.b_dtype, desc.a_dtype)
    assert turned.transposed == region
    cast = OperandCast(dtype=DType.TFLOAT32, rounding=Rounding.TOWARD_ZERO)
    single = replace(desc, a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, a_cast=cast)
    assert whole(single, 2, 2)[0].transposed.descriptor == replace(single, a_cast=None, b_cast=cast)
