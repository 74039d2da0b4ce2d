# SPDX-License-Identifier: Apache-2.0
"""Row and column vectors in one epilogue; torch's rule of broadcasting decides which is which."""

import torch

import epifuse as ops

gpu = ops.utils.device.device_or_env_target_sm() if torch.cuda.is_available() else None
device = "cuda" if gpu and ops.get_operators(target_sm=gpu) else "cpu"


def scale_rows_add_bias(accum, row, column):
    """``row`` has one value for each column of D, ``column`` one for each row."""
    D = accum * column + row
    return D


M = N = 96  # also where M equals N the two are never mistaken for each other
A = torch.randint(-2, 3, (M, 64), device=device, dtype=torch.float16)
B = torch.randint(-2, 3, (64, N), device=device, dtype=torch.float16)
row = torch.arange(N, device=device, dtype=torch.float32)
column = torch.randint(-4, 5, (M, 1), device=device, dtype=torch.float32)
D = torch.empty(M, N, device=device, dtype=torch.float32)

for shape in ((N,), (1, N)):
    epilogue = ops.EpilogueArguments(scale_rows_add_bias, row=row.view(shape), column=column, D=D)
    args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
    ops.get_operators(args)[0].run(args)
    assert torch.equal(D, A.float() @ B.float() * column + row)
    print(f"row of shape {shape} with a column of shape {tuple(column.shape)}: right")
