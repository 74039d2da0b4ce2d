# SPDX-License-Identifier: Apache-2.0
"""Races in global memory (PTX ISA, "Memory Consistency Model"): who wrote and read what during one launch.

Clocks count within a cluster (clocks.py); what one cluster knows of another it has from a release and an acquire on one
location, by atomics or by strong loads and stores with fences: `publish` and `acquire`. Accesses that are strong
themselves (atomics, relaxed, volatile) are in no race with each other and are not recorded; of several readers of the
same bytes the last one is remembered. So an unordered access can be missed, but what is reported is unordered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from .clocks import Clock, Dimensions
from .lanes import Array
from .memory import HostMemory
from .reports import RaceError

_CLUSTER_SHIFT = 48
_EVENT_MASK = (1 << _CLUSTER_SHIFT) - 1
_MOST_CLUSTERS = 1 << 15
_LARGEST_BYTES = 1 << 26
_LONGEST_LOG = 30_000
Location = dict[int, Clock]
"""What releases on one address have published, by the cluster's number."""


class Agent(Protocol):
    """A warp or an operation in flight."""

    @property
    def clock(self) -> Clock:
        """What it knows."""
        ...

    def describe(self) -> str:
        """The agent's name in reports."""
        ...


@dataclass(frozen=True)
class Touched:
    """Bytes of one access: between `low` and `high`; every start and length is a multiple of `grain` bytes.

    `units(base, grain)` are the places in units of `grain` from the address `base`.
    """

    low: int
    high: int
    grain: int
    units: Callable[[int, int], Array]


