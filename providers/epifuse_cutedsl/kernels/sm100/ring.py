# SPDX-License-Identifier: Apache-2.0
"""What the roles meet at: the ring of stages, the accumulators in tensor memory, and who of a cluster shares them.

Of a stage, *full* has one arrival of the loading CTA and the bytes of the copies, *empty* one arrival for each product
role that reads what this CTA copies. An accumulator has two: *made* (one arrival, when its
products are done) and *read* (one arrival of each epilogue warp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from epifuse_cutedsl.configs.sm100 import EPILOGUE_WARPS, SLOTS, Sm100Config
from epifuse_cutedsl.kernels.ptx import mbarrier, tcgen05
from epifuse_cutedsl.kernels.ring import StageRing


@dataclass(frozen=True)
class Ranks:
    """A CTA's place in its cluster (Int32): its rank, and where it stands along M and N. M counts fastest."""

    config: Sm100Config
    rank: Any
    m: Any
    n: Any

    @classmethod
    def of(cls, config: Sm100Config, rank: Any) -> Ranks:
        """From the rank."""
        return cls(config, rank, rank % config.cluster_m, rank // config.cluster_m)

    @property
    def leads(self) -> Any:
        """Whether this CTA multiplies, for itself or for its pair."""
        return (self.rank & (self.config.ctas - 1)) == 0

    @property
    def same_m(self) -> Any:
        """Mask of the CTAs that have the same tile of A."""
        every = sum(1 << (n * self.config.cluster_m) for n in range(self.config.cluster_n))
        return Int32(every) << self.m

    @property
    def same_n(self) -> Any:
        """Mask of the CTAs that have the same tile of B, or the same half of it."""
        ctas = self.config.ctas
        every = sum(1 << m for m in range(0, self.config.cluster_m, ctas))
        return Int32(every) << (self.n * self.config.cluster_m + (self.m & (ctas - 1)))

    @property
    def pair(self) -> Any:
        """Mask of this CTA, or of its pair."""
        ctas = self.config.ctas
        return Int32((1 << ctas) - 1) << (self.rank & ~(ctas - 1))

    @property
    def sources(self) -> Any:
        """Mask of the CTAs that copy what this CTA, or its pair, multiplies."""
        config = self.config
        row = self.pair >> (self.n * config.cluster_m)
        rows = sum(1 << (n * config.cluster_m) for n in range(config.cluster_n))
        return row * rows | (Int32((1 << config.cluster_m) - 1) << (self.n * config.cluster_m))

    @property
    def readers(self) -> int:
        """Product roles that read what one CTA copies."""
        return self.config.cluster_n + self.config.cluster_m // self.config.ctas - 1


@dataclass(frozen=True)
class Ring(StageRing):
    """Where stages and mbarriers lie; ``base`` and ``barriers`` are shared addresses (Int32)."""

    config: Sm100Config
    ranks: Ranks
    base: Any
    barriers: Any

    @property
    def allocated(self) -> Any:
        """Where the address of the allocated tensor memory is written."""
        return self.behind_stages + 2 * SLOTS * mbarrier.BYTES

    @property
    def behind(self) -> Any:
        """What follows the mbarriers and that."""
        return self.allocated + 2 * mbarrier.BYTES  # on 16 bytes

    def made(self, slot: Any) -> Any:
        """The mbarrier that completes when an accumulator is made."""
        return self.behind_stages + slot * mbarrier.BYTES

    def read(self, slot: Any) -> Any:
        """The mbarrier that completes when an accumulator has been read."""
        return self.behind_stages + (slot + SLOTS) * mbarrier.BYTES

    def make_barriers(self) -> None:
        """Initialize all mbarriers. One thread calls it."""
        self.init_stages(self.ranks.readers)
        for slot in range(SLOTS):
            mbarrier.init(self.made(slot), 1)
            mbarrier.init(self.read(slot), EPILOGUE_WARPS * self.config.ctas)
        mbarrier.fence_init()

    def of_leader(self, barrier: Any) -> Any:
        """The same mbarrier of the CTA that multiplies for this one, as a cluster's shared address."""
        return barrier if self.config.ctas == 1 else barrier & ~tcgen05.PEER_BIT
