"""A campaign's findings from its folder alone: no library, no GPU.

A campaign that was cut short still holds rows and comparisons; what is verified in full by then makes a profile, and
the rest declines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdesc.bits import Bits
from gemmdesc.dtypes import parse_dtype
from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import NO_INPUTS, Inputs, Window
from gemmdesc.operands import Operand
from gemmdesc.probe.campaign import Campaign, Findings, Options
from gemmdesc.probe.facets import Kind
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.records import session_from_plain
from gemmdesc.probe.sampling import KIND_NAMES, Regime, Scope
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import AlgoConfig, DeviceId, Failed, GemmProblem, Launch, LibraryId, Refused

_STAMP = "campaign.json"


@dataclass(frozen=True, kw_only=True)
class RecordedLibrary:
    """Stands for a library that is no longer at hand: it has a name and answers nothing."""

    identity: LibraryId
    device: DeviceId

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        raise CampaignError(f"library must be at hand to answer (got the record of {self.identity.version})")

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        return False

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        return None

    def run(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window | None = None,
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> Bits | Failed:
        raise CampaignError(f"library must be at hand to run (got the record of {self.identity.version})")


def kind_folder(folder: Path, name: str) -> Path:
    """Where below a campaign's folder the records of the kind of that name lie; those of plain products in it."""
    return folder if name == Kind.PLAIN.value else folder / name


def campaign_folders(folder: Path) -> list[Path]:
    """The folders of all kinds' campaigns in ``folder``.

    Raises:
        CampaignError: there is none.
    """
    found = [kept for name in KIND_NAMES if ((kept := kind_folder(folder, name)) / _STAMP).is_file()]
    if not found:
        raise CampaignError(f"folder must hold a campaign (got {folder})")
    return found


def recorded_findings(folder: Path) -> tuple[Findings, LibraryId, DeviceId]:
    """What the campaign in ``folder`` knows, and whom its last session asked.

    Raises:
        CampaignError: ``folder`` holds no campaign that was started.
    """
    stamp = folder / _STAMP
    if not stamp.is_file():
        raise CampaignError(f"folder must hold a campaign (got {folder})")
    about = json.loads(stamp.read_text())
    sessions = list(Journal(folder, about).read("sessions"))
    if not sessions:
        raise CampaignError(f"folder must hold a campaign that was started (got {folder})")
    library, device = session_from_plain(sessions[-1])
    scope = recorded_scope(about)
    workers = InProcess(RecordedLibrary(identity=library, device=device))
    options = Options(scope=scope, seed=about["seed"], compared_answers=about.get("compared_answers"))
    campaign = Campaign(workers, options, folder, _silent)
    return campaign.findings(), library, device


def recorded_scope(about: Mapping[str, Any]) -> Scope:
    """What a campaign covers, from the stamp of its folder."""
    return Scope(
        dtypes=tuple(parse_dtype(d) for d in about["dtypes"]),
        output_float32=about["output_float32"],
        regimes=tuple(Regime(r) for r in about["regimes"]),
        workspace_limit_bytes=about["workspace_limit_bytes"],
        misaligned_share=about["misaligned_share"],
        kind=Kind(about.get("kind", Kind.PLAIN.value)),
    )


def _silent(phase: str, done: int, total: int | None) -> None:
    """Nothing takes long enough to report."""
