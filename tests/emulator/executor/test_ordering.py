# SPDX-License-Identifier: Apache-2.0
"""Strictness: each rule with a kernel that breaks it and one that just does not."""

import struct

import numpy as np
import pytest

from epifuse.emulator import chips, machine, memory, ptx
from epifuse.emulator.reports import (
    BarrierError,
    DeadlockError,
    DivergenceError,
    LaunchError,
    MemoryFaultError,
    RaceError,
    UninitialisedError,
    UnknownInstructionError,
)

SEEDS = [0, 1, 2, 3]
HEAD = """
    mov.b32 %r1, smem;
    mov.u32 %r2, %tid.x;
    shr.u32 %r3, %r2, 5;
    setp.eq.u32 %p1, %r3, 0;
    mad.lo.s32 %r4, %r2, 4, %r1;
"""


def out() -> list[np.ndarray]:
    return [np.zeros(256, np.uint32)]


@pytest.mark.parametrize("seed", SEEDS)
def test_unordered_write_and_read_of_two_warps(run_kernel, seed):
    body = HEAD + (
        "st.shared.b32 [%r4], %r2;\n{sync}\nxor.b32 %r5, %r2, 32;\nmad.lo.s32 %r5, %r5, 4, %r1;\n"
        "ld.shared.b32 %r6, [%r5];"
    )
    run_kernel(body.replace("{sync}", "bar.sync 0;"), out(), threads=64, shared=1024, seed=seed)
    with pytest.raises((RaceError, UninitialisedError)):
        run_kernel(body.replace("{sync}", ""), out(), threads=64, shared=1024, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_overwriting_what_another_warp_reads(run_kernel, seed):
    body = (
        HEAD
        + """
    st.shared.b32 [%r4], %r2;
    bar.sync 0;
    xor.b32 %r5, %r2, 32;
    mad.lo.s32 %r5, %r5, 4, %r1;
    ld.shared.b32 %r6, [%r5];
    {sync}
    st.shared.b32 [%r4], %r6;
    """
    )
    run_kernel(body.replace("{sync}", "bar.sync 0;"), out(), threads=64, shared=1024, seed=seed)
    with pytest.raises(RaceError, match="is not ordered after the"):
        run_kernel(body.replace("{sync}", ""), out(), threads=64, shared=1024, seed=seed)


def test_narrow_neighbours_are_no_race(run_kernel):
    body = (
        "mov.b32 %r1, smem;\nmov.u32 %r2, %tid.x;\nadd.s32 %r3, %r1, %r2;\ncvt.u16.u32 %h1, %r2;\n"
        "st.shared.b8 [%r3], %h1;"
    )
    run_kernel(body, out(), threads=128, shared=1024)


def test_reading_what_nothing_wrote(run_kernel):
    with pytest.raises(UninitialisedError, match="reads shared memory that nothing has written") as caught:
        run_kernel("mov.b32 %r1, smem;\nld.shared.b32 %r2, [%r1+16];", out(), shared=64)
    assert "ld.shared.b32 %r2, [%r1+16]" in str(caught.value)
    run_kernel("mov.b32 %r1, smem;\nst.shared.b32 [%r1+16], 0;\nld.shared.b32 %r2, [%r1+16];", out(), shared=64)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("mov.b32 %r1, smem;\nst.shared.b32 [%r1+64], 0;", "outside the CTA's 64 bytes"),
        ("mov.b32 %r1, smem;\nst.shared.b32 [%r1+-4], 0;", "outside the CTA's 64 bytes"),
        ("mov.b32 %r1, smem;\nst.shared.b64 [%r1+4], 0;", "not aligned to the access of 8 bytes"),
        ("mov.b32 %r1, smem;\nst.shared.b32 [%r1+16777216], 0;", "reaches only its own CTA"),
        ("ld.param.b64 %d1, [p0];\nld.global.b32 %r1, [%d1+2];", "not aligned to the access of 4 bytes"),
        ("ld.global.b32 %r1, [0];", "null pointer"),
    ],
)
def test_addresses_outside_or_misaligned(run_kernel, body, what):
    with pytest.raises(MemoryFaultError, match=what):
        run_kernel(body, out(), shared=64)


