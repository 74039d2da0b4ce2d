# SPDX-License-Identifier: Apache-2.0
"""Who knows of what: vector clocks (happens-before) for warps and asynchronous operations.

An *event* is `dimension << 32 | epoch`: the epoch-th step of one warp, barrier or group. An agent's clock says, for
each dimension, up to which epoch everything happened before the agent's present. Each clock is kept twice: for all
accesses, and for those that a proxy fence has made visible to the asynchronous proxy (PTX ISA, "Memory Consistency
Model", "Proxies").

An asynchronous operation stamps what it touches with an event of the dimension IN_FLIGHT, which no clock ever knows.
Once it is clear on which barrier phase or group it completes, that stamp is replaced by the event of that.
"""

from __future__ import annotations

import numpy as np

from .lanes import Array

EPOCH_BITS = 32
EPOCH_MASK = (1 << EPOCH_BITS) - 1
IN_FLIGHT = 1


class Clock:
    """What one agent has seen: for each dimension the latest epoch, and the latest that a proxy fence covers.

    Mutable; `snapshot` copies. Joins dominate the emulation of large clusters, so both rows are one array. `foreign`
    has what is known of other clusters of the grid, by their numbers; those clocks are never changed, only replaced.
    """

    __slots__ = ("_known", "_width", "foreign")

    def __init__(self) -> None:
        self.foreign: dict[int, Clock] = _NOTHING
        self._width = 32
        self._known: Array = np.zeros((2, 32), np.int64)

    @staticmethod
    def of(dimension: int, epoch: int, fenced: bool = False) -> Clock:
        """The clock of an agent that has seen one dimension only."""
        clock = Clock()
        clock.advance(dimension, epoch)
        if fenced:
            clock.fence(dimension, epoch)
        return clock

    @property
    def width(self) -> int:
        """Dimensions that it has room for."""
        return self._width

    def snapshot(self) -> Clock:
        """An independent copy."""
        copy = Clock.__new__(Clock)
        copy._width = self._width
        copy._known = self._known.copy()
        copy.foreign = self.foreign
        return copy

    def own(self) -> Clock:
        """A copy without what is known of other clusters."""
        copy = self.snapshot()
        copy.foreign = _NOTHING
        return copy

    def joined(self, other: Clock) -> Clock:
        """A new clock that has seen everything that the two have."""
        copy = self.snapshot()
        copy.join(other)
        return copy

    def learn_foreign(self, cluster: int, clock: Clock) -> None:
        """Learn what is known of another cluster."""
        before = self.foreign.get(cluster)
        if before is not clock:
            self.foreign = {**self.foreign, cluster: clock if before is None else before.joined(clock)}

    def join(self, other: Clock) -> None:
        """Learn everything that `other` has seen."""
        if other._width > self._width:
            self._grow(other._width)
        mine = self._known if other._width == self._width else self._known[:, : other._width]
        np.maximum(mine, other._known, out=mine)
        if other.foreign is not self.foreign:
            for cluster, clock in other.foreign.items():
                self.learn_foreign(cluster, clock)

    def advance(self, dimension: int, epoch: int) -> None:
        """See that epoch of a dimension, without a proxy fence."""
        if dimension >= self._width:
            self._grow(dimension + 1)
        self._known[0, dimension] = max(epoch, self._known.item(dimension))

    def fence(self, dimension: int, epoch: int) -> None:
        """That epoch of a dimension is visible to the asynchronous proxy."""
        if dimension >= self._width:
            self._grow(dimension + 1)
        self._known[1, dimension] = max(epoch, self._known.item(self._width + dimension))

    def learn(self, number: int) -> None:
        """Learn that one event, made by the asynchronous proxy, has happened."""
        self.advance(number >> EPOCH_BITS, number & EPOCH_MASK)
        self.fence(number >> EPOCH_BITS, number & EPOCH_MASK)

    def fence_proxy(self) -> None:
        """A proxy fence: what is seen is from now on visible to the asynchronous proxy too."""
        np.maximum(self._known[1], self._known[0], out=self._known[1])

    def knows(self, number: int) -> bool:
        """Whether the event happened before the agent's present."""
        dimension = number >> EPOCH_BITS
        return dimension < self._width and self._known.item(dimension) >= number & EPOCH_MASK

    def knows_fenced(self, number: int) -> bool:
        """As `knows`, and a proxy fence lies between."""
        dimension = number >> EPOCH_BITS
        return dimension < self._width and self._known.item(self._width + dimension) >= number & EPOCH_MASK

    def _grow(self, width: int) -> None:
        # Powers of two of what is needed: doubling instead would let two clocks that join each other grow for ever.
        wider = np.zeros((2, 1 << (width - 1).bit_length()), np.int64)
        wider[:, : self._width] = self._known
        self._known, self._width = wider, wider.shape[1]


_NOTHING: dict[int, Clock] = {}
"""What clocks know of other clusters at first; never changed."""


class Dimensions:
    """Hands out dimensions and remembers what each stands for; also numbers the operations in flight."""

    def __init__(self) -> None:
        self._names: list[str] = ["nothing", "an operation in flight"]
        self._operations: list[str] = [""]

    def new(self, name: str) -> int:
        """A new dimension; `name` is what reports call it."""
        self._names.append(name)
        return len(self._names) - 1

    def start(self, description: str) -> int:
        """The stamp of a new operation in flight."""
        self._operations.append(description)
        return event(IN_FLIGHT, len(self._operations) - 1)

    def describe(self, number: int) -> str:
        """An event in words."""
        if number >> EPOCH_BITS == IN_FLIGHT:
            return self._operations[number & EPOCH_MASK] + ", still in flight"
        return self._names[number >> EPOCH_BITS]


def event(dimension: int, epoch: int) -> int:
    """The event of a dimension's epoch."""
    return dimension << EPOCH_BITS | epoch
