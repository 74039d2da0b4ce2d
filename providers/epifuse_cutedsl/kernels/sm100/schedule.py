# SPDX-License-Identifier: Apache-2.0
"""Which tiles a CTA takes, in the order that all kernels share: every so many from its own on, or those it asks for.

A tile is that of a whole cluster. Every role walks ``turn`` by ``turn``: ``index = schedule.first``, then
``schedule.following(index, turn)``, while the index is below ``schedule.tiles``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.configs.sm100 import ANSWERS, EPILOGUE_WARPS
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.kernels.ptx import alu, cluster, launch_control, mbarrier, tma
from epifuse_cutedsl.kernels.sm80.kernel import place_of
from epifuse_cutedsl.kernels.sm100.ring import Ranks


@dataclass(frozen=True)
class Schedule:
    """Static: ``step`` tiles from one to the next. Device integers (Int32)."""

    turns: ClassVar[bool] = True
    """Whether every other group of rows goes through the columns backwards."""

    ranks: Ranks
    first: Any
    step: Any
    tiles: Any
    tiles_m: Any
    tiles_n: Any
    group: Any

    def place(self, index: Any) -> tuple[Any, Any, Any]:
        """Batch, and where this CTA's part of tile ``index`` begins along M and N."""
        config = self.ranks.config
        batch, tile_m, tile_n = place_of(index, self.tiles_m, self.tiles_n, self.group, turns=self.turns)
        m = (tile_m * config.cluster_m + self.ranks.m) * config.tile_m
        return batch, m, (tile_n * config.cluster_n + self.ranks.n) * config.tile_n

    def following(self, index: Any, turn: Any, leads: Any = None) -> Any:
        """The tile after ``index``, the ``turn``-th one. One thread calls it, or a whole warp, of which the lane that
        ``leads`` speaks for all."""
        return index + self.step


@dataclass(frozen=True)
class DynamicSchedule(Schedule):
    """Tiles by launch control: each CTA has ``ANSWERS`` places for answers, at the shared address ``answers``, and
    mbarriers at ``barriers``: *answered* ones, and (those of rank 0 count) *taken* ones.

    Groups all go through the columns forwards: which tiles run at the same time is the hardware's choice.
    """

    turns: ClassVar[bool] = False

    answers: Any
    barriers: Any

    @property
    def takers(self) -> int:
        """Who takes an answer, in the whole cluster: epilogue warps, the loading and the asking threads, and product
        warps."""
        config = self.ranks.config
        return config.cluster * (EPILOGUE_WARPS + 2) + config.cluster // config.ctas

    def _answered(self, turn: Any) -> Any:
        return self.barriers + turn % ANSWERS * mbarrier.BYTES

    def _taken(self, turn: Any) -> Any:
        return self._answered(turn) + ANSWERS * mbarrier.BYTES

    def _answer(self, turn: Any) -> Any:
        return self.answers + turn % ANSWERS * launch_control.ANSWER_BYTES

    def make_barriers(self) -> None:
        """Initialize all mbarriers. One thread calls it."""
        for turn in range(ANSWERS):
            mbarrier.init(self._answered(turn), 1)
            mbarrier.init(self._taken(turn), self.takers)
        mbarrier.fence_init()

    def following(self, index: Any, turn: Any, leads: Any = None) -> Any:
        """The tile that the answer number ``turn`` gives; ``tiles`` where it gives none."""
        mbarrier.wait_parity(self._answered(turn), (turn // ANSWERS) & 1)
        first = launch_control.first_cta(self._answer(turn))
        tma.fence_async_shared()
        if leads is None:
            leads = alu.zero() == Int32(0)  # true, which inline PTX must not be told
        else:
            cluster.sync_warp()
        if self.ranks.config.cluster == 1:
            mbarrier.arrive(self._taken(turn), leads)
        else:
            mbarrier.arrive_cluster(self._taken(turn), Int32(0), leads)
        return cutlass.select_(first < Int32(0), self.tiles, first // self.ranks.config.cluster)

    def ask(self, turn: Any) -> None:
        """Ask for answer number ``turn``. One thread of each CTA calls it; that of rank 0 asks for all, when all have
        taken the answer whose place it gets."""
        several = self.ranks.config.cluster > 1

        def ask() -> None:
            mbarrier.wait_parity(self._taken(turn), ((turn // ANSWERS) & 1) ^ 1)
            launch_control.try_cancel(self._answer(turn), self._answered(turn), cluster=several)

        mbarrier.arrive_expect_tx(self._answered(turn), launch_control.ANSWER_BYTES)
        when(self.ranks.rank == 0, ask)


@cute.jit
def run(schedule: DynamicSchedule) -> None:
    """Ask for tiles until there are none. One thread calls it."""
    index, turn = schedule.first, Int32(0)
    while index < schedule.tiles:
        schedule.ask(turn)
        index = schedule.following(index, turn)
        turn = turn + 1
