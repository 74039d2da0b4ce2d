# SPDX-License-Identifier: Apache-2.0
"""One CTA's tensor memory: 128 lanes by 512 columns of 32 bits (PTX ISA, "Tensor Memory")."""

from __future__ import annotations

import numpy as np

from .clocks import Dimensions
from .lanes import Array
from .reports import RaceError, TensorMemoryError, UninitialisedError
from .shared import Agent

LANES = 128


class TensorMemory:
    """Cells, their allocation by columns, and a shadow per half quarter (16 lanes) and column."""

    def __init__(self, columns: int, dimensions: Dimensions) -> None:
        self.columns = columns
        self.cells: Array = np.zeros((LANES, columns), np.uint32)
        self.owner = np.zeros(columns, np.bool_)
        self.permitted = True
        self.used = False
        self.granted: list[int] = []
        """First columns allocated for warps that have not yet been told."""
        self._dimensions = dimensions
        self.allocations: dict[int, int] = {}
        self._writer = np.zeros((8, columns), np.int64)
        self._readers: dict[int, Array] = {}

    def find_free(self, columns: int) -> int | None:
        """The first column of a free run of that length, aligned to it, or None."""
        for start in range(0, self.columns - columns + 1, columns):
            if not self.owner[start : start + columns].any():
                return start
        return None

    def allocate(self, start: int, columns: int) -> None:
        """Take columns; their contents are unwritten."""
        self.owner[start : start + columns] = True
        self.allocations[start] = columns
        self.used = True
        self._writer[:, start : start + columns] = 0
        for readers in self._readers.values():
            readers[:, start : start + columns] = 0

    def free(self, start: int, columns: int) -> None:
        """Give columns back. Raises TensorMemoryError unless exactly these were allocated together."""
        if self.allocations.get(start) != columns:
            raise TensorMemoryError(
                f"dealloc of {columns} columns from {start}; allocated are {self.leaked() or 'none'}"
            )
        del self.allocations[start]
        self.owner[start : start + columns] = False

    def check_unused(self, agent: Agent, start: int, columns: int) -> None:
        """Raise RaceError unless every access to the columns is ordered before `agent`, which is about to free them."""
        span = (slice(0, 8), slice(start, start + columns))
        self._check(agent, self._writer[span], "dealloc", "write")
        for readers in self._readers.values():
            self._check(agent, readers[span], "dealloc", "read")

    def leaked(self) -> str:
        """The allocations that exist, in words; empty if none."""
        return ", ".join(f"{count} columns from {start}" for start, count in sorted(self.allocations.items()))

    def check_ended(self) -> None:
        """Raise TensorMemoryError if the CTA ends with columns allocated, or with the right to allocate kept."""
        if self.allocations:
            raise TensorMemoryError(f"the CTA ended with tensor memory allocated: {self.leaked()}")
        if self.used and self.permitted:
            raise TensorMemoryError("the CTA ended without tcgen05.relinquish_alloc_permit")

    def check(self, first_column: int, columns: int) -> None:
        """Raise TensorMemoryError unless the columns are allocated."""
        if first_column < 0 or first_column + columns > self.columns:
            raise TensorMemoryError(f"tensor memory columns {first_column} to {first_column + columns} do not exist")
        if not self.owner[first_column : first_column + columns].all():
            raise TensorMemoryError(
                f"tensor memory columns {first_column} to {first_column + columns} are not allocated "
                f"(allocated: {self.leaked() or 'none'})"
            )

    def on_read(self, agent: Agent, halves: slice, first_column: int, columns: int) -> None:
        """Check and record a read by `agent` of some half quarters of the lanes."""
        span = (halves, slice(first_column, first_column + columns))
        self._check(agent, self._writer[span], "read", "write")
        readers = self._readers.get(agent.stamp >> 32)
        if readers is None:
            readers = self._readers[agent.stamp >> 32] = np.zeros_like(self._writer)
        readers[span] = agent.stamp

    def on_write(
        self, agent: Agent, halves: slice, first_column: int, columns: int, pipe: set[int] | None = None
    ) -> None:
        """Check and record a write; events in `pipe` are ordered by the tensor pipe itself."""
        span = (halves, slice(first_column, first_column + columns))
        self._check(agent, self._writer[span], "write", "write", pipe)
        for readers in self._readers.values():
            self._check(agent, readers[span], "write", "read", pipe)
        self._writer[span] = agent.stamp

    def settle(self, halves: slice, first_column: int, columns: int, stamp: int, event: int) -> None:
        """Accesses stamped `stamp` are ordered before whoever knows `event`."""
        span = (halves, slice(first_column, first_column + columns))
        part = self._writer[span]
        self._writer[span] = np.where(part == stamp, event, part)

    def _check(self, agent: Agent, events: Array, kind: str, other: str, pipe: set[int] | None = None) -> None:
        first = events.flat[0]
        for each in (first,) if (events == first).all() else np.unique(events):
            number = int(each)
            if number == 0:
                if kind == "read":
                    raise UninitialisedError(f"{agent.describe()} reads tensor memory that nothing has written")
            elif not agent.clock.knows(number) and number != agent.stamp and (pipe is None or number not in pipe):
                seen = getattr(agent, "seen", agent.clock)
                hint = ": tcgen05.fence::after_thread_sync is missing between" if seen.knows(number) else ""
                raise RaceError(
                    f"{kind} of tensor memory by {agent.describe()} is not ordered after the {other} "
                    f"by {self._dimensions.describe(number)}{hint}"
                )
