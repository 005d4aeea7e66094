"""Hold the equivalence checker against a card: what it reads has to be what the card stores, bit for bit.

    python scripts/equivalence_gate.py OUT [--seconds 250] [--processes 16] [--most 10000] [--card none]

Configurations of the corpus are compiled here, read, and launched with ten adversarial draws each.  The expression
behind every stored byte (of a sample, where they are many) is worked out with PTX's arithmetic, functions that only
hardware defines on the card, and compared with what the card stored; bytes that no thread stores have to stay as they
were.  Configurations that the checker calls equal have to store the same bytes on every draw, and on eight more that
are launched only.

OUT/rows-*.jsonl has one line per configuration.  Lines that are there already are not made again, so that a run that
the time limit ended goes on where it was; OUT/summary.json counts over all lines.  ``--card none`` rehearses the script
without a GPU: nothing is launched, and its counts say nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from types import ModuleType
from typing import Any

import numpy as np

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "equivalence_corpus.py"
#: Values of expressions, over all draws, that are worked out for one configuration at most.
MOST_VALUES = 1_500_000
#: Further draws that are launched, and not worked out, to tell apart what 16-bit outputs round to one value.
EXTRA = 8
#: Bytes around each output that have to stay as they were.
MARGIN = 1024
SEED = 20261130


def load_corpus(path: Path) -> ModuleType:
    """The module with ``wide_cases()`` and ``compile_case``."""
    if path.stem not in sys.modules:
        spec = spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            sys.exit(f"corpus must be a Python file (got {path})")
        sys.modules[path.stem] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]


def key(row: dict[str, Any]) -> str:
    """What makes a row the row of its configuration."""
    return json.dumps([row["case"], row["choice"]], sort_keys=True)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All whole lines of all shards, one per configuration."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("rows-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                found[key(row)] = row
    return list(found.values())


def planned(corpus: ModuleType, seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Every configuration of the wide corpus, in an order that only ``seed`` fixes.

    Matrix products cost five times what the rest does; at first they are thinned out, to take half of the time.
    """
    draw = random.Random(seed)
    every = [(case.name, choice) for case in corpus.wide_cases().values() for choice in case.configurations()]
    return sorted(every, key=lambda item: draw.random() * (2.0 if item[0].startswith("gemm") else 1.0))


#: What stands in for approximate functions where no card is.
NUMPY = {"ex2": np.exp2, "lg2": np.log2, "div": np.divide, "sqrt": np.sqrt, "tanh": np.tanh, "rcp": np.reciprocal}


