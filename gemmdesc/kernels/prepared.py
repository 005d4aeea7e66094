"""A program ready to run on one device: kernels loaded, arguments packed, tensor maps encoded and kept by address.

Running it writes the addresses of the call and calls ``cuLaunchKernelEx`` once for each step, all of it in C where that
could be built.  It may be used by several threads and on several streams: each call takes arguments
of its own from a pool.  It holds no memory of the device.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from gemmdesc.errors import LaunchError
from gemmdesc.kernels.counters import Counters
from gemmdesc.kernels.driver import (
    Driver,
    LaunchAttribute,
    LaunchConfig,
    TensorMap,
    launch_attributes,
)
from gemmdesc.kernels.launch_loop import packed_program, program_runner
from gemmdesc.kernels.loaded import BoxFormat, LoadedKernel, NotPreparableError, flat_types
from gemmdesc.kernels.program import Box, Input, Program, Step, Word

#: Tensor maps that a program keeps of each descriptor, one for each address.
KEPT_MAPS = 1024
_WORD = 8
#: Bytes of a counter.
_COUNTER = 4
_STREAM_WORD = LaunchConfig.stream.offset // _WORD
_CONFIG_WORDS = ctypes.sizeof(LaunchConfig) // _WORD
_LARGEST_PORTABLE_CLUSTER = 8
_STATUS = (1 << 32) - 1
#: Where the address of a program's counters stands among the inputs of a run: behind what the caller gave.
_LAST = -1


class KeptMaps:
    """The tensor maps of one descriptor at the addresses met so far; the first ones go when there are many.

    ``context``: the one that the addresses are of.
    """

    def __init__(self, driver: Driver, context: int, box: Box, form: BoxFormat) -> None:
        self._driver, self._context, self._box, self._form = driver, context, box, form
        self._maps: dict[int, TensorMap] = {}
        self._lock = Lock()

    @property
    def known(self) -> dict[int, TensorMap]:
        """The maps that are kept now, by address; it changes as they do."""
        return self._maps

    def at(self, address: int) -> TensorMap:
        """The map of the tensor at ``address``.

        Raises:
            LaunchError: the driver refuses to encode it.
        """
        found = self._maps.get(address)
        return self._made(address) if found is None else found

    def _made(self, address: int) -> TensorMap:
        box, form = self._box, self._form
        # A thread that has not used the device yet has no context, and encoding wants one as launching does.
        self._driver.make_current(self._context)
        made = self._driver.encode(
            address, box.element, form.element_bytes, box.shape, box.strides, form.block, form.swizzle
        )
        with self._lock:
            self._maps[address] = made
            if len(self._maps) > KEPT_MAPS:
                del self._maps[next(iter(self._maps))]
        return made


@dataclass(eq=False)
class _Layout:
    """The words of a call's arguments: first the values, then each step's parameters, then its launch configuration.

    At the end are three words for each step: the addresses of its configuration, function and parameters.

    ``words``: what they hold at first.  ``pointers``: (word, word that it holds the address of).  ``addresses``: (word,
    input, offset).  ``maps``: (word, input, offset, kept maps).  ``launches``: (first word of the configuration,
    function, first word of the parameters).
    """

    words: list[int] = field(default_factory=list)
    pointers: list[tuple[int, int]] = field(default_factory=list)
    addresses: list[tuple[int, int, int]] = field(default_factory=list)
    maps: list[tuple[int, int, int, KeptMaps]] = field(default_factory=list)
    launches: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def steps_word(self) -> int:
        """The first word of the steps, once all are there."""
        return len(self.words) - 3 * len(self.launches)

    def add(self, value: int) -> int:
        """A word that holds ``value``; its place."""
        self.words.append(value & (1 << 64) - 1)
        return len(self.words) - 1


class _Arguments:
    """The arguments of one call at a time, in memory of their own."""

    __slots__ = ("_memory", "held", "key", "steps", "words")

    def __init__(self, layout: _Layout) -> None:
        count = len(layout.words)
        self._memory = (ctypes.c_uint64 * count)(*layout.words)
        begin = ctypes.addressof(self._memory)
        self.words = memoryview(self._memory).cast("B").cast("Q")
        for word, target in layout.pointers:
            self.words[word] = begin + _WORD * target
        #: Where the words of the steps begin.
        self.steps = begin + _WORD * layout.steps_word
        #: The stream and the inputs that the words are of, and the maps that they point at.
        self.key: tuple[int, tuple[int, ...]] | None = None
        self.held: tuple[TensorMap, ...] = ()


class PreparedProgram:
    """``program`` on a device, the current one, whose kernels are ``kernels``, one for each step.

    ``scratch_bytes``: what each run needs of its own.  ``needs``: how many inputs a run takes.  ``launches``: kernels
    of each run, ``variants`` among them.  ``counted``: whether they use counters.  ``counters``: where those come from;
    where there are none left, or there is None, each run clears some in its scratch.

    Raises:
        NotPreparableError: an argument does not suit its parameter.
        LaunchError: the driver refuses.
    """

    def __init__(
        self, program: Program, kernels: Sequence[LoadedKernel], driver: Driver, device_index: int,
        counters: Counters | None = None,
    ) -> None:  # fmt: skip
        self.prepared, self.launches, self.variants = True, len(program.steps), program.variants
        self.counted = program.counters > 0
        self._counted, self._counters, self._counters_at = program.counters, counters, program.scratch_bytes
        self.scratch_bytes = program.scratch_bytes + _COUNTER * program.counters
        self.needs = max(program.inputs - {Input.COUNTERS}, default=-1) + 1
        self._driver, self._launch_all = driver, driver.launch_all
        self._context = driver.primary_context(device_index)
        #: Kernels and tables live as long as what points at them.
        self._owned = [k.owner for k in kernels] + [
            a for step in program.steps for a in step.arguments if hasattr(a, "data_ptr")
        ]
        self._attributes: list[ctypes.Array[LaunchAttribute]] = []
        self._layout = _Layout()
        self._values: dict[int, int] = {}
        self._streams: list[int] = []
        for step, kernel in zip(program.steps, kernels, strict=True):
            self._add(step, kernel)
        for config, function, parameters in self._layout.launches:
            self._layout.pointers.append((self._layout.add(0), config))
            self._layout.add(function)
            self._layout.pointers.append((self._layout.add(0), parameters))
        self._pool: list[_Arguments] = []
        layout, runner = self._layout, program_runner()
        maps = [(word, source, offset) for word, source, offset, _ in layout.maps]
        packed = packed_program(
            layout.words, layout.pointers, layout.addresses, maps, self._streams, layout.steps_word, self.launches
        )
        #: What C launches by, where it can: the driver's function, the program, and the maps that there are.
        self.quick: tuple[int, bytes, tuple[dict[int, TensorMap], ...]] | None = None
        if runner is not None and packed is not None and driver.launch_address is not None:
            self.quick = driver.launch_address, packed, tuple(kept.known for *_, kept in layout.maps)
        self._run = runner

    def _add(self, step: Step, kernel: LoadedKernel) -> None:
        layout = self._layout
        targets = list(self._parameters(step, kernel))
        parameters = len(layout.words)
        for target, kept in targets:
            word = layout.add(0)
            if kept is None:
                layout.pointers.append((word, target))
            else:
                start = kept[0]
                layout.maps.append((word, start.input, start.offset, kept[1]))
        config = len(layout.words)
        for word in self._config(step, kernel):
            layout.add(word)
        self._streams.append(config + _STREAM_WORD)
        layout.launches.append((config, kernel.function, parameters))

    def _parameters(self, step: Step, kernel: LoadedKernel) -> Iterator[tuple[int, tuple[Word, KeptMaps] | None]]:
        """Of each parameter the word of its value, or where its tensor map comes from."""
        arguments = [a for a in step.arguments if a is not None]
        if len(arguments) != len(kernel.types):
            raise NotPreparableError(f"a step must have {len(kernel.types)} arguments (got {len(arguments)})")
        boxes = iter(kernel.boxes)
        for argument, kind in zip(arguments, kernel.types, strict=True):
            if isinstance(argument, Box):
                form = next(boxes, None)
                if form is None or not kind.startswith("tensordesc"):
                    raise NotPreparableError(f"a descriptor must be one of the kernel's (got {kind})")
                yield 0, (argument.start, KeptMaps(self._driver, self._context, argument, form))
                numbers = (*argument.shape, *argument.strides)
                for value, part in zip(numbers, flat_types([kind], [form])[1:], strict=True):
                    yield self._value(_bits(value, part)), None
            else:
                yield self._argument(argument, kind), None
        yield self._value(0), None
        yield self._value(0), None

    def _argument(self, argument: Any, kind: str) -> int:
        if isinstance(argument, Word):
            place = self._layout.add(0)
            source = _LAST if argument.input is Input.COUNTERS else argument.input
            self._layout.addresses.append((place, source, argument.offset))
            return place
        if hasattr(argument, "data_ptr"):
            return self._value(argument.data_ptr())
        return self._value(_bits(argument, kind))

    def _value(self, bits: int) -> int:
        """A word that holds ``bits`` for good; equal ones share it."""
        if bits not in self._values:
            self._values[bits] = self._layout.add(bits)
        return self._values[bits]

    def _config(self, step: Step, kernel: LoadedKernel) -> tuple[int, ...]:
        clusters = kernel.clusters * step.variant.cluster
        attributes = launch_attributes(
            clusters=clusters, cooperative=kernel.cooperative, dependent=kernel.dependent
        )
        self._attributes.append(attributes)
        if clusters > _LARGEST_PORTABLE_CLUSTER:
            self._driver.make_current(self._context)
            self._driver.allow_large_clusters(kernel.function)
        config = LaunchConfig(
            step.programs * kernel.clusters, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes, 0,
            ctypes.addressof(attributes) if len(attributes) else 0, len(attributes),
        )  # fmt: skip
        return struct.unpack(f"={_CONFIG_WORDS}Q", bytes(config))

    def __call__(self, stream: int, inputs: tuple[int, ...]) -> None:
        """Enqueue every step on ``stream``, a handle of the device, which is the current one.

        ``inputs``: addresses, and bits of alpha and beta, in the order of :class:`~gemmdesc.kernels.program.Input`, as
        many as :attr:`needs` at least.  The memory must stay the caller's until the steps were enqueued.

        Raises:
            LaunchError: the driver refuses a launch or a tensor map.
        """
        if self._counted:
            inputs = (*inputs, self._zero_counters(stream, inputs))
        quick, run, failed = self.quick, self._run, None
        if quick is not None and run is not None:
            failed = run(quick[0], quick[1], stream, inputs, quick[2])
            if failed == 0:
                return
        try:
            arguments = self._pool.pop()
        except IndexError:
            arguments = _Arguments(self._layout)
        key = (stream, inputs)
        if arguments.key != key:
            self._fill(arguments, key)
        if failed is None:
            failed = self._launch_all(arguments.steps, 0, self.launches)
        if failed:
            self._again(failed, arguments.steps)
        self._pool.append(arguments)

    def _zero_counters(self, stream: int, inputs: tuple[int, ...]) -> int:
        """The address of counters that no launch uses which could run at the same time as this run's."""
        counters, found = self._counters, None
        if counters is not None:
            try:
                capture, number = self._driver.order_of(stream)
            except LaunchError:
                if not self._lacked_context():
                    raise
                capture, number = self._driver.order_of(stream)
            found = counters.of_capture(capture, stream, self._counted) if capture else counters.of_stream(number)
        return self._cleared(stream, inputs[Input.SCRATCH] + self._counters_at) if found is None else found

    def _cleared(self, stream: int, address: int) -> int:
        try:
            self._driver.clear(address, self._counted, stream)
        except LaunchError:
            if not self._lacked_context():
                raise
            self._driver.clear(address, self._counted, stream)
        return address

    def _lacked_context(self) -> bool:
        """Whether this thread was in another context than the program's, or none; it is in that one from then on."""
        if self._driver.context() == self._context:
            return False
        self._driver.make_current(self._context)
        return True

    def _fill(self, arguments: _Arguments, key: tuple[int, tuple[int, ...]]) -> None:
        stream, inputs = key
        arguments.key = None
        words = arguments.words
        for word, source, offset in self._layout.addresses:
            words[word] = inputs[source] + offset
        held = []
        for word, source, offset, kept in self._layout.maps:
            found = kept.at(inputs[source] + offset)
            words[word] = found.address
            held.append(found)
        for word in self._streams:
            words[word] = stream
        arguments.held = tuple(held)
        arguments.key = key

    def _again(self, failed: int, steps: int) -> None:
        """A thread that has not used the device yet has no context, and gets the one that the kernels are in."""
        if self._driver.context() != self._context:
            self._driver.make_current(self._context)
            failed = self._launch_all(steps, failed >> 32, self.launches)
        if failed:
            name = self._driver.status_name(failed & _STATUS)
            raise LaunchError(f"cuLaunchKernelEx must succeed (got {name})")


def _bits(value: float, kind: str) -> int:
    """``value`` as the word that holds a parameter of type ``kind``.

    Raises:
        NotPreparableError: it does not fit.
    """
    try:
        if kind == "fp32":
            return int(struct.unpack("=I", struct.pack("=f", value))[0])
        if kind.startswith("*"):
            raise NotPreparableError(f"a pointer must be an address (got {value!r})")
        return int.from_bytes(struct.pack(_PACKED[kind], value), "little")
    except (KeyError, struct.error) as error:
        raise NotPreparableError(f"an argument must fit {kind} ({error}) (got {value!r})") from None


_PACKED = {
    "i1": "=b", "i8": "=b", "u8": "=B", "i16": "=h", "u16": "=H", "i32": "=i", "u32": "=I", "i64": "=q", "u64": "=Q",
}  # fmt: skip
