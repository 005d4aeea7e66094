"""torch's own products from our kernels, in every spelling, forward and backward; see ``docs/torch.md``."""

from gemmdesc.dropin.functional import addmm, addmm_activation, baddbmm, bmm, linear, matmul, mm, scaled_mm
from gemmdesc.dropin.ledger import Report, report
from gemmdesc.dropin.overriding import (
    Override,
    OverrideError,
    disable_override,
    enable_override,
    is_overridden,
    override,
)
from gemmdesc.dropin.sources import Answered, BookSource, LibrarySource, Source

__all__ = [
    "Answered",
    "BookSource",
    "LibrarySource",
    "Override",
    "OverrideError",
    "Report",
    "Source",
    "addmm",
    "addmm_activation",
    "baddbmm",
    "bmm",
    "disable_override",
    "enable_override",
    "is_overridden",
    "linear",
    "matmul",
    "mm",
    "override",
    "report",
    "scaled_mm",
]
