# SPDX-License-Identifier: Apache-2.0
"""Integer, logic and shift instructions against arithmetic on Python's integers."""

import numpy as np
import pytest
from ptxlab import run_columns, run_one
from ptxvalues import integer_pairs, integers


def as_signed(value, bits):
    return (value ^ (1 << (bits - 1))) - (1 << (bits - 1))


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": lambda a, b: truncated(a, b) if b else None,
    "rem": lambda a, b: a - truncated(a, b) * b if b else None,
}


def check(found, columns, bits, signed, function, out_bits=None, mask_of=None):
    """Compare a column with a function of Python ints, where that is defined (not None)."""
    mask = (1 << (out_bits or bits)) - 1
    for index, raw in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        values = [as_signed(value, bits) for value in raw] if signed else raw
        expected = function(*values)
        if expected is not None:
            assert int(found[index]) == expected & mask, (index, [hex(v) for v in raw])


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64", "u16", "s16"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, kind):
    bits = int(kind[1:])
    a, b = integer_pairs(bits)
    found = run_one(f"{name}.{kind} %o0, %i0, %i1;", a, b, out=f"b{bits}")
    check(found, (a, b), bits, kind[0] == "s", BINARY[name])


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_high_product(kind):
    bits = int(kind[1:])
    a, b = integer_pairs(bits)
    found = run_one(f"mul.hi.{kind} %o0, %i0, %i1;", a, b, out=f"b{bits}")
    check(found, (a, b), bits, kind[0] == "s", lambda x, y: x * y >> bits)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_product_and_wide_mad(kind):
    bits = int(kind[1:])
    a, b = integer_pairs(bits)
    c = np.resize(integers(2 * bits, 50), a.size)
    code = f"mul.wide.{kind} %o0, %i0, %i1;\nmad.wide.{kind} %o1, %i0, %i1, %i2;"
    product, total = run_columns(code, [a, b, c], [f"b{2 * bits}"] * 2)
    check(product, (a, b), bits, kind[0] == "s", lambda x, y: x * y, 2 * bits)
    exact = [int(p) + int(z) & (1 << 2 * bits) - 1 for p, z in zip(product, c, strict=True)]
    assert total.tolist() == exact


@pytest.mark.parametrize("part", ["lo", "hi"])
@pytest.mark.parametrize("kind", ["u32", "s32", "u64"])
def test_mad(kind, part):
    bits = int(kind[1:])
    a, b = integer_pairs(bits)
    c = np.resize(integers(bits, 50), a.size)
    found = run_one(f"mad.{part}.{kind} %o0, %i0, %i1, %i2;", a, b, c, out=f"b{bits}")
    shift = bits if part == "hi" else 0
    check(found, (a, b, c), bits, kind[0] == "s", lambda x, y, z: (x * y >> shift) + z)


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_sum_of_absolute_difference(kind):
    a, b = integer_pairs(32)
    c = np.resize(integers(32, 50), a.size)
    found = run_one(f"sad.{kind} %o0, %i0, %i1, %i2;", a, b, c)
    check(found, (a, b, c), 32, kind[0] == "s", lambda x, y, z: abs(x - y) + z)


