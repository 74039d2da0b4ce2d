# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""ld, st, atom and red in every form: widths, vectors, spaces, operations."""

import numpy as np
import pytest
from ptxlab import aligned, run_columns, run_kernel, run_warp

OWN = "mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1];\n"


@pytest.mark.parametrize("kind", ["u8", "s8", "b8", "u16", "s16", "u32", "s32"])
def test_narrow_loads_extend(kind):
    data = np.random.default_rng(0).integers(0, 256, 128 * 4, np.uint8)
    size = int(kind[1:]) // 8
    out = np.zeros(32, np.uint32)
    body = (
        OWN
        + f"""mul.wide.u32 %d3, %r1, {size}; add.u64 %d3, %d1, %d3; ld.global.{kind} %r2, [%d3+{size}];
    mul.wide.u32 %d4, %r1, 4; add.u64 %d4, %d2, %d4; st.global.b32 [%d4], %r2;"""
    )
    run_kernel(body, [data, out])
    dtype = f"i{size}" if kind[0] == "s" else f"u{size}"
    assert np.array_equal(out, data.view(dtype)[1:33].astype(np.int64).astype(np.uint32))


FORMS = [
    ("b32", 1),
    ("b32", 2),
    ("b32", 4),
    ("b64", 1),
    ("b64", 2),
    ("b16", 2),
    ("b16", 4),
    ("b8", 2),
    ("b8", 4),
    ("u8", 1),
]
WIDE = [("b32", 8), ("b64", 4)]


@pytest.mark.parametrize(("kind", "count"), FORMS + WIDE)
@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_vectors_go_through_every_space(kind, count, space):
    if (kind, count) in WIDE and space == "shared":
        pytest.skip("256-bit vectors are for global memory")
    size = int(kind[1:]) // 8
    total = size * count
    data, out = aligned(32 * total), aligned(32 * total)
    data[:] = np.random.default_rng(0).integers(0, 256, 32 * total, np.uint8)
    prefix = {"b8": "%h", "u8": "%h", "b16": "%h", "b32": "%r", "b64": "%d"}[kind]
    names = [f"{prefix}{10 + i}" for i in range(count)]
    registers = names[0] if count == 1 else "{" + ", ".join(names) + "}"
    form = f"{'' if count == 1 else f'.v{count}'}.{kind}"
    ends = {
        "global": (f"ld.global{form} {registers}, [%d3];", f"st.global{form} [%d4], {registers};"),
        "generic": (f"ld{form} {registers}, [%d3];", f"st{form} [%d4], {registers};"),
        "shared": (
            f"ld.global{form} {registers}, [%d3]; st.shared{form} [%r5], {registers};",
            f"ld.shared{form} {registers}, [%r5]; st.global{form} [%d4], {registers};",
        ),
    }[space]
    body = (
        OWN
        + f"""mul.wide.u32 %d3, %r1, {total}; add.u64 %d4, %d2, %d3; add.u64 %d3, %d1, %d3;
    mov.u32 %r5, smem; mad.lo.u32 %r5, %r1, {total}, %r5;
    {ends[0]}
    {ends[1]}"""
    )
    run_kernel(body, [data, out], shared=32 * total)
    assert np.array_equal(out, data)


def test_generic_addresses_reach_shared_memory():
    body = (
        OWN
        + """mov.u32 %r5, smem; cvt.u64.u32 %d5, %r5; cvta.shared.u64 %d5, %d5; isspacep.shared %p1, %d5;
    isspacep.global %p2, %d1; mul.wide.u32 %d6, %r1, 4; add.u64 %d7, %d5, %d6; st.u32 [%d7], %r1;
    shl.b32 %r6, %r1, 2; add.u32 %r6, %r5, %r6; ld.shared.u32 %r7, [%r6];
    selp.u32 %r8, 100, 0, %p1; add.u32 %r7, %r7, %r8; selp.u32 %r8, 1000, 0, %p2; add.u32 %r7, %r7, %r8;
    add.u64 %d8, %d2, %d6; st.global.u32 [%d8], %r7;"""
    )
    out = np.zeros(32, np.uint32)
    run_kernel(body, [out, out], shared=128)
    assert np.array_equal(out, np.arange(1100, 1132))


def test_local_memory_is_each_threads_own():
    code = """.local .align 8 .b8 own[64]; .reg .b64 %at; mov.u64 %at, own;
    st.local.u32 [%at], %i0; st.local.u32 [%at+4], 7; cvt.u64.u32 %d1, %i1; add.u64 %d1, %at, %d1;
    st.local.u32 [%d1+8], %i0; ld.local.u32 %o0, [%at]; ld.local.u32 %o1, [%d1+8];"""
    values = np.arange(32, dtype=np.uint32) * 5
    first, second = run_warp(code, [values, (np.arange(32) % 8 * 4).astype(np.uint32)], ["b32", "b32"])
    assert np.array_equal(first, values)
    assert np.array_equal(second, values)


def test_parameters_are_read_in_parts():
    out = np.zeros(32, np.uint32)
    body = "ld.param.u64 %d1, [p0]; ld.param.u32 %r1, [p1]; ld.param.u16 %h1, [p1+4]; ld.param.s8 %r2, [p1+7];\n"
    body += "st.global.u32 [%d1], %r1; st.global.u16 [%d1+4], %h1; st.global.u32 [%d1+8], %r2;"
    run_kernel(body, [out, 0x80CC_BBAA_4433_2211])
    assert (out[0], out[1], out[2]) == (0x44332211, 0xBBAA, 0xFFFFFF80)


