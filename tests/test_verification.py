"""Verification without a GPU: what cases are drawn, what records say, and whole campaigns on simulated libraries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmdesc.descriptor import ResidueFirst, ResidueLast
from gemmdesc.dtypes import DType
from gemmdesc.errors import CampaignError, Declined, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import Family
from gemmdesc.probe.sampling import LARGEST_FLOPS, LARGEST_OPERAND_BYTES
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import GemmProblem, KernelNode, Launch
from gemmdesc.profiles import Profile, index_profile
from gemmdesc.rule import Rule
from gemmdesc.verification.campaign import Machine, Options, cases_of, options_of_size, read_records, run_campaign
from gemmdesc.verification.cases import Regime, Storage, case_of, case_problem, draw_case, named_layers
from gemmdesc.verification.draws import draws_of, operands
from gemmdesc.verification.hidden import hidden_library, hide
from gemmdesc.verification.power import Options as PowerOptions
from gemmdesc.verification.power import power_summary, run_power
from gemmdesc.verification.records import Outcome, Record, record_from_plain, record_to_plain
from gemmdesc.verification.replayed import ReplayBench, spread_window
from gemmdesc.verification.scope import Scope, family_of, names_tensor_cores, scope_of, short_name
from gemmdesc.verification.structure import structure_of
from gemmdesc.verification.summary import counts_of, differs, lost_tail_counts, summary
from gemmdesc.verification.tensors import footprint
from tests.hidden_samples import hidden_profile

HIDDEN = hide(3)


def bench(profile: Profile | None = None, **changes: Any) -> ReplayBench:
    library = replace(hidden_library(HIDDEN), **changes)
    return ReplayBench(library, index_profile(profile or hidden_profile(HIDDEN)), TorchSettings())


# --- cases ------------------------------------------------------------------------------------------------------------


def test_unrounded_sizes_take_every_residue_and_small_values() -> None:
    cases = [draw_case(Regime.UNROUNDED, 1, i) for i in range(3000)]
    for name in ("m", "n", "k"):
        sizes = [getattr(c, name) for c in cases]
        assert {s % 16 for s in sizes} == set(range(16))
        assert set(range(1, 13)) <= set(sizes)
        # Log-uniform: the middle of the logarithm is the median, as far as the limit on flops leaves it there.
        assert 60 < np.median(sizes) < 400
    assert all(2 * c.m * c.n * c.k <= LARGEST_FLOPS for c in cases)
    assert max(max(c.operand_bytes) for c in cases) <= 1.1 * LARGEST_OPERAND_BYTES
    assert {c.dtype for c in cases} == {DType.FLOAT16, DType.BFLOAT16}
    assert {c.layout for c in cases} == {"nn", "nt", "tn", "tt"}
    wide = np.mean([c.out_dtype is DType.FLOAT32 for c in cases])
    assert 0.2 < wide < 0.3
    odd = np.mean([any((c.a.padding, c.a.offset, c.b.padding, c.b.offset)) for c in cases])
    assert 0.1 < odd < 0.2


def test_the_other_regimes() -> None:
    aligned = [draw_case(Regime.ALIGNED, 1, i) for i in range(300)]
    assert all(c.m % 8 == c.n % 8 == c.k % 8 == 0 for c in aligned)
    deep = [draw_case(Regime.DEEP, 1, i) for i in range(500)]
    assert max(c.k for c in deep) > 200_000
    assert max(max(c.m, c.n) for c in deep) <= 256
    assert len({c.k % 64 for c in deep}) == 64


def test_a_case_is_fixed_by_its_key() -> None:
    case = draw_case(Regime.DEEP, 7, 41)
    assert case_of(case.key) == case == draw_case(Regime.DEEP, 7, 41)
    assert draw_case(Regime.DEEP, 8, 41) != case
    assert draw_case(Regime.UNROUNDED, 7, 41).operand_draw_seed != case.operand_draw_seed
    with pytest.raises(InvalidInputError, match=r"^key must"):
        case_of("deep/1")


def test_named_layers_are_larger_and_within_the_limits() -> None:
    layers = named_layers()
    assert 195 <= len(layers) <= 210
    assert len({(x.model, x.layer, x.tokens) for x in layers}) == len(layers)
    largest = [max(x.tokens * x.k, x.n * x.k, x.tokens * x.n) for x in layers]
    assert sum(size > 2**31 for size in largest) >= 3
    assert max(largest) < 2**31 + 2**20
    cases = [draw_case(Regime.NAMED, 1, i) for i in range(len(layers))]
    assert {c.layout for c in cases} == {"nn", "nt", "tn", "tt"}
    assert max(map(footprint, cases)) < 60 * 2**30
    with pytest.raises(InvalidInputError, match=r"^index must"):
        draw_case(Regime.NAMED, 1, len(layers))


@pytest.mark.parametrize("index", range(60))
def test_a_case_is_a_problem_with_its_own_alignments(index: int) -> None:
    case = draw_case(Regime.UNROUNDED, 2, index)
    problem = case_problem(case, TorchSettings())
    assert isinstance(problem, GemmProblem)
    assert {problem.m, problem.n} == {case.m, case.n}
    assert problem.k == case.k
    for name, storage in (("a", case.a), ("b", case.b), ("out", case.out)):
        if storage.offset:
            size = (case.out_dtype if name == "out" else case.dtype).itemsize
            alignments = (problem.a_alignment_bytes, problem.b_alignment_bytes, problem.d_alignment_bytes)
            start = storage.offset * size
            assert min(256, start & -start) in alignments


def test_storage() -> None:
    assert Storage().strides(3, 5) == (5, 1)
    assert Storage(column_major=True, padding=2, offset=1).strides(3, 5) == (1, 5)
    assert Storage(column_major=True, padding=2, offset=1).extent(3, 5) == 26


def test_half_of_the_draws_are_wide_and_roles_differ() -> None:
    families = [d.family for d in draws_of(10)]
    assert families.count(Family.WIDE) == 5
    assert set(families) >= {Family.NORMAL, Family.RAMP, Family.CANCELLING, Family.SPECIALS}
    a, b = operands(draw_case(Regime.UNROUNDED, 1, 0), draws_of(2)[1])
    assert (a.role, b.role) == ("a", "b")


# --- reading launches and descriptors ---------------------------------------------------------------------------------


def launch_of(*names: str) -> Launch:
    one = (1, 1, 1)
    return Launch(kernels=tuple(KernelNode(name=n, grid=one, block=one, cluster=one, shared_bytes=0) for n in names))


@pytest.mark.parametrize(
    ("name", "tensor", "short"),
    [
        ("nvjet_sm90_hsh_64x64_64x13_4x2_h_bz_TNT", True, "nvjet_sm90_hsh_#_#_#_h_bz_TNT"),
        ("cutlass_75_tensorop_s1688gemm_f16_128x128_nn_align1", True, "cutlass_75_tensorop_s1688gemm_f16_#_nn_align1"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize96x64x32", True, None),
        ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_nn_align2", True, None),
        ("_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiE", False, "splitKreduce_kernel"),
        ("_Z10dot_kernelIfLi128EE", False, "dot_kernel"),
        ("void gemmSN_NN_kernel<float, 256, 4>(cublasGemmSmallNParams)", False, "gemmSN_NN_kernel"),
        ("void cublasLt::gemm_ab_mmad<float>", True, "gemm_ab_mmad"),
        ("gemmAB_kernel", False, "gemmAB_kernel"),
        ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", False, None),
        ("sm80_xmma_gemm_f16f16_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna2", False, None),
        ("void gemv2T_kernel_val<int, int, __half>", False, "gemv2T_kernel_val"),
        ("void internal::gemvx::kernel<int, int, __half>", False, "kernel"),
    ],
)
def test_names(name: str, tensor: bool, short: str | None) -> None:
    assert names_tensor_cores(name) is tensor
    if short is not None:
        assert short_name(name) == short


def test_scope_and_family_of_a_launch() -> None:
    split = launch_of("nvjet_sm90_hsh_64x64_TNT", "_ZN8cublasLt19splitKreduce_kernelILi32E")
    assert scope_of(split) is Scope.TENSOR_CORES
    assert family_of(split) == "nvjet_sm90_hsh_#_TNT + splitKreduce_kernel"
    assert scope_of(launch_of("gemmSN_NN_kernel")) is Scope.CUDA_CORES
    xmma = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_segment_k_{}_kernel__5x_cublas"
    assert scope_of(launch_of(xmma.format("on"))) is Scope.SEGMENT_K
    assert scope_of(launch_of(xmma.format("off"))) is Scope.TENSOR_CORES
    assert scope_of(None) is scope_of(launch_of("")) is Scope.UNKNOWN
    assert family_of(replace(split, memset_bytes=(64,))).startswith("memset + nvjet")


def test_structures() -> None:
    texts = [structure_of(rule.structure) for _, rule in HIDDEN.rules]
    assert texts[0].startswith("plain chain of ")
    assert texts[1].startswith("grouped chain of ")
    assert " + split, " in texts[2]
    assert " partials, " in texts[3]


# --- records ----------------------------------------------------------------------------------------------------------


def record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "key": "unrounded/1/0", "regime": Regime.UNROUNDED, "dtype": "float16", "case": {}, "draws": 2,
        "counts": {"cublaslt": {"equal": 2}, "torch": {"equal": 2}}, "scope": Scope.TENSOR_CORES,
    }  # fmt: skip
    return Record(**(values | changes))


def test_a_record_is_as_bad_as_its_worst_draw() -> None:
    assert record().outcome("torch") is Outcome.EQUAL
    mixed = record(counts={"cublaslt": {"equal": 1, "different": 1}, "torch": {"equal": 1, "nondeterministic": 1}})
    assert mixed.outcome("cublaslt") is Outcome.DIFFERENT
    assert mixed.outcome("torch") is Outcome.NONDETERMINISTIC
    assert differs(mixed)
    assert record(counts={}).outcome("torch") is Outcome.REFERENCE_FAILED
    declined = record(counts={}, declined=Declined(code="no_rule", reason="none"))
    assert declined.outcome("torch") is Outcome.DECLINED
    varies = record(counts={}, declined=Declined(code="nondeterministic", reason="varies"))
    assert varies.outcome("cublaslt") is Outcome.NONDETERMINISTIC


def test_records_are_read_back() -> None:
    for one in (record(), record(declined=Declined(code="no_rule", reason="x"), counts={}), record(lost_tail=True)):
        assert record_from_plain(json.loads(json.dumps(record_to_plain(one)))) == one
    with pytest.raises(CampaignError, match=r"^record must"):
        record_from_plain({"key": "x"})


def test_counts_keep_declines_out_of_scope_apart() -> None:
    no_rule = Declined(code="no_rule", reason="none")
    records = [
        record(),
        record(counts={"cublaslt": {"equal": 2}}),
        record(counts={}, declined=no_rule),
        record(counts={}, declined=no_rule, scope=Scope.CUDA_CORES),
        record(counts={}, declined=no_rule, scope=Scope.UNKNOWN),
        record(counts={}, failure="CUBLAS_STATUS_NOT_SUPPORTED"),
    ]
    assert counts_of(records, "cublaslt") == {
        "shapes": 6, "draws": 4, "equal": 2, "different": 0, "declined": 2, "declined_out_of_scope": 1,
        "nondeterministic": 0, "reference_failed": 1,
    }  # fmt: skip
    assert counts_of(records, "torch")["shapes"] == 5


def test_lost_tails_that_torch_reaches() -> None:
    reached = record(lost_tail=True, torch_is_cublaslt=2)
    elsewhere = record(lost_tail=True, torch_is_cublaslt=1)
    assert lost_tail_counts([reached, elsewhere, record()]) == {"shapes": 2, "equal": 2, "reached_by_torch": 1}


# --- campaigns --------------------------------------------------------------------------------------------------------


def small_options(**changes: Any) -> Options:
    return replace(Options(seed=4, draws=2, unrounded=0, aligned=0, deep=0, named=0, lost_tail=0), **changes)


def campaign(options: Options, folder: Path, made: ReplayBench) -> tuple[Record, ...]:
    return run_campaign(lambda count: InProcess(made), options, Machine(), folder, {"seed": 4}, lambda *_: None)



def test_a_campaign_is_equal_where_the_profile_is_right_and_resumes(tmp_path: Path) -> None:
    options = small_options(unrounded=24, lost_tail=3)
    records = campaign(options, tmp_path, bench())
    compared = [r for r in records if r.counts]
    assert len(compared) >= 5
    assert all(r.outcome("cublaslt") is Outcome.EQUAL for r in compared)
    # The simulated library answers float16 only by rule; other types decline for want of a row.
    assert all(r.declined for r in records if not r.counts)
    tails = [r for r in records if r.regime is Regime.LOST_TAIL]
    assert len(tails) == 3
    assert all(r.lost_tail for r in tails)
    before = (tmp_path / "shapes.jsonl").read_text()
    again = campaign(options, tmp_path, bench())
    assert [r.key for r in again] == [r.key for r in records]
    assert (tmp_path / "shapes.jsonl").read_text() == before
    more = campaign(replace(options, unrounded=26), tmp_path, bench())
    assert len(more) == len(records) + 2
    assert len(list(read_records(tmp_path))) == len(more)
    data = json.loads(json.dumps(summary(records)))
    assert data["total"]["cublaslt"]["different"] == 0
    assert any(row["tensor_cores"] for row in data["kernel_names"])


def test_a_wrong_rule_is_different_and_located(tmp_path: Path) -> None:
    def wrong(number: int, rule: Rule) -> Rule:
        leaf = rule.structure.accumulator
        if isinstance(leaf.residue, ResidueFirst) or number != 0:
            return rule
        step = replace(leaf.step, fraction_bits=12)
        return replace(rule, structure=replace(rule.structure, accumulator=replace(leaf, step=step)))

    made = bench(hidden_profile(HIDDEN, wrong))
    records = campaign(small_options(unrounded=30), tmp_path, made)
    bad = [r for r in records if differs(r)]
    assert bad
    located = bad[0].located
    assert located is not None
    assert located.expected_bits != located.got_bits
    assert 0 <= located.row < bad[0].case["m"]
    assert summary(records)["mismatches"][0]["key"] == bad[0].key


def test_a_library_whose_bytes_vary_is_nondeterministic(tmp_path: Path) -> None:
    made = bench(nondeterministic=lambda problem, answer: True)
    records = [r for r in campaign(small_options(unrounded=16), tmp_path, made) if r.counts]
    assert records
    assert not any(differs(r) for r in records)
    assert any(r.outcome("cublaslt") is Outcome.NONDETERMINISTIC for r in records)


def test_a_library_that_fails_is_a_failed_reference(tmp_path: Path) -> None:
    made = bench(failures=lambda problem, answer: "CUBLAS_STATUS_EXECUTION_FAILED")
    records = [r for r in campaign(small_options(unrounded=8), tmp_path, made) if r.counts]
    assert {r.outcome("cublaslt") for r in records} == {Outcome.REFERENCE_FAILED}
    assert records[0].failure == "CUBLAS_STATUS_EXECUTION_FAILED"


def test_another_campaign_in_the_folder_is_refused(tmp_path: Path) -> None:
    campaign(small_options(unrounded=1), tmp_path, bench())
    with pytest.raises(CampaignError, match=r"^folder must"):
        run_campaign(lambda n: InProcess(bench()), small_options(), Machine(), tmp_path, {"seed": 5}, lambda *_: None)


def test_options() -> None:
    assert [len(cases_of(o)) for o in (Options(), options_of_size(460, 2, 1))] == [4500 + len(named_layers()), 450]
    with pytest.raises(InvalidInputError, match=r"^draws must"):
        Options(draws=0)
    machine = Machine(workers=16, memory_bytes=100 << 30)
    assert machine.workers_for(40 << 30) == 2
    assert Machine(workers=3).workers_for(1 << 60) == 3


def test_windows_shrink_where_k_is_large() -> None:
    case = draw_case(Regime.DEEP, 1, 0)
    problem = case_problem(replace(case, m=200, n=200, k=300_000, a=Storage(), b=Storage()), TorchSettings())
    assert isinstance(problem, GemmProblem)
    window = spread_window(problem, 1)
    assert len(window.rows) <= 4
    assert {0, 199} <= set(window.rows.tolist())


# --- power ------------------------------------------------------------------------------------------------------------


def test_power_trials_catch_mutants_and_resume(tmp_path: Path) -> None:
    options = PowerOptions(seed=2, draws=4, per_kind=1, most_cases=400)
    trials = run_power(InProcess(bench()), options, tmp_path, {}, lambda *_: None)
    assert trials
    assert all(t.agrees for t in trials)
    data = power_summary(trials)
    assert {t.kind for t in trials} >= {"instruction_k", "residue", "chunk", "merge_type"}
    total = [kinds["all"] for kinds in data.values()]
    assert sum(c["caught"] for c in total) >= 0.9 * sum(c["trials"] for c in total)
    again = run_power(InProcess(bench()), options, tmp_path, {}, lambda *_: None)
    assert again == trials


def test_power_does_not_count_trials_on_a_wrong_descriptor(tmp_path: Path) -> None:
    def wrong(number: int, rule: Rule) -> Rule:
        leaf = rule.structure.accumulator
        changed = replace(leaf, residue=ResidueLast(), step=replace(leaf.step, fraction_bits=12))
        return rule if number != 0 else replace(rule, structure=replace(rule.structure, accumulator=changed))

    options = PowerOptions(seed=2, draws=2, per_kind=1, most_cases=400)
    made = bench(hidden_profile(HIDDEN, wrong))
    trials = run_power(InProcess(made), options, tmp_path, {}, lambda *_: None)
    bad = [t for t in trials if t.structure.startswith("plain chain of") and "split" not in t.structure]
    assert any(not t.agrees and not t.caught for t in bad)
