# SPDX-License-Identifier: Apache-2.0
"""Logic and shifts (PTX ISA, "Logic and Shift Instructions")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Step, bits_of, check_modifiers
from ..lanes import DTYPES, SIGNED, Value, signed
from ..syntax import Instruction
from .integer import lanewise


def _bitwise(builder: Builder, instruction: Instruction) -> Step:
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name})
    bits = bits_of(type_name)
    compute: dict[str, Callable[[Any, Any], Value]] = {
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
    }
    target, a, b = instruction.operands
    slots = builder.source(a, bits), builder.source(b, bits)
    return builder.binary(builder.target(target), *slots, compute[instruction.opcode])


def _not(builder: Builder, instruction: Instruction) -> Step:
    bits = bits_of(instruction.modifiers[-1])
    mask = (1 << bits) - 1

    def invert(a: Value) -> Value:
        if type(a) is bool:
            return not a
        return ~a & mask if type(a) is int else ~a

    target, a = instruction.operands
    return builder.unary(builder.target(target), builder.source(a, bits), invert)


def _cnot(builder: Builder, instruction: Instruction) -> Step:
    bits = bits_of(instruction.modifiers[-1])
    target, a = instruction.operands

    def is_zero(a: Value) -> Value:
        return int(a == 0) if type(a) is int else (a == 0).astype(a.dtype)

    return builder.unary(builder.target(target), builder.source(a, bits), is_zero)


def _shift_left(builder: Builder, instruction: Instruction) -> Step:
    bits = bits_of(instruction.modifiers[-1])
    check_modifiers(builder, instruction, {f"b{bits}"})
    mask = (1 << bits) - 1
    dtype = DTYPES[bits]

    def shift(a: Value, b: Value) -> Value:
        if type(b) is int:
            if b >= bits:
                return 0
            return a << b & mask if type(a) is int else a << dtype(b)
        amount = b.astype(dtype)
        return np.where(b < bits, np.left_shift(dtype(a) if type(a) is int else a, amount % dtype(bits)), dtype(0))

    target, a, b = instruction.operands
    return builder.binary(builder.target(target), builder.source(a, bits), builder.source(b, 32), shift)


def _shift_right(builder: Builder, instruction: Instruction) -> Step:
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name})
    bits, is_signed = bits_of(type_name), type_name[0] == "s"
    dtype, signed_dtype = DTYPES[bits], SIGNED[bits]
    mask = (1 << bits) - 1

    def logical(a: Value, b: Value) -> Value:
        if type(b) is int:
            if b >= bits:
                return 0
            return a >> b if type(a) is int else a >> dtype(b)
        amount = b.astype(dtype)
        return np.where(b < bits, np.right_shift(dtype(a) if type(a) is int else a, amount % dtype(bits)), dtype(0))

    def arithmetic(a: Value, b: Value) -> Value:
        if type(b) is int:
            amount = min(b, bits - 1)
            if type(a) is int:
                return signed(a, bits) >> amount & mask
            return (a.view(signed_dtype) >> signed_dtype(amount)).view(dtype)
        amounts = np.minimum(b, bits - 1).astype(signed_dtype)
        left = signed_dtype(signed(a, bits)) if type(a) is int else a.view(signed_dtype)
        return (left >> amounts).view(dtype)

    target, a, b = instruction.operands
    slots = builder.source(a, bits), builder.source(b, 32)
    return builder.binary(builder.target(target), *slots, arithmetic if is_signed else logical)


def _lop3(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"b32"})
    target, a, b, c, table_operand = instruction.operands
    table = getattr(table_operand, "value", None)
    if table is None:
        raise builder.unknown(instruction, "the table must be a constant")

    def compute(x: Value, y: Value, z: Value) -> Value:
        result: Value = 0
        full = 0xFFFFFFFF
        for index in range(8):
            if table >> index & 1:
                term = (x if index & 4 else x ^ full) & (y if index & 2 else y ^ full) & (z if index & 1 else z ^ full)
                result = result | term
        return result

    first, second, third = (builder.source(operand) for operand in (a, b, c))
    return builder.ternary(builder.target(target), first, second, third, compute)


def _funnel(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"l", "r", "wrap", "clamp", "b32"})
    left, clamp = instruction.has("l"), instruction.has("clamp")

    def compute(a: int, b: int, c: int) -> int:
        amount = min(c, 32) if clamp else c & 31
        whole = b << 32 | a
        return (whole << amount >> 32 if left else whole >> amount) & 0xFFFFFFFF

    slots = [builder.source(operand) for operand in instruction.operands[1:]]
    return lanewise(builder, instruction.operands[0], slots, compute, np.uint32)


INSTRUCTIONS: dict[str, Handler] = {
    "and": _bitwise,
    "or": _bitwise,
    "xor": _bitwise,
    "not": _not,
    "cnot": _cnot,
    "shl": _shift_left,
    "shr": _shift_right,
    "lop3": _lop3,
    "shf": _funnel,
}
