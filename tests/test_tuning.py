"""Tuning without a card: what competes, what a table may and may not do, how it is settled, stored and found."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from gemmdesc.books import Shape
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    ScalarStep,
    Scale,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError, ProfileError
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.competing import (
    MOST_TIMED,
    WITHIN,
    TunableChoice,
    competing,
    key_of,
    pick_of,
    predicted_us,
    worth_timing,
)
from gemmdesc.kernels.config import TMA_CONFIGS, Feature, KernelConfig
from gemmdesc.kernels.fused import FusedChoice
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.slices import Merge
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.tuned import TunedPick, TunedTable, size_class, tuned_table
from gemmdesc.kernels.unasked import features_of
from gemmdesc.kernels.variants import merge_variant
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.pointwise import Silu
from gemmdesc.problem import DeviceId
from gemmdesc.tuning.ahead import Ahead
from gemmdesc.tuning.card import Candidate, Contest, by_gain, kernel_descriptor, tune_shapes
from gemmdesc.tuning.search import Measured, TunedRow, measure, settle, table_of
from gemmdesc.tuning.store import Provenance, Tuned, find_tuned, joined, read_tuned, tuned_path, write_tuned

CARD = card_arithmetic("sm_90")
FP16, FP32, E4M3, BF16 = DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3FN, DType.BFLOAT16
H200 = DeviceId(sm="sm_90", sm_count=132, name="NVIDIA H200", driver="580")
PROVENANCE = Provenance(
    command="gemmdesc tune x.csv", date="2026-01-01", gemmdesc="0", torch="2", triton="3", products=1, different=0
)


def chain(
    k: int, *spans: int, step: int = 16, dtype: DType = FP16, output: DType | None = None, turn: int = 0
) -> GEMMDesc:
    matrix = CARD.step_for(dtype, dtype)
    assert matrix is not None
    cuts = tuple(
        Cut(layout=Contiguous(span=s), partial_dtype=FP32, merge_dtype=FP32, start=Start.FIRST) for s in spans
    )
    leaf = Accumulator(
        instruction_k=step, residue=ResidueFirst(k_loop_step=turn) if turn else ResidueLast(), step=matrix.step
    )
    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=output or dtype, summed_k=k, cuts=cuts, accumulator=leaf
    )


def meta(desc: GEMMDesc, m: int, n: int, k: int, layouts: str = "rcr") -> KernelMeta:
    sizes, types = ((m, k), (k, n), (m, n)), (desc.a_dtype, desc.b_dtype, desc.output_dtype)
    a, b, out = (
        MatrixMeta(dtype=t, row_stride=c if x == "r" else 1, column_stride=1 if x == "r" else r, alignment=256)
        for (r, c), t, x in zip(sizes, types, layouts, strict=True)
    )
    return KernelMeta(m=m, n=n, k=k, a=a, b=b, out=out, sm_count=132, shared_bytes=232448)


def simple() -> GEMMDesc:
    leaf = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True, start=Start.ZERO))
    return GEMMDesc(a_dtype=FP32, b_dtype=FP32, output_dtype=FP32, summed_k=96, cuts=(), accumulator=leaf)


CASES = {
    "aligned": (chain(4096), (1024, 4096, 4096)), "thin": (chain(4096), (16, 4096, 4096)),
    "slices": (chain(4096, 1024), (16, 4096, 4096)), "many tiles": (chain(4096, 1024), (2048, 2048, 4096)),
    "grouped": (chain(2051, step=8), (2047, 2049, 2051)), "small": (chain(101), (33, 45, 101)),
    "residue first": (chain(1000, turn=64), (256, 256, 1000)),
    "float8": (replace(chain(1024, 128, step=32, dtype=E4M3, output=BF16), epilogue=(Scale(),)), (512, 512, 1024)),
    "float32": (simple(), (256, 512, 96)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_competes_is_one_descriptors_and_the_default_is_first(name: str) -> None:
    desc, (m, n, k) = CASES[name]
    at = meta(desc, m, n, k)
    choices = competing(desc, at, CARD)
    assert not isinstance(choices, Declined)
    assert choices[0] == choose_whole(desc, at, CARD)
    assert len(choices) >= 3
    assert len({pick_of(c) for c in choices}) == len(choices)
    # One key for all, so that the chooser finds whichever won.
    assert len({key_of(c, at) for c in choices}) == 1


def test_what_the_model_does_not_pick_unasked_competes_and_is_picked_when_it_won(tmp_path: Path) -> None:
    desc, (m, n, k) = CASES["slices"]
    at = meta(desc, m, n, k)
    choices = competing(desc, at, CARD)
    assert not isinstance(choices, Declined)
    met = {features_of(c.structure, c.config): c for c in choices if isinstance(c, KernelChoice)}
    others = [f for f in Feature if f not in (Feature.WIDE, Feature.SPECIALISED)]
    wide = {frozenset({Feature.WIDE}), frozenset({Feature.WIDE, Feature.DEPENDENT})}
    assert set(met) == wide | {frozenset(s) for size in range(4) for s in combinations(others, size)}
    for features, choice in met.items():
        row = TunedRow(key=key_of(choice, at), pick=pick_of(choice), gain=1.5, products=1, example=(m, n, k))
        write_tuned(Tuned(device=H200, provenance=PROVENANCE, rows=(row,)), tmp_path / "tuned.parquet")
        found = choose_whole(desc, at, CARD, tuned=read_tuned(tmp_path / "tuned.parquet").table)
        assert found == choice, features


def test_a_table_from_before_a_field_was_added_reads_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desc, (m, n, k) = CASES["slices"]
    at = meta(desc, m, n, k)
    default = choose_whole(desc, at, CARD)
    assert isinstance(default, TunableChoice)
    row = TunedRow(key=key_of(default, at), pick=pick_of(default), gain=1.5, products=1, example=(m, n, k))
    older = {name: value for name, value in asdict(row.pick.config).items() if name != "beside_n"}
    monkeypatch.setattr("gemmdesc.tuning.store.asdict", lambda x: older if x == row.pick.config else asdict(x))
    write_tuned(Tuned(device=H200, provenance=PROVENANCE, rows=(row,)), tmp_path / "tuned.parquet")
    assert read_tuned(tmp_path / "tuned.parquet").rows == (row,)


@pytest.mark.parametrize("name", CASES)
def test_every_pick_of_a_table_is_taken_where_it_may_be(name: str) -> None:
    desc, (m, n, k) = CASES[name]
    at = meta(desc, m, n, k)
    choices = competing(desc, at, CARD)
    assert not isinstance(choices, Declined)
    for choice in choices:
        table = tuned_table([(key_of(choice, at), pick_of(choice))])
        assert choose_whole(desc, at, CARD, tuned=table) == choice
        # Another class of sizes is the model's.
        other = meta(desc, 4 * m, n, k)
        assert choose_whole(desc, other, CARD, tuned=table) == choose_whole(desc, other, CARD)


@pytest.mark.parametrize("name", CASES)
def test_a_pick_that_may_not_be_chosen_changes_nothing(name: str) -> None:
    """Configs that would not fit, cross slices, leave the instruction, or are none of the structure's."""
    desc, (m, n, k) = CASES[name]
    at = meta(desc, m, n, k)
    default = choose_whole(desc, at, CARD)
    foreign = [
        KernelConfig(block_m=32, block_n=64, block_k=64, num_warps=4, num_stages=2),
        KernelConfig(block_m=256, block_n=256, block_k=128, num_warps=8, num_stages=8),
    ]
    assert isinstance(default, TunableChoice)
    for structure in Structure:
        for config in foreign:
            table = tuned_table([(key_of(default, at), TunedPick(structure=structure, config=config))])
            assert choose_whole(desc, at, CARD, tuned=table) == default
    # A config of this structure, under another's name.
    wrong = Structure.CHAIN_POINTER if default.structure is not Structure.CHAIN_POINTER else Structure.CHAIN_TMA
    allowed = {pick_of(c) for c in competing(desc, at, CARD)}  # type: ignore[union-attr]
    pick = TunedPick(structure=wrong, config=default.config)
    found = choose_whole(desc, at, CARD, tuned=tuned_table([(key_of(default, at), pick)]))
    assert isinstance(found, TunableChoice)
    assert pick_of(found) in allowed


