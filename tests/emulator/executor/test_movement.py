# SPDX-License-Identifier: Apache-2.0
"""Moving data between registers, lanes and memories, and lanes that go different ways."""

import numpy as np
import pytest

LANES = np.arange(32, dtype=np.uint32)
RNG = np.random.default_rng(3)
A = RNG.integers(0, 1 << 32, 32, dtype=np.uint32)
B = RNG.integers(0, 1 << 32, 32, dtype=np.uint32)


def test_vectors_pack_and_unpack(run_lanes):
    code = (
        "mov.b64 %o0, {%i0, %i1};\nmov.b64 {%r1, %o1}, %o0;\nmov.b32 {%h1, %h2}, %i0;\n"
        "mov.b32 %o2, {%h2, %h1};\nmov.b64 {%o3, _}, %o0;"
    )
    whole, high, swapped, low = run_lanes(code, [A, B], ["b64", "b32", "b32", "b32"])
    assert whole.tolist() == [int(y) << 32 | int(x) for x, y in zip(A, B, strict=True)]
    assert high.tolist() == B.tolist()
    assert low.tolist() == A.tolist()
    assert swapped.tolist() == ((A >> 16) | (A << 16)).tolist()


def test_prmt_picks_bytes_and_copies_signs(run_lanes):
    picked, signs = run_lanes(
        "prmt.b32 %o0, %i0, %i1, 0x5410U;\nprmt.b32 %o1, %i0, %i1, 0x8A70U;", [A, B], ["b32", "b32"]
    )
    assert picked.tolist() == ((B << 16) | (A & 0xFFFF)).tolist()
    sign0, sign2 = (np.where(A >> (8 * n) & 0x80, 0xFF, 0) for n in (0, 2))
    wanted = (sign0 << 24) | (sign2 << 16) | (B >> 24 << 8) | (A & 0xFF)
    assert signs.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("mode", "lane", "clamp", "source"),
    [
        ("idx", 5, 31, lambda i: 5),
        ("up", 1, 0, lambda i: i - 1 if i >= 1 else i),
        ("down", 2, 31, lambda i: i + 2 if i + 2 < 32 else i),
        ("bfly", 16, 31, lambda i: i ^ 16),
        ("idx", 9, 0x181F, lambda i: i & 24 | 1),
        ("down", 3, 0x181F, lambda i: i + 3 if (i & 7) + 3 < 8 else i),
        ("bfly", 1, 0x1E1F, lambda i: i ^ 1),
    ],
)
def test_shuffles(run_lanes, mode, lane, clamp, source):
    code = f"shfl.sync.{mode}.b32 %o0|%p1, %i0, {lane}, {clamp}, -1;\nselp.b32 %o1, 1, 0, %p1;"
    found, valid = run_lanes(code, [A], ["b32", "b32"])
    assert found.tolist() == [A[source(i)] for i in range(32)]
    assert valid.tolist() == [int(source(i) != i or mode == "idx") for i in range(32)]


def test_votes_elections_and_reductions(run_lanes):
    code = (
        "setp.lt.u32 %p1, %i0, 16;\nvote.sync.ballot.b32 %o0, %p1, -1;\n"
        "vote.sync.any.pred %p2, %p1, -1;\nvote.sync.all.pred %p3, %p1, -1;\n"
    )
    code += (
        "selp.b32 %o1, 1, 0, %p2;\nselp.b32 %o2, 1, 0, %p3;\nelect.sync %r1|%p4, -1;\n"
        "selp.b32 %o3, 1, 0, %p4;\nredux.sync.add.u32 %o4, %i0, -1;\nactivemask.b32 %o5;"
    )
    ballot, some, every, chosen, total, active = run_lanes(code, [LANES], ["b32"] * 6)
    assert set(ballot.tolist()) == {0xFFFF}
    assert (set(some.tolist()), set(every.tolist())) == ({1}, {0})
    assert chosen.sum() == 1
    assert set(total.tolist()) == {496}
    assert set(active.tolist()) == {0xFFFFFFFF}


def test_the_elected_lane_follows_the_seed_and_stays_the_same(run_lanes):
    code = "elect.sync %o0|%p1, -1;\nelect.sync %o1|%p1, -1;"
    leaders = set()
    for seed in range(8):
        first, second = run_lanes(code, [], ["b32", "b32"], seed=seed)
        assert set(first.tolist()) == set(second.tolist())
        leaders.add(int(first[0]))
    assert len(leaders) > 1


