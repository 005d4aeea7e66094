"""Trackers, shadows, reports and the command line of stability."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gemmdesc.cli import app
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic.examining import examine
from gemmdesc.numerics.stochastic.modules import Analysis, ModuleSettings, Phase, ShadowModel, Tracker
from gemmdesc.numerics.stochastic.modules.shadow import agreement
from gemmdesc.numerics.stochastic.modules.tracker import read_parquet
from gemmdesc.reports import StabilityReport, plot_digits, stability_html, stability_markdown

SCRIPT = """
import torch
from torch import nn

class Loses(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return (self.inner(x) + 1e8) - 1e8

def stability(run):
    torch.manual_seed(0)
    return Loses(), [torch.ones(2, 4), (torch.zeros(2, 4),)]

def values(run):
    x = run.array([1.0, 3.0])
    return {"thirds": x / 3.0, "<ones>": x * 1.0}

def neither(run):
    return 3
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "examined.py"
    path.write_text(SCRIPT)
    return path


def tracked() -> Tracker:
    torch.manual_seed(1)
    model, tracker = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), Tracker()
    for iteration in range(3):
        analysis = Analysis(model, stochastic.start(seed=iteration))
        analysis(torch.randn(5, 4), phase=Phase.TRAINING, iteration=iteration)
        tracker.add(analysis.reports, loss=0.5 * iteration)
    return tracker


def test_a_tracker_keeps_what_it_writes(tmp_path: Path) -> None:
    tracker = tracked()
    assert [r["name"] for r in tracker.rows] == ["0.linear", "1.layer_norm"] * 3
    tracker.write_parquet(tmp_path / "r.parquet")
    tracker.write_jsonl(tmp_path / "r.jsonl")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.jsonl", "r.parquet"]
    again = read_parquet(tmp_path / "r.parquet")
    assert [dict(r) for r in again] == list(tracker.rows)
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [line["least"] for line in lines] == [r["least"] for r in tracker.rows]
    assert [json.loads(line["task"])["loss"] for line in lines] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]


def test_the_worst_come_first_and_exact_ones_are_left_out() -> None:
    tracker = tracked()
    worst = tracker.worst()
    assert {w["name"] for w in worst} == {"0.linear", "1.layer_norm"}
    assert worst[0]["least"] == min(r["least"] for r in tracker.rows)
    assert len(tracker.worst(1)) == 1
    exact = Tracker()
    analysis = Analysis(nn.Identity(), stochastic.start())
    exact.add(analysis.reports)
    assert exact.worst() == []


def test_a_shadow_follows_a_model_in_training_and_leaves_it() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    plain = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    plain.load_state_dict(model.state_dict())
    shadow = ShadowModel(model, stochastic.start(seed=1))
    x, y = torch.randn(32, 6), torch.randint(0, 3, (32,))
    for iteration in range(3):
        for trained in (model, plain):
            optimiser = torch.optim.SGD(trained.parameters(), lr=0.1)
            nn.functional.cross_entropy(trained(x), y).backward()
            optimiser.step()
            optimiser.zero_grad()
        logits = shadow(x, epoch=1, iteration=iteration)
        assert (logits.value - model(x).double()).abs().max() < 1e-4
        plain(x)
        assert 0.9 <= agreement(logits) <= 1.0
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True))
    assert {(r.epoch, r.iteration) for r in shadow.reports} == {(1, 0), (1, 1), (1, 2)}
    assert not any(p.requires_grad and p.grad is not None for p in model.parameters())


def test_agreement_counts_rows() -> None:
    run = stochastic.start()
    logits = run.tensor(torch.tensor([[1.0, 2.0], [3.0, 1.0]]))
    assert agreement(logits) == 1.0
    logits.samples = logits.samples.clone()
    logits.samples[1, 0] = torch.tensor([5.0, 2.0])
    assert agreement(logits) == 0.5


def test_examinations_of_models_and_values(script: Path) -> None:
    namespace: dict[str, object] = {}
    exec(SCRIPT, namespace)
    run = stochastic.start(counters="summary")
    found = examine(namespace["stability"], run, ModuleSettings())  # type: ignore[arg-type]
    assert found.unstable == ("sub",)
    assert {r["iteration"] for r in found.tracker.rows} == {0, 1}
    values = examine(namespace["values"], stochastic.start(), ModuleSettings())  # type: ignore[arg-type]
    assert values.unstable == ()
    assert [v["exact_share"] for v in values.values] == [0.5, 1.0]
    with pytest.raises(InvalidInputError, match=r"function must return .* \(got int\)"):
        examine(namespace["neither"], run, ModuleSettings())  # type: ignore[arg-type]
    report = StabilityReport(title="t|<i>", command="c", settings="s", found=values)
    assert "&lt;ones&gt;" in stability_html(report)
    assert "<ones>" not in stability_html(report)
    broken = {"name": "n", "elements": 1, "least": math.nan, "median": math.nan, "exact_share": 0.0, "zero_share": 0.0,
              "nonfinite_share": 1.0}  # fmt: skip
    found = replace(values, values=(broken, broken | {"nonfinite_share": 0.0, "zero_share": 1.0}))
    page = stability_markdown(replace(report, found=found))
    assert "| n | 1 | not finite | not finite |" in page
    assert "| n | 1 | zero | zero |" in page
    assert found.unstable == ("n",)
    assert "| <ones> | 2 | exact | exact | 100.0% |" in stability_markdown(report)
    assert "Nothing fell below 0.5 digits" in stability_markdown(report)


def test_the_command_line(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["stability", str(script), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 1
    assert "Below 0.5 digits or not finite: sub." in done.output
    assert sorted(p.name for p in out.iterdir()) == [
        "digits.png", "report.html", "report.md", "reports.jsonl", "reports.parquet",
    ]  # fmt: skip
    assert "| sub | 0.00 |" in (out / "report.md").read_text()
    assert (out / "digits.png").read_bytes().startswith(b"\x89PNG")
    good = CliRunner().invoke(app, ["stability", f"{script}:values", "--format", "8,23", "--json"])
    assert good.exit_code == 0
    assert json.loads(good.stdout)["unstable"] == []
    built = CliRunner().invoke(app, ["stability", "classical", "--json"])
    assert "Rump (10864, 18817)" in json.loads(built.stdout)["unstable"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "target must be a script"), (["no_such_package_here"], "target must be importable"),
        (["json:stability"], "target must have a function"), (["classical", "--format", "float9"], "dtype must"),
        (["classical", "--samples", "1"], "samples must"), (["classical", "--rounded", "twice"], "rounded must"),
        (["classical", "--products", "inside"], "products must"), (["classical", "--mode", "x"], "mode must"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["stability", *arguments])
    assert done.exit_code == 2
    assert message in done.output


def test_a_plot_needs_something_inexact(tmp_path: Path) -> None:
    rows = [r | {"median": math.nan, "low": math.nan} for r in tracked().rows]
    assert plot_digits(rows, tmp_path / "none.png", "t") == ()
    assert not (tmp_path / "none.png").exists()
    assert plot_digits(tracked().rows, tmp_path / "some.png", "t") == ("1.layer_norm", "0.linear")
