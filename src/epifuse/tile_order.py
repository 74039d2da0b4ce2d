# SPDX-License-Identifier: Apache-2.0
"""The order in which CTAs take the tiles of a problem: one arithmetic for host, kernels, tests and learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def floor_division(value: Any, divisor: Any, _: str) -> Any:
    """The quotient; a kernel whose host knows the divisors has a shorter way, by their names."""
    return value // divisor


def tile_of(
    pid: Any, tiles_m: Any, tiles_n: Any, group: Any, divide: Callable[[Any, Any, str], Any] = floor_division
) -> tuple[Any, Any]:
    """The tile (m, n) of the CTA ``pid`` in 0 ... tiles_m * tiles_n - 1; every tile has exactly one.

    Groups of ``group`` tiles along M go together, M fastest in a group, so that CTAs that run at the same time share
    their rows of A and their columns of B; the last group has what is left of M. ``group`` = 1 is row-major.
    Branch-free, so that it takes Python's ints and the DSL's alike; all arguments below 2^31. ``divide`` divides by the
    tiles of a group ("group") and by its rows ("rows").
    """
    per_group = group * tiles_n
    index = divide(pid, per_group, "group")
    first = index * group
    left = tiles_m - first
    size = group + (left - group) * (left < group)  # min(group, left), also in unsigned integers
    inner = pid - index * per_group
    column = divide(inner, size, "rows")
    return first + inner - column * size, column


def order(tiles_m: int, tiles_n: int, group: int) -> list[tuple[int, int]]:
    """All tiles in the order of their CTAs."""
    return [tile_of(pid, tiles_m, tiles_n, group) for pid in range(tiles_m * tiles_n)]
