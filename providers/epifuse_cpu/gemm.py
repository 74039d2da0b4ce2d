# SPDX-License-Identifier: Apache-2.0
"""The accumulator of the CPU provider: the product in float64, rounded once to the accumulator's dtype.

A BLAS sums in another order at the edges of a matrix, where its micro-kernel does not fit. Here every product is padded
with zeros until it fits, so that the bits of an element depend on its row of A and its column of B alone: not on M, N,
strides, threads, or how a caller splits the rows.
"""

from __future__ import annotations

import torch

from epifuse.dtypes import DType
from epifuse.runtime.rounding import round_to, round_to_tf32, tf32_allowed

TILE = 96
"""Rows and columns are padded to multiples of this, which every usual micro-kernel divides (24x8, 6x8, 4x12, 8x16).

Measured with MKL 2024.2 on AVX-512: products of 16, 32, 64, 128, 256 rows give equal rows two different values;
those of 24, 48, 96, 192, 288, 480, 960 agree with each other bit by bit at every position, with 1 to 8 threads."""

_BLOCK_TILES = 10
_BLOCK_K = 4096
"""Blocks of 960 rows or columns by 4096: at most 31 MB of float64 for A and for B at a time."""


def accumulate(a: torch.Tensor, b: torch.Tensor, accumulator: DType) -> torch.Tensor:
    """``a @ b`` as (L, M, N) in ``accumulator``'s dtype; ``a`` is (M, K) or (L, M, K), ``b`` (K, N) or (L, K, N).

    Floating-point products are rounded once, to nearest even; int32 wraps. Zeros are +0. Where torch's switch allows
    TF32, float32 operands are rounded to it first.
    """
    if tf32_allowed():
        a, b = (round_to_tf32(x) if x.dtype == torch.float32 else x for x in (a, b))
    a, b = (x if x.dim() == 3 else x.unsqueeze(0) for x in (a, b))
    batches, rows, columns = a.shape[0], a.shape[1], b.shape[2]
    result = torch.empty((batches, rows, columns), dtype=accumulator.torch, device=a.device)
    step = TILE * _BLOCK_TILES
    for l in range(batches):
        for m in range(0, rows, step):
            for n in range(0, columns, step):
                block = _block(a[l, m : m + step], b[l, :, n : n + step])
                result[l, m : m + step, n : n + step] = _rounded(block, accumulator)
    return result


def _rounded(block: torch.Tensor, accumulator: DType) -> torch.Tensor:
    if accumulator.is_integer:  # exact in float64; the cast from int64 wraps
        return block.to(torch.int64).to(accumulator.torch)
    return round_to(block, accumulator)


def _block(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of at most 960 rows and columns in float64, over K in steps of fixed size."""
    rows, columns = a.shape[0], b.shape[1]
    total = torch.zeros((_padded(rows), _padded(columns)), dtype=torch.float64, device=a.device)
    for k in range(0, a.shape[1], _BLOCK_K):
        a_part, b_part = a[:, k : k + _BLOCK_K], b[k : k + _BLOCK_K]
        depth = a_part.shape[1]
        total += torch.mm(_wide(a_part, _padded(rows), depth), _wide(b_part, depth, _padded(columns)))
    return total[:rows, :columns]


def _padded(extent: int) -> int:
    return -(-extent // TILE) * TILE


def _wide(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """``x`` as a contiguous float64 matrix of that size, with zeros where it ends."""
    wide = torch.zeros((rows, columns), dtype=torch.float64, device=x.device)
    wide[: x.shape[0], : x.shape[1]] = x
    return wide
