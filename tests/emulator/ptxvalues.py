# SPDX-License-Identifier: Apache-2.0
"""Inputs for tests of single instructions: corners of each type and random bits, and exact roundings of rationals."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

_CORNERS = {
    8: [0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF],
    16: [0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0x0400, 0x03FF],
    32: [0, 1, 2, 3, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0x55555555, 0x00010000],
    64: [0, 1, 2, 63, 64, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, (1 << 64) - 1, 1 << 32, 0x5555555555555555],
}
_FLOAT_CORNERS = {
    32: [
        *(0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 0.1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38),
        *(
            1.17549435e-38,
            3.4028235e38,
            -3.4028235e38,
            16777216.0,
            16777217.0,
            2147483648.0,
            -2147483648.0,
            4294967296.0,
        ),
        *(
            127.5,
            128.0,
            255.5,
            -128.5,
            65504.0,
            65519.996,
            65520.0,
            448.0,
            464.0,
            465.0,
            57344.0,
            61440.0,
            6.1e-5,
            6e-8,
        ),
        *(2.98e-8, 2.9802322e-8, 0.001953125, 0.0009765625, 0.00097656256, 1.0009766, 1.0004883, 3.3895314e38),
    ],
    64: [
        *(0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 0.1, -0.1, np.inf, -np.inf, np.nan, 5e-324, 2.2250738585072014e-308),
        *(
            1.7976931348623157e308,
            -1.7976931348623157e308,
            9007199254740993.0,
            1.0000000000000002,
            3.4028235677973366e38,
        ),
        *(1e300, 1e-300, 4294967296.5, -2147483649.0, 1.0000000596046448, 1.000000059604645, 6.0e-46, 7.1e-46),
    ],
}


def integers(bits: int, count: int = 0, seed: int = 0) -> np.ndarray:
    """Corners of unsigned integers of a width, then `count` random ones of every magnitude."""
    rng = np.random.default_rng(seed)
    raw = (
        rng.integers(0, 1 << bits, count, np.uint64, endpoint=False)
        if bits < 64
        else rng.integers(0, (1 << 64) - 1, count, np.uint64, endpoint=True)
    )
    shifts = rng.integers(0, bits, count).astype(np.uint64)
    return np.concatenate((np.array(_CORNERS[bits], np.uint64), raw >> shifts)).astype(f"u{bits // 8}")


def integer_pairs(bits: int, count: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of corners, then random pairs."""
    return _pairs(integers(bits), integers(bits, count, seed + 1), integers(bits, count, seed + 2))


def floats(bits: int, count: int = 0, seed: int = 0) -> np.ndarray:
    """Corners of a float type (32 or 64 bits), then random ones: half of them near 1, half any bits."""
    rng = np.random.default_rng(seed)
    kind, wide = (np.float32, np.uint32) if bits == 32 else (np.float64, np.uint64)
    near = (rng.standard_normal(count // 2) * np.exp2(rng.integers(-8, 9, count // 2))).astype(kind)
    any_bits = rng.integers(0, np.iinfo(wide).max, count - count // 2, wide, endpoint=True).view(kind)
    return np.concatenate((np.array(_FLOAT_CORNERS[bits]).astype(kind), near, any_bits))


def float_pairs(bits: int, count: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of corners, then random pairs; some so close that their sums cancel."""
    corners, left, right = floats(bits), floats(bits, count, seed + 1), floats(bits, count, seed + 2)
    right[-count // 4 :] = -left[-count // 4 :] * right.dtype.type(1.0 + 2.0**-20)
    return _pairs(corners, left, right)


def _pairs(corners: np.ndarray, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(list(itertools.product(corners, corners)), corners.dtype)
    return np.concatenate((table[:, 0], left)), np.concatenate((table[:, 1], right))


# -- exact rounding ----------------------------------------------------------------------------------------------


def round_exact(value: Fraction, mantissa: int, lowest: int, mode: str) -> Fraction:
    """A rational rounded to `mantissa` explicit bits, with 2**`lowest` the smallest normal; the range is not limited.

    Modes: rn (ties to even), rna (ties away), rz, rm, rp.
    """
    if value == 0:
        return value
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, lowest) - mantissa)
    steps, rest = divmod(size / unit, 1)
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and steps % 2 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": rest > 0 and value < 0,
        "rp": rest > 0 and value > 0,
    }[mode]
    found = (steps + (1 if up else 0)) * unit
    return found if value > 0 else -found


FORMATS = {"f32": (23, -126, 127), "f64": (52, -1022, 1023), "f16": (10, -14, 15), "bf16": (7, -126, 127)}
"""Explicit mantissa bits, exponent of the smallest normal, largest exponent."""


def rounded(value: Fraction, name: str, mode: str, zero: float = 0.0) -> float:
    """A rational as a float of a format with infinities; `zero` is what an exact zero becomes."""
    mantissa, lowest, highest = FORMATS[name]
    if value == 0:
        return zero
    found = round_exact(value, mantissa, lowest, mode)
    largest = (2 - Fraction(2) ** -mantissa) * Fraction(2) ** highest
    if abs(found) > largest:
        to_largest = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        size = float(largest) if to_largest else np.inf
        return size if value > 0 else -size
    if found == 0:
        return 0.0 if value > 0 else -0.0
    return float(found)


def same_bits(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where two float arrays agree bit for bit, all NaN being one."""
    bits = f"u{found.itemsize}"
    return (found.view(bits) == expected.view(bits)) | (np.isnan(found) & np.isnan(expected))
