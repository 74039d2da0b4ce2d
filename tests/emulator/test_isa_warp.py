# SPDX-License-Identifier: Apache-2.0
"""Instructions of a whole warp, divergence and reconvergence, and barriers of a CTA."""

import numpy as np
import pytest
from ptxlab import run_kernel, run_warp

from epifuse.emulator.reports import DivergenceError

LANES = np.arange(32, dtype=np.uint32)
DATA = np.random.default_rng(0).integers(0, 1 << 32, 32, np.uint32)


def shuffled(mode, value, lane, clamp):
    """The ISA's pseudo code of shfl."""
    out, valid = np.empty(32, np.uint32), np.empty(32, np.uint32)
    segment, bound = clamp >> 8 & 31, clamp & 31
    for own in range(32):
        b = int(lane[own]) & 31
        high, low = (own & segment) | (bound & ~segment & 31), own & segment
        source, ok = {
            "up": (own - b, own - b >= high),
            "down": (own + b, own + b <= high),
            "bfly": (own ^ b, (own ^ b) <= high),
            "idx": (low | (b & ~segment & 31), (low | (b & ~segment & 31)) <= high),
        }[mode]
        out[own], valid[own] = value[source if ok else own], ok
    return out, valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8, 4])
@pytest.mark.parametrize("lane", [0, 1, 3, 8, 17, "own"])
def test_shuffle(mode, width, lane):
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    lanes = (LANES * 7 + 3) % 32 if lane == "own" else np.full(32, lane, np.uint32)
    code = f"shfl.sync.{mode}.b32 %o0|%p1, %i0, %i1, {clamp}, -1;\nselp.u32 %o1, 1, 0, %p1;"
    found, valid = run_warp(code, [DATA, lanes.astype(np.uint32)], ["b32", "b32"])
    expected, expected_valid = shuffled(mode, DATA, lanes, clamp)
    assert np.array_equal(found, expected)
    assert np.array_equal(valid, expected_valid)


def test_shuffle_by_a_constant_lane_gives_every_lane_the_same():
    (found,) = run_warp("shfl.sync.idx.b32 %o0, %i0, 5, 31, -1;\nadd.u32 %o0, %o0, 1;", [DATA], ["b32"])
    assert np.array_equal(found, np.full(32, DATA[5] + np.uint32(1)))


@pytest.mark.parametrize("threshold", [0, 1, 7, 31, 32])
def test_votes(threshold):
    code = f"""setp.lt.u32 %p1, %i0, {threshold};
    vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, %p1, -1; vote.sync.uni.pred %p4, %p1, -1;
    vote.sync.ballot.b32 %o0, %p1, -1;
    selp.u32 %r1, 1, 0, %p2; selp.u32 %r2, 2, 0, %p3; selp.u32 %r3, 4, 0, %p4;
    or.b32 %r1, %r1, %r2; or.b32 %o1, %r1, %r3;"""
    ballot, flags = run_warp(code, [LANES], ["b32", "b32"])
    assert (ballot == (1 << threshold) - 1).all()
    expected = (threshold == 32) | (threshold > 0) << 1 | (threshold in (0, 32)) << 2
    assert (flags == expected).all()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add.u32", lambda x: x.sum(dtype=np.uint32)),
        ("add.s32", lambda x: x.sum(dtype=np.uint32)),
        ("min.u32", np.min),
        ("max.u32", np.max),
        ("min.s32", lambda x: x.view(np.int32).min().astype(np.uint32)),
        ("max.s32", lambda x: x.view(np.int32).max().astype(np.uint32)),
        ("and.b32", np.bitwise_and.reduce),
        ("or.b32", np.bitwise_or.reduce),
        ("xor.b32", np.bitwise_xor.reduce),
    ],
)
def test_warp_reductions(name, function):
    data = DATA | np.uint32(0x10)
    (found,) = run_warp(f"redux.sync.{name} %o0, %i0, -1;", [data], ["b32"])
    assert (found == function(data)).all()


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("flags", ["", ".abs", ".NaN", ".abs.NaN"])
def test_float_warp_reductions(name, flags):
    data = np.random.default_rng(1).standard_normal(32).astype(np.float32)
    data[3] = np.nan
    (found,) = run_warp(f"redux.sync.{name}{flags}.f32 %o0, %i0, -1;", [data], ["b32"])
    values = np.abs(data) if ".abs" in flags else data
    expected = np.nan if ".NaN" in flags else getattr(np, f"nan{name}")(values)
    assert np.array_equal(found.view(np.float32), np.full(32, expected, np.float32), equal_nan=True)


