# SPDX-License-Identifier: Apache-2.0
"""Sees every write that torch makes to one tensor's memory: how often each element, and region by region in order."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True, slots=True)
class Region:
    """A rectangle of the watched matrix: first row and column, rows and columns."""

    m: int
    n: int
    rows: int
    columns: int


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside ``with Writes(tensor) as writes``, ``writes.counts`` grows by one where torch writes an element.

    Only what goes through torch is seen: a kernel of one's own, or numpy on the same memory, is not, and then
    ``writes.seen`` stays False.
    """

    def __init__(self, watched: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watched = watched
        self.storage = watched.untyped_storage()
        elements = self.storage.nbytes() // watched.element_size()
        self.memory = torch.zeros(elements, dtype=torch.int32, device=watched.device)
        self.regions: list[Region] = []
        self.seen = False

    @property
    def counts(self) -> torch.Tensor:
        """How often each element of the watched tensor was written."""
        return self.memory.as_strided(self.watched.shape, self.watched.stride(), self.watched.storage_offset())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then count what it wrote."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else kwargs.get(argument.name)
                if isinstance(value, torch.Tensor):
                    self._count(value)
        return result

    def _count(self, x: torch.Tensor) -> None:
        if x.untyped_storage().data_ptr() != self.storage.data_ptr() or x.dtype != self.watched.dtype:
            return
        self.seen = True
        if x.numel() == 0:
            return
        part = self.memory.as_strided(x.shape, x.stride(), x.storage_offset())
        part += 1
        start = int(x.storage_offset()) - int(self.watched.storage_offset())
        row = self.watched.stride(0)
        if x.dim() == 2 and self.watched.dim() == 2 and x.stride() == self.watched.stride() and row > 0 and start >= 0:
            self.regions.append(Region(start // row, start % row, x.shape[0], x.shape[1]))
        else:
            self.regions.append(Region(-1, -1, 0, 0))


class OutOfTimeError(Exception):
    """A call took longer than it was given."""


@contextlib.contextmanager
def time_box(seconds: float) -> Iterator[None]:
    """Interrupt what runs inside after ``seconds``; in a thread other than the main one it cannot, and does not.

    Raises:
        OutOfTimeError: it was interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise OutOfTimeError(f"stopped after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
