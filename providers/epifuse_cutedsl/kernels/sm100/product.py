# SPDX-License-Identifier: Apache-2.0
"""The product role: one warp that multiplies what the ring brings, into one accumulator after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.configs.sm100 import SLOTS, Sm100Config
from epifuse_cutedsl.configs.sm100_products import Product
from epifuse_cutedsl.kernels.ptx import mbarrier, tcgen05
from epifuse_cutedsl.kernels.sm100.ring import Ring
from epifuse_cutedsl.kernels.sm100.schedule import Schedule
from epifuse_cutedsl.tile.operand import ATOM_BYTES, OperandTile


@dataclass(frozen=True)
class Multiplier:
    """What is multiplied: the product's row, and the configuration."""

    config: Sm100Config
    product: Product

    @property
    def instruction(self) -> int:
        """The instruction descriptor."""
        config = self.config
        m, majors = config.tile_m * config.ctas, {"a_k_major": config.a_k_major, "b_k_major": config.b_k_major}
        return tcgen05.instruction(self.product.codes, m, config.tile_n, **majors)

    def multiply(self, d: Any, a_address: Any, b_address: Any, more: Any, elected: Any) -> None:
        """Issue one K tile's products into the accumulator at ``d``; ``more`` (Int32) is 0 for a tile's first ones."""
        config = self.config
        a = tcgen05.at(matrix(config.a), a_address)
        b = tcgen05.at(matrix(config.b), b_address)
        for step in range(config.a.steps):
            left, right = tcgen05.moved(a, config.a.step_bytes(step)), tcgen05.moved(b, config.b.step_bytes(step))
            adds = more if step == 0 else Int32(1)
            tcgen05.mma(self.product.kind, config.ctas, d, left, right, self.instruction, adds, elected)


def matrix(tile: OperandTile) -> int:
    """A tile's matrix descriptor without its address."""
    return tcgen05.matrix(tile.leading_bytes, ATOM_BYTES)


@cute.jit
def run(multiplier: Multiplier, ring: Ring, schedule: Schedule, memory: Any, k_tiles: Any) -> None:
    """All tiles' products. One warp calls it (of a pair, that of the leading CTA); ``memory`` is the first accumulator.

    Without K tiles an accumulator is announced as it is.
    """
    config, ranks = ring.config, ring.ranks
    sources = ranks.sources if config.cluster > 1 else None
    pair = ranks.pair if config.ctas > 1 else None
    elected = tcgen05.elect()
    stage, parity, slot, slot_parity = Int32(0), Int32(0), Int32(0), Int32(1)
    index, turn = schedule.first, Int32(0)
    while index < schedule.tiles:
        mbarrier.wait_parity(ring.read(slot), slot_parity)
        tcgen05.fence_after()
        d = memory + slot * config.slot_columns
        for k_tile in cutlass.range(k_tiles, unroll=1):
            mbarrier.wait_parity(ring.full(stage), parity)
            address = ring.address(stage)
            multiplier.multiply(d, address, address + config.a.bytes, k_tile, elected)
            tcgen05.commit(ring.empty(stage), elected, config.ctas, sources)
            stage, parity = ring.after(stage, parity)
        tcgen05.commit(ring.made(slot), elected, config.ctas, pair)
        slot_parity = slot_parity ^ slot
        slot = slot ^ (SLOTS - 1)
        index = schedule.following(index, turn, elected)
        turn = turn + 1
