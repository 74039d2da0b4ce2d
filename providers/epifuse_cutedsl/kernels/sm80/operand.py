# SPDX-License-Identifier: Apache-2.0
"""What is known of A and B when a kernel is compiled."""

from __future__ import annotations

from typing import NamedTuple

from epifuse.dtypes import DType
from epifuse_cutedsl.tile.smem import SharedTile, gathered, padded, rowwise


class MainTraits(NamedTuple):
    """One operand: its dtype, the axis of its shared tiles, and how wide its global memory can be read.

    ``major`` is 'k' where K is the faster axis, 'mn' where M (of A) or N (of B) is. ``vector_bytes`` divides the base
    address, the strides of the other axes and of batches, in bytes; it is one element's size where ``unit`` is False,
    which says that the stride of the major axis is not 1. ``whole`` says that the extent of the
    major axis is a multiple of ``vector_bytes``, so that no access is valid in part.
    """

    dtype: DType
    major: str
    vector_bytes: int
    unit: bool = True
    whole: bool = False

    def check(self) -> None:
        """Assert what the fields promise."""
        assert self.major in ("k", "mn")
        assert self.vector_bytes in (1, 2, 4, 8, 16)
        assert self.vector_bytes >= self.dtype.bytes
        assert self.unit or self.vector_bytes == self.dtype.bytes


def shared_tile(traits: MainTraits, extent: int, tile_k: int, *, tensor: bool) -> SharedTile:
    """The shared tile of ``extent`` positions along M or N and ``tile_k`` along K.

    Tensor cores take either major as it is, the plain path takes rows of K only.
    """
    traits.check()
    size = traits.dtype.bytes
    if not tensor:
        return padded(tile_k, extent * size)
    if traits.major == "k":
        return rowwise(extent, tile_k * size)
    if size == 2:
        return rowwise(tile_k, extent * size)
    return gathered(tile_k, extent * size, 4 // size)
