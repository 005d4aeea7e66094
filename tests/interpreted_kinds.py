"""Run by test_kernels_interpreted.py as interpreted_kernels.py is: the bench of ``verify --kind`` on simulated answers.

Profile, planning, ``run_problem``'s checks and the kernels are the real ones; ``cublasLtMatmul`` is the replay of the
rule that the library of ``tests/kind_samples.py`` hides, written into D as that function would write it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from gemmdesc.bits import bits_dtype
from gemmdesc.errors import Declined
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.operands import DenseOperand
from gemmdesc.ops import problems
from gemmdesc.plan import Planner
from gemmdesc.probe.sampling import Kind, Scope, draw_problem
from gemmdesc.problem import GemmProblem, Refused, environment
from gemmdesc.regions import evaluate_regions
from gemmdesc.verification import kind_kernels
from gemmdesc.verification.draws import draws_of
from tests.interpreted_finish import exact_fma
from tests.interpreted_kernels import patch_interpreter
from tests.kind_profiles import KERNEL_KINDS, on_hopper, profile_of, small_scopes
from tests.kind_samples import answer_of, rule_of
from tests.probe_samples import DEVICE, IDENTITY

_LARGEST = 1 << 21


def reference(
    lt: Any, problem: GemmProblem, answer: Any, a: Any, b: Any, c: Any, d: Any, inputs: Any, *, wrong: bool
) -> None:
    """What the library would write; ``wrong``: with one bit of one element turned."""
    p = problem
    regions = evaluate_regions(on_hopper(rule_of(p, answer)), environment(p, answer, None))
    assert not isinstance(regions, Declined)
    sides = []
    for view, dtype in ((kind_kernels.op_a(p, a), p.a_dtype), (kind_kernels.op_b(p, b).mT, p.b_dtype)):
        shared = view[:1] if view.dim() == 3 and view.stride(0) == 0 else view
        bits = shared.reshape(-1, p.k).contiguous().view(torch.int16).numpy().view(bits_dtype(dtype))
        sides.append(DenseOperand(dtype=dtype, array=bits))
    made = replay_problem(regions, p, sides[0], sides[1], inputs=inputs)
    if wrong:
        made[-1, 0] ^= 1
    signed = torch.from_numpy(np.ascontiguousarray(made).view(f"i{made.dtype.itemsize}"))
    each = signed.view(-1, p.m, p.n).mT
    d.columns.copy_(each if d.columns.dim() == 3 else each[0])


def compare(scope: Scope, index: int, planner: Planner, told: dict[str, Any], *, wrong: bool = False) -> None:
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
    name = f"{scope.kind.value} {plan.kernel.structure.value}"
    told["counts"][name] = told["counts"].get(name, 0) + 1
    if wrong:
        told["caught"] += sum(bool(c.located and c.located["row"] == p.d_outer - 1) for c in outcomes)
    else:
        told["bad"] += [f"{name} {c} {p}" for c in outcomes if c.outcome.value != "equal"]


def run_here(plan: Any, a: Any, b: Any, out: Any, *, planner: Any, **beside: Any) -> None:
    """``run_problem`` but for the device."""
    tensors = problems.ProblemTensors(a=a, b=b, out=out, **beside)
    problems.require_problem_tensors(plan, tensors)
    problems.launch_problem(plan, tensors)


def main() -> None:
    patch_interpreter()
    interpreter.InterpreterBuilder.create_fma = exact_fma
    kind_kernels.run_problem = run_here
    scopes = small_scopes(KERNEL_KINDS)
    profile = profile_of(scopes, on_hopper)

    def library() -> SimulatedLibrary:
        return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)

    planner = Planner(library, lambda device, identity: profile)
    told: dict[str, Any] = {"counts": {}, "bad": [], "caught": 0}
    for index in range(int(sys.argv[1])):
        for scope in scopes.values():
            compare(scope, index, planner, told)
    compare(scopes[Kind.BATCH.value], 1, planner, told, wrong=True)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
