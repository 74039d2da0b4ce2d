# SPDX-License-Identifier: Apache-2.0
"""Between memory and registers: elements packed in words to scalars of the compute dtype, and back, rounded once.

Words are Int32 (Int64 for 8-byte elements); scalars are Float32, Float64, Int32, Boolean, or Int64 (a sum of
integers). Conversions are the PTX ISA's ``cvt``; those to float8 need compute capability 8.9.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from cutlass import Boolean, Float32, Float64, Int32, Int64

from epifuse.dtypes import INT32, DType
from epifuse_cutedsl.kernels.ptx.asm import emit

SCALARS = {"float32": Float32, "float64": Float64, "int32": Int32, "int64": Int64, "bool": Boolean}


def per_word(dtype: DType) -> int:
    """Elements in one word."""
    return max(1, 4 // dtype.bytes)


def unpack(words: Sequence[Any], dtype: DType, count: int, compute: DType) -> list[Any]:
    """``count`` elements of ``dtype`` from words, as scalars of the compute dtype (widening, exact)."""
    values: list[Any] = []
    for word in words:
        values += _UNPACK[dtype.name](word)
    values = values[:count]
    if compute.name == "float64" and dtype.name != "float64" and dtype.is_float:
        return [emit("cvt.f64.f32 {$w0}, {$r0};", [Float64], [v])[0] for v in values]
    return values


def _halves(word: Any, text: str) -> list[Any]:
    """Two Float32 from the halves ``l`` and ``h`` of a word."""
    return list(emit(f"{{\n.reg .b16 l, h;\nmov.b32 {{l, h}}, {{$r0}};\n{text}\n}}", [Float32, Float32], [word]))


def _unpack_f16(word: Any) -> list[Any]:
    return _halves(word, "cvt.f32.f16 {$w0}, l;\ncvt.f32.f16 {$w1}, h;")


def _unpack_bf16(word: Any) -> list[Any]:
    text = "shl.b32 {$w0}, {$r0}, 16;\nand.b32 {$w1}, {$r0}, 0xffff0000;"
    return list(emit(text, [Float32, Float32], [word]))


def _unpack_fp8(kind: str) -> Callable[[Any], list[Any]]:
    def unpack_word(word: Any) -> list[Any]:
        one = "{\n.reg .b16 l, h;\n.reg .b32 x, y;\nmov.b32 {l, h}, {$r0};\n"
        one += f"cvt.rn.f16x2.{kind}x2 x, l;\ncvt.rn.f16x2.{kind}x2 y, h;\n"
        one += "mov.b32 {l, h}, x;\ncvt.f32.f16 {$w0}, l;\ncvt.f32.f16 {$w1}, h;\n"
        one += "mov.b32 {l, h}, y;\ncvt.f32.f16 {$w2}, l;\ncvt.f32.f16 {$w3}, h;\n}"
        return list(emit(one, [Float32] * 4, [word]))

    return unpack_word


def _unpack_integer(bits: int, signed: bool) -> Callable[[Any], list[Any]]:
    kind = "s32" if signed else "u32"

    def unpack_word(word: Any) -> list[Any]:
        fields = range(32 // bits)
        return [emit(f"bfe.{kind} {{$w0}}, {{$r0}}, {bits * i}, {bits};", [Int32], [word])[0] for i in fields]

    return unpack_word


def _unpack_bool(word: Any) -> list[Any]:
    return [value != Int32(0) for value in _unpack_integer(8, False)(word)]


_UNPACK: dict[str, Callable[[Any], list[Any]]] = {
    "float64": lambda word: [emit("mov.b64 {$w0}, {$r0};", [Float64], [word])[0]],
    "float32": lambda word: [emit("mov.b32 {$w0}, {$r0};", [Float32], [word])[0]],
    "float16": _unpack_f16,
    "bfloat16": _unpack_bf16,
    "float8_e4m3fn": _unpack_fp8("e4m3"),
    "float8_e5m2": _unpack_fp8("e5m2"),
    "int8": _unpack_integer(8, True),
    "uint8": _unpack_integer(8, False),
    "int16": _unpack_integer(16, True),
    "int32": lambda word: [word],
    "bool": _unpack_bool,
}


def pack(values: Sequence[Any], dtype: DType, compute: DType) -> list[Any]:
    """Scalars of the compute dtype rounded once to ``dtype``, in words; a last word may be part empty."""
    if compute.name == "bool":
        values, compute = [bool_as_int(v) for v in values], INT32
    if dtype.is_integer or dtype.name == "bool":
        integers = [_to_integer(v, dtype, compute) for v in values]
        return _pack_bits(integers, dtype.bytes)
    if dtype.name == "float64":
        return [_float64_bits(v, compute) for v in values]
    floats = [_narrowable(v, dtype, compute) for v in values]
    if dtype.name == "float32":
        return [emit("mov.b32 {$w0}, {$r0};", [Int32], [v])[0] for v in floats]
    if dtype.bits == 16:
        kind = "f16" if dtype.name == "float16" else "bf16"
        return [_pair(kind, floats[i : i + 2]) for i in range(0, len(floats), 2)]
    kind = "e4m3" if dtype.name == "float8_e4m3fn" else "e5m2"
    return [_quad(kind, floats[i : i + 4]) for i in range(0, len(floats), 4)]


def bool_as_int(value: Any) -> Any:
    """A condition as an Int32, 1 or 0."""
    return emit("selp.b32 {$w0}, 1, 0, {$r0};", [Int32], [value])[0]


def _pair(kind: str, values: Sequence[Any]) -> Any:
    low = values[0]
    high = values[1] if len(values) > 1 else low
    return emit(f"cvt.rn.{kind}x2.f32 {{$w0}}, {{$r1}}, {{$r0}};", [Int32], [low, high])[0]


def _quad(kind: str, values: Sequence[Any]) -> Any:
    four = [*values, *([values[0]] * (4 - len(values)))]
    text = "{\n.reg .b16 l, h;\n"
    text += f"cvt.rn.satfinite.{kind}x2.f32 l, {{$r1}}, {{$r0}};\ncvt.rn.satfinite.{kind}x2.f32 h, {{$r3}}, {{$r2}};\n"
    return emit(text + "mov.b32 {$w0}, {l, h};\n}", [Int32], four)[0]


def _float64_bits(value: Any, compute: DType) -> Any:
    text = {"float64": "mov.b64", "float32": "cvt.f64.f32", "int32": "cvt.rn.f64.s32", "int64": "cvt.rn.f64.s64"}
    return emit(f"{text[compute.name]} {{$w0}}, {{$r0}};", [Int64], [value])[0]


# Instructions that cut a value to the float32 ``r`` next to it toward zero, and set ``p`` where something was cut off.
_CUT = {
    "float64": "mov.b64 x, {$r0};\ncvt.rz.f32.f64 r, x;\ncvt.f64.f32 y, r;\nsetp.neu.f64 p, x, y;",
    "int32": "cvt.rn.f64.s32 x, {$r0};\ncvt.rz.f32.f64 r, x;\ncvt.f64.f32 y, r;\nsetp.neu.f64 p, x, y;",
    "int64": "cvt.rz.f32.s64 r, {$r0};\ncvt.rzi.s64.f32 z, r;\nsetp.ne.s64 p, z, {$r0};",
}


def _narrowable(value: Any, dtype: DType, compute: DType) -> Any:
    """A Float32 whose own rounding to ``dtype`` is the only one: wider values are first rounded to odd."""
    if compute.name == "float32":
        return value
    if dtype.name == "float32":
        source = {"int32": "s32", "int64": "s64", "float64": "f64"}[compute.name]
        return emit(f"cvt.rn.f32.{source} {{$w0}}, {{$r0}};", [Float32], [value])[0]
    odd = f"{{\n.reg .f64 x, y;\n.reg .b64 z;\n.reg .b32 r;\n.reg .pred p;\n{_CUT[compute.name]}\n@p or.b32 r, r, 1;\n"
    if compute.name == "float64":
        odd += "setp.nan.f64 p, x, x;\n@p mov.b32 r, 0x7fffffff;\n"
    return emit(odd + "mov.b32 {$w0}, r;\n}", [Float32], [value])[0]


_NOT_ZERO = {
    "float32": "setp.neu.f32 p, {$r0}, 0f00000000;",
    "float64": "setp.neu.f64 p, {$r0}, 0d0000000000000000;",
    "int32": "setp.ne.s32 p, {$r0}, 0;",
    "int64": "setp.ne.s64 p, {$r0}, 0;",
}


def _to_integer(value: Any, dtype: DType, compute: DType) -> Any:
    """An integer rounded to nearest even and clamped to ``dtype``; NaN gives 0 (``cvt.rni`` clamps by itself)."""
    if dtype.name == "bool":
        body = f"{{\n.reg .pred p;\n{_NOT_ZERO[compute.name]}\nselp.b32 {{$w0}}, 1, 0, p;\n}}"
        return emit(body, [Int32], [value])[0]
    if dtype.bytes == 8:
        text = {"float32": "cvt.rni.s64.f32", "float64": "cvt.rni.s64.f64", "int32": "cvt.s64.s32", "int64": "mov.b64"}
        return _no_nan(text[compute.name], "b64", compute, value, Int64)
    low, high = int(dtype.lowest), int(dtype.highest)
    if compute.name == "int64":
        clamp = (
            "{\n.reg .b64 t;\n" + f"max.s64 t, {{$r0}}, {low};\nmin.s64 t, t, {high};\n" + "cvt.u32.u64 {$w0}, t;\n}"
        )
        return emit(clamp, [Int32], [value])[0]
    if compute.name != "int32":
        text = {"float32": "cvt.rni.s32.f32", "float64": "cvt.rni.s32.f64"}
        value = _no_nan(text[compute.name], "b32", compute, value, Int32)
    if dtype.name == "int32":
        return value
    return emit(f"max.s32 {{$w0}}, {{$r0}}, {low};\nmin.s32 {{$w0}}, {{$w0}}, {high};", [Int32], [value])[0]


def _no_nan(text: str, bits: str, compute: DType, value: Any, kind: Any) -> Any:
    """``cvt`` of a float to an integer with 0 for NaN, which the ISA leaves open for the 64-bit forms."""
    if compute.is_integer:
        return emit(f"{text} {{$w0}}, {{$r0}};", [kind], [value])[0]
    number = "f32" if compute.name == "float32" else "f64"
    guard = f"setp.nan.{number} p, {{$r0}}, {{$r0}};\n@p mov.{bits} t, 0;"
    body = f"{{\n.reg .pred p;\n.reg .{bits} t;\n{text} t, {{$r0}};\n{guard}\nmov.{bits} {{$w0}}, t;\n}}"
    return emit(body, [kind], [value])[0]


def _pack_bits(values: Sequence[Any], size: int) -> list[Any]:
    if size >= 4:
        return list(values)
    many = 4 // size
    words = []
    for first in range(0, len(values), many):
        word = values[first]
        for place, value in enumerate(values[first + 1 : first + many], start=1):
            text = f"bfi.b32 {{$w0}}, {{$r1}}, {{$r0}}, {8 * size * place}, {8 * size};"
            word = emit(text, [Int32], [word, value])[0]
        words.append(word)
    return words


def constant(value: float, dtype: DType) -> Any:
    """A number of a compute dtype. One of float64 is put in a register, as inline PTX takes no float64 immediate."""
    if dtype.name != "float64":
        return SCALARS[dtype.name](value)
    bits = struct.unpack("<Q", struct.pack("<d", float(value)))[0]
    return emit(f"mov.f64 {{$w0}}, 0d{bits:016x};", [Float64])[0]
