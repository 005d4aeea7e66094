"""Campaign values as JSON records and back, and rules rewritten for other types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gemmdesc.descriptor import CastTo, Cut, EpilogueStep, FusedDot, GEMMDesc, ScaleOutput
from gemmdesc.dtypes import DType
from gemmdesc.plain import to_plain
from gemmdesc.probe.answers import AnswerKey, Types, key_from_plain, key_to_plain
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.examples import Variant
from gemmdesc.probe.facets import Kind
from gemmdesc.probe.outcomes import ClassOutcome
from gemmdesc.probe.projection import Row, Solved
from gemmdesc.probe.reading import reading_from_plain, reading_to_plain
from gemmdesc.probe.shared import shared_from_plain, shared_to_plain
from gemmdesc.probe.trials import Verified
from gemmdesc.problem import DeviceId, LibraryId, LibraryVersion, Transpose, is_float8
from gemmdesc.rule import Rule, parse_rule

if TYPE_CHECKING:
    from gemmdesc.probe.campaign import Options


def identity(library: LibraryId, device: DeviceId, options: Options) -> dict[str, Any]:
    """What must not change between a campaign's sessions."""
    scope = options.scope
    return {
        "library": [str(library.version), library.build_id],
        "device": [device.sm, device.sm_count, device.mig],
        "seed": options.seed,
        "dtypes": [d.value for d in scope.dtypes],
        "regimes": [r.value for r in scope.regimes],
        "output_float32": scope.output_float32,
        "workspace_limit_bytes": scope.workspace_limit_bytes,
        "misaligned_share": scope.misaligned_share,
        # Campaigns of before there were kinds go on.
        **({} if scope.kind is Kind.PLAIN else {"kind": scope.kind.value}),
        **({} if options.compared_answers is None else {"compared_answers": options.compared_answers}),
    }


def session_to_plain(library: LibraryId, device: DeviceId, first_guesses: str = "") -> dict[str, Any]:
    """Whom a session of a campaign asked, in full, and whose rows of another build it began with, if any."""
    guessed = {"first_guesses": first_guesses} if first_guesses else {}
    return {"library": to_plain(library), "device": to_plain(device), **guessed}


def session_from_plain(data: dict[str, Any]) -> tuple[LibraryId, DeviceId]:
    """The library and device that :func:`session_to_plain` wrote."""
    library = dict(data["library"])
    version = LibraryVersion(**library.pop("version"))
    return LibraryId(version=version, **library), DeviceId(**data["device"])


def outcome_to_plain(key: AnswerKey, outcome: ClassOutcome) -> dict[str, Any]:
    return {
        "key": key_to_plain(key),
        "rule": None if outcome.rule is None else outcome.rule.text,
        "label": outcome.label,
        "reason": outcome.reason,
        "scalar": outcome.scalar,
        "readings": [reading_to_plain(r) for r in outcome.readings],
        "checked": outcome.checked,
        "draws": outcome.draws,
        "rivals": outcome.rivals,
        **({"shared": [shared_to_plain(r) for r in outcome.shared]} if outcome.shared else {}),
    }


def outcome_from_plain(data: dict[str, Any]) -> tuple[AnswerKey, ClassOutcome]:
    return key_from_plain(*data["key"]), ClassOutcome(
        label=data["label"],
        rule=None if data["rule"] is None else parse_rule(data["rule"]),
        reason=data["reason"],
        scalar=data["scalar"],
        readings=tuple(reading_from_plain(r) for r in data["readings"]),
        checked=data["checked"],
        draws=data["draws"],
        rivals=data["rivals"],
        shared=tuple(shared_from_plain(r) for r in data.get("shared", ())),
    )


def trial_to_plain(rule: str, key: AnswerKey, given: bool, *, foretold: bool = False) -> dict[str, Any]:
    """Whether the rule with that text (or "scalar") gave a class's bytes; ``foretold``: it was not tried."""
    return {"key": key_to_plain(key), "rule": rule, "given": given, **({"foretold": True} if foretold else {})}


def key_of(data: dict[str, Any]) -> AnswerKey:
    """The answer that a record is about."""
    return key_from_plain(*data["key"])


