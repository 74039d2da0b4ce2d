# SPDX-License-Identifier: Apache-2.0
"""The accumulator of the CPU provider: the product in float64, rounded once to the accumulator's dtype.

A BLAS picks another kernel, and so another order of summation, at the edges of a matrix and for other sizes. Here
every product is made of products of one and the same size, zero-padded, so that the bits of an element depend on its
row of A and its column of B alone: not on M, N, strides, or how a caller splits the rows.
"""

from __future__ import annotations

import torch

from epifuse.dtypes import DType
from epifuse.runtime.rounding import round_to, round_to_tf32, tf32_allowed

TILE = 96
"""Rows and columns of one product: a multiple of every BLAS micro-kernel's (24x8, 6x8, 4x12, 8x16...), so that none of
its rows or columns is an edge. Measured with MKL on AVX-512: 16, 32, 64, 128, 256 give two values for equal rows, 24,
48, 96, 192 one; 96 reaches the speed of one large call."""

_BLOCK_TILES = 10
_BLOCK_K = 4096
"""Blocks of 960 rows or columns by 4096: at most 31 MB of float64 for A and for B at a time."""


def accumulate(a: torch.Tensor, b: torch.Tensor, accumulator: DType) -> torch.Tensor:
    """``a @ b`` as (L, M, N) in ``accumulator``'s dtype; ``a`` is (M, K) or (L, M, K), ``b`` (K, N) or (L, K, N).

    Floating-point products are rounded once, to nearest even; int32 wraps. Zeros are +0. Where torch's switch allows
    TF32, float32 operands are rounded to it first.
    """
    a, b = _batched(a), _batched(b)
    tf32 = tf32_allowed()
    a, b = (round_to_tf32(x) if tf32 and x.dtype == torch.float32 else x for x in (a, b))
    batches, rows, columns = max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]
    if a.shape[0] == 0 or b.shape[0] == 0:
        batches = 0
    result = torch.empty((batches, rows, columns), dtype=accumulator.torch, device=a.device)
    step = TILE * _BLOCK_TILES
    for l in range(batches):
        a_l, b_l = a[min(l, a.shape[0] - 1)], b[min(l, b.shape[0] - 1)]
        for m in range(0, rows, step):
            for n in range(0, columns, step):
                block = _block(a_l[m : m + step], b_l[:, n : n + step])
                result[l, m : m + step, n : n + step] = _rounded(block, accumulator)
    return result


def _batched(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 3 else x.unsqueeze(0)


def _rounded(block: torch.Tensor, accumulator: DType) -> torch.Tensor:
    if accumulator.is_integer:  # exact in float64; the cast from int64 wraps
        return block.to(torch.int64).to(accumulator.torch)
    return round_to(block, accumulator)


def _block(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of at most 960 rows and columns in float64, K in steps of fixed size."""
    rows, columns = a.shape[0], b.shape[1]
    total = torch.zeros((_tiles(rows) * TILE, _tiles(columns) * TILE), dtype=torch.float64, device=a.device)
    for k in range(0, a.shape[1], _BLOCK_K):
        a_tiles, b_tiles = _row_tiles(a[:, k : k + _BLOCK_K]), _column_tiles(b[k : k + _BLOCK_K])
        for i, a_tile in enumerate(a_tiles):
            for j, b_tile in enumerate(b_tiles):
                total[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE] += torch.mm(a_tile, b_tile)
    return total[:rows, :columns]


def _tiles(extent: int) -> int:
    return -(-extent // TILE)


def _row_tiles(a: torch.Tensor) -> torch.Tensor:
    """(tiles, TILE, K) float64, zero-padded."""
    rows, depth = a.shape
    padded = torch.zeros((_tiles(rows) * TILE, depth), dtype=torch.float64, device=a.device)
    padded[:rows].copy_(a)
    return padded.view(-1, TILE, depth)


def _column_tiles(b: torch.Tensor) -> torch.Tensor:
    """(tiles, K, TILE) float64, zero-padded."""
    depth, columns = b.shape
    padded = torch.zeros((_tiles(columns), depth, TILE), dtype=torch.float64, device=b.device)
    for j, tile in enumerate(padded):
        part = b[:, j * TILE : (j + 1) * TILE]
        tile[:, : part.shape[1]].copy_(part)
    return padded
