"""Picks of exact sizes: which pick comes first, what settles on them, and how they are stored and joined.  No card."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError, ProfileError
from gemmdesc.kernels.choose import KernelChoice, configs_of
from gemmdesc.kernels.competing import (
    CLASS,
    EXACT,
    MODEL,
    TunableChoice,
    chosen_by,
    competing,
    key_of,
    pick_of,
    predicted_us,
    sizes_of,
    worth_timing,
)
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.specialised import EARLY_SPECIALISED_CONFIGS, SPECIALISED_CONFIGS, specialised_fits
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.tuned import TunedKey, TunedPick, TunedTable, size_class, tuned_table
from gemmdesc.tuning.search import LEAST_GAIN, Measured, TunedRow, beside, settle, table_of
from gemmdesc.tuning.store import TUNED_VERSION, Tuned, joined, read_tuned, write_tuned
from tests.test_tuning import BF16, CARD, CASES, CASES_AT, FP16, H200, PROVENANCE, aligned, chain, meta

Sizes = tuple[int, int, int]


def choices_of(name: str) -> tuple[GEMMDesc, KernelMeta, tuple[TunableChoice, ...]]:
    desc, at, _ = CASES_AT(name)
    choices = competing(desc, at, CARD)
    assert not isinstance(choices, Declined)
    return desc, at, choices


@pytest.mark.parametrize("name", CASES)
def test_its_own_pick_comes_before_its_classs_and_that_before_the_models(name: str) -> None:
    desc, at, choices = choices_of(name)
    shared, own = choices[-1], choices[1]
    key, sizes = key_of(shared, at), sizes_of(shared, at)
    assert sorted(sizes) == sorted((at.m, at.n, at.k))
    assert key.holds(sizes)
    table = tuned_table([(key, pick_of(shared))], [((key, sizes), pick_of(own))])
    found = choose_whole(desc, at, CARD, tuned=table)
    assert found == own
    assert chosen_by(found, at, table) == EXACT
    # A neighbour of the same class has the class's pick; without a row of the class the model's.
    m, n, k = CASES[name][1]
    near = meta(desc, m, n + 8, k) if size_class(n + 8) == size_class(n) else meta(desc, m, n - 2, k)
    beside = choose_whole(desc, near, CARD, tuned=table)
    assert isinstance(beside, TunableChoice)
    model = choose_whole(desc, near, CARD)
    allowed = {pick_of(c) for c in competing(desc, near, CARD)}  # type: ignore[union-attr]
    if pick_of(shared) in allowed:
        assert pick_of(beside) == pick_of(shared)
        assert chosen_by(beside, near, table) == CLASS
    alone = tuned_table([], [((key, sizes), pick_of(own))])
    assert choose_whole(desc, near, CARD, tuned=alone) == model
    assert chosen_by(model, near, alone) == MODEL  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_a_pick_of_its_own_that_may_not_be_chosen_leaves_its_classs(name: str) -> None:
    desc, at, choices = choices_of(name)
    key, sizes = key_of(choices[0], at), sizes_of(choices[0], at)
    foreign = KernelConfig(block_m=32, block_n=64, block_k=64, num_warps=4, num_stages=2)
    pick = TunedPick(structure=choices[0].structure, config=foreign)
    table = tuned_table([(key, pick_of(choices[-1]))], [((key, sizes), pick)])
    found = choose_whole(desc, at, CARD, tuned=table)
    assert found == choices[-1]
    assert chosen_by(found, at, table) == CLASS


def test_a_table_refuses_sizes_of_another_class_and_two_picks_of_one_product() -> None:
    _, at, choices = choices_of("aligned")
    key, sizes, pick = key_of(choices[0], at), sizes_of(choices[0], at), pick_of(choices[1])
    with pytest.raises(InvalidInputError, match="exact sizes must be of their key's class"):
        tuned_table([], [((key, (2 * sizes[0], *sizes[1:])), pick)])
    with pytest.raises(InvalidInputError, match="picks must have a key of their own"):
        tuned_table([], [((key, sizes), pick)] * 2)


class Counted(Mapping[Any, TunedPick]):
    """A mapping that counts how often it is asked."""

    def __init__(self, inner: Mapping[Any, TunedPick]) -> None:
        self.inner, self.asked = inner, 0

    def __getitem__(self, key: Any) -> TunedPick:
        self.asked += 1
        return self.inner[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


def test_a_plan_costs_one_look_up_more_at_most() -> None:
    desc, at, choices = choices_of("aligned")
    key, sizes = key_of(choices[0], at), sizes_of(choices[0], at)
    for own in ({(key, sizes): pick_of(choices[1])}, {}):
        exact, shared = Counted(MappingProxyType(own)), Counted({key: pick_of(choices[2])})
        choose_whole(desc, at, CARD, tuned=TunedTable(picks=shared, exact=exact))
        assert (exact.asked, shared.asked) == (len(own), 1)


DEFAULT, ONE, TWO, THREE = aligned()[2][:4]
KEY = key_of(choices_of("aligned")[2][0], choices_of("aligned")[1])
#: Of the class of (1024, 4096, 4096).
IN_CLASS = st.tuples(st.integers(1024, 1440), st.integers(4096, 5760), st.integers(4096, 5760))


def product(
    sizes: Sizes, halves: Mapping[TunedPick, tuple[float, float]], **given: Any
) -> Measured:
    return Measured(key=KEY, sizes=sizes, default=DEFAULT, halves={DEFAULT: (10.0, 10.0), **halves}, **given)


def shown(rows: tuple[TunedRow, ...]) -> dict[Sizes | None, TunedPick]:
    return {row.example if row.exact else None: row.pick for row in rows}


A, B, C = (1024, 4096, 4096), (1024, 4608, 4096), (1024, 5120, 4096)


def test_neighbours_that_want_other_tiles_have_rows_of_their_own() -> None:
    first = product(A, {ONE: (7.0, 7.0), TWO: (12.0, 12.0), THREE: (9.0, 9.0)})
    second = product(B, {ONE: (12.0, 12.0), TWO: (7.0, 7.0), THREE: (9.0, 9.0)})
    rows = settle([first, second])
    assert shown(rows) == {None: THREE, A: ONE, B: TWO}
    exact = {row.example: row for row in rows if row.exact}
    assert exact[A].gain == pytest.approx(10 / 7)
    assert {row.products for row in exact.values()} == {1}
    # Where no pick is shared there is none for the class; what it has is not written twice.
    assert shown(settle([product(A, {ONE: (7.0, 7.0)}), product(B, {TWO: (7.0, 7.0)})])) == {A: ONE, B: TWO}
    # One product says nothing of its neighbours.
    assert shown(settle([first])) == {A: ONE}
    assert shown(settle([first, replace(first, sizes=B)])) == {None: ONE}


def test_a_classs_pick_never_harms_a_product_that_was_timed() -> None:
    fast = {ONE: (5.0, 5.0)}
    harmed = product(C, {ONE: (10.3, 10.3)})
    rows = settle([product(A, fast), product(B, fast), harmed])
    assert shown(rows) == {None: ONE, C: DEFAULT}
    assert next(row.gain for row in rows if row.exact) == 1.0
    # Within the noise, or in one half only, it is no harm.
    for halves in ((10.05, 10.05), (10.05, 12.0), (12.0, 9.9)):
        assert shown(settle([product(A, fast), product(B, fast), product(C, {ONE: halves})])) == {None: ONE}


def test_what_had_other_bytes_on_one_product_is_none_for_its_neighbours() -> None:
    good, wrong = product(A, {ONE: (5.0, 5.0), TWO: (8.0, 8.0)}), product(B, {TWO: (8.0, 8.0)}, different=(ONE,))
    assert shown(settle([good, wrong])) == {None: TWO}
    assert settle([product(A, {ONE: (5.0, 5.0)}), product(B, {}, different=(ONE,))]) == ()


def test_what_the_model_chooses_today_is_what_a_pick_must_beat() -> None:
    timed = replace(product(A, {ONE: (7.0, 7.0), TWO: (8.0, 8.0)}), hopeless={THREE: 13.0})
    assert beside(timed, DEFAULT) == timed
    assert shown(settle([beside(timed, ONE)])) == {}
    assert shown(settle([beside(timed, TWO)])) == {A: ONE}
    slower = beside(timed, THREE)
    assert (slower.default, slower.halves[THREE], slower.hopeless) == (THREE, (13.0, 13.0), {})
    assert settle([slower])[0].gain == pytest.approx(13 / 7)
    # What was never timed cannot be compared: the choice of then stays.
    assert beside(replace(timed, hopeless={}), THREE) == replace(timed, hopeless={})


US = st.floats(min_value=1.0, max_value=30.0)
HALVES = st.dictionaries(st.sampled_from([ONE, TWO, THREE]), st.tuples(US, US), max_size=3)


@given(st.dictionaries(IN_CLASS, HALVES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_every_timed_product_has_its_fastest_pick_or_nothing_that_harms_it(
    timed: dict[Sizes, dict[TunedPick, tuple[float, float]]], random: Any
) -> None:
    members = [product(sizes, halves) for sizes, halves in timed.items()]
    rows = settle(members)
    table = table_of(rows)
    assert len(table.picks) <= 1
    for m in members:
        picks = [p for p in (table.exact.get((KEY, m.sizes)), table.picks.get(KEY)) if p is not None]
        gains = {p: min(10.0 / us for us in halves) for p, halves in m.halves.items()}
        best = max(gains.values())
        if best > (1 + LEAST_GAIN) * (1 + 1e-9):
            assert gains[picks[0]] == best
        elif picks:
            # Not slower by more than the noise in both halves, which is what a half at least is.
            assert max(10.0 / us for us in m.halves[picks[0]]) >= (1 - 1e-9) / (1 + LEAST_GAIN)
        # No row says what the next would.
        assert len(set(picks)) == len(picks)
    # The order in which products were timed moves no row.
    random.shuffle(members)
    again = settle(members)
    assert {(r.place, r.pick) for r in again if r.exact} == {(r.place, r.pick) for r in rows if r.exact}


def every_pick() -> list[TunedPick]:
    return [TunedPick(structure=s, config=c) for s in Structure for c in configs_of(s)]


SPECIALISED = st.sampled_from(SPECIALISED_CONFIGS + EARLY_SPECIALISED_CONFIGS).flatmap(
    lambda c: st.builds(
        lambda group, **kept: TunedPick(
            structure=Structure.CHAIN_SPECIALISED, config=replace(c, group_m=group, **kept)
        ),
        st.integers(1, 64), dependent=st.booleans(),
        **({} if c.whole else {"beside_n": st.sampled_from([0, 8 * c.cluster_m, c.block_n // 2])}),
        **({} if c.alone else {"store_n": st.sampled_from([32] if c.whole else [16, 32, 64, 128])}),
        **({} if c.alone else {"store_buffers": st.integers(1, 9)}),
    )
)  # fmt: skip
PICKS = st.one_of(st.sampled_from(every_pick()), SPECIALISED)
KEYS = st.builds(
    TunedKey, steps=st.sampled_from(["plain", "grouped", "kmajor", "fma"]), sliced=st.booleans(),
    a_dtype=st.sampled_from(DType), b_dtype=st.sampled_from(DType), output_dtype=st.sampled_from(DType),
    a_layout=st.sampled_from([KEY.a_layout, KEY.b_layout]), b_layout=st.sampled_from([KEY.a_layout, KEY.b_layout]),
    sizes=st.just(KEY.sizes),
)  # fmt: skip
ROWS = st.lists(
    st.builds(TunedRow, key=KEYS, pick=PICKS, gain=st.floats(1.0, 9.0), products=st.integers(1, 99), example=IN_CLASS,
              exact=st.booleans()),
    unique_by=lambda row: row.place, max_size=5,
)  # fmt: skip


@given(rows=ROWS)
def test_rows_of_all_kinds_come_back_as_they_were_written(
    rows: list[TunedRow], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tables") / "tuned.parquet"
    tuned = Tuned(device=H200, provenance=PROVENANCE, rows=tuple(rows))
    write_tuned(tuned, path)
    back = read_tuned(path)
    assert back == tuned
    for row in back.rows:
        assert type(row.pick.config) is type(next(r for r in rows if r.place == row.place).pick.config)
    assert dict(back.table.exact) == {r.place: r.pick for r in rows if r.exact}
    assert dict(back.table.picks) == {r.key: r.pick for r in rows if not r.exact}


def stored(path: Path, change: Any, version: int) -> None:
    """The table at ``path`` written again with other records and a stamp to match."""
    import hashlib

    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    stamp = json.loads(table.schema.metadata[b"gemmdesc.tuned"])
    records = [change(dict(record)) for record in table.to_pylist()]
    lines = (json.dumps(record, sort_keys=True).encode() + b"\n" for record in records)
    stamp |= {"tuned_version": version, "digest": hashlib.sha256(b"".join(lines)).hexdigest()}
    known = [field for field in table.schema if not records or field.name in records[0]]
    schema = pa.schema(known, metadata={b"gemmdesc.tuned": json.dumps(stamp).encode()})
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)


def row(sizes: Sizes, pick: TunedPick, *, exact: bool) -> TunedRow:
    return TunedRow(key=KEY, pick=pick, gain=1.5, products=1, example=sizes, exact=exact)


def test_a_table_of_the_version_before_has_classes_only(tmp_path: Path) -> None:
    path = tmp_path / "tuned.parquet"
    tuned = Tuned(device=H200, provenance=PROVENANCE, rows=(row(A, ONE, exact=False),))
    write_tuned(tuned, path)
    stored(path, lambda record: {name: x for name, x in record.items() if name != "exact"}, TUNED_VERSION - 1)
    assert read_tuned(path) == tuned
    # Each version has its own columns.
    write_tuned(tuned, path)
    stored(path, lambda record: record, TUNED_VERSION - 1)
    with pytest.raises(ProfileError, match="of version 2 or before"):
        read_tuned(path)
    write_tuned(Tuned(device=H200, provenance=PROVENANCE, rows=(row(A, ONE, exact=True),)), path)
    stored(path, lambda record: record | {"example_m": 9999}, TUNED_VERSION)
    with pytest.raises(ProfileError, match="exact sizes must be of"):
        read_tuned(path)


def test_newer_rows_of_a_place_replace_older_ones() -> None:
    def tuned(*rows: TunedRow) -> Tuned:
        return Tuned(device=H200, provenance=PROVENANCE, rows=rows)

    old = tuned(row(A, ONE, exact=False), row(A, TWO, exact=True), row(B, TWO, exact=True), row(C, THREE, exact=True))
    # A and B were timed again: A wants another pick of its own, B none.
    again = [product(A, {}), product(B, {})]
    new = tuned(row(B, TWO, exact=False), row(A, THREE, exact=True))
    assert shown(joined(old, new, again).rows) == {None: TWO, A: THREE, C: THREE}
    # The default was the fastest of all.
    assert shown(joined(old, tuned(), again).rows) == {C: THREE}
    assert shown(joined(old, tuned(), []).rows) == {None: ONE, A: TWO, B: TWO, C: THREE}


@pytest.mark.parametrize("layouts", ["rcr", "rrr", "crr"])
@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_specialised_chains_compete_with_their_dependent_twins(dtype: DType, layouts: str) -> None:
    desc = chain(2048, dtype=dtype)
    at = meta(desc, 512, 4608, 2048, layouts)
    choices = competing(desc, at, CARD)
    assert not isinstance(choices, Declined)
    own = {c.config for c in choices if c.structure is Structure.CHAIN_SPECIALISED}
    every = SPECIALISED_CONFIGS + EARLY_SPECIALISED_CONFIGS
    able = {
        c for c in every
        if specialised_fits(c, Structure.CHAIN_SPECIALISED, at, 2048) and c.shared_bytes(2, 2) <= at.shared_bytes
    }  # fmt: skip
    assert own == able
    assert {replace(c, dependent=not c.dependent) for c in own} == own
    assert {c.sharing for c in own} >= {"turns", "shared"}  # type: ignore[attr-defined]
    # There is an estimate of each, so that none is left out for the lack of one.
    estimates = [predicted_us(c, at) for c in choices if c.structure is Structure.CHAIN_SPECIALISED]
    assert all(us is not None and math.isfinite(us) for us in estimates)
    kept = worth_timing(choices, at, most=len(choices), within=math.inf)
    assert {c.config for c in kept if c.structure is Structure.CHAIN_SPECIALISED} == own
    near = [c for c in worth_timing(choices, at)[1:] if isinstance(c, KernelChoice)]
    assert any(c.structure is Structure.CHAIN_SPECIALISED for c in near)


def test_more_or_fewer_compete_as_is_asked() -> None:
    _, at, choices = choices_of("aligned")
    few, many = (worth_timing(choices, at, most=most, within=3.0) for most in (3, 60))
    assert len(few) == 4
    assert many[:4] == few
    assert len(many) > 30
    assert all(predicted_us(c, at) <= 1.02 * predicted_us(few[1], at)  # type: ignore[operator]
               for c in worth_timing(choices, at, most=60, within=1.02)[1:])  # fmt: skip
