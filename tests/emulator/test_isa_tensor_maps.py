# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""cp.async.bulk.tensor: ranks 1 to 5, every swizzle, what lies outside, multicast, stores and reductions."""

import numpy as np
import pytest
from ptxlab import aligned, run_kernel

from epifuse.emulator.map_rules import MapRequest, check
from epifuse.emulator.tensor_map import encode

U8, U16, U32, F16, F32, BF16 = 0, 1, 2, 6, 7, 9


def tensor(shape, dtype):
    """An array, outermost dimension first, each row starting at a multiple of 16 bytes."""
    dtype = np.dtype(dtype)
    row = -(-shape[-1] * dtype.itemsize // 16) * 16 // dtype.itemsize
    count = int(np.prod(shape[:-1])) * row
    store = aligned(count * dtype.itemsize).view(dtype)
    store[:] = (np.arange(count) % 251 + 1).astype(dtype)
    return store, store.reshape(*shape[:-1], row)[..., : shape[-1]]


def map_of(view, box, code, **modes):
    """The map's bytes, after the driver's own checks; `box` outermost first."""
    request = MapRequest(
        code,
        view.ctypes.data,
        view.shape[::-1],
        view.strides[:-1][::-1],
        tuple(box[::-1]),
        (1,) * view.ndim,
        **modes,
    )
    check(request)
    return encode(request)


def boxed(view, start, box, fill=0):
    """What a load gives: the box, with `fill` where the tensor is not."""
    out = np.full(box, fill, view.dtype)
    places = [(max(s, 0), min(s + b, n)) for s, b, n in zip(start, box, view.shape, strict=True)]
    if all(low < high for low, high in places):
        inner = tuple(slice(low - s, high - s) for s, (low, high) in zip(start, places, strict=True))
        out[inner] = view[tuple(slice(low, high) for low, high in places)]
    return out


def swizzled(data, width):
    """Bytes as they lie in shared memory: 16-byte chunks exchanged within rows of 128 bytes."""
    chunks = data.reshape(-1, 16).copy()
    out = np.zeros_like(chunks)
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[width]
    for index, chunk in enumerate(chunks):
        out[index ^ (index >> 3 & mask)] = chunk
    return out.reshape(-1)


HEAD = """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; mov.u32 %r2, smem; mov.b64 %d2, map0; cvta.param.u64 %d2, %d2;
setp.eq.u32 %p8, %r1, 0; @%p8 mbarrier.init.shared::cta.b64 [smem+{at}], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [smem+{at}], 0; @!%p9 bra W;\n"
COPY_OUT = """COPY: setp.ge.u32 %p7, %r1, {size}; @%p7 bra END; add.u32 %r3, %r2, %r1; ld.shared.u8 %r4, [%r3];
cvt.u64.u32 %d3, %r1; add.u64 %d3, %d1, %d3; st.global.u8 [%d3], %r4; add.u32 %r1, %r1, 32; bra COPY; END:"""


def coordinates(start):
    return "{" + ", ".join(str(x) for x in start[::-1]) + "}"


def load(view, start, box, code, seed=0, **modes):
    """The bytes of shared memory after a load."""
    size = int(np.prod(box)) * view.itemsize
    at = -(-size // 8) * 8
    body = (
        HEAD.format(at=at)
        + f"""@!%p8 bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+{at}], {size};
    cp.async.bulk.tensor.{view.ndim}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [smem], [%d2, {coordinates(start)}], [smem+{at}];
    """
        + WAIT.format(at=at)
        + COPY_OUT.format(size=size)
    )
    out = np.zeros(size, np.uint8)
    run_kernel(
        body,
        [out, view.base if view.base is not None else view],
        shared=at + 8,
        maps=[map_of(view, box, code, **modes)],
        seed=seed,
    )
    return out


SHAPES = [
    ((100,), (64,)),
    ((13, 40), (8, 32)),
    ((3, 13, 24), (2, 4, 16)),
    ((2, 3, 7, 24), (2, 2, 3, 16)),
    ((2, 2, 3, 5, 29), (1, 2, 2, 3, 16)),
]


def on_16_bytes(start):
    """The innermost of these coordinates of halves made a multiple of 8 (16 bytes), which a copy needs."""
    return [*start[:-1], start[-1] // 8 * 8]


@pytest.mark.parametrize(("shape", "box"), SHAPES)
@pytest.mark.parametrize("where", ["inside", "before", "after", "outside"])
def test_loads_of_every_rank_fill_what_lies_outside(shape, box, where):
    _, view = tensor(shape, np.float16)
    start = {
        "inside": [(n - b) // 2 for n, b in zip(shape, box, strict=True)],
        "before": [-1] * len(shape),
        "after": [n - b + 1 for n, b in zip(shape, box, strict=True)],
        "outside": [n + 5 for n in shape],
    }[where]
    start = on_16_bytes(start)
    found = load(view, start, box, F16)
    assert np.array_equal(found.view(np.float16).reshape(box), boxed(view, start, box))


@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize(("code", "dtype"), [(U8, np.uint8), (F16, np.float16), (F32, np.float32)])
def test_every_swizzle(width, code, dtype):
    inner = (width or 64) // np.dtype(dtype).itemsize
    _, view = tensor((40, inner + 16), dtype)
    box = (32, inner)
    found = load(view, (3, 0), box, code, swizzle={0: 0, 32: 1, 64: 2, 128: 3}[width])
    plain = np.ascontiguousarray(view[3:35, :inner]).view(np.uint8).reshape(-1)
    assert np.array_equal(found, swizzled(plain, width))


def test_fill_with_nan():
    _, view = tensor((4, 16), np.float32)
    found = load(view, (2, -8), (4, 16), F32, fill_nan=1).view(np.float32).reshape(4, 16)
    expected = boxed(view, (2, -8), (4, 16), np.nan)
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mask", [0b1, 0b10, 0b11])
def test_multicast_reaches_the_ctas_of_its_mask(mask, seed):
    store, view = tensor((16, 16), np.float16)
    size = 512
    pair = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
    body = (
        HEAD.format(at=size)
        + pair
        + f"""mov.u32 %r5, %cluster_ctarank; shr.u32 %r6, {mask}, %r5; and.b32 %r6, %r6, 1;
    setp.eq.u32 %p2, %r6, 0; mul.wide.u32 %d4, %r5, {size}; add.u64 %d1, %d1, %d4;
    @%p2 bra SEND; @%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+{size}], {size};
    SEND: {pair} setp.ne.u32 %p3, %r5, 0; @%p3 bra GO; @!%p8 bra GO;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [smem], [%d2, {{0, 0}}], [smem+{size}], {mask};
    GO: @%p2 bra END;
    """
        + WAIT.format(at=size)
        + COPY_OUT.format(size=size)
        + pair
    )
    out = np.zeros((2, 256), np.float16)
    run_kernel(body, [out, store], shared=size + 8, maps=[map_of(view, (16, 16), F16)], grid=2, cluster=2, seed=seed)
    for rank in range(2):
        assert np.array_equal(out[rank], view.reshape(-1) if mask >> rank & 1 else np.zeros(256))


STORE = """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; mov.u32 %r2, smem; mov.b64 %d2, map0; cvta.param.u64 %d2, %d2;
FILL: setp.ge.u32 %p7, %r1, {size}; @%p7 bra DONE; cvt.u64.u32 %d3, %r1; add.u64 %d3, %d1, %d3; ld.global.u8 %r4, [%d3];
add.u32 %r3, %r2, %r1; st.shared.u8 [%r3], %r4; add.u32 %r1, %r1, 32; bra FILL;
DONE: fence.proxy.async.shared::cta; bar.sync 0; elect.sync _|%p1, -1; @!%p1 bra END;
{store}.{rank}d.global.shared::cta{tail} [%d2, {at}], [smem];
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"""


@pytest.mark.parametrize(("shape", "box"), SHAPES)
@pytest.mark.parametrize("offset", [0, -1, 8])
def test_stores_drop_what_lies_outside(shape, box, offset):
    store, view = tensor(shape, np.float16)
    before = view.copy()
    start = on_16_bytes([(n - b if offset > 0 else 0) + offset for n, b in zip(shape, box, strict=True)])
    data = -np.arange(np.prod(box)).astype(np.float16).reshape(box)
    body = STORE.format(
        size=data.nbytes, store="cp.async.bulk.tensor", rank=len(shape), tail=".tile.bulk_group", at=coordinates(start)
    )
    run_kernel(body, [data, store], shared=data.nbytes, maps=[map_of(view, box, F16)])
    expected = before.copy()
    for index in np.ndindex(*box):
        place = tuple(s + i for s, i in zip(start, index, strict=True))
        if all(0 <= x < n for x, n in zip(place, shape, strict=True)):
            expected[place] = data[index]
    assert np.array_equal(view, expected)


@pytest.mark.parametrize(("code", "dtype"), [(F32, np.float32), (F16, np.float16), (U32, np.uint32)])
@pytest.mark.parametrize("reduction", ["add", "min", "max"])
def test_reductions(code, dtype, reduction):
    store, view = tensor((8, 16), dtype)
    before = view.copy()
    data = (np.arange(128) % 7 + 100).astype(dtype).reshape(8, 16)
    body = STORE.format(
        size=data.nbytes, store="cp.reduce.async.bulk.tensor", rank=2, tail=f".{reduction}.tile.bulk_group", at="{0, 0}"
    )
    run_kernel(body, [data, store], shared=data.nbytes, maps=[map_of(view, (8, 16), code)])
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[reduction]
    assert np.array_equal(view, function(before, data))
