# SPDX-License-Identifier: Apache-2.0
"""Extended-precision integer arithmetic (PTX ISA, "Extended-Precision Integer Arithmetic Instructions"): the carry."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Handler, Registers, Step, bits_of, check_modifiers
from ..lanes import DTYPES, LANES
from ..state import Warp
from ..syntax import Instruction
from .integer import product

_CARRY = "carry flag"


def _columns(value: Any) -> list[int]:
    found: list[int] = value.tolist() if isinstance(value, np.ndarray) else [value] * LANES
    return found


def handle(builder: Builder, instruction: Instruction) -> Step:
    """add.cc addc sub.cc subc mad.cc madc: a chain through the condition code register CC.CF of each lane."""
    opcode, type_name = instruction.opcode, instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name, "cc", "lo", "hi"})
    bits, is_signed = bits_of(type_name), type_name[0] == "s"
    if bits not in (32, 64):
        raise builder.unknown(instruction)
    takes, leaves = opcode in ("addc", "subc", "madc"), instruction.has("cc")
    subtracts = opcode.startswith("sub")
    multiply = product(builder, instruction, bits, is_signed) if opcode.startswith("mad") else None
    write = builder.setter(builder.target(instruction.operands[0]))
    slots = [builder.source(operand, bits) for operand in instruction.operands[1:]]
    mask, dtype = (1 << bits) - 1, DTYPES[bits]

    def step(warp: Warp, registers: Registers) -> None:
        values = [registers[slot] for slot in slots]
        if multiply is not None:
            values = [multiply(values[0], values[1]), values[2]]
        flags: list[int] = warp.groups.setdefault(_CARRY, [0] * LANES)
        carries = flags if takes else [0] * LANES
        totals = [
            left - right - carry if subtracts else left + right + carry
            for left, right, carry in zip(_columns(values[0]), _columns(values[1]), carries, strict=True)
        ]
        write(warp, registers, np.array([total & mask for total in totals], dtype))
        if leaves:
            active = warp.lanes.tolist()
            warp.groups[_CARRY] = [
                int(not 0 <= total <= mask) if on else old for total, on, old in zip(totals, active, flags, strict=True)
            ]

    return step


INSTRUCTIONS: dict[str, Handler] = {"addc": handle, "subc": handle, "madc": handle}
