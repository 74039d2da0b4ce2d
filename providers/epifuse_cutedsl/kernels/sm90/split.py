# SPDX-License-Identifier: Apache-2.0
"""K shared by the CTAs of a cluster: each multiplies a part of it, and rank 0 adds the parts, in the order of ranks.

A warp of another rank leaves its accumulators in its own shared memory and sends them to the same warp of rank 0 by one
bulk copy, which counts at that warp's mbarrier. When they have been added, rank 0 tells the sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from epifuse_cutedsl.configs.sm90 import CONSUMERS, WARP, WARPGROUP_WARPS, Sm90Config
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.kernels.ptx import alu, cluster, mbarrier, shared, tma

_WORDS = 4
"""Accumulators in one access."""


@dataclass(frozen=True)
class Split:
    """One consumer warp's part. ``memory`` and ``barriers`` are shared addresses, the same in every rank; ``number``
    is the warp's among the CTA's consumers. ``kind`` is the accumulators' dtype.

    In rank 0 ``memory`` has a slot for each other rank and warp; elsewhere the first rank's slots are for sending.
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
        """Where the accumulators of ``sender`` (a rank from 1 on) lie in rank 0."""
        row = (sender - 1) * (CONSUMERS * WARPGROUP_WARPS) + self.number
        return self.memory + row * self.config.warp_accumulator_bytes

    def send(self, accumulators: list[Any], turn: Any) -> None:
        """In another rank: give the accumulators of tile number ``turn`` (Int32) to rank 0."""
        mine = self._slot(1)
        mbarrier.wait_parity(self._taken, (turn & 1) ^ 1)
        for first in range(0, len(accumulators), _WORDS):
            shared.st_shared(mine + self.lane * (4 * _WORDS), accumulators[first : first + _WORDS], first * 4 * WARP)
        tma.fence_async_shared()
        cluster.sync_warp()
        there, arrived = cluster.address(self._slot(self.rank), 0), cluster.address(self._arrived, 0)
        size_bytes = self.config.warp_accumulator_bytes
        when(self.lane == 0, lambda: tma.send(there, mine, size_bytes, arrived))

    def receive(self, accumulators: list[Any], turn: Any) -> list[Any]:
        """In rank 0: the sums with all other ranks' accumulators."""
        others = self.config.split - 1
        expected = others * self.config.warp_accumulator_bytes
        when(self.lane == 0, lambda: mbarrier.arrive_expect_tx(self._arrived, expected))
        mbarrier.wait_parity(self._arrived, turn & 1)
        sums = list(accumulators)
        for sender in range(1, self.config.split):
            address = self._slot(Int32(sender)) + self.lane * (4 * _WORDS)
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
