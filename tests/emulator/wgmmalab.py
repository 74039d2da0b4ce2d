# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""One warpgroup's product through wgmma: the kernel, and the layouts of its operands and of D written out."""

from __future__ import annotations

import numpy as np

M, N = 64, 16


def swizzle(image, width):
    """Bytes of rows of `width` bytes as a swizzled pattern (of 16-byte chunks) holds them."""
    if not width:
        return image.reshape(-1)
    chunks = image.reshape(-1, 16)
    mask = {32: 1, 64: 3, 128: 7}[width]
    order = np.arange(len(chunks))
    out = np.empty_like(chunks)
    out[order ^ (order >> 3 & mask)] = chunks
    return out.reshape(-1)


def k_major(matrix, width):
    """(rows, K) as the canonical K-major layout: groups of 8 rows, one pattern wide."""
    raw = np.ascontiguousarray(matrix).view(np.uint8)
    rows, depth = raw.shape
    if width:
        padded = np.zeros((rows, width), np.uint8)
        padded[:, :depth] = raw
        return swizzle(padded, width)
    # No swizzle: core matrices of 8 rows by 16 bytes, K first.
    return np.ascontiguousarray(raw.reshape(rows // 8, 8, depth // 16, 16).transpose(0, 2, 1, 3)).reshape(-1)


def descriptor(address, leading, stride, width):
    code = {0: 0, 128: 1, 64: 2, 32: 3}[width]
    return address >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | code << 62


KERNEL = """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; mov.u32 %r2, smem; mov.u32 %r3, %r1;
FILL: setp.ge.u32 %p7, %r3, {total}; @%p7 bra FILLED; cvt.u64.u32 %d3, %r3; add.u64 %d3, %d1, %d3; ld.global.u8 %r4, [%d3];
add.u32 %r5, %r2, %r3; st.shared.u8 [%r5], %r4; add.u32 %r3, %r3, 128; bra FILL;
FILLED: fence.proxy.async.shared::cta; bar.sync 0;
shr.u32 %r6, %r2, 4; cvt.u64.u32 %d4, %r6; add.u64 %d5, %d4, {a}; add.u64 %d6, %d4, {b};
{start}
wgmma.fence.sync.aligned;
{products}
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
mul.wide.u32 %d7, %r1, {bytes}; add.u64 %d7, %d2, %d7;
{stores}"""


def unpacked(out, n, dtype):
    """D from each thread's registers: warp w has rows 16 w ..; register 4 j + 2 h + e is row g + 8 h, column 8 j + 2 t + e."""
    found = np.empty((M, n), dtype)
    values = out.view(dtype)
    for thread in range(128):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        for index in range(n // 2):
            j, h, e = index >> 2, index >> 1 & 1, index & 1
            found[16 * warp + g + 8 * h, 8 * j + 2 * t + e] = values[thread, index]
    return found


def encoded(matrix, kind):
    if kind == "bf16":
        return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "e4m3":
        table = {0: 0, 1: 0x38, 2: 0x40, 3: 0x44, -1: 0xB8, -2: 0xC0, -3: 0xC4}
        return np.array([table[v] for v in matrix.reshape(-1).tolist()], np.uint8).reshape(matrix.shape)
    return matrix.astype({"f16": np.float16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}[kind])


def body(total: int, a: int, b: int, products: str, registers: int, start: str = "") -> str:
    """The kernel's body: p0 is copied to shared memory, each thread stores its registers to p1."""
    stores = "\n".join(f"st.global.u32 [%d7+{4 * i}], %r{10 + i};" for i in range(registers))
    return KERNEL.format(total=total, a=a, b=b, products=products, start=start, bytes=4 * registers, stores=stores)
