# SPDX-License-Identifier: Apache-2.0
"""A tile in shared memory: its swizzle and its bytes, and how much of it a CTA can have."""

from __future__ import annotations

from typing import Any

from epifuse.records import NamedTuple

KIB = 1024
CHUNK_BYTES = 16
"""What one access moves at most, and what a swizzle moves as one piece."""

ALIGNMENT_BYTES = 1024
"""Of every tile, so that the exclusive-or below never reaches bits that come from the tile's address."""

# Shared memory a CTA may have, by compute capability (CUDA programming guide, technical specifications).
_LIMITS = {80: 163, 87: 163, 90: 227, 100: 227, 101: 227, 103: 227, 110: 227}
_LIMIT_OTHERS = 99


def limit_bytes(cc: int) -> int:
    """Bytes of dynamic shared memory that one CTA can have."""
    return _LIMITS.get(cc, _LIMIT_OTHERS) * KIB


def align(size_bytes: int, to: int = ALIGNMENT_BYTES) -> int:
    """The next multiple of ``to``."""
    return -(-size_bytes // to) * to


def resident_bytes(cc: int, ctas: int) -> int:
    """Bytes of dynamic shared memory that each of ``ctas`` CTAs on one SM can have; the system takes 1 KiB of each."""
    return min(limit_bytes(cc), (limit_bytes(cc) + KIB) // ctas - KIB)


class Swizzle(NamedTuple):
    """Chunk ``c`` of row ``r`` lies at chunk ``c ^ f(r)``, where ``f(r) = ((r >> shift) & mask) << left``.

    ``f(r ^ s) == f(r) ^ f(s)``: what depends on the lane and what is known to the compiler can be combined.
    """

    shift: int = 0
    mask: int = 0
    left: int = 0

    def of(self, row: Any) -> Any:
        """``f(row)``; 0 where there is no swizzle."""
        return ((row >> self.shift) & self.mask) << self.left if self.mask else 0


class SharedTile(NamedTuple):
    """``rows`` rows of ``row_bytes`` useful bytes, ``pitch_bytes`` apart."""

    rows: int
    row_bytes: int
    pitch_bytes: int
    swizzle: Swizzle = Swizzle()

    @property
    def bytes(self) -> int:
        """Bytes the tile takes, a multiple of the alignment."""
        return align(self.rows * self.pitch_bytes)

    def offset(self, row: Any, byte: Any) -> Any:
        """Where byte ``byte`` of row ``row`` lies."""
        plain = row * self.pitch_bytes
        turn = self.swizzle.of(row)
        return plain + byte if isinstance(turn, int) and turn == 0 else plain + (byte ^ (turn * CHUNK_BYTES))

    def step(self, rows: int, byte: int = 0) -> tuple[int, int]:
        """``(x, d)`` with ``offset(r + rows, b + byte) == (offset(r, b) ^ x) + d``.

        Holds where ``r`` and ``rows`` have no bit in common, nor ``b`` and ``byte``, and where, with a swizzle,
        ``pitch_bytes`` is a power of two. So one exclusive-or, often with 0, and a displacement in the instruction
        make an address.
        """
        if not self.swizzle.mask:
            return 0, rows * self.pitch_bytes + byte
        return byte ^ (self.swizzle.of(rows) * CHUNK_BYTES), rows * self.pitch_bytes


def rowwise(rows: int, row_bytes: int) -> SharedTile:
    """For ``ldmatrix``: the same chunk of eight successive rows lies in eight different groups of four banks."""
    bits = (min(row_bytes, 128) // CHUNK_BYTES).bit_length() - 1
    return SharedTile(rows, row_bytes, row_bytes, Swizzle(3 - bits, (1 << bits) - 1) if bits > 0 else Swizzle())


def gathered(rows: int, row_bytes: int, rows_per_lane: int) -> SharedTile:
    """For lanes that read, four lanes apart, rows ``rows_per_lane`` apart: two chunks of each of four such rows meet
    in different banks."""
    mask = min(3, row_bytes // (2 * CHUNK_BYTES) - 1)
    swizzle = Swizzle(rows_per_lane.bit_length() - 1, mask, 1) if mask > 0 else Swizzle()
    return SharedTile(rows, row_bytes, row_bytes, swizzle)


def padded(rows: int, row_bytes: int) -> SharedTile:
    """A chunk of padding after each row: for element-wise writes across rows."""
    return SharedTile(rows, row_bytes, row_bytes + CHUNK_BYTES)
