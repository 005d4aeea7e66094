"""The one-way order of the modules, read from their syntax trees.

An import may point to the left only.  What stands between the same bars may import one another; what a bar parts may
not.  Every rule is a function from a module's tree to its violations, tested on a small source that breaks it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "gemmdesc"

#: Layers from left to right; in each, the groups that may not import one another.
ORDER = (
    (("errors", "dtypes", "bits", "nvrtc"),),
    (("descriptor", "descriptor_fields", "layouts", "epilogue_steps", "pointwise", "variable_fields"),),
    (("schedule", "text", "normal_form", "expressions", "identities", "problem", "plain", "rule", "regions"),),
    (("arithmetic", "operands", "rivals", "mutants"),),
    (("library",), ("profiles",), ("kernels",), ("equivalence",)),
    (("plan", "routes", "books", "tuning"), ("probe",)),
    (("ops", "reduce", "numerics"),),
    (("dropin",),),
    (("verification", "golden", "lint", "reports", "speed"),),
    (("cli",),),
    (("__main__",),),
)
PLACES = {name: (i, group) for i, layer in enumerate(ORDER) for group in layer for name in group}

#: The modules of ``probe`` that talk to a library.  All others plan walks or conclude from what was read: they see
#: values only, and import one another at most.
TALKING = ("asking_order", "beside", "campaign", "class_solver", "compare", "comparisons", "crosscheck", "examples",
           "holding", "kinds", "met", "offline", "outcomes", "partition", "predicted", "publish", "reader", "recorded",
           "records", "rulebook", "scan", "sharing", "solve", "solve_gelu", "solve_shared", "survey", "tasks",
           "trialbook", "trials", "verification", "workers")  # fmt: skip
LIBRARY_LAYER = PLACES["library"][0]

#: Loaded at the top of a module in ``kernels`` only, so that the command line answers at once.
HEAVY = ("torch", "triton")
MUTABLE_CALLS = ("list", "dict", "set", "bytearray", "defaultdict", "deque", "OrderedDict", "Counter",
                 "WeakKeyDictionary", "WeakValueDictionary", "local")  # fmt: skip


class Import(NamedTuple):
    """``target``: a module; ``names``: what is taken from it, if anything; ``top``: whether it runs on import."""

    target: str
    names: tuple[str, ...]
    top: bool
    line: int


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(tree: ast.Module) -> Iterator[Import]:
    def visit(node: ast.AST, top: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, (), top, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                for alias in child.names:
                    whole = f"{base}.{alias.name}"
                    if whole in MODULES:
                        yield Import(whole, (), top, child.lineno)
                    else:
                        yield Import(base, (alias.name,), top, child.lineno)
            else:
                deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from visit(child, top and not deferred and not checking)

    return visit(tree, True)


def _place(module: str) -> str:
    return module.split(".")[1]


def wrong_arrows(module: str, tree: ast.Module) -> Iterator[str]:
    """Imports that point to the right, or to a sibling behind a bar."""
    if module == "gemmdesc":
        return
    if _place(module) not in PLACES:
        yield f"{module} must have a place in ORDER"
        return
    layer, group = PLACES[_place(module)]
    for i in _imports(tree):
        if i.target == "gemmdesc":
            if i.names != ("__version__",):
                yield f"line {i.line}: import {', '.join(i.names) or 'gemmdesc'} from the module that holds it"
        elif i.target.startswith("gemmdesc."):
            other = _place(i.target)
            if other not in PLACES:
                yield f"line {i.line}: {i.target} must have a place in ORDER"
            elif PLACES[other][0] > layer or (PLACES[other][0] == layer and other not in group):
                yield f"line {i.line}: {module} must not import {i.target}"


def conclusions_that_look(module: str, tree: ast.Module) -> Iterator[str]:
    """Modules of the probe that should only conclude, and import a library or a module of the probe that does."""
    if not module.startswith("gemmdesc.probe.") or module.split(".")[2] in TALKING:
        return
    for i in _imports(tree):
        if not i.target.startswith("gemmdesc."):
            continue
        parts = i.target.split(".")
        own = parts[1] == "probe" and len(parts) > 2 and parts[2] not in TALKING
        if not own and (parts[1] == "probe" or PLACES[parts[1]][0] >= LIBRARY_LAYER):
            yield f"line {i.line}: {module} is not in TALKING and may import only what stands left of library"


def private_names(module: str, tree: ast.Module) -> Iterator[str]:
    """Names with a leading underscore that are taken from another module of ours."""
    aliases = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gemmdesc":
            for alias in node.names:
                if alias.name.startswith("_") and alias.name != "__version__":
                    yield f"line {node.lineno}: {node.module}.{alias.name} is private"
                if f"{node.module}.{alias.name}" in MODULES:
                    aliases.add(alias.asname or alias.name)
        if isinstance(node, ast.Import):
            aliases |= {a.asname for a in node.names if a.asname and a.name.startswith("gemmdesc.")}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in aliases:
                if attribute.startswith("_") and not attribute.startswith("__"):
                    yield f"line {node.lineno}: {name}.{attribute} is private"


def mutable_state(module: str, tree: ast.Module) -> Iterator[str]:
    """Containers at module level that are no constants: a lower-case name, or an upper-case one that starts empty."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=targets, value=value) if _is_container(value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value) if _is_container(value):
                targets = [target]
            case _:
                continue
        for name in (t.id for t in targets if isinstance(t, ast.Name)):
            if name != "__all__" and (name != name.upper() or _is_empty(value)):
                yield f"line {node.lineno}: {name} is mutable state at module level"
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return called in MUTABLE_CALLS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(func=ast.Name(id="dict"), keywords=[_, *_]):
            return False
        case ast.Call(args=args):
            return not args or not isinstance(value.func, ast.Name) or value.func.id not in ("list", "dict", "set")
    return False


