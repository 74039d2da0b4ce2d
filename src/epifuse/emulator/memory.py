# SPDX-License-Identifier: Apache-2.0
"""Memory that kernels address by raw pointers: host memory standing for global memory (PTX ISA, "State Spaces")."""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from .lanes import Array
from .reports import MemoryFaultError

SHARED_WINDOW = 0x0F00_0000_0000_0000
"""Generic addresses of shared memory start here; no host pointer lies there."""
LOCAL_WINDOW = 0x0E00_0000_0000_0000
"""Generic addresses of each thread's local memory start here, and end where shared memory's start."""


@dataclass(frozen=True)
class Allocation:
    """A registered range of host memory; `data` views it as bytes."""

    address: int
    size_bytes: int
    name: str
    data: Array

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.address + self.size_bytes


def host_bytes(address: int, size_bytes: int) -> Array:
    """Host memory as a writable array of bytes."""
    if size_bytes == 0:
        return np.zeros(0, np.uint8)
    buffer: Any = (ctypes.c_uint8 * size_bytes).from_address(address)
    found: Array = np.frombuffer(buffer, np.uint8)
    return found


class HostMemory:
    """The ranges of host memory that kernels may touch.

    Ranges may overlap, and one may be registered several times; each needs its own `unregister`. Where nothing was
    ever registered, every address is allowed.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._merged: list[Allocation] = []
        self._starts: list[int] = []
        self._used = False

    def register(self, address: int, size_bytes: int, name: str = "") -> None:
        """Allow `size_bytes` bytes from `address`; reports call them `name`."""
        key = (address, size_bytes)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._names[key] = name or self._names.get(key, "")
        self._used = True
        self._rebuild()

    def unregister(self, address: int) -> None:
        """Take back one registration that starts at `address`, the largest; KeyError if there is none."""
        key = max(key for key in self._counts if key[0] == address) if self._counts else None
        if key is None:
            raise KeyError(address)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key], self._names[key]
        self._rebuild()

    @property
    def unrestricted(self) -> bool:
        """Whether every address is allowed, because nothing was ever registered."""
        return not self._used

    def _rebuild(self) -> None:
        merged: list[tuple[int, int, str]] = []
        for (address, size), name in sorted(self._names.items()):
            if merged and address < merged[-1][1] and size:
                start, end, label = merged[-1]
                joined = label if name in label.split("+") else f"{label}+{name}"
                merged[-1] = (start, max(end, address + size), joined)
            elif size:
                merged.append((address, address + size, name))
        self._merged = [Allocation(a, e - a, n, host_bytes(a, e - a)) for a, e, n in merged]
        self._starts = [allocation.address for allocation in self._merged]

    def find(self, address: int) -> Allocation | None:
        """The merged range that holds an address."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position >= 0 and address < self._merged[position].end:
            return self._merged[position]
        return None

    def span(self, address: int, size_bytes: int) -> Array:
        """Bytes of one contiguous access. Raises MemoryFaultError outside every range."""
        if self._used:
            allocation = self.find(address)
            if allocation is not None and address + size_bytes <= allocation.end:
                offset = address - allocation.address
                return allocation.data[offset : offset + size_bytes]
            raise MemoryFaultError(self._outside(address, size_bytes))
        if address < 4096:
            raise MemoryFaultError(f"global access of {size_bytes} bytes at {address:#x}, a null pointer")
        return host_bytes(address, size_bytes)

    def gather(self, addresses: Array, size_bytes: int, count: int) -> Array:
        """Loads `count` elements of `size_bytes` bytes (1 to 8) from each address: shape (lanes, count)."""
        dtype: Any = f"u{size_bytes}"
        found = self._one_range(addresses, size_bytes * count)
        if found is None:
            rows = [self._span_of(index, int(address), size_bytes * count) for index, address in enumerate(addresses)]
            return np.stack(rows).view(dtype) if rows else np.zeros((0, count), dtype)
        view, offsets = found
        return self._typed(view, size_bytes)[self._indices(offsets, size_bytes, count)]

    def scatter(self, addresses: Array, values: Array) -> None:
        """Stores the rows of `values`, shape (lanes, count), one at each address; a higher lane wins a clash."""
        size_bytes, count = values.itemsize, values.shape[1]
        found = self._one_range(addresses, size_bytes * count)
        if found is None:
            for index, (address, row) in enumerate(zip(addresses, values, strict=True)):
                span = self._span_of(index, int(address), size_bytes * count)
                span[:] = np.ascontiguousarray(row).view(np.uint8)
            return
        view, offsets = found
        self._typed(view, size_bytes)[self._indices(offsets, size_bytes, count)] = values

    def _span_of(self, position: int, address: int, size_bytes: int) -> Array:
        try:
            return self.span(address, size_bytes)
        except MemoryFaultError as error:
            error.position = position
            raise

    def _one_range(self, addresses: Array, size_bytes: int) -> tuple[Array, Array] | None:
        if addresses.size == 0:
            return None
        low, high = int(addresses.min()), int(addresses.max()) + size_bytes
        if self._used:
            allocation = self.find(low)
            if allocation is None or high > allocation.end:
                return None
            base = allocation.address & ~15
            lead = allocation.address - base
            if lead or allocation.size_bytes % 8:
                # Typed views need a whole number of elements from an aligned start.
                base, size = low & ~15, -(-(high - (low & ~15)) // 8) * 8
                return host_bytes(base, size), addresses - np.uint64(base)
            return allocation.data, addresses - np.uint64(base)
        if low < 4096 or high - low > 1 << 30:
            return None
        base = low & ~15
        return host_bytes(base, -(-(high - base) // 8) * 8), addresses - np.uint64(base)

    @staticmethod
    def _typed(view: Array, size_bytes: int) -> Array:
        return view.view(f"u{size_bytes}")

    @staticmethod
    def _indices(offsets: Array, size_bytes: int, count: int) -> Array:
        first = (offsets // np.uint64(size_bytes)).astype(np.int64)
        return first[:, None] + np.arange(count)

    def _outside(self, address: int, size_bytes: int) -> str:
        position = bisect.bisect_right(self._starts, address) - 1
        near = [self._merged[index] for index in (position, position + 1) if 0 <= index < len(self._merged)]
        names = "; ".join(f"{a.name or 'memory'} is {a.address:#x} to {a.end:#x}" for a in near)
        return f"global access of {size_bytes} bytes at {address:#x} is outside every allocation ({names})"
