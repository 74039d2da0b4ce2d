# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""Strictness about memory: bounds, alignment, unwritten bytes, races of threads and of asynchronous copies."""

import numpy as np
import pytest
from rulebook import Rule, check_broken, check_sound, init, params, wait

from epifuse.emulator.reports import MemoryFaultError, ProxyError, RaceError, UninitialisedError


def exact():
    return [np.zeros(64, np.uint32)]


def touching():
    both = np.zeros(128, np.uint32)
    return [both[:63], both[63:]]


def bytes_and_words():
    return [np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)]


SOURCE = "ld.param.u64 %d4, [p1]; mul.wide.u32 %d5, %r1, 16; add.u64 %d5, %d4, %d5; mad.lo.u32 %r6, %r1, 16, %r2;\n"
COPY = SOURCE + "cp.async.cg.shared.global [%r6], [%d5], 16; cp.async.commit_group;\n"
SHOW = "ld.shared.u32 %r10, [%r6]; st.global.u32 [%d3], %r10;"
LOAD = (
    init(1024, 1)
    + """@!%p8 bra READ; mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+1024], 512;
ld.param.u64 %d4, [p1]; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem], [%d4], 512, [smem+1024];
READ: """
)
FILL = "mov.u32 %r7, 5; st.shared.u32 [%r4], %r7;\n"
STORE = """@!%p8 bra END; cp.async.bulk.global.shared::cta.bulk_group [%d1], [smem], 256; cp.async.bulk.commit_group;
"""

