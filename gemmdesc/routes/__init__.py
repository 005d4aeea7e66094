"""Which cuBLASLt problem a torch call is; see ``docs/torch.md``.  Pure: tensors enter as metas, and no GPU is asked."""

from gemmdesc.routes.addmm import route_addmm, route_product
from gemmdesc.routes.batched import route_baddbmm
from gemmdesc.routes.metas import NdMeta, TensorMeta, address_alignment, nd_meta, tensor_meta
from gemmdesc.routes.mm import COMPUTE_TYPE_REDUCTION, route_mm, swaps_operands
from gemmdesc.routes.release import READ_FOR, Release
from gemmdesc.routes.route import Activation, Addend, Api, Route, as_scalar, epilogue_words
from gemmdesc.routes.scaled import route_scaled_mm
from gemmdesc.routes.vectors import DOT, route_addmv

__all__ = [
    "COMPUTE_TYPE_REDUCTION",
    "DOT",
    "READ_FOR",
    "Activation",
    "Addend",
    "Api",
    "NdMeta",
    "Release",
    "Route",
    "TensorMeta",
    "address_alignment",
    "as_scalar",
    "epilogue_words",
    "nd_meta",
    "route_addmm",
    "route_addmv",
    "route_baddbmm",
    "route_mm",
    "route_product",
    "route_scaled_mm",
    "swaps_operands",
    "tensor_meta",
]