def verified_to_plain(verified: Verified) -> dict[str, Any]:
    return {
        "key": key_to_plain(verified.key),
        "rule": verified.rule,
        "number": verified.variant.number,
        "verdict": verified.verdict.value,
        "draws": verified.draws,
        "sizes": [verified.m, verified.n, verified.k],
        "kernels": list(verified.kernels),
        "full": verified.full,
        **_made_to_plain(verified.variant),
    }


def verified_from_plain(data: dict[str, Any]) -> Verified:
    m, n, k = data["sizes"]
    return Verified(
        key=key_from_plain(*data["key"]), rule=data["rule"], variant=_variant(data), verdict=Verdict(data["verdict"]),
        draws=data["draws"], m=m, n=n, k=k, kernels=tuple(data["kernels"]), full=data["full"],
    )  # fmt: skip


def _made_to_plain(variant: Variant) -> dict[str, Any]:
    sizes = {name: size for name, size in (("m", variant.m), ("n", variant.n)) if size}
    if variant.layout is None:
        return {"k": variant.k, **sizes} if variant.k else sizes
    return {"k": variant.k, "layout": "".join(t.value for t in variant.layout), **sizes}


def _variant(data: dict[str, Any]) -> Variant:
    layout = data.get("layout")
    stored = None if layout is None else (Transpose(layout[0]), Transpose(layout[1]))
    sizes = {name: data.get(name, 0) for name in ("k", "m", "n")}
    return Variant(number=data["number"], layout=stored, **sizes)


def retyped(rule: Rule, types: Types) -> Rule:
    """The rule with operands and output of other types; what was as narrow as its output is as narrow as the new."""
    a, b, d = types

    def moved(dtype: DType) -> DType:
        return dtype if dtype is DType.FLOAT32 else _stored(d)

    def cut(level: Cut) -> Cut:
        return replace(level, partial_dtype=moved(level.partial_dtype), merge_dtype=moved(level.merge_dtype))

    def typed(desc: GEMMDesc) -> GEMMDesc:
        return replace(
            desc, a_dtype=a, b_dtype=b, output_dtype=d, cuts=tuple(cut(c) for c in desc.cuts),
            epilogue=_retyped_steps(desc.epilogue, d),
        )  # fmt: skip

    return rule.restructured(typed)


def _stored(output: DType) -> DType:
    """What sums are stored as beside an output of that type: the type itself, or that of C where it has 8 bits."""
    return DType.FLOAT16 if is_float8(output) else output


def _retyped_steps(steps: tuple[EpilogueStep, ...], output: DType) -> tuple[EpilogueStep, ...]:
    """The epilogue for another output: casts go to its type, and an 8-bit one has a scale of its own."""
    kept = tuple(
        CastTo(dtype=_stored(output)) if isinstance(s, CastTo) else s for s in steps if not isinstance(s, ScaleOutput)
    )
    return (*kept, ScaleOutput()) if is_float8(output) else kept


def with_zero_exponent(rule: Rule, zero_exponent: int) -> Rule:
    """The rule with another exponent for an exact zero in its fused step, if it has one."""

    def floored(desc: GEMMDesc) -> GEMMDesc:
        leaf = desc.accumulator
        if not isinstance(leaf.step, FusedDot):
            return desc
        step = replace(leaf.step, zero_exponent=zero_exponent)
        return replace(desc, accumulator=replace(leaf, step=step))

    return rule.restructured(floored)


def rows_to_plain(rows: Sequence[Row]) -> dict[str, Any]:
    """All rows of a campaign at one moment."""
    return {
        "rows": [
            {
                "key": key_to_plain(r.key),
                "classes": [key_to_plain(c) for c in r.classes],
                "named": list(r.named),
                "rule": None if r.solved.rule is None else r.solved.rule.text,
                "reason": r.solved.reason,
            }
            for r in rows
        ]
    }


def rows_from_plain(data: dict[str, Any]) -> list[Row]:
    """The rows that :func:`rows_to_plain` wrote."""
    return [
        Row(
            key=key_of(r),
            classes=tuple(key_from_plain(*c) for c in r["classes"]),
            named=tuple(r["named"]),
            solved=Solved(rule=None if r["rule"] is None else parse_rule(r["rule"]), reason=r["reason"]),
        )
        for r in data["rows"]
    ]
