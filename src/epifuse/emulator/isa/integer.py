# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions", and carries of "Extended-Precision")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Step, bits_of, check_modifiers
from ..lanes import DTYPES, LANES, SIGNED, Value, signed
from ..syntax import Instruction

TYPES = frozenset({"u16", "u32", "u64", "s16", "s32", "s64", "b16", "b32", "b64", "s16x2", "u16x2"})

Binary = Callable[[Any, Any], Value]


def _wrapping(bits: int, compute: Binary) -> Binary:
    mask = (1 << bits) - 1

    def apply(a: Value, b: Value) -> Value:
        value = compute(a, b)
        return value & mask if type(value) is int else value

    return apply


def on_signed(bits: int, compute: Binary) -> Binary:
    """`compute` applied to the two's complement values; the result as unsigned bits."""
    mask = (1 << bits) - 1
    unsigned = DTYPES[bits]

    def apply(a: Value, b: Value) -> Value:
        value = compute(signed(a, bits), signed(b, bits))
        return value & mask if type(value) is int else value.view(unsigned)

    return apply


def _least(a: Value, b: Value) -> Value:
    return min(a, b) if type(a) is int and type(b) is int else np.minimum(a, b)


def _greatest(a: Value, b: Value) -> Value:
    return max(a, b) if type(a) is int and type(b) is int else np.maximum(a, b)


def _with_sign(bits: int, is_signed: bool, compute: Binary) -> Binary:
    return on_signed(bits, compute) if is_signed else compute


def high(bits: int, is_signed: bool) -> Binary:
    """The upper half of the product."""
    mask = (1 << bits) - 1

    def exact(a: Any, b: Any) -> int:
        left, right = (signed(int(a), bits), signed(int(b), bits)) if is_signed else (int(a), int(b))
        return (left * right >> bits) & mask

    def apply(a: Value, b: Value) -> Value:
        if type(a) is int and type(b) is int:
            return exact(a, b)
        if bits == 64:
            left, right = np.broadcast_arrays(np.asarray(a, np.uint64), np.asarray(b, np.uint64))
            return np.array([exact(x, y) for x, y in zip(left, right, strict=True)], np.uint64)
        return (_widened(a, bits, is_signed) * _widened(b, bits, is_signed) >> bits).astype(DTYPES[bits])

    return apply


def wide(bits: int, is_signed: bool) -> Binary:
    """The whole product, in twice the bits."""
    mask = (1 << 2 * bits) - 1

    def apply(a: Value, b: Value) -> Value:
        if type(a) is int and type(b) is int:
            left, right = (signed(a, bits), signed(b, bits)) if is_signed else (a, b)
            return left * right & mask
        return (_widened(a, bits, is_signed) * _widened(b, bits, is_signed)).view(DTYPES[2 * bits])

    return apply


def _widened(value: Value, bits: int, is_signed: bool) -> Any:
    dtype = SIGNED[2 * bits] if is_signed else DTYPES[2 * bits]
    source = signed(value, bits) if is_signed else value
    return source.astype(dtype) if isinstance(source, np.ndarray) else dtype(source)


def _divide(a: Value, b: Value) -> Value:
    if type(a) is int and type(b) is int:
        # Division by zero gives an unspecified value; all ones is what current GPUs give.
        return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    left, right = np.broadcast_arrays(a, b)
    with np.errstate(all="ignore"):
        quotient = left // np.where(right == 0, right.dtype.type(1), right)
        inexact = quotient * right != left
        toward_zero = quotient + (inexact & ((left < 0) != (right < 0))).astype(quotient.dtype)
    return np.where(right == 0, ~np.zeros_like(left), toward_zero)


def _remainder(a: Value, b: Value) -> Value:
    if type(a) is int and type(b) is int:
        return -1 if b == 0 else a - abs(a) // abs(b) * abs(b) * (-1 if a < 0 else 1)
    left, right = np.broadcast_arrays(a, b)
    with np.errstate(all="ignore"):
        return np.where(
            right == 0, ~np.zeros_like(left), np.fmod(left, np.where(right == 0, right.dtype.type(1), right))
        )


def _array_pair(a: Value, b: Value, bits: int) -> tuple[Any, Any]:
    dtype = DTYPES[bits]
    left = a if isinstance(a, np.ndarray) else np.full(LANES, a, dtype)
    right = b if isinstance(b, np.ndarray) else np.full(LANES, b, dtype)
    return left, right


