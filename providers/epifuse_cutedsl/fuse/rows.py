# SPDX-License-Identifier: Apache-2.0
"""Row vectors of a tile in shared memory, widened once, for kernels whose threads have a row each.

Such a thread would load and widen every column's number for its row alone. Here each thread brings a few of the tile's
columns, for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Boolean, Int32

from epifuse_cutedsl.fuse.convert import bool_as_int, unpack
from epifuse_cutedsl.fuse.facts import NUMBER_BYTES, KernelFacts, kept_numbers
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, TileCoordinates
from epifuse_cutedsl.fuse.load import MemoryLoad, load_elements
from epifuse_cutedsl.kernels.ptx import shared

_WIDEST = 4
"""Numbers of one access."""


class KeptRow:
    """One row vector of a tile at the shared address ``address``; ``halved`` ones have half as many columns."""

    def __init__(self, load: MemoryLoad, address: Any, facts: KernelFacts, tile: TileCoordinates) -> None:
        self.load, self.address, self.facts, self.tile = load, address, facts, tile
        self._parts = kept_numbers(facts) // facts.threads

    def issue(self, extents: Extents) -> list[Any]:
        """Load the thread's columns (zero outside of the problem): the words of each."""
        reach = self.load.reach
        first, end = self.tile.n0 + 0, extents.n
        if self.load.spread.halved:
            first, end = first // 2, end // 2
        words: list[Any] = []
        for part in range(self._parts):
            n = first + self.tile.thread + part * self.facts.threads
            words += load_elements(reach.at(Int32(0), n), 0, reach.traits.dtype.bytes, 1, n < end)
        return words

    def keep(self, words: Sequence[Any]) -> None:
        """Write what ``issue`` loaded, as numbers of the compute dtype."""
        for part, word in enumerate(words):
            number = unpack([word], self.load.reach.traits.dtype, 1, self.load.load.compute_dtype)[0]
            number = bool_as_int(number) if isinstance(number, Boolean) else number
            place = self.address + self.tile.thread * NUMBER_BYTES
            shared.st_shared(place, [number], part * self.facts.threads * NUMBER_BYTES)

    def scalars(self, fragment: Fragment) -> list[Any]:
        """The numbers at a fragment's run, of which it has one."""
        halved, dtype = self.load.spread.halved, self.load.load.compute_dtype.name
        column = fragment.runs[0].n - self.tile.n0
        length = fragment.length // 2 if halved else fragment.length
        address = self.address + (column // 2 if halved else column) * NUMBER_BYTES
        kind, found = ("f32" if dtype == "float32" else "b32"), []
        for place in range(0, length, _WIDEST):
            found += shared.ld_shared(address, place * NUMBER_BYTES, kind=kind, count=_WIDEST)
        return [value != Int32(0) for value in found] if dtype == "bool" else found
