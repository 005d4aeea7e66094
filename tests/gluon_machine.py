"""A machine that runs the specialised chain's own source: warps, barriers, copies, matrix steps that take their time.

The functions of ``gemmdesc/kernels/specialised_chain.py`` and of what it stores by are run by Python, one thread for
each group of warps, with stand-ins for Gluon's names.  Between any two of their operations a random one of what may
happen next happens: another group goes on, a copy lands, a matrix step is done, a staged piece has been read.  Whatever
the hardware would not notice raises: a buffer that is overwritten while it is read, read before it is full, a barrier
with too many arrivals, sums that are read while they are in the making; and nobody being able to go on.  Two programs
of a cluster run on one machine, each with memory of its own; whoever touches the other one's before both have begun or
after it has ended is told, too.
"""

from __future__ import annotations
import __future__

import ast
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

_KERNELS = Path(__file__).parents[1] / "gemmdesc" / "kernels"
#: The code of the kernel and of what it calls.
#: Modules of the kernel.
_PARTS = ("chain", "finish", "store", "whole")
SOURCE = "".join((_KERNELS / f"specialised_{part}.py").read_text() for part in _PARTS)
#: What the machine does itself of what the source defines: pieces of PTX, and what makes them.
_OWN = {"unit_of", "no_sums", "multiply_whole", "load_lines"}
#: Rows of the machine's matrix steps across a whole tile, whose sums are tensors of so many rows and one column.
_WHOLE_ROWS = 2
_ELEMENT = 2


class ProtocolError(Exception):
    """Something that hardware would do without a word."""


@dataclass
class _Thread:
    """A group of warps; ``ready``: what it waits for.  ``steps``: matrix steps in flight, ``stores``: of pieces."""

    name: str
    program: int
    place: int
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] = lambda: True
    done: bool = False
    steps: list[_Step] = field(default_factory=list)
    stores: list[_Store] = field(default_factory=list)
    fenced: bool = True
    waited: bool = False
    error: BaseException | None = None


@dataclass(eq=False)
class _Step:
    run: Callable[[], None]
    reads: list[Buffer]


@dataclass(eq=False)
class _Store:
    run: Callable[[], None]
    buffer: Buffer
    read: bool = False


