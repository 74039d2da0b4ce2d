# SPDX-License-Identifier: Apache-2.0
"""What a running grid is made of: grid, clusters, CTAs and warps."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .barriers import ClusterBarrier, NamedBarrier, Sleeper
from .chips import Chip
from .clocks import Clock, Dimensions, event
from .global_races import GlobalRaces, Location, Touched, acquire, publish
from .lanes import FULL, LANES, Array, Lanes, Value, lanes_of
from .memory import HostMemory
from .operations import Operation, Queue
from .reports import DivergenceError, Place
from .shared import SharedMemory

if TYPE_CHECKING:
    from .program import Program
    from .tensor_memory import TensorMemory

Index3 = tuple[int, int, int]


@dataclass(frozen=True)
class Options:
    """How to run. `seed` 0 runs warps in order and operations as late as possible; others draw both from the seed.

    `strict` turns checks of ordering and of unwritten memory on. `trace` is called with the place and text of each
    instruction of each warp, which is slow.
    """

    seed: int = 0
    strict: bool = True
    trace: Callable[[str], None] | None = None


class Split:
    """Lanes that diverged and meet again at block `meets`; `parent` is the split around this one."""

    __slots__ = ("arrived", "meets", "parent", "parts")

    def __init__(self, meets: int, parts: int, parent: Split | None) -> None:
        self.meets = meets
        self.parts = parts
        self.arrived = 0
        self.parent = parent


class Fragment:
    """Lanes of a warp that run together: the next step is `index` of block `block`."""

    __slots__ = ("block", "index", "mask", "split")

    def __init__(self, block: int, mask: int, split: Split | None) -> None:
        self.block = block
        self.index = 0
        self.mask = mask
        self.split = split


class Warp:
    """32 lanes, their registers and what they know.

    `mask` has the lanes that execute now, `live` those that have not exited; `partial` says that they differ, so that
    registers must be merged. `timed_out` lets a waiting try_wait give up once.
    """

    def __init__(self, cta: Cta, index: int, live: int, registers: list[Value]) -> None:
        self.cta = cta
        self.grid = cta.cluster.grid
        self.index = index
        self.registers = registers
        self.live = live
        self.mask = live
        self.lanes: Lanes = lanes_of(live)
        self.partial = False
        self.fragments: list[Fragment] = [Fragment(0, live, None)]
        self.dimension = cta.cluster.dimensions.new(f"warp {index} of CTA {cta.index}")
        self.epoch = 1
        self.clock = Clock.of(self.dimension, 1)
        self.released: Clock | None = None
        self.released_globally: Clock | None = None
        """What the last fence of the whole GPU's scope lets later strong writes publish."""
        self.observed: dict[int, Location] = {}
        """What strong reads have seen, by address, which such a fence acquires."""
        self.timed_out = False
        self.may_time_out = False
        self.polled_at = -1
        self.asleep = False
        self.line = 0
        self.instructions = 0
        self.waits = 0
        self.bytes_moved = 0
        self.groups: dict[str, Any] = {}
        self.local: Array = np.zeros((LANES, -(-self.grid.local_bytes // 8) * 8), np.uint8)
        """Each thread's local memory."""

    @property
    def stamp(self) -> int:
        """The event of an access made now."""
        return event(self.dimension, self.epoch)

    def describe(self) -> str:
        """The warp's name in reports."""
        return f"warp {self.index} of CTA {self.cta.index}"

    def narrow(self, mask: int) -> None:
        """Execute with these lanes from now on."""
        self.mask = mask
        self.lanes = lanes_of(mask)
        self.partial = mask != self.live

    def sleep(self, sleepers: list[Sleeper]) -> None:
        """Blocked until one of `sleepers` is woken; a warp with other fragments goes on being asked."""
        if len(self.fragments) == 1:
            self.asleep = True
            if self not in sleepers:
                sleepers.append(self)

    def wake(self) -> None:
        """Ask again."""
        if self.asleep:
            self.asleep = False
            self.polled_at = -1
            self.cta.cluster.ready.append(self)

    def acquire(self, clock: Clock) -> None:
        """Learn what a release published."""
        self.clock.join(clock)

    def release(self) -> Clock:
        """What the warp has seen and done until now, to be published; later accesses are later."""
        published = self.clock.snapshot()
        self.epoch += 1
        self.clock.advance(self.dimension, self.epoch)
        return published

    def fence_proxy(self) -> None:
        """fence.proxy.async: earlier accesses become visible to the asynchronous proxy."""
        self.clock.fence_proxy()
        self.epoch += 1
        self.clock.advance(self.dimension, self.epoch)

    def fence_globally(self) -> None:
        """A fence of the whole GPU's scope: what strong reads saw is acquired, what was done may be published."""
        for location in self.observed.values():
            acquire(location, self.cta.cluster.number, self.clock)
        self.observed.clear()
        self.released_globally = self.release()

    def touch(self, touched: Touched, write: bool) -> None:
        """A weak access to global memory."""
        races = self.grid.races
        if races is not None:
            (races.write if write else races.read)(self, self.cta.cluster.number, self.stamp, touched)

    def synchronize(
        self, address: int, reads: bool, writes: bool, acquires: bool = False, releases: bool = False
    ) -> None:
        """A strong access to an address of global memory: what others published there, and what is published."""
        races, cluster = self.grid.races, self.cta.cluster.number
        if races is None:
            return
        location = races.locations.setdefault(address, {})
        if reads and location:
            if acquires:
                acquire(location, cluster, self.clock)
            else:
                self.observed[address] = dict(location)
        if writes:
            clock = self.release() if releases else self.released_globally
            if clock is not None:
                publish(location, cluster, clock)

    def start(self, what: str) -> Operation:
        """A new asynchronous operation issued by this warp at its current line."""
        description = f"{what} issued at line {self.line} by {self.describe()}"
        stamp = self.cta.cluster.dimensions.start(description)
        return Operation(description, self.place(), self.clock.snapshot(), stamp)

    def place(self) -> Place:
        """Where the warp is."""
        program = self.grid.program
        return Place(
            program.name, self.cta.index, self.index, None, self.line or None, program.module.line_text(self.line)
        )

    def require(self, members: int, what: str) -> None:
        """Raise DivergenceError unless all living lanes of the mask `members` execute now."""
        missing = members & self.live & ~self.mask
        if missing:
            raise DivergenceError(f"{what} names lanes {missing:#010x}, which are elsewhere")


class Cta:
    """One thread block."""

    def __init__(self, cluster: Cluster, index: Index3, rank: int) -> None:
        self.cluster = cluster
        self.index = index
        self.rank = rank
        grid = cluster.grid
        self.shared = SharedMemory(grid.shared_bytes, rank, cluster.dimensions, grid.options.strict)
        self.named_barriers: dict[int, NamedBarrier] = {}
        self.warps: list[Warp] = []
        self.tensor_memory: TensorMemory | None = None

    @property
    def threads(self) -> int:
        """Threads that have not exited."""
        return sum(warp.live.bit_count() for warp in self.warps)


class Cluster:
    """CTAs that run together and reach each other's shared memory; a single CTA where there are no clusters."""

    def __init__(self, grid: Grid, index: Index3) -> None:
        self.grid = grid
        self.index = index
        self.dimensions = Dimensions()
        self.number = grid.races.new_cluster(self.dimensions) if grid.races is not None else 0
        self.barrier = ClusterBarrier()
        self.ctas: list[Cta] = []
        self.atomics: dict[int, Clock] = {}
        """What releases on each atomic location have published."""
        self.ready: list[Warp] = []
        """Warps that are not asleep."""

    @cached_property
    def warps(self) -> list[Warp]:
        """The warps of all CTAs, once these are made."""
        return [warp for cta in self.ctas for warp in cta.warps]

    @property
    def done(self) -> bool:
        """Whether every thread has exited."""
        return not any(warp.live for warp in self.warps)


@dataclass
class Grid:
    """One launch. `progress` counts what may let a waiting warp go on."""

    program: Program
    chip: Chip
    options: Options
    memory: HostMemory
    size: Index3
    block: Index3
    cluster_size: Index3
    shared_bytes: int
    local_bytes: int
    parameters: int
    parameter_bytes: bytes
    chance: random.Random
    queue: Queue
    waiting: deque[Index3] = field(default_factory=deque)
    progress: int = 0
    meetings: dict[Any, dict[int, int]] = field(default_factory=dict)
    """Instructions that two CTAs must execute together, and which ranks have come."""
    races: GlobalRaces | None = None
    """Accesses to global memory, where they are checked."""

    @property
    def warps_per_cta(self) -> int:
        """Warps in each CTA, the last possibly not full."""
        x, y, z = self.block
        return -(-x * y * z // 32)

    def lanes_in(self, warp: int) -> int:
        """The mask of existing lanes of a warp."""
        x, y, z = self.block
        return FULL if (warp + 1) * 32 <= x * y * z else (1 << (x * y * z - warp * 32)) - 1
