# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""Strictness about tensor memory: allocation, leaks, unwritten cells, quarters, and order against MMAs."""

import pytest
from rulebook import Rule, check_broken, check_sound, init, params, wait

from epifuse.emulator.reports import (
    BarrierError,
    DeadlockError,
    DescriptorError,
    DivergenceError,
    ProxyError,
    RaceError,
    TensorMemoryError,
    UninitialisedError,
)

ALLOC = """setp.ne.u32 %p1, %r5, 0; @%p1 bra GIVEN; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem+1280], {columns}; {relinquish}
GIVEN: tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync; ld.shared.u32 %r10, [smem+1280];
and.b32 %r11, %r5, 3; shl.b32 %r11, %r11, 21; add.u32 %r11, %r10, %r11;
"""
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
FREE = "tcgen05.fence::before_thread_sync; bar.sync 0; @%p1 bra END; {dealloc} END: "
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, {columns}; "
WRITE = "tcgen05.st.sync.aligned.32x32b.x4.b32 [%r11], {%r1, %r1, %r1, %r1}; tcgen05.wait::st.sync.aligned; "
READ = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r12, %r13, %r14, %r15}, [%r11]; tcgen05.wait::ld.sync.aligned; "
GET = ALLOC.format(columns=32, relinquish=RELINQUISH)
PUT = FREE.format(dealloc=DEALLOC.format(columns=32))

# A one-MMA kernel: operands of zeros, 128 x 8 by K 16, no swizzle; the result is read by all four warps.
ZEROS = """mov.u32 %r6, 0; mov.u32 %r7, %r4; mov.u32 %r8, 0; Z: st.shared.u32 [%r7+2048], %r6; add.u32 %r7, %r7, 512; add.u32 %r8, %r8, 1;
setp.lt.u32 %p2, %r8, 9; @%p2 bra Z; {fence}
"""
FENCE = "fence.proxy.async.shared::cta;"
MMA = (
    init(1024, 1)
    + """and.b32 %r9, %r2, 0x3FFFF; add.u32 %r9, %r9, 2048; shr.u32 %r9, %r9, 4; cvt.u64.u32 %d4, %r9;
add.u64 %d4, %d4, 0x0000401000080000; setp.ne.u32 %p3, 0, 0; @!%p8 bra WAIT;
tcgen05.mma.cta_group::1.kind::f16 [%r10], %d4, %d4, {idesc}, %p3; {commit} WAIT: """
)
IDESC = 1 << 4 | (16 >> 3) << 17 | (128 >> 4) << 24
COMMIT = "add.u32 %r13, %r2, 1024; tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r13];"
MMA_NOW = MMA.format(idesc=IDESC, commit=COMMIT)
BEFORE, AFTER = "tcgen05.fence::before_thread_sync; ", "tcgen05.fence::after_thread_sync; "
DONE = wait("W", 1024) + AFTER
ST = WRITE[: WRITE.index(";") + 2]
LD = READ[: READ.index(";") + 2]


def rule(name, text, broken, sound, error, says, at=""):
    return Rule(name, text, broken, sound, error, says, at, threads=128, shared=8192)


def pair(columns):
    return ALLOC.format(columns=columns, relinquish=RELINQUISH) + FREE.format(dealloc=DEALLOC.format(columns=columns))