# fmt: off
BOUNDS = [
    Rule("global_store_one_too_far", "st.global.u32 [%d3+{x}], %r1;", "4", "0", MemoryFaultError, "outside every allocation",
         "st.global.u32", arrays=exact, lane=31),
    Rule("global_load_one_too_far", "ld.global.u32 %r7, [%d3+{x}];", "4", "0", MemoryFaultError, "outside", "ld.global",
         arrays=exact, lane=31),
    Rule("global_vector_half_outside", "shr.u64 %d9, %d2, 2; and.b64 %d2, %d2, 0xF0; add.u64 %d3, %d1, %d2; ld.global.v4.u32 {%r6,%r7,%r8,%r9}, [%d3+{x}];",
         "16", "0", MemoryFaultError, "outside", "ld.global.v4", arrays=exact),
    Rule("store_across_two_arrays", "@%p8 st.global.u64 [%d1+{x}], %d1;", "248", "240", MemoryFaultError, "outside", "st.global.u64",
         arrays=touching),
    Rule("atomic_one_too_far", "red.global.add.u32 [%d3+{x}], 1;", "4", "0", MemoryFaultError, "outside", "red.global",
         arrays=exact),
    Rule("copy_source_one_too_far", COPY.replace("[%d5], 16", "[%d5+{x}], 16") + "cp.async.wait_all;", "16", "0",
         MemoryFaultError, "outside", "cp.async", arrays=bytes_and_words),
    Rule("bulk_source_one_too_far", LOAD.replace("[%d4], 512", "[%d4+{x}], 512") + wait("W", 1024), "528", "512",
         MemoryFaultError, "outside", "cp.async.bulk", arrays=bytes_and_words),
    Rule("shared_store_one_too_far", "st.shared.u32 [%r4+{x}], %r1;", "1796", "1792", MemoryFaultError, "outside the CTA",
         "st.shared.u32", lane=31),
    Rule("null_pointer", "mov.u64 %d9, {x}; @%p8 ld.global.u32 %r7, [%d9];", "16", "%d1", MemoryFaultError, "outside|null",
         "ld.global"),
    Rule("another_ctas_memory", "mapa.shared::cluster.u32 %r6, %r2, {x}; @%p8 st.shared::cluster.u32 [%r6], %r1;", "1", "0",
         MemoryFaultError, "rank 1", "st.shared::cluster"),
    Rule("own_form_for_another_cta", "barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r7, %cluster_ctarank; xor.b32 %r7, %r7, 1; mapa.shared::cluster.u32 %r6, %r2, %r7;"
         "@%p8 st.{x}.u32 [%r6], 7; barrier.cluster.arrive; barrier.cluster.wait;", "shared::cta", "shared::cluster",
         MemoryFaultError, "reaches only its own", "st.shared::cta", cluster=2),
    Rule("local_store_outside", "add.u32 %r6, %r2, {x}; @%p8 st.shared.u64 [%r6], %d1;", "2044", "2040", MemoryFaultError,
         "aligned|outside", "st.shared.u64"),
]
ALIGNMENT = [
    Rule("global_misaligned", "@%p8 ld.global.u32 %r7, [%d1+{x}];", "2", "4", MemoryFaultError, "aligned", "ld.global"),
    Rule("global_lane_misaligned", "setp.eq.u32 %p1, %r1, 5; @%p1 add.u64 %d3, %d3, {x}; st.global.u32 [%d3], %r1;", "2", "0",
         MemoryFaultError, "aligned", "st.global", lane=5),
    Rule("vector_misaligned", "@%p8 st.shared.v4.u32 [smem+{x}], {%r1, %r1, %r1, %r1};", "8", "16", MemoryFaultError, "aligned",
         "st.shared.v4"),
    Rule("copy_misaligned", "@%p8 cp.async.cg.shared.global [smem+{x}], [%d1], 16; cp.async.wait_all;", "8", "16",
         MemoryFaultError, "aligned", "cp.async"),
    Rule("ldmatrix_misaligned", FILL + "bar.sync 0; setp.ne.u32 %p1, %r5, 0; @%p1 bra END; and.b32 %r6, %r1, 7; mad.lo.u32 %r6, %r6, 16, %r2;"
         "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r6+{x}]; END:", "8", "16", MemoryFaultError, "aligned", "ldmatrix"),
    Rule("bulk_size_not_of_16", LOAD.replace("[%d4], 512", "[%d4], {x}").replace("1024], 512", "1024], {x}") + wait("W", 1024),
         "520", "528", MemoryFaultError, "16", "cp.async.bulk", arrays=bytes_and_words),
]
WRITTEN = [
    Rule("shared_never_written", "{x} ld.shared.u32 %r7, [%r4];", "", "st.shared.u32 [%r4], %r1;", UninitialisedError,
         "nothing has written", "ld.shared"),
    Rule("one_word_of_a_vector", "st.shared.u32 [%r4], %r1; bar.sync 0; @%p8 ld.shared.v4.u32 {%r6,%r7,%r8,%r9}, [smem+{x}];",
         "256", "240", UninitialisedError, "nothing has written", "ld.shared.v4"),
    Rule("ldmatrix_of_unwritten_rows", "{x} bar.sync 0; setp.ne.u32 %p1, %r5, 0; @%p1 bra END; and.b32 %r6, %r1, 7; mad.lo.u32 %r6, %r6, 16, %r2;"
         "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r6]; END:", "", FILL, UninitialisedError, "nothing", "ldmatrix"),
    Rule("bulk_store_of_unwritten", "{x} fence.proxy.async.shared::cta; bar.sync 0; " + STORE + "cp.async.bulk.wait_group 0; END:",
         "", FILL, UninitialisedError, "nothing has written", "cp.async.bulk"),
]
HALF = "and.b32 %r6, %r1, 31; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r2; cvt.u16.u32 %h1, %r1;"  # the lane's word
BYTES = [
    Rule("byte_of_another_warp_read", "add.u32 %r6, %r2, %r1; st.shared.u8 [%r6], %r1; {x} xor.b32 %r7, %r1, 32; add.u32 %r7, %r7, %r2; ld.shared.u8 %r8, [%r7];",
         "", "bar.sync 0;", (RaceError, UninitialisedError), "not ordered|nothing", "ld.shared.u8"),
    Rule("halves_of_a_word_by_two_warps", HALF + "{x} add.u32 %r6, %r6, %r7; st.shared.u16 [%r6], %h1;",
         "mov.u32 %r7, 0;", "shl.b32 %r7, %r5, 1;", RaceError, "not ordered after the write by warp", "st.shared.u16"),
    Rule("half_written_while_another_warp_reads_it", HALF + "setp.eq.u32 %p1, %r5, 0; @%p1 st.shared.u32 [%r6], %r1; bar.sync 0;"
         "@%p1 ld.shared.u16 %h2, [%r6+{x}]; @!%p1 st.shared.u16 [%r6+2], %h1;", "2", "0", RaceError, "not ordered after the (read|write) by warp", ".shared.u16"
         ),
    Rule("word_written_over_anothers_byte", HALF + "setp.eq.u32 %p1, %r5, 0; @%p1 st.shared.u8 [%r6+3], %r1; {x} @!%p1 st.shared.u32 [%r6], %r1;",
         "", "bar.sync 0;", RaceError, "not ordered after the write by warp", "st.shared.u"),
    Rule("one_byte_of_a_word_never_written", HALF + "st.shared.u16 [%r4], %h1; st.shared.u8 [%r4+2], %r1; {x} ld.shared.u32 %r8, [%r4];",
         "", "st.shared.u8 [%r4+3], %r1;", UninitialisedError, "nothing has written", "ld.shared.u32"),
]
RACES = [
    Rule("read_without_a_barrier", FILL + "{x} xor.b32 %r6, %r4, 128; ld.shared.u32 %r7, [%r6];", "", "bar.sync 0;",
         (RaceError, UninitialisedError), "not ordered|nothing", "ld.shared"),
    Rule("overwrite_without_a_barrier", FILL + "bar.sync 0; xor.b32 %r6, %r4, 128; ld.shared.u32 %r7, [%r6]; {x} st.shared.u32 [%r4], %r1;",
         "", "bar.sync 0;", RaceError, "not ordered after the (read|write)", "shared"),
    Rule("two_writes_without_a_barrier", "setp.lt.u32 %p1, %r5, {x}; @%p1 st.shared.u32 [smem], %r1;", "2", "1", RaceError,
         "not ordered after the write", "st.shared"),
    Rule("barrier_of_the_wrong_number", FILL + "add.u32 %r6, %r5, 1; {x} xor.b32 %r7, %r4, 128; ld.shared.u32 %r8, [%r7];",
         "bar.sync %r6, 32;", "bar.sync 1, 64;", (RaceError, UninitialisedError), "not ordered|nothing", "ld.shared"),
    Rule("cluster_store_without_a_barrier", "mov.u32 %r6, %cluster_ctarank; st.shared.u32 [%r4], %r1; barrier.cluster.arrive; barrier.cluster.wait;"
         "xor.b32 %r6, %r6, 1; mapa.shared::cluster.u32 %r7, %r4, %r6; st.shared::cluster.u32 [%r7], %r6; {x} ld.shared.u32 %r8, [%r4];"
         "barrier.cluster.arrive; barrier.cluster.wait;", "", "barrier.cluster.arrive; barrier.cluster.wait;", RaceError, "not ordered",
         "", cluster=2),
    Rule("copy_read_before_its_wait", COPY + "{x}" + SHOW, "", "cp.async.wait_group 0;", RaceError, "cp.async", "ld.shared",
         arrays=bytes_and_words),
    Rule("copy_of_another_warp_without_a_barrier", COPY + "cp.async.wait_group 0; {x} xor.b32 %r6, %r6, 512;" + SHOW, "", "bar.sync 0;",
         (RaceError, UninitialisedError), "cp.async|nothing", "ld.shared", arrays=bytes_and_words),
    Rule("one_group_too_few_waited_for", COPY + COPY.replace("[%r6], [%d5]", "[%r6+1024], [%d5]") + "cp.async.wait_group {x};"
         + SHOW.replace("[%r6]", "[%r6+1024]"), "1", "0", RaceError, "cp.async", "ld.shared", arrays=bytes_and_words),
    Rule("overwritten_while_a_copy_writes", COPY + "{x} st.shared.u32 [%r6], %r1; cp.async.wait_all;", "", "cp.async.wait_all;",
         RaceError, "cp.async", "st.shared", arrays=bytes_and_words),
    Rule("bulk_load_read_before_its_barrier", FILL + "fence.proxy.async.shared::cta;" + LOAD + "{x} ld.shared.u32 %r10, [%r4];"
         + wait("X", 1024), "", wait("W", 1024), RaceError, "bulk", "", arrays=bytes_and_words),
    Rule("overwritten_while_a_bulk_store_reads", FILL + "fence.proxy.async.shared::cta; bar.sync 0;" + STORE + "{x} st.shared.u32 [smem+16], %r1;"
         "cp.async.bulk.wait_group 0; END:", "", "cp.async.bulk.wait_group.read 0;", RaceError, "bulk", "st.shared"),
    Rule("bulk_load_over_what_is_read", init(1024, 1) + FILL + "bar.sync 0; xor.b32 %r6, %r4, 128; ld.shared.u32 %r7, [%r6]; {x}"
         + LOAD.replace(init(1024, 1), "") + wait("W", 1024), "", "fence.proxy.async.shared::cta; bar.sync 0;", RaceError, "not ordered|proxy", "cp.async.bulk",
         arrays=bytes_and_words),
    Rule("bulk_load_over_what_is_read_without_a_proxy_fence", init(1024, 1) + FILL + "bar.sync 0; xor.b32 %r6, %r4, 128; ld.shared.u32 %r7, [%r6]; {x} bar.sync 0;"
         + LOAD.replace(init(1024, 1), "") + wait("W", 1024), "", "fence.proxy.async.shared::cta;", ProxyError, "fence", "cp.async.bulk",
         arrays=bytes_and_words),
    Rule("ended_before_a_bulk_store_has_read", FILL + "fence.proxy.async.shared::cta; bar.sync 0;" + STORE + "{x} END:", "",
         "cp.async.bulk.wait_group.read 0;", RaceError, "ended|end before", ""),
]
PEER = "mov.u32 %r6, %cluster_ctarank; setp.ne.u32 %p1, %r6, 0; xor.b32 %r6, %r6, 1; mapa.shared::cluster.u32 %r7, %r4, %r6;"
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
ENDS = [
    Rule("ended_before_the_peers_write", PEER + MEET + "@%p1 st.shared::cluster.u32 [%r7], %r1; {x}", "", MEET, RaceError,
         "CTA rank 0 may end before its shared memory is free of warp", cluster=2),
    Rule("ended_before_the_peers_read", PEER + "st.shared.u32 [%r4], %r1; " + MEET + "@%p1 ld.shared::cluster.u32 %r8, [%r7]; {x}", "", MEET, RaceError,
         "CTA rank 0 may end before its shared memory is free of warp", cluster=2),
    Rule("ended_before_the_peers_arrival", PEER + init(1024, 1) + MEET + "mapa.shared::cluster.u32 %r7, %r2, 0; @!%p8 bra E; @!%p1 bra E;"
         "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7+1024]; E: {x}", "", MEET, RaceError, "CTA rank 0 may end before its mbarrier", cluster=2),
]
PROXIES = [
    Rule("bulk_store_without_a_proxy_fence", FILL + "{x} bar.sync 0;" + STORE + "cp.async.bulk.wait_group 0; END:", "",
         "fence.proxy.async.shared::cta;", ProxyError, "proxy fence", "cp.async.bulk"),
    Rule("proxy_fence_by_the_wrong_thread", FILL + "bar.sync 0; {x} @!%p8 bra END; cp.async.bulk.global.shared::cta.bulk_group [%d1], [smem+128], 128;"
         "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:", "setp.eq.u32 %p1, %r5, 1; @%p1 fence.proxy.async.shared::cta;",
         "fence.proxy.async.shared::cta;", ProxyError, "proxy fence", "cp.async.bulk"),
]
# fmt: on
RULES = [*BOUNDS, *ALIGNMENT, *WRITTEN, *BYTES, *RACES, *ENDS, *PROXIES]


@pytest.mark.parametrize("rule", params(RULES))
def test_broken(rule):
    check_broken(rule)


@pytest.mark.parametrize("rule", params(RULES))
def test_sound(rule):
    check_sound(rule)
