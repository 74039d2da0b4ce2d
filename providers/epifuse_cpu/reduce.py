# SPDX-License-Identifier: Apache-2.0
"""Reductions of an epilogue: float sums in float64, integer sums in int64, in an order that depends on sizes alone."""

from __future__ import annotations

import torch

from epifuse_cpu.primitives import Emitter, maximum, minimum

_COMBINE: dict[str, tuple[Emitter, float]] = {
    "sum": (torch.add, 0.0),
    "mean": (torch.add, 0.0),
    "max": (maximum, float("-inf")),
    "min": (minimum, float("inf")),
}
"""How two partial results become one, and what the fold of no position gives."""


def reduce(x: torch.Tensor, combine: str, axes: tuple[bool, bool, bool]) -> torch.Tensor:
    """``x`` (L, M, N) folded over ``axes``, which stay with size 1; unrounded, in float64, int64 or ``x``'s dtype.

    ``max`` and ``min`` propagate NaN. The fold of no position is 0, -inf (``max``), +inf (``min``) or NaN (``mean``),
    which a store to an integer turns into its lowest or highest value, or 0.
    """
    function, identity = _COMBINE[combine]
    if combine in ("sum", "mean"):
        x = x.to(torch.float64 if x.dtype.is_floating_point else torch.int64)
    count = 1
    for axis in (2, 1, 0):
        if axes[axis]:
            count *= x.shape[axis]
    if count == 0:
        shape = [1 if folded else size for size, folded in zip(x.shape, axes, strict=True)]
        value = float("nan") if combine == "mean" else identity
        return torch.full(shape, value, dtype=torch.float64, device=x.device)
    for axis in (2, 1, 0):
        if axes[axis]:
            x = _fold(x, axis, function)
    if combine in ("sum", "mean"):
        x = x + 0  # as every sum begins: of nothing but -0.0 it is 0.0, in torch and in the kernels too
    return x.to(torch.float64) / count if combine == "mean" else x


def _fold(x: torch.Tensor, axis: int, function: Emitter) -> torch.Tensor:
    """Fold the upper half onto the lower one until one position is left; torch's own order follows its threads."""
    size = x.shape[axis]
    half = 1 << max(0, (size - 1).bit_length() - 1)
    if size > 1 and half * 2 != size:
        low, rest = x.narrow(axis, 0, size - half), x.narrow(axis, size - half, 2 * half - size)
        x = torch.cat((function(low, x.narrow(axis, half, size - half)), rest), axis)
    else:
        half = size
    while half > 1:
        half //= 2
        x = function(x.narrow(axis, 0, half), x.narrow(axis, half, half))
    return x
