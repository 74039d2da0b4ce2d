# SPDX-License-Identifier: Apache-2.0
"""Tiles of A and B from global to shared memory, whatever the strides, the alignment and the extents.

A tile has rows and, within a row, chunks; a thread keeps its chunks and walks down the rows. Three forms: ``cp.async``
of 16, 8 or 4 bytes along the unit stride; the same of one element (4 or 8 bytes) along any stride; plain loads of
elements below 4 bytes, packed to words, kept in registers while the tile before is multiplied. What lies outside of M,
N and K becomes zero and is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Int64

from epifuse_cutedsl.kernels.ptx import copy, gmem, shared
from epifuse_cutedsl.kernels.sm80.operand import MainTraits, shared_tile
from epifuse_cutedsl.tile.smem import SharedTile

WORD_BYTES = 4


@dataclass(frozen=True)
class CopyShape:
    """How threads share a tile. ``passes`` over rows, ``repeats`` over a row's chunks; all counts are powers of two."""

    tile: SharedTile
    element_bytes: int
    piece_bytes: int
    """Bytes a thread writes to shared memory at once."""
    rows_are_k: bool
    plain: bool
    whole: bool
    threads: int
    rows_first: int
    """Neighbouring threads that take neighbouring rows before the next chunk: 8 where a tile is transposed."""

    @property
    def pieces(self) -> int:
        """Elements a thread moves at once."""
        return self.piece_bytes // self.element_bytes

    @property
    def chunk_threads(self) -> int:
        """Threads beside one another along a row."""
        return min(self.tile.row_bytes // self.piece_bytes, self.threads // self.rows_first)

    @property
    def row_threads(self) -> int:
        """Threads beside one another across rows; a pass goes down by that many rows."""
        return self.threads // self.chunk_threads

    @property
    def repeats(self) -> int:
        """Chunks of one row that a thread takes."""
        return self.tile.row_bytes // (self.piece_bytes * self.chunk_threads)

    @property
    def passes(self) -> int:
        """Rows that a thread takes."""
        return max(1, self.tile.rows // self.row_threads)

    @property
    def some_idle(self) -> bool:
        """Whether there are more threads than pieces."""
        return self.row_threads > self.tile.rows

    def place(self, thread: Any) -> tuple[Any, Any]:
        """The thread's first row and first chunk."""
        low, high = thread % self.rows_first, thread // self.rows_first
        return low + self.rows_first * (high // self.chunk_threads), high % self.chunk_threads


def copy_shape(traits: MainTraits, extent: int, tile_k: int, threads: int, *, tensor: bool) -> CopyShape:
    """The form of copy for an operand's traits."""
    tile = shared_tile(traits, extent, tile_k, tensor=tensor)
    size = traits.dtype.bytes
    transposing = not tensor and traits.major == "k"
    vector = size if transposing else min(traits.vector_bytes, tile.row_bytes)
    plain = vector < WORD_BYTES
    return CopyShape(
        tile=tile,
        element_bytes=size,
        piece_bytes=max(vector, WORD_BYTES),
        rows_are_k=not tensor or traits.major == "mn",
        plain=plain,
        whole=vector == size or traits.whole,
        threads=threads,
        rows_first=min(8, tile_k) if transposing else 1,
    )


def _clamp(value: Any, most: int) -> Any:
    """``min(max(value, 0), most)``."""
    positive = cutlass.select_(value > 0, value, Int32(0))
    return cutlass.select_(positive < most, positive, Int32(most))


class TileCopy:
    """One thread's share in the copies of one operand's tiles, while a kernel is traced.

    The caller carries ``pointer`` (Int64, the first piece of the next tile) and what is left of K round its loop.
    """

    def __init__(
        self, shape: CopyShape, thread: Any, address: Any, origin: Any, extent: Any, stride: Any, stride_k: Any
    ) -> None:
        """``address`` of the batch, the tile's ``origin`` along M or N of ``extent``, strides in elements (Int64)."""
        self.shape = shape
        size = shape.element_bytes
        self.row, self.chunk = shape.place(thread)
        row_stride, column_stride = (stride_k, stride) if shape.rows_are_k else (stride, stride_k)
        self.row_step = row_stride * (shape.row_threads * size)
        self.column_stride = column_stride * size
        self.repeat_step = self.column_stride * (shape.chunk_threads * shape.pieces)
        first_column = self.chunk * shape.pieces
        self.left = extent - origin - (first_column if shape.rows_are_k else self.row)
        start = Int64(self.row) * row_stride + Int64(first_column) * column_stride + Int64(origin) * stride
        self.pointer = address + start * size
        self.k_step = stride_k * size
        self.target = shape.tile.offset(self.row, self.chunk * shape.piece_bytes)
        self.active = self.row < shape.tile.rows if shape.some_idle else None

    def _limits(self, k_left: Any) -> tuple[Any, Any]:
        """What is left along rows and along a row, counted from this thread's first piece."""
        if self.shape.rows_are_k:
            return k_left - self.row, self.left
        return self.left, k_left - self.chunk * self.shape.pieces

    def _pieces(self, pointer: Any) -> list[tuple[int, int, Any]]:
        """``(pass, repeat, address)`` of all pieces."""
        found = []
        for repeat in range(self.shape.repeats):
            address = pointer + self.repeat_step * repeat if repeat else pointer
            for row in range(self.shape.passes):
                found.append((row, repeat, address))
                address = address + self.row_step
        return found

    def _target(self, slot: Any, row: int, repeat: int) -> tuple[Any, int]:
        """Address and displacement in shared memory."""
        shape = self.shape
        turn, displacement = shape.tile.step(row * shape.row_threads, repeat * shape.chunk_threads * shape.piece_bytes)
        address = slot + self.target
        return (address ^ turn if turn else address), displacement

    def issue(self, slot: Any, pointer: Any, k_left: Any, part: int = 0, parts: int = 1) -> None:
        """Start the copies of a tile, or a part of them, into the slot at the shared address ``slot``."""
        shape = self.shape
        rows_left, columns_left = self._limits(k_left)
        step = shape.chunk_threads * shape.pieces
        pieces = self._pieces(pointer)
        for row, repeat, address in pieces[len(pieces) * part // parts : len(pieces) * (part + 1) // parts]:
            inside = rows_left > row * shape.row_threads
            target, displacement = self._target(slot, row, repeat)
            columns = columns_left - repeat * step
            if shape.whole and self.active is None:
                ignore = (rows_left <= row * shape.row_threads) | (columns <= 0)
                copy.cp_async_or_zero(target, address, shape.piece_bytes, ignore, displacement)
            else:
                valid = _clamp(columns, shape.pieces) * shape.element_bytes
                size = cutlass.select_(inside, valid, Int32(0))
                copy.cp_async(target, address, shape.piece_bytes, size, displacement, predicate=self.active)

    def fetch(self, pointer: Any, k_left: Any) -> list[Any]:
        """The words of a tile by plain loads: one register for each piece."""
        shape = self.shape
        rows_left, columns_left = self._limits(k_left)
        words = []
        for row, repeat, address in self._pieces(pointer):
            word = None
            inside = rows_left > row * shape.row_threads
            if self.active is not None:
                inside = inside & self.active
            place = address
            for element in range(shape.pieces):
                here = inside & (columns_left > repeat * shape.chunk_threads * shape.pieces + element)
                bits = gmem.ld_global_bits(place, shape.element_bytes, here)
                place = place + self.column_stride
                word = bits if word is None else word | (bits << (8 * shape.element_bytes * element))
            words.append(word)
        return words

    def deposit(self, slot: Any, words: list[Any]) -> None:
        """Write what ``fetch`` gave into the slot."""
        shape = self.shape
        for index, word in enumerate(words):
            repeat, row = divmod(index, shape.passes)
            target, displacement = self._target(slot, row, repeat)
            shared.st_shared(target, [word], displacement, predicate=self.active)
