"""Run by test_kernels_drawn.py with TRITON_INTERPRET=1: the comparison that is made on a card, with the interpreter."""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch

from gemmdesc.numerics.stochastic.inorder_card import draw_sums
from gemmdesc.verification import stochastic_card
from tests.interpreted_directed import patch_directed


def _other_seed(*arguments: Any, seed: int, **named: Any) -> Any:
    return draw_sums(*arguments, seed=seed + 1, **named)


def main() -> None:
    patch_directed()
    counts, differing = stochastic_card.compare_on_card((64,), columns=64, device="cpu")
    with patch.object(stochastic_card, "draw_sums", _other_seed):
        _, told = stochastic_card.compare_on_card((32,), rows=2, columns=8, device="cpu")
    sys.stdout.write(json.dumps({"counts": counts, "differing": differing, "told": told}) + "\n")


if __name__ == "__main__":
    main()
