"""Take the Triton kernels that torch.compile emits for functions of our own, for the equivalence checker's corpus.

    python scripts/capture_compiled.py OUT.json.xz [--seconds 90] [--processes 8] [--functions softmax,var]
        [--device none]

Each function of ``compiled_functions.py`` goes through Dynamo and inductor on fake tensors, up to the code that
inductor writes: nothing is compiled by Triton, timed or run, and the device is only asked for its properties.  From
that code come each kernel's source, signature and alignments, the integers that it is called with, and from inductor's
heuristics the configurations that it would try with ``max_autotune_pointwise``, with the grid of each.  A function that
fails is recorded with its error, and the others go on.  OUT is written every few functions.

``--device none`` has an H200's properties stand in for a card's, on a machine without one.
"""

from __future__ import annotations

import argparse
import ast
import json
import lzma
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

#: What ``torch.cuda.get_device_properties`` says of an H200.
H200 = {
    "name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 150_000_000_000,
    "regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024,
    "warp_size": 32, "shared_memory_per_block": 49152, "shared_memory_per_block_optin": 232448,
    "L2_cache_size": 62914560, "gcnArchName": "",
}  # fmt: skip


class CodeWritten(Exception):
    """Raised where the compiled function would run."""


@contextmanager
def standing_in() -> Iterator[None]:
    """An H200's properties in place of a card's, as far as inductor asks for them before it runs anything."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    properties = SimpleNamespace(**H200)
    active = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0)
    with ExitStack() as stack:
        for name, value in {
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.device_count": lambda: 1,
            "torch.cuda.current_device": lambda: 0,
            "torch.cuda.current_stream": lambda *_: SimpleNamespace(cuda_stream=0),
            "torch.cuda.get_device_properties": lambda *_: properties,
            "torch.cuda.get_device_capability": lambda *_: (9, 0),
            "torch.cuda.get_rng_state": torch.get_rng_state,
            "torch.cuda.set_rng_state": lambda *_, **__: None,
            "torch.cuda._lazy_init": lambda: None,
            "torch.cuda._exchange_device": lambda _: 0,
            "torch.cuda._maybe_exchange_device": lambda _: 0,
            # These allocate on the card: making a context, tracing the attention patterns, and folding constants.
            "torch._subclasses.fake_tensor.init_gpu_context": lambda *_: None,
            "torch._inductor.fx_passes.joint_graph.lazy_init": lambda *_: None,
            "torch._inductor.fx_passes.joint_graph.constant_fold_uniform_value": lambda graph: graph,
            "torch.accelerator.is_available": lambda: False,
            "torch.version.cuda": "13.0",
        }.items():
            stack.enter_context(mock.patch(name, value))
        # What torch.cuda.get_device_properties calls, for those who took it when they were imported.
        stack.enter_context(mock.patch("torch.cuda._get_device_properties", return_value=properties, create=True))
        stack.enter_context(mock.patch.object(driver, "_active", active))
        yield


def written_code(function: Any, folder: Path) -> list[str]:
    """The code that inductor writes for one function, without compiling or running it."""
    import torch
    import torch._functorch.config as functorch_config
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering
    from torch._inductor.utils import fresh_cache
    from torch._subclasses import FakeTensorMode

    codes: list[str] = []

    def compile_to_module(graph: Any) -> Any:
        wrapper, _kernels = graph.codegen()
        codes.append(wrapper.value)
        return SimpleNamespace(call=_not_run, __file__="", __path__="")

    options = dict(function.options)
    template = options.pop("template", None)
    settings = {"max_autotune_pointwise": True, "fx_graph_cache": False, "compile_threads": 1, **options}
    if template is not None:
        wanted = "".join(f"(?=.*{name}={value}\\b)" for name, value in template.items())
        settings["test_configs.autotune_choice_desc_regex"] = wanted
    torch._dynamo.reset()
    with (
        fresh_cache(dir=str(folder)),
        config.patch(settings),
        functorch_config.patch(enable_autograd_cache=False),
        mock.patch.object(GraphLowering, "compile_to_module", compile_to_module),
        torch.no_grad(),
        FakeTensorMode(),
    ):
        inputs = [torch.empty(shape, dtype=kind, device="cuda") for shape, kind in function.inputs]
        with suppress(CodeWritten):
            torch.compile(function.call, dynamic=False, fullgraph=True)(*inputs)
    return codes


def _not_run(*_: Any, **__: Any) -> Any:
    raise CodeWritten


def kernels_of(code: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Each Triton kernel of one piece of written code, with what it is called with."""
    tree = ast.parse(code)
    calls = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "run":
            calls.setdefault(ast.unparse(node.func.value), [ast.unparse(argument) for argument in node.args])
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "async_compile.triton":
            name, source = (ast.literal_eval(argument) for argument in node.args[:2])
            yield {"kernel": name, **described(name, source, calls[name], folder)}


