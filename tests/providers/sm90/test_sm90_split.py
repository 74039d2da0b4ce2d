# SPDX-License-Identifier: Apache-2.0
"""K shared by the CTAs of a cluster: exact sums, whatever the share of each, tile after tile."""

import pytest
import torch

pytest.importorskip("cutlass")

SPLITS = (
    ("pingpong", (64, 64), 2),
    ("pingpong", (64, 128), 2),
    ("cooperative", (64, 128), 2),
    ("cooperative", (64, 128), 4),
    ("cooperative", (128, 64), 2),
)


@pytest.mark.parametrize(("mode", "tile", "split"), SPLITS)
@pytest.mark.parametrize("seed", range(2))
def test_several_tiles_a_cluster(hopper, mode, tile, split, seed):
    # Two clusters for nine tiles: the buffers of both are used again, by both warpgroups.
    m, n = 2 * tile[0] + 3, 2 * tile[1] + 8
    args = hopper.arguments((m, n, 64 * 5 + 9), bias=hopper.integers(n), D=hopper.nothing(m, n))
    operator = hopper.run(args, mode, tile, split=split, sm_count=2 * split, seed=seed)
    assert operator.config.ctas == split


@pytest.mark.parametrize("k_tiles", [4, 5, 7, 40])
def test_uneven_shares(hopper, k_tiles):
    args = hopper.arguments((70, 72, 64 * k_tiles - 1), dtype=torch.float16, majors="mk")
    hopper.run(args, "cooperative", (64, 128), split=4, sm_count=8, seed=k_tiles)


def test_full_operands_reductions_and_batches(hopper):
    m, n, batches = 100, 72, 3
    text = "def epi(accum, c, row): D = accum * 0.5 + c + row; r = sum(D, dim=2); e = max(D); return D, r, e"
    c = hopper.placed(hopper.integers(batches, m, n, dtype=torch.bfloat16), "row")
    args = hopper.arguments(
        (m, n, 200), text, batches=batches, c=c, row=hopper.integers(n), D=hopper.nothing(batches, m, n),
        r=torch.empty(batches, m), e=torch.empty(1),
    )  # fmt: skip
    operator = hopper.run(args, "pingpong", (64, 64), split=2, sm_count=6, seed=1)
    assert operator.config.tail.direct


def test_staged_epilogue(hopper):
    args = hopper.arguments((70, 131, 260), bias=hopper.integers(131), D=torch.full((70, 131), float("nan")))
    operator = hopper.run(args, "pingpong", (64, 128), split=2, sm_count=4)
    assert not operator.config.tail.direct


@pytest.mark.parametrize("k", [0, 1, 128])
def test_too_few_k_tiles_are_refused(hopper, k):
    args = hopper.arguments((70, 72, k))
    operator = hopper.operator_of(args, "cooperative", (64, 128), split=4)
    status = operator.supports(args, "90a")
    assert not status
    assert "cannot share K" in str(status)
