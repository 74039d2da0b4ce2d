# SPDX-License-Identifier: Apache-2.0
"""Bulk copies (PTX ISA, "Data Movement: Asynchronous copy, bulk and tensor"): through the asynchronous proxy.

A load is carried out before the barrier that it signals counts its bytes. A store is carried out at the latest when its
bulk group is waited for. Both check their shared memory when they are issued.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..builder import Builder, Registers, Step, check_modifiers
from ..clocks import event
from ..global_races import of_view
from ..lanes import LANES, Array, Value
from ..operations import Operation
from ..reports import DescriptorError, MemoryFaultError, ProxyError
from ..shared import CTA_SHIFT, OFFSET_MASK, SharedMemory, word_range
from ..state import Warp
from ..syntax import Address, Instruction, Operand, Vector
from ..tensor_map import TensorMap, decode
from .addressing import address, cta_at, require_address, shared_at
from .mbarrier import barrier_at
from .synchronisation import uniform
from .tensors import check_box, combine, load_box, read_box, store_box, window

_RANKS = {f"{rank}d": rank for rank in range(1, 6)}
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_COMMON = {
    *("async", "bulk", "tensor", *_RANKS, "tile", "global", "shared::cta", "shared::cluster", "bulk_group"),
    *("mbarrier::complete_tx::bytes", "multicast::cluster", "L2::cache_hint", "cta_group::1", "cta_group::2"),
}


@dataclass
class BulkGroups:
    """A warp's stores: those not yet in a group, and how many groups were committed and waited for."""

    dimension: int
    written: int
    """The dimension of what groups have written to global memory."""
    open: list[tuple[Operation, SharedMemory, slice]] = field(default_factory=list)
    committed: int = 0
    finished: int = 0


def _groups(warp: Warp) -> BulkGroups:
    found: BulkGroups | None = warp.groups.get("bulk")
    if found is None:
        new, name = warp.cta.cluster.dimensions.new, warp.describe()
        found = BulkGroups(new(f"a bulk group of {name}"), new(f"a bulk group's writes by {name}"))
        warp.groups["bulk"] = found
    return found


def handle(builder: Builder, instruction: Instruction) -> Step:
    """cp.async.bulk, cp.reduce.async.bulk and their groups."""
    modifiers = instruction.modifiers
    if "commit_group" in modifiers:
        return _commit_group(builder, instruction)
    if "wait_group" in modifiers:
        return _wait_group(builder, instruction)
    if "prefetch" in modifiers:
        return lambda warp, registers: None
    places = [m for m in modifiers if m in ("global", "shared::cta", "shared::cluster")]
    if len(places) != 2:
        raise builder.unknown(instruction)
    if places[1] == "global":
        return _tensor_load(builder, instruction) if "tensor" in modifiers else _plain_load(builder, instruction)
    if places[0] == "global":
        return _tensor_store(builder, instruction) if "tensor" in modifiers else _plain_store(builder, instruction)
    return _plain_to_cluster(builder, instruction)


# -- operands ----------------------------------------------------------------------------------------------------


def distinct(warp: Warp, values: list[Value]) -> list[tuple[int, ...]]:
    """The values of each active lane as tuples of ints, identical ones once."""
    if all(type(value) is int for value in values):
        return [tuple(values)]
    lanes = [lane for lane in range(LANES) if warp.mask >> lane & 1]
    rows = [tuple(v if type(v) is int else int(v[lane]) for v in values) for lane in lanes]
    return list(dict.fromkeys(rows))


def _coordinates(builder: Builder, instruction: Instruction, place: Address) -> list[int]:
    if not place.extra or not isinstance(place.extra[0], Vector) or len(place.extra) > 1:
        raise builder.unknown(instruction, "coordinates")
    slots = builder.sources(place.extra[0])
    rank = next(_RANKS[m] for m in instruction.modifiers if m in _RANKS)
    if len(slots) != rank:
        raise builder.unknown(instruction, f"{len(slots)} coordinates")
    return slots


