"""What sessions come to: geometric means of groups beside their bars, as claims, and every row as Parquet."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.profiles import write_table
from gemmdesc.speed.bars import Bar, asked, bars
from gemmdesc.speed.journal import Session
from gemmdesc.speed.measuring import (
    AS_OURS,
    CALLS,
    FAILED,
    INDUCTOR,
    INDUCTOR_MAX,
    LIBRARY,
    OURS,
    Row,
    State,
    geometric_mean,
)
from gemmdesc.speed.shapes import SpeedShape

_GOT = re.compile(r" \(got [^()]*(\([^()]*\)[^()]*)*\)")
#: Two runs agree where the geometric means of a group differ by no more.
AGREEMENT = 0.02


class Collected:
    """Rows of the sessions that were not dropped, by shape, each session's in the order of the sessions.

    ``dropped``: of the others, too, for a first look; no such figures are published.
    """

    def __init__(
        self, shapes: Sequence[SpeedShape], sessions: Iterable[Session], *, dropped: bool = False
    ) -> None:
        self.shapes, self.sessions = tuple(shapes), tuple(sessions)
        self.used = tuple(s for s in self.sessions if dropped or not s.dropped)
        known = {s.name for s in self.shapes}
        self.rows: dict[str, list[Row]] = {}
        for row in (r for s in self.used for r in s.measured if r.shape.name in known):
            self.rows.setdefault(row.shape.name, []).append(row)

    def state(self, name: str) -> str:
        """The worst of a shape's states: once different is different."""
        met = {row.state for row in self.rows.get(name, ())}
        order = (State.DIFFERENT, State.FAILED, State.DECLINED, State.EQUAL)
        return next((state.value for state in order if state in met), "not_measured")

    def ratios(self, bar: Bar, names: Iterable[str]) -> dict[str, list[float]]:
        """By shape, its ratio in each session that has one."""
        found = {}
        for name in names:
            rows = [row for row in self.rows.get(name, ()) if bar.picks(row)]
            ratios = [row.ratio(bar.over, bar.under, host=bar.host) for row in rows]
            kept = [ratio for ratio in ratios if ratio is not None]
            if kept:
                found[name] = kept
        return found


def group_result(collected: Collected, bar: Bar) -> dict[str, Any]:
    """A line of the table: how many shapes, their geometric mean, the worst of them, the bar, and whether it is met.

    Not met where a shape is not timed, unless the bar is over a sample.  ``tuned``: of how many a tuned table made the
    choice, the last time.  ``runs``: the geometric means of the first and
    the second time, over shapes that were timed twice.
    """
    names = asked(bar, collected.shapes)
    ratios = collected.ratios(bar, names)
    means = {name: geometric_mean(values) or 0.0 for name, values in ratios.items()}
    mean = geometric_mean(means.values())
    result: dict[str, Any] = {"shapes": len(names), "timed": len(means), "geomean": mean}
    worst = min(means, key=lambda name: means[name], default=None)
    result["tuned"] = sum(bool(collected.rows[name][-1].sides.tuned) for name in means)
    result |= {"worst": means.get(worst or ""), "worst_shape": worst or "", "bar": bar.least}
    result["met"] = mean is not None and bar.met(mean) and (bar.sampled or len(means) == len(names))
    twice = [values for values in ratios.values() if len(values) > 1]
    runs = [geometric_mean(values[i] for values in twice) for i in (0, 1)] if twice else []
    if len(runs) == 2 and runs[0] and runs[1]:
        result |= {"first_run": runs[0], "second_run": runs[1], "agree": abs(runs[1] / runs[0] - 1) <= AGREEMENT}
    return result


def counts(collected: Collected) -> dict[str, int]:
    """Of shapes, by state; and of sessions."""
    states = Counter(collected.state(s.name) for s in collected.shapes)
    return {
        "shapes": len(collected.shapes), "draws": sum(len(rows) for rows in collected.rows.values()),
        **{state.value: states[state.value] for state in State}, "not_measured": states["not_measured"],
        "sessions": len(collected.used), "sessions_dropped": len(collected.sessions) - len(collected.used),
    }  # fmt: skip


