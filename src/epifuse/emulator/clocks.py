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

EPOCH_BITS = 32
EPOCH_MASK = (1 << EPOCH_BITS) - 1
IN_FLIGHT = 1


class Clock:
    """What one agent has seen. Mutable; `snapshot` copies."""

    __slots__ = ("fenced", "seen")

    def __init__(self, seen: dict[int, int] | None = None, fenced: dict[int, int] | None = None) -> None:
        self.seen: dict[int, int] = dict(seen) if seen else {}
        self.fenced: dict[int, int] = dict(fenced) if fenced else {}

    def snapshot(self) -> Clock:
        """An independent copy."""
        return Clock(self.seen, self.fenced)

    def join(self, other: Clock) -> None:
        """Learn everything that `other` has seen."""
        _join(self.seen, other.seen)
        _join(self.fenced, other.fenced)

    def learn(self, event: int) -> None:
        """Learn that one event, made by the asynchronous proxy, has happened."""
        dimension, epoch = event >> EPOCH_BITS, event & EPOCH_MASK
        if epoch > self.seen.get(dimension, 0):
            self.seen[dimension] = epoch
            self.fenced[dimension] = epoch

    def fence_proxy(self) -> None:
        """A proxy fence: what is seen is from now on visible to the asynchronous proxy too."""
        _join(self.fenced, self.seen)

    def knows(self, event: int) -> bool:
        """Whether the event happened before the agent's present."""
        return self.seen.get(event >> EPOCH_BITS, 0) >= event & EPOCH_MASK

    def knows_fenced(self, event: int) -> bool:
        """As `knows`, and a proxy fence lies between."""
        return self.fenced.get(event >> EPOCH_BITS, 0) >= event & EPOCH_MASK


def _join(mine: dict[int, int], other: dict[int, int]) -> None:
    for dimension, epoch in other.items():
        if epoch > mine.get(dimension, 0):
            mine[dimension] = epoch


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
