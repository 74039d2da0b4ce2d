# SPDX-License-Identifier: Apache-2.0
"""Every row of the vocabulary through the CPU provider, from text to numbers, within the error that the row states."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
import torch

import epifuse as ops
from epifuse.fusion import reference, vocabulary
from epifuse.fusion.vocabulary.table import Level, Operation, Result, Role

CONSTANT_ARGUMENTS = {"pow": "3", "clamp": "-1.0, 2.0", "cast": "'float16'"}
HALVING = {"even_columns", "odd_columns"}


def calls() -> Iterator[tuple[Operation, str]]:
    """Each row that gives a number for each position, once for each combination of its flags."""
    for row in vocabulary.rows():
        if row.level is Level.REDUCTION:
            continue
        names = [p.name for p in row.parameters if p.role is Role.OPERAND and p.default is ...]
        operands = ["accum", "y", "z"][: len(names)]
        if row.name == "where":
            operands[0] = "accum > 0.5"
        if row.name in CONSTANT_ARGUMENTS:
            operands.append(CONSTANT_ARGUMENTS[row.name])
        flags = [[f"{p.name}={c!r}" for c in p.choices] for p in row.parameters if p.choices]
        for chosen in itertools.product(*flags):
            call = f"{row.name}({', '.join([*operands, *chosen])})"
            yield row, f"where({call}, 1.0, 0.0)" if row.result is Result.BOOL else call


def grid() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(2000, generator=generator) * torch.exp2(
        torch.randint(-30, 10, (2000,), generator=generator).float()
    )
    edges = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 88.0, -88.0, -104.0, 1e-38, 0.5]
    return torch.cat([torch.linspace(-12, 12, 3000), spread, torch.tensor(edges)])[None]


def run(x: torch.Tensor, text: str, columns: int, **operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """D of the CPU provider, and the reference's in float64; the accumulator is ``x``."""
    d = torch.full((1, columns), math.nan)
    used = {name: value for name, value in operands.items() if name in text.partition(":")[0]}
    epilogue = ops.EpilogueArguments(text, D=d, **used)
    one = torch.ones(1, 1, dtype=x.dtype)
    acc = torch.int32 if x.dtype == torch.int8 else torch.float32
    args = ops.GemmArguments(one, x, torch.empty(x.shape), acc, epilogue)
    ops.get_operators(args)[0].run(args)
    return d, reference.gemm(args, rounded=False)["D"].double()


@pytest.mark.parametrize(("row", "call"), list(calls()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_row_keeps_its_stated_error(row: Operation, call: str) -> None:
    x = grid()
    operands = {"y": x.flip(1).contiguous(), "z": x.roll(7, 1).contiguous()}
    parameters = ", ".join(["accum", *(name for name in operands if f"{name}," in call or f"{name})" in call)])
    columns = x.shape[1] // 2 if row.level is Level.GATED or row.name in HALVING else x.shape[1]
    found, exact = run(x, f"def f({parameters}):\n  D = {call}\n  return D", columns, **operands)
    rounded = exact.float()
    agree = (rounded == found) | (rounded.isnan() & found.isnan())
    ulp = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(2.0**-126, 3e38))) - 23)
    absolute = torch.full_like(exact, row.accuracy.absolute)
    if row.level is Level.GATED:
        absolute *= x[:, 1::2].double().abs().clamp(min=1)
    error = (found.double() - exact).abs()
    agree |= error <= torch.maximum((row.accuracy.ulp + 0.5) * ulp, absolute)
    worst = (error / ulp)[~agree]
    assert agree.all(), f"{call}: {worst.tolist()[:5]} ulp at {exact[~agree].tolist()[:5]}"
    assert not torch.equal(found, x) or row.name == "identity"


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "tanh", "mish", "softplus", "elu", "hardswish", "sigmoid"])
def test_two_outputs_of_a_random_problem_against_float64(name: str) -> None:
    generator = torch.Generator().manual_seed(len(name))
    m, n, k = (int(v) for v in torch.randint(1, 40, (3,), generator=generator))
    a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
    c, row = torch.randn(m, n, generator=generator), torch.randn(n, generator=generator)
    text = f"def f(accum, c, row):\n  t = accum * row + c\n  F = {name}(t)\n  D = F - 0.5 * c\n  return D, F"
    d, f = torch.full((m, n), math.nan), torch.full((m, n), math.nan).half()
    args = ops.GemmArguments(a, b, d, torch.float32, ops.EpilogueArguments(text, c=c, row=row, D=d, F=f))
    ops.get_operators(args)[0].run(args)
    exact = reference.gemm(args, rounded=False)
    carried = (a.abs().double() @ b.abs().double() * row.abs() + c.abs() + 1) * (1 + exact["F"].abs() + c.abs())
    for output, label, half_ulp in ((d, "D", 2.0**-24), (f, "F", 2.0**-11)):
        bound = exact[label].abs() * half_ulp + carried * 2.0**-21
        assert ((output.double() - exact[label]).abs() <= bound).all()


