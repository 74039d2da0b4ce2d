# SPDX-License-Identifier: Apache-2.0
"""Launches a kernel on the emulated chip and runs it to its end."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from .chips import Chip
from .chips import chip as find_chip
from .clocks import Clock
from .global_races import GlobalRaces
from .lanes import LANE_INDEX, LANES, Array, Value
from .memory import HostMemory
from .operations import Queue
from .program import Program, build
from .reports import ExecutionError, LaunchError, Place, RaceError
from .scheduler import Scheduler
from .shared import CTA_SHIFT, RESERVED_BYTES
from .state import Cluster, Cta, Grid, Index3, Options, Warp
from .syntax import Function, Module
from .tensor_memory import TensorMemory

__all__ = ["LaunchReport", "Options", "launch"]


@dataclass(frozen=True)
class WarpCounts:
    """What one warp did: instructions executed, barrier waits that had to wait, bytes moved by its copies."""

    cta: Index3
    warp: int
    instructions: int
    waits: int
    bytes_moved: int


@dataclass(frozen=True)
class LaunchReport:
    """What a launch did. `clusters` counts the clusters that ran, `operations` the asynchronous ones."""

    kernel: str
    clusters: int
    operations: int
    warps: tuple[WarpCounts, ...] = field(repr=False, default=())

    @property
    def instructions(self) -> int:
        """Instructions executed by all warps together."""
        return sum(warp.instructions for warp in self.warps)


def launch(
    module: Module,
    kernel_name: str,
    grid: Index3,
    block: Index3,
    cluster: Index3,
    dynamic_smem_bytes: int,
    params: list[bytes],
    *,
    chip: Chip | None = None,
    options: Options | None = None,
    memory: HostMemory | None = None,
) -> LaunchReport:
    """Run a kernel.

    `params` are the bytes of each `.param` in order. Global memory is host memory, as far as `memory` allows. Raises a
    subclass of ExecutionError for whatever the kernel or the launch does wrong.
    """
    function = module.entries.get(kernel_name)
    if function is None:
        raise LaunchError(f"no kernel {kernel_name!r} in the module; there are {', '.join(module.entries)}")
    chip = chip or find_chip(module.target)
    options = options or Options()
    memory = memory if memory is not None else HostMemory()
    cluster = function.required_cluster or (cluster if cluster != (0, 0, 0) else (1, 1, 1))
    packed = _pack(function, params)
    shared_bytes = _shared_bytes(function, dynamic_smem_bytes)
    _check(function, grid, block, cluster, shared_bytes, chip)
    chance = random.Random(options.seed)
    eagerness = 0.0 if options.seed == 0 else chance.choice((0.0, 0.1, 0.5, 1.0))
    address = packed.ctypes.data
    running = Grid(
        build(module, function),
        chip,
        options,
        memory,
        grid,
        block,
        cluster,
        shared_bytes,
        function.local_offsets()[""],
        address,
        packed.tobytes(),
        chance,
        Queue(chance, eagerness),
    )
    if options.strict:
        _check_registers(running.program)
        running.races = GlobalRaces(memory)
    own = [(address, packed.size, "kernel parameters")]
    own += [(data.ctypes.data, data.size, name) for name, data in running.program.globals.items()]
    registered = [] if memory.unrestricted else own
    for each in registered:
        memory.register(*each)
    try:
        with np.errstate(all="ignore"):  # overflow and NaN are the kernel's business
            return _run(running)
    finally:
        for start, _, _ in registered:
            memory.unregister(start)


def _check_registers(program: Program) -> None:
    """Raise RaceError for the first register that is touched while an instruction in flight uses it."""
    for early in program.early:
        text = program.module.line_text
        place = Place(program.name, line=early.line, text=text(early.line))
        raise RaceError(early.sentence(text(early.since) if early.since else ""), place)


def _pack(function: Function, params: list[bytes]) -> Array:
    if len(params) != len(function.params):
        raise LaunchError(f"kernel {function.name} has {len(function.params)} parameters, {len(params)} were given")
    offsets = function.param_offsets()
    size = max([16, *(offsets[p.name] + p.size_bytes for p in function.params)])
    store = np.zeros(size + 128, np.uint8)
    skip = -store.ctypes.data % 128
    for param, data in zip(function.params, params, strict=True):
        if len(data) != param.size_bytes:
            raise LaunchError(f"parameter {param.name} has {param.size_bytes} bytes, {len(data)} were given")
        start = skip + offsets[param.name]
        store[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return store[skip : skip + size]


def _shared_bytes(function: Function, dynamic: int) -> int:
    starts = [offset for name, offset in function.shared_offsets.items()]
    return RESERVED_BYTES + max([function.static_shared_bytes, *starts], default=0) + dynamic


def _check(function: Function, grid: Index3, block: Index3, cluster: Index3, shared_bytes: int, chip: Chip) -> None:
    place = Place(function.name)
    threads = block[0] * block[1] * block[2]
    if min(*grid, *block, *cluster) < 1:
        raise LaunchError(f"empty launch: grid {grid}, block {block}, cluster {cluster}", place)
    if threads > chip.max_threads_per_block:
        raise LaunchError(f"{threads} threads a block; {chip.name} allows {chip.max_threads_per_block}", place)
    required, most = function.required_threads, function.max_threads
    if required is not None and required != block:
        raise LaunchError(f"block {block} where the kernel requires {required}", place)
    if most is not None and threads > most[0] * most[1] * most[2]:
        raise LaunchError(f"block {block} where the kernel allows {most}", place)
    if shared_bytes - RESERVED_BYTES > chip.max_shared_per_block_optin:
        what = f"{shared_bytes - RESERVED_BYTES} bytes of shared memory; "
        raise LaunchError(f"{what}{chip.name} allows {chip.max_shared_per_block_optin}", place)
    if cluster[0] * cluster[1] * cluster[2] > chip.max_cluster_size:
        raise LaunchError(f"cluster {cluster}; {chip.name} allows {chip.max_cluster_size} CTAs", place)
    if any(size % part for size, part in zip(grid, cluster, strict=True)):
        raise LaunchError(f"grid {grid} is not a multiple of cluster {cluster}", place)


def _run(grid: Grid) -> LaunchReport:
    parts = [size // part for size, part in zip(grid.size, grid.cluster_size, strict=True)]
    grid.waiting = deque((x, y, z) for z in range(parts[2]) for y in range(parts[1]) for x in range(parts[0]))
    per_cluster = grid.cluster_size[0] * grid.cluster_size[1] * grid.cluster_size[2]
    scheduler = Scheduler(grid, grid.chip.sm_count // per_cluster)
    counts: list[WarpCounts] = []
    clusters = 0
    stuck = 0
    while grid.waiting or scheduler.running:
        if not scheduler.running or (stuck >= len(scheduler.running) and _can_start(grid, scheduler)):
            scheduler.running.insert(0, _make_cluster(grid, grid.waiting.popleft()))
            clusters += 1
            stuck = 0
        cluster = scheduler.running[0]
        before = grid.progress
        if scheduler.run(cluster):
            scheduler.running.remove(cluster)
            counts.extend(_finish(cluster))
            stuck = 0
            continue
        stuck = 0 if grid.progress != before else stuck + 1
        if stuck > len(scheduler.running) and not _can_start(grid, scheduler):
            raise scheduler.deadlock("no warp can go on")
        scheduler.running.append(scheduler.running.pop(0))
    while grid.queue.run_one():
        pass
    return LaunchReport(grid.program.name, clusters, grid.queue.finished, tuple(counts))


def _can_start(grid: Grid, scheduler: Scheduler) -> bool:
    return bool(grid.waiting) and len(scheduler.running) < scheduler.resident


def _finish(cluster: Cluster) -> list[WarpCounts]:
    ranks = {cta.index for cta in cluster.ctas}
    for operation in cluster.grid.queue.in_flight():
        if operation.holds_shared and operation.place.cta in ranks:
            what = f"the CTA ended while shared memory was in use by a copy: {operation.describe()}"
            raise RaceError(what, operation.place)
    for cta in cluster.ctas:
        place = Place(cluster.grid.program.name, cta.index)
        known = Clock()
        for warp in cta.warps:
            known.join(warp.clock)
        try:
            peers = frozenset(warp.dimension for warp in cluster.warps if warp.cta is not cta)
            cta.shared.check_ended(known, peers)
            if cta.tensor_memory is not None:
                cta.tensor_memory.check_ended()
        except ExecutionError as error:
            raise error.located(place) from None
    return [
        WarpCounts(warp.cta.index, warp.index, warp.instructions, warp.waits, warp.bytes_moved)
        for warp in cluster.warps
    ]


def _make_cluster(grid: Grid, index: Index3) -> Cluster:
    cluster = Cluster(grid, index)
    sx, sy, sz = grid.cluster_size
    for z in range(sz):
        for y in range(sy):
            for x in range(sx):
                rank = x + sx * (y + sy * z)
                cta = Cta(cluster, (index[0] * sx + x, index[1] * sy + y, index[2] * sz + z), rank)
                if grid.chip.tensor_memory_columns:
                    cta.tensor_memory = TensorMemory(grid.chip.tensor_memory_columns, cluster.dimensions)
                cluster.ctas.append(cta)
                _make_warps(grid, cta, (x, y, z))
    cluster.ready = list(cluster.warps)
    return cluster


def _make_warps(grid: Grid, cta: Cta, position: Index3) -> None:
    common = _common_symbols(grid, cta, position)
    bx, by, bz = grid.block
    for index in range(grid.warps_per_cta):
        registers = list(grid.program.initial)
        warp = Warp(cta, index, grid.lanes_in(index), registers)
        cta.warps.append(warp)
        linear = LANE_INDEX + np.uint32(index * LANES)
        own: dict[str, Value] = {
            "%tid.x": linear % np.uint32(bx) if bx > 1 else 0,
            "%tid.y": linear // np.uint32(bx) % np.uint32(by) if by > 1 else 0,
            "%tid.z": linear // np.uint32(bx * by) if bz > 1 else 0,
            "%laneid": LANE_INDEX,
            "%warpid": index,
            "%lanemask_eq": np.uint32(1) << LANE_INDEX,
            "%lanemask_lt": (np.uint32(1) << LANE_INDEX) - np.uint32(1),
        }
        own["%lanemask_le"] = own["%lanemask_lt"] | own["%lanemask_eq"]
        own["%lanemask_gt"] = ~own["%lanemask_le"]
        own["%lanemask_ge"] = ~own["%lanemask_lt"]
        for name, slot in grid.program.symbols.items():
            if name in own:
                registers[slot] = own[name]
            elif name in common:
                registers[slot] = common[name]
            else:
                raise LaunchError(f"symbol or special register {name} is not known", Place(grid.program.name))


def _common_symbols(grid: Grid, cta: Cta, position: Index3) -> dict[str, Value]:
    function = grid.program.function
    parts = [size // part for size, part in zip(grid.size, grid.cluster_size, strict=True)]
    found: dict[str, Value] = {
        "WARP_SZ": LANES,
        "%nwarpid": grid.warps_per_cta,
        "%smid": 0,
        "%nsmid": grid.chip.sm_count,
    }
    triples = {
        "%ntid": grid.block,
        "%ctaid": cta.index,
        "%nctaid": grid.size,
        "%cluster_ctaid": position,
        "%cluster_nctaid": grid.cluster_size,
        "%clusterid": cta.cluster.index,
        "%nclusterid": parts,
    }
    for name, triple in triples.items():
        for axis, value in zip("xyz", triple, strict=True):
            found[f"{name}.{axis}"] = value
    found["%cluster_ctarank"] = cta.rank
    found["%cluster_nctarank"] = len(grid.cluster_size) and int(np.prod(grid.cluster_size))
    found["%dynamic_smem_size"] = grid.shared_bytes - RESERVED_BYTES - function.static_shared_bytes
    found["%total_smem_size"] = grid.shared_bytes
    window = cta.rank << CTA_SHIFT
    for name, offset in function.shared_offsets.items():
        found[name] = window | (RESERVED_BYTES + offset)
    for name, offset in function.param_offsets().items():
        found[name] = grid.parameters + offset
    found.update(function.local_offsets())
    for name, data in grid.program.globals.items():
        found[name] = data.ctypes.data
    return found
