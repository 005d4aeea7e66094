"""What was decided about a call, and how it is known, for a person or as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from gemmdesc.errors import Declined
from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.finished import FinishedChoice
from gemmdesc.kernels.fma import FmaChoice
from gemmdesc.kernels.fused import FusedChoice
from gemmdesc.kernels.kmajor import KMajorChoice
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.tiled import Choice, TiledChoice
from gemmdesc.plain import to_plain
from gemmdesc.plan.values import Plan
from gemmdesc.plan.words import regions_in_words
from gemmdesc.problem import DeviceId, LibraryId
from gemmdesc.text import to_text


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One call explained; ``str`` gives readable text, :meth:`to_json` the same as data.

    ``outcome`` is what planning gave.  ``sizes``: the (m, k) and (k, n) of the call.
    """

    sizes: tuple[tuple[int, int], tuple[int, int]]
    outcome: Plan | Declined
    library: LibraryId
    device: DeviceId

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The library's kernels: of this very launch where it is known, else all that the row's evidence saw."""
        if isinstance(self.outcome, Declined):
            return ()
        launch = self.outcome.launch
        return launch.names if launch is not None else self.outcome.row.evidence.launch_names

    @property
    def families(self) -> tuple[str, ...]:
        """The families of :attr:`kernel_names`: each name's first word."""
        return tuple(dict.fromkeys(kernel_family(name) for name in self.kernel_names))

    def __str__(self) -> str:
        (m, k), (_, n) = self.sizes
        title = f"({m}, {k}) x ({k}, {n}) on {self.device.name or self.device.sm}, cuBLASLt {self.library.version}"
        if isinstance(self.outcome, Declined):
            return f"{title}\ndeclined ({self.outcome.code}): {self.outcome.reason}"
        lines = [title, *(f"{label:<12}{text}" for label, text in self._rows(self.outcome))]
        return "\n".join(lines)

    def _rows(self, plan: Plan) -> list[tuple[str, str]]:
        clauses = regions_in_words(plan.regions, plan.problem.k)
        names = f"{', '.join(self.families)} ({', '.join(self.kernel_names)})" if self.kernel_names else "not recorded"
        rows = [
            ("library", names),
            ("answer", " ".join(f"{name}={value}" for name, value in plan.row.key.answer) or "any"),
            *(("order" if i == 0 else "", clause) for i, clause in enumerate(clauses)),
            ("evidence", _evidence(plan)),
            ("our kernel", _kernel(plan.kernel)),
        ]
        if plan.reference is not None:
            rows.insert(0, ("pinned", f"to {_pin(plan)}: rows have its order, whatever the batch"))
        if plan.lost_tail:
            rows.append(("lost tail", f"the last {plan.lost_tail} k are in no sum, as in the library"))
        return rows

    def to_json(self) -> str:
        """One JSON object; numbers, names and canonical texts."""
        shapes = [list(shape) for shape in self.sizes]
        data: dict[str, Any] = {"sizes": shapes, "library": to_plain(self.library), "device": to_plain(self.device)}
        if isinstance(self.outcome, Declined):
            data |= {"declined": {"code": self.outcome.code, "reason": self.outcome.reason}}
        else:
            data |= _plan_data(self.outcome)
            data |= {"kernels": list(self.kernel_names), "families": list(self.families)}
        return json.dumps(data, indent=1)


def explain_outcome(
    sizes: tuple[tuple[int, int], tuple[int, int]], outcome: Plan | Declined, library: LibraryId, device: DeviceId
) -> Explanation:
    """The explanation of one planned call, ``sizes`` being its (m, k) and (k, n)."""
    return Explanation(sizes=sizes, outcome=outcome, library=library, device=device)


def kernel_family(name: str) -> str:
    """A kernel's namespaces and the first word of its name: ``nvjet``, ``cutlass``, ``cublasLt::splitKreduce``.

    ``name``: as the driver or a profiler gives it, mangled or not, without its template arguments.
    """
    *spaces, last = _parts(name)
    return "::".join([*spaces, last.lstrip("_").partition("_")[0] or last])


def _parts(name: str) -> list[str]:
    """The names between the colons; a mangled name holds each behind its length."""
    if not name.startswith("_Z"):
        return name.removeprefix("void ").split("<")[0].split("(")[0].split("::")
    parts, rest = [], re.sub(r"^_ZN?", "", name)
    while (length := re.match(r"\d+", rest)) is not None:
        end = length.end() + int(length[0])
        parts.append(rest[length.end() : end])
        rest = rest[end:]
    return parts or [name]


