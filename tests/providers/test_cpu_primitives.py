# SPDX-License-Identifier: Apache-2.0
"""Every primitive of the CPU provider against exact or float64 arithmetic, on every dtype it can meet."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from epifuse import dtypes
from epifuse.fusion import vocabulary
from epifuse.fusion.vocabulary.table import Level
from epifuse_cpu.primitives import EMITTERS, emit

F32, F64, I32 = torch.float32, torch.float64, torch.int32
SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, 1.0, -1.0]
TRANSCENDENTAL = ["rsqrt", "exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "ndtr"]


def grid(dtype: torch.dtype, seed: int = 0, count: int = 500) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        values = torch.randint(-(2**31), 2**31, (count,), generator=generator)
        return torch.cat((values, torch.tensor([-(2**31), 2**31 - 1, 0, 1, -1]))).to(dtype)
    exponents = torch.randint(-60, 60, (count,), generator=generator)
    values = torch.ldexp(torch.randn(count, generator=generator, dtype=F64), exponents)
    small = torch.randn(count, generator=generator, dtype=F64) * 3
    return torch.cat((values, small, torch.tensor(SPECIAL, dtype=F64))).to(dtype)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to the last bit, signs of zeros included."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if found.dtype.is_floating_point:
        numbers = ~expected.isnan()
        assert torch.equal(found[numbers].signbit(), expected[numbers].signbit())


def test_every_primitive_of_the_vocabulary_has_an_emitter() -> None:
    assert set(EMITTERS) == {row.name for row in vocabulary.rows(Level.PRIMITIVE)}


BINARY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


def nearest(x: Fraction, dtype: torch.dtype) -> float:
    """Rounded once: float64 by Python; float32 by a search among its neighbors."""
    try:
        guess = float(x)
    except OverflowError:
        return math.copysign(math.inf, x)
    if dtype == F64:
        return guess
    start = torch.tensor(guess, dtype=F32)
    infinity = torch.tensor(math.inf)
    near = [start, torch.nextafter(start, infinity), torch.nextafter(start, -infinity)]
    near = [c for c in near if c.isfinite()]
    even = {c.item(): c.view(I32).item() & 1 for c in near}
    best = min(even, key=lambda c: (abs(Fraction(c) - x), even[c]))
    limit = Fraction(2) ** 128 - Fraction(2) ** 103
    return math.copysign(math.inf, x) if abs(x) >= limit else best


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_arithmetic_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    a, b = grid(dtype, 1)[:1000], grid(dtype, 2)[:1000].flip(0)
    found = emit(name, [a, b], {})
    expected = [
        nearest(BINARY[name](Fraction(x), Fraction(y)), dtype) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert torch.equal(found.to(F64), torch.tensor(expected, dtype=F64))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_division_by_one_number_is_a_division(dtype: torch.dtype) -> None:
    a = grid(dtype, 3).reshape(1, 1, -1)
    by = torch.full((1, 1, 1), 3.0, dtype=dtype)
    same(emit("div", [a, by], {}), a / by.expand_as(a).contiguous())
    same(emit("reciprocal", [a], {}), torch.ones_like(a) / a)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_multiply_add_is_rounded_once(dtype: torch.dtype) -> None:
    a, b = grid(dtype, 4)[:1000], grid(dtype, 5)[:1000]
    exact = [-Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    c = torch.tensor([nearest(x, dtype) for x in exact], dtype=F64).to(dtype)  # leaves the product's rounding error
    found = emit("multiply_add", [a, b, c], {})
    expected = [nearest(Fraction(z) - x, dtype) for x, z in zip(exact, c.tolist(), strict=True)]
    assert torch.equal(found.to(F64), torch.tensor(expected, dtype=F64))
    assert found.count_nonzero() > 900, "an fma sees what a rounded product loses"


@pytest.mark.parametrize("name", ["add", "sub", "mul", "neg", "abs", "multiply_add"])
def test_integers_wrap(name: str) -> None:
    operands = [grid(I32, seed) for seed in range({"neg": 1, "abs": 1, "multiply_add": 3}.get(name, 2))]
    exact = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "neg": lambda a: -a,
        "abs": abs,
        "multiply_add": lambda a, b, c: a * b + c,
    }[name]
    expected = [exact(*row) for row in zip(*(x.tolist() for x in operands), strict=True)]
    wrapped = [(v + 2**31) % 2**32 - 2**31 for v in expected]
    assert expected != wrapped
    found = emit(name, operands, {})
    assert found.dtype == I32
    assert found.tolist() == wrapped


@pytest.mark.parametrize("name", TRANSCENDENTAL)
def test_float32_functions_are_the_float64_ones_rounded(name: str) -> None:
    x = grid(F32, 6)
    if name in ("log", "log2", "rsqrt"):
        x = x.abs()
    function = {
        "rsqrt": lambda v: 1 / math.sqrt(v),
        "exp2": math.exp2,
        "erf": math.erf,
        "ndtr": lambda v: math.erfc(-v * math.sqrt(0.5)) / 2,
    }.get(name)
    function = function or getattr(math, name)
    found = emit(name, [x], {})
    assert found.dtype == F32
    compared = 0
    for value, result in zip(x.tolist(), found.tolist(), strict=True):
        try:
            expected = torch.tensor(function(value), dtype=F64).to(F32).item()
        except (OverflowError, ValueError, ZeroDivisionError):
            continue
        if math.isnan(expected) or abs(value) > 1e6 and name in ("sin", "cos"):
            continue
        compared += 1
        assert result == pytest.approx(expected, rel=2.0**-23, abs=0)
    assert compared > 400


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp", [math.inf, 0.0, math.nan, 1.0, 1.0]),
        ("exp2", [math.inf, 0.0, math.nan, 1.0, 1.0]),
        ("log", [math.inf, math.nan, math.nan, -math.inf, -math.inf]),
        ("log2", [math.inf, math.nan, math.nan, -math.inf, -math.inf]),
        ("sqrt", [math.inf, math.nan, math.nan, 0.0, -0.0]),
        ("rsqrt", [0.0, math.nan, math.nan, math.inf, -math.inf]),
        ("reciprocal", [0.0, -0.0, math.nan, math.inf, -math.inf]),
        ("sin", [math.nan, math.nan, math.nan, 0.0, -0.0]),
        ("cos", [math.nan, math.nan, math.nan, 1.0, 1.0]),
        ("tanh", [1.0, -1.0, math.nan, 0.0, -0.0]),
        ("erf", [1.0, -1.0, math.nan, 0.0, -0.0]),
        ("ndtr", [1.0, 0.0, math.nan, 0.5, 0.5]),
        ("floor", [math.inf, -math.inf, math.nan, 0.0, -0.0]),
        ("abs", [math.inf, math.inf, math.nan, 0.0, 0.0]),
        ("neg", [-math.inf, math.inf, math.nan, -0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_special_values(name: str, expected: list[float], dtype: torch.dtype) -> None:
    same(emit(name, [torch.tensor(SPECIAL[:5], dtype=dtype)], {}), torch.tensor(expected, dtype=dtype))


def test_square_root_and_reciprocal_are_rounded_once() -> None:
    x = grid(F32, 7).abs()
    roots = torch.tensor([math.sqrt(v) for v in x.tolist()], dtype=F64)
    same(emit("sqrt", [x], {}), roots.to(F32))  # innocuous: 53 >= 2 * 24 + 2
    same(emit("sqrt", [x.to(F64)], {}), roots)
    same(emit("reciprocal", [x], {}), x.to(F64).reciprocal().to(F32))


@pytest.mark.parametrize("name", [*TRANSCENDENTAL, "sqrt", "reciprocal", "maximum", "minimum", "add", "multiply_add"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_neither_strides_nor_tails_show(name: str, dtype: torch.dtype) -> None:
    arity = {"maximum": 2, "minimum": 2, "add": 2, "multiply_add": 3}.get(name, 1)
    x = [grid(dtype, seed)[:1009].abs() for seed in range(arity)]
    whole = emit(name, x, {})
    apart = [torch.stack([v, torch.full_like(v, math.nan)], 1)[:, 0] for v in x]
    same(emit(name, apart, {}), whole)
    for size in (1, 3, 7):
        cut = [emit(name, [v[i : i + size] for v in x], {}) for i in range(0, 1009, size)]
        same(torch.cat(cut), whole)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_maximum_and_minimum_take_nan_and_order_zeros(dtype: torch.dtype) -> None:
    values = torch.tensor(SPECIAL, dtype=dtype).repeat(3)
    a, b = values[:, None].expand(-1, 30).contiguous(), values[None, :].expand(30, -1).contiguous()

    def key(v: float) -> tuple[float, float]:
        return v, math.copysign(1, v)

    for name, choose in (("maximum", max), ("minimum", min)):
        pairs = zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)
        expected = [math.nan if math.isnan(x) or math.isnan(y) else choose(x, y, key=key) for x, y in pairs]
        same(emit(name, [a, b], {}), torch.tensor(expected, dtype=dtype).reshape(30, 30))


def test_minimum_and_maximum_of_integers() -> None:
    a, b = grid(I32, 8), grid(I32, 9)
    assert emit("minimum", [a, b], {}).tolist() == [min(p) for p in zip(a.tolist(), b.tolist(), strict=True)]
    assert emit("maximum", [a, b], {}).tolist() == [max(p) for p in zip(a.tolist(), b.tolist(), strict=True)]
    assert torch.equal(emit("floor", [a], {}), a)


@pytest.mark.parametrize("dtype", [F32, F64, I32], ids=str)
def test_comparisons_and_where(dtype: torch.dtype) -> None:
    a = grid(dtype, 10)
    b = torch.where(torch.arange(a.numel()) % 3 == 0, a, a.flip(0))
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    for name, function in {
        "less": lambda x, y: x < y,
        "less_equal": lambda x, y: x <= y,
        "greater": lambda x, y: x > y,
        "greater_equal": lambda x, y: x >= y,
        "equal": lambda x, y: x == y,
        "not_equal": lambda x, y: x != y,
    }.items():
        condition = emit(name, [a, b], {})
        assert condition.dtype == torch.bool
        assert condition.tolist() == [function(x, y) for x, y in pairs]
        same(emit("where", [condition, a, b], {}), torch.where(condition, a, b))


def test_casts_round_once_and_saturate() -> None:
    x = torch.tensor([1 + 2.0**-9, 1e6, -1e6, math.nan, 2.5])
    assert emit("cast", [x], {"dtype": dtypes.BFLOAT16}).tolist()[0] == 1.0
    assert emit("cast", [x], {"dtype": dtypes.FLOAT16}).tolist()[1] == math.inf
    assert emit("cast", [x], {"dtype": dtypes.FLOAT8_E4M3FN}).to(F32).tolist()[1:3] == [448.0, -448.0]
    assert emit("cast", [x], {"dtype": dtypes.INT8}).tolist() == [1, 127, -128, 0, 2]
    assert emit("cast", [torch.tensor([2**24 + 1], dtype=I32)], {"dtype": dtypes.FLOAT32}).item() == 2.0**24


def test_exp2_of_integers_is_exact() -> None:
    for dtype, low, high in ((F32, -149, 128), (F64, -1074, 1024)):
        x = torch.arange(low - 3, high + 3).to(dtype)
        expected = [math.ldexp(1.0, int(v)) if low <= v < high else 0.0 if v < low else math.inf for v in x.tolist()]
        assert emit("exp2", [x], {}).tolist() == expected
    x = grid(F64, 11)[500:1000]
    expected = torch.tensor([math.exp2(v) for v in x.tolist()], dtype=F64)
    assert ((emit("exp2", [x], {}) - expected).abs() <= 2.0**-52 * expected).all()


def test_column_pairs() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert emit("even_columns", [x], {}).tolist() == x[..., [0, 2]].tolist()
    assert emit("odd_columns", [x], {}).tolist() == x[..., [1, 3]].tolist()
    column = x[..., :1]
    assert torch.equal(emit("odd_columns", [column], {}), column), "one column: a value that does not vary along n"
