# SPDX-License-Identifier: Apache-2.0
"""The epilogue role: four warps that read accumulators from tensor memory and run the engine on them.

A thread has one row of the accumulator, and takes up to 32 columns of it at a time. An accumulator is given back as
soon as its last columns are in registers, before anything is computed or stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.configs.sm100 import LEAST_COLUMNS, SLOTS, WARP, Piece, Sm100Config
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.fuse.convert import unpack
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, Run, TileCoordinates
from epifuse_cutedsl.kernels.copies import WarpCopies
from epifuse_cutedsl.kernels.ptx import alu, mbarrier, tcgen05
from epifuse_cutedsl.kernels.sm100.ring import Ring
from epifuse_cutedsl.kernels.sm100.schedule import Schedule

_FEW_OPERATIONS = 8.0
_FIRST_BARRIER = 1
"""Number of the named barrier of the first piece; those of the others follow."""


@dataclass(frozen=True)
class Reader:
    """How one thread finds its part of an accumulator (device integers): its warp, its lane in it."""

    config: Sm100Config
    piece: Piece
    warp: Any
    lane: Any

    @property
    def member(self) -> Any:
        """The warp's number in its piece."""
        return self.warp % self.piece.warps

    @property
    def row(self) -> Any:
        """The thread's row in its piece."""
        return self.member * self.piece.lanes + alu.and_b32(self.lane, self.piece.lanes - 1)

    @property
    def column(self) -> Any:
        """The first of the thread's columns in its piece."""
        if not self.piece.pairs:
            return Int32(0)
        return (self.lane >> 4) * self.piece.thread_columns

    @property
    def idle(self) -> bool:
        """Whether the upper halves of the warps have nothing to do."""
        return self.piece.lanes < WARP and not self.piece.pairs

    def origin(self, m: Any, n: Any) -> tuple[Any, Any]:
        """Where the thread's piece of the CTA's tile at (m, n) begins."""
        config, piece = self.config, self.piece
        part = self.warp // piece.warps
        if config.split:  # warps 0 and 1 have the first half of the columns, 2 and 3 the second
            rows = config.tile_m // piece.rows
            return m + part % rows * piece.rows, n + part // rows * piece.columns
        return m + part * piece.rows, n

    def read(self, memory: Any, step: Any) -> list[Any]:
        """The thread's columns of one step as bits, from the accumulator at ``memory``."""
        piece = self.piece
        address = memory + (self.warp << 21) + step * piece.run
        if piece.lanes == WARP:
            return tcgen05.ld(address, piece.run)
        return tcgen05.ld_half_lanes(address, piece.run, piece.thread_columns if piece.pairs else 0)

    def box(self, tile: TileCoordinates, step: Any) -> tuple[Any, Any, Any]:
        """Batch, row and column where the warp's part of one step begins."""
        return tile.batch, tile.m0 + self.member * self.piece.lanes, tile.n0 + step * self.piece.run

    def places(self, tile: TileCoordinates, step: Any, axis: str, m_end: Any) -> Fragment:
        """The runs of one step, without registers. Threads with nothing to do stand below the problem."""
        m, n = tile.m0 + self.row, tile.n0 + self.column + step * self.piece.run
        if self.idle:
            m = cutlass.select_(self.lane < self.piece.lanes, m, m_end)
        if axis == "n":
            return Fragment("n", (Run(0, self.piece.run, m, n, position=0, line=0),))
        return Fragment("m", tuple(Run(i, 1, m, n + i, position=0, line=i) for i in range(self.piece.run)))


