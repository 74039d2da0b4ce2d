# SPDX-License-Identifier: Apache-2.0
"""A fused GEMM in torch, tile by tile: ``python -m epifuse check fused_gemm --file examples/workshop/solution.py``."""

import torch

BLOCK_N, BLOCK_K = 64, 32


def tile_of(pid, tiles_m, tiles_n, group):
    """The tile (m, n) of program ``pid``: groups of ``group`` rows of tiles, M fastest in a group."""
    first = pid // (group * tiles_n) * group
    rows = min(group, tiles_m - first)
    inner = pid % (group * tiles_n)
    return first + inner % rows, inner // rows


def fused_gemm(A, B, bias, block_m, group, out=None):
    """relu(A @ B + bias) in A's dtype, tile by tile; ``out`` (M, N) is written where it is given."""
    M, N, K = A.shape[0], B.shape[1], A.shape[1]
    D = torch.empty(M, N, dtype=A.dtype, device=A.device) if out is None else out
    tiles_m, tiles_n = -(-M // block_m), -(-N // BLOCK_N)
    for pid in range(tiles_m * tiles_n):
        m, n = tile_of(pid, tiles_m, tiles_n, group)
        rows = slice(m * block_m, min((m + 1) * block_m, M))
        columns = slice(n * BLOCK_N, min((n + 1) * BLOCK_N, N))
        accum = torch.zeros(rows.stop - rows.start, columns.stop - columns.start, device=A.device)
        for k in range(0, K, BLOCK_K):
            accum += A[rows, k : k + BLOCK_K].float() @ B[k : k + BLOCK_K, columns].float()
        # K = 0 comes here with zeros. A NaN passes torch.relu; the assignment rounds to D's dtype, once.
        D[rows, columns] = torch.relu(accum + bias[columns].float())
    return D
