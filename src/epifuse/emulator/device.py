# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - the machine is imported when a device is entered
"""Which GPU is emulated now: `with device("100a"):` enters one for the whole process, all its threads included."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .chips import Chip
    from .machine import LaunchReport, Options
    from .memory import HostMemory


class Executor(Protocol):
    """What runs PTX: the emulator's machine, or a double in a test."""

    def parse(self, text: str) -> Any:
        """Return the parsed module of a PTX text."""

    def launch(self, module: Any, kernel_name: str, **arguments: Any) -> Any:
        """Run one kernel to its end and return a report of it."""


class Machine:
    """The executor of PTX, imported when a kernel first needs it."""

    def parse(self, text: str) -> Any:
        """Parse a PTX text."""
        from . import ptx

        return ptx.parse(text)

    def launch(self, module: Any, kernel_name: str, **arguments: Any) -> Any:
        """Run one kernel on the machine."""
        from . import machine

        return machine.launch(module, kernel_name, **arguments)


@dataclasses.dataclass(frozen=True, eq=False)
class EmulatedDevice:
    """One emulated GPU: its chip, how strictly it runs, its memory and what was launched on it."""

    chip: Chip
    options: Options
    memory: HostMemory
    executor: Executor
    reports: list[LaunchReport] = dataclasses.field(default_factory=list)
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)


class _Stack:
    """The devices entered and not yet left, innermost last."""

    def __init__(self) -> None:
        self._entered: list[EmulatedDevice] = []
        self._lock = threading.Lock()

    def push(self, device: EmulatedDevice) -> None:
        with self._lock:
            self._entered.append(device)

    def remove(self, device: EmulatedDevice) -> None:
        with self._lock:
            newest_first = reversed(range(len(self._entered)))
            del self._entered[next(i for i in newest_first if self._entered[i] is device)]

    def top(self) -> EmulatedDevice | None:
        with self._lock:
            return self._entered[-1] if self._entered else None


_STACK = _Stack()


def current() -> EmulatedDevice | None:
    """The innermost device that is entered in this process, or None."""
    return _STACK.top()


def active() -> Chip | None:
    """The chip that is emulated now, or None where the real devices answer."""
    device = _STACK.top()
    return None if device is None else device.chip


@contextlib.contextmanager
def entered(device: EmulatedDevice) -> Iterator[EmulatedDevice]:
    """Make a device that exists already the process's GPU until the block ends."""
    _STACK.push(device)
    try:
        yield device
    finally:
        _STACK.remove(device)


@contextlib.contextmanager
def device(
    name: str,
    *,
    seed: int = 0,
    strict: bool = True,
    trace: Callable[[Any], None] | None = None,
    sm_count: int | None = None,
) -> Iterator[EmulatedDevice]:
    """Make this process, all its threads, have the GPU `name` ("100a", "90a", "80", ...), emulated.

    CPU tensors stand for device tensors inside the block. Blocks nest; the device before is back when one ends,
    whatever was imported or compiled meanwhile. `seed` chooses the order of warps and the latencies, `strict`
    turns misuse into errors, `trace` is called with what the machine does, and `sm_count` pretends a smaller
    or larger chip, so that a persistent kernel's CTAs get more or fewer tiles each.
    """
    from . import chips

    chip = chips.chip(name)
    if sm_count is not None:
        chip = chip._replace(sm_count=sm_count)
    from . import machine, memory

    options = machine.Options(seed=seed, strict=strict, trace=trace)
    with entered(EmulatedDevice(chip, options, memory.HostMemory(), Machine())) as it:
        yield it
