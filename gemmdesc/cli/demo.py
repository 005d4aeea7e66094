"""``gemmdesc demo``: the main job in under two minutes, with a GPU or without one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.libraries import SIMULATED, Opener, default_workers
from gemmdesc.cli.output import (
    DIFFERENT,
    EQUAL,
    JsonOption,
    Progress,
    guarded,
    print_json,
    print_table,
    wants_json,
)

if TYPE_CHECKING:
    from gemmdesc.profiles import Profile
    from gemmdesc.verification.hidden import Hidden

#: Shapes verified with a GPU, and golden records replayed without one.
_SHAPES = 300
_RECORDS = 400
#: Problems on which recovered rules are compared with the hidden ones, and their draws' seed.
_CHECKED = 400
_CHECK_SEED = 99


@guarded
def demo(
    context: typer.Context,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated library's hidden rules.")] = 1,
    cpu: Annotated[bool, typer.Option("--cpu", help="What runs without a GPU, even if there is one.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.")] = None,
    json: JsonOption = False,
) -> int:
    """With a GPU: a quick probe and verified shapes.  Without: recorded bytes replayed, hidden rules recovered."""
    from gemmdesc.errors import LibraryError
    from gemmdesc.library.device import device_id

    count = workers or default_workers()
    show = not wants_json(context, json)
    try:
        device = None if cpu else device_id()
    except LibraryError:
        device = None
    with Progress() as progress:
        if device is not None:
            code, data = _with_gpu(count, progress, show)
        else:
            replayed, golden = _replay_golden(progress, show)
            recovered, hidden = _recover(seed, count, progress, show)
            code = EQUAL if replayed and recovered else DIFFERENT
            data = {"golden": golden, "recovered": hidden}
    if not show:
        print_json(data)
    return code


def _with_gpu(workers: int, progress: Progress, show: bool) -> tuple[int, dict[str, Any]]:
    """Probe into a temporary folder, then verify with what was found there."""
    from gemmdesc.cli import probing, verifying
    from gemmdesc.cli.sides import Sides
    from gemmdesc.profiles import profile_path, write_profile
    from gemmdesc.verification.campaign import options_of_size
    from gemmdesc.verification.summary import summary

    opener = Opener()
    with TemporaryDirectory(prefix="gemmdesc-demo-") as name:
        folder = Path(name)
        options = probing.options_for(opener, quick=True, target=1e-3, seed=0)
        profile, findings = probing.measure(opener, options, workers, folder / "campaign", progress)
        path = profile_path(folder / "profiles", profile.device, profile.library.version)
        write_profile(profile, path)
        report = probing.Measurement(profile=profile, findings=findings, path=path)
        if show:
            report.print()
        sides = Sides.find(opener, path, replayed=False)
        chosen = options_of_size(_SHAPES, draws=2, seed=1)
        records = verifying.run(sides, chosen, folder / "verify", workers, progress)
    if show:
        verifying.print_summary(records)
    return verifying.code_of(records), {"probe": report.plain(), "verify": summary(records)}


def _replay_golden(progress: Progress, show: bool) -> tuple[bool, Any]:
    """Replay some of every golden file; says so where there are none."""
    from gemmdesc.cli.replaying import Result
    from gemmdesc.golden import golden_files, golden_folder

    folder = golden_folder()
    if folder is None:
        text = "no golden files came with this copy of gemmdesc: no recorded cuBLAS bytes to replay"
        if show:
            print_table(text, (), [])
        return True, text
    results = [Result.of(path, None, progress, most=_RECORDS) for path in golden_files(folder)]
    for result in results if show else ():
        result.print()
    return all(r.equal for r in results), [r.plain() for r in results]


def _recover(seed: int, workers: int, progress: Progress, show: bool) -> tuple[bool, Any]:
    """Probe a simulated library and set what was found beside what was hidden."""
    from gemmdesc.cli import probing
    from gemmdesc.verification.hidden import hide

    hidden, opener = hide(seed), Opener(spec=f"{SIMULATED}{seed}")
    options = probing.options_for(opener, quick=True, target=1e-2, seed=0)
    with TemporaryDirectory(prefix="gemmdesc-demo-") as name:
        profile, findings = probing.measure(opener, options, workers, Path(name), progress)
    rows = compare_with_hidden(hidden, profile)
    if show:
        note = (
            f"{findings.tally.queries:,} queries, {len(findings.tally.counts)} answers; compared on {_CHECKED} other "
            "problems"
        )
        title = f"simulated library {seed}: hidden rules and what the probe recovered"
        columns = ("kernel", "side", "order", "problems", "same bits")
        print_table(title, columns, [row for pair in rows for row in pair], note)
    data = [
        {"kernel": h[0], "hidden": h[2], "recovered": r[2], "problems": h[3], "same_bits": r[4]} for h, r in rows
    ]
    return all(r[4] == h[3] for h, r in rows), data


def compare_with_hidden(hidden: Hidden, profile: Profile) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """For each hidden kernel a row with its rule, and one with the rules found for its answers and where they agree."""
    from gemmdesc.cli.libraries import simulated_scope
    from gemmdesc.errors import Declined
    from gemmdesc.probe.sampling import draw_problem
    from gemmdesc.problem import AlgoConfig
    from gemmdesc.profiles import index_profile, lookup
    from gemmdesc.verification.hidden import KERNELS, same_rule

    index, scope = index_profile(profile), simulated_scope()
    asked: dict[int, int] = {}
    same: dict[int, int] = {}
    found: dict[int, dict[str, None]] = {}
    for number in range(_CHECKED):
        problem = draw_problem(scope, _CHECK_SEED, number)
        answer = hidden.answer(problem)
        if not isinstance(answer, AlgoConfig):
            continue
        key = answer.algo_id
        asked[key] = asked.get(key, 0) + 1
        rule = lookup(index, problem, answer)
        if isinstance(rule, Declined):
            found.setdefault(key, {})[f"declined: {rule.reason}"] = None
            continue
        found.setdefault(key, {})[_short(rule.text)] = None
        same[key] = same.get(key, 0) + same_rule(hidden.rule(answer), rule, problem, answer)
    rows = []
    for name, (key, rule) in zip(KERNELS, hidden.rules, strict=True):
        texts = "\n".join(found.get(key, {"nothing": None}))
        number = asked.get(key, 0)
        rows.append(((name, "hidden", _short(rule.text), number, ""), ("", "found", texts, "", same.get(key, 0))))
    return rows


def _short(text: str) -> str:
    """A rule's text without what all of these rules share."""
    begin, end = text.find("summed_k="), text.find(", step=fused_dot")
    return f"{text[begin:end]})" if 0 <= begin < end else text