def heavy_at_top(module: str, tree: ast.Module) -> Iterator[str]:
    """torch or triton loaded when a module outside ``kernels`` is imported."""
    if module.startswith("gemmdesc.kernels"):
        return
    for i in _imports(tree):
        if i.top and i.target.split(".")[0] in HEAVY:
            yield f"line {i.line}: {i.target} must be imported where it is used"


RULES: tuple[Callable[[str, ast.Module], Iterator[str]], ...] = (
    wrong_arrows,
    conclusions_that_look,
    private_names,
    mutable_state,
    heavy_at_top,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("module", MODULES)
def test_rule_holds(module: str, rule: Callable[[str, ast.Module], Iterator[str]]) -> None:
    violations = list(rule(module, ast.parse(MODULES[module].read_text())))
    assert not violations, "\n".join(violations)


def test_no_two_modules_load_each_other() -> None:
    graph = {
        module: {i.target for i in _imports(ast.parse(path.read_text())) if i.top} & set(MODULES) - {"gemmdesc"}
        for module, path in MODULES.items()
    }
    done: set[str] = set()

    def walk(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above[above.index(module) :], module))
        if module not in done:
            for target in sorted(graph[module]):
                walk(target, (*above, module))
            done.add(module)

    for module in graph:
        walk(module, ())
    assert done == set(MODULES)


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (wrong_arrows, "gemmdesc.bits", "from gemmdesc.rule import Rule"),
        (wrong_arrows, "gemmdesc.bits", "def f():\n    from gemmdesc import rule"),
        (wrong_arrows, "gemmdesc.library.elf", "import gemmdesc.kernels.tile"),
        (wrong_arrows, "gemmdesc.kernels.tile", "from gemmdesc.library.identity import x"),
        (wrong_arrows, "gemmdesc.probe.infer", "from gemmdesc.plan import plan"),
        (wrong_arrows, "gemmdesc.plan", "from gemmdesc.probe.infer import infer"),
        (wrong_arrows, "gemmdesc.rule", "import gemmdesc"),
        (wrong_arrows, "gemmdesc.rule", "from gemmdesc import GEMMDesc"),
        (wrong_arrows, "gemmdesc.misc", ""),
        (wrong_arrows, "gemmdesc.cli", "from gemmdesc.misc import x"),
        (conclusions_that_look, "gemmdesc.probe.infer", "from gemmdesc.library.interface import Library"),
        (conclusions_that_look, "gemmdesc.probe.learn", "from gemmdesc.profiles.store import read"),
        (conclusions_that_look, "gemmdesc.probe.tree", "from gemmdesc.probe.campaign import run"),
        (private_names, "gemmdesc.rule", "from gemmdesc.text import _print"),
        (private_names, "gemmdesc.rule", "from gemmdesc import text\ntext._print(1)"),
        (private_names, "gemmdesc.rule", "import gemmdesc.text as t\nt._print(1)"),
        (mutable_state, "gemmdesc.rule", "cache = {1: 2}"),
        (mutable_state, "gemmdesc.rule", "_seen: set[int] = set()"),
        (mutable_state, "gemmdesc.rule", "CACHE: dict[int, int] = {}"),
        (mutable_state, "gemmdesc.rule", "_CACHE = collections.defaultdict(list)"),
        (mutable_state, "gemmdesc.rule", "def f():\n    global x"),
        (heavy_at_top, "gemmdesc.ops", "import torch"),
        (heavy_at_top, "gemmdesc.ops", "try:\n    import triton.language\nexcept ImportError:\n    pass"),
        (heavy_at_top, "gemmdesc.ops", "class A:\n    from torch import nn"),
    ],
)
def test_a_broken_rule_is_seen(rule: Callable[[str, ast.Module], Iterator[str]], module: str, source: str) -> None:
    assert list(rule(module, ast.parse(source)))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gemmdesc.text", "from gemmdesc import descriptor as d\nd.GEMMDesc"),
        ("gemmdesc.cli", "from gemmdesc import __version__\nfrom gemmdesc.ops import matmul"),
        ("gemmdesc.kernels.tile", "import torch\nimport triton"),
        ("gemmdesc.ops", "if TYPE_CHECKING:\n    import torch\ndef f():\n    import torch"),
        ("gemmdesc.probe.infer", "from gemmdesc.probe.tree import x\nfrom gemmdesc.rule import Rule"),
        ("gemmdesc.plan", "from gemmdesc.routes import x\nfrom gemmdesc.library.identity import y"),
        ("gemmdesc.rule", "_TABLE = {1: 2}\nNAMES = dict(a=1)\n__all__ = ['x']\nsizes = (1, 2)"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert [v for rule in RULES for v in rule(module, ast.parse(source))] == []