class Rehearsal:
    """Stands in for a card: launches nothing, and takes NumPy's functions for the hardware's."""

    name = "none (rehearsal)"

    def launch(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def instruction(self, name: str, target: str, version: str) -> Any:
        """NumPy's function, or some other; the text for the card is assembled, to see that it can be."""
        from gemmdesc.equivalence.card import assemble
        from gemmdesc.equivalence.instructions import instruction_ptx

        known = 0x3F800000 if name.endswith(" literal") else None
        assemble(instruction_ptx(name.removesuffix(" literal"), target, version, known), target)
        function = NUMPY.get(name.split(".")[0])
        if function is None or not name.removesuffix(" literal").endswith(".f32"):
            return lambda *bits: np.bitwise_xor.reduce(np.broadcast_arrays(*bits)) ^ np.uint64(1)

        def run(*bits: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                made = function(*(b.astype(np.uint32).view(np.float32) for b in bits))
            return np.ascontiguousarray(made, np.float32).view(np.uint32).astype(np.uint64)

        return run

    def matrix_step(self, target: str, version: str) -> Any:
        """Some function of a row, a column and an accumulator."""
        return lambda _name, rows, columns, before: (rows.sum(axis=1) + columns.sum(axis=1) + before).astype(np.uint64)


class Reader:
    """Compiles, reads, launches and compares one configuration after the other."""

    def __init__(self, corpus: ModuleType, card: Any, seed: int) -> None:
        self.corpus, self.card, self.seed = corpus, card, seed
        self.cases = corpus.wide_cases()
        self._memory: dict[tuple[Any, ...], np.ndarray] = {}

    def compiled(self, name: str, choice: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """The beginning of a row, and the compiled kernel or None."""
        began = time.perf_counter()
        case = self.cases[name]
        kinds = [kind for _, kind in case.pointers]
        row: dict[str, Any] = {"case": name, "choice": choice, "kernel": case.kernel.__name__, "kinds": kinds}
        try:
            kernel = self.corpus.compile_case(case, choice, 90)
        except Exception as error:  # noqa: BLE001 - a compiler's failure is a row, whatever it raises
            return {**row, "refused": "compiler", "reason": f"{type(error).__name__}: {str(error)[:200]}"}, None
        return {**row, "compile_s": round(time.perf_counter() - began, 4)}, kernel

    def finished(self, row: dict[str, Any], compiled: Any) -> dict[str, Any]:
        """The row with everything that reading and launching say."""
        from gemmdesc.equivalence import Kernel, Refused, read, signature
        from gemmdesc.equivalence.answers import text_digest

        if compiled is None:
            return row
        case = self.cases[row["case"]]
        launch = self.corpus.launch_of(case, row["choice"])
        began = time.perf_counter()
        ptx = compiled.asm["ptx"]
        row["text"] = text_digest(ptx)
        walked = read(Kernel(name=case.name, ptx=ptx, launch=launch))
        row["read_s"] = round(time.perf_counter() - began, 4)
        if isinstance(walked, Refused):
            return {**row, "refused": walked.code, "reason": walked.reason[:200]}
        row["class"] = signature(walked)
        row["assuming"] = list(walked.assuming[2:])
        try:
            return {**row, **self._held(case, walked, compiled)}
        except Exception as error:  # noqa: BLE001 - what could not be held against the card is counted, with its reason
            said = f"{type(error).__name__}: {str(error)[:300]}"
            return {**row, "failed": said, "where": traceback.format_exc()[-600:]}

    def _inputs(self, case: Any, walked: Any) -> dict[int, np.ndarray]:
        """Bytes behind each pointer that is read, shape (draws, bytes), the extra draws last; one key, one array."""
        from gemmdesc.equivalence.draws import DRAWS, FORMATS, draw
        from gemmdesc.equivalence.evaluate import loaded_bytes

        found = {}
        kinds = [kind for _, kind in case.pointers]
        for parameter, size in loaded_bytes(walked).items():
            each = FORMATS[kinds[parameter]].bytes
            count = -(-size // (each * 4096)) * 4096
            key_ = (parameter, kinds[parameter], count)
            if key_ not in self._memory:
                wanted = [(name, self.seed) for name in DRAWS]
                wanted += [("plain", self.seed + 1 + i) for i in range(EXTRA)]
                made = [draw(d, kinds[parameter], parameter, count, seed) for d, seed in wanted]
                self._memory[key_] = np.stack(made)
            found[parameter] = self._memory[key_]
        return found

    def _held(self, case: Any, walked: Any, compiled: Any) -> dict[str, Any]:
        """Launch, work out, compare."""
        from gemmdesc.equivalence.draws import DRAWS
        from gemmdesc.equivalence.evaluate import evaluate, missing_functions
        from gemmdesc.equivalence.matrix_steps import modelled_steps

        inputs = self._inputs(case, walked)
        draws = len(DRAWS) + EXTRA
        began = time.perf_counter()
        stored = walked.stored
        written = sorted(set(stored.parameter.tolist()))
        sizes = {p: int(stored.offset[stored.parameter == p].max()) + 1 for p in written}
        card = self._launched(case, walked, compiled, inputs, sizes, draws)
        launched = time.perf_counter()
        chosen = sample(walked, len(DRAWS))
        target, version = walked.entry.target.split(",")[0].strip(), walked.entry.version
        functions = {n: self.card.instruction(n, target, version) for n in missing_functions(walked, chosen)}
        steps = modelled_steps("Hopper", self.card.matrix_step(target, version))
        worked = {p: data[:draws] if card is None else data[: len(DRAWS)] for p, data in inputs.items()}
        values = evaluate(walked, worked, functions=functions, matrix_step=steps, chosen=chosen)
        row: dict[str, Any] = {"launch_s": round(launched - began, 4), "functions": sorted(functions)}
        if card is None:
            row["outputs"] = [_digest([v[d] for _, v in values.values()]) for d in range(draws)]
        else:
            row |= compared(card, values, walked, len(DRAWS))
        row["bytes_compared"] = int(chosen.sum())
        row["bytes_stored"] = len(stored.ids)
        row["evaluate_s"] = round(time.perf_counter() - launched, 4)
        return row

    def _launched(
        self, case: Any, walked: Any, compiled: Any, inputs: dict[int, np.ndarray], sizes: dict[int, int], draws: int
    ) -> dict[int, np.ndarray] | None:
        metadata = compiled.metadata
        scratch = [getattr(metadata, n, 0) for n in ("global_scratch_size", "profile_scratch_size")]
        if any(scratch) or getattr(metadata, "num_ctas", 1) != 1:
            raise ValueError("the kernel wants scratch memory or a cluster")
        if isinstance(self.card, Rehearsal):
            return None
        written = list(sizes)
        arguments: list[tuple[str, Any]] = []
        for index, parameter in enumerate(walked.entry.parameters):
            if index in sizes and index in inputs:
                raise ValueError(f"parameter {index} is read and written")
            if index in inputs:
                data = inputs[index]
                name = (index, case.pointers[index][1], data.shape[1])
                arguments.append(("input", self.card.upload(name, lambda data=data: data)))
            elif index in sizes:
                arguments.append(("output", written.index(index)))
            elif index in walked.launch.arguments:
                width = int(parameter.kind[1:]) // 8
                arguments.append(("integer", (walked.launch.arguments[index], width)))
            else:
                arguments.append(("nothing", None))
        found = self.card.launch(
            compiled.asm["cubin"],
            walked.entry.name,
            grid=walked.launch.grid,
            block=walked.launch.block or walked.entry.threads,
            shared=int(metadata.shared),
            arguments=arguments,
            draws=draws,
            outputs=[sizes[p] + MARGIN for p in written],
        )
        return dict(zip(written, found, strict=True))


def sample(walked: Any, draws: int) -> np.ndarray:
    """Which stored bytes are worked out: all, or whole groups of eight bytes at random until the work is bounded."""
    from gemmdesc.equivalence.evaluate import needed_nodes

    stored = walked.stored
    chosen = np.ones(len(stored.ids), np.bool_)
    if needed_nodes(walked) * draws <= MOST_VALUES:
        return chosen
    _, group = np.unique(np.stack([stored.parameter, stored.offset // 8]), axis=1, return_inverse=True)
    groups = int(group.max()) + 1
    order = np.random.default_rng(SEED).permutation(groups)
    share = groups
    while share > 4 and needed_nodes(walked, chosen) * draws > MOST_VALUES:
        share = max(4, share // 2)
        chosen = np.isin(group.ravel(), order[:share])
    return chosen


def compared(card: dict[int, np.ndarray], values: dict[int, Any], walked: Any, draws: int) -> dict[str, Any]:
    """Digests of what the card stored on every draw, and where the first ``draws`` are not what expressions give."""
    from gemmdesc.equivalence.card import UNTOUCHED
    from gemmdesc.equivalence.draws import DRAWS

    stored, row = walked.stored, {"outputs": [], "equal": [], "mismatches": 0}
    every = len(next(iter(card.values())))
    pieces: list[list[np.ndarray]] = [[] for _ in range(every)]
    wrong = np.zeros(draws, np.int64)
    for parameter, got in card.items():
        offsets = stored.offset[stored.parameter == parameter]
        free = np.ones(got.shape[1], np.bool_)
        free[offsets] = False
        wrong += (got[:draws, free] != UNTOUCHED).sum(axis=1)
        for draw in range(every):
            pieces[draw].append(got[draw, offsets])
        if parameter in values:
            at, wanted = values[parameter]
            differ = got[:draws, at] != wanted
            wrong += differ.sum(axis=1)
            if differ.any() and "first" not in row:
                draw, place = (int(x[0]) for x in np.nonzero(differ))
                begin = int(at[place]) // 4 * 4
                here = (at >= begin) & (at < begin + 4)
                row["first"] = {
                    "draw": list(DRAWS)[draw],
                    "parameter": parameter,
                    "offset": begin,
                    "card": got[draw, at[here]].tobytes().hex(),
                    "walker": wanted[draw, here].tobytes().hex(),
                }
    row["outputs"] = [_digest(parts) for parts in pieces]
    row["equal"] = [bool(count == 0) for count in wrong]
    row["mismatches"] = int(wrong.sum())
    return row


def _digest(parts: list[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest()[:16]


def work(number: int, options: dict[str, Any], todo: list[Any], counter: Any, warm: Any, ends: float) -> None:
    """One process: take configurations until there are none or the time is over."""
    os.environ["TRITON_CACHE_DIR"] = f"{options['scratch']}/triton-{number}"
    os.environ.pop("TRITON_INTERPRET", None)
    corpus = load_corpus(Path(options["corpus"]))
    if options["card"] == "none":
        card: Any = Rehearsal()
    else:
        from gemmdesc.equivalence.card import Card

        card = Card()
    reader = Reader(corpus, card, options["seed"])
    path = Path(options["out"]) / f"rows-{int(time.time())}-{number}.jsonl"
    taken = _taken(todo, counter, ends)
    if number == 0:
        warm_up(reader)
        warm.set()
    ahead = []
    # Compile ahead while one process fills Numba's cache, which the others then read.
    while not warm.is_set():
        item = next(taken, None)
        if item is None:
            break
        ahead.append(reader.compiled(*item))
    warm.wait(timeout=max(0.0, ends - time.time()))
    with path.open("a", encoding="utf-8") as sink:
        for row, kernel in itertools.chain(ahead, (reader.compiled(*item) for item in taken)):
            if time.time() > ends:
                break
            made = reader.finished(row, kernel)
            sink.write(json.dumps(made) + "\n")
            sink.flush()
            if made.get("failed", "").startswith("LibraryError: CUDA"):
                # The context is lost with the first illegal access, and with it every later launch of this process.
                print(f"process {number} ends: {made['failed']}", file=sys.stderr, flush=True)
                break


def _taken(todo: list[Any], counter: Any, ends: float) -> Iterator[Any]:
    while time.time() < ends:
        with counter.get_lock():
            index = counter.value
            counter.value += 1
        if index >= len(todo):
            return
        yield todo[index]


def warm_up(reader: Reader) -> None:
    """Have Numba compile what reading and working out need."""
    cases = reader.cases
    for name, choice in (
        ("gemm-fp16", {"BM": 16, "BN": 32, "BK": 32, "num_stages": 2, "num_warps": 1}),
        ("gemm-fp32", {"BM": 16, "BN": 32, "BK": 32, "num_stages": 1, "num_warps": 1}),
        ("softmax-256-bf16", {"num_warps": 4, "enable_fp_fusion": False, "num_stages": 1}),
    ):
        if name in cases:
            reader.finished(*reader.compiled(name, choice))


def summary(rows: list[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """The claim: configurations and texts apart, and pairs that are called equal or different."""
    read = [r for r in rows if "class" in r]
    held = [r for r in read if "equal" in r]
    refused = [r for r in rows if "refused" in r]
    failed = [r for r in read if "failed" in r]
    draws = sum(len(r["equal"]) for r in held)
    equal = sum(sum(r["equal"]) for r in held)
    same, different = pairs([r for r in read if "outputs" in r])
    return {
        "claim": "What the equivalence checker reads is what the card stores: expressions worked out with PTX's "
        "arithmetic against launched kernels, ten adversarial draws each; kernels called equal store the same bytes",
        **facts,
        "counts": {
            "configurations": len(rows),
            "distinct_texts": len({r["text"] for r in rows if "text" in r}),
            "read": len(read),
            "texts_read": len({r["text"] for r in read}),
            "launched": len(held),
            "draws": draws,
            "equal": equal,
            "different": draws - equal,
            "configurations_different": sum(not all(r["equal"]) for r in held),
            "declined": len(refused),
            "failed": len(failed),
            "bytes_compared": sum(r.get("bytes_compared", 0) for r in held) * 10,
            "bytes_stored": sum(r.get("bytes_stored", 0) for r in held) * 10,
            "fully_compared": sum(r["bytes_compared"] == r["bytes_stored"] for r in held),
        },
        "called_equal": same,
        "called_different": different,
        "over_splitting": over_splitting([r for r in read if "outputs" in r]),
        "declined_by_reason": tally(refused, lambda r: r["refused"]),
        "declined_reasons": dict(Counter(f"{r['kernel']}: {_general(r['reason'])}" for r in refused).most_common(40)),
        "failed_by_reason": dict(Counter(r["failed"][:160] for r in failed).most_common(20)),
        "different_by_kernel": tally([r for r in held if not all(r["equal"])], lambda r: r["kernel"]),
        "first_differences": [
            {k: r[k] for k in ("case", "choice", "first", "assuming") if k in r} for r in held if not all(r["equal"])
        ][:40],
        "by_kernel": tally(rows, lambda r: r["kernel"]),
        "functions_on_the_card": sorted({name for r in read for name in r.get("functions", ())}),
        "seconds": {
            name: {"median": median(values), "mean": round(mean(values), 4)}
            for name in ("compile_s", "read_s", "launch_s", "evaluate_s")
            if (values := [r[name] for r in rows if name in r])
        },
    }


def _general(reason: str) -> str:
    return re.sub(r"%\w+|0f[0-9A-F]{8}|\d+", "#", reason)[:110]


def tally(rows: list[dict[str, Any]], by: Any) -> dict[str, dict[str, int]]:
    """Configurations and distinct texts of each group."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    return {
        name: {"configurations": len(g), "distinct_texts": len({r.get("text", "") for r in g})}
        for name, g in sorted(groups.items(), key=lambda item: -len(item[1]))
    }


def pairs(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pairs called equal, over all cases, and pairs of classes of one case, which are called different.

    Element types are no part of a class, but draws depend on them: pairs over two types are not counted.
    """
    classes: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        classes[(row["class"], *row.get("kinds", ()))].append(row)
    shared = {name: group for name, group in classes.items() if len(group) > 1}
    odd = {name: g for name, g in shared.items() if len({tuple(r["outputs"]) for r in g}) > 1}
    texts = {name: {(r["case"], r["text"]): r for r in g} for name, g in shared.items()}
    by_case: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for row in rows:
        by_case[row["case"]][row["class"]] = row["outputs"]
    seen = unseen = 0
    kernels: Counter[str] = Counter()
    for case, found in by_case.items():
        outputs = list(found.values())
        for i, one in enumerate(outputs):
            for other in outputs[:i]:
                if one == other:
                    unseen += 1
                    kernels[case.split("-")[0]] += 1
                else:
                    seen += 1
    return {
        "classes": len(classes),
        "classes_of_several": len(shared),
        "pairs": sum(_pairs(len(g)) for g in shared.values()),
        "pairs_of_distinct_texts": sum(_pairs(len(g)) for g in texts.values()),
        "pairs_that_differ": sum(_unlike(g) for g in odd.values()),
        "examples": [[(r["case"], r["choice"], r["outputs"]) for r in g[:3]] for g in list(odd.values())[:5]],
    }, {
        "pairs_of_classes": seen + unseen,
        "seen_to_differ": seen,
        "never_seen_to_differ": unseen,
        "never_seen_by_kernel": dict(kernels.most_common()),
    }


def over_splitting(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each kernel, the checker's classes against those of the bytes, case by case, over distinct texts."""
    cases: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cases[row["case"]].append(row)
    kernels: dict[str, Counter[str]] = defaultdict(Counter)
    surplus = []
    for case, group in cases.items():
        classes, bytes_ = len({r["class"] for r in group}), len({tuple(r["outputs"]) for r in group})
        kernels[group[0]["kernel"]] += Counter(
            {"texts": len({r["text"] for r in group}), "classes": classes, "classes_of_bytes": bytes_}
        )
        if classes > bytes_:
            surplus.append({"case": case, "classes": classes, "classes_of_bytes": bytes_})
    reductions = [c for name, c in kernels.items() if not name.startswith("gemm")]
    total = sum(reductions, Counter())
    return {
        "without_products": {**total, "factor": round(total["classes"] / max(total["classes_of_bytes"], 1), 4)},
        "by_kernel": dict(sorted((name, dict(counts)) for name, counts in kernels.items())),
        "surplus": surplus,
    }


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _unlike(group: list[dict[str, Any]]) -> int:
    alike = Counter(tuple(r["outputs"]) for r in group)
    return _pairs(len(group)) - sum(_pairs(n) for n in alike.values())


def facts_of(options: argparse.Namespace) -> dict[str, Any]:
    """Command, card, versions and date of a claim."""
    import triton

    card = Rehearsal.name
    versions = {"triton": triton.__version__, "numpy": np.__version__, "python": platform.python_version()}
    if options.card != "none":
        from gemmdesc.equivalence.card import Card

        card = Card().name
    loaded = Path("/proc/driver/nvidia/version")
    if loaded.exists() and (match := re.search(r"Kernel Module\D*([\d.]+)", loaded.read_text(encoding="utf-8"))):
        versions["driver"] = match[1]
    command = f"python scripts/equivalence_gate.py OUT --seconds {options.seconds} --seed {options.seed}"
    return {"command": command, "card": card, "versions": versions, "date": time.strftime("%Y-%m-%d")}


def main() -> None:
    """Run, then write and print the summary; exit 1 if a byte or a pair differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder for rows and the summary; what is there is not made again")
    parser.add_argument("--seconds", type=float, default=250.0, help="wall clock from start to summary")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most", type=int, default=None, help="new configurations at most")
    parser.add_argument("--cases", default="", help="beginnings of case names")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--card", choices=("first", "none"), default="first")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--summary", action="store_true", help="only count what is there")
    options = parser.parse_args()
    began = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.summary:
        run(options, began)
    made = summary(rows_of(options.out), facts_of(options))
    text = json.dumps({"claims": [made]}, indent=1)
    (options.out / "summary.json").write_text(text + "\n", encoding="utf-8")
    print(text[:8000])
    sys.exit(1 if made["counts"]["different"] or made["called_equal"]["pairs_that_differ"] else 0)


def run(options: argparse.Namespace, began: float) -> None:
    """Have the processes take configurations until the time is over."""
    known = {key(row) for row in rows_of(options.out)}
    wanted = [name for name in options.cases.split(",") if name]
    todo = [
        item
        for item in planned(load_corpus(options.corpus), options.seed)
        if json.dumps(list(item), sort_keys=True) not in known
        and (not wanted or any(item[0].startswith(name) for name in wanted))
    ][: options.most]
    print(f"{len(known)} rows are there, {len(todo)} to make", file=sys.stderr, flush=True)
    context = get_context("spawn")
    counter, warm = context.Value("l", 0), context.Event()
    scratch = tempfile.mkdtemp(prefix="equivalence_gate_")
    given = {"out": str(options.out), "corpus": str(options.corpus), "card": options.card, "seed": options.seed,
             "scratch": scratch}  # fmt: skip
    ends = began + options.seconds - 15
    processes = [
        context.Process(target=work, args=(n, given, todo, counter, warm, ends)) for n in range(options.processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=max(0.0, ends + 10 - time.time()))
    for process in processes:
        if process.is_alive():
            process.kill()
    shutil.rmtree(scratch, ignore_errors=True)
    print(f"{time.time() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