def _typed(bits: int, is_signed: bool, compute: Binary) -> Binary:
    """For operations that need arrays of one type on both sides where either is an array."""
    mask = (1 << bits) - 1

    def apply(a: Value, b: Value) -> Value:
        if type(a) is int and type(b) is int:
            value = compute(signed(a, bits), signed(b, bits)) if is_signed else compute(a, b)
            return value & mask
        left, right = _array_pair(a, b, bits)
        if is_signed:
            return compute(left.view(SIGNED[bits]), right.view(SIGNED[bits])).view(DTYPES[bits])
        return compute(left, right)

    return apply


def _two_operands(name: str, bits: int, is_signed: bool) -> Binary | None:
    if name == "add":
        return _wrapping(bits, lambda a, b: a + b)
    if name == "sub":
        return _wrapping(bits, lambda a, b: a - b)
    if name == "min":
        return _with_sign(bits, is_signed, _least)
    if name == "max":
        return _with_sign(bits, is_signed, _greatest)
    if name == "div":
        return _typed(bits, is_signed, _divide)
    if name == "rem":
        return _typed(bits, is_signed, _remainder)
    return None


def product(builder: Builder, instruction: Instruction, bits: int, is_signed: bool) -> Binary:
    """The multiplication that `.lo`, `.hi` or `.wide` asks for."""
    if instruction.has("wide"):
        return wide(bits, is_signed)
    if instruction.has("hi"):
        return high(bits, is_signed)
    if instruction.has("lo"):
        return _wrapping(bits, lambda a, b: a * b)
    raise builder.unknown(instruction)


def binary(builder: Builder, instruction: Instruction) -> Step:
    """add sub mul min max div rem on integers."""
    type_name = instruction.modifiers[-1]
    bits, is_signed = bits_of(type_name), type_name[0] == "s"
    check_modifiers(builder, instruction, {type_name, "lo", "hi", "wide"})
    if type_name.endswith("x2"):
        raise builder.unknown(instruction)
    if instruction.opcode == "mul":
        compute: Binary | None = product(builder, instruction, bits, is_signed)
    else:
        compute = _two_operands(instruction.opcode, bits, is_signed)
    if compute is None:
        raise builder.unknown(instruction)
    target, a, b = instruction.operands
    return builder.binary(builder.target(target), builder.source(a, bits), builder.source(b, bits), compute)


def mad(builder: Builder, instruction: Instruction) -> Step:
    """mad.lo, mad.hi and mad.wide."""
    type_name = instruction.modifiers[-1]
    bits, is_signed = bits_of(type_name), type_name[0] == "s"
    check_modifiers(builder, instruction, {type_name, "lo", "hi", "wide"})
    multiply = product(builder, instruction, bits, is_signed)
    result_bits = 2 * bits if instruction.has("wide") else bits
    add = _wrapping(result_bits, lambda a, b: a + b)
    target, a, b, c = instruction.operands
    return builder.ternary(
        builder.target(target),
        builder.source(a, bits),
        builder.source(b, bits),
        builder.source(c, result_bits),
        lambda x, y, z: add(multiply(x, y), z),
    )


def unary(builder: Builder, instruction: Instruction) -> Step:
    """neg and abs on integers; popc, clz, brev and bfind."""
    type_name = instruction.modifiers[-1]
    bits = bits_of(type_name)
    check_modifiers(builder, instruction, {type_name, "shiftamt"})
    mask = (1 << bits) - 1
    sign = 1 << (bits - 1)

    def negate(a: int) -> int:
        return -a & mask

    per_lane: dict[str, Callable[[int], int]] = {
        "neg": negate,
        "abs": lambda a: negate(a) if a & sign else a,
        "popc": lambda a: a.bit_count(),
        "clz": lambda a: bits - a.bit_length(),
        "brev": lambda a: int(f"{a:0{bits}b}"[::-1], 2),
        "bfind": lambda a: _find(a, type_name, bits, instruction.has("shiftamt")),
    }
    if instruction.opcode not in per_lane:
        raise builder.unknown(instruction)
    scalar: Callable[[int], int] = per_lane[instruction.opcode]
    target = builder.target(instruction.operands[0])
    dtype: Any = target.dtype
    vectors: dict[str, Callable[[Any], Any]] = {
        "neg": lambda a: (~a) + a.dtype.type(1),
        "abs": lambda a: np.abs(a.view(SIGNED[bits])).view(a.dtype),
    }
    vector: Callable[[Any], Any] = vectors.get(
        instruction.opcode, lambda a: np.array([scalar(int(x)) for x in a], dtype)
    )

    def apply(a: Value) -> Value:
        return scalar(a) if type(a) is int else vector(a)

    return builder.unary(target, builder.source(instruction.operands[1], bits), apply)


