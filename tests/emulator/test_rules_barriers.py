# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""Strictness about barriers, deadlock, divergence, groups of wgmma, instructions that are not known, and launches."""

import numpy as np
import pytest
from ptxlab import launch, module_text, run_kernel
from rulebook import Rule, check_broken, check_sound, init, params, wait

from epifuse.emulator.map_rules import MapRequest
from epifuse.emulator.reports import (
    BarrierError,
    DeadlockError,
    DescriptorError,
    DivergenceError,
    LaunchError,
    ProxyError,
    RaceError,
    UnknownInstructionError,
)
from epifuse.emulator.tensor_map import encode


def two():
    return [np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)]


BULK = """ld.param.u64 %d4, [p1]; @%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+1024], {expect};
@%p8 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem], [%d4], 512, [smem+1024];
"""
PAIR = "barrier.cluster.arrive; barrier.cluster.wait; "
INIT_ONLY = "@%p8 mbarrier.init.shared::cta.b64 [smem+1024], {count}; "
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [smem+1024]; "

# fmt: off
MBARRIERS = [
    Rule("one_arrival_too_many", init(1024, 64) + "@%p8 mbarrier.arrive.shared::cta.b64 _, [smem+1024], {x};" + wait("W", 1024), "65", "64",
         BarrierError, "65 arrivals", "mbarrier.arrive"),
    Rule("one_arrival_too_few", init(1024, 64) + "{x} " + ARRIVE + wait("W", 1024), "@%p8 bra W;", "", DeadlockError, "no warp can go on"),
    Rule("expects_too_many_bytes", init(1024, 1) + BULK.replace("{expect}", "{x}") + wait("W", 1024), "528", "512", DeadlockError, "no warp", arrays=two),
    Rule("expects_too_few_bytes", init(1024, 1) + BULK.replace("{expect}", "{x}") + wait("W", 1024), "496", "512", (DeadlockError, BarrierError),
         "no warp|transaction|bytes", arrays=two),
    Rule("too_many_transactions", init(1024, 1) + "@%p8 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [smem+1024], {x}; @%p8 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [smem+1024], 16;"
         "@%p8 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [smem+1024], 16;", "1048575", "1048559", BarrierError, "transaction", "mbarrier"),
    Rule("not_initialised", "{x}" + ARRIVE, "", init(1024, 64), BarrierError, "no mbarrier", "mbarrier.arrive"),
    Rule("initialised_twice", init(1024, 1) + "{x}", INIT_ONLY.format(count=1), "", BarrierError, "initialised again", "mbarrier.init"),
    Rule("initialised_without_a_barrier", INIT_ONLY.format(count=64) + "{x}" + ARRIVE, "fence.mbarrier_init.release.cluster;",
         "fence.mbarrier_init.release.cluster; bar.sync 0;", BarrierError, "not visible|no mbarrier", "mbarrier.arrive"),
    Rule("initialised_without_a_fence_in_a_cluster", INIT_ONLY.format(count=2) + "{x} barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
         "mapa.shared::cluster.u32 %r6, %r2, 0; @%p8 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+1024];" + PAIR.replace("arrive;", "arrive.release;"),
         "", "fence.mbarrier_init.release.cluster;", (BarrierError, RaceError), "not visible|end before", "", cluster=2),
    Rule("initialised_without_a_fence_for_copies", INIT_ONLY.format(count=1) + "{x} bar.sync 0;" + BULK.replace("{expect}", "512") + wait("W", 1024), "",
         "fence.mbarrier_init.release.cluster;", ProxyError, "fence.mbarrier_init", "cp.async.bulk", arrays=two),
    Rule("count_of_zero", INIT_ONLY.replace("{count}", "{x}"), "0", "1", BarrierError, "count 0", "mbarrier.init"),
    Rule("barrier_bytes_overwritten", init(1024, 1) + "bar.sync 0; @%p8 st.shared.u32 [smem+{x}], 0;", "1028", "1032", BarrierError, "mbarrier", "st.shared"),
    Rule("wrong_parity", init(1024, 64) + ARRIVE + wait("W", 1024) + ARRIVE + "{x}", wait("X", 1024, 0) + wait("Y", 1024, 0),
         wait("X", 1024, 1), DeadlockError, "no warp"),
    Rule("cta_ends_before_a_load_arrives", init(1024, 1) + BULK.replace("{expect}", "512") + "{x}", "", wait("W", 1024), RaceError,
         "ended while|end before", arrays=two),
]
NAMED = [
    Rule("count_below_the_threads_that_come", "bar.sync 1, {x};", "64", "96", (BarrierError, DeadlockError), "expects 64|no warp", threads=96),
    Rule("count_above_the_threads_that_come", "bar.sync 1, {x};", "128", "96", DeadlockError, "no warp", threads=96),
    Rule("two_ideas_of_the_count", "setp.eq.u32 %p1, %r5, 0; @%p1 bra A; bar.sync 1, {x}; bra END; A: bar.sync 1, 64; END:", "96", "64",
         (BarrierError, DeadlockError), "expects|no warp"),
    Rule("count_not_of_whole_warps", "bar.sync 1, {x};", "50", "64", BarrierError, "multiple of 32", "bar.sync"),
    Rule("a_seventeenth_barrier", "bar.sync {x}, 64;", "16", "15", BarrierError, "16", "bar.sync"),
    Rule("half_the_warps_wait", "setp.eq.u32 %p1, %r5, 0; @%p1 bra END; bar.sync {x}; END: mov.u32 %r9, 0; @%p1 bar.sync 0;", "1, 64", "0",
         DeadlockError, "no warp"),
    Rule("cluster_wait_without_arrive", "{x} barrier.cluster.wait;", "", "barrier.cluster.arrive;", (BarrierError, UnknownInstructionError),
         "arrive", "barrier.cluster.wait", cluster=2),
]
WARPS = [
    Rule("diverged_shuffle", "setp.lt.u32 %p1, %r1, {x}; @%p1 bra SKIP; shfl.sync.idx.b32 %r6, %r1, 0, 31, -1; SKIP:", "7", "0", DivergenceError, "shfl",
         "shfl", threads=32),
    Rule("diverged_ldmatrix", "st.shared.u32 [%r4], %r1; bar.warp.sync -1; mov.u32 %r6, smem; setp.lt.u32 %p1, %r1, {x}; @%p1 bra SKIP;"
         "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r6]; SKIP:", "7", "0", DivergenceError, "ldmatrix", "ldmatrix", threads=32),
    Rule("unknown_instruction", "{x}", "foo.bar.u32 %r6, %r1;", "add.u32 %r6, %r1, %r1;", UnknownInstructionError, "foo.bar.u32"),
    Rule("unknown_modifier", "{x}", "add.strange.u32 %r6, %r1, %r1;", "add.u32 %r6, %r1, %r1;", UnknownInstructionError, "strange"),
    Rule("trap", "setp.eq.u32 %p1, %r1, {x}; @%p1 trap;", "5", "500", (UnknownInstructionError, DeadlockError), "trap|stopped", "trap"),
    Rule("registers_given_back_in_odd_numbers", "setmaxnreg.dec.sync.aligned.u32 {x};", "41", "40", (UnknownInstructionError, BarrierError), "41|setmaxnreg",
         threads=128, target="90a"),
]
# fmt: on
WGMMA = """mov.u32 %r7, 0; st.shared.u32 [%r4], %r7; st.shared.u32 [%r4+512], %r7; st.shared.u32 [%r4+1024], %r7; st.shared.u32 [%r4+1536], %r7;
{fence} bar.sync 0; shr.u32 %r6, %r2, 4; cvt.u64.u32 %d4, %r6; add.u64 %d4, %d4, 0x1000080000; setp.ne.u32 %p1, 0, 0;
wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%r20, %r21, %r22, %r23}}, %d4, %d4, %p1, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned; {before} st.shared.u32 [%r4], %r1; {after}
"""
DONE = "wgmma.wait_group.sync.aligned 0;"
FENCE = "fence.proxy.async.shared::cta;"
WGMMAS = [
    Rule("operand_without_a_proxy_fence", WGMMA.format(fence="{x}", before=DONE + "bar.sync 0;", after=""), "", FENCE, ProxyError, "proxy", "wgmma.mma",
         threads=128, target="90a", shared=4096),
    Rule("operand_overwritten_before_the_wait", WGMMA.format(fence=FENCE, before="{x} bar.sync 0;", after=DONE), "", DONE, RaceError, "wgmma",
         "st.shared", threads=128, target="90a", shared=4096),
    Rule("operand_overwritten_without_a_barrier", WGMMA.format(fence=FENCE, before=DONE + "{x}", after=""), "", "bar.sync 0;", RaceError, "wgmma",
         "", threads=128, target="90a", shared=4096),
]  # fmt: skip
RULES = [*MBARRIERS, *NAMED, *WARPS, *WGMMAS]


