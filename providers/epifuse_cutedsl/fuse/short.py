# SPDX-License-Identifier: Apache-2.0
"""Forms of float32 functions that are our own: for outputs of 16 bits, and some in full (``full_...``, ``sqrt``).

None has a branch: a warp has one element's work to do while another's special function is under way, and a branch
parts them. ``rcp.rn``, ``sqrt.rn`` and ``div.rn`` have one, for operands beyond their fast path's range: by the
assembler's own stall counts a warp's ``silu`` in float32 took 23200 cycles a tile of 128 by 192 with ``rcp.rn``, and
takes 12900 without. Approximate instructions: PTX ISA, "Floating Point Instructions".
"""

from __future__ import annotations

import math
import struct
from typing import Any

from cutlass import Float32

from epifuse_cutedsl.kernels.ptx.asm import emit


def literal(value: float) -> str:
    """A number as PTX writes a float32."""
    return f"0f{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"


def _block(registers: str, lines: list[str], operands: list[Any]) -> Any:
    """One statement with registers of its own; ``$x`` and ``$y`` are operands, ``$d`` is the result, ``p`` and ``p2``
    are predicates."""
    text = "\n".join([f".reg .f32 {registers};", ".reg .pred p, p2;", *lines])
    for name, register in (("$x", "{$r0}"), ("$y", "{$r1}"), ("$d", "{$w0}")):
        text = text.replace(name, register)
    return emit("{\n" + text + "\n}", [Float32], operands)[0]


def _horner(result: str, variable: str, coefficients: tuple[float, ...]) -> list[str]:
    """A polynomial, coefficients in ascending order."""
    first = f"fma.rn.f32 {result}, {variable}, {literal(coefficients[-1])}, {literal(coefficients[-2])};"
    rest = [f"fma.rn.f32 {result}, {result}, {variable}, {literal(c)};" for c in coefficients[-3::-1]]
    return [first, *rest]


