"""``gemmdesc env``: what is installed, which card and library answer, and which profile applies.  Needs neither."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import typer

from gemmdesc import __version__
from gemmdesc.cli.output import JsonOption, guarded, print_json, print_table, wants_json

_PACKAGES = ("torch", "triton", "numpy", "numba", "pyarrow", "cuda-bindings", "nvidia-cublas", "nvidia-cublas-cu12")
_VARIABLES = (
    "GEMMDESC_PROFILES", "GEMMDESC_SAVED_PLANS", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE",
    "CUDA_VISIBLE_DEVICES", "TORCH_BLAS_PREFER_CUBLASLT",
)  # fmt: skip


@guarded
def env(context: typer.Context, json: JsonOption = False) -> None:
    """Versions, card, library, torch's settings, and the profile that applies here."""
    data = gather()
    if wants_json(context, json):
        print_json(data)
        return
    for title, values in data.items():
        rows = values.items() if isinstance(values, dict) else [("", value) for value in values]
        print_table(title, ("", ""), [(name, _text(value)) for name, value in rows])


def _text(value: Any) -> str:
    return str(value) if value not in (None, "") else "-"


def gather() -> dict[str, Any]:
    """Everything that ``env`` prints; what cannot be had says why."""
    device, library, settings = _device(), _library(), _settings()
    return {
        "versions": {"gemmdesc": __version__, "python": platform.python_version(), **_versions()},
        "device": device,
        "library": library,
        "torch settings": settings,
        "environment": {name: os.environ.get(name) for name in _VARIABLES},
        "profiles": _profiles(device, library),
        "saved plans": _saved(),
    }


def _key(device: dict[str, Any], library: dict[str, Any]) -> str | None:
    """What profiles are looked up by: the card, and the library file that answers."""
    if "none" in device or "none" in library:
        return None
    mig = " (MIG)" if device["mig"] else ""
    build = library["build_id"] or "none"
    return f"{device['sm']}-{device['sm_count']}/cublaslt-{library['version']}, build-id {build}{mig}"


def _saved() -> dict[str, Any]:
    from gemmdesc.plan import saved_folder

    folder = saved_folder()
    files = [] if folder is None else sorted(folder.glob("*/cublaslt-*.json"))
    return {"folder": "off" if folder is None else str(folder), "files": [str(f) for f in files]}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _device() -> dict[str, Any]:
    from gemmdesc.errors import GemmdescError
    from gemmdesc.library.device import device_id, driver_version
    from gemmdesc.plain import to_plain

    try:
        found: dict[str, Any] = to_plain(device_id())
        return found
    except GemmdescError as error:
        return {"none": str(error), "driver": driver_version()}


def _library() -> dict[str, Any]:
    from gemmdesc.errors import GemmdescError
    from gemmdesc.library.identity import library_id, torch_library

    try:
        mapped = torch_library()
        identity = library_id(mapped.path)
    except GemmdescError as error:
        return {"none": str(error)}
    return {
        "version": str(identity.version), "build_id": identity.build_id, "path": identity.path,
        "wheel": identity.wheel, "answers, as": mapped.how, "also mapped": ", ".join(map(str, mapped.others)),
        "torch's own word": _torch_cuda(),
    }  # fmt: skip


def _torch_cuda() -> str:
    """The CUDA release that torch was built for, by which no key goes."""
    import torch

    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"


def _settings() -> dict[str, Any]:
    from dataclasses import asdict

    from gemmdesc.errors import GemmdescError
    from gemmdesc.library.device import device_id
    from gemmdesc.library.torch_settings import read_settings

    try:
        return asdict(read_settings(device_id().sm))
    except GemmdescError as error:
        return {"none": str(error)}


def _profiles(device: dict[str, Any], library: dict[str, Any]) -> dict[str, Any]:
    from gemmdesc.errors import Declined, GemmdescError
    from gemmdesc.library.device import device_id
    from gemmdesc.library.identity import library_id, torch_library
    from gemmdesc.profiles import find_profile, profile_folders, profile_path

    folders = profile_folders()
    files = [str(p) for folder in folders if folder.is_dir() for p in sorted(folder.glob("*/cublaslt-*.parquet"))]
    found: dict[str, Any] = {
        "key": _key(device, library), "folders": [str(f) for f in folders], "files": files, "applies": None
    }  # fmt: skip
    if "none" in device or "none" in library:
        return found
    try:
        here, answering = device_id(), library_id(torch_library().path)
        profile = find_profile(here, answering, folders)
    except GemmdescError as error:
        return found | {"applies": f"error: {error}"}
    if isinstance(profile, Declined):
        return found | {"applies": profile.reason}
    paths = [p for p in (profile_path(f, here, answering.version) for f in folders) if p.is_file()]
    return found | {"applies": f"{paths[0] if paths else 'a file'}: {len(profile.rows)} rows"}
