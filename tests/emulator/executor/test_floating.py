# SPDX-License-Identifier: Apache-2.0
"""Floating point: one rounding in every mode, NaN rules, packed forms, approximations."""

from fractions import Fraction

import numpy as np
import pytest

SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    1e-45,
    3.4e38,
    1e-38,
    0.1,
    -7.25,
    1 + 2**-23,
    65504.0,
    2**-24,
    3.0,
]
RNG = np.random.default_rng(2)
A = np.array(SPECIAL + list(RNG.normal(size=16) * 10.0 ** RNG.integers(-20, 20, 16)), np.float32)
B = np.array(list(RNG.permutation(SPECIAL)) + list(RNG.normal(size=16) * 10.0 ** RNG.integers(-20, 20, 16)), np.float32)
C = A[::-1].copy()


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    found, wanted = found.view(np.float32), np.asarray(wanted, np.float32)
    assert np.isnan(found).tolist() == np.isnan(wanted).tolist()
    keep = ~np.isnan(wanted)
    assert found.view(np.uint32)[keep].tolist() == wanted.view(np.uint32)[keep].tolist()


def directed(exact: Fraction, mode: str) -> float:
    """The float32 that a finite value rounds to, for values without overflow."""
    near = np.float32(float(exact))
    if mode == "rz":
        mode = "rm" if exact > 0 else "rp"
    while mode == "rm" and Fraction(float(near)) > exact:
        near = np.nextafter(near, np.float32(-np.inf))
    while mode == "rp" and Fraction(float(near)) < exact:
        near = np.nextafter(near, np.float32(np.inf))
    step = np.float32(np.inf if mode == "rm" else -np.inf)
    closer = np.nextafter(near, step)
    while (mode == "rm" and Fraction(float(closer)) <= exact) or (mode == "rp" and Fraction(float(closer)) >= exact):
        near, closer = closer, np.nextafter(closer, step)
    return float(near)


@pytest.mark.parametrize(
    ("name", "compute"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div.rn", np.divide)]
)
def test_nearest(run_lanes, name, compute):
    (found,) = run_lanes(f"{name}.f32 %o0, %i0, %i1;", [A.view(np.uint32), B.view(np.uint32)], ["b32"])
    with np.errstate(all="ignore"):
        same(found, compute(A, B))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("name", "compute"), [("add", Fraction.__add__), ("mul", Fraction.__mul__), ("sub", Fraction.__sub__)]
)
def test_directed(run_lanes, name, compute, mode):
    a = (RNG.normal(size=32) * 10.0 ** RNG.integers(-6, 6, 32)).astype(np.float32)
    b = (RNG.normal(size=32) * 10.0 ** RNG.integers(-6, 6, 32)).astype(np.float32)
    (found,) = run_lanes(f"{name}.{mode}.f32 %o0, %i0, %i1;", [a.view(np.uint32), b.view(np.uint32)], ["b32"])
    wanted = [directed(compute(Fraction(float(x)), Fraction(float(y))), mode) for x, y in zip(a, b, strict=True)]
    same(found, np.array(wanted))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_rounds_once(run_lanes, mode):
    # The product and the sum are chosen so that rounding twice would tie.
    a = np.array([1 + 2**-12] * 16 + [1 - 2**-23] * 16, np.float32)
    b = np.array([1 + 2**-12] * 16 + [1 + 2**-23] * 16, np.float32)
    c = np.array([2.0**-k for k in range(20, 36)] + [-(2.0**-k) for k in range(40, 56)], np.float32)
    (found,) = run_lanes(f"fma.{mode}.f32 %o0, %i0, %i1, %i2;", [x.view(np.uint32) for x in (a, b, c)], ["b32"])
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    wanted = [float(np.float32(nearest(e))) if mode == "rn" else directed(e, mode) for e in exact]
    same(found, np.array(wanted))


def nearest(exact: Fraction) -> float:
    low, high = directed(exact, "rm"), directed(exact, "rp")
    below, above = exact - Fraction(low), Fraction(high) - exact
    if below == above:
        return low if int(np.float32(low).view(np.uint32)) % 2 == 0 else high
    return low if below < above else high


def test_two_lanes_of_float32_in_one_register(run_lanes):
    packed = (A.view(np.uint32).astype(np.uint64) << np.uint64(32)) | B.view(np.uint32)
    other = (C.view(np.uint32).astype(np.uint64) << np.uint64(32)) | A.view(np.uint32)
    (found,) = run_lanes("add.rn.f32x2 %o0, %i0, %i1;", [packed, other], ["b64"])
    halves = found.view(np.uint32).reshape(32, 2)
    with np.errstate(all="ignore"):
        same(halves[:, 0].copy(), B + A)
        same(halves[:, 1].copy(), A + C)


def test_minimum_and_maximum_with_and_without_nan(run_lanes):
    code = "min.f32 %o0, %i0, %i1;\nmax.f32 %o1, %i0, %i1;\nmin.NaN.f32 %o2, %i0, %i1;\nmax.NaN.f32 %o3, %i0, %i1;"
    a = np.array([np.nan, 1.0, 0.0, -0.0, np.nan, 2.0] + [1.0] * 26, np.float32)
    b = np.array([1.0, np.nan, -0.0, 0.0, np.nan, 3.0] + [1.0] * 26, np.float32)
    low, high, low_nan, high_nan = run_lanes(code, [a.view(np.uint32), b.view(np.uint32)], ["b32"] * 4)
    same(low[:6], [1.0, 1.0, -0.0, -0.0, np.nan, 2.0])
    same(high[:6], [1.0, 1.0, 0.0, 0.0, np.nan, 3.0])
    same(low_nan[:6], [np.nan, np.nan, -0.0, -0.0, np.nan, 2.0])
    same(high_nan[:6], [np.nan, np.nan, 0.0, 0.0, np.nan, 3.0])