class Machine:
    """Programs of a launch, one or the two of a cluster.

    ``weights``: how likely threads of each, matrix steps, stores and copies are to be next.
    """

    def __init__(self, seed: int, running: list[int], programs: int) -> None:
        self.random = Random(seed)
        self.weights = [10 ** self.random.uniform(-2, 1) for _ in range(3 + 3 * len(running))]
        self.running, self.programs = running, programs
        self.building = running[0]
        self.wanted: list[tuple[int, list[Any]]] = []
        self.memory: dict[tuple[int, int, int], Any] = {}
        self.allocated: dict[int, int] = dict.fromkeys(running, 0)
        self.published: set[int] = set()
        self.met = 0
        self.loads: list[tuple[Buffer, Callable[[], None]]] = []
        self.landed = 0
        self.threads: list[_Thread] = []
        self.back = threading.Semaphore(0)
        self.local = threading.local()
        self.started = 0
        self.stopped = False

    @property
    def program(self) -> int:
        """Whose code runs."""
        return self.me.program if self.threads else self.building

    def place_in(self, entries: list[Any]) -> Ring:
        """Entries of one allocation, which has the same place in every program's memory."""
        number = self.allocated[self.building]
        self.allocated[self.building] += 1
        for i, entry in enumerate(entries):
            entry.place = (self.building, number, i)
            self.memory[entry.place] = entry
        return Ring(entries)

    def there(self, entry: Any, program: int) -> Any:
        """What is in the place of ``entry`` in ``program``, which must be there to be touched."""
        if self.met < len(self.threads) or self.ended(program):
            raise ProtocolError("memory of a program is touched that may not have begun or has ended")
        return self.memory[(program, *entry.place[1:])]

    def ended(self, program: int) -> bool:
        return all(t.done for t in self.threads if t.program == program)

    @property
    def me(self) -> _Thread:
        found: _Thread = self.local.thread
        return found

    def pause(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let others go on, and come back when ``ready``."""
        thread = self.me
        thread.ready = ready
        self.back.release()
        thread.go.acquire()
        if self.stopped:
            raise SystemExit

    def spawn(self, functions: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
        """Begin once every program has come so far."""
        self.wanted.append((self.building, functions))
        if len(self.wanted) < len(self.running):
            return
        for program, of_program in self.wanted:
            for i, (function, arguments) in enumerate(of_program):
                place = min(i, 2) + 3 * self.running.index(program)
                thread = _Thread(f"{function.__name__} {i} of {program}", program, place)
                self.threads.append(thread)
                threading.Thread(target=self._body, args=(thread, function, arguments), daemon=True).start()
        try:
            while self._turn():
                pass
        finally:
            self.stopped = True
            for thread in self.threads:
                thread.go.release()

    def _body(self, thread: _Thread, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.local.thread = thread
        thread.go.acquire()
        try:
            if not self.stopped:
                function(*arguments)
        except SystemExit:
            return
        except BaseException as error:  # noqa: BLE001  handed to the thread that asked for it
            thread.error = error
        thread.done = True
        self.back.release()

    def _turn(self) -> bool:
        """One thing that may happen; False when all is over."""
        able: list[tuple[float, Callable[[], None]]] = []
        for thread in self.threads:
            if not thread.done and thread.ready():
                able.append((self.weights[thread.place], lambda t=thread: self._resume(t)))  # type: ignore[misc]
            if thread.steps:
                able.append((self.weights[-3], lambda t=thread: t.steps.pop(0).run()))  # type: ignore[misc]
            for store in (s for s in thread.stores if not s.read):
                able.append((self.weights[-2], store.run))
        able += [(self.weights[-1], lambda at=i: self._land(at)) for i in range(len(self.loads))]  # type: ignore[misc]
        if not able:
            if all(t.done for t in self.threads):
                return False
            raise ProtocolError(f"deadlock: {[t.name for t in self.threads if not t.done]} wait for ever")
        self.random.choices([do for _, do in able], [weight for weight, _ in able])[0]()
        return True

    def _resume(self, thread: _Thread) -> None:
        thread.go.release()
        self.back.acquire()
        if thread.error is not None:
            raise thread.error
        if thread.done and (thread.steps or any(not s.read for s in thread.stores)):
            raise ProtocolError(f"{thread.name} ended with work in flight on its shared memory")

    def _land(self, at: int) -> None:
        _, run = self.loads.pop(at)
        run()
        self.landed += 1


class Buffer:
    """A box in shared memory; views of it share ``cell``."""

    def __init__(self, machine: Machine, shape: tuple[int, ...], turned: bool = False, cell: Any = None) -> None:
        self.machine, self.shape, self.turned = machine, shape, turned
        self.place: tuple[int, int, int] = (0, 0, 0)
        self.cell = cell or SimpleNamespace(data=None, room=math.prod(shape), loading=0)

    @property
    def data(self) -> Any:
        return self.cell.data.T if self.turned else self.cell.data

    def permute(self, order: tuple[int, int]) -> Buffer:
        assert order == (1, 0)
        return Buffer(self.machine, self.shape, not self.turned, self.cell)

    def reinterpret(self, dtype: Any, shape: list[int], layout: Any) -> Buffer:
        assert math.prod(shape) <= self.cell.room
        return Buffer(self.machine, tuple(shape), False, self.cell)

    def readers(self) -> bool:
        """Whether a matrix step that reads it is in flight."""
        return any(b.cell is self.cell for t in self.machine.threads for s in t.steps for b in s.reads)

    def leaving(self) -> bool:
        """Whether a copy to global memory that reads it is in flight."""
        return any(s.buffer.cell is self.cell and not s.read for t in self.machine.threads for s in t.stores)

    def store(self, value: Value) -> None:
        self.machine.pause()
        if self.leaving():
            raise ProtocolError("a staged piece is overwritten while it is read")
        if self.readers() or self.cell.loading:
            raise ProtocolError("a buffer is staged in while it is in use")
        assert self.shape == value.data.shape, (self.shape, value.data.shape)
        self.cell.data = value.settled().copy()
        self.machine.me.fenced = False


class Barrier:
    """An mbarrier: phases of so many arrivals and of the bytes expected."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.count, self.left, self.bytes, self.phase = machine, 0, 0, 0, 0
        self.place: tuple[int, int, int] = (0, 0, 0)

    def settle(self) -> None:
        if self.left < 0:
            raise ProtocolError("a barrier got more arrivals than its phase takes")
        if self.left == 0 and self.bytes == 0:
            self.left, self.phase = self.count, self.phase + 1


class Ring:
    """What ``allocate_shared_memory`` gives."""

    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries

    def index(self, at: int) -> Any:
        assert 0 <= at < len(self.entries), at
        return self.entries[at]


class Value:
    """Sums of a group: a tensor in registers, which matrix steps in flight may yet change."""

    def __init__(self, data: Any, pending: list[_Step] | None = None) -> None:
        self.data, self.pending = data, [] if pending is None else pending
        self.type = SimpleNamespace(layout=None)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def settled(self) -> Any:
        if self.pending:
            raise ProtocolError("sums are read while matrix steps add to them")
        return self.data

    def reshape(self, shape: list[int]) -> Value:
        return Value(self.settled().reshape(shape))

    def permute(self, order: tuple[int, ...]) -> Value:
        return Value(self.settled().transpose(order))

    def split(self) -> tuple[Value, Value]:
        return Value(self.settled()[..., 0]), Value(self.settled()[..., 1])

    def to(self, dtype: Any) -> Value:
        return Value(self.settled())


class Descriptor:
    """A tensor descriptor: reads zeros beyond its matrix, and writes nothing there."""

    def __init__(self, matrix: Any, box: tuple[int, int], counts: Any = None) -> None:
        self.matrix, self.box, self.counts = matrix, box, counts
        self.block_type, self.dtype, self.layout = SimpleNamespace(shape=list(box)), None, None

    def read(self, at: list[int]) -> Any:
        found = np.zeros(self.box)
        inside = self.matrix[at[0] : at[0] + self.box[0], at[1] : at[1] + self.box[1]]
        found[: inside.shape[0], : inside.shape[1]] = inside
        return found

    def write(self, at: list[int], data: Any) -> None:
        place = np.s_[at[0] : at[0] + self.box[0], at[1] : at[1] + self.box[1]]
        inside = self.matrix[place]
        self.matrix[place] = data[: inside.shape[0], : inside.shape[1]]
        self.counts[place] += 1


class _Number(int):
    def to(self, dtype: Any) -> _Number:
        return self


class Pointer:
    """``out_ptr``, and what is added to it."""

    def __init__(self, flat: Any, counts: Any, offsets: Any = 0) -> None:
        self.flat, self.counts, self.offsets = flat, counts, offsets
        self.dtype = SimpleNamespace(element_ty=None)

    def __add__(self, offsets: Any) -> Pointer:
        return Pointer(self.flat, self.counts, self.offsets + offsets)


def _names(machine: Machine) -> dict[str, Any]:
    """Gluon's names, as the functions find them."""

    def allocate(dtype: Any, shape: list[int], layout: Any) -> Ring:
        if layout == "barrier":
            return machine.place_in([Barrier(machine) for _ in range(shape[0])])
        return machine.place_in([Buffer(machine, tuple(shape[1:])) for _ in range(shape[0])])

    def init(barrier: Barrier, count: int) -> None:
        barrier.count = barrier.left = count

    def wait(barrier: Barrier, parity: int) -> None:
        assert parity in (0, 1)
        machine.pause(lambda: barrier.phase % 2 != parity)

    def arrive(barrier: Barrier, pred: bool = True) -> None:
        machine.pause()
        if pred:
            barrier.left -= 1
            barrier.settle()

    def expect(barrier: Barrier, size: int) -> None:
        machine.pause()
        barrier.bytes += size
        barrier.left -= 1
        barrier.settle()

    def load(desc: Descriptor, at: list[int], barrier: Barrier, buffer: Buffer) -> None:
        machine.pause()
        assert desc.box == buffer.shape
        load_part(desc, at, 0, barrier, buffer)

    def load_part(desc: Descriptor, at: list[int], first: int, barrier: Barrier, buffer: Buffer) -> None:
        """To lines from ``first`` on; other lines may be on their way at the same time."""
        bit = 1 << first
        if buffer.readers() or buffer.cell.loading & bit:
            raise ProtocolError("a buffer is overwritten while it is in use")
        buffer.cell.loading |= bit

        def land() -> None:
            if buffer.readers() or machine.ended(buffer.place[0]):
                raise ProtocolError("a buffer is overwritten while it is read, or after its program has ended")
            found = desc.read(at)
            assert first + len(found) <= buffer.shape[0]
            assert found.shape[1] == buffer.shape[1]
            whole = np.full(buffer.shape, np.nan) if buffer.cell.data is None else buffer.cell.data.copy()
            assert whole.shape == buffer.shape
            whole[first : first + len(found)] = found
            buffer.cell.data = whole
            buffer.cell.loading &= ~bit
            barrier.bytes -= _ELEMENT * found.size
            barrier.settle()

        machine.loads.append((buffer, land))

    def units_of(buffer: Buffer, first: int, count: int) -> list[Buffer]:
        """Buffers of a line each that lie behind one another, from the ``first``-th after ``buffer`` on."""
        program, number, at = buffer.place
        return [machine.memory[(program, number, at + first + i)] for i in range(count)]

    def load_units(desc: Descriptor, at: list[int], barrier: Barrier, units: list[Buffer]) -> None:
        """One box, to buffers of a line each."""
        if any(unit.readers() or unit.cell.loading for unit in units):
            raise ProtocolError("a buffer is overwritten while it is in use")
        for unit in units:
            unit.cell.loading = 1

        def land() -> None:
            if any(unit.readers() or machine.ended(unit.place[0]) for unit in units):
                raise ProtocolError("a buffer is overwritten while it is read, or after its program has ended")
            found = desc.read(at)
            for line, unit in zip(found, units, strict=True):
                unit.cell.data, unit.cell.loading = line[None].copy(), 0
            barrier.bytes -= _ELEMENT * found.size
            barrier.settle()

        machine.loads.append((units[0], land))

    def load_lines(desc: Descriptor, line: int, column: int, barrier: Barrier, buffer: Buffer) -> None:
        machine.pause()
        load_units(desc, [line, column], barrier, units_of(buffer, 0, desc.box[0]))

    def load_for_both(
        desc: Descriptor, line: int, column: int, first: int, barrier: Barrier, buffer: Buffer
    ) -> None:
        machine.pause()
        for program in machine.running:
            signal, place = machine.there(barrier, program), machine.there(buffer, program)
            if first + desc.box[0] <= place.shape[0]:
                load_part(desc, [line, column], first, signal, place)
            else:
                load_units(desc, [line, column], signal, units_of(place, first, desc.box[0]))

    def arrive_there(barrier: Barrier, rank: int, pred: bool) -> None:
        machine.pause()
        if pred:
            found = machine.there(barrier, machine.running[rank])
            found.left -= 1
            found.settle()

    def meet() -> None:
        if machine.published != set(machine.running):
            raise ProtocolError("programs meet before their barriers are to be seen")
        machine.met += 1
        machine.pause(lambda: machine.met >= len(machine.threads))

    def mma(a: Buffer, b: Buffer, sums: Value, use_acc: bool, is_async: bool) -> Value:
        assert is_async
        machine.pause()
        for buffer in (a, b):
            if buffer.cell.loading or buffer.cell.data is None:
                raise ProtocolError("a buffer is read before it is full")

        def run() -> None:
            sums.data = a.data @ b.data + (sums.data if use_acc else 0)
            sums.pending.remove(step)

        step = _Step(run, [a, b])
        sums.pending.append(step)
        machine.me.steps.append(step)
        return sums

    def no_sums(rows: int, width: int) -> tuple[Value, ...]:
        return tuple(Value(np.full((_WHOLE_ROWS, 1), np.nan)) for _ in range(rows // _WHOLE_ROWS * width))

    def multiply_whole(
        a: Buffer, b: Buffer, sums: tuple[Value, ...], use_acc: bool, width: int, a_rows: bool
    ) -> tuple[Value, ...]:
        machine.pause()
        units = units_of(b, 0, width)
        for buffer in (a, *units):
            if buffer.cell.loading or buffer.cell.data is None:
                raise ProtocolError("a buffer is read before it is full")

        def run() -> None:
            rows = a.data if a_rows else a.data.T
            found = rows @ np.concatenate([unit.data for unit in units]).T
            for i, value in enumerate(sums):
                first = i // width * _WHOLE_ROWS
                part = found[first : first + _WHOLE_ROWS, i % width][:, None]
                value.data = part + (value.data if use_acc else 0)
                value.pending.remove(step)

        step = _Step(run, [a, *units])
        for value in sums:
            value.pending.append(step)
        machine.me.steps.append(step)
        return sums

    def mma_wait(left: int, deps: list[Value]) -> Any:
        thread = machine.me
        machine.pause(lambda: len(thread.steps) <= left)
        return deps[0] if len(deps) == 1 else tuple(deps)

    def fence() -> None:
        if machine.threads:
            machine.me.fenced = True

    def store(desc: Descriptor, at: list[int], buffer: Buffer) -> None:
        thread = machine.me
        machine.pause()
        if not thread.fenced:
            raise ProtocolError("a piece is stored before a fence")

        def run() -> None:
            entry.read = True
            desc.write(at, buffer.data)

        entry = _Store(run, buffer)
        thread.stores.append(entry)

    def store_wait(left: int) -> None:
        thread = machine.me
        machine.pause(lambda: all(s.read for s in thread.stores[: max(0, len(thread.stores) - left)]))

    def store_elements(pointers: Pointer, value: Value, mask: Any) -> None:
        offsets = np.broadcast_to(pointers.offsets, mask.shape)[mask]
        pointers.flat[offsets] = value.settled()[mask]
        np.add.at(pointers.counts, offsets, 1)

    def previous() -> None:
        machine.me.waited = True

    def following() -> None:
        thread = machine.me
        if thread.steps or (machine.loads and len(machine.running) == 1):
            raise ProtocolError("the next kernel is let in before the last tile is multiplied")
        machine.started += 1

    def operands_over(formats: int, numbers: Any, addresses: Any, *at: Any) -> Any:
        """Of the one operand, an array, what lies over rows ``m`` and columns ``n`` from (row, column) on."""
        row, column, m, n = at[2:6]
        return Descriptor(addresses[0], (len(m), len(n))).read([row, column])

    def parts_of(tile: Value, count: int) -> tuple[Value, ...]:
        return tuple(map(Value, np.split(tile.settled(), count, axis=1)))

    gl = SimpleNamespace(
        constexpr=None, float32=None, int32=None, int64=None, static_range=range,
        program_id=lambda axis: machine.program, num_programs=lambda axis: machine.programs,
        zeros=lambda shape, dtype, layout: Value(np.full(shape, np.nan)), NVMMADistributedLayout=lambda *a: None,
        SliceLayout=lambda *a: None, arange=lambda begin, end, layout: np.arange(begin, end), store=store_elements,
        join=lambda one, other: Value(np.stack([one.settled(), other.settled()], -1)),
        convert_layout=lambda value, layout, assert_trivial: value,
        allocate_shared_memory=allocate, warp_specialize=lambda functions, warps, registers: machine.spawn(functions),
    )  # fmt: skip
    barriers = SimpleNamespace(
        init=init, wait=wait, arrive=arrive, expect=expect, MBarrierLayout=lambda: "barrier"
    )
    return {
        "gl": gl, "mbarrier": barriers, "tma": SimpleNamespace(store_wait=store_wait), "load_box": load,
        "store_box": store, "warpgroup_mma": mma, "warpgroup_mma_wait": mma_wait, "fence_async_shared": fence,
        "wait_for_previous": previous, "let_next_start": following, "load_for_both": load_for_both,
        "arrive_there": arrive_there, "meet": meet, "no_sums": no_sums, "multiply_whole": multiply_whole,
        "load_lines": load_lines, "PATTERN": 1, "operands_over": operands_over, "parts_of": parts_of,
        "run_program": lambda value, held, program, count, formats, here: Value(3 * value.settled() + here),
        "rounded_tile": lambda value, dtype, result: value, "taken": lambda value: value, "FLOAT16": 2,
        "WHOLE_ROWS": 4, "WHOLE_COLUMNS": 5,
        "publish_barriers": lambda: machine.published.add(machine.building), "GROUP_WARPS": 4, "LOADING_WARPS": 1,
        "GROUP_REGISTERS": 240, "LOADING_REGISTERS": 24, "COLUMNS": 2,
        "REINTERPRET": SimpleNamespace(value="reinterpret"),
    }  # fmt: skip


def functions_of(source: str, machine: Machine) -> dict[str, Any]:
    """The functions of a module's source, without their decorators, on ``machine``."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name not in _OWN]
    for node in tree.body:
        node.decorator_list = []  # type: ignore[attr-defined]
    names = _names(machine)
    code = compile(tree, "specialised_chain", "exec", flags=__future__.annotations.compiler_flag)
    exec(code, names)
    return names


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch of the kernel on a machine: sizes, and its constants."""

    m: int
    n: int
    k: int
    programs: int
    turns: bool
    stages: int
    a_rows: bool = True
    b_rows: bool = False
    by_descriptor: bool = True
    out_rows: bool = True
    dependent: bool = False
    block_m: int = 4
    block_n: int = 4
    beside_n: int = 0
    block_k: int = 2
    group_m: int = 2
    store_n: int = 2
    store_buffers: int = 1
    alone: bool = False
    cluster_m: int = 1
    cluster_n: int = 1
    whole: bool = False
    #: Columns that are finished at once, by a program that triples and adds a matrix; 0: the chain alone.
    finished: int = 0

    def run(self, seed: int, source: str | None = None) -> None:
        """Run every program.

        Raises:
            ProtocolError: see above; also where an output is wrong or not stored once.
        """
        rng = np.random.default_rng(seed)
        added = rng.integers(-9, 9, (self.m, self.n))
        a, b = rng.integers(-3, 4, (self.m, self.k)), rng.integers(-3, 4, (self.k, self.n))
        out, counts = np.full((self.m, self.n), np.nan), np.zeros((self.m, self.n), dtype=int)
        out, counts = (x if self.out_rows else np.asfortranarray(x) for x in (out, counts))
        rows = self.block_m if self.turns else self.block_m // 2

        def described(matrix: Any, by_rows: bool, box: tuple[int, int]) -> Descriptor:
            return Descriptor(matrix if by_rows else matrix.T, box if by_rows else (box[1], box[0]), counts)

        beside = self.beside_n
        first, more = self._widths()
        narrow = self.block_n % self.store_n if self.whole else min(beside, self.store_n)
        boxes = [
            described(a, self.a_rows, (rows, self.block_k)),
            described(b, self.b_rows, self._part(first)),
            described(b, self.b_rows, self._part(more)) if more else None,
            described(out, True, (rows, self.store_n)) if self.by_descriptor else None,
            described(out, True, (rows, narrow)) if self.by_descriptor and narrow else None,
        ]  # fmt: skip
        flat = out.reshape(-1, order="A"), counts.reshape(-1, order="A")
        strides = [_Number(s // x.itemsize) for x in (out,) for s in x.strides]
        pair = self.cluster_m * self.cluster_n
        for program in range(0, self.programs, pair):
            machine = Machine(seed + program, list(range(program, program + pair)), self.programs)
            kernel = functions_of(SOURCE if source is None else source, machine)
            for building in machine.running:
                machine.building = building
                finishing = (0,) * 6, (added, *(0,) * 5), (0,) * 6, (0,) * 6, 0, 0, 0, 0, False, self.finished, seed % 2
                kernel["run_specialised"](
                    *boxes, Pointer(*flat), self.m, self.n, -(-self.k // self.block_k), *strides,
                    finishing=finishing if self.finished else None,
                    A_ROWS=self.a_rows, B_ROWS=self.b_rows, STORE_BY_DESCRIPTOR=self.by_descriptor,
                    DEPENDENT=self.dependent, OUT_LAYOUT=1 if self.out_rows else 2, WIDE_OFFSETS=False,
                    TURNS=self.turns, BLOCK_M=self.block_m, BLOCK_N=self.block_n, BESIDE_N=beside,
                    BLOCK_K=self.block_k, GROUP_M=self.group_m, STAGES=self.stages, STORE_N=self.store_n,
                    STORE_BUFFERS=self.store_buffers, ALONE=self.alone, CLUSTER_M=self.cluster_m,
                    CLUSTER_N=self.cluster_n, WHOLE=self.whole,
                )  # fmt: skip
            self._check(machine)
        if not (counts == 1).all():
            raise ProtocolError("an output is not stored once")
        if not (out == (3 * (a @ b) + added if self.finished else a @ b)).all():
            raise ProtocolError("an output is wrong")

    def _widths(self) -> tuple[int, int]:
        """Columns of the boxes of B: where one instruction takes all, the largest power of two, and a smaller one."""
        if not self.whole:
            return self.block_n, self.beside_n
        first = 1 << self.block_n.bit_length() - 1
        rest = self.block_n - first
        return first, rest & -rest

    def _part(self, width: int) -> tuple[int, int]:
        """Lanes and columns of B in a box, half of its lines where two programs load for both."""
        lanes, columns = (self.block_k, width)
        return (lanes // self.cluster_m, columns) if self.b_rows else (lanes, columns // self.cluster_m)

    def _check(self, machine: Machine) -> None:
        pair = len(machine.running)
        high, wide = self.block_m * self.cluster_m, (self.block_n + self.beside_n) * self.cluster_n
        own = len(range(machine.running[0] // pair, -(-self.m // high) * -(-self.n // wide), self.programs // pair))
        first, more = self._widths()
        more_boxes = (self.block_n - first) // more if self.whole and more else more > 0
        boxes = (1 if self.turns else 2) + self.cluster_m * (1 + more_boxes)
        if machine.landed != own * -(-self.k // self.block_k) * boxes * pair:
            raise ProtocolError("a box is loaded that nobody needs, or not at all")
        workers = [t for t in machine.threads if not t.name.startswith("idle")]
        if self.dependent and (not all(t.waited for t in workers) or (own and not machine.started)):
            raise ProtocolError("a group touches memory before the kernel in front has ended, or lets none in")