def test_divergent_lanes_meet_again(run_lanes):
    code = """
    mov.b32 %r1, 1000;
    setp.lt.u32 %p1, %i0, 10;
    @%p1 bra LOW;
    setp.lt.u32 %p2, %i0, 20;
    @%p2 bra MIDDLE;
    add.s32 %r1, %i0, 300;
    bra MEET;
MIDDLE:
    add.s32 %r1, %i0, 200;
    bra MEET;
LOW:
    add.s32 %r1, %i0, 100;
MEET:
    shfl.sync.idx.b32 %o1, %r1, 12, 31, -1;
    mov.b32 %o0, %r1;
    """
    found, met = run_lanes(code, [LANES], ["b32", "b32"])
    assert found.tolist() == [i + (100 if i < 10 else 200 if i < 20 else 300) for i in range(32)]
    assert set(met.tolist()) == {212}


def test_lanes_leave_a_loop_one_by_one(run_lanes):
    code = """
    mov.b32 %r1, 0;
    mov.b32 %r2, 0;
LOOP:
    add.s32 %r2, %r2, %r1;
    mov.b32 %r3, %r2;
    add.s32 %r1, %r1, 1;
    setp.le.u32 %p1, %r1, %i0;
    @%p1 bra LOOP;
    mov.b32 %o0, %r3;
    """
    (found,) = run_lanes(code, [LANES], ["b32"])
    assert found.tolist() == [i * (i + 1) // 2 for i in range(32)]


def test_a_guard_changes_only_its_lanes(run_lanes):
    code = "setp.lt.u32 %p1, %i0, 7;\nmov.b32 %o0, 5;\n@%p1 mov.b32 %o0, 9;\n@!%p1 add.s32 %o0, %o0, %i0;"
    (found,) = run_lanes(code, [LANES], ["b32"])
    assert found.tolist() == [9 if i < 7 else 5 + i for i in range(32)]


def test_exited_lanes_do_not_come_back(run_kernel):
    out = np.zeros(32, np.uint32)
    body = """
    ld.param.b64 %d1, [p0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d1, %d1, %d2;
    setp.lt.u32 %p1, %r1, 5;
    @%p1 ret;
    st.global.b32 [%d1], %r1;
    """
    run_kernel(body, [out])
    assert out.tolist() == [0] * 5 + list(range(5, 32))


@pytest.mark.parametrize(
    ("vector", "kind", "count"),
    [
        ("", "b32", 1),
        (".v2", "b32", 2),
        (".v4", "b32", 4),
        (".v2", "b64", 2),
        (".v4", "b8", 4),
        ("", "s8", 1),
        (".v2", "b16", 2),
    ],
)
def test_shared_memory_in_vector_forms(run_lanes, vector, kind, count):
    size = int(kind[1:]) // 8
    names = [("%h" if size < 4 else "%d" if size == 8 else "%r") + str(20 + i) for i in range(count)]
    braces = "{" + ", ".join(names) + "}" if count > 1 else names[0]
    step = size * count
    code = f"mov.u32 %r1, %laneid;\nmad.lo.s32 %r2, %r1, {step}, smem;\n"
    code = f"mov.b32 %r3, smem;\nmov.u32 %r1, %laneid;\nmul.lo.s32 %r2, %r1, {step};\nadd.s32 %r2, %r2, %r3;\n"
    for index, name in enumerate(names):
        code += (
            f"add.s32 %r4, %r1, {200 + index};\n"
            + {
                1: f"cvt.u16.u32 {name}, %r4;\n",
                2: f"cvt.u16.u32 {name}, %r4;\n",
                4: f"mov.b32 {name}, %r4;\n",
                8: f"cvt.u64.u32 {name}, %r4;\n",
            }[size]
        )
    store_kind = kind.replace("s8", "b8")
    code += f"st.shared{vector}.{store_kind} [%r2], {braces};\n"
    code += "".join(f"mov.b{max(16, 8 * size)} {name}, 0;\n" for name in names)
    code += f"ld.shared{vector}.{kind} {braces}, [%r2];\n"
    widen = {1: "cvt.u32.u16", 2: "cvt.u32.u16", 4: "mov.b32", 8: "cvt.u32.u64"}[size]
    code += f"{widen} %o0, {names[-1]};"
    (found,) = run_lanes(code, [], ["b32"])
    values = (LANES + 199 + count).astype(np.uint32)
    if kind == "s8":
        values = values.astype(np.uint8).view(np.int8).astype(np.int16).view(np.uint16).astype(np.uint32)
    assert (
        found.tolist()
        == (
            values & np.uint32((1 << min(32, 8 * max(size, 2))) - 1) if size > 1 or kind == "s8" else values & 0xFF
        ).tolist()
    )


def test_generic_addresses_reach_shared_and_global_memory(run_lanes):
    code = """
    mov.b64 %d1, smem;
    cvta.shared.u64 %d2, %d1;
    mov.u32 %r1, %laneid;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d2, %d2, %d3;
    st.b32 [%d2], %i0;
    ld.b32 %o0, [%d2];
    isspacep.shared %p1, %d2;
    selp.b32 %o1, 1, 0, %p1;
    cvta.to.shared.u64 %d4, %d2;
    cvt.u32.u64 %r2, %d4;
    ld.shared.b32 %o2, [%r2];
    """
    first, inside, second = run_lanes(code, [A], ["b32"] * 3)
    assert first.tolist() == second.tolist() == A.tolist()
    assert set(inside.tolist()) == {1}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("add.u32", 528), ("max.u32", 32), ("min.s32", 0), ("or.b32", 63), ("exch.b32", 32), ("inc.u32", 32)],
)
def test_atomics_on_global_memory(run_kernel, name, wanted):
    cell, olds = np.zeros(1, np.uint32), np.zeros(32, np.uint32)
    operand = "100" if name.startswith("inc") else "%r2"
    body = f"""
    ld.param.b64 %d1, [p0];
    ld.param.b64 %d2, [p1];
    mov.u32 %r1, %tid.x;
    add.s32 %r2, %r1, 1;
    atom.global.{name} %r3, [%d1], {operand};
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d2, %d2, %d3;
    st.global.b32 [%d2], %r3;
    """
    run_kernel(body, [cell, olds])
    assert cell[0] == wanted
    assert olds[0] == 0


