# SPDX-License-Identifier: Apache-2.0
"""The same in Triton, for a GPU: ``epifuse bench --op fused_gemm --file examples/workshop/solution_triton.py``."""

import torch
import triton
import triton.language as tl

BLOCK_N, BLOCK_K = 64, 32


@triton.jit
def kernel(A, B, bias, D, M, N, K, am, ak, bk, bn, dm, dn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip  # noqa: E501
    """One tile a program."""
    tiles_m, tiles_n, pid = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    rows, inner = min(GROUP, tiles_m - first), pid % (GROUP * tiles_n)
    m = (first + inner % rows) * BM + tl.arange(0, BM).to(tl.int64)
    n = inner // rows * BN + tl.arange(0, BN).to(tl.int64)
    accum = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK).to(tl.int64)
        a = tl.load(A + m[:, None] * am + k * ak, mask=(m[:, None] < M) & (k < K), other=0.0)
        b = tl.load(B + k[:, None] * bk + n * bn, mask=(k[:, None] < K) & (n < N), other=0.0)
        accum = tl.dot(a, b, accum, input_precision="ieee")
    x = accum + tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    x = tl.where(x < 0.0, 0.0, x)  # and not x > 0 ? x : 0, which drops a NaN
    tl.store(D + m[:, None] * dm + n * dn, x.to(D.dtype.element_ty), mask=(m[:, None] < M) & (n < N))


def fused_gemm(A, B, bias, block_m, group, out=None):
    """relu(A @ B + bias) in A's dtype, tile by tile; ``out`` (M, N) is written where it is given."""
    M, N, K = A.shape[0], B.shape[1], A.shape[1]
    D = torch.empty(M, N, dtype=A.dtype, device=A.device) if out is None else out
    grid = (triton.cdiv(M, block_m) * triton.cdiv(N, BLOCK_N),)
    if D.numel():
        kernel[grid](A, B, bias, D, M, N, K, *A.stride(), *B.stride(), *D.stride(), block_m, BLOCK_N, BLOCK_K, group)
    return D
