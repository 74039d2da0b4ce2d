# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations: issued by a warp, carried out later, at a moment that the schedule chooses."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable

from .clocks import Clock
from .reports import ExecutionError, Place


class Operation:
    """One copy, MMA or commit in flight. As an agent it knows what its issuer knew when it was issued."""

    __slots__ = ("_action", "clock", "description", "holds_shared", "place", "stamp")

    def __init__(self, description: str, place: Place, clock: Clock, stamp: int) -> None:
        self.description = description
        self.place = place
        self.clock = clock
        self.stamp = stamp
        self.holds_shared = False
        """Whether it still reads or writes shared memory, so that its CTA must not end before it."""
        self._action: Callable[[], None] | None = None

    def describe(self) -> str:
        """What it is and who issued it."""
        return self.description

    def on_run(self, action: Callable[[], None]) -> Operation:
        """Set what carrying it out does."""
        self._action = action
        return self

    def run(self) -> None:
        """Carry it out; reports get the place of its issue."""
        try:
            if self._action is not None:
                self._action()
        except ExecutionError as error:
            raise error.located(self.place) from None


class Queue:
    """Operations in flight, in streams: those of one stream are carried out in order, streams in any.

    `eagerness` is the chance that a turn of the scheduler carries one out before it has to: 0 is as late as possible,
    1 at once.
    """

    def __init__(self, chance: random.Random, eagerness: float) -> None:
        self._chance = chance
        self.eagerness = eagerness
        self._streams: dict[Hashable, deque[Operation]] = {}
        self.finished = 0

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Hashable, operation: Operation) -> None:
        """Put an operation in flight."""
        if self.eagerness >= 1 and stream not in self._streams:
            operation.run()
            self.finished += 1
            return
        self._streams.setdefault(stream, deque()).append(operation)

    def in_flight(self) -> list[Operation]:
        """Every operation that is not yet carried out."""
        return [operation for stream in self._streams.values() for operation in stream]

    def run_one(self) -> bool:
        """Carry out the first of some stream; False if nothing is in flight."""
        if not self._streams:
            return False
        keys = list(self._streams)
        key = keys[0] if self.eagerness == 0 else self._chance.choice(keys)
        self.run_next(key)
        return True

    def run_next(self, stream: Hashable) -> None:
        """Carry out the first operation of a stream."""
        operations = self._streams[stream]
        operation = operations.popleft()
        if not operations:
            del self._streams[stream]
        operation.run()
        self.finished += 1

    def run_stream(self, stream: Hashable) -> None:
        """Carry out everything in one stream, because someone may rely on it from now on."""
        while stream in self._streams:
            self.run_next(stream)
