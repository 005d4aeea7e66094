"""Stochastic arithmetic in torch modules, through torch's own function overrides."""

from __future__ import annotations

from gemmdesc.numerics.stochastic.modules.analysis import Analysis, ModuleSettings, Products, Rounded, lift
from gemmdesc.numerics.stochastic.modules.reports import OperatorReport, Phase
from gemmdesc.numerics.stochastic.modules.shadow import ShadowModel
from gemmdesc.numerics.stochastic.modules.tracker import Tracker

__all__ = [
    "Analysis",
    "ModuleSettings",
    "OperatorReport",
    "Phase",
    "Products",
    "Rounded",
    "ShadowModel",
    "Tracker",
    "lift",
]
