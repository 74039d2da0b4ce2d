# SPDX-License-Identifier: Apache-2.0
"""f32, f64 and packed f32 arithmetic against exact rationals, and approximations against the ISA's error bounds."""

from fractions import Fraction

import numpy as np
import pytest
from ptxlab import run_columns, run_one
from ptxvalues import float_pairs, floats, rounded, same_bits

from epifuse.emulator.reports import UnknownInstructionError

KIND = {"f32": np.float32, "f64": np.float64}
EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}
ROUNDING_OF_ZERO = {"rn": 0.0, "rz": 0.0, "rp": 0.0, "rm": -0.0}


def exact_result(name, values, kind, mode):
    """The correctly rounded result of finite operands, or what IEEE 754 says for the others."""
    with np.errstate(all="ignore"):
        ieee = float(EXACT[name](*(np.float64(v) for v in values)))
    if not all(np.isfinite(values)) or (name == "div" and values[1] == 0):
        return ieee
    value = EXACT[name](*map(Fraction, values))
    zero = ieee
    if name in ("add", "sub") and value == 0:
        both = values[0], values[1] if name == "add" else -values[1]
        same = np.signbit(both[0]) == np.signbit(both[1])
        zero = both[0] if same and both[0] == 0 else ROUNDING_OF_ZERO[mode]
    return rounded(value, kind, mode, zero)


MODES = [(name, "f32", mode) for name in EXACT for mode in ("rn", "rz", "rm", "rp")]
MODES += [(name, "f64", "rn") for name in EXACT]


@pytest.mark.parametrize(("name", "kind", "mode"), MODES)
def test_arithmetic_is_rounded_once(name, kind, mode):
    bits = int(kind[1:])
    a, b = float_pairs(bits, 400)
    found = run_one(f"{name}.{mode}.{kind} %o0, %i0, %i1;", a, b, out=f"b{bits}").view(KIND[kind])
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    expected = np.array([exact_result(name, pair, kind, mode) for pair in pairs], KIND[kind])
    wrong = np.flatnonzero(~same_bits(found, expected))
    assert not wrong.size, [(a[i], b[i], found[i], expected[i]) for i in wrong[:5]]


@pytest.mark.parametrize(("kind", "mode"), [("f32", "rn"), ("f32", "rz"), ("f32", "rm"), ("f32", "rp"), ("f64", "rn")])
def test_fma_is_rounded_once(kind, mode):
    bits = int(kind[1:])
    a, b = float_pairs(bits, 600)
    a, b = a[::3], b[::3]
    c = np.resize(floats(bits, 300, 5), a.size)
    c[::2] = -(a[::2].astype(np.float64) * b[::2]).astype(c.dtype)
    found = run_one(f"fma.{mode}.{kind} %o0, %i0, %i1, %i2;", a, b, c, out=f"b{bits}").view(KIND[kind])
    for got, x, y, z in zip(found.tolist(), a.tolist(), b.tolist(), c.tolist(), strict=True):
        with np.errstate(all="ignore"):
            plain = float(np.float64(x) * y + z)
        if not np.isfinite([x, y, z]).all():
            expected = plain
        else:
            total = Fraction(x) * Fraction(y) + Fraction(z)
            sign_of_product = np.signbit(x) != np.signbit(y)
            same = (x == 0 or y == 0) and z == 0 and sign_of_product == np.signbit(z)
            expected = rounded(total, kind, mode, z if same else ROUNDING_OF_ZERO[mode])
        assert same_bits(np.array(got, KIND[kind]), np.array(expected, KIND[kind])), (x, y, z, got, expected)


def test_fma_saturates_and_flushes():
    a, b = float_pairs(32)
    c = np.resize(floats(32, 100), a.size)
    code = "fma.rn.ftz.sat.f32 %o0, %i0, %i1, %i2;\nfma.rn.sat.f32 %o1, %i0, %i1, %i2;\nfma.rn.f32 %o2, %i0, %i1, %i2;"
    flushed, saturated, plain = (x.view(np.float32) for x in run_columns(code, [a, b, c], ["b32"] * 3))
    expected = np.where(np.isnan(plain), np.float32(0), np.clip(plain, 0, 1)) + np.float32(0)
    assert same_bits(saturated, expected).all()
    assert not ((flushed > 0) & (flushed < 1.17549435e-38)).any()


