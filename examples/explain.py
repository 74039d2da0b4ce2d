# SPDX-License-Identifier: Apache-2.0
"""Why there are operators, or none: the same question as get_operators with every answer."""

import torch

import epifuse as ops

A, B = torch.ones(64, 32, dtype=torch.float16), torch.ones(32, 48, dtype=torch.float16)
D = torch.empty(64, 48, dtype=torch.float16)
epilogue = ops.EpilogueArguments("def epi(accum, x): D = tanh(accum) * x; return D", x=0.5, D=D)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)

for target in (None, "90a", "100a"):
    found = ops.explain(args, target_sm=target)
    print(found, end="\n\n")
    assert bool(found) == bool(ops.get_operators(args, target_sm=target))

try:
    ops.EpilogueArguments("def epi(accum, x):\n    D = thanh(accum) * x\n    return D", x=0.5, D=D)
except ops.errors.EpilogueError as error:
    print(error)
