# SPDX-License-Identifier: Apache-2.0
"""What an epilogue sees of a kernel: registers of the accumulator, and where in the problem they stand.

A fragment is a list of registers in runs. The registers of a run are neighbours along the plan's axis (``n``: a run
lies in a row; ``m``: in a column). What is known when the kernel is compiled are offsets, lengths, and which runs share
coordinates; the coordinates themselves are device integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """``length`` registers from ``offset`` on, the first of them at row ``m`` and column ``n`` of the problem.

    Runs of equal ``position`` have the same coordinates along the axis at every step of the thread, runs of equal
    ``line`` the same one across it.
    """

    offset: int
    length: int
    m: Any
    n: Any
    position: int
    line: int


@dataclass(frozen=True)
class Fragment:
    """The runs of one step, all of one length; ``registers`` is None where only places are asked for.

    With ``origin`` (row and column, device integers), ``offsets`` says for each run how far, in rows and columns, its
    first register lies behind it: then addresses differ by constants.
    """

    axis: str
    runs: tuple[Run, ...]
    registers: Sequence[Any] | None = None
    origin: tuple[Any, Any] | None = None
    offsets: tuple[tuple[int, int], ...] = ()

    @property
    def length(self) -> int:
        """Registers of a run."""
        return self.runs[0].length

    @cached_property
    def lines(self) -> tuple[int, ...]:
        """The distinct lines, in order."""
        return tuple(dict.fromkeys(run.line for run in self.runs))

    def begins(self, number: int, direction: str) -> tuple[Any, int]:
        """The coordinate along "m" or "n" of a run's first register: a device integer, and what is to be added."""
        run, which = self.runs[number], direction == "n"
        if self.origin is None:
            return (run.n if which else run.m), 0
        return self.origin[which], self.offsets[number][which]

    def along(self, run: Run) -> Any:
        """The coordinate of a run's first register along the axis."""
        return run.n if self.axis == "n" else run.m

    def across(self, run: Run) -> Any:
        """The coordinate of a run across the axis."""
        return run.m if self.axis == "n" else run.n


@dataclass(frozen=True, slots=True)
class TileCoordinates:
    """Where a CTA's tile begins (device integers), and who the thread is among the epilogue's threads."""

    m0: Any
    n0: Any
    batch: Any
    thread: Any
    warp: Any
    lane: Any


@dataclass(frozen=True, slots=True)
class Extents:
    """The problem's extents as device integers (Int32)."""

    m: Any
    n: Any
    batches: Any

    def has(self, tile: TileCoordinates) -> Any:
        """Whether a tile begins inside of the problem."""
        return (tile.m0 < self.m) & (tile.n0 < self.n)
