"""Kernels that torch.compile emits: what is stored of them, what is read of them, and mutations of their texts."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import triton

from gemmdesc.equivalence import Different, Equal, Kernel, Refused, Unknown, equivalent, partition, read, signature
from gemmdesc.equivalence.answers import text_digest
from gemmdesc.equivalence.campaign_rows import load_rows
from tests.equivalence_compiled import STORED, emitted, provenance
from tests.equivalence_corpus import cases, compile_case, grid_of, kernel_of, launch_of

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tests" / "observations" / "equivalence-compiled-rows.parquet"
CASES = {name: case for name, case in cases().items() if name.startswith("compiled-")}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


def kernel(name: str, **choice: object) -> Kernel:
    """The first configuration of a case, but for what is given."""
    pytest.importorskip("torch", reason="the sources import helpers of torch")
    case = CASES[f"compiled-{name}"]
    return kernel_of(case, next(iter(case.configurations())) | choice)


def mutated(one: Kernel, pattern: str, replacement: str) -> Kernel:
    text, count = re.subn(pattern, replacement, one.ptx, count=1)
    assert count == 1
    return Kernel(name="mutant", ptx=text, launch=one.launch)


# What is stored.


def test_the_stored_kernels_say_where_they_come_from_and_are_few_bytes() -> None:
    said = provenance()
    assert set(said["versions"]) == {"torch", "triton", "cuda", "python"}
    assert said["versions"]["torch"].startswith("2.11")
    assert said["card"]
    assert said["date"]
    assert STORED.stat().st_size < 100_000
    assert len(CASES) == len(emitted())


def test_every_way_in_which_inductor_reduces_is_among_them() -> None:
    heuristics = Counter(one.heuristic for one in emitted())
    assert set(heuristics) >= {"persistent_reduction", "reduction", "pointwise", "template"}
    assert min(heuristics[name] for name in ("persistent_reduction", "reduction")) >= 50
    both = {h: {o.family for o in emitted() if o.heuristic == h} for h in ("persistent_reduction", "reduction")}
    wanted = {"softmax", "log-softmax", "layer-norm", "rms-norm", "var-inner", "cumsum", "logsumexp", "cross-entropy",
              "layer-norm-backward", "rms-norm-backward", "softmax-backward"}  # fmt: skip
    assert wanted <= both["persistent_reduction"] & both["reduction"]
    split = [o for o in emitted() if o.family.endswith("-split") and o.number == 1]
    assert len({o.family for o in split}) >= 3
    assert {"*fp32", "*bf16", "*fp16"} <= {kind for o in emitted() for kind in o.signature.values()}
    helpers = {name for o in emitted() for name in re.findall(r"triton_helpers\.(\w+)", o.source)}
    assert {"maximum", "welford", "online_softmax_reduce"} <= helpers


def test_grids_are_those_that_inductor_gives_its_own_configurations() -> None:
    tried = 0
    for case in CASES.values():
        for config in case.kernel.configs:
            assert grid_of(case, config["constants"]) == tuple(config["grid"])
            tried += 1
    assert tried >= len(CASES)


def test_results_and_gates_count_a_kernel_under_one_name() -> None:
    found = runpy.run_path(str(ROOT / "scripts" / "equivalence_results.py"))
    for name, case in cases().items():
        wanted = case.family if name in CASES else name.split("-")[0]
        assert found["kernel_of"](name) == wanted


# What is read.


#: By release of Triton, the release of torch that the stored rows were made with, whose helpers their texts have.
TORCH = {"3.6.0": "2.11", "3.9.0": "2.13"}


def _stored_rows(arch: int) -> list[dict[str, Any]]:
    """One row for each function, of this Triton."""
    found: dict[str, dict[str, Any]] = {}
    for row in load_rows([ROWS]):
        if (row["arch"], row["triton"]) == (arch, triton.__version__):
            found.setdefault(CASES[row["case"]].family, row)
    return list(found.values())


@pytest.mark.slow
def test_each_function_is_read_or_refused_as_the_campaign_has_it() -> None:
    torch = pytest.importorskip("torch", reason="the sources import helpers of torch")
    if not torch.__version__.startswith(TORCH.get(triton.__version__, "none")):
        pytest.skip(f"no rows of Triton {triton.__version__} with torch {torch.__version__} are stored")
    rows = _stored_rows(90)
    assert {CASES[row["case"]].family for row in rows} == {case.family for case in CASES.values()}
    refused = Counter[str]()
    for row in rows:
        case = CASES[row["case"]]
        ptx = compile_case(case, row["choice"], 90).asm["ptx"]
        assert text_digest(ptx) == row["text"], row["case"]
        found = read(Kernel(name=case.name, ptx=ptx, launch=launch_of(case, row["choice"])))
        if isinstance(found, Refused):
            assert (found.code, found.reason) == (row.get("refused"), row.get("reason")), row["case"]
            refused[found.code] += 1
        else:
            assert signature(found) == row.get("class"), row["case"]
    # One scan hands its totals on by atomics; the others are refused for what docs/equivalence.md says.
    assert refused["instruction"] == 1
    assert set(refused) <= {"contraction", "data_dependent", "shared_memory", "instruction", "global_memory"}
    assert refused.total() < len(rows) / 2


def test_tiles_of_a_row_sum_are_trees_and_those_of_a_pointwise_kernel_are_none() -> None:
    case = CASES["compiled-sum-inner-4x3000-float32"]
    pytest.importorskip("torch", reason="the sources import helpers of torch")
    sums = partition([kernel_of(case, {**tile, "num_warps": 4, "num_stages": 1}) for tile in case.tiles])
    assert sums.refused == ()
    assert len(sums.classes) == len(case.tiles) > 2
    case = CASES["compiled-sum-outer-4x3000-float32"]
    alone = partition([kernel_of(case, {**tile, "num_warps": w}) for tile in case.tiles for w in (1, 4)])
    assert alone.refused == ()
    assert [len(names) for names in alone.classes] == [2 * len(case.tiles)]


def test_the_matrix_template_is_one_class_over_tiles_and_warps() -> None:
    found = partition(
        [kernel(f"mm-bias-relu-float16-{k}", num_warps=w) for k, w in (("k16", 1), ("k32", 4), ("k128", 2))]
    )
    assert found.refused == ()
    assert len(found.classes) == 1
    other = kernel("mm-bias-relu-bfloat16-k32", num_warps=4)
    assert isinstance(equivalent(other, kernel("mm-bias-relu-float16-k32", num_warps=4)), Different)


# Mutations.

BUTTERFLY = r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+), 16,(?s:(.*?bfly\.b32\s+%r\d+, %r\d+), 8,)"


@pytest.mark.parametrize(
    ("name", "pattern", "replacement"),
    [
        ("sum-inner-8x1024-float32", BUTTERFLY, r"\1, 8,\2, 16,"),
        ("sum-inner-4x3000-float32", BUTTERFLY, r"\1, 8,\2, 16,"),
        ("mean-split-float32-0", BUTTERFLY, r"\1, 8,\2, 16,"),
        ("sum-inner-4x3000-float32", r"selp\.f32(\s+%r\d+), (%r\d+), (%r\d+),", r"selp.f32\1, \3, \2,"),
        ("cumsum-8x1024-float32", r"(shfl\.sync\.up\.b32\s+%r\d+, %r\d+), 1,", r"\1, 2,"),
        ("prod-inner-8x1024-float32", r"mul(?:\.rn)?\.f32", "add.rn.f32"),
        ("silu-gate-float32", r"ex2\.approx\.ftz\.f32", "ex2.approx.f32"),
        ("mm-bias-relu-float16-k32", r"(mma\.sync[^;]*?\{[^}]*\}, \{) (%r\d+), (%r\d+),", r"\1 \3, \2,"),
    ],
    ids=["swapped merge", "swapped merge of a loop", "swapped merge of a split row", "the other lanes",
         "another neighbour", "another operation", "another function", "another fragment"],
)  # fmt: skip
def test_a_mutated_kernel_is_different(name: str, pattern: str, replacement: str) -> None:
    one = kernel(name, enable_fp_fusion=False, num_warps=4)
    assert isinstance(equivalent(one, one), Equal)
    answer = equivalent(one, mutated(one, pattern, replacement))
    assert isinstance(answer, Different), answer


@pytest.mark.parametrize(
    ("pattern", "replacement", "code"),
    [
        (r"bar\.sync\s+0;", "", "shared_memory"),
        (r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+, 16, 31), -1", r"\1, 1", "divergence"),
    ],
    ids=["missing barrier", "shuffle out of its mask"],
)
def test_a_broken_kernel_is_refused(pattern: str, replacement: str, code: str) -> None:
    one = kernel("sum-inner-4x3000-float32", num_warps=4, XBLOCK=1, R0_BLOCK=2048)
    answer = equivalent(one, mutated(one, pattern, replacement))
    assert isinstance(answer, Unknown)
    assert answer.code == code


# The capture.

CAPTURE = """
import dataclasses, runpy, sys
sys.path.insert(0, "scripts")
import compiled_functions

