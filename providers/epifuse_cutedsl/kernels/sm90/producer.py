# SPDX-License-Identifier: Apache-2.0
"""The producer: one warp that keeps the ring full by tensor copies, tile after tile.

All of its lanes go through the loop, and one is elected for each copy. With one thread in it, the assembler put a loop
over lanes round each copy; where a CTA has few bytes to wait for, that was what it waited for (24 x 4096 x 4096: 8.5
instead of 7.3 us).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.configs.sm90 import WARPGROUP
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.kernels.ptx import alu, cluster, mbarrier, shared, tma
from epifuse_cutedsl.kernels.ptx.asm import emit
from epifuse_cutedsl.kernels.sm90.ring import Ring
from epifuse_cutedsl.kernels.sm90.schedule import Schedule
from epifuse_cutedsl.tile.operand import SWIZZLE_BYTES, OperandTile

_WORDS_BYTES = 16
"""What a thread writes at a time."""
CLEARERS = 96
"""Threads of the producer's warpgroup beside the warp that copies."""
_CLEARED_BARRIER = 5
"""Number of a named barrier; those before are of the epilogues and of ``consumer.Turns``."""


@dataclass(frozen=True)
class Source:
    """One operand: the tensor maps (generic addresses) of whole tiles and of what is left of the last one, its tile,
    its number of positions, 0 where one matrix serves all batches, else 1, which part of the tile this CTA loads, and
    for which of the cluster's CTAs (a mask of their ranks)."""

    tensor_map: Any
    edge_map: Any
    tile: OperandTile
    extent: Any
    batched: Any
    part: Any
    sharers: Any

    def cut(self, origin: Any) -> Cut:
        """What is copied of the tile at ``origin``, which may have rows beyond the operand.

        They are left out. What lies there in shared memory is anything, and reaches only rows or columns of the result
        that the problem does not have.
        """
        tile, rows = self.tile, self.rows(origin)
        if not tile.k_major:
            return self.whole
        mine = rows if tile.parts == 1 else rows - self.part * tile.part_rows
        map_ = cutlass.select_(mine >= tile.part_rows, self.tensor_map, self.edge_map)
        return Cut(map_, mine > 0, rows * (tile.boxes * SWIZZLE_BYTES))

    @property
    def whole(self) -> Cut:
        """All of a tile."""
        return Cut(self.tensor_map, True, self.tile.copied_bytes)

    def rows(self, origin: Any) -> Any:
        """The rows of a tile at ``origin`` that are copied, K-major: those with positions of the operand."""
        tile = self.tile
        if not tile.k_major:
            return Int32(tile.box_rows)
        return cutlass.max(Int32(0), cutlass.min(self.extent - origin, Int32(tile.box_rows)))

    def load(self, cut: Cut, target: Any, origin: Any, k: Any, batch: Any, full: Any, policy: Any = None) -> None:
        """Start the copies of one K tile; ``origin`` is the tile's place along M or N, ``policy`` says how long the
        second-level cache keeps it (None: as ever)."""
        tile = self.tile
        if tile.parts > 1:
            target = target + self.part * tile.part_rows * SWIZZLE_BYTES
        ranks = self.sharers if tile.parts > 1 else None

        def copies() -> None:
            for box, place in enumerate(self._places(origin, k, batch)):
                to = target + box * tile.box_bytes
                tma.load(to, cut.tensor_map, place, full, ranks=ranks, policy=policy, elects=True)

        if cut.some is True:
            copies()
        else:
            when(cut.some, copies)

    def prefetch(self, cut: Cut, origin: Any, k: Any, batch: Any) -> None:
        """Bring what ``load`` will copy into the second-level cache."""
        for place in self._places(origin, k, batch):
            tma.prefetch(cut.tensor_map, place, elects=True)

    def _places(self, origin: Any, k: Any, batch: Any) -> list[list[Any]]:
        """Where this CTA's part of each box of a K tile begins in the operand."""
        tile = self.tile
        if tile.parts > 1:
            row = self.part * tile.part_rows
            origin, k = (origin + row, k) if tile.k_major else (origin, k + row)
        return [[*tile.place(box, origin, k), batch * self.batched] for box in range(tile.boxes)]


class Cut(NamedTuple):
    """What of a tile is copied: by which map, whether this CTA copies any, and the bytes of a K tile that all who share
    it copy."""

    tensor_map: Any
    some: Any
    bytes: Any


@dataclass(frozen=True)
class Clearing:
    """What products read of the ring where no copy ever writes: rows beyond the operands, in CTAs whose first tile is
    not whole. The producer's other warps write zeros there while the first copies are under way. (Before the CTA met,
    by all threads, that took 1.3 of 8.5 us.)

    Behind that tile, what older copies left lies in such rows: it reaches all stages, or the host asks for no edges.

    Each role finds the first tile's place by itself: found once for all of them, it made the assembler keep what
    tensor copies need in ordinary registers, and move it for each copy.
    """

    ring: Ring
    schedule: Schedule
    a: Source
    b: Source

    def run(self, thread: Any) -> None:
        """Write. The producer's other warps call it; ``thread`` counts from 0."""
        a_rows, b_rows = self._rows()

        def clear() -> None:
            _clear_rows(self.ring, self.a, 0, a_rows, thread)
            _clear_rows(self.ring, self.b, self.ring.config.a_bytes, b_rows, thread)
            tma.fence_async_shared()
            self._meet("arrive")

        when(self._needed(a_rows, b_rows), clear)

    def wait(self) -> None:
        """Wait until it has been done. The consumers call it, before their first products."""
        when(self._needed(*self._rows()), lambda: self._meet("sync"))

    def _meet(self, how: str) -> None:
        threads = CLEARERS + self.ring.config.consumers * WARPGROUP
        emit(f"bar.{how} {_CLEARED_BARRIER}, {threads};")

    def _rows(self) -> tuple[Any, Any]:
        """Those of the first tile that copies write."""
        _, m, n = self.schedule.place(self.schedule.first)
        return self.a.rows(m), self.b.rows(n)

    def _needed(self, a_rows: Any, b_rows: Any) -> Any:
        """Whether there is anything to do: the same in all threads of the CTA."""
        return (a_rows < self.a.tile.box_rows) | (b_rows < self.b.tile.box_rows)


