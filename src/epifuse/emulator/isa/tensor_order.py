# SPDX-License-Identifier: Apache-2.0
"""The order of tcgen05 accesses between threads (PTX ISA, "TensorCore 5th Generation: Memory Consistency Model").

tcgen05.ld and tcgen05.st are complete when wait::ld and wait::st say so. What one thread has done is ordered before
another's tcgen05 instructions by fence::before_thread_sync, a barrier, and fence::after_thread_sync. A kernel that has
no such instruction at all is not held to them: compilers (CuTe DSL's among them) leave them out of their own pipelines
and rely on the assembler.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..clocks import Clock, event
from ..operations import Operation
from ..state import Warp


@dataclass(frozen=True)
class Access:
    """An access to tensor memory as its checks see it; `clock` has what is ordered before it, `seen` what would be
    with a fence::after_thread_sync."""

    clock: Clock
    stamp: int
    name: str
    seen: Clock

    def describe(self) -> str:
        """The agent's name in reports."""
        return self.name


class TensorOrder:
    """What one warp's tcgen05.ld and tcgen05.st have done, and what its fences have made of it."""

    def __init__(self, warp: Warp) -> None:
        dimensions = warp.cta.cluster.dimensions
        self._warp = warp
        self._fences, self._waits = warp.grid.program.tensor_fences, warp.grid.program.tensor_waits
        self._after = Clock()
        self._dimension = {
            kind: dimensions.new(f"tcgen05.{kind} of {warp.describe()}, with no wait::{kind} or no fence after it")
            for kind in ("ld", "st")
        }
        self._issued = {"ld": 0, "st": 0}
        self._complete = {"ld": 0, "st": 0}

    def access(self, kind: str) -> Access:
        """A tcgen05.ld or tcgen05.st ("ld", "st") issued now."""
        self._issued[kind] += 1
        if not self._waits:
            self._complete[kind] = self._issued[kind]
        if not self._fences:
            self._publish()
        found = self._ordered(event(self._dimension[kind], self._issued[kind]), self._warp.describe())
        found.clock.advance(self._dimension[kind], self._issued[kind])  # two stores are carried out in turn
        return found

    def operation(self, operation: Operation, dimension: int) -> Access:
        """A tcgen05.mma or tcgen05.cp; earlier ones of the same pipe (by its dimension) are ordered before it."""
        access = self._ordered(operation.stamp, operation.describe())
        access.clock.advance(dimension, 1 << 31)
        return access

    def ending(self) -> Access:
        """The tcgen05.dealloc: what the warp knows without a fence, and its own complete accesses."""
        return self._ordered(0, self._warp.describe(), self._warp.clock)

    def wait(self, kind: str) -> None:
        """wait::ld or wait::st."""
        self._complete[kind] = self._issued[kind]
        if not self._fences:
            self._publish()

    def before_thread_sync(self) -> None:
        """What is complete is known to whoever synchronizes with the warp from now on."""
        self._publish()

    def after_thread_sync(self) -> None:
        """What the warp knows is ordered before its next tcgen05 instructions."""
        self._after = self._warp.clock.snapshot()

    def _publish(self) -> None:
        for kind, dimension in self._dimension.items():
            self._warp.clock.advance(dimension, self._complete[kind])

    def _ordered(self, stamp: int, name: str, known: Clock | None = None) -> Access:
        seen = self._warp.clock
        clock = (known or (self._after if self._fences else seen)).snapshot()
        for kind, dimension in self._dimension.items():
            clock.advance(dimension, self._complete[kind])
        return Access(clock, stamp, name, seen)


def order_of(warp: Warp) -> TensorOrder:
    """The order of a warp's accesses."""
    found: TensorOrder | None = warp.groups.get("tensor order")
    if found is None:
        found = warp.groups["tensor order"] = TensorOrder(warp)
    return found
