# SPDX-License-Identifier: Apache-2.0
"""Barriers as objects: mbarriers, named barriers and the cluster's barrier (PTX ISA, "Parallel Synchronization")."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from .clocks import EPOCH_BITS, Clock, Dimensions, event
from .reports import BarrierError

MAX_COUNT = (1 << 20) - 1
MAX_TRANSACTIONS = (1 << 20) - 1


class Sleeper(Protocol):
    """A warp that waits and need not be asked again before it is woken."""

    def wake(self) -> None:
        """Look again."""
        ...


def _wake_all(sleepers: list[Sleeper]) -> None:
    woken = sleepers[:]
    sleepers.clear()
    for sleeper in woken:
        sleeper.wake()


class Mbarrier:
    """An mbarrier object: arrivals and transaction bytes pending in the current phase.

    `outside` holds the last event of each asynchronous operation or other CTA that signalled it, by dimension.
    `stores` is the dimension of its phases for writes of the generic proxy that they complete (0 before the first): the
    waiter knows them, the asynchronous proxy does not.
    `created` is the event of its initialisation. `phase` counts the completed phases. `completed` is what everyone has
    published who arrived in them.
    """

    __slots__ = (
        "completed",
        "count",
        "created",
        "dimension",
        "outside",
        "pending",
        "phase",
        "publishing",
        "sleepers",
        "stores",
        "transactions",
    )

    def __init__(self, count: int, dimensions: Dimensions, name: str) -> None:
        if not 1 <= count <= MAX_COUNT:
            raise BarrierError(f"mbarrier count {count} is not between 1 and {MAX_COUNT}")
        self.count = count
        self.pending = count
        self.transactions = 0
        self.phase = 0
        self.dimension = dimensions.new(name)
        self.created = 0
        self.stores = 0
        self.outside: dict[int, int] = {}
        self.completed = Clock()
        self.publishing = Clock()
        self.sleepers: list[Sleeper] = []

    @property
    def event(self) -> int:
        """The event of the current phase, which is known to whoever waits for its completion."""
        return event(self.dimension, self.phase + 1)

    def ready(self, parity: int) -> bool:
        """Whether the phase of this parity is the last completed one."""
        return (self.phase + 1) & 1 == parity & 1

    def arrive(self, count: int, clock: Clock | None, drop: int = 0, outside: int = 0) -> None:
        """`count` arrivals that publish `clock`; `drop` of them also leave for good.

        `outside` is the event of an arrival by another CTA or an asynchronous operation.
        """
        if outside:
            self.outside[outside >> EPOCH_BITS] = outside
        if count > self.pending:
            raise BarrierError(f"{count} arrivals on an mbarrier that expects {self.pending} more of {self.count}")
        if clock is not None:
            self.publishing.join(clock)
        self.count -= drop
        self.pending -= count
        self._complete()

    def expect(self, transactions: int) -> None:
        """Expect that many more bytes in the current phase."""
        self.transactions += transactions
        self._check_transactions()

    def transact(self, transactions: int, clock: Clock | None, by_thread: bool = False) -> None:
        """That many bytes have come, by an asynchronous operation unless `by_thread`."""
        if not by_thread:
            self.outside[self.dimension] = self.event
        if clock is not None:
            self.publishing.join(clock)
        self.transactions -= transactions
        self._check_transactions()
        self._complete()

    def _check_transactions(self) -> None:
        if abs(self.transactions) > MAX_TRANSACTIONS:
            raise BarrierError(f"transaction count {self.transactions} of an mbarrier exceeds {MAX_TRANSACTIONS}")

    def _complete(self) -> None:
        if self.pending or self.transactions:
            return
        self.completed.join(self.publishing)
        self.completed.learn(self.event)
        self.publishing = Clock()
        self.phase += 1
        self.pending = self.count
        _wake_all(self.sleepers)

    def __str__(self) -> str:
        return (
            f"mbarrier: phase {self.phase}, {self.pending} of {self.count} arrivals and "
            f"{self.transactions} bytes outstanding"
        )


@dataclass
class NamedBarrier:
    """One of a CTA's 16 barriers. `generation` counts completions, `expected` the threads of the current one."""

    expected: int = 0
    arrived: int = 0
    generation: int = 0
    publishing: Clock = field(default_factory=Clock)
    completed: Clock = field(default_factory=Clock)
    votes: list[tuple[int, int]] = field(default_factory=list)
    result: tuple[int, int] = (0, 0)
    sleepers: list[Sleeper] = field(default_factory=list)

    def arrive(self, expected: int, threads: int, clock: Clock, vote: tuple[int, int] = (0, 0)) -> None:
        """`threads` arrive, all of the same idea how many are `expected`; `vote` is (true, voters)."""
        if expected % 32 or expected <= 0:
            raise BarrierError(f"a barrier for {expected} threads: a multiple of 32 is needed")
        if self.arrived and expected != self.expected:
            raise BarrierError(f"a barrier that expects {self.expected} threads is used with {expected}")
        if self.arrived + threads > expected:
            raise BarrierError(f"{self.arrived + threads} threads arrive on a barrier that expects {expected}")
        self.expected = expected
        self.arrived += threads
        self.publishing.join(clock)
        self.votes.append(vote)
        if self.arrived == expected:
            self.result = (sum(v[0] for v in self.votes), sum(v[1] for v in self.votes))
            self.completed, self.publishing = self.publishing, Clock()
            self.arrived = 0
            self.votes = []
            self.generation += 1
            _wake_all(self.sleepers)


@dataclass
class ClusterBarrier:
    """barrier.cluster: every thread of the cluster arrives, then waits."""

    arrived: int = 0
    generation: int = 0
    publishing: Clock = field(default_factory=Clock)
    completed: Clock = field(default_factory=Clock)
    sleepers: list[Sleeper] = field(default_factory=list)

    def arrive(self, threads: int, expected: int, clock: Clock | None) -> None:
        """`threads` of `expected` arrive."""
        self.arrived += threads
        if clock is not None:
            self.publishing.join(clock)
        self.settle(expected)

    def settle(self, expected: int) -> None:
        """Complete the phase if the threads that are left have all arrived."""
        if self.arrived and self.arrived >= expected:
            self.completed, self.publishing = self.publishing, Clock()
            self.arrived = 0
            self.generation += 1
            _wake_all(self.sleepers)
