# SPDX-License-Identifier: Apache-2.0
"""The CPU provider's accumulator: exact on integers, rounded once, and blind to blocking, strides and sizes."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.runtime.rounding import round_to, round_to_tf32
from epifuse_cpu import gemm
from epifuse_cpu.configs import FAMILIES, combinations, refusal
from epifuse_cpu.gemm import TILE, accumulate

SIZES = [(1, 1, 1), (2, 3, 5), (7, 1, 13), (1, 17, 2), (TILE, TILE, 8), (TILE + 1, TILE - 1, 31), (19, 2 * TILE + 3, 4)]


def whole_numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int, low: int = -2, high: int = 3) -> torch.Tensor:
    low = max(low, 0) if dtype == torch.uint8 else low
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def python_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Python integers, without torch or a BLAS."""
    a_int = a.to(torch.float64).numpy().astype(int).astype(object)
    b_int = b.to(torch.float64).numpy().astype(int).astype(object)
    result = np.matmul(a_int, b_int) if a.shape[-1] else np.zeros((*a.shape[:-1], b.shape[-1]), dtype=object)
    return torch.tensor(result.tolist(), dtype=torch.float64).reshape(*a.shape[:-1], b.shape[-1])


@pytest.mark.parametrize(("a", "b", "acc"), list(combinations()), ids=lambda d: d.short)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_whole_numbers_are_exact(a: DType, b: DType, acc: DType, m: int, n: int, k: int) -> None:
    x, y = whole_numbers((m, k), a.torch, 1), whole_numbers((k, n), b.torch, 2)
    found = accumulate(x, y, acc)
    assert found.shape == (1, m, n)
    assert found.dtype == acc.torch
    assert torch.equal(found[0].to(torch.float64), python_product(x, y))


def test_the_table_says_why_not() -> None:
    assert sum(1 for _ in combinations()) == 3 + 2 + 2 + 2 + 8 + 4
    assert refusal(dtypes.INT8, dtypes.UINT8, dtypes.INT32) is None
    assert "int32" in str(refusal(dtypes.INT8, dtypes.INT8, dtypes.FLOAT32))
    assert "float16" in str(refusal(dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.FLOAT32))
    assert "int64" in str(refusal(dtypes.INT64, dtypes.INT64, dtypes.INT32))
    assert len({d for family in FAMILIES for d in family.operands}) == 8


@pytest.mark.parametrize(("l", "k"), [(3, 5), (2, 0), (1, 4), (0, 4)])
def test_batches(l: int, k: int) -> None:
    a, b = whole_numbers((l, 6, k), torch.float32, 3), whole_numbers((l, k, 5), torch.float32, 4)
    found = accumulate(a, b, dtypes.FLOAT32)
    assert found.shape == (l, 6, 5)
    for i in range(l):
        assert torch.equal(found[i].to(torch.float64), python_product(a[i], b[i]))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("acc", [dtypes.FLOAT32, dtypes.FLOAT16])
def test_empty(m: int, n: int, k: int, acc: DType) -> None:
    found = accumulate(torch.ones(m, k).half(), torch.ones(k, n).half(), acc)
    assert found.shape == (1, m, n)
    assert not found.count_nonzero()


