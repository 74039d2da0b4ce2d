# SPDX-License-Identifier: Apache-2.0
"""The main loop on tensor cores: a ring of stages filled by ``cp.async``, fragments one step ahead of ``mma.sync``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute import arch

from epifuse_cutedsl.kernels.ptx import alu, copy
from epifuse_cutedsl.kernels.ptx.mma import accumulator_registers, mma_sync
from epifuse_cutedsl.kernels.sm80.fragments import STEP_BYTES, Fragments
from epifuse_cutedsl.kernels.sm80.ring import Ring
from epifuse_cutedsl.kernels.sm80.stage import Placed

SPREADING_WARPS = 8


@dataclass(frozen=True)
class TensorLoop:
    """What one warp does: a grid of 16 x 8 blocks, ``steps`` instructions deep in each K tile."""

    a: Fragments
    b: Fragments
    a_dtype: str
    b_dtype: str
    accumulator: str
    tile_k: int
    warps_m: int
    warps_n: int

    @property
    def steps(self) -> int:
        """Steps in a K tile."""
        return self.tile_k * self.a.element_bytes // STEP_BYTES

    @property
    def accumulators(self) -> int:
        """32-bit accumulator registers of a thread."""
        return self._blocks[0] * self._blocks[1] * accumulator_registers(self.accumulator)

    @property
    def copy_steps(self) -> int:
        """Over how many steps the copies of the next tile are spread.

        One CTA of eight warps on an SM has nothing else to fill the gaps with (H200, 256x128x64, 4096^3 bf16: 434
        against 428 TFLOP/s); of several smaller ones each had better issue all at once (128x128x64: 431 against 423).
        """
        return self.steps - 1 if self.warps_m * self.warps_n >= SPREADING_WARPS else 1

    @property
    def _blocks(self) -> tuple[int, int]:
        return self.a.extent // 16, self.b.extent // 8

    def warp_of(self, thread: Any) -> tuple[Any, Any]:
        """The warp's place among the CTA's warps along M and N."""
        warp = thread // 32
        return warp % self.warps_m, warp // self.warps_m

    def load(self, slots: tuple[Any, Any], step: int) -> tuple[list[Any], list[Any]]:
        """Fragments of one step from the lane's addresses in a slot's tile of A and of B."""
        a, b = self.a.load(slots[0], step), self.b.load(slots[1], step)
        if self.a_dtype == "float32":
            return [alu.cvt_rna_tf32(x) for x in a], [alu.cvt_rna_tf32(x) for x in b]
        return a, b

    def multiply(self, accumulators: list[Any], a: list[Any], b: list[Any]) -> list[Any]:
        """One step: every block's product added to its accumulators."""
        count = accumulator_registers(self.accumulator)
        blocks_m, blocks_n = self._blocks
        found = list(accumulators)
        for i in range(blocks_m):
            columns = range(blocks_n) if i % 2 == 0 else reversed(range(blocks_n))
            for j in columns:
                first = (i * blocks_n + j) * count
                found[first : first + count] = mma_sync(
                    self.a_dtype,
                    self.b_dtype,
                    self.accumulator,
                    a[4 * i : 4 * i + 4],
                    b[2 * j : 2 * j + 2],
                    found[first : first + count],
                )
        return found

    def placed(self, thread: Any, accumulators: list[Any]) -> Placed:
        """Where the accumulators of a thread lie in the tile."""
        lane = thread & 31
        warp_m, warp_n = self.warp_of(thread)
        count = accumulator_registers(self.accumulator)
        packed = count == 2
        blocks_m, blocks_n = self._blocks
        registers = {}
        for i in range(blocks_m):
            for j in range(blocks_n):
                for half in range(2):
                    row, _ = self.a.position(2 * i + half)
                    column, scale = self.b.position(j)
                    first = (i * blocks_n + j) * count
                    if packed:
                        registers[row, column] = accumulators[first + half]
                        continue
                    for c in range(2):
                        registers[row, column + scale * c] = accumulators[first + 2 * half + c]
        _, scale_m = self.a.position(0)
        _, scale_n = self.b.position(0)
        return Placed(
            m=warp_m * self.a.extent + (lane >> 2) * scale_m,
            n=warp_n * self.b.extent + (lane & 3) * (2 * scale_n),
            registers=registers,
            widths=(self.a.width, self.b.width if self.b.gathered else 2),
            packed=packed,
        )


@cute.jit
def run(loop: TensorLoop, ring: Ring, thread: Any, k_tiles: Int32) -> Any:
    """The product's accumulators, of which ``loop.placed`` tells where they lie."""
    warp_m, warp_n = loop.warp_of(thread)
    lane = thread & 31
    offset_a = loop.a.lane_offset(warp_m, lane)
    offset_b = loop.b.lane_offset(warp_n, lane) + ring.b_displacement
    accumulators = [alu.zero() for _ in range(loop.accumulators)]
    state = ring.fill()
    copy.cp_async_wait_group(ring.stages - 2)
    arch.sync_threads()
    slot = ring.base
    a, b = loop.load((slot + offset_a, slot + offset_b), 0)
    for _ in cutlass.range(k_tiles, unroll=1):
        words = ring.nothing
        for step in cutlass.range_constexpr(loop.steps):
            if cutlass.const_expr(step == loop.steps - 1):
                # One step earlier, behind the tile's last reads, was no faster.
                ring.deposit(state, words)
                slot = ring.after(slot)
                copy.cp_async_wait_group(ring.stages - 2)
                arch.sync_threads()
            next_a, next_b = loop.load((slot + offset_a, slot + offset_b), (step + 1) % loop.steps)
            if cutlass.const_expr(step < loop.copy_steps):
                fetched = ring.issue(state, step, loop.copy_steps)
                words = fetched if step == 0 else words
            accumulators = loop.multiply(accumulators, a, b)
            a, b = next_a, next_b
        state = ring.advance(state)
    copy.cp_async_wait_all()
    arch.sync_threads()
    return accumulators