class Int32:
    """An integer that wraps, in Python alone."""

    def __init__(self, value: int) -> None:
        self.value = (value + 2**31) % 2**32 - 2**31

    def __add__(self, other: Int32) -> Int32:
        return Int32(self.value + other.value)

    def __sub__(self, other: Int32) -> Int32:
        return Int32(self.value - other.value)

    def __mul__(self, other: Int32) -> Int32:
        return Int32(self.value * other.value)

    def __neg__(self) -> Int32:
        return Int32(-self.value)

    def __lt__(self, other: Int32) -> bool:
        return self.value < other.value


PYTHON = {
    "maximum": lambda a, b: Int32(max(a.value, b.value)),
    "minimum": lambda a, b: Int32(min(a.value, b.value)),
    "abs": lambda a: Int32(abs(a.value)),
    "relu": lambda a: Int32(max(a.value, 0)),
    "square": lambda a: a * a,
    "multiply_add": lambda a, b, c: a * b + c,
    "where": lambda condition, a, b: a if condition else b,
}


def integer_function(rng: random.Random, length: int) -> str:
    names = ["accum", "c", "k"]
    lines = []
    for index in range(length):
        a, b, c = (rng.choice(names) for _ in range(3))
        form = rng.choice(
            [f"{a} + {b}", f"{a} - {b}", f"{a} * {b}", f"-{a}", f"maximum({a}, {b})", f"minimum({a}, {b})", f"abs({a})",
             f"relu({a})", f"square({a})", f"multiply_add({a}, {b}, {c})", f"where({a} < {b}, {b}, {c})"]
        )  # fmt: skip
        lines.append(f"  t{index} = {form}")
        names.append(f"t{index}")
    return "\n".join(["def f(accum, c, k):", *lines, f"  D = {names[-1]}", "  return D"])


@pytest.mark.parametrize("seed", range(12))
def test_integer_functions_against_python_integers(seed: int) -> None:
    rng = random.Random(seed)
    text = integer_function(rng, rng.randint(1, 25))
    generator = torch.Generator().manual_seed(seed)
    a = torch.randint(-128, 128, (3, 4), generator=generator).to(torch.int8)
    b = torch.randint(0, 256, (4, 5), generator=generator).to(torch.uint8)
    c = torch.randint(-(2**31), 2**31, (5,), generator=generator).to(torch.int32)
    d = torch.full((3, 5), 77, dtype=torch.int32)
    args = ops.GemmArguments(a, b, d, torch.int32, ops.EpilogueArguments(text, c=c, k=-7, D=d))
    ops.get_operators(args)[0].run(args)
    scope: dict[str, object] = dict(PYTHON)
    exec(text, scope)  # noqa: S102 - the same text as Python, on Python integers
    accum = a.long() @ b.long()
    expected = [
        [scope["f"](Int32(int(accum[i, j])), Int32(int(c[j])), Int32(-7)).value for j in range(5)]  # type: ignore[operator]
        for i in range(3)
    ]
    assert d.tolist() == expected, text
    assert reference.gemm(args)["D"].tolist() == expected, text
