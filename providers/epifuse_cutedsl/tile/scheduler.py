# SPDX-License-Identifier: Apache-2.0
"""The order in which CTAs take the tiles of a problem: the core's arithmetic, traced as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epifuse.tile_order import floor_division, tile_of

__all__ = ["floor_division", "serpentine", "tile_of"]


def serpentine(
    pid: Any, tile_n: Any, tiles_n: Any, group: Any, divide: Callable[[Any, Any, str], Any] = floor_division
) -> Any:
    """The column to take instead of the ``tile_n`` of ``tile_of(pid, ...)``: every other group of rows goes through the
    columns backwards.

    So a group begins with the columns of B that the group before it ended with. Python's ints and the DSL's alike.
    """
    backwards = divide(pid, group * tiles_n, "group") & 1
    return tile_n + backwards * (tiles_n - 1 - 2 * tile_n)