# tanh x = x p(x^2) / q(x^2) to 1.3e-6, up to the number beyond which 1 - tanh is less than that
_TANH_LARGEST = 7.2
_TANH_P = (0.9999987483024597, 0.1229701042175293, 0.002270464086905122, 3.887725142703857e-06)
_TANH_Q = (1.0, 0.45629405975341797, 0.021046817302703857, 0.00014151014329399914)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent to 3e-6, relative: one special function, and no case apart for small numbers."""
    lines = [
        f"min.NaN.f32 a, $x, {literal(_TANH_LARGEST)};",
        f"max.NaN.f32 a, a, {literal(-_TANH_LARGEST)};",
        "mul.f32 s, a, a;",
        *_horner("h", "s", _TANH_P),
        *_horner("q", "s", _TANH_Q),
        "rcp.approx.ftz.f32 q, q;",
        "mul.f32 h, h, a;",
        "mul.f32 $d, h, q;",
    ]
    return _block("a, s, h, q", lines, [x])


# ndtr(-y), y >= 0, is exp(-y^2 / 2) t q(t) with t = 1 / (1 + p y) and a polynomial q, which was fitted by reweighted
# least squares to the smallest largest error, up to y = 13.2 (15 in full), where float32 ends.
_NDTR_SHORT_P = 0.34
_NDTR_SHORT = (
    0.13590846955776215, 0.1311551332473755, 0.15002606809139252, -0.01562860608100891, 0.2456127256155014,
    -0.18902432918548584, 0.04195048287510872,
)  # fmt: skip
_NDTR_FULL_P = 0.3
_NDTR_FULL = (
    0.11968672275543213, 0.11957132071256638, 0.11023935675621033, 0.07837221026420593, 0.09620493650436401,
    -0.0795091763138771, 0.19188326597213745, -0.2282847762107849, 0.1124648004770279, -0.020628664642572403,
)  # fmt: skip
_EXPONENT = -0.5 * math.log2(math.e)
_ROOT = math.sqrt(-_EXPONENT)


def ndtr(x: Any) -> Any:
    """The normal distribution function to 2e-7, and 1e-5 relative below 0; 0 where it is below 2^-126.

    The sign goes through the reciprocal, and comes out as a step: 0 or 1, less what the tail is. With a predicate and a
    select (one instruction fewer) the assembler took the elements one by one wherever more than half of the registers
    were in use: 10200 cycles a warp instead of 7600 for a tile of 128 by 192, by its own stall counts.
    """
    lines = [
        f"copysign.f32 s, $x, {literal(1.0)};",
        f"fma.rn.f32 t, $x, {literal(_NDTR_SHORT_P)}, s;",
        "rcp.approx.ftz.f32 t, t;",
        f"mul.f32 e, $x, {literal(_ROOT)};",
        "neg.f32 a, e;",
        "mul.f32 e, e, a;",
        "ex2.approx.ftz.f32 e, e;",
        "mul.f32 e, e, t;",
        "neg.f32 e, e;",
        "abs.f32 a, t;",
        *_horner("h", "a", _NDTR_SHORT),
        f"fma.rn.f32 s, s, {literal(0.5)}, {literal(0.5)};",
        "fma.rn.f32 $d, h, e, s;",
    ]
    return _block("a, t, e, h, s", lines, [x])


# x ndtr(x) = max(x, 0) - t ndtr(-t), t = |x|. ndtr(-t) is 2 to the power of the polynomial _NDTR_EXPONENT, and 2 to the
# power of t (b - a t) over the quadratic _NDTR_DIVISOR (_NDTR_SQUARE: b, -a); both were fitted by reweighted least
# squares. The product is off by 2.4e-7 with the former (relative: 5e-5 down to -5, 1.3e-4 to -6, 1.8e-3 beyond, where
# it is less than 6e-9), by 7.1e-7 with the latter (6e-5 near 0, 4.5e-4 down to -5, 2.4e-3 to -6, 0.11 to -12).
_NDTR_EXPONENT = (
    -0.9999930262565613, -1.1512603759765625, -0.4584701359272003, -0.05395203456282616, 0.008525424636900425,
    -0.0009499507141299546, 6.830372149124742e-05, -2.7926309940085048e-06, 4.8784897899167845e-08,
)  # fmt: skip
_NDTR_SQUARE = (0.2361347250618317, -0.7297443068800785)
_NDTR_DIVISOR = (2.0001205217247144, 1.9216881063634055, 0.5548390783971637)
_NDTR_LARGEST = 14.0
"""There ndtr(-t) is 0."""


def ndtr_product(x: Any) -> Any:
    """x ndtr(x) to 3e-7 or a unit in the last place: one special function, no select."""
    lines = [
        *_product_range("$x", "t", "v", "r"),
        *_horner("h", "t", _NDTR_EXPONENT),
        "ex2.approx.ftz.f32 h, h;",
        "fma.rn.f32 $d, v, h, r;",
    ]
    return _block("t, v, r, h", lines, [x])


def ndtr_product_pair(x: Any, y: Any) -> tuple[Any, ...]:
    """``ndtr_product`` of two numbers, sums of products of both at a time (PTX ISA, ``.f32x2``; sm_100 and later)."""
    lines = [".reg .f32 t0, t1, v0, v1, r0, r1;", ".reg .b64 t, v, r, h, c;"]
    for number in range(2):
        lines += _product_range(f"{{$r{number}}}", f"t{number}", f"v{number}", f"r{number}")
    lines += [f"mov.b64 {name}, {{{name}0, {name}1}};" for name in ("t", "v", "r")]
    for place, coefficient in enumerate(reversed(_NDTR_EXPONENT)):
        lines += [f"mov.b64 {'c' if place else 'h'}, {{{literal(coefficient)}, {literal(coefficient)}}};"]
        lines += ["fma.rn.f32x2 h, h, t, c;"] if place else []
    lines += ["mov.b64 {t0, t1}, h;", *(f"ex2.approx.ftz.f32 {name}, {name};" for name in ("t0", "t1"))]
    lines += ["mov.b64 h, {t0, t1};", "fma.rn.f32x2 h, v, h, r;", "mov.b64 {{$w0}, {$w1}}, h;"]
    return emit("{\n" + "\n".join(lines) + "\n}", [Float32, Float32], [x, y])


def _product_range(x: str, t: str, v: str, r: str) -> list[str]:
    """t = min(|x|, 14), v = min(x, -t), r = max(x, 0), with the sign of a zero.

    Infinities meet the power 0 as x ndtr(x) has it: NaN at -inf, inf at inf. Beyond 14 the polynomial rises again.
    """
    return [
        f"abs.f32 {t}, {x};",
        f"min.NaN.f32 {t}, {t}, {literal(_NDTR_LARGEST)};",
        f"neg.f32 {v}, {t};",
        f"min.NaN.f32 {v}, {v}, {x};",
        f"max.f32 {r}, {x}, {literal(-0.0)};",
    ]


def ndtr_product_beside_wgmma(x: Any) -> Any:
    """x ndtr(x) to 8e-7: two special functions, and four sums of products fewer.

    Beside wgmma each of these keeps the tensor cores waiting for half a cycle and more: where tiles of 128 by 128 with
    K = 1024 lose 4 percent with this form, they lose 15 with the other one. Special functions and minima keep them from
    nothing, but take 10 and 4 cycles each. t = |min(x, 14)| needs no instruction for the magnitude, nor for the sign of
    -t.
    """
    lines = [
        f"min.NaN.f32 t, $x, {literal(_NDTR_LARGEST)};",
        "abs.f32 t, t;",
        "neg.f32 v, t;",
        f"max.f32 r, $x, {literal(-0.0)};",
        *_horner("h", "t", _NDTR_SQUARE),
        *_horner("s", "t", _NDTR_DIVISOR),
        "lg2.approx.ftz.f32 s, s;",
        "neg.f32 s, s;",
        "fma.rn.f32 h, h, t, s;",
        "ex2.approx.ftz.f32 h, h;",
        "fma.rn.f32 $d, v, h, r;",
    ]
    return _block("t, v, r, h, s", lines, [x])


def full_ndtr(x: Any) -> Any:
    """The normal distribution function within 4 units in the last place, also where it is small."""
    lines = [
        "abs.f32 a, $x;",
        f"min.NaN.f32 a, a, {literal(15.0)};",  # beyond, it is 0 or 1, and nothing overflows
        f"fma.rn.f32 t, a, {literal(_NDTR_FULL_P)}, {literal(1.0)};",
        "rcp.approx.ftz.f32 r, t;",
        *_normal_power(),
        *_lost_of_reciprocal(),
        *_horner("h", "r", _NDTR_FULL),
        *_product_of_three(),
        "setp.lt.f32 p, $x, 0f00000000;",
        f"sub.f32 t, {literal(1.0)}, h;",
        "selp.f32 $d, h, t, p;",
    ]
    return _block("a, t, r, s, l, c, e, h", lines, [x])


def _product_of_three() -> list[str]:
    """h r e (1 + l) in h, with one rounding instead of three.

    An H200's ex2.approx is off by up to 2.06 units, and with three roundings 4.03 were measured in all.
    """
    return [
        "mul.f32 s, h, r;",
        "neg.f32 c, s;",
        "fma.rn.f32 t, h, r, c;",
        "mul.f32 h, s, e;",
        "neg.f32 c, h;",
        "fma.rn.f32 s, s, e, c;",
        "fma.rn.f32 s, t, e, s;",
        "fma.rn.f32 s, h, l, s;",
        "add.f32 h, h, s;",
    ]


def _normal_power() -> list[str]:
    """e (1 + l) = exp(-a^2 / 2), as a power of 2; l is what the square and its product with log2(e) lose."""
    high = struct.unpack("<f", struct.pack("<f", _EXPONENT))[0]
    return [
        "mul.f32 s, a, a;",
        "neg.f32 c, s;",
        "fma.rn.f32 l, a, a, c;",
        f"mul.f32 e, s, {literal(high)};",
        "neg.f32 c, e;",
        f"fma.rn.f32 c, s, {literal(high)}, c;",
        f"fma.rn.f32 c, s, {literal(_EXPONENT - high)}, c;",
        f"fma.rn.f32 c, l, {literal(high)}, c;",
        f"mul.f32 l, c, {literal(math.log(2.0))};",
        "ex2.approx.f32 e, e;",
    ]


def _lost_of_reciprocal() -> list[str]:
    """Adds to l what the error of r = 1 / t, with t = 1 + p a rounded, makes of r q(r).

    That error is 1 - (1 + p a) r, relative; r q(r) has the slope 1 + 1.6 r between logarithms, 0.06 off at most.
    Without this 4.4 units would be lost in all, with it 2.5 (both with special functions rounded correctly).
    """
    return [
        f"sub.f32 c, {literal(1.0)}, t;",
        f"fma.rn.f32 c, a, {literal(_NDTR_FULL_P)}, c;",  # what t lacks
        "neg.f32 c, c;",
        "neg.f32 t, t;",
        f"fma.rn.f32 t, t, r, {literal(1.0)};",
        "fma.rn.f32 t, c, r, t;",
        f"fma.rn.f32 c, r, {literal(1.6)}, {literal(1.0)};",
        "fma.rn.f32 l, t, c, l;",
    ]


# log(1 + d) / d = 1 + d (...) to 2.7e-6 where |d| < 3/32; beyond, lg2.approx (within 2^-22) has lost no more than that
_LOG_NEAR = 3.0 / 32.0
_LOG = (1.0, -0.49999785, 0.33479755, -0.25156693)


def log(x: Any, *, flushed: bool) -> Any:
    """The natural logarithm to 4e-6, relative, also next to 1. ``flushed``: no operand is subnormal."""
    return _logarithm(x, math.log(2.0), flushed)


def log2(x: Any, *, flushed: bool) -> Any:
    """The logarithm to base 2 to 4e-6, relative, also next to 1. ``flushed``: no operand is subnormal."""
    return _logarithm(x, 1.0, flushed)


def _logarithm(x: Any, of_two: float, flushed: bool) -> Any:
    """The logarithm to the base in which 2 has the logarithm ``of_two``."""
    lines = [
        f"lg2.approx{'.ftz' if flushed else ''}.f32 l, $x;",
        f"mul.f32 l, l, {literal(of_two)};" if of_two != 1.0 else "",
        f"add.f32 d, $x, {literal(-1.0)};",
        *_horner("h", "d", tuple(c * of_two / math.log(2.0) for c in _LOG)),
        "mul.f32 h, h, d;",
        "abs.f32 d, d;",
        f"setp.lt.f32 p, d, {literal(_LOG_NEAR)};",
        "selp.f32 $d, h, l, p;",
    ]
    return _block("l, d, h", lines, [x])


def div(a: Any, b: Any, *, flushed: bool) -> Any:
    """a / b; a quotient that float32 holds exactly is exact, others are within a unit in the last place.

    Both are scaled where the divisor's reciprocal would leave the normal range (``flushed``: it is left out); a
    correction by the remainder follows, which is NaN where the quotient is no finite number, or is known already.
    """
    scaling = [
        "abs.f32 m, $y;",
        f"setp.gt.f32 p, m, {literal(2.0**100)};",
        f"setp.lt.f32 p2, m, {literal(2.0**-100)};",
        f"selp.f32 s, {literal(2.0**-40)}, {literal(1.0)}, p;",
        f"selp.f32 s, {literal(2.0**40)}, s, p2;",
        "mul.f32 a, $x, s;",
        "mul.f32 b, $y, s;",
    ]
    lines = [
        *(["mov.f32 a, $x;", "mov.f32 b, $y;"] if flushed else scaling),
        "rcp.approx.ftz.f32 r, b;",
        "mul.f32 m, a, r;",
        "neg.f32 b, b;",
        "fma.rn.f32 e, m, b, a;",
        "fma.rn.f32 e, e, r, m;",
        "setp.nan.f32 p, e, e;",
        "selp.f32 e, m, e, p;",
        "copysign.f32 $d, m, e;",  # -0 plus a remainder of 0 would be 0
    ]
    return _block("m, s, a, b, r, e", lines, [a, b])


def full_reciprocal(x: Any) -> Any:
    """1 / x, rounded correctly; within a unit in the last place where that is subnormal.

    One step of Newton's, which gives NaN where the reciprocal is 0 or infinite.
    """
    lines = [
        "rcp.approx.f32 r, $x;",
        "neg.f32 m, $x;",
        f"fma.rn.f32 e, m, r, {literal(1.0)};",
        "fma.rn.f32 e, e, r, r;",
        "setp.nan.f32 p, e, e;",
        "selp.f32 $d, r, e, p;",
    ]
    return _block("m, r, e", lines, [x])


def sqrt(x: Any, *, flushed: bool) -> Any:
    """The square root, rounded correctly by its remainder. ``flushed``: no operand is subnormal, and none is scaled."""
    scaling = [
        f"setp.lt.f32 p2, $x, {literal(2.0**-100)};",
        f"selp.f32 s, {literal(2.0**40)}, {literal(1.0)}, p2;",
        "mul.f32 a, $x, s;",
    ]
    back = [f"selp.f32 s, {literal(2.0**-20)}, {literal(1.0)}, p2;", "mul.f32 e, e, s;"]
    lines = [
        *(["mov.f32 a, $x;"] if flushed else scaling),
        "rsqrt.approx.ftz.f32 r, a;",
        "mul.f32 m, a, r;",
        f"mul.f32 h, r, {literal(0.5)};",
        "neg.f32 e, m;",
        "fma.rn.f32 e, e, m, a;",
        "fma.rn.f32 e, e, h, m;",
        *([] if flushed else back),
        "setp.eq.f32 p2, $x, 0f00000000;",
        "setp.eq.or.f32 p2, $x, 0f7F800000, p2;",
        "selp.f32 $d, $x, e, p2;",
    ]
    return _block("s, a, r, m, h, e", lines, [x])