def described(name: str, source: str, arguments: list[str], folder: Path) -> dict[str, Any]:
    """The source of the ``triton.jit`` functions, and what inductor's heuristics say of the kernel."""
    path = folder / f"{name}_{abs(hash(source))}.py"
    path.write_text(source, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"the source of {name} must be a Python file (got {path})")
    module = module_from_spec(spec)
    with mock.patch("torch._inductor.runtime.triton_helpers.set_driver_to_gpu"):
        spec.loader.exec_module(module)
    tuner = getattr(module, name)
    meta, said = tuner.triton_meta, tuner.inductor_meta
    signature = {argument: str(kind) for argument, kind in meta["signature"].items()}
    passed = [argument for argument, kind in signature.items() if kind != "constexpr"]
    integers = {}
    for argument, value in zip(passed, arguments, strict=False):
        if not signature[argument].startswith("*"):
            integers[argument] = ast.literal_eval(value)
    # Templates are called with their grid behind the arguments; a number that is a constant of the text is not passed.
    known = {**meta.get("constants", {}), **integers}
    known |= {f"_grid_{place}": ast.literal_eval(value) for place, value in enumerate(arguments[len(passed) :])}
    aligned = [list(signature)[place] for (place,) in meta["configs"][0]]
    return {
        "source": jit_functions(source),
        "signature": signature,
        "constants": {str(key): value for key, value in meta.get("constants", {}).items()},
        "aligned": aligned,
        "integers": integers,
        "options": {key: meta[key] for key in ("enable_fp_fusion", "disable_ftz") if key in meta},
        "heuristic": tuner.heuristic_type.name.lower(),
        "size_hints": {str(key): value for key, value in dict(tuner.size_hints or {}).items()},
        "reduction_hint": str(said.get("reduction_hint", "")),
        "grid_type": said["grid_type"],
        "in_place": list(tuner.mutated_arg_names),
        "configs": [configuration(config, said, known) for config in tuner.configs],
    }


def configuration(config: Any, said: dict[str, Any], known: dict[str, int]) -> dict[str, Any]:
    """One candidate of the heuristics with its grid."""
    from torch._inductor.runtime.triton_heuristics import GridExpr

    grid = GridExpr.from_meta(said, dict(config.kwargs)).eval_slow(dict(known))
    return {
        "constants": dict(config.kwargs),
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "grid": [int(extent) for extent in grid],
    }


def jit_functions(source: str) -> str:
    """The functions that ``triton.jit`` decorates, without inductor's decorators."""
    lines, parts = source.split("\n"), []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(one) for one in node.decorator_list):
            parts.append("@triton.jit\n" + "\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return "\n\n\n".join(parts) + "\n"


def captured(names: list[str], device: str) -> list[dict[str, Any]]:
    """What a process says of some functions: their kernels, or their errors."""
    import torch
    from compiled_functions import functions

    every, made = functions(), []
    with ExitStack() as stack:
        if device == "none":
            stack.enter_context(standing_in())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in names:
            began = time.perf_counter()
            one = every[name]
            inputs = [[list(shape), str(kind).removeprefix("torch.")] for shape, kind in one.inputs]
            row: dict[str, Any] = {"function": name, "inputs": inputs, "options": one.options}
            try:
                row["kernels"] = [kernel for code in written_code(one, folder) for kernel in kernels_of(code, folder)]
            except Exception as error:  # noqa: BLE001 - a function that does not compile is recorded, whatever it raises
                row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
            made.append({**row, "seconds": round(time.perf_counter() - began, 2)})
    torch._dynamo.reset()
    return made


def facts(device: str, seconds: float) -> dict[str, Any]:
    """Command, card, versions and date."""
    import torch
    import triton

    card = "none: an H200's properties stand in" if device == "none" else torch.cuda.get_device_name()
    return {
        "command": f"python scripts/capture_compiled.py OUT --seconds {seconds:g} --device {device}",
        "card": card,
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda),
                     "python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def store(path: Path, said: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """One JSON object, compressed where the name ends in ``.xz``; the old file is replaced at once."""
    text = json.dumps({"provenance": said, "functions": sorted(rows, key=lambda row: row["function"])}, indent=1) + "\n"
    aside = path.with_name(path.name + ".part")
    aside.write_bytes(lzma.compress(text.encode(), preset=9) if path.suffix == ".xz" else text.encode())
    aside.replace(path)


def main() -> None:
    """Capture, then say what there is; exit 1 if nothing was captured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=90.0, help="no function is waited for longer than this")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--functions", default="", help="beginnings of names")
    parser.add_argument("--device", choices=("first", "none"), default="first")
    options = parser.parse_args()
    from compiled_functions import functions

    ends = time.time() + options.seconds
    wanted = tuple(name for name in options.functions.split(",") if name)
    names = [name for name in functions() if not wanted or name.startswith(wanted)]
    said, rows = facts(options.device, options.seconds), []
    chunks = [names[start : start + 4] for start in range(0, len(names), 4)]
    pool = ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"))
    futures = [pool.submit(captured, chunk, options.device) for chunk in chunks]
    try:
        for future in as_completed(futures, timeout=max(1.0, ends - time.time())):
            rows += future.result()
            store(options.out, said, rows)
    except TimeoutError:
        print("the time is over", file=sys.stderr)
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in workers:
        process.kill()
    missing = sorted(set(names) - {row["function"] for row in rows})
    rows += [{"function": name, "error": "not reached in time"} for name in missing]
    store(options.out, said, rows)
    for row in rows:
        if "error" in row:
            print(f"{row['function']}: {row['error']}", file=sys.stderr)
    kernels = [kernel for row in rows for kernel in row.get("kernels", [])]
    configurations = sum(len(kernel["configs"]) for kernel in kernels)
    failed = sum("error" in row for row in rows)
    print(f"{len(rows)} functions, {failed} failed, {len(kernels)} kernels, {configurations} configurations")
    sys.exit(0 if kernels else 1)


if __name__ == "__main__":
    main()