@dataclass(frozen=True)
class Tail:
    """What turns accumulators into outputs, while a kernel is traced. ``scratch`` is the piece's shared address."""

    reader: Reader
    epilogue: Any
    parameters: list[Any]
    extents: Extents
    scratch: Any
    copies: WarpCopies

    def run(self, ring: Ring, memory: Any, slot: Any, parity: Any, place: tuple[Any, Any, Any], turn: Any) -> Any:
        """One tile: what can be loaded ahead, then the accumulator, step by step.

        ``turn`` (Int32) is the number of steps before; what it is afterwards.
        """
        batch, m, n = place
        reader, piece, copies = self.reader, self.reader.piece, self.copies
        m0, n0 = reader.origin(m, n)
        tile = TileCoordinates(m0, n0, batch, reader.member * WARP + reader.lane, reader.member, reader.lane)
        facts = self.epilogue.facts._replace(barrier=_FIRST_BARRIER + reader.warp // piece.warps)
        step_scratch = self.scratch + self.epilogue.scratch_bytes
        bound = replace(self.epilogue, facts=facts).bind(self.parameters, tile, self.extents, step_scratch)
        steps = self._steps(tile)
        copies.start(reader.box(tile, 0), turn, steps > Int32(0))
        first = self._places(tile, Int32(0))
        words, pieces = bound.tile_loads(first), bound.load_step(first)
        mbarrier.wait_parity(ring.made(slot), parity)
        tcgen05.fence_after()

        def visit(step: Any, pieces: list[Any], state: list[Any]) -> tuple[Any, ...]:
            places, number = self._places(tile, step), turn + step
            registers = self._registers(reader.read(memory, step))
            self._give_back(ring, slot, step == steps - 1)
            following = cutlass.select_(step + 1 < steps, step + 1, step)
            ahead = bound.load_step(self._places(tile, following))
            copies.arrive(number, reader.box(tile, step + 1), step + 1 < steps)
            staged = copies.staged(reader.lane, Int32(0), ((0, 0),), number)
            state = bound.visit(replace(places, registers=registers), pieces, state, staged)
            copies.store(reader.box(tile, step), number)
            return ahead, state

        def work() -> None:
            state = _repeat(visit, steps, self._unroll, pieces, bound.tile_begin(first, words))
            bound.tile_end(bound.reduce_flush(state, self.scratch))

        when(steps > Int32(0), work)
        when(steps == Int32(0), lambda: self._give_back(ring, slot, reader.lane >= 0))
        return turn + steps

    @property
    def _unroll(self) -> int:
        """Steps in a pass of the loop: two where they are short, so that what was loaded ahead need not be moved."""
        facts = self.epilogue.plan.facts
        operations = facts.alu_operations + facts.fma_operations + facts.special_operations
        return 2 if operations <= _FEW_OPERATIONS else 1

    def _give_back(self, ring: Ring, slot: Any, condition: Any) -> None:
        """The accumulator has been read by this warp."""
        tcgen05.fence_before()
        barrier, leads = ring.read(slot), condition & (self.reader.lane == 0)
        if ring.config.ctas == 1:
            mbarrier.arrive(barrier, leads)
        else:
            mbarrier.arrive_cluster(barrier, ring.ranks.rank & ~1, leads)

    def _places(self, tile: TileCoordinates, step: Any) -> Fragment:
        return self.reader.places(tile, step, self.epilogue.axis, self.extents.m)

    def _registers(self, bits: list[Any]) -> list[Any]:
        dtype = self.epilogue.plan.accumulator_dtype
        return [unpack([word], dtype, 1, dtype)[0] for word in bits]

    def _steps(self, tile: TileCoordinates) -> Any:
        """Steps with a column inside the problem; none where no row is."""
        run = self.reader.piece.run
        left = (self.extents.n - tile.n0 + (run - 1)) >> (run.bit_length() - 1)
        steps = cutlass.select_(left < self.reader.piece.steps, left, Int32(self.reader.piece.steps))
        inside = (tile.m0 < self.extents.m) & (tile.n0 < self.extents.n)
        return cutlass.select_(inside, steps, Int32(0))


@cute.jit
def _repeat(visit: Any, steps: Int32, unroll: cutlass.Constexpr, pieces: Any, state: Any) -> Any:
    """``visit`` for each step; the state afterwards."""
    for step in cutlass.range(steps, unroll=unroll):
        pieces, state = visit(step, pieces, state)
    return state


def clear(memory: Any, columns: int, warp: Any) -> None:
    """Zeros in this warp's lanes of all accumulators: the product of no positions of K."""
    for column in range(0, columns, LEAST_COLUMNS):
        tcgen05.st_zeros(memory + (warp << 21) + column, LEAST_COLUMNS)


@cute.jit
def run(tail: Tail, ring: Ring, schedule: Schedule, memory: Any, k_tiles: Any) -> None:
    """All tiles. The four epilogue warps call it."""
    config = ring.config
    when(k_tiles == Int32(0), lambda: clear(memory, SLOTS * config.slot_columns, tail.reader.warp))
    slot, parity, steps, index, turn = Int32(0), Int32(0), Int32(0), schedule.first, Int32(0)
    while index < schedule.tiles:
        steps = tail.run(ring, memory + slot * config.slot_columns, slot, parity, schedule.place(index), steps)
        parity = parity ^ slot
        slot = slot ^ (SLOTS - 1)
        index = schedule.following(index, turn, tail.reader.lane == 0)
        turn = turn + 1
    tail.copies.finish()
