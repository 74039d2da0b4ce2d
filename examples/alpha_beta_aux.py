# SPDX-License-Identifier: Apache-2.0
"""Three scalars, a full tensor C and a second output; another alpha compiles nothing."""

import torch

import epifuse as ops

gpu = ops.utils.device.device_or_env_target_sm() if torch.cuda.is_available() else None
device = "cuda" if gpu and ops.get_operators(target_sm=gpu) else "cpu"


def scale_add(accum, C, alpha, beta, extra):
    """Aux is used again after it is stored; it goes on unrounded."""
    Aux = alpha * accum + beta * C
    D = extra * Aux
    return D, Aux


L, M, N, K = 2, 65, 48, 96
A = torch.randint(-2, 3, (L, M, K), device=device, dtype=torch.bfloat16)
B = torch.randint(-2, 3, (L, K, N), device=device, dtype=torch.bfloat16)
C = torch.randint(-2, 3, (L, M, N), device=device, dtype=torch.bfloat16)
D, Aux = (torch.empty(L, M, N, device=device, dtype=torch.float32) for _ in range(2))

for alpha in (1.0, -3.0):
    epilogue = ops.EpilogueArguments(scale_add, C=C, alpha=alpha, beta=2.0, extra=0.5, D=D, Aux=Aux)
    args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
    ops.get_operators(args)[0].run(args)
    expected = alpha * (A.float() @ B.float()) + 2.0 * C.float()
    assert torch.equal(Aux, expected)
    assert torch.equal(D, 0.5 * expected)
    print(f"alpha={alpha}: D and Aux right")
