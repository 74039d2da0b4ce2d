# SPDX-License-Identifier: Apache-2.0
"""The ring of stages between the producer and the consumers, and how the tiles of A and B lie in a stage.

A stage has two mbarriers: *full* (one arrival of the producer, and the bytes of the copies) and *empty* (one arrival
of each warp that has read it). Everything lies on 1024 bytes, as the 128-byte swizzle wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32

from epifuse_cutedsl.configs.sm90 import Sm90Config
from epifuse_cutedsl.configs.sm90_products import INSTRUCTION_K_BYTES, K_TILE_BYTES
from epifuse_cutedsl.kernels.ptx import mbarrier, wgmma

BOX = K_TILE_BYTES // 2
"""Elements of 16 bits in a row of a box: what the swizzle spans. Those of 8 bits are K-major, in a single box."""
_ATOM_BYTES = wgmma.ATOM_ROWS * wgmma.SWIZZLE_128B_BYTES
_STEP = INSTRUCTION_K_BYTES // 2


@dataclass(frozen=True)
class OperandTile:
    """A K tile of A or B, ``extent`` along M or N, in shared memory.

    K-major: boxes beside one another along K, with rows of 128 bytes. MN-major (16 bits): boxes of 64 positions of M or
    N with rows of K.
    """

    extent: int
    tile_k: int
    element_bytes: int
    k_major: bool
    parts: int = 1
    """CTAs that share the tile: each loads that part of every box's rows, for all."""

    @property
    def box_rows(self) -> int:
        """Rows of a box."""
        return self.extent if self.k_major else self.tile_k

    @property
    def part_rows(self) -> int:
        """Rows of a box that one copy brings."""
        return self.box_rows // self.parts

    @property
    def box_bytes(self) -> int:
        """Bytes of a box."""
        return self.box_rows * wgmma.SWIZZLE_128B_BYTES

    @property
    def boxes(self) -> int:
        """Boxes of a K tile."""
        return self.tile_k * self.element_bytes // K_TILE_BYTES if self.k_major else self.extent // BOX

    @property
    def descriptor(self) -> int:
        """The matrix descriptor without its address."""
        return wgmma.descriptor(0 if self.k_major else self.box_bytes, _ATOM_BYTES)

    def step_bytes(self, step: int) -> int:
        """Where the positions of K of instruction number ``step`` begin."""
        if not self.k_major:
            return step * _STEP * wgmma.SWIZZLE_128B_BYTES
        box, place = divmod(step * INSTRUCTION_K_BYTES, K_TILE_BYTES)
        return box * self.box_bytes + place

    def place(self, box: int, origin: Any, k: Any) -> list[Any]:
        """Where a box begins in the operand, innermost first: ``origin`` along M or N, ``k`` along K."""
        if self.k_major:
            return [k + box * (K_TILE_BYTES // self.element_bytes), origin]
        return [origin + box * BOX, k]

    def position_bytes(self, position: int) -> int:
        """Where position ``position`` of M or N (a multiple of 8; of 64 in an MN-major tile) begins."""
        assert position % (wgmma.ATOM_ROWS if self.k_major else BOX) == 0
        return position * wgmma.SWIZZLE_128B_BYTES if self.k_major else position // BOX * self.box_bytes


@dataclass(frozen=True)
class Ring:
    """Where stages and mbarriers lie; ``base`` and ``barriers`` are shared addresses (Int32)."""

    config: Sm90Config
    base: Any
    barriers: Any
    rank: tuple[Any, Any]
    """Where the CTA is in its cluster, along M and N (Int32)."""

    def give_back(self, stage: Any, lane: Any) -> None:
        """A warp has read a stage: tell every CTA that copies into it."""
        if self.sharers == 1:
            mbarrier.arrive(self.empty(stage), lane == 0)
        else:
            mbarrier.arrive_cluster(self.empty(stage), self._sharer(lane), lane < self.sharers)

    @property
    def sharers(self) -> int:
        """CTAs that copy into this one's memory, itself among them: those below one another, and those beside."""
        return self.config.cluster + self.config.cluster_n - 1

    def _sharer(self, number: Any) -> Any:
        """The rank in the cluster of sharer ``number`` (Int32)."""
        below, beside = self.config.cluster, self.config.cluster_n
        rank_m, rank_n = self.rank
        if beside == 1:
            return number
        other = (rank_n + 1 + number - below) % beside
        return cutlass.select_(number < below, rank_n * below + number, other * below + rank_m)

    def address(self, stage: Any) -> Any:
        """Where A's tile of a stage lies; B's follows it."""
        return self.base + stage * self.config.stage_bytes

    def full(self, stage: Any) -> Any:
        """The mbarrier that completes when a stage's bytes have come."""
        return self.barriers + stage * mbarrier.BYTES

    def empty(self, stage: Any) -> Any:
        """The mbarrier that completes when a stage has been read."""
        return self.barriers + (stage + self.config.stages) * mbarrier.BYTES

    @staticmethod
    def barriers_bytes(config: Sm90Config) -> int:
        """What the mbarriers take."""
        return 2 * config.stages * mbarrier.BYTES

    def make_barriers(self, readers: int) -> None:
        """Initialize all mbarriers; ``readers`` warps read a stage. One thread calls it."""
        for stage in range(self.config.stages):
            mbarrier.init(self.full(stage), 1)
            mbarrier.init(self.empty(stage), readers)
        mbarrier.fence_init()

    def after(self, stage: Any, parity: Any) -> tuple[Any, Any]:
        """The next stage, and the parity of its phase."""
        last = stage == self.config.stages - 1
        return cutlass.select_(last, Int32(0), stage + 1), cutlass.select_(last, parity ^ 1, parity)

    def skip(self, stage: Any, parity: Any, count: Any) -> tuple[Any, Any]:
        """The stage and parity ``count`` stages on."""
        total = stage + count
        turns = total // self.config.stages
        return total - turns * self.config.stages, parity ^ (turns & 1)
