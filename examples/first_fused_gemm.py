# SPDX-License-Identifier: Apache-2.0
"""The first program: relu(alpha * A @ B + bias) in one kernel."""

import torch

import epifuse as ops
from epifuse.fusion.activation import relu

gpu = ops.utils.device.device_or_env_target_sm() if torch.cuda.is_available() else None
device = "cuda" if gpu and ops.get_operators(target_sm=gpu) else "cpu"


def bias_relu(accum, bias, alpha):
    """Parsed, never called."""
    D = relu(accum * alpha + bias)
    return D


M, N, K = 100, 200, 300
A = torch.randint(-2, 3, (M, K), device=device, dtype=torch.float16)
B = torch.randint(-2, 3, (K, N), device=device, dtype=torch.float16)
bias = torch.randint(-8, 9, (N,), device=device, dtype=torch.float32)
D = torch.empty(M, N, device=device, dtype=torch.float16)

epilogue = ops.EpilogueArguments(bias_relu, bias=bias, alpha=0.5, D=D)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
best = ops.get_operators(args)[0]
best.run(args)

expected = torch.relu(A.float() @ B.float() * 0.5 + bias)
assert torch.equal(D, expected.half())
print(f"{best.metadata.operator_name}: {M} x {N} x {K} on {device}, every element right")
