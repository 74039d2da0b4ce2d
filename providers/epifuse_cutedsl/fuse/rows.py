# SPDX-License-Identifier: Apache-2.0
"""Row vectors in shared memory, widened once for a tile, or for several beside one another.

A thread would load and widen the numbers of all its columns for itself, though others have the same columns. Here each
thread brings a few of them, for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import Boolean, Int32

from epifuse_cutedsl.fuse.convert import bool_as_int, unpack
from epifuse_cutedsl.fuse.facts import NUMBER_BYTES, KernelFacts
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, TileCoordinates
from epifuse_cutedsl.fuse.load import MemoryLoad, load_elements
from epifuse_cutedsl.fuse.values import Frame
from epifuse_cutedsl.kernels.ptx import shared

_WIDEST = 4
"""Numbers of one access."""


class KeptRow:
    """One row vector at the shared address ``address``; ``halved`` ones have half as many columns. ``tile`` begins
    ``before`` columns behind the first one."""

    def __init__(
        self, load: MemoryLoad, address: Any, facts: KernelFacts, tile: TileCoordinates, before: int = 0
    ) -> None:
        self.load, self.address, self.facts, self.tile, self.before = load, address, facts, tile, before
        self._columns = facts.kept_columns // 2 if load.spread.halved else facts.kept_columns
        self._parts = -(-self._columns // facts.threads)

    def issue(self, extents: Extents) -> list[Any]:
        """Load the thread's columns (zero outside of the problem): the words of each. The tile is the first one.

        Nothing that no row of the tile needs, no columns behind those that are kept: where the vector is an output of
        one row, others may be writing there.
        """
        reach, threads = self.load.reach, self.facts.threads
        first, end = self.tile.n0 + 0, extents.n
        if self.load.spread.halved:
            first, end = first // 2, end // 2
        end = cutlass.select_(self.tile.m0 < extents.m, end, Int32(0))
        words: list[Any] = []
        for part in range(self._parts):
            column = self.tile.thread + part * threads
            inside = first + column < end
            if (part + 1) * threads > self._columns:
                inside = inside & (column < self._columns)
            words += load_elements(reach.at(Int32(0), first + column), 0, reach.traits.dtype.bytes, 1, inside)
        return words

    def keep(self, words: Sequence[Any]) -> None:
        """Write what ``issue`` loaded, as numbers of the compute dtype."""
        for part, word in enumerate(words):
            number = unpack([word], self.load.reach.traits.dtype, 1, self.load.load.compute_dtype)[0]
            number = bool_as_int(number) if isinstance(number, Boolean) else number
            place = self.address + self.tile.thread * NUMBER_BYTES
            shared.st_shared(place, [number], part * self.facts.threads * NUMBER_BYTES)

    def scalars(self, frame: Frame) -> list[Any]:
        """The numbers at a fragment's places, in the order of the layout's representatives."""
        fragment, spread, dtype = frame.fragment, self.load.spread, self.load.load.compute_dtype.name
        kind = "f32" if dtype == "float32" else "b32"
        first = fragment.begins(0, "n")[0] - self.tile.n0
        address = self.address + (first // 2 if spread.halved else first) * NUMBER_BYTES
        places = self._places(frame)
        width, found = self._width(fragment), []
        for behind in places[::width]:
            found += shared.ld_shared(address, behind * NUMBER_BYTES, kind=kind, count=width)
        return [value != Int32(0) for value in found] if dtype == "bool" else found

    def _places(self, frame: Frame) -> list[int]:
        """How many numbers behind the fragment's origin each representative's one lies."""
        fragment, spread = frame.fragment, self.load.spread
        found = []
        for run, place in frame.layout(spread).representatives:
            ahead = fragment.begins(run, "n")[1] + self.before
            found.append((ahead // 2 if spread.halved else ahead) + place)
        return found

    def _width(self, fragment: Fragment) -> int:
        """Numbers of one access: neighbours in a run, or in as many runs where each is one column of a step's."""
        if fragment.axis == "m":
            return min(_WIDEST, len(fragment.lines))
        return min(_WIDEST, fragment.length // 2 if self.load.spread.halved else fragment.length)
