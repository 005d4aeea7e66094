"""``gemmdesc equiv``: whether compiled kernels owe each other the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.output import DIFFERENT, EQUAL, JsonOption, guarded, print_json, wants_json

if TYPE_CHECKING:
    from gemmdesc.equivalence import Answer, Kernel, Launch

#: The kernels cannot be read, or their bytes vary.
UNKNOWN = 3


@guarded
def equiv(
    context: typer.Context,
    files: Annotated[list[Path] | None, typer.Argument(help="Two PTX files, or one with --tree.")] = None,
    partition: Annotated[Path | None, typer.Option(help="A folder of PTX files to sort into classes.")] = None,
    block: Annotated[str, typer.Option(help="Threads as X,Y,Z; by default what the text demands.")] = "",
    grid: Annotated[str, typer.Option(help="Blocks as X,Y,Z.")] = "1,1,1",
    argument: Annotated[
        list[str] | None, typer.Option("--arg", help="An integer argument, POSITION=VALUE, counted from 0.")
    ] = None,
    fmad: Annotated[bool, typer.Option("--fmad/--no-fmad", help="Whether ptxas may fuse products into sums.")] = True,
    merge: Annotated[
        list[str] | None, typer.Option(help="Forms of mma.sync to take for one: 'swapped operands', 'zero padding'.")
    ] = None,
    tree: Annotated[str, typer.Option(help="Print what a stored byte is computed from: PARAMETER:OFFSET.")] = "",
    json: JsonOption = False,
) -> int:
    """Compare two kernels from their PTX; exit code 0 where equal, 1 where different, 3 where that is unknown.

    A file KERNEL.ptx may have its launch beside it, KERNEL.json: {"block": [x, y, z], "grid": [x, y, z],
    "arguments": {"3": 1000}, "contraction": true}, and its assembled text, KERNEL.sass.  Options stand for what no
    file says.
    """
    from gemmdesc.errors import InvalidInputError

    default = _launch(block, grid, argument or [], fmad)
    plain = wants_json(context, json)
    if partition is not None:
        return _partition(partition, default, plain)
    if tree and len(files or []) == 1:
        return _tree((files or [])[0], default, tree)
    if len(files or []) != 2:
        raise InvalidInputError(f"files must be two, or --partition must name a folder (got {len(files or [])})")
    one, other = (_kernel(path, default) for path in files or [])
    return _pair(one, other, merge or [], plain)


def _launch(block: str, grid: str, arguments: list[str], fmad: bool) -> Launch:
    from gemmdesc.equivalence import Launch
    from gemmdesc.errors import InvalidInputError

    given = {}
    for text in arguments:
        at, _, value = text.partition("=")
        try:
            given[int(at)] = int(value, 0)
        except ValueError:
            raise InvalidInputError(f"arg must be POSITION=VALUE (got {text})") from None
    threads = _extents("block", block) if block else None
    return Launch(block=threads, grid=_extents("grid", grid), arguments=given, contraction=fmad)


def _extents(name: str, text: str) -> tuple[int, int, int]:
    from gemmdesc.errors import InvalidInputError

    try:
        x, y, z = (*(int(part) for part in text.split(",")), 1, 1)[:3]
    except ValueError:
        raise InvalidInputError(f"{name} must be X,Y,Z (got {text})") from None
    return x, y, z


def _kernel(path: Path, default: Launch) -> Kernel:
    import json
    from dataclasses import replace

    from gemmdesc.equivalence import Kernel
    from gemmdesc.errors import InvalidInputError

    try:
        ptx = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"file must be readable text (got {path}: {error})") from None
    launch, beside, sass = default, path.with_suffix(".json"), path.with_suffix(".sass")
    if beside.exists():
        try:
            said = json.loads(beside.read_text(encoding="utf-8"))
            for name in ("block", "grid"):
                if name in said:
                    said[name] = tuple(said[name])
            if "arguments" in said:
                said["arguments"] = {int(at): int(value) for at, value in said["arguments"].items()}
            launch = replace(default, **said)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidInputError(f"launch must be readable JSON (got {beside}: {error})") from None
    text = sass.read_text(encoding="utf-8") if sass.exists() else None
    return Kernel(name=path.name, ptx=ptx, launch=launch, sass=text)


def _pair(one: Kernel, other: Kernel, merges: list[str], plain: bool) -> int:
    from gemmdesc.equivalence import Different, Equal, Nondeterministic, SameText, Unknown, equivalent

    answer = equivalent(one, other, merges=merges)
    if plain:
        print_json(_plain(answer))
    match answer:
        case Equal(assuming=assuming):
            said, code = "\n".join(("equal, assuming", *(f"  {line}" for line in assuming))), EQUAL
        case SameText(reason=reason):
            said, code = f"the same text and launch; not read, because {reason}", EQUAL
        case Different(element=element, one=first, other=second):
            where = f"byte {element.offset} behind parameter {element.parameter}"
            said, code = f"different at {where}\n{one.name}:\n{first}\n{other.name}:\n{second}", DIFFERENT
        case Unknown(reason=reason):
            said, code = f"unknown: {reason}", UNKNOWN
        case Nondeterministic(reason=reason):
            said, code = f"nondeterministic: {reason}", UNKNOWN
    if not plain:
        typer.echo(said)
    return code


def _plain(answer: Answer) -> dict[str, Any]:
    from dataclasses import asdict

    return {"answer": type(answer).__name__, **asdict(answer)}


def _partition(folder: Path, default: Launch, plain: bool) -> int:
    from gemmdesc.equivalence import partition
    from gemmdesc.errors import InvalidInputError

    paths = sorted(folder.glob("*.ptx"))
    if not paths:
        raise InvalidInputError(f"partition must be a folder with .ptx files (got {folder})")
    found = partition(_kernel(path, default) for path in paths)
    if plain:
        refused = [{"file": r.name, "reason": r.reason} for r in found.refused]
        print_json({"classes": [list(c) for c in found.classes], "refused": refused})
    else:
        for number, names in enumerate(found.classes, 1):
            typer.echo(f"class {number}: {', '.join(names)}")
        for r in found.refused:
            typer.echo(f"refused: {r.name}: {r.reason}")
    return EQUAL


def _tree(path: Path, default: Launch, where: str) -> int:
    from gemmdesc.equivalence import Refused, output_tree, read
    from gemmdesc.errors import InvalidInputError

    parameter, _, offset = where.partition(":")
    if not parameter.isdecimal() or not offset.lstrip("-").isdecimal():
        raise InvalidInputError(f"tree must be PARAMETER:OFFSET (got {where})")
    found = read(_kernel(path, default))
    if isinstance(found, Refused):
        typer.echo(f"unknown: {found.reason}")
        return UNKNOWN
    typer.echo(output_tree(found, int(parameter), int(offset)))
    return EQUAL