# -- atomics -----------------------------------------------------------------------------------------------------

START = {
    "u32": np.uint32(10),
    "s32": np.int32(-3),
    "u64": np.uint64(1 << 40),
    "f32": np.float32(0.5),
    "f64": np.float64(-2),
}
START |= {"b32": np.uint32(0b1010), "s64": np.int64(-(1 << 40)), "b64": np.uint64(0b1010)}
OPERATIONS = {
    "add": ("u32 s32 u64 f32 f64", lambda a, b: a + b),
    "min": ("u32 s32 u64 s64", min),
    "max": ("u32 s32 u64 s64", max),
    "and": ("b32 b64", lambda a, b: a & b),
    "or": ("b32 b64", lambda a, b: a | b),
    "xor": ("b32 b64", lambda a, b: a ^ b),
    "inc": ("u32", lambda a, b: 0 if a >= b else a + 1),
    "dec": ("u32", lambda a, b: b if a == 0 or a > b else a - 1),
    "exch": ("b32 b64", lambda a, b: b),
}
CASES = [(name, kind) for name, (kinds, _) in OPERATIONS.items() for kind in kinds.split()]


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_atomics_apply_every_lane_once(name, kind, space):
    size = int(kind[1:]) // 8
    place = np.full(1, START[kind])
    out = np.zeros(32, f"u{size}")
    values = np.arange(32).astype(START[kind].dtype)
    register = "%r3" if size == 4 else "%d9"
    fetch = f"ld.global.b{8 * size} %old, [%d1]; st.shared.b{8 * size} [smem], %old;"
    publish = f"bar.warp.sync -1; ld.shared.b{8 * size} %old, [smem]; st.global.b{8 * size} [%d1], %old;"
    body = f"""mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; ld.param.u64 %d3, [p2];
    mul.wide.u32 %d4, %r1, {size}; add.u64 %d5, %d3, %d4; add.u64 %d4, %d2, %d4; ld.global.b{8 * size} {register}, [%d5];
    .reg .b{8 * size} %old;
    {fetch if space == "shared" else ""}
    atom.{"shared" if space == "shared" else "global.relaxed.gpu"}.{name}.{kind} %old, [{"smem" if space == "shared" else "%d1"}], {register};
    st.global.b{8 * size} [%d4], %old;
    {publish if space == "shared" else ""}"""
    run_kernel(body, [place, out, values], shared=16)
    total, olds = START[kind].item(), []
    for value in values.tolist():
        olds.append(total)
        total = OPERATIONS[name][1](total, value)
    dtype = START[kind].dtype
    mask = (1 << 8 * size) - 1
    wrapped = total & mask if dtype.kind != "f" else total
    assert place.view(out.dtype if dtype.kind != "f" else dtype)[0] == wrapped
    if dtype.kind != "f":
        assert sorted(out.tolist()) == sorted(old & mask for old in olds)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_packed_half_atomics(kind):
    one, two = (0x3C00, 0x4000) if kind == "f16x2" else (0x3F80, 0x4000)
    place = np.array([two << 16 | one], np.uint32)
    run_kernel(
        f"ld.param.u64 %d1, [p0]; mov.u32 %r1, {one << 16 | two}; red.global.add.noftz.{kind} [%d1], %r1;", [place]
    )
    thirtytwo_plus = {"f16x2": (0x5410, 0x5040), "bf16x2": (0x4282, 0x4208)}[kind]
    assert (place[0] & 0xFFFF, place[0] >> 16) == thirtytwo_plus


@pytest.mark.parametrize("scope", ["relaxed.gpu", "release.gpu", "acquire.sys", "acq_rel.gpu", "relaxed.cta"])
def test_atomic_orders_and_scopes(scope):
    place = np.zeros(1, np.uint32)
    run_kernel(f"ld.param.u64 %d1, [p0]; atom.{scope}.global.add.u32 %r1, [%d1], 1;", [place], threads=128)
    assert place[0] == 128


def test_compare_and_swap():
    place = np.array([5], np.uint32)
    (old,) = (np.zeros(32, np.uint32),)
    body = (
        OWN
        + """add.u32 %r2, %r1, 100; atom.global.cas.b32 %r3, [%d1], 5, %r2;
    mul.wide.u32 %d4, %r1, 4; add.u64 %d4, %d2, %d4; st.global.b32 [%d4], %r3;"""
    )
    run_kernel(body, [place, old])
    assert (old == 5).sum() == 1
    assert place[0] == 100 + np.flatnonzero(old == 5)[0]


def test_vector_reduction_of_floats():
    place = np.arange(4, dtype=np.float32)
    body = """ld.param.u64 %d1, [p0]; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;
    red.global.add.v4.f32 [%d1], {%f1, %f2, %f1, %f2};"""
    run_kernel(body, [place], target="90a")
    assert place.tolist() == [32, 65, 34, 67]


def test_special_registers():
    code = "mov.u32 %o0, %laneid; mov.u32 %o1, %tid.x; mov.u32 %o2, %ctaid.x; mov.u32 %o3, %ntid.x; mov.u32 %o4, %nctaid.x;"
    code += "mov.u32 %o5, %lanemask_lt;"
    found = run_columns(code, [np.arange(300)], ["b32"] * 6)
    rows = np.arange(300)
    for column, expected in zip(found, [rows % 32, rows % 128, rows // 128, 128, 3, (1 << rows % 32) - 1], strict=True):
        assert np.array_equal(column, np.broadcast_to(expected, 300))
