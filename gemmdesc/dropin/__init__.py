"""torch's own products from our kernels, in every spelling, forward and backward; see ``docs/torch.md``."""

import sys

from gemmdesc.dropin.composite import matmul, mm
from gemmdesc.dropin.epilogue import Epilogue
from gemmdesc.dropin.functional import addmm, addmm_activation, baddbmm, bmm, gated, linear, scaled_mm
from gemmdesc.dropin.intercept import OverrideError
from gemmdesc.dropin.ledger import Report, report
from gemmdesc.dropin.named import register_choices
from gemmdesc.dropin.operators import register_operators
from gemmdesc.dropin.overriding import (
    Override,
    disable_override,
    enable_override,
    is_overridden,
    override,
    reference,
)
from gemmdesc.dropin.pinning import Reference
from gemmdesc.dropin.sources import Answered, BookSource, LibrarySource, Source
from gemmdesc.library.late import process_watch

__all__ = [
    "Answered",
    "BookSource",
    "Epilogue",
    "LibrarySource",
    "Override",
    "OverrideError",
    "Reference",
    "Report",
    "Source",
    "addmm",
    "addmm_activation",
    "baddbmm",
    "bmm",
    "disable_override",
    "enable_override",
    "gated",
    "is_overridden",
    "linear",
    "matmul",
    "mm",
    "override",
    "reference",
    "register_choices",
    "register_operators",
    "report",
    "scaled_mm",
]

# Graphs that are traced later find the operators there, and what the workspaces are is known from before CUDA's start;
# importing torch for them alone would cost seconds.
if "torch" in sys.modules:
    register_operators()
    process_watch()
