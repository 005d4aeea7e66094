"""Judge draws of a gate again without a card: is what the card stored among what the expressions allow?

    python scripts/equivalence_recheck.py OUT.json --gate tests/observations/equivalence-gate-compiled.parquet

Of every draw in which a configuration's bytes were not what was worked out, a gate's row has the digest of what the
card stored.  The configuration is compiled here, to the text that the row names, read, and worked out on it: with
selections as PTX has them, with those that ptxas may make maxima as maxima, and with every choice between the two,
element by element, as long as there are few.  A draw is explained if one of them has the card's digest.  Where an
output needs a function that only hardware defines, there is no digest to compare; then a row's draws fit if, in the
other outputs, the first word that differed is the one thing as a selection and the other as a maximum, and so many
bytes differ in it and in some of the other words that may be either.

Needs the Triton (and torch) of the gate, no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from equivalence_gate import CORPUS, SEED, load_corpus

#: Elements that may be one or the other, of which all choices are tried.
_MOST = 12
Row = dict[str, Any]


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """div.full.f32 by a power of two, or of a NaN.

    Raises:
        ValueError: some quotient is another one, which the manual does not fix to the bit.
    """
    x, y = (np.ascontiguousarray(v.astype(np.uint32)).view(np.float32) for v in np.broadcast_arrays(a, b))
    with np.errstate(all="ignore"):
        out = x / y
    if (((y.view(np.uint32) & np.uint32(0x7FFFFF)) != 0) & ~np.isnan(out)).any():
        raise ValueError("divisors must be powers of two")
    return np.where(np.isnan(out), np.uint64(0x7FFFFFFF), out.view(np.uint32).astype(np.uint64))


def judged(row: Row, corpus: Any, seed: int) -> Row:
    """What a row's draws that differ are among."""
    from gemmdesc.equivalence import Kernel, Refused, read
    from gemmdesc.equivalence.answers import signature, text_digest
    from gemmdesc.equivalence.draws import AIMED, DRAWS
    from gemmdesc.errors import InvalidInputError

    case = corpus.wide_cases()[row["case"]]
    ptx = corpus.compile_case(case, row["choice"], 90).asm["ptx"]
    said: Row = {"case": row["case"], "choice": row["choice"], "draws": [], "explained": []}
    if text_digest(ptx) != row["text"]:
        return {**said, "reason": "another text is compiled here"}
    walked = read(Kernel(name=case.name, ptx=ptx, launch=corpus.launch_of(case, row["choice"])))
    if isinstance(walked, Refused):
        return {**said, "reason": f"it is no longer read: {walked.reason}"}
    said["same_class"] = signature(walked) == row["class"]
    names = [*DRAWS, *AIMED]
    for number, same in enumerate([*row["equal"], *row.get("aimed_equal", ())]):
        if not same:
            digest = row["outputs"][number] if number < len(DRAWS) else row["aimed"][number - len(DRAWS)]
            said["draws"].append(names[number])
            try:
                fits = any(made == digest for made in allowed(walked, row["kinds"], names[number], seed))
            except (InvalidInputError, ValueError) as error:
                fits, said["reason"] = False, str(error).partition(" (")[0]
            said["explained"].append(fits)
    if not all(said["explained"]):
        said["fits"] = counted(walked, row, said["draws"], seed)
    return said


