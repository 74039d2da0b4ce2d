# SPDX-License-Identifier: Apache-2.0
"""Full tensors in shared memory, as tensor copies leave or take them: a fragment's runs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from epifuse_cutedsl.fuse.boxes import CHUNK_BYTES, Box
from epifuse_cutedsl.fuse.fragment import Fragment
from epifuse_cutedsl.kernels.ptx import shared

MATRICES = 4
"""Matrices of 8 by 8 that one instruction moves: four registers of a lane."""
_MATRIX_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Staged:
    """Where the boxes of one piece lie, and which elements of them are the thread's.

    ``row`` and ``column`` (Int32) are the thread's own place in the piece; ``offsets`` says for each run of the
    fragment how far, in rows and columns of accumulators, it lies behind: these have no bit in common with the
    thread's place. ``loads`` (by number of the load) and ``outputs`` (by destination) are shared addresses.
    """

    row: Any
    column: Any
    offsets: tuple[tuple[int, int], ...]
    loads: Mapping[int, Any]
    outputs: Mapping[int, Any]
    sync: Callable[[], None] | None = None
    """What to call between the last read and the first write, where outputs take the place of what was loaded."""
    matrix_row: Any = None
    """Where runs are pairs that lie over the warp as in ``stmatrix`` (PTX ISA, "Warp Level Matrix Instructions"), four
    of ``offsets`` being two matrices of 8 by 8 below one another and two beside them: the row of the first four
    matrices whose address the lane gives, and in ``matrix_column`` its column."""
    matrix_column: Any = None
    behind_bytes: int = 0
    """How far behind those addresses the boxes lie, a multiple of 1024: kept apart, so that one set of addresses does
    for several pieces."""

    def start(self, box: Box, address: Any, halved: bool) -> Any:
        """The (swizzled) address of the thread's first element of a box."""
        column = self.column // 2 if halved else self.column
        return address + box.swizzled(self.row * box.row_bytes + column * box.element_bytes)

    def matrices(self, box: Box, address: Any, halved: bool) -> tuple[Any, list[tuple[int, int, int]]] | None:
        """The lane's (swizzled) address of a row of the first four matrices, and each four's first run, and x and d of
        ``Box.displacement``; None where an instruction for matrices does not move the box."""
        if self.matrix_row is None or halved or box.element_bytes != _MATRIX_ELEMENT_BYTES:
            return None
        place = self.matrix_row * box.row_bytes + self.matrix_column * box.element_bytes
        found = []
        for run in range(0, len(self.offsets), MATRICES):
            turned, displacement = box.displacement(*self.offsets[run])
            found.append((run, turned, displacement + self.behind_bytes))
        return address + box.swizzled(place), found

    def places(self, box: Box, fragment: Fragment, halved: bool) -> list[tuple[int, int, int, int]]:
        """The accesses of a fragment: (run, first element in it, and x and d of ``Box.displacement``)."""
        length = fragment.length // 2 if halved else fragment.length
        found = []
        for run, (row, column) in enumerate(self.offsets):
            for first in range(0, length, width_of(box, length)):
                at = (column // 2 if halved else column) + first
                turned, displacement = box.displacement(row, at)
                found.append((run, first, turned, displacement + self.behind_bytes))
        return found


def width_of(box: Box, length: int) -> int:
    """Elements in one access to a run of ``length``: neighbours in one chunk of 16 bytes."""
    return min(length, CHUNK_BYTES // box.element_bytes)


def read(start: Any, turned: int, displacement: int, size_bytes: int) -> list[Any]:
    """``size_bytes`` (1 to 16, a power of two) as words."""
    address = start ^ turned if turned else start
    if size_bytes < 4:
        return [shared.ld_shared_bits(address, size_bytes, displacement)]
    return list(shared.ld_shared(address, displacement, count=size_bytes // 4))


def write(start: Any, turned: int, displacement: int, size_bytes: int, words: list[Any]) -> None:
    """Write ``size_bytes`` (1 to 16, a power of two) of words."""
    address = start ^ turned if turned else start
    if size_bytes < 4:
        shared.st_shared_bits(address, words[0], size_bytes, displacement)
    else:
        shared.st_shared(address, words, displacement)
