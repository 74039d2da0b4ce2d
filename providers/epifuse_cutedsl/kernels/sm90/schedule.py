# SPDX-License-Identifier: Apache-2.0
"""Which tiles a CTA takes: every ``step``-th from its own number on, in the order that all kernels share; every other
group of rows goes through the columns backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from epifuse_cutedsl.configs.sm90 import Sm90Config
from epifuse_cutedsl.kernels.sm80.kernel import place_of


@dataclass(frozen=True)
class Schedule:
    """Device integers (Int32): the first tile, the step, the number of tiles, the grid of tiles, and the CTA's rank.

    With a cluster, a tile is that of all its CTAs: their own ones lie below and beside one another.
    """

    config: Sm90Config
    first: Any
    step: Any
    tiles: Any
    tiles_m: Any
    tiles_n: Any
    group: Any
    rank: tuple[Any, Any]

    def place(self, index: Any) -> tuple[Any, Any, Any]:
        """Batch, and where tile ``index`` begins along M and N."""
        batch, tile_m, tile_n = place_of(index, self.tiles_m, self.tiles_n, self.group, turns=True)
        config, (rank_m, rank_n) = self.config, self.rank
        m, n = tile_m * config.cluster + rank_m, tile_n * config.cluster_n + rank_n
        return batch, m * config.tile_m, n * config.tile_n
