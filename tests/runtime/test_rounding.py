# SPDX-License-Identifier: Apache-2.0
"""``round_to`` against exact rational arithmetic: every value of the narrow types, their midpoints and neighbours."""

import math
import random
import warnings
from bisect import bisect_left
from fractions import Fraction

import pytest
import torch

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.runtime.rounding import round_to, round_to_tf32, tf32_allowed

NARROW = (dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2)
SMALLEST_EXPONENT = {"float32": -149, "float16": -24, "bfloat16": -133, "float8_e4m3fn": -9, "float8_e5m2": -16}
"""The exponent of the smallest subnormal number."""
INTEGERS = (dtypes.INT8, dtypes.UINT8, dtypes.INT16, dtypes.INT32, dtypes.INT64)


def nearest_even(x: Fraction, dtype: DType) -> float:
    """The oracle: ``x`` rounded to a grid of ``digits`` bits, ties to even, then overflow as the type has it."""
    if x == 0:
        return 0.0
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    step = Fraction(2) ** max(exponent - dtype.digits + 1, SMALLEST_EXPONENT[dtype.name])
    rounded = round(magnitude / step) * step  # Python rounds a Fraction to even
    highest = Fraction(dtype.highest)
    if dtype.saturates:
        rounded = min(rounded, highest)
    result = math.inf if rounded > highest else float(rounded)
    return -result if x < 0 else result


def all_values(dtype: DType) -> torch.Tensor:
    """Every finite value, as float64, ascending, zero once."""
    codes = torch.arange(1 << dtype.bits, dtype=torch.int32).to(torch.uint8 if dtype.bits == 8 else torch.int16)
    values = codes.view(dtype.torch).to(torch.float64)
    return values[values.isfinite()].unique()


def agree(source: torch.Tensor, dtype: DType) -> None:
    found = round_to(source, dtype)
    assert found.dtype == dtype.torch
    assert found.shape == source.shape
    expected = [nearest_even(Fraction(v), dtype) for v in source.tolist()]
    torch.testing.assert_close(found.to(torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_value_stays(dtype: DType) -> None:
    values = all_values(dtype)
    for wide in (torch.float64, torch.float32):
        assert torch.equal(round_to(values.to(wide), dtype).to(torch.float64), values)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_midpoint_goes_to_even_and_its_neighbors_to_their_side(dtype: DType) -> None:
    values = all_values(dtype)
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    bits = low.to(dtype.torch).view(torch.uint8 if dtype.bits == 8 else torch.int16)
    even = torch.where(bits & 1 == 0, low, high)
    for wide in (torch.float64, torch.float32):
        exact = middle.to(wide)
        assert torch.equal(exact.to(torch.float64), middle)
        assert torch.equal(round_to(exact, dtype).to(torch.float64), even)
        step = torch.tensor(math.inf, dtype=wide)
        assert torch.equal(round_to(torch.nextafter(exact, step), dtype).to(torch.float64), high)
        assert torch.equal(round_to(torch.nextafter(exact, -step), dtype).to(torch.float64), low)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_float64_is_not_rounded_twice(dtype: DType) -> None:
    """Next to a midpoint by less than float32 can tell: by way of float32 the tie would be broken to even."""
    middle = (all_values(dtype)[:-1] + all_values(dtype)[1:]) / 2
    middle = middle[middle.abs() > 2.0**-100]
    above, below = middle + middle.abs() * 2.0**-50, middle - middle.abs() * 2.0**-50
    twice = above.to(torch.float32).to(dtype.torch)
    assert (round_to(above, dtype).to(torch.float64) != twice.to(torch.float64)).float().mean() > 0.3, "no trap"
    sample = torch.cat((above, below))
    sample = sample[torch.randperm(sample.numel(), generator=torch.Generator().manual_seed(0))[:2000]]
    agree(sample, dtype)


@pytest.mark.parametrize("dtype", [*NARROW, dtypes.FLOAT32], ids=str)
def test_random_float64_of_every_magnitude(dtype: DType) -> None:
    rng = random.Random(1)
    span = 8 + int(math.log2(dtype.highest))
    lowest = SMALLEST_EXPONENT[dtype.name] - 4
    values = [math.ldexp(rng.uniform(-2, 2), rng.randint(lowest, span)) for _ in range(3000)]
    agree(torch.tensor(values, dtype=torch.float64), dtype)
    agree(torch.tensor(values, dtype=torch.float32)[torch.tensor(values).float().isfinite()], dtype)


@pytest.mark.parametrize("dtype", [*NARROW, dtypes.FLOAT32], ids=str)
@pytest.mark.parametrize("source", [torch.int32, torch.int64], ids=str)
def test_integers_are_rounded_once(dtype: DType, source: torch.dtype) -> None:
    rng = random.Random(2)
    bits = 31 if source == torch.int32 else 63
    values = [rng.choice((-1, 1)) * rng.getrandbits(rng.randint(1, bits)) for _ in range(2000)]
    for exponent in range(2, bits):  # powers of two, the ties behind them, and one beside the tie
        values += [1 << exponent, (1 << exponent) + 1, -(1 << exponent) - 1]
        values += [(1 << exponent) + (1 << max(0, exponent - d)) + e for d in (3, 4, 8, 11, 24) for e in (0, 1)]
    limit = (1 << bits) - 1
    agree(torch.tensor([max(-limit, min(limit, v)) for v in values], dtype=source), dtype)


def test_int64_beyond_float64_keeps_its_sticky_bit() -> None:
    tie = 2**62 + 2**38
    values = torch.tensor([tie, tie + 1, tie - 1, 2**63 - 1, -(2**63)])
    expected = torch.tensor([2.0**62, 2.0**62 + 2.0**39, 2.0**62, 2.0**63, -(2.0**63)])
    assert torch.equal(round_to(values, dtypes.FLOAT32), expected)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_special_values(dtype: DType) -> None:
    for wide in (torch.float64, torch.float32):
        source = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1e38], dtype=wide)
        found = round_to(source, dtype).to(torch.float64)
        top = dtype.highest if dtype.saturates else math.inf
        assert found[:2].tolist() == [top, -top]
        assert found[2].isnan()
        assert found[3] == 0
        assert found[3].signbit()
        assert found[4] == nearest_even(Fraction(source[4].item()), dtype)


