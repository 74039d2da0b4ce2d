# SPDX-License-Identifier: Apache-2.0
"""Which tiles a CTA takes: every ``step``-th from its cluster's own number on, in the order that all kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from epifuse_cutedsl.kernels.sm80.kernel import place_of
from epifuse_cutedsl.kernels.sm100.ring import Ranks


@dataclass(frozen=True)
class Schedule:
    """Device integers (Int32): the first tile, the step, the number of tiles, and the grid of tiles. A tile is that of
    a whole cluster."""

    ranks: Ranks
    first: Any
    step: Any
    tiles: Any
    tiles_m: Any
    tiles_n: Any
    group: Any

    def place(self, index: Any) -> tuple[Any, Any, Any]:
        """Batch, and where this CTA's part of tile ``index`` begins along M and N."""
        config = self.ranks.config
        batch, tile_m, tile_n = place_of(index, self.tiles_m, self.tiles_n, self.group)
        m = (tile_m * config.cluster_m + self.ranks.m) * config.tile_m
        return batch, m, (tile_n * config.cluster_n + self.ranks.n) * config.tile_n
