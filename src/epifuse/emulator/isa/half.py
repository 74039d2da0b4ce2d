# SPDX-License-Identifier: Apache-2.0
"""Half precision (PTX ISA, "Half Precision Floating Point Instructions"): f16, f16x2, bf16, bf16x2."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Step, check_modifiers
from ..lanes import Array, Value
from ..syntax import Instruction
from . import exact, floating
from .formats import decode, round_to

TYPES = frozenset({"f16", "f16x2", "bf16", "bf16x2"})
Compute = Callable[..., Array]


@lru_cache(maxsize=1024)
def _constant(bits: int, type_name: str) -> Array:
    packed = type_name.endswith("x2")
    found = np.full(32 if packed else 1, bits, np.uint32 if packed else np.uint16).view(np.uint16)
    found.setflags(write=False)
    return found


def lifted(compute: Compute, type_name: str) -> Callable[..., Value]:
    """`compute`, from float32 arrays to float32 or float64 ones, as a function of register values, rounded once."""
    name = type_name.removesuffix("x2")
    bits_type = np.uint32 if type_name.endswith("x2") else np.uint16

    def apply(*values: Value) -> Value:
        codes = [v.view(np.uint16) if isinstance(v, np.ndarray) else _constant(v, type_name) for v in values]
        found = round_to(compute(*(decode(code, name) for code in codes)), name)
        if any(isinstance(v, np.ndarray) for v in values):
            return found.view(bits_type)
        return int(found.view(bits_type)[0])

    return apply


def _emit(builder: Builder, instruction: Instruction, compute: Compute, type_name: str) -> Step:
    width = 32 if type_name.endswith("x2") else 16
    target = builder.target(instruction.operands[0])
    slots = [builder.source(operand, width) for operand in instruction.operands[1:]]
    apply = lifted(compute, type_name)
    if len(slots) == 1:
        return builder.unary(target, slots[0], apply)
    if len(slots) == 2:
        return builder.binary(target, slots[0], slots[1], apply)
    return builder.ternary(target, slots[0], slots[1], slots[2], apply)


def arithmetic(builder: Builder, instruction: Instruction) -> Step:
    """add sub mul fma, each rounded once to nearest even; `.sat` and `.relu`."""
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name, "rn", "ftz", "sat", "relu"})
    if instruction.has("ftz"):
        raise builder.unknown(instruction, "flushing half-precision subnormals")
    # The sum or product of two halves, rounded to float32 first, rounds to the same half (24 >= 2 * 11 + 2 bits).
    table: dict[str, Compute] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "fma": exact.fma_f64,
    }
    compute = table[instruction.opcode]

    def finished(*values: Array) -> Array:
        found = compute(*values)
        if instruction.has("sat"):
            found = exact.saturate(found)
        if instruction.has("relu"):
            found = np.where(found > 0, found, np.where(np.isnan(found), found, 0).astype(found.dtype))
        return found

    return _emit(builder, instruction, finished, type_name)


def extremum(builder: Builder, instruction: Instruction) -> Step:
    """min and max."""
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name, "NaN"})
    one = exact.minimum if instruction.opcode == "min" else exact.maximum
    propagate = instruction.has("NaN")
    return _emit(builder, instruction, lambda a, b: one(a, b, propagate), type_name)


def sign(builder: Builder, instruction: Instruction) -> Step:
    """neg and abs, on the bits."""
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name})
    packed = type_name.endswith("x2")
    top = 0x80008000 if packed else 0x8000
    rest = 0x7FFF7FFF if packed else 0x7FFF
    dtype: Any = np.uint32 if packed else np.uint16
    target, a = instruction.operands
    negate = instruction.opcode == "neg"

    def compute(x: Value) -> Value:
        if type(x) is int:
            return x ^ top if negate else x & rest
        return x ^ dtype(top) if negate else x & dtype(rest)

    return builder.unary(builder.target(target), builder.source(a, 32 if packed else 16), compute)


def function(builder: Builder, instruction: Instruction) -> Step:
    """ex2 and tanh: f32 goes to the floating chapter, halves are rounded once here."""
    type_name = instruction.modifiers[-1]
    if type_name not in TYPES:
        return floating.function(builder, instruction)
    check_modifiers(builder, instruction, {type_name, "approx", "ftz"})
    compute: Compute = {"ex2": np.exp2, "tanh": np.tanh}[instruction.opcode]
    return _emit(builder, instruction, lambda a: compute(a.astype(np.float64)).astype(np.float32), type_name)


INSTRUCTIONS: dict[str, Handler] = {"ex2": function, "tanh": function}