def test_overflow_starts_at_half_a_step_beyond_the_largest_value() -> None:
    source = torch.tensor([65519.0, 65520.0 - 2.0**-37, 65520.0, 65536.0], dtype=torch.float64)
    assert round_to(source, dtypes.FLOAT16).tolist() == [65504.0, 65504.0, math.inf, math.inf]
    largest = torch.tensor([dtypes.FLOAT32.highest, 3.4028235677973362e38, 3.4028235677973366e38], dtype=torch.float64)
    assert round_to(largest, dtypes.FLOAT32).isinf().tolist() == [False, False, True]
    assert round_to(largest, dtypes.BFLOAT16).isinf().tolist() == [True, True, True]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_stores_round_to_even_and_saturate(dtype: DType) -> None:
    low, high = int(dtype.lowest), int(dtype.highest)
    source = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, math.nan, math.inf, -math.inf, 1e30, -1e30]
    expected = [0, 2, 2, 0, -2, -2, 0, high, low, high, low]
    expected = [max(low, min(high, v)) for v in expected]
    for wide in (torch.float64, torch.float32):
        assert round_to(torch.tensor(source, dtype=wide), dtype).tolist() == expected
    edges = torch.tensor([low - 1.0, low - 0.5, high - 0.5, high + 0.5, high + 1.0], dtype=torch.float64)
    expected = [max(low, min(high, round(v))) for v in edges.tolist()]
    assert round_to(edges, dtype).tolist() == expected
    whole = torch.tensor([-(2**63), -(2**31) - 1, -129, -1, 0, 200, 256, 2**31, 2**63 - 1])
    assert round_to(whole, dtype).tolist() == [max(low, min(high, v)) for v in whole.tolist()]


def test_float32_just_below_the_int32_limit_does_not_wrap() -> None:
    source = torch.tensor([2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0])
    assert round_to(source, dtypes.INT32).tolist() == [2147483520, 2**31 - 1, -(2**31), -(2**31)]


