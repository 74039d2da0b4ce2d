# SPDX-License-Identifier: Apache-2.0
"""Floating point (PTX ISA, "Floating Point Instructions"): f32, f32x2 and f64.

The approximations are the exact function rounded to nearest, which lies within every bound that the ISA states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Step, check_modifiers
from ..lanes import Array, Value
from ..syntax import Instruction
from . import exact

TYPES = frozenset({"f32", "f32x2", "f64"})
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_FLOAT = {"f32": np.float32, "f32x2": np.float32, "f64": np.float64}
_BITS = {"f32": np.uint32, "f32x2": np.uint64, "f64": np.uint64}
_WIDTH = {"f32": 32, "f32x2": 64, "f64": 64}
Compute = Callable[..., Any]


@lru_cache(maxsize=4096)
def _constant(bits: int, type_name: str) -> Array:
    found = np.array([bits], _BITS[type_name]).view(_FLOAT[type_name])
    if type_name == "f32x2":
        found = np.tile(found, 32)
    found.setflags(write=False)
    return found


def lifted(compute: Compute, type_name: str) -> Compute:
    """`compute` on float arrays, as a function of register values."""
    float_type, bits_type = _FLOAT[type_name], _BITS[type_name]

    def apply(*values: Value) -> Value:
        arrays = [v.view(float_type) if isinstance(v, np.ndarray) else _constant(v, type_name) for v in values]
        found = compute(*arrays)
        if any(isinstance(v, np.ndarray) for v in values):
            return found.view(bits_type)
        return int(found.view(bits_type)[0])

    return apply


def _mode(instruction: Instruction) -> str:
    return next((m for m in instruction.modifiers if m in _ROUNDINGS), "rn")


def _finish(instruction: Instruction, compute: Compute) -> Compute:
    flushes, saturates = instruction.has("ftz"), instruction.has("sat")
    if not flushes and not saturates:
        return compute

    def finished(*values: Array) -> Array:
        found = compute(*(exact.flush(v) for v in values)) if flushes else compute(*values)
        found = exact.flush(found) if flushes else found
        return exact.saturate(found) if saturates else found

    return finished


def _arithmetic(name: str, type_name: str, mode: str) -> Compute | None:
    single = type_name != "f64"
    if name == "fma":
        if single:
            return exact.fma_f32 if mode == "rn" else lambda a, b, c: exact.fma_f32(a, b, c, mode)
        return _fma_double if mode == "rn" else None
    nearest: dict[str, Compute] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
    }
    if mode == "rn":
        return nearest.get(name)
    if not single:
        return None

    def double(v: Array) -> Array:
        return v.astype(np.float64)

    directed: dict[str, Compute] = {
        "add": lambda a, b: exact.directed_sum(double(a), double(b), mode),
        "sub": lambda a, b: exact.directed_sum(double(a), -double(b), mode),
        "mul": lambda a, b: exact.to_f32(double(a) * double(b), mode),
        "div": lambda a, b: _directed_quotient(double(a), double(b), mode),
    }
    return directed.get(name)


def _directed_quotient(a: Array, b: Array, mode: str) -> Array:
    quotient = a / b
    # The remainder of the float64 quotient has the sign of what rounding lost; both fit two float64 products.
    error = np.array(
        [
            float(Fraction(float(x)) / Fraction(float(y)) - Fraction(float(q)))
            if np.isfinite(x) and np.isfinite(y) and y != 0
            else 0.0
            for x, y, q in zip(*np.broadcast_arrays(a, b, quotient), strict=True)
        ]
    )
    return exact.to_f32(exact.to_odd(quotient, error), mode)


def _fma_double(a: Array, b: Array, c: Array) -> Array:
    def one(x: float, y: float, z: float) -> float:
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            return x * y + z
        total = Fraction(x) * Fraction(y) + Fraction(z)
        try:
            return float(total) if total else x * y + z
        except OverflowError:
            return math.inf if total > 0 else -math.inf

    rows = zip(*np.broadcast_arrays(a, b, c), strict=True)
    return np.array([one(float(x), float(y), float(z)) for x, y, z in rows])


def arithmetic(builder: Builder, instruction: Instruction) -> Step:
    """add sub mul div fma mad."""
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name, "ftz", "sat", "full", "approx", *_ROUNDINGS})
    name = {"mad": "fma"}.get(instruction.opcode, instruction.opcode)
    compute = _arithmetic(name, type_name, _mode(instruction))
    if compute is None:
        raise builder.unknown(instruction)
    return _emit(builder, instruction, _finish(instruction, compute), type_name)


def _emit(builder: Builder, instruction: Instruction, compute: Compute, type_name: str) -> Step:
    bits = _WIDTH[type_name]
    target = builder.target(instruction.operands[0])
    slots = [builder.source(operand, bits) for operand in instruction.operands[1:]]
    apply = lifted(compute, type_name)
    if len(slots) == 1:
        return builder.unary(target, slots[0], apply)
    if len(slots) == 2:
        return builder.binary(target, slots[0], slots[1], apply)
    return builder.ternary(target, slots[0], slots[1], slots[2], apply)


def extremum(builder: Builder, instruction: Instruction) -> Step:
    """min and max, with two or three operands."""
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name, "ftz", "NaN"})
    one = exact.minimum if instruction.opcode == "min" else exact.maximum
    propagate = instruction.has("NaN")

    def compute(*values: Array) -> Array:
        found = values[0]
        for value in values[1:]:
            found = one(found, value, propagate)
        return found

    return _emit(builder, instruction, _finish(instruction, compute), type_name)


def sign(builder: Builder, instruction: Instruction) -> Step:
    """neg, abs and copysign, on the bits."""
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name, "ftz"})
    width = _WIDTH[type_name]
    top = 1 << (width - 1) if type_name != "f32x2" else 0x8000000080000000
    rest = (1 << width) - 1 & ~top
    if instruction.has("ftz"):
        flushed: Compute = {"neg": np.negative, "abs": np.abs}[instruction.opcode]
        return _emit(builder, instruction, _finish(instruction, flushed), type_name)
    bits = _BITS[type_name]
    target, *sources = instruction.operands
    slots = [builder.source(operand, width) for operand in sources]
    if instruction.opcode == "copysign":
        # copysign.type d, a, b: the sign of a and the magnitude of b.
        return builder.binary(
            builder.target(target),
            slots[0],
            slots[1],
            lambda a, b: (a & _like(a, top, bits)) | (b & _like(b, rest, bits)),
        )
    if instruction.opcode == "neg":
        return builder.unary(builder.target(target), slots[0], lambda a: a ^ _like(a, top, bits))
    return builder.unary(builder.target(target), slots[0], lambda a: a & _like(a, rest, bits))


def _like(value: Value, number: int, dtype: Any) -> Any:
    return number if type(value) is int else dtype(number)


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def function(builder: Builder, instruction: Instruction) -> Step:
    """rcp sqrt rsqrt ex2 lg2 sin cos tanh, correctly rounded whether `.approx` or not."""
    type_name = instruction.modifiers[-1]
    if type_name not in ("f32", "f64"):
        raise builder.unknown(instruction)
    check_modifiers(builder, instruction, {type_name, "ftz", "approx", "rn"})
    compute = _FUNCTIONS[instruction.opcode]

    def rounded(a: Array) -> Array:
        return compute(a.astype(np.float64)).astype(a.dtype)

    return _emit(builder, instruction, _finish(instruction, rounded), type_name)


def _testp(builder: Builder, instruction: Instruction) -> Step:
    name, type_name = instruction.modifiers
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    }
    test = tests[name]

    def compute(a: Value) -> Value:
        if isinstance(a, np.ndarray):
            return test(a.view(_FLOAT[type_name]))
        return bool(test(_constant(a, type_name))[0])

    target, a = instruction.operands
    return builder.unary(builder.target(target), builder.source(a, _WIDTH[type_name]), compute)


INSTRUCTIONS: dict[str, Handler] = {
    **dict.fromkeys(("rcp", "sqrt", "rsqrt", "lg2", "sin", "cos"), function),
    "copysign": sign,
    "testp": _testp,
}
