# SPDX-License-Identifier: Apache-2.0
"""From instructions to steps: where operands live, and how results are written under a mask.

A step is a function of a warp and its registers. It returns None, or BLOCKED when the instruction cannot finish yet and
has to be tried again. Every operand is a slot of the register list: registers, constants, symbols, special registers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .lanes import DTYPES, Value, merge
from .reports import Place, UnknownInstructionError
from .state import Warp
from .statements import type_bytes
from .syntax import Discard, Function, Immediate, Instruction, Operand, Register, Symbol, Vector

Registers = list[Any]
Step = Callable[[Warp, Registers], Any]
BLOCKED = object()
"""What a step returns that must be tried again."""


@dataclass(frozen=True)
class Target:
    """A destination: its slot, whether lanes need no merging, and the numpy type of its elements."""

    slot: int
    local: bool
    dtype: Any


def bits_of(type_name: str) -> int:
    """Width in bits of a type modifier such as `s32`, `f16x2` or `pred` (1)."""
    return 1 if type_name == "pred" else 8 * type_bytes(type_name)


class Builder:
    """Lays out the registers of one function while its instructions are turned into steps."""

    def __init__(self, function: Function, local: frozenset[str]) -> None:
        self.function = function
        self.initial: list[Value] = []
        self.symbols: dict[str, int] = {}
        """Slots that each launch, CTA or warp fills: special registers, and addresses of variables."""
        self._local = local
        self._slots: dict[str, int] = {}
        self._constants: dict[tuple[type, int], int] = {}
        for name, type_name in function.registers.items():
            self._slots[name] = len(self.initial)
            self.initial.append((0, 0) if type_name == "b128" else False if type_name == "pred" else 0)
        self._trash = self._new(0)

    def _new(self, value: Value) -> int:
        self.initial.append(value)
        return len(self.initial) - 1

    # -- operands ------------------------------------------------------------------------------------------------

    def constant(self, value: Value) -> int:
        """The slot of a constant."""
        key = (type(value), value)
        if key not in self._constants:
            self._constants[key] = self._new(value)
        return self._constants[key]

    def symbol(self, name: str) -> int:
        """The slot of a special register, or of the address of a variable or parameter."""
        if name not in self.symbols:
            self.symbols[name] = self._new(0)
        return self.symbols[name]

    def source(self, operand: Operand, bits: int = 32) -> int:
        """The slot of a source operand; immediates get `bits` bits (1 for a predicate)."""
        if isinstance(operand, Register) and not operand.negated:
            return self._slots[operand.name]
        if isinstance(operand, Immediate):
            return self.constant(immediate(operand, bits))
        if isinstance(operand, Symbol) and not operand.offset_bytes:
            return self.symbol(operand.name)
        raise UnknownInstructionError(f"operand {operand} is not supported here")

    def sources(self, operand: Operand, bits: int = 32) -> list[int]:
        """The slots of a vector operand's elements, or of a single operand."""
        if isinstance(operand, Vector):
            return [self.source(element, bits) for element in operand.elements]
        return [self.source(operand, bits)]

    def target(self, operand: Operand, bits: int | None = None) -> Target:
        """A destination register; `bits` is needed only for `_`."""
        if isinstance(operand, Discard):
            return Target(self._trash, True, DTYPES.get(bits or 32, np.uint32))
        if not isinstance(operand, Register):
            raise UnknownInstructionError(f"{operand} is not a destination")
        type_name = self.function.registers[operand.name]
        dtype = np.bool_ if type_name == "pred" else DTYPES.get(bits_of(type_name), object)
        return Target(self._slots[operand.name], operand.name in self._local, dtype)

    def targets(self, operand: Operand) -> list[Target]:
        """The destinations of a vector operand, or a single one."""
        if isinstance(operand, Vector):
            return [self.target(element) for element in operand.elements]
        return [self.target(operand)]

    def register_bits(self, operand: Operand, default: int) -> int:
        """The declared width of a register operand."""
        if isinstance(operand, Register):
            return bits_of(self.function.registers[operand.name])
        return default

    # -- writing results -----------------------------------------------------------------------------------------

    def setter(self, target: Target) -> Callable[[Warp, Registers, Value], None]:
        """A function that writes a value to the target in the active lanes."""
        slot, dtype = target.slot, target.dtype
        if target.local:

            def write(warp: Warp, registers: Registers, value: Value) -> None:
                registers[slot] = value

        else:

            def write(warp: Warp, registers: Registers, value: Value) -> None:
                if warp.partial:
                    value = merge(registers[slot], value, warp.lanes, dtype)
                registers[slot] = value

        return write

    def unary(self, target: Target, a: int, compute: Callable[[Value], Value]) -> Step:
        """`target = compute(a)`."""
        slot, dtype = target.slot, target.dtype
        if target.local:

            def step(warp: Warp, registers: Registers) -> None:
                registers[slot] = compute(registers[a])

        else:

            def step(warp: Warp, registers: Registers) -> None:
                value = compute(registers[a])
                if warp.partial:
                    value = merge(registers[slot], value, warp.lanes, dtype)
                registers[slot] = value

        return step

    def binary(self, target: Target, a: int, b: int, compute: Callable[[Value, Value], Value]) -> Step:
        """`target = compute(a, b)`."""
        slot, dtype = target.slot, target.dtype
        if target.local:

            def step(warp: Warp, registers: Registers) -> None:
                registers[slot] = compute(registers[a], registers[b])

        else:

            def step(warp: Warp, registers: Registers) -> None:
                value = compute(registers[a], registers[b])
                if warp.partial:
                    value = merge(registers[slot], value, warp.lanes, dtype)
                registers[slot] = value

        return step

    def ternary(self, target: Target, a: int, b: int, c: int, compute: Callable[[Value, Value, Value], Value]) -> Step:
        """`target = compute(a, b, c)`."""
        slot, dtype = target.slot, target.dtype
        if target.local:

            def step(warp: Warp, registers: Registers) -> None:
                registers[slot] = compute(registers[a], registers[b], registers[c])

        else:

            def step(warp: Warp, registers: Registers) -> None:
                value = compute(registers[a], registers[b], registers[c])
                if warp.partial:
                    value = merge(registers[slot], value, warp.lanes, dtype)
                registers[slot] = value

        return step

    def unknown(self, instruction: Instruction, detail: str = "") -> UnknownInstructionError:
        """The error for an instruction, or a form of it, that is not executed."""
        text = f"the emulator does not execute {instruction.name}" + (f": {detail}" if detail else "")
        return UnknownInstructionError(text, Place(self.function.name, line=instruction.line))


Handler = Callable[[Builder, Instruction], Step]


def immediate(operand: Immediate, bits: int) -> Value:
    """A constant as a register of `bits` bits holds it."""
    if bits == 1:
        return bool(operand.value)
    if operand.float_bits == 64 and bits == 32:
        value = struct.unpack("<d", struct.pack("<Q", operand.value))[0]
        return int(np.float32(value).view(np.uint32))
    return operand.value & ((1 << bits) - 1)


def check_modifiers(builder: Builder, instruction: Instruction, allowed: frozenset[str] | set[str]) -> None:
    """Raise UnknownInstructionError for a modifier that is not in `allowed`."""
    for modifier in instruction.modifiers:
        if modifier not in allowed:
            raise builder.unknown(instruction, f"modifier .{modifier}")
