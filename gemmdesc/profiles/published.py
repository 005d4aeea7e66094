"""Profiles of cards that were not at hand, from published tables: the evidence level ``published``.

The tables, with their citation and what was left out of them, are in ``published.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gemmdesc.arithmetic.models import load_models
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    ScalarStep,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.expressions import Const, Expr, Var, call
from gemmdesc.problem import AlgoConfig, DeviceId, LibraryId, LibraryVersion, dense_problem
from gemmdesc.profiles.evidence import Evidence, Example, Level, Range
from gemmdesc.profiles.keys import RowKey, family_of, project
from gemmdesc.profiles.schema import DeclineOutcome, Metadata, Outcome, Profile, ProfileRow, RuleOutcome, Scan
from gemmdesc.rule import make_rule

#: What a row's key names, by the kind of kernel.
_CHAINED_KEY = ("algo_id", "stages_id")
_GROUPED_KEY = ("algo_id", "reduction_scheme", "stages_id")
_SCALAR_KEY = ("algo_id", "custom_option")
_ANSWER_KEY = ("algo_id", "reduction_scheme", "custom_option", "stages_id")
_COMMAND = "scripts/make_published_profiles.py"


def load_tables() -> dict[str, Any]:
    """The packaged data file."""
    text = resources.files("gemmdesc.profiles").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def published_profiles() -> tuple[Profile, ...]:
    """One profile for each card and release of the tables."""
    tables = load_tables()
    found = []
    for card in tables["profiles"]:
        rows = published_rows(tables, card)
        for release in card["releases"]:
            device = DeviceId(sm=card["sm"], sm_count=card["sm_count"])
            library = LibraryId(version=LibraryVersion.parse(release), build_id="")
            metadata = Metadata(
                command=f"{_COMMAND}: {tables['source']}", date=tables["date"], answer_key=_ANSWER_KEY,
                excluded_attributes=(),
                scan=Scan(queries=0, distinct_answers=0, unseen_mass=1.0, queries_per_second=0.0),
            )  # fmt: skip
            found.append(Profile(device=device, library=library, metadata=metadata, rows=rows))
    return tuple(found)


def published_rows(tables: dict[str, Any], card: dict[str, Any]) -> tuple[ProfileRow, ...]:
    """The rows of one of the tables' ``profiles``; ``card`` holds its ``sm`` and ``architecture``."""
    return tuple(_Rows(tables, card).all())


def left_out() -> tuple[tuple[str, str], ...]:
    """What was published, or half published, and stands in no row: what, and why."""
    return tuple((entry["what"], entry["why"]) for entry in load_tables()["left_out"])


@dataclass(frozen=True, kw_only=True)
class _Level:
    """One cut of a rule; ``size`` is its span, or its count where ``unit`` is given."""

    size: Expr
    unit: Expr | None = None
    partial: DType = DType.FLOAT32
    merge: DType = DType.FLOAT32