def test_ftz_flushes_inputs_and_results():
    a, b = float_pairs(32)

    def flush(x):
        return np.where(np.abs(x) < np.float32(1.17549435e-38), np.copysign(np.float32(0), x), x)

    with np.errstate(all="ignore"):
        for name, function in {"add": np.add, "mul": np.multiply}.items():
            found = run_one(f"{name}.ftz.f32 %o0, %i0, %i1;", a, b).view(np.float32)
            assert same_bits(found, flush(function(flush(a), flush(b)))).all(), name


def minimum(a, b, nan):
    if np.isnan(a) or np.isnan(b):
        return np.nan if nan or (np.isnan(a) and np.isnan(b)) else (b if np.isnan(a) else a)
    if a == b == 0:
        return a if np.signbit(a) else b
    return min(a, b)


@pytest.mark.parametrize(("kind", "nan"), [("f32", ""), ("f32", ".NaN"), ("f64", "")])
def test_minimum_and_maximum(kind, nan):
    bits = int(kind[1:])
    a, b = float_pairs(bits)
    code = f"min{nan}.{kind} %o0, %i0, %i1;\nmax{nan}.{kind} %o1, %i0, %i1;"
    low, high = (x.view(KIND[kind]) for x in run_columns(code, [a, b], [f"b{bits}"] * 2))
    pairs = list(zip(a, b, strict=True))
    assert same_bits(low, np.array([minimum(x, y, nan) for x, y in pairs], KIND[kind])).all()
    assert same_bits(high, np.array([-minimum(-x, -y, nan) for x, y in pairs], KIND[kind])).all()
    if nan:
        assert (low.view(np.uint32)[np.isnan(low)] == 0x7FFFFFFF).all()


def test_minimum_of_three_operands():
    a, b = float_pairs(32)
    c = np.roll(a, 5)
    found = run_one("min.f32 %o0, %i0, %i1, %i2;", a, b, c).view(np.float32)
    rows = zip(a, b, c, strict=True)
    assert same_bits(found, np.array([minimum(minimum(x, y, False), z, False) for x, y, z in rows], np.float32)).all()


def test_signs_are_bits():
    a, b = float_pairs(32)
    code = "neg.f32 %o0, %i0;\nabs.f32 %o1, %i0;\ncopysign.f32 %o2, %i0, %i1;"
    negative, size, signed = run_columns(code, [a, b], ["b32"] * 3)
    bits, other = a.view(np.uint32), b.view(np.uint32)
    ordered = ~np.isnan(a)
    assert np.array_equal(negative[ordered], (bits ^ 0x80000000)[ordered])
    assert np.array_equal(size[ordered], (bits & 0x7FFFFFFF)[ordered])
    assert np.array_equal(signed, (bits & 0x80000000) | (other & 0x7FFFFFFF))


@pytest.mark.parametrize("kind", KIND)
def test_classification(kind):
    bits = int(kind[1:])
    a = floats(bits, 100)
    tiny = np.finfo(KIND[kind]).tiny
    tests = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": np.isfinite(a) & (np.abs(a) < tiny) & (a != 0),
    }
    for name, expected in tests.items():
        found = run_one(f"testp.{name}.{kind} %p1, %i0;\nselp.u32 %o0, 1, 0, %p1;", a)
        assert np.array_equal(found, expected), name


def test_packed_f32_works_on_both_halves():
    a, b = float_pairs(32)
    c = np.roll(b, 3)
    packed = [np.stack((x, np.roll(x, 1)), 1).view(np.uint64)[:, 0] for x in (a, b, c)]
    code = """add.rn.f32x2 %o0, %i0, %i1; mul.rn.f32x2 %o1, %i0, %i1; fma.rn.f32x2 %o2, %i0, %i1, %i2;
    sub.rn.f32x2 %o3, %i0, %i1;"""
    found = run_columns(code, packed, ["b64"] * 4)
    single = run_columns(
        "add.f32 %o0, %i0, %i1; mul.f32 %o1, %i0, %i1; fma.rn.f32 %o2, %i0, %i1, %i2; sub.f32 %o3, %i0, %i1;",
        [x.view(np.float32).copy() for x in packed],
        ["b32"] * 4,
    )
    for wide, narrow in zip(found, single, strict=True):
        assert np.array_equal(wide.view(np.uint32), narrow)


# -- approximations: (function in float64, largest relative error in units of 2^-23, or an absolute bound) -----------

