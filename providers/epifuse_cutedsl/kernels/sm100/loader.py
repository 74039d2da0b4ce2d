# SPDX-License-Identifier: Apache-2.0
"""The load role: one thread that keeps the ring full by tensor copies, tile after tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.kernels.ptx import cluster, mbarrier, tma
from epifuse_cutedsl.kernels.sm100.ring import Ring
from epifuse_cutedsl.kernels.sm100.schedule import Schedule
from epifuse_cutedsl.tile.operand import SWIZZLE_BYTES, OperandTile


@dataclass(frozen=True)
class Source:
    """One operand: its tensor map (a generic address), its tile, 0 where one matrix serves all batches, else 1; which
    part of the tile this CTA copies (Int32), and to which CTAs of the cluster (a mask, Int32)."""

    tensor_map: Any
    tile: OperandTile
    batched: Any
    part: Any
    ranks: Any

    def load(self, target: Any, origin: Any, k: Any, batch: Any, full: Any, ctas: int) -> None:
        """Start the copies of one K tile; ``origin`` is the tile's place along M or N."""
        tile, batch = self.tile, batch * self.batched
        ranks = self.ranks if tile.parts > 1 else None
        if tile.parts > 1:
            row = self.part * tile.part_rows
            target = target + row * SWIZZLE_BYTES
            origin, k = (origin + row, k) if tile.k_major else (origin, k + row)
        for box in range(tile.boxes):
            place = [*tile.place(box, origin, k), batch]
            tma.load(target + box * tile.box_bytes, self.tensor_map, place, full, ranks=ranks, pair=ctas == 2)


@cute.jit
def run(ring: Ring, schedule: Schedule, a: Source, b: Source, k_tiles: Any) -> None:
    """Load all K tiles of all of the CTA's tiles. One thread calls it.

    What reads no global memory comes before the wait for the grids in front. Without K tiles there are no tensor maps.
    """
    config, ranks = ring.config, ring.ranks
    when(k_tiles > Int32(0), lambda: (tma.prefetch_tensormap(a.tensor_map), tma.prefetch_tensormap(b.tensor_map)))
    columns = ring.ranks.m % config.ctas * b.tile.extent  # where this CTA's half of the pair's columns begins
    stage, parity, index, turn = Int32(0), Int32(1), schedule.first, Int32(0)
    batch, m, n = schedule.place(index)
    cluster.wait_for_grids_before()
    while index < schedule.tiles:
        k = Int32(0)
        for _ in cutlass.range(k_tiles, unroll=1):
            mbarrier.wait_parity(ring.empty(stage), parity)
            full, target = ring.full(stage), ring.address(stage)
            if cutlass.const_expr(config.ctas == 1):
                mbarrier.arrive_expect_tx(full, config.copied_bytes)
            else:  # the pair's leader counts the bytes of both
                when(ranks.leads, lambda full=full: mbarrier.arrive_expect_tx(full, 2 * config.copied_bytes))
            there = ring.of_leader(full)
            a.load(target, m, k, batch, there, config.ctas)
            b.load(target + config.a.bytes, n + columns, k, batch, there, config.ctas)
            k = k + config.tile_k
            stage, parity = ring.after(stage, parity)
        index = schedule.following(index, turn)
        batch, m, n = schedule.place(index)
        turn = turn + 1