def of_lanes(addresses: Array, size_bytes: int) -> Touched:
    """`size_bytes` bytes at each address."""
    bits = int(np.bitwise_or.reduce(addresses)) | size_bytes | 8

    def units(base: int, grain: int) -> Array:
        first = (addresses.astype(np.int64) - base) // grain
        found: Array = first[:, None] + np.arange(size_bytes // grain)
        return found

    return Touched(int(addresses.min()), int(addresses.max()) + size_bytes, bits & -bits, units)


def of_view(view: Array) -> Touched:
    """The elements of a strided view."""
    view = view if view.strides[-1] == view.itemsize else view[..., None]
    address, run = view.ctypes.data, view.shape[-1] * view.itemsize
    outer, steps = view.shape[:-1], view.strides[:-1]
    bits = address | run | 8
    for step in steps:
        bits |= step

    def units(base: int, grain: int) -> Array:
        found = (address - base) // grain + np.arange(run // grain)
        for extent, step in zip(outer[::-1], steps[::-1], strict=True):
            found = np.add.outer(np.arange(extent) * (step // grain), found)
        return found

    last = sum((extent - 1) * step for extent, step in zip(outer, steps, strict=True))
    return Touched(address, address + last + run, bits & -bits, units)


@dataclass
class _Shadow:
    """One allocation. Until something writes to it, reads are only listed (`log`)."""

    address: int
    size_bytes: int
    grain: int = 8
    writer: Array | None = None
    reader: Array | None = None
    log: list[tuple[Touched, int]] = field(default_factory=list)

    def places(self, touched: Touched) -> Array:
        """The access in units; makes the units smaller where they are too large for it."""
        if touched.grain < self.grain:
            if self.writer is not None and self.reader is not None:
                parts = self.grain // touched.grain
                self.writer, self.reader = np.repeat(self.writer, parts), np.repeat(self.reader, parts)
            self.grain = touched.grain
        return touched.units(self.address & ~7, self.grain)

    def begin(self, touched: Touched) -> tuple[Array, Array]:
        """The shadow arrays; the first write makes them, from the reads before it."""
        if self.writer is None or self.reader is None:
            self.grain = min([touched.grain, *(read.grain for read, _ in self.log)])
            units = -(-(self.size_bytes + 8) // self.grain)
            self.writer, self.reader = np.zeros(units, np.int64), np.zeros(units, np.int64)
            for read, number in self.log:
                self.reader[self.places(read)] = number
            self.log.clear()
        return self.writer, self.reader


class GlobalRaces:
    """The accesses of one launch to registered memory."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._shadows: dict[int, _Shadow] = {}
        self._dimensions: list[Dimensions] = []
        self.locations: dict[int, Location] = {}

    def new_cluster(self, dimensions: Dimensions) -> int:
        """The number of a cluster that starts."""
        self._dimensions.append(dimensions)
        return len(self._dimensions) - 1

    def read(self, agent: Agent, cluster: int, event: int, touched: Touched) -> None:
        """Check and record a read that is ordered before whoever knows `event` of that cluster."""
        shadow = self._shadow(touched, cluster)
        if shadow is None:
            return
        number = cluster << _CLUSTER_SHIFT | event
        if shadow.writer is None or shadow.reader is None:
            if len(shadow.log) < _LONGEST_LOG:
                shadow.log.append((touched, number))
            return
        places = shadow.places(touched)
        self._check(agent, cluster, number, shadow.writer[places], "read", "write")
        shadow.reader[places] = number

    def write(self, agent: Agent, cluster: int, event: int, touched: Touched) -> None:
        """Check and record a write, as `read`."""
        shadow = self._shadow(touched, cluster)
        if shadow is None:
            return
        number = cluster << _CLUSTER_SHIFT | event
        shadow.begin(touched)
        places = shadow.places(touched)
        writer, reader = shadow.begin(touched)
        self._check(agent, cluster, number, writer[places], "write", "write")
        self._check(agent, cluster, number, reader[places], "write", "read")
        writer[places] = number

    def check_atomic(self, agent: Agent, cluster: int, touched: Touched) -> None:
        """Check that plain writes to the place of an atomic come before it."""
        shadow = self._shadow(touched, cluster)
        if shadow is not None and shadow.writer is not None:
            places = shadow.places(touched)
            self._check(agent, cluster, -1, shadow.writer[places], "atomic access", "write")

    def _shadow(self, touched: Touched, cluster: int) -> _Shadow | None:
        allocation = self._memory.find(touched.low)
        if allocation is None or touched.high > allocation.end or cluster >= _MOST_CLUSTERS:
            return None
        if allocation.size_bytes > _LARGEST_BYTES:
            return None
        shadow = self._shadows.get(allocation.address)
        if shadow is None:
            shadow = self._shadows[allocation.address] = _Shadow(allocation.address, allocation.size_bytes)
        return shadow

    def _check(self, agent: Agent, cluster: int, own: int, events: Array, kind: str, other: str) -> None:
        first = events.flat[0]
        for each in (first,) if (events == first).all() else np.unique(events):
            number = int(each)
            if number in (0, own) or self._knows(agent.clock, cluster, number):
                continue
            error = RaceError(
                f"{kind} of global memory by {agent.describe()} is not ordered after the {other} "
                f"by {self._dimensions[number >> _CLUSTER_SHIFT].describe(number & _EVENT_MASK)}"
            )
            if events.ndim == 2:
                error.position = int(np.argwhere(events == each)[0][0])
            raise error

    @staticmethod
    def _knows(clock: Clock, cluster: int, number: int) -> bool:
        source = number >> _CLUSTER_SHIFT
        if source == cluster:
            return clock.knows(number & _EVENT_MASK)
        foreign = clock.foreign.get(source)
        return foreign is not None and foreign.knows(number & _EVENT_MASK)


def publish(location: Location, cluster: int, clock: Clock) -> None:
    """A release on a location by a warp of a cluster that knows `clock`."""
    for number, known in ((cluster, clock.own()), *clock.foreign.items()):
        before = location.get(number)
        location[number] = known if before is None else before.joined(known)


def acquire(location: Location, cluster: int, clock: Clock) -> None:
    """An acquire on a location: `clock`, of a warp of a cluster, learns what was published there."""
    for number, known in location.items():
        if number == cluster:
            clock.join(known)
        else:
            clock.learn_foreign(number, known)
