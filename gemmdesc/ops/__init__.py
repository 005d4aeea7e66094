"""What users call: ``matmul``, ``plan``, ``run``, ``run_problem``, ``explain``, ``warmup``; see ``docs/usage.md``."""

from gemmdesc.ops.booked import book_planner
from gemmdesc.ops.defaults import (
    clear_saved_plans,
    default_planner,
    reset_default_planners,
    use_saved_plans,
    use_tuned_tables,
)
from gemmdesc.ops.planning import decline_counts, explain, plan, warmup
from gemmdesc.ops.problems import run_problem
from gemmdesc.ops.products import matmul, run

__all__ = [
    "book_planner",
    "clear_saved_plans",
    "decline_counts",
    "default_planner",
    "explain",
    "matmul",
    "plan",
    "reset_default_planners",
    "run",
    "run_problem",
    "use_saved_plans",
    "use_tuned_tables",
    "warmup",
]
