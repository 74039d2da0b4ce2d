# SPDX-License-Identifier: Apache-2.0
"""The portable kernel's PTX, run: exact products of small integers for every dtype, major, alignment and tail.

Around and between the elements lies poison, D is prefilled, and the emulator refuses every access outside of a tensor
and every race.
"""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("cutlass")

from epifuse.dtypes import of
from epifuse_cutedsl.configs.sm80 import configurations
from epifuse_cutedsl.kernels.sm80.operand import MainTraits

KINDS = {"float16": "half", "bfloat16": "half", "float32": "f32", "float64": "f64", "int8": "byte", "uint8": "byte"}
ACCUMULATORS = {"half": "float32", "tf32": "float32", "f32": "float32", "f64": "float64", "byte": "int32"}
MAJORS = tuple(itertools.product(("k", "mn"), repeat=2))


@dataclass(frozen=True)
class Case:
    """One kernel and one problem."""

    dtype: str
    tile: tuple[int, int, int]
    majors: tuple[str, str] = ("k", "mn")
    vector_bytes: int = 16
    unit: bool = True
    size: tuple[int, int, int] = (67, 66, 45)
    batches: int = 1
    axis: str = "n"
    run: int = 4
    group: int = 1
    kind: str = ""
    dtype_b: str = ""
    accumulator: str = ""

    def __str__(self) -> str:
        parts = (self.kind or KINDS[self.dtype], self.dtype, self.dtype_b, self.accumulator, *self.tile, *self.majors)
        more = (self.vector_bytes, "" if self.unit else "strided", *self.size, self.batches, self.axis, self.run)
        return "-".join(str(part) for part in (*parts, *more) if part != "")


def cases():
    half, tf32 = (64, 64, 32), (64, 64, 16)
    for majors, vector in itertools.product(MAJORS, (16, 8, 4, 2)):
        yield Case("float16", half, majors, vector, batches=2 if vector == 8 else 1)
    for majors in MAJORS:
        yield Case("float16", half, majors, size=(72, 80, 48))
        yield Case("int8", (64, 64, 64), majors, size=(67, 66, 77))
        yield Case("float32", tf32, majors, size=(67, 66, 37), kind="tf32")
        yield Case("float32", (32, 64, 16), majors, size=(35, 66, 19), axis="m")
        yield Case("float64", (16, 64, 8), majors, size=(19, 66, 11))
    for k in (0, 1, 31, 32, 33, 200):
        yield Case("float16", half, size=(67, 66, k))
    for axis, run in (("n", 1), ("n", 16), ("m", 1), ("m", 8)):
        yield Case("float16", half, axis=axis, run=run)
        yield Case("float16", half, axis=axis, run=run, accumulator="float16")
    for tile in ((16, 64, 32), (32, 64, 64), (256, 128, 32), (64, 256, 32)):
        yield Case("bfloat16", tile, size=(66, 258, 72), group=2)
    for tile, group in (((128, 256, 64), 1), ((128, 128, 64), 8), ((64, 128, 64), 2)):
        yield Case("bfloat16", tile, size=(132, 264, 136), group=group, majors=("k", "k"))
        yield Case("bfloat16", tile, size=(132, 136, 72), group=group, batches=2)
    for group in (3, 4, 8):
        yield Case("bfloat16", (16, 64, 32), size=(70, 130, 24), group=group, batches=2)
    for m, n in ((1, 1), (1, 200), (200, 1)):
        yield Case("bfloat16", half, size=(m, n, 40), majors=("mn", "k"))
    yield Case("bfloat16", half, ("k", "mn"), 2, unit=False)
    yield Case("bfloat16", half, ("mn", "k"), 2, unit=False)
    yield Case("int8", (16, 64, 64), ("k", "mn"), 1, size=(19, 66, 77))
    yield Case("int8", (32, 64, 64), ("mn", "k"), 1, unit=False, size=(19, 66, 77))
    yield Case("int8", (16, 64, 64), ("mn", "mn"), size=(19, 66, 77))
    yield Case("int8", (128, 256, 128), ("mn", "k"), size=(130, 66, 150), axis="m")
    yield Case("uint8", (64, 64, 64), dtype_b="int8", size=(67, 66, 77))
    yield Case("int8", (64, 64, 64), dtype_b="uint8", size=(67, 66, 77), axis="m")
    yield Case("uint8", (64, 64, 64), ("mn", "k"), 4, size=(67, 66, 77))
    yield Case("float32", (16, 64, 16), ("mn", "mn"), size=(19, 66, 37), kind="tf32", axis="m")
    yield Case("float32", (128, 128, 32), ("mn", "mn"), size=(67, 66, 37), kind="tf32")
    yield Case("float32", tf32, ("mn", "k"), 4, unit=False, size=(67, 66, 37), kind="tf32")
    yield Case("float32", (32, 64, 16), ("mn", "mn"), 4, unit=False, size=(35, 66, 19), batches=2)
    yield Case("float64", (16, 64, 8), ("k", "k"), 8, unit=False, size=(19, 66, 11), batches=2, axis="m")
    yield Case("float32", (128, 128, 16), size=(130, 66, 20))
    yield Case("float64", (64, 64, 8), size=(67, 66, 0))


