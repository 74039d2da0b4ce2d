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
from epifuse_cutedsl.fuse.boxes import PIECE_BUFFERS
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.fuse.convert import unpack
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, Run, TileCoordinates
from epifuse_cutedsl.kernels.copies import Turn, WarpCopies
from epifuse_cutedsl.kernels.ptx import alu, cluster, mbarrier, tcgen05
from epifuse_cutedsl.kernels.sm100.ring import Ring
from epifuse_cutedsl.kernels.sm100.schedule import Schedule
from epifuse_cutedsl.tile.smem import align

_FEW_OPERATIONS = 8.0
"""For an element; where there are more, a group has one step, as two would be long code."""
_ROW_ALIGNMENT_BYTES = 16
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

    def ahead(self, place: int) -> tcgen05.Ahead:
        """Registers for a step's columns: the ``place``-th of those that take turns."""
        piece = self.piece
        split = (piece.thread_columns if piece.pairs else 0) if piece.lanes < WARP else None
        return tcgen05.Ahead(f"ahead{place}_", piece.run, split)

    def address(self, memory: Any, step: Any) -> Any:
        """Where one step's columns lie in the accumulator at ``memory``."""
        return memory + (self.warp << 21) + step * self.piece.run

    def boxes(self, tile: TileCoordinates, step: Any) -> list[tuple[Any, Any, Any]]:
        """Batch, row and column where the warp's part of one step begins, or its parts where half warps have one."""
        piece = self.piece
        m, n = tile.m0 + self.member * piece.lanes, tile.n0 + step * piece.run
        first = (tile.batch, m, n)
        return [first, (tile.batch, m, n + piece.thread_columns)] if piece.pairs else [first]

    def loaded(self, tile: TileCoordinates, step: Any) -> list[tuple[Any, Any, Any]]:
        """The same for operands: half-warps with nothing to do read rows of boxes too, the others' once more."""
        found = self.boxes(tile, step)
        return found * 2 if self.idle else found

    def place_in_boxes(self, axis: str) -> tuple[Any, Any, tuple[tuple[int, int], ...]]:
        """The thread's row and column in the warp's boxes, and how far its runs lie behind: it has a row of boxes along
        N, and an element of each row of those along M."""
        if axis == "n":
            return self.lane, Int32(0), ((0, 0),)
        return Int32(0), self.lane, tuple((column, 0) for column in range(self.piece.run))

    def places(self, tile: TileCoordinates, step: Any, axis: str, m_end: Any) -> Fragment:
        """The runs of one step, without registers. Threads with nothing to do stand below the problem."""
        m, n = tile.m0 + self.row, tile.n0 + self.column + step * self.piece.run
        if self.idle:
            m = cutlass.select_(self.lane < self.piece.lanes, m, m_end)
        if axis == "n":
            return Fragment("n", (Run(0, self.piece.run, m, n, position=0, line=0),))
        columns = range(self.piece.run)
        runs = tuple(Run(i, 1, m, n + i, position=0, line=i) for i in columns)
        return Fragment("m", runs, origin=(m, n), offsets=tuple((0, i) for i in columns))


def rows_begin(epilogue: Any) -> int:
    """Where the kept row vectors lie in a piece's scratch memory: behind what reductions need."""
    return align(epilogue.scratch_bytes + epilogue.step_scratch_bytes, _ROW_ALIGNMENT_BYTES)


@dataclass(frozen=True)
class Accumulator:
    """An accumulator that this warp reads: its tensor memory address, and where to say that it has been read."""

    memory: Any
    read: Any
    paired: bool
    lane: Any

    @classmethod
    def of(cls, ring: Ring, memory: Any, slot: Any, lane: Any) -> Accumulator:
        """That in ``slot``; of a pair, the leader is told."""
        paired = ring.config.ctas == 2
        read = cluster.address(ring.read(slot), ring.ranks.rank & ~1) if paired else ring.read(slot)
        return cls(memory, read, paired, lane)

    def give_back(self, condition: Any) -> None:
        """Where the condition holds, it has been read by this warp."""
        tcgen05.fence_before()
        (mbarrier.arrive_at if self.paired else mbarrier.arrive)(self.read, condition & (self.lane == 0))


