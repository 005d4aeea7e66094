"""Which cuBLASLt: finding library files, and telling them apart by version and build-id."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from gemmdesc.errors import LibraryError
from gemmdesc.library.bindings import load_functions
from gemmdesc.library.elf import build_id
from gemmdesc.library.linked import linked_file
from gemmdesc.problem import LibraryId, LibraryVersion

#: The distributions on PyPI that hold a libcublasLt: CUDA 13's and CUDA 12's.
DISTRIBUTIONS = ("nvidia-cublas", "nvidia-cublas-cu12")
_SPEC = re.compile(r"(?P<name>nvidia-cublas(?:-cu12)?)(?:==(?P<version>[0-9][0-9A-Za-z.]*))?")
_LT_NAME = re.compile(r"libcublasLt\.so(\.\d+)*")
#: Those whose calls are torch's: cuBLAS asks cuBLASLt, and torch itself does for a bias.
_USERS = re.compile(r"(?:libcublas\.so|libtorch_cuda\.so)(?:\.(\d+))?.*")
_SYMBOL = "cublasLtMatmul"
_MAPS = Path("/proc/self/maps")
_DELETED = " (deleted)"


@dataclass(frozen=True, kw_only=True)
class MappedLibrary:
    """The libcublasLt that answers torch's calls in this process, and the other ones that are mapped beside it.

    ``how``: how that is known, in words.
    """

    path: Path
    others: tuple[Path, ...] = ()
    how: str = "the only one"

    def __str__(self) -> str:
        beside = f"; also mapped: {', '.join(map(str, self.others))}" if self.others else ""
        return f"{self.path} answers{beside}"


def find_library(spec: str | Path | None = None) -> Path:
    """The library file that ``spec`` means.

    ``spec``: None for the one that torch uses; ``nvidia-cublas==13.1.0.3`` or ``nvidia-cublas-cu12==...`` for an
    installed package (the version may be left out); anything else is a path.

    Raises:
        LibraryError: nothing is there, or another version is installed than the one asked for.
    """
    if spec is None:
        return torch_library().path
    match = _SPEC.fullmatch(str(spec))
    if match:
        return package_library(match["name"], match["version"])
    path = Path(spec)
    if not path.is_file():
        raise LibraryError(f"spec must name a libcublasLt file that exists, or an nvidia-cublas package (got {spec})")
    return path


def torch_library() -> MappedLibrary:
    """The library that torch has mapped; imports torch, needs no GPU.

    Raises:
        LibraryError: torch is missing or was built without CUDA.
    """
    try:
        import torch
    except ImportError:
        raise LibraryError(
            "torch must be installed to use its cuBLASLt; give a path or a package instead (got no torch)"
        ) from None
    found = mapped_library()
    if found is None:
        raise LibraryError(
            "torch must be a CUDA build to have a cuBLASLt mapped; give a path or a package instead "
            f"(got torch {torch.__version__})"
        )
    return found


def mapped_library(maps: str | None = None) -> MappedLibrary | None:
    """The libcublasLt mapped into this process, None if there is none.

    Where several are mapped, the dynamic linker is asked to which of them it bound the calls of libcublas, and torch's
    own.  Where it cannot be asked, the one that lies beside a mapped libcublas is taken (libcublas finds it through its
    own folder), else the first mapped one.  ``maps``: text in the form of ``/proc/self/maps``.

    Raises:
        LibraryError: libcublas's calls and torch's own are answered by two files.
    """
    paths = _mapped_paths(_MAPS.read_text() if maps is None else maps)
    lt = [p for p in paths if _LT_NAME.fullmatch(p.name)]
    if len(lt) < 2:
        return MappedLibrary(path=lt[0]) if lt else None
    chosen, how = _bound(lt, paths) or _beside(lt, paths)
    return MappedLibrary(path=chosen, others=tuple(p for p in lt if p != chosen), how=how)


def _bound(lt: list[Path], paths: list[Path]) -> tuple[Path, str] | None:
    """The one of ``lt`` to which the linker bound the calls of the mapped libraries that make them."""
    users = [(p, match[1]) for p in paths if (match := _USERS.fullmatch(p.name))]
    majors = {major for _, major in users if major}
    found: dict[Path, str] = {}
    for user, _ in users:
        reached = [linked_file(user, _SYMBOL, f"libcublasLt.so.{major}") for major in sorted(majors)]
        file = next((f for f in [*reached, linked_file(user, _SYMBOL)] if f is not None), None)
        mapped = next((p for p in lt if file is not None and _is_same(p, file)), None)
        if mapped is not None:
            found.setdefault(mapped, user.name)
    if len(found) > 1:
        told = ", ".join(f"{path} for {user}" for path, user in found.items())
        raise LibraryError(f"torch must have one cuBLASLt that answers all its calls (got {told})")
    return next(((path, f"the linker bound {user} to it") for path, user in found.items()), None)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one == other


def _beside(lt: list[Path], paths: list[Path]) -> tuple[Path, str]:
    homes = {p.parent for p in paths if p.name.startswith("libcublas.so")}
    beside = next((p for p in lt if p.parent in homes), None)
    return (lt[0], "the first one mapped") if beside is None else (beside, "it lies beside libcublas")


def _mapped_paths(maps: str) -> list[Path]:
    columns = (line.split(maxsplit=5) for line in maps.splitlines())
    names = (c[5].strip().removesuffix(_DELETED) for c in columns if len(c) == 6)
    return [Path(name) for name in dict.fromkeys(names) if name.startswith("/")]


def package_library(name: str, version: str | None = None) -> Path:
    """The libcublasLt of an installed distribution.

    Raises:
        LibraryError: it is not installed, at another version, or holds no such file; says what to install.
    """
    wanted = f"{name}=={version}" if version else name
    advice = f"run: pip install --target <folder> --no-deps {wanted}, and give the path of the file in it"
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise LibraryError(f"spec must name an installed package; {advice} (got {wanted}, not installed)") from None
    if version and distribution.version != version:
        raise LibraryError(
            f"spec must name the installed version of {name}, which is {distribution.version}; {advice} (got {wanted})"
        )
    for path in _lt_files(distribution):
        return path
    raise LibraryError(f"spec must name a package that holds a libcublasLt; {advice} (got {wanted}, without one)")


def _lt_files(distribution: metadata.Distribution) -> list[Path]:
    listed = [f for f in distribution.files or () if _LT_NAME.fullmatch(f.name)]
    return [Path(str(distribution.locate_file(f))) for f in listed]


def wheel_of(path: Path) -> str:
    """``name==version`` of the installed distribution that holds ``path``, or "" where none does."""
    resolved = path.resolve()
    for name in DISTRIBUTIONS:
        for distribution in metadata.distributions(name=name):
            if any(f.resolve() == resolved for f in _lt_files(distribution)):
                return f"{name}=={distribution.version}"
    return ""


def library_id(path: Path) -> LibraryId:
    """Identity of the library file ``path``, which gets loaded; ``sha256`` is left empty (see :func:`with_digest`).

    Raises:
        LibraryError: missing, no ELF file, or no cuBLASLt; the message names the path.
    """
    identifier = build_id(path)
    version = LibraryVersion.from_packed(load_functions(path).packed_version)
    return LibraryId(version=version, build_id=identifier, path=str(path), wheel=wheel_of(path))


def with_digest(identity: LibraryId) -> LibraryId:
    """``identity`` with the sha256 of its file, hex; reads the whole file (half a gigabyte takes a second or so).

    Raises:
        LibraryError: the file is gone.
    """
    try:
        with open(identity.path, "rb") as file:
            return replace(identity, sha256=hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise LibraryError(f"identity must name a readable file: {error.strerror} (got {identity.path})") from None
