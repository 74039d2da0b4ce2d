# SPDX-License-Identifier: Apache-2.0
"""The accumulator itself as an output, in full precision beside a rounded D."""

import torch

import epifuse as ops
from epifuse.fusion.activation import relu

gpu = ops.utils.device.device_or_env_target_sm() if torch.cuda.is_available() else None
device = "cuda" if gpu and ops.get_operators(target_sm=gpu) else "cpu"


def relu_minus(accum, offset):
    """Outputs may have dtypes of their own; each is rounded once, at its store."""
    D = relu(accum - offset)
    return D, accum


A = torch.full((16, 2049), 1.0, device=device, dtype=torch.float16)
B = torch.ones(2049, 24, device=device, dtype=torch.float16)
D = torch.empty(16, 24, device=device, dtype=torch.float16)
accum = torch.empty(16, 24, device=device, dtype=torch.float32)

epilogue = ops.EpilogueArguments(relu_minus, offset=2048.0, D=D, accum=accum)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
ops.get_operators(args)[0].run(args)

# float16 has no 2049: rounding the accumulator before the epilogue would give 2048 and 0.
assert torch.equal(accum, torch.full_like(accum, 2049.0))
assert torch.equal(D, torch.ones_like(D))
print(f"accum {accum[0, 0].item()}, D {D[0, 0].item()}")
