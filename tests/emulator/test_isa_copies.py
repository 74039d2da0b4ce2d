# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""cp.async, mbarriers, bulk copies and the distributed shared memory of clusters."""

import numpy as np
import pytest
from ptxlab import aligned, run_kernel

SEEDS = range(4)
OWN = """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; mov.u32 %r2, smem;
mul.wide.u32 %d3, %r1, 16; add.u64 %d4, %d1, %d3; add.u64 %d5, %d2, %d3; mad.lo.u32 %r3, %r1, 16, %r2;
"""
SHOW = "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r3]; st.global.v4.u32 [%d5], {%r10, %r11, %r12, %r13};"


def numbers(rows):
    found = aligned(16 * rows).view(np.uint32)
    found[:] = np.arange(4 * rows) + 1
    return found


@pytest.mark.parametrize("size", [0, 1, 4, 7, 8, 15, 16])
def test_copies_fill_what_the_source_does_not_give(size):
    data, out = numbers(32), numbers(32)
    body = (
        OWN
        + f"""mov.u32 %r5, {size}; cp.async.cg.shared.global [%r3], [%d4], 16, %r5; cp.async.commit_group;
    cp.async.wait_group 0; {SHOW}"""
    )
    for seed in SEEDS:
        run_kernel(body, [data, out], shared=512, seed=seed)
        expected = data.view(np.uint8).reshape(32, 16).copy()
        expected[:, size:] = 0
        assert np.array_equal(out.view(np.uint8).reshape(32, 16), expected)


@pytest.mark.parametrize(
    "form",
    [
        "ca.shared.global [%r3], [%d4], 4",
        "ca.shared.global [%r3], [%d4], 8",
        "cg.shared.global.L2::128B [%r3], [%d4], 16",
    ],
)
def test_copy_sizes(form):
    data, out = numbers(32), np.zeros(32, np.uint32)
    body = (
        OWN
        + f"""cp.async.{form}; cp.async.wait_all; ld.shared.u32 %r10, [%r3];
    mul.wide.u32 %d6, %r1, 4; add.u64 %d6, %d2, %d6; st.global.u32 [%d6], %r10;"""
    )
    run_kernel(body, [data, out], shared=512)
    assert np.array_equal(out, data[::4])


def test_an_ignored_source_gives_zeros_and_is_not_touched():
    data, out = numbers(32), numbers(32)
    body = (
        OWN
        + f"""setp.ge.u32 %p1, %r1, 3; @%p1 add.u64 %d4, %d4, 1000000;
    cp.async.cg.shared.global [%r3], [%d4], 16, %p1; cp.async.wait_all; {SHOW}"""
    )
    run_kernel(body, [data, out], shared=512)
    assert np.array_equal(out[:12], data[:12])
    assert not out[12:].any()


def test_groups_complete_in_order():
    data, out = numbers(64), numbers(32)
    body = (
        OWN
        + f"""cp.async.cg.shared.global [%r3], [%d4], 16; cp.async.commit_group;
    cp.async.cg.shared.global [%r3+512], [%d4+512], 16; cp.async.commit_group; cp.async.wait_group 1; {SHOW}"""
    )
    for seed in SEEDS:
        run_kernel(body, [data, out], shared=1024, seed=seed)
        assert np.array_equal(out, data[:128])


# -- mbarriers -----------------------------------------------------------------------------------------------------

WAIT = "{name}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [{where}], {parity}; @%p9 bra {name}_END; bra {name}; {name}_END:\n"


def wait(name, where, parity):
    return WAIT.format(name=name, where=where, parity=parity)


INIT = "setp.eq.u32 %p8, %r1, 0; @%p8 mbarrier.init.shared::cta.b64 [smem+{at}], {count}; fence.mbarrier_init.release.cluster; bar.sync 0;\n"


