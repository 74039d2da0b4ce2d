# SPDX-License-Identifier: Apache-2.0
"""Distances in units in the last place."""

from __future__ import annotations

import torch

from epifuse import dtypes


def ulp_of(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The spacing of ``dtype``'s numbers around each element of ``exact``, as float64; 1 for integer dtypes.

    Below the smallest normal number it is the spacing of the subnormal ones; above the largest finite number, that of
    the largest binade.
    """
    row = dtypes.of(dtype)
    exact = exact.to(torch.float64)
    if not row.is_float:
        return torch.ones_like(exact)
    info = torch.finfo(dtype)
    magnitude = exact.abs().nan_to_num(nan=info.max).clamp(info.smallest_normal, info.max)
    exponent = torch.frexp(magnitude).exponent - row.digits
    return torch.ldexp(torch.ones_like(magnitude), exponent)


def ulp_error(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|result - exact| in ulps of ``result``'s dtype around ``exact``, element by element, as float64.

    0 where both are the same infinity or both NaN; infinite where one alone is not finite. A result that was rounded
    once, to nearest, from ``exact`` is at most 0.5 away.
    """
    value, exact = result.to(torch.float64), exact.to(torch.float64)
    same = (value == exact) | (value.isnan() & exact.isnan())
    distance = ((value - exact).abs() / ulp_of(exact, result.dtype)).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return torch.where(same, torch.zeros_like(distance), distance)
