# SPDX-License-Identifier: Apache-2.0
"""The main loop on the plain cores, for float32 without TF32 and for float64: one fused multiply-add after the other.

A thread has ``micro_m`` x ``micro_n`` accumulators. Along each axis they are vectors of 16 bytes, ``threads * vector``
apart, so that a warp's reads of shared memory are broadcasts or neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute import arch

from epifuse_cutedsl.kernels.ptx import alu, copy, shared
from epifuse_cutedsl.kernels.sm80.ring import Ring
from epifuse_cutedsl.kernels.sm80.stage import Placed
from epifuse_cutedsl.tile.smem import SharedTile


@dataclass(frozen=True)
class SimtLoop:
    """What one thread does: an outer product for each position of K."""

    a: SharedTile
    b: SharedTile
    element_bytes: int
    tile_k: int
    threads_m: int
    threads_n: int
    micro_m: int
    micro_n: int

    @property
    def vector(self) -> int:
        """Elements in 16 bytes."""
        return 16 // self.element_bytes

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return 8 * self.element_bytes

    def thread_of(self, thread: Any) -> tuple[Any, Any]:
        """The thread's place among the CTA's threads along M and N; lanes go along N first."""
        return thread // self.threads_n, thread % self.threads_n

    def lane_offset(self, thread: Any) -> tuple[Any, Any]:
        """Bytes into a row of A's and of B's tile."""
        m, n = self.thread_of(thread)
        return m * 16, n * 16

    def _vectors(self, tile: SharedTile, address: Any, k: int, micro: int, threads: int) -> list[Any]:
        """The ``micro`` elements of one row of a tile."""
        values: list[Any] = []
        for piece in range(micro // self.vector):
            _, displacement = tile.step(k, piece * threads * 16)
            values += shared.ld_shared(address, displacement, kind=f"b{self.bits}", count=self.vector)
        return values

    def multiply(self, accumulators: list[Any], addresses: tuple[Any, Any]) -> list[Any]:
        """One K tile."""
        fma = alu.fma_f32 if self.element_bytes == 4 else alu.fma_f64
        found = list(accumulators)
        for k in range(self.tile_k):
            a = self._vectors(self.a, addresses[0], k, self.micro_m, self.threads_m)
            b = self._vectors(self.b, addresses[1], k, self.micro_n, self.threads_n)
            for i in range(self.micro_m):
                for j in range(self.micro_n):
                    place = i * self.micro_n + j
                    found[place] = fma(a[i], b[j], found[place])
        return found

    def placed(self, thread: Any, accumulators: list[Any]) -> Placed:
        """Where the accumulators of a thread lie in the tile."""
        m, n = self.thread_of(thread)
        vector = self.vector
        registers = {}
        for i in range(self.micro_m):
            for j in range(self.micro_n):
                row = (i // vector) * self.threads_m * vector + i % vector
                column = (j // vector) * self.threads_n * vector + j % vector
                registers[row, column] = accumulators[i * self.micro_n + j]
        return Placed(m=m * vector, n=n * vector, registers=registers, widths=(vector, vector))


@cute.jit
def run(loop: SimtLoop, ring: Ring, thread: Any, k_tiles: Int32) -> Any:
    """The product's accumulators, of which ``loop.placed`` tells where they lie."""
    offset_a, offset_b = loop.lane_offset(thread)
    offset_b = offset_b + ring.b_displacement
    accumulators = [alu.zero(loop.bits) for _ in range(loop.micro_m * loop.micro_n)]
    state = ring.fill()
    slot = ring.base
    for _ in cutlass.range(k_tiles, unroll=1):
        copy.cp_async_wait_group(ring.stages - 2)
        arch.sync_threads()
        words = ring.issue(state)
        accumulators = loop.multiply(accumulators, (slot + offset_a, slot + offset_b))
        ring.deposit(state, words)
        slot = ring.after(slot)
        state = ring.advance(state)
    copy.cp_async_wait_all()
    arch.sync_threads()
    return accumulators
