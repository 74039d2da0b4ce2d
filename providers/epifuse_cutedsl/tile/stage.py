# SPDX-License-Identifier: Apache-2.0
"""The staged accumulator tile: how it lies in shared memory, and which runs of it each thread of the epilogue reads.

The tile has lines along the plan's axis ('n': a line is a row of the tile, 'm': a column). A warp reads whole lines; a
thread keeps its places in a line over all steps, and each of its runs is ``length`` neighbours.
"""

from __future__ import annotations

from typing import Any

from epifuse.records import NamedTuple

WARP = 32
PAD_BYTES = {"n": 32, "m": 16}
"""After each line, so that the pairs or single values that ``mma.sync`` leaves a lane meet in different banks."""


class StageShape(NamedTuple):
    """The staged tile and how ``threads`` threads read it."""

    tile_m: int
    tile_n: int
    axis: str
    element_bytes: int
    threads: int
    run: int
    """Neighbours in a run; see ``run_that_fits``."""

    @property
    def line(self) -> int:
        """Elements in a line."""
        return self.tile_n if self.axis == "n" else self.tile_m

    @property
    def lines(self) -> int:
        """Lines in the tile."""
        return self.tile_m if self.axis == "n" else self.tile_n

    @property
    def pitch(self) -> int:
        """Elements from one line to the next."""
        return self.line + PAD_BYTES[self.axis] // self.element_bytes

    @property
    def bytes(self) -> int:
        """Shared memory of the staged tile."""
        return self.lines * self.pitch * self.element_bytes

    @property
    def lanes(self) -> int:
        """Lanes of a warp that share a line."""
        return min(WARP, self.line // self.run)

    @property
    def runs(self) -> int:
        """Runs of one thread in a line, ``lanes * run`` elements apart."""
        return self.line // (self.run * self.lanes)

    @property
    def lines_per_step(self) -> int:
        """Lines that all threads read in a step."""
        return self.threads // self.lanes

    @property
    def steps(self) -> int:
        """Steps that the whole tile takes."""
        return self.lines // self.lines_per_step

    def offset(self, m: Any, n: Any) -> Any:
        """Where element (m, n) lies, in bytes."""
        along, across = (n, m) if self.axis == "n" else (m, n)
        return (across * self.pitch + along) * self.element_bytes

    def start(self, thread: Any) -> tuple[Any, Any]:
        """The thread's first line and its first place in a line."""
        return thread // self.lanes, (thread % self.lanes) * self.run


def run_that_fits(tile_m: int, tile_n: int, axis: str, threads: int, wanted: int) -> int:
    """The longest run, a power of two and at most ``wanted``, with which every thread has a run in every step."""
    line = tile_n if axis == "n" else tile_m
    run = wanted
    while run > 1 and (line % run or (line // run < WARP and WARP % (line // run)) or tile_m * tile_n < threads * run):
        run //= 2
    return run