def test_phases_alternate():
    body = OWN + INIT.format(at=1024, count=64)
    body += "shl.b32 %r4, %r1, 2; add.u32 %r4, %r2, %r4;\n"
    for turn in range(4):
        body += f"""add.u32 %r6, %r1, {100 * turn}; st.shared.u32 [%r4], %r6;
        mbarrier.arrive.shared::cta.b64 _, [smem+1024];\n""" + wait(f"W{turn}", "smem+1024", turn & 1)
        body += """xor.b32 %r7, %r1, 32; shl.b32 %r7, %r7, 2; add.u32 %r7, %r2, %r7; ld.shared.u32 %r8, [%r7];
        add.u32 %r9, %r9, %r8; bar.sync 0;\n"""
    body = body.replace(OWN, OWN + "mov.u32 %r9, 0;\n")
    body += "mul.wide.u32 %d6, %r1, 4; add.u64 %d6, %d2, %d6; st.global.u32 [%d6], %r9;"
    for seed in SEEDS:
        out = np.zeros(64, np.uint32)
        run_kernel(body, [out, out], threads=64, shared=1032, seed=seed)
        assert np.array_equal(out, 4 * (np.arange(64) ^ 32) + 600)


def test_a_phase_token_and_test_wait():
    body = (
        OWN
        + INIT.format(at=1024, count=1)
        + """@!%p8 bra OTHER; mbarrier.arrive.shared::cta.b64 %d9, [smem+1024];
    mbarrier.test_wait.shared::cta.b64 %p1, [smem+1024], %d9; selp.u32 %r5, 1, 0, %p1; st.global.u32 [%d2], %r5; OTHER:"""
    )
    out = np.zeros(1, np.uint32)
    run_kernel(body, [out, out], shared=1032)
    assert out[0] == 1


BULK = (
    INIT.format(at=1024, count=1)
    + """@!%p8 bra READ;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+1024], 1024;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem], [%d1], 512, [smem+1024];
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem+512], [%d1+512], 512, [smem+1024];
READ:
"""
)


def test_bulk_loads_complete_a_phase():
    for seed in SEEDS:
        data, out = numbers(64), numbers(64)
        run_kernel(OWN + BULK + wait("W", "smem+1024", 0) + SHOW, [data, out], threads=64, shared=1032, seed=seed)
        assert np.array_equal(out, data)


