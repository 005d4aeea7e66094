"""Profiles as Parquet files: written aside and renamed, read back only when whole and of this format."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdesc.errors import GemmdescError, ProfileError
from gemmdesc.problem import DeviceId, LibraryId, LibraryVersion
from gemmdesc.profiles.columns import arrow_schema, from_record, rows_digest, to_record
from gemmdesc.profiles.schema import SCHEMA_VERSION, Measured, Metadata, Profile, Scan

if TYPE_CHECKING:
    import pyarrow as pa

#: The file metadata's key; its value is one JSON object.
METADATA_KEY = b"gemmdesc.profile"


def profile_path(folder: Path, device: DeviceId, version: LibraryVersion) -> Path:
    """Where a profile lies under ``folder``: ``<sm>-<SM count>/cublaslt-<version>.parquet``."""
    return folder / device.folder / f"cublaslt-{version}.parquet"


def profile_digest(profile: Profile) -> str:
    """sha256 (hex) of the profile's rows."""
    return rows_digest(profile.rows)


def write_profile(profile: Profile, path: Path) -> None:
    """Write ``profile`` to ``path`` in one step: a reader sees the former file or the whole new one.

    Folders are created.  The same profile gives the same bytes with one release of pyarrow.

    Raises:
        OSError: the place cannot be written; nothing is left behind.
    """
    import pyarrow as pa

    schema = arrow_schema().with_metadata({METADATA_KEY: _metadata_json(profile).encode()})
    write_table(pa.Table.from_pylist([to_record(row) for row in profile.rows], schema=schema), path)


def write_table(table: pa.Table, path: Path) -> None:
    """Write an Arrow table to ``path`` as zstd Parquet, aside and renamed; folders are created.

    Raises:
        OSError: the place cannot be written; nothing is left behind.
    """
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            pq.write_table(table, file, compression="zstd", version="2.6")
            file.flush()
            os.fsync(file.fileno())
        Path(aside).chmod(0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def read_profile(path: Path) -> Profile:
    """The profile in the file at ``path``.

    Raises:
        ProfileError: there is no such file; it is truncated, no Parquet, or no profile; its schema version is another;
            its rows do not match their digest or are malformed.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise ProfileError(f"path must be a whole Parquet file ({error}) (got {path})") from error
    data = _metadata(table.schema.metadata, path)
    if not table.schema.equals(arrow_schema(), check_metadata=False):
        raise ProfileError(f"path must have the columns of schema version {SCHEMA_VERSION} (got {path})")
    try:
        rows = tuple(from_record(record) for record in table.to_pylist())
        profile = _profile(data, rows)
    except (GemmdescError, KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"path must be a well-formed profile ({error}) (got {path})") from error
    digest = profile_digest(profile)
    if digest != data.get("digest"):
        raise ProfileError(f"path must hold the rows of digest {data.get('digest')} (got {digest}, {path})")
    return profile


def _metadata(metadata: dict[bytes, bytes] | None, path: Path) -> dict[str, Any]:
    try:
        data = json.loads((metadata or {})[METADATA_KEY])
    except (KeyError, ValueError) as error:
        raise ProfileError(f"path must be a gemmdesc profile, with its metadata (got {path})") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ProfileError(f"path must have schema version {SCHEMA_VERSION} (got {version}, {path})")
    return dict(data)


def _metadata_json(profile: Profile) -> str:
    device, library, metadata = profile.device, profile.library, profile.metadata
    data = {
        "schema_version": SCHEMA_VERSION,
        "card": device.name,
        "sm": device.sm,
        "sm_count": device.sm_count,
        "mig": device.mig,
        "driver": device.driver,
        "library_version": str(library.version),
        "build_id": library.build_id,
        "sha256": library.sha256,
        "wheel": library.wheel,
        "command": metadata.command,
        "date": metadata.date,
        "digest": profile_digest(profile),
        "answer_key": list(metadata.answer_key),
        "excluded_attributes": dict(metadata.excluded_attributes),
        "scan": _scan_data(metadata.scan),
        "kinds": [
            {"kind": m.kind, "command": m.command, "date": m.date, "scan": _scan_data(m.scan)}
            | ({"first_guesses": m.first_guesses} if m.first_guesses else {})
            for m in metadata.measured
        ],
    }
    return json.dumps(data, indent=1)


def _scan_data(scan: Scan) -> dict[str, Any]:
    return {
        "queries": scan.queries,
        "distinct_answers": scan.distinct_answers,
        "unseen_mass": scan.unseen_mass,
        "queries_per_second": scan.queries_per_second,
    }


def _measured(data: dict[str, Any]) -> Measured:
    return Measured(
        kind=data["kind"], command=data["command"], date=data["date"], scan=Scan(**data["scan"]),
        first_guesses=data.get("first_guesses", ""),
    )  # fmt: skip


def _profile(data: dict[str, Any], rows: tuple[Any, ...]) -> Profile:
    device = DeviceId(
        sm=data["sm"], sm_count=data["sm_count"], mig=data["mig"], name=data["card"], driver=data["driver"]
    )
    library = LibraryId(
        version=LibraryVersion.parse(data["library_version"]),
        build_id=data["build_id"],
        sha256=data["sha256"],
        wheel=data["wheel"],
    )
    metadata = Metadata(
        command=data["command"],
        date=data["date"],
        answer_key=tuple(data["answer_key"]),
        excluded_attributes=tuple(data["excluded_attributes"].items()),
        scan=Scan(**data["scan"]),
        measured=tuple(_measured(m) for m in data.get("kinds", ())),
    )
    return Profile(device=device, library=library, metadata=metadata, rows=rows)
