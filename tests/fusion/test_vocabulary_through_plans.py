# SPDX-License-Identifier: Apache-2.0
"""Rows through parser, passes and the CPU provider: the plan computes what torch's function of that name does."""

import math

import pytest
import torch
import torch.nn.functional as F

import epifuse as ops


def run(text: str, accum: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``D = text`` on an accumulator with the given values (A is the identity)."""
    eye = torch.eye(accum.shape[0], dtype=torch.int8 if accum.dtype == torch.int8 else accum.dtype)
    kind = torch.int32 if accum.dtype == torch.int8 else accum.dtype
    epilogue = ops.EpilogueArguments(f"def epi(accum):\n    D = {text}\n    return D", D=out)
    args = ops.GemmArguments(A=eye, B=accum, out=out, accumulator_type=kind, epilogue=epilogue)
    ops.get_operators(args)[0].run(args)
    return out


CALLS = {
    "silu(accum)": F.silu,
    "gelu(accum)": F.gelu,
    "gelu(accum, approximate='tanh')": lambda x: F.gelu(x, approximate="tanh"),
    "mish(accum)": F.mish,
    "softplus(accum, 2.0)": lambda x: F.softplus(x, 2.0),
    "celu(accum, alpha=1.5)": lambda x: F.celu(x, 1.5),
    "elu(accum)": F.elu,
    "logsigmoid(accum)": F.logsigmoid,
    "leaky_relu(accum, negative_slope=0.2)": lambda x: F.leaky_relu(x, 0.2),
    "clamp(accum, -0.5, 2)": lambda x: x.clamp(-0.5, 2),
    "clamp(accum, max=1.0)": lambda x: x.clamp(max=1.0),
    "abs(accum) ** 2.2": lambda x: x.abs() ** 2.2,
    "accum ** -3": lambda x: x**-3,
    "where(accum > 0.5, sin(accum), cos(accum))": lambda x: torch.where(x > 0.5, x.sin(), x.cos()),
    "multiply_add(accum, accum, 0.25)": lambda x: x * x + 0.25,
    "sign(accum) / 2": lambda x: x.sign() / 2,
    "pow(accum, 0) + 0.5": lambda x: torch.full_like(x, 1.5),
}


@pytest.mark.parametrize("text", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_elementwise(text: str, dtype: torch.dtype) -> None:
    x = (torch.randn(13, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3).to(dtype)
    found = run(text, x, torch.full((13, 7), math.nan, dtype=dtype))
    wanted = CALLS[text](x.to(torch.float64)).to(dtype)
    rtol, atol = (4e-14, 1e-15) if dtype == torch.float64 else (2e-6, 3e-7)
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("relu(accum)", [0, 0, 0, 2, 11, 100]), ("relu6(accum)", [0, 0, 0, 2, 6, 6]),
        ("sign(accum)", [-1, -1, 0, 1, 1, 1]), ("square(accum)", [10000, 9, 0, 4, 121, 10000]),
        ("squared_relu(accum)", [0, 0, 0, 4, 121, 10000]), ("accum ** 4", [10**8, 81, 0, 16, 14641, 10**8]),
        ("accum ** 0 + accum", [-99, -2, 1, 3, 12, 101]), ("clamp(accum, 0, 50)", [0, 0, 0, 2, 11, 50]),
        ("multiply_add(accum, 16777217, 1)", [-1677721699, -50331650, 1, 33554435, 184549388, 1677721701]),
    ],
)  # fmt: skip
def test_integers(text: str, wanted: list[int]) -> None:
    x = torch.tensor([[-100, -3, 0, 2, 11, 100]] * 3, dtype=torch.int8)
    found = run(text, x, torch.full((3, 6), 77, dtype=torch.int32))
    assert found.tolist() == [wanted] * 3


@pytest.mark.parametrize("name", ["glu", "reglu", "geglu", "swiglu"])
def test_gates(name: str) -> None:
    x = torch.randn(5, 14, generator=torch.Generator().manual_seed(2))
    gate, up = x[:, 0::2].double(), x[:, 1::2].double()
    function = {"glu": torch.sigmoid, "reglu": torch.relu, "geglu": F.gelu, "swiglu": F.silu}[name]
    out = torch.full((5, 7), math.nan)
    epilogue = ops.EpilogueArguments(f"def epi(accum):\n    D = {name}(accum)\n    return D", D=out)
    args = ops.GemmArguments(
        A=torch.eye(5), B=x, out=torch.empty(5, 14), accumulator_type=torch.float32, epilogue=epilogue
    )
    ops.get_operators(args)[0].run(args)
    torch.testing.assert_close(out, (function(gate) * up).float(), rtol=1e-6, atol=2e-7)
