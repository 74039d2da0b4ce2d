# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""Strictness about the order of accesses to global memory, within a CTA and between CTAs of a grid."""

import numpy as np
import pytest
from rulebook import Rule, check_broken, check_sound, init, params, wait

from epifuse.emulator.reports import RaceError


def rule(name, text, broken, sound, says, at="", grid=2, **more):
    return Rule(
        name,
        "mov.u32 %r9, %ctaid.x; setp.ne.u32 %p1, %r9, 0;" + text,
        broken,
        sound,
        RaceError,
        says,
        at,
        grid=grid,
        **more,
    )


def words():
    return [np.zeros(1024, np.uint32)]


WRITE = "st.global.u32 [%d3+256], %r1; bar.sync 0; "
SPIN = "SPIN: ld.relaxed.gpu.global.u32 %r6, [%d1]; setp.eq.u32 %p2, %r6, 0; @%p2 bra SPIN; "
FENCE = "fence.acq_rel.gpu; "
READ = "GO: bar.sync 0; ld.global.u32 %r7, [%d3+256]; END:"
RED = "red.relaxed.gpu.global.add.u32 [%d1], 1; "
SIGNAL = RED + "bra END; "
HANDOVER = "@%p1 bra CONSUME; " + WRITE + "@!%p8 bra END; {sign} CONSUME: @!%p8 bra GO; {see} " + READ
LAST = (
    "mul.wide.u32 %d5, %r9, 256; add.u64 %d5, %d3, %d5; st.global.u32 [%d5+256], %r1; bar.sync 0;"
    "@!%p8 bra TOLD; atom.{x}.gpu.global.add.u32 %r6, [%d1], 1; st.shared.u32 [smem], %r6; TOLD: bar.sync 0; ld.shared.u32 %r6, [smem];"
    "setp.ne.u32 %p2, %r6, 1; @%p2 bra END; ld.global.u32 %r7, [%d3+256]; ld.global.u32 %r8, [%d3+512]; END:"
)
BULK = (
    "@%p1 bra CONSUME; st.shared.u32 [%r4], %r1; fence.proxy.async.shared::cta; bar.sync 0; @!%p8 bra END;"
    "add.u64 %d6, %d1, 256; cp.async.bulk.global.shared::cta.bulk_group [%d6], [smem], 256; cp.async.bulk.commit_group;"
    "cp.async.bulk.wait_group{x} 0;" + FENCE + SIGNAL + "CONSUME: @!%p8 bra GO;" + SPIN + FENCE + READ
)
LOAD = (
    init(1024, 1) + "@%p1 bra CONSUME; @!%p8 bra END; mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+1024], 256; add.u64 %d6, %d1, 256;"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem], [%d6], 256, [smem+1024]; {x} bra END; CONSUME: @!%p8 bra GO;"
    + SPIN + FENCE + "GO: bar.sync 0; st.global.u32 [%d3+256], %r1; END:"
)  # fmt: skip

# fmt: off
RULES = [
    rule("two_ctas_write_the_same", "mul.wide.u32 %d5, %r9, {x}; add.u64 %d3, %d3, %d5; st.global.u32 [%d3], %r1;", "128", "256", "write of global memory .* after the write", "st.global"),
    rule("halves_of_one_word", "mul.wide.u32 %d5, %r9, {x}; add.u64 %d3, %d3, %d5; cvt.u16.u32 %h1, %r1; st.global.u16 [%d3], %h1;", "0", "2", "write of global memory", "st.global"),
    rule("two_warps_of_a_cta", "xor.b32 %r6, %r1, 32; mul.wide.u32 %d5, %r6, 4; add.u64 %d5, %d1, %d5; st.global.u32 [%d3], %r1; {x} ld.global.u32 %r7, [%d5];", "", "bar.sync 0;",
         "global memory by warp .* is not ordered after the .* by warp", ".global", grid=1),
    rule("signalled_without_a_release", HANDOVER.format(sign="{x}" + SIGNAL, see=SPIN + FENCE), "", FENCE, "read of global memory", "ld.global.u32", arrays=words),
    rule("seen_without_an_acquire", HANDOVER.format(sign=FENCE + SIGNAL, see=SPIN + "{x}"), "", FENCE, "read of global memory", "ld.global.u32", arrays=words),
    rule("a_fence_for_the_cta_only", HANDOVER.format(sign="{x}" + SIGNAL, see=SPIN + FENCE), "fence.acq_rel.cta;", "membar.gl;", "read of global memory", "ld.global.u32", arrays=words),
    rule("signalled_by_a_release", HANDOVER.format(sign=SIGNAL.replace("relaxed", "{x}"), see=SPIN.replace("relaxed", "acquire")), "relaxed", "release", "read of global memory",
         "ld.global.u32", arrays=words),
    rule("stored_flag", HANDOVER.format(sign="st.{x}.gpu.global.u32 [%d1], 1; bra END;", see=SPIN.replace("relaxed", "acquire")), "relaxed", "release", "read of global memory",
         "ld.global.u32", arrays=words),
    rule("the_last_cta_adds_up", LAST, "relaxed", "acq_rel", "read of global memory", "ld.global.u32", arrays=words),
    rule("overwritten_while_it_may_be_read", "@%p1 bra OTHER; ld.global.u32 %r7, [%d3]; bra END; OTHER: st.global.u32 [%d3+{x}], %r1; END:", "0", "256", "global memory", ".global.u32", arrays=words),
    rule("bulk_store_of_which_the_source_was_read_only", BULK, ".read", "", "read of global memory .* after the write by a bulk group", "ld.global.u32", arrays=words),
    rule("bulk_load_still_reading", LOAD, FENCE + RED + wait("W", 1024), wait("W", 1024) + FENCE + RED, "write of global memory", "", arrays=words),
    rule("atomic_on_what_another_cta_stores", "@%p1 bra OTHER; st.global.u32 [%d3], %r1; bra END; OTHER: red.global.add.u32 [%d3+{x}], 1; END:", "0", "256", "global memory", ".global.", arrays=words),
]
# fmt: on


@pytest.mark.parametrize("rule", params(RULES))
def test_broken(rule):
    check_broken(rule)


@pytest.mark.parametrize("rule", params(RULES))
def test_sound(rule):
    check_sound(rule)


def test_atomics_alone_are_no_race():
    text = rule("", "red.global.add.u32 [%d1], 1; {x} bar.sync 0; atom.global.max.u32 %r6, [%d1], 7;", "", "", "").run(
        "", 3
    )
    assert text is not None
