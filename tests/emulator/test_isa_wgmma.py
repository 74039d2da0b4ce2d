# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""wgmma: operands in shared memory (K-major, every swizzle, and transposed) and in registers, accumulation, groups."""

import numpy as np
import pytest
from ptxlab import run_kernel
from wgmmalab import M, N, body, descriptor, encoded, k_major, swizzle, unpacked


def run(image, a, b, products, registers, start="", seed=0):
    out = np.zeros((128, registers), np.uint32)
    run_kernel(
        body(len(image), a, b, products, registers, start),
        [image, out],
        threads=128,
        shared=len(image),
        target="90a",
        seed=seed,
    )
    return out


LIST = "{" + ", ".join(f"%r{10 + i}" for i in range(N // 2)) + "}"
CASES = [
    ("f16", 16, "f32"),
    ("bf16", 16, "f32"),
    ("tf32", 8, "f32"),
    ("e4m3", 32, "f32"),
    ("s8", 32, "s32"),
    ("u8", 32, "s32"),
]


@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize(("kind", "k", "d_kind"), CASES)
def test_k_major_operands(kind, k, d_kind, width):
    rng = np.random.default_rng(0)
    low = {"s8": (-128, 128), "u8": (0, 256)}.get(kind, (-3, 4))
    a, b = rng.integers(*low, (M, k)), rng.integers(*low, (N, k))
    left, right = k_major(encoded(a, kind), width), k_major(encoded(b, kind), width)
    leading, stride = (128, 256) if not width else (16, 8 * width)
    first = np.zeros(-(-len(left) // 1024) * 1024, np.uint8)
    first[: len(left)] = left
    image = np.concatenate((first, right))
    scale = "" if d_kind == "s32" else ", 1, 1" + (", 0, 0" if kind in ("f16", "bf16") else "")
    name = f"wgmma.mma_async.sync.aligned.m64n{N}k{k}.{d_kind}.{kind}.{kind}"
    clear = "\n".join(f"mov.b32 %r{10 + i}, 0;" for i in range(N // 2))
    products = f"setp.ne.u32 %p1, 0, 0;\n{name} {LIST}, %d5, %d6, %p1{scale};\nsetp.eq.u32 %p1, 0, 0;\n"
    products += f"{name} {LIST}, %d5, %d6, %p1{scale};"
    out = run(
        image,
        descriptor(0, leading, stride, width),
        descriptor(len(first), leading, stride, width),
        products,
        N // 2,
        clear,
    )
    found = unpacked(out, N, np.float32 if d_kind == "f32" else np.int32)
    assert np.array_equal(found, 2 * (a @ b.T))


@pytest.mark.parametrize("seed", range(3))
def test_transposed_operands_and_negation(seed):
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (M, 16)), rng.integers(-3, 4, (N, 16))
    # MN-major with 128 bytes of swizzle: 64 elements of M in a row, K down; N has 16 elements, 32 bytes of swizzle.
    left = swizzle(np.ascontiguousarray(a.T.astype(np.float16)).view(np.uint8), 128)
    right = swizzle(np.ascontiguousarray(b.T.astype(np.float16)).view(np.uint8), 32)
    image = np.concatenate((left, right))
    name = f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.f16.f16"
    products = f"setp.ne.u32 %p1, 0, 0;\n{name} {LIST}, %d5, %d6, %p1, -1, 1, 1, 1;"
    out = run(image, descriptor(0, 1024, 1024, 128), descriptor(len(left), 256, 256, 32), products, N // 2, seed=seed)
    assert np.array_equal(unpacked(out, N, np.float32), -(a @ b.T))


def test_a_in_registers():
    b = np.random.default_rng(2).integers(-3, 4, (N, 16))
    right = k_major(b.astype(np.float16), 32)
    # Each thread's A fragment: every element of row r is r % 4 (as f16).
    start = "\n".join(
        f"shr.u32 %r40, %r1, 2; and.b32 %r40, %r40, 3; cvt.rn.f16.u32 %h1, %r40; mov.b32 %r{50 + i}, {{%h1, %h1}};"
        for i in range(4)
    )
    name = f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.f16.f16"
    products = f"setp.ne.u32 %p1, 0, 0;\n{name} {LIST}, {{%r50, %r51, %r52, %r53}}, %d6, %p1, 1, 1, 0;"
    out = run(right, 0, descriptor(0, 16, 256, 32), products, N // 2, start)
    rows = np.repeat(np.arange(M)[:, None] % 4, 16, axis=1)
    assert np.array_equal(unpacked(out, N, np.float32), rows @ b.T)


def test_f16_accumulators_pack_two_to_a_register():
    rng = np.random.default_rng(3)
    a, b = rng.integers(-3, 4, (M, 16)), rng.integers(-3, 4, (N, 16))
    left, right = k_major(a.astype(np.float16), 128), k_major(b.astype(np.float16), 128)
    names = "{%r10, %r11, %r12, %r13}"
    products = f"setp.ne.u32 %p1, 0, 0;\nwgmma.mma_async.sync.aligned.m64n{N}k16.f16.f16.f16 {names}, %d5, %d6, %p1, 1, 1, 0, 0;"
    out = run(
        np.concatenate((left, right)), descriptor(0, 16, 1024, 128), descriptor(len(left), 16, 1024, 128), products, 4
    )
    halves = out.view(np.float16).reshape(128, 8)
    found = unpacked(halves.astype(np.float32).view(np.uint32), N, np.float32)
    assert np.array_equal(found, a @ b.T)