def test_a_step_never_crosses_slices_whatever_the_table_says() -> None:
    desc = chain(4096, 1088)  # which 128 does not divide
    at = meta(desc, 256, 4096, 4096)
    default = choose_kernel(desc, at, CARD)
    assert not isinstance(default, Declined)
    wide = next(c for c in TMA_CONFIGS if c.block_k == 128)
    table = tuned_table([(key_of(default, at), TunedPick(structure=Structure.CHAIN_TMA, config=wide))])  # type: ignore[arg-type]
    assert choose_kernel(desc, at, CARD, tuned=table) == default


def test_overrides_come_before_a_table() -> None:
    desc, (m, n, k) = CASES["aligned"]
    at = meta(desc, m, n, k)
    choices = competing(desc, at, CARD)
    assert not isinstance(choices, Declined)
    table = tuned_table([(key_of(choices[-1], at), pick_of(choices[-1]))])
    chosen = choose_kernel(desc, at, CARD, config=choices[1].config, structure=choices[1].structure, tuned=table)
    assert chosen == choices[1]


def test_fused_chains_take_a_pick_too() -> None:
    desc = replace(chain(4096), epilogue=(Silu(),))
    plain, at = chain(4096), meta(chain(4096), 1024, 4096, 4096)
    choices = competing(plain, at, CARD)
    assert not isinstance(choices, Declined)
    # Few registers of sums, and room for a tile of float32.
    small = [c for c in choices[1:] if c.config.block_m * c.config.block_n <= 64 * 32 * c.config.num_warps]
    pick = next(c for c in small if c.config.shared_bytes(2, 4) <= at.shared_bytes)
    held = replace(at, out=replace(at.out, dtype=FP32))
    table = tuned_table([(key_of(pick, held), pick_of(pick))])
    fused = choose_whole(desc, at, CARD, tuned=table)
    assert isinstance(fused, FusedChoice)
    assert pick_of(fused.product) == pick_of(pick)


