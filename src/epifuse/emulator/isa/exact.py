# SPDX-License-Identifier: Apache-2.0
"""Floating arithmetic with one rounding in any direction, in float64 with the rounding error kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lanes import Array

SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """`a + b` in float64, and what rounding it lost, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def to_odd(total: Array, error: Array) -> Array:
    """The exact `total + error` rounded to odd: rounding that again to at most 51 bits is as good as rounding once."""
    even = (total.view(np.int64) & 1) == 0
    move = (error != 0) & even & np.isfinite(total)
    if not move.any():
        return total
    return np.where(move, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def to_f32(exact: Array, mode: str) -> Array:
    """float64 values that hold the result exactly or rounded to odd, as float32."""
    nearest = exact.astype(np.float32)
    if mode == "rn":
        return nearest
    back = nearest.astype(np.float64)
    above, below = back > exact, back < exact
    if mode == "rz":
        down, up = above & (exact > 0), below & (exact < 0)
    elif mode == "rm":
        down, up = above, np.zeros_like(below)
    else:
        down, up = np.zeros_like(above), below
    lower = np.where(down, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    return np.where(up, np.nextafter(nearest, np.float32(np.inf)), lower)


def zero_below(total: Array, a: Array, b: Array, mode: str) -> Array:
    """A sum of `a` and `b`, where rounding downward gives an exact zero of differing signs the sign -0."""
    if mode != "rm":
        return total
    return np.where((total == 0) & (np.signbit(a) != np.signbit(b)), -0.0, total)


def directed_sum(a: Array, b: Array, mode: str) -> Array:
    """`a + b` of float64 values as float32, rounded once by rz, rm or rp."""
    return to_f32(zero_below(to_odd(*two_sum(a, b)), a, b, mode), mode)


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` of float32 (or narrower) values, rounded to odd in float64."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return to_odd(*two_sum(product, c.astype(np.float64)))


def fma_f32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """`a * b + c` of float32 values with one rounding."""
    if mode != "rn":
        return directed_sum(a.astype(np.float64) * b, c.astype(np.float64), mode)
    product = a.astype(np.float64) * b
    total = product + c
    # Rounding twice differs from rounding once only at a tie of the second rounding, or where float32 has fewer bits.
    ties = (total.view(np.uint64) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
    if ties.any() or (np.abs(total) < SMALLEST_NORMAL).any():
        return to_odd(*two_sum(product, c.astype(np.float64))).astype(np.float32)
    return total.astype(np.float32)


def flush(values: Array) -> Array:
    """Subnormal float32 values as zeros of the same sign."""
    small = np.abs(values) < np.float32(SMALLEST_NORMAL)
    return np.where(small, np.copysign(np.float32(0), values), values)


def saturate(values: Array) -> Array:
    """Values clamped to [0, 1], NaN to 0."""
    zero = values.dtype.type(0)
    found: Array = np.where(np.isnan(values), zero, np.clip(values, 0, 1)) + zero
    return found


def _canonical(values: Array) -> Array:
    nan = np.isnan(values)
    if not nan.any():
        return values
    return np.where(nan, np.uint32(0x7FFFFFFF).view(np.float32).astype(values.dtype), values)


def minimum(a: Array, b: Array, propagate_nan: bool) -> Array:
    """The smaller, -0 below +0; with NaN the other operand, or the canonical NaN if `propagate_nan`."""
    found = _canonical(np.minimum(a, b)) if propagate_nan else np.fmin(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), found)


def maximum(a: Array, b: Array, propagate_nan: bool) -> Array:
    """The larger, +0 above -0; with NaN the other operand, or the canonical NaN if `propagate_nan`."""
    found = _canonical(np.maximum(a, b)) if propagate_nan else np.fmax(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), found)