def _as_signed(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((value ^ 0x80000000) - 0x80000000 for value in values)


def tensor_at(warp: Warp, pointer: int, rank: int) -> TensorMap:
    """The tensor map at a global (or parameter) address. Raises DescriptorError if it does not have this rank."""
    if pointer % 64:
        raise DescriptorError(f"the tensor map lies at {pointer:#x}, not on 64 bytes")
    found = decode(warp.grid.memory.span(pointer, 128).tobytes())
    if found.rank != rank:
        raise DescriptorError(f"a copy of {rank} dimensions with a tensor map of {found.rank}")
    return found


def _pop_hint(instruction: Instruction) -> list[Operand]:
    operands = list(instruction.operands)
    if instruction.has("L2::cache_hint"):
        operands.pop()
    return operands


# -- loads -------------------------------------------------------------------------------------------------------


def _destinations(warp: Warp, target: int, barrier: int, mask: int | None, pair: bool) -> list[tuple[int, int]]:
    """(shared address, barrier address) of each CTA that a load goes to."""
    if mask is None:
        return [(target, barrier)]
    found = []
    for rank in range(16):
        if mask >> rank & 1:
            signalled = (rank & ~1) | (barrier >> CTA_SHIFT & 1) if pair else rank
            found.append((rank << CTA_SHIFT | target & OFFSET_MASK, signalled << CTA_SHIFT | barrier & OFFSET_MASK))
    return found


def start_load(
    warp: Warp,
    what: str,
    target: int,
    barrier: int,
    size: int,
    write: Callable[[SharedMemory, int], None],
    source: tuple[SharedMemory, slice, int] | None = None,
    view: Callable[[], Array | None] | None = None,
) -> None:
    """Put a load of `size` bytes in flight: later `write` fills the memory, then the barrier counts the bytes.

    `source` is the shared memory that it reads, with the stamp of that read; `view` the global memory.
    """
    memory, offset = shared_at(warp, target, True)
    memory.check_bounds(offset, offset + size, size)
    signal = barrier_at(warp, barrier, True)
    if memory.strict and not warp.clock.knows_fenced(signal.created):
        raise ProxyError(
            f"the initialisation of the mbarrier at shared offset {barrier & OFFSET_MASK:#x} is not visible to the "
            "asynchronous proxy: fence.mbarrier_init is missing"
        )
    operation = warp.start(what)
    words = word_range(offset, size)
    memory.on_async_write(operation, words)
    warp.bytes_moved += size

    def carry_out() -> None:
        write(memory, offset)
        signalled = barrier_at(warp, barrier, True, operation)
        races, seen = warp.grid.races, view() if view is not None and warp.grid.races is not None else None
        if races is not None and seen is not None:
            races.read(operation, warp.cta.cluster.number, signalled.event, of_view(seen))
        memory.settle(words, operation.stamp, signalled.event)
        if source is not None:
            source[0].settle(source[1], source[2], signalled.event)
        signalled.transact(size, operation.clock)
        warp.grid.progress += 1

    operation.holds_shared = True
    warp.grid.queue.add(operation.stamp, operation.on_run(carry_out))


def _tensor_load(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, _COMMON)
    operands = _pop_hint(instruction)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    map_place = require_address(builder, instruction, 1)
    find_map = address(builder, map_place, 64)
    slots = _coordinates(builder, instruction, map_place)
    find_barrier = address(builder, require_address(builder, instruction, 2), 32)
    multicast, pair = instruction.has("multicast::cluster"), instruction.has("cta_group::2")
    mask_slot = builder.source(operands[3], 16) if multicast else -1

    def step(warp: Warp, registers: Registers) -> None:
        values = [
            locate(registers),
            find_map(registers),
            find_barrier(registers),
            registers[mask_slot] if multicast else 0,
        ]
        for target, pointer, barrier, mask, *raw in distinct(warp, values + [registers[slot] for slot in slots]):
            tensor = tensor_at(warp, pointer, len(slots))
            start = _as_signed(tuple(raw))
            check_box(tensor, target & OFFSET_MASK, start)
            for place, signal in _destinations(warp, target, barrier, mask if multicast else None, pair):
                if place >> CTA_SHIFT != signal >> CTA_SHIFT and not pair:
                    raise MemoryFaultError("a load and the barrier it signals are in different CTAs")

                def write(memory: SharedMemory, offset: int, tensor: TensorMap = tensor, start: Any = start) -> None:
                    load_box(tensor, warp.grid.memory, start, memory, offset)

                def view(tensor: TensorMap = tensor, start: Any = start) -> Array | None:
                    return window(tensor, warp.grid.memory, start)[0]

                start_load(warp, "tensor load", place, signal, tensor.box_bytes, write, view=view)

    return step


def _plain_load(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, _COMMON)
    operands = _pop_hint(instruction)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    find_source = address(builder, require_address(builder, instruction, 1), 64)
    size_slot = builder.source(operands[2])
    find_barrier = address(builder, require_address(builder, instruction, 3), 32)
    multicast = instruction.has("multicast::cluster")
    mask_slot = builder.source(operands[4], 16) if multicast else -1

    def step(warp: Warp, registers: Registers) -> None:
        values = [locate(registers), find_source(registers), registers[size_slot], find_barrier(registers)]
        values.append(registers[mask_slot] if multicast else 0)
        for target, source, size, barrier, mask in distinct(warp, values):
            check_plain(size, target, source)
            for place, signal in _destinations(warp, target, barrier, mask if multicast else None, False):

                def write(memory: SharedMemory, offset: int, source: int = source, size: int = size) -> None:
                    memory.u8[offset : offset + size] = warp.grid.memory.span(source, size)

                def view(source: int = source, size: int = size) -> Array:
                    return warp.grid.memory.span(source, size)

                start_load(warp, "bulk load", place, signal, size, write, view=view)

    return step


def check_plain(size: int, *addresses: int) -> None:
    """Raise MemoryFaultError unless the size and the addresses are multiples of 16 bytes."""
    if size % 16 or any(each % 16 for each in addresses):
        shown = ", ".join(hex(each) for each in addresses)
        raise MemoryFaultError(f"a bulk copy of {size} bytes at {shown}: all must be multiples of 16")


def _plain_to_cluster(builder: Builder, instruction: Instruction) -> Step:
    """Shared memory to another CTA's: reads and writes in one operation."""
    check_modifiers(builder, instruction, _COMMON)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    find_source = address(builder, require_address(builder, instruction, 1), 32)
    size_slot = builder.source(instruction.operands[2])
    find_barrier = address(builder, require_address(builder, instruction, 3), 32)

    def step(warp: Warp, registers: Registers) -> None:
        values = [locate(registers), find_source(registers), registers[size_slot], find_barrier(registers)]
        for target, source, size, barrier in distinct(warp, values):
            check_plain(size, target, source)
            own, place = shared_at(warp, source)
            own.check_bounds(place, place + size, size)
            reading = warp.start("bulk copy to the cluster")
            own.on_async_read(reading, word_range(place, size))
            source_part = (own, word_range(place, size), reading.stamp)

            def write(memory: SharedMemory, offset: int, place: int = place, size: int = size, own: Any = own) -> None:
                memory.u8[offset : offset + size] = own.u8[place : place + size]

            start_load(warp, "bulk copy to the cluster", target, barrier, size, write, source_part)

    return step


# -- stores ------------------------------------------------------------------------------------------------------


def start_store(
    warp: Warp,
    what: str,
    source: int,
    size: int,
    write: Callable[[SharedMemory, int], None],
    view: Callable[[], Array | None],
    reduces: bool,
) -> None:
    """Put a store of `size` bytes from shared memory in flight, in the warp's open bulk group; `view` is its target."""
    memory, offset = cta_at(warp, source >> CTA_SHIFT, False).shared, source & OFFSET_MASK
    memory.check_bounds(offset, offset + size, size)
    operation = warp.start(what)
    words = word_range(offset, size)
    memory.on_async_read(operation, words)
    warp.bytes_moved += size
    groups = _groups(warp)
    groups.open.append((operation, memory, words))
    operation.holds_shared = True

    group = groups.committed

    def carry_out() -> None:
        write(memory, offset)
        races, cluster = warp.grid.races, warp.cta.cluster.number
        target = view() if races is not None else None
        if races is not None and target is not None:
            if reduces:
                races.check_atomic(operation, cluster, of_view(target))
            else:
                races.write(operation, cluster, event(groups.written, group + 1), of_view(target))
        warp.grid.progress += 1

    warp.grid.queue.add(("bulk", warp, group), operation.on_run(carry_out))


def _reduction(instruction: Instruction) -> str:
    return next((m for m in instruction.modifiers if m in _REDUCTIONS), "") if instruction.has("reduce") else ""


def _tensor_store(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {*_COMMON, "reduce", *_REDUCTIONS})
    map_place = require_address(builder, instruction, 0)
    find_map = address(builder, map_place, 64)
    slots = _coordinates(builder, instruction, map_place)
    locate = address(builder, require_address(builder, instruction, 1), 32)
    reduction = _reduction(instruction)

    def step(warp: Warp, registers: Registers) -> None:
        values = [find_map(registers), locate(registers), *(registers[slot] for slot in slots)]
        for pointer, source, *raw in distinct(warp, values):
            tensor = tensor_at(warp, pointer, len(slots))
            start = _as_signed(tuple(raw))
            check_box(tensor, source & OFFSET_MASK, start)

            def write(memory: SharedMemory, offset: int, tensor: TensorMap = tensor, start: Any = start) -> None:
                store_box(tensor, warp.grid.memory, start, read_box(tensor, memory, offset), reduction)

            def view(tensor: TensorMap = tensor, start: Any = start) -> Array | None:
                return window(tensor, warp.grid.memory, start)[0]

            start_store(warp, "tensor store", source, tensor.box_bytes, write, view, bool(reduction))

    return step


def _plain_store(builder: Builder, instruction: Instruction) -> Step:
    type_name = instruction.modifiers[-1] if instruction.has("reduce") else ""
    check_modifiers(builder, instruction, {*_COMMON, "reduce", *_REDUCTIONS, "noftz", type_name})
    find_target = address(builder, require_address(builder, instruction, 0), 64)
    locate = address(builder, require_address(builder, instruction, 1), 32)
    size_slot = builder.source(instruction.operands[2])
    reduction = _reduction(instruction)

    def step(warp: Warp, registers: Registers) -> None:
        for target, source, size in distinct(warp, [find_target(registers), locate(registers), registers[size_slot]]):
            check_plain(size, target, source)

            def write(memory: SharedMemory, offset: int, target: int = target, size: int = size) -> None:
                data, into = memory.u8[offset : offset + size], warp.grid.memory.span(target, size)
                if reduction:
                    width = f"u{int(type_name.lstrip('busf')) // 8}"
                    data = combine(into.view(width), data.view(width), reduction, type_name).view("u1")
                into[:] = data

            def view(target: int = target, size: int = size) -> Array:
                return warp.grid.memory.span(target, size)

            start_store(warp, "bulk store", source, size, write, view, bool(reduction))

    return step


# -- groups ------------------------------------------------------------------------------------------------------


def _commit_group(builder: Builder, instruction: Instruction) -> Step:
    def step(warp: Warp, registers: Registers) -> None:
        groups = _groups(warp)
        groups.committed += 1
        for operation, memory, words in groups.open:
            memory.settle(words, operation.stamp, event(groups.dimension, groups.committed))
        groups.open.clear()

    return step


def _wait_group(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"async", "bulk", "wait_group", "read"})
    slot = builder.source(instruction.operands[0])
    writes = not instruction.has("read")

    def step(warp: Warp, registers: Registers) -> None:
        groups = _groups(warp)
        for group in range(groups.finished, groups.committed - uniform(registers[slot], warp)):
            warp.grid.queue.run_stream(("bulk", warp, group))
            groups.finished = group + 1
        warp.clock.learn(event(groups.dimension, groups.finished))
        if writes:
            warp.clock.learn(event(groups.written, max(groups.committed - uniform(registers[slot], warp), 0)))

    return step
