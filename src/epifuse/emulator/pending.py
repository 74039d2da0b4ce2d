# SPDX-License-Identifier: Apache-2.0
"""Registers that an asynchronous instruction has yet to write or read, and what touches them too early.

`tcgen05.ld` writes its registers by its `wait::ld`, `wgmma.mma_async` its accumulators (and reads A in registers) by
the `wait_group` of its group (PTX ISA, "Asynchronous Operations"). This is a property of the text: every path through
the blocks is followed. A kernel without any `wait::ld` is not held to it (see isa/tensor_order.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .flow import Block, registers_in
from .syntax import Address, Immediate, Instruction, Vector

_OLDEST = 9


@dataclass(frozen=True)
class Early:
    """At `line`, `register` is accessed too early with respect to the instruction of line `since`.

    `access` is "read" or "written" while that instruction is in flight; or "unfenced" (no register): a wgmma that a
    path reaches without any wgmma.fence.
    """

    line: int
    register: str
    access: str
    since: int

    def sentence(self, since_text: str) -> str:
        """The report, given the text of line `since`."""
        if self.access != "unfenced":
            return f"register {self.register} is {self.access} while line {self.since} ({since_text}) is in flight"
        return "no wgmma.fence stands before the first wgmma.mma_async"


@dataclass(frozen=True)
class _Use:
    """One register in flight: since which line, how many groups were committed since, and whether it is being read."""

    since: int
    age: int
    only_read: bool


_State = dict[str, _Use]


def early_accesses(blocks: tuple[Block, ...], loads_wait: bool) -> tuple[Early, ...]:
    """Every access that comes too early, in the order of lines; `loads_wait`: tcgen05.ld is held to its wait::ld."""
    if not any(_starts(i, loads_wait) for block in blocks for i in block.instructions):
        return ()
    found = _in_flight(blocks, loads_wait) | _unfenced(blocks)
    return tuple(sorted(found, key=lambda each: (each.line, each.register)))


def _in_flight(blocks: tuple[Block, ...], loads_wait: bool) -> set[Early]:
    entry: list[_State] = [{} for _ in blocks]
    found: set[Early] = set()
    waiting = list(range(len(blocks)))
    while waiting:
        index = waiting.pop()
        block = blocks[index]
        state = dict(entry[index])
        for instruction in block.instructions:
            found.update(_too_early(state, instruction, loads_wait))
            _step(state, instruction, loads_wait)
        if block.guard is not None and _misused(state, block.guard.name, False):
            found.add(Early(block.end_line, block.guard.name, "read", state[block.guard.name].since))
        for successor in {block.taken, block.falls}:
            if successor < len(blocks) and _merge(entry[successor], state) and successor not in waiting:
                waiting.append(successor)
    return found


def _unfenced(blocks: tuple[Block, ...]) -> set[Early]:
    """Products that a path reaches without any wgmma.fence.

    The ISA also asks for one between another access to a register and the product that uses it; NVIDIA's own operators
    clear accumulators after it, so that is not checked.
    """
    found: set[Early] = set()
    reached, waiting = {0}, [0]
    while waiting:
        block = blocks[waiting.pop()]
        of_wgmma = [i for i in block.instructions if i.opcode == "wgmma"]
        fence = next((index for index, each in enumerate(of_wgmma) if each.has("fence")), None)
        found.update(Early(each.line, "", "unfenced", 0) for each in of_wgmma[:fence] if each.has("mma_async"))
        if fence is None:
            for successor in {block.taken, block.falls} - reached:
                if successor < len(blocks):
                    reached.add(successor)
                    waiting.append(successor)
    return found


def _starts(instruction: Instruction, loads_wait: bool) -> bool:
    if instruction.opcode == "wgmma":
        return instruction.has("mma_async")
    return loads_wait and instruction.opcode == "tcgen05" and instruction.has("ld")


def _step(state: _State, instruction: Instruction, loads_wait: bool) -> None:
    """What the instruction does to the registers in flight."""
    if _starts(instruction, loads_wait):
        age = -1 if instruction.opcode == "tcgen05" else 0
        for name in registers_in(instruction.operands[0]):
            state[name] = _Use(instruction.line, age, False)
        if instruction.opcode == "wgmma" and isinstance(instruction.operands[1], Vector):
            for name in registers_in(instruction.operands[1]):
                state[name] = _Use(instruction.line, age, True)
    elif instruction.opcode == "tcgen05" and instruction.has("wait::ld"):
        _keep(state, lambda use: use.age >= 0)
    elif instruction.opcode == "wgmma" and instruction.has("commit_group"):
        for name, use in state.items():
            if use.age >= 0:
                state[name] = _Use(use.since, min(use.age + 1, _OLDEST), use.only_read)
    elif instruction.opcode == "wgmma" and instruction.has("wait_group"):
        count = instruction.operands[0]
        pending = count.value if isinstance(count, Immediate) else 0
        _keep(state, lambda use: use.age <= pending)


def _keep(state: _State, stays: Callable[[_Use], bool]) -> None:
    for name in [name for name, use in state.items() if not stays(use)]:
        del state[name]


def _too_early(state: _State, instruction: Instruction, loads_wait: bool) -> list[Early]:
    if not state or (instruction.opcode == "wgmma" and not instruction.has("mma_async")):
        return []
    operands = instruction.operands
    stores = instruction.opcode in ("st", "red") or not operands or isinstance(operands[0], Address)
    written = [] if stores else registers_in(operands[0])
    read = [name for each in operands[0 if stores else 1 :] for name in registers_in(each)]
    if instruction.guard is not None:
        read.append(instruction.guard.name)
    if _starts(instruction, loads_wait) and instruction.opcode == "wgmma":
        # One product after the other accumulates in the same registers, and may read the same A.
        written = [name for name in written if name in state and state[name].only_read]
        read = [name for name in read if name in state and not state[name].only_read]
    found = [Early(instruction.line, n, "read", state[n].since) for n in read if _misused(state, n, False)]
    return found + [Early(instruction.line, n, "written", state[n].since) for n in written if _misused(state, n, True)]


def _misused(state: _State, name: str, write: bool) -> bool:
    return name in state and (write or not state[name].only_read)


def _merge(into: _State, state: _State) -> bool:
    """Add what may be in flight on another path; whether that is news."""
    changed = False
    for name, use in state.items():
        before = into.get(name)
        if before is None or use.age < before.age or (before.only_read and not use.only_read):
            into[name] = use
            changed = True
    return changed