@pytest.mark.parametrize(
    "reduction", ["", "add.u32", "min.s32", "max.u32", "or.b32", "add.f32", "add.noftz.f16", "add.noftz.bf16"]
)
def test_bulk_stores_and_reductions(reduction):
    name = "cp.async.bulk" if not reduction else "cp.reduce.async.bulk"
    tail = f".{reduction}" if reduction else ""
    body = (
        OWN
        + f"""ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d4]; st.shared.v4.u32 [%r3], {{%r10, %r11, %r12, %r13}};
    fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    {name}.global.shared::cta.bulk_group{tail} [%d2], [smem], 512; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END:"""
    )
    types = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
    kind = types.get(reduction.split(".")[-1], np.uint32)
    data, out = numbers(32), numbers(32)
    if reduction.endswith("bf16"):
        data.view(np.uint16)[:], out.view(np.uint16)[:] = 0x3F80, 0x4000
    elif kind is not np.uint32:
        data.view(kind)[:], out.view(kind)[:] = np.arange(512 // kind().itemsize) % 50 - 20, 3
    before = out.copy()
    run_kernel(body, [data, out], shared=512)
    old, new = before.view(kind), data.view(kind)
    functions = {
        "": lambda: new,
        "add": lambda: old + new,
        "min": lambda: np.minimum(old, new),
        "or": lambda: old | new,
    }
    functions["max"] = lambda: np.maximum(old, new)
    expected = functions[reduction.split(".")[0]]()
    if reduction.endswith("bf16"):
        assert (out.view(np.uint16) == 0x4040).all()
    else:
        assert np.array_equal(out.view(kind), expected)


# -- clusters ------------------------------------------------------------------------------------------------------

PAIR = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"


def test_a_cluster_shares_its_memory():
    body = (
        """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; ld.param.u64 %d1, [p0]; mov.u32 %r4, %cluster_ctarank;
    mov.u32 %r5, %cluster_nctarank; mad.lo.u32 %r6, %r4, 1000, %r1; shl.b32 %r7, %r1, 2; add.u32 %r8, %r2, %r7;
    st.shared.u32 [%r8], %r6;"""
        + PAIR
        + """add.u32 %r9, %r4, 1; rem.u32 %r9, %r9, %r5; mapa.shared::cluster.u32 %r10, %r8, %r9;
    ld.shared::cluster.u32 %r11, [%r10];"""
        + PAIR
        + """mov.u32 %r12, %ctaid.x; mad.lo.u32 %r12, %r12, 32, %r1;
    mul.wide.u32 %d2, %r12, 4; add.u64 %d2, %d1, %d2; st.global.u32 [%d2], %r11;"""
    )
    for seed in SEEDS:
        out = np.zeros(4 * 32 * 2, np.uint32)
        run_kernel(body, [out], shared=128, grid=8, cluster=4, seed=seed)
        expected = np.concatenate([(rank + 1) % 4 * 1000 + np.arange(32) for rank in range(4)])
        assert np.array_equal(out, np.tile(expected, 2))


def test_arrivals_from_another_cta_complete_a_barrier():
    body = (
        """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; mov.u32 %r4, %cluster_ctarank; mov.u32 %r2, smem;
    setp.eq.u32 %p8, %r1, 0; @%p8 mbarrier.init.shared::cta.b64 [smem+64], 32; fence.mbarrier_init.release.cluster;
    """
        + PAIR
        + """setp.eq.u32 %p1, %r4, 0; @%p1 bra WAIT;
    mapa.shared::cluster.u32 %r5, %r2, 0; shl.b32 %r6, %r1, 2; st.shared::cluster.u32 [%r5], 77;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5+64]; bra DONE;
    WAIT:"""
        + wait("W", "smem+64", 0).replace("try_wait.parity", "try_wait.parity.acquire.cluster")
        + """ld.shared.u32 %r7, [smem];
    @%p8 st.global.u32 [%d1], %r7;
    DONE:"""
        + PAIR
    )
    for seed in SEEDS:
        out = np.zeros(1, np.uint32)
        run_kernel(body, [out], shared=72, grid=2, cluster=2, seed=seed)
        assert out[0] == 77


def test_a_bulk_copy_between_ctas_signals_the_target():
    body = (
        """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; mov.u32 %r4, %cluster_ctarank; mov.u32 %r2, smem;
    setp.eq.u32 %p8, %r1, 0; @%p8 mbarrier.init.shared::cta.b64 [smem+256], 1; fence.mbarrier_init.release.cluster;
    shl.b32 %r6, %r1, 2; add.u32 %r7, %r2, %r6; add.u32 %r8, %r1, 500; setp.eq.u32 %p1, %r4, 0;
    @!%p1 st.shared.u32 [%r7+128], %r8; fence.proxy.async.shared::cta; """
        + PAIR
        + """@%p1 bra WAIT; @!%p8 bra DONE;
    mapa.shared::cluster.u32 %r9, %r2, 0; add.u32 %r10, %r9, 256;
    cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r9], [smem+128], 128, [%r10]; bra DONE;
    WAIT: @%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+256], 128;
    """
        + wait("W", "smem+256", 0)
        + """ld.shared.u32 %r11, [%r7]; mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %d1, %d2;
    st.global.u32 [%d2], %r11;
    DONE:"""
        + PAIR
    )
    for seed in SEEDS:
        out = np.zeros(32, np.uint32)
        run_kernel(body, [out], shared=264, grid=2, cluster=2, seed=seed)
        assert np.array_equal(out, np.arange(500, 532))
