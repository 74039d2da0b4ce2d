# SPDX-License-Identifier: Apache-2.0
"""A GPU kernel on a machine without a GPU: inside ``emulator.device`` its PTX runs on the CPU, slowly and strictly."""

import torch

import epifuse as ops
from epifuse import emulator

A = torch.randint(-2, 3, (40, 64), dtype=torch.float16)
B = torch.randint(-2, 3, (64, 56), dtype=torch.float16)
bias = torch.randint(-8, 9, (56,), dtype=torch.float32)
D = torch.full((40, 56), torch.nan, dtype=torch.float16)

epilogue = ops.EpilogueArguments("def epi(accum, bias): D = relu(accum * 0.5 + bias); return D", bias=bias, D=D)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
expected = torch.relu(A.float() @ B.float() * 0.5 + bias).half()

for target in ("80", "90a", "100a"):
    D.fill_(torch.nan)
    with emulator.device(target):
        operators = ops.get_operators(args)  # here CPU tensors mean the emulated GPU
        operators[0].run(args)
    assert torch.equal(D, expected)
    print(f"sm_{target}: {len(operators)} operators, {operators[0].metadata.operator_name} right")

assert operators[0] not in ops.get_operators(args)  # outside, they mean the CPU again