def test_match_finds_equal_lanes():
    data = (LANES // 3) % 5
    code = """match.any.sync.b32 %o0, %i0, -1; match.all.sync.b32 %o1|%p1, %i0, -1; selp.u32 %o2, 1, 0, %p1;
    mov.u32 %r1, 7; match.all.sync.b32 %o3, %r1, -1;"""
    sets, none, same, everyone = run_warp(code, [data], ["b32"] * 4)
    expected = [sum(1 << j for j in range(32) if data[j] == data[i]) for i in range(32)]
    assert sets.tolist() == expected
    assert not none.any()
    assert not same.any()
    assert (everyone == 0xFFFFFFFF).all()


@pytest.mark.parametrize("seed", range(6))
def test_elect_picks_one_lane(seed):
    code = "elect.sync %r1|%p1, -1;\nselp.u32 %o0, 1, 0, %p1;\nmov.u32 %o1, %r1;"
    elected, lane = run_warp(code, [LANES], ["b32", "b32"], seed=seed)
    assert elected.sum() == 1
    assert (lane == np.flatnonzero(elected)[0]).all()


def test_nested_branches_reconverge():
    code = """mov.u32 %o0, 0; setp.lt.u32 %p1, %i0, 20; activemask.b32 %o2;
    @!%p1 bra ELSE;
      setp.lt.u32 %p2, %i0, 5; @%p2 bra INNER;
        add.u32 %o0, %o0, 100; bra MEET;
      INNER: add.u32 %o0, %o0, 1000; activemask.b32 %o2;
      MEET: add.u32 %o0, %o0, 1; bra DONE;
    ELSE: add.u32 %o0, %o0, 7;
    DONE: vote.sync.ballot.b32 %o1, %p1, -1;"""
    for seed in range(4):
        total, ballot, mask = run_warp(code, [LANES], ["b32"] * 3, seed=seed)
        assert total.tolist() == [1001] * 5 + [101] * 15 + [7] * 12
        assert (ballot == (1 << 20) - 1).all()
        assert (mask[:5] == 31).all()
        assert (mask[5:] == 0xFFFFFFFF).all()


def test_loops_of_different_lengths():
    code = """mov.u32 %o0, 0; mov.u32 %r1, 0;
    LOOP: setp.ge.u32 %p1, %r1, %i0; @%p1 bra END;
      add.u32 %r1, %r1, 1; and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 0;
      @%p2 bra LOOP;
      add.u32 %o0, %o0, %r1; bra LOOP;
    END: mov.u32 %o1, %r1; activemask.b32 %o2;"""
    total, count, mask = run_warp(code, [LANES], ["b32"] * 3)
    assert total.tolist() == [sum(range(1, n + 1, 2)) for n in range(32)]
    assert np.array_equal(count, LANES)
    assert (mask == 0xFFFFFFFF).all()


def test_early_exit_leaves_the_rest_running():
    out = np.zeros(32, np.uint32)
    body = """mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 9; @%p1 exit; activemask.b32 %r2;
    ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r2;"""
    run_kernel(body, [out])
    assert out.tolist() == [0x3FF] * 10 + [0] * 22


def test_predicated_instructions_touch_only_their_lanes():
    code = "mov.u32 %o0, 1;\nsetp.eq.u32 %p1, %i0, 3;\n@%p1 mov.u32 %o0, 2;\n@!%p1 add.u32 %o0, %o0, %i0;"
    (found,) = run_warp(code, [LANES], ["b32"])
    assert found.tolist() == [2 if lane == 3 else 1 + lane for lane in range(32)]


def test_a_warp_wide_instruction_needs_its_lanes():
    code = """mov.u32 %o0, 0; setp.lt.u32 %p1, %i0, 4; @%p1 bra SKIP;
    shfl.sync.idx.b32 %o0, %i0, 0, 31, -1;
    SKIP: add.u32 %o0, %o0, 0;"""
    with pytest.raises(DivergenceError, match="shfl"):
        run_warp(code, [LANES], ["b32"])


# -- barriers of a CTA -------------------------------------------------------------------------------------------

EXCHANGE = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3;
mul.lo.u32 %r5, %r1, 3; st.shared.u32 [%r4], %r5;
{barrier}
sub.u32 %r6, 127, %r1; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r2; ld.shared.u32 %r7, [%r6];
ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r7;"""


@pytest.mark.parametrize(
    "barrier",
    ["bar.sync 0;", "bar.sync 3, 128;", "barrier.sync 0;", "barrier.cta.sync.aligned 1, 128;", "barrier.sync 2, 128;"],
)
def test_a_barrier_lets_warps_exchange_data(barrier):
    for seed in range(4):
        out = np.zeros(128, np.uint32)
        run_kernel(EXCHANGE.format(barrier=barrier), [out], threads=128, shared=512, seed=seed)
        assert np.array_equal(out, 3 * np.arange(127, -1, -1))


def test_producers_arrive_and_consumers_wait():
    body = """mov.u32 %r1, %tid.x; mov.u32 %r2, smem; setp.ge.u32 %p1, %r1, 32; @%p1 bra PRODUCE;
    bar.sync 1, 128;
    ld.shared.u32 %r7, [smem+400]; ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
    st.global.u32 [%d1], %r7; bra END;
    PRODUCE: shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %r1; bar.arrive 1, 128;
    END:"""
    for seed in range(4):
        out = np.zeros(32, np.uint32)
        run_kernel(body, [out], threads=128, shared=512, seed=seed)
        assert (out == 100).all()


@pytest.mark.parametrize(("mode", "expected"), [("popc.u32", 40), ("and.pred", 0), ("or.pred", 1)])
def test_a_barrier_reduces_predicates(mode, expected):
    target = "%r2" if "popc" in mode else "%p2"
    body = f"""mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 40; barrier.red.{mode} {target}, 0, %p1;
    {"" if "popc" in mode else "selp.u32 %r2, 1, 0, %p2;"}
    ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r2;"""
    out = np.full(64, 99, np.uint32)
    run_kernel(body, [out], threads=64)
    assert (out == expected).all()