class _Rows:
    """The rows of one card."""

    def __init__(self, tables: dict[str, Any], card: dict[str, Any]) -> None:
        self._tables, self._card = tables, card

    def all(self) -> Iterator[ProfileRow]:
        for table in self._tables["chained"]:
            yield from self._chained(table)
        for table in self._tables["grouped"]:
            yield from self._grouped(table)
        for table in self._tables["chunked"]:
            yield from self._chunked(table)
        for table in self._tables["lanes"]:
            yield from self._lanes(table)

    def _chained(self, table: dict[str, Any]) -> Iterator[ProfileRow]:
        grain = table["grain"]
        chunk = _chunk(Const(grain))
        for dtype in map(DType, table["types"]):
            gate = _all(_not_transposed(), _keeps_tail(grain), _fits(chunk, strictly=True))
            outcome = self._fused(dtype, table["products_per_step"], None, [_Level(size=chunk)], gate)
            for algo_id in table["algo_ids"]:
                for stages_id in table["stages_ids"]:
                    answer = _answer(algo_id=algo_id, stages_id=stages_id)
                    yield self._row(dtype, answer, _CHAINED_KEY, outcome)

    def _grouped(self, table: dict[str, Any]) -> Iterator[ProfileRow]:
        aligned = call("select", call("mod", "k", table["grain"]), table["unaligned_grain"], table["grain"])
        chunk = _chunk(aligned)
        gate = _all(_not_transposed(), _fits(chunk, strictly=False))
        for dtype in map(DType, table["types"]):
            for scheme in table["schemes"]:
                partial, merge = (_type(scheme[name], dtype) for name in ("partial", "running_sum"))
                levels = [_Level(size=chunk, partial=partial, merge=merge)]
                for stages in table["stages"]:
                    outcome = self._fused(dtype, stages["products_per_step"], stages["block_k"], levels, gate)
                    for algo_id in stages.get("algo_ids", table["algo_ids"]):
                        for stages_id in stages["ids"]:
                            answer = _answer(
                                algo_id=algo_id, stages_id=stages_id, reduction_scheme=scheme["reduction_scheme"]
                            )
                            yield self._row(dtype, answer, _GROUPED_KEY, outcome)

    def _chunked(self, table: dict[str, Any]) -> Iterator[ProfileRow]:
        gate = _all(_not_transposed(), _no_split())
        for dtype in map(DType, table["types"]):
            for recipe in table["recipes"]:
                sizes = [call("ceildiv", "k", recipe["chunks"])] if recipe["chunks"] > 1 else []
                sizes += [Const(recipe["block"])] if recipe["block"] else []
                outcome = _scalar(dtype, [_Level(size=size) for size in sizes], gate)
                answer = _answer(algo_id=recipe["algo_id"], custom_option=recipe["custom_option"])
                yield self._row(dtype, answer, _SCALAR_KEY, outcome)

    def _lanes(self, table: dict[str, Any]) -> Iterator[ProfileRow]:
        gate = _all(_not_transposed(), _vector())
        for dtype in map(DType, table["types"]):
            for recipe in table["recipes"]:
                if self._card["sm"] not in recipe.get("sm", [self._card["sm"]]):
                    continue
                outcome = _scalar(dtype, _lane_levels(recipe), gate)
                for option in recipe["options"]:
                    answer = _answer(algo_id=table["algo_id"], custom_option=option)
                    yield self._row(dtype, answer, _SCALAR_KEY, outcome)

    def _fused(
        self, dtype: DType, products: int, block_k: int | None, levels: Sequence[_Level], gate: Expr
    ) -> Outcome:
        """A rule of matrix steps; a decline where the arithmetic of this card's steps is not known."""
        step = _matrix_step(self._card["architecture"], dtype)
        if step is None:
            reason = (
                f"how k is cut is published for {self._card['sm']}, the arithmetic of one step of its matrix "
                "instructions is not"
            )
            return DeclineOutcome(declined=Declined(code="no_rule", reason=reason))
        residue = ResidueLast() if block_k is None else ResidueFirst(k_loop_step=block_k)
        leaf = Accumulator(instruction_k=products, residue=residue, step=step)
        return _rule(dtype, leaf, levels, call("mul", products, gate))

    def _row(self, dtype: DType, answer: AlgoConfig, key: tuple[str, ...], outcome: Outcome) -> ProfileRow:
        """A row without measurements: its example only states the family, the ranges are those of the publication."""
        problem = dense_problem(1, 64, 64, dtype)
        m, n, k = (Range(low=low, high=high) for low, high in (self._tables[name] for name in ("m", "n", "k")))
        evidence = Evidence(
            level=Level.PUBLISHED, shapes=0, draws=0, mismatches=0, excluded_rivals=0, nondeterministic=0, m=m, n=n,
            k=k, splitk=Range(low=1, high=1), launch_names=(), example=Example(problem=problem, answer=answer),
        )  # fmt: skip
        row_key = RowKey(family=family_of(problem), answer=project(answer, key))
        return ProfileRow(key=row_key, outcome=outcome, evidence=evidence)


