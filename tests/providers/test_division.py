# SPDX-License-Identifier: Apache-2.0
"""Division by reciprocals."""

from hypothesis import example, given
from hypothesis import strategies as st

from epifuse_cutedsl.tile.division import DIVISORS, NUMBERS, SHIFT_BITS, numbers_of, reciprocal

LARGEST = 2**31 - 1


def quotient(value: int, factor: int, shift: int) -> int:
    """As kernels have it: the upper half of a product of two words, and a shift."""
    return (2 * value * factor >> 32) >> shift


@given(st.integers(0, LARGEST), st.integers(1, LARGEST))
@example(LARGEST, 1)
@example(LARGEST, LARGEST)
@example(LARGEST - 1, LARGEST)
@example(LARGEST, 2**30 + 1)
def test_any_quotient(value, divisor):
    factor, shift = reciprocal(divisor)
    assert factor < 2**32
    assert shift < 2**SHIFT_BITS
    assert quotient(value, factor, shift) == value // divisor


@given(st.integers(1, LARGEST), st.integers(1, LARGEST))
def test_quotients_around_multiples(divisor, multiple):
    value = multiple * divisor % (LARGEST + 1) // divisor * divisor
    for near in (value - 1, value, value + 1):
        if 0 <= near <= LARGEST:
            assert quotient(near, *reciprocal(divisor)) == near // divisor


@given(st.integers(0, 40000), st.integers(0, 40000), st.integers(1, 8), st.integers(0, 10**6))
def test_numbers_of_a_grid(tiles_m, tiles_n, group, k_tiles):
    numbers = [number % 2**32 for number in numbers_of(tiles_m, tiles_n, group, k_tiles)]
    assert len(numbers) == NUMBERS
    divisors = dict(zip(DIVISORS, (tiles_m * tiles_n, group * tiles_n, group, tiles_m % group, k_tiles), strict=True))
    for index, (name, divisor) in enumerate(divisors.items()):
        shift = numbers[-1] >> index * SHIFT_BITS & (1 << SHIFT_BITS) - 1
        assert (numbers[index], shift) == reciprocal(max(divisor, 1)), name