def broken(x):
    raise ValueError("this one does not compile")

every = compiled_functions.functions()
wanted = {n: every[n] for n in ("sum-inner-8x1024-float32", "mm-bias-relu-float16-k32", "mean-split-float32")}
wanted["broken"] = dataclasses.replace(every["sum-inner-8x1024-float32"], name="broken", call=broken)
compiled_functions.functions = lambda: wanted
import capture_compiled, json
print(json.dumps(capture_compiled.captured(list(wanted), "none")))
"""


def test_the_capture_takes_kernels_here_and_goes_on_where_a_function_fails() -> None:
    pytest.importorskip("torch", reason="torch.compile is torch's")
    done = subprocess.run([sys.executable, "-c", CAPTURE], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {row["function"]: row for row in json.loads(done.stdout.splitlines()[-1])}
    assert rows["broken"]["error"]
    assert "kernels" not in rows["broken"]
    (summed,) = rows["sum-inner-8x1024-float32"]["kernels"]
    assert summed["heuristic"] == "persistent_reduction"
    assert summed["integers"] == {"xnumel": 8, "r0_numel": 1024}
    assert summed["source"].startswith("@triton.jit\ndef triton_per_fused_sum_0(in_ptr0, out_ptr0, xnumel, r0_numel")
    assert summed["configs"]
    for config in summed["configs"]:
        assert config["grid"] == [-(-8 // config["constants"]["XBLOCK"]), 1, 1]
    first, second = rows["mean-split-float32"]["kernels"]
    assert (first["heuristic"], second["heuristic"]) == ("reduction", "persistent_reduction")
    (product,) = rows["mm-bias-relu-float16-k32"]["kernels"]
    assert product["heuristic"] == "template"
    assert "tl.dot" in product["source"]
    assert "triton_helpers.maximum" in product["source"]
    (config,) = product["configs"]
    assert (config["num_warps"], config["num_stages"], config["grid"]) == (8, 5, [1, 1, 1])


# On a card.


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["sum-inner-4x3000-float32", "softmax-8x1024-bfloat16", "rms-norm-16x250-float16", "cumsum-8x1024-float32-looped",
     "layer-norm-backward-8x1024-bfloat16-1", "mm-bias-relu-bfloat16-k32", "quantized-rows"],
)  # fmt: skip
def test_the_card_stores_what_was_read(name: str) -> None:
    from gemmdesc.equivalence.card import Card
    from gemmdesc.equivalence.holding import Holder, Launchable

    case = CASES[f"compiled-{name}"]
    choice = {**next(iter(case.configurations())), "enable_fp_fusion": False}
    compiled = compile_case(case, choice, 90)
    walked = read(Kernel(name=name, ptx=compiled.asm["ptx"], launch=launch_of(case, choice)))
    assert not isinstance(walked, Refused), walked
    kinds = tuple(kind for _, kind in case.pointers)
    given = Launchable(cubin=compiled.asm["cubin"], metadata=compiled.metadata, kinds=kinds)
    row = Holder(Card(), 0).hold(walked, given)
    assert all(row["equal"]), row.get("first")
    assert all(row["aimed_equal"]), row.get("first")


@pytest.mark.gpu
def test_the_card_s_own_capture_is_what_is_stored(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch.compile is torch's")
    if not torch.__version__.startswith("2.11"):
        pytest.skip(f"the stored kernels are torch 2.11's (got {torch.__version__})")
    out = tmp_path / "captured.json.xz"
    wanted = ["--functions", "sum-inner,softmax-8x1024,mm-bias"]
    command = [sys.executable, "scripts/capture_compiled.py", str(out), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    mine = {(one.function, one.number): one for one in emitted()}
    for one in emitted(out):
        stored = mine[one.function, one.number]
        assert (one.source, one.configs, one.integers) == (stored.source, stored.configs, stored.integers)