def test_int8_extremes_and_wrapping() -> None:
    k = 2**17 + 3
    a = torch.full((1, k), -128, dtype=torch.int8)
    found = accumulate(a, a.t(), dtypes.INT32)
    exact = 128 * 128 * k
    assert exact > 2**31
    assert found.item() == (exact + 2**31) % 2**32 - 2**31
    u = torch.full((1, k), 255, dtype=torch.uint8)
    exact = 255 * -128 * k
    assert accumulate(u, a.t(), dtypes.INT32).item() == (exact + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("a", [dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2], ids=str)
@pytest.mark.parametrize("b", [dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2], ids=str)
def test_every_float8_value_times_every_other(a: DType, b: DType) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    x, y = codes.view(a.torch).reshape(256, 1), codes.view(b.torch).reshape(1, 256)
    expected = x.to(torch.float64) * y.to(torch.float64)
    found = accumulate(x, y, dtypes.FLOAT32)[0]
    torch.testing.assert_close(found.to(torch.float64), expected, rtol=0, atol=0, equal_nan=True)
    halves = accumulate(x, y, dtypes.FLOAT16)[0]
    torch.testing.assert_close(halves, round_to(expected, dtypes.FLOAT16), rtol=0, atol=0, equal_nan=True)


def test_float16_accumulator_is_rounded_once_and_overflows() -> None:
    a = torch.full((1, 512), 16.0).half()
    assert accumulate(a, a.t(), dtypes.FLOAT16).item() == math.inf
    # 2048 + 1 + 2^-11: in float32 first this would be a tie to 2048
    a = torch.tensor([[2048.0, 1.0, 2.0**-13]]).half()
    b = torch.tensor([[1.0], [1.0], [2.0**-13]]).half()
    assert accumulate(a, b, dtypes.FLOAT16).item() == 2050.0
    assert accumulate(a, b, dtypes.FLOAT32).item() == 2049.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_float32_accumulator_is_the_exact_sum_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(5, 300, generator=generator).to(dtype)
    b = torch.randn(300, 4, generator=generator).to(dtype)
    found = accumulate(a, b, dtypes.FLOAT32)[0]
    for i in range(5):
        for j in range(4):
            exact = sum(Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
            nearest = torch.tensor(float(exact), dtype=torch.float64).to(torch.float32)  # float(Fraction) rounds once
            assert found[i, j] == nearest


@pytest.mark.parametrize("acc", [dtypes.FLOAT32, dtypes.FLOAT64], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(101, 60, 257), (3, 200, 5000), (200, 2, 1000)])
def test_the_same_bits_however_it_is_laid_out_and_split(acc: DType, m: int, n: int, k: int) -> None:
    generator = torch.Generator().manual_seed(6)
    a = torch.randn(m, k, generator=generator, dtype=torch.float64).to(acc.torch)
    b = torch.randn(k, n, generator=generator, dtype=torch.float64).to(acc.torch)
    whole = accumulate(a, b, acc)[0]
    padded = torch.full((m, 2 * k + 1), math.nan, dtype=acc.torch)[:, ::2][:, :k]
    padded.copy_(a)
    for other in (a.t().contiguous().t(), padded):
        assert torch.equal(accumulate(other, b.t().contiguous().t(), acc)[0], whole)
    for cut in (1, m // 2, m - 1):
        assert torch.equal(torch.cat((accumulate(a[:cut], b, acc)[0], accumulate(a[cut:], b, acc)[0])), whole)
    order = torch.randperm(n, generator=generator)
    assert torch.equal(accumulate(a, b[:, order], acc)[0], whole[:, order])


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(3 * TILE + 5, 100, generator=generator, dtype=torch.float64)
    b = torch.randn(100, 2 * TILE + 1, generator=generator, dtype=torch.float64)
    whole = accumulate(a, b, dtypes.FLOAT64)
    monkeypatch.setattr(gemm, "_BLOCK_TILES", 1)
    assert torch.equal(accumulate(a, b, dtypes.FLOAT64), whole)
    assert (whole[0] - a @ b).abs().max() < 1e-12
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(accumulate(a, b, dtypes.FLOAT64), whole)
    finally:
        torch.set_num_threads(threads)


def test_steps_of_k_leave_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_BLOCK_K", 16)
    for k in (15, 16, 17, 40):
        assert (accumulate(torch.ones(2, k), torch.ones(k, 3), dtypes.FLOAT32) == k).all()


def test_nan_and_infinity_stay_in_their_rows_and_columns() -> None:
    a, b = torch.ones(5, 3), torch.ones(3, 4)
    a[1, 0], b[2, 3] = math.nan, math.inf
    found = accumulate(a, b, dtypes.FLOAT32)[0]
    assert found[1].isnan().all()
    assert found[[0, 2, 3, 4], 3].isposinf().all()
    assert (found[[0, 2, 3, 4], :3] == 3).all()


def test_zeros_are_positive() -> None:
    found = accumulate(torch.tensor([[-0.0]]), torch.tensor([[1.0, -1.0]]), dtypes.FLOAT32)
    assert not found.signbit().any()


def test_tf32_only_where_torch_allows_it() -> None:
    a = torch.tensor([[1 + 2.0**-12, 1.0]])
    b = torch.tensor([[1.0], [2.0**-11]])
    exact = accumulate(a, b, dtypes.FLOAT32).item()
    assert exact == 1 + 2.0**-12 + 2.0**-11
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert accumulate(a, b, dtypes.FLOAT32).item() == 1 + 2.0**-11
        assert round_to_tf32(a)[0, 0] == 1
        half = accumulate(a.bfloat16(), b.bfloat16(), dtypes.FLOAT32).item()
    finally:
        torch.set_float32_matmul_precision(before)
    assert half == 1 + 2.0**-11
    assert accumulate(a, b, dtypes.FLOAT32).item() == exact
