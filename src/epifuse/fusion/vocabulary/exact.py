# SPDX-License-Identifier: Apache-2.0
"""``a * b + c`` with a single rounding, on torch tensors and numpy arrays of every floating dtype.

Neither torch nor numpy has an fma. The way here: an exact product, a sum that is rounded *to odd* in float64 (the last
bit of an inexact result is set), and one rounding to nearest. Two bits more than the target needs are enough for
rounding to odd to be invisible afterwards; float64 has 29 more than float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from epifuse import dtypes
from epifuse.runtime.rounding import round_to

_SPLITTER = 134217729.0  # 2^27 + 1, Veltkamp's constant for float64
# Outside of these the partial products of Dekker's method may overflow or lose bits below 2^-1074.
_LARGEST_FACTOR = 2.0**990
_LARGEST_TERM = 2.0**1020
_SMALLEST_PRODUCT = 2.0**-900


def two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded sum and its exact error (Knuth). NaN in the error where the sum is not finite."""
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def two_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded float64 product and its exact error (Dekker), within the range of ``_in_range``."""
    a_scaled, b_scaled = a * _SPLITTER, b * _SPLITTER
    a_high, b_high = a_scaled - (a_scaled - a), b_scaled - (b_scaled - b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def add_to_odd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The float64 sum rounded to odd: the neighbour with an odd last bit wherever the sum is inexact."""
    total, error = two_sum(a, b)
    bits = total.view(torch.int64)
    inexact = total.isfinite() & error.isfinite() & (error != 0) & (bits & 1 == 0)
    step = torch.where((error > 0) == (total > 0), 1, -1)
    return torch.where(inexact, bits + step, bits).view(torch.float64)


def _exact_float64(a: float, b: float, c: float) -> float:
    """The fma of three finite numbers by rational arithmetic."""
    from fractions import Fraction  # noqa: PLC0415 - 2 ms of every import, with decimal

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if a == 0 or b == 0 or c == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _fma_float64(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Boldo and Melquiond's algorithm; elements near the ends of the range go through rational arithmetic."""
    high, low = two_product(a, b)
    middle, rest = two_sum(c, low)
    top, bottom = two_sum(high, middle)
    result = top + add_to_odd(bottom, rest)
    magnitude = high.abs()
    zero = (a == 0) | (b == 0)
    finite = a.isfinite() & b.isfinite() & c.isfinite()
    regular = (a.abs() < _LARGEST_FACTOR) & (b.abs() < _LARGEST_FACTOR) & (c.abs() < _LARGEST_TERM)
    regular &= (magnitude < _LARGEST_TERM) & (magnitude > _SMALLEST_PRODUCT) & ~zero
    # A finite product that overflows when rounded must not meet an infinite c of the other sign.
    naive = torch.where(a.isfinite() & b.isfinite() & ~zero & c.isinf(), c, a * b + c)
    result = torch.where(regular, result, naive)
    odd_ones = (finite & ~regular & ~zero).nonzero(as_tuple=True)
    if odd_ones[0].numel():
        triples = zip(a[odd_ones].tolist(), b[odd_ones].tolist(), c[odd_ones].tolist(), strict=True)
        fixed = [_exact_float64(*triple) for triple in triples]
        result[odd_ones] = torch.tensor(fixed, dtype=torch.float64, device=result.device)
    return result


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    dtype = torch.result_type(a, b) if a.dtype == b.dtype else torch.promote_types(a.dtype, b.dtype)
    dtype = torch.promote_types(dtype, c.dtype)
    if not dtype.is_floating_point:
        return a * b + c
    wide = torch.broadcast_tensors(*(v.to(torch.float64) for v in (a, b, c)))  # type: ignore[no-untyped-call]
    if dtype == torch.float64:
        return _fma_float64(*wide) if wide[0].ndim else _fma_float64(*(v.reshape(1) for v in wide)).reshape(())
    total = add_to_odd(wide[0] * wide[1], wide[2])
    return round_to(total, dtypes.of(dtype))


class _Fma(torch.autograd.Function):
    """The same with the gradient of ``a * b + c``."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.c_shape = c.shape
        return _fma(a, b, c)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b = ctx.saved_tensors
        (gradient,) = gradients
        of_a, of_b, of_c = ctx.needs_input_grad
        return (
            (gradient * b).sum_to_size(a.shape) if of_a else None,
            (gradient * a).sum_to_size(b.shape) if of_b else None,
            gradient.sum_to_size(ctx.c_shape) if of_c else None,
        )


def fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """``a * b + c`` rounded once to the promoted dtype of the three tensors, which broadcast; integers wrap."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or c.requires_grad):
        result: torch.Tensor = _Fma.apply(a, b, c)  # type: ignore[no-untyped-call]
        return result
    return _fma(a, b, c)


def fma_numpy(a: Any, b: Any, c: Any) -> Any:
    """``fma`` on numpy arrays and numbers; a number takes the dtype of the arrays beside it."""
    dtype = np.result_type(a, b, c)
    tensors = [torch.from_numpy(np.array(v, dtype=dtype)) for v in (a, b, c)]
    return fma(*tensors).numpy()[()]
