"""The Triton kernels that torch.compile emits, as ``scripts/capture_compiled.py`` stored them, for the corpus.

A kernel's source names helpers of inductor, which come from the torch that is installed: without one, or with one that
lacks them, such a kernel does not compile.  Nothing is imported from torch before a kernel is compiled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import linecache
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORED = Path(__file__).resolve().parent / "observations" / "compiled-kernels-torch-2.11.json.xz"
#: Which block size, and which number of elements, each extent of a grid is made of.
GRIDS = {
    "Grid1D": (("XBLOCK", "xnumel"),),
    "Grid2D": (("XBLOCK", "xnumel"), ("YBLOCK", "ynumel")),
}


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """One kernel; it stands for its compiled function in a :class:`tests.equivalence_corpus.Case`.

    ``function``: of ``scripts/compiled_functions.py``, whose kernel number ``number`` it is; ``signature``: Triton's
    types by argument, in order; ``constants``: constexpr arguments that every configuration has; ``aligned``: arguments
    divisible by 16; ``integers``: the other arguments that are no pointers; ``configs``: what inductor's heuristics
    would try, each with ``constants``, ``num_warps``, ``num_stages`` and ``grid``.
    """

    function: str
    number: int
    name: str
    source: str
    signature: Mapping[str, str]
    constants: Mapping[str, int]
    aligned: tuple[str, ...]
    integers: Mapping[str, int]
    heuristic: str
    grid_type: str
    configs: tuple[Mapping[str, Any], ...]

    @property
    def arg_names(self) -> list[str]:
        """As of a ``triton.jit`` function."""
        return list(self.signature)

    @property
    def family(self) -> str:
        """What the function is, without its shape, type and settings; kernels of one family are counted together."""
        return "-".join(w for w in self.function.split("-") if w != "looped" and not any(map(str.isdecimal, w)))

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        """Name and element type of each pointer argument."""
        return tuple((name, kind[1:]) for name, kind in self.signature.items() if kind.startswith("*"))

    @property
    def tiles(self) -> tuple[Mapping[str, int], ...]:
        """The block sizes that the heuristics would try, each choice once."""
        distinct = {json.dumps(config["constants"], sort_keys=True) for config in self.configs}
        return tuple(json.loads(text) for text in sorted(distinct))

    @property
    def stages(self) -> tuple[int, ...]:
        """The numbers of stages that the heuristics would try."""
        return tuple(sorted({config["num_stages"] for config in self.configs}))

    def grid(self, choice: Mapping[str, Any]) -> tuple[int, int, int]:
        """The launch grid with the block sizes of ``choice``."""
        known = {**self.integers, **self.constants}
        extents = [-(-known[numel] // choice[block]) for block, numel in GRIDS.get(self.grid_type, ())]
        if not extents:
            # A grid of no block size: every configuration has the same one.
            (extents,) = {tuple(config["grid"]) for config in self.configs}
        x, y, z = (*extents, 1, 1)[:3]
        return x, y, z

    def jit(self) -> Any:
        """The function as ``triton.jit`` makes it.

        Raises:
            ImportError: torch, or a helper of inductor that the source imports, is not there.
        """
        return _jitted(self.name, self.source)



@functools.cache
def _jitted(name: str, source: str) -> Any:
    import triton
    import triton.language as tl
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.triton_helpers import libdevice
    from torch._inductor.runtime.triton_helpers import math as tl_math

    # Triton reads a function's source through the line cache.
    place = f"<{name} {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    found: dict[str, Any] = {"__name__": place, "triton": triton, "tl": tl, "triton_helpers": triton_helpers,
                             "libdevice": libdevice, "tl_math": tl_math}  # fmt: skip
    exec(compile(source, place, "exec"), found)
    return found[name]


@functools.cache
def provenance(path: Path = STORED) -> Mapping[str, Any]:
    """Command, card, versions and date of the stored kernels."""
    said: Mapping[str, Any] = _stored(path)["provenance"]
    return said


@functools.cache
def emitted(path: Path = STORED) -> tuple[Emitted, ...]:
    """Every stored kernel, of several that differ in their names alone the first one."""
    found: dict[tuple[str, ...], Emitted] = {}
    for row in _stored(path)["functions"]:
        for number, kernel in enumerate(row.get("kernels", ())):
            one = Emitted(
                function=row["function"],
                number=number,
                name=kernel["kernel"],
                constants={name: int(value) for name, value in kernel["constants"].items()},
                aligned=tuple(kernel["aligned"]),
                configs=tuple(kernel["configs"]),
                **{key: kernel[key] for key in ("source", "signature", "integers", "heuristic", "grid_type")},
            )
            text = one.source.replace(one.name, "kernel"), str(one.signature), str(one.integers), str(one.constants)
            found.setdefault(text, one)
    return tuple(found.values())


def _stored(path: Path) -> Any:
    return json.loads(lzma.decompress(path.read_bytes()))
