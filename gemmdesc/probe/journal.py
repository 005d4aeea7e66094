"""A campaign's memory: one JSON line for each thing learned, written at once, read back on resuming."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmdesc.errors import CampaignError


class Journal:
    """Append-only files of JSON lines in one folder, one file for each ``kind`` of record.

    A last line that was cut off by a kill is dropped on reading and overwritten on the next write.

    Raises:
        CampaignError: the folder belongs to another campaign (``identity`` differs).
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        stamp = folder / "campaign.json"
        text = json.dumps(identity, sort_keys=True)
        if stamp.exists():
            if stamp.read_text() != text:
                raise CampaignError(f"folder must hold this campaign, {text} (got {stamp.read_text()} in {folder})")
        else:
            stamp.write_text(text)

    def _path(self, kind: str) -> Path:
        return self._folder / f"{kind}.jsonl"

    def read(self, kind: str) -> Iterator[dict[str, Any]]:
        """Records of ``kind`` in the order written."""
        path = self._path(kind)
        if not path.exists():
            return
        whole = path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            path.write_bytes(whole[:end])
        for line in whole[:end].splitlines():
            record: dict[str, Any] = json.loads(line)
            yield record

    def append(self, kind: str, record: dict[str, Any]) -> None:
        """Write one record and hand it to the operating system."""
        with self._path(kind).open("a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
