# SPDX-License-Identifier: Apache-2.0
"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions" and the half-precision ones)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Step, bits_of, check_modifiers
from ..lanes import DTYPES, LANES, Value, signed
from ..syntax import Instruction, Pair
from .formats import to_float

_ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_BOOLEAN: dict[str, Callable[[Any, Any], Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
Compare = Callable[[Value, Value], Value]


def _compare_integers(name: str, type_name: str) -> Compare:
    compare = _ORDERED[_UNSIGNED.get(name, name)]
    bits = bits_of(type_name)
    if type_name[0] == "s" and name not in ("eq", "ne"):
        return lambda a, b: compare(signed(a, bits), signed(b, bits))
    return compare


def _compare_floats(name: str, type_name: str) -> Compare:
    unordered = name.endswith("u") and name != "nu"
    base = name[:-1] if unordered else name

    def compare(a: Value, b: Value) -> Value:
        left, right = to_float(a, type_name), to_float(b, type_name)
        nan = np.isnan(left) | np.isnan(right)
        if base == "num":
            found = ~nan
        elif base == "nan":
            found = nan
        else:
            found = _ORDERED[base](left, right)
            found = (found | nan) if unordered else (found & ~nan)
        return bool(found) if np.ndim(found) == 0 else found

    return compare


def comparison(builder: Builder, instruction: Instruction, name: str, type_name: str) -> Compare:
    """The function that compares two values of a type; UnknownInstructionError for an unknown comparison."""
    if type_name in ("f16", "bf16", "f32", "f64"):
        if name not in (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
            raise builder.unknown(instruction)
        return _compare_floats(name, type_name)
    if name not in _ORDERED and name not in _UNSIGNED:
        raise builder.unknown(instruction)
    return _compare_integers(name, type_name)


def _setp(builder: Builder, instruction: Instruction) -> Step:
    name, type_name = instruction.modifiers[0], instruction.modifiers[-1]
    check_modifiers(builder, instruction, {name, type_name, "ftz", *_BOOLEAN})
    if type_name.endswith("x2"):
        raise builder.unknown(instruction)
    bits = bits_of(type_name)
    compare = comparison(builder, instruction, name, type_name)
    combine = next((_BOOLEAN[m] for m in instruction.modifiers[1:-1] if m in _BOOLEAN), None)
    first = instruction.operands[0]
    slots = builder.source(instruction.operands[1], bits), builder.source(instruction.operands[2], bits)
    if combine is None and not isinstance(first, Pair):
        return builder.binary(builder.target(first), *slots, compare)
    outs = (first.first, first.second) if isinstance(first, Pair) else (first,)
    writes = [builder.setter(builder.target(out, 1)) for out in outs]
    other = builder.source(instruction.operands[3], 1) if combine is not None else -1

    def step(warp: Any, registers: list[Any]) -> None:
        found = compare(registers[slots[0]], registers[slots[1]])
        values = [found, not found if type(found) is bool else ~found]
        for write, value in zip(writes, values, strict=False):
            write(warp, registers, combine(value, registers[other]) if combine is not None else value)

    return step


def select(condition: Value, a: Value, b: Value, dtype: Any) -> Value:
    """`a` where the predicate holds, else `b`."""
    if type(condition) is bool:
        return a if condition else b
    if type(a) is int and type(b) is int:
        if a == b:
            return a
        return np.where(condition, dtype(a), dtype(b))
    return np.where(condition, a if type(a) is not int else dtype(a), b if type(b) is not int else dtype(b))


def _selp(builder: Builder, instruction: Instruction) -> Step:
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name})
    bits = bits_of(type_name)
    dtype = DTYPES[bits]
    target, a, b, condition = instruction.operands
    slots = builder.source(a, bits), builder.source(b, bits), builder.source(condition, 1)
    return builder.ternary(builder.target(target), *slots, lambda x, y, p: select(p, x, y, dtype))


def _slct(builder: Builder, instruction: Instruction) -> Step:
    type_name, condition_type = instruction.modifiers[-2:]
    check_modifiers(builder, instruction, {type_name, condition_type, "ftz"})
    bits = bits_of(type_name)
    dtype = DTYPES[bits]
    at_least = comparison(builder, instruction, "ge", condition_type)
    target, a, b, condition = instruction.operands
    slots = builder.source(a, bits), builder.source(b, bits), builder.source(condition, 32)
    return builder.ternary(builder.target(target), *slots, lambda x, y, c: select(at_least(c, 0), x, y, dtype))


def _set(builder: Builder, instruction: Instruction) -> Step:
    name, (result_type, type_name) = instruction.modifiers[0], instruction.modifiers[-2:]
    check_modifiers(builder, instruction, {name, result_type, type_name, "ftz"})
    compare = comparison(builder, instruction, name, type_name)
    ones = {"f32": 0x3F800000, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}.get(result_type)
    if ones is None or type_name.endswith("x2"):
        raise builder.unknown(instruction)
    bits = bits_of(type_name)
    target, a, b = instruction.operands

    def compute(x: Value, y: Value) -> Value:
        return select(compare(x, y), ones, 0, np.uint32)

    return builder.binary(builder.target(target), builder.source(a, bits), builder.source(b, bits), compute)


def lanes_true(value: Value) -> Any:
    """A predicate as 32 booleans."""
    return np.full(LANES, value, np.bool_) if type(value) is bool else value


INSTRUCTIONS: dict[str, Handler] = {"setp": _setp, "selp": _selp, "slct": _slct, "set": _set}
