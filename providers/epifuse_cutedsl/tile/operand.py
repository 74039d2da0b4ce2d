# SPDX-License-Identifier: Apache-2.0
"""A K tile of A or B as tensor copies leave it in shared memory for matrix descriptors with 128-byte swizzle."""

from __future__ import annotations

from typing import Any

from epifuse.records import NamedTuple

SWIZZLE_BYTES = 128
"""What the swizzle spans: a row of a box."""
ATOM_ROWS = 8
ATOM_BYTES = ATOM_ROWS * SWIZZLE_BYTES
"""From 8 rows to the next 8; tiles and boxes lie on multiples of it."""
INSTRUCTION_K_BYTES = 32
"""Bytes of K that one product takes of a K-major operand."""


class OperandTile(NamedTuple):
    """``extent`` positions along M or N by ``k_bytes`` bytes of K.

    K-major: boxes beside one another along K, whose rows are positions with 128 bytes of K each. MN-major: boxes beside
    one another along M or N, each with rows of 128 bytes of M or N, one for each element of K; the last box may have
    more positions than the tile.
    """

    extent: int
    element_bytes: int
    k_major: bool
    parts: int = 1
    """CTAs that share the tile: each copies that part of every box's rows, for all of them."""
    k_bytes: int = SWIZZLE_BYTES

    @property
    def row_elements(self) -> int:
        """Elements in a row of a box."""
        return SWIZZLE_BYTES // self.element_bytes

    @property
    def box_rows(self) -> int:
        """Rows of a box."""
        return self.extent if self.k_major else self.k_bytes // self.element_bytes

    @property
    def part_rows(self) -> int:
        """Rows of a box that one copy brings."""
        return self.box_rows // self.parts

    @property
    def box_bytes(self) -> int:
        """From one box to the next."""
        return -(-self.box_rows // ATOM_ROWS) * ATOM_BYTES

    @property
    def boxes(self) -> int:
        """Boxes of a K tile."""
        return self.k_bytes // SWIZZLE_BYTES if self.k_major else -(-self.extent // self.row_elements)

    @property
    def bytes(self) -> int:
        """Shared memory of a K tile."""
        return self.boxes * self.box_bytes

    @property
    def copied_bytes(self) -> int:
        """What the copies of a K tile bring, those of all CTAs that share it together."""
        return self.boxes * self.box_rows * SWIZZLE_BYTES

    def edge(self, extent: int) -> OperandTile:
        """The tile whose boxes are what is left of this one's at the end of an operand of ``extent`` positions: of the
        one part that is copied neither whole nor not at all."""
        rows = extent % self.part_rows
        return self._replace(extent=rows, parts=1) if self.k_major and rows else self

    @property
    def leading_bytes(self) -> int:
        """The descriptor's leading offset: from one box to the next, if MN-major; else it has no meaning."""
        return 0 if self.k_major else self.box_bytes

    @property
    def steps(self) -> int:
        """Products along K."""
        return self.k_bytes // INSTRUCTION_K_BYTES

    def step_bytes(self, step: int) -> int:
        """Where the positions of K of product number ``step`` begin."""
        if not self.k_major:
            return step * (INSTRUCTION_K_BYTES // self.element_bytes) * SWIZZLE_BYTES
        box, place = divmod(step * INSTRUCTION_K_BYTES, SWIZZLE_BYTES)
        return box * self.box_bytes + place

    def position_bytes(self, position: int) -> int:
        """Where a position of M or N begins: a multiple of 8; of a row's elements in an MN-major tile."""
        assert position % (ATOM_ROWS if self.k_major else self.row_elements) == 0
        return position * SWIZZLE_BYTES if self.k_major else position // self.row_elements * self.box_bytes

    def place(self, box: int, origin: Any, k: Any) -> list[Any]:
        """Where a box begins in the operand, innermost first: ``origin`` along M or N, ``k`` along K (ints or device
        integers)."""
        behind = box * self.row_elements
        return [k + behind, origin] if self.k_major else [origin + behind, k]

    @property
    def copy_box(self) -> tuple[int, int, int]:
        """The box of the operand's tensor map, innermost dimension first, in elements."""
        return (self.row_elements, self.part_rows, 1)
