"""Run by test_kernels_prepared.py in Triton's interpreter: other scripts' products, launched as prepared programs.

    interpreted_prepared.py SCRIPT ARGUMENTS...
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from gemmdesc.kernels import preparing
from tests import fake_device


def main() -> None:
    script, *rest = sys.argv[1:]
    module: Any = import_module(f"tests.{script}")
    preparing.current_stream = lambda: lambda index: 5
    module.launch_choice = fake_device.launch_prepared
    sys.argv[1:] = rest
    module.main()


if __name__ == "__main__":
    main()
