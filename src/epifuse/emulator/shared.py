# SPDX-License-Identifier: Apache-2.0
"""One CTA's shared memory: its bytes, and a shadow that says who wrote and read each word (PTX ISA, ".shared").

The shadow has one entry per 4-byte word. Words that narrower accesses have written have four more, one per byte; these
arrays exist only in kernels that need them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .clocks import EPOCH_BITS, Clock, Dimensions
from .lanes import Array
from .reports import BarrierError, ExecutionError, MemoryFaultError, ProxyError, RaceError, UninitialisedError

RESERVED_BYTES = 1024
"""The system's part, at the start of every CTA's shared memory."""
CTA_SHIFT = 24
OFFSET_MASK = (1 << CTA_SHIFT) - 1

Words = Array | slice
"""Which words an access touches: indices of any shape, or a range."""


class Agent(Protocol):
    """Whoever accesses memory: a warp or an asynchronous operation."""

    @property
    def clock(self) -> Clock:
        """What it knows."""
        ...

    @property
    def stamp(self) -> int:
        """The event that an access made now gets."""
        ...

    def describe(self) -> str:
        """The agent's name in reports."""
        ...


def word_range(offset: int, size_bytes: int) -> slice:
    """The words that a contiguous range of bytes touches."""
    return slice(offset >> 2, (offset + size_bytes + 3) >> 2)


