"""A simulated library that hides an order for every kind of problem; the rehearsal of ``scripts/read_kinds.py``."""

from __future__ import annotations

from dataclasses import replace

from gemmdesc.arithmetic.models import find_model
from gemmdesc.descriptor import (
    AddBias,
    AddC,
    CastTo,
    EpilogueStep,
    OperandCast,
    Relu,
    Rounding,
    ScalarStep,
    Scale,
    ScaleOutput,
)
from gemmdesc.dtypes import DType
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.problem import (
    BIASED,
    AlgoConfig,
    ComputeType,
    Epilogue,
    GemmProblem,
    Refused,
    ScalarClass,
    is_float8,
)
from gemmdesc.rule import Rule
from tests.probe_samples import AMPERE, DEVICE, HOPPER, IDENTITY, Order, sample_answer

GELU = (Epilogue.GELU, Epilogue.GELU_BIAS)
SPLIT = "round_up(ceildiv(k, splitk_num), 64)"


def answer_of(p: GemmProblem) -> AlgoConfig | Refused:
    """Two families by whether k is a multiple of 8, several slices where k is long; e5m2 with itself is refused."""
    if p.a_dtype is p.b_dtype is DType.FLOAT8_E5M2:
        return Refused(status="CUBLAS_STATUS_NOT_SUPPORTED")
    splitk = 1 + (p.k > 900) + (p.k > 1400)
    if p.a_dtype is DType.FLOAT32 and p.compute_type is ComputeType.COMPUTE_32F:
        return sample_answer(algo_id=1, splitk_num=splitk)
    aligned = p.k % 8 == 0
    return sample_answer(algo_id=66 if aligned else 21, splitk_num=splitk, stages_id=35 if aligned else 8)


def rule_of(p: GemmProblem, answer: AlgoConfig) -> Rule:
    order = _order(p, answer)
    rule = order.rule(p.a_dtype, p.d_dtype)
    steps = _epilogue(p, answer)
    changes: dict[str, object] = {"b_dtype": p.b_dtype, "epilogue": steps}
    if _in_place(p, answer):
        (cut,) = rule.structure.cuts
        opening = tuple(s for s in steps if isinstance(s, AddC | AddBias))
        changes |= {
            "cuts": (replace(cut, opening=opening),), "epilogue": tuple(s for s in steps if s not in opening),
        }  # fmt: skip
    if p.compute_type is ComputeType.COMPUTE_32F_FAST_TF32:
        rounding = Rounding.TOWARD_ZERO if answer.algo_id == 66 else Rounding.NEAREST_AWAY
        cast = OperandCast(dtype=DType.TFLOAT32, rounding=rounding)
        changes |= {"a_cast": cast, "b_cast": cast}
    return replace(rule, structure=replace(rule.structure, **changes))


def _in_place(p: GemmProblem, answer: AlgoConfig) -> bool:
    """Whether slices are summed in D itself, the first taking C or the bias in, as algo_id 24 of an H200 does."""
    takes = p.alpha is ScalarClass.ONE and (p.beta is not ScalarClass.ZERO or p.epilogue in BIASED)
    return takes and answer.algo_id == 21 and answer.splitk_num > 1 and not is_float8(p.a_dtype)


def _order(p: GemmProblem, answer: AlgoConfig) -> Order:
    several = (SPLIT,) if answer.splitk_num > 1 else ()
    if answer.algo_id == 1:
        return Order(spans=several, instruction_k=1, step=ScalarStep(fused=True))
    if is_float8(p.a_dtype):
        model = find_model(
            architecture="Hopper", instruction="wgmma", a_dtype=p.a_dtype, b_dtype=p.b_dtype,
            accumulator_dtype=DType.FLOAT32,
        )  # fmt: skip
        blocks = () if p.fast_accumulation else ("128",)
        wide = ("round_up(ceildiv(k, splitk_num), 128)",) if several else ()
        return Order(spans=(*wide, *blocks), instruction_k=32, step=model.step)
    per = 8 if p.a_dtype is DType.FLOAT32 else 16
    if answer.algo_id == 66:
        return Order(spans=several, instruction_k=per, step=HOPPER)
    merge = p.d_dtype if _in_place(p, answer) else DType.FLOAT32
    return Order(spans=several, instruction_k=per // 2, loop_step=32, step=AMPERE, merge=merge)


def _epilogue(p: GemmProblem, answer: AlgoConfig) -> tuple[EpilogueStep, ...]:
    steps: list[EpilogueStep] = [Scale()] if is_float8(p.a_dtype) or p.alpha is ScalarClass.OTHER else []
    if p.beta is not ScalarClass.ZERO:
        # One family rounds the product to D's type first.
        narrow = answer.algo_id == 21 and p.d_dtype is not DType.FLOAT32 and not _in_place(p, answer)
        steps += [CastTo(dtype=p.d_dtype)] if narrow else []
        steps.append(AddC(fused=True))
    if p.epilogue in (Epilogue.BIAS, Epilogue.RELU_BIAS, Epilogue.GELU_BIAS):
        steps.append(AddBias())
    # Gelu is not simulated; what stands for it is unexplained, as gelu is.
    if p.epilogue in (Epilogue.RELU, Epilogue.RELU_BIAS, *GELU):
        steps.append(Relu(keeps_nan=answer.algo_id != 21))
    return (*steps, ScaleOutput()) if is_float8(p.d_dtype) else tuple(steps)


def library_of_kinds() -> SimulatedLibrary:
    return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)