def test_size_classes_are_half_octaves() -> None:
    classes = [size_class(x) for x in range(1, 5000)]
    assert classes == sorted(classes)
    for x in range(1, 5000):
        for y in (x, 2 * x):
            assert size_class(2 * y) == size_class(y) + 2
    starts = [x for x in range(2, 5000) if size_class(x) != size_class(x - 1)]
    assert all(later * later <= 2.6 * x * x for x, later in pairwise(starts[4:]))


class Clock:
    """A trial whose times are given; ``wrong``: picks of other bytes; ``broken``: of none."""

    def __init__(
        self, times: dict[TunedPick, float], wrong: tuple[TunedPick, ...] = (), broken: tuple[TunedPick, ...] = ()
    ) -> None:
        self.times, self.wrong, self.broken, self.timed = times, wrong, broken, []  # type: ignore[var-annotated]

    def output(self, choice: TunableChoice) -> Any:
        pick = pick_of(choice)
        return None if pick in self.broken else b"other" if pick in self.wrong else b"bytes"

    def microseconds(self, choice: TunableChoice) -> float:
        self.timed.append(pick_of(choice))
        return self.times.get(pick_of(choice), 10.0)


def aligned() -> tuple[GEMMDesc, KernelMeta, list[TunedPick]]:
    desc, (m, n, k) = CASES["aligned"]
    at = meta(desc, m, n, k)
    choices = competing(desc, at, CARD)
    assert not isinstance(choices, Declined)
    return desc, at, [pick_of(c) for c in choices]


