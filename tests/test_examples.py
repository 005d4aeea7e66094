"""The examples run without a GPU, and show what they say."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

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


def test_batched_attention_is_pinned_too() -> None:
    """One sequence of one head is no batch for the library, and its keys are a view where those of more are a copy."""
    example: dict[str, Any] = runpy.run_path(str(FOLDER / "pinned_decoder.py"))
    torch.manual_seed(0)
    shape = example["Shape"](hidden=256, heads=2, layers=1, vocabulary=20, length=4)
    model = example["Decoder"](shape, "batched").half()
    pool = example["Sequences"](torch.randint(20, (5, 4)), torch.randint(1, 5, (5,)))
    counts = example["demonstrated"](model, pool, 3, 4, 0, {"replay": batch_source()})
    assert (counts["different"], counts["declined"], counts["elements_unlike_stock_at_reference"]) == (0, 0, 0)
    assert counts["stock_different"] > 0


def test_an_operation_that_depends_on_the_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    example: dict[str, Any] = runpy.run_path(str(FOLDER / "pinned_decoder.py"))
    shape = example["Shape"](hidden=8, heads=1, layers=1, vocabulary=20, length=6)
    monkeypatch.setitem(example["OPERATIONS"], "softmax over the batch", lambda x: x.softmax(0))
    assert example["dependent_operations"](shape, 8, torch.float16, "cpu") == ["softmax over the batch"]
