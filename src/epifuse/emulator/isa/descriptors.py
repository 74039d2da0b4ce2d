# SPDX-License-Identifier: Apache-2.0
"""Matrix descriptors: where the elements of an MMA operand lie in shared memory.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" (wgmma) and "Shared Memory Descriptor" (tcgen05). In
both, a matrix is made of atoms of 8 rows; `rows` are M or N, the other dimension is K.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..lanes import Array
from ..reports import DescriptorError
from ..shared import SharedMemory

_ADDRESS_BITS = 0x3FFF
_PATTERN_BYTES = 1024
_TCGEN05_SWIZZLES = {0: 0, 2: 128, 4: 64, 6: 32}
_WGMMA_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}


@dataclass(frozen=True)
class Descriptor:
    """A decoded descriptor: offset in shared memory, the two strides and the swizzle width, all in bytes."""

    offset: int
    leading: int
    stride: int
    swizzle: int


def decode_tcgen05(value: int) -> Descriptor:
    """A tcgen05 descriptor. Raises DescriptorError for reserved or unsupported fields."""
    swizzle = value >> 61 & 7
    if value >> 46 & 7 != 1:
        raise DescriptorError(f"matrix descriptor {value:#018x}: bits 46 to 48 must be 0b001")
    if value >> 52 & 1:
        raise DescriptorError(f"matrix descriptor {value:#018x}: absolute leading strides are not executed")
    return _decode(value, _TCGEN05_SWIZZLES.get(swizzle), f"swizzle mode {swizzle}")


def decode_wgmma(value: int) -> Descriptor:
    """A wgmma descriptor. Raises DescriptorError for unsupported fields."""
    return _decode(value, _WGMMA_SWIZZLES[value >> 62 & 3], "")


def _decode(value: int, swizzle: int | None, detail: str) -> Descriptor:
    if swizzle is None:
        raise DescriptorError(f"matrix descriptor {value:#018x}: {detail} is not executed")
    if value >> 49 & 7:
        raise DescriptorError(f"matrix descriptor {value:#018x}: a base offset other than 0 is not executed")
    return Descriptor(
        (value & _ADDRESS_BITS) << 4, (value >> 16 & _ADDRESS_BITS) << 4, (value >> 32 & _ADDRESS_BITS) << 4, swizzle
    )


@lru_cache(maxsize=1024)
def _pattern(phase: int, leading: int, stride: int, swizzle: int, shape: tuple[int, int], k_major: bool) -> Array:
    """16-byte rows, relative to the 1024-byte pattern that the matrix starts in; shape as `_chunks` says."""
    if k_major:
        rows, k_bytes = shape
        row = np.arange(rows, dtype=np.int64)[:, None]
        chunk = np.arange(0, k_bytes, 16, dtype=np.int64)[None, :]
        if swizzle:
            address = row // 8 * stride + row % 8 * swizzle + chunk
        else:
            address = row // 8 * stride + row % 8 * 16 + chunk // 16 * leading
    else:
        row_bytes, k = shape
        depth = np.arange(k, dtype=np.int64)[:, None]
        chunk = np.arange(0, row_bytes, 16, dtype=np.int64)[None, :]
        if swizzle:
            address = chunk // swizzle * leading + chunk % swizzle + depth % 8 * swizzle + depth // 8 * stride
        else:
            address = chunk // 16 * stride + depth % 8 * 16 + depth // 8 * leading
    address = address + phase
    if swizzle:
        mask = swizzle - 16
        address = address ^ (address >> 3 & mask)
    found = address >> 4
    found.setflags(write=False)
    return found


def rows_of(descriptor: Descriptor, rows: int, k: int, element_bytes: int, k_major: bool) -> Array:
    """Indices of the 16-byte rows of an operand: (rows, chunks of K) if K-major, else (k, chunks of rows)."""
    phase = descriptor.offset % _PATTERN_BYTES
    shape = (rows, k * element_bytes) if k_major else (rows * element_bytes, k)
    pattern = _pattern(phase, descriptor.leading, descriptor.stride, descriptor.swizzle, shape, k_major)
    return pattern + ((descriptor.offset - phase) >> 4)


def words_of(indices: Array) -> Array:
    """The words of 16-byte rows, for the shadow."""
    return indices.reshape(-1, 1) * 4 + np.arange(4)


def check_rows(memory: SharedMemory, indices: Array) -> None:
    """Raise MemoryFaultError unless the operand lies inside the CTA's shared memory."""
    low, high = int(indices.min()) * 16, int(indices.max()) * 16 + 16
    memory.check_bounds(low, high, high - low)


def gather(memory: SharedMemory, indices: Array, element_bytes: int, k_major: bool) -> Array:
    """The operand's elements as unsigned integers, shape (rows, k)."""
    chunks = memory.views[8].reshape(-1, 2)[indices]
    matrix = chunks.view(f"u{element_bytes}").reshape(indices.shape[0], -1)
    return matrix if k_major else matrix.T


def clear() -> None:
    """Forget the address patterns."""
    _pattern.cache_clear()
