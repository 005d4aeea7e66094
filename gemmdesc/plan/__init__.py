"""Planning: a call resolved to the library's answer, a descriptor and a kernel, or declined.  Importable without torch.

``decide`` is the pure step from a problem and an answer; ``Planner`` asks the library, keeps the profile and caches
plans; ``Explanation`` says in words what was decided.  How to use them is in ``docs/usage.md``.
"""

from gemmdesc.normal_form import zero_exponent_shows
from gemmdesc.plan.answering import CaptureError
from gemmdesc.plan.cards import architecture_of, card_arithmetic, realised
from gemmdesc.plan.decide import decide, describe, mm_meta, needs_launch
from gemmdesc.plan.explanation import Explanation, explain_outcome, kernel_family
from gemmdesc.plan.needs import needed_variants
from gemmdesc.plan.opening import planner_for, saved_folder
from gemmdesc.plan.orders import SharedOrder, shared_orders
from gemmdesc.plan.pinning import pinned
from gemmdesc.plan.planner import Planner
from gemmdesc.plan.programs import FrequentCall, RepeatedCall
from gemmdesc.plan.saved import SavedAnswers, SavedAnswersWarning, SavedInfo, SavedKey
from gemmdesc.plan.values import CacheInfo, Decision, Description, Following, MmCall, Plan, PlanKey, ProblemCall
from gemmdesc.plan.words import in_words

__all__ = [
    "CacheInfo",
    "CaptureError",
    "Decision",
    "Description",
    "Explanation",
    "Following",
    "FrequentCall",
    "MmCall",
    "Plan",
    "PlanKey",
    "Planner",
    "ProblemCall",
    "RepeatedCall",
    "SavedAnswers",
    "SavedAnswersWarning",
    "SavedInfo",
    "SavedKey",
    "SharedOrder",
    "architecture_of",
    "card_arithmetic",
    "decide",
    "describe",
    "explain_outcome",
    "in_words",
    "kernel_family",
    "mm_meta",
    "needed_variants",
    "needs_launch",
    "pinned",
    "planner_for",
    "realised",
    "saved_folder",
    "shared_orders",
    "zero_exponent_shows",
]
