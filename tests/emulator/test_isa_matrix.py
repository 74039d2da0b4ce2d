# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""ldmatrix, stmatrix and mma.sync, with the fragment layouts of the PTX ISA written out here once more."""

import numpy as np
import pytest
from ptxlab import run_kernel, run_warp

LANES = range(32)


def half_bits(matrix, kind):
    if kind == "f16":
        return matrix.astype(np.float16).view(np.uint16)
    return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


# -- ldmatrix and stmatrix: 8 x 8 matrices of 16 bits; lane l holds elements 2 (l % 4) and + 1 of row l / 4 ------------

BODY = """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; mov.u32 %r2, smem;
mul.wide.u32 %d3, %r1, 16; add.u64 %d4, %d1, %d3;
ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d4]; mad.lo.u32 %r3, %r1, 16, %r2;
st.shared.v4.u32 [%r3], {{%r10, %r11, %r12, %r13}}; bar.sync 0;
xor.b32 %r5, %r1, {swap}; mad.lo.u32 %r6, %r5, 16, %r2;
"""


def fragments(matrix, transposed):
    """The register of each lane for one matrix."""
    source = matrix.T if transposed else matrix
    return [int(source[lane // 4, lane % 4 * 2]) | int(source[lane // 4, lane % 4 * 2 + 1]) << 16 for lane in LANES]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count, transposed):
    rows = np.arange(32 * 8, dtype=np.uint16).reshape(32, 8) * 3
    out = np.zeros((32, 4), np.uint32)
    names = "{" + ", ".join(f"%r{20 + i}" for i in range(count)) + "}"
    trans = ".trans" if transposed else ""
    stores = "\n".join(f"st.global.u32 [%d5+{4 * i}], %r{20 + i};" for i in range(count))
    body = (
        BODY.format(swap=1)
        + f"""ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {names}, [%r6];
    add.u64 %d5, %d2, %d3; {stores}"""
    )
    run_kernel(body, [rows, out], shared=512)
    order = [lane ^ 1 for lane in LANES]
    for index in range(count):
        matrix = rows[order[8 * index : 8 * index + 8]]
        assert out[:, index].tolist() == fragments(matrix, transposed)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix(count, transposed):
    registers = np.random.default_rng(0).integers(0, 1 << 32, (32, 4), np.uint32)
    out = np.zeros((32, 8), np.uint16)
    names = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
    trans = ".trans" if transposed else ""
    body = (
        BODY.format(swap=1)
        + f"""stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r6], {names};
    bar.sync 0; ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r3];
    add.u64 %d5, %d2, %d3; st.global.v4.u32 [%d5], {{%r10, %r11, %r12, %r13}};"""
    )
    run_kernel(body, [registers, out], shared=512, target="90a")
    for index in range(count):
        stored = out[[lane ^ 1 for lane in range(8 * index, 8 * index + 8)]]
        assert fragments(stored, transposed) == registers[:, index].tolist()


# -- mma.sync ------------------------------------------------------------------------------------------------------
# (row, column) of element i of lane l; g = l / 4, t = l % 4.


def a16(k):
    return lambda g, t, i: (g + 8 * (i >> 1 & 1), 2 * t + (i & 1) + 8 * (i >> 2))


def b16(g, t, i):
    return 2 * t + (i & 1) + 8 * (i >> 1), g


def a8(g, t, i):
    return g + 8 * (i >> 2 & 1), 4 * t + (i & 3) + 16 * (i >> 3)


def b8(g, t, i):
    return 4 * t + (i & 3) + 16 * (i >> 2), g


def a32(g, t, i):
    return g + 8 * (i & 1), t + 4 * (i >> 1)


def b32(g, t, i):
    return t + 4 * i, g


def c32(g, t, i):
    return g + 8 * (i >> 1), 2 * t + (i & 1)


def spread(codes, place, count, per):
    """Registers (count, 32) that hold a matrix of codes, `per` elements in each."""
    bits = 32 // per
    out = np.zeros((count, 32), np.uint32)
    for lane in LANES:
        for i in range(count * per):
            out[i // per, lane] |= np.uint32(int(codes[place(lane // 4, lane % 4, i)]) << bits * (i % per))
    return out


def encoded(matrix, kind):
    if kind in ("f16", "bf16"):
        return half_bits(matrix, kind)
    if kind == "tf32":
        return matrix.astype(np.float32).view(np.uint32)
    if kind in ("e4m3", "e5m2"):
        return np.array([FP8[kind][v] for v in matrix.reshape(-1).tolist()], np.uint8).reshape(matrix.shape)
    return matrix.astype(np.int64).astype(np.uint8)


FP8 = {
    "e4m3": {0: 0, 1: 0x38, 2: 0x40, 3: 0x44, -1: 0xB8, -2: 0xC0, -3: 0xC4},
    "e5m2": {0: 0, 1: 0x3C, 2: 0x40, 3: 0x42, -1: 0xBC, -2: 0xC0, -3: 0xC2},
}
CASES = [
    (16, "f16", "f16", "f32", "80"),
    (16, "bf16", "bf16", "f32", "80"),
    (16, "f16", "f16", "f16", "80"),
    (8, "f16", "f16", "f32", "80"),
    (8, "bf16", "bf16", "f32", "80"),
    (8, "f16", "f16", "f16", "80"),
    (8, "tf32", "tf32", "f32", "80"),
    (4, "tf32", "tf32", "f32", "80"),
    (32, "s8", "s8", "s32", "80"),
    (32, "u8", "s8", "s32", "80"),
    (16, "s8", "u8", "s32", "80"),
    (16, "u8", "u8", "s32", "80"),
    (32, "e4m3", "e4m3", "f32", "90a"),
    (32, "e5m2", "e4m3", "f32", "90a"),
]


@pytest.mark.parametrize(("k", "a_kind", "b_kind", "d_kind", "target"), CASES)
def test_mma(k, a_kind, b_kind, d_kind, target):
    rng = np.random.default_rng(k)
    low = {"s8": (-128, 128), "u8": (0, 256)}
    a = rng.integers(*low.get(a_kind, (-3, 4)), (16, k))
    b = rng.integers(*low.get(b_kind, (-3, 4)), (k, 8))
    c = rng.integers(-9, 10, (16, 8))
    width = 16 if a_kind in ("f16", "bf16") else 32 if a_kind == "tf32" else 8
    places = {16: (a16(k), b16), 32: (a32, b32), 8: (a8, b8)}[width]
    per = 32 // width
    left = spread(encoded(a, a_kind), places[0], 16 * k * width // 1024, per)
    right = spread(encoded(b, b_kind), places[1], 8 * k * width // 1024, per)
    if d_kind == "f16":
        start = spread(half_bits(c, "f16"), c32, 2, 2)
    else:
        start = spread((c.astype(np.float32) if d_kind == "f32" else c.astype(np.int32)).view(np.uint32), c32, 4, 1)
    groups, at = [], 0
    for part in (left, right, start):
        groups.append("{" + ", ".join(f"%i{at + i}" for i in range(len(part))) + "}")
        at += len(part)
    outs = "{" + ", ".join(f"%o{i}" for i in range(len(start))) + "}"
    name = f"mma.sync.aligned.m16n8k{k}.row.col.{d_kind}.{a_kind}.{b_kind}.{d_kind}"
    found = run_warp(f"{name} {outs}, {', '.join(groups)};", [*left, *right, *start], ["b32"] * len(start), target)
    expected = a @ b + c
    codes = {"f16": half_bits, "f32": lambda m, _: m.astype(np.float32).view(np.uint32)}.get(d_kind)
    bits = codes(expected, "f16") if codes else expected.astype(np.int32).view(np.uint32)
    wanted = spread(bits, c32, len(start), 2 if d_kind == "f16" else 1)
    assert np.array_equal(np.array(found), wanted)


def test_integer_mma_saturates_or_wraps():
    a = np.full((4, 32), 0x7F7F7F7F, np.uint32)
    start = np.full((4, 32), 0x7FFFFF00, np.uint32)
    outs, listed = ("{" + ", ".join(f"%{p}{i}" for i in r) + "}" for p, r in (("o", range(4)), ("i", range(6, 10))))
    for flag, expected in (("", 0x7FFFFF00 + 32 * 127 * 127), (".satfinite", 0x7FFFFFFF)):
        code = f"mma.sync.aligned.m16n8k32.row.col{flag}.s32.s8.s8.s32 {outs}, {{%i0, %i1, %i2, %i3}}, {{%i4, %i5}}, {listed};"
        found = run_warp(code, [*a, *a[:2], *start], ["b32"] * 4, "80")
        assert (np.array(found) == expected).all()