def test_registered_memory_has_edges():
    text = (
        ".version 9.0\n.target sm_80\n.address_size 64\n.entry k(\n.param .u64 p0\n)\n{\n"
        ".reg .b64 %d<3>;\n.reg .b32 %r<3>;\n"
    )
    text += (
        "mov.u32 %r1, %tid.x;\nmul.wide.u32 %d2, %r1, 4;\nld.param.b64 %d1, [p0];\n"
        "add.s64 %d1, %d1, %d2;\nst.global.b32 [%d1], %r1;\nret;\n}\n"
    )
    buffer, allowed = np.zeros(64, np.uint32), memory.HostMemory()
    allowed.register(buffer.ctypes.data, 128, "result")

    def launch(threads: int) -> None:
        machine.launch(
            ptx.parse(text), "k", (1, 1, 1), (threads, 1, 1), (1, 1, 1), 0, [struct.pack("<Q", buffer.ctypes.data)],
            chip=chips.chip("80"), memory=allowed,
        )  # fmt: skip

    launch(32)
    assert buffer.tolist() == list(range(32)) + [0] * 32
    with pytest.raises(MemoryFaultError, match="result is 0x"):
        launch(33)
    allowed.unregister(buffer.ctypes.data)
    with pytest.raises(MemoryFaultError):
        launch(1)


MBARRIER = (
    HEAD
    + """
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra READY;
    mbarrier.init.shared.b64 [%r1+512], {count};
READY:
    {sync}
    @!%p1 bra OTHER;
    st.shared.b32 [%r4], %r2;
    {arrive}
    bra END;
OTHER:
    {wait}
    ld.shared.b32 %r6, [%r4+-128];
END:
"""
)
ARRIVE = "mbarrier.arrive.shared.b64 _, [%r1+512];"
WAIT = "L:\nmbarrier.try_wait.parity.shared.b64 %p3, [%r1+512], 0;\n@!%p3 bra L;"


