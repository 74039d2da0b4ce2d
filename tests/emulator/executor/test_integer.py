# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic, logic and shifts against Python's integers, uniform and in lanes."""

import numpy as np
import pytest

EDGES32 = [
    0,
    1,
    2,
    31,
    32,
    33,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    0xFFFFFFFF,
    0xFFFFFFFE,
    0x12345678,
    100,
    7,
    255,
    65536,
]
RNG = np.random.default_rng(1)
A32 = np.array(EDGES32 + list(RNG.integers(0, 1 << 32, 16)), np.uint32)
B32 = np.array(list(RNG.permutation(EDGES32)) + list(RNG.integers(0, 1 << 32, 8)) + [3] * 8, np.uint32)
A64 = np.array([*(int(x) << 32 | int(y) for x, y in zip(A32, B32, strict=True))], np.uint64)
B64 = A64[::-1].copy()


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def truncated(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def modulo(a: int, b: int) -> int:
    return -1 if b == 0 else a - truncated(a, b) * b


BINARY = {
    "add.{t}": lambda a, b: a + b,
    "sub.{t}": lambda a, b: a - b,
    "mul.lo.{t}": lambda a, b: a * b,
    "min.{t}": min,
    "max.{t}": max,
    "div.{t}": truncated,
    "rem.{t}": modulo,
}


@pytest.mark.parametrize("type_name", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("name", BINARY)
def test_two_operands(run_lanes, name, type_name):
    bits = int(type_name[1:])
    a, b = (A32, B32) if bits == 32 else (A64, B64)
    reference = BINARY[name]
    convert = (lambda x: signed(int(x), bits)) if type_name[0] == "s" else int
    code = name.format(t=type_name) + " %o0, %i0, %i1;"
    (found,) = run_lanes(code, [a, b], [f"b{bits}"])
    assert found.tolist() == [reference(convert(x), convert(y)) & ((1 << bits) - 1) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("name", BINARY)
def test_uniform_operands_give_what_lanes_give(run_lanes, name):
    for a, b in [(0xFFFFFFF9, 3), (7, 0xFFFFFFFE), (0x80000000, 0xFFFFFFFF)]:
        code = f"mov.b32 %r1, {a};\nmov.b32 %r2, {b};\n" + name.format(t="s32") + " %o0, %r1, %r2;"
        (uniform,) = run_lanes(code, [], ["b32"])
        (lanes,) = run_lanes(name.format(t="s32") + " %o0, %i0, %i1;", [np.uint32(a), np.uint32(b)], ["b32"])
        assert uniform.tolist() == lanes.tolist()


@pytest.mark.parametrize("type_name", ["s32", "u32", "s64", "u64", "s16", "u16"])
def test_high_and_wide_products(run_lanes, type_name):
    bits = int(type_name[1:])
    a, b = {16: (A32.astype(np.uint16), B32.astype(np.uint16)), 32: (A32, B32), 64: (A64, B64)}[bits]
    convert = (lambda x: signed(int(x), bits)) if type_name[0] == "s" else int
    exact = [convert(x) * convert(y) for x, y in zip(a, b, strict=True)]
    (high,) = run_lanes(f"mul.hi.{type_name} %o0, %i0, %i1;", [a, b], [f"b{bits}"])
    assert high.tolist() == [product >> bits & ((1 << bits) - 1) for product in exact]
    if bits < 64:
        (wide,) = run_lanes(f"mul.wide.{type_name} %o0, %i0, %i1;", [a, b], [f"b{2 * bits}"])
        assert wide.tolist() == [product & ((1 << 2 * bits) - 1) for product in exact]


def test_multiply_add_wide_and_low(run_lanes):
    low, wide = run_lanes("mad.lo.s32 %o0, %i0, %i1, %i0;\nmad.wide.s32 %o1, %i0, %i1, 5;", [A32, B32], ["b32", "b64"])
    pairs = [(signed(int(x), 32), signed(int(y), 32)) for x, y in zip(A32, B32, strict=True)]
    assert low.tolist() == [(x * y + x) & 0xFFFFFFFF for x, y in pairs]
    assert wide.tolist() == [(x * y + 5) & ((1 << 64) - 1) for x, y in pairs]


def test_bits(run_lanes):
    code = (
        "popc.b32 %o0, %i0;\nclz.b32 %o1, %i0;\nbrev.b32 %o2, %i0;\nbfind.u32 %o3, %i0;\n"
        "neg.s32 %o4, %i0;\nabs.s32 %o5, %i0;"
    )
    popc, clz, brev, bfind, neg, absolute = run_lanes(code, [A32], ["b32"] * 6)
    values = A32.tolist()
    assert popc.tolist() == [bin(x).count("1") for x in values]
    assert clz.tolist() == [32 - x.bit_length() for x in values]
    assert brev.tolist() == [int(f"{x:032b}"[::-1], 2) for x in values]
    assert bfind.tolist() == [x.bit_length() - 1 & 0xFFFFFFFF for x in values]
    assert neg.tolist() == [-x & 0xFFFFFFFF for x in values]
    assert absolute.tolist() == [abs(signed(x, 32)) & 0xFFFFFFFF for x in values]


@pytest.mark.parametrize("shift", [0, 1, 31, 32, 200])
def test_shifts_beyond_the_width_clamp(run_lanes, shift):
    code = (
        f"mov.b32 %r1, {shift};\nshl.b32 %o0, %i0, %i1;\nshr.u32 %o1, %i0, %i1;\n"
        "shr.s32 %o2, %i0, %i1;\nshr.s32 %o3, %i0, %r1;"
    )
    left, logical, arithmetic, uniform = run_lanes(code, [A32, np.uint32(shift)], ["b32"] * 4)
    values = A32.tolist()
    assert left.tolist() == [x << shift & 0xFFFFFFFF for x in values]
    assert logical.tolist() == [x >> shift for x in values]
    assert arithmetic.tolist() == [signed(x, 32) >> min(shift, 31) & 0xFFFFFFFF for x in values]
    assert uniform.tolist() == arithmetic.tolist()


def test_lop3_follows_its_table(run_lanes):
    # The table of a function is the function of the tables of its operands: 0xF0, 0xCC and 0xAA.
    code = f"lop3.b32 %o0, %i0, %i1, %i2, {0xF0 & 0xCC | 0xAA};\nlop3.b32 %o1, %i0, %i1, %i2, {0xF0 ^ 0xCC ^ 0xAA};"
    c = A32[::-1].copy()
    mixed, parity = run_lanes(code, [A32, B32, c], ["b32", "b32"])
    assert mixed.tolist() == (A32 & B32 | c).tolist()
    assert parity.tolist() == (A32 ^ B32 ^ c).tolist()


def test_funnel_shift_and_bit_fields(run_lanes):
    code = (
        "shf.l.wrap.b32 %o0, %i0, %i1, 8;\nshf.r.clamp.b32 %o1, %i0, %i1, 40;\n"
        "bfe.u32 %o2, %i0, 4, 8;\nbfe.s32 %o3, %i0, 28, 8;\nbfi.b32 %o4, %i0, %i1, 8, 4;"
    )
    left, right, field, extended, inserted = run_lanes(code, [A32, B32], ["b32"] * 5)
    pairs = list(zip(A32.tolist(), B32.tolist(), strict=True))
    assert left.tolist() == [(y << 8 | x >> 24) & 0xFFFFFFFF for x, y in pairs]
    assert right.tolist() == [y for _, y in pairs]
    assert field.tolist() == [x >> 4 & 0xFF for x, _ in pairs]
    assert extended.tolist() == [signed(x >> 28, 4) & 0xFFFFFFFF for x, _ in pairs]
    assert inserted.tolist() == [y & ~0xF00 | (x & 15) << 8 for x, y in pairs]


def test_dp4a_mixes_signs(run_lanes):
    (found,) = run_lanes("dp4a.u32.s32 %o0, %i0, %i1, 7;", [np.uint32(0xFF020304), np.uint32(0xFFFE0201)], ["b32"])
    assert found[0] == (255 * -1 + 2 * -2 + 3 * 2 + 4 * 1 + 7) & 0xFFFFFFFF


def test_comparison_and_selection(run_lanes):
    code = (
        "setp.lt.s32 %p1, %i0, %i1;\nsetp.lo.u32 %p2, %i0, %i1;\nselp.b32 %o0, 1, 2, %p1;\n"
        "selp.b32 %o1, %i0, %i1, %p2;\n"
    )
    code += (
        "setp.ne.and.b32 %p3|%p4, %i0, %i1, %p1;\nselp.b32 %o2, 1, 0, %p3;\n"
        "selp.b32 %o3, 1, 0, %p4;\nset.eq.u32.u32 %o4, %i0, %i1;"
    )
    less, lower, first, second, equal = run_lanes(code, [A32, B32], ["b32"] * 5)
    pairs = list(zip(A32.tolist(), B32.tolist(), strict=True))
    below = [signed(x, 32) < signed(y, 32) for x, y in pairs]
    assert less.tolist() == [1 if each else 2 for each in below]
    assert lower.tolist() == [min(pair) for pair in pairs]
    assert first.tolist() == [int(x != y and each) for (x, y), each in zip(pairs, below, strict=True)]
    assert second.tolist() == [int(x == y and each) for (x, y), each in zip(pairs, below, strict=True)]
    assert equal.tolist() == [0xFFFFFFFF if x == y else 0 for x, y in pairs]
