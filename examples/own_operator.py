# SPDX-License-Identifier: Apache-2.0
"""A user's own operator (own_kernel.py) in use: registered like ours, offered by discovery beside ours."""

import torch
from own_kernel import MyGemm

import epifuse as ops


@ops.register_provider("mine")
class MyProvider(ops.Provider):
    """An entry point in the group epifuse.providers would do the same for an installed package."""


MyProvider.register(MyGemm)


def scale_bias(accum, bias, s):
    """Add and mul, which MyGemm knows."""
    D = accum * s + bias
    return D


A, B = torch.ones(7, 33), torch.ones(33, 5)
bias, D = torch.arange(5.0), torch.empty(7, 5)

epilogue = ops.EpilogueArguments(scale_bias, bias=bias, s=0.5, D=D)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
print(ops.explain(args))
(mine,) = ops.get_operators(args, providers=[MyProvider])
mine.run(args)
assert torch.equal(D, A @ B * 0.5 + bias)

epilogue = ops.EpilogueArguments("def epi(accum): D = tanh(accum); return D", D=D)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
print(ops.explain(args))
assert MyGemm not in {type(operator) for operator in ops.get_operators(args)}