def test_floating_reductions_and_compare_and_swap(run_kernel):
    total, pair, slot = np.zeros(1, np.float32), np.zeros(2, np.float16), np.zeros(1, np.uint32)
    body = """
    ld.param.b64 %d1, [p0];
    ld.param.b64 %d2, [p1];
    ld.param.b64 %d3, [p2];
    red.global.add.f32 [%d1], 0f3F000000;
    red.global.add.noftz.f16x2 [%d2], 0x40003C00;
    mov.u32 %r1, %tid.x;
    add.s32 %r1, %r1, 7;
    atom.global.cas.b32 %r2, [%d3], 0, %r1;
    """
    run_kernel(body, [total, pair, slot])
    assert total[0] == 16.0
    assert pair.tolist() == [32.0, 64.0]
    assert slot[0] == 7


def test_local_memory_is_each_threads_own(run_lanes):
    code = """
    .local .align 8 .b8 depot[64];
    mov.b64 %d1, depot;
    cvta.local.u64 %d2, %d1;
    st.local.b32 [%d1+8], %i0;
    and.b32 %r1, %i0, 7;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d4, %d1, %d3;
    st.local.b32 [%d4+16], %r1;
    ld.b32 %o0, [%d2+8];
    ld.local.b32 %o1, [%d4+16];
    """
    own, indexed = run_lanes(code, [A], ["b32", "b32"])
    assert own.tolist() == A.tolist()
    assert indexed.tolist() == (A & 7).tolist()


def test_variables_of_the_module_keep_their_values(run_module):
    text = """
.const .align 4 .b32 table[4] = {10, 20, 30, 40};
.global .align 4 .b32 counter;
.visible .entry k(.param .u64 p0)
{
    .reg .b64 %d<8>;
    .reg .b32 %r<8>;
    mov.b64 %d1, table;
    mov.u32 %r1, %tid.x;
    and.b32 %r1, %r1, 3;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d1, %d1, %d2;
    ld.const.b32 %r2, [%d1];
    mov.b64 %d3, counter;
    red.global.add.u32 [%d3], 1;
    ld.global.b32 %r3, [%d3];
    add.s32 %r2, %r2, %r3;
    ld.param.b64 %d4, [p0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d4, %d4, %d2;
    st.global.b32 [%d4], %r2;
    ret;
}
"""
    out = np.zeros(32, np.uint32)
    launch = run_module(text)
    launch([out])
    assert out[:4].tolist() == [42, 52, 62, 72]
    launch([out])
    assert out[:4].tolist() == [74, 84, 94, 104]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_cta_may_spin_on_what_a_later_one_writes(run_kernel, seed):
    flag, out = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    body = """
    ld.param.b64 %d1, [p0];
    ld.param.b64 %d2, [p1];
    mov.u32 %r1, %ctaid.x;
    setp.eq.u32 %p1, %r1, 1;
    @%p1 bra WRITE;
SPIN:
    ld.acquire.gpu.global.b32 %r2, [%d1];
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra SPIN;
    st.global.b32 [%d2], %r2;
    bra END;
WRITE:
    st.release.gpu.global.b32 [%d1], 5;
END:
    """
    run_kernel(body, [flag, out], grid=(2, 1, 1), seed=seed)
    assert out[0] == 5