def _evidence(plan: Plan) -> str:
    seen = plan.row.evidence
    text = (
        f"{seen.level.value}: {seen.shapes} shapes, {seen.draws} draws, {seen.mismatches} different, "
        f"{seen.excluded_rivals} rival rules excluded (profile {plan.digest[:12]})"
    )
    outside = plan.outside_evidence
    return f"{text}; {', '.join(outside)} outside the range seen" if outside else text


def _pin(plan: Plan) -> str:
    """The reference's sizes, in the terms of the product that runs."""
    p = plan.reference
    assert p is not None
    m, n = (p.n, p.m) if plan.transposed else (p.m, p.n)
    batch = f", {p.batch_count} of them" if p.batch_count > 1 else ""
    return f"({m}, {p.k}) x ({p.k}, {n}){batch}"


def _kernel(kernel: Choice) -> str:
    if isinstance(kernel, TiledChoice):
        return "; ".join(f"{_span(part.rows)} x {_span(part.columns)}: {_kernel(part.choice)}" for part in kernel.parts)
    if isinstance(kernel, BalancedChoice):
        chains = ", ".join(f"{run.count} slices by {_kernel(run.chain)}" for run in kernel.runs)
        return f"{kernel.structure.value}: {chains}, {len(kernel.folds)} folds"
    if isinstance(kernel, NestChoice):
        tile = f"{kernel.config.block_outputs} outputs x {kernel.config.block_leaves} chains"
        return f"{kernel.structure.value}, {tile}, {len(kernel.folds)} folds"
    if isinstance(kernel, LaneChoice):
        tile = f"{kernel.form.outputs} outputs x {kernel.form.lanes} lanes"
        read = f"read {kernel.form.read.name.lower()}"
        return f"{kernel.structure.value}, {tile}, {read}, {kernel.programs} programs for each tile"
    if isinstance(kernel, FinishedChoice):
        done = kernel.opening.count + kernel.steps.count
        turned = ", transposed product" if kernel.swapped else ""
        return f"{kernel.structure.value}: sums by {_kernel(kernel.sums)}; their last fold and {done} steps{turned}"
    if isinstance(kernel, FusedChoice):
        by = f"{_kernel(kernel.product)}{' to its end' if kernel.in_chain else ', then'}"
        return f"{kernel.structure.value}: {by}, {kernel.program.count} steps"
    c = kernel.config
    parts = [f"{kernel.structure.value}, tiles {c.block_m}x{c.columns}x{c.block_k}"]
    if isinstance(kernel, KMajorChoice):
        slices, packed = kernel.blocks.slices, kernel.packings is not None
    elif isinstance(kernel, FmaChoice):
        slices, packed = kernel.count, False
    else:
        slices, packed = kernel.slices.count, kernel.packing is not None
    if slices > 1:
        parts.append(f"{slices} slices")
    if packed:
        parts.append("operands repacked")
    if not isinstance(kernel, FmaChoice) and kernel.swapped:
        parts.append("transposed product")
    return ", ".join(parts)


def _span(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]}..{bounds[1] - 1}"


def _plan_data(plan: Plan) -> dict[str, Any]:
    seen = plan.row.evidence
    return {
        "problem": to_plain(plan.problem),
        "answer": to_plain(plan.answer),
        "descriptor": to_text(plan.descriptor),
        "order": list(regions_in_words(plan.regions, plan.problem.k)),
        "regions": [
            {"m": [r.row_begin, r.row_end], "n": [r.column_begin, r.column_end], "descriptor": to_text(r.descriptor)}
            for r in plan.regions
        ],
        "rule": plan.rule.text,
        "evidence": {
            "level": seen.level.value,
            "shapes": seen.shapes,
            "draws": seen.draws,
            "mismatches": seen.mismatches,
            "excluded_rivals": seen.excluded_rivals,
            "outside": list(plan.outside_evidence),
        },
        "kernel": {"structure": plan.kernel.structure.value, "text": _kernel(plan.kernel)},
        "lost_tail": plan.lost_tail,
        "profile_digest": plan.digest,
        "pinned_to": None if plan.reference is None else to_plain(plan.reference),
    }
