"""What was timed, as JSON lines: whole, torn and broken; tuning that goes on from them, and what is compiled ahead."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gemmdesc.books import LAYOUTS, Shape
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError, ProfileError
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.competing import MOST_TIMED, WITHIN, pick_of
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import TunedPick
from gemmdesc.kernels.variant import Variant
from gemmdesc.plan import needed_variants
from gemmdesc.tuning.ahead import Ahead
from gemmdesc.tuning.card import Contest, tune_shapes
from gemmdesc.tuning.search import HOPELESS, Measured, measure, settle
from gemmdesc.tuning.store import read_tuned
from gemmdesc.tuning.times import TimedProduct, append_times, line_data, read_times
from tests.test_tuning import CARD, CASES, H200, SHAPES, Clock, Rehearsal, aligned, chain, meta, rehearsed
from tests.test_tuning_exact import IN_CLASS, KEYS, PICKS, SPECIALISED

TIMES = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)


@st.composite
def products(draw: st.DrawFn, *, picks: Any = PICKS) -> TimedProduct:
    listed = draw(st.lists(picks, min_size=1, max_size=7, unique=True))
    kinds = [draw(st.sampled_from(["halves", "hopeless", "different", "unusable"])) for _ in listed[1:]]

    def of(kind: str) -> list[TunedPick]:
        return [p for p, k in zip(listed[1:], kinds, strict=True) if k == kind]

    size = st.integers(1, 100_000)
    shape = draw(
        st.builds(Shape, m=size, n=size, k=size, dtype=st.sampled_from(DType), out_dtype=st.sampled_from(DType),
                  layout=st.sampled_from(LAYOUTS), label=st.text(max_size=9))
    )  # fmt: skip
    measured = Measured(
        key=draw(KEYS), sizes=draw(IN_CLASS), default=listed[0],
        halves={p: (draw(TIMES), draw(TIMES)) for p in (listed[0], *of("halves"))},
        hopeless={p: draw(TIMES) for p in of("hopeless")}, different=tuple(of("different")),
        unusable=tuple(of("unusable")),
    )  # fmt: skip
    return TimedProduct(shape=shape, device=H200, measured=measured)


def same(one: TimedProduct, other: TimedProduct) -> bool:
    return one == other and list(one.measured.halves) == list(other.measured.halves) and one.device.name == H200.name


@given(listed=st.lists(products(), min_size=1, max_size=4))
def test_lines_come_back_as_they_were_written_torn_or_not(
    listed: list[TimedProduct], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("times") / "deep" / "times.jsonl"
    for one in listed:
        append_times(path, one)
    back = read_times(path, H200)
    assert all(map(same, back, listed))
    assert len(back) == len(listed)
    # Wherever a run was killed, the lines before are whole, and the next run goes on behind them.
    whole = path.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in {last, last + 1, (last + len(whole)) // 2, len(whole) - 2, len(whole) - 1}:
        path.write_bytes(whole[:cut])
        kept = listed if cut == len(whole) - 1 else listed[:-1]
        assert read_times(path) == tuple(kept)
        append_times(path, listed[0])
        assert read_times(path) == (*kept, listed[0])
        assert path.read_bytes().endswith(b"\n")


@given(products(picks=SPECIALISED))
def test_every_field_of_a_specialised_config_is_in_a_line(one: TimedProduct) -> None:
    data = line_data(one)
    told = [d["config"] for d in (*data["halves"], *data["hopeless"], *data["different"], *data["unusable"])]
    m = one.measured
    assert told == [asdict(p.config) for p in (*m.halves, *m.hopeless, *m.different, *m.unusable)]
    assert all({"turns", "store_n", "store_buffers", "alone", "beside_n", "whole"} <= set(config) for config in told)


def timed() -> TimedProduct:
    desc, at, picks = aligned()
    found = measure(desc, at, CARD, Clock({picks[1]: 9.0}), Random(0), rounds=4)
    assert isinstance(found, Measured)
    return TimedProduct(shape=Shape(m=1024, n=4096, k=4096), device=H200, measured=found)


BREAKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no object": lambda d: [1, 2],
    "another version": lambda d: d | {"times_version": 2},
    "no shape": lambda d: {name: x for name, x in d.items() if name != "shape"},
    "a size of none": lambda d: d | {"shape": d["shape"] | {"m": 0}},
    "a shape of more": lambda d: d | {"shape": d["shape"] | {"o": 1}},
    "an unknown type": lambda d: d | {"shape": d["shape"] | {"dtype": "float15"}},
    "no card": lambda d: d | {"device": {}},
    "sizes of another class": lambda d: d | {"sizes": [1, 2, 3]},
    "sizes of two": lambda d: d | {"sizes": [1024, 4096]},
    "steps of a list": lambda d: d | {"key": d["key"] | {"steps": ["plain"]}},
    "an unknown layout": lambda d: d | {"key": d["key"] | {"a_layout": "spiral"}},
    "a time of none": lambda d: d | {"halves": [d["halves"][0] | {"us": [0.0, 1.0]}]},
    "a time that is none": lambda d: d | {"halves": [d["halves"][0] | {"us": [float("nan"), 1.0]}]},
    "one half": lambda d: d | {"halves": [d["halves"][0] | {"us": [1.0]}]},
    "no default": lambda d: d | {"halves": [h for h in d["halves"] if h["config"] != d["default"]["config"]]},
    "halves told of twice": lambda d: d | {"halves": [*d["halves"], d["halves"][-1]]},
    "a pick told of twice": lambda d: d | {"unusable": [d["default"]]},
    "a config of no structure": lambda d: d | {"different": [d["default"] | {"structure": "chain_specialised"}]},
    "a config of more": lambda d: d | {"default": d["default"] | {"config": d["default"]["config"] | {"colour": 1}}},
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_broken_lines_are_refused_by_number(tmp_path: Path, name: str) -> None:
    path, good = tmp_path / "times.jsonl", json.dumps(line_data(timed()))
    path.write_text(f"{good}\n{json.dumps(BREAKS[name](json.loads(good)))}\n{good}\n")
    with pytest.raises(ProfileError, match="times must be whole: line 2 is broken"):
        read_times(path)


def test_only_the_last_line_may_be_torn(tmp_path: Path) -> None:
    path, good = tmp_path / "times.jsonl", json.dumps(line_data(timed()))
    for broken, number in ((f"{good[:40]}\n{good}\n", 1), (f"{good}\n{good[:40]}\n", 2), (f"{good}\n\n{good}\n", 2)):
        path.write_text(broken)
        with pytest.raises(ProfileError, match=f"line {number} is broken"):
            read_times(path)
    path.write_bytes(good.encode() + b"\n\xff\xfe")
    assert len(read_times(path)) == 1
    path.write_text("")
    assert read_times(path) == ()
    with pytest.raises(ProfileError, match="times must be a readable file"):
        read_times(tmp_path / "none.jsonl")


def test_times_of_another_card_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    append_times(path, timed())
    append_times(path, replace(timed(), device=replace(H200, sm_count=78)))
    assert len(read_times(path)) == 2
    with pytest.raises(ProfileError, match=r"of the card sm_90-132: line 2 is not \(got sm_90-78"):
        read_times(path, H200)


def test_a_packed_file_is_read_and_does_not_grow(tmp_path: Path) -> None:
    plain, packed = tmp_path / "times.jsonl", tmp_path / "times.jsonl.xz"
    append_times(plain, timed())
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    assert [same(a, b) for a, b in zip(read_times(packed), read_times(plain), strict=True)] == [True]
    with pytest.raises(InvalidInputError, match="which a packed one is not"):
        append_times(packed, timed())
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ProfileError, match="must be a readable file"):
        read_times(packed)


def test_what_was_given_up_is_kept_with_its_least_time() -> None:
    desc, at, picks = aligned()
    times = {p: 10.0 + i for i, p in enumerate(picks)} | {picks[4]: 14.0, picks[5]: 12.4}
    for factor in (HOPELESS, 2.0):
        given_up = {p for p in picks if times[p] > 10.0 * factor}
        found = measure(desc, at, CARD, Clock(times), Random(0), rounds=4, hopeless=factor)
        assert isinstance(found, Measured)
        assert set(found.hopeless) == given_up
        assert found.hopeless == {p: times[p] for p in given_up}
        assert set(found.halves) == set(picks) - given_up


@pytest.mark.parametrize("wrong", [{"rounds": 1}, {"most": 0}, {"within": 0.9}, {"hopeless": float("nan")}])
def test_a_contest_of_nobody_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"{next(iter(wrong))} must be at least"):
        Contest(**wrong)


def test_more_compete_and_products_that_were_timed_do_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.test_plan import Counted, planner_of

    planner = planner_of(Counted())
    whole, trials = rehearsed(planner, seconds=100.0, contest=Contest(rounds=4, most=40, within=2.0, hopeless=9.0))
    assert all(len(m.halves) > MOST_TIMED + 1 and not m.hopeless for m in whole.measured)
    assert len(trials[0].timed) == len(whole.measured[0].halves) * (1 + 2 + 4)
    order = [shape for shape, _ in whole.outcomes]
    done = [replace(order[0], label="known by another name"), order[2]]
    rest, _ = rehearsed(planner, seconds=100.0, done=done)
    assert [shape for shape, _ in rest.outcomes] == [order[1], order[3]]
    rest, _ = rehearsed(planner, seconds=100.0, done=done, start=2)
    assert [shape for shape, _ in rest.outcomes] == [order[3]]


def test_a_product_of_two_names_is_timed_once_and_one_of_no_call_declines() -> None:
    pytest.importorskip("torch")
    from tests.test_plan import Counted, planner_of

    named = [replace(SHAPES[0], label=label) for label in ("one", "two")]
    eight = Shape(m=256, n=512, k=512, dtype=DType.FLOAT8_E4M3FN, out_dtype=DType.BFLOAT16, layout="nt")
    found = tune_shapes(
        planner_of(Counted()), [eight, *named], seconds=100.0, contest=Contest(rounds=2),
        trial=lambda at, seed: Rehearsal(at, lambda choice: False),  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    assert [shape for shape, _ in found.outcomes] == [named[0], eight]
    refused = found.outcomes[1][1]
    assert isinstance(refused, Declined)
    assert refused.reason.startswith("torch.mm has no such product: out must be of")


class NoCompiler:
    """In the place of what compiles ahead."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.begun: set[Variant] = set()

    def __call__(self, variants: Iterable[Variant]) -> None:
        assert set(variants) <= self.begun

    def begin(self, variants: Iterable[Variant]) -> None:
        assert list(variants)
        self.begun.update(variants)

    def __enter__(self) -> NoCompiler:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs ``gemmdesc tune`` on the shapes of SHAPES, on a card that takes as long as the estimates say."""
    pytest.importorskip("torch")
    from gemmdesc import ops
    from gemmdesc.cli.app import app
    from gemmdesc.tuning import ahead, card
    from tests.test_plan import Counted, planner_of

    planner = planner_of(Counted())
    monkeypatch.setattr(ops, "default_planner", lambda **named: planner)
    monkeypatch.setattr(ahead, "Ahead", NoCompiler)
    monkeypatch.setattr(card, "CardTrial", lambda at, seed: Rehearsal(at, lambda choice: choice.config.block_n == 64))
    listed = tmp_path / "shapes.csv"
    lines = (f"{s.m},{s.n},{s.k},nn,float16,float16,Model,up,model" for s in SHAPES)
    listed.write_text("m,n,k,layout,dtype,out_dtype,model,layer,label\n" + "\n".join(lines) + "\n")

    def run(*options: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, ["tune", str(listed), "--out", str(tmp_path / "out"), "--json", *options])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if code == 0 else done.output

    return run


def test_a_run_goes_on_where_its_times_end(tmp_path: Path, command: Callable[..., Any]) -> None:
    times = tmp_path / "times.jsonl"
    whole = command()
    table = read_tuned(Path(whole["path"]))
    assert (whole["timed"], whole["timed_before"], whole["next_start"]) == (4, 0, 4)
    Path(whole["path"]).unlink()
    for number in range(4):
        # Killed while it wrote the next line.
        if number:
            with times.open("ab") as file:
                file.write(b'{"times_version": 1, "sha')
        told = command("--times", str(times), "--seconds", "1")
        lines = read_times(times)
        if told["left"] == 0:
            break
    assert (told["timed"] + told["timed_before"], told["left"], told["next_start"]) == (4, 0, None)
    assert {t.shape for t in lines} == {replace(s, label="Model up model") for s in SHAPES}
    again = command("--times", str(times))
    assert (again["timed"], again["timed_before"]) == (0, 4)
    # The table is of all lines, whichever run they are of, and counts them once.
    found = read_tuned(Path(again["path"]))
    assert found.rows == table.rows == tuple(sorted(settle([t.measured for t in lines]), key=found.rows.index))
    assert (found.provenance.products, table.provenance.products) == (4, 4)
    assert len(told["exact"]) + len(told["classes"]) == len(found.rows)
    # With another list it goes on, too; a table that is lost is made again.
    Path(whole["path"]).unlink()
    assert command("--times", str(times), "--set", "model")["timed"] == 0
    assert read_tuned(Path(whole["path"])).rows == table.rows


def test_broken_times_are_told_before_anything_is_timed(tmp_path: Path, command: Callable[..., Any]) -> None:
    times = tmp_path / "times.jsonl"
    times.write_text("{}\n{}\n")
    assert "line 1 is broken" in command("--times", str(times), code=2)
    assert times.read_text() == "{}\n{}\n"
    assert not (tmp_path / "out").exists()
    assert "times must be a" in command("--times", str(tmp_path), code=2)


def test_sets_of_a_list_are_tuned_alone(command: Callable[..., Any]) -> None:
    assert command("--set", "model")["timed"] == 4
    assert "set must be labels of" in command("--set", "mod", code=2)
    assert "set must be words" in command("--set", "model,", code=2)


def test_the_benchmarks_own_list_is_read() -> None:
    from gemmdesc.cli.shapelists import Asked
    from gemmdesc.speed.sets import PARTS, speed_shapes

    listed = str(Path(__file__).resolve().parent.parent / "docs" / "speed_shapes.csv")
    found = {part: Asked(source=listed, sets=part).shapes() for part in PARTS}
    for part, shapes in found.items():
        wanted = {replace(s.product, label="") for s in speed_shapes([part])}
        assert {replace(s, label="") for s in shapes} == wanted
    fused = Asked(source=listed, sets="fused silu,fused residual").shapes()
    assert 0 < len(fused) < len(found["fused"])
    assert len(Asked(source=listed, sets="model,decode").shapes()) == len(found["model"]) + len(found["decode"])
    with pytest.raises(InvalidInputError, match="set must be left out for a module"):
        Asked(source="package.module:function", sets="model").shapes()


def test_the_help_says_what_the_defaults_are() -> None:
    import inspect

    from gemmdesc.cli.tuning import tune

    helps = {name: p.annotation for name, p in inspect.signature(tune, eval_str=False).parameters.items()}
    for name, value in (("most", MOST_TIMED), ("within", WITHIN), ("hopeless", HOPELESS)):
        assert f"({value})" in str(helps[name])
    assert (Contest().most, Contest().within, Contest().hopeless) == (MOST_TIMED, WITHIN, HOPELESS)


def test_specialised_chains_are_compiled_before_their_product_is_tried() -> None:
    pytest.importorskip("torch")
    from tests.profile_samples import sample_answer
    from tests.test_plan import Counted, planner_of

    events: list[Any] = []

    def trial(at: KernelMeta, seed: int) -> Any:
        made = Rehearsal(at, lambda choice: False)
        events.append(made)
        return made

    found = tune_shapes(
        planner_of(Counted(answers=lambda problem: sample_answer(splitk_num=1))), [Shape(m=512, n=4608, k=2048)],
        seconds=100.0, trial=trial,
        ahead=lambda variants: events.append(set(variants)), contest=Contest(rounds=2, most=99, within=9.0),
    )  # fmt: skip
    (measured,) = found.measured
    compiled, made = events
    assert isinstance(compiled, set)
    tried = {p for p in made.timed if p.structure is Structure.CHAIN_SPECIALISED}
    assert len(tried) > 10
    assert {p.config.dependent for p in tried} == {False, True}
    desc = chain(2048)
    for choice in (choose_kernel(desc, made.at, CARD, config=p.config, structure=p.structure) for p in tried):
        assert isinstance(choice, KernelChoice)
        assert needed_variants(choice, made.at) <= compiled
    assert set(made.timed) == {*measured.halves, *measured.hopeless}


def test_what_comes_next_is_begun_before_a_product_is_timed() -> None:
    """Its own kernels first, then those of two more; nothing twice before the compiler is asked."""
    from tests.test_plan import Counted, planner_of

    said: list[tuple[str, frozenset[Variant]]] = []
    timed = tune_shapes(
        planner_of(Counted()), SHAPES, seconds=60, contest=Contest(rounds=2, most=2),
        ahead=lambda variants: said.append(("wait", frozenset(variants))),
        soon=lambda variants: said.append(("begin", frozenset(variants))),
        trial=lambda at, seed: Rehearsal(at, lambda choice: choice.config.block_n == 64),  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    waits = [place for place, (word, _) in enumerate(said) if word == "wait"]
    assert len(waits) == len(timed.measured) >= 2
    begun: set[Variant] = set()
    for word, variants in said:
        if word == "begin":
            begun |= variants
        else:
            assert variants <= begun
    # Where others follow, they are begun before the wait for the first.
    assert waits[0] == min(3, len(waits))


def test_what_compiles_ahead_compiles_specialised_chains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from gemmdesc.kernels.compiling import compile_variant

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    desc = chain(2048)
    at = meta(desc, *CASES["aligned"][1][:2], 2048)
    choice = choose_kernel(desc, at, CARD, structure=Structure.CHAIN_SPECIALISED)
    assert isinstance(choice, KernelChoice)
    assert pick_of(choice).structure is Structure.CHAIN_SPECIALISED
    variants = sorted(needed_variants(choice, at), key=str)
    with Ahead(90) as ahead:
        ahead.begin(variants)
        ahead(variants)
        assert ahead.failures == []
        assert ahead.compiled == set(variants)
    (made,) = tmp_path.glob("*/*.cubin")
    when = made.stat().st_mtime_ns
    # A process that launches it finds it on the disk.
    compile_variant(variants[0], capability=90)
    assert [p.stat().st_mtime_ns for p in tmp_path.glob("*/*.cubin")] == [when]
