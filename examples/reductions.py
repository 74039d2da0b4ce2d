# SPDX-License-Identifier: Apache-2.0
"""Reductions beside D: over rows, over columns, over everything; they see the unrounded values."""

import torch

import epifuse as ops
from epifuse.fusion.activation import amax, mean, sum  # noqa: A004 - the epilogue's sum is the one that is meant

gpu = ops.utils.device.device_or_env_target_sm() if torch.cuda.is_available() else None
device = "cuda" if gpu and ops.get_operators(target_sm=gpu) else "cpu"


def statistics(accum, bias):
    """``dim`` counts as torch counts it."""
    D = accum + bias
    total = sum(D, dim=0)
    peak = amax(D, dim=1, keepdim=True)
    average = mean(D)
    return D, total, peak, average


M, N, K = 60, 40, 32
A = torch.randint(-2, 3, (M, K), device=device, dtype=torch.float16)
B = torch.randint(-2, 3, (K, N), device=device, dtype=torch.float16)
bias = torch.arange(N, device=device, dtype=torch.float32)
outputs = {"D": (M, N), "total": (N,), "peak": (M, 1), "average": (1,)}
given = {name: torch.full(shape, torch.nan, device=device) for name, shape in outputs.items()}

epilogue = ops.EpilogueArguments(statistics, bias=bias, **given)
args = ops.GemmArguments(A=A, B=B, out=given["D"], accumulator_type=torch.float32, epilogue=epilogue)
ops.get_operators(args)[0].run(args)

for name, expected in zip(outputs, statistics(A.float() @ B.float(), bias), strict=True):
    assert torch.equal(given[name].flatten(), expected.flatten()), name
    print(f"{name} {outputs[name]}: right")
