"""Raw experiments: what was asked of a library and what came out, so that reading can be done again without one."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gemmdesc.errors import InvalidInputError
from gemmdesc.plain import to_plain
from gemmdesc.probe.experiments import Floats, Pattern, Reader, ReferenceFailed
from gemmdesc.probe.reading import Beside


class RecordingReader:
    """A reader that keeps every experiment of another one."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._values: list[dict[str, Any]] = []
        self._beside: list[Beside] = []

    @property
    def k(self) -> int:
        return self._reader.k

    @property
    def width(self) -> int:
        return self._reader.width

    @property
    def along_m(self) -> bool:
        return self._reader.along_m

    def values(self, patterns: Sequence[Pattern], *, other: float = 1.0) -> Floats:
        """See :class:`~gemmdesc.probe.experiments.Reader`."""
        found = self._reader.values(patterns, other=other)
        self._values.append({"other": other, "patterns": [list(p) for p in patterns], "values": found.tolist()})
        return found

    def outputs(self, asked: Sequence[Beside]) -> tuple[Beside, ...]:
        """See :class:`~gemmdesc.probe.experiments.Reader`."""
        found = self._reader.outputs(asked)
        self._beside.extend(found)
        return found

    def packed(self) -> str:
        """All experiments so far as text: base64 of compressed JSON."""
        data = {
            "k": self.k, "width": self.width, "along_m": self.along_m, "values": self._values,
            "beside": [to_plain(b) for b in self._beside],
        }  # fmt: skip
        return base64.b64encode(zlib.compress(json.dumps(data).encode(), 9)).decode()


class RawReader:
    """A reader on experiments that were recorded; what was not asked then cannot be asked now.

    Raises:
        InvalidInputError: ``packed`` is no text of :meth:`RecordingReader.packed`.
    """

    def __init__(self, packed: str) -> None:
        try:
            data = json.loads(zlib.decompress(base64.b64decode(packed)))
            self.k: int = data["k"]
            self.width: int = data["width"]
            self.along_m: bool = data["along_m"]
            self._calls = [
                (float(call["other"]), tuple(map(_pattern, call["patterns"])), np.array(call["values"], np.float64))
                for call in data["values"]
            ]
            self._beside = tuple(Beside(**{**b, "pattern": _pattern(b["pattern"])}) for b in data["beside"])
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise InvalidInputError(f"packed must be recorded experiments ({error}) (got {packed[:40]!r})") from None
        self._values = {
            (other, _key(pattern)): float(value)
            for other, patterns, values in self._calls
            for pattern, value in zip(patterns, values, strict=True)
        }

    def recorded(self) -> Iterator[tuple[float, Sequence[Pattern], Floats]]:
        """All experiments on sums alone: what every product was with, the patterns and what came out."""
        yield from self._calls

    def values(self, patterns: Sequence[Pattern], *, other: float = 1.0) -> Floats:
        """See :class:`~gemmdesc.probe.experiments.Reader`."""
        try:
            return np.array([self._values[other, _key(p)] for p in patterns], dtype=np.float64)
        except KeyError as error:
            raise ReferenceFailed(f"experiment must have been recorded (got {error})") from None

    def outputs(self, asked: Sequence[Beside]) -> tuple[Beside, ...]:
        """All that were recorded, whatever is asked: plans change, and what was seen still tells courses apart."""
        return self._beside


def _pattern(plain: Sequence[Sequence[float]]) -> tuple[tuple[int, float], ...]:
    return tuple((int(k), float(v)) for k, v in plain)


def _key(pattern: Pattern) -> tuple[tuple[int, str], ...]:
    """Values by their text, which tells -0.0 from 0.0."""
    return tuple((int(k), repr(float(v))) for k, v in pattern)