def _lane_levels(recipe: dict[str, Any]) -> list[_Level]:
    """Slices of split-K, then lanes, then chunks in a lane."""
    lanes, size = recipe["lanes"], call("ceildiv", "k", "splitk_num")
    unit: Expr = Const(1) if recipe["unit"] == "1" else call("min", 64, call("ceildiv", size, lanes))
    levels = [_Level(size=size)]
    if lanes > 1 and recipe["fold"] == "butterfly":
        # Counting down, the last addition is that of the even lanes' sum and the odd lanes'.
        levels += [_Level(size=Const(2), unit=unit)] * (lanes.bit_length() - 1)
    elif lanes > 1:
        levels.append(_Level(size=Const(lanes), unit=unit))
    if recipe["chunk"]:
        levels.append(_Level(size=call("mul", recipe["chunk"], unit)))
    return levels


def _scalar(dtype: DType, levels: Sequence[_Level], gate: Expr) -> Outcome:
    leaf = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))
    return _rule(dtype, leaf, levels, gate)


def _rule(dtype: DType, leaf: Accumulator, levels: Sequence[_Level], steps: Expr) -> RuleOutcome:
    """``steps``: products of a step where the rule applies, else 0, which no descriptor can have: the rule declines."""
    cuts, sizes = [], dict[str, Expr]()
    for at, level in enumerate(levels):
        layout = Contiguous(span=1) if level.unit is None else Strided(count=1, unit=1)
        cuts.append(
            Cut(layout=layout, partial_dtype=level.partial, merge_dtype=level.merge, start=Start.FIRST)
        )
        if level.unit is None:
            sizes[f"cuts.{at}.layout.span"] = level.size
        else:
            sizes |= {f"cuts.{at}.layout.count": level.size, f"cuts.{at}.layout.unit": level.unit}
    desc = GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=dtype, summed_k=1, cuts=tuple(cuts), accumulator=leaf
    )
    return RuleOutcome(rule=make_rule(desc, {"summed_k": Var("k"), "accumulator.instruction_k": steps, **sizes}))


def _matrix_step(architecture: str, dtype: DType) -> FusedDot | None:
    """What all matrix instructions of an architecture do in one step on such operands, where they agree."""
    steps = {
        model.step
        for model in load_models()
        if (model.architecture, model.a_dtype, model.b_dtype) == (architecture, dtype, dtype)
        and model.accumulator_dtype is DType.FLOAT32
    }
    return steps.pop() if len(steps) == 1 else None


def _answer(algo_id: int, *, stages_id: int = 0, reduction_scheme: int = 0, custom_option: int = 0) -> AlgoConfig:
    return AlgoConfig(
        algo_id=algo_id, tile_id=0, splitk_num=1, reduction_scheme=reduction_scheme, cta_swizzling=0,
        custom_option=custom_option, stages_id=stages_id, inner_shape_id=0, cluster_shape_id=0,
    )  # fmt: skip


def _type(name: str, output: DType) -> DType:
    return output if name == "output" else DType(name)


def _chunk(grain: Expr) -> Expr:
    """ceil(ceil(k / grain) / s) x grain."""
    return call("mul", call("ceildiv", call("ceildiv", "k", grain), "splitk_num"), grain)


def _all(first: Expr, *others: Expr) -> Expr:
    """1 where every factor is, else 0."""
    for factor in others:
        first = call("mul", first, factor)
    return first


def _not_transposed() -> Expr:
    return call("select", "transa", 0, call("select", "transb", 0, 1))


def _no_split() -> Expr:
    return call("floordiv", 1, "splitk_num")


def _vector() -> Expr:
    return call("floordiv", 1, call("min", "m", "n"))


def _keeps_tail(grain: int) -> Expr:
    """0 where the tail is lost (t of k = q grain + t, with s dividing q and s above t > 0), or s is above the grain."""
    whole, tail = call("floordiv", "k", grain), call("mod", "k", grain)
    kept = call("select", tail, call("min", 1, call("floordiv", tail, "splitk_num")), 1)
    return _all(
        call("select", call("mod", whole, "splitk_num"), 1, kept),
        call("min", 1, call("floordiv", grain, "splitk_num")),
    )


def _fits(chunk: Expr, *, strictly: bool) -> Expr:
    """Whether one slice is shorter than k (``strictly``), or not longer, or nothing is split."""
    shorter = call("floordiv", call("ceildiv", "k", chunk), 2) if strictly else call("floordiv", "k", chunk)
    return call("select", _no_split(), 1, call("min", 1, shorter))