def integers(dtype, shape):
    low = 0 if dtype == "uint8" else -3
    return torch.randint(low, 4, shape).to(of(dtype).torch)


def operand(portable, values, major, is_a, case):
    axis = {("k", True): 2, ("mn", True): 1, ("k", False): 1, ("mn", False): 2}[major, is_a]
    poison = 99 if values.dtype in (torch.int8, torch.uint8) else math.nan
    placed = portable.view(values, axis, case.vector_bytes // values.element_size(), 1 if case.unit else 3, poison)
    assert placed.data_ptr() % case.vector_bytes == 0
    return placed


def traits_of(case, dtype, major, extent):
    along = case.size[2] if major == "k" else extent
    whole = along * of(dtype).bytes % case.vector_bytes == 0
    return MainTraits(of(dtype), major, case.vector_bytes, case.unit, whole)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_products_are_exact(portable, case):
    torch.manual_seed(7)
    (m, n, k), kind = case.size, case.kind or KINDS[case.dtype]
    accumulator = of(case.accumulator or ACCUMULATORS[kind])
    dtype_b = case.dtype_b or case.dtype
    config = next(c for c in configurations(kind, accumulator.bytes, 90) if (c.tile_m, c.tile_n, c.tile_k) == case.tile)
    a, b = integers(case.dtype, (case.batches, m, k)), integers(dtype_b, (case.batches, k, n))
    kernel = portable.gemm(
        config,
        traits_of(case, case.dtype, case.majors[0], m),
        traits_of(case, dtype_b, case.majors[1], n),
        accumulator,
        case.axis,
        case.run,
    )
    text, _ = portable.compiled(kernel)
    whole = torch.full((case.batches, m + 2, n + 2), -77, dtype=accumulator.torch)
    expected = whole.clone()
    expected[:, 1:-1, 1:-1] = (a.double() @ b.double()).to(accumulator.torch)
    placed_a = operand(portable, a, case.majors[0], True, case)
    placed_b = operand(portable, b, case.majors[1], False, case)
    portable.launch(text, kernel, placed_a, placed_b, whole[:, 1:-1, 1:-1], case.group, seed=m + n)
    torch.testing.assert_close(whole, expected, rtol=0, atol=0)


def test_tf32_operands_are_rounded_to_nearest_not_cut_off(portable):
    config = next(c for c in configurations("tf32", 4, 90) if c.tile_m == 16)
    traits = MainTraits(of("float32"), "k", 16)
    kernel = portable.gemm(config, traits, traits, of("float32"))
    a = torch.zeros(1, 4, 8)
    a[0, :, 0] = torch.tensor([1 + 2**-11, 1 + 2**-12, 1 + 3 * 2**-11, -1 - 2**-11])
    b = torch.zeros(1, 8, 8)
    b[0, 0, :] = 1
    d = torch.full((1, 4, 8), math.nan)
    portable.launch(portable.compiled(kernel)[0], kernel, a, b.transpose(1, 2).contiguous().transpose(1, 2), d)
    expected = torch.tensor([1 + 2**-10, 1.0, 1 + 2**-9, -1 - 2**-10])
    assert torch.equal(d[0], expected[:, None].expand(4, 8))


def test_nan_stays_in_its_row_and_column(portable):
    config = next(c for c in configurations("half", 4, 90) if c.tile_m == 16)
    traits = MainTraits(of("float16"), "k", 16), MainTraits(of("float16"), "mn", 16)
    kernel = portable.gemm(config, *traits, of("float32"))
    a, b = torch.ones(1, 20, 40, dtype=torch.float16), torch.ones(1, 40, 72, dtype=torch.float16)
    a[0, 3, 39], b[0, 0, 70] = math.nan, math.inf
    d = torch.zeros(1, 20, 72)
    portable.launch(portable.compiled(kernel)[0], kernel, a, b, d)
    expected = torch.full((1, 20, 72), 40.0)
    expected[0, :, 70], expected[0, 3, :] = math.inf, math.nan
    torch.testing.assert_close(d, expected, rtol=0, atol=0, equal_nan=True)


def test_integer_products_wrap_nothing_below_32_bits(portable):
    config = next(c for c in configurations("byte", 4, 90) if c.tile_m == 16)
    traits = MainTraits(of("uint8"), "k", 16)
    kernel = portable.gemm(config, traits, traits, of("int32"))
    a = torch.full((1, 16, 1024), 255, dtype=torch.uint8)
    d = torch.zeros(1, 16, 16, dtype=torch.int32)
    portable.launch(portable.compiled(kernel)[0], kernel, a, a.transpose(1, 2), d)
    assert torch.equal(d, torch.full_like(d, 1024 * 255 * 255))
