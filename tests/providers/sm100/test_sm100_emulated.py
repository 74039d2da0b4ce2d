# SPDX-License-Identifier: Apache-2.0
"""The Blackwell kernel's PTX, run: exact results for tiles, pairs, clusters, majors, tails and tiles of a CTA.

NaN lies around and between the operands' elements, and outputs are prefilled with it.
"""

import pytest
import torch

pytest.importorskip("cutlass")

# tile of a CTA, CTAs that multiply together, cluster
SHAPES = (
    ((128, 256), 1, (1, 1)),
    ((128, 128), 1, (1, 1)),
    ((128, 96), 1, (1, 1)),
    ((64, 128), 1, (1, 1)),
    ((64, 32), 1, (1, 1)),
    ((128, 256), 2, (2, 1)),
    ((128, 96), 2, (2, 1)),
    ((64, 64), 2, (2, 1)),
    ((128, 128), 1, (2, 1)),
    ((128, 64), 1, (1, 2)),
    ((128, 128), 2, (2, 2)),
    ((64, 32), 2, (4, 2)),
    ((64, 64), 1, (4, 4)),
)


@pytest.mark.parametrize(("tile", "ctas", "cluster"), SHAPES)
def test_ragged_tiles_are_exact_and_ctas_take_several(blackwell, tile, ctas, cluster):
    # One cluster for three tiles or more: the ring and both accumulators are used again, with every phase.
    size = (tile[0] * cluster[0] + 3, tile[1] * cluster[1] + 10, 200)
    majors = "mk" if cluster[1] > 1 else "km"
    sm_count = cluster[0] * cluster[1]
    operator = blackwell.run(blackwell.arguments(size, majors=majors), tile, ctas, cluster, seed=3, sm_count=sm_count)
    assert operator.config.stages >= 4


@pytest.mark.parametrize("majors", ["kk", "km", "mk", "mm"])
@pytest.mark.parametrize(("ctas", "cluster"), [(1, (1, 1)), (2, (4, 2))])
def test_majors(blackwell, majors, ctas, cluster):
    args = blackwell.arguments((141, 150, 136), majors=majors, dtype=torch.float16)
    blackwell.run(args, (64, 64), ctas, cluster, sm_count=8, seed=1)


@pytest.mark.parametrize("k", [0, 1, 64, 65, 448, 456])
@pytest.mark.parametrize("ctas", [1, 2])
def test_k_tails_and_wraps_of_the_ring(blackwell, k, ctas):
    blackwell.run(blackwell.arguments((130, 130, k)), (128, 64), ctas, sm_count=ctas, seed=k)


@pytest.mark.parametrize("size", [(1, 1, 8), (1, 200, 40), (200, 1, 40), (128, 128, 64), (127, 129, 64)])
def test_thin_and_whole_problems(blackwell, size):
    blackwell.run(blackwell.arguments(size))
    blackwell.run(blackwell.arguments(size, majors="mm"), (64, 64), 2)


@pytest.mark.parametrize("share_b", [False, True])
@pytest.mark.parametrize(("ctas", "cluster"), [(1, (1, 1)), (2, (2, 2))])
def test_batches(blackwell, share_b, ctas, cluster):
    args = blackwell.arguments((130, 70, 72), batches=3, majors="km", share_b=share_b)
    blackwell.run(args, (64, 64), ctas, cluster, group=8, sm_count=4, seed=5)


@pytest.mark.parametrize(("k", "seed"), [(450, 0), (72, 1)])
@pytest.mark.parametrize(("tile", "ctas", "cluster"), [((128, 64), 1, (1, 1)), ((64, 128), 2, (2, 1))])
def test_schedules(blackwell, tile, ctas, cluster, k, seed):
    blackwell.run(blackwell.arguments((260, 200, k)), tile, ctas, cluster, group=8, sm_count=2, seed=seed)


@pytest.mark.parametrize(("k", "seed"), [(200, 0), (72, 1), (0, 2)])
@pytest.mark.parametrize(("tile", "ctas", "cluster"), [((128, 64), 1, (1, 1)), ((64, 64), 2, (4, 2))])
def test_tiles_by_launch_control(blackwell, tile, ctas, cluster, k, seed):
    sm_count = 2 * cluster[0] * cluster[1]
    args = blackwell.arguments((300, 200, k), batches=2)
    operator = blackwell.run(args, tile, ctas, cluster, 8, seed, sm_count, dynamic=True)
    assert operator.metadata.design.tile_scheduler == "dynamic persistent"


def test_as_many_tiles_as_accumulators_and_one_more(blackwell):
    for tiles in (1, 2, 3):
        blackwell.run(blackwell.arguments((64 * tiles, 30, 40)), (64, 32), sm_count=1, seed=tiles)
