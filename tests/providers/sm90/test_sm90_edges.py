# SPDX-License-Identifier: Apache-2.0
"""Tiles with rows beyond the operands, which copies leave out, and operands that are read once."""

import pytest
import torch

pytest.importorskip("cutlass")

from epifuse_cutedsl import sm90_launch
from epifuse_cutedsl.configs.sm90 import Sm90Config
from epifuse_cutedsl.tile.operand import OperandTile

# mode, tile, cluster, split, bytes of K in a tile
CONFIGS = [
    ("pingpong", (64, 64), 1, 1, 128),
    ("pingpong", (64, 64), 1, 2, 256),
    ("cooperative", (64, 128), 1, 2, 128),
    ("cooperative", (128, 128), 1, 1, 256),
    ("pingpong", (64, 192), (2, 1), 1, 128),
    ("pingpong", (192, 64), (1, 2), 1, 128),
    ("pingpong", (192, 128), (1, 2), 1, 128),
]


@pytest.mark.parametrize("size", [(9, 130), (40, 8), (330, 65)])
@pytest.mark.parametrize(("mode", "tile", "cluster", "split", "k_bytes"), CONFIGS)
def test_results_are_exact_where_copies_leave_rows_out(hopper, mode, tile, cluster, split, k_bytes, size):
    args = hopper.arguments((*size, 1500))
    operator = hopper.run(args, mode, tile, 8, None, cluster, split, k_bytes, seed=size[0], sm_count=4)
    assert sm90_launch._has_edges(operator.config, args)


@pytest.mark.parametrize("majors", ["mk", "km", "mm"])
def test_operands_along_m_or_n_are_copied_as_whole_tiles(hopper, majors):
    args = hopper.arguments((40, 72, 1100), majors=majors)
    operator = hopper.run(args, "pingpong", (64, 64), 1, None, 1, 1, 128, sm_count=4)
    assert sm90_launch._has_edges(operator.config, args) == (majors != "mm")


@pytest.mark.parametrize("k", [8, 440])
def test_a_short_k_fills_rows_with_zeros(hopper, k):
    args = hopper.arguments((9, 200, k))
    operator = hopper.run(args, "pingpong", (64, 64), 1, None, 1, 1, 128, seed=k, sm_count=1)
    assert not sm90_launch._has_edges(operator.config, args)


@pytest.mark.parametrize(
    ("size", "tile", "cluster", "split", "expected"),
    [
        ((16, 4096, 4096), (64, 64), (1, 1), 2, True),
        ((63, 4096, 4096), (64, 64), (1, 1), 1, False),
        ((62, 4096, 4096), (64, 64), (1, 1), 1, True),
        ((15, 4096, 4096), (64, 64), (1, 1), 1, True),
        ((4096, 15, 4096), (64, 16), (1, 1), 1, True),
        ((1022, 1024, 1024), (64, 128), (1, 1), 1, False),
        ((1020, 1024, 1024), (64, 128), (1, 1), 1, True),
        ((64, 4096, 4096), (64, 64), (1, 1), 1, False),
        ((4096, 16, 4096), (64, 64), (1, 1), 1, True),
        ((1000, 1000, 1000), (64, 128), (1, 1), 1, True),  # 40 of 64 rows, 104 of 128
        ((127, 4096, 4096), (64, 64), (1, 1), 1, False),
        ((191, 6144, 4096), (64, 64), (1, 2), 1, False),
        ((128, 6272, 4096), (64, 128), (1, 2), 1, True),  # the second CTA of a pair has no columns
        ((160, 6144, 4096), (64, 192), (2, 1), 1, True),  # one CTA of a pair has no rows at all
        ((3000, 3072, 3000), (128, 192), (1, 1), 1, True),
        ((16, 4096, 448), (64, 64), (1, 1), 1, False),  # seven K tiles for eight stages
        ((16, 4096, 512), (64, 64), (1, 1), 1, True),
        ((16, 4096, 512), (64, 64), (1, 1), 2, False),
    ],
)
def test_rows_are_left_out_where_that_pays(hopper, size, tile, cluster, split, expected):
    config = Sm90Config(*tile, 64, True, 64, *cluster, split=split, stages=8)
    args = hopper.arguments(size, bias=torch.zeros(size[1]), D=torch.empty(size[:2]))
    assert sm90_launch._has_edges(config, args) == expected


