# SPDX-License-Identifier: Apache-2.0
"""The oracle against answers worked out by hand or by torch on the spot; nothing here runs an operator."""

import math
from typing import Any

import pytest
import torch

import epifuse as ops
from epifuse import dtypes
from epifuse.fusion import frontend, reference


def evaluate(text: str, accum: torch.Tensor, /, **operands: Any) -> dict[str, torch.Tensor]:
    return reference.evaluate(frontend.parse(text), accum, operands)


def expect(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


ACCUM = torch.arange(15, dtype=torch.float64).reshape(3, 5) - 7


def test_composites_are_torchs_own_in_float64() -> None:
    found = evaluate("def f(accum, x):\n  F = gelu(accum)\n  D = F * x\n  return D, F", ACCUM, x=torch.arange(5.0))
    expect(found["F"], torch.nn.functional.gelu(ACCUM))
    expect(found["D"], torch.nn.functional.gelu(ACCUM) * torch.arange(5.0))
    assert list(found) == ["D", "F"]


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 1), (3, 5), (1,), (), (1, 3, 5), (1, 1, 5), (3,)])
def test_broadcasts(shape: tuple[int, ...]) -> None:
    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    found = evaluate("def f(accum, x):\n  D = accum + x\n  return D", ACCUM, x=x)["D"]
    expect(found, ACCUM + (x[:, None] if shape == (3,) else x.reshape(x.shape[-2:])))


@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 3, 1), (2, 1, 5), (2, 3, 5), (3, 5), (3, 1), (5,), (3,)])
def test_batches(shape: tuple[int, ...]) -> None:
    accum = torch.stack([ACCUM, -ACCUM])
    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    found = evaluate("def f(accum, x):\n  D = accum + x\n  return D", accum, x=x)["D"]
    expect(found, accum + (x[:, None] if shape == (3,) else x))


def test_a_value_that_varies_less_is_filled_in() -> None:
    found = evaluate("def f(accum, x):\n  D = x * 2.0\n  F = 2.0 * 3.0\n  return D, F", ACCUM, x=torch.ones(5))
    expect(found["D"], torch.full((3, 5), 2.0, dtype=torch.float64))
    expect(found["F"], torch.full((3, 5), 6.0, dtype=torch.float64))


def test_integers_stay_integers_and_wrap() -> None:
    accum = torch.tensor([[2**31 - 1, -5]], dtype=torch.int32)
    text = "def f(accum, k):\n  D = accum + k\n  F = accum / 2\n  G = (accum * k) * k\n  return D, F, G"
    found = evaluate(text, accum, k=16777217)
    assert found["D"].tolist() == [[2**31 - 1 + 16777217 - 2**32, 16777212]]
    assert found["F"].tolist() == [[(2**31 - 1) / 2, -2.5]]
    wrap = [(v * 16777217**2 + 2**31) % 2**32 - 2**31 for v in (2**31 - 1, -5)]
    assert found["G"].tolist() == [wrap]


def test_integer_and_condition_operands_widen_beside_floats() -> None:
    text = "def f(accum, i, b):\n  D = accum + i\n  F = where(b, accum, i)\n  G = i + b\n  return D, F, G"
    i = torch.tensor([200, 0, 1, 2, 255], dtype=torch.uint8)
    b = torch.tensor([True, False, True, False, True])
    found = evaluate(text, ACCUM, i=i, b=b)
    expect(found["D"], ACCUM + i)
    expect(found["F"], torch.where(b, ACCUM, i.double()))
    expect(found["G"], (i.long() + b.long()).expand(3, 5))


def test_absent_options_and_numbers_with_defaults() -> None:
    found = evaluate("def f(accum):\n  D = clamp(accum, min=-2.5)\n  F = leaky_relu(accum, 0.25)\n  return D, F", ACCUM)
    expect(found["D"], ACCUM.clamp(min=-2.5))
    expect(found["F"], torch.nn.functional.leaky_relu(ACCUM, 0.25))


def test_gated_columns() -> None:
    accum = torch.randn(3, 6, dtype=torch.float64)
    found = evaluate("def f(accum, x):\n  D = reglu(accum) + x\n  F = accum\n  return D, F", accum, x=torch.arange(3.0))
    expect(found["D"], accum[:, ::2].relu() * accum[:, 1::2] + torch.arange(3.0))
    expect(found["F"], accum)


@pytest.mark.parametrize("call", ["sum", "max", "min", "mean", "amax"])
@pytest.mark.parametrize("dim", ["", ", dim=1", ", dim=(0, -1)", ", dim=[0], keepdim=True"])
def test_reductions(call: str, dim: str) -> None:
    accum = torch.randn(3, 5, dtype=torch.float64)
    found = evaluate(f"def f(accum):\n  D = accum\n  s = {call}(accum * 2.0{dim})\n  return D, s", accum)["s"]
    fold = {"max": torch.amax, "amax": torch.amax, "min": torch.amin, "sum": torch.sum, "mean": torch.mean}[call]
    dims = {"": (0, 1), ", dim=1": (1,), ", dim=(0, -1)": (0, 1), ", dim=[0], keepdim=True": (0,)}[dim]
    torch.testing.assert_close(found, fold(accum * 2, dims, keepdim="keepdim" in dim), rtol=1e-15, atol=1e-15)