def test_the_fastest_with_the_bytes_wins() -> None:
    desc, at, picks = aligned()
    clock = Clock({picks[3]: 1.0, picks[2]: 2.0, picks[1]: 8.0}, wrong=(picks[3],), broken=(picks[4],))
    found = measure(desc, at, CARD, clock, Random(0), rounds=6)
    assert isinstance(found, Measured)
    assert (found.different, found.unusable) == ((picks[3],), (picks[4],))
    assert not {picks[3], picks[4]} & set(clock.timed)
    # What has no hope is timed twice and once to warm up; the default always, for gains are over it.
    assert clock.timed.count(picks[1]) == 3
    assert clock.timed.count(picks[0]) == clock.timed.count(picks[2]) == 9
    (row,) = settle([found])
    assert (row.pick, row.products, row.example) == (picks[2], 1, (1024, 4096, 4096))
    assert row.gain == pytest.approx(5.0)
    assert choose_whole(desc, at, CARD, tuned=table_of([row])).config == picks[2].config  # type: ignore[union-attr]


def test_a_default_of_no_bytes_declines() -> None:
    desc, at, picks = aligned()
    found = measure(desc, at, CARD, Clock({}, broken=(picks[0],)), Random(0), rounds=6)
    assert isinstance(found, Declined)
    assert "default" in found.reason


def test_noise_moves_nothing_and_a_class_shares_its_pick() -> None:
    _, _, (default, one, two, *_) = aligned()
    key = key_of(competing(*CASES_AT("aligned"))[0], CASES_AT("aligned")[1])  # type: ignore[index]
    def product(halves: dict[TunedPick, tuple[float, float]]) -> Measured:
        return Measured(key=key, sizes=(1, 2, 3), default=default, halves={default: (10.0, 10.0)} | halves)

    assert settle([product({one: (5.0, 10.0)})]) == ()
    assert settle([product({one: (9.95, 9.95)})]) == ()
    shared = settle([product({one: (8.0, 8.0), two: (7.0, 7.0)}), product({one: (8.0, 8.0), two: (11.0, 11.0)})])
    assert [(row.pick, row.products) for row in shared] == [(one, 2)]
    assert shared[0].gain == pytest.approx(1.25)
    # A config that was given up, or had other bytes, on one product is none for the class.
    assert settle([product({two: (5.0, 5.0)}), product({one: (5.0, 5.0)})]) == ()
    wrong = replace(product({two: (5.0, 5.0)}), different=(two,))
    assert settle([product({two: (5.0, 5.0)}), wrong]) == ()


def CASES_AT(name: str) -> tuple[GEMMDesc, KernelMeta, Any]:
    desc, (m, n, k) = CASES[name]
    return desc, meta(desc, m, n, k), CARD


def rows() -> tuple[TunedRow, ...]:
    found = []
    for name in CASES:
        desc, at, card = CASES_AT(name)
        choice = competing(desc, at, card)[-1]  # type: ignore[index]
        found.append(
            TunedRow(key=key_of(choice, at), pick=pick_of(choice), gain=1.5, products=2, example=(at.m, at.n, at.k))
        )
    return tuple(found)


def test_tables_come_back_as_they_were_written(tmp_path: Path) -> None:
    tuned = Tuned(device=H200, provenance=PROVENANCE, rows=rows())
    path = tuned_path(tmp_path, H200)
    write_tuned(tuned, path)
    assert path == tmp_path / "sm_90-132" / "tuned.parquet"
    first = path.read_bytes()
    back = read_tuned(path)
    assert back == tuned
    assert back.device.name == "NVIDIA H200"
    write_tuned(Tuned(device=H200, provenance=PROVENANCE, rows=rows()[::-1]), path)
    assert path.read_bytes() == first
    found = find_tuned(H200, [tmp_path / "none", tmp_path])
    assert dict(found.picks) == {row.key: row.pick for row in rows()}
    for name in CASES:
        desc, at, card = CASES_AT(name)
        assert choose_whole(desc, at, card, tuned=found) == competing(desc, at, card)[-1]  # type: ignore[index]


def test_another_cards_table_is_not_taken(tmp_path: Path) -> None:
    write_tuned(Tuned(device=H200, provenance=PROVENANCE, rows=rows()), tuned_path(tmp_path, H200))
    for device in (replace(H200, sm_count=114), replace(H200, mig=True), replace(H200, sm="sm_100")):
        assert find_tuned(device, [tmp_path]) == TunedTable()
    renamed = tuned_path(tmp_path, replace(H200, sm_count=114))
    renamed.parent.mkdir()
    renamed.write_bytes(tuned_path(tmp_path, H200).read_bytes())
    assert find_tuned(replace(H200, sm_count=114), [tmp_path]) == TunedTable()


