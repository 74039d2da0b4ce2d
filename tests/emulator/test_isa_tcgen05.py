# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""tcgen05: tensor memory through every load and store shape, and MMAs of every kind with one and two CTAs."""

import numpy as np
import pytest
from ptxlab import run_kernel

from epifuse.emulator.reports import UnknownInstructionError

M = 128
N = 32
ALLOC = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; shr.u32 %r3, %r1, 5;
setp.eq.u32 %p1, %r3, 0; @!%p1 bra GIVEN;
tcgen05.alloc.cta_group::{ctas}.sync.aligned.shared::cta.b32 [smem+{at}], {columns};
tcgen05.relinquish_alloc_permit.cta_group::{ctas}.sync.aligned;
GIVEN: tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync; ld.shared.u32 %r4, [smem+{at}];
and.b32 %r5, %r3, 3; shl.b32 %r6, %r5, 21; add.u32 %r7, %r4, %r6;
"""
FREE = """tcgen05.fence::before_thread_sync; bar.sync 0; @!%p1 bra END;
tcgen05.dealloc.cta_group::{ctas}.sync.aligned.b32 %r4, {columns}; END:
"""


def names(count, first=100):
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def cells_of(shape, count, lane):
    """(row within the warp's quarter, column) of each register of a lane: the ISA's figures."""
    g, t = lane // 4, lane % 4
    if shape == "32x32b":
        return [(lane, i) for i in range(count)]
    if shape == "16x64b":
        return [(g + 8 * (t & 1), 2 * i + (t >> 1)) for i in range(count)]
    if shape == "16x128b":
        return [(g + 8 * h, 4 * i + t) for i in range(count) for h in (0, 1)]
    return [(g + 8 * h, 8 * i + 2 * t + e) for i in range(count) for h in (0, 1) for e in (0, 1)]


REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}


@pytest.mark.parametrize("shape", ["16x64b", "16x128b", "16x256b"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("direction", ["ld", "st"])
def test_shapes_address_the_same_cells_as_whole_lanes(shape, count, direction):
    total = REGISTERS[shape] * count
    width = 32
    data = np.arange(128 * width, dtype=np.uint32).reshape(128, width)
    out = np.zeros((128, width), np.uint32)
    whole, part = names(width), names(total, 150)
    fill = "\n".join(f"ld.global.u32 %r{100 + i}, [%d3+{4 * i}];" for i in range(width))
    body = (
        ALLOC.format(ctas=1, at=0, columns=32)
        + f"mul.wide.u32 %d3, %r1, {4 * width}; add.u64 %d4, %d2, %d3; add.u64 %d3, %d1, %d3;"
    )
    if direction == "ld":
        stores = "\n".join(f"st.global.u32 [%d4+{4 * i}], %r{150 + i};" for i in range(total))
        body += f"""{fill} tcgen05.st.sync.aligned.32x32b.x{width}.b32 [%r7], {whole}; tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.{shape}.x{count}.b32 {part}, [%r7]; tcgen05.wait::ld.sync.aligned; {stores}"""
    else:
        zero = "\n".join(f"mov.b32 %r{100 + i}, 0;" for i in range(width))
        fill = "\n".join(f"ld.global.u32 %r{150 + i}, [%d3+{4 * i}];" for i in range(total))
        stores = "\n".join(f"st.global.u32 [%d4+{4 * i}], %r{100 + i};" for i in range(width))
        body += f"""{zero} tcgen05.st.sync.aligned.32x32b.x{width}.b32 [%r7], {whole}; {fill}
        tcgen05.st.sync.aligned.{shape}.x{count}.b32 [%r7], {part}; tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.32x32b.x{width}.b32 {whole}, [%r7]; tcgen05.wait::ld.sync.aligned; {stores}"""
    run_kernel(body + FREE.format(ctas=1, columns=32), [data, out], threads=128, shared=16)
    expected = np.zeros_like(out)
    for thread in range(128):
        for index, (row, column) in enumerate(cells_of(shape, count, thread % 32)):
            cell = thread // 32 * 32 + row
            if direction == "ld":
                expected[thread, index] = data[cell, column]
            else:
                expected[cell, column] = data[thread, index]
    assert np.array_equal(out, expected)


# -- MMA: A and B K-major, with 128 bytes of swizzle ------------------------------------------------------------------


def pattern(matrix):
    raw = np.ascontiguousarray(matrix).view(np.uint8)
    rows = np.zeros((raw.shape[0], 128), np.uint8)
    rows[:, : raw.shape[1]] = raw
    chunks = rows.reshape(-1, 16)
    order = np.arange(len(chunks))
    out = np.empty_like(chunks)
    out[order ^ (order >> 3 & 7)] = chunks
    return out.reshape(-1)


def encoded(matrix, kind):
    if kind == "bf16":
        return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind in ("e4m3", "e5m2"):
        table = {"e4m3": [0xC4, 0xC0, 0xB8, 0, 0x38, 0x40, 0x44], "e5m2": [0xC2, 0xC0, 0xBC, 0, 0x3C, 0x40, 0x42]}[kind]
        return np.array(table, np.uint8)[matrix + 3]
    return matrix.astype({"f16": np.float16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}[kind])


KINDS = {"f16": ("f16", 16, 0), "bf16": ("f16", 16, 1), "tf32": ("tf32", 8, 2), "e4m3": ("f8f6f4", 32, 0)}
KINDS |= {"e5m2": ("f8f6f4", 32, 1), "u8": ("i8", 32, 0), "s8": ("i8", 32, 1)}
RESULTS = {"f16": 0, "f32": 1, "s32": 2}


def instruction(a_kind, b_kind, d_kind, m, n):
    return RESULTS[d_kind] << 4 | KINDS[a_kind][2] << 7 | KINDS[b_kind][2] << 10 | (n >> 3) << 17 | (m >> 4) << 24


def descriptor(address):
    return address >> 4 | 1 << 16 | (1024 >> 4) << 32 | 1 << 46 | 2 << 61


MMA = """mov.u32 %r8, %r1;
FILL: setp.ge.u32 %p7, %r8, {total}; @%p7 bra FILLED; cvt.u64.u32 %d3, %r8; add.u64 %d3, %d1, %d3; ld.global.u8 %r9, [%d3];
add.u32 %r10, %r2, %r8; st.shared.u8 [%r10], %r9; add.u32 %r8, %r8, 128; bra FILL;
FILLED: fence.proxy.async.shared::cta; setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared::cta.b64 [smem+{bar}], 1;
fence.mbarrier_init.release.cluster; {meet}
and.b32 %r11, %r2, 0x3FFFF; shr.u32 %r11, %r11, 4; cvt.u64.u32 %d4, %r11; add.u64 %d5, %d4, {a}; add.u64 %d6, %d4, {b};
@!%p2 bra WAIT; {leader}
setp.ne.u32 %p3, 0, 0; setp.eq.u32 %p4, 0, 0;
tcgen05.mma.cta_group::{ctas}.kind::{kind} [%r4], %d5, %d6, {idesc}, %p3;
tcgen05.mma.cta_group::{ctas}.kind::{kind} [%r4], %d5, %d6, {idesc}, %p4;
{commit}
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p9, [smem+{bar}], 0; @!%p9 bra WAIT; tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x{n}.b32 {names}, [%r7]; tcgen05.wait::ld.sync.aligned;
mul.wide.u32 %d7, %r1, {bytes}; add.u64 %d7, %d2, %d7;
{stores}
"""
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r13];"
CASES = [
    ("f16", "f16", "f32"),
    ("bf16", "bf16", "f32"),
    ("f16", "f16", "f16"),
    ("tf32", "tf32", "f32"),
    ("e4m3", "e5m2", "f32"),
]
CASES += [("s8", "s8", "s32"), ("u8", "s8", "s32"), ("u8", "u8", "s32")]


@pytest.mark.parametrize(("a_kind", "b_kind", "d_kind"), CASES)
def test_mma(a_kind, b_kind, d_kind):
    n = N
    rng = np.random.default_rng(0)
    kind, k, _ = KINDS[a_kind]
    low = {"s8": (-128, 128), "u8": (0, 256)}
    a, b = rng.integers(*low.get(a_kind, (-3, 4)), (M, k)), rng.integers(*low.get(b_kind, (-3, 4)), (n, k))
    image = np.concatenate((pattern(encoded(a, a_kind)), pattern(encoded(b, b_kind))))
    out = np.zeros((128, n), np.uint32)
    stores = "\n".join(f"st.global.u32 [%d7+{4 * i}], %r{100 + i};" for i in range(n))
    at = len(image)
    body = ALLOC.format(ctas=1, at=at + 8, columns=32) + MMA.format(
        total=at, bar=at, meet="bar.sync 0;", a=descriptor(0), b=descriptor(M * 128), leader=f"add.u32 %r13, %r2, {at};", ctas=1,
        kind=kind, idesc=instruction(a_kind, b_kind, d_kind, M, n), commit=COMMIT, n=n, names=names(n), bytes=4 * n, stores=stores,
    )  # fmt: skip
    for seed in range(3):
        run_kernel(body + FREE.format(ctas=1, columns=32), [image, out], threads=128, shared=at + 16, seed=seed)
        expected = 2 * (a @ b.T)
        if d_kind == "f16":
            assert np.array_equal((out & 0xFFFF).astype(np.uint16).view(np.float16), expected)
        else:
            assert np.array_equal(out.view(np.float32 if d_kind == "f32" else np.int32), expected)


@pytest.mark.parametrize("seed", range(3))
def test_two_ctas_share_one_product(seed):
    n = N
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (256, 16)), rng.integers(-3, 4, (n, 16))
    parts = [
        np.concatenate(
            (
                pattern(a[128 * r : 128 * r + 128].astype(np.float16)),
                pattern(b[16 * r : 16 * r + 16].astype(np.float16)),
            )
        )
        for r in range(2)
    ]
    image = np.stack(parts)
    out = np.zeros((2, 128, n), np.uint32)
    stores = "\n".join(f"st.global.u32 [%d7+{4 * i}], %r{100 + i};" for i in range(n))
    at = image.shape[1]
    pair = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
    own = f"""mov.u32 %r20, %cluster_ctarank; mul.wide.u32 %d8, %r20, {at}; add.u64 %d1, %d1, %d8;
    mul.wide.u32 %d8, %r20, {512 * n}; add.u64 %d2, %d2, %d8;"""
    commit = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r13], %h3;"
    body = ALLOC.format(ctas=2, at=at + 8, columns=32) + own + MMA.format(
        total=at, bar=at, meet=pair, a=descriptor(0), b=descriptor(M * 128),
        leader=f"add.u32 %r13, %r2, {at}; mov.b16 %h3, 3; setp.ne.u32 %p6, %r20, 0; @%p6 bra WAIT;", ctas=2, kind="f16",
        idesc=instruction("f16", "f16", "f32", 256, n), commit=commit, n=n, names=names(n), bytes=4 * n, stores=stores,
    )  # fmt: skip
    body += "tcgen05.fence::before_thread_sync;" + pair + FREE.format(ctas=2, columns=32) + pair
    run_kernel(body, [image, out], threads=128, shared=at + 16, grid=2, cluster=2, seed=seed)
    assert np.array_equal(out.view(np.float32).reshape(256, n), 2 * (a @ b.T))


@pytest.mark.parametrize(
    "name",
    [
        "mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X",
        "mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X",
        "mma.sp.cta_group::1.kind::f16",
        "shift.cta_group::1.down",
    ],
)
def test_what_is_not_executed_is_named(name):
    operands = "[%r4]" if name.startswith("shift") else "[%r4], %d1, %d1, %r5, [%r6], [%r7], %p1"
    with pytest.raises(UnknownInstructionError, match=name.split(".")[0]):
        run_kernel(f"tcgen05.{name} {operands};", [np.zeros(4, np.uint32)])