@dataclass(frozen=True)
class Tail:
    """What turns accumulators into outputs, while a kernel is traced. ``scratch`` is the piece's shared address."""

    reader: Reader
    epilogue: Any
    parameters: list[Any]
    extents: Extents
    scratch: Any
    copies: WarpCopies

    @property
    def size(self) -> int:
        """Steps of a group, which use one buffer each: two, so that their addresses are constants and one's columns
        are read while the other is worked on; or one."""
        facts = self.epilogue.plan.facts
        operations = facts.alu_operations + facts.fma_operations + facts.special_operations
        folds = any(not reduce.axes[2] for reduce in self.epilogue.plan.reduces)  # a fold over lanes for each column
        short = operations <= _FEW_OPERATIONS and not folds
        return PIECE_BUFFERS if short and self.reader.piece.steps % PIECE_BUFFERS == 0 else 1

    @property
    def ahead(self) -> list[tcgen05.Ahead]:
        """Registers of a group's steps."""
        return [self.reader.ahead(place) for place in range(self.size)]

    def declare(self) -> None:
        """Registers of the whole kernel."""
        for registers in self.ahead:
            registers.declare()

    def run(self, ring: Ring, memory: Any, slot: Any, parity: Any, place: tuple[Any, Any, Any], turn: Any) -> Any:
        """One tile: what can be loaded ahead, then the accumulator, step by step.

        ``turn`` (Int32) is the number of groups of steps before; what it is afterwards.
        """
        batch, m, n = place
        reader, piece, copies = self.reader, self.reader.piece, self.copies
        m0, n0 = reader.origin(m, n)
        tile = TileCoordinates(m0, n0, batch, reader.member * WARP + reader.lane, reader.member, reader.lane)
        facts = self.epilogue.facts._replace(barrier=_FIRST_BARRIER + reader.warp // piece.warps)
        step_scratch = self.scratch + self.epilogue.scratch_bytes
        kept = self.scratch + rows_begin(self.epilogue)
        bound = replace(self.epilogue, facts=facts).bind(self.parameters, tile, self.extents, step_scratch, kept)
        groups = self._groups(tile)
        copies.start(reader.loaded(tile, 0), Turn(turn, 0, self.size), groups > Int32(0))
        first = self.places(tile, Int32(0))
        words, rows, pieces = bound.tile_loads(first), bound.row_loads(), bound.load_step(first)
        mbarrier.wait_parity(ring.made(slot), parity)
        tcgen05.fence_after()
        accumulator = Accumulator.of(ring, memory, slot, reader.lane)
        steps = Steps(self, bound, tile, accumulator, turn, groups)

        def work() -> None:
            steps.start()
            bound.keep_rows(rows)
            state = _repeat(steps.group, groups, pieces, bound.tile_begin(first, words))
            tcgen05.wait_ld()  # nothing is read any more, which only the groups' number tells
            bound.tile_end(bound.reduce_flush(state, self.scratch))

        when(groups > Int32(0), work)
        when(groups == Int32(0), lambda: accumulator.give_back(reader.lane >= 0))
        return turn + groups

    def places(self, tile: TileCoordinates, step: Any) -> Fragment:
        """The runs of one step, without registers."""
        return self.reader.places(tile, step, self.epilogue.axis, self.extents.m)

    def registers(self, bits: list[Any]) -> list[Any]:
        """Accumulators from bits."""
        dtype = self.epilogue.plan.accumulator_dtype
        return [unpack([word], dtype, 1, dtype)[0] for word in bits]

    def _groups(self, tile: TileCoordinates) -> Any:
        """Groups of steps with a column inside the problem; none where no row is."""
        run = self.reader.piece.run * self.size
        most = self.reader.piece.steps // self.size
        left = (self.extents.n - tile.n0 + (run - 1)) >> (run.bit_length() - 1)
        groups = cutlass.select_(left < most, left, Int32(most))
        inside = self.extents.has(tile)
        return cutlass.select_(inside, groups, Int32(0))


@dataclass(frozen=True)
class Steps:
    """The steps of one tile, ``Tail.size`` in a group. ``before`` (Int32): groups before the tile."""

    tail: Tail
    bound: Any
    tile: TileCoordinates
    accumulator: Accumulator
    before: Any
    groups: Any

    def start(self) -> None:
        """Before the first group: its first columns."""
        if self.tail.size > 1:
            self._read(0, Int32(0))

    def group(self, number: Any, pieces: list[Any], state: list[Any]) -> tuple[Any, Any]:
        """One group; ``pieces`` is what ``load_step`` gave for its first step, and afterwards for the next one's."""
        size, more = self.tail.size, number + 1 < self.groups
        for place in range(size):
            turn = Turn(self.before + number, place, size)
            last = place == size - 1
            pieces, state = self._step(number * size + place, turn, more if last else None, pieces, state)
        return pieces, state

    def _step(self, step: Any, turn: Turn, more: Any, pieces: list[Any], state: list[Any]) -> tuple[Any, Any]:
        """One step; ``more``: whether another follows, None if certainly."""
        tail, bound, tile, copies = self.tail, self.bound, self.tile, self.tail.copies
        reader = tail.reader
        registers = self._columns(step, turn, more)
        following = step + 1 if more is None else cutlass.select_(more, step + 1, step)
        ahead = bound.load_step(tail.places(tile, following))
        copies.arrive(turn, reader.loaded(tile, step + 1), more)
        staged = copies.staged(*reader.place_in_boxes(tail.epilogue.axis), turn)
        state = bound.visit(replace(tail.places(tile, step), registers=registers), pieces, state, staged)
        copies.store(reader.boxes(tile, step), turn)
        return ahead, state

    def _columns(self, step: Any, turn: Turn, more: Any) -> list[Any]:
        """The step's accumulators; then the next step's are read, or the accumulator is given back."""
        if turn.size == 1:
            self._read(0, step)
        bits = self.tail.ahead[turn.place].wait()
        if more is None:
            self._read(turn.place + 1, step + 1)
        else:
            self.accumulator.give_back(more == cutlass.Boolean(False))
            if turn.size > 1:
                self._read(0, step + 1, more)
        return self.tail.registers(bits)

    def _read(self, place: int, step: Any, predicate: Any = None) -> None:
        self.tail.ahead[place].start(self.tail.reader.address(self.accumulator.memory, step), predicate)


@cute.jit
def _repeat(visit: Any, count: Int32, pieces: Any, state: Any) -> Any:
    """``visit`` so many times; the state afterwards."""
    for number in cutlass.range(count, unroll=1):
        pieces, state = visit(number, pieces, state)
    return state


def clear(memory: Any, columns: int, warp: Any) -> None:
    """Zeros in this warp's lanes of all accumulators: the product of no positions of K."""
    for column in range(0, columns, LEAST_COLUMNS):
        tcgen05.st_zeros(memory + (warp << 21) + column, LEAST_COLUMNS)


@cute.jit
def run(tail: Tail, ring: Ring, schedule: Schedule, memory: Any, k_tiles: Any) -> None:
    """All tiles. The four epilogue warps call it."""
    config = ring.config
    tail.declare()
    cluster.wait_for_grids_before()
    when(k_tiles == Int32(0), lambda: clear(memory, SLOTS * config.slot_columns, tail.reader.warp))
    slot, parity, steps, index, turn = Int32(0), Int32(0), Int32(0), schedule.first, Int32(0)
    while index < schedule.tiles:
        steps = tail.run(ring, memory + slot * config.slot_columns, slot, parity, schedule.place(index), steps)
        parity = parity ^ slot
        slot = slot ^ (SLOTS - 1)
        index = schedule.following(index, turn, tail.reader.lane == 0)
        turn = turn + 1
    tail.copies.finish()
