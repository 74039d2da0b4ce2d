# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""st.async to the shared memory of another CTA: what arrives, in which order, and what is reported."""

import numpy as np
import pytest
from ptxlab import aligned, run_kernel
from rulebook import OWN, Rule, check_broken, check_sound, init, params, wait

from epifuse.emulator.reports import BarrierError, MemoryFaultError, ProxyError, RaceError, UnknownInstructionError

FORM = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
PLACES = """mov.u32 %r6, %cluster_ctarank; setp.ne.u32 %p1, %r6, 0; mapa.shared::cluster.u32 %r7, %r2, 0;
"""
"""%p1 in ranks other than 0, %r7 where rank 0's memory begins."""
EXPECT = "@%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+1536], {bytes};"


def run(text, arrays, threads=64, seed=0, target="90a", cluster=2):
    body = (OWN + text).replace(";", ";\n")
    run_kernel(body, arrays, threads=threads, shared=2048, target=target, grid=cluster, cluster=cluster, seed=seed)


FORMS = [
    (f"{letter}{bits}", count) for bits in (32, 64) for letter in "busf" for count in (1, 2, 4) if bits * count <= 128
]


@pytest.mark.parametrize(("kind", "count"), FORMS)
def test_every_lane_stores_its_registers(kind, count):
    bits, size = kind[1:], int(kind[1:]) // 8 * count
    names = ", ".join(f"{'%r' if bits == '32' else '%d'}{10 + i}" for i in range(count))
    operand, vector = (f"{{{names}}}", f".v{count}") if count > 1 else (names, "")
    text = f"""{PLACES} ld.param.u64 %d4, [p1]; mul.wide.u32 %d2, %r1, {size}; add.u64 %d3, %d1, %d2; add.u64 %d4, %d4, %d2;
    {init(1536, 1)} {MEET} mad.lo.u32 %r8, %r1, {size}, %r7; mad.lo.u32 %r9, %r1, {size}, %r2; @!%p1 bra RECEIVE;
    ld.global{vector}.b{bits} {operand}, [%d3]; {FORM}{vector}.{kind} [%r8+16], {operand}, [%r7+1536]; bra END;
    RECEIVE: {EXPECT.format(bytes=64 * size)} {wait("W", 1536)} ld.shared{vector}.b{bits} {operand}, [%r9+16];
    st.global{vector}.b{bits} [%d4], {operand}; END: {MEET}"""
    data = aligned(64 * size)
    data[:] = np.random.default_rng(size).integers(0, 256, data.size)
    for seed in range(4):
        out = aligned(64 * size)
        run(text, [data, out], seed=seed)
        assert np.array_equal(out, data)


def test_inactive_lanes_store_and_count_nothing():
    text = f"""{PLACES} {init(1536, 1)} {MEET} add.u32 %r9, %r7, %r3; setp.lt.u32 %p2, %r1, 5; st.shared.u32 [%r4], 7; {MEET} @!%p1 bra RECEIVE;
    @%p2 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9], %r1, [%r7+1536]; bra END;
    RECEIVE: {EXPECT.format(bytes=20)} {wait("W", 1536)} ld.shared.u32 %r10, [%r4]; st.global.u32 [%d3], %r10; END: {MEET}"""
    out = np.zeros(64, np.uint32)
    run(text, [out])
    assert out.tolist() == [*range(5), *[7] * 59]


