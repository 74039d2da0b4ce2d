# SPDX-License-Identifier: Apache-2.0
"""A consumer's epilogue: its accumulators, 64 rows by ``epilogue_n`` columns at a time, through its own shared memory.

Each such piece is a tile of its own for the engine, and the warpgroup meets at a named barrier of its own: the two
warpgroups of a CTA never wait for one another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Int32

from epifuse_cutedsl.configs.sm90 import BLOCK_M, WARPGROUP, Sm90Config
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.fuse.fragment import Extents, TileCoordinates
from epifuse_cutedsl.kernels.ptx.asm import emit
from epifuse_cutedsl.kernels.sm80 import stage
from epifuse_cutedsl.tile.stage import StageShape


@dataclass(frozen=True)
class Memory:
    """One warpgroup's own: shared addresses of its staged tile and of its scratch memory, number of its barrier."""

    staged: Any
    scratch: Any
    barrier: Any

    def sync(self) -> None:
        """The warpgroup's threads meet."""
        emit(f"bar.sync {{$r0}}, {WARPGROUP};", (), [self.barrier])


@dataclass(frozen=True)
class StagedTail:
    """What turns accumulators into outputs, while a kernel is traced."""

    config: Sm90Config
    shape: StageShape
    epilogue: Any
    parameters: list[Any]
    extents: Extents
    memory: Memory
    accumulator: str = "float32"

    def tiles(self, batch: Any, m: Any, n: Any, thread: Any) -> list[TileCoordinates]:
        """The pieces of a warpgroup's rows, which begin at (m, n) as the kernel counts them; in the problem's order."""
        return [
            TileCoordinates(
                *self.config.turned((m + block * BLOCK_M, n + first)), batch, thread, thread >> 5, thread & 31
            )
            for block in range(self.config.blocks)
            for first in range(0, self.config.columns, self.config.epilogue_n)
        ]

    def make_barriers(self) -> None:
        """It has no mbarriers."""

    def rows(self, tile: TileCoordinates) -> None:
        """It keeps no row vectors."""

    def keep(self, rows: None) -> None:
        """It keeps no row vectors."""

    def start(self, pieces: list[TileCoordinates]) -> None:
        """Nothing is to be done before a tile's products."""

    def finish(self) -> None:
        """Nothing is left after the last tile."""

    def run(self, product: Any, accumulators: Any, pieces: list[TileCoordinates], ahead: Any, turn: Any) -> None:
        """All pieces; those outside the problem are left out. ``ahead`` is what ``begin`` gave for the first one.

        The first loads of a piece are issued before the piece in front of it is worked on; they know the problem's
        extents and read nothing outside.
        """
        for index, tile in enumerate(pieces):
            begun = ahead
            if index + 1 < len(pieces):
                ahead = self.begin(pieces[index + 1])
            block, piece = divmod(index, self.config.pieces)
            columns = self.config.epilogue_n
            placed = product.placed(tile.thread, accumulators, block, piece * columns, columns)
            placed = placed.transposed if self.config.swapped else placed
            inside = self.extents.has(tile)
            when(inside, lambda tile=tile, placed=placed, begun=begun: self._piece(tile, placed, *begun))

    def begin(self, tile: TileCoordinates) -> tuple[Any, list[Any], list[Any]]:
        """The engine for one piece, and its first loads: none for a piece outside of the problem, as an output may be
        written in the place of a vector that only varies along the other axis."""
        facts = self.epilogue.facts._replace(barrier=self.memory.barrier)
        inside = self.extents.has(tile)
        m, n = (cutlass.select_(inside, extent, Int32(0)) for extent in (self.extents.m, self.extents.n))
        extents = replace(self.extents, m=m, n=n)
        bound = replace(self.epilogue, facts=facts).bind(self.parameters, tile, extents)
        first = stage.places(self.shape, tile, *self.shape.start(tile.thread))
        return bound, bound.tile_loads(first), bound.load_step(first)

    def _piece(
        self, tile: TileCoordinates, placed: stage.Placed, bound: Any, words: list[Any], pieces: list[Any]
    ) -> None:
        """One piece from registers to outputs."""
        shape, memory = self.shape, self.memory
        memory.sync()  # the piece before has been read
        stage.write(shape, memory.staged, placed)
        memory.sync()
        line, place = shape.start(tile.thread)
        state = bound.tile_begin(stage.places(self.shape, tile, line, place), words)
        address = memory.staged + (shape.pitch * line + place) * shape.element_bytes

        def visit(line: Any, address: Any, pieces: list[Any], state: list[Any]) -> tuple[Any, ...]:
            places = stage.places(self.shape, tile, line, place)
            registers = stage.read(shape, address, self.accumulator)
            following = line + shape.lines_per_step
            ahead = cutlass.select_(following < shape.lines, following, line)
            next_pieces = bound.load_step(stage.places(self.shape, tile, ahead, place))
            state = bound.visit(replace(places, registers=tuple(registers)), pieces, state)
            return following, address + shape.lines_per_step * shape.pitch * shape.element_bytes, next_pieces, state

        state = stage.repeat(visit, self._steps(tile), line, address, pieces, state)
        state = bound.reduce_flush(state, memory.scratch)
        bound.tile_end(state)

    def _steps(self, tile: TileCoordinates) -> Any:
        """Steps with a line inside the problem."""
        shape = self.shape
        left = self.extents.m - tile.m0 if shape.axis == "n" else self.extents.n - tile.n0
        steps = (left + (shape.lines_per_step - 1)) >> (shape.lines_per_step.bit_length() - 1)
        return cutlass.select_(steps < shape.steps, steps, Int32(shape.steps))
