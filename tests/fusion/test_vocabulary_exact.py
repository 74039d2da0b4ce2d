# SPDX-License-Identifier: Apache-2.0
"""multiply_add rounds once, in every dtype; judged by rational arithmetic."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

from epifuse.fusion.activation import multiply_add
from epifuse.fusion.vocabulary import exact


def bits(values: torch.Tensor) -> list[int]:
    kinds = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16}
    kinds[torch.bfloat16] = torch.int16
    return values.view(kinds[values.dtype]).tolist()


def nearest_float32(value: Fraction) -> float:
    """The float32 nearest to a fraction, ties to even, by integers alone."""
    if value == 0:
        return 0.0
    size, exponent = abs(value), 0
    while size >= 2**24:
        size, exponent = size / 2, exponent + 1
    while size < 2**23 and exponent > -149:
        size, exponent = size * 2, exponent - 1
    whole = round(size)  # Python rounds fractions to even
    found = math.ldexp(whole, exponent)
    found = math.inf if found >= 2.0**128 else found
    return math.copysign(found, value)


def random_float32(count: int, seed: int, low: int, high: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mantissa = torch.rand(count, generator=generator) + 1.0
    exponent = torch.randint(low, high, (count,), generator=generator)
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return torch.ldexp(mantissa, exponent) * sign


@pytest.mark.parametrize(("low", "high"), [(-2, 2), (-30, 30), (-75, -60), (55, 64)])
def test_float32_is_rounded_once(low: int, high: int) -> None:
    a, b = random_float32(400, 1, low, high), random_float32(400, 2, low, high)
    c = -(a * b) * (1 + random_float32(400, 3, -30, 2))  # nearly cancels, in all degrees
    found = multiply_add(a, b, c)
    wanted = [
        nearest_float32(Fraction(x) * Fraction(y) + Fraction(z)) if math.isfinite(z) else z
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert found.tolist() == wanted
    if low == -2:
        assert (found != a * b + c).any()  # two roundings would be seen


def test_float32_ties_that_two_roundings_get_wrong() -> None:
    a = torch.tensor([1.0 + 2.0**-12, 1.0 + 2.0**-12])
    c = torch.tensor([2.0**-60, -(2.0**-60)])
    # a * a = 1 + 2^-11 + 2^-24 lies halfway between two float32; c decides
    assert multiply_add(a, a, c).tolist() == [1.0 + 2.0**-11 + 2.0**-23, 1.0 + 2.0**-11]


@pytest.mark.parametrize("scale", [0, 300, -300, 500, -500, -530])
def test_float64_is_rounded_once(scale: int) -> None:
    generator = np.random.default_rng(7)
    a = np.ldexp(generator.standard_normal(300), scale)
    b = np.ldexp(generator.standard_normal(300), scale)
    c = -(a * b) * (1.0 + np.ldexp(generator.standard_normal(300), generator.integers(-60, 2, 300)))
    found = multiply_add(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(c))
    wanted = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        wanted.append(float(Fraction(x) * Fraction(y) + Fraction(z)))
    assert found.tolist() == wanted
    if scale == 0:
        assert (found.numpy() != a * b + c).any()


def test_float64_at_the_ends_of_the_range() -> None:
    big, tiny = 1.7e308, 5e-324
    cases = [
        (big, 2.0, -big), (big, 2.0, -math.inf), (big, 2.0, 0.0), (tiny, 0.5, tiny), (tiny, tiny, 1.0),
        (tiny, tiny, -tiny), (1e-200, 1e-200, tiny), (2.0**-1022, 2.0**-52, 2.0**-1074), (-big, 1.5, big),
    ]  # fmt: skip
    a, b, c = (torch.tensor(column, dtype=torch.float64) for column in zip(*cases, strict=True))
    assert multiply_add(a, b, c).tolist() == [
        big, -math.inf, math.inf, 2.0 * tiny, 1.0, -tiny, tiny, 2.0 * 2.0**-1074, -0.5 * big,
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_special_values_are_those_of_a_product_and_a_sum(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.5], dtype=dtype)
    a, b, c = (v.reshape(-1) for v in torch.meshgrid(values, values, values, indexing="ij"))
    found, naive = multiply_add(a, b, c), a * b + c
    assert torch.equal(found.isnan(), naive.isnan())
    known = ~naive.isnan()
    assert bits(found[known]) == bits(naive[known])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    a, b, c = (torch.randn(3000, generator=generator).to(dtype) for _ in range(3))
    c = c * 2.0**-9
    found = multiply_add(a, b, c)
    assert found.dtype == dtype
    gap = (torch.nextafter(found.float(), found.float() * 2) - found.float()).abs()
    assert gap.numel() == 3000
    for x, y, z, w in zip(a.tolist(), b.tolist(), c.tolist(), found.tolist(), strict=True):
        value = Fraction(x) * Fraction(y) + Fraction(z)
        digits = 11 if dtype == torch.float16 else 8
        exponent = max(math.frexp(float(value))[1] - digits, -24 if dtype == torch.float16 else -133)
        assert Fraction(w) == round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent


def test_numbers_arrays_and_broadcasts() -> None:
    assert multiply_add(2.0, 3.0, 1.0) == 7.0
    assert multiply_add(2, 3, 1) == 7
    assert isinstance(multiply_add(2, 3, 1), int)
    a = np.float32([1 + 2.0**-12, 3.0])
    found = multiply_add(a, a[:, None], np.float32(2.0**-60))
    assert found.dtype == np.float32
    assert found.shape == (2, 2)
    assert found[0, 0] == np.float32(1.0 + 2.0**-11 + 2.0**-23)
    assert multiply_add(torch.ones(3, 1), torch.ones(4), 2.0).tolist() == [[3.0] * 4] * 3
    assert multiply_add(torch.tensor(1.5, dtype=torch.float64), 2.0, 0.25).item() == 3.25
    whole = multiply_add(torch.tensor([3], dtype=torch.int32), 4, 5)
    assert (whole.dtype, whole.tolist()) == (torch.int32, [17])
    assert multiply_add(torch.empty(0), 1.0, 2.0).shape == (0,)


def test_the_gradient_is_that_of_a_product_and_a_sum() -> None:
    a = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4, dtype=torch.float64, requires_grad=True)
    c = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(multiply_add, (a, b, c))


def test_rounding_to_odd() -> None:
    one = torch.tensor([1.0], dtype=torch.float64)
    for small, pattern in ((2.0**-80, 1), (-(2.0**-80), -1)):
        found = exact.add_to_odd(one, torch.tensor([small], dtype=torch.float64)).item()
        assert struct.pack("<d", found) == struct.pack("<q", 0x3FF0000000000000 + pattern)
    assert exact.add_to_odd(one, one).item() == 2.0