def test_each_lane_chooses_its_cta_and_barrier():
    text = f"""{PLACES} {init(1536, 1)} {init(1544, 1)} {MEET} and.b32 %r8, %r1, 1; mapa.shared::cluster.u32 %r7, %r2, %r8; add.u32 %r9, %r7, %r3;
    and.b32 %r11, %r1, 2; mad.lo.u32 %r11, %r11, 4, %r7; mad.lo.u32 %r12, %r6, 128, %r9; mad.lo.u32 %r13, %r6, 100, %r1;
    {FORM}.b32 [%r12], %r13, [%r11+1536]; {EXPECT.format(bytes=64)} {EXPECT.format(bytes=64).replace("1536", "1544")} {wait("V", 1536)} {wait("W", 1544)}
    setp.ne.u32 %p3, %r8, %r6; @%p3 bra END; mul.wide.u32 %d4, %r6, 256; add.u64 %d3, %d3, %d4;
    ld.shared.u32 %r10, [%r4]; st.global.u32 [%d3], %r10; ld.shared.u32 %r10, [%r4+128]; st.global.u32 [%d3+128], %r10; END: {MEET}"""
    for seed in range(4):
        out = np.zeros((2, 2, 32), np.uint32)
        run(text, [out], threads=32, seed=seed)
        for cta in range(2):  # has the words of lanes of its parity, of either rank
            assert out[cta, :, cta::2].tolist() == [
                [100 * rank + lane for lane in range(cta, 32, 2)] for rank in (0, 1)
            ]


def test_stores_complete_in_any_order():
    text = f"""{PLACES} {init(1536, 1)} {init(1544, 1)} {MEET} @!%p1 bra RECEIVE; @!%p8 bra END;
    {FORM}.b32 [%r7], 5, [%r7+1536]; {FORM}.b32 [%r7+4], 6, [%r7+1544]; bra END;
    RECEIVE: {EXPECT.format(bytes=4)} {EXPECT.format(bytes=4).replace("1536", "1544")}
    {wait("W", 1544)} mbarrier.test_wait.parity.shared::cta.b64 %p2, [smem+1536], 0; selp.u32 %r8, 1, 0, %p2; st.global.u32 [%d3], %r8;
    {wait("V", 1536)} END: {MEET}"""
    found = set()
    for seed in range(8):
        out = np.zeros(32, np.uint32)
        run(text, [out], threads=32, seed=seed)
        found.add(int(out[0]))
    assert found == {0, 1}  # whether the first had come when the second had


LAB = (
    PLACES
    + f"""mad.lo.u32 %r8, %r1, 16, %r7; mad.lo.u32 %r9, %r1, 16, %r2; st.shared.v4.u32 [%r9], {{%r1, %r1, %r1, %r1}};
{init(1536, 1)} {MEET} @!%p1 bra RECEIVE;
"""
)
STORE = f"{FORM}.v4.b32 [%r8], {{%r1, %r1, %r1, %r1}}, [%r7+1536];"
RECEIVE = f"bra END; RECEIVE: {EXPECT.format(bytes=1024)} "
HALVES = RECEIVE.replace("1024", "512") + EXPECT.format(bytes=512).replace("1536", "1544")
READ = "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r9];"
WHOLE = LAB + STORE + RECEIVE + wait("W", 1536) + READ + "END: " + MEET
BULK = """@!%p8 bra END; cp.async.bulk.global.shared::cta.bulk_group [%d1], [smem], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
"""

