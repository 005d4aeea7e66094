"""Pages of the documentation that scripts make: written whole, or compared with what is there."""

from __future__ import annotations

import sys
from pathlib import Path


def write_page(page: Path, text: str) -> None:
    """Put ``text`` in the place of ``page``, which is at no moment half written."""
    aside = page.with_suffix(".md.tmp")
    aside.write_text(text)
    aside.replace(page)


def checked_page(page: Path, text: str, script: str) -> int:
    """0 where ``page`` holds ``text``; else 1, and a line on stderr that says which script makes it."""
    fresh = page.exists() and page.read_text() == text
    if not fresh:
        print(f"{page.name} is out of date; run scripts/{script}", file=sys.stderr)
    return 0 if fresh else 1
