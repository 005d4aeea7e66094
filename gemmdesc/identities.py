"""Who answered a call, and on which card: the library's version and file, the device."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmdesc.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True, order=True)
class LibraryVersion:
    major: int
    minor: int
    patch: int

    @classmethod
    def from_packed(cls, packed: int) -> LibraryVersion:
        """From ``cublasLtGetVersion``: 130100 is 13.1.0, 131000 is 13.10.0."""
        return cls(major=packed // 10000, minor=packed // 100 % 100, patch=packed % 100)

    @classmethod
    def parse(cls, text: str) -> LibraryVersion:
        """From ``13.1.0``.

        Raises:
            InvalidInputError: not three dotted integers.
        """
        parts = text.split(".")
        if len(parts) != 3 or not all(p.isascii() and p.isdigit() for p in parts):
            raise InvalidInputError(f"version must be three dotted integers (got {text!r})")
        return cls(major=int(parts[0]), minor=int(parts[1]), patch=int(parts[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, kw_only=True)
class LibraryId:
    """Which cuBLASLt answered.  Equality is that of version and ``build_id`` (ELF build-id, hex, or "" if stripped)."""

    version: LibraryVersion
    build_id: str
    path: str = field(default="", compare=False)
    sha256: str = field(default="", compare=False)
    wheel: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True)
class DeviceId:
    """Which card: ``sm`` such as ``sm_90``, and the SM count that the heuristic sees."""

    sm: str
    sm_count: int
    mig: bool = False
    name: str = field(default="", compare=False)
    driver: str = field(default="", compare=False)

    @property
    def folder(self) -> str:
        """The profile folder's name, ``sm_90-132``."""
        return f"{self.sm}-{self.sm_count}"
