# SPDX-License-Identifier: Apache-2.0
"""A kernel made executable: every basic block a list of steps, built once per function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .builder import BLOCKED, Builder, Registers, Step
from .flow import blocks_of, local_registers
from .isa import INSTRUCTIONS
from .lanes import Array, Value, mask_of
from .pending import Early, early_accesses
from .reports import ExecutionError, Place
from .state import Warp
from .syntax import Function, Instruction, Module, Register

__all__ = ["BLOCKED", "Code", "Program", "build"]


@dataclass(frozen=True)
class Code:
    """One block. `guard` is the slot of the branch's predicate, -1 where it always goes to `taken`."""

    steps: tuple[Step, ...]
    lines: tuple[int, ...]
    taken: int
    falls: int
    guard: int
    negated: bool
    meets: int
    end_line: int


@dataclass(frozen=True)
class Program:
    """A kernel's blocks, the initial registers, and the slots that a launch fills (`symbols`).

    `globals` are the module's own variables in global and constant memory, which keep their values between launches.
    """

    name: str
    module: Module
    function: Function
    blocks: tuple[Code, ...]
    initial: tuple[Value, ...]
    symbols: dict[str, int]
    globals: dict[str, Array]
    tensor_fences: bool = False
    """Whether it has any tcgen05.fence, so that it is held to them."""
    tensor_waits: bool = False
    """Whether it has any tcgen05.wait::ld or wait::st."""
    early: tuple[Early, ...] = ()
    """Registers touched while an asynchronous instruction may still use them."""


def build(module: Module, function: Function) -> Program:
    """The executable form of a kernel. Raises UnknownInstructionError for what the emulator does not execute."""
    found: Program | None = next(iter(function.executable), None)
    if found is not None:
        return found
    blocks = blocks_of(function)
    builder = Builder(function, local_registers(blocks))
    codes: list[Code] = []
    for block in blocks:
        steps: list[Step] = []
        lines: list[int] = []
        for instruction in block.instructions:
            steps.append(_step(builder, instruction, module))
            lines.append(instruction.line)
        guard = builder.source(_plain(block.guard), 1) if block.guard is not None else -1
        negated = block.guard is not None and block.guard.negated
        codes.append(
            Code(tuple(steps), tuple(lines), block.taken, block.falls, guard, negated, block.meets, block.end_line)
        )
    tensor = {m for block in blocks for i in block.instructions if i.opcode == "tcgen05" for m in i.modifiers}
    program = Program(
        function.name,
        module,
        function,
        tuple(codes),
        tuple(builder.initial),
        builder.symbols,
        _globals(module),
        any(name.startswith("fence::") for name in tensor),
        any(name.startswith("wait::") for name in tensor),
        early_accesses(blocks, "wait::ld" in tensor),
    )
    function.executable.append(program)
    return program


def _globals(module: Module) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for variable in module.variables:
        if variable.space in ("global", "const") and not variable.extern:
            store = np.zeros(variable.size_bytes + 256, np.uint8)
            skip = -store.ctypes.data % max(variable.align_bytes, 16)
            found[variable.name] = store[skip : skip + variable.size_bytes]
            if variable.initial is not None:
                found[variable.name][:] = np.frombuffer(variable.initial, np.uint8)
    return found


def _plain(register: Register) -> Register:
    return Register(register.name)


def _step(builder: Builder, instruction: Instruction, module: Module) -> Step:
    handler = INSTRUCTIONS.get(instruction.opcode)
    if handler is None:
        raise builder.unknown(instruction).located(Place(text=module.line_text(instruction.line)))
    try:
        step = handler(builder, instruction)
    except ExecutionError as error:
        place = Place(builder.function.name, line=instruction.line, text=module.line_text(instruction.line))
        raise error.located(place) from None
    if instruction.guard is None:
        return step
    slot = builder.source(_plain(instruction.guard), 1)
    return _guarded(step, slot, instruction.guard.negated)


def _guarded(step: Step, slot: int, negated: bool) -> Step:
    def run(warp: Warp, registers: Registers) -> object:
        predicate = registers[slot]
        if type(predicate) is bool:
            return step(warp, registers) if predicate is not negated else None
        mask = warp.mask & (~mask_of(predicate) if negated else mask_of(predicate))
        if not mask:
            return None
        whole = warp.mask
        warp.narrow(mask)
        try:
            return step(warp, registers)
        except ExecutionError as error:
            raise error.in_lanes(mask) from None
        finally:
            warp.narrow(whole)

    return run