@pytest.mark.parametrize(
    ("extent", "parts", "rows"),
    [(16, 1, 16), (9, 1, 9), (64, 1, 64), (65, 1, 1), (128, 2, 32), (160, 2, 32), (168, 2, 8), (195, 2, 3)],
)
def test_the_map_of_an_edge_has_what_is_left_of_one_part(extent, parts, rows):
    tile = OperandTile(64, 2, k_major=True, parts=parts)
    assert tile.edge(extent).copy_box == (64, rows, 1)
    assert OperandTile(64, 2, k_major=False, parts=parts).edge(extent).copy_box == (64, 64 // parts, 1)


@pytest.mark.parametrize("size", [(16, 520), (520, 16)])
@pytest.mark.parametrize(
    ("mode", "tile", "cluster", "split"),
    [("pingpong", (128, 128), 1, 1), ("pingpong", (64, 128), (2, 1), 1), ("cooperative", (64, 128), 1, 2)],
)
def test_operands_that_are_read_once(hopper, monkeypatch, mode, tile, cluster, split, size):
    """Their first K tiles are asked for before the grid before has ended, and tiles begin with the same or another."""
    shared_rows = 0 if size[0] == 16 else 64  # with few columns, tiles begin apart without a cluster too
    for limit, value in (("_CACHE_BYTES", 0), ("_STREAMED_BYTES", 0), ("_SHARED_ROWS", shared_rows)):
        monkeypatch.setattr(sm90_launch, limit, value)
    hopper.run(hopper.arguments((*size, 1100)), mode, tile, 8, None, cluster, split, seed=size[0], sm_count=4)


@pytest.mark.parametrize(
    ("size", "tile", "cluster", "readers", "expected"),
    [
        ((16, 4096, 4096), (64, 64), (1, 1), 1, (0, 0)),  # 34 megabytes
        ((16, 4608, 4096), (64, 64), (1, 1), 1, (0, 2)),
        ((4608, 16, 4096), (64, 64), (1, 1), 1, (0, 1)),
        ((16, 5120, 5120), (64, 64), (1, 1), 1, (0, 2)),  # no more than the cache
        ((16, 8192, 8192), (64, 64), (1, 1), 1, (4, 2)),
        ((63, 8192, 8192), (64, 64), (1, 1), 1, (4, 2)),
        ((64, 8192, 8192), (64, 64), (1, 1), 1, (0, 2)),  # as many rows that all CTAs read in step
        ((128, 8192, 8192), (64, 128), (2, 1), 1, (4, 2)),  # less of them where a pair shares the other operand
        ((256, 8192, 8192), (64, 128), (2, 1), 2, (0, 2)),
        ((512, 8192, 8192), (64, 128), (2, 1), 4, (0, 0)),
    ],
)
def test_when_operands_stream_and_tiles_begin_apart(size, tile, cluster, readers, expected):
    config = Sm90Config(*tile, 64, True, 64, *cluster)
    m, n, k = size
    assert sm90_launch._streaming(config, m, n, 2 * k, readers) == expected


@pytest.mark.parametrize("size", [(70, 65), (65, 300)])
@pytest.mark.parametrize("tile", [(128, 128), (128, 192)])
def test_outputs_are_copied_a_piece_later_wherever_pieces_lie(hopper, tile, size):
    """Pieces outside of the problem stand between others: the one before is copied then, too."""
    args = hopper.arguments((*size, 72), bias=hopper.integers(size[1]), D=hopper.nothing(*size))
    hopper.run(args, "pingpong", tile, depth=2, seed=size[0], sm_count=1)


@pytest.mark.parametrize("text", ["D = accum + c; return D", "D = relu(accum + c); F = accum - row; return D, F"])
@pytest.mark.parametrize("size", [(30, 65), (193, 130)])
def test_pieces_outside_of_the_problem_store_nothing(hopper, text, size):
    """A wide tile's pieces have no branches round them: those that lie outside are computed, and left out by copies."""
    m, n = size
    c = hopper.placed(hopper.integers(m, n, dtype=torch.bfloat16), "row")
    outputs = {name: hopper.nothing(m, n) for name in ("D", "F") if f"{name} = " in text}
    rows = {"row": hopper.integers(n)} if "row" in text else {}
    text = f"def epi(accum, {', '.join(['c', *rows])}): {text}"
    args = hopper.arguments((m, n, 72), text, c=c, **rows, **outputs)
    hopper.run(args, "pingpong", (128, 192), depth=2, seed=m, sm_count=1)
    for name, out in zip(args.bound.names.stores, args.outputs, strict=True):
        around = out.as_strided((m + 2, out.stride(0)), (out.stride(0), 1), 0).clone()
        around[1 : m + 1, out.storage_offset() % out.stride(0) :][:, :n] = float("nan")
        assert around.isnan().all(), name
