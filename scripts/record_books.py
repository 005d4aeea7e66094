"""Record one release's book on its card, in parts that resume, and hold it against the library there.

    PYTHONPATH=. python scripts/record_books.py OUT [--seconds 480] [--library PACKAGE==V|PATH|simulated:SEED]
        [--tokens 1,16,128,1024,4096] [--grid 4096,16384] [--profile P] [--checks 200]

OUT/parts-<key>/ holds one book a part: the packaged layers of published models, those layers at --tokens, skinny and
deep shapes whose tail may be lost, and each grid.  A part that is there is not recorded again, so the same command goes
on where it was stopped.  When all are there, OUT/cublaslt-<version>.book is their union, and OUT/books-<key>.json says
what came of it: the book replayed on the CPU, the products of a sample by `matmul(book=)` against torch.mm on the GPU
(torch's own library only), lost tails, and the exit code of a reproducer (1: lost here, as lint says).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gemmdesc.books import Book, Recording, Shape, merged_books, open_reader, read_book, replay_entry, write_book
from gemmdesc.cli.libraries import Opener
from gemmdesc.cli.output import command_line
from gemmdesc.cli.shapelists import NAMED, Asked, asked_here
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, GemmdescError
from gemmdesc.lint import FindingKind, lint_shapes, reproducer
from gemmdesc.problem import Failed

#: Skinny shapes of this many k, and no larger m and n, where split-K loses tails; of each type.
DEEP_SHAPES = 400
DEEP_K = (8_000, 300_000)
SMALL_K = (16, 3_000)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a book: its name, its products, and what is kept of each."""

    name: str
    shapes: Callable[[], tuple[Shape, ...]]
    recording: Recording


