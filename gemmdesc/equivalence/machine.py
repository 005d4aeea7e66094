"""All threads of some blocks at once: registers as arrays over lanes, and control flow by the lowest pending line.

A *lane* is one thread of one block; the blocks of a batch run side by side.  Threads that branch apart become
fragments, each with the line it stands at; the fragment at the lowest line runs first, and fragments that meet at a
line go on together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gemmdesc.equivalence.fragments import Fragments
from gemmdesc.equivalence.global_memory import GlobalMemory, pointer_address
from gemmdesc.equivalence.launch import Dim3, Launch
from gemmdesc.equivalence.launch_registers import SHARED_BASE, place_variables, special_registers
from gemmdesc.equivalence.literals import literal_registers
from gemmdesc.equivalence.nodes import Bits64, Ids
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.shared_memory import SharedMemory
from gemmdesc.equivalence.syntax import (
    Entry,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Special,
    Symbol,
)
from gemmdesc.equivalence.table import Table
from gemmdesc.equivalence.values import Deferred, Mask, Value, as_integers, as_nodes, concrete, merged

Handler = Callable[["Machine", Instruction, "Mask | None"], None]

#: Instructions that the machine carries out itself.
BRANCHES = ("bra", "ret", "exit")
_MOST_STEPS = 2_000_000


class Machine:
    """Runs one batch of blocks.  ``first_block``: the linear number of its first block in the grid."""

    def __init__(
        self,
        entry: Entry,
        launch: Launch,
        block: Dim3,
        *,
        blocks: range,
        table: Table,
        memory: GlobalMemory,
        grain: int,
    ) -> None:
        self.entry, self.launch, self.table, self.memory = entry, launch, table, memory
        self.threads = block[0] * block[1] * block[2]
        self.lanes = self.threads * len(blocks)
        self.shared = SharedMemory(blocks=len(blocks), threads=self.threads, grain=grain, base=SHARED_BASE)
        self.fragments = Fragments(table)
        self.every = np.arange(self.lanes, dtype=np.int64)
        self.first_lane = blocks.start * self.threads
        self.time = 0
        #: Instructions that ptxas may fuse with a product or leave out, as text.
        self.contractible: dict[str, None] = {}
        #: Registers whose value ptxas knows from the text.
        self.literals = literal_registers(entry)
        #: What is taken for granted of ptxas, as the answer will say it.
        self.assumed: dict[str, None] = {}
        self._registers: dict[str, Value | Deferred] = {}
        self._special = special_registers(block, launch.grid, blocks)
        self._variables = place_variables(entry.shared)
        self._fragments: dict[int, Mask | None] = {0: None}
        self._exited = False

    def run(self, handlers: Mapping[str, Handler]) -> None:
        """Run every lane to its end.

        Raises:
            RefusalError: an instruction or a state is outside of what can be decided.
            NondeterministicError: the bytes may vary from run to run.
        """
        while self._fragments:
            at = min(self._fragments)
            self._follow(at, self._fragments.pop(at), handlers)

    def _follow(self, at: int, act: Mask | None, handlers: Mapping[str, Handler]) -> None:
        instructions = self.entry.instructions
        while True:
            if at in self._fragments:
                other = self._fragments.pop(at)
                act = None if act is None or other is None else _whole(act | other)
            elif self._fragments and min(self._fragments) < at:
                self._fragments[at] = act
                return
            if at >= len(instructions):
                raise RefusalError("syntax", "the kernel runs off its end")
            self.time += 1
            if self.time > _MOST_STEPS:
                raise RefusalError("budget", f"the walk takes more than {_MOST_STEPS} steps")
            instruction = instructions[at]
            some, taken = self._taken(instruction, act)
            kind = instruction.parts[0]
            if kind in BRANCHES:
                rest = _without(act, taken, self.lanes) if some else act
                if some and kind == "bra":
                    self._meet(self._target(instruction), taken)
                elif some:
                    self._exited = True
                if some and rest is not None and not rest.any():
                    return
                act = rest
            elif some:
                handler = handlers.get(kind)
                if handler is None:
                    raise RefusalError("instruction", f"{instruction.opcode} is not among the instructions read")
                try:
                    handler(self, instruction, taken)
                except (ValueError, IndexError, KeyError) as error:
                    raise RefusalError("syntax", f"{instruction.text} is not well formed ({error})") from error
            at += 1

    def _taken(self, instruction: Instruction, act: Mask | None) -> tuple[bool, Mask | None]:
        """Whether any lane executes the instruction, and which."""
        if instruction.guard is None:
            return True, act
        register, negated = instruction.guard
        value = self.integers(register, 1, "a predicate that guards an instruction")
        self.demand_written(value, act, "a predicate")
        assert value.bits is not None
        chosen = (value.bits != 0) ^ negated
        if len(chosen) == 1:
            return bool(chosen[0]), act
        both = chosen if act is None else chosen & act
        return bool(both.any()), _whole(both)

    def _target(self, instruction: Instruction) -> int:
        (target,) = instruction.operands
        if not isinstance(target, Symbol) or target.name not in self.entry.labels:
            raise RefusalError("instruction", f"{instruction.text} has no label to go to")
        return self.entry.labels[target.name]

    def _meet(self, at: int, act: Mask | None) -> None:
        if at in self._fragments:
            other = self._fragments[at]
            act = None if act is None or other is None else _whole(act | other)
        self._fragments[at] = act

    def demand_whole_blocks(self, act: Mask | None, what: str) -> Ids:
        """The active lanes, which have to be all lanes of each block that has any."""
        lanes = self.active(act)
        if act is not None:
            per_block = act.reshape(-1, self.threads)
            if (per_block.any(axis=1) != per_block.all(axis=1)).any():
                raise RefusalError("divergence", f"{what} is reached by a part of a block's threads")
        return lanes

    def demand_whole_warps(self, act: Mask | None, what: str) -> Ids:
        """The active lanes, which have to be all 32 lanes of each warp that has any."""
        lanes = self.active(act)
        if self.threads % 32:
            raise RefusalError("divergence", f"{what} is used in a block of {self.threads} threads")
        if act is not None:
            per_warp = act.reshape(-1, 32)
            if (per_warp.any(axis=1) != per_warp.all(axis=1)).any():
                raise RefusalError("divergence", f"{what} is reached by a part of a warp's threads")
        return lanes

    def demand_written(self, value: Value, act: Mask | None, what: str) -> None:
        """Refuses where an active lane's integer was never written."""
        if value.written is not None:
            written = value.written if act is None else value.written | ~act
            if not written.all():
                raise RefusalError("poison", f"{what} uses a register that was never written")

    def active(self, act: Mask | None) -> Ids:
        """Numbers of the active lanes."""
        return self.every if act is None else np.flatnonzero(act)

    def read(self, operand: Operand, width: int) -> Value:
        """What an operand of ``width`` bytes holds; the lower bytes of a wider register."""
        match operand:
            case Register(name=name, width=whole):
                found = self._held(name)
                if found is None:
                    return Value(bits=np.zeros(1, np.uint64), written=np.zeros(1, np.bool_))
                if whole > width:
                    return self._lower(found, width)
                return found
            case Immediate(bits=bits):
                return concrete(np.array([bits], np.uint64), width)
            case Special(name=name):
                if name not in self._special:
                    raise RefusalError("volatile", f"{name} is not fixed by the launch")
                return concrete(self._special[name], width)
            case Symbol(name=name):
                if name not in self._variables:
                    raise RefusalError("instruction", f"{name} is no variable in shared memory")
                return Value(bits=np.array([self._variables[name]], np.uint64), pointer=True)
            case Negated(register=register):
                return self._negated(register)
        raise RefusalError("instruction", f"the operand {operand} is not understood here")

    def _held(self, name: str) -> Value | None:
        found = self._registers.get(name)
        if found is None or isinstance(found, Value):
            return found
        made = self._registers[name] = found.value()
        return made

    def deferred(self, operand: Operand) -> Deferred | None:
        """What a register holds, where that is expressions not made yet."""
        if not isinstance(operand, Register):
            return None
        found = self._registers.get(operand.name)
        return None if isinstance(found, Value) else found

    def defer(self, operand: Operand, held: Deferred) -> None:
        """Set a register of 4 bytes in all lanes to expressions that may be made later."""
        if operand is None:
            return
        if not isinstance(operand, Register):
            raise RefusalError("instruction", f"{operand} is no register to write")
        self._registers[operand.name] = held

    def _lower(self, value: Value, width: int) -> Value:
        if value.bits is not None:
            if value.pointer:
                raise RefusalError("pointer", "a pointer is cut short")
            return concrete(value.bits, width, value.written)
        assert value.ids is not None
        return Value(ids=self.table.extract(value.ids, 0, width), product=value.product)

    def _negated(self, register: Register) -> Value:
        value = self.read(register, 1)
        if value.bits is not None:
            return Value(bits=value.bits ^ np.uint64(1), written=value.written)
        assert value.ids is not None
        return Value(ids=self.table.make("not.pred", 1, value.ids))

    def integers(self, operand: Operand, width: int, what: str) -> Value:
        """An operand as concrete integers; refuses where it depends on data."""
        return as_integers(self.read(operand, width), what, self.table)

    def nodes(self, operand: Operand, width: int) -> Ids:
        """An operand as expressions, one element or one a lane."""
        return as_nodes(self.read(operand, width), width, self.table)

    def spread(self, array: Ids) -> Ids:
        """An array with one element per lane."""
        return array if len(array) == self.lanes else np.full(self.lanes, array[0], array.dtype)

    def spread_bits(self, array: Bits64) -> Bits64:
        """:meth:`spread` for patterns."""
        return array if len(array) == self.lanes else np.full(self.lanes, array[0], np.uint64)

    def write(self, operand: Operand, value: Value, act: Mask | None) -> None:
        """Set a register in the active lanes; ``_`` takes anything."""
        if operand is None:
            return
        if not isinstance(operand, Register):
            raise RefusalError("instruction", f"{operand} is no register to write")
        if act is not None:
            value = merged(self._held(operand.name), value, act, operand.width, self.table)
        self._registers[operand.name] = value

    def parameter(self, name: str) -> Value:
        """A parameter's value: an address, an integer of the launch, or data.

        Raises:
            RefusalError: it is an integer and the launch does not give it.
        """
        for index, parameter in enumerate(self.entry.parameters):
            if parameter.name != name:
                continue
            given = self.launch.arguments.get(index)
            if given is not None:
                return concrete(np.array([given & (2**64 - 1)], np.uint64), 8)
            if parameter.pointer or parameter.kind == "u64":
                return Value(bits=np.array([pointer_address(index)], np.uint64), pointer=True)
            if parameter.kind.startswith("f"):
                return Value(ids=self.table.argument(index, int(parameter.kind[1:]) // 8))
            raise RefusalError("launch", f"the launch must give argument {index}, an integer ({name})")
        raise RefusalError("instruction", f"{name} is no parameter")


def _whole(mask: Mask) -> Mask | None:
    return None if mask.all() else mask


def _without(act: Mask | None, taken: Mask | None, lanes: int) -> Mask | None:
    if taken is None:
        return np.zeros(lanes, np.bool_)
    return ~taken if act is None else act & ~taken
