# SPDX-License-Identifier: Apache-2.0
"""K shared by the CTAs of a cluster: each multiplies a part of it, and rank 0 adds the parts, in the order of ranks.

A warp of another rank stores its accumulators to the shared memory of rank 0, for the same warp there, whose mbarrier
counts the bytes. When they have been added, rank 0 tells the sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from epifuse_cutedsl.configs.sm90 import WARP, WARPGROUP_WARPS, Sm90Config
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.kernels.ptx import alu, cluster, mbarrier, shared

_WORDS = 4
"""Accumulators in one access."""


@dataclass(frozen=True)
class Split:
    """One consumer warp's part. ``memory`` and ``barriers`` are shared addresses, the same in every rank; ``number``
    is the warp's among the CTA's consumers. ``kind`` is the accumulators' dtype.

    In rank 0 ``memory`` has a slot for each other rank and warp; elsewhere it is not used.
    """

    config: Sm90Config
    rank: Any
    number: Any
    lane: Any
    memory: Any
    barriers: Any
    kind: str

    def make_barriers(self) -> None:
        """Initialize the warp's mbarriers. One lane of each warp calls it."""
        mbarrier.init(self._arrived, 1)
        mbarrier.init(self._taken, 1)
        mbarrier.fence_init()

    @property
    def _arrived(self) -> Any:
        """In rank 0: all other ranks' accumulators have come."""
        return self.barriers + self.number * (2 * mbarrier.BYTES)

    @property
    def _taken(self) -> Any:
        """Elsewhere: rank 0 has added what was sent."""
        return self._arrived + mbarrier.BYTES

    def _slot(self, sender: Any) -> Any:
        """Where this lane's first accumulators of ``sender`` (a rank from 1 on) lie in rank 0."""
        row = (sender - 1) * (self.config.consumers * WARPGROUP_WARPS) + self.number
        return self.memory + row * self.config.warp_accumulator_bytes + self.lane * (4 * _WORDS)

    def send(self, accumulators: list[Any], turn: Any) -> None:
        """In another rank: give the accumulators of tile number ``turn`` (Int32) to rank 0."""
        there, arrived = cluster.address(self._slot(self.rank), 0), cluster.address(self._arrived, 0)
        mbarrier.wait_parity(self._taken, (turn & 1) ^ 1)
        for first in range(0, len(accumulators), _WORDS):
            cluster.st_async(there, accumulators[first : first + _WORDS], arrived, first * 4 * WARP)

    def receive(self, accumulators: list[Any], turn: Any) -> list[Any]:
        """In rank 0: the sums with all other ranks' accumulators."""
        others = self.config.split - 1
        expected = others * self.config.warp_accumulator_bytes
        when(self.lane == 0, lambda: mbarrier.arrive_expect_tx(self._arrived, expected))
        mbarrier.wait_parity(self._arrived, turn & 1)
        sums = list(accumulators)
        for sender in range(1, self.config.split):
            address = self._slot(Int32(sender))
            for first in range(0, len(sums), _WORDS):
                words = shared.ld_shared(address, first * 4 * WARP, count=_WORDS)
                sums[first : first + _WORDS] = [
                    alu.add(self.kind, mine, word)
                    for mine, word in zip(sums[first : first + _WORDS], words, strict=True)
                ]
        cluster.sync_warp()
        tells = (self.lane > 0) & (self.lane < self.config.split)
        mbarrier.arrive_cluster(self._taken, self.lane, tells)
        return sums
