# SPDX-License-Identifier: Apache-2.0
"""The producer: one thread that keeps the ring full by tensor copies, tile after tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.kernels.ptx import mbarrier, tma, wgmma
from epifuse_cutedsl.kernels.sm90.ring import OperandTile, Ring
from epifuse_cutedsl.kernels.sm90.schedule import Schedule


@dataclass(frozen=True)
class Source:
    """One operand: its tensor map (a generic address), its tile, 0 where one matrix serves all batches, else 1, which
    part of the tile this CTA loads, and for which of the cluster's CTAs (a mask of their ranks)."""

    tensor_map: Any
    tile: OperandTile
    batched: Any
    part: Any
    sharers: Any

    def load(self, target: Any, origin: Any, k: Any, batch: Any, full: Any) -> None:
        """Start the copies of one K tile; ``origin`` is the tile's place along M or N."""
        tile, batch = self.tile, batch * self.batched
        if tile.parts > 1:
            row = self.part * tile.part_rows
            target = target + row * wgmma.SWIZZLE_128B_BYTES
            origin, k = (origin + row, k) if tile.k_major else (origin, k + row)
        for box in range(tile.boxes):
            place = [*tile.place(box, origin, k), batch]
            tma.load(
                target + box * tile.box_bytes,
                self.tensor_map,
                place,
                full,
                ranks=self.sharers if tile.parts > 1 else None,
            )


@cute.jit
def run(ring: Ring, schedule: Schedule, a: Source, b: Source, first: Any, k_tiles: Any, stagger: Any) -> None:
    """Load ``k_tiles`` K tiles, from number ``first`` on, of all of the CTA's tiles. One thread calls it.

    Tile number i begins ``i * stagger`` K tiles further on, and comes back to the first ones at the end.
    """
    config = ring.config
    stage, parity = Int32(0), Int32(1)
    for index in cutlass.range(schedule.first, schedule.tiles, schedule.step, unroll=1):
        batch, m, n = schedule.place(index)
        k = (first + index * stagger % k_tiles) * config.tile_k
        end = (first + k_tiles) * config.tile_k
        for _ in cutlass.range(k_tiles, unroll=1):
            mbarrier.wait_parity(ring.empty(stage), parity)
            full, target = ring.full(stage), ring.address(stage)
            mbarrier.arrive_expect_tx(full, config.stage_bytes)
            a.load(target, m, k, batch, full)
            b.load(target + config.a_bytes, n, k, batch, full)
            k = k + config.tile_k
            k = cutlass.select_(k == end, first * config.tile_k, k)
            stage, parity = ring.after(stage, parity)