def _find(a: int, type_name: str, bits: int, shift_amount: bool) -> int:
    if type_name[0] == "s" and a >> (bits - 1):
        a ^= (1 << bits) - 1
    if a == 0:
        return 0xFFFFFFFF
    position = a.bit_length() - 1
    return bits - 1 - position if shift_amount else position


def bit_field(builder: Builder, instruction: Instruction) -> Step:
    """bfe and bfi."""
    type_name = instruction.modifiers[-1]
    bits, is_signed = bits_of(type_name), type_name[0] == "s"
    check_modifiers(builder, instruction, {type_name})
    slots = [
        builder.source(operand, bits if index < 1 else 32) for index, operand in enumerate(instruction.operands[1:])
    ]
    if instruction.opcode == "bfi":
        slots[1] = builder.source(instruction.operands[2], bits)
    mask = (1 << bits) - 1

    def extract(a: int, position: int, length: int) -> int:
        position, length = position & 0xFF, length & 0xFF
        field = (a >> position) & ((1 << length) - 1)
        if not is_signed or length == 0:
            return field & mask
        top = min(position + length - 1, bits - 1)
        return (field | -1 << max(top - position + 1, 0)) & mask if a >> top & 1 else field & mask

    def insert(a: int, b: int, position: int, length: int) -> int:
        position, length = position & 0xFF, length & 0xFF
        field = ((1 << length) - 1) << position & mask
        return (b & ~field) | ((a << position) & field)

    per_lane: Callable[..., int] = extract if instruction.opcode == "bfe" else insert
    target = builder.target(instruction.operands[0])
    return lanewise(builder, instruction.operands[0], slots, per_lane, target.dtype)


def lanewise(builder: Builder, operand: Any, slots: list[int], per_lane: Callable[..., int], dtype: Any) -> Step:
    """A step that applies a function of ints lane by lane, for rare instructions."""
    write = builder.setter(builder.target(operand))

    def step(warp: Any, registers: list[Any]) -> None:
        values = [registers[slot] for slot in slots]
        if all(type(value) is int for value in values):
            write(warp, registers, per_lane(*values))
            return
        columns = [value.tolist() if isinstance(value, np.ndarray) else [value] * LANES for value in values]
        write(warp, registers, np.array([per_lane(*row) for row in zip(*columns, strict=True)], dtype))

    return step


def _dp4a(builder: Builder, instruction: Instruction) -> Step:
    a_signed, b_signed = (modifier[0] == "s" for modifier in instruction.modifiers)
    check_modifiers(builder, instruction, {"u32", "s32"})

    def compute(a: int, b: int, c: int) -> int:
        total = c
        for shift in (0, 8, 16, 24):
            left, right = a >> shift & 0xFF, b >> shift & 0xFF
            total += (signed(left, 8) if a_signed else left) * (signed(right, 8) if b_signed else right)
        return total & 0xFFFFFFFF

    slots = [builder.source(operand) for operand in instruction.operands[1:]]
    return lanewise(builder, instruction.operands[0], slots, compute, np.uint32)


def _sad(builder: Builder, instruction: Instruction) -> Step:
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name})
    bits, is_signed = bits_of(type_name), type_name[0] == "s"
    mask = (1 << bits) - 1

    def compute(a: int, b: int, c: int) -> int:
        left, right = (signed(a, bits), signed(b, bits)) if is_signed else (a, b)
        total: int = abs(left - right) + c
        return total & mask

    slots = [builder.source(operand, bits) for operand in instruction.operands[1:]]
    return lanewise(builder, instruction.operands[0], slots, compute, DTYPES[bits])


INSTRUCTIONS: dict[str, Handler] = {
    "sad": _sad,
    "rem": binary,
    "popc": unary,
    "clz": unary,
    "brev": unary,
    "bfind": unary,
    "bfe": bit_field,
    "bfi": bit_field,
    "dp4a": _dp4a,
}
