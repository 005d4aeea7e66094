"""Bytes of cuBLAS, recorded on hardware, made again on this CPU from the shipped profile.

A record without a rule in the shipped profile fails like one whose bytes differ.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gemmdesc.errors import Declined
from gemmdesc.golden import Golden, GoldenRecord, golden_files, read_golden, replay_record
from gemmdesc.profiles import ProfileIndex, find_profile, index_profile, is_published, packaged_folder, read_profile

FOLDER = Path(__file__).parent / "golden"
FILES = golden_files(FOLDER)
MOST_BYTES = 3_000_000
#: Records of one test.
_BLOCK = 20


@cache
def golden(path: Path) -> Golden:
    return read_golden(path)


@cache
def shipped(path: Path) -> ProfileIndex | Declined:
    folder = packaged_folder()
    where = golden(path).provenance
    found = find_profile(where.device, where.library, [] if folder is None else [folder])
    return found if isinstance(found, Declined) else index_profile(found)


def blocks() -> list[tuple[Path, int]]:
    return [(path, first) for path in FILES for first in range(0, len(golden(path).records), _BLOCK)]


def test_there_is_golden_data_for_every_profile_that_was_measured() -> None:
    folder = packaged_folder()
    files = [] if folder is None else sorted(folder.glob("*/cublaslt-*.parquet"))
    profiles = {(p.parent.name, p.stem) for p in files if not is_published(read_profile(p))}
    assert profiles
    recorded = {
        (g.provenance.device.folder, f"cublaslt-{g.provenance.library.version}") for g in map(golden, FILES)
    }
    assert profiles <= recorded, f"no golden bytes for {sorted(profiles - recorded)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_shipped_profile_applies(path: Path) -> None:
    index = shipped(path)
    assert isinstance(index, ProfileIndex), index.reason


@pytest.mark.parametrize(("path", "first"), blocks(), ids=lambda x: x.stem if isinstance(x, Path) else str(x))
def test_recorded_bytes_are_replayed(path: Path, first: int) -> None:
    index = shipped(path)
    assert isinstance(index, ProfileIndex), index.reason
    chosen: tuple[GoldenRecord, ...] = golden(path).records[first : first + _BLOCK]
    failures = [f"{r}: {result}" for r in chosen if not (result := replay_record(r, index)).equal]
    assert not failures, "\n".join(failures)


def test_golden_files_stay_small_and_say_where_they_come_from() -> None:
    assert sum(path.stat().st_size for path in FILES) < MOST_BYTES
    for path in FILES:
        where = golden(path).provenance
        assert all((where.device.name, where.device.driver, where.library.build_id, where.command, where.date))
