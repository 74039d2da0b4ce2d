# SPDX-License-Identifier: Apache-2.0
"""Fragments of A and B for ``mma.sync``, and which positions of the tile their lanes stand for.

A step of the product takes 32 bytes of K, whatever the dtype. With ``t = lane % 4`` and ``g = lane // 4`` a lane holds
four words of each 16-row block of A (rows ``g`` and ``g + 8``, bytes ``4t`` and ``16 + 4t`` of K) and two words of each
8-column block of B (column ``g``). Tiles with rows of K, and 16-bit ones with rows of M or N, come by ``ldmatrix``.
The others are gathered: a lane reads ``width`` neighbouring positions at once and gives them to *different* blocks, so
that block ``j`` holds the positions ``8 width q + width g + e``; the epilogue is told so and nothing is moved for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from epifuse_cutedsl.kernels.ptx import alu, shared
from epifuse_cutedsl.tile.smem import SharedTile

STEP_BYTES = 32


@dataclass(frozen=True)
class Fragments:
    """How a warp reads its ``extent`` positions along M (``is_a``) or N of a shared tile."""

    tile: SharedTile
    is_a: bool
    k_major: bool
    element_bytes: int
    extent: int

    @property
    def gathered(self) -> bool:
        """Whether lanes gather neighbours for different blocks."""
        return not self.k_major and self.element_bytes != 2

    @property
    def width(self) -> int:
        """Neighbouring positions that a lane holds; 1 unless gathered."""
        if not self.gathered:
            return 1
        return 4 if self.extent % 32 == 0 else 2

    @property
    def registers(self) -> int:
        """32-bit registers of one step."""
        return self.extent // 4

    def position(self, index: int) -> tuple[int, int]:
        """``(base, scale)``: position of eight-row group ``index`` is ``base + scale * g``, g the row in the group.

        For A, group ``2 i + h`` is rows ``8 h`` to ``8 h + 7`` of block ``i``; for B, group ``j`` is block ``j``.
        """
        if not self.gathered:
            return 8 * index, 1
        return 8 * self.width * (index // self.width) + index % self.width, self.width

    def lane_offset(self, warp: Any, lane: Any) -> Any:
        """The part of a lane's address that is not known when the kernel is compiled, in bytes of the tile."""
        first = warp * self.extent
        low, bit3, bit4 = lane & 7, (lane >> 3) & 1, lane >> 4
        inner, outer = (bit3, bit4) if self.is_a else (bit4, bit3)
        if self.k_major:
            return self.tile.offset(first + low + inner * 8, outer * 16)
        if not self.gathered:
            return self.tile.offset(low + outer * 8, first * self.element_bytes + inner * 16)
        per_lane = 4 // self.element_bytes
        byte = (first + (lane >> 2) * self.width) * self.element_bytes
        return self.tile.offset((lane & 3) * per_lane, byte)

    def load(self, address: Any, step: int) -> list[Any]:
        """The registers of K step ``step``, by block: four each of A, two each of B."""
        if self.k_major:
            return self._matrices(lambda block: self.tile.step(16 * block, STEP_BYTES * step), address, False)
        if not self.gathered:
            rows = STEP_BYTES // self.element_bytes
            return self._matrices(lambda block: self.tile.step(rows * step, 32 * block), address, True)
        words: list[list[Any]] = []
        for half in range(2):
            found = []
            for q in range(self.extent // (8 * self.width)):
                found += self._gather(address, step, half, q)
            words.append(found)
        if self.is_a:
            return [words[h][2 * i + r] for i in range(self.extent // 16) for h in range(2) for r in range(2)]
        return [words[h][j] for j in range(self.extent // 8) for h in range(2)]

    def _matrices(self, place: Callable[[int], tuple[int, int]], address: Any, transposed: bool) -> list[Any]:
        """16 positions at a time by ``ldmatrix.x4``."""
        registers: list[Any] = []
        for block in range(self.extent // 16):
            turn, displacement = place(block)
            start = address ^ turn if turn else address
            registers += shared.ldmatrix(start, displacement, transposed=transposed)
        return registers

    def _gather(self, address: Any, step: int, half: int, q: int) -> list[Any]:
        """``width`` words: positions ``8 width q + width g + e``, bytes ``16 half + 4 t`` and the three after."""
        row = (STEP_BYTES * step + 16 * half) // self.element_bytes
        byte = 8 * self.width * q * self.element_bytes
        if self.element_bytes == 4:
            turn, displacement = self.tile.step(row, byte)
            start = address ^ turn if turn else address
            return list(shared.ld_shared(start, displacement, count=self.width))
        found = []
        for r in range(4):
            turn, displacement = self.tile.step(row + r, byte)
            start = address ^ turn if turn else address
            if self.width == 4:
                found += shared.ld_shared(start, displacement)
            else:
                found.append(shared.ld_shared_bits(start, 2, displacement))
        return transpose_bytes(found, self.width)


def transpose_bytes(words: list[Any], width: int) -> list[Any]:
    """Word ``e`` of the result has byte ``e`` of each of the four words, for ``e`` below ``width``."""
    pairs = [(0x5140, 0x5410), (0x5140, 0x7632), (0x7362, 0x5410), (0x7362, 0x7632)][:width]
    halves = {}
    for selector in {first for first, _ in pairs}:
        halves[selector] = (alu.prmt(words[0], words[1], selector), alu.prmt(words[2], words[3], selector))
    return [alu.prmt(*halves[first], second) for first, second in pairs]
