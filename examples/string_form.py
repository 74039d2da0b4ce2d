# SPDX-License-Identifier: Apache-2.0
"""The epilogue as text, for functions without a source file, and as a lambda."""

import torch

import epifuse as ops
from epifuse.fusion.activation import silu

gpu = ops.utils.device.device_or_env_target_sm() if torch.cuda.is_available() else None
device = "cuda" if gpu and ops.get_operators(target_sm=gpu) else "cpu"

TEXT = "def epi(accum, C, alpha, beta): F = accum * alpha + C * beta; D = relu(F); return D, F"

A = torch.randint(-2, 3, (37, 64), device=device, dtype=torch.float16)
B = torch.randint(-2, 3, (64, 80), device=device, dtype=torch.float16)
C = torch.randint(-2, 3, (37, 80), device=device, dtype=torch.float16)
D, F = (torch.empty(37, 80, device=device, dtype=torch.float16) for _ in range(2))

epilogue = ops.EpilogueArguments(TEXT, C=C, alpha=1.0, beta=0.5, D=D, F=F)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
ops.get_operators(args)[0].run(args)
expected = A.float() @ B.float() + 0.5 * C.float()
assert torch.equal(F, expected.half())
assert torch.equal(D, expected.relu().half())

epilogue = ops.EpilogueArguments(lambda accum: silu(accum) * 2.0, D=D)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
ops.get_operators(args)[0].run(args)
exact = torch.nn.functional.silu(A.double() @ B.double()) * 2.0
assert torch.allclose(D.double(), exact, rtol=2**-11, atol=2**-20)
print("text and lambda: right")
