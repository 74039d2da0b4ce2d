# SPDX-License-Identifier: Apache-2.0
"""The producer: one thread that keeps the ring full by tensor copies, tile after tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.kernels.ptx import cluster, mbarrier, tma
from epifuse_cutedsl.kernels.sm90.ring import Ring
from epifuse_cutedsl.kernels.sm90.schedule import Schedule
from epifuse_cutedsl.tile.operand import SWIZZLE_BYTES, OperandTile


@dataclass(frozen=True)
class Source:
    """One operand: its tensor map (a generic address), its tile, 0 where one matrix serves all batches, else 1, which
    part of the tile this CTA loads, and for which of the cluster's CTAs (a mask of their ranks)."""

    tensor_map: Any
    tile: OperandTile
    batched: Any
    part: Any
    sharers: Any

    def load(self, target: Any, origin: Any, k: Any, batch: Any, full: Any, policy: Any) -> None:
        """Start the copies of one K tile; ``origin`` is the tile's place along M or N, ``policy`` says how long the
        second-level cache keeps it (None: as ever)."""
        tile, batch = self.tile, batch * self.batched
        if tile.parts > 1:
            row = self.part * tile.part_rows
            target = target + row * SWIZZLE_BYTES
            origin, k = (origin + row, k) if tile.k_major else (origin, k + row)
        for box in range(tile.boxes):
            place = [*tile.place(box, origin, k), batch]
            tma.load(
                target + box * tile.box_bytes,
                self.tensor_map,
                place,
                full,
                ranks=self.sharers if tile.parts > 1 else None,
                policy=policy,
            )


def _policies(streamed: Any) -> tuple[Any, Any]:
    """How long the second-level cache keeps A and B, where ``streamed`` (Int32) says which one is read once: 1 or 2."""
    first, last = tma.eviction("evict_first"), tma.eviction("evict_last")
    return cutlass.select_(streamed == 1, first, last), cutlass.select_(streamed == 1, last, first)


@cute.jit
def run(
    ring: Ring, schedule: Schedule, a: Source, b: Source, first: Any, k_tiles: Any, stagger: Any, streamed: Any
) -> None:
    """Load ``k_tiles`` K tiles, from number ``first`` on, of all of the CTA's tiles. One thread calls it.

    Tile number i begins ``i * stagger`` K tiles further on, and comes back to the first ones at the end. Where the
    first one lies is found out before the wait for the grids before (with all else that comes before the first copy,
    1100 cycles on an H200), the next ones' places behind the copies of the one before.

    Where an operand beyond the second-level cache is read once (``streamed``), copies say what the cache is to keep:
    128 x 8192 x 8192 takes 38.3 us with that, 40.6 without, in the same process. Elsewhere they must not: copies with
    a policy, even the usual one, brought an SM a third fewer bytes in the same time (4096^3: 268 us instead of 203).
    """
    config = ring.config
    kept_a, kept_b = _policies(streamed)
    stage, parity = Int32(0), Int32(1)
    end = (first + k_tiles) * config.tile_k
    batch, m, n = schedule.place(schedule.first)
    k = (first + schedule.first * stagger % k_tiles) * config.tile_k
    cluster.wait_for_grids_before()
    for index in cutlass.range(schedule.first, schedule.tiles, schedule.step, unroll=1):
        for _ in cutlass.range(k_tiles, unroll=1):
            mbarrier.wait_parity(ring.empty(stage), parity)
            full, target = ring.full(stage), ring.address(stage)
            mbarrier.arrive_expect_tx(full, config.stage_bytes)
            if streamed > 0:
                a.load(target, m, k, batch, full, kept_a)
                b.load(target + config.a_bytes, n, k, batch, full, kept_b)
            else:
                a.load(target, m, k, batch, full, None)
                b.load(target + config.a_bytes, n, k, batch, full, None)
            k = k + config.tile_k
            k = cutlass.select_(k == end, first * config.tile_k, k)
            stage, parity = ring.after(stage, parity)
        following = index + schedule.step
        batch, m, n = schedule.place(following)
        k = (first + following * stagger % k_tiles) * config.tile_k
