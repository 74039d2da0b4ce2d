# SPDX-License-Identifier: Apache-2.0
"""A consumer's epilogue: its accumulators, 64 rows by ``epilogue_n`` columns at a time, through its own shared memory.

Each such piece is a tile of its own for the engine, and the warpgroup meets at a named barrier of its own: the two
warpgroups of a CTA never wait for one another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.configs.sm90 import BLOCK_M, WARPGROUP, Sm90Config
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, Run, TileCoordinates
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
class Tail:
    """What turns accumulators into outputs, while a kernel is traced."""

    config: Sm90Config
    shape: StageShape
    epilogue: Any
    parameters: list[Any]
    extents: Extents
    memory: Memory

    def run(self, product: Any, accumulators: Any, batch: Any, m: Any, n: Any, thread: Any) -> None:
        """All pieces of a warpgroup's rows, which begin at (m, n); those outside the problem are left out."""
        for block in range(self.config.blocks):
            for piece in range(self.config.pieces):
                first = piece * self.config.epilogue_n
                tile = TileCoordinates(m + block * BLOCK_M, n + first, batch, thread, thread >> 5, thread & 31)
                placed = product.placed(thread, accumulators, block, first, self.config.epilogue_n)
                inside = (tile.m0 < self.extents.m) & (tile.n0 < self.extents.n)
                when(inside, lambda tile=tile, placed=placed: self._piece(tile, placed))

    def _piece(self, tile: TileCoordinates, placed: stage.Placed) -> None:
        """The hooks for one piece."""
        shape, memory = self.shape, self.memory
        facts = replace(self.epilogue.facts, barrier=memory.barrier)
        bound = replace(self.epilogue, facts=facts).bind(self.parameters, tile, self.extents)
        first = self._places(tile, *shape.start(tile.thread))
        state = bound.tile_begin(first)
        pieces = bound.load_step(first)
        memory.sync()  # the piece before has been read
        stage.write(shape, memory.staged, placed)
        memory.sync()
        line, place = shape.start(tile.thread)
        address = memory.staged + (shape.pitch * line + place) * shape.element_bytes

        def visit(line: Any, address: Any, pieces: list[Any], state: list[Any]) -> tuple[Any, ...]:
            places = self._places(tile, line, place)
            registers = stage.read(shape, address, "float32")
            following = line + shape.lines_per_step
            ahead = cutlass.select_(following < shape.lines, following, line)
            next_pieces = bound.load_step(self._places(tile, ahead, place))
            state = bound.visit(replace(places, registers=tuple(registers)), pieces, state)
            return following, address + shape.lines_per_step * shape.pitch * shape.element_bytes, next_pieces, state

        state = _repeat(visit, self._steps(tile), line, address, pieces, state)
        state = bound.reduce_flush(state, memory.scratch)
        bound.tile_end(state)

    def _places(self, tile: TileCoordinates, line: Any, place: Any) -> Fragment:
        """The runs of one step, without registers."""
        shape = self.shape
        runs = []
        for index in range(shape.runs):
            along = place + index * shape.lanes * shape.run
            m, n = (line, along) if shape.axis == "n" else (along, line)
            runs.append(Run(index * shape.run, shape.run, tile.m0 + m, tile.n0 + n, position=index, line=0))
        return Fragment(shape.axis, tuple(runs))

    def _steps(self, tile: TileCoordinates) -> Any:
        """Steps with a line inside the problem."""
        shape = self.shape
        left = self.extents.m - tile.m0 if shape.axis == "n" else self.extents.n - tile.n0
        steps = (left + (shape.lines_per_step - 1)) // shape.lines_per_step
        return cutlass.select_(steps < shape.steps, steps, Int32(shape.steps))


@cute.jit
def _repeat(visit: Any, steps: Int32, line: Any, address: Any, pieces: Any, state: Any) -> Any:
    """``visit`` ``steps`` times; the state afterwards."""
    for _ in cutlass.range(steps, unroll=1):
        line, address, pieces, state = visit(line, address, pieces, state)
    return state
