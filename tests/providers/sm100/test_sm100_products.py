# SPDX-License-Identifier: Apache-2.0
"""Every product that ``tcgen05.mma`` has, exact on integers, and every output dtype."""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse.runtime.rounding import round_to_tf32

E4M3, E5M2, I8, U8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8
F16, BF16, F32, I32 = torch.float16, torch.bfloat16, torch.float32, torch.int32
PRODUCTS = (
    (F16, F16, F16, "mk"),
    (E4M3, E4M3, F32, "kk"),
    (E4M3, E5M2, F32, "mm"),
    (E5M2, E5M2, F16, "km"),
    (I8, I8, I32, "km"),
    (I8, U8, I32, "mk"),
    (U8, U8, I32, "mm"),
)


@pytest.mark.parametrize(("a", "b", "accumulator", "majors"), PRODUCTS)
@pytest.mark.parametrize(("tile", "ctas", "cluster"), [((128, 64), 1, (1, 1)), ((64, 64), 2, (4, 2))])
def test_products(blackwell, a, b, accumulator, majors, tile, ctas, cluster):
    args = blackwell.arguments((150, 90, 200), majors=majors, dtype=a, b_dtype=b, accumulator=accumulator)
    blackwell.run(args, tile, ctas, cluster, sm_count=8)


@pytest.mark.parametrize(("tile", "ctas"), [((128, 64), 1), ((64, 64), 2)])
def test_tf32_where_torch_allows_it(blackwell, tile, ctas):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        blackwell.run(blackwell.arguments((150, 90, 100), dtype=F32), tile, ctas)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("accumulator", [F32, I32])
@pytest.mark.parametrize("turned", [False, True])
def test_output_dtypes(blackwell, accumulator, turned):
    m, n = 70, 48
    kinds = (F32, F16, BF16, E4M3, E5M2, I8, U8, I32)
    outputs = {}
    for index, kind in enumerate(kinds):
        blank = torch.full((n, m) if turned else (m, n), 77).to(kind)
        outputs[f"D{index or ''}"] = blank.mT if turned else blank
    names = ", ".join(outputs)
    text = f"def epi(accum, c): {names.replace(', ', ' = ')} = accum * 2 + c; return {names}"
    c = blackwell.integers(m, n, dtype=I8)
    dtype = I8 if accumulator is I32 else BF16
    args = blackwell.arguments((m, n, 40), text, dtype=dtype, accumulator=accumulator, c=c, **outputs)
    blackwell.run(args, (64, 64), 2)


def test_tf32_rounds_operands_as_the_reference_does(blackwell):
    m, n, k = 70, 40, 64
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(shape, generator=generator) for shape in ((m, k), (k, n)))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        out = torch.full((m, n), float("nan"))
        args = ops.GemmArguments(a, b, out, F32)
        blackwell.launch(args, (128, 64))
    finally:
        torch.set_float32_matmul_precision(before)
    rounded = round_to_tf32(a).double() @ round_to_tf32(b).double()
    assert (out - rounded).abs().max() < 1e-5  # cut off instead, operands would be 1e-3 away


@pytest.mark.parametrize("size", [(70, 71, 73), (7, 1, 1), (1, 130, 9)])
@pytest.mark.parametrize("dtype", [BF16, E4M3, I8])
def test_operands_that_tensor_copies_cannot_move(blackwell, size, dtype):
    m, n, k = size
    accumulator = I32 if dtype is I8 else F32
    a, b = blackwell.integers(m, k, dtype=dtype), blackwell.integers(k, n, dtype=dtype, seed=1)
    d = torch.full((m, n), 77).to(accumulator)
    epilogue = ops.EpilogueArguments("def epi(accum, c): D = accum + c; return D", c=blackwell.integers(m, 1), D=d)
    args = ops.GemmArguments(a, b, torch.empty(m, n, dtype=accumulator), accumulator, epilogue)
    blackwell.run(args, (64, 64), 2)
