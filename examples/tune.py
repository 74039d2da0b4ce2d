# SPDX-License-Identifier: Apache-2.0
"""Measured instead of predicted: which operator is the fastest on this GPU, remembered from then on."""

import torch

import epifuse as ops
from epifuse.tune import tune

gpu = torch.cuda.is_available()
side, device = (2048, "cuda") if gpu else (64, "cpu")
A, B, D = (torch.ones(side, side, dtype=torch.bfloat16, device=device) for _ in range(3))

epilogue = ops.EpilogueArguments("def scaled_relu(accum, alpha): D = relu(accum * alpha); return D", alpha=0.5, D=D)
args = ops.GemmArguments(A, B, D, torch.float32, epilogue)
if gpu:
    result = tune(args, seconds=10)
    assert ops.get_operators(args)[0].metadata == result.operator.metadata
else:
    with ops.emulator.device("90a"):  # an emulated GPU's times say nothing: nothing is measured and remembered
        result = tune(args)
print(result)
