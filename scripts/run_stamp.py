"""What a file of results says of the run that made it: the command, the card, the versions and the day."""

from __future__ import annotations

import sys
from datetime import date
from typing import Any


def run_stamp(no_card: str | None) -> dict[str, Any]:
    """``no_card``: what stands for the card where none is used, None where one is; no library is opened."""
    import torch

    card, versions = no_card, {"torch": torch.__version__}
    if no_card is None:
        from gemmdesc.library.device import device_id
        from gemmdesc.library.identity import library_id, torch_library

        here = device_id(0)
        card = f"{here.name} ({here.sm}, {here.sm_count} SMs)"
        versions |= {"cuBLASLt": str(library_id(torch_library().path).version), "driver": here.driver}
    command = " ".join(["python", *sys.argv])
    return {"command": command, "card": card, "versions": versions, "date": date.today().isoformat()}
