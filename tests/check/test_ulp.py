# SPDX-License-Identifier: Apache-2.0
"""Ulps against hand-made values."""

import math

import pytest
import torch

from epifuse.check.ulp import ulp_error, ulp_of


@pytest.mark.parametrize(
    ("dtype", "value", "ulp"),
    [
        (torch.float16, 1.0, 2**-10),
        (torch.float16, -1.999, 2**-10),
        (torch.float16, 2.0, 2**-9),
        (torch.float16, 0.0, 2**-24),
        (torch.float16, 2**-14, 2**-24),
        (torch.float16, 1e9, 32.0),
        (torch.bfloat16, 1.0, 2**-7),
        (torch.float32, 1.0, 2**-23),
        (torch.float64, 3.0, 2**-51),
        (torch.float8_e4m3fn, 16.0, 2.0),
        (torch.int32, 12345.0, 1.0),
    ],
)
def test_spacing(dtype, value, ulp):
    assert ulp_of(torch.tensor([value], dtype=torch.float64), dtype).item() == ulp


@pytest.mark.parametrize(
    ("result", "exact", "error"),
    [
        (1.0, 1.0, 0.0),
        (1.0, 1.0 + 2**-11, 0.5),
        (1.0 + 2**-10, 1.0, 1.0),
        (-0.0, 0.0, 0.0),
        (math.inf, math.inf, 0.0),
        (math.inf, -math.inf, math.inf),
        (math.nan, math.nan, 0.0),
        (math.nan, 1.0, math.inf),
        (1.0, math.nan, math.inf),
        (1.0, math.inf, math.inf),
    ],
)
def test_distance(result, exact, error):
    found = ulp_error(torch.tensor([result], dtype=torch.float16), torch.tensor([exact], dtype=torch.float64))
    assert found.item() == error


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_one_rounding_is_at_most_half_an_ulp_away(dtype):
    exact = torch.randn(4099, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 37
    error = ulp_error(exact.to(torch.float32).to(dtype) if dtype is torch.float32 else exact.to(dtype), exact)
    assert 0.4 < error.max().item() <= 0.5 + 2**-12


def test_empty():
    assert ulp_error(torch.empty(0, 7, dtype=torch.float16), torch.empty(0, 7, dtype=torch.float64)).shape == (0, 7)