def declines(collected: Collected) -> dict[str, dict[str, int]]:
    """By reason, how many shapes of each set were declined, the most frequent first.

    A reason without what differs from one product to the next: "got" and numbers in brackets.
    """
    found: dict[str, Counter[str]] = {}
    for shape in collected.shapes:
        rows = [r for r in collected.rows.get(shape.name, ()) if r.state is State.DECLINED]
        if rows:
            found.setdefault(_GOT.sub("", rows[0].reason), Counter())[shape.part] += 1
    return {reason: dict(parts) for reason, parts in sorted(found.items(), key=lambda item: -item[1].total())}


def inductor_bytes(collected: Collected) -> dict[str, dict[str, int]]:
    """Of torch.compile's results, how many had the library's bytes."""
    found: dict[str, dict[str, int]] = {}
    for call in (INDUCTOR, INDUCTOR_MAX):
        rows = [r for rows in collected.rows.values() for r in rows if call in r.sides.calls]
        different = sum(call in r.sides.different for r in rows)
        found[call] = {"compared": len(rows), "equal": len(rows) - different, "different": different}
    return found


def schedule_results(collected: Collected) -> dict[str, dict[str, Any]]:
    """Of each schedule, over all shapes that it applies to and by group: counts, and means against ours and cuBLAS."""
    plain = [b for b in bars() if b.over == LIBRARY and not b.host and not b.sampled]
    rows = [row for rows in collected.rows.values() for row in rows if row.sides.schedules]
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(n for row in rows for n in row.sides.schedules):
        met = [row for row in rows if name in row.sides.schedules]
        groups = {bar.name: [row for row in met if bar.holds(row.shape)] for bar in plain}
        found[name] = _schedule_result(name, met)
        found[name]["by_group"] = {g: _schedule_result(name, members) for g, members in groups.items() if members}
    return found


