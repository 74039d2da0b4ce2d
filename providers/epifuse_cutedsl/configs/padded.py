# SPDX-License-Identifier: Apache-2.0
"""How a copy to padded rows along K reads its operand: along which axis, and how many elements at once."""

from __future__ import annotations

from epifuse.records import NamedTuple

TILE_BYTES = 128
"""A tile's extent along K, and along M or N, in bytes: what a warp reads and what it writes are whole cache lines."""
THREADS = 256
CHUNK_BYTES = 16
"""Of a row of the copy, what a thread writes at once."""
WORD_BYTES = 4
PITCH_BYTES = TILE_BYTES + WORD_BYTES


class PaddedForm(NamedTuple):
    """What the copy kernel is compiled for. ``along_k``: neighbours along K are read together, else those along M or N.

    ``words``: neighbours fill aligned words of 4 bytes, as many as there are; else each element is read by itself.
    ``rounded``: float32 is rounded to TF32, which tensor cores would cut off.
    """

    element_bytes: int
    along_k: bool
    words: bool
    rounded: bool = False

    @property
    def tile(self) -> int:
        """Elements of a tile along either axis."""
        return TILE_BYTES // self.element_bytes

    @property
    def group(self) -> int:
        """Elements that one load brings."""
        return WORD_BYTES // self.element_bytes if self.words else 1
