# SPDX-License-Identifier: Apache-2.0
"""One emitter a primitive: scalars of the compute dtype to a scalar. No activation is known here.

Float32 forms are IEEE or within the error that the primitive's row states. ``fast`` asks for shorter forms, whose
error is far below half a unit of a 16-bit output; the host sets it where no output and no reduction is wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Float64, Int32, cute

from epifuse.dtypes import FLOAT32, FLOAT64, INT32, DType
from epifuse_cutedsl.fuse.convert import pack, unpack
from epifuse_cutedsl.kernels.ptx.asm import emit

Emitter = Callable[[Sequence[Any], str, bool], Any]
_TYPES = {"float32": Float32, "float64": Float64, "int32": Int32}


def _operator(function: Callable[..., Any]) -> Emitter:
    return lambda operands, dtype, fast: function(*operands)


def _ptx(f32: str, f64: str, s32: str, arity: int = 2) -> Emitter:
    """An instruction by the operands' dtype; ``...`` stands for its operands."""
    forms = {"float32": f32, "float64": f64, "int32": s32}
    inputs = ", ".join(f"{{$r{i}}}" for i in range(arity))

    def emit_one(operands: Sequence[Any], dtype: str, fast: bool) -> Any:
        return emit(f"{forms[dtype]} {{$w0}}, {inputs};", [_TYPES[dtype]], list(operands))[0]

    return emit_one


def _extreme(name: str) -> Emitter:
    """``min`` or ``max`` that gives NaN where an operand is NaN; the ISA has no such form in float64."""
    plain = _ptx(f"{name}.NaN.f32", "", f"{name}.s32")

    def emit_one(operands: Sequence[Any], dtype: str, fast: bool) -> Any:
        if dtype != "float64":
            return plain(operands, dtype, fast)
        body = (
            f"{{\n.reg .pred p;\n.reg .f64 t;\n{name}.f64 t, {{$r0}}, {{$r1}};\nsetp.nan.f64 p, {{$r0}}, {{$r1}};\n"
            "@p add.f64 t, {$r0}, {$r1};\nmov.b64 {$w0}, t;\n}"
        )
        return emit(body, [Float64], list(operands))[0]

    return emit_one


def _divide(operands: Sequence[Any], dtype: str, fast: bool) -> Any:
    if dtype == "float32" and fast:
        return emit("div.full.f32 {$w0}, {$r0}, {$r1};", [Float32], list(operands))[0]
    return operands[0] / operands[1]


def _reciprocal(operands: Sequence[Any], dtype: str, fast: bool) -> Any:
    form = {"float32": "rcp.approx.f32" if fast else "rcp.rn.f32", "float64": "rcp.rn.f64"}[dtype]
    return emit(f"{form} {{$w0}}, {{$r0}};", [_TYPES[dtype]], list(operands))[0]


def _math(function: Callable[..., Any]) -> Emitter:
    """A function of the DSL's mathematics library in its accurate form (at most 2 units in float32)."""
    return lambda operands, dtype, fast: function(operands[0], fastmath=False)


def _compare(function: Callable[[Any, Any], Any]) -> Emitter:
    return lambda operands, dtype, fast: Boolean(function(operands[0], operands[1]))


def _where(operands: Sequence[Any], dtype: str, fast: bool) -> Any:
    condition, a, b = operands
    return cutlass.select_(condition, a, b)


def _negate(operands: Sequence[Any], dtype: str, fast: bool) -> Any:
    return -operands[0]


EMITTERS: dict[str, Emitter] = {
    "add": _operator(lambda a, b: a + b),
    "sub": _operator(lambda a, b: a - b),
    "mul": _operator(lambda a, b: a * b),
    "div": _divide,
    "neg": _negate,
    "multiply_add": _ptx("fma.rn.f32", "fma.rn.f64", "mad.lo.s32", 3),
    "minimum": _extreme("min"),
    "maximum": _extreme("max"),
    "abs": _ptx("abs.f32", "abs.f64", "abs.s32", 1),
    "floor": _ptx("cvt.rmi.f32.f32", "cvt.rmi.f64.f64", "mov.b32", 1),
    "reciprocal": _reciprocal,
    "sqrt": _ptx("sqrt.rn.f32", "sqrt.rn.f64", "", 1),
    "rsqrt": _math(cute.math.rsqrt),
    "exp": _math(cute.math.exp),
    "exp2": _math(cute.math.exp2),
    "log": _math(cute.math.log),
    "log2": _math(cute.math.log2),
    "sin": _math(cute.math.sin),
    "cos": _math(cute.math.cos),
    "tanh": _math(cute.math.tanh),
    "erf": _math(cute.math.erf),
    "less": _compare(lambda a, b: a < b),
    "less_equal": _compare(lambda a, b: a <= b),
    "greater": _compare(lambda a, b: a > b),
    "greater_equal": _compare(lambda a, b: a >= b),
    "equal": _compare(lambda a, b: a == b),
    "not_equal": _compare(lambda a, b: a != b),
    "where": _where,
}
"""Every primitive but ``cast`` (see ``cast``) and the column selectors, which move values and compute nothing."""


def cast(value: Any, source: DType, target: DType, compute: DType) -> Any:
    """``value`` rounded once to ``target``, as a scalar of the compute dtype that ``target`` widens to."""
    if source.name == "bool":
        value = cutlass.select_(value, Int32(1), Int32(0))
        source = INT32
    if target is source:
        return value
    words = pack([value], target, source)
    carrier = FLOAT64 if target is FLOAT64 else (INT32 if target.is_integer else FLOAT32)
    if target.is_integer and target.bytes < 4:
        # A packed word may hold the clamped value without its sign extension: read it back as the dtype.
        return unpack(words, target, 1, INT32)[0]
    narrow = unpack(words, target, 1, carrier)[0]
    if carrier is FLOAT32 and compute is FLOAT64:
        return emit("cvt.f64.f32 {$w0}, {$r0};", [Float64], [narrow])[0]
    return narrow
