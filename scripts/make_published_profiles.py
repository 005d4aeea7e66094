"""Write the profiles of cards that were not at hand from the published tables in gemmdesc/profiles/published.toml.

    PYTHONPATH=. python scripts/make_published_profiles.py --out arch_profiles

Their rows have the evidence level ``published``: nothing serves them unless it is told to accept that level.  Needs no
GPU.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from gemmdesc.profiles import DeclineOutcome, left_out, profile_path, published_profiles, write_profile


def main(arguments: list[str]) -> int:
    parser = ArgumentParser(description="Profiles from published tables.")
    parser.add_argument("--out", type=Path, default=Path("arch_profiles"), help="the folder of profiles")
    folder = parser.parse_args(arguments).out
    for profile in published_profiles():
        path = profile_path(folder, profile.device, profile.library.version)
        write_profile(profile, path)
        declining = sum(isinstance(row.outcome, DeclineOutcome) for row in profile.rows)
        print(f"{path}: {len(profile.rows)} rows, {declining} of them decline")
    print("left out:")
    for what, why in left_out():
        print(f"  {what}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
