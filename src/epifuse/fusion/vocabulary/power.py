# SPDX-License-Identifier: Apache-2.0
"""``pow`` with a constant exponent, to about one unit in the last place in float32 and float64 alike.

Products lose half a unit each, and exp2(y * log2(x)) loses as many as y * log2(x) has; so values are carried as pairs
``(high, low)`` whose sum is the value, made with ``multiply_add``. A pair of which the low part is NaN (an infinity or
a zero entered) stands for its high part alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from epifuse.fusion.vocabulary.composite import composite
from epifuse.fusion.vocabulary.primitive import abs as magnitude_of
from epifuse.fusion.vocabulary.primitive import equal, exp2, floor, like, log2, multiply_add, reciprocal, sqrt, where
from epifuse.fusion.vocabulary.table import Accuracy, CostClass, Result, Role

_LARGEST_CHAIN = 1024
"""Integer exponents up to this are products: seven operations a binary digit, and integers stay integers."""

_Pair = tuple[Any, Any]


def _value(pair: _Pair) -> Any:
    high, low = pair
    total = high + low
    return where(equal(total, total), total, high)


def _times(a: _Pair, b: _Pair) -> _Pair:
    high = a[0] * b[0]
    return high, multiply_add(a[0], b[0], -high) + (a[0] * b[1] + a[1] * b[0])


def _two_sum(a: Any, b: Any) -> _Pair:
    """a + b as a pair whose low part is no more than a rounding error; |b| <= |a|."""
    high = a + b
    return high, b - (high - a)


def _inverse(a: _Pair) -> _Pair:
    high = reciprocal(a[0])
    return high, (multiply_add(-a[0], high, 1.0) - a[1] * high) * high


def _root(x: Any) -> _Pair:
    high = sqrt(x)
    return high, multiply_add(-high, high, x) * reciprocal(high) * 0.5


def _chain(base: _Pair, n: int) -> _Pair:
    """The n-th power, n >= 1, by squaring."""
    result = None
    while True:
        if n & 1:
            result = base if result is None else _times(result, base)
        n >>= 1
        if not n:
            assert result is not None
            return result
        base = _times(base, base)


def _integer_power(x: Any, n: int) -> Any:
    if n == 1:
        return x
    if n in (2, 3, -2):  # as torch does; the error is at most 1.5 units
        return x * x if n == 2 else x * x * x if n == 3 else reciprocal(x * x)
    if n == -1:
        return reciprocal(x)
    zero = x * 0
    return _value(_chain((x, zero), n) if n > 0 else _chain(_inverse((x, zero)), -n))


def _half_integer_power(x: Any, exponent: float) -> Any:
    if math.fabs(exponent) == 0.5:
        return sqrt(x) if exponent > 0 else reciprocal(sqrt(x))
    root = _root(magnitude_of(x))
    power = _value(_chain(root if exponent > 0 else _inverse(root), round(2.0 * math.fabs(exponent))))
    return _nan_below_zero(x, power)


def _nan_below_zero(x: Any, power: Any) -> Any:
    return where(x < 0, where(x - x == 0, math.nan, power), power)  # but -inf is as inf, in C and in torch


def _split(value: float) -> tuple[float, float]:
    """A number as one that float32 holds exactly, and the rest."""
    high = float(np.float32(value)) if math.fabs(value) < 3e38 else value
    return high, value - high if math.isfinite(high) else 0.0


# 2 artanh(s) = 2 s + s^3 (2/3 + 2/5 s^2 + ...); s^2 <= 0.0295, so eleven terms reach below 2^-58
_ARTANH = tuple(2.0 / (2 * k + 3) for k in range(11))
_LOG2E = math.log2(math.e)
_TWO_LOG2E_HIGH = float(np.float32(2.0 * _LOG2E))
_TWO_LOG2E_LOW = 2.8853900817779268147 - _TWO_LOG2E_HIGH


def _log2_pair(x: Any) -> _Pair:
    """log2(x), x > 0, with about seven digits (binary) more than the dtype has."""
    k = floor(log2(x) + 0.5)
    half = floor(k * 0.5)
    m = x * exp2(-half) * exp2(half - k)  # exact, in two steps as 2^149 is no float32
    above, below = m - 1.0, m + 1.0
    lost = m - (below - 1.0)
    inverse = reciprocal(below)
    s = above * inverse
    s_low = (multiply_add(-s, below, above) - s * lost) * inverse
    square = s * s
    series = square * _ARTANH[-1] + _ARTANH[-2]
    for coefficient in _ARTANH[-3::-1]:
        series = series * square + coefficient
    a = s * _TWO_LOG2E_HIGH
    a_low = multiply_add(s, _TWO_LOG2E_HIGH, -a) + (s * _TWO_LOG2E_LOW + s_low * _TWO_LOG2E_HIGH)
    high = k + a
    return _two_sum(high, ((k - high) + a) + (a_low + s * square * series * _LOG2E))


def _general_power(x: Any, exponent: float) -> Any:
    """By logarithms; the exponent is no integer of moderate size."""
    magnitude = magnitude_of(x)
    simple = exp2(log2(magnitude) * exponent)  # right at 0, inf, NaN and beyond the range
    if math.isfinite(exponent):
        logarithm, y = _log2_pair(magnitude), _split(exponent)
        p, p_low = _two_sum(*_times(logarithm, y))
        near = exp2(p)
        total = near + near * (p_low * math.log(2.0))
        simple = where(equal(total, total), total, simple)
    if not exponent.is_integer():
        return _nan_below_zero(x, simple)
    return where(x < 0, -simple, simple) if exponent % 2 else simple


def _pow_torch(x: torch.Tensor, exponent: int | float) -> torch.Tensor:
    if not x.is_floating_point() and exponent < 0:
        x = x.to(torch.get_default_dtype())
    return torch.pow(x, exponent)


def _slope(x: Any, exponent: int | float) -> Any:
    return like(x, 0.0) if exponent == 0 else pow(x, exponent=exponent - 1) * exponent


@composite(
    _pow_torch, ("torch.pow", "Tensor.pow", "operator.pow", "builtins.pow", "math.pow"), result=Result.SAME,
    roles={"exponent": Role.NUMBER}, cost=CostClass.SPECIAL, accuracy=Accuracy(4.0, 1.2e-38), derivative=_slope,
)  # fmt: skip
def pow(x: Any, exponent: int | float) -> Any:  # noqa: A001 - torch's name
    """x ** exponent for a constant exponent; integers stay integers under an integer exponent >= 0."""
    if isinstance(exponent, float):
        x = x * 1.0  # a float exponent makes floats of integers; exact, and gone where x is a float already
    if exponent == 0:
        return like(x, 1)
    size = math.fabs(exponent)
    if float(exponent).is_integer() and size <= _LARGEST_CHAIN:
        return _integer_power(x, int(exponent))
    if (2.0 * size).is_integer() and size <= 8:
        return _half_integer_power(x, float(exponent))
    return _general_power(x, float(exponent))
