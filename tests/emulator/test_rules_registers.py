# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""Strictness about registers that an asynchronous instruction still uses; the text alone decides."""

import pytest

from epifuse.emulator import ptx
from epifuse.emulator.flow import blocks_of
from epifuse.emulator.pending import early_accesses

HEAD = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry k()
{
.reg .b32 %r<64>; .reg .b64 %d<8>; .reg .pred %p<4>;
"""
MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r0, %r1, %r2, %r3}, %d0, %d1, %p1, 1, 1, 0, 0;"
FROM_REGISTERS = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r0, %r1, %r2, %r3}, {%r4, %r5, %r6, %r7}, %d1, %p1, 1, 1, 0;"
)
COMMIT, WAIT = "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned {};".format
LOAD = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r0, %r1, %r2, %r3}, [%r9];"
DONE = "tcgen05.wait::ld.sync.aligned;"


FENCE = "wgmma.fence.sync.aligned;"


def early(body, loads_wait=True, fence=FENCE):
    body = fence + " " + body
    module = ptx.parse(HEAD + body.replace("; ", ";\n") + "\nret;\n}\n")
    return [(each.register, each.access) for each in early_accesses(blocks_of(module.entries["k"]), loads_wait)]


BROKEN = {
    "result read": (f"{MMA} {COMMIT} mov.b32 %r10, %r0; {WAIT(0)}", [("%r0", "read")]),
    "result read with a group left": (f"{MMA} {COMMIT} {WAIT(1)} mov.b32 %r10, %r3; {WAIT(0)}", [("%r3", "read")]),
    "result overwritten": (f"{MMA} {COMMIT} mov.b32 %r2, 0; {WAIT(0)}", [("%r2", "written")]),
    "never committed": (f"{MMA} {WAIT(0)} mov.b32 %r10, %r1;", [("%r1", "read")]),
    "A overwritten": (f"{FROM_REGISTERS} {COMMIT} mov.b32 %r5, 0; {WAIT(0)}", [("%r5", "written")]),
    "stored": (f"{MMA} {COMMIT} st.global.b32 [%d2], %r1; {WAIT(0)}", [("%r1", "read")]),
    "on one path": (f"@%p2 bra SKIP; {MMA} {COMMIT} SKIP: mov.b32 %r10, %r0; {WAIT(0)}", [("%r0", "read")]),
    "in the next round": (
        f"LOOP: mov.b32 %r10, %r0; {FENCE} {MMA} {COMMIT} @%p2 bra LOOP; {WAIT(0)}",
        [("%r0", "read")],
    ),
    "load read": (f"{LOAD} mov.b32 %r10, %r0; {DONE}", [("%r0", "read")]),
    "load overwritten by another": (f"{LOAD} {LOAD} {DONE}", [(f"%r{i}", "written") for i in range(4)]),
    "load read after another's wait": (f"{DONE} {LOAD} add.u32 %r10, %r2, %r3;", [("%r2", "read"), ("%r3", "read")]),
}
SOUND = {
    "waited for": f"{MMA} {COMMIT} {WAIT(0)} mov.b32 %r10, %r0;",
    "accumulated again": f"{MMA} {MMA} {COMMIT} {MMA} {COMMIT} {WAIT(1)} {WAIT(0)} mov.b32 %r10, %r0;",
    "an older group": f"{MMA} {COMMIT} {MMA.replace('%r0, %r1, %r2, %r3', '%r20, %r21, %r22, %r23')} {COMMIT} {WAIT(1)} mov.b32 %r10, %r0; {WAIT(0)}",
    "A read": f"{FROM_REGISTERS} {COMMIT} mov.b32 %r10, %r5; {WAIT(0)} mov.b32 %r5, 0;",
    "other registers": f"{MMA} {COMMIT} mov.b32 %r10, %r11; {WAIT(0)}",
    "load waited for": f"{LOAD} {DONE} mov.b32 %r10, %r0;",
    "a loop": f"LOOP: {FENCE} {MMA} {COMMIT} {WAIT(0)} mov.b32 %r10, %r0; @%p2 bra LOOP;",
    "set before a fence": f"mov.b32 %r1, 0; {FENCE} {MMA} {MMA} {COMMIT} {WAIT(0)}",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name):
    body, expected = BROKEN[name]
    assert early(body) == expected


@pytest.mark.parametrize("name", SOUND)
def test_sound(name):
    assert early(SOUND[name]) == []


def test_the_first_product_needs_a_fence():
    assert early(f"{MMA} {COMMIT} {WAIT(0)}", fence="") == [("", "unfenced")]


def test_kernels_without_a_wait_are_not_held_to_it():
    assert early(f"{LOAD} mov.b32 %r10, %r0;", loads_wait=False) == []