@pytest.mark.parametrize("broken", ["missing", "cut", "foreign", "row", "version"])
def test_broken_tables_are_refused(tmp_path: Path, broken: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tuned_path(tmp_path, H200)
    write_tuned(Tuned(device=H200, provenance=PROVENANCE, rows=rows()), path)
    table = pq.read_table(path)
    if broken == "missing":
        path.unlink()
    elif broken == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif broken == "foreign":
        pq.write_table(pa.table({"a": [1]}), path)
    else:
        stamp = json.loads(table.schema.metadata[b"gemmdesc.tuned"])
        listed = table.to_pylist()
        if broken == "row":
            listed[0]["gain"] = 9.0
        else:
            stamp["tuned_version"] = 0
        schema = table.schema.with_metadata({b"gemmdesc.tuned": json.dumps(stamp).encode()})
        pq.write_table(pa.Table.from_pylist(listed, schema=schema), path)
    with pytest.raises(ProfileError, match="path must"):
        read_tuned(path)


def timed_at(row: TunedRow) -> Measured:
    """A product of the row's example, that the row's pick is the default of."""
    return Measured(key=row.key, sizes=row.example, default=row.pick, halves={row.pick: (10.0, 10.0)})


def test_tables_are_joined_by_class() -> None:
    first, second, *rest = rows()
    old = Tuned(device=H200, provenance=PROVENANCE, rows=(first, second, *rest))
    new = Tuned(device=H200, provenance=PROVENANCE, rows=(replace(first, gain=2.0),))
    # Of the second class the default was found to be the fastest.
    both = joined(old, new, [timed_at(row) for row in (first, second)])
    assert set(both.rows) == {replace(first, gain=2.0), *rest}
    assert both.provenance.products == 2
    with pytest.raises(ProfileError, match="one card"):
        joined(replace(old, device=replace(H200, sm_count=1)), new, [])
    with pytest.raises(InvalidInputError, match="picks must"):
        table_of([first, first])


def test_a_planner_takes_what_was_tuned_for_its_card() -> None:
    from gemmdesc.plan import Plan, Planner
    from tests.test_plan import SETTINGS, Counted, call, made, planner_of, sample_profile

    default = made(planner_of(Counted()).plan_mm(*call(), SETTINGS))
    assert isinstance(default, Plan)
    wanted = kernel_descriptor(default)
    assert not isinstance(wanted, Declined)
    choices = competing(wanted, default.meta, card_arithmetic(default.device.sm))
    assert not isinstance(choices, Declined)
    assert choices[0] == default.kernel
    asked: list[DeviceId] = []
    tables = [tuned_table([(key_of(choices[-1], default.meta), pick_of(choices[-1]))]), TunedTable()]

    def tuned(device: DeviceId) -> TunedTable:
        asked.append(device)
        return tables[len(asked) - 1]

    planner = Planner(Counted().open, lambda device, library: sample_profile(), tuned=tuned)
    plan = made(planner.plan_mm(*call(), SETTINGS))
    assert plan.kernel == choices[-1]
    assert plan.regions == default.regions
    planner.reload()
    assert made(planner.plan_mm(*call(), SETTINGS)).kernel == default.kernel
    assert asked == [planner.device] * 2


def test_tune_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    from gemmdesc.cli.app import app

    listed = tmp_path / "x.csv"
    listed.write_text("m,n,k\n64,64,64\n")
    done = CliRunner().invoke(app, ["tune", str(listed), "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "device must be a CUDA GPU" in done.output
    assert not list(tmp_path.glob("*/tuned.parquet"))


def test_the_command_writes_joins_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from gemmdesc import ops
    from gemmdesc.cli.app import app
    from gemmdesc.tuning import card

    desc, at, picks = aligned()
    fast, none = Clock({picks[1]: 5.0}), Clock({})
    wrong = Clock({picks[1]: 5.0}, wrong=(picks[1],))
    asked: list[tuple[Shape, ...]] = []
    trials = [fast, wrong, none]

    def tune_shapes(planner: Any, shapes: Any, **named: Any) -> card.Timed:
        asked.append(tuple(shapes)[named["start"] :])
        one = measure(desc, at, CARD, trials[len(asked) - 1], Random(0), rounds=4)
        refused = Declined(code="kernel", reason="none")
        return card.Timed(outcomes=((shapes[0], one), (shapes[1], refused)), left=len(asked[-1]) - 2)

    class Card:
        device = H200

    monkeypatch.setattr(card, "tune_shapes", tune_shapes)
    monkeypatch.setattr(ops, "default_planner", lambda **named: Card())
    listed = tmp_path / "x.csv"
    listed.write_text("m,n,k\n" + "".join(f"{m},64,64\n" for m in (1, 2, 3, 4)))
    command = ["tune", str(listed), "--out", str(tmp_path)]
    first = CliRunner().invoke(app, [*command, "--json"])
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert (told["timed"], told["left"], told["next_start"]) == (1, 2, 2)
    assert ([row["gain"] for row in told["exact"]], told["classes"]) == ([2.0], [])
    assert [d["code"] for d in told["declined"]] == ["kernel"]
    assert read_tuned(Path(told["path"])).rows[0].pick == picks[1]
    # Other bytes: exit code 1, and the pick is gone from the table.
    second = CliRunner().invoke(app, [*command, "--start", "1"])
    assert second.exit_code == 1
    assert "BYTES DIFFER" in second.stdout
    assert "go on with --start 3" in second.stdout
    assert [shape.m for shape in asked[1]] == [2, 3, 4]
    assert read_tuned(Path(told["path"])).rows == ()
    assert read_tuned(Path(told["path"])).provenance.different == 1
    assert CliRunner().invoke(app, command).exit_code == 0


@pytest.mark.gpu
def test_tuning_on_a_card(tmp_path: Path) -> None:
    from gemmdesc.cli.app import app

    listed = tmp_path / "x.csv"
    listed.write_text("m,n,k,layout\n64,4096,4096,nt\n512,4096,4096,nt\n333,777,555,nn\n")
    done = CliRunner().invoke(app, ["tune", str(listed), "--out", str(tmp_path), "--rounds", "4", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["timed"], told["different"], told["declined"]) == (3, [], [])
    assert Path(told["path"]).is_file()


def test_kernels_are_compiled_once_and_what_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    good = merge_variant(Merge(partial_dtype=FP32, merge_dtype=FP32, start=Start.FIRST), FP16, wide_offsets=False)
    bad = replace(good, kernel="none")
    with Ahead(90) as ahead:
        ahead([good, bad, good])
        assert ahead.compiled == {good, bad}
        ahead([good])
    assert list(tmp_path.glob("*/*.cubin"))
    (told,) = ahead.failures
    assert "kernel='none'" in told


class Rehearsal(Clock):
    """A trial on no card: a kernel takes its estimate, and what is asked for takes half of it."""

    def __init__(self, at: KernelMeta, favoured: Any) -> None:
        super().__init__({})
        self.at, self.favoured, self.closed = at, favoured, False

    def microseconds(self, choice: TunableChoice) -> float:
        self.timed.append(pick_of(choice))
        us = predicted_us(choice, self.at)
        assert us is not None
        return us / 2 if self.favoured(choice) else us

    def close(self) -> None:
        self.closed = True


SHAPES = tuple(
    Shape(m=m, n=n, k=k) for m, n, k in ((256, 512, 6832), (4096, 4096, 4096), (260, 520, 6832), (512, 1024, 8192))
)


def rehearsed(planner: Any, favoured: Any = lambda choice: False, **named: Any) -> tuple[Any, list[Rehearsal]]:
    trials: list[Rehearsal] = []

    def trial(at: KernelMeta, seed: int) -> Any:
        trials.append(Rehearsal(at, favoured))
        return trials[-1]

    timed = tune_shapes(planner, SHAPES, **({"contest": Contest(rounds=4), "trial": trial} | named))
    return timed, trials


def test_tuning_goes_by_what_may_be_gained_and_on_where_it_ended(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.test_plan import Counted, planner_of

    planner = planner_of(Counted())
    whole, trials = rehearsed(planner, seconds=100.0)
    assert (len(whole.outcomes), whole.left) == (4, 0)
    order = [shape for shape, _ in whole.outcomes]
    keys = [m.key for m in whole.measured]
    assert len(keys) == 4
    # Each class once before any a second time, and a full card's product, which has least to gain, last of those.
    assert len(set(keys[:3])) == 3
    assert keys[3] in keys[:3]
    assert order[2] == SHAPES[1]
    for t, m in zip(trials, whole.measured, strict=True):
        assert t.closed
        assert set(m.halves) <= set(t.timed)
        assert m.default in m.halves
        assert 2 <= len(set(t.timed)) <= MOST_TIMED + 1
    kept: list[int] = []
    first, _ = rehearsed(planner, seconds=0.0, keep=lambda timed: kept.append(len(timed.outcomes)))
    assert ([s for s, _ in first.outcomes], first.left, kept) == (order[:1], 3, [1])
    rest, _ = rehearsed(planner, seconds=100.0, start=1)
    assert ([s for s, _ in rest.outcomes], rest.left) == (order[1:], 0)


def test_what_tuning_found_is_read_back_and_chosen(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from gemmdesc.plan import Plan, Planner
    from tests.test_plan import SETTINGS, Counted, made, planner_of, sample_profile

    timed, _ = rehearsed(planner_of(Counted()), lambda choice: choice.config.block_n == 64, seconds=100.0)
    rows = settle(timed.measured)
    assert rows
    path = tuned_path(tmp_path, H200)
    write_tuned(Tuned(device=H200, provenance=PROVENANCE, rows=rows), path)
    table = read_tuned(path).table
    planner = Planner(Counted().open, lambda device, library: sample_profile(), tuned=lambda device: table)
    picked = []
    for shape in SHAPES:
        plan = made(planner.plan_mm(*shape.metas(), SETTINGS))
        assert isinstance(plan, Plan)
        turned = plan.meta.swapped if plan.kernel.swapped else plan.meta  # type: ignore[union-attr]
        for pick in table.find(key_of(plan.kernel, plan.meta), turned)[:1]:  # type: ignore[arg-type]
            picked.append(pick_of(plan.kernel) == pick)  # type: ignore[arg-type]
    assert picked
    assert all(picked)
    # The order does not depend on what a table says, so that a run can be gone on with after it.
    again, _ = rehearsed(planner, seconds=100.0)
    assert [s for s, _ in again.outcomes] == [s for s, _ in timed.outcomes]


def test_what_declines_comes_last_and_what_is_hopeless_is_not_timed() -> None:
    refused = Declined(code="kernel", reason="none")
    desc, at, _ = aligned()
    choices = competing(desc, at, CARD)
    assert not isinstance(choices, Declined)
    near = worth_timing(choices, at)
    assert near[0] == choices[0]
    assert 2 <= len(near) < len(choices)
    estimates = [us for c in near[1:] if (us := predicted_us(c, at)) is not None]
    assert len(estimates) == len(near) - 1
    assert estimates == sorted(estimates)
    assert estimates[-1] <= WITHIN * estimates[0]
    candidate = Candidate(shape=SHAPES[0], desc=desc, meta=at, choices=near)
    ordered = by_gain([(SHAPES[1], refused), (SHAPES[0], candidate)])
    assert [shape for shape, _ in ordered] == [SHAPES[0], SHAPES[1]]
    # Kernels that there is no estimate for all compete.
    for name in ("float8", "float32", "small"):
        d, (m, n, k) = CASES[name]
        every = competing(d, meta(d, m, n, k), CARD)
        assert not isinstance(every, Declined)
        assert worth_timing(every, meta(d, m, n, k)) == every
