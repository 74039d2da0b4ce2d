# SPDX-License-Identifier: Apache-2.0
"""Which tiles a CTA takes: every ``step``-th from its own number on, in the order that all kernels share; every other
group of rows goes through the columns backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Uint32

from epifuse_cutedsl.configs.sm90 import Sm90Config
from epifuse_cutedsl.kernels.ptx import alu
from epifuse_cutedsl.kernels.sm80.kernel import place_of
from epifuse_cutedsl.tile.division import DIVISORS, SHIFT_BITS


@dataclass(frozen=True)
class Division:
    """Divides by ``DIVISORS``: their reciprocals' factors (Int32) and packed shifts, as ``tile.division`` makes them,
    and the rows of a group."""

    factors: tuple[Any, ...]
    shifts: Any
    group: Any

    def quotient(self, value: Any, divisor: Any, name: str) -> Any:
        """``value // divisor`` (Uint32, below 2^31), where the divisor is the one of that name."""
        factor, shift = self._reciprocal(name)
        if name == "rows":
            rest, least = self._reciprocal("rest")
            whole = divisor == Uint32(self.group)
            factor, shift = cutlass.select_(whole, factor, rest), cutlass.select_(whole, shift, least)
        return Uint32(alu.mul_hi(value << 1, factor)) >> shift

    def _reciprocal(self, name: str) -> tuple[Any, Any]:
        index = DIVISORS.index(name)
        shift = Uint32(self.shifts) >> (index * SHIFT_BITS) & ((1 << SHIFT_BITS) - 1)
        return self.factors[index], shift


@dataclass(frozen=True)
class Schedule:
    """Device integers (Int32): the first tile, the step, the number of tiles, the grid of tiles, and the CTA's rank.

    With a cluster, a tile is that of all its CTAs: their own ones lie below and beside one another. Each tile begins
    ``stagger`` K tiles further on than the one before it, of the ``k_tiles`` that every CTA has.
    """

    config: Sm90Config
    first: Any
    step: Any
    tiles: Any
    tiles_m: Any
    tiles_n: Any
    group: Any
    rank: tuple[Any, Any]
    division: Division
    stagger: Any
    k_tiles: Any

    def place(self, index: Any) -> tuple[Any, Any, Any]:
        """Batch, and where tile ``index`` begins along M and N."""
        grid, divide = (self.tiles_m, self.tiles_n), self.division.quotient
        batch, tile_m, tile_n = place_of(index, *grid, self.group, turns=True, divide=divide)
        config, (rank_m, rank_n) = self.config, self.rank
        m, n = tile_m * config.cluster + rank_m, tile_n * config.cluster_n + rank_n
        return batch, m * config.tile_m, n * config.tile_n

    def apart(self, index: Any) -> Any:
        """The K tile with which tile ``index`` begins."""
        period = cutlass.max(self.k_tiles, Int32(1))  # where fewer are there than CTAs to share them
        ahead = Uint32(index * self.stagger)
        return Int32(ahead - self.division.quotient(ahead, Uint32(period), "k_tiles") * Uint32(period))
