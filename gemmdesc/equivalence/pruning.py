"""Keeping an autotuner inside one class: only configurations that owe the reference the same bits are timed.

::

    @triton.autotune(
        configs, key=["n"],
        prune_configs_by={"early_config_prune": same_as(kernel=lambda: my_kernel)},
    )
    @triton.jit
    def my_kernel(...): ...

Each configuration is compiled through the kernel's own caches, where the tuner finds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gemmdesc.equivalence.answers import Kernel, Partition, Refused, read, signature, text_digest
from gemmdesc.equivalence.launch import Launch
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError


class Compiled(Protocol):
    """What is used of Triton's compiled kernel."""

    asm: Mapping[str, Any]
    metadata: Any
    src: Any


#: Compile one configuration: (configuration, positional arguments by name, keyword arguments) -> compiled kernel.
Compile = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Compiled]


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """One pruning: the classes by configuration, and which class was kept."""

    partition: Partition
    kept: tuple[str, ...]


class SameBits:
    """An ``early_config_prune`` function; ``last`` is what the latest call found."""

    def __init__(self, reference: Kernel | None, compile_: Compile) -> None:
        self._reference, self._compile = reference, compile_
        self.last: Pruning | None = None

    def __call__(self, configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        """The configurations with the reference's bits, in their order.

        Raises:
            DeclinedError: the reference cannot be read, or no configuration has its bits.
        """
        classes: dict[str, list[str]] = {}
        refused: list[Refused] = []
        marks: list[str] = []
        for config in configs:
            mark = self._mark(kernel_of(config, self._compile(config, named_args, kwargs), named_args, kwargs), refused)
            marks.append(mark)
            if not mark.startswith(_UNREAD):
                classes.setdefault(mark, []).append(str(config))
        wanted = marks[0] if self._reference is None else self._mark(self._reference, [])
        kept = [config for config, mark in zip(configs, marks, strict=True) if mark == wanted]
        found = Partition(classes=tuple(map(tuple, classes.values())), refused=tuple(refused))
        self.last = Pruning(partition=found, kept=tuple(map(str, kept)))
        if not kept or wanted.startswith(_VARYING):
            varies = wanted.startswith(_VARYING)
            reason = "the reference's bytes may vary" if varies else "none has the reference's bits"
            raise DeclinedError(Declined(code="kernel", reason=f"of {len(configs)} configurations, {reason}"))
        return kept

    def _mark(self, kernel: Kernel, refused: list[Refused]) -> str:
        """Equal marks mean equal bits: a signature, or for a kernel that cannot be read its text and launch."""
        found = read(kernel)
        if isinstance(found, Refused) and found.code == "contraction" and kernel.sass is None:
            found = read(_with_sass(kernel))
        if not isinstance(found, Refused):
            return signature(found)
        refused.append(found)
        if found.code == "nondeterministic":
            return f"{_VARYING} {kernel.name}"
        return f"{_UNREAD} {text_digest(kernel.ptx)} {kernel.launch}"


_UNREAD, _VARYING = "unread", "unread: varying"


@dataclass(frozen=True, kw_only=True)
class LazyKernel(Kernel):
    """A kernel whose assembled text is at hand on demand."""

    assembled: Callable[[], str | None] = lambda: None


def _with_sass(kernel: Kernel) -> Kernel:
    return replace(kernel, sass=kernel.assembled()) if isinstance(kernel, LazyKernel) else kernel


def same_as(
    reference: Kernel | None = None, *, kernel: Callable[[], Any] | None = None, compile_: Compile | None = None
) -> SameBits:
    """An ``early_config_prune`` that keeps the configurations with the reference's bits.

    ``reference``: a kernel that the caller compiled; None stands for the first configuration.  ``kernel``: gives the
    tuned kernel when it is called (the decorated name does not exist yet where this is written).  ``compile_``:
    instead of that, a function that compiles one configuration.

    Raises:
        InvalidInputError: not exactly one of ``kernel`` and ``compile_`` is given.
    """
    if (kernel is None) == (compile_ is None):
        raise InvalidInputError("kernel must be given, or compile_ instead of it (got both or neither)")
    if compile_ is not None:
        return SameBits(reference, compile_)
    assert kernel is not None
    return SameBits(reference, _through_caches(kernel))


def _through_caches(kernel: Callable[[], Any]) -> Compile:
    def run(config: Any, named_args: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Compiled:
        function = kernel()
        while not hasattr(function, "device_caches"):
            function = function.fn
        rest = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        compiled: Compiled = function.warmup(*named_args.values(), grid=(1,), **rest, **config.all_kwargs())
        return compiled

    return run


def kernel_of(config: Any, compiled: Compiled, named_args: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Kernel:
    """A configuration's kernel with the launch that the tuner would time."""
    values = {**named_args, **kwargs, **config.all_kwargs()}
    grid = kwargs.get("grid", (1,))
    extents = tuple(grid(values) if callable(grid) else grid)
    # A constexpr, or an integer that the compiler took for one, is no parameter of the text.
    names = [name for name, kind in compiled.src.signature.items() if kind != "constexpr"]
    given = {i: int(values[name]) for i, name in enumerate(names) if isinstance(values.get(name), int)}
    x, y, z = (*(int(extent) for extent in extents), 1, 1)[:3]
    launch = Launch(
        grid=(x, y, z), arguments=given, contraction=bool(getattr(compiled.metadata, "enable_fp_fusion", True))
    )
    return LazyKernel(
        name=str(config), ptx=compiled.asm["ptx"], launch=launch, assembled=lambda: compiled.asm.get("sass")
    )