@cute.jit
def _clear_rows(ring: Ring, source: Source, behind: int, first: Any, thread: Any) -> None:
    """Zeros to the rows from ``first`` on of a tile of all stages, which lies ``behind`` so many bytes in them.

    Stages and boxes in the inner loop are offsets of one address: a row at a time takes 0.6 us less than a stage at a
    time with 24 rows of 64 in eight stages (24 x 4096 x 4096).
    """
    tile = source.tile
    begin, end = first * SWIZZLE_BYTES + thread * _WORDS_BYTES, tile.box_rows * SWIZZLE_BYTES
    zeros = [alu.zero()] * 4
    for at in cutlass.range(begin, end, CLEARERS * _WORDS_BYTES, unroll=1):
        start = ring.address(0) + (at + behind)
        for stage in cutlass.range_constexpr(ring.config.stages):
            for box in cutlass.range_constexpr(tile.boxes):
                shared.st_shared(start, zeros, stage * ring.config.stage_bytes + box * tile.box_bytes)


@cute.jit
def run(
    ring: Ring,
    schedule: Schedule,
    a: Source,
    b: Source,
    first: Any,
    k_tiles: Any,
    streamed: Any,
    edges: bool,
) -> None:
    """Load ``k_tiles`` K tiles, from number ``first`` on, of all of the CTA's tiles. A whole warp calls it.

    A tile that begins some K tiles further on comes back to the first ones at the end. Where the first tile lies is
    found out before the wait for the grids before (with all else that comes before the first copy, 1100 cycles on an
    H200), the next ones' places behind the copies of the one before.

    ``streamed`` (Int32): 1 or 2 where A or B is beyond the second-level cache and read once. Its copies then ask the
    cache not to keep it (128 x 8192 x 8192: 37.5 instead of 38.0 us; the other operand's must ask nothing: copies with
    a policy, even the usual one, bring an SM a third fewer bytes in the same time), and half a ring of it is brought
    into the cache while the grid before ends (37.6 instead of 38.3 us; a whole ring is no better, two are worse).

    ``edges``: tiles may have rows beyond the operands, which are not copied. Where none has, code of its own keeps all
    that a copy needs in uniform registers: with moves to them, 1024^3 took 5.3 instead of 4.9 us.
    """
    config = ring.config
    once = tma.eviction("evict_first")
    stage, parity = Int32(0), Int32(1)
    begin = first * config.tile_k
    end = begin + k_tiles * config.tile_k
    batch, m, n = schedule.place(schedule.first)
    k = (first + schedule.apart(schedule.first)) * config.tile_k
    if streamed > 0:
        ahead = k
        for _ in cutlass.range(cutlass.min(k_tiles, Int32(config.stages // 2)), unroll=1):
            if streamed == 1:
                a.prefetch(a.cut(m) if edges else a.whole, m, ahead, batch)
            else:
                b.prefetch(b.cut(n) if edges else b.whole, n, ahead, batch)
            ahead = _after(ahead, config.tile_k, begin, end)
    cluster.wait_for_grids_before()
    for index in cutlass.range(schedule.first, schedule.tiles, schedule.step, unroll=1):
        a_cut, b_cut = (a.cut(m), b.cut(n)) if edges else (a.whole, b.whole)
        for _ in cutlass.range(k_tiles, unroll=1):
            mbarrier.wait_parity(ring.empty(stage), parity)
            full, target = ring.full(stage), ring.address(stage)
            mbarrier.arrive_expect_tx(full, a_cut.bytes + b_cut.bytes, elects=True)
            copy_a = functools.partial(a.load, a_cut, target, m, k, batch, full)
            copy_b = functools.partial(b.load, b_cut, target + config.a_bytes, n, k, batch, full)
            if streamed > 0:
                if streamed == 1:
                    copy_a(once)
                    copy_b()
                else:
                    copy_b(once)
                    copy_a()
            elif cutlass.const_expr(config.b_first):
                copy_b()
                copy_a()
            else:
                copy_a()
                copy_b()
            k = _after(k, config.tile_k, begin, end)
            stage, parity = ring.after(stage, parity)
        following = index + schedule.step
        batch, m, n = schedule.place(following)
        k = (first + schedule.apart(following)) * config.tile_k


def _after(k: Any, tile_k: int, begin: Any, end: Any) -> Any:
    """Where the K tile after the one at ``k`` begins: the first one's place behind the last one."""
    return cutlass.select_(k + tile_k == end, begin, k + tile_k)