def test_carries_make_a_product_of_64_bits():
    a, b = integer_pairs(64)
    code = """.reg .b32 %al, %ah, %bl, %bh, %x, %y;
    mov.b64 {%al, %ah}, %i0; mov.b64 {%bl, %bh}, %i1;
    add.cc.u32 %x, %al, %bl; addc.u32 %y, %ah, %bh; mov.b64 %o0, {%x, %y};
    sub.cc.u32 %x, %al, %bl; subc.u32 %y, %ah, %bh; mov.b64 %o1, {%x, %y};
    mul.lo.u32 %x, %al, %bl; mul.hi.u32 %y, %al, %bl;
    mad.lo.cc.u32 %x, %al, 1, %x; madc.hi.u32 %y, %ah, %bh, %y; mov.b64 %o2, {%x, %y};"""
    added, left, product = run_columns(code, [a, b], ["b64"] * 3)
    check(added, (a, b), 64, False, lambda x, y: x + y)
    check(left, (a, b), 64, False, lambda x, y: x - y)

    def expected(x, y):
        (xl, xh), (yl, yh) = ((v & 0xFFFFFFFF, v >> 32) for v in (x, y))
        low = (xl * yl & 0xFFFFFFFF) + xl
        high = (xl * yl >> 32) + (xh * yh >> 32) + (low >> 32)
        return (high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF

    check(product, (a, b), 64, False, expected)


UNARY = {
    "abs.s32": lambda a: abs(as_signed(a, 32)),
    "abs.s64": lambda a: abs(as_signed(a, 64)),
    "neg.s32": lambda a: -a,
    "neg.s64": lambda a: -a,
    "not.b32": lambda a: ~a,
    "not.b64": lambda a: ~a,
    "cnot.b32": lambda a: int(a == 0),
    "brev.b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "brev.b64": lambda a: int(f"{a:064b}"[::-1], 2),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    bits = int(name[-2:])
    a = integers(bits, 200)
    check(run_one(f"{name} %o0, %i0;", a, out=f"b{bits}"), (a,), bits, False, UNARY[name])


def last_bit(a, bits, signed):
    a = ~a & (1 << bits) - 1 if signed and a >> (bits - 1) else a
    return a.bit_length() - 1 if a else None


COUNTS = {
    "popc.b32": lambda a: a.bit_count(),
    "popc.b64": lambda a: a.bit_count(),
    "clz.b32": lambda a: 32 - a.bit_length(),
    "clz.b64": lambda a: 64 - a.bit_length(),
    "bfind.u32": lambda a: last_bit(a, 32, False) if a else -1,
    "bfind.s32": lambda a: -1 if last_bit(a, 32, True) is None else last_bit(a, 32, True),
    "bfind.u64": lambda a: last_bit(a, 64, False) if a else -1,
    "bfind.s64": lambda a: -1 if last_bit(a, 64, True) is None else last_bit(a, 64, True),
    "bfind.shiftamt.u32": lambda a: 31 - last_bit(a, 32, False) if a else -1,
    "bfind.shiftamt.s32": lambda a: -1 if last_bit(a, 32, True) is None else 31 - last_bit(a, 32, True),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counting_bits(name):
    bits = int(name[-2:])
    a = integers(bits, 200)
    check(run_one(f"{name} %o0, %i0;", a), (a,), bits, False, COUNTS[name], 32)


FIELDS = np.array([0, 1, 5, 8, 31, 32, 33, 40, 63, 64, 200, 255, 256 + 3], np.uint32)


def extracted(a, position, length, bits, signed):
    position, length = position & 0xFF, length & 0xFF
    top = min(position + length - 1, bits - 1)
    sign = 0 if not signed or length == 0 else a >> top & 1
    field = [a >> position + i & 1 if i < length and position + i < bits else sign for i in range(bits)]
    return sum(bit << i for i, bit in enumerate(field))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(kind):
    bits = int(kind[1:])
    position, length = (x.reshape(-1) for x in np.meshgrid(FIELDS, FIELDS))
    a = np.resize(integers(bits, 60)[::-1], position.size)
    found = run_one(f"bfe.{kind} %o0, %i0, %i1, %i2;", a, position, length, out=f"b{bits}")
    expected = [extracted(*map(int, row), bits, kind[0] == "s") for row in zip(a, position, length, strict=True)]
    assert found.tolist() == expected


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_bit_field_insert(kind):
    bits = int(kind[1:])
    position, length = (x.reshape(-1) for x in np.meshgrid(FIELDS, FIELDS))
    a, b = (np.resize(integers(bits, 60, seed)[::-1], position.size) for seed in (0, 1))
    found = run_one(f"bfi.{kind} %o0, %i0, %i1, %i2, %i3;", a, b, position, length, out=f"b{bits}")
    for row in zip(found, a, b, position, length, strict=True):
        got, x, y, p, n = map(int, row)
        for i in range(n & 0xFF):
            if (p & 0xFF) + i < bits:
                y = y & ~(1 << (p & 0xFF) + i) | (x >> i & 1) << (p & 0xFF) + i
        assert got == y


SHIFTS = np.array([0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 0xFFFFFFFF], np.uint32)


@pytest.mark.parametrize(
    "name", ["shl.b16", "shl.b32", "shl.b64", "shr.u16", "shr.s16", "shr.u32", "shr.s32", "shr.u64", "shr.s64"]
)
def test_shifts_clamp_their_amount(name):
    bits, signed = int(name[-2:]), ".s" in name
    a = np.repeat(integers(bits, 20), SHIFTS.size)
    amount = np.resize(SHIFTS, a.size)
    found = run_one(f"{name} %o0, %i0, %i1;", a, amount, out=f"b{bits}")
    mask = (1 << bits) - 1
    for got, x, given in zip(found.tolist(), a.tolist(), amount.tolist(), strict=True):
        n = min(given, bits)
        assert got == (x << n if "shl" in name else (as_signed(x, bits) if signed else x) >> n) & mask


@pytest.mark.parametrize("mode", ["l.wrap", "l.clamp", "r.wrap", "r.clamp"])
def test_funnel_shift(mode):
    a, b = (np.repeat(integers(32, 20, seed), SHIFTS.size) for seed in (0, 1))
    amount = np.resize(SHIFTS, a.size)
    found = run_one(f"shf.{mode}.b32 %o0, %i0, %i1, %i2;", a, b, amount)
    for got, low, up, given in zip(found.tolist(), a.tolist(), b.tolist(), amount.tolist(), strict=True):
        n = given & 31 if "wrap" in mode else min(given, 32)
        whole = up << 32 | low
        assert got == (whole >> 32 - n if mode[0] == "l" else whole >> n) & 0xFFFFFFFF


@pytest.mark.parametrize("table", range(0, 256, 5))
def test_three_input_logic(table):
    a, b, c = (integers(32, 40, seed) for seed in (0, 1, 2))
    b, c = np.roll(b, 3), np.roll(c, 7)
    found = run_one(f"lop3.b32 %o0, %i0, %i1, %i2, {table};", a, b, c)
    for got, x, y, z in zip(found.tolist(), a.tolist(), b.tolist(), c.tolist(), strict=True):
        bits = [table >> ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1)) & 1 for i in range(32)]
        assert got == sum(bit << i for i, bit in enumerate(bits))


def test_bitwise_and_predicates():
    a, b = integer_pairs(32)
    code = """and.b32 %o0, %i0, %i1; or.b32 %o1, %i0, %i1; xor.b32 %o2, %i0, %i1;
    setp.lt.u32 %p1, %i0, %i1; setp.lt.s32 %p2, %i0, %i1; xor.pred %p3, %p1, %p2; selp.b32 %o3, 1, 0, %p3;"""
    both, either, one, differ = run_columns(code, [a, b], ["b32"] * 4)
    assert np.array_equal(both, a & b)
    assert np.array_equal(either, a | b)
    assert np.array_equal(one, a ^ b)
    assert np.array_equal(differ, (a < b) ^ (a.view(np.int32) < b.view(np.int32)))


def test_byte_permutation_selects_and_replicates_signs():
    a, b = integer_pairs(32)
    selector = np.resize(np.random.default_rng(0).integers(0, 1 << 16, 300, np.uint32), a.size)
    found = run_one("prmt.b32 %o0, %i0, %i1, %i2;", a, b, selector)
    for got, x, y, s in zip(found.tolist(), a.tolist(), b.tolist(), selector.tolist(), strict=True):
        pool = (y << 32 | x).to_bytes(8, "little")
        picks = [(pool[s >> 4 * i & 7], s >> 4 * i + 3 & 1) for i in range(4)]
        assert got == int.from_bytes(bytes((0xFF if v & 0x80 else 0) if sign else v for v, sign in picks), "little")


MODES = {
    "f4e": [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)],
    "b4e": [(0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)],
    "rc8": [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)],
    "ecl": [(0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)],
    "ecr": [(0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)],
    "rc16": [(0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)],
}