def _schedule_result(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    gains = {r.shape.name: gain for r in rows if (gain := r.ratio(OURS, name)) is not None}
    over = [ratio for r in rows if (ratio := r.ratio(LIBRARY, name)) is not None]
    ours = [ratio for r in rows if r.ratio(LIBRARY, name) is not None and (ratio := r.ratio()) is not None]
    least, most = (choose(gains, key=lambda n: gains[n], default="") for choose in (min, max))
    return {
        "applies": len(rows), "as_ours": sum(r.sides.schedules[name] == AS_OURS for r in rows), "timed": len(gains),
        "different": sum(name in r.sides.different for r in rows),
        "failed": sum(r.sides.schedules[name].startswith(FAILED) for r in rows),
        "over_ours": geometric_mean(gains.values()), "library_over_it": geometric_mean(over),
        "library_over_ours": geometric_mean(ours),
        "faster": sum(g > 1 + AGREEMENT for g in gains.values()),
        "slower": sum(g < 1 - AGREEMENT for g in gains.values()),
        "worst": gains.get(least), "worst_shape": least, "best": gains.get(most), "best_shape": most,
    }  # fmt: skip


def claims(collected: Collected, command: str) -> list[dict[str, Any]]:
    """Claims in the form of ``docs/results``; groups that no session came to are left out, those that decline are not.

    Raises:
        InvalidInputError: no session can be used, or sessions are of several cards or versions.
    """
    if not collected.used:
        reasons = [f"{s.name}: {s.dropped}" for s in collected.sessions]
        raise InvalidInputError(f"sessions must hold one that can be used (got {'; '.join(reasons) or 'none'})")
    kinds = {(s.about["card"], str(s.about["versions"])) for s in collected.used}
    if len(kinds) > 1:
        raise InvalidInputError(f"sessions must be of one card and its versions (got {sorted(kinds)})")
    about = collected.used[-1].about
    results = {bar.name: group_result(collected, bar) for bar in bars()}
    met = set(collected.rows)
    looked_at = {bar.name for bar in bars() if met & set(asked(bar, collected.shapes))}
    by_group = {name: result for name, result in results.items() if name in looked_at}
    common = {"command": command, "card": about["card"], "versions": about["versions"], "date": about["date"]}
    speed = {
        "claim": "Speed beside cuBLAS with its bytes (cuBLAS time / ours; above 1 is faster): geometric means over "
        "groups of products, of ratios that were each formed within one process, and the bars set before",
        **common, "counts": counts(collected), "by_group": by_group, "declined": declines(collected),
        "sessions": [
            {
                "session": s.name, "rows": len(s.measured), "control_moved": s.move, "dropped": s.dropped,
                "tuned_classes": s.about.get("tuned_classes", 0), "tuned_exact": s.about.get("tuned_exact", 0),
                "untuned": s.untuned,
                **s.about["limits"],
            }
            for s in collected.sessions
        ],
    }  # fmt: skip
    plain = [b for b in bars() if b.name in by_group and b.over == LIBRARY and not b.host]
    limited = {b.name: _limited(collected, b) for b in plain}
    least = {
        "claim": "What each group is limited by: the larger of bytes over bandwidth and operations over rate, both "
        "measured in the same process, as a share of our time and of cuBLAS's",
        **common, "by_group": limited,
    }
    compiled = {
        "claim": "torch.compile's code for the same functions: how often it had cuBLAS's bytes",
        **common, "by_mode": inductor_bytes(collected),
    }  # fmt: skip
    others = {
        "claim": "Other schedules of the same descriptors beside ours (our time / theirs; above 1 theirs is faster), "
        "bytes compared before each was timed",
        **common, "by_schedule": schedule_results(collected),
    }  # fmt: skip
    return [
        speed, least, *([compiled] if any(r["compared"] for r in compiled["by_mode"].values()) else []),
        *([others] if others["by_schedule"] else []),
    ]  # fmt: skip


def _limited(collected: Collected, bar: Bar) -> dict[str, Any]:
    rows = [
        row for name in asked(bar, collected.shapes) for row in collected.rows.get(name, ())
        if bar.picks(row) and row.ratio() is not None
    ]  # fmt: skip
    by = Counter(max(row.least.items(), key=lambda item: item[1])[0] for row in rows)

    def share(call: str) -> float | None:
        return geometric_mean(max(row.least.values()) / row.device[call].median for row in rows)

    return {
        "by_bytes": by["bytes"], "by_operations": by["operations"], "ours_of_limit": share(OURS),
        "library_of_limit": share(LIBRARY),
    }  # fmt: skip


def write_rows(collected: Collected, path: Path) -> None:
    """Every row of every session as Parquet, dropped sessions' too, with why in ``dropped``.

    Raises:
        OSError: the place cannot be written.
    """
    import pyarrow as pa

    words = ("session", "dropped", "control", "name", "part", "group", "following", "model", "dtype", "out_dtype",
             "layout", "state", "reason", "kernel", "tuned", "different", "schedules")  # fmt: skip
    calls = dict.fromkeys((*CALLS, *(c for s in collected.sessions for r in s.rows for c in r.sides.calls)))
    numbers = [f"{call}_{kind}_us" for call in calls for kind in ("device", "device_low", "device_high", "host")]
    schema = pa.schema(
        [(name, pa.string()) for name in words] + [("untuned", pa.bool_())]
        + [(name, pa.int64()) for name in ("m", "n", "k", "slices", "sets")]
        + [(name, pa.float64()) for name in (*numbers, "bytes_us", "operations_us", "ratio")]
    )
    records = [_record(session, row) for session in collected.sessions for row in session.rows]
    write_table(pa.Table.from_pylist(records, schema=schema), path)


def _record(session: Session, row: Row) -> dict[str, Any]:
    product, sides = row.shape.product, row.sides
    record: dict[str, Any] = {
        "session": session.name, "dropped": session.dropped, "untuned": session.untuned,
        "control": row.control, "name": row.shape.name,
        "part": row.shape.part, "group": row.shape.group, "following": row.shape.following, "model": product.label,
        "dtype": product.dtype.value, "out_dtype": product.out_dtype.value, "layout": product.layout,
        "state": row.state.value, "reason": row.reason, "kernel": sides.kernel, "tuned": sides.tuned,
        "different": " ".join(sides.different), "schedules": json.dumps(dict(sides.schedules)),
        "m": product.m, "n": product.n, "k": product.k,
        "slices": sides.slices, "sets": sides.sets, "ratio": row.ratio(),
        "bytes_us": row.least.get("bytes"), "operations_us": row.least.get("operations"),
    }  # fmt: skip
    for call, t in row.device.items():
        record |= {f"{call}_device_us": t.median, f"{call}_device_low_us": t.low, f"{call}_device_high_us": t.high}
    record |= {f"{call}_host_us": t.median for call, t in row.host.items()}
    return record
