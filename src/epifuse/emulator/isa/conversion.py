# SPDX-License-Identifier: Apache-2.0
"""cvt (PTX ISA, "Data Movement and Conversion Instructions: cvt"): every pair of types, rounding and saturation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Step, check_modifiers
from ..lanes import DTYPES, SIGNED, Array, Value, signed
from ..statements import type_bytes
from ..syntax import Instruction
from . import exact
from .formats import FORMATS, decode, round_to

_ROUNDINGS = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
_INTEGERS = frozenset({"u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"})
_PACKED = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2", "e2m1x2": "e2m1", "ue8m0x2": "ue8m0"}
_NARROW = frozenset({"e4m3x2", "e5m2x2"})


def _cvt(builder: Builder, instruction: Instruction) -> Step:
    *flags, result, source = instruction.modifiers
    check_modifiers(builder, instruction, {*_ROUNDINGS, "ftz", "sat", "satfinite", "relu", result, source})
    mode = next((flag for flag in flags if flag in _ROUNDINGS), "")
    if result in _INTEGERS and source in _INTEGERS:
        return _between_integers(builder, instruction, result, source)
    if result in _PACKED and source == "f32":
        return _pack(builder, instruction, result, mode)
    if source in _NARROW and result in ("f16x2", "bf16x2"):
        return _unpack(builder, instruction, source)
    if result in _PACKED or source in _PACKED:
        raise builder.unknown(instruction)
    if result in _INTEGERS:
        return _to_integer(builder, instruction, result, source, mode)
    if source in _INTEGERS:
        return _from_integer(builder, instruction, result, source, mode or "rn")
    return _between_floats(builder, instruction, result, source, mode)


def _bits(name: str) -> int:
    return 32 if name == "tf32" else 8 * type_bytes(name)


def per_value(compute: Callable[[Array], Array], source_bits: int) -> Callable[[Value], Value]:
    """A function of arrays as a function of register values."""
    dtype = DTYPES[source_bits]

    def apply(a: Value) -> Value:
        if isinstance(a, np.ndarray):
            return compute(a.astype(dtype, copy=False))
        return int(compute(np.array([a & ((1 << source_bits) - 1)], dtype))[0])

    return apply


def _register(builder: Builder, instruction: Instruction, fallback: int) -> int:
    return builder.register_bits(instruction.operands[0], fallback)


def _emit(builder: Builder, instruction: Instruction, compute: Callable[[Array], Array], source: str) -> Step:
    bits = _bits(source)
    target, operand = instruction.operands
    return builder.unary(builder.target(target), builder.source(operand, bits), per_value(compute, bits))


def _between_integers(builder: Builder, instruction: Instruction, result: str, source: str) -> Step:
    result_bits, source_bits = _bits(result), _bits(source)
    register_bits = _register(builder, instruction, result_bits)
    mask = (1 << register_bits) - 1
    source_mask = (1 << source_bits) - 1
    source_signed, result_signed = source[0] == "s", result[0] == "s"
    low, high = (-(1 << result_bits - 1), (1 << result_bits - 1) - 1) if result_signed else (0, (1 << result_bits) - 1)
    saturate = instruction.has("sat")

    def scalar(a: int) -> int:
        value = signed(a, source_bits) if source_signed else a & source_mask
        if saturate:
            value = min(max(value, low), high)
        value &= (1 << result_bits) - 1
        return (signed(value, result_bits) if result_signed else value) & mask

    def vector(a: Array) -> Array:
        narrow = a.astype(DTYPES[source_bits], copy=False)
        value: Array = narrow.view(SIGNED[source_bits]) if source_signed else narrow
        if saturate:
            limits = np.iinfo(value.dtype)
            value = np.clip(value, max(low, int(limits.min)), min(high, int(limits.max)))
        cut = value.astype(DTYPES[result_bits])
        wide: Array = cut.view(SIGNED[result_bits]) if result_signed else cut
        return wide.astype(DTYPES[register_bits], copy=False)

    target, operand = instruction.operands
    slot = builder.source(operand, source_bits)
    return builder.unary(builder.target(target), slot, lambda a: scalar(a) if type(a) is int else vector(a))


def _whole(values: Array, mode: str) -> Array:
    rounding: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    return rounding[mode](values)


def _to_integer(builder: Builder, instruction: Instruction, result: str, source: str, mode: str) -> Step:
    if mode not in ("rni", "rzi", "rmi", "rpi"):
        raise builder.unknown(instruction)
    bits, is_signed = _bits(result), result[0] == "s"
    low = -(1 << (bits - 1)) if is_signed else 0
    high = (1 << (bits - 1)) - 1 if is_signed else (1 << bits) - 1
    register_bits = _register(builder, instruction, bits)
    flushes = instruction.has("ftz")

    def compute(a: Array) -> Array:
        values = decode(a, source)
        if flushes:
            values = exact.flush(values)
        whole = _whole(values.astype(np.float64), mode)
        # Out of range clamps. NaN gives 0, or the highest bit alone where source or result has 64 bits.
        inside = np.where(np.isnan(whole) | (whole >= float(high)) | (whole <= float(low)), 0.0, whole)
        kind = SIGNED[64] if is_signed else DTYPES[64]
        found = inside.astype(kind)
        found = np.where(whole >= float(high), kind(high), found)
        found = np.where(whole <= float(low), kind(low), found)
        if bits == 64 or source == "f64":
            highest = low if is_signed else 1 << bits - 1
            found = np.where(np.isnan(whole), kind(highest), found)
        return found.astype(SIGNED[register_bits] if is_signed else DTYPES[register_bits]).view(DTYPES[register_bits])

    return _emit(builder, instruction, compute, source)


def _from_integer(builder: Builder, instruction: Instruction, result: str, source: str, mode: str) -> Step:
    if mode not in ("rn", "rz", "rm", "rp"):
        raise builder.unknown(instruction)
    bits, is_signed = _bits(source), source[0] == "s"

    def compute(a: Array) -> Array:
        values: Array = a.view(SIGNED[bits]) if is_signed else a
        if result == "f64":
            return values.astype(np.float64).view(np.uint64)
        wide = values.astype(np.float64)
        if bits == 64:
            back = np.array(
                [
                    float(int(w)) - 0.0 if abs(int(w)) < 2**53 else _error(int(v), float(w))
                    for v, w in zip(values, wide, strict=True)
                ]
            )
            wide = exact.to_odd(wide, np.where(np.abs(wide) < 2.0**53, 0.0, back))
        return _encode(wide, result, mode, instruction)

    return _emit(builder, instruction, compute, source)


def _error(value: int, rounded: float) -> float:
    return float(value - int(rounded))


def _encode(wide: Array, result: str, mode: str, instruction: Instruction) -> Array:
    if instruction.has("sat"):
        wide = exact.saturate(wide)
    if result == "f64":
        return wide.view(np.uint64)
    if result == "f32":
        return exact.to_f32(wide, mode).view(np.uint32)
    if result == "tf32":
        return round_to(wide, "tf32", mode, instruction.has("satfinite"), instruction.has("relu")) << np.uint32(13)
    return round_to(wide, result, mode, instruction.has("satfinite"), instruction.has("relu"))


def _between_floats(builder: Builder, instruction: Instruction, result: str, source: str, mode: str) -> Step:
    flushes = instruction.has("ftz")

    def widen(a: Array) -> Array:
        values = decode(a, source)
        return exact.flush(values) if flushes and source == "f32" else values

    if mode in ("rni", "rzi", "rmi", "rpi"):
        return _emit(
            builder,
            instruction,
            lambda a: _encode(_whole(widen(a).astype(np.float64), mode), result, "rn", instruction),
            source,
        )
    if result == source and result in ("f32", "f16", "bf16"):
        return _emit(
            builder,
            instruction,
            lambda a: _encode(widen(a).astype(np.float64), result, mode or "rn", instruction),
            source,
        )
    if result == "f64":
        return _emit(builder, instruction, lambda a: widen(a).astype(np.float64).view(np.uint64), source)
    if result not in ("f32", *FORMATS):
        raise builder.unknown(instruction)
    if result == "f32" and source in ("f16", "bf16") and not instruction.has("sat"):
        return _emit(builder, instruction, lambda a: widen(a).view(np.uint32), source)

    def compute(a: Array) -> Array:
        values = widen(a)
        found = _encode(
            values if instruction.has("sat") or source == "f32" and result != "f32" else values.astype(np.float64),
            result,
            mode or "rn",
            instruction,
        )
        if flushes and result == "f32":
            return exact.flush(found.view(np.float32)).view(np.uint32)
        return found

    return _emit(builder, instruction, compute, source)


def _pack(builder: Builder, instruction: Instruction, result: str, mode: str) -> Step:
    """Two float32 values into one register: the first operand becomes the upper half."""
    name = _PACKED[result]
    if name not in FORMATS or mode not in ("rn", "rz"):
        raise builder.unknown(instruction)
    bits = FORMATS[name].bits
    relu, saturate = instruction.has("relu"), instruction.has("satfinite")
    dtype: Any = np.uint32 if bits == 16 else np.uint16 if bits == 8 else np.uint8

    def compute(upper: Value, lower: Value) -> Value:
        uniform = type(upper) is int and type(lower) is int
        pair = np.empty((1 if uniform else 32, 2), np.uint32)
        pair[:, 0] = lower
        pair[:, 1] = upper
        codes = round_to(pair.view(np.float32), name, mode, saturate, relu)
        if bits == 16:
            found = codes.view(np.uint32)[:, 0]
        else:
            found = codes[:, 0].astype(dtype) | (codes[:, 1].astype(dtype) << dtype(bits))
        return int(found[0]) if uniform else found

    target, upper, lower = instruction.operands
    return builder.binary(builder.target(target), builder.source(upper, 32), builder.source(lower, 32), compute)


def _unpack(builder: Builder, instruction: Instruction, source: str) -> Step:
    name = _PACKED[source]
    result = _PACKED[instruction.modifiers[-2]]
    relu = instruction.has("relu")

    def compute(a: Array) -> Array:
        pair = np.stack((a & np.uint16(0xFF), a >> np.uint16(8)), axis=1)
        return round_to(decode(pair, name), result, "rn", False, relu).view(np.uint32)[:, 0]

    target, operand = instruction.operands
    return builder.unary(builder.target(target), builder.source(operand, 16), per_value(compute, 16))


INSTRUCTIONS: dict[str, Handler] = {"cvt": _cvt}
