# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""f16 and bf16 arithmetic, single and packed, against exact rationals."""

from fractions import Fraction

import numpy as np
import pytest
from ptxlab import run_columns, run_one
from ptxvalues import rounded, same_bits

EXACT = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}
CORNERS = {
    "f16": [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x3C01, 0x3555, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00],
    "bf16": [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3F80, 0xBF80, 0x3F81, 0x3EAB, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0],
}


def pairs(name, count=600):
    rng = np.random.default_rng(1)
    corners = np.array(CORNERS[name], np.uint16)
    left, right = (x.reshape(-1) for x in np.meshgrid(corners, corners))
    near = {"f16": (0x3000, 0x4800), "bf16": (0x3D80, 0x4280)}[name]
    more = [np.concatenate((rng.integers(0, 65536, count), rng.integers(*near, count))).astype(np.uint16) for _ in "ab"]
    return np.concatenate((left, more[0])), np.concatenate((right, more[1]))


def values(codes, name):
    return codes.view(np.float16) if name == "f16" else (codes.astype(np.uint32) << 16).view(np.float32)


def expected_of(name, kind, *operands):
    rows = zip(*(values(x, kind).astype(np.float64).tolist() for x in operands), strict=True)
    out = []
    for row in rows:
        with np.errstate(all="ignore"):
            a, b, *c = (np.float64(v) for v in row)
            ieee = float(a * b + c[0]) if c else float(EXACT[name](a, b))
        if np.isfinite(row).all():
            exact = [Fraction(v) for v in row]
            total = exact[0] * exact[1] + exact[2] if c else EXACT[name](*exact)
            out.append(rounded(total, kind, "rn", ieee))
        else:
            out.append(ieee)
    return np.array(out, np.float32)


def agree(codes, expected, kind):
    return same_bits(values(codes, kind).astype(np.float32), expected)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", [*EXACT, "fma"])
def test_arithmetic_is_rounded_once(name, kind):
    a, b = pairs(kind)
    c = np.roll(a, 11)
    operands = (a, b, c) if name == "fma" else (a, b)
    listed = ", ".join(f"%i{i}" for i in range(len(operands)))
    single = run_one(f"{name}.rn.{kind} %o0, {listed};", *operands, out="b16")
    expected = expected_of(name, kind, *operands)
    assert agree(single, expected, kind).all()
    packed = [np.stack((x, np.roll(x, 1)), 1).view(np.uint32)[:, 0] for x in operands]
    double = run_one(f"{name}.rn.{kind}x2 %o0, {listed};", *packed).view(np.uint16).reshape(-1, 2)
    assert agree(double[:, 0].copy(), expected, kind).all()
    assert agree(double[:, 1].copy(), np.roll(expected, 1), kind).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_fma_with_relu_and_saturation(kind):
    a, b = pairs(kind)
    c = np.roll(b, 5)
    found = run_one(f"fma.rn.relu.{kind} %o0, %i0, %i1, %i2;", a, b, c, out="b16")
    expected = expected_of("fma", kind, a, b, c)
    assert agree(found, np.where(expected <= 0, np.float32(0), expected), kind).all()
    if kind == "f16":
        found = run_one("fma.rn.sat.f16 %o0, %i0, %i1, %i2;", a, b, c, out="b16")
        total = expected_of("fma", kind, a, b, c)
        clamped = np.where(np.isnan(total), np.float32(0), np.clip(total, 0, 1)) + np.float32(0)
        assert agree(found, clamped, kind).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
def test_minimum_and_maximum(kind, nan):
    a, b = pairs(kind)
    code = f"min{nan}.{kind} %o0, %i0, %i1;\nmax{nan}.{kind} %o1, %i0, %i1;"
    low, high = run_columns(code, [a, b], ["b16", "b16"])
    x, y = values(a, kind), values(b, kind)
    missing = np.isnan(x) | np.isnan(y) if nan else np.isnan(x) & np.isnan(y)
    zeros = (x == 0) & (y == 0)
    smaller = np.where(zeros, np.where(np.signbit(x), x, y), np.fmin(x, y))
    larger = np.where(zeros, np.where(np.signbit(x), y, x), np.fmax(x, y))
    assert agree(low, np.where(missing, np.float32(np.nan), smaller.astype(np.float32)), kind).all()
    assert agree(high, np.where(missing, np.float32(np.nan), larger.astype(np.float32)), kind).all()
    if nan:
        assert (low[missing] == 0x7FFF).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_signs(kind):
    codes = np.arange(65536, dtype=np.uint16)
    ordered = ~np.isnan(values(codes, kind))
    negative, size = run_columns(f"neg.{kind} %o0, %i0;\nabs.{kind} %o1, %i0;", [codes], ["b16", "b16"])
    assert np.array_equal(negative[ordered], codes[ordered] ^ 0x8000)
    assert np.array_equal(size[ordered], codes[ordered] & 0x7FFF)
    wide = np.stack((codes, codes[::-1]), 1).view(np.uint32)[:, 0]
    found = run_one(f"neg.{kind}x2 %o0, %i0;", wide).view(np.uint16).reshape(-1, 2)
    assert np.array_equal(found[ordered, 0], codes[ordered] ^ 0x8000)


@pytest.mark.parametrize(
    ("name", "function", "bound"),
    [
        ("ex2.approx.f16", np.exp2, 2**-9.9),
        ("tanh.approx.f16", np.tanh, 2**-10.987),
        ("tanh.approx.bf16", np.tanh, 2**-8),
    ],
)
def test_approximations(name, function, bound):
    kind = name.split(".")[-1]
    codes = np.arange(0, 65536, 3, dtype=np.uint16)
    found = values(run_one(f"{name} %o0, %i0;", codes, out="b16"), kind).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = function(values(codes, kind).astype(np.float64))
    inside = np.isfinite(exact) & (np.abs(exact) < 65000)
    step = 2.0**-24 if kind == "f16" else 0.0
    assert (np.abs(found - exact)[inside] <= bound * np.maximum(np.abs(exact[inside]), 2.0**-14) + step).all()
    assert np.array_equal(np.isnan(found), np.isnan(exact))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_comparison_of_halves(kind):
    a, b = pairs(kind)
    code = f"setp.lt.{kind} %p1, %i0, %i1;\nsetp.geu.{kind} %p2, %i0, %i1;\nselp.u32 %o0, 1, 0, %p1;\nselp.u32 %o1, 1, 0, %p2;"
    below, not_below = run_columns(code, [a, b], ["b32", "b32"])
    x, y = values(a, kind), values(b, kind)
    assert np.array_equal(below, x < y)
    assert np.array_equal(not_below, ~(x < y))
