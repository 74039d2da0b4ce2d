# SPDX-License-Identifier: Apache-2.0
"""A ring of stages in shared memory: where they lie, their mbarriers, and in which order they are used.

A stage has two mbarriers: *full*, when its bytes have come, and *empty*, when it has been read.
"""

from __future__ import annotations

from typing import Any, Protocol

import cutlass
from cutlass import Int32

from epifuse_cutedsl.kernels.ptx import mbarrier


class Stages(Protocol):
    """What a ring must know of a configuration."""

    @property
    def stages(self) -> int:
        """How many there are."""

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one."""


class StageRing:
    """``base`` and ``barriers`` are shared addresses (Int32); the mbarriers of all stages lie behind one another."""

    config: Stages
    base: Any
    barriers: Any

    def address(self, stage: Any) -> Any:
        """Where A's tile of a stage lies; B's follows it."""
        return self.base + stage * self.config.stage_bytes

    def full(self, stage: Any) -> Any:
        """The mbarrier that completes when a stage's bytes have come."""
        return self.barriers + stage * mbarrier.BYTES

    def empty(self, stage: Any) -> Any:
        """The mbarrier that completes when all that this CTA copied to a stage has been read."""
        return self.barriers + (stage + self.config.stages) * mbarrier.BYTES

    @property
    def behind_stages(self) -> Any:
        """What follows these mbarriers."""
        return self.barriers + 2 * self.config.stages * mbarrier.BYTES

    def init_stages(self, readers: int) -> None:
        """Initialize these mbarriers; ``readers`` arrivals empty a stage. One thread calls it."""
        for stage in range(self.config.stages):
            mbarrier.init(self.full(stage), 1)
            mbarrier.init(self.empty(stage), readers)

    def after(self, stage: Any, parity: Any) -> tuple[Any, Any]:
        """The next stage, and the parity of its phase."""
        last = stage == self.config.stages - 1
        return cutlass.select_(last, Int32(0), stage + 1), cutlass.select_(last, parity ^ 1, parity)
