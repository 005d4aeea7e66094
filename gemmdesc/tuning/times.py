"""What was timed, product by product, as JSON lines: appended as tuning goes, so that a later run goes on from it.

A line has the product in torch's terms, the card, the kernel's key and sizes, and of every pick what became of it.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemmdesc.books import Shape
from gemmdesc.dtypes import DType
from gemmdesc.errors import GemmdescError, InvalidInputError, ProfileError
from gemmdesc.kernels.tuned import TunedPick
from gemmdesc.problem import DeviceId
from gemmdesc.tuning.records import key_data, key_from, pick_data, pick_from, sizes_from
from gemmdesc.tuning.search import Measured

#: Of what a line holds; a reader takes no other.
TIMES_VERSION = 1
_TYPES = ("dtype", "out_dtype")
#: How the name of a packed file ends, which can be read and not grow.
PACKED = ".xz"


@dataclass(frozen=True, kw_only=True)
class TimedProduct:
    """A product that was timed on a card, and what came of it."""

    shape: Shape
    device: DeviceId
    measured: Measured


def append_times(path: Path, timed: TimedProduct) -> None:
    """Add a line to the file at ``path``, which is made where there is none, with its folders; a torn end is cut off.

    Raises:
        InvalidInputError: the file is packed.
        OSError: the place cannot be written.
    """
    if path.suffix == PACKED:
        raise InvalidInputError(f"times must be a file that can grow, which a packed one is not (got {path})")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        whole, torn = _parted(file.read())
        if torn:
            # A last line is whole where it is JSON and lacks its end only.
            file.truncate(len(whole) + (len(torn) if _is_json(torn) else 0))
        start = b"\n" if torn and _is_json(torn) else b""
        file.write(start + json.dumps(line_data(timed)).encode() + b"\n")


def read_times(path: Path, device: DeviceId | None = None) -> tuple[TimedProduct, ...]:
    """Every line of the file at ``path``, in order, which may be packed (``.xz``); a torn last one is left out.

    ``device``: the card that all must be of.

    Raises:
        ProfileError: the file cannot be read, another line is broken or of another version, or a card is not
            ``device``; the message has the line's number.
    """
    try:
        content = path.read_bytes()
        whole, torn = _parted(lzma.decompress(content) if path.suffix == PACKED else content)
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise ProfileError(f"times must be a readable file ({error}) (got {path})") from error
    lines = whole.split(b"\n")[:-1] + ([torn] if torn and _is_json(torn) else [])
    return tuple(_read(lines, path, device))


def _parted(content: bytes) -> tuple[bytes, bytes]:
    """Lines with their ends, and what comes after the last end."""
    at = content.rfind(b"\n") + 1
    return content[:at], content[at:]


def _is_json(text: bytes) -> bool:
    # No beginning of an object is JSON itself.
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _read(lines: list[bytes], path: Path, device: DeviceId | None) -> Iterator[TimedProduct]:
    for number, line in enumerate(lines, 1):
        try:
            timed = line_from(json.loads(line))
        except (GemmdescError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"times must be whole: line {number} is broken ({error!r}) (got {path})") from error
        if device is not None and timed.device != device:
            raise ProfileError(
                f"times must be of the card {device.folder}: line {number} is not (got {timed.device.folder}, {path})"
            )
        yield timed


def line_data(timed: TimedProduct) -> dict[str, Any]:
    """JSON-ready form of a line."""
    m = timed.measured
    return {
        "times_version": TIMES_VERSION,
        "shape": asdict(timed.shape) | {name: getattr(timed.shape, name).value for name in _TYPES},
        "device": asdict(timed.device), "key": key_data(m.key), "sizes": list(m.sizes), "default": pick_data(m.default),
        "halves": [pick_data(p) | {"us": list(halves)} for p, halves in m.halves.items()],
        "hopeless": [pick_data(p) | {"us": us} for p, us in m.hopeless.items()],
        "different": [pick_data(p) for p in m.different], "unusable": [pick_data(p) for p in m.unusable],
    }  # fmt: skip


def line_from(data: Mapping[str, Any]) -> TimedProduct:
    """What :func:`line_data` wrote.

    Raises:
        InvalidInputError, AttributeError, KeyError, TypeError, ValueError: it is none.
    """
    if data["times_version"] != TIMES_VERSION:
        raise InvalidInputError(f"times_version must be {TIMES_VERSION} (got {data['times_version']!r})")
    types = {name: DType(data["shape"][name]) for name in _TYPES}
    halves = [(pick_from(d), _halves(d["us"])) for d in data["halves"]]
    hopeless = [(pick_from(d), _us(d["us"])) for d in data["hopeless"]]
    measured = Measured(
        key=key_from(data["key"]), sizes=sizes_from(data["sizes"]), default=pick_from(data["default"]),
        halves=dict(halves), hopeless=dict(hopeless), different=tuple(map(pick_from, data["different"])),
        unusable=tuple(map(pick_from, data["unusable"])),
    )  # fmt: skip
    _require_sound(measured, [pick for pick, _ in (*halves, *hopeless)])
    return TimedProduct(
        shape=Shape(**(data["shape"] | types)), device=DeviceId(**data["device"]), measured=measured
    )


def _require_sound(m: Measured, with_times: list[TunedPick]) -> None:
    listed = [*with_times, *m.different, *m.unusable]
    if m.default not in m.halves or len(set(listed)) != len(listed):
        raise InvalidInputError(f"picks must be told of once each, the default with its halves (got {len(listed)})")
    if not m.key.holds(m.sizes):
        raise InvalidInputError(f"sizes must be of the key's class (got {m.sizes})")


def _halves(values: Any) -> tuple[float, float]:
    first, second = values
    return _us(first), _us(second)


def _us(value: Any) -> float:
    if type(value) not in (float, int) or not 0 < value < math.inf:
        raise InvalidInputError(f"us must be a time above 0 (got {value!r})")
    return float(value)
