# SPDX-License-Identifier: Apache-2.0
"""Bulk and tensor copies: ranks, swizzles, bounds, multicast, reductions, and what waits for them."""

import numpy as np
import pytest

from epifuse.emulator import tensor_map
from epifuse.emulator.map_rules import MapRequest
from epifuse.emulator.reports import BarrierError, DescriptorError, MemoryFaultError, ProxyError, RaceError

F32, U8, F16 = 7, 0, 6
RNG = np.random.default_rng(5)


def map_of(array: np.ndarray, box: tuple[int, ...], data_type: int = F32, swizzle: int = 0, **more: int) -> np.ndarray:
    """A tensor map of a C-contiguous array, in memory aligned as the hardware wants it; box outermost first."""
    sizes, strides = array.shape[::-1], array.strides[::-1]
    ones = (1,) * array.ndim
    request = MapRequest(
        data_type, array.ctypes.data, sizes, strides[1:], box[::-1], more.pop("steps", ones), 0, swizzle, 0, **more
    )
    store = np.zeros(128 + 64, np.uint8)
    start = -store.ctypes.data % 64
    store[start : start + 128] = np.frombuffer(tensor_map.encode(request), np.uint8)
    return store[start : start + 128]


INIT = """
    mov.b32 %r1, smem;
    mov.u32 %r2, %tid.x;
    ld.param.b64 %d1, [p0];
    ld.param.b64 %d2, [p1];
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
"""
WAIT = """
LOOP:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0;
    @!%p2 bra LOOP;
"""

LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


def load_kernel(rank: int, coordinates: tuple[int, ...], size: int, wait: str = WAIT) -> str:
    """Load one box to smem + 1024, wait, and write it to the second parameter as it stands in shared memory."""
    listed = ", ".join(str(c) for c in coordinates)
    return f"""{INIT}
    @%p1 bra LOADED;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {size};
    {LOAD.format(rank=rank)} [%r1+1024], [%d1, {{{listed}}}], [%r1];
LOADED:
    {wait}
    mov.b32 %r3, 0;
COPY:
    mad.lo.s32 %r4, %r2, 4, %r3;
    add.s32 %r5, %r4, %r1;
    setp.lt.u32 %p3, %r4, {size};
    @%p3 ld.shared.b32 %r6, [%r5+1024];
    cvt.u64.u32 %d3, %r4;
    add.s64 %d3, %d3, %d2;
    @%p3 st.global.b32 [%d3], %r6;
    add.s32 %r3, %r3, 128;
    setp.lt.u32 %p4, %r3, {size};
    @%p4 bra COPY;
    """