ACROSS = np.concatenate((floats(32, 3000), np.float32(2.0) ** np.arange(-20, 21, dtype=np.float32)))
SMALL = np.linspace(-10, 10, 4001).astype(np.float32)
RELATIVE = {
    "rcp.approx.f32": (lambda x: 1 / x, ACROSS, 1),
    "rcp.rn.f32": (lambda x: 1 / x, ACROSS, 0.5),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), ACROSS, 2**0.1),
    "sqrt.approx.f32": (np.sqrt, ACROSS, 1),
    "sqrt.rn.f32": (np.sqrt, ACROSS, 0.5),
    "ex2.approx.f32": (np.exp2, np.concatenate((ACROSS, SMALL)), 2),
    "tanh.approx.f32": (np.tanh, np.concatenate((ACROSS, SMALL)), 2**12),
}


@pytest.mark.parametrize("name", RELATIVE)
def test_approximations_stay_within_the_bound(name):
    function, x, ulps = RELATIVE[name]
    found = run_one(f"{name} %o0, %i0;", x).view(np.float32)
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
        rough = exact.astype(np.float32)
    special = ~np.isfinite(rough) | (rough == 0)
    assert same_bits(found, rough)[special].all()
    # Below the normal range the unit is that of the smallest normal.
    error = np.abs(found.astype(np.float64) - exact)[~special]
    assert (error <= ulps * 2.0**-23 * np.maximum(np.abs(exact[~special]), 2.0**-126)).all()


@pytest.mark.parametrize(
    ("name", "function", "bound"), [("sin", np.sin, 2**-20.5), ("cos", np.cos, 2**-20.5), ("lg2", np.log2, None)]
)
def test_approximations_with_absolute_bounds(name, function, bound):
    x = np.linspace(-np.pi, np.pi, 3001).astype(np.float32)
    x = np.abs(x) + np.float32(2**-20) if name == "lg2" else x
    found = run_one(f"{name}.approx.f32 %o0, %i0;", x).view(np.float32).astype(np.float64)
    exact = function(x.astype(np.float64))
    if bound is None:
        inside = (x > 0.5) & (x < 2)
        bound = np.where(inside, 2.0**-22, 2.0**-22 * np.maximum(np.abs(exact), 1))
    assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("lg2.approx.f32", [(np.inf, np.inf), (0.0, -np.inf), (-0.0, -np.inf), (-1.0, np.nan), (np.nan, np.nan)]),
        (
            "ex2.approx.f32",
            [(np.inf, np.inf), (-np.inf, 0.0), (np.nan, np.nan), (0.0, 1.0), (128.0, np.inf), (-200.0, 0.0)],
        ),
        ("rcp.approx.f32", [(np.inf, 0.0), (-np.inf, -0.0), (0.0, np.inf), (-0.0, -np.inf), (np.nan, np.nan)]),
        ("rsqrt.approx.f32", [(np.inf, 0.0), (0.0, np.inf), (-0.0, -np.inf), (-1.0, np.nan), (np.nan, np.nan)]),
        ("sqrt.approx.f32", [(np.inf, np.inf), (-0.0, -0.0), (-1.0, np.nan)]),
        ("tanh.approx.f32", [(np.inf, 1.0), (-np.inf, -1.0), (-0.0, -0.0), (np.nan, np.nan)]),
        ("sin.approx.f32", [(np.inf, np.nan), (-0.0, -0.0)]),
        ("cos.approx.f32", [(np.inf, np.nan), (-0.0, 1.0)]),
    ],
)
def test_approximations_of_special_values(name, cases):
    x, expected = np.array(cases, np.float32).T.copy()
    found = run_one(f"{name} %o0, %i0;", x).view(np.float32)
    assert same_bits(found, expected).all()


def test_approximate_division_flushes_nothing_it_need_not():
    a, b = float_pairs(32)
    found = run_one("div.full.f32 %o0, %i0, %i1;", a, b).view(np.float32)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) / b
        inside = (
            np.isfinite(exact)
            & (np.abs(b) >= 2.0**-126)
            & (np.abs(b) <= 2.0**126)
            & (np.abs(exact) > 2.0**-126)
            & (np.abs(exact) < 2.0**127)
        )
        assert (np.abs(found[inside] - exact[inside]) <= 2 * 2.0**-23 * np.abs(exact[inside])).all()


def test_double_square_root_is_exact():
    x = np.abs(floats(64, 500))
    found = run_one("sqrt.rn.f64 %o0, %i0;", x, out="b64").view(np.float64)
    assert same_bits(found, np.sqrt(x)).all()


@pytest.mark.parametrize("name", ["add", "fma"])
def test_directed_double_rounding_is_refused_by_name(name):
    rest = ", %i0" if name == "fma" else ""
    with pytest.raises(UnknownInstructionError, match=f"{name}.rz.f64"):
        run_one(f"{name}.rz.f64 %o0, %i0, %i0{rest};", np.ones(1), out="b64")