def test_conditions() -> None:
    flags = torch.tensor([True, False])
    for dtype in (*NARROW, *INTEGERS, dtypes.FLOAT32, dtypes.FLOAT64):
        assert round_to(flags, dtype).to(torch.float64).tolist() == [1.0, 0.0]
    assert round_to(torch.tensor([0.0, -0.0, 1e-300, math.nan], dtype=torch.float64), dtypes.BOOL).tolist() == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("dtype", [*NARROW, dtypes.INT8], ids=str)
def test_any_shape_and_stride(dtype: DType) -> None:
    base = torch.randn(7, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 20
    expected = round_to(base.flatten().clone(), dtype).to(torch.float64).reshape(7, 6, 5)
    for view, same in (
        (base.permute(2, 0, 1), expected.permute(2, 0, 1)),
        (base[::2, 1:, ::3], expected[::2, 1:, ::3]),
        (base[:1].expand(4, 6, 5), expected[:1].expand(4, 6, 5)),
        (base[0, 0, 0], expected[0, 0, 0]),
        (base[:0], expected[:0]),
    ):
        found = round_to(view, dtype)
        assert found.shape == view.shape
        assert torch.equal(found.to(torch.float64), same)


def test_a_value_that_has_the_dtype_is_returned_as_it_is() -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    assert round_to(x, dtypes.BFLOAT16) is x


def test_tf32_rounds_half_away_from_zero() -> None:
    step = 2.0**-10
    source = torch.tensor([1.0, 1 + step / 2, 1 + step / 2 - 2.0**-23, -1 - step / 2, 1 + 1.5 * step, -0.0, 3.3e38])
    expected = [1.0, 1 + step, 1.0, -1 - step, 1 + 2 * step, 0.0]
    found = round_to_tf32(source)
    assert found[:6].tolist() == expected
    assert found[5].signbit()
    assert found.view(torch.int32).bitwise_and(0x1FFF).count_nonzero() == 0
    special = torch.tensor([math.inf, -math.inf, math.nan])
    assert torch.equal(round_to_tf32(special)[:2], special[:2])
    assert round_to_tf32(special)[2].isnan()
    assert round_to_tf32(torch.tensor([dtypes.FLOAT32.highest])).tolist() == [math.inf]


@pytest.fixture
def switches():
    """torch's precision switches, put back as they were."""
    yield torch.backends.cuda.matmul
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = "none"


@pytest.mark.parametrize(
    ("steps", "allowed"),
    [
        ((), False),
        (("high",), True),
        (("medium",), True),
        (("highest",), False),
        (("old true",), True),
        (("old true", "old false"), False),
        (("tf32",), True),
        (("ieee",), False),
        (("all tf32",), True),
        (("all tf32", "ieee"), False),
        (("high", "ieee"), False),
        (("ieee", "tf32"), True),
    ],
    ids=lambda value: " then ".join(value) if isinstance(value, tuple) else None,
)
def test_tf32_switch_is_read_however_it_was_set(switches, steps: tuple[str, ...], allowed: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in steps:
            if step in ("high", "medium", "highest"):
                torch.set_float32_matmul_precision(step)
            elif step.startswith("old"):
                switches.allow_tf32 = step == "old true"
            elif step.startswith("all"):
                torch.backends.fp32_precision = "tf32"
            else:
                switches.fp32_precision = step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tf32_allowed() is allowed


def test_the_oracle_itself() -> None:
    """Known values, so that the oracle does not share a fault with the code."""
    assert nearest_even(Fraction(17, 16), dtypes.FLOAT8_E4M3FN) == 1.0
    assert nearest_even(Fraction(19, 16), dtypes.FLOAT8_E4M3FN) == 1.25
    assert nearest_even(Fraction(3, 2**12), dtypes.FLOAT8_E4M3FN) == 0.0
    assert nearest_even(Fraction(1, 2**10), dtypes.FLOAT8_E4M3FN) == 0.0
    assert nearest_even(Fraction(3, 2**10), dtypes.FLOAT8_E4M3FN) == 2.0**-8
    assert nearest_even(Fraction(500), dtypes.FLOAT8_E4M3FN) == 448.0
    values = all_values(dtypes.FLOAT16).tolist()
    rng = random.Random(4)
    for _ in range(500):
        x = rng.uniform(-70, 70)
        at = bisect_left(values, x)
        assert nearest_even(Fraction(x), dtypes.FLOAT16) in (values[at - 1], values[at])