@pytest.mark.parametrize("rule", params(RULES))
def test_broken(rule):
    check_broken(rule)


@pytest.mark.parametrize("rule", params(RULES))
def test_sound(rule):
    check_sound(rule)


def test_a_deadlock_says_where_every_warp_waits():
    body = f"""mov.u32 %r1, %tid.x; setp.eq.u32 %p8, %r1, 0;
    {init(64, 2)}
    setp.ge.u32 %p1, %r1, 32; @%p1 bra OTHER;
    {wait("W", 64)}
    bra END;
    OTHER: bar.sync 3, 64;
    END:"""
    with pytest.raises(DeadlockError) as caught:
        run_kernel(body, [], threads=64, shared=128)
    text = str(caught.value)
    assert "warp 0 of CTA (0, 0, 0)" in text
    assert "mbarrier.try_wait" in text
    assert "warp 1 of CTA (0, 0, 0)" in text
    assert "bar.sync 3, 64" in text
    assert "PTX line" in text


def test_an_unknown_instruction_has_its_line():
    body = "mov.u32 %r1, 0;\nnonsense.b32 %r1, %r2;\n"
    text = module_text(body, [])
    with pytest.raises(UnknownInstructionError, match="nonsense.b32") as caught:
        launch(text, [])
    assert text.splitlines()[caught.value.place.line - 1] == "nonsense.b32 %r1, %r2;"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"grid": 3, "cluster": 2}, "not a multiple of cluster"),
        ({"cluster": 32, "grid": 32}, "cluster"),
        ({"dynamic": 300000}, "shared memory"),
        ({"grid": 0}, "empty launch"),
        ({"chip": "80", "cluster": 2, "grid": 2}, "cluster"),
    ],
)
def test_launches_that_the_chip_refuses(change, says):
    with pytest.raises(LaunchError, match=says):
        run_kernel("mov.u32 %r1, 0;", [], target="80" if change.get("chip") == "80" else "100a", **change)


