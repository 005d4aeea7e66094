"""``import gemmdesc`` and the command line: what they load, how fast, and that the public names are complete."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gemmdesc

SOURCE = ast.parse(Path(gemmdesc.__file__).read_text())
HEAVY = {"torch", "triton", "numpy", "numba", "pandas", "pyarrow", "typer", "rich", "cuda"}


def _python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return run.stdout


def _fastest(code: str, tries: int = 5) -> float:
    """Seconds of the fastest of a few runs, the interpreter's own start included."""
    timed = f"import time; t = time.perf_counter(); {code}; print('\\n', time.perf_counter() - t)"
    return min(float(_python(timed).split()[-1]) for _ in range(tries))


def test_importing_loads_nothing_heavy() -> None:
    loaded = set(json.loads(_python("import gemmdesc, json, sys; print(json.dumps(sorted(sys.modules)))")))
    assert "gemmdesc" in loaded
    assert not HEAVY & {name.partition(".")[0] for name in loaded}


def test_importing_is_fast() -> None:
    assert _fastest("import gemmdesc") < 0.1


def test_values_load_neither_torch_nor_triton() -> None:
    code = "import gemmdesc, json, sys; gemmdesc.GEMMDesc, gemmdesc.parse_rule; print(json.dumps(sorted(sys.modules)))"
    assert not {"torch", "triton", "numba"} & {name.partition(".")[0] for name in json.loads(_python(code))}


def _for_type_checkers() -> dict[str, str]:
    """Public name -> module, as the block for type checkers imports them."""
    (block,) = [node for node in SOURCE.body if isinstance(node, ast.If)]
    return {a.name: node.module or "" for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names}


def test_all_lists_what_is_imported_for_type_checkers() -> None:
    assert sorted([*_for_type_checkers(), "__version__"]) == sorted(gemmdesc.__all__) == dir(gemmdesc)


@pytest.mark.parametrize(("name", "module"), _for_type_checkers().items())
def test_a_public_name_is_its_modules_own(name: str, module: str) -> None:
    assert getattr(gemmdesc, name) is getattr(importlib.import_module(module), name)


def test_a_function_is_not_replaced_by_the_module_of_its_name() -> None:
    code = (
        "import gemmdesc.normal_form; from gemmdesc.normal_form import same_bits; "
        "print(callable(gemmdesc.normal_form), gemmdesc.normal_form.__name__)"
    )
    assert _python(code).split() == ["True", "normal_form"]


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gem'"):
        gemmdesc.gem  # noqa: B018
    assert not hasattr(gemmdesc, "_MODULE")


def test_help_answers_in_under_half_a_second() -> None:
    run = subprocess.run([sys.executable, "-m", "gemmdesc", "--help"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "probe" in run.stdout
    code = "import sys; sys.argv[1:] = ['--help']\nfrom gemmdesc.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert _fastest(f"exec({code!r})") < 0.5