def operands(walked: Any, kinds: list[str], name: str, seed: int) -> dict[int, np.ndarray]:
    """What the gate had behind the pointers that are read."""
    from gemmdesc.equivalence.draws import FORMATS, draw
    from gemmdesc.equivalence.evaluate import loaded_bytes

    memory = {}
    for parameter, size in loaded_bytes(walked).items():
        each = FORMATS[kinds[parameter]].bytes
        memory[parameter] = draw(name, kinds[parameter], parameter, -(-size // (each * 4096)) * 4096, seed)
    return memory


def counted(walked: Any, row: Row, names: list[str], seed: int) -> bool:
    """Whether the outputs that can be worked out differ as the gate counted."""
    from gemmdesc.equivalence.evaluate import evaluate, missing_functions

    sizes: list[int] = []
    first = 0
    for parameter in np.unique(walked.stored.parameter).tolist():
        chosen = walked.stored.parameter == parameter
        if missing_functions(walked, chosen):
            continue
        for name in names:
            memory = operands(walked, row["kinds"], name, seed)
            two = [evaluate(walked, memory, chosen=chosen, as_extremes=which)[parameter] for which in (False, True)]
            (at, one), (_, other) = two
            for begin in np.unique(at[one != other] // 4 * 4).tolist():
                word = (at >= begin) & (at < begin + 4)
                found = {"draw": name, "offset": begin, "parameter": parameter,
                         "walker": one[word].tobytes().hex(), "card": other[word].tobytes().hex()}  # fmt: skip
                size = int((one[word] != other[word]).sum())
                if found == row["first"]:
                    first = size
                else:
                    sizes.append(size)
    sums = {sum(some) for count in range(len(sizes) + 1) for some in itertools.combinations(sizes[:_MOST], count)}
    return bool(first) and row["mismatches"] - first in sums


def allowed(walked: Any, kinds: list[str], name: str, seed: int) -> Iterator[str]:
    """Digests of every stored byte on one draw."""
    from gemmdesc.equivalence.evaluate import evaluate
    from gemmdesc.equivalence.holding import in_elements
    from gemmdesc.equivalence.operations import LITERAL

    memory = operands(walked, kinds, name, seed)
    functions = dict.fromkeys(("div.full.f32", f"div.full.f32{LITERAL}"), quotient)
    moved, made = (evaluate(walked, memory, functions=functions, as_extremes=which) for which in (False, True))
    choices = []
    for parameter, (at, one) in sorted(moved.items()):
        other = made[parameter][1]
        apart = in_elements(walked, parameter, at, (one != other)[None])[0]
        begins = np.flatnonzero(apart & ~np.concatenate([[False], apart[:-1] & (np.diff(at) == 1) & (at[1:] % 4 != 0)]))
        choices += [(parameter, int(at[k]) // 4 * 4) for k in begins]
    every = [(True,) * len(choices), (False,) * len(choices)]
    mixed = itertools.product((True, False), repeat=len(choices)) if len(choices) <= _MOST else ()
    for taken in itertools.chain(every, mixed):
        digest = hashlib.sha256()
        chosen = {place for place, take in zip(choices, taken, strict=True) if take}
        for parameter, (at, one) in sorted(moved.items()):
            take = np.array([(parameter, int(offset) // 4 * 4) in chosen for offset in at])
            digest.update(np.where(take, made[parameter][1], one).tobytes())
        yield digest.hexdigest()[:16]


def main() -> None:
    """Judge all rows that differ, and write a claim."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gate", type=Path, nargs="+", required=True, help="rows of equivalence_gate.py")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    options = parser.parse_args()
    import triton

    from gemmdesc.equivalence.gate_rows import load_gate_rows

    corpus = load_corpus(options.corpus)
    rows = [r for r in load_gate_rows(options.gate) if not all([*r.get("equal", ()), *r.get("aimed_equal", ())])]
    said = [judged(row, corpus, options.seed) for row in sorted(rows, key=lambda r: r["case"])]
    explained = sum(sum(one["explained"]) for one in said)
    fit = sum(len(one["draws"]) - sum(one["explained"]) for one in said if one.get("fits"))
    claim = {
        "claim": "Draws of the gate in which the card's bytes were not those of the selections as PTX has them, judged "
        "again without a card: the digest of what it stored is that of the expressions with maxima where ptxas may "
        "make some of selections; where an output needs a function of the hardware, the first word and the number of "
        "bytes fit",
        "command": "python scripts/equivalence_recheck.py OUT.json --gate ROWS.parquet",
        "card": "none: the card's digests are in the rows",
        "versions": {"triton": triton.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d"),
        "counts": {
            "configurations": len(said),
            "same_text_and_class": sum(one.get("same_class", False) for one in said),
            "draws": sum(sum(not same for same in [*r["equal"], *r.get("aimed_equal", ())]) for r in rows),
            "explained_by_digest": explained,
            "fit_by_count": fit,
        },
        "draws_by_case": {
            case: dict(Counter(f"{name}: {'explained' if explains else 'fits' if one['fits'] else 'not explained'}"
                               for one in said if one["case"] == case
                               for name, explains in zip(one["draws"], one["explained"], strict=True)))
            for case in sorted({one["case"] for one in said})
        },
        "not_judged": [one for one in said if not all(one["explained"]) and not one.get("fits")],
    }  # fmt: skip
    options.out.write_text(json.dumps({"claims": [claim]}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(claim, indent=1))
    sys.exit(0 if explained + fit == claim["counts"]["draws"] else 1)


if __name__ == "__main__":
    main()
