# SPDX-License-Identifier: Apache-2.0
"""Scalars of a reduction: identities, combining, exchange between lanes, and the eight bytes of a partial result."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64

from epifuse.dtypes import FLOAT64, DType
from epifuse.fusion.plan import PlanReduce
from epifuse_cutedsl.fuse.compute import extreme
from epifuse_cutedsl.fuse.convert import SCALARS, constant
from epifuse_cutedsl.kernels.ptx.asm import emit


def identity(reduce: PlanReduce) -> Any:
    """What leaves every value as it is."""
    dtype = reduce.accumulate_dtype
    if reduce.combine in ("sum", "mean"):
        return constant(0, dtype)
    if dtype.is_float:
        return constant(float("-inf") if reduce.combine == "max" else float("inf"), dtype)
    return constant(int(dtype.lowest if reduce.combine == "max" else dtype.highest), dtype)


def combine(reduce: PlanReduce, a: Any, b: Any) -> Any:
    """The fold of two scalars of the accumulating dtype."""
    if reduce.combine in ("sum", "mean"):
        return a + b
    return extreme(reduce.combine, reduce.accumulate_dtype.name, a, b)


def widen(value: Any, compute: DType, accumulate: DType) -> Any:
    """A slot's scalar in the accumulating dtype (int32 to int64; the rest is as it is)."""
    return value if compute.name == accumulate.name else SCALARS[accumulate.name](value)


def exchange(value: Any, distance: int) -> Any:
    """The value of the lane whose number differs in one bit. The whole warp calls it."""
    text = f"shfl.sync.bfly.b32 {{$w0}}, {{$r0}}, {distance}, 31, 0xffffffff;"
    if isinstance(value, Float32 | Int32):
        return emit(text, [type(value)], [value])[0]
    body = (
        "{\n.reg .b32 l, h;\nmov.b64 {l, h}, {$r0};\n"
        f"shfl.sync.bfly.b32 l, l, {distance}, 31, 0xffffffff;\nshfl.sync.bfly.b32 h, h, {distance}, 31, 0xffffffff;\n"
        "mov.b64 {$w0}, {l, h};\n}"
    )
    return emit(body, [type(value)], [value])[0]


def across_lanes(reduce: PlanReduce, value: Any, first: int, end: int) -> Any:
    """The fold over lanes whose numbers differ in the bits from ``first`` to below ``end`` (powers of two)."""
    distance = first
    while distance < end:
        value = combine(reduce, value, exchange(value, distance))
        distance *= 2
    return value


def to_bits(value: Any, dtype: DType) -> Any:
    """An Int64 that holds a scalar of the accumulating dtype without loss."""
    form = {"float32": "cvt.f64.f32", "float64": "mov.b64", "int32": "cvt.s64.s32", "int64": "mov.b64"}[dtype.name]
    return emit(f"{form} {{$w0}}, {{$r0}};", [Int64], [value])[0]


def from_bits(bits: Any, dtype: DType) -> Any:
    """The scalar in an Int64 of ``to_bits``."""
    form = {"float32": "cvt.rn.f32.f64", "float64": "mov.b64", "int32": "cvt.u32.u64", "int64": "mov.b64"}[dtype.name]
    return emit(f"{form} {{$w0}}, {{$r0}};", [SCALARS[dtype.name]], [bits])[0]


def finished(reduce: PlanReduce, value: Any, count: Any) -> tuple[Any, DType]:
    """The value that is stored, and its dtype: a mean is divided in float64, all else stays in its dtype."""
    dtype = reduce.accumulate_dtype
    if reduce.combine != "mean":
        return value, dtype
    form = {"float32": "cvt.f64.f32", "float64": "mov.f64", "int32": "cvt.rn.f64.s32", "int64": "cvt.rn.f64.s64"}
    body = f"{{\n.reg .f64 v;\n{form[dtype.name]} v, {{$r0}};\ndiv.rn.f64 {{$w0}}, v, {{$r1}};\n}}"
    return emit(body, [SCALARS["float64"]], [value, count])[0], FLOAT64
