# SPDX-License-Identifier: Apache-2.0
"""A K tile of A or B as tensor copies leave it in shared memory for matrix descriptors with 128-byte swizzle."""

from __future__ import annotations

from typing import NamedTuple

SWIZZLE_BYTES = 128
"""What the swizzle spans: a row of a box, and a K tile's bytes of K."""
ATOM_ROWS = 8
ATOM_BYTES = ATOM_ROWS * SWIZZLE_BYTES
"""From 8 rows to the next 8; tiles and boxes lie on multiples of it."""
INSTRUCTION_K_BYTES = 32
"""Bytes of K that one product takes of a K-major operand."""


class OperandTile(NamedTuple):
    """``extent`` positions along M or N by 128 bytes of K.

    K-major: one box whose rows are positions, 128 bytes of K each. MN-major: boxes beside one another, each with rows
    of 128 bytes of M or N, one for each element of K; the last box may have more positions than the tile.
    """

    extent: int
    element_bytes: int
    k_major: bool
    parts: int = 1
    """CTAs that share the tile: each copies that part of every box's rows, for all of them."""

    @property
    def row_elements(self) -> int:
        """Elements in a row of a box."""
        return SWIZZLE_BYTES // self.element_bytes

    @property
    def box_rows(self) -> int:
        """Rows of a box."""
        return self.extent if self.k_major else self.row_elements

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
        return 1 if self.k_major else -(-self.extent // self.row_elements)

    @property
    def bytes(self) -> int:
        """Shared memory of a K tile."""
        return self.boxes * self.box_bytes

    @property
    def copied_bytes(self) -> int:
        """What the copies of a K tile bring, those of all CTAs that share it together."""
        return self.boxes * self.box_rows * SWIZZLE_BYTES

    @property
    def leading_bytes(self) -> int:
        """The descriptor's leading offset: from one box to the next, if MN-major; else it has no meaning."""
        return 0 if self.k_major else self.box_bytes

    @property
    def step_bytes(self) -> int:
        """From one instruction's positions of K to the next one's."""
        return INSTRUCTION_K_BYTES if self.k_major else INSTRUCTION_K_BYTES // self.element_bytes * SWIZZLE_BYTES

    @property
    def copy_box(self) -> tuple[int, int, int]:
        """The box of the operand's tensor map, innermost dimension first, in elements."""
        return (self.row_elements, self.part_rows, 1)