# fmt: off
RULES = [
    rule("not_allocated", GET + "add.u32 %r11, %r11, {x};" + WRITE + PUT, "32", "28", TensorMemoryError, "not allocated", "tcgen05.st"),
    rule("allocation_of_48_columns", "{x}", pair(48), pair(64), TensorMemoryError, "power of two", "tcgen05.alloc"),
    rule("allocation_of_16_columns", "{x}", pair(16), pair(32), TensorMemoryError, "power of two", "tcgen05.alloc"),
    rule("leaked", GET + "{x}", "", PUT, TensorMemoryError, "ended with tensor memory allocated"),
    rule("freed_twice", GET + FREE.format(dealloc=DEALLOC.format(columns=32) + "{x}"), DEALLOC.format(columns=32), "", TensorMemoryError, "dealloc", "dealloc"),
    rule("freed_in_part", GET + FREE.format(dealloc=DEALLOC.format(columns="{x}")), "64", "32", TensorMemoryError, "dealloc of 64", "dealloc"),
    rule("permit_kept", ALLOC.format(columns=32, relinquish="{x}") + PUT, "", RELINQUISH, TensorMemoryError, "relinquish"),
    rule("allocated_after_relinquishing", ALLOC.format(columns=32, relinquish="{x}" + RELINQUISH) + PUT,
         RELINQUISH + "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem+1284], 32;", "", TensorMemoryError, "after", "alloc"),
    rule("more_than_there_is", GET.replace(RELINQUISH, "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem+1284], {x}; ld.shared.u32 %r16, [smem+1284];"
         "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r16, {x};" + RELINQUISH) + PUT, "512", "256", (TensorMemoryError, DeadlockError), "waits forever|no warp"),
    rule("cells_never_written", GET + "{x}" + READ + PUT, "", WRITE, UninitialisedError, "nothing has written", "tcgen05.ld"),
    rule("another_warps_quarter", GET + "{x}" + WRITE + PUT, "add.u32 %r6, %r5, 1; and.b32 %r6, %r6, 3; shl.b32 %r6, %r6, 21; add.u32 %r11, %r10, %r6;", "",
         DescriptorError, "reaches lanes", "tcgen05.st"),
    rule("freed_before_all_have_read", GET + WRITE + READ + "{x} @%p1 bra END;" + DEALLOC.format(columns=32) + "END: ", "", "tcgen05.fence::before_thread_sync; bar.sync 0;",
         (RaceError, TensorMemoryError), "not ordered|not allocated"),
    rule("issued_by_every_lane", GET + ZEROS.format(fence=FENCE) + MMA_NOW.replace("@!%p8 bra WAIT;", "{x}") + DONE + READ + PUT,
         "@%p1 bra WAIT;", "@!%p8 bra WAIT;", (DivergenceError, BarrierError), "lanes|arrivals", "tcgen05"),
    rule("operands_without_a_proxy_fence", GET + ZEROS.format(fence="{x}") + MMA_NOW + DONE + READ + PUT, "", FENCE, ProxyError, "proxy", "tcgen05.mma"),
    rule("result_read_before_the_commit_arrives", GET + WRITE + ZEROS.format(fence=FENCE) + BEFORE + "bar.sync 0;" + AFTER + MMA_NOW + "{x}" + READ + wait("X", 1024) + PUT, "",
         DONE, RaceError, "not ordered", "tcgen05"),
    rule("operand_overwritten_before_the_commit_arrives", GET + ZEROS.format(fence=FENCE) + MMA_NOW + "{x} st.shared.u32 [%r4+2048], %r1;" + wait("X", 1024) + AFTER + READ + PUT, "",
         wait("W", 1024), RaceError, "tcgen05.mma"),
    rule("never_committed", GET + ZEROS.format(fence=FENCE) + MMA.format(idesc=IDESC, commit="{x}") + DONE + READ + PUT, "", COMMIT, DeadlockError, "no warp"),
    rule("illegal_instruction_descriptor", GET + ZEROS.format(fence=FENCE) + MMA.format(idesc="{x}", commit=COMMIT) + DONE + READ + PUT, str(IDESC | 3 << 7),
         str(IDESC), DescriptorError, "instruction descriptor", "tcgen05.mma"),
    rule("overwritten_by_the_next_mma", GET + ZEROS.format(fence=FENCE) + MMA_NOW + wait("W", 1024) + "tcgen05.fence::after_thread_sync;" + READ
         + "tcgen05.fence::before_thread_sync; {x} @!%p8 bra Y; tcgen05.fence::after_thread_sync;"
         "tcgen05.mma.cta_group::1.kind::f16 [%r10], %d4, %d4, " + str(IDESC) + ", %p3; " + COMMIT + "Y: " + wait("X", 1024, 1) + PUT, "", "bar.sync 0;",
         RaceError, "not ordered after the read", ""),
    rule("read_without_a_fence_after_the_wait", GET + ZEROS.format(fence=FENCE) + MMA_NOW + wait("W", 1024) + "{x}" + READ + PUT, "", AFTER,
         RaceError, "after_thread_sync is missing", "tcgen05.ld"),
    rule("issued_without_a_fence_after_the_barrier", GET + WRITE + BEFORE + "bar.sync 0; {x}" + ZEROS.format(fence=FENCE) + MMA_NOW + DONE + READ + PUT, "", AFTER,
         RaceError, "after_thread_sync is missing|not ordered after the write", "tcgen05.mma"),
    rule("read_without_a_fence_before_the_barrier", GET + ZEROS.format(fence=FENCE) + MMA_NOW + DONE + READ + "{x} bar.sync 0; @!%p8 bra Y; " + AFTER
         + "tcgen05.mma.cta_group::1.kind::f16 [%r10], %d4, %d4, " + str(IDESC) + ", %p3; " + COMMIT + "Y: " + wait("X", 1024, 1) + PUT, "", BEFORE,
         RaceError, "not ordered after the read by tcgen05.ld", "tcgen05.mma"),
    rule("a_load_that_no_wait_completes", GET + ZEROS.format(fence=FENCE) + MMA_NOW + DONE + LD + "{x}" + BEFORE + "bar.sync 0; @!%p8 bra Y; " + AFTER
         + "tcgen05.mma.cta_group::1.kind::f16 [%r10], %d4, %d4, " + str(IDESC) + ", %p3; " + COMMIT + "Y: " + wait("X", 1024, 1) + AFTER + READ + PUT, "",
         "tcgen05.wait::ld.sync.aligned;", RaceError, "not ordered after the read by tcgen05.ld|is in flight"),
    rule("a_store_that_no_wait_completes", GET + ST + "{x}" + READ + PUT, "", "tcgen05.wait::st.sync.aligned;", RaceError, "not ordered after the write by tcgen05.st", "tcgen05.ld"),
]
# fmt: on


@pytest.mark.parametrize("rule", params(RULES))
def test_broken(rule):
    check_broken(rule)


@pytest.mark.parametrize("rule", params(RULES))
def test_sound(rule):
    check_sound(rule)
