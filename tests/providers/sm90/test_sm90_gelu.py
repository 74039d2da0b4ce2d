# SPDX-License-Identifier: Apache-2.0
"""gelu by the normal distribution, as the Hopper kernel computes it beside other products: error and special values."""

import math

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse.check.measure import SHORT_FORMS
from epifuse.fusion.vocabulary import table

M, N = 64, 512


def gelu(x):
    """In float64, also where it is small; torch's own loses its digits below -6."""
    x = x.double()
    return x * torch.special.erfc(x * -math.sqrt(0.5)) / 2


def computed(hopper, text, dtype, **operands):
    """D of an epilogue on an accumulator of zeros."""
    out = hopper.nothing(M, N, dtype=dtype)
    args = hopper.arguments((M, N, 8), text, D=out, **operands)
    with ops.emulator.device("90a"):
        hopper.operator_of(args, "pingpong", (64, 128)).run(args)
    return out


def error(hopper, x, scale):
    """gelu(x) less the right one, enlarged by ``scale`` into float16's range and made small again."""
    right = gelu(x)
    text = "def epi(accum, x, y, scale): D = (gelu(x) - y) * scale; return D"
    got = computed(hopper, text, torch.float16, x=x, y=right.float(), scale=scale)
    return got.double() / scale.double() + (right.float() - right)


@pytest.mark.parametrize(
    ("low", "high", "bound"),
    [(-0.5, -1e-3, 7e-5), (1e-3, 4.0, 7e-5), (-3.0, -0.5, 1.7e-4), (-5.0, -3.0, 5e-4), (-6.0, -5.0, 2.5e-3),
     (-8.0, -6.0, 1.8e-2), (-12.0, -8.0, 0.12)],
)  # fmt: skip
def test_the_relative_error(hopper, low, high, bound):
    x = torch.linspace(low, high, M * N, dtype=torch.float64).float().reshape(M, N)
    right = gelu(x)
    worst = (error(hopper, x, (4096.0 / right).float()) / right).abs().max().item()
    assert worst <= bound, worst


def test_the_error_is_within_what_the_table_states(hopper):
    x = torch.linspace(-14.0, 8.0, M * N, dtype=torch.float64).float().reshape(M, N)
    row = table.lookup("gelu").accuracy
    allowed = row.absolute_into(16) + SHORT_FORMS * row.ulp * 2.0**-23 * gelu(x).abs()
    worst = (error(hopper, x, torch.full((M, N), 2.0**24)).abs() / allowed).max().item()
    assert worst <= 0.75, worst


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_special_values(hopper, dtype):
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 90.0, -90.0, -1e20, -14.0, -15.0, 6e4, -6e4, 1e-40, 3e38]
    x = torch.tensor([*special, -3e38, 1.0]).repeat(M, N // 16)
    got = computed(hopper, "def epi(accum, x): D = gelu(x); return D", dtype, x=x)
    torch.testing.assert_close(got, gelu(x).to(dtype), rtol=0, atol=1e-36, equal_nan=True)
    zeros = x == 0
    assert torch.equal(got[zeros].signbit(), x[zeros].signbit())


def test_only_beside_wgmma(hopper, fuse_tools):
    text = "def epi(accum): D = gelu(accum); return D"
    args = hopper.arguments((M, N, 8), text, D=hopper.nothing(M, N))
    with ops.emulator.device("90a"):
        operators = hopper.operator_of(args, "pingpong", (64, 128)), fuse_tools.pick(args, (16, 64))
        images = [operator.compile(args).compiled_obj.launcher.image.ptx.decode() for operator in operators]
    assert ["lg2.approx.ftz.f32" in ptx for ptx in images] == [True, False]