@pytest.mark.parametrize("mode", MODES)
def test_byte_permutation_modes(mode):
    a = np.full(4, 0x33221100, np.uint32)
    b = np.full(4, 0x77665544, np.uint32)
    found = run_one(f"prmt.b32.{mode} %o0, %i0, %i1, %i2;", a, b, np.arange(4, dtype=np.uint32))
    assert [tuple(x >> 8 * i & 0xF for i in range(4)) for x in found.tolist()] == MODES[mode]


def test_dot_products_of_bytes():
    a, b = integer_pairs(32)
    c = np.resize(integers(32, 50), a.size)
    code = "dp4a.s32.s32 %o0, %i0, %i1, %i2; dp4a.u32.s32 %o1, %i0, %i1, %i2; dp4a.u32.u32 %o2, %i0, %i1, %i2;"
    found = run_columns(code, [a, b, c], ["b32"] * 3)
    for column, (left, right) in zip(found, [("i1", "i1"), ("u1", "i1"), ("u1", "u1")], strict=True):
        pairs = a.view(left).reshape(-1, 4).astype(int) * b.view(right).reshape(-1, 4).astype(int)
        assert np.array_equal(column, (pairs.sum(1) + c.astype(int)).astype(np.int64).astype(np.uint32))


def test_selection_by_sign():
    a, b = integer_pairs(32)
    code = """slct.b32.s32 %o0, %i0, %i1, %i1; .reg .f32 %c; mov.b32 %c, %i1; slct.b32.f32 %o1, %i0, %i1, %c;"""
    by_int, by_float = run_columns(code, [a, b], ["b32"] * 2)
    assert np.array_equal(by_int, np.where(b.view(np.int32) >= 0, a, b))
    with np.errstate(invalid="ignore"):
        assert np.array_equal(by_float, np.where(b.view(np.float32) >= 0, a, b))
