"""Tuning on a CUDA card: which descriptors the library's answers lead to, and in which order they are timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import monotonic
from typing import TYPE_CHECKING

from gemmdesc.books import Shape
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.competing import (
    MOST_TIMED,
    WITHIN,
    TunableChoice,
    competing,
    key_of,
    pick_of,
    room,
    worth_timing,
)
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tuned import TunedKey
from gemmdesc.kernels.variant import Variant
from gemmdesc.tuning.card_trial import CardTrial
from gemmdesc.tuning.search import HOPELESS, Measured, beside, measure
from gemmdesc.tuning.times import TimedProduct

if TYPE_CHECKING:
    from gemmdesc.library.torch_settings import TorchSettings
    from gemmdesc.plan import Plan, Planner


#: Products whose kernels are compiled while one is timed.
_NEXT = 2


@dataclass(frozen=True, kw_only=True)
class Contest:
    """How configs compete for a product.

    ``rounds``: turns of each that are counted.  ``most``, ``within``: how many come beside the default, and by what
    factor their estimates may be longer than the least (:func:`gemmdesc.kernels.competing.worth_timing`).
    ``hopeless``: by what factor one may be slower than the fastest in the first rounds.

    Raises:
        InvalidInputError: fewer than 2 rounds, none beside the default, or a factor below 1.
    """

    rounds: int = 8
    most: int = MOST_TIMED
    within: float = WITHIN
    hopeless: float = HOPELESS

    def __post_init__(self) -> None:
        for name, least in (("rounds", 2), ("most", 1), ("within", 1.0), ("hopeless", 1.0)):
            if not getattr(self, name) >= least:
                raise InvalidInputError(f"{name} must be at least {least} (got {getattr(self, name)})")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Products in order, each timed or declined; ``left``: how many there was no time for."""

    outcomes: tuple[tuple[Shape, Measured | Declined], ...]
    left: int

    @property
    def measured(self) -> tuple[Measured, ...]:
        return tuple(m for _, m in self.outcomes if isinstance(m, Measured))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A product that can be tuned: what of its descriptor is worth timing, the default first."""

    shape: Shape
    desc: GEMMDesc
    meta: KernelMeta
    choices: tuple[TunableChoice, ...]

    @property
    def key(self) -> TunedKey:
        return key_of(self.choices[0], self.meta)


def tune_shapes(
    planner: Planner,
    shapes: Iterable[Shape],
    *,
    seconds: float,
    contest: Contest | None = None,
    start: int = 0,
    done: Collection[Shape] = (),
    seed: int = 0,
    report: Callable[[str, int, int | None], None] = lambda phase, done, total: None,
    ahead: Callable[[Iterable[Variant]], None] = lambda variants: None,
    soon: Callable[[Iterable[Variant]], None] = lambda variants: None,
    keep: Callable[[Timed], None] = lambda timed: None,
    trial: Callable[[KernelMeta, int], CardTrial] | None = None,
) -> Timed:
    """Time what is worth it for the descriptor of each of ``shapes`` under torch's settings, until the time is over.

    They come in the order of :func:`by_gain`, whatever tables hold, so that ``start`` goes on behind what was timed;
    of the rest those in ``done`` are left out.  A product that is listed under several labels is timed once.
    ``ahead``: compiles the kernels of a product before its trials, such as :class:`gemmdesc.tuning.ahead.Ahead`;
    ``soon``: begins to compile those of the products that come next, meanwhile.
    ``keep``: told of all so far after each product.  ``trial``: makes a trial of a product and a seed.
    A product of several orders declines, as do an ``out_dtype`` that ``torch.mm`` does not take, and those that
    :func:`gemmdesc.tuning.search.measure` declines.

    Raises:
        CaptureError: a CUDA graph is being captured.
    """
    from gemmdesc.library.torch_settings import read_settings

    contest = contest or Contest()
    products: dict[Shape, Shape] = {}
    for shape in shapes:
        products.setdefault(unlabelled(shape), shape)
    listed, began, settings = tuple(products.values()), monotonic(), read_settings(planner.device.sm)
    found = []
    for shape in listed:
        found.append((shape, _candidate(shape, _planned(planner, shape, settings), contest)))
        report("planning", len(found), len(listed))
    timed_before = {unlabelled(shape) for shape in done}
    ordered = [pair for pair in by_gain(found)[start:] if unlabelled(pair[0]) not in timed_before]
    outcomes: list[tuple[Shape, Measured | Declined]] = []
    for place, (shape, candidate) in enumerate(ordered):
        if outcomes and monotonic() - began > seconds:
            break
        for _, near in ordered[place : place + 1 + _NEXT]:
            if isinstance(near, Candidate):
                soon(_variants(near))
        tuned = candidate if isinstance(candidate, Declined) else _tune(candidate, seed, contest, ahead, planner, trial)
        outcomes.append((shape, tuned))
        keep(Timed(outcomes=tuple(outcomes), left=len(ordered) - len(outcomes)))
        report("tuning", len(outcomes), len(ordered))
    return Timed(outcomes=tuple(outcomes), left=len(ordered) - len(outcomes))


def unlabelled(shape: Shape) -> Shape:
    """The product itself, whatever people call it."""
    return replace(shape, label="")


def defaulted(planner: Planner, timed: Sequence[TimedProduct]) -> tuple[TimedProduct, ...]:
    """What was timed, beside what the model chooses today, which may have been another choice then.

    A product that declines today stays as it was.
    """
    from gemmdesc.library.torch_settings import read_settings

    settings = read_settings(planner.device.sm)
    found = []
    for one in timed:
        candidate = _candidate(one.shape, _planned(planner, one.shape, settings), Contest())
        known = isinstance(candidate, Candidate) and candidate.key == one.measured.key
        default = pick_of(candidate.choices[0]) if known else one.measured.default  # type: ignore[union-attr]
        found.append(replace(one, measured=beside(one.measured, default)))
    return tuple(found)


def by_gain(
    found: Iterable[tuple[Shape, Candidate | Declined]],
) -> tuple[tuple[Shape, Candidate | Declined], ...]:
    """One product of each class before a second of any, those with most room before others; what declines comes last.

    Room is the part of the estimated time that neither a launch nor the work's least explains.
    """
    listed = list(found)
    rooms = {
        shape: room(c.choices[0], c.meta) if isinstance(c, Candidate) and len(c.choices) > 1 else -1.0
        for shape, c in listed
    }
    listed.sort(key=lambda pair: -rooms[pair[0]])
    met: Counter[TunedKey] = Counter()
    turns: dict[Shape, int] = {}
    for shape, candidate in listed:
        if isinstance(candidate, Candidate):
            turns[shape] = met[candidate.key]
            met[candidate.key] += 1
    return tuple(sorted(listed, key=lambda pair: turns.get(pair[0], len(listed))))


def _planned(planner: Planner, shape: Shape, settings: TorchSettings) -> Plan | Declined:
    try:
        return planner.plan_mm(*shape.metas(), settings)
    except InvalidInputError as error:
        return Declined(code="out_of_scope", reason=f"torch.mm has no such product: {error}")


def _candidate(shape: Shape, plan: Plan | Declined, contest: Contest) -> Candidate | Declined:
    from gemmdesc.plan.cards import card_arithmetic

    if isinstance(plan, Declined):
        return plan
    wanted = kernel_descriptor(plan)
    if isinstance(wanted, Declined):
        return wanted
    choices = competing(wanted, plan.meta, card_arithmetic(plan.device.sm))
    if isinstance(choices, Declined):
        return choices
    worth = worth_timing(choices, plan.meta, most=contest.most, within=contest.within)
    return Candidate(shape=shape, desc=wanted, meta=plan.meta, choices=worth)


def _tune(
    candidate: Candidate, seed: int, contest: Contest, ahead: Callable[[Iterable[Variant]], None], planner: Planner,
    trial: Callable[[KernelMeta, int], CardTrial] | None,
) -> Measured | Declined:  # fmt: skip
    from gemmdesc.plan.cards import card_arithmetic

    meta, random = candidate.meta, Random(seed)
    ahead(_variants(candidate))
    made = (trial or _on_card)(meta, random.randrange(1 << 30))
    try:
        card = card_arithmetic(planner.device.sm)
        return measure(
            candidate.desc, meta, card, made, random, rounds=contest.rounds, choices=candidate.choices,
            hopeless=contest.hopeless,
        )  # fmt: skip
    finally:
        made.close()


def _variants(candidate: Candidate) -> list[Variant]:
    """Every kernel that its trials launch."""
    from gemmdesc.plan import needed_variants

    return [v for choice in candidate.choices for v in sorted(needed_variants(choice, candidate.meta), key=str)]


def _on_card(meta: KernelMeta, seed: int) -> CardTrial:
    return CardTrial(meta, seed=seed)


def kernel_descriptor(plan: Plan) -> GEMMDesc | Declined:
    """What the plan's kernel computes, in the kernels' terms; declines where the product has several orders."""
    from gemmdesc.plan.cards import card_arithmetic
    from gemmdesc.plan.decide import kernel_region

    if len(plan.regions) != 1:
        reason = f"products of one order are tuned (got {len(plan.regions)} regions)"
        return Declined(code="out_of_scope", reason=reason)
    return kernel_region(plan.regions[0], card_arithmetic(plan.device.sm), transposed=plan.transposed).descriptor
