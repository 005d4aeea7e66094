"""The examples run without a GPU, and show what they say."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.dropin import LibrarySource
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.plan import describe
from gemmdesc.problem import AlgoConfig, GemmProblem, Refused
from gemmdesc.profiles import index_profile
from tests.dropin_samples import batch_source

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).resolve().parent.parent / "examples"


def test_a_pinned_decoder_does_not_depend_on_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the packaged profile's own rules; without the pin most sequences differ."""
    path, out = FOLDER / "pinned_decoder.py", tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", [str(path), "--cpu", "--batchings", "4", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    (claim,) = json.loads(out.read_text())["claims"]
    counts = claim["counts"]
    assert (counts["different"], counts["declined"], counts["elements_unlike_stock_at_reference"]) == (0, 0, 0)
    assert counts["equal"] == counts["sequences"] == counts["stock_sequences"] > counts["batchings"]
    assert counts["stock_different"] > 0
    assert claim["operations_dependent"] == []


def test_a_width_is_found_at_which_the_rows_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of 128 are one chain, those of 256 decline, those of 512 and more have orders by rows."""
    monkeypatch.syspath_prepend(str(FOLDER))
    example: dict[str, Any] = runpy.run_path(str(FOLDER / "layer_orders.py"))
    made_up = runpy.run_path(str(FOLDER / "packaged_rules.py"))["made_up_source"]()
    index = index_profile(made_up.profile)
    rows = [r for r in made_up.profile.rows if r.key.family.d_dtype is DType.FLOAT16]

    def order(p: GemmProblem, answer: AlgoConfig) -> Any:
        found = describe(p, answer, None, index=index)
        return None if isinstance(found, Declined) else [r.descriptor.cuts for r in found.regions]

    def heuristic(p: GemmProblem) -> AlgoConfig | Refused:
        if p.k == 256:
            return Refused(status="CUBLAS_STATUS_NOT_SUPPORTED")
        split = p.k >= 512 and p.n < 50
        answers = [r.evidence.example.answer for r in rows]
        return next(a for a in answers if (found := order(p, a)) and len(found) == 1 and bool(found[0]) is split)

    library = SimulatedLibrary(
        identity=made_up.profile.library, device=made_up.profile.device, heuristic=heuristic, rules={}
    )  # fmt: skip
    planner = example["planner_of"](LibrarySource(library=library, profile=made_up.profile))
    width = example["width_of_several_orders"](64, (10, 20, 50), 30, torch.float16, planner)
    assert (width.inner, [group.rows for group in width.groups]) == (512, [(10, 20), (50,)])
    assert str(width) == "perceptron of 512: the library has 2 orders, for rows 10, 20; 50"
    widest = example["width_of_several_orders"](64, (10, 20), 30, torch.float16, planner)
    assert (widest.inner, len(widest.groups)) == (1024, 1), "none, as rows below 50 are summed alike"


def test_batched_attention_is_pinned_too() -> None:
    """One sequence of one head is no batch for the library, and its keys are a view where those of more are a copy."""
    example: dict[str, Any] = runpy.run_path(str(FOLDER / "pinned_decoder.py"))
    torch.manual_seed(0)
    shape = example["Shape"](hidden=256, inner=512, heads=2, layers=1, vocabulary=20, length=4)
    model = example["Decoder"](shape, "batched").half()
    pool = example["Sequences"](torch.randint(20, (5, 4)), torch.randint(1, 5, (5,)))
    counts = example["demonstrated"](model, pool, 3, 4, 0, {"replay": batch_source()})
    assert (counts["different"], counts["declined"], counts["elements_unlike_stock_at_reference"]) == (0, 0, 0)
    assert counts["stock_different"] > 0


def test_an_operation_that_depends_on_the_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    example: dict[str, Any] = runpy.run_path(str(FOLDER / "pinned_decoder.py"))
    shape = example["Shape"](hidden=8, inner=16, heads=1, layers=1, vocabulary=20, length=6)
    monkeypatch.setitem(example["OPERATIONS"], "softmax over the batch", lambda x: x.softmax(0))
    assert example["dependent_operations"](shape, 8, torch.float16, "cpu") == ["softmax over the batch"]


def run_example(name: str, out: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, Any]:
    """The exit code and the claim of an example that runs without a GPU."""
    path = FOLDER / name
    monkeypatch.setattr(sys, "argv", [str(path), "--cpu", *arguments, "--out", str(out)])
    monkeypatch.syspath_prepend(str(FOLDER))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    (claim,) = json.loads(out.read_text())["claims"]
    return int(str(ended.value.code)), claim


def test_a_decoder_block_four_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claim = run_example("decoder_block.py", tmp_path / "a.json", monkeypatch)
    assert code == 0, claim
    counts = claim["counts"]
    assert list(counts) == ["eager", "overridden", "functions", "compiled", "pinned"]
    # Five layers, and two products for each of 3 heads of 4 sequences; then each sequence alone.
    assert {c["products_by_plan"] for c in counts.values()} == {5 + 2 * 3 * 4 + 4 * (5 + 2 * 3)}
    assert {(c["different"], c["declined"]) for c in counts.values()} == {(0, 0)}
    depending = {way: c["sequences_dependent_on_the_batch"] for way, c in counts.items()}
    assert depending.pop("pinned") == 0
    assert min(depending.values()) > 0, "the batch has to matter, or a pin shows nothing"
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[3:8]] == list(counts)


def test_a_block_that_differs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    example: dict[str, Any] = runpy.run_path(str(FOLDER / "decoder_block.py"))
    way = example["Way"]
    rows = (("eager", 0, 3, 0, 0), ("overridden", 5, 3, 0, 2), ("pinned", 0, 1, 9, 0))
    found = [way(name, "eager", *counts) for name, *counts in rows]
    assert example["failures"](found) == [
        "overridden differs from eager", "overridden: 2 products declined", "overridden computed no product",
        "pinned rows depend on the batch",
    ]  # fmt: skip


def test_a_trainer_and_a_server_agree_where_both_are_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claim = run_example("logprob_parity.py", tmp_path / "a.json", monkeypatch, "--json")
    assert code == 0, claim
    assert claim["operations_dependent"] == []
    counts = claim["counts"]
    assert (counts["log_probs"], counts["different"], counts["declined"]) == (4 * 7 * 5, 0, 0)
    # The same comparison fails without the pin, for whole batches and token by token.
    assert [w["way"] for w in claim["ways"]] == ["trainer, one batch", "one by one", "all at once", "in threes, mixed"]
    assert all(w["stock_different"] > 0 for w in claim["ways"])
    assert json.loads(capsys.readouterr().out)["counts"] == counts


def test_every_sequence_is_served_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    example: dict[str, Any] = runpy.run_path(str(FOLDER / "logprob_parity.py"))
    for count in (1, 4, 5, 7, 10, 12):
        ways = dict(example["batchings"](count))
        assert len(ways) == 3
        assert all(sorted(i for b in batches for i in b) == list(range(count)) for batches in ways.values())
