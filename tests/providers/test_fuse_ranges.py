# SPDX-License-Identifier: Apache-2.0
"""Bounds of a plan's slots: never too narrow, whatever the operands, and as narrow as the short forms need."""

import math

import pytest
import torch

from epifuse_cpu.evaluate import evaluate
from epifuse_cutedsl.fuse.ranges import ANY, ranges_of

INF = math.inf
VALUES = [0.0, -0.0, 1.0, -1.0, INF, -INF, math.nan, 3e38, -3e38, 1e-45, -1e-40, 88.9, -104.5, 128.5, 2.5, -0.3, 1e-20]
CASES = {
    "exp(accum)": (0.0, INF),
    "exp(minimum(accum, 20.0))": (0.0, math.exp(20.0)),
    "exp2(maximum(accum, -3.0))": (0.125, INF),
    "exp2(-abs(accum))": (0.0, 1.0),
    "exp(-accum) + 1.0": (1.0, INF),
    "exp(accum) + -1.0": (-1.0, INF),
    "reciprocal(exp(-accum) + 1.0)": (0.0, 1.0),
    "reciprocal(minimum(abs(accum), 4.0))": ANY,  # 1 / -0.0 is below 0
    "reciprocal(minimum(abs(accum), 4.0) + 1.0)": (0.2, 1.0),
    "reciprocal(minimum(accum, 4.0))": ANY,
    "accum * accum": (0.0, INF),
    "minimum(abs(accum), 3.0) * maximum(accum, 2.0)": (0.0, INF),
    "maximum(minimum(accum, 3.0), 2.0) * maximum(minimum(accum, 5.0), 0.5)": (1.0, 15.0),
    "exp(accum) * maximum(accum, 0.0)": (0.0, INF),
    "accum * 2.0": ANY,
    "accum * accum * -2.0 - 1.0": ANY,  # no rule for differences
    "accum * accum * -2.0 + -1.0": (-INF, -1.0),
    "maximum(minimum(accum, 3.0), -2.0) * maximum(minimum(accum, 5.0), -4.0)": (-12.0, 15.0),
    "maximum(accum, -2.0) * -0.5": (-INF, 1.0),
    "abs(maximum(minimum(accum, -2.0), -3.0))": (2.0, 3.0),
    "abs(maximum(minimum(accum, 2.0), -3.0))": (0.0, 3.0),
    "sqrt(minimum(accum, 9.0))": (0.0, 3.0),
    "tanh(accum) + ndtr(accum)": (-1.0, 2.0),
    "accum + abs(accum)": ANY,
    "-exp(accum) + exp(accum)": ANY,
    "accum - accum": ANY,
}


def plan_of(tools, expression, m, n):
    operands = {"D": torch.zeros(m, n)}
    return tools.arguments(f"def epi(accum): D = {expression}; return D", m, n, 8, 0, torch.float32, operands).plan


@pytest.mark.parametrize("expression", CASES)
def test_every_value_lies_within_its_bounds(fuse_tools, expression):
    m, n = len(VALUES), 50
    torch.manual_seed(1)
    plan = plan_of(fuse_tools, expression, m, n)
    accum = torch.randn(1, m, n) * torch.exp(torch.randn(1, m, n) * 8)
    accum[0, :, 0] = torch.tensor(VALUES)
    (result,) = evaluate(plan, accum, [])
    low, high = ranges_of(plan).get(plan.stores[0].operand, ANY)
    numbers = result[~result.isnan()].double()
    assert len(numbers) > 300
    assert (numbers >= low - 1e-6 * abs(low)).all()
    assert (numbers <= high + 1e-6 * abs(high)).all()
    assert (low, high) == pytest.approx(CASES[expression])


def test_integers_have_no_bounds_but_their_constants(fuse_tools):
    text, operands = "def epi(accum): D = abs(accum) * abs(accum) + 3; return D", {"D": torch.zeros(4, 6)}
    plan = fuse_tools.arguments(text, 4, 6, 8, 0, torch.int32, operands).plan
    assert set(ranges_of(plan)) <= {constant.slot for constant in plan.constants}