def mbarrier(count: int = 32, sync: str = "bar.sync 0;", arrive: str = ARRIVE, wait: str = WAIT) -> str:
    return MBARRIER.format(count=count, sync=sync, arrive=arrive, wait=wait)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_mbarrier_orders_what_came_before_its_arrivals(run_kernel, seed):
    run_kernel(mbarrier(), out(), threads=64, shared=1024, seed=seed)
    with pytest.raises((RaceError, UninitialisedError)):
        run_kernel(mbarrier(wait=""), out(), threads=64, shared=1024, seed=seed)
    with pytest.raises((RaceError, UninitialisedError, DeadlockError)):
        run_kernel(
            mbarrier(arrive="mbarrier.arrive.relaxed.cta.shared.b64 _, [%r1+512];"),
            out(),
            threads=64,
            shared=1024,
            seed=seed,
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_an_mbarrier_used_before_its_initialisation_is_visible(run_kernel, seed):
    with pytest.raises(BarrierError, match=r"no mbarrier is initialised|is not visible to it"):
        run_kernel(mbarrier(sync=""), out(), threads=64, shared=1024, seed=seed)


def test_too_many_arrivals(run_kernel):
    with pytest.raises(BarrierError, match="32 arrivals on an mbarrier that expects 31 more of 31"):
        run_kernel(mbarrier(count=31), out(), threads=64, shared=1024)


def test_too_few_arrivals_are_a_deadlock_that_says_who_waits_where(run_kernel):
    with pytest.raises(DeadlockError) as caught:
        run_kernel(mbarrier(count=33), out(), threads=64, shared=1024)
    text = str(caught.value)
    assert "warp 1 of CTA (0, 0, 0) is at PTX line" in text
    assert "mbarrier.try_wait.parity.shared.b64 %p3, [%r1+512], 0;" in text


def test_writing_over_an_mbarrier(run_kernel):
    with pytest.raises(BarrierError, match="hits an initialised mbarrier"):
        run_kernel(mbarrier(arrive="st.shared.b32 [%r1+512], 0;"), out(), threads=64, shared=1024)


def test_initialising_an_mbarrier_twice(run_kernel):
    body = (
        "mov.b32 %r1, smem;\nmov.u32 %r2, %tid.x;\nsetp.eq.u32 %p1, %r2, 0;\n"
        "@%p1 mbarrier.init.shared.b64 [%r1], 1;\n{between}\n"
        "@%p1 mbarrier.init.shared.b64 [%r1], 1;"
    )
    run_kernel(body.replace("{between}", "@%p1 mbarrier.inval.shared.b64 [%r1];"), out(), shared=64)
    with pytest.raises(BarrierError, match="is initialised again"):
        run_kernel(body.replace("{between}", ""), out(), shared=64)


def test_a_barrier_that_one_warp_skips(run_kernel):
    body = HEAD + "@%p1 bra END;\nbar.sync 1, 64;\nEND:\n"
    with pytest.raises(DeadlockError, match="bar.sync 1, 64"):
        run_kernel(body, out(), threads=64, shared=64)
    run_kernel(
        HEAD + "@%p1 bra OTHER;\nbar.sync 1, 64;\nbra END;\nOTHER:\nbar.arrive 1, 64;\nEND:\n",
        out(),
        threads=64,
        shared=64,
    )


def test_warp_wide_instructions_in_divergent_code(run_kernel):
    body = (
        "mov.u32 %r2, %tid.x;\nsetp.lt.u32 %p1, %r2, 16;\n@!%p1 bra END;\n"
        "shfl.sync.idx.b32 %r3, %r2, 0, 31, {mask};\nEND:\n"
    )
    run_kernel(body.replace("{mask}", "0xFFFF"), out())
    with pytest.raises(DivergenceError, match="names lanes 0xffff0000"):
        run_kernel(body.replace("{mask}", "-1"), out())


CP_ASYNC = (
    HEAD
    + """
    ld.param.b64 %d1, [p0];
    mul.wide.u32 %d2, %r2, 16;
    add.s64 %d1, %d1, %d2;
    mad.lo.s32 %r4, %r2, 16, %r1;
    cp.async.cg.shared.global [%r4], [%d1], 16{size};
    cp.async.commit_group;
    {wait}
    ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r4];
    st.global.v4.b32 [%d1], {{%r13, %r12, %r11, %r10}};
"""
)


@pytest.mark.parametrize("seed", SEEDS)
def test_cp_async_is_visible_only_when_its_group_was_waited_for(run_kernel, seed):
    data = np.arange(128, dtype=np.uint32)
    run_kernel(CP_ASYNC.format(size="", wait="cp.async.wait_group 0;"), [data], shared=1024, target="80", seed=seed)
    assert data.tolist() == np.arange(128).reshape(-1, 4)[:, ::-1].reshape(-1).tolist()
    for wait in ("", "cp.async.wait_group 1;"):
        with pytest.raises((RaceError, UninitialisedError)):
            run_kernel(CP_ASYNC.format(size="", wait=wait), [data], shared=1024, target="80", seed=seed)


def test_cp_async_fills_with_zeros(run_kernel):
    data = np.arange(1, 129, dtype=np.uint32)
    run_kernel(CP_ASYNC.format(size=", 8", wait="cp.async.wait_all;"), [data], shared=1024, target="80")
    assert data.reshape(-1, 4)[:, :2].any() == 0
    assert data.reshape(-1, 4)[0].tolist() == [0, 0, 2, 1]


CLUSTER = (
    HEAD
    + """
    mov.u32 %r5, %cluster_ctarank;
    st.shared.b32 [%r4], %r5;
    {sync}
    xor.b32 %r6, %r5, 1;
    mapa.shared::cluster.u32 %r7, %r4, %r6;
    ld.shared::cluster.b32 %r8, [%r7];
    ld.param.b64 %d1, [p0];
    mad.lo.s32 %r9, %r5, 32, %r2;
    mul.wide.u32 %d2, %r9, 4;
    add.s64 %d1, %d1, %d2;
    st.global.b32 [%d1], %r8;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
)


@pytest.mark.parametrize("seed", SEEDS)
def test_another_ctas_shared_memory_needs_a_cluster_barrier(run_kernel, seed):
    shape = {"grid": (2, 1, 1), "cluster": (2, 1, 1), "shared": 1024, "seed": seed}
    found = out()
    run_kernel(CLUSTER.replace("{sync}", "barrier.cluster.arrive;\nbarrier.cluster.wait;"), found, **shape)
    assert found[0][:64].tolist() == [1] * 32 + [0] * 32
    for sync in ("", "barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;"):
        with pytest.raises((RaceError, UninitialisedError)):
            run_kernel(CLUSTER.replace("{sync}", sync), out(), **shape)


def test_an_unknown_instruction_is_named_with_its_line(run_kernel):
    with pytest.raises(UnknownInstructionError, match="does not execute frobnicate.b32") as caught:
        run_kernel("frobnicate.b32 %r1, %r2;", out())
    assert "frobnicate.b32 %r1, %r2;" in str(caught.value)
    with pytest.raises(UnknownInstructionError, match="modifier .strange"):
        run_kernel("add.strange.s32 %r1, %r2, %r3;", out())


def test_launches_that_the_chip_refuses(run_kernel):
    with pytest.raises(LaunchError, match="threads a block"):
        run_kernel("", out(), threads=2048)
    with pytest.raises(LaunchError, match="bytes of shared memory"):
        run_kernel("", out(), shared=300000)
    with pytest.raises(LaunchError, match="cluster"):
        run_kernel("", out(), target="80", grid=(2, 1, 1), cluster=(2, 1, 1))


def test_not_strict_lets_races_pass(run_kernel):
    body = HEAD + "st.shared.b32 [%r1], %r2;"
    with pytest.raises(RaceError):
        run_kernel(body, out(), threads=64, shared=64)
    run_kernel(body, out(), threads=64, shared=64, strict=False)
