# SPDX-License-Identifier: Apache-2.0
"""Division by numbers that the host knows: a product and a shift instead of 40 instructions that wait for one another.

T. Granlund and P. L. Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994.
"""

from __future__ import annotations

DIVISORS = ("batch", "group", "rows", "rest", "k_tiles")
"""What tiles' numbers are divided by: the tiles of a batch, those of a group of rows, the rows of a group, those that
the last group has, if they are fewer; and the K tiles of a tile."""
NUMBERS = len(DIVISORS) + 1
"""Of ``numbers_of``."""
_BITS = 31
"""Dividends and divisors are below 2 to the power of it."""
SHIFT_BITS = 5
"""Of a shift, where up to six are one number."""


def reciprocal(divisor: int) -> tuple[int, int]:
    """``factor`` and ``shift`` with ``n // divisor == (2 n factor >> 32) >> shift`` for all n from 0 to 2^31 - 1; the
    factor is below 2^32, the divisor from 1 to 2^31 - 1.

    The factor times the divisor exceeds 2^(31 + shift) by less than 2^shift, which moves no quotient.
    """
    shift = (divisor - 1).bit_length()
    return -(-(1 << (_BITS + shift)) // divisor), shift


def numbers_of(tiles_m: int, tiles_n: int, group: int, k_tiles: int) -> list[int]:
    """What a kernel needs to divide by ``DIVISORS``: their factors, and all shifts in one; 32 bits each, signed."""
    divisors = tiles_m * tiles_n, group * tiles_n, group, tiles_m % group, k_tiles
    found = [reciprocal(max(divisor, 1)) for divisor in divisors]
    shifts = sum(shift << index * SHIFT_BITS for index, (_, shift) in enumerate(found))
    return [_signed(factor) for factor, _ in found] + [_signed(shifts)]


def _signed(bits: int) -> int:
    return bits - (bits >> 31 << 32)