class SharedMemory:
    """Bytes from offset 0 (reserved) to `size_bytes`, which includes the reserved part."""

    def __init__(self, size_bytes: int, rank: int, dimensions: Dimensions, strict: bool) -> None:
        self.size_bytes = size_bytes
        self.rank = rank
        self.strict = strict
        self.dimensions = dimensions
        padded = -(-size_bytes // 128) * 128
        store = np.zeros(padded // 8 + 16, np.uint64)
        # Bulk copies move 16-byte rows; swizzles follow the offset, so the buffer itself needs no larger alignment.
        skip = (-store.ctypes.data % 128) // 8
        self.u8: Array = store[skip : skip + padded // 8].view(np.uint8)
        self.views: dict[int, Array] = {n: self.u8.view(f"u{n}") for n in (1, 2, 4, 8)}
        self.barriers: dict[int, Any] = {}
        words = padded // 4
        self._writer = np.zeros(words, np.int64)
        self._narrow = np.zeros(words, np.bool_)
        """Words whose bytes were written one by one: `_byte_writer` has their writers."""
        self._atomic = np.zeros(words, np.bool_)
        self._byte_writer: Array | None = None
        self._byte_readers: dict[int, Array] = {}
        self._is_barrier = np.zeros(words, np.bool_)
        self._async_reader = np.zeros(words, np.int64)
        self._async_written = np.zeros(words, np.bool_)
        self._readers: dict[int, Array] = {}

    def check_bounds(self, low: int, high: int, size_bytes: int) -> None:
        """Raise MemoryFaultError unless [low, high) lies in what the kernel owns."""
        if low < RESERVED_BYTES or high > self.size_bytes:
            raise MemoryFaultError(
                f"shared access of {size_bytes} bytes between offsets {low:#x} and {high:#x} is outside the CTA's "
                f"{self.size_bytes - RESERVED_BYTES} bytes from {RESERVED_BYTES:#x}"
            )

    def check_all(self, offsets: Array, size_bytes: int) -> None:
        """As `check_bounds` for one access of `size_bytes` bytes at each offset."""
        low, high = int(offsets.min()), int(offsets.max()) + size_bytes
        if low < RESERVED_BYTES or high > self.size_bytes:
            outside = (offsets < RESERVED_BYTES) | (offsets + size_bytes > self.size_bytes)
            position = int(np.flatnonzero(outside)[0])
            try:
                self.check_bounds(int(offsets[position]), int(offsets[position]) + size_bytes, size_bytes)
            except MemoryFaultError as error:
                error.position = position
                raise

    def fill(self, offset: int, data: bytes) -> None:
        """Initial contents, known to every agent."""
        self.u8[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def add_barrier(self, offset: int, barrier: Any) -> None:
        """Make the 8 bytes at `offset` a barrier, which only barrier instructions may touch from then on."""
        self.barriers[offset] = barrier
        self._is_barrier[word_range(offset, 8)] = True

    def remove_barrier(self, offset: int) -> None:
        """End the barrier at `offset`."""
        del self.barriers[offset]
        self._is_barrier[word_range(offset, 8)] = False

    # -- accesses by threads, through the generic proxy ----------------------------------------------------------

    def on_read(self, agent: Agent, words: Words) -> None:
        """Check and record a read by threads."""
        if not self.strict:
            return
        self._check(agent, self._writer[words], "read", "write")
        self._check_bytes(agent, words, "read")
        stamp = agent.stamp
        readers = self._readers.get(stamp >> 32)
        if readers is None:
            readers = self._readers[stamp >> 32] = np.zeros(self._writer.size, np.int64)
        readers[words] = stamp

    def on_write(self, agent: Agent, words: Words) -> None:
        """Check and record a write by threads (or by cp.async or st.async, which use the same proxy)."""
        if not self.strict:
            return
        self._check_overwrite(agent, words)
        self._writer[words] = agent.stamp
        self._narrow[words] = False
        self._atomic[words] = False
        self._async_written[words] = False

    def on_narrow_read(self, agent: Agent, offsets: Array, size_bytes: int) -> None:
        """As `on_read` for accesses of 1 or 2 bytes, one at each offset."""
        if not self.strict:
            return
        words, places = offsets >> 2, offsets[:, None] + np.arange(size_bytes)
        written = np.broadcast_to(self._writer[words][:, None], places.shape)
        if self._byte_writer is not None:
            written = np.where(self._narrow[words][:, None], self._byte_writer[places], written)
        self._check(agent, written, "read", "write")
        readers = self._byte_readers.get(agent.stamp >> 32)
        if readers is None:
            readers = self._byte_readers[agent.stamp >> 32] = np.zeros(4 * self._writer.size, np.int64)
        readers[places] = agent.stamp

    def on_narrow_write(self, agent: Agent, offsets: Array, size_bytes: int) -> None:
        """As `on_write` for accesses of 1 or 2 bytes, one at each offset."""
        if not self.strict:
            return
        words, places = offsets >> 2, offsets[:, None] + np.arange(size_bytes)
        if self._byte_writer is None:
            self._byte_writer = np.zeros(4 * self._writer.size, np.int64)
        by_word = self._byte_writer.reshape(-1, 4)
        fresh = words[~self._narrow[words]]
        by_word[fresh] = self._writer[fresh][:, None]
        self._narrow[words] = True
        self._check_barriers(words)
        self._check(agent, self._byte_writer[places], "write", "write")
        self._check_readers(agent, words, self._readers)
        self._check_readers(agent, places, self._byte_readers)
        self._byte_writer[places] = agent.stamp
        self._writer[words] = agent.stamp
        self._atomic[words] = False
        self._async_written[words] = False

    def on_atomic(self, agent: Agent, words: Words) -> None:
        """Check an atomic access: it is never in a race with another atomic, and everyone sees its result."""
        if not self.strict:
            return
        plain = self._writer[words][~self._atomic[words]]
        self._check(agent, plain, "read", "write")
        self._atomic[words] = True

    # -- accesses by asynchronous operations, through the asynchronous proxy -------------------------------------

    def on_async_read(self, agent: Agent, words: Words) -> None:
        """Check and record a read by an operation; `settle` replaces its stamp when its completion is known."""
        if not self.strict:
            return
        written = self._writer[words]
        self._check(agent, written, "read", "write")
        self._check_bytes(agent, words, "read")
        generic = ~self._async_written[words]
        if generic.any():
            self._check_fenced(agent, written[generic], "reads", "written")
        self._async_reader[words] = agent.stamp

    def on_async_write(self, agent: Agent, words: Words) -> None:
        """Check and record a write by an operation; `settle` replaces its stamp when its completion is known."""
        if not self.strict:
            return
        generic = ~self._async_written[words]
        if generic.any():
            self._check_fenced(agent, self._writer[words][generic], "writes", "written")
        self._check_overwrite(agent, words)
        for readers in self._readers.values():
            self._check_fenced(agent, readers[words], "writes", "read")
        self._writer[words] = agent.stamp
        self._narrow[words] = False
        self._atomic[words] = False
        self._async_written[words] = True

    def settle(self, words: Words, stamp: int, event: int) -> None:
        """Accesses stamped `stamp` are ordered before whoever knows `event`."""
        if not self.strict:
            return
        for shadow in (self._writer, self._async_reader):
            part = shadow[words]
            shadow[words] = np.where(part == stamp, event, part)

    def check_ended(self, clock: Clock, peers: frozenset[int]) -> None:
        """Raise RaceError if an asynchronous operation or another CTA may still use the memory when its CTA ends.

        `clock` is what the CTA's warps know together at their ends, `peers` the dimensions of the other CTAs' warps.
        """
        if not self.strict:
            return
        by_peers = np.isin(self._writer >> EPOCH_BITS, list(peers)) if peers else False
        written = np.where(self._async_written | by_peers, self._writer, 0)
        latest = [readers.max() for shadow in (self._readers, self._byte_readers) for readers in shadow.values()]
        for shadow in (self._async_reader, written):
            latest.extend(shadow[np.flatnonzero(np.diff(shadow, prepend=0))])
        for number in {int(each) for each in latest}:
            if number and not clock.knows(number):
                used = self.dimensions.describe(number)
                raise RaceError(f"CTA rank {self.rank} may end before its shared memory is free of {used}")
        for offset, barrier in self.barriers.items():
            if not all(clock.knows(number) for number in barrier.outside.values()):
                raise RaceError(
                    f"CTA rank {self.rank} may end before its mbarrier at shared offset {offset:#x} is signalled "
                    "by an asynchronous operation or another CTA"
                )

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_overwrite(self, agent: Agent, words: Words) -> None:
        self._check_barriers(words)
        self._check(agent, self._writer[words], "write", "write")
        self._check_bytes(agent, words, "write")
        self._check_readers(agent, words, self._readers)

    def _check_barriers(self, words: Words) -> None:
        if self.barriers and self._is_barrier[words].any():
            raise BarrierError("a write to shared memory hits an initialised mbarrier")

    def _check_readers(self, agent: Agent, places: Words, shadows: dict[int, Array]) -> None:
        if shadows is self._readers:
            self._check(agent, self._async_reader[places], "write", "read")
        own = agent.stamp >> 32
        for dimension, readers in shadows.items():
            if dimension != own:
                latest = int(readers[places].max(initial=0))
                if latest and not agent.clock.knows(latest):
                    raise _at(self._race(agent, latest, "write", "read"), readers[places] == latest)

    def _check_bytes(self, agent: Agent, words: Words, kind: str) -> None:
        """The part of a check of whole words that concerns accesses to their bytes."""
        if self._byte_writer is not None and self._narrow[words].any():
            own = self._byte_writer.reshape(-1, 4)[words][self._narrow[words]]
            self._check(agent, own, kind, "write")
        if kind == "write":
            for dimension, readers in self._byte_readers.items():
                if dimension != agent.stamp >> 32:
                    self._check(agent, readers.reshape(-1, 4)[words], kind, "read")

    def _check(self, agent: Agent, events: Array, kind: str, other_kind: str) -> None:
        if not events.size:
            return
        first = events.flat[0]
        found = (first,) if (events == first).all() else np.unique(events)
        for each in found:
            number = int(each)
            if number == 0:
                if kind == "read":
                    what = f"{agent.describe()} reads shared memory that nothing has written"
                    raise _at(UninitialisedError(what), events == each)
            elif not agent.clock.knows(number) and number != agent.stamp:
                raise _at(self._race(agent, number, kind, other_kind), events == each)

    def _check_fenced(self, agent: Agent, events: Array, kind: str, other_kind: str) -> None:
        first = events.flat[0]
        for each in (first,) if (events == first).all() else np.unique(events):
            if each and agent.clock.knows(int(each)) and not agent.clock.knows_fenced(int(each)):
                raise ProxyError(
                    f"{agent.describe()} {kind} shared memory {other_kind} by {self.dimensions.describe(int(each))} "
                    "without a proxy fence between"
                )

    def _race(self, agent: Agent, other: int, kind: str, other_kind: str) -> RaceError:
        return RaceError(
            f"{kind} of shared memory by {agent.describe()} is not ordered after the {other_kind} "
            f"by {self.dimensions.describe(other)}"
        )


def _at(error: ExecutionError, where: Array) -> ExecutionError:
    """Say which lane it was, for accesses of shape (lanes, words)."""
    if where.ndim == 2:
        error.position = int(np.argwhere(where)[0][0])
    return error
