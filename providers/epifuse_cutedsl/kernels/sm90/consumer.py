# SPDX-License-Identifier: Apache-2.0
"""The consumers: two warpgroups that multiply what the ring brings and run the epilogues of their own rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.configs.sm90 import BLOCK_M, CONSUMERS, WARPGROUP
from epifuse_cutedsl.kernels.ptx import alu, mbarrier, wgmma
from epifuse_cutedsl.kernels.ptx.asm import emit
from epifuse_cutedsl.kernels.sm80.stage import Placed
from epifuse_cutedsl.kernels.sm90.ring import OperandTile, Ring

_FIRST_TURN_BARRIER = 1 + CONSUMERS
"""Number of the first consumer's named barrier; those before are of the epilogues."""


@dataclass(frozen=True)
class Turns:
    """Ping-pong: one warpgroup's main loop after the other's, in the order of the tiles.

    A wait for a parity tells a phase from the next alone, so a warpgroup must not wait for a stage before the other one
    has seen the stage's phase before. It also lets a tile's products run undivided.
    """

    warpgroup: Any

    def give(self) -> None:
        """It is the other's turn."""
        emit(f"bar.arrive {{$r0}}, {CONSUMERS * WARPGROUP};", (), [_FIRST_TURN_BARRIER + (self.warpgroup ^ 1)])

    def take(self) -> None:
        """Wait for one's own turn."""
        emit(f"bar.sync {{$r0}}, {CONSUMERS * WARPGROUP};", (), [_FIRST_TURN_BARRIER + self.warpgroup])


@dataclass(frozen=True)
class Product:
    """What one warpgroup multiplies: ``blocks`` times 64 rows from ``row_bytes`` of A's tile on, all columns of B's."""

    a: OperandTile
    b: OperandTile
    dtype: str
    blocks: int

    @property
    def each(self) -> int:
        """Accumulators of a thread in one block of 64 rows."""
        return self.b.extent // 2

    @property
    def steps(self) -> int:
        """Instructions of a block in one K tile."""
        return self.a.tile_k * 2 // wgmma.INSTRUCTION_K_BYTES

    def multiply(self, accumulators: list[Any], a_address: Any, b_address: Any) -> list[Any]:
        """Issue one K tile's products."""
        a = wgmma.at(self.a.descriptor, a_address)
        b = wgmma.at(self.b.descriptor, b_address)
        found = list(accumulators)
        for step in range(self.steps):
            right = wgmma.moved(b, step * self.b.step_bytes)
            for block in range(self.blocks):
                left = wgmma.moved(a, self.a.position_bytes(block * BLOCK_M) + step * self.a.step_bytes)
                mine = slice(block * self.each, (block + 1) * self.each)
                found[mine] = wgmma.mma_async(
                    self.dtype,
                    self.b.extent,
                    found[mine],
                    left,
                    right,
                    a_k_major=self.a.k_major,
                    b_k_major=self.b.k_major,
                )
        return found

    def columns(self, accumulators: list[Any], block: int, first: int, columns: int) -> list[Any]:
        """The accumulators of ``columns`` columns from ``first`` on, of one block, as they lie."""
        begin = block * self.each + first // 2
        return list(accumulators[begin : begin + columns // 2])

    def placed(self, thread: Any, accumulators: list[Any], block: int, first: int, columns: int) -> Placed:
        """Where the accumulators of ``columns`` columns from ``first`` on, of one block, lie.

        PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma, matrix D: a warp has 16 rows; register
        ``4 j + 2 h + e`` of a lane is row ``lane // 4 + 8 h``, column ``8 j + 2 (lane % 4) + e``.
        """
        lane, warp = thread & 31, thread >> 5
        registers = {}
        for j in range(columns // 8):
            for h in range(2):
                for e in range(2):
                    index = block * self.each + 4 * (first // 8 + j) + 2 * h + e
                    registers[8 * h, 8 * j + e] = accumulators[index]
        return Placed(m=warp * 16 + (lane >> 2), n=(lane & 3) * 2, registers=registers, widths=(1, 2))


@cute.jit
def run(
    product: Product, ring: Ring, stage: Any, parity: Any, row_bytes: Any, lane: Any, k_tiles: Any, issued: Any
) -> Any:
    """One tile's accumulators, and the ring's next stage and parity; ``row_bytes`` is where the rows begin in A's tile.

    A stage is given back when the products after its own have been issued.
    ``issued()`` is called when all products have been.
    """
    accumulators = [alu.zero() for _ in range(product.blocks * product.each)]
    before = stage
    for k_tile in cutlass.range(k_tiles, unroll=1):
        mbarrier.wait_parity(ring.full(stage), parity)
        address = ring.address(stage)
        wgmma.fence()
        accumulators = product.multiply(accumulators, address + row_bytes, address + ring.config.a_bytes)
        wgmma.commit_group()
        accumulators = wgmma.wait_group(1, accumulators)
        ring.give_back(before, lane, k_tile > 0)
        before = stage
        stage, parity = ring.after(stage, parity)
    issued()
    accumulators = wgmma.wait_group(0, accumulators)
    ring.give_back(before, lane, k_tiles > Int32(0))
    return accumulators, stage, parity