def swizzled(box: np.ndarray, width: int) -> np.ndarray:
    """The rows of 16 bytes of a box, moved as the ISA's figures say."""
    rows = box.reshape(-1).view(np.uint64).reshape(-1, 2)
    out = np.zeros_like(rows)
    for index in range(len(rows)):
        address = 16 * index
        if width:
            address ^= (address >> 7 & (width // 16 - 1)) << 4
        out[address // 16] = rows[index]
    return out


@pytest.mark.parametrize(("swizzle", "width"), [(0, 0), (1, 32), (2, 64), (3, 128)])
def test_swizzles(run_kernel, swizzle, width):
    tensor = RNG.integers(0, 1 << 30, (32, 64), dtype=np.uint32)
    box = (16, (width or 128) // 4)
    out = np.zeros(box[0] * box[1], np.uint32)
    run_kernel(load_kernel(2, (8, 4), out.nbytes), [map_of(tensor, box, swizzle=swizzle), out], shared=16384)
    wanted = swizzled(np.ascontiguousarray(tensor[4 : 4 + box[0], 8 : 8 + box[1]]), width)
    assert out.tolist() == wanted.view(np.uint32).reshape(-1).tolist()


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shift", [0, 3, -2])
def test_ranks_and_what_lies_outside_is_zero(run_kernel, rank, shift):
    shape, box = (3, 4, 5, 6, 12)[-rank:], (2, 2, 2, 2, 8)[-rank:]
    tensor = RNG.integers(1, 1 << 30, shape, dtype=np.uint32)
    out = np.full(box, 9, np.uint32)
    run_kernel(
        load_kernel(rank, (4 * shift, *(shift,) * (rank - 1)), out.nbytes), [map_of(tensor, box), out], shared=16384
    )
    padded = np.pad(tensor, 16)
    starts = [16 + shift] * (rank - 1) + [16 + 4 * shift]
    wanted = padded[tuple(slice(start, start + size) for start, size in zip(starts, box, strict=True))]
    assert out.tolist() == wanted.tolist()


def test_nan_fill_and_element_strides(run_kernel):
    tensor = RNG.normal(size=(4, 16)).astype(np.float32)
    out = np.zeros((2, 8), np.float32)
    run_kernel(load_kernel(2, (12, 3), out.nbytes), [map_of(tensor, (2, 8), fill_nan=1), out], shared=16384)
    assert out[0, :4].tolist() == tensor[3, 12:].tolist()
    assert np.isnan(out[0, 4:]).all()
    assert np.isnan(out[1]).all()


STORE = """
    mov.b32 %r1, smem;
    mov.u32 %r2, %tid.x;
    ld.param.b64 %d1, [p0];
    ld.param.b64 %d2, [p1];
    mul.wide.u32 %d3, %r2, 16;
    add.s64 %d3, %d3, %d2;
    ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%d3];
    mad.lo.s32 %r3, %r2, 16, %r1;
    st.shared.v4.b32 [%r3], {%r10, %r11, %r12, %r13};
"""


def store_kernel(
    fence: str = "fence.proxy.async.shared::cta;",
    barrier: str = "bar.sync 0;",
    wait: str = "cp.async.bulk.wait_group.read 0;",
    after: str = "",
    form: str = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
    at: str = "-4, 6",
) -> str:
    return f"""{STORE}
    {fence}
    {barrier}
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra DONE;
    {form} [%d1, {{{at}}}], [%r1];
    cp.async.bulk.commit_group;
    {wait}
    {after}
DONE:
    """


def test_a_store_drops_what_lies_outside(run_kernel):
    data = RNG.integers(1, 1 << 30, (8, 16), dtype=np.uint32)
    tensor = np.zeros((10, 20), np.uint32)
    run_kernel(store_kernel(), [map_of(tensor, (8, 16)), data], shared=1024)
    wanted = np.zeros_like(tensor)
    wanted[6:, :12] = data[:4, 4:]
    assert tensor.tolist() == wanted.tolist()


def test_a_reduction_adds_to_what_is_there(run_kernel):
    data = RNG.normal(size=(8, 16)).astype(np.float32)
    tensor = np.ones((8, 16), np.float32)
    form = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
    run_kernel(store_kernel(form=form, at="0, 0"), [map_of(tensor, (8, 16)), data], shared=1024)
    assert tensor.tolist() == (data + np.float32(1)).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_store_without_proxy_fence_is_reported(run_kernel, seed):
    arrays = [map_of(np.zeros((8, 16), np.uint32), (8, 16)), np.zeros((8, 16), np.uint32)]
    with pytest.raises(ProxyError, match="without a proxy fence between"):
        run_kernel(store_kernel(fence=""), arrays, shared=1024, seed=seed)


def test_a_fence_after_the_barrier_serves_too(run_kernel):
    data = RNG.integers(1, 1 << 30, (8, 16), dtype=np.uint32)
    tensor = np.zeros((8, 16), np.uint32)
    kernel = store_kernel(fence="", barrier="bar.sync 0;\nfence.proxy.async.shared::cta;", at="0, 0")
    run_kernel(kernel, [map_of(tensor, (8, 16)), data], shared=1024)
    assert tensor.tolist() == data.tolist()


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_overwriting_the_source_of_a_store_is_reported(run_kernel, seed):
    arrays = [map_of(np.zeros((8, 16), np.uint32), (8, 16)), np.zeros((8, 16), np.uint32)]
    overwrite = "st.shared.b32 [%r1], %r2;"
    run_kernel(store_kernel(after=overwrite, at="0, 0"), arrays, shared=1024, seed=seed)
    with pytest.raises(RaceError, match="write of shared memory by warp 0"):
        run_kernel(store_kernel(wait="", after=overwrite, at="0, 0"), arrays, shared=1024, seed=seed)


def test_ending_before_a_store_has_read_its_source_is_reported(run_kernel):
    arrays = [map_of(np.zeros((8, 16), np.uint32), (8, 16)), np.zeros((8, 16), np.uint32)]
    with pytest.raises(RaceError, match="ended while shared memory was in use"):
        run_kernel(store_kernel(wait="", at="0, 0"), arrays, shared=1024)


@pytest.mark.parametrize("seed", range(6))
def test_reading_before_a_load_has_come_is_reported(run_kernel, seed):
    tensor, out = np.ones((8, 16), np.uint32), np.zeros((8, 16), np.uint32)
    with pytest.raises(RaceError, match="read of shared memory by warp 0"):
        run_kernel(load_kernel(2, (0, 0), out.nbytes, wait=""), [map_of(tensor, (8, 16)), out], shared=16384, seed=seed)


def test_a_wrong_transaction_count_never_completes(run_kernel):
    tensor, out = np.ones((8, 16), np.uint32), np.zeros((8, 16), np.uint32)
    kernel = load_kernel(2, (0, 0), out.nbytes).replace(
        "expect_tx.shared.b64 _, [%r1], 512", "expect_tx.shared.b64 _, [%r1], 640"
    )
    with pytest.raises(Exception, match="no warp can go on") as caught:
        run_kernel(kernel, [map_of(tensor, (8, 16)), out], shared=16384)
    assert "try_wait" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (("[%r1+1024], [%d1", "[%r1+1040], [%d1"), DescriptorError, "not a multiple of 128"),
        (("[%r1+1024], [%d1", "[%r1+65536], [%d1"), MemoryFaultError, "outside the CTA's"),
        (("}], [%r1];", "}], [%r1+8];"), BarrierError, "no mbarrier is initialised at shared offset 0x408"),
        ((".2d.", ".3d."), Exception, "coordinates"),
    ],
)
def test_a_wrong_load_is_named(run_kernel, change, error, what):
    tensor, out = np.ones((8, 16), np.uint32), np.zeros((8, 16), np.uint32)
    kernel = load_kernel(2, (0, 0), out.nbytes).replace(*change)
    with pytest.raises(error, match=what):
        run_kernel(kernel, [map_of(tensor, (8, 16)), out], shared=16384)


def test_plain_copies_there_and_back(run_kernel):
    source, target = RNG.integers(0, 1 << 30, 64, dtype=np.uint32), np.zeros(64, np.uint32)
    body = f"""{INIT}
    @%p1 bra DONE;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%d1], 256, [%r1];
    {WAIT}
    cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r1+128], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
    """
    run_kernel(body, [source, target], shared=1024)
    assert target.tolist() == source.tolist()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_multicast_load_fills_and_signals_every_cta(run_kernel, seed):
    tensor, out = RNG.integers(0, 1 << 30, (8, 16), dtype=np.uint32), np.zeros((2, 128), np.uint32)
    body = f"""{INIT}
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r20, %cluster_ctarank;
    @%p1 bra LOADED;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 512;
    setp.ne.u32 %p5, %r20, 0;
    @%p5 bra LOADED;
    mov.b16 %h1, 3;
    {LOAD.format(rank=2)}.multicast::cluster [%r1+1024], [%d1, {{0, 0}}], [%r1], %h1;
LOADED:
    {WAIT}
    mad.lo.s32 %r4, %r2, 16, %r1;
    ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r4+1024];
    mad.lo.s32 %r5, %r20, 32, %r2;
    mul.wide.u32 %d3, %r5, 16;
    add.s64 %d3, %d3, %d2;
    st.global.v4.b32 [%d3], {{%r10, %r11, %r12, %r13}};
    barrier.cluster.arrive;
    barrier.cluster.wait;
    """
    run_kernel(body, [map_of(tensor, (8, 16)), out], shared=4096, grid=(2, 1, 1), cluster=(2, 1, 1), seed=seed)
    assert out.tolist() == [tensor.reshape(-1).tolist()] * 2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_load_over_what_threads_read_needs_a_proxy_fence(run_kernel, seed):
    tensor, out = np.ones((8, 16), np.uint32), np.zeros((8, 16), np.uint32)
    touch = "st.shared.b32 [%r1+1024], 0;\nld.shared.b32 %r6, [%r1+1024];\n{fence}\nmbarrier.arrive.expect_tx"
    kernel = load_kernel(2, (0, 0), out.nbytes).replace("mbarrier.arrive.expect_tx", touch)
    arrays = [map_of(tensor, (8, 16)), out]
    run_kernel(kernel.replace("{fence}", "fence.proxy.async.shared::cta;"), arrays, shared=16384, seed=seed)
    assert (out == 1).all()
    with pytest.raises(ProxyError, match="writes shared memory"):
        run_kernel(kernel.replace("{fence}", ""), arrays, shared=16384, seed=seed)
