# SPDX-License-Identifier: Apache-2.0
"""The order of tcgen05 operations that one thread issues: carried out in turn, and published by commits."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ..clocks import event
from ..operations import Operation
from ..reports import TensorMemoryError
from ..state import Cta, Warp
from ..tensor_memory import TensorMemory


class TensorPipe:
    """A warp's tcgen05 operations. `stamps` are those in flight that no commit covers yet."""

    def __init__(self, warp: Warp) -> None:
        self.dimension = warp.cta.cluster.dimensions.new(f"a tcgen05.commit of {warp.describe()}")
        self.stream: Hashable = ("tensor", warp)
        self.commits = 0
        self.stamps: set[int] = set()
        self._settles: list[tuple[Operation, Callable[..., None], tuple[Any, ...]]] = []

    def start(self, warp: Warp, what: str) -> Operation:
        """A new operation, ordered after the earlier ones of this pipe."""
        operation = warp.start(what)
        operation.clock.advance(self.dimension, self.commits)
        operation.holds_shared = True
        self.stamps.add(operation.stamp)
        return operation

    def settle_later(self, operation: Operation, settle: Callable[..., None], *where: Any) -> None:
        """With the next commit, call `settle(*where, stamp, event)`."""
        self._settles.append((operation, settle, where))

    def commit(self) -> int:
        """Everything issued until now belongs to one more commit; its event."""
        self.commits += 1
        known = event(self.dimension, self.commits)
        for operation, settle, where in self._settles:
            settle(*where, operation.stamp, known)
        self._settles.clear()
        self.stamps.clear()
        return known


def pipe_of(warp: Warp) -> TensorPipe:
    """The pipe of a warp."""
    found: TensorPipe | None = warp.groups.get("tensor")
    if found is None:
        found = warp.groups["tensor"] = TensorPipe(warp)
    return found


def tensor_memory_of(cta: Cta) -> TensorMemory:
    """The CTA's tensor memory. Raises TensorMemoryError on a chip without."""
    if cta.tensor_memory is None:
        raise TensorMemoryError("this chip has no tensor memory")
    return cta.tensor_memory
