# SPDX-License-Identifier: Apache-2.0
"""Number formats: bits to float and back, with every rounding and saturation (PTX ISA, "Floating Point" formats)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..lanes import Array, Value


@dataclass(frozen=True)
class Format:
    """A floating format: exponent and mantissa bits, the largest finite value, whether infinities and NaN exist."""

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    largest: float
    has_infinity: bool = True
    nan: int = 0

    @property
    def bias(self) -> int:
        """The exponent's bias."""
        return (1 << (self.exponent_bits - 1)) - 1


FORMATS = {
    f.name: f
    for f in (
        Format("f16", 16, 5, 10, 65504.0, True, 0x7FFF),
        Format("bf16", 16, 8, 7, 3.3895313892515355e38, True, 0x7FFF),
        Format("tf32", 19, 8, 10, 3.4011621342146535e38, True, 0x3FFFF),
        Format("e4m3", 8, 4, 3, 448.0, False, 0x7F),
        Format("e5m2", 8, 5, 2, 57344.0, True, 0x7F),
        Format("e2m1", 4, 2, 1, 6.0, False, 0x7),
        Format("e2m3", 6, 2, 3, 7.5, False, 0x1F),
        Format("e3m2", 6, 3, 2, 28.0, False, 0x1F),
        Format("f32", 32, 8, 23, 3.4028234663852886e38, True, 0x7FFFFFFF),
    )
}


@lru_cache(maxsize=32)
def table(name: str) -> Array:
    """Every value of a format of at most 16 bits, as float32, indexed by its bits (read-only)."""
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.bits, dtype=np.uint32)
    mantissa = (codes & ((1 << fmt.mantissa_bits) - 1)).astype(np.float64)
    exponent = (codes >> fmt.mantissa_bits & ((1 << fmt.exponent_bits) - 1)).astype(np.int64)
    scale = np.exp2(np.maximum(exponent, 1).astype(np.float64) - fmt.bias)
    values = scale * (mantissa / (1 << fmt.mantissa_bits) + (exponent > 0))
    top = exponent == (1 << fmt.exponent_bits) - 1
    if fmt.has_infinity:
        values = np.where(top, np.where(mantissa == 0, np.inf, np.nan), values)
    elif name == "e4m3":
        values = np.where((codes & 0x7F) == 0x7F, np.nan, values)
    values = np.where(codes >> (fmt.bits - 1) & 1, -values, values)
    found = values.astype(np.float32)
    found.setflags(write=False)
    return found


def decode(bits: Array, name: str) -> Array:
    """Codes of a format as float32 (float64 for f64)."""
    if name == "f32":
        return bits.view(np.float32)
    if name == "f64":
        return bits.view(np.float64)
    if name == "f16":
        return bits.view(np.float16).astype(np.float32)
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return table(name)[bits]


def to_float(value: Value, type_name: str) -> Any:
    """A register's value as float32 or float64: an array of the lanes, or a numpy scalar."""
    if isinstance(value, np.ndarray):
        return decode(value, type_name)
    dtype = {"f16": np.uint16, "bf16": np.uint16, "f64": np.uint64}.get(type_name, np.uint32)
    return decode(np.array([value], dtype), type_name)[0]


def round_to(values: Array, name: str, mode: str = "rn", saturate: bool = False, relu: bool = False) -> Array:
    """float32 or float64 values as codes of a format (uint32; uint16 for 16 bits, uint8 for 8 and less).

    `mode` is rn, rna, rz, rm, rp or rs-less. `saturate` (satfinite) gives the largest finite value instead of infinity.
    """
    fmt = FORMATS[name]
    wide = values.astype(np.float64)
    if relu:
        wide = np.where(wide > 0, wide, np.where(np.isnan(wide), wide, 0.0))
    if mode == "rn" and not saturate and name == "f16" and values.dtype == np.float32:
        with np.errstate(over="ignore"):
            return _canonical(wide.astype(np.float32).astype(np.float16).view(np.uint16), wide, fmt)
    if mode == "rn" and not saturate and name == "bf16" and values.dtype == np.float32:
        raw = wide.astype(np.float32).view(np.uint32)
        rounded = raw + (np.uint32(0x7FFF) + (raw >> np.uint32(16) & np.uint32(1)))
        return _canonical((rounded >> np.uint32(16)).astype(np.uint16), wide, fmt)
    return _round_exactly(wide, fmt, mode, saturate)


def _canonical(codes: Array, wide: Array, fmt: Format) -> Array:
    nan = np.isnan(wide)
    if nan.any():
        codes = np.where(nan, codes.dtype.type(fmt.nan), codes)
    return codes


def _round_exactly(wide: Array, fmt: Format, mode: str, saturate: bool) -> Array:
    magnitude = np.abs(wide)
    negative = np.signbit(wide)
    finite = np.isfinite(wide)
    safe = np.where(finite, magnitude, 0.0)
    exponent = np.maximum(np.frexp(safe)[1] - 1, 1 - fmt.bias)
    scaled = np.ldexp(safe, fmt.mantissa_bits - exponent)
    whole = _round_whole(scaled, negative, mode)
    value = np.ldexp(whole, exponent - fmt.mantissa_bits)
    over = value > fmt.largest
    # A carry into the next binade changes the exponent, so the fields come from the rounded value.
    exponent = np.maximum(np.frexp(value)[1] - 1, 1 - fmt.bias)
    mantissa = np.ldexp(value, fmt.mantissa_bits - exponent)
    normal = mantissa >= 1 << fmt.mantissa_bits
    fields = np.where(normal, mantissa - (1 << fmt.mantissa_bits), mantissa).astype(np.int64)
    codes = np.where(normal, (exponent + fmt.bias) << fmt.mantissa_bits, 0) | fields
    largest = ((1 << (fmt.bits - 1)) - 1) - _codes_above_largest(fmt)
    toward_zero = (mode == "rz") | ((mode == "rm") & ~negative) | ((mode == "rp") & negative)
    infinity = ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits if fmt.has_infinity else fmt.nan
    clipped = largest if saturate else np.where(toward_zero & finite, largest, infinity)
    codes = np.where(over | (np.isinf(wide)), clipped, codes)
    codes = np.where(negative, codes | (1 << (fmt.bits - 1)), codes)
    nan_code = fmt.nan if fmt.bits > 6 else largest
    codes = np.where(np.isnan(wide), nan_code, codes)
    return codes.astype(np.uint8 if fmt.bits <= 8 else np.uint16 if fmt.bits <= 16 else np.uint32)


def _codes_above_largest(fmt: Format) -> int:
    if fmt.has_infinity:
        return 1 << fmt.mantissa_bits
    return 1 if fmt.name == "e4m3" else 0


def _round_whole(scaled: Array, negative: Array, mode: str) -> Array:
    if mode == "rn":
        return np.rint(scaled)
    if mode == "rna":
        return np.floor(scaled + 0.5)
    if mode == "rz":
        return np.floor(scaled)
    if mode == "rm":
        return np.where(negative, np.ceil(scaled), np.floor(scaled))
    if mode == "rp":
        return np.where(negative, np.floor(scaled), np.ceil(scaled))
    raise ValueError(mode)
