# SPDX-License-Identifier: Apache-2.0
"""cvt against exact rationals: every rounding, saturation, NaN and infinity; narrow formats by tables of their own."""

import math
from fractions import Fraction

import numpy as np
import pytest
from ptxlab import run_columns, run_one
from ptxvalues import floats, integers, round_exact, rounded, same_bits

from epifuse.emulator.reports import UnknownInstructionError

VALUES = floats(32, 2000)
HALVES = np.arange(65536, dtype=np.uint16)


def half_value(code, name):
    code = np.asarray(code)
    if name == "f16":
        return code.astype(np.uint16).view(np.float16).astype(np.float64)
    return (code.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def half_code(value, name):
    """A float that the format holds exactly, as its bits."""
    if name == "f16":
        return int(np.float16(value).view(np.uint16))
    return int(np.float32(value).view(np.uint32)) >> 16


def as_half(value, name, mode="rn", relu=False, satfinite=False):
    """A float rounded to f16 or bf16 as the ISA says; None stands for any NaN."""
    largest = 65504.0 if name == "f16" else 3.3895313892515355e38
    if math.isnan(value):
        return 0x7FFF
    if relu and value <= 0:
        return 0
    if math.isinf(value):
        return half_code(math.copysign(largest, value) if satfinite else value, name)
    found = rounded(Fraction(value), name, mode, value)
    if satfinite and math.isinf(found):
        found = math.copysign(largest, found)
    return half_code(found, name)


FLAGS = ["rn", "rz", "rn.relu", "rz.relu", "rn.satfinite", "rn.relu.satfinite"]


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("flags", FLAGS)
def test_f32_to_half(name, flags):
    parts = flags.split(".")
    found = run_one(f"cvt.{flags}.{name}.f32 %o0, %i0;", VALUES, out="b16")
    expected = [as_half(v, name, parts[0], "relu" in parts, "satfinite" in parts) for v in VALUES.tolist()]
    wrong = np.flatnonzero(found != np.array(expected))
    assert not wrong.size, [(VALUES[i], hex(found[i]), hex(expected[i])) for i in wrong[:5]]


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("flags", FLAGS)
def test_f32_to_two_halves_puts_the_first_operand_above(name, flags):
    parts = flags.split(".")
    other = np.roll(VALUES, 1)
    found = run_one(f"cvt.{flags}.{name}x2.f32 %o0, %i0, %i1;", VALUES, other)
    codes = [as_half(v, name, parts[0], "relu" in parts, "satfinite" in parts) for v in VALUES.tolist()]
    assert np.array_equal(found >> 16, codes)
    assert np.array_equal(found & 0xFFFF, np.roll(codes, 1))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_half_to_f32_is_exact(name):
    found = run_one(f"cvt.f32.{name} %o0, %i0;", HALVES).view(np.float32)
    assert same_bits(found, half_value(HALVES, name).astype(np.float32)).all()


@pytest.mark.parametrize("name", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_floats_to_whole_floats(name, kind):
    bits = int(kind[1:])
    x = floats(bits, 500)
    function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[name]
    found = run_one(f"cvt.{name}.{kind}.{kind} %o0, %i0;", x, out=f"b{bits}").view(x.dtype)
    assert same_bits(found, function(x)).all()


def as_tf32(bits, satfinite=False, relu=False):
    """Round half away from zero at bit 13."""
    size, sign = bits & 0x7FFFFFFF, bits & 0x80000000
    if size > 0x7F800000:
        return 0x7FFFFFFF
    if relu and sign:
        return 0
    found = (size + 0x1000) & ~0x1FFF if size != 0x7F800000 else size
    if satfinite and found >= 0x7F800000:
        found = 0x7F7FE000
    return found | sign


def test_f32_to_tf32():
    found = run_one("cvt.rna.tf32.f32 %o0, %i0;", VALUES)
    ordered = ~np.isnan(VALUES)
    expected = np.array([as_tf32(b) for b in VALUES.view(np.uint32).tolist()], np.uint32)
    assert np.array_equal(found[ordered], expected[ordered])
    assert np.isnan(found.view(np.float32)[~ordered]).all()


FP8 = {"e4m3": (4, 3, 448.0), "e5m2": (5, 2, 57344.0)}


def fp8_values(name):
    """The value of each of the 256 codes."""
    exponent_bits, mantissa, _ = FP8[name]
    bias = (1 << exponent_bits - 1) - 1
    out = []
    for code in range(256):
        e, m = code >> mantissa & (1 << exponent_bits) - 1, code & (1 << mantissa) - 1
        if name == "e4m3" and code & 0x7F == 0x7F:
            value = math.nan
        elif name == "e5m2" and e == 31:
            value = math.nan if m else math.inf
        else:
            value = math.ldexp(m / (1 << mantissa) + (e > 0), max(e, 1) - bias)
        out.append(-value if code & 0x80 else value)
    return np.array(out, np.float32)


def as_fp8(value, name, relu=False):
    """cvt.rn.satfinite: NaN is 0x7F, what is too large becomes the largest."""
    exponent_bits, mantissa, largest = FP8[name]
    if math.isnan(value):
        return 0x7F
    if relu and value <= 0:
        return 0
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    if math.isinf(value):
        size = largest
    else:
        size = min(float(abs(round_exact(Fraction(value), mantissa, 2 - (1 << exponent_bits - 1), "rn"))), largest)
    table = fp8_values(name)[:0x80]
    return int(np.flatnonzero(table == size)[0]) | sign


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("flags", ["rn.satfinite", "rn.satfinite.relu"])
def test_f32_to_two_fp8(name, flags):
    near = np.concatenate((fp8_values(name), fp8_values(name)[:-1] * 0.5 + fp8_values(name)[1:] * 0.5))
    x = np.concatenate((VALUES[:400], near, np.nextafter(near, np.float32(np.inf)))).astype(np.float32)
    y = np.roll(x, 1)
    found = run_one(f"cvt.{flags}.{name}x2.f32 %o0, %i0, %i1;", x, y, out="b16")
    codes = np.array([as_fp8(v, name, "relu" in flags) for v in x.tolist()])
    wrong = np.flatnonzero(found >> 8 != codes)
    assert not wrong.size, [(x[i], hex(found[i] >> 8), hex(codes[i])) for i in wrong[:5]]
    assert np.array_equal(found & 0xFF, np.roll(codes, 1))


@pytest.mark.parametrize("name", FP8)
def test_two_fp8_to_two_halves(name):
    codes = HALVES
    found = run_one(f"cvt.rn.f16x2.{name}x2 %o0, %i0;", codes)
    table = fp8_values(name).astype(np.float16)
    low, high = (found & 0xFFFF).astype(np.uint16).view(np.float16), (found >> 16).astype(np.uint16).view(np.float16)
    assert same_bits(low, table[codes & 0xFF]).all()
    assert same_bits(high, table[codes >> 8]).all()


INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]


def limits(kind):
    bits = int(kind[1:])
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("source", ["f32", "f64", "f16"])
def test_float_to_integer_clamps(kind, source):
    x = HALVES[::7].view(np.float16) if source == "f16" else floats(int(source[1:]), 600)
    low, high = limits(kind)
    width = max(16, int(kind[1:]))
    for mode, function in {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.items():
        found = run_one(f"cvt.{mode}.{kind}.{source} %o0, %i0;", x, out=f"b{width}")
        for got, value in zip(found.tolist(), x.astype(np.float64).tolist(), strict=True):
            if math.isnan(value):
                wide = width == 64 or source == "f64"
                highest = limits(kind)[0] if kind[0] == "s" else 1 << int(kind[1:]) - 1
                assert got == (highest if wide else 0) & (1 << width) - 1, (kind, source, hex(got))
                continue
            whole = value if math.isinf(value) else int(function(value))
            assert got == min(max(whole, low), high) & (1 << width) - 1, (value, mode)


@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("result", ["f32", "f64", "f16"])
def test_integer_to_float_is_rounded_once(kind, result):
    bits = int(kind[1:])
    x = integers(bits, 400)
    if bits == 64:
        x = np.concatenate((x, (np.uint64(1) << np.arange(64, dtype=np.uint64)) + np.uint64(1)))
    values = x.view(f"i{bits // 8}") if kind[0] == "s" else x
    for mode in ("rn", "rz", "rm", "rp"):
        if result == "f64" and mode != "rn":
            continue
        found = run_one(f"cvt.{mode}.{result}.{kind} %o0, %i0;", x, out=f"b{result[1:]}").view(
            f"f{int(result[1:]) // 8}"
        )
        expected = np.array([rounded(Fraction(v), result, mode) for v in values.tolist()], found.dtype)
        wrong = np.flatnonzero(~same_bits(found, expected))
        assert not wrong.size, (mode, [(values[i], found[i], expected[i]) for i in wrong[:5]])


@pytest.mark.parametrize("result", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer_extends_cuts_and_saturates(result, source):
    bits = int(source[1:])
    x = integers(bits, 60)
    values = (x.view(f"i{bits // 8}") if source[0] == "s" else x).tolist()
    low, high = limits(result)
    width = max(16, int(result[1:]))
    code = f"cvt.{result}.{source} %o0, %i0;"
    plain = run_one(code, x, out=f"b{width}")
    cut = [v & (1 << int(result[1:])) - 1 for v in values]
    extended = [v - (1 << int(result[1:])) if result[0] == "s" and v > high else v for v in cut]
    assert plain.tolist() == [v & (1 << width) - 1 for v in extended]
    if limits(source)[0] < low or limits(source)[1] > high:
        clamped = run_one(code.replace("cvt.", "cvt.sat."), x, out=f"b{width}")
        assert clamped.tolist() == [min(max(v, low), high) & (1 << width) - 1 for v in values]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_f64_to_f32_is_rounded_once(mode):
    x = np.concatenate((floats(64, 800), floats(32, 400).astype(np.float64) * (1 + 2.0**-25)))
    found = run_one(f"cvt.{mode}.f32.f64 %o0, %i0;", x).view(np.float32)
    for got, value in zip(found, x.tolist(), strict=True):
        expected = rounded(Fraction(value), "f32", mode, value) if math.isfinite(value) else value
        assert same_bits(np.array(got), np.array(expected, np.float32)), (value, got, expected)


def test_f64_to_half_is_not_rounded_twice():
    x = np.array([1.0 + 2.0**-11 + 2.0**-40, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 65519.99999999999, 65520.0, 2.0**-25])
    found = run_one("cvt.rn.f16.f64 %o0, %i0;", x, out="b16")
    assert found.tolist() == [as_half(v, "f16") for v in x.tolist()]


def test_saturating_copy_and_widening():
    x = VALUES
    found = run_columns("cvt.sat.f32.f32 %o0, %i0;\ncvt.f64.f32 %o1, %i0;", [x], ["b32", "b64"])
    expected = np.where(np.isnan(x), np.float32(0), np.clip(x, 0, 1)) + np.float32(0)
    assert same_bits(found[0].view(np.float32), expected).all()
    assert same_bits(found[1].view(np.float64), x.astype(np.float64)).all()


@pytest.mark.parametrize(
    "name", ["cvt.rn.e4m3x2.f16", "cvt.rs.f16x2.f32", "cvt.rn.satfinite.e2m3x2.f32", "cvt.f32.f16.f16"]
)
def test_conversions_not_executed_are_named(name):
    with pytest.raises(UnknownInstructionError, match="cvt"):
        run_one(f"{name} %o0, %i0, %i0;" if name.count("x2") else f"{name} %o0, %i0;", np.zeros(1, np.float32))
