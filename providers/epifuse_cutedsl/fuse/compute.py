# SPDX-License-Identifier: Apache-2.0
"""One emitter a primitive: scalars of the compute dtype to a scalar. No activation is known here.

Float32 forms are IEEE or within the error that the primitive's row states. A ``Way`` may ask for shorter ones, whose
error is far below half a unit of a 16-bit output (``fuse.shortcuts``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import cutlass
from cutlass import Float32, Float64, cute

from epifuse.dtypes import FLOAT32, FLOAT64, INT32, DType
from epifuse_cutedsl.fuse import short
from epifuse_cutedsl.fuse.convert import SCALARS, bool_as_int, pack, unpack
from epifuse_cutedsl.fuse.primitives import PRIMITIVES, SHORT, Form, Instruction, Library, Operator, OwnShort
from epifuse_cutedsl.fuse.shortcuts import Precision, Way
from epifuse_cutedsl.kernels.ptx.asm import emit

Emitter = Callable[[Sequence[Any], str], Any]
"""From operands and the name of their dtype to the result."""


def _of_operator(name: str) -> Emitter:
    function = getattr(operator, name)
    return lambda operands, dtype: function(*operands)


def _of_instruction(forms: Instruction) -> Emitter:
    def emit_form(operands: Sequence[Any], dtype: str) -> Any:
        form = {"float32": forms.f32, "float64": forms.f64, "int32": forms.s32}[dtype]
        inputs = ", ".join(f"{{$r{i}}}" for i in range(len(operands)))
        return emit(f"{form} {{$w0}}, {inputs};", [SCALARS[dtype]], list(operands))[0]

    return emit_form


def _of_library(name: str) -> Emitter:
    function = getattr(cute.math, name)
    return lambda operands, dtype: function(operands[0], fastmath=False)


def extreme(name: str, dtype: str, a: Any, b: Any) -> Any:
    """``min`` or ``max`` that gives NaN where an operand is NaN; the ISA has no such form in float64."""
    if dtype == "float64":
        body = (
            f"{{\n.reg .pred p;\n.reg .f64 t;\n{name}.f64 t, {{$r0}}, {{$r1}};\nsetp.nan.f64 p, {{$r0}}, {{$r1}};\n"
            "@p add.f64 t, {$r0}, {$r1};\nmov.b64 {$w0}, t;\n}"
        )
        return emit(body, [Float64], [a, b])[0]
    kind = {"float32": "NaN.f32", "int32": "s32", "int64": "s64"}[dtype]
    return emit(f"{name}.{kind} {{$w0}}, {{$r0}}, {{$r1}};", [SCALARS[dtype]], [a, b])[0]


def emit_minimum(operands: Sequence[Any], dtype: str) -> Any:
    """The smaller one; NaN if either is NaN."""
    return extreme("min", dtype, *operands)


def emit_maximum(operands: Sequence[Any], dtype: str) -> Any:
    """The larger one; NaN if either is NaN."""
    return extreme("max", dtype, *operands)


def emit_reciprocal(operands: Sequence[Any], dtype: str) -> Any:
    """1 / x, rounded correctly but where it is subnormal."""
    if dtype == "float64":
        return emit("rcp.rn.f64 {$w0}, {$r0};", [Float64], list(operands))[0]
    return short.full_reciprocal(operands[0])


def emit_sqrt(operands: Sequence[Any], dtype: str) -> Any:
    """The square root, rounded correctly."""
    if dtype == "float64":
        return emit("sqrt.rn.f64 {$w0}, {$r0};", [Float64], list(operands))[0]
    return short.sqrt(operands[0], flushed=False)


def emit_ndtr(operands: Sequence[Any], dtype: str) -> Any:
    """The normal distribution function."""
    if dtype == "float64":
        return cute.math.erfc(operands[0] * -math.sqrt(0.5), fastmath=False) * 0.5
    return short.full_ndtr(operands[0])


def emit_where(operands: Sequence[Any], dtype: str) -> Any:
    """The second operand where the first holds, else the third."""
    return SCALARS[dtype](cutlass.select_(*operands))


def _emitter(name: str, form: Form) -> Emitter | None:
    if isinstance(form, Operator):
        return _of_operator(form.name)
    if isinstance(form, Instruction):
        return _of_instruction(form)
    if isinstance(form, Library):
        return _of_library(form.name)
    own: Emitter | None = globals().get(f"emit_{name}")
    return own


EMITTERS: dict[str, Emitter] = {
    name: emitter for name, form in PRIMITIVES.items() if (emitter := _emitter(name, form)) is not None
}
"""Every primitive but ``cast`` (see ``cast``) and the column selectors, which move values and compute nothing."""


def emit_one(primitive: str, operands: Sequence[Any], dtype: str, way: Way) -> Any:
    """The primitive's result on operands of the dtype, in the form that ``way`` asks for."""
    form = None if way.precision is Precision.FULL else SHORT.get(primitive)
    if form is None:
        return EMITTERS[primitive](operands, dtype)
    flushed = way.precision is Precision.FLUSHED
    if primitive == "div" and way.scale != 1.0:  # a lifted divisor
        return operands[0] * emit_one("reciprocal", operands[1:], dtype, way)
    if isinstance(form, OwnShort):
        function = getattr(short, primitive)
        return function(*operands, flushed=flushed) if form.scales else function(*operands)
    squared = form.squared and not flushed
    text, (value,), scale = form.text(flushed or squared), operands, form.scale * way.factor / (2.0 if squared else 1.0)
    value = _scaled(value, scale, way.addend)
    result = emit(f"{text} {{$w0}}, {{$r0}};", [Float32], [value])[0]
    return result * result if squared else _scaled(result, way.scale, 0.0)


def _scaled(value: Any, scale: float, addend: float) -> Any:
    """``value * scale + addend`` in one instruction. A sum alone is the compiler's, which contracts it where it can."""
    if scale == 1.0:
        return value + Float32(addend) if addend else value
    text = f"fma.rn.f32 {{$w0}}, {{$r0}}, {short.literal(scale)}, {short.literal(addend)};"
    if not addend:
        text = f"mul.f32 {{$w0}}, {{$r0}}, {short.literal(scale)};"
    return emit(text, [Float32], [value])[0]


def cast(value: Any, source: DType, target: DType, compute: DType) -> Any:
    """``value`` rounded once to ``target``, as a scalar of the compute dtype that ``target`` widens to."""
    if source.name == "bool":
        value, source = bool_as_int(value), INT32
    if target is source:
        return value
    words = pack([value], target, source)
    if target.bytes == 8:
        return emit("mov.b64 {$w0}, {$r0};", [SCALARS[target.name]], words)[0]
    if target.is_integer:
        return unpack(words, target, 1, INT32)[0]
    carrier = unpack(words, target, 1, FLOAT32)[0]
    if compute is FLOAT64:
        return emit("cvt.f64.f32 {$w0}, {$r0};", [Float64], [carrier])[0]
    return carrier
