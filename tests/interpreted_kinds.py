"""Run by test_kernels_interpreted.py as interpreted_kernels.py is: the bench of ``verify --kind`` on simulated answers.

Profile, planning, ``run_problem``'s checks and the kernels are the real ones; ``cublasLtMatmul`` is the replay of the
rule that the library of ``tests/kind_samples.py`` hides, written into D as that function would write it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from gemmdesc.bits import bits_dtype, first_mismatch
from gemmdesc.errors import Declined
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.library.storage import result_of, store_a, store_b, store_c
from gemmdesc.operands import DenseOperand, torch_integer
from gemmdesc.ops import problems
from gemmdesc.plan import Planner
from gemmdesc.plan.problems import every_matrix
from gemmdesc.probe.facets import Kind
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.problem import GemmProblem, Refused, environment
from gemmdesc.regions import evaluate_regions
from gemmdesc.verification import kind_kernels, kind_stage
from gemmdesc.verification.draws import draws_of
from gemmdesc.verification.gpu import GpuBench
from gemmdesc.verification.kind_draws import KindItem, kind_inputs, kind_operands
from gemmdesc.verification.kind_records import KindRecord
from tests.interpreted_finish import exact_fma
from tests.interpreted_kernels import patch_interpreter
from tests.kind_profiles import KERNEL_KINDS, on_hopper, profile_of, small_scopes
from tests.kind_samples import answer_of, rule_of
from tests.probe_samples import DEVICE, IDENTITY

_LARGEST = 1 << 21


def expected_bits(problem: GemmProblem, answer: Any, a: Any, b: Any, inputs: Any) -> Any:
    """All D, (d_outer, n) bit patterns, of views of op(A) and op(B)."""
    p = problem
    regions = evaluate_regions(on_hopper(rule_of(p, answer)), environment(p, answer, None))
    assert not isinstance(regions, Declined)
    sides = []
    for view, dtype in ((a, p.a_dtype), (b.mT, p.b_dtype)):
        shared = view[:1] if view.dim() == 3 and view.stride(0) == 0 else view
        stored = shared.reshape(-1, p.k).contiguous().cpu().view(torch_integer(dtype))
        bits = stored.numpy().view(bits_dtype(dtype))
        sides.append(DenseOperand(dtype=dtype, array=bits))
    return replay_problem(regions, p, sides[0], sides[1], inputs=inputs)


def reference(
    lt: Any, problem: GemmProblem, answer: Any, a: Any, b: Any, c: Any, d: Any, inputs: Any, *, wrong: bool
) -> None:
    """What the library would write; ``wrong``: with one bit of one element turned."""
    p = problem
    made = expected_bits(p, answer, kind_stage.op_a(p, a), kind_stage.op_b(p, b), inputs)
    if wrong:
        made[-1, 0] ^= 1
    signed = torch.from_numpy(np.ascontiguousarray(made).view(f"i{made.dtype.itemsize}"))
    each = signed.view(-1, p.m, p.n).mT
    d.columns.copy_(each if d.columns.dim() == 3 else each[0])


def compare(
    scope: Scope, index: int, planner: Planner, told: dict[str, Any], *, wrong: bool = False, of: str = ""
) -> None:
    p = draw_problem(scope, 1, index)
    if p.batch_count > 4:
        p = replace(p, batch_count=3)
    if p.batch_count > 1 and index % 4 == 0:
        p = replace(p, b_batch_stride=0)
    answer = answer_of(p)
    if isinstance(answer, Refused) or p.m * p.n * p.k * p.batch_count > _LARGEST:
        return
    transposed = bool(index % 2)
    plan = planner.plan_problem(p, planner.problem_meta(p, transposed=transposed), transposed=transposed)
    if isinstance(plan, Declined):
        told["bad"].append(f"{p}: {plan}")
        return
    bench = SimpleNamespace(planner=planner, place=torch.device("cpu"), cublaslt=None)
    shape = kind_kernels.Shape(bench=bench, plan=plan, answer=answer, seed=index)  # type: ignore[arg-type]
    kind_kernels.enqueue_reference = partial(reference, wrong=wrong)
    outcomes = shape.compare(draws_of(8)[index % 4 * 2 : index % 4 * 2 + 2])
    name = f"{of or scope.kind.value} {plan.kernel.structure.value}"
    told["counts"][name] = told["counts"].get(name, 0) + 1
    if wrong:
        told["caught"] += sum(bool(c.located and c.located["row"] == p.d_outer - 1) for c in outcomes)
    else:
        told["bad"] += [f"{name} {c} {p}" for c in outcomes if c.outcome.value != "equal"]


@cache
def planner_of_kinds(names: tuple[str, ...] = KERNEL_KINDS) -> Planner:
    profile = profile_of(small_scopes(names), on_hopper)

    def library() -> SimulatedLibrary:
        return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)

    return Planner(library, lambda device, identity: profile)


def compare_in_place(index: int, told: dict[str, Any], device: str = "cpu") -> None:
    """A batch whose matrices share A or B, plus beta times C, written over C; a GPU's tests do the same."""
    planner = planner_of_kinds()
    p = draw_problem(small_scopes(["add_beta_c"])["add_beta_c"], 5, index)
    answer = answer_of(p)
    if isinstance(answer, Refused) or 3 * p.m * p.n * p.k > _LARGEST:
        return
    p = replace(p, batch_count=3, d_batch_stride=p.ldd * p.n + 8)
    p = replace(p, a_batch_stride=p.lda * p.a_columns) if index % 2 else replace(p, b_batch_stride=p.ldb * p.b_columns)
    transposed = bool(index // 2 % 2)
    # The profile's rows are of single products; the rules of the library hold for batches, too.
    single = replace(p, batch_count=1, a_batch_stride=0, b_batch_stride=0, d_batch_stride=0)
    meta = every_matrix(planner.problem_meta(p, transposed=transposed), p, transposed=transposed)
    plan = planner.plan_problem(single, meta, transposed=transposed)
    if isinstance(plan, Declined):
        told["bad"].append(f"{p}: {plan}")
        return
    draw = draws_of(8)[index % 8]
    (a, b), inputs = kind_operands(p, draw, index), kind_inputs(p, draw, index)
    assert inputs.c is not None
    stored_a = store_a(p, a.torch_bits(p.a_outer, p.k, torch.device(device)))
    stored_b = store_b(p, b.torch_bits(p.b_outer, p.k, torch.device(device)))
    d = store_c(p, inputs.c.torch_bits(p.d_outer, p.n, torch.device(device)))
    first, second, out = kind_stage.op_a(p, stored_a), kind_stage.op_b(p, stored_b), kind_stage.result(p, d)
    expected = expected_bits(p, answer, first, second, inputs)
    if transposed:
        first, second, out = second.mT, first.mT, out.mT
    whole = replace(plan, problem=p, meta=planner.problem_meta(p, transposed=transposed))
    beside = {"c": out, "alpha": inputs.alpha, "beta": inputs.beta}
    run_here(whole, first, second, out, planner=planner, **beside)
    got = result_of(d).cpu().contiguous().numpy().view(expected.dtype)
    told["compared"] += 1
    wrong = first_mismatch(expected, got)
    if wrong:
        told["bad"].append(f"in place {wrong} {p}")


def run_here(plan: Any, a: Any, b: Any, out: Any, *, planner: Any, **beside: Any) -> None:
    """``run_problem`` but for the device."""
    tensors = problems.ProblemTensors(a=a, b=b, out=out, **beside)
    problems.require_problem_tensors(plan, tensors)
    problems.launch_problem(plan, tensors)


def verified(scopes: Mapping[str, Scope], planner: Planner) -> Iterator[KindRecord]:
    """The records that workers make, of the first cheap shape of each kind and of one that the profile lacks."""
    bench = GpuBench.__new__(GpuBench)
    bench.library = SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)
    hidden = {"_planner": planner, "_place": torch.device("cpu"), "_lt": None, "give_back": lambda: None}
    bench.__dict__.update(hidden)
    kind_kernels.enqueue_reference = partial(reference, wrong=False)
    for name, scope in (*scopes.items(), ("gelu", replace(scopes["relu"], kind=Kind.GELU))):
        problems_of = (draw_problem(scope, 2_000_004, i) for i in range(100))
        index = next(i for i, p in enumerate(problems_of) if p.batch_count * p.m * p.n * p.k < _LARGEST // 4)
        item = KindItem(name=name, scope=scope, seed=1, index=index, draws=3)
        record = kind_kernels.verify_kernels(bench, item)
        assert record is not None
        assert bool(kind_kernels.kernels_needed(bench, item)) is (record.declined is None)
        yield record


def main() -> None:
    patch_interpreter()
    interpreter.InterpreterBuilder.create_fma = exact_fma
    kind_kernels.run_problem = run_here
    scopes = small_scopes(KERNEL_KINDS)
    planner = planner_of_kinds()
    told: dict[str, Any] = {"counts": {}, "bad": [], "caught": 0, "compared": 0}
    for index in range(int(sys.argv[1])):
        for scope in scopes.values():
            compare(scope, index, planner, told)
    compare(scopes[Kind.BATCH.value], 1, planner, told, wrong=True)
    for index in range(int(sys.argv[1])):
        compare_in_place(index, told)
    told["records"] = [r.outcome for r in verified(scopes, planner)]
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
