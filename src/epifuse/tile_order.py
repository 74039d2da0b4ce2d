# SPDX-License-Identifier: Apache-2.0
"""The order in which CTAs take the tiles of a problem: one arithmetic for host, kernels, tests and learners."""

from __future__ import annotations

from typing import Any


def tile_of(pid: Any, tiles_m: Any, tiles_n: Any, group: Any) -> tuple[Any, Any]:
    """The tile (m, n) of the CTA ``pid`` in 0 ... tiles_m * tiles_n - 1; every tile has exactly one.

    Groups of ``group`` tiles along M go together, M fastest in a group, so that CTAs that run at the same time share
    their rows of A and their columns of B; the last group has what is left of M. ``group`` = 1 is row-major.
    Branch-free, so that it takes Python's ints and the DSL's alike; all arguments below 2^31.
    """
    per_group = group * tiles_n
    index = pid // per_group
    first = index * group
    left = tiles_m - first
    size = group + (left - group) * (left < group)  # min(group, left), also in unsigned integers
    inner = pid - index * per_group
    column = inner // size
    return first + inner - column * size, column


def order(tiles_m: int, tiles_n: int, group: int) -> list[tuple[int, int]]:
    """All tiles in the order of their CTAs."""
    return [tile_of(pid, tiles_m, tiles_n, group) for pid in range(tiles_m * tiles_n)]