# fmt: off
RULES = [
    Rule("read_before_the_wait", LAB + STORE + RECEIVE + "{x}" + READ + wait("X", 1536) + "END: " + MEET, "", wait("W", 1536), RaceError, "st.async",
         cluster=2),
    Rule("overwritten_before_the_wait", LAB + STORE + RECEIVE + "{x} st.shared.u32 [%r9], %r1; " + wait("X", 1536) + "END: " + MEET, "", wait("W", 1536),
         RaceError, "st.async", cluster=2),
    Rule("another_store_in_flight", LAB + STORE + STORE.replace("[%r8]", "[%r8+{x}]") + RECEIVE + wait("W", 1536) + READ + "END: " + MEET,
         "0", "512", RaceError, "not ordered after the write by st.async", "st.async", threads=32, cluster=2),
    Rule("sent_while_the_last_is_read", LAB + STORE + "{x}" + STORE + RECEIVE + wait("W", 1536) + READ + EXPECT.format(bytes=1024) + MEET
         + wait("X", 1536, 1) + READ + "END: " + MEET, "", MEET, (RaceError, BarrierError), "st.async", cluster=2),
    Rule("barrier_of_another_cta", "mapa.shared::cluster.u32 %r14, %r2, {x};" + WHOLE.replace("[%r7+1536]", "[%r14+1536]"), "1", "0", MemoryFaultError,
         "signals a barrier of another", "st.async", lane=0, cluster=2),
    Rule("no_barrier_there", WHOLE.replace("[%r7+1536]", "[%r7+{x}]"), "1544", "1536", BarrierError, "no mbarrier", "st.async", cluster=2),
    Rule("one_lane_misaligned", LAB + "setp.eq.u32 %p2, %r1, 5; @%p2 add.u32 %r8, %r8, {x}; " + STORE + RECEIVE + wait("W", 1536) + "END: " + MEET, "8", "0", MemoryFaultError, "not aligned to the access of 16", "st.async", lane=5, cluster=2),
    Rule("one_lane_outside", init(1544, 1) + LAB + "setp.eq.u32 %p2, %r1, 5; @%p2 add.u32 %r8, %r8, {x}; and.b32 %r15, %r1, 1; mad.lo.u32 %r15, %r15, 8, %r7;"
         + STORE.replace("[%r7+1536]", "[%r15+1536]") + HALVES + wait("V", 1544) + wait("W", 1536) + "END: " + MEET, "4096", "0", MemoryFaultError,
         "outside the CTA", "st.async", lane=5, cluster=2),
    Rule("over_a_barrier", WHOLE.replace("[%r8]", "[%r8+{x}]"), "768", "0", BarrierError, "hits an initialised mbarrier", "st.async", cluster=2),
    Rule("of_a_rank_that_does_not_exist", "mapa.shared::cluster.u32 %r14, %r2, {x}; mad.lo.u32 %r15, %r1, 16, %r14; "
         + WHOLE.replace("[%r8]", "[%r15]").replace("[%r7+1536]", "[%r14+1536]"), "2", "0", MemoryFaultError, "rank 2", "st.async", cluster=2),
    Rule("copied_out_without_a_proxy_fence", LAB + STORE + RECEIVE + wait("W", 1536) + "{x}" + BULK + "END: " + MEET, "", "fence.proxy.async.shared::cta;",
         ProxyError, "written by st.async", "cp.async.bulk", cluster=2),
    Rule("ended_before_it_arrived", LAB + STORE + RECEIVE + "{x} END:", "", wait("W", 1536), RaceError, "ended while|may end before", cluster=2),
]
# fmt: on


@pytest.mark.parametrize("rule", params(RULES))
def test_broken(rule):
    check_broken(rule)


@pytest.mark.parametrize("rule", params(RULES))
def test_sound(rule):
    check_sound(rule)


def test_a_cluster_of_one_cta_is_reported():
    text = f"{init(1536, 1)} {FORM}.b32 [%r4], %r1, [%r2+1536];"
    with pytest.raises(MemoryFaultError, match="cluster of one CTA"):
        run(text, [np.zeros(64, np.uint32)], cluster=1)


@pytest.mark.parametrize(
    "line",
    [
        FORM.replace(".weak", ".cluster") + ".b32 [%r4], %r1, [%r2]",
        FORM.replace(".weak", ".relaxed") + ".b32 [%r4], %r1, [%r2]",
        FORM.replace("shared::cluster", "shared::cta") + ".b32 [%r4], %r1, [%r2]",
        "st.async.weak.mbarrier::complete_tx::bytes.b32 [%d1], %r1, [%d2]",
        "st.async.weak.shared::cluster.b32 [%r4], %r1, [%r2]",
        "st.async.release.gpu.global.b32 [%d1], %r1",
        f"{FORM}.b16 [%r4], %h1, [%r2]",
        f"{FORM}.v4.b64 [%r4], {{%d1, %d1, %d1, %d1}}, [%r2]",
        f"{FORM}.v8.b32 [%r4], {{%r1, %r1, %r1, %r1, %r1, %r1, %r1, %r1}}, [%r2]",
        f"{FORM}.v2.b32 [%r4], {{%r1, %r1, %r1, %r1}}, [%r2]",
        f"{FORM}.b32 [%r4], %r1",
    ],
)
def test_other_forms_are_named(line):
    with pytest.raises(UnknownInstructionError, match=line.split(" ", maxsplit=1)[0]):
        run(f"{line};", [np.zeros(64, np.uint32)])
