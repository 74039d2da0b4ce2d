# SPDX-License-Identifier: Apache-2.0
"""The ring of stages between the producer and the consumers.

A stage has two mbarriers: *full* (one arrival of the producer, and the bytes of the copies) and *empty* (one arrival
of each warp that has read it). Everything lies on 1024 bytes, as the 128-byte swizzle wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass

from epifuse_cutedsl.configs.sm90 import Sm90Config
from epifuse_cutedsl.kernels.ptx import mbarrier
from epifuse_cutedsl.kernels.ring import StageRing


@dataclass(frozen=True)
class Ring(StageRing):
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

    @staticmethod
    def barriers_bytes(config: Sm90Config) -> int:
        """What the mbarriers take."""
        return 2 * config.stages * mbarrier.BYTES

    def make_barriers(self, readers: int) -> None:
        """Initialize all mbarriers; ``readers`` warps read a stage. One thread calls it."""
        self.init_stages(readers)
        mbarrier.fence_init()

    def skip(self, stage: Any, parity: Any, count: Any) -> tuple[Any, Any]:
        """The stage and parity ``count`` stages on."""
        total = stage + count
        turns = total // self.config.stages
        return total - turns * self.config.stages, parity ^ (turns & 1)
