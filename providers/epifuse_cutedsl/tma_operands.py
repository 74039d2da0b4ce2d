# SPDX-License-Identifier: Apache-2.0
"""A and B as tensor copies see them: the major axis, extents and strides of a tensor map, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epifuse.arguments import GemmArguments
from epifuse.records import NamedTuple
from epifuse.runtime.tensormap import ALIGNMENT_BYTES, TiledMap
from epifuse.runtime.tensors import Traits

if TYPE_CHECKING:
    from epifuse_cutedsl.padded_copy import PaddedCopy

_LARGEST_STRIDE_BYTES = 1 << 40
MAJORS = ("k", "mn")


class TmaOperand(NamedTuple):
    """``major`` is 'k' or 'mn'; sizes and byte strides as a map of three dimensions wants them, innermost first.

    ``batched`` is False where one matrix serves all batches; the map then has one.
    """

    traits: Traits
    major: str
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    batched: bool

    def tiled_map(self, address: int, box: tuple[int, int, int]) -> TiledMap:
        """The map for copies of ``box`` elements, innermost first."""
        return TiledMap(self.traits.dtype, address, self.sizes, self.strides, box)


def tma_operand(traits: Traits, *, k_last: bool) -> TmaOperand | str:
    """A (``k_last``) or B for tensor copies, or a sentence that says why it cannot move so.

    The major axis has stride 1, K where both do; the other strides and the address are multiples of 16 bytes; strides
    of extents up to 1 do not matter, nor do those of matrices with nothing in them.
    """
    size = traits.dtype.bytes
    k_axis, other_axis = (-1, -2) if k_last else (-2, -1)
    k, other = traits.shape[k_axis], traits.shape[other_axis]
    k_stride, other_stride = traits.strides[k_axis], traits.strides[other_axis]
    batches, batch_stride = (traits.shape[0], traits.strides[0]) if len(traits.shape) == 3 else (1, 0)
    if traits.alignment_bytes < ALIGNMENT_BYTES:
        return f"its address is no multiple of {ALIGNMENT_BYTES} bytes"
    batched = batches > 1 and batch_stride != 0
    if batched and not _fits(batch_stride * size):
        return f"its batches are {batch_stride * size} bytes apart, no multiple of {ALIGNMENT_BYTES}"
    reason = "neither of its axes has stride 1"
    for major, unit, extent, stride, rows in (
        ("k", k_stride, k, other_stride, other),
        ("mn", other_stride, other, k_stride, k),
    ):
        if unit != 1 and extent > 1:
            continue
        walked = rows > 1 and extent > 0
        if walked and not _fits(stride * size):
            reason = f"its rows are {stride * size} bytes apart, no multiple of {ALIGNMENT_BYTES}"
            continue
        row_stride = stride * size if walked else _rounded(extent * size)
        strides = (row_stride, batch_stride * size if batched else _rounded(row_stride * max(rows, 1)))
        sizes = (max(extent, 1), max(rows, 1), batches if batched else 1)
        return TmaOperand(traits, major, sizes, strides, batched)
    return reason


class Route(NamedTuple):
    """How an operand reaches a kernel: ``operand`` lies where the user put it, or is the ``copy``."""

    operand: TmaOperand
    copy: PaddedCopy | None = None


def route_of(traits: Traits, *, k_last: bool, majors: Sequence[str] = MAJORS, rounded: bool = False) -> Route:
    """The route of A (``k_last``) or B to a kernel that takes these majors: what tensor copies cannot move so is copied
    to rows along K; so is what must be ``rounded`` to TF32."""
    found = tma_operand(traits, k_last=k_last)
    if not rounded and not isinstance(found, str) and found.major in majors:
        return Route(found)
    from epifuse_cutedsl.padded_copy import PaddedCopy  # noqa: PLC0415 - most operands are read where they lie

    copy = PaddedCopy(traits, k_last, rounded)
    moved = tma_operand(copy.traits, k_last=k_last)
    assert not isinstance(moved, str)
    assert moved.major in majors
    return Route(moved, copy)


def routes_of(args: GemmArguments, majors: Sequence[str] = MAJORS, *, rounded: bool = False) -> tuple[Route, Route]:
    """The routes of A and B, kept with the arguments."""
    key = (routes_of, tuple(majors), rounded)
    found: tuple[Route, Route] | None = args.memo.get(key)
    if found is None:
        a, b = args.A.traits, args.B.traits
        found = args.memo[key] = (
            route_of(a, k_last=True, majors=majors, rounded=rounded),
            route_of(b, k_last=False, majors=majors, rounded=rounded),
        )
    return found


def _fits(stride_bytes: int) -> bool:
    return 0 < stride_bytes < _LARGEST_STRIDE_BYTES and stride_bytes % ALIGNMENT_BYTES == 0


def _rounded(size_bytes: int) -> int:
    """A stride that is never walked."""
    return min(max(-(-size_bytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES, _LARGEST_STRIDE_BYTES - ALIGNMENT_BYTES)