def deep_shapes(simulated: bool) -> tuple[Shape, ...]:
    """Multiples of 8 for m and n, any multiple of 8 for k."""
    draw, found = Random(7), list[Shape]()
    low, high = SMALL_K if simulated else DEEP_K
    dtypes = (DType.FLOAT16,) if simulated else (DType.FLOAT16, DType.BFLOAT16)
    for _ in range(DEEP_SHAPES // (10 if simulated else 1)):
        m, n = 8 * draw.randint(1, 16), 8 * draw.randint(1, 16)
        k = 8 * draw.randint(low // 8, high // 8)
        found += [
            Shape(m=m, n=n, k=k, dtype=t, out_dtype=t, layout=draw.choice(("nn", "nt", "tn")), label="deep")
            for t in dtypes
        ]
    return tuple(found)


def parts(options: argparse.Namespace, simulated: bool) -> Iterator[Part]:
    checked, unchecked = Recording(), Recording(check=False)
    dtypes = ("float16",) if simulated else ("float16", "bfloat16")
    source = options.shapes or NAMED
    for dtype in dtypes:
        named = Asked(source=source, dtype=dtype)
        spread = Asked(source=source, dtype=dtype, tokens=options.tokens)
        yield Part(name=f"layers-{dtype}", shapes=named.shapes, recording=checked)
        yield Part(name=f"tokens-{dtype}", shapes=spread.shapes, recording=unchecked)
    yield Part(name="deep", shapes=lambda: deep_shapes(simulated), recording=checked)
    for k in options.grid.split(",") if options.grid else ():
        grid = Asked(source=source, dtype="float16", grid=k)
        only = lambda asked=grid: tuple(s for s in asked.shapes() if s.label == "grid")  # noqa: E731
        yield Part(name=f"grid-{k}", shapes=only, recording=unchecked)


def record_parts(options: argparse.Namespace, opener: Opener, key: str, end: float) -> list[Path] | None:
    """The files of all parts; None where the time was over before."""
    folder = options.out / f"parts-{key}"
    files = []
    for part in parts(options, opener.simulated):
        path = folder / f"{part.name}.book"
        files.append(path)
        if path.is_file():
            continue
        if time.monotonic() > end:
            return None
        begin = time.monotonic()
        recorded = asked_here(part.shapes(), opener.spec, part.recording, command_line(), lambda *_: None)
        write_book(recorded.book, path)
        print(f"{path}: {len(recorded.book.entries)} problems in {time.monotonic() - begin:.0f} s", flush=True)
    return files


def replayed(book: Book, profile: Path | None, most: int, end: float) -> dict[str, Any]:
    """The book's bytes made again on the CPU, at most ``most`` of them and until ``end``, spread over the book."""
    reader = open_reader(book, profile)
    entries = [e for e in book.entries if e.check is not None]
    chosen = entries[:: max(1, len(entries) // most)]
    counts: Counter[str] = Counter()
    wrong = []
    for entry in chosen:
        if time.monotonic() > end:
            counts["not_reached"] += 1
            continue
        result = replay_entry(entry, reader)
        name = "declined" if result.declined else "different" if result.mismatch else "equal"
        counts[name] += 1
        if name == "different":
            wrong.append(str(entry))
    return {**counts, "with_bytes": len(entries), "wrong": wrong}


def against_torch(book: Book, path: Path, profile: Path | None, shapes: list[Shape], end: float) -> dict[str, Any]:
    """`matmul(book=)` on the GPU against torch.mm, every byte."""
    import torch

    import gemmdesc

    counts: Counter[str] = Counter()
    wrong, reasons = [], Counter[str]()
    for shape in shapes:
        if time.monotonic() > end:
            counts["not_reached"] += 1
            continue
        kind = getattr(torch, shape.dtype.value)
        torch.manual_seed(shape.m + shape.n + shape.k)

        def matrix(rows: int, columns: int, by_columns: bool, kind: Any = kind) -> Any:
            stored = (columns, rows) if by_columns else (rows, columns)
            made = torch.randn(stored, device="cuda", dtype=kind) * torch.exp2(
                torch.randint(-6, 7, stored, device="cuda").to(kind)
            )
            return made.T if by_columns else made

        a = matrix(shape.m, shape.k, shape.layout[0] == "t")
        b = matrix(shape.k, shape.n, shape.layout[1] == "t")
        try:
            ours = gemmdesc.matmul(a, b, book=book, profiles=profile)
        except gemmdesc.DeclinedError as error:
            counts["declined"] += 1
            reasons[f"{error.declined.code}: {error.declined.reason[:160]}"] += 1
            continue
        equal = torch.equal(ours.view(torch.int16), torch.mm(a, b).view(torch.int16))
        counts["equal" if equal else "different"] += 1
        if not equal:
            wrong.append(str(shape))
    return {**counts, "wrong": wrong, "reasons": dict(reasons.most_common(20)), "book": str(path)}


def lost_tails(book: Book, profile: Path | None, shapes: tuple[Shape, ...], out: Path, on_gpu: bool) -> dict[str, Any]:
    """Lost tails among ``shapes``, and what the smallest one's script says here."""
    report = lint_shapes(shapes, open_reader(book, profile))
    losing = [r for r in report.shapes if r.lost_tail]
    counts = Counter(f.kind.value for r in report.shapes for f in r.findings)
    data: dict[str, Any] = {"shapes": len(report.shapes), **counts}
    assert counts[FindingKind.LOST_TAIL.value] == len(losing)
    if losing:
        smallest = min(losing, key=lambda r: r.shape.m * r.shape.n * r.shape.k)
        script = out / f"lost_tail-{book.library.version}.py"
        script.write_text(reproducer(smallest, book, script.name))
        command = [sys.executable, str(script), *([] if on_gpu else ["--device", "cpu"])]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        data |= {"script": str(script), "shape": str(smallest.shape), "lost": smallest.lost_tail}
        data |= {"exit_code": ran.returncode, "said": ran.stdout.splitlines(), "error": ran.stderr[-500:]}
    return data


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record one release's book in parts, and check it.")
    parser.add_argument("out", type=Path, help="folder of parts, book and results")
    parser.add_argument("--seconds", type=float, default=480, help="no part is begun, and no check made, after this")
    parser.add_argument("--library", help="PACKAGE==V, a path, or simulated:SEED; torch's own by default")
    parser.add_argument("--shapes", help="instead of the packaged layers")
    parser.add_argument("--tokens", default="1,16,128,1024,4096")
    parser.add_argument("--grid", default="4096,16384")
    parser.add_argument("--profile", type=Path, help="a profile's file or folder, looked at first")
    parser.add_argument("--checks", type=int, default=200, help="products replayed, and multiplied on the GPU")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """0: done, and equal; 1: something differs; 2: cannot; 3: the time was over, run it again."""
    options = parse(arguments)
    end = time.monotonic() + options.seconds
    opener = Opener(spec=options.library)
    try:
        library = opener()
        key = f"{library.device.folder}-{library.identity.version}"
        files = record_parts(options, opener, key, end)
        if files is None:
            print("the time is over: run the same command again", file=sys.stderr)
            return 3
        book = merged_books([read_book(path) for path in files])
        path = options.out / f"cublaslt-{book.library.version}.book"
        write_book(book, path)
        data = check(book, path, options, opener, end)
    except GemmdescError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (options.out / f"books-{key}.json").write_text(json.dumps(data, indent=1))
    print(json.dumps(data, indent=1))
    return 1 if data["replay"].get("different") or data.get("torch", {}).get("different") else 0


def check(book: Book, path: Path, options: argparse.Namespace, opener: Opener, end: float) -> dict[str, Any]:
    """What the results file holds."""
    deep = deep_shapes(opener.simulated)
    data: dict[str, Any] = {
        "book": str(path), "bytes": path.stat().st_size, "problems": len(book.entries), "card": book.device.name,
        "library": str(book.library.version), "command": command_line(), "date": book.date, "torch_version": book.torch,
        "reference_failed": sum(bool(e.failure) for e in book.entries),
        "failures": sorted({Failed(status=e.failure).status for e in book.entries if e.failure}),
    }  # fmt: skip
    if isinstance(open_reader(book, options.profile).profile, Declined):
        return data | {"replay": {}, "note": "no profile of this card and release: nothing was checked"}
    data["lost_tails"] = lost_tails(book, options.profile, deep, options.out, opener.spec is None)
    if opener.spec is None:
        spread = Asked(source=options.shapes or NAMED, tokens="16,1000", dtype="float16").shapes()
        sample = [s for s in (*deep, *spread) if s.problem(book.settings) in book.by_problem]
        sample = Random(3).sample(sample, min(options.checks, len(sample)))
        data["torch"] = against_torch(book, path, options.profile, sample, end)
    data["replay"] = replayed(book, options.profile, options.checks, end)
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
