# SPDX-License-Identifier: Apache-2.0
"""The order of tiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epifuse_cutedsl.tile.scheduler import serpentine, tile_of


def order(tiles_m: int, tiles_n: int, group: int) -> list[tuple[int, int]]:
    return [tile_of(pid, tiles_m, tiles_n, group) for pid in range(tiles_m * tiles_n)]


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "group", "expected"),
    [
        (3, 2, 2, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]),
        (3, 2, 1, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
        (3, 2, 8, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]),
        (5, 1, 2, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]),
        (1, 3, 4, [(0, 0), (0, 1), (0, 2)]),
    ],
)
def test_small_orders(tiles_m, tiles_n, group, expected):
    assert order(tiles_m, tiles_n, group) == expected


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_every_tile_exactly_once(tiles_m, tiles_n, group):
    tiles = order(tiles_m, tiles_n, group)
    assert sorted(tiles) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_groups_go_one_after_the_other_with_m_fastest(tiles_m, tiles_n, group):
    tiles = order(tiles_m, tiles_n, group)
    assert tiles == sorted(tiles, key=lambda tile: (tile[0] // group, tile[1], tile[0]))


def test_large_grids_stay_in_32_bits():
    tiles_m, tiles_n = 1 << 20, 1 << 10
    assert tile_of(tiles_m * tiles_n - 1, tiles_m, tiles_n, 8) == (tiles_m - 1, tiles_n - 1)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_a_serpentine_turns_every_other_group(tiles_m, tiles_n, group):
    plain = enumerate(order(tiles_m, tiles_n, group))
    tiles = [(m, serpentine(pid, n, tiles_n, group)) for pid, (m, n) in plain]
    assert sorted(tiles) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
    for (m, n), (next_m, next_n) in zip(tiles, tiles[1:], strict=False):
        crossed = next_m // group > m // group
        assert next_n == n if crossed else next_n - n in ((0, 1), (0, -1))[m // group % 2]
