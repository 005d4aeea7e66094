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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gemmdesc.equivalence.answers import Kernel, Partition, Refused, read, signature, text_digest
from gemmdesc.equivalence.launch import Launch
from gemmdesc.equivalence.merges import Merge, load_merges
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
    """One pruning: the classes by configuration, which configurations were kept, and what that rests on.

    ``partition`` is without merges; ``assuming``: the merges named, if a configuration was kept by them alone.
    """

    partition: Partition
    kept: tuple[str, ...]
    assuming: tuple[str, ...] = ()


class SameBits:
    """An ``early_config_prune`` function; ``last`` is what the latest call found."""

    def __init__(self, reference: Kernel | None, compile_: Compile, merges: Collection[Merge] = ()) -> None:
        self._reference, self._compile, self._merges = reference, compile_, merges
        self.last: Pruning | None = None

    def __call__(self, configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        """The configurations with the reference's bits, in their order.

        Raises:
            DeclinedError: the reference cannot be read, or no configuration has its bits.
        """
        marks = _Marks(())
        kernels = [kernel_of(c, self._compile(c, named_args, kwargs), named_args, kwargs) for c in configs]
        found = [marks.of(kernel) for kernel in kernels]
        classes: dict[str, list[str]] = {}
        for kernel, mark in zip(kernels, found, strict=True):
            if not mark.startswith(_UNREAD):
                classes.setdefault(mark, []).append(kernel.name)
        refused = tuple(marks.refused)
        reference = kernels[0] if self._reference is None else self._reference
        wanted = marks.of(reference)
        merged = self._merged(reference, wanted, kernels, found)
        kept = [c for c, mark in zip(configs, found, strict=True) if mark == wanted or mark in merged]
        partition = Partition(classes=tuple(map(tuple, classes.values())), refused=refused)
        assuming = tuple(map(str, self._merges)) if merged else ()
        self.last = Pruning(partition=partition, kept=tuple(map(str, kept)), assuming=assuming)
        if not kept or wanted.startswith(_VARYING):
            varies = wanted.startswith(_VARYING)
            reason = "the reference's bytes may vary" if varies else "none has the reference's bits"
            raise DeclinedError(Declined(code="kernel", reason=f"of {len(configs)} configurations, {reason}"))
        return kept

    def _merged(self, reference: Kernel, wanted: str, kernels: list[LazyKernel], marks: list[str]) -> set[str]:
        """Marks of other classes that have the reference's bits where the merges hold; one kernel stands for each."""
        if not self._merges or wanted.startswith(_UNREAD):
            return set()
        others = {m: k for m, k in zip(marks, kernels, strict=True) if m != wanted and not m.startswith(_UNREAD)}
        merging = _Marks(self._merges)
        target = merging.of(reference)
        return {mark for mark, kernel in others.items() if merging.of(kernel) == target}


_UNREAD, _VARYING = "unread", "unread: varying"


class _Marks:
    """Equal marks mean equal bits: a signature, or for a kernel that cannot be read its text and launch."""

    def __init__(self, merges: Collection[Merge]) -> None:
        self._merges = merges
        self._known: dict[tuple[str, str], str] = {}
        self.refused: list[Refused] = []

    def of(self, kernel: Kernel) -> str:
        """A kernel's mark; a text that was read under the same launch is not read again."""
        key = f"{kernel.assembler} {kernel.launch}", text_digest(kernel.ptx)
        if key in self._known:
            return self._known[key]
        found = read(kernel, self._merges)
        if not isinstance(found, Refused):
            mark = self._known[key] = signature(found)
            return mark
        if found.code == "contraction" and kernel.sass is None:
            found = read(_with_sass(kernel), self._merges)
        if not isinstance(found, Refused):
            return signature(found)
        self.refused.append(found)
        if found.code == "nondeterministic":
            return f"{_VARYING} {kernel.name}"
        return f"{_UNREAD} {text_digest(kernel.ptx)} {kernel.launch}"


@dataclass(frozen=True, kw_only=True)
class LazyKernel(Kernel):
    """A kernel whose assembled text is at hand on demand."""

    assembled: Callable[[], str | None] = lambda: None


def _with_sass(kernel: Kernel) -> Kernel:
    return replace(kernel, sass=kernel.assembled()) if isinstance(kernel, LazyKernel) else kernel


def same_as(
    reference: Kernel | None = None,
    *,
    kernel: Callable[[], Any] | None = None,
    compile_: Compile | None = None,
    merges: Collection[str] = (),
) -> SameBits:
    """An ``early_config_prune`` that keeps the configurations with the reference's bits.

    ``reference``: a kernel that the caller compiled; None stands for the first configuration.  ``kernel``: gives the
    tuned kernel when it is called (the decorated name does not exist yet where this is written).  ``compile_``:
    instead of that, a function that compiles one configuration.  ``merges``: names of rows of
    :func:`gemmdesc.equivalence.merges.load_merges` that may be assumed, as in
    :func:`gemmdesc.equivalence.equivalent`.

    Raises:
        InvalidInputError: not exactly one of ``kernel`` and ``compile_`` is given, or there is no merge of a name.
    """
    if (kernel is None) == (compile_ is None):
        raise InvalidInputError("kernel must be given, or compile_ instead of it (got both or neither)")
    rows = load_merges(merges)
    if compile_ is not None:
        return SameBits(reference, compile_, rows)
    assert kernel is not None
    return SameBits(reference, _through_caches(kernel), rows)


def _through_caches(kernel: Callable[[], Any]) -> Compile:
    def run(config: Any, named_args: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Compiled:
        function = kernel()
        while not hasattr(function, "device_caches"):
            function = function.fn
        rest = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        compiled: Compiled = function.warmup(*named_args.values(), grid=(1,), **rest, **config.all_kwargs())
        return compiled

    return run


def kernel_of(config: Any, compiled: Compiled, named_args: Mapping[str, Any], kwargs: Mapping[str, Any]) -> LazyKernel:
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