@pytest.mark.parametrize(
    "name",
    [
        "ex2.approx",
        "lg2.approx",
        "rcp.approx",
        "rsqrt.approx",
        "sqrt.approx",
        "tanh.approx",
        "sin.approx",
        "cos.approx",
        "rcp.rn",
        "sqrt.rn",
    ],
)
def test_functions_are_correctly_rounded(run_lanes, name):
    x = np.abs(A) if name.startswith(("lg2", "rsqrt", "sqrt")) else A
    (found,) = run_lanes(f"{name}.f32 %o0, %i0;", [x.view(np.uint32)], ["b32"])
    table = {
        "ex2": np.exp2,
        "lg2": np.log2,
        "rcp": np.reciprocal,
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "sqrt": np.sqrt,
        "tanh": np.tanh,
        "sin": np.sin,
        "cos": np.cos,
    }
    with np.errstate(all="ignore"):
        same(found, table[name.split(".")[0]](x.astype(np.float64)).astype(np.float32))


def test_flush_saturate_and_signs(run_lanes):
    code = (
        "add.ftz.f32 %o0, %i0, 0f80000000;\nadd.sat.f32 %o1, %i0, 0f00000000;\nneg.f32 %o2, %i0;\n"
        "abs.f32 %o3, %i0;\ncopysign.f32 %o4, %i1, %i0;"
    )
    flushed, saturated, negative, positive, mixed = run_lanes(code, [A.view(np.uint32), B.view(np.uint32)], ["b32"] * 5)
    small = np.abs(A) < np.finfo(np.float32).tiny
    same(flushed, np.where(small, np.copysign(np.float32(0), A), A))
    same(saturated, np.where(np.isnan(A), 0, np.clip(A, 0, 1)) + np.float32(0))
    same(negative, -A)
    same(positive, np.abs(A))
    keep = ~np.isnan(A)
    same(mixed[keep], np.copysign(A, B)[keep])


def test_uniform_floats_give_what_lanes_give(run_lanes):
    code = "mov.b32 %r1, 0f3DCCCCCD;\nfma.rn.f32 %o0, %r1, %r1, 0f40490FDB;\nfma.rn.f32 %o1, %i0, %i0, 0f40490FDB;"
    uniform, lanes = run_lanes(code, [np.uint32(0x3DCCCCCD)], ["b32", "b32"])
    assert uniform.tolist() == lanes.tolist()


@pytest.mark.parametrize(("name", "compute"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)])
def test_f16x2_and_bf16x2_round_once(run_lanes, name, compute):
    a = RNG.integers(0, 1 << 32, 32, dtype=np.uint32) & np.uint32(0x7BFF7BFF)
    b = RNG.integers(0, 1 << 32, 32, dtype=np.uint32) & np.uint32(0xFBFFFBFF)
    code = f"{name}.f16x2 %o0, %i0, %i1;\n{name}.bf16x2 %o1, %i0, %i1;"
    half, brain = run_lanes(code, [a, b], ["b32", "b32"])
    with np.errstate(all="ignore"):
        exact = compute(a.view(np.float16).astype(np.float64), b.view(np.float16).astype(np.float64))
        wanted = exact.astype(np.float16)
    keep = ~np.isnan(wanted)
    assert half.view(np.uint16)[keep].tolist() == wanted.view(np.uint16)[keep].tolist()
    wide = [(x.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (a, b)]
    with np.errstate(all="ignore"):
        exact = compute(*wide)
    got = (brain.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    keep = np.isfinite(exact) & (np.abs(exact) < 3e38) & (np.abs(exact) > 1e-36)
    assert (np.abs(got - exact)[keep] <= np.abs(exact[keep]) * 2.0**-8).all()


def test_half_fma_rounds_once(run_lanes):
    # 1.0009765625 ** 2 lies just above a tie of f16; a small negative addend moves it just below.
    a = np.full(32, np.float16(1 + 2**-10)).view(np.uint16)
    c = np.array([2.0**-24] * 16 + [-(2.0**-24)] * 16, np.float16).view(np.uint16)
    (found,) = run_lanes("fma.rn.f16 %o0, %i0, %i0, %i1;", [a, c], ["b16"])
    exact = [(1 + 2**-10) ** 2 + float(x) for x in c.view(np.float16)]
    assert found.view(np.float16).tolist() == np.array(exact).astype(np.float16).tolist()


def test_double_precision(run_lanes):
    a, b = A.astype(np.float64) * 1.1, B.astype(np.float64) / 3
    total, fused = run_lanes(
        "add.rn.f64 %o0, %i0, %i1;\nfma.rn.f64 %o1, %i0, %i1, %i0;",
        [a.view(np.uint64), b.view(np.uint64)],
        ["b64", "b64"],
    )
    with np.errstate(all="ignore"):
        wanted = a + b
    keep = ~np.isnan(wanted)
    assert total.view(np.float64)[keep].tolist() == wanted[keep].tolist()
    finite = np.isfinite(a) & np.isfinite(b)
    exact = [float(Fraction(x) * Fraction(y) + Fraction(x)) for x, y in zip(a[finite], b[finite], strict=True)]
    assert fused.view(np.float64)[finite].tolist() == exact