def test_a_reduction_without_dim_follows_its_destination() -> None:
    accum = torch.stack([ACCUM, 10 * ACCUM])
    graph = frontend.parse("def f(accum):\n  D = accum\n  s = sum(accum)\n  return D, s")
    assert reference.evaluate(graph, accum, {})["s"].shape == ()
    for shape in ((2,), (2, 1, 1)):
        found = reference.evaluate(graph, accum, {}, destinations={"s": shape})["s"]
        assert found.tolist() == [0.0, 0.0]
    with_nan = accum.clone()
    with_nan[1, 2, 3] = math.nan
    found = reference.evaluate(graph, with_nan, {}, destinations={"s": (2,)})["s"]
    assert found.isnan().tolist() == [False, True]


def test_reductions_of_nothing() -> None:
    text = "s, t, u, v = sum(accum), max(accum), min(accum, dim=1), mean(accum)"
    graph = frontend.parse(f"def f(accum):\n  D = accum\n  {text}\n  return D, s, t, u, v")
    found = reference.evaluate(graph, torch.empty(3, 0, dtype=torch.float64), {})
    assert found["s"].item() == 0
    assert found["t"].item() == -math.inf
    assert found["u"].tolist() == [math.inf] * 3
    assert found["v"].isnan()


def gemm_arguments(a: torch.Tensor, b: torch.Tensor, text: Any, acc: Any, **named: Any) -> ops.GemmArguments:
    out = torch.full((*a.shape[:-1], b.shape[-1]), math.nan)
    epilogue = None if text is None else ops.EpilogueArguments(text, **named)
    return ops.GemmArguments(a, b, named.get("out", out), acc, epilogue)


def test_gemm_rounds_once_and_writes_nothing() -> None:
    a, b = torch.tensor([[2048.0, 1.0]]).half(), torch.ones(2, 3).half()
    d, f = torch.full((1, 3), math.nan).half(), torch.full((1, 3), math.nan)
    text = "def e(accum):\n  D = accum\n  F = accum - 2048.0\n  return D, F"
    args = gemm_arguments(a, b, text, torch.float32, D=d, F=f)
    found = reference.gemm(args)
    assert found["D"].dtype == torch.float16
    assert found["D"].tolist() == [[2048.0] * 3]
    assert found["F"].tolist() == [[1.0] * 3]
    assert reference.gemm(args, rounded=False)["D"].tolist() == [[2049.0] * 3]
    assert d.isnan().all()
    assert f.isnan().all()


def test_gemm_without_an_epilogue() -> None:
    a = torch.full((2, 3), 127, dtype=torch.int8)
    out = torch.zeros(2, 2, dtype=torch.int8)
    args = ops.GemmArguments(a, a.t(), out, torch.int32)
    assert reference.gemm(args)["out"].tolist() == [[127, 127], [127, 127]]
    assert reference.gemm(args, rounded=False)["out"].tolist() == [[127 * 127 * 3] * 2] * 2


def test_numbers_enter_as_a_kernel_sees_them() -> None:
    one = torch.ones(1, 1)
    text = "def e(accum, alpha):\n  D = accum * alpha + 0.1\n  return D"
    single = gemm_arguments(one, one, text, torch.float32, alpha=0.1, D=torch.empty(1, 1))
    tenth = torch.tensor(0.1, dtype=torch.float32).double()
    assert reference.gemm(single, rounded=False)["D"].item() == (tenth + tenth).item()
    double = gemm_arguments(one.double(), one.double(), text, torch.float64, alpha=0.1, D=torch.empty(1, 1).double())
    assert reference.gemm(double)["D"].item() == 0.2
    as_kernel = reference.gemm(single, torch.float32, rounded=False)["D"]
    assert as_kernel.dtype == torch.float32
    assert as_kernel.item() == (tenth.float() + tenth.float()).item()


@pytest.mark.parametrize(("acc", "value"), [(dtypes.FLOAT16, math.inf), (dtypes.FLOAT32, 131072.0)])
def test_a_float16_accumulator_is_rounded_before_the_epilogue(acc: dtypes.DType, value: float) -> None:
    a = torch.full((1, 512), 16.0).half()
    args = gemm_arguments(a, a.t(), "def e(accum):\n  D = accum\n  return D", acc, D=torch.empty(1, 1))
    assert reference.gemm(args, rounded=False)["D"].item() == value


def test_int32_products_wrap() -> None:
    a = torch.full((1, 2**17 + 1), -128, dtype=torch.int8)
    found = reference.product(a, a.t(), dtypes.INT32)
    assert found.dtype == torch.int64
    assert found.item() == (128 * 128 * (2**17 + 1) + 2**31) % 2**32 - 2**31


def test_tf32_where_torch_allows_it() -> None:
    a = torch.tensor([[1 + 2.0**-12]])
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert reference.product(a, torch.ones(1, 1), dtypes.FLOAT32).item() == 1
    finally:
        torch.set_float32_matmul_precision(before)
    assert reference.product(a, torch.ones(1, 1), dtypes.FLOAT32).item() == 1 + 2.0**-12