@pytest.mark.parametrize(
    ("change", "says"), [("rank", "dimensions"), ("bytes", "map"), ("place", "64 bytes|aligned"), ("target", "128")]
)
def test_tensor_maps_that_are_none(change, says):
    store = np.zeros(4096, np.float16)
    start = -store.ctypes.data % 16 // 2
    request = MapRequest(6, store.ctypes.data + 2 * start, (64, 16), (128,), (16, 8), (1, 1))
    data = encode(request)
    if change == "bytes":
        data = b"\xff" * 128
    place = "add.u64 %d2, %d2, 8;" if change == "place" else ""
    rank, at = ("3d", "{0, 0, 0}") if change == "rank" else ("2d", "{0, 0}")
    target = "smem+64" if change == "target" else "smem"
    body = f"""mov.u32 %r1, %tid.x; setp.eq.u32 %p8, %r1, 0; mov.b64 %d2, map0; cvta.param.u64 %d2, %d2; {place}
    {init(1024, 1)}
    @!%p8 bra END; mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+1024], 256;
    cp.async.bulk.tensor.{rank}.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{target}], [%d2, {at}], [smem+1024];
    {wait("W", 1024)} END:"""
    with pytest.raises((DescriptorError, Exception), match=says):
        run_kernel(body, [store], maps=[data], shared=1032)
